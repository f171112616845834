# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hubs, repositories, revisions and links may be called, since they become parts of paths. Pure. Private to
socle.inference."""

from __future__ import annotations

import re

SOURCES = ("modelscope", "huggingface", "directory")

PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
REPO = re.compile(rf"(?!.*--.*/)(?!.*-/){PART}/{PART}")
"""An organisation neither holds "--" nor ends in "-": else two repositories would share the folder ORG--NAME."""
REPO_RULE = (
    "organisation/name, each of at most 96 letters, digits, '.', '_' and '-', with '--' in the name alone and no '-' "
    "at the end of the organisation, since the folder is called ORGANISATION--NAME and two models must not share one"
)

LINK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,193}")
"""As long as ORG--NAME can be."""
REVISION = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff]{1,200}")


def folder_of(repo: str) -> str:
    """The name of a repository as one part of a path, such as Qwen--Qwen3-8B."""
    return repo.replace("/", "--")


def repo_of(folder: str) -> str | None:
    """The repository that folder_of() names so; None where there is none."""
    repo = folder.replace("--", "/", 1)
    return repo if REPO.fullmatch(repo) else None
