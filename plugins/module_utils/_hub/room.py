# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether there is room for what a run is to bring, and what makes way for it. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.adopt import Candidates, likely_files, linkable_bytes
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import check_root, newest_change, tree_bytes
from ansible_collections.socle.inference.plugins.module_utils._hub.gc import reclaimable_bytes
from ansible_collections.socle.inference.plugins.module_utils._hub.ledger import Ledger
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import (
    GIB,
    Allowed,
    Fault,
    StoreFacts,
    existing,
    judge,
    needed_bytes,
    newest_time,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.request import Request
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore

Facts = Callable[[Path, "tuple[Path, ...]", float, bool], StoreFacts]


@dataclass(frozen=True)
class Load:
    """What a run is to bring, in bytes where nothing else is said."""

    missing: int
    """What no other revision has."""
    files: int
    """Their number."""
    room: int
    """What interrupted downloads of them take on the disk already."""
    fetched: tuple[ModelFile, ...] = ()
    """Those that a hub or a neighbour is asked for."""
    staged: int = 0
    """What of these was received before."""
    reusable: int = 0
    """What is linked from other revisions."""
    adoptable: int = 0
    """What the folders in adopt_from are likely to have; only a hash would tell."""
    linked: int = 0
    """What of that can be linked, and takes no room."""

    @property
    def need(self) -> int:
        return needed_bytes(self.missing, self.room, self.linked)


def load_of(wanted: Sequence[ModelFile], linkable: Iterable[str], candidates: Candidates, store: RepoStore) -> Load:
    """Where *wanted* would come from: *linkable* paths from other revisions, else *candidates*, else a download."""
    linkable = set(linkable)
    missing = [file for file in wanted if file.path not in linkable]
    adoptable = likely_files(missing, candidates)
    likely = set(adoptable)
    fetched = tuple(file for file in missing if file not in likely)
    staged, room = store.staged_bytes(fetched)
    return Load(
        missing=sum(file.size for file in missing),
        files=len(missing),
        room=room,
        fetched=fetched,
        staged=staged,
        reusable=sum(file.size for file in wanted if file.path in linkable),
        adoptable=sum(file.size for file in adoptable),
        linked=linkable_bytes(adoptable, candidates, existing(store.root)),
    )


class Room:
    """The file system of the store, as a run that brings one snapshot sees it."""

    def __init__(self, request: Request, store: RepoStore, facts: Facts) -> None:
        self.looked: dict[str, Any] = {}
        """What was found when it was last looked at."""
        self._request = request
        self._store = store
        self._facts = facts

    def faults(self, snapshot: str, load: Load, probe: bool, spare: bool = False) -> list[Fault]:
        """What is in the way of *load*; with *probe* writing is tried, with *spare* the interrupted downloads of other
        revisions count as free."""
        request, store = self._request, self._store
        places = (store.stage, store.base / "rev")
        newest = newest_time((store.base / "ledger.json", *places))
        facts = self._facts(request.store, places, newest, probe)
        self.looked = facts.as_dict()
        allowed = Allowed(request.reserve_bytes, request.allow_shared_fs, request.allow_volatile_fs, request.force)
        try:
            check_root(request.store)
        except StoreError as error:
            # No other action takes that for a store.
            return [Fault("link", str(error))]
        faults = judge(facts, load.need, load.files, allowed)
        if spare and any(fault.id == "space" for fault in faults):
            roomy = replace(facts, free=facts.free + self._spare(snapshot, load))
            faults = judge(roomy, load.need, load.files, allowed)
        if any(fault.id == "space" for fault in faults):
            faults = judge(facts, load.need, load.files, allowed, reclaimable_bytes(request.store))
        return faults

    def _spare(self, snapshot: str, load: Load) -> int:
        """Bytes that interrupted downloads of other revisions take, which go where space is short."""
        leftovers = self._store.leftovers(snapshot)
        others = sum(tree_bytes(job) for job in self._store.jobs() if job not in leftovers)
        return max(0, others - load.room)

    def make(self, snapshot: str, files: Sequence[ModelFile], job: Path, ledger: Ledger) -> list[str]:
        """Look again, now that it is known exactly what is to come; what was staged of other revisions makes way.

        Returns what to warn of; raises StoreError where that is not enough.
        """
        _staged, room = self._store.staged_bytes(files)
        load = Load(sum(file.size for file in files), len(files), room)
        others = sorted((other for other in self._store.jobs() if other != job), key=newest_change)
        warnings: list[str] = []
        while True:
            faults = self.faults(snapshot, load, probe=False)
            fault = next((fault for fault in faults if fault.id in ("space", "inodes")), None)
            if fault is None:
                return warnings
            if not others:
                raise StoreError(fault.message, faults=[fault.id], store=self.looked)
            size = tree_bytes(others[0])
            self._store.remove([others.pop(0)], ledger)
            warnings.append(
                f"space is short: {size / GIB:.2f} GiB that an interrupted download of another revision of "
                f"{self._store.repo} had received were removed"
            )
