# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Frees what no link, engine, unit or generation needs of a store. Private to socle.inference.

A revision goes by one rename to a trash name, under the lock of its repository, and is unlinked after that. A process
that dies in between leaves trash, which the next run removes. Nothing outside .store is ever touched.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import (
    Link,
    Revision,
    check_root,
    list_repositories,
    list_revisions,
    newest_change,
    previous_of,
    read_links,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.holders import PROC, Claims, find_holders, is_open
from ansible_collections.socle.inference.plugins.module_utils._hub.ledger import Ledger
from ansible_collections.socle.inference.plugins.module_utils._hub.mentions import Key, find_mentions
from ansible_collections.socle.inference.plugins.module_utils._hub.store import (
    STALE_STAGE_S,
    TRASH,
    LockHeld,
    RepoStore,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import files_below
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

KEEP = 2
UNLINKED_AGE_S = 7 * 86400.0
TRASH_NAME = re.compile(rf"{TRASH}[0-9a-f]{{12}}-[0-9a-f]{{8}}")

Mentions = Mapping[Key, "list[Path]"]


@dataclass(frozen=True)
class Rules:
    """What is to be kept."""

    keep: int = KEEP
    """Revisions of each link: the current one, and those that it named before."""
    unlinked_age_s: float = UNLINKED_AGE_S
    """How long a model that no link names is kept."""
    stage_age_s: float = STALE_STAGE_S
    state_dir: Path = Path("/var/lib/socle")
    system: Path = Path("/")
    """Below it are the folders of units."""
    proc: Path = PROC
    jobs: Path | None = None
    """Where the folders of jobs are; the one of this user by default."""
    check: bool = False


@dataclass
class _Round:
    """What a run found and did."""

    removed: list[dict[str, Any]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)
    stage: list[dict[str, Any]] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def collect(root: Path, rules: Rules, progress: Progress) -> dict[str, Any]:
    """Free what is not needed; returns what model_store_gc returns. Raises StoreError."""
    if rules.keep < 1:
        raise StoreError(f"keep must be 1 or more, since the current revision stays, found {rules.keep}")
    found = _Round()
    try:
        if check_root(root):
            named = find_mentions(rules.state_dir, rules.system)
            for store in list_repositories(root, found.warnings):
                progress.update("collecting garbage", detail=store.repo)
                _collect_one(store, named, rules, found)
    except OSError as error:
        raise StoreError(f"garbage of {root} cannot be collected: {error.strerror} ({error.filename})") from error
    return {
        "changed": bool(found.removed or found.stage),
        "freed_bytes": sum(item["bytes"] for item in (*found.removed, *found.stage)),
        "removed": found.removed,
        "kept": found.kept,
        "stage": found.stage,
        "busy": found.busy,
        "warnings": found.warnings,
    }


def reclaimable_bytes(root: Path) -> int | None:
    """What collect() could free, for a message; None where that cannot be said."""
    with contextlib.suppress(StoreError):
        freed: int = collect(root, Rules(check=True), Progress())["freed_bytes"]
        return freed
    return None


def _collect_one(store: RepoStore, named: Mentions, rules: Rules, found: _Round) -> None:
    if rules.check:
        _sweep(store, named, rules, found)
        return
    try:
        with store.locked(0, Progress()):
            _sweep(store, named, rules, found)
    except LockHeld as error:
        found.busy.append(store.repo)
        found.warnings.append(f"{store.repo} is left alone: {error}")


def _sweep(store: RepoStore, named: Mentions, rules: Rules, found: _Round) -> None:
    """Under the lock, or only looking: revisions, what is left of them, stage."""
    ledger = store.read_ledger(found.warnings)
    before = ledger.dumps()
    links = [link for link in read_links(store.root) if (link.hub, link.folder) == (store.hub, store.base.name)]
    revisions = list_revisions(store, ledger, links)
    kept = _kept_by_links(links, ledger, revisions, rules.keep)
    reasons = {revision.snapshot: _reason(revision, links, kept, rules) for revision in revisions}
    for revision in revisions:
        key = (store.hub, store.base.name, revision.snapshot)
        if not reasons[revision.snapshot] and key in named:
            reasons[revision.snapshot] = f"{named[key][0]} names it"
    doomed = [revision for revision in revisions if not reasons[revision.snapshot]]
    if doomed:
        for snapshot, holder in find_holders(claims_of(store, doomed), rules.proc).items():
            reasons[snapshot] = holder
        doomed = [revision for revision in doomed if not reasons[revision.snapshot]]
    found.kept += [
        entry_of(store, revision, reason=reasons[revision.snapshot]) for revision in revisions if revision not in doomed
    ]
    freed = freed_bytes([revision.path for revision in doomed])
    stay = _bring_back(store, rules, found)
    if not rules.check:
        doomed = _remove(store, doomed, ledger, rules, found)
    found.removed += [entry_of(store, revision, bytes=freed[revision.path]) for revision in doomed]
    _sweep_stage(store, ledger, rules, found, stay)
    if not rules.check and (doomed or ledger.dumps() != before):
        # Last, since a full disk takes it only once something is freed. What it says of files that are gone is ignored.
        try:
            store.save_ledger(ledger)
        except OSError as error:
            found.warnings.append(
                f"{error.filename} cannot be written: {error.strerror}; what was freed is freed, and the next run "
                "hashes what it no longer proves"
            )


def _kept_by_links(links: list[Link], ledger: Ledger, revisions: list[Revision], keep: int) -> dict[str, str]:
    """Snapshot -> which link still means it: the current one, and those before it."""
    kept: dict[str, str] = {}
    for link in links:
        for snapshot in previous_of(link, ledger, revisions)[: keep - 1]:
            kept.setdefault(snapshot, f"it is a previous one of {link.name}")
    for link in links:
        kept[link.snapshot] = f"it is the current one of {link.name}"
    return kept


def _reason(revision: Revision, links: list[Link], kept: dict[str, str], rules: Rules) -> str | None:
    """Why a revision stays, or None."""
    if revision.snapshot in kept:
        return kept[revision.snapshot]
    age_s = time.time() - revision.published_s
    if not links and age_s < rules.unlinked_age_s:
        return f"no link names the model, but it is only {age_s / 86400:.1f} days old"
    return None


def claims_of(store: RepoStore, revisions: Iterable[Revision]) -> Claims:
    """What belongs to *revisions* where they are published."""
    claims = Claims()
    for revision in revisions:
        place = f"/.store/{store.hub}/{store.base.name}/rev/{revision.snapshot}"
        claims.add(revision.snapshot, revision.path, place)
    return claims


def _remove(store: RepoStore, doomed: list[Revision], ledger: Ledger, rules: Rules, found: _Round) -> list[Revision]:
    """Take the revisions out of sight, look once more whether somebody was faster, and unlink; returns what went."""
    store.stage.mkdir(exist_ok=True)
    trash: dict[str, Path] = {}
    try:
        for revision in doomed:
            place = store.stage / f"{TRASH}{revision.snapshot}-{secrets.token_hex(4)}"
            revision.path.rename(place)
            trash[revision.snapshot] = place
        for snapshot, holder in held_in_trash(trash, rules).items():
            revision = next(revision for revision in doomed if revision.snapshot == snapshot)
            trash[snapshot].rename(revision.path)
            del trash[snapshot]
            found.kept.append(entry_of(store, revision, reason=holder))
    except Exception:
        # Not known to be unused: nothing may go.
        for snapshot, place in trash.items():
            place.rename(store.revision(snapshot))
        raise
    gone = [revision for revision in doomed if revision.snapshot in trash]
    for place in sorted((store.base / "manifest").glob("*.json")):
        # Also those that a run left which died here.
        if not store.revision(place.stem).exists():
            place.unlink()
    store.remove(trash.values(), ledger)
    return gone


def held_in_trash(trash: Mapping[str, Path], rules: Rules) -> dict[str, str]:
    """Snapshot -> who holds something of what was taken out of sight."""
    if not trash:
        return {}
    claims = Claims()
    for snapshot, place in trash.items():
        claims.add(snapshot, place, f"/{place.name}")
    return {**open_files(trash), **find_holders(claims, rules.proc)}


def _bring_back(store: RepoStore, rules: Rules, found: _Round) -> set[Path]:
    """Look again at what a run took out of sight and then died: who holds it, gets it back. Returns what stays trash.

    The manifest goes before the first file, so what has one is whole.
    """
    trash = trash_of(store)
    stay = set()
    for name, holder in held_in_trash(trash, rules).items():
        snapshot = snapshot_of(name)
        home = store.revision(snapshot)
        found.warnings.append(f"{home}, which was to be freed, is in use: {holder}")
        if home.exists() or not store.read_manifest(snapshot):
            stay.add(trash[name])
        elif not rules.check:
            trash[name].rename(home)
    return stay


def trash_of(store: RepoStore) -> dict[str, Path]:
    """By name, the revisions that a run took out of sight and then died."""
    places = [place for place in store.stage_entries() if TRASH_NAME.fullmatch(place.name)]
    return {place.name: place for place in places if place.is_dir() and not place.is_symlink()}


def snapshot_of(name: str) -> str:
    """Which snapshot the trash of that name was."""
    return name[len(TRASH) :].partition("-")[0]


def open_files(trash: Mapping[str, Path]) -> dict[str, str]:
    """Snapshot -> what somebody has open of it, also from a container whose processes cannot be seen from here."""
    found = {}
    for snapshot, folder in trash.items():
        for place, status in files_below(folder):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and is_open(place):
                    found[snapshot] = f"somebody has {place.name} open"
    return found


def _sweep_stage(store: RepoStore, ledger: Ledger, rules: Rules, found: _Round, stay: set[Path]) -> None:
    """Trash of a run that died, and downloads that nobody went on with; under the lock none has a living owner."""
    now = time.time()
    for place in store.stage_entries():
        with contextlib.suppress(FileNotFoundError):
            if place in stay or (not place.name.startswith(TRASH) and now - newest_change(place) < rules.stage_age_s):
                continue
            found.stage.append({"repo": store.repo, "path": str(place), "bytes": freed_bytes([place])[place]})
            if not rules.check:
                store.remove([place], ledger)


def freed_bytes(folders: Iterable[Path]) -> dict[Path, int]:
    """What removing each of *folders* gives back: not what has another name elsewhere, and what two share only once."""
    names: Counter[tuple[int, int]] = Counter()
    inodes: dict[tuple[int, int], tuple[Path, int, int]] = {}
    freed = {}
    for folder in folders:
        freed[folder] = 0
        for _place, status in files_below(folder):
            key = (status.st_dev, status.st_ino)
            names[key] += 1
            inodes[key] = (folder, status.st_nlink, status.st_blocks * 512)
    for key, (folder, links, size) in inodes.items():
        if names[key] == links:
            freed[folder] += size
    return freed


def entry_of(store: RepoStore, revision: Revision, **more: Any) -> dict[str, Any]:
    """A revision as a module returns it."""
    return {
        "hub": store.hub,
        "repo": store.repo,
        "id": revision.snapshot,
        "commit": revision.commit,
        "requested": revision.requested,
        "names": revision.names,
        "size": revision.bytes,
        "path": str(revision.path),
        **more,
    }
