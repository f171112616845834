# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a repository's files without hashing them again. Pure. Private to socle.inference.

Only a cache: losing it costs time, never correctness.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST, json_cost
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile, path_fault

LEDGER_SCHEMA = 1
SNAPSHOT = re.compile(r"[0-9a-f]{12}")
IDENTITY = ("size", "mtime_ns", "ctime_ns", "inode", "device")
HISTORY = 10

MAX_COST = 4 * JSON_MAX_COST
"""Bytes of memory for several revisions."""
LATEST_S = 1 << 40
"""Seconds since the epoch; a time after it is none."""

CLOCK_SLACK_NS = 2_000_000_000
"""A file system's clock may be a tick ahead of the one that is asked here, or coarser."""


def identity(status: os.stat_result) -> dict[str, int]:
    """What has to be the same for a file to count as untouched."""
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
        "device": status.st_dev,
    }


@dataclass
class Ledger:
    """Which inodes were proven, what a name resolved to, and what each link named before."""

    revisions: dict[str, dict[str, Any]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    links: dict[str, list[str]] = field(default_factory=dict)
    """Snapshots by link, the latest first."""
    clock: Callable[[], float] = time.time
    damaged: bool = False
    """There was one that could not be read, so this one began empty."""

    def files(self, snapshot: str) -> dict[str, Any]:
        """The entries of a snapshot, by path; changes are kept."""
        files: dict[str, Any] = self._revision(snapshot)["files"]
        return files

    def _revision(self, snapshot: str) -> dict[str, Any]:
        return self.revisions.setdefault(snapshot, {"files": {}, "full": None})

    def _entries(self) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
        for revision in self.revisions.values():
            for path, entry in list(revision["files"].items()):
                yield revision["files"], path, entry

    def proves(self, snapshot: str, file: ModelFile, status: os.stat_result) -> bool:
        """Whether the inode is the one that was found to hold *file*, untouched since.

        A time of change that is still to come was written under another clock: then times prove nothing.
        """
        return self.knows(snapshot, file, status) and status.st_ctime_ns <= self.clock() * 1e9 + CLOCK_SLACK_NS

    def knows(self, snapshot: str, file: ModelFile, status: os.stat_result, whenever: bool = False) -> bool:
        """Whether the inode is the one that was found to hold *file*, as far as times tell.

        With *whenever*, its ctime may differ, as it does once the inode got or lost a name: then only a hash proves it.
        """
        entry = self.revisions.get(snapshot, {}).get("files", {}).get(file.path)
        if entry and whenever:
            entry = {**entry, "ctime_ns": status.st_ctime_ns}
        return bool(entry == {**identity(status), "sha256": file.sha256}) and status.st_size == file.size

    def holds(self, status: os.stat_result, sha256: str | None = None) -> bool:
        """Whether the inode was found to hold the content *sha256*, or any, under whatever name, untouched since."""
        found = identity(status)
        return any(
            entry == {**found, "sha256": sha256 or entry["sha256"]}
            for _files, _path, entry in self._entries()
            if entry["inode"] == status.st_ino
        )

    def note(self, snapshot: str, file: ModelFile, status: os.stat_result) -> None:
        """Remember that this inode holds *file*."""
        self.files(snapshot)[file.path] = {**identity(status), "sha256": file.sha256}

    def forget(self, inode: int, device: int) -> None:
        """Remember no longer what this inode holds, under any of its names."""
        for files, path, entry in self._entries():
            if (entry["inode"], entry["device"]) == (inode, device):
                del files[path]

    def renew_ctime(self, before: os.stat_result, after: os.stat_result) -> None:
        """This process gave the inode another name, owner or mode while nobody could write to it: what its state
        *before* proved, its state *after* does, for all its names."""
        known = identity(before)
        for _files, _path, entry in self._entries():
            if entry["inode"] == before.st_ino and entry == {**known, "sha256": entry["sha256"]}:
                entry["ctime_ns"] = after.st_ctime_ns

    def note_hash(self, sha256: str, status: os.stat_result) -> None:
        """The inode was hashed just now: all that knows it by this hash, of whatever time, is proven again."""
        known = {**identity(status), "sha256": sha256, "ctime_ns": None}
        for _files, _path, entry in self._entries():
            if entry["inode"] == status.st_ino and {**entry, "ctime_ns": None} == known:
                entry["ctime_ns"] = status.st_ctime_ns

    def full_check(self, snapshot: str) -> float | None:
        """When all of the snapshot's files had been hashed, in seconds since the epoch; None when that is unknown.

        A file that other revisions share was hashed with them too: the latest time counts for each.
        """
        own = self._full(snapshot)
        if own is None:
            return None
        latest = self._latest()
        return min((latest[_key(entry)] for entry in self.files(snapshot).values()), default=own)

    def file_checks(self, places: Iterable[tuple[str, str]]) -> list[float | None]:
        """When each file, by snapshot and path, was last hashed together with all others of a revision; None when that
        is unknown."""
        latest = self._latest()
        entries = [self.revisions.get(snapshot, {}).get("files", {}).get(path) for snapshot, path in places]
        return [latest.get(_key(entry)) if entry else None for entry in entries]

    def _latest(self) -> dict[tuple[Any, ...], float]:
        """When each file was last hashed with a whole revision."""
        latest: dict[tuple[Any, ...], float] = {}
        for name, revision in self.revisions.items():
            when = self._full(name)
            for entry in revision["files"].values() if when is not None else ():
                latest[_key(entry)] = max(when or 0.0, latest.get(_key(entry), 0.0))
        return latest

    def _full(self, snapshot: str) -> float | None:
        found = self.revisions.get(snapshot, {}).get("full")
        return found if found is not None and found <= self.clock() + CLOCK_SLACK_NS / 1e9 else None

    def note_full(self, snapshot: str, when_s: float | None) -> None:
        """Every file of the snapshot had been hashed at *when_s*."""
        self._revision(snapshot)["full"] = when_s

    def note_link(self, link: str, snapshot: str) -> None:
        """*link* names *snapshot* now."""
        self.links[link] = [snapshot, *(other for other in self.links.get(link, []) if other != snapshot)][:HISTORY]

    def dumps(self) -> str:
        document = {"schema": LEDGER_SCHEMA, "revisions": self.revisions, "refs": self.refs, "links": self.links}
        return json.dumps(document) + "\n"


def load_ledger(text: str, clock: Callable[[], float] = time.time) -> Ledger:
    """The ledger from its text; an empty one where it is damaged, since everything can be proven again."""
    found = Ledger(clock=clock)
    try:
        if json_cost(text.encode("utf-8", "replace")) > MAX_COST:
            return Ledger(clock=clock, damaged=True)
        document = json.loads(text)
        if document["schema"] != LEDGER_SCHEMA:
            return Ledger(clock=clock, damaged=True)
        revisions, refs, links = document["revisions"], document["refs"], document.get("links", {})
    except (ValueError, KeyError, TypeError, RecursionError):
        return Ledger(clock=clock, damaged=True)
    for name, value in revisions.items() if isinstance(revisions, dict) else ():
        files = value.get("files") if isinstance(value, dict) else None
        if SNAPSHOT.fullmatch(name) and isinstance(files, dict):
            found.files(name).update((path, entry) for path, entry in files.items() if _is_entry(path, entry))
            full = value.get("full")
            # A number that is none would compare false with everything, a truth value would be a second.
            if isinstance(full, (int, float)) and not isinstance(full, bool) and 0 <= full <= LATEST_S:
                found.note_full(name, float(full))
    for name, value in refs.items() if isinstance(refs, dict) else ():
        if _is_snapshot(value):
            found.refs[name] = value
    for name, value in links.items() if isinstance(links, dict) else ():
        if isinstance(value, list):
            found.links[name] = [snapshot for snapshot in value if _is_snapshot(snapshot)][:HISTORY]
    return found


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[name] for name in (*IDENTITY, "sha256"))


def _is_snapshot(value: Any) -> bool:
    return isinstance(value, str) and SNAPSHOT.fullmatch(value) is not None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64


def _is_entry(path: str, entry: Any) -> bool:
    return (
        path_fault(path) is None
        and isinstance(entry, dict)
        and set(entry) == {*IDENTITY, "sha256"}
        and all(_is_count(entry[name]) for name in IDENTITY)
        and isinstance(entry["sha256"], str)
    )
