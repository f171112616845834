# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes one model from a store, whole or not at all. Private to socle.inference.

Its revisions are taken out of sight by renames, under the locks of its repositories, and looked at once more before
links and files go. A process that dies in between leaves trash and links, which the next run removes.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import (
    Link,
    Revision,
    check_root,
    list_repositories,
    list_revisions,
    read_links,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.gc import (
    Rules,
    claims_of,
    entry_of,
    freed_bytes,
    held_in_trash,
    open_files,
    snapshot_of,
    trash_of,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.holders import find_holders
from ansible_collections.socle.inference.plugins.module_utils._hub.job_control import JobControl, default_base
from ansible_collections.socle.inference.plugins.module_utils._hub.ledger import Ledger
from ansible_collections.socle.inference.plugins.module_utils._hub.mentions import find_live_mentions
from ansible_collections.socle.inference.plugins.module_utils._hub.names import REPO, REPO_RULE, SOURCES
from ansible_collections.socle.inference.plugins.module_utils._hub.owner import describe_owner
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import OWNER_BYTES, read_state
from ansible_collections.socle.inference.plugins.module_utils._hub.store import TRASH, LockHeld, RepoStore
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

SHOWN = 3


@dataclass(frozen=True)
class _Part:
    """What one source's folder of the model holds."""

    store: RepoStore
    revisions: list[Revision]
    links: list[Link]
    stage: list[Path]


def remove_model(root: Path, repo: str, rules: Rules, progress: Progress) -> dict[str, Any]:
    """Remove links, revisions and left-overs of *repo*, from whatever source; returns what model_store_remove returns.

    Nothing goes where anything of it is in use: that is returned with ``rules.check``, else StoreError is raised.
    """
    if not REPO.fullmatch(repo):
        raise StoreError(f"repo must be {REPO_RULE}, found {repo[:120]!r}")
    warnings: list[str] = []
    progress.update("removing", detail=repo)
    try:
        stores = []
        if check_root(root):
            stores = [store for store in list_repositories(root, warnings) if store.repo == repo]
        with contextlib.ExitStack() as locks:
            in_use = [] if rules.check else _lock(stores, locks)
            return {**_remove(root, repo, stores, rules, in_use), "repo": repo, "warnings": warnings}
    except OSError as error:
        raise StoreError(f"{repo} cannot be removed from {root}: {error.strerror} ({error.filename})") from error


def _lock(stores: list[RepoStore], locks: contextlib.ExitStack) -> list[dict[str, Any]]:
    for store in stores:
        try:
            locks.enter_context(store.locked(0, Progress()))
        except LockHeld:
            return [_busy(store)]
    return []


def _busy(store: RepoStore) -> dict[str, Any]:
    try:
        owner = read_state(store.base / "lock", OWNER_BYTES)
    except (OSError, UnicodeDecodeError):
        owner = ""
    return {"hub": store.hub, "repo": store.repo, "reason": f"another run works on it: {describe_owner(owner)}"}


def _jobs(root: Path, store: RepoStore, rules: Rules) -> list[dict[str, Any]]:
    """The job of a run that is under way, and may wait for its turn without the lock."""
    view = JobControl(rules.jobs or default_base(), str(root), store.hub, store.repo).look()
    if view is None or view.over or not view.running:
        return []
    pid = view.status.get("pid")
    process = f"process {pid}" if isinstance(pid, int) else str(view.folder.path)
    return [{"hub": store.hub, "repo": store.repo, "reason": f"a download of it is about to begin: {process}"}]


def _remove(
    root: Path, repo: str, stores: list[RepoStore], rules: Rules, in_use: list[dict[str, Any]]
) -> dict[str, Any]:
    links = read_links(root)
    parts = []
    for store in stores:
        own = [link for link in links if (link.hub, link.folder) == (store.hub, store.base.name)]
        revisions = list_revisions(store, store.read_ledger(), own)
        parts.append(_Part(store, revisions, own, store.stage_entries()))
        if rules.check and store.read_lock() is not None:
            in_use.append(_busy(store))
    # Also of a source that nothing is here of yet.
    for hub in SOURCES:
        if not any(item["hub"] == hub for item in in_use):
            in_use += _jobs(root, RepoStore(root, hub, repo), rules)
    if rules.check or not in_use:
        in_use += _uses(parts, rules)
    if in_use and not rules.check:
        raise _refusal(repo, in_use)
    folders = [revision.path for part in parts for revision in part.revisions]
    places = [place for part in parts for place in part.stage]
    freed = freed_bytes([*folders, *places])
    result = {
        "changed": any(part.revisions or part.links or part.stage for part in parts),
        "freed_bytes": sum(freed.values()),
        "links": sorted(link.name for part in parts for link in part.links),
        "removed": [
            entry_of(part.store, revision, bytes=freed[revision.path]) for part in parts for revision in part.revisions
        ],
        "stage": [{"repo": repo, "path": str(place), "bytes": freed[place]} for place in places],
        "in_use": in_use,
    }
    if not rules.check and result["changed"]:
        _carry_out(root, repo, parts, rules)
    return result


def _uses(parts: list[_Part], rules: Rules) -> list[dict[str, Any]]:
    """The revisions that somebody needs, each with the reason."""
    named = find_live_mentions(rules.state_dir, rules.system)
    found = []
    for part in parts:
        # What a run took out of sight and then died may have been opened in that moment.
        for name, holder in held_in_trash(trash_of(part.store), rules).items():
            # Without the id of a revision, which may have been published again and be unused.
            about = {"hub": part.store.hub, "repo": part.store.repo, "path": str(part.store.stage / name)}
            found.append({**about, "reason": f"{snapshot_of(name)}, which was to be freed: {holder}"})
        if not part.revisions:
            continue
        folders = {revision.snapshot: revision.path for revision in part.revisions}
        holders = {**open_files(folders), **find_holders(claims_of(part.store, part.revisions), rules.proc)}
        for revision in part.revisions:
            places = named.get((part.store.hub, part.store.base.name, revision.snapshot))
            reason = f"{places[0]} names it" if places else holders.get(revision.snapshot)
            if reason:
                found.append(entry_of(part.store, revision, reason=reason))
    return found


def _refusal(repo: str, in_use: list[dict[str, Any]]) -> StoreError:
    shown = [f"{item['id']}: {item['reason']}" if "id" in item else str(item["reason"]) for item in in_use]
    more = f"; and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return StoreError(
        f"{repo} is in use, so nothing of it was removed ({'; '.join(shown[:SHOWN])}{more}): stop or remove what uses "
        "it, then run this again",
        in_use=in_use,
    )


def _carry_out(root: Path, repo: str, parts: list[_Part], rules: Rules) -> None:
    moved: list[tuple[Path, Path]] = []
    try:
        for part in parts:
            part.store.stage.mkdir(exist_ok=True)
            trash = {}
            for revision in part.revisions:
                place = part.store.stage / f"{TRASH}{revision.snapshot}-{secrets.token_hex(4)}"
                revision.path.rename(place)
                moved.append((revision.path, place))
                trash[revision.snapshot] = place
            late = held_in_trash(trash, rules)
            if late:
                raise _refusal(repo, [{"id": snapshot, "reason": reason} for snapshot, reason in late.items()])
    except Exception:
        # Not known to be unused: nothing may go.
        for home, place in moved:
            place.rename(home)
        raise
    for part in parts:
        for link in part.links:
            (root / link.name).unlink()
    for part in parts:
        for manifest in (part.store.base / "manifest").glob("*.json"):
            manifest.unlink()
        # Nothing new is written: the disk may be full.
        with contextlib.suppress(FileNotFoundError):
            (part.store.base / "ledger.json").unlink()
        part.store.remove(part.store.stage_entries(), Ledger())
