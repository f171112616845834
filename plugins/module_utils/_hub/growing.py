# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a snapshot as they come to be, for whoever serves them on meanwhile. Private to socle.inference."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Growing:
    """One file: its first *prefix* bytes are at *location* and stay as they are, unless *generation* changes."""

    path: str
    size: int
    location: Path | None = None
    prefix: int = 0
    generation: int = 0
    proven: bool = False
    """Complete, and its hash is right."""


@dataclass
class Shelf:
    """All files of one snapshot; threads that write tell it, threads that serve wait on it."""

    files: dict[str, Growing]
    closed: bool = False
    """Nothing more will come: the download ended, well or not."""
    settled: bool = False
    """What the host has is known: all other files must come from elsewhere."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def advance(self, path: str, location: Path, prefix: int) -> None:
        """*prefix* bytes of *path* are at *location* now."""
        with self._changed:
            file = self.files[path]
            file.location, file.prefix = location, prefix
            self._changed.notify_all()

    def restart(self, path: str) -> None:
        """What was served of *path* was wrong; it grows from its start again."""
        with self._changed:
            file = self.files[path]
            file.prefix, file.generation, file.proven = 0, file.generation + 1, False
            self._changed.notify_all()

    def prove(self, path: str, location: Path) -> None:
        """*path* is complete at *location*, and proven. An open descriptor of its former place stays good."""
        with self._changed:
            file = self.files[path]
            file.location, file.prefix, file.proven = location, file.size, True
            self._changed.notify_all()

    def progress(self) -> str:
        """Another word each time that something came, of whichever file."""
        with self._changed:
            files = self.files.values()
            return f"{sum(file.prefix for file in files)}-{sum(file.generation + file.proven for file in files)}"

    def settle(self) -> None:
        """All files that the host has already are proven; the others are asked for now."""
        with self._changed:
            self.settled = True
            self._changed.notify_all()

    def lacks(self, path: str) -> bool:
        """Whether nothing of *path* is there, and it must come from elsewhere."""
        with self._changed:
            file = self.files[path]
            return self.settled and not file.proven and not file.prefix

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait(self, path: str, beyond: int, generation: int | None, timeout_s: float) -> Growing | None:
        """The file once it has more than *beyond* bytes; None after *timeout_s*, after the end, or when another
        generation than *generation* grows."""
        with self._changed:
            file = self.files.get(path)
            if file is None:
                return None

            def ready() -> bool:
                other = generation is not None and file.generation != generation
                return file.prefix > beyond or file.proven or self.closed or other

            self._changed.wait_for(ready, timeout_s)
            if generation is not None and file.generation != generation:
                return None
            if file.prefix > beyond or file.proven:
                return Growing(file.path, file.size, file.location, file.prefix, file.generation, file.proven)
            return None
