# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be asked of the store about one model. Pure. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.names import LINK, REPO, REPO_RULE, REVISION


@dataclass(frozen=True)
class Request:
    """What is wanted."""

    repo: str
    revision: str
    store: Path
    link: str | None = None
    full: bool = False
    structure: bool = False
    """Also look into the files of a snapshot that is in place already."""
    verify_max_age_s: float | None = None
    """Hash everything where that was last done longer ago, or never."""
    reserve_bytes: int | None = None
    lock_timeout_s: float = 600.0
    content_id: str | None = None
    manifest: Manifest | None = None
    """What the revision is known to be: then no hub is asked for it."""
    adopt_from: tuple[Path, ...] = ()
    allow_shared_fs: bool = False
    allow_volatile_fs: bool = False
    force: bool = False
    offline: bool = False
    check: bool = False
    owner: str | None = None
    """User that the files are to belong to, by name or number; None leaves them with whoever runs this."""
    group: str | None = None
    probe: bool = False
    """In check mode: try writing into the store nevertheless."""
    activate: bool = True
    """Else nothing is published and no link moved: with *offline*, only what is in place is looked at."""
    look_only: bool = False
    """In check mode: hash nothing; the plan counts what is left to be proven."""


def check_request(request: Request) -> None:
    """Raise SocleError for names that no path or address may hold, and for what contradicts itself."""
    if not REPO.fullmatch(request.repo):
        raise HubError(f"repo must be {REPO_RULE}, found {request.repo[:120]!r}")
    if not REVISION.fullmatch(request.revision):
        raise HubError(f"revision must be a branch, a tag or a commit, found {request.revision[:120]!r}")
    if request.link is not None and not LINK.fullmatch(request.link):
        raise StoreError(f"link must be a plain name within the store, found {request.link[:120]!r}")
    if not request.store.is_absolute():
        raise StoreError(f"store must be an absolute path, found {str(request.store)!r}")
    if request.manifest and request.manifest.repo != request.repo:
        raise HubError(f"the manifest describes {request.manifest.repo}, but {request.repo} is wanted")
