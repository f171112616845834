# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How often an engine may be restarted. Pure; private to socle.inference."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

HOUR_S = 3600.0


@dataclass
class Ledger:
    """What the watchdog did to one instance; kept on disk, so that a crash of the watchdog forgets nothing."""

    generation: int | None = None
    restarts: list[float] = field(default_factory=list)
    """When, in seconds since 1970: monotonic time ends with a boot."""
    gave_up: bool = False
    run: str | None = None
    """systemd's invocation that was seen last."""
    ended_run: str | None = None
    """The one that the watchdog ended: the next one is its own doing."""

    def allows(self, now: float, per_hour: int) -> bool:
        """Whether one more restart is in bounds; once it was not, none is until the ledger is cleared."""
        # What seems to lie ahead was written before the clock was set back: it counts.
        recent = [moment for moment in self.restarts if now - moment < HOUR_S]
        return not self.gave_up and len(recent) < per_hour

    def note_restart(self, now: float) -> None:
        """One more; what is older than an hour is of no use any more."""
        self.restarts = [moment for moment in self.restarts if now - moment < HOUR_S] + [now]

    def clear(self, generation: int | None) -> None:
        """Begin anew: an operator said so, or another launch runs."""
        self.generation, self.restarts, self.gave_up = generation, [], False

    def text(self) -> str:
        """As it is kept."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True) + "\n"


def ledger_from(text: str | None) -> Ledger:
    """The ledger that was kept; an empty one where the text is none."""
    try:
        values: Any = json.loads(text or "")
    except (ValueError, RecursionError):
        return Ledger()
    if not isinstance(values, dict):
        return Ledger()
    restarts = values.get("restarts")
    generation = values.get("generation")
    return Ledger(
        generation=generation if isinstance(generation, int) else None,
        restarts=[float(item) for item in restarts if _is_moment(item)] if isinstance(restarts, list) else [],
        gave_up=values.get("gave_up") is True,
        run=_text(values.get("run")),
        ended_run=_text(values.get("ended_run")),
    )


def _is_moment(value: Any) -> bool:
    """Whether it can be seconds since 1970, which an infinite or endless number cannot."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
