# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of one snapshot side by side, largest first; the first failure ends all. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.download import (
    Cancelled,
    HashMismatch,
    Meter,
    fetch_file,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Origin
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore, make_folder, part_of


class Batch:
    """Brings files of *snapshot* from *origins* into the tree of *job*. *shelf* learns of those that it has."""

    def __init__(
        self,
        store: RepoStore,
        snapshot: str,
        job: Path,
        origins: Sequence[Origin],
        connections: int,
        shelf: Shelf | None = None,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._job = job
        self._origins = origins
        self._connections = connections
        self._shelf = shelf

    def fetch(self, files: Sequence[ModelFile], meter: Meter) -> None:
        """Raises what ended the first file that failed."""
        if self._shelf:
            # What the host had is on the shelf by now.
            self._shelf.settle()
        if not files:
            return
        meter.stop.clear()
        ordered = sorted(files, key=lambda file: (-file.size, file.path))
        with ThreadPoolExecutor(self._connections) as pool:
            futures = [pool.submit(self._fetch_or_end_all, file, meter) for file in ordered]
            try:
                first: BaseException | None = None
                for future in futures:
                    error = future.exception()
                    if error is not None and (first is None or isinstance(first, Cancelled)):
                        first = error
                if first is not None:
                    raise first
            finally:
                meter.stop.set()

    def _fetch_or_end_all(self, file: ModelFile, meter: Meter) -> None:
        try:
            self._fetch(file, meter)
        except BaseException:
            # At once: the files before this one may take hours yet.
            meter.stop.set()
            raise

    def _fetch(self, file: ModelFile, meter: Meter) -> None:
        if meter.stop.is_set():
            return
        part, place = part_of(self._job, file), self._job / "tree" / file.path
        shelf = self._shelf if self._shelf and file.path in self._shelf.files else None
        make_folder(place.parent)
        try:
            fetch_file(self._origins, file, part, meter, shelf)
        except HashMismatch as error:
            kept = self._store.reject(self._job, file, self._snapshot)
            raise HashMismatch(f"{error}; what arrived is kept in {kept}", kept=str(kept), **error.fields) from error
        part.replace(place)
        if shelf:
            shelf.prove(file.path, place)
