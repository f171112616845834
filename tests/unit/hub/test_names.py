# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a repository may be called, and which folder is its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.lock import lock_location
from ansible_collections.socle.inference.plugins.module_utils._hub.names import LINK, REPO, folder_of, repo_of


@pytest.mark.parametrize("repo", ["Org/Model", "a/b--c", "a-b/c---d--e", "a/b-", "a.b/c..d", "o" * 96 + "/" + "n" * 96])
def test_a_repository_and_its_folder_name_each_other(repo: str) -> None:
    assert REPO.fullmatch(repo)
    assert repo_of(folder_of(repo)) == repo
    assert LINK.fullmatch(folder_of(repo)), "the link of a model is called like its folder"


@pytest.mark.parametrize("repo", ["a--b/c", "a-/b", "a/-b", "a", "a/b/c", "../b", "a/.b"])
def test_what_could_share_a_folder_or_leave_the_store_is_refused_with_the_reason(repo: str, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"since the folder is called ORGANISATION--NAME and two models must not share"):
        lock_location(str(tmp_path), "modelscope", repo, "master")
