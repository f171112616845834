# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of a long module, as a small file that its action plugin reads. Private to socle.inference."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

INTERVAL_S = 1.0

QUIET_S = 2.0
"""No file is written before this: most runs of a long module find nothing to do."""


class Progress:
    """Writes the latest state to *path*, replaced atomically, at most once a second and at every change of phase.

    The file goes with the process. With no path it only remembers the state. *done* and *total* are counts of *unit*
    ("B" for bytes).
    """

    def __init__(self, path: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._started = clock()
        self._phase_started = self._started
        self._phase_base = 0
        self._written = float("-inf")
        self._removes = False
        self.phase = ""

    def update(
        self,
        phase: str,
        done: int | None = None,
        total: int | None = None,
        unit: str | None = None,
        detail: str | None = None,
    ) -> None:
        """Note the state; *phase* is a short word for a person ("downloading", "waiting")."""
        now = self._clock()
        if phase != self.phase:
            self.phase = phase
            self._phase_started = now
            # What an earlier run had done already says nothing about the rate of this one.
            self._phase_base = done or 0
            self._written = float("-inf")
        if self._path is None or now - self._started < QUIET_S or now - self._written < INTERVAL_S:
            return
        self._written = now
        elapsed = now - self._phase_started
        rate = (done - self._phase_base) / elapsed if done and done > self._phase_base and elapsed > 0 else None
        state = {
            "phase": phase,
            "done": done,
            "total": total,
            "unit": unit,
            "detail": detail,
            "elapsed_s": round(now - self._started, 1),
            "rate_per_s": rate,
            "left_s": round((total - done) / rate, 1) if rate and total and done is not None else None,
        }
        staged = Path(f"{self._path}.{os.getpid()}")
        try:
            self._write(staged, state)
        except OSError:
            # Progress is a courtesy: losing it must not fail the work it describes.
            self._path = None
            with contextlib.suppress(OSError):
                staged.unlink()

    def _write(self, staged: Path, state: dict[str, Any]) -> None:
        # Exclusive and without following links: the folder may be one that everybody writes to.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(staged, flags, 0o644), "w", encoding="utf-8") as handle:
            json.dump(state, handle)
        if not self._removes:
            # The run that asked for it removes it too, unless it was killed.
            self._removes = True
            atexit.register(_remove, Path(str(self._path)))
        staged.replace(str(self._path))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
