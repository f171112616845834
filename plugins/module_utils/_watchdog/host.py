# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host as the watchdog sees it: systemd, the engine's pages, the lock of launches. Private to socle.inference."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import PROPERTIES, UnitState, parse_show
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._watchdog import units
from ansible_collections.socle.inference.plugins.module_utils._watchdog.commands import Answer, run_bounded
from ansible_collections.socle.inference.plugins.module_utils._watchdog.http import Call
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import Launch
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import (
    ACTIVE,
    STARTING,
    STOPPED,
    Canary,
    Observation,
    read_metrics,
)

HEALTH_S = 5.0
METRICS_S = 8.0
PAUSED_S = 3.0
SYSTEMCTL_S = 20.0


class Host:
    """Looks at one instance, and restarts it."""

    def __init__(
        self,
        instance: str,
        state_dir: Path,
        run: Callable[..., Answer] = run_bounded,
        call: Callable[[str, int, float], Call] = Call,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.unit = f"vllm-{instance}.service"
        self._instance = instance
        self._state_dir = state_dir
        self._run = run
        self._call = call
        self._clock = clock
        self.page: str | None = None
        """What /metrics said last; None where it did not answer."""

    def observe(self, launch: Launch, canary: Canary) -> Observation:
        """The engine as it is now; raises EngineError where systemd does not say."""
        unit = self.unit_state()
        where = ACTIVE if unit.active == "active" and not unit.job_pending else STARTING if unit.coming_up else STOPPED
        now = self._clock()
        # No time in the future: both clocks are the kernel's monotonic one.
        age = now - unit.started_us / 1e6 if unit.started_us is not None else 0.0
        if where != ACTIVE:
            self.page = None
            return Observation(at=now, unit=where, run=unit.invocation_id, first_start=unit.restarts == 0)
        health = self._ask(launch, "/health", HEALTH_S)
        page = self._ask(launch, "/metrics", METRICS_S)
        self.page = page[1] if page is not None and page[0] == 200 else None
        # A page that is refused (404 behind another root path) is one that shows nothing.
        metrics = read_metrics("" if page is not None and self.page is None else self.page)
        asleep = bool(metrics.asleep) or (launch.pausable and self._paused(launch))
        return Observation(
            at=self._clock(),
            unit=where,
            run=unit.invocation_id,
            run_age_s=age,
            first_start=unit.restarts == 0,
            healthy=None if health is None else health[0] == 200,
            metrics=metrics,
            asleep=asleep,
            canary=canary,
        )

    def unit_state(self) -> UnitState:
        """What systemd says of the engine's unit."""
        shown = self._systemctl("show", f"--property={PROPERTIES}", self.unit)
        state = parse_show(shown).get(self.unit)
        if state is None:
            # It also tells of units that there are none of.
            said = " ".join(shown.split())[:300] or "nothing"
            raise EngineError(
                f"Cannot tell whether {self.unit} runs: systemctl show says '{said}'; see whether systemd answers on"
                " this host."
            )
        return state

    @contextlib.contextmanager
    def launch_lock(self) -> Iterator[bool]:
        """Holds off launches of the instance while it lasts; False where one is under way."""
        path = self._state_dir / "instances" / self._instance / ".lock"
        try:
            # Opened to read: the lock is on the file, not on what is in it.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            yield True
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)

    def restart(self) -> None:
        """Ask systemd for a restart, without waiting for it: it stops what hangs by force, in its own time."""
        # The watchdog has its own bound. systemd's start limit, once reached, would leave the engine stopped.
        self._run(["systemctl", "reset-failed", self.unit], SYSTEMCTL_S)
        self._systemctl("restart", "--no-block", self.unit)

    def raise_alarm(self) -> None:
        """Let "systemctl --failed" show that the instance needs a person."""
        self._systemctl("start", "--no-block", units.alarm(self._instance))

    def clear_alarm(self) -> None:
        """Take the alarm back; there may be none."""
        self._run(["systemctl", "reset-failed", units.alarm(self._instance)], SYSTEMCTL_S)

    def _systemctl(self, *argv: str) -> str:
        answer = self._run(["systemctl", *argv], SYSTEMCTL_S)
        if answer.status != 0:
            why = answer.fault or " ".join(answer.output.split())[:300] or f"exit status {answer.status}"
            raise EngineError(
                f"systemctl {argv[0]} {argv[-1]} failed: {why}; see whether systemd answers on this host."
            )
        return answer.output

    def _ask(self, launch: Launch, path: str, limit_s: float) -> tuple[int, str] | None:
        return self._call(launch.address, launch.port, limit_s)(path)

    def _paused(self, launch: Launch) -> bool:
        """Whether a development endpoint says so; an engine that does not answer is not asleep."""
        for path in ("/is_sleeping", "/is_paused"):
            answer = self._ask(launch, path, PAUSED_S)
            if answer is not None and answer[0] == 200:
                with contextlib.suppress(ValueError, AttributeError):
                    if json.loads(answer[1]).get(path[1:]) is True:
                        return True
        return False
