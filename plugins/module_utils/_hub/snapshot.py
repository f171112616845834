# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order in which a revision of a model comes into the store, from request to result. Private to socle.inference."""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.adopt import (
    Candidates,
    adopt_files,
    find_candidates,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.ages import is_full_due
from ansible_collections.socle.inference.plugins.module_utils._hub.answer import (
    SHOWN_FILES,
    Done,
    Outcome,
    build_answer,
    shown_path,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.batch import Batch
from ansible_collections.socle.inference.plugins.module_utils._hub.climb import Climb
from ansible_collections.socle.inference.plugins.module_utils._hub.download import (
    Meter,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.lease import is_written
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import is_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Hub, Origin
from ansible_collections.socle.inference.plugins.module_utils._hub.ownership import Ownership, find_ownership
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import (
    read_facts,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.request import Request, check_request
from ansible_collections.socle.inference.plugins.module_utils._hub.room import Facts, Load, Room, load_of
from ansible_collections.socle.inference.plugins.module_utils._hub.store import (
    Inspection,
    RepoStore,
    Source,
    make_folder,
    part_of,
    remove_job,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.structure import check_structure
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

__all__ = ["Request", "ensure_snapshot"]

DIRECTORY = "directory"


@dataclass
class _Found:
    manifest: Manifest
    inspection: Inspection


Origins = Callable[[Manifest], Sequence[Origin]]


class _Run:
    def __init__(
        self,
        request: Request,
        hub: Hub,
        progress: Progress,
        origins: Origins | None,
        shelf: Shelf | None,
        facts: Facts,
    ) -> None:
        if hub.name == DIRECTORY and request.manifest is None:
            # What a folder holds has a place in the store by what it is, not by how it came.
            request = replace(request, manifest=hub.resolve(request.repo, request.revision))
        self.request = request
        self.hub = hub
        self.origins = origins or (lambda manifest: [hub.origin(manifest)])
        self.shelf = shelf
        self.progress = progress
        self.started = time.monotonic()
        self.verify_s = 0.0
        self.warnings: list[str] = []
        self.store = RepoStore(request.store, request.manifest.hub if request.manifest else hub.name, request.repo)
        # What is only verified may belong to anybody.
        self.ownership = find_ownership(request.owner, request.group) if request.activate else Ownership()
        self.link = request.link or posixpath.basename(request.repo)
        self.ledger = self.store.read_ledger(self.warnings)
        self.room = Room(request, self.store, facts)

    def ensure(self) -> dict[str, Any]:
        previous = self.store.read_link(self.link)
        found = self._resolve()
        manifest, inspection = found.manifest, found.inspection
        self._check_pin(manifest)
        if not self.request.activate:
            # Offline, so that it is whole.
            self._check_structure(manifest)
            self._remember(found)
            loose = self._strangers(inspection)
            if loose:
                self.warnings.append(
                    f"{self.store.revision(manifest.id)} has files that are not read-only{_named(loose)}: a repair "
                    "puts that right"
                )
            return self._result(found, previous, changed=False)
        self._shelve(inspection.intact, self.store.revision(manifest.id))
        if inspection.whole and previous == manifest.id and not self._strangers(inspection):
            if self.request.structure or inspection.full:
                self._check_structure(manifest)
            if not self.request.check:
                self._tidy(found)
            return self._result(found, previous, changed=False)
        if self.request.check:
            return self._result(found, previous, changed=True)
        candidates = self._candidates(inspection)
        faults = self.room.faults(manifest.id, self._load(found, candidates), probe=True, spare=True)
        if faults:
            raise StoreError(
                "; ".join(fault.message for fault in faults),
                faults=[fault.id for fault in faults],
                store=self.room.looked,
            )
        try:
            self.store.prepare()
            with self.store.locked(self.request.lock_timeout_s, self.progress, self.hub.sleep):
                return self._change(manifest, inspection, candidates)
        except OSError as error:
            raise StoreError(
                f"the store {self.request.store} cannot be written: {error.strerror or error} "
                f"({error.filename or 'no name'})"
            ) from error

    def _shelve(self, paths: Iterable[str], folder: Path) -> None:
        """Whoever serves these files on finds them, proven, in *folder*."""
        for path in paths:
            self._prove(path, folder / path)

    def _prove(self, path: str, location: Path) -> None:
        if self.shelf and path in self.shelf.files:
            self.shelf.prove(path, location)

    def _strangers(self, inspection: Inspection) -> list[str]:
        """The good files that belong to somebody else than they should, or are not read-only."""
        return [path for path, status in inspection.intact.items() if not self.ownership.fits(status)]

    def _is_full(self, manifest: Manifest) -> bool:
        checked = self.ledger.full_check(manifest.id)
        return is_full_due(self.request.full, self.request.verify_max_age_s, checked, time.time())

    # What is asked for

    def _resolve(self) -> _Found:
        """The manifest of the requested revision: from the hub, or from the store where that is enough."""
        request = self.request
        local = request.manifest or self.store.known(request.revision, self.ledger)
        settled = request.offline or is_commit(request.revision) or request.manifest is not None
        found = _Found(local, self._inspect(local)) if local and settled else None
        if request.manifest and found:
            self._check_known(request.manifest)
            if not request.offline:
                return found
        if request.offline:
            if found is None:
                raise StoreError(
                    f"{request.repo} at {request.revision} is not in the store {request.store}, and the option "
                    "offline is set: download it once without it"
                )
            if not found.inspection.whole:
                self._remember(found)
                raise StoreError(
                    f"{request.repo} at {request.revision} has {len(found.inspection.wanted)} missing or "
                    f"damaged files{_named([file.path for file in found.inspection.wanted])} and "
                    f"{len(found.inspection.extra)} foreign ones{_named(found.inspection.extra)} in the store, and "
                    "the option offline is set: repair it without it",
                    wanted=[file.path for file in found.inspection.wanted][:SHOWN_FILES],
                    extra=[shown_path(path) for path in found.inspection.extra[:SHOWN_FILES]],
                )
            return found
        if found and found.inspection.whole:
            return found
        try:
            manifest = self._ask()
        except HubUnreachable as error:
            if local and found is None:
                found = _Found(local, self._inspect(local))
            if found and found.inspection.whole:
                self.warnings.append(
                    f"{error}; {request.repo} at {request.revision} is in the store and proven as of its last download "
                    f"({found.manifest.id}), whether the hub has something newer is unknown"
                )
                return found
            raise HubUnreachable(
                f"{error}, and {request.repo} at {request.revision} is not complete in {request.store}: check "
                "address, network and proxy (HTTPS_PROXY, NO_PROXY in the task's environment, or the option proxy), "
                "set the option endpoint to another one, or bring the model on a disk (the option source: directory)",
                **error.fields,
            ) from error
        self._check_known(manifest)
        return _Found(manifest, self._inspect(manifest))

    def _check_known(self, manifest: Manifest) -> None:
        """Refuse other files under a name that had some before."""
        known = self.store.read_manifest(manifest.id)
        if known and known.content_id != manifest.content_id:
            who = "the manifest that was given" if self.request.manifest else self.hub.host
            raise HubError(
                f"{who} now lists other files for {manifest.repo} at {manifest.id} than when it was downloaded: "
                f"{manifest.content_id} instead of {known.content_id}; nothing was changed, find out why",
                content_id=manifest.content_id,
                expected=known.content_id,
            )

    def _ask(self) -> Manifest:
        self.progress.update("listing", detail=self.hub.host)
        return self.hub.resolve(self.request.repo, self.request.revision)

    def _check_pin(self, manifest: Manifest) -> None:
        pin = self.request.content_id
        if pin and pin != manifest.content_id:
            raise HubError(
                f"{manifest.repo} at {manifest.requested} has the content {manifest.content_id}, but {pin} is "
                "pinned: nothing was "
                "downloaded; pin the commit that is wanted, or change content_id to accept it",
                content_id=manifest.content_id,
                expected=pin,
                commit=manifest.commit,
            )

    def _inspect(self, manifest: Manifest, full: bool | None = None) -> Inspection:
        started, now = time.monotonic(), time.time()
        full = self._is_full(manifest) if full is None else full
        try:
            found = self.store.inspect(manifest, self.ledger, full, self.progress, not self.request.look_only)
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be verified: {error.strerror}") from error
        finally:
            self.verify_s += time.monotonic() - started
        found.full = full
        if self.request.activate:
            self._distrust(manifest, found)
        for path in found.written:
            self.warnings.append(
                f"{self.store.revision(manifest.id) / path} is open for writing by somebody else: it counts as damaged"
            )
        for path in found.unreadable:
            self.warnings.append(
                f"{self.store.revision(manifest.id) / path} cannot be read any more (Input/output error): look for "
                "disk faults in the kernel's log"
            )
        if found.hashed_files and found.hashed_files == len(found.intact) + len(found.rotten):
            found.full_s, found.renewed = now, True
        self._learn(manifest, found)
        return found

    def _distrust(self, manifest: Manifest, found: Inspection) -> None:
        """A file that is to change its owner or mode, and that somebody has open for writing, is to be replaced."""
        for path in self._strangers(found):
            if is_written(self.store.revision(manifest.id) / path):
                status = found.intact.pop(path)
                found.rotten.append((status.st_ino, status.st_dev))
                found.damaged.append(path)
                found.written.append(path)
        there = {*found.intact, *found.unproven}
        found.wanted = [file for file in manifest.files if file.path not in there]

    def _learn(self, manifest: Manifest, found: Inspection) -> None:
        for inode, device in found.rotten:
            self.ledger.forget(inode, device)
        for file in manifest.files:
            if file.path in found.intact:
                self.ledger.note(manifest.id, file, found.intact[file.path])
        for path in found.damaged:
            self.ledger.files(manifest.id).pop(path, None)
        if found.full_s and not found.wanted:
            self.ledger.note_full(manifest.id, found.full_s)

    def _check_structure(self, manifest: Manifest) -> None:
        folder = self.store.revision(manifest.id)
        self.progress.update("checking structure")
        check_structure(manifest.files, lambda path: folder / path)

    # What is in the way

    def _candidates(self, inspection: Inspection) -> Candidates:
        if not self.request.adopt_from or not inspection.wanted:
            return {}
        self.progress.update("looking for files to adopt")
        return find_candidates(self.request.adopt_from, inspection.wanted, self.request.store, self.warnings)

    def _load(self, found: _Found, candidates: Candidates) -> Load:
        wanted = found.inspection.wanted
        linkable = self.store.reusable(wanted, self.ledger, found.manifest.id)
        # Only a plan has to know now what of it is rotten; a run looks when it links.
        if self.request.check and not self.request.look_only and self._is_full(found.manifest):
            linkable = self._sound(linkable, found.manifest, found.inspection)
        return load_of(wanted, linkable, candidates, self.store)

    # Changes

    def _tidy(self, found: _Found) -> None:
        """Keep what was learnt, and clear what a dead run left; never waits, never fails a run without work."""
        leftovers = self.store.leftovers(found.manifest.id) + self.store.outdated()
        described = self.store.read_manifest(found.manifest.id) is not None
        name_known = (
            is_commit(self.request.revision) or self.ledger.refs.get(self.request.revision) == found.manifest.id
        )
        linked = self.ledger.links.get(self.link, [])[:1] == [found.manifest.id]
        if described and name_known and linked and not found.inspection.renewed and not leftovers:
            return

        def tidy() -> None:
            make_folder(self.store.base / "manifest")
            self.store.save_manifest(found.manifest)
            self._merge(found.manifest, found.inspection)
            self.store.remove(leftovers, self.ledger)
            self.ledger.note_link(self.link, found.manifest.id)
            self.store.save_ledger(self.ledger)

        self._unhurried(tidy)

    def _remember(self, found: _Found) -> None:
        """Keep what is damaged, so that the next quick look does not pass it, and what was proven."""
        if self.request.check or not (found.inspection.rotten or found.inspection.renewed):
            return

        def remember() -> None:
            self._merge(found.manifest, found.inspection)
            self.store.save_ledger(self.ledger)

        self._unhurried(remember)

    def _unhurried(self, work: Callable[[], None]) -> None:
        """Do *work* under the lock, if nobody has it; where that cannot be, the next run does it."""
        with contextlib.suppress(OSError, StoreError), self.store.locked(0, Progress()):
            work()

    def _merge(self, manifest: Manifest, inspection: Inspection) -> None:
        """Put what this run learnt onto the ledger as it is now, under the lock."""
        self.ledger = self.store.read_ledger(self.warnings)
        self._learn(manifest, inspection)
        if self.request.activate and not is_commit(self.request.revision):
            self.ledger.refs[self.request.revision] = manifest.id

    def _change(self, manifest: Manifest, inspection: Inspection, candidates: Candidates) -> dict[str, Any]:
        """Under the lock: look again, since another run may have been faster; then fetch, publish, flip."""
        self._merge(manifest, inspection)
        found = _Found(manifest, self._inspect(manifest, full=False))
        found.inspection.take_over(inspection)
        previous = self.store.read_link(self.link)
        wanted, extra = found.inspection.wanted, found.inspection.extra
        about = {"requested": manifest.requested, "commit": manifest.commit, "total_bytes": manifest.total_bytes}
        job = self.store.new_job(manifest.id, about)
        try:
            self.ownership.check(job)
        except StoreError:
            remove_job(job)
            raise
        done = Done(Meter(self.progress, 0, climb=Climb(self.hub.policy)), repaired=bool(inspection.damaged))
        checked: list[float | None] = [found.inspection.full_s or self.ledger.full_check(manifest.id)]
        if wanted or extra:
            checked = self._gather(found, job, candidates, done, checked if found.inspection.intact else [])
        else:
            self._remove_dead(found, job)
        tree, folder = job / "tree", self.store.revision(manifest.id)
        fresh = {file.path for file in wanted}
        self.progress.update("checking structure")
        check_structure(manifest.files, lambda path: (tree if path in fresh else folder) / path)
        if wanted or extra:
            self.progress.update("publishing")
            self.store.publish(manifest, job, extra, self.ledger, {**done.linked, **done.adopted.linked})
            self._shelve(fresh, folder)
            self.store.forget_rejected(manifest.id)
        else:
            self.store.save_manifest(manifest, job)
        done.owner_changed = self._own(found)
        times = [when for when in checked if when is not None]
        self.ledger.note_full(manifest.id, min(times) if times and len(times) == len(checked) else None)
        changed = bool(wanted or extra or done.owner_changed)
        if previous and not self.ledger.links.get(self.link):
            self.ledger.note_link(self.link, previous)
        self.ledger.note_link(self.link, manifest.id)
        self.store.save_ledger(self.ledger, job)
        if previous != manifest.id:
            self.store.flip_link(self.link, manifest.id, job)
            changed = True
        remove_job(job)
        return self._result(found, previous, changed, done)

    def _own(self, found: _Found) -> int:
        """Give all published files of the snapshot to whom they should belong, read-only; returns how many were there
        and did not before.

        That changes an inode's ctime, for all its names; the ledger learns that.
        """
        folder = self.store.revision(found.manifest.id)
        count = 0
        for file in found.manifest.files:
            place = folder / file.path
            if self.ownership.fits(place.lstat()):
                continue
            states = self.ownership.give(place, partial(self.ledger.knows, found.manifest.id, file))
            if states is None:
                raise StoreError(
                    f"{place} was changed by somebody else, or is open for writing, so neither its owner nor its mode "
                    "was put right: run again"
                )
            self.ledger.renew_ctime(*states)
            count += file.path in found.inspection.intact and self.ownership.fits(states[1])
        return count

    def _gather(
        self, found: _Found, job: Path, candidates: Candidates, done: Done, checked: list[float | None]
    ) -> list[float | None]:
        """Everything wanted into the tree of *job*, proven; returns *checked* and when the new files were hashed."""
        wanted, tree, meter = found.inspection.wanted, job / "tree", done.meter
        sources = self.store.reusable(wanted, self.ledger, found.manifest.id)
        sources = self._sound(sources, found.manifest, found.inspection)
        for path, source in sources.items():
            self._prove(path, source.location)
        missing = [file for file in wanted if file.path not in sources]
        done.adopted = adopt_files(missing, candidates, tree, lambda file: part_of(job, file), self.progress)
        self._shelve([*done.adopted.linked, *done.adopted.copied], tree)
        for path, place in sorted(done.adopted.wrong.items()):
            self.warnings.append(f"{place} has the name and size of {path}, but another content: {path} was fetched")
        fetched = [file for file in missing if file.path not in done.adopted]
        done.reused_part = self.store.adopt(fetched, job)
        meter.total = sum(file.size for file in fetched)
        self._remove_dead(found, job)
        batch = Batch(
            self.store,
            found.manifest.id,
            job,
            self.origins(found.manifest),
            self.hub.policy.connections,
            self.shelf,
        )
        self.warnings += self.room.make(found.manifest.id, fetched, job, self.ledger)
        batch.fetch(fetched, meter)
        for path, source in sources.items():
            status = self.store.link_file(source, tree / path, self.ledger)
            if status:
                done.linked[path] = status
        if done.linked:
            # Else a run that ends before it publishes leaves revisions whose files nobody takes for proven.
            self.store.save_ledger(self.ledger, job)
        # A download takes long: what changed meanwhile in the other revisions is fetched as well.
        late = [file for file in wanted if file.path in sources and file.path not in done.linked]
        if late:
            for file in late:
                if self.shelf and file.path in self.shelf.files:
                    self.shelf.restart(file.path)
            meter.total += sum(file.size for file in late)
            self.warnings += self.room.make(found.manifest.id, late, job, self.ledger)
            batch.fetch(late, meter)
        self._shelve(done.linked, tree)
        if fetched or late or done.adopted.linked or done.adopted.copied:
            checked.append(time.time())
        if self._is_full(found.manifest):
            return [*checked, time.time()] if done.linked else checked
        linked = [sources[path] for path in done.linked]
        return checked + self.ledger.file_checks((source.snapshot, source.file.path) for source in linked)

    def _sound(self, sources: dict[str, Source], manifest: Manifest, inspection: Inspection) -> dict[str, Source]:
        """Those of *sources* that may be linked; what that takes counts as verification."""
        started = time.monotonic()
        try:
            sound, hashed = self.store.sound_sources(sources, self.ledger, self._is_full(manifest), self.progress)
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be verified: {error.strerror}") from error
        if hashed:
            self.verify_s += time.monotonic() - started
            inspection.hashed_files += len(hashed)
            inspection.hashed_bytes += sum(hashed.values())
        return sound

    def _remove_dead(self, found: _Found, job: Path) -> None:
        """What dead runs left of this revision; that of another one is of use when somebody goes back to it."""
        dead = [other for other in self.store.leftovers(found.manifest.id) if other != job]
        self.store.remove(dead + self.store.outdated(), self.ledger)

    # The answer

    def _result(self, found: _Found, previous: str | None, changed: bool, done: Done | None = None) -> dict[str, Any]:
        request = self.request
        # First, since it may find something to warn of.
        plan = self._plan(found) if request.check else None
        result = build_answer(
            Outcome(
                manifest=found.manifest,
                inspection=found.inspection,
                store=self.store,
                link=request.store / self.link,
                requested=request.revision,
                previous=previous,
                changed=changed,
                applied=changed and not request.check,
                level="structure" if request.structure else "quick",
                verify_s=self.verify_s,
                checked_s=self.ledger.full_check(found.manifest.id),
                seconds=time.monotonic() - self.started,
                warnings=self.warnings,
                strangers=len(self._strangers(found.inspection)) if request.check else 0,
                done=done or Done(Meter(self.progress, 0, climb=Climb(self.hub.policy))),
            )
        )
        return result if plan is None else {**result, "plan": plan}

    def _plan(self, found: _Found) -> dict[str, Any]:
        """What a run would do, and what is in its way."""
        inspection = found.inspection
        load = self._load(found, self._candidates(inspection))
        faults = self.room.faults(
            found.manifest.id, load, probe=self.request.probe and bool(inspection.wanted), spare=True
        )
        if not inspection.wanted:
            faults = []
        return {
            "bytes": load.missing,
            "need": load.need,
            "reusable": load.reusable,
            "staged": load.staged,
            "adoptable": load.adoptable,
            "free": self.room.looked["free"],
            "missing": [file.path for file in load.fetched][:SHOWN_FILES],
            "missing_files": len(load.fetched),
            "wanted_files": len(inspection.wanted),
            "foreign_files": len(inspection.extra),
            "unproven_files": len(inspection.unproven),
            "faults": [{"id": fault.id, "message": fault.message} for fault in faults],
            "store": self.room.looked,
        }


def _named(paths: Sequence[str]) -> str:
    """The first of *paths*, in brackets after their number."""
    shown = ", ".join(map(shown_path, paths[:3])) + (", ..." if len(paths) > 3 else "")
    return f" ({shown})" if paths else ""


def ensure_snapshot(
    request: Request,
    hub: Hub,
    progress: Progress,
    origins: Origins | None = None,
    shelf: Shelf | None = None,
    facts: Facts = read_facts,
) -> dict[str, Any]:
    """Bring what *request* asks for into the store; returns what the module returns. Raises SocleError.

    *origins*: where the files of a manifest come from, in order of preference; by default the hub alone. *shelf* learns
    of every file that can be served on; whoever made it closes it.
    """
    check_request(request)
    try:
        return _Run(request, hub, progress, origins, shelf, facts).ensure()
    except OSError as error:
        raise StoreError(
            f"{error.filename or request.store} cannot be read: {error.strerror or error}; nothing was published, look "
            "for faults of its file system in the kernel's log"
        ) from error
