# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many connections into one file pay, judged by what they bring in total. Pure. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass, field

from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy


@dataclass
class Climb:
    """Doubles the connections of each file as long as the total rises, and takes back a step that did not pay."""

    policy: Policy = field(default_factory=Policy)
    lines: int = 1
    """Connections that each file may have now."""
    line_rate: float = 0.0
    """Bytes per second of one connection, as last measured."""
    _files: int = 0
    _since: float = 0.0
    _base: int = 0
    _reference: float = 0.0
    _before: int | None = None
    _settling: bool = False
    _hold_until: float = 0.0
    _ceiling: int = 1 << 10
    _fewest: int = 1 << 10

    def tick(self, now: float, received: int, files: int) -> None:
        """*received* bytes came in so far, now by *files* files at once. Windows of other files do not compare."""
        if files != self._files:
            self._end_trial()
            self._files = files
            if 0 < files < self._fewest:
                # The last files of a snapshot: connections that did not pay beside others may pay now.
                self._fewest, self._hold_until = files, 0.0
            self.lines = max(1, min(self.lines, self._limit()))
            self._start_window(now, received)
            return
        elapsed = now - self._since
        if elapsed < self.policy.measure_s:
            return
        rate = (received - self._base) / elapsed
        self._start_window(now, received)
        if self._settling:
            # While the new connections were made, the total says nothing.
            self._settling = False
            return
        if self._before is not None and rate < self._reference * self.policy.rise:
            self._end_trial()
            self._hold_until = now + self.policy.hold_s
            return
        self._before = None
        self.line_rate = rate / max(1, files * self.lines)
        limited = 0 < self.line_rate < self.policy.line_bytes_per_s
        if limited and now >= self._hold_until and self.lines < self._limit():
            self._reference, self._before, self._settling = rate, self.lines, True
            self.lines = min(self.lines * 2, self._limit())

    def refuse(self, now: float) -> None:
        """The server does not want so many connections."""
        if self._before is None:
            self.lines = max(1, self.lines // 2)
        self._end_trial()
        self._ceiling = self.lines
        self._hold_until = now + self.policy.hold_s

    def _limit(self) -> int:
        return min(self.policy.lines, self._ceiling, self.policy.lines_total // max(1, self._files))

    def _start_window(self, now: float, received: int) -> None:
        self._since, self._base = now, received

    def _end_trial(self) -> None:
        if self._before is not None:
            self.lines, self._before = self._before, None
        self._settling = False
