# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Generations of instances on a host, and the launch that moves from one to the next. Private to socle.inference.

Layout, under the folder of instances::

    <name>/generations/<n>/plan.json, vllm-<name>.container (Docker: .service), state.json
    <name>/current   -> generations/<n>     what the installed unit is made of
    <name>/accepted  -> generations/<n>     a link, so that there is at most one

A launch may be killed between any two steps. What makes that safe: a generation notes "prepared" until its restart is
about to be asked for, then "starting" with the invocation that runs at that moment, then "started". A rerun that finds
"starting" and another invocation knows that the restart took place.

What runs is stopped before its unit is replaced, so that its requests can end and the memory of its GPUs is seen to be
free. A launch that was killed after that finds a unit that does not run, and starts the new one.

Launches of one host come one after the other, from the look at what others hold to the start that systemd was asked
for: two at a time would both find the port free. From then on the unit itself tells that it holds its port and GPUs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import (
    STOP_S,
    Backend,
    UnitState,
    check_name,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.changes import argv_changes
from ansible_collections.socle.inference.plugins.module_utils._engine.claim import instance_lock
from ansible_collections.socle.inference.plugins.module_utils._engine.documents import (
    PLAN_BYTES,
    STATE_BYTES,
    document_text,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.drain import Drain
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import (
    LAST_NUMBER,
    SCHEMA,
    Generation,
    History,
    failed_try,
    read_history,
    way_back,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.gpu_room import GpuRoom
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import (
    Files,
    accepts_connections,
    explaining,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.locks import LockHeld, locked
from ansible_collections.socle.inference.plugins.module_utils._engine.obstacles import Obstacles
from ansible_collections.socle.inference.plugins.module_utils._engine.plan_form import RENDERED, plan_fault
from ansible_collections.socle.inference.plugins.module_utils._engine.secret import NAME as API_KEY
from ansible_collections.socle.inference.plugins.module_utils._engine.select import engine_of
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import (
    STOP_MARGIN_S,
    stop_timeout_s,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.warm import start_warming
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

LOCK_TIMEOUT_S = 30

REASON_CHARS = 10_000
"""Of why a generation failed; one sentence for each check of a suite is kept whole."""

HOST_LOCK_S = 600
"""How long a launch waits for another one of its host, which may let requests end before it starts anything."""


class Launcher:
    """Starts, stops and marks the instances of this host."""

    def __init__(
        self,
        backend: Backend,
        instances_dir: Path,
        files: Files,
        now: Callable[[], str] = utc_now,
        listens: Callable[[str, int], bool] = accepts_connections,
        others: Sequence[Backend] = (),
        facts: dict[str, Any] | None = None,
        reload_victims: Callable[[], Sequence[str]] = tuple,
        drain: Drain | None = None,
        room: GpuRoom | None = None,
        host_lock: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """*others* are the backends of other engines, whose units are taken away when an instance moves to this one;
        *facts* are those of gpu_facts, for instances with GPUs; *reload_victims* names containers of others that lose
        their GPUs when systemd reads its units anew. *drain* lets the requests of an engine end before it is stopped,
        and *room* tells whether the GPUs have the memory; without them neither is asked for. *host_lock* is the file
        that all launches of the host share, by default one beside the instances; *progress* tells who is waited for."""
        self._backend = backend
        self._dir = instances_dir
        self._files = files
        self._now = now
        self._others = others
        self._drain = drain
        self._room = room
        self._host_lock = host_lock or instances_dir / ".lock"
        self._progress = progress or Progress()
        self._obstacles = Obstacles(
            backend,
            instances_dir,
            files,
            listens=listens,
            others=others,
            facts=facts,
            reload_victims=reload_victims,
            room=room,
        )

    @contextlib.contextmanager
    def _lock(self, instance: str) -> Iterator[None]:
        folder = self._dir / instance
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            # A run whose terminal was closed may go on for a moment. One that drains an engine may take minutes, for
            # which nobody waits here.
            try:
                stack.enter_context(instance_lock(folder, LOCK_TIMEOUT_S))
            except LockHeld as error:
                raise EngineError(
                    f"Cannot change {instance}: another run has been at it for {LOCK_TIMEOUT_S} s, {error.holder};"
                    " wait for that run to end."
                ) from error
            yield

    @contextlib.contextmanager
    def _launching(self, instance: str, purpose: str) -> Iterator[None]:
        """Nothing else of this host is launched meanwhile. Taken before the lock of the instance, by whoever has both:
        who waits for the host keeps nobody from ending this instance."""

        def show(waited_s: float, holder: str) -> None:
            self._progress.update("waiting for another run", int(waited_s), HOST_LOCK_S, "s", holder)

        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self._host_lock, f"{purpose} {instance}", HOST_LOCK_S, show))
            except LockHeld as error:
                raise EngineError(
                    f"Cannot go on with {purpose} {instance}: another launch on this host did not end within"
                    f" {HOST_LOCK_S} s, {error.holder}; wait for its end, or end that process, then repeat the run.",
                    held_by=error.holder,
                ) from error
            stack.enter_context(self._lock(instance))
            yield

    def _state_file(self, instance: str, number: int) -> Path:
        return self._dir / instance / "generations" / str(number) / "state.json"

    def _note(self, instance: str, generation: Generation, **changes: Any) -> None:
        generation.state = {**generation.state, **changes}
        text = document_text(generation.state, STATE_BYTES, f"what is noted of {instance}")
        self._files.write(self._state_file(instance, generation.number), text)

    def start(
        self, plan: dict[str, Any], retry: bool = False, check: bool = False, restart: bool = False
    ) -> dict[str, Any]:
        """Make this plan what runs; asks for at most one restart, and does not wait for it.

        With *restart* it is started anew also where nothing changed.
        """
        instance = check_name(plan.get("instance") or "")
        if not plan.get("sealed") and not check:
            raise EngineError(
                f"Cannot launch {instance}: its plan is not sealed, so image and model are not proven; seal it first."
            )
        fault = plan_fault(_printable(plan), "the plan", RENDERED)
        if fault:
            raise EngineError(f"Cannot launch {instance}: {fault}; give the plan as vllm_plan sealed it.")
        with explaining(f"launch {instance}", self._dir):
            # Told before anything else, in check mode too.
            document_text(plan, PLAN_BYTES, f"the plan of {instance}")
            text = self._backend.render(_printable(plan))
            self._backend.validate(instance, text)
            if check:
                return self._start(instance, plan, text, retry, check=True, restart=restart)
            with self._launching(instance, "launching"):
                return self._start(instance, plan, text, retry, check=False, restart=restart)

    def roll_back(
        self,
        instance: str,
        number: int | None = None,
        automatic: bool = False,
        retry: bool = False,
        check: bool = False,
    ) -> dict[str, Any]:
        """Start what an earlier generation ran, by its plan and its unit as they are on disk, as a new generation.

        That is generation *number*, or the accepted one. *automatic* is after a failure: see `way_back`; where nothing
        is to come back, the result says why. A rollback that was interrupted is continued. Does not wait for the start.
        """
        folder = self._dir / check_name(instance)
        with explaining(f"bring back an earlier generation of {instance}", self._dir):
            if check:
                return self._roll_back(instance, folder, number, automatic, retry, check=True)
            with self._launching(instance, "bringing back"):
                try:
                    return self._roll_back(instance, folder, number, automatic, retry, check=False)
                except EngineError:
                    if automatic:
                        self._stop_failed(instance, folder)
                    raise

    def _stop_failed(self, instance: str, folder: Path) -> None:
        """End what is known to be wrong and has nothing to give way to."""
        history = read_history(folder, self._files)
        current = history.generations.get(history.current) if history.current else None
        if current is not None and current.failed and self._backend.state(instance).running:
            self._backend.end(instance)

    def _roll_back(
        self, instance: str, folder: Path, number: int | None, automatic: bool, retry: bool, check: bool
    ) -> dict[str, Any]:
        history = read_history(folder, self._files)
        way = way_back(instance, history, number, automatic)
        if way.target is None:
            current = history.generations.get(history.current) if history.current else None
            return {
                "changed": False,
                "action": "none",
                "starting": False,
                "generation": history.current,
                "restores": None,
                "reason": way.reason,
                "verified": False,
                "running": self._backend.state(instance).running,
                "plan": current.plan if current else None,
                "unit": str(self._backend.unit_file(instance)),
                "launch_fingerprint": current.fingerprint if current else None,
                "failed_before": None,
                "warnings": history.warnings,
            }
        target = way.target
        if engine_of(target.plan) != self._backend.name:
            # Which engine is asked was read before the lock was had.
            raise EngineError(
                f"Cannot bring back generation {target.number} of {instance}: it ran under {engine_of(target.plan)},"
                f" and {self._backend.name} was to bring back another one, which a run beside this one changed"
                " meanwhile; repeat the run."
            )
        # What runs needs nothing more.
        serving = target.number == history.current and self._backend.state(instance).running
        missing = None if serving else self._obstacles.missing(target)
        if missing is not None:
            raise missing
        self._backend.validate(instance, target.unit)
        result = self._start(instance, target.plan, target.unit, retry, check, restores=target.number)
        result.update(
            restores=target.number,
            reason=None,
            verified=result["action"] == "none" and result["generation"] == history.accepted,
            running=True,
            plan=target.plan,
        )
        return result

    def _start(
        self,
        instance: str,
        plan: dict[str, Any],
        text: str,
        retry: bool,
        check: bool,
        restart: bool = False,
        restores: int | None = None,
    ) -> dict[str, Any]:
        backend, files, folder = self._backend, self._files, self._dir / instance
        history = read_history(folder, files)
        fingerprint = plan.get("launch_fingerprint")
        before = history.generations.get(history.current) if history.current else None

        tried = failed_try(history, fingerprint, text, restores)
        failed_before = tried.describe_failure() if tried else None

        unit_file = backend.unit_file(instance)
        installed = files.read(unit_file)
        unit = backend.state(instance)
        if check and not plan.get("sealed"):
            return self._guess(plan, text, before, installed, unit)

        reuse = None
        for number in (history.highest, history.current):
            item = history.generations.get(number) if number else None
            same = item is not None and item.fingerprint == fingerprint and item.unit == text
            same = same and (restores is None or item is None or restores in (item.restores, item.number))
            # An older generation is not revived; one that never got as far as "current" is finished.
            if same and item is not None and (number == history.current or item.applied == "prepared"):
                reuse = item
                break
        done_before = bool(
            reuse
            and reuse.applied == "starting"
            and installed == text
            and unit.running
            and unit.invocation_id != reuse.state.get("invocation_before", "")
        )
        moved = [other for other in self._others if files.read(other.unit_file(instance)) is not None]
        done_before = done_before and not moved
        needed = not done_before and (
            restart
            or reuse is None
            or reuse.applied != "started"
            or installed != text
            or not unit.running
            or bool(moved)
        )
        warnings = list(history.warnings)
        if failed_before and not retry:
            why = f"generation {failed_before['generation']} of it failed"
            why += f" ({failed_before['reason'] or 'no reason noted'})"
            if needed:
                raise EngineError(
                    f"Will not start {instance} again with the same launch: {why}; change the instance, or repeat it"
                    " with '-e retry=true'.",
                    failed_before=failed_before,
                    launch_fingerprint=fingerprint,
                )
            warnings.append(f"{instance} runs by a launch that is marked as failed, {why}: left as it is.")
        if needed:
            obstacle = self._obstacles.of_start(instance, plan, before, unit)
            if obstacle and not check:
                raise obstacle
            if obstacle:  # an earlier step of the real run may remove it
                warnings.append(obstacle.message)
            warnings += self._obstacles.reload_warnings(instance)
        restarts = "restarted" if unit.holds else "started"
        acted = needed or (done_before and (retry or not failed_before))
        unproven = reuse is None or reuse.number != history.accepted
        result: dict[str, Any] = {
            "changed": needed or done_before or bool(failed_before and retry),
            "action": restarts if acted else "none",
            "starting": acted or (unit.coming_up and unproven),
            "generation": reuse.number if reuse else history.highest + 1,
            "unit": str(unit_file),
            "launch_fingerprint": fingerprint,
            "failed_before": failed_before,
            "argv_changes": argv_changes(before.plan if before else None, plan),
            "unit_before": installed or "",
            "unit_after": text,
            "drain": None,
            "warnings": warnings,
        }
        if check:
            if needed:
                result["action"] = "would_restart" if restarts == "restarted" else "would_start"
            return result

        if reuse is None and history.highest >= LAST_NUMBER:
            raise EngineError(
                f"Cannot launch {instance}: a generation of it has the number {history.highest}, the last that there"
                f" is, which no launch can have given; remove that folder, or that link, below {folder}."
            )
        if reuse is None:
            state: dict[str, Any] = {"schema": SCHEMA, "applied": "prepared", "created_at": self._now()}
            state.update(verdict=None, **({} if restores is None else {"restores": restores}))
            reuse = Generation(history.highest + 1, plan, text, state)
            files.make_folder(
                folder / "generations" / str(reuse.number),
                {
                    "plan.json": document_text(plan, PLAN_BYTES, f"the plan of {instance}"),
                    unit_file.name: text,
                    "state.json": document_text(state, STATE_BYTES, f"what is noted of {instance}"),
                },
            )
        elif needed or (reuse.failed and retry):
            forgiven = {"verdict": None, "reason": None, "verdict_at": None} if reuse.failed else {}
            # Written before anything else changes: an interrupted run must not leave "started" behind.
            self._note(instance, reuse, **({"applied": "prepared"} if needed else {}), **forgiven)
        if needed:
            # All that a file system can refuse, while what runs still serves.
            for mount in plan.get("mounts") or []:
                # Podman refuses to start a container whose mount has no source.
                if mount["kind"] == "cache":
                    files.ensure_folder(Path(mount["source"]))
            if installed != text:
                files.try_write(unit_file, text)
            if history.current != reuse.number:
                files.try_point(folder / "current")
            result["drain"] = self._make_room(instance, plan, before, unit)
            for other in moved:
                self._retire(other, instance)
            if installed != text:
                files.write(unit_file, text)
            backend.reload()
            backend.enable(instance)
        if history.current != reuse.number:
            files.point(folder / "current", f"generations/{reuse.number}")
        if needed:
            self._note(instance, reuse, applied="starting", invocation_before=backend.state(instance).invocation_id)
            backend.restart(instance)
        if needed or done_before:
            self._note(instance, reuse, applied="started", started_at=self._now())
        return result

    def _make_room(
        self, instance: str, plan: dict[str, Any], before: Generation | None, unit: UnitState
    ) -> dict[str, Any] | None:
        """End what runs, its requests first, and see the memory of the GPUs free; how long each took, in seconds."""
        began = time.monotonic()
        drained: dict[str, Any] = {"waited_s": 0.0, "requests": None}
        old = before.plan if before else {}
        runs = unit.holds
        # While the disk has nothing else to do.
        warmer = start_warming(old, plan) if runs or plan.get("gpus") else None
        try:
            if runs:
                if self._drain is not None and unit.active == "active":
                    drained = self._drain.wait_idle(old)
                self._end(instance, old)
            stopped = time.monotonic()
            if self._room is not None:
                self._room.wait(plan)
        finally:
            read = warmer.end() if warmer is not None else 0
        if not runs:
            return None
        return {
            **drained,
            "stop_s": round(stopped - began - drained["waited_s"], 1),
            "memory_s": round(time.monotonic() - stopped, 1),
            "warmed_bytes": read,
        }

    def _end(self, instance: str, plan: dict[str, Any]) -> None:
        """Stop what runs by this plan, which may take as long as it drains; what only starts serves nobody.

        vLLM takes no SIGTERM while it loads (seen with 0.32.0): only its unit's limit would end it.
        """
        if self._backend.state(instance).active == "activating":
            self._backend.end(instance)
            return
        drain = self._drain
        timeout_s = max(STOP_S, stop_timeout_s(plan) + 2 * STOP_MARGIN_S)
        self._backend.stop(instance, timeout_s, (lambda: drain.tick(plan)) if drain is not None else None)

    def _retire(self, other: Backend, instance: str) -> None:
        """Take another engine's unit away, of which nothing runs any more: two of one name would hide each other."""
        other.disable(instance)
        with contextlib.suppress(EngineError):  # the other engine may be gone
            other.remove_secret(instance, API_KEY)
        # Last, since the file is what tells an interrupted run that this is not done.
        self._files.remove(other.unit_file(instance))

    def _guess(
        self,
        plan: dict[str, Any],
        text: str,
        before: Generation | None,
        installed: str | None,
        unit: UnitState,
    ) -> dict[str, Any]:
        """Check mode without a seal (image or model not yet there): compare what is known already."""
        known = ("argv", "env", "image", "gpus", "port", "expose", "network", "shm_size_bytes", "secrets")
        changed = not before or any(before.plan.get(key) != plan.get(key) for key in known) or not unit.running
        changed = changed or (installed is None and before is not None)
        action = ("would_restart" if unit.running else "would_start") if changed else "none"
        obstacle = self._obstacles.of_start(str(plan["instance"]), plan, before, unit) if changed else None
        return {
            "changed": changed,
            "action": action,
            "starting": changed,
            "generation": None,
            "unit": str(self._backend.unit_file(str(plan["instance"]))),
            "launch_fingerprint": None,
            "failed_before": None,
            "argv_changes": argv_changes(before.plan if before else None, plan),
            "unit_before": installed or "",
            "unit_after": text if changed else installed or "",
            "warnings": [
                *([obstacle.message] if obstacle else []),
                *(self._obstacles.reload_warnings(str(plan["instance"])) if changed else []),
            ],
        }

    def stop(self, instance: str, check: bool = False) -> dict[str, Any]:
        """Stop the instance; its unit stays and starts again at the next boot or launch."""
        with explaining(f"stop {check_name(instance)}", self._dir):
            return self._stop(instance, check)

    def _stop(self, instance: str, check: bool) -> dict[str, Any]:
        history = read_history(self._dir / instance, self._files)
        # "failed" counts as stopped; "auto-restart" is among the running ones.
        running = self._backend.state(instance).running
        foreign = self._obstacles.foreign_unit(instance) if running else None
        if foreign:
            raise foreign
        current = history.generations.get(history.current) if history.current else None
        if running and not check:
            with self._lock(instance):
                self._end(instance, current.plan if current else {})
        action = ("would_stop" if check else "stopped") if running else "none"
        return {
            "changed": running,
            "action": action,
            "generation": history.current,
            "unit": str(self._backend.unit_file(instance)),
            "launch_fingerprint": current.fingerprint if current else None,
            "failed_before": None,
            "warnings": history.warnings,
        }

    def mark(
        self,
        instance: str,
        verdict: str,
        reason: str | None = None,
        generation: int | None = None,
        check: bool = False,
    ) -> dict[str, Any]:
        """Note that a generation (the current one) was accepted, or that it failed and why."""
        reason = reason and reason[:REASON_CHARS]
        folder = self._dir / check_name(instance)
        history = read_history(folder, self._files)
        number = generation if generation is not None else history.current
        if number is None or number not in history.generations:
            raise EngineError(
                f"Cannot mark {f'generation {number}' if number else 'the current generation'} of {instance} as"
                f" {verdict}: found {sorted(history.generations) or 'no generation'} under {folder}; deploy it first."
            )
        item = history.generations[number]
        result: dict[str, Any] = {
            "generation": number,
            "unit": str(self._backend.unit_file(instance)),
            "launch_fingerprint": item.fingerprint,
            "failed_before": item.describe_failure() if item.failed else None,
            "warnings": history.warnings,
        }
        if verdict == "accepted":
            changed = history.status(number) != "accepted"
            _refuse_another(instance, number, history)
        else:
            changed = not item.failed or item.state.get("reason") != reason or history.accepted == number
        if changed and not check:
            with explaining(f"mark {instance} as {verdict}", self._dir), self._lock(instance):
                # Another run may have noted a start or an acceptance since, or have launched another generation.
                history = read_history(folder, self._files)
                item = history.generations.get(number, item)
                if verdict == "accepted":
                    _refuse_another(instance, number, history)
                    self._note(instance, item, verdict=None, reason=None, verdict_at=None, accepted_at=self._now())
                    self._files.point(folder / "accepted", f"generations/{number}")
                else:
                    # The link first: a run that is killed in between leaves nothing accepted that failed.
                    if history.accepted == number:
                        self._files.remove(folder / "accepted")
                    self._note(instance, item, verdict="failed", reason=reason, verdict_at=self._now())
        done = f"marked_{verdict}"
        result.update(changed=changed, action=(f"would_be_{done}" if check else done) if changed else "none")
        return result


def _refuse_another(instance: str, number: int, history: History) -> None:
    """Refuse to accept what does not run: what was asked may have been what took its place meanwhile."""
    if number != history.current:
        current = f"generation {history.current}" if history.current else "no generation that can be read"
        raise EngineError(
            f"Cannot mark generation {number} of {instance} as accepted: {current} is what is installed, so that"
            " something else may have been probed; accept what runs now (playbook accept.yml), or"
            f" bring generation {number} back first (playbook rollback.yml with '-e socle_generation={number}').",
            current=history.current,
        )


def _printable(plan: dict[str, Any]) -> dict[str, Any]:
    """An unsealed plan with a stand-in for each mount whose source is not known yet."""
    if plan.get("sealed"):
        return plan
    mounts = plan.get("mounts")
    if not isinstance(mounts, list) or not all(isinstance(mount, dict) for mount in mounts):
        return plan
    return {**plan, "mounts": [{**mount, "source": mount.get("source") or "/known-once-sealed"} for mount in mounts]}
