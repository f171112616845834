# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A thread that absorbs filled buffers in order while the next ones are filled. Private to socle.inference.

Hashing takes about as long as receiving and writing on a fast network; hashlib, sockets and files all let other threads
run meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

BUFFERS = 4


class Aside:
    """One thread takes buffers and puts them filled; another one calls *absorb* with each, in order. No copies."""

    def __init__(self, absorb: Callable[[memoryview], None], buffer_bytes: int) -> None:
        self.fault: BaseException | None = None
        """What *absorb* raised; nothing was absorbed since."""
        self._absorb = absorb
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[tuple[memoryview, memoryview | None] | None] = queue.SimpleQueue()
        for _number in range(BUFFERS):
            self._free.put(memoryview(bytearray(buffer_bytes)))
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def take(self) -> memoryview:
        """An empty buffer; waits for one where absorbing is slower than filling."""
        return self._free.get()

    def give_back(self, buffer: memoryview) -> None:
        """A buffer that was not filled."""
        self._free.put(buffer)

    def put(self, view: memoryview, buffer: memoryview | None) -> None:
        """Absorb *view*, a part of *buffer*, which others may take then; None where it is of no such buffer."""
        self._full.put((view, buffer))

    def end(self) -> None:
        """Wait until all is absorbed, and end the thread."""
        self._full.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self._full.get()
            if item is None:
                return
            view, buffer = item
            try:
                if self.fault is None:
                    self._absorb(view)
            except BaseException as error:
                self.fault = error
            if buffer is not None:
                self._free.put(buffer)
