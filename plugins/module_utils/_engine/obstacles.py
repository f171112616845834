# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps an instance from its start on a host, told before anything changes. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import NAME, Backend, UnitState
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import Generation, read_history
from ansible_collections.socle.inference.plugins.module_utils._engine.gpu_room import GpuRoom
from ansible_collections.socle.inference.plugins.module_utils._engine.guard import gpu_obstacle
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import (
    INSTANCE_LABEL,
    MANAGED,
    image_id,
    probe_address,
)
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError


class Obstacles:
    """Looks for what a start would take away from others, and for what it needs and others hold or nobody has."""

    def __init__(
        self,
        backend: Backend,
        instances_dir: Path,
        files: Files,
        *,
        listens: Callable[[str, int], bool],
        others: Sequence[Backend],
        facts: dict[str, Any] | None,
        reload_victims: Callable[[], Sequence[str]],
        room: GpuRoom | None,
    ) -> None:
        """See `Launcher`, which is given the same."""
        self._backend = backend
        self._dir = instances_dir
        self._files = files
        self._listens = listens
        self._others = others
        self._facts = facts
        self._reload_victims = reload_victims
        self._room = room

    def of_start(
        self, instance: str, plan: dict[str, Any], before: Generation | None, unit: UnitState
    ) -> EngineError | None:
        """What this start would take away from others, or others hold that it needs: port, GPUs."""
        foreign = self.foreign_unit(instance) or self._foreign_container(instance)
        if foreign:
            return foreign
        port = int(plan["port"])
        gpus = {str(gpu) for gpu in plan.get("gpus") or []}
        for other, (rival, state) in self._holding_plans(instance).items():
            common = sorted(gpus & {str(gpu) for gpu in rival.get("gpus") or []})
            held = [f"port {port}"] if rival.get("port") == port else []
            held += [f"GPU {', '.join(common)}"] if common else []
            if held:
                ending = state.active == "deactivating"
                doing = "is ending" if ending else "is starting" if state.coming_up else "runs"
                remedy = f"stop it first with 'systemctl stop vllm-{other}', or remove it"
                return EngineError(
                    f"Cannot start {instance}: the instance {other} {doing} on this host and holds"
                    f" {' and '.join(held)}; {'wait for its end, then repeat the run' if ending else remedy}.",
                    held_by=other,
                    port=port if rival.get("port") == port else None,
                    gpus=common,
                )
        unfit = self._unfit(plan)
        if unfit is None and self._room is not None:
            unfit = self._room.obstacle(plan, self._backend.service(instance))
        if unfit:
            return unfit
        # What listens there is our own engine, unless that one does not run, or runs on another port.
        if unit.holds and (before is None or before.plan.get("port") == port):
            return None
        address = probe_address(plan.get("argv") or [])
        if not self._listens(address, port):
            return None
        return EngineError(
            f"Cannot start {instance}: another process listens on port {port} of {address} already; find it with"
            " 'ss -ltnp' on the host and stop it, or give the instance another port.",
            port=port,
        )

    def missing(self, target: Generation) -> EngineError | None:
        """What a generation was made of and the host has no more."""
        plan = target.plan
        instance = str(plan.get("instance"))
        attempt = f"Cannot bring back generation {target.number} of {instance}"
        reference = str(plan.get("image"))
        if self._backend.image(image_id(plan) or reference) is None:
            return EngineError(
                f"{attempt}: its image {reference} ({str(plan.get('image_digest'))[:19]}...) is not on this host any"
                f" more; pull it with '{self._backend.name} pull {reference}' if that tag still means the same, or"
                " choose another generation with '-e socle_generation=N'.",
                image=reference,
            )
        for mount in plan.get("mounts") or []:
            if mount["kind"] == "cache" or Path(str(mount["source"])).exists():
                continue
            model = plan.get("model") or {}
            what = f"model {model.get('repo')}@{model.get('revision')}" if mount["kind"] == "model" else mount["kind"]
            return EngineError(
                f"{attempt}: its {str(what).replace('_', ' ')} is not on this host any more, expected"
                f" {mount['source']}; bring it back by deploying the settings of that time, or choose another"
                " generation with '-e socle_generation=N'.",
                path=str(mount["source"]),
            )
        for secret in plan.get("secrets") or []:
            if self._backend.secret_mark(instance, str(secret["name"])) is None:
                return EngineError(
                    f"{attempt}: it needs the secret {secret['name']}, which {self._backend.label} does not have any"
                    f" more; set {secret['name']} of {instance} in vllm_instances again, or choose another generation"
                    " with '-e socle_generation=N'.",
                    secret=str(secret["name"]),
                )
        return None

    def reload_warnings(self, instance: str) -> list[str]:
        """Asked before the reload, after which the containers run on, without their GPUs."""
        victims = self._reload_victims()
        if not victims:
            return []
        return [
            f"To start {instance}, systemd reads its units anew, which takes the GPUs from Docker containers of"
            f" NVIDIA's legacy hook ('Failed to initialize NVML: Unknown Error'): {', '.join(victims)}; restart them"
            " after this run, and start them with --device nvidia.com/gpu=... in future, which no reload touches."
        ]

    def foreign_unit(self, instance: str) -> EngineError | None:
        """A unit file of the instance's service that somebody else wrote."""
        for backend in (self._backend, *self._others):
            path = backend.unit_file(instance)
            text = self._files.read(path)
            if text is not None and not text.startswith(MANAGED):
                return EngineError(
                    f"Will not touch {backend.service(instance)}: its unit {path} does not begin with '{MANAGED}', so"
                    " that somebody else wrote it; stop that service and move the file away, or give the instance"
                    " another name.",
                    unit=str(path),
                )
        return None

    def _foreign_container(self, instance: str) -> EngineError | None:
        """A container with the instance's name that is somebody else's: every start of the unit would remove it."""
        labels = self._backend.container_labels(instance)
        if labels is None or labels.get(INSTANCE_LABEL) == instance:
            return None
        name = f"vllm-{instance}"
        return EngineError(
            f"Cannot start {instance}: {self._backend.label} has a container {name} without the label"
            f" {INSTANCE_LABEL}={instance}, so that it is somebody else's; remove it ('{self._backend.name} rm -f"
            f" {name}') or rename it, or give the instance another name.",
            container=name,
        )

    def _unfit(self, plan: dict[str, Any]) -> EngineError | None:
        """Why the host cannot give the plan its GPUs."""
        return gpu_obstacle(plan, self._facts, self._backend.cdi_dirs()) if plan.get("gpus") else None

    def _holding_plans(self, instance: str) -> dict[str, tuple[dict[str, Any], UnitState]]:
        """Current plan and unit of each other instance of this host that has, or is about to have, what it plans."""
        plans = {}
        try:
            entries = sorted(self._dir.iterdir(), key=lambda path: path.name)
        except FileNotFoundError:
            entries = []
        for entry in entries:
            if entry.name != instance and NAME.fullmatch(entry.name) and entry.is_dir():
                history = read_history(entry, self._files)
                if history.current is not None:
                    plans[entry.name] = history.generations[history.current].plan
        states = self._backend.states(plans)
        return {name: (plan, states[name]) for name, plan in plans.items() if states[name].holds}
