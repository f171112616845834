# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a revision of a model into the store and prove it, from request to result. Private to socle.inference."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.download import (
    Cancelled,
    HashMismatch,
    Meter,
    fetch_file,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile, is_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Hub
from ansible_collections.socle.inference.plugins.module_utils._hub.store import (
    Inspection,
    RepoStore,
    Source,
    Space,
    check_space,
    make_folder,
    part_of,
    read_space,
    remove_job,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.structure import check_structure
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
REPO = re.compile(rf"{PART}/{PART}")
LINK = re.compile(PART)
REVISION = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff]{1,200}")
SHOWN_FILES = 100


@dataclass(frozen=True)
class Request:
    """What is wanted."""

    repo: str
    revision: str
    store: Path
    link: str | None = None
    full: bool = False
    reserve_bytes: int | None = None
    lock_timeout_s: float = 600.0
    content_id: str | None = None
    offline: bool = False
    check: bool = False


@dataclass
class _Found:
    manifest: Manifest
    inspection: Inspection


class _Run:
    def __init__(self, request: Request, hub: Hub, progress: Progress, space: Callable[[Path], Space]) -> None:
        self.request = request
        self.hub = hub
        self.progress = progress
        self.space = space
        self.started = time.monotonic()
        self.verify_s = 0.0
        self.warnings: list[str] = []
        self.store = RepoStore(request.store, hub.name, request.repo)
        self.link = request.link or posixpath.basename(request.repo)
        self.ledger = self.store.read_ledger()

    def ensure(self) -> dict[str, Any]:
        previous = self.store.read_link(self.link)
        found = self._resolve()
        manifest, inspection = found.manifest, found.inspection
        self._check_pin(manifest)
        if inspection.whole and previous == manifest.id:
            if not self.request.check:
                self._tidy(found)
            return self._result(found, previous, changed=False)
        if self.request.check:
            return self._result(found, previous, changed=True)
        try:
            self.store.prepare()
            with self.store.locked(self.request.lock_timeout_s, self.progress, self.hub.sleep):
                return self._change(manifest, inspection)
        except OSError as error:
            raise StoreError(
                f"the store {self.request.store} cannot be written: {error.strerror or error} "
                f"({error.filename or 'no name'})"
            ) from error

    # What is asked for

    def _resolve(self) -> _Found:
        """The manifest of the requested revision: from the hub, or from the store where that is enough."""
        request = self.request
        local = self.store.known(request.revision, self.ledger)
        found = (
            _Found(local, self._inspect(local)) if local and (request.offline or is_commit(request.revision)) else None
        )
        if request.offline:
            if found is None:
                raise StoreError(
                    f"{request.repo} at {request.revision} is not in the store {request.store}, and offline is set: "
                    "download it once with offline unset"
                )
            if not found.inspection.whole:
                raise StoreError(
                    f"{request.repo} at {request.revision} has {len(found.inspection.wanted)} missing or "
                    "damaged files and "
                    f"{len(found.inspection.extra)} foreign ones in the store, and offline is set: repair it "
                    "with offline unset",
                    wanted=[file.path for file in found.inspection.wanted][:SHOWN_FILES],
                    extra=found.inspection.extra[:SHOWN_FILES],
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
                "address, network and "
                "proxy (HTTPS_PROXY, NO_PROXY in the task's environment, or the option proxy), or set another endpoint",
                **error.fields,
            ) from error
        known = self.store.read_manifest(manifest.id)
        if known and known.content_id != manifest.content_id:
            raise HubError(
                f"{self.hub.host} now lists other files for {request.repo} at {manifest.id} than when it was "
                "downloaded: "
                f"{manifest.content_id} instead of {known.content_id}; nothing was changed, find out why",
                content_id=manifest.content_id,
                expected=known.content_id,
            )
        return _Found(manifest, self._inspect(manifest))

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
        started = time.monotonic()
        try:
            found = self.store.inspect(
                manifest, self.ledger, self.request.full if full is None else full, self.progress
            )
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be verified: {error.strerror}") from error
        finally:
            self.verify_s += time.monotonic() - started
        self._learn(manifest, found)
        return found

    def _learn(self, manifest: Manifest, found: Inspection) -> None:
        for file in manifest.files:
            if file.path in found.intact:
                self.ledger.note(manifest.id, file, found.intact[file.path])
        for path in found.damaged:
            self.ledger.files(manifest.id).pop(path, None)

    # Changes

    def _tidy(self, found: _Found) -> None:
        """Keep what was learnt, and clear what a dead run left; never waits, never fails a run without work."""
        leftovers = self.store.leftovers(found.manifest.id) + self.store.outdated()
        described = self.store.read_manifest(found.manifest.id) is not None
        name_known = (
            is_commit(self.request.revision) or self.ledger.refs.get(self.request.revision) == found.manifest.id
        )
        if described and name_known and not found.inspection.renewed and not leftovers:
            return
        try:
            with self.store.locked(0, Progress()):
                for job in leftovers:
                    remove_job(job)
                make_folder(self.store.base / "manifest")
                self.store.save_manifest(found.manifest)
                self._merge(found.manifest, found.inspection)
                self.store.save_ledger(self.ledger)
        except (OSError, StoreError):
            # Somebody else is at work, or the store is not ours to write: the next run does it.
            return

    def _merge(self, manifest: Manifest, inspection: Inspection) -> None:
        """Put what this run learnt onto the ledger as it is now, under the lock."""
        self.ledger = self.store.read_ledger()
        self._learn(manifest, inspection)
        if not is_commit(self.request.revision):
            self.ledger.refs[self.request.revision] = manifest.id

    def _change(self, manifest: Manifest, inspection: Inspection) -> dict[str, Any]:
        """Under the lock: look again, since another run may have been faster; then fetch, publish, flip."""
        self._merge(manifest, inspection)
        damaged_before = bool(inspection.damaged)
        found = _Found(manifest, self._inspect(manifest, full=False))
        found.inspection.hashed_files += inspection.hashed_files
        found.inspection.hashed_bytes += inspection.hashed_bytes
        previous = self.store.read_link(self.link)
        wanted, extra = found.inspection.wanted, found.inspection.extra
        job = self.store.new_job(manifest.id)
        meter, adopted = Meter(self.progress, 0), 0
        linked: dict[str, os.stat_result] = {}
        if wanted or extra:
            sources = self._reusable(manifest, found.inspection)
            fetched = [file for file in wanted if file.path not in sources]
            adopted = self.store.adopt(fetched, job)
            meter.total = sum(file.size for file in fetched)
            self._remove_dead(job)
            self._check_space(meter.total - adopted, len(wanted))
            self._fetch(manifest, fetched, job, meter)
            for path, source in sources.items():
                status = self.store.link_file(source, job / "tree" / path, self.ledger)
                if status:
                    linked[path] = status
            # A download takes long: what changed meanwhile in the other revisions is fetched as well.
            late = [file for file in wanted if file.path in sources and file.path not in linked]
            if late:
                missing = sum(file.size for file in late)
                meter.total += missing
                self._check_space(missing, len(late))
                self._fetch(manifest, late, job, meter)
        else:
            self._remove_dead(job)
        tree, folder = job / "tree", self.store.revision(manifest.id)
        fresh = {file.path for file in wanted}
        self.progress.update("checking structure")
        check_structure(manifest.files, lambda path: (tree if path in fresh else folder) / path)
        if wanted or extra:
            self.progress.update("publishing")
            self.store.publish(manifest, job, extra, self.ledger, linked)
            self.store.forget_rejected(manifest.id)
        else:
            self.store.save_manifest(manifest, job)
        self.store.save_ledger(self.ledger, job)
        changed = bool(wanted or extra)
        if previous != manifest.id:
            self.store.flip_link(self.link, manifest.id, job)
            changed = True
        remove_job(job)
        return self._result(found, previous, changed, meter, linked, adopted, damaged_before)

    def _reusable(self, manifest: Manifest, inspection: Inspection) -> dict[str, Source]:
        started = time.monotonic()
        found = self.store.reusable(inspection.wanted, self.ledger, manifest.id, self.request.full, self.progress)
        if self.request.full:
            self.verify_s += time.monotonic() - started
            hashed = {source.location: source.file.size for source in found.values()}
            inspection.hashed_files += len(hashed)
            inspection.hashed_bytes += sum(hashed.values())
        return found

    def _check_space(self, need: int, files: int) -> None:
        store = self.request.store
        check_space(self.space(store), need, files, self.request.reserve_bytes, store)

    def _remove_dead(self, job: Path) -> None:
        for other in self.store.jobs() + self.store.outdated():
            if other != job:
                remove_job(other)

    def _fetch(self, manifest: Manifest, files: list[ModelFile], job: Path, meter: Meter) -> None:
        """Bring *files* into the tree of *job*, largest first; the first failure ends all of them."""
        origins = [self.hub.origin(manifest)]

        def fetch(file: ModelFile) -> None:
            try:
                if meter.stop.is_set():
                    return
                place = job / "tree" / file.path
                make_folder(place.parent)
                fetch_file(origins, file, part_of(job, file), meter)
                part_of(job, file).replace(place)
            except HashMismatch as error:
                kept = self.store.reject(job, file, manifest.id)
                raise HashMismatch(
                    f"{error}; what arrived is kept in {kept}", kept=str(kept), **error.fields
                ) from error

        meter.stop.clear()
        ordered = sorted(files, key=lambda file: (-file.size, file.path))
        with ThreadPoolExecutor(self.hub.policy.connections) as pool:
            futures = [pool.submit(fetch, file) for file in ordered]
            try:
                first: BaseException | None = None
                for future in futures:
                    error = future.exception()
                    if error is not None and (first is None or isinstance(first, Cancelled)):
                        first = error
                        meter.stop.set()
                if first is not None:
                    raise first
            finally:
                meter.stop.set()

    # The answer

    def _result(
        self,
        found: _Found,
        previous: str | None,
        changed: bool,
        meter: Meter | None = None,
        linked: Mapping[str, os.stat_result] | None = None,
        adopted: int = 0,
        repaired: bool = False,
    ) -> dict[str, Any]:
        manifest, inspection, request = found.manifest, found.inspection, self.request
        sizes = {file.path: file.size for file in manifest.files}
        seconds = time.monotonic() - self.started
        received = meter.received if meter else 0
        before = self.store.read_manifest(previous) if previous else None
        after = {
            "path": str(self.store.revision(manifest.id)),
            "commit": manifest.commit,
            "content_id": manifest.content_id,
        }
        previous_state = (
            {
                "path": str(self.store.revision(previous)),
                "commit": before.commit if before else None,
                "content_id": before.content_id if before else None,
            }
            if previous
            else None
        )
        applied = changed and not request.check
        result: dict[str, Any] = {
            "changed": changed,
            **after,
            "link": str(request.store / self.link),
            "repo": manifest.repo,
            "requested": request.revision,
            "previous": previous_state,
            "bytes": {
                "total": manifest.total_bytes,
                "wan": received,
                "lan": 0,
                "reused_link": sum(sizes[path] for path in linked or {}),
                "reused_part": adopted,
                "adopted": 0,
            },
            "files": {
                "total": len(manifest.files),
                "fetched": len(inspection.wanted) - len(linked or {}) if applied else 0,
                "verified": len(inspection.intact),
                "repaired": len(inspection.wanted) if applied and repaired else 0,
                "removed": len(inspection.extra) if applied else 0,
            },
            "verify": {
                "level": "full" if request.full else "quick",
                "seconds": round(self.verify_s, 4),
                "hashed_files": inspection.hashed_files,
                "mb_s": round(inspection.hashed_bytes / 1e6 / self.verify_s, 1) if inspection.hashed_bytes else None,
            },
            "seconds": round(seconds, 3),
            "mb_s": round(received / 1e6 / seconds, 1) if received and seconds else None,
            "sources": sorted(meter.sources) if meter else [],
            "warnings": self.warnings,
            "diff": {
                "before": {name: previous_state[name] if previous_state else None for name in ("commit", "content_id")},
                "after": {name: after[name] for name in ("commit", "content_id")},
            },
        }
        if request.check:
            missing = [file.path for file in inspection.wanted]
            linkable = self._reusable(manifest, inspection)
            result["plan"] = {
                "bytes": sum(file.size for file in inspection.wanted if file.path not in linkable),
                "free": self.space(request.store).free,
                "missing": missing[:SHOWN_FILES],
                "missing_files": len(missing),
            }
        return result


def ensure_snapshot(
    request: Request, hub: Hub, progress: Progress, space: Callable[[Path], Space] = read_space
) -> dict[str, Any]:
    """Bring what *request* asks for into the store; returns what the module returns. Raises SocleError."""
    if not REPO.fullmatch(request.repo):
        raise HubError(f"repo must be organisation/name, found {request.repo[:120]!r}")
    if not REVISION.fullmatch(request.revision):
        raise HubError(f"revision must be a branch, a tag or a commit, found {request.revision[:120]!r}")
    if request.link is not None and not LINK.fullmatch(request.link):
        raise StoreError(f"link must be a plain name within the store, found {request.link[:120]!r}")
    if not request.store.is_absolute():
        raise StoreError(f"store must be an absolute path, found {str(request.store)!r}")
    return _Run(request, hub, progress, space).ensure()
