# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data handling of the role model_store."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.socle.inference.plugins.filter.model_store import snapshot_paths, unique_models


def test_a_model_of_several_instances_is_brought_once() -> None:
    models = [{"repo": "b/B"}, {"repo": "a/A", "revision": "v1"}, {"repo": "b/B", "revision": "master"}]
    assert unique_models(models) == [{"repo": "b/B", "revision": "master"}, {"repo": "a/A", "revision": "v1"}]


def test_two_revisions_of_a_model_on_one_host_are_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="a/A is wanted at v1 and at v2"):
        unique_models([{"repo": "a/A", "revision": "v1"}, {"repo": "a/A", "revision": "v2"}])


def test_the_result_maps_each_repository_to_its_place() -> None:
    result = {"repo": "a/A", "path": "/p", "content_id": "sha256:0", "commit": None, "changed": True}
    assert snapshot_paths([result, {"skipped": True}]) == {
        "a/A": {"path": "/p", "content_id": "sha256:0", "commit": None}
    }
