# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Letting the requests of an engine end before it is stopped. Private to socle.inference.

An engine with --shutdown-timeout N takes no new requests once it was asked to end, and has N seconds for those that it
has; meanwhile it still answers /metrics. Without that flag it aborts them at once, so that the best that can be done is
to wait for a moment in which it has none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import shutdown_timeout_s
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

POLL_S = 1.0
ASK_S = 2.0

IDLE_S = 30.0
"""How long to wait for a moment without requests, unless told otherwise."""

Ask = Callable[[Mapping[str, Any]], "tuple[int, bytes]"]
"""HTTP status (0: no answer) and body of /metrics of the instance that a plan describes."""


@dataclass(frozen=True)
class Load:
    """How many requests an engine has."""

    running: int
    waiting: int

    @property
    def any(self) -> int:
        return self.running + self.waiting

    def describe(self) -> str:
        """For a person who waits."""
        return f"{self.running} running, {self.waiting} waiting"


def read_load(metrics: bytes) -> Load | None:
    """The load by /metrics, over all engine cores; None where the page does not tell."""
    samples = exposition.parse(metrics.decode("utf-8", "replace"))
    running = exposition.total(samples, "vllm:num_requests_running")
    waiting = exposition.total(samples, "vllm:num_requests_waiting")
    return None if running is None else Load(max(0, int(running)), max(0, int(waiting or 0)))


class Drain:
    """Watches the engine of a plan on its way to the end."""

    def __init__(
        self,
        ask: Ask,
        idle_s: float = IDLE_S,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ask = ask
        self._idle_s = idle_s
        self._progress = progress or Progress()
        self._clock = clock
        self._sleep = sleep
        self._last: Load | None = None
        self._asked_at = float("-inf")

    def load(self, plan: Mapping[str, Any]) -> Load | None:
        """The load now; None where the engine does not answer."""
        status, body = self._ask(plan)
        return read_load(body) if status == 200 else None

    def wait_idle(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Before an engine is asked to end: {waited_s, requests left}, which is None where it did not answer.

        Returns at once for an engine that drains itself, that has no request, or that does not answer.
        """
        began = self._clock()
        limit = 0.0 if shutdown_timeout_s(plan) else self._idle_s
        while True:
            load = self.load(plan)
            waited = self._clock() - began
            if load is None or not load.any or waited >= limit:
                return {"waited_s": round(waited, 1), "requests": load.any if load else None}
            self._progress.update(phase="draining", detail=f"{load.describe()}, of at most {limit:.0f} s")
            self._sleep(POLL_S)

    def tick(self, plan: Mapping[str, Any]) -> None:
        """Shows how far an engine is that was asked to end; to be called while that lasts."""
        now = self._clock()
        if now - self._asked_at >= POLL_S:
            self._asked_at = now
            self._last = self.load(plan)
        limit = shutdown_timeout_s(plan)
        what = self._last.describe() if self._last else "it does not answer any more"
        self._progress.update(phase="stopping", detail=f"{what}, of at most {limit} s" if limit else what)
