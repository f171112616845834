# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all downloads of one snapshot share: counts, rate, connections, the end. Private to socle.inference."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ansible_collections.socle.inference.plugins.module_utils._hub.climb import Climb
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

RATE_WINDOW_S = 2.0
NOTES = 20


class Cancelled(Exception):
    """Another file failed; this one stops early."""


@dataclass
class Meter:
    """Bytes of all files together, for progress, and the way to stop all threads."""

    progress: Progress
    total: int
    done: int = 0
    received_by: dict[str, int] = field(default_factory=dict)
    """Bytes that came over the network or from another folder, by Origin.kind; what came twice counts twice."""
    sources: set[str] = field(default_factory=set)
    source: str = ""
    """Where bytes came from last."""
    rate: float = 0.0
    """Bytes per second of all files, over the last few seconds."""
    notes: list[str] = field(default_factory=list)
    """What a person should know although it went on: stalls, origins that were given up."""
    ailing: set[str] = field(default_factory=set)
    """Hosts that had to be given up for a file, until they answer again."""
    climb: Climb = field(default_factory=Climb)
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    _shared: int = 0
    _receiving: int = 0
    _rate_since: float = 0.0
    _rate_base: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def received(self) -> int:
        return sum(self.received_by.values())

    def add(self, count: int, path: str, kind: str | None = None) -> None:
        """*count* more bytes are in place (or fewer, when a file starts over); *kind* of the origin they came from,
        None for what was there before. Raises Cancelled once all should stop."""
        with self._lock:
            self.done += count
            if kind:
                self.received_by[kind] = self.received_by.get(kind, 0) + count
                now = self.clock()
                self.climb.tick(now, self.received_by.get("wan", 0), self._shared)
                if now - self._rate_since >= RATE_WINDOW_S:
                    received = self.received
                    self.rate = (received - self._rate_base) / (now - self._rate_since) if self._rate_since else 0.0
                    self._rate_since, self._rate_base = now, received
            phase = "downloading" if kind or self._receiving else "hashing what is there"
            self.progress.update(phase, done=self.done, total=self.total, unit="B", detail=path)
        if self.stop.is_set():
            raise Cancelled

    def note(self, text: str) -> None:
        """Tell a person, but not without end."""
        with self._lock:
            if len(self.notes) < NOTES and text not in self.notes:
                self.notes.append(text)

    @contextlib.contextmanager
    def receiving(self, ranges: bool) -> Iterator[None]:
        """A file comes in meanwhile; *ranges*: from an origin where several connections may pay."""
        with self._lock:
            self._receiving += 1
            self._shared += ranges
        try:
            yield
        finally:
            with self._lock:
                self._receiving -= 1
                self._shared -= ranges
