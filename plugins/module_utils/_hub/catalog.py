# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a store holds: repositories, revisions, links, left-overs; only looks. Private to socle.inference."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.journal import read_journal
from ansible_collections.socle.inference.plugins.module_utils._hub.ledger import SNAPSHOT, Ledger
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.mentions import find_mentions
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import OWNER_BYTES, read_state
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import entries_below, files_below

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
TARGET = re.compile(rf"\.store/(?P<hub>{NAME})/(?P<folder>{NAME})/rev/(?P<snapshot>[0-9a-f]{{12}})/?")


@dataclass(frozen=True)
class Link:
    """<root>/<name>, which names a revision."""

    name: str
    hub: str
    folder: str
    snapshot: str


@dataclass
class Revision:
    """One published revision of a repository."""

    snapshot: str
    path: Path
    repo: str | None
    """None where its manifest is lost."""
    commit: str | None
    content_id: str | None
    requested: str | None
    bytes: int | None
    files: int | None
    published_s: float
    current_of: list[str] = field(default_factory=list)
    previous_of: list[str] = field(default_factory=list)
    verified_s: float | None = None
    names: list[str] = field(default_factory=list)
    """Branches and tags that meant it when they were last asked for."""


def check_root(root: Path) -> Path | None:
    """The folder of all snapshots; None where there is none yet. Raises StoreError where it is not a real folder."""
    if not root.is_absolute():
        raise StoreError(f"store must be an absolute path, found {str(root)!r}")
    inner = root / ".store"
    if inner.is_symlink():
        raise StoreError(f"{inner} is a symbolic link, and what it names is no store of socle's: nothing was touched")
    return inner if inner.is_dir() else None


def read_links(root: Path) -> list[Link]:
    """The links of the store that name a revision, by name; anything else in the store's folder is none of ours."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    # A person may have made a link, and written the same in other words, such as by where the store really is.
    bases = (root, root.resolve())
    found = []
    for entry in entries:
        # A link that goes meanwhile leaves the others as they are: what they name is to stay.
        with contextlib.suppress(FileNotFoundError):
            if entry.is_symlink():
                target = os.path.normpath(root / Path(entry.path).readlink())
                match = next(filter(None, (TARGET.fullmatch(os.path.relpath(target, base)) for base in bases)), None)
                if match:
                    found.append(Link(entry.name, match["hub"], match["folder"], match["snapshot"]))
    return found


def list_repositories(root: Path, warnings: list[str]) -> list[RepoStore]:
    """The repositories of the store; a symbolic link in place of a folder is left out with a warning."""
    inner = check_root(root)
    found = []
    for hub in _folders(inner, warnings) if inner else ():
        for folder in _folders(hub, warnings):
            store = RepoStore.at(root, hub.name, folder.name)
            if store is None:
                warnings.append(f"{folder} is no folder of a model: it is left alone")
            elif all(not (folder / name).is_symlink() for name in ("rev", "stage", "manifest", "lock")):
                found.append(store)
            else:
                warnings.append(f"{folder} holds a symbolic link in place of a folder of the store: it is left alone")
    return found


def list_revisions(store: RepoStore, ledger: Ledger, links: list[Link]) -> list[Revision]:
    """The revisions of a repository, the latest published first."""
    found = []
    own = [link for link in links if (link.hub, link.folder) == (store.hub, store.base.name)]
    for folder in _folders(store.base / "rev", []):
        if not SNAPSHOT.fullmatch(folder.name):
            continue
        manifest = store.read_manifest(folder.name)
        try:
            published_s = folder.stat().st_mtime
        except FileNotFoundError:
            # Garbage collection was faster than this look.
            continue
        found.append(
            Revision(
                snapshot=folder.name,
                path=folder,
                repo=manifest.repo if manifest else None,
                commit=manifest.commit if manifest else None,
                content_id=manifest.content_id if manifest else None,
                requested=_requested(manifest, ledger) if manifest else None,
                bytes=manifest.total_bytes if manifest else None,
                files=len(manifest.files) if manifest else None,
                published_s=published_s,
                current_of=[link.name for link in own if link.snapshot == folder.name],
                verified_s=ledger.full_check(folder.name),
                names=sorted(name for name, snapshot in ledger.refs.items() if snapshot == folder.name),
            )
        )
    found.sort(key=lambda revision: (-revision.published_s, revision.snapshot))
    for link in own:
        before = previous_of(link, ledger, found)
        for revision in found:
            if before and revision.snapshot == before[0]:
                revision.previous_of.append(link.name)
    return found


def _requested(manifest: Manifest, ledger: Ledger) -> str:
    """What it was asked for as; its commit, once that name means another revision."""
    moved = ledger.refs.get(manifest.requested, manifest.id) != manifest.id
    return manifest.commit or manifest.requested if moved else manifest.requested


def previous_of(link: Link, ledger: Ledger, revisions: list[Revision]) -> list[str]:
    """The snapshots that *link* named before the current one, the latest first, as far as they are still there.

    A store that kept no history yet has the order in which they were published.
    """
    there = [revision.snapshot for revision in revisions]
    known = [snapshot for snapshot in ledger.links.get(link.name, []) if snapshot in there]
    rest = [] if len(ledger.links.get(link.name, [])) > 1 else [name for name in there if name not in known]
    return [snapshot for snapshot in [*known, *rest] if snapshot != link.snapshot]


def describe_store(root: Path, state_dir: Path) -> dict[str, Any]:
    """What model_store_info returns: models, and warnings."""
    warnings: list[str] = []
    check_root(root)
    models = []
    try:
        links = read_links(root)
        mentions = find_mentions(state_dir)
        for store in list_repositories(root, warnings):
            ledger = store.read_ledger(warnings)
            models.append(
                {
                    "hub": store.hub,
                    "repo": store.repo,
                    "links": [link.name for link in links if (link.hub, link.folder) == (store.hub, store.base.name)],
                    "revisions": [
                        _as_dict(revision, mentions.get((store.hub, store.base.name, revision.snapshot), []))
                        for revision in list_revisions(store, ledger, links)
                    ],
                    "lock": store.read_lock(),
                    "stage": _stage_entries(store),
                    "downloads": list_downloads(store),
                }
            )
    except OSError as error:
        raise StoreError(f"the store {root} cannot be read: {error.strerror} ({error.filename})") from error
    return {"models": models, "warnings": warnings}


def list_downloads(store: RepoStore) -> list[dict[str, Any]]:
    """Downloads that are under way or were cut off: what each is to become, and how much of it is there."""
    found: dict[str, dict[str, Any]] = {}
    for job in store.jobs():
        try:
            owner = json.loads(read_state(job / "owner.json", OWNER_BYTES))
            snapshot = owner["snapshot"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        if not isinstance(snapshot, str):
            continue
        total = owner.get("total_bytes")
        entry = {
            "id": snapshot,
            "requested": _text(owner.get("requested")),
            "commit": _text(owner.get("commit")),
            "bytes": total if isinstance(total, int) and 0 <= total < 1 << 63 else None,
            "received": _received_bytes(job),
        }
        # A later run takes over what an earlier one received: the one that has more says how far it is.
        if snapshot not in found or found[snapshot]["received"] < entry["received"]:
            found[snapshot] = entry
    return list(found.values())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _received_bytes(job: Path) -> int:
    """What the download in the folder *job* has: files in its tree, and what the journals of its parts tell."""
    whole = sum(status.st_size for _place, status in files_below(job / "tree"))
    parts = [_received_of_part(place, status) for place, status in files_below(job / "part") if not place.suffix]
    return whole + sum(parts)


def _received_of_part(place: Path, status: os.stat_result) -> int:
    journal = read_journal(place)
    if journal is None or journal.spans is None:
        return status.st_size
    return sum(end - start for start, end in journal.spans)


def tree_bytes(folder: Path) -> int:
    """What the files in *folder* and below, or the file *folder*, take on disk."""
    return sum(status.st_blocks * 512 for _place, status in files_below(folder))


def newest_change(folder: Path) -> float:
    """When *folder*, or anything in it, was last changed. Raises FileNotFoundError where it is gone."""
    times = (status.st_mtime for _place, status in entries_below(folder))
    return max(times, default=None) or folder.lstat().st_mtime


def utc(seconds: float | None) -> str | None:
    """A time as text, such as 2026-11-30T09:28:44Z."""
    return None if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _as_dict(revision: Revision, used_by: list[Path]) -> dict[str, Any]:
    return {
        "id": revision.snapshot,
        "path": str(revision.path),
        "commit": revision.commit,
        "content_id": revision.content_id,
        "requested": revision.requested,
        "names": revision.names,
        "bytes": revision.bytes,
        "files": revision.files,
        "published": utc(revision.published_s),
        "current_of": revision.current_of,
        "previous_of": revision.previous_of,
        "used_by": [str(place) for place in used_by],
        "verified": utc(revision.verified_s),
    }


def _stage_entries(store: RepoStore) -> list[dict[str, Any]]:
    found = []
    for place in store.stage_entries():
        # A download that ends meanwhile takes its folder along.
        with contextlib.suppress(FileNotFoundError):
            found.append({"path": str(place), "bytes": tree_bytes(place), "changed": utc(newest_change(place))})
    return found


def _folders(parent: Path, warnings: list[str]) -> list[Path]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            if entry.is_symlink():
                warnings.append(f"{entry.path} is a symbolic link in the place of a folder: it is left alone")
            elif entry.is_dir():
                found.append(Path(entry.path))
    return found
