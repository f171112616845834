# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watches one instance: looks, judges, keeps evidence, restarts within bounds. Private to socle.inference."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Protocol

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._watchdog import incident
from ansible_collections.socle.inference.plugins.module_utils._watchdog.bounds import HOUR_S, ledger_from
from ansible_collections.socle.inference.plugins.module_utils._watchdog.canary import CanaryAsker
from ansible_collections.socle.inference.plugins.module_utils._watchdog.evidence import Collector, likely_causes
from ansible_collections.socle.inference.plugins.module_utils._watchdog.host import Host
from ansible_collections.socle.inference.plugins.module_utils._watchdog.judge import (
    HEALTHY,
    SLOW,
    STUCK,
    SUSPECT,
    Judge,
    Judgement,
    Patience,
    patience_of,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import Launch, read_key, read_launch
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import ON, STOPPED, Observation
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6
LEVELS = {STUCK: ERROR, SUSPECT: WARNING, SLOW: NOTICE}

REMIND_S = 900.0
"""Between two lines about an engine that stays stuck and is not restarted."""

RECORDS_PER_HOUR = 6
"""Incidents that are kept with their evidence; a stall that comes and goes would fill the disk."""


class Say(Protocol):
    """Writes one line to the journal, with its priority."""

    def __call__(self, level: int, line: str) -> None: ...


class Watch:
    """One instance, from one look to the next."""

    def __init__(
        self,
        settings: Settings,
        host: Host,
        canary: CanaryAsker,
        collector: Collector,
        say: Say,
        *,
        alive: Callable[[str], None] = lambda state: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        utc: Callable[[], str] = utc_now,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._state_dir = Path(settings.state_dir)
        self._host = host
        self._canary = canary
        self._collector = collector
        self._say = say
        self._alive = alive
        self._clock = clock
        self._wall_clock = wall_clock
        self._utc = utc
        self._sleep = sleep
        self._judge = Judge()
        self._ledger_file = self._state_dir / "watchdog" / settings.instance / "ledger.json"
        self._ledger = ledger_from(self._read_ledger())
        self._state: str | None = None
        self._alarm_known = False
        self._reported_run: str | None = None
        self._reported_at = 0.0
        self._recorded: list[float] = []
        self._fault: str | None = None

    # What an operator may ask for

    def forget(self) -> None:
        """Begin to count restarts anew."""
        self._ledger.clear(self._ledger.generation)
        self._keep_ledger()
        self._reported_run = None
        self._host.clear_alarm()
        self._tell(NOTICE, "reset", "an operator asked for it; restarts are counted from now on")

    # The loop's body

    def step(self) -> str | None:
        """One look and what follows from it; the state, or None where the host did not answer."""
        try:
            launch = read_launch(self._state_dir, self._settings.instance)
            seen, judgement = self._look(launch)
        except SocleError as error:
            # Told once: a host in trouble would fill its journal.
            if self._fault != error.message:
                self._fault = error.message
                self._tell(WARNING, "blind", error.message)
            self._alive("blind")
            return None
        self._fault = None
        self._follow(launch, seen)
        if judgement.state != self._state:
            self._state = judgement.state
            self._tell(LEVELS.get(judgement.state, INFO), judgement.state, judgement.reason)
        self._alive(f"{judgement.state}: {judgement.reason}")
        if judgement.state == STUCK:
            self._handle(launch, seen, judgement)
        elif judgement.state == HEALTHY:
            self._reported_run = None
        return judgement.state

    def _look(self, launch: Launch) -> tuple[Observation, Judgement]:
        patience = self._patience(launch)
        seen = self._host.observe(launch, self._canary.state)
        if seen.run != self._ledger.run or seen.unit == STOPPED:
            # A question to an engine that is gone says nothing about the next one.
            self._canary.forget()
            seen = dataclasses.replace(seen, canary=self._canary.state)
        judgement = self._judge(seen, patience)
        if judgement.ask:
            key = read_key(self._state_dir, self._settings.instance) if launch.key_required else None
            limit_s = patience.canary_s if seen.metrics.visible == ON else patience.unseen_s
            # Longer than the patience, or the answer to the last question would be cut off as it is judged.
            self._canary.ask(launch, key, 2 * limit_s)
        elif self._canary.state.waiting_since is not None and not self._canary.under_way:
            # It got no answer in its time and the engine moves: the next one counts from when it is asked.
            self._canary.forget()
        return seen, judgement

    def _patience(self, launch: Launch) -> Patience:
        return patience_of(self._settings, launch.max_model_len, launch.step_tokens, launch.start_timeout_s)

    def _follow(self, launch: Launch, seen: Observation) -> None:
        """Notice another launch, or a start by somebody: both begin a new count of restarts."""
        ledger = self._ledger
        if ledger.gave_up and not self._alarm_known:
            # This program, or the host, was started anew since.
            self._raise_alarm()
        self._alarm_known = True
        another = ledger.generation != launch.generation
        new_run = seen.run not in ("", ledger.run)
        by_hand = ledger.run is not None and new_run and seen.first_start and ledger.run != ledger.ended_run
        if another or by_hand:
            told = ledger.gave_up
            ledger.clear(launch.generation)
            self._reported_run = None
            if told:
                self._host.clear_alarm()
                why = "another launch runs" if another else "somebody started it"
                self._tell(NOTICE, "reset", f"{why}; restarts are counted from now on")
        if new_run:
            ledger.run = seen.run
        if new_run or another:
            self._keep_ledger()

    # A stuck engine

    def _handle(self, launch: Launch, seen: Observation, judgement: Judgement) -> None:
        now = self._clock()
        if self._reported_run == seen.run:
            if now - self._reported_at >= REMIND_S:
                self._reported_at = now
                self._tell(ERROR, STUCK, f"{judgement.reason}; it is not restarted, since {self._why_not()}")
            return
        with self._host.launch_lock() as free:
            if not free:
                self._left_to_launch()
                return
        started = self._utc()
        key = read_key(self._state_dir, self._settings.instance)
        secrets = [key] if key else []
        evidence = self._collector.collect(
            unit=self._host.unit,
            container=f"vllm-{self._settings.instance}",
            engine=launch.engine,
            metrics=self._host.page,
            secrets=secrets,
            alive=lambda: self._alive("collects evidence"),
        )
        judgement = self._confirm(launch, judgement)
        with self._host.launch_lock() as free:
            action = self._choose(judgement, free)
            causes = likely_causes(evidence)
            self._record(launch, started, judgement.reason, action, causes, evidence, secrets)
            self._reported_run, self._reported_at = seen.run, self._clock()
            if action == incident.RESTART:
                self._restart(seen, judgement, causes)
        if action == incident.GIVE_UP:
            self._give_up(judgement)
        elif action == incident.REPORT:
            self._tell(ERROR, STUCK, f"{judgement.reason}; it is not restarted, since {self._why_not()}")
        elif action == incident.LEFT:
            self._reported_run = None
            self._left_to_launch()
        elif action == incident.RECOVERED:
            self._reported_run = None
            self._tell(NOTICE, "recovered", f"while evidence was collected: {judgement.reason}")

    def _confirm(self, launch: Launch, before: Judgement) -> Judgement:
        """Look twice more: collecting took its time, and an answer may have come meanwhile."""
        judgement = before
        for pause_s in (0.0, 1.0):
            self._sleep(pause_s)
            self._alive("looks once more")
            _seen, judgement = self._look(launch)
        return judgement

    def _choose(self, judgement: Judgement, free: bool) -> str:
        if judgement.state != STUCK:
            return incident.RECOVERED
        if not free:
            return incident.LEFT
        if not self._settings.restart:
            return incident.REPORT
        allowed = self._ledger.allows(self._wall_clock(), self._settings.restarts_per_hour)
        return incident.RESTART if allowed else incident.GIVE_UP

    def _restart(self, seen: Observation, judgement: Judgement, causes: Sequence[str]) -> None:
        # Before it is asked for: a watchdog that dies in between must not forget it.
        self._ledger.note_restart(self._wall_clock())
        self._ledger.ended_run = seen.run
        self._keep_ledger()
        count = f"{len(self._ledger.restarts)} of {self._settings.restarts_per_hour} in an hour"
        self._tell(ERROR, "restart", " ".join([f"{judgement.reason}; restart {count}.", *causes]))
        try:
            self._host.restart()
        except SocleError as error:
            self._reported_run = None
            self._tell(ERROR, "restart", error.message)

    def _give_up(self, judgement: Judgement) -> None:
        self._ledger.gave_up = True
        self._keep_ledger()
        self._tell(
            ERROR,
            "gave-up",
            f"{judgement.reason}; {self._settings.restarts_per_hour} restarts in an hour did not help. Find the cause"
            f" in the record, then: systemctl reload {self._unit()}",
        )
        self._raise_alarm()

    def _left_to_launch(self) -> None:
        self._tell(NOTICE, "busy", "a launch is under way, and decides what becomes of it")

    def _raise_alarm(self) -> None:
        try:
            self._host.raise_alarm()
        except SocleError as error:
            self._tell(ERROR, "gave-up", error.message)

    def _record(
        self,
        launch: Launch,
        started: str,
        reason: str,
        action: str,
        causes: Sequence[str],
        evidence: dict[str, Any],
        secrets: Sequence[str],
    ) -> None:
        now = self._wall_clock()
        self._recorded = [moment for moment in self._recorded if 0 <= now - moment < HOUR_S]
        if len(self._recorded) >= RECORDS_PER_HOUR:
            self._tell(WARNING, "record", f"left out: {RECORDS_PER_HOUR} were written within an hour")
            return
        self._recorded.append(now)
        try:
            name, text = incident.incident_record(
                self._settings,
                launch,
                started=started,
                finished=self._utc(),
                reason=reason,
                action=action,
                restarts_last_hour=sum(now - moment < HOUR_S for moment in self._ledger.restarts),
                causes=causes,
                evidence=evidence,
                secrets=secrets,
            )
            path = incident.write_incident(self._state_dir, name, text)
        except SocleError as error:
            # A full disk must not keep a stuck engine stuck.
            self._tell(ERROR, "record", error.message)
        else:
            self._tell(NOTICE, "record", str(path))

    # Words and files

    def _why_not(self) -> str:
        if self._settings.restart:
            return (
                f"{self._settings.restarts_per_hour} restarts in an hour did not help (systemctl reload {self._unit()})"
            )
        return "watchdog_restart is false"

    def _unit(self) -> str:
        return f"socle-watchdog@{self._settings.instance}"

    def _tell(self, level: int, word: str, sentence: str) -> None:
        self._say(level, f"{self._settings.instance} {word}: {sentence}")

    def _read_ledger(self) -> str | None:
        try:
            return Files().read(self._ledger_file)
        except OSError:
            return None

    def _keep_ledger(self) -> None:
        staged = self._ledger_file.with_suffix(".part")
        try:
            staged.write_text(self._ledger.text(), encoding="utf-8")
            staged.replace(self._ledger_file)
        except OSError as error:
            self._tell(
                ERROR, "ledger", f"{self._ledger_file} cannot be written ({error.strerror}); make room or repair it"
            )
