# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the GPUs of an instance have the memory free that its engine will ask for, and who holds the rest.

Private to socle.inference. The engine itself says only that there is too little, minutes later, and not who has it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver.users import container_names, process_owner
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

UTILISATION = 0.9
"""The least of the defaults of --gpu-memory-utilization (0.92 in newer versions), so that none is refused wrongly."""

SLACK_MIB = 1024
"""Of a GPU's memory, what its driver reserves and a small helper may have, before a start is refused for it."""

RELEASE_S = 60.0
"""How long the memory of an engine that ended may take to become free: large processes take some seconds to unmap."""

POLL_S = 1.0

_GPUS = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits"]
_PROCESSES = (
    "nvidia-smi",
    "--query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory",
    "--format=csv,noheader,nounits",
)


@dataclass(frozen=True)
class Holder:
    """A process that has memory of a GPU; *used_mib* is None where the driver does not tell."""

    pid: int
    name: str
    used_mib: int | None
    owner: str | None
    """Its systemd unit, scope, or Docker container."""

    def describe(self) -> str:
        """ "process 77 (python3 of train.service, 55.2 GiB)"."""
        of = f" of {self.owner}" if self.owner else ""
        used = f", {self.used_mib / 1024:.1f} GiB" if self.used_mib is not None else ""
        return f"process {self.pid} ({self.name}{of}{used})"


@dataclass(frozen=True)
class Room:
    """The memory of one GPU, in MiB."""

    index: str
    uuid: str
    total_mib: int
    free_mib: int


def utilisation(argv: Sequence[str]) -> float:
    """The part of a GPU's memory that an engine with these arguments asks for."""
    for index, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag == "--gpu-memory-utilization":
            text = value if equals else (argv[index + 1] if index + 1 < len(argv) else "")
            try:
                return float(text)
            except ValueError:
                return UTILISATION
    return UTILISATION


def parse_rooms(text: str) -> list[Room]:
    """The GPUs by nvidia-smi (CSV without units); lines without figures, as of MIG devices, are left out."""
    rooms = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 4 and words[2].isdigit() and words[3].isdigit():
            rooms.append(Room(words[0], words[1], int(words[2]), int(words[3])))
    return rooms


def parse_holders(text: str, owner: Callable[[int], str | None]) -> dict[str, list[Holder]]:
    """The processes by nvidia-smi (CSV without units), by UUID of the GPU."""
    holders: dict[str, list[Holder]] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) < 4 or not words[1].isdigit():
            continue
        # A program's path may have commas.
        name = ",".join(words[2:-1]).rpartition("/")[2] or "unknown"
        used = int(words[-1]) if words[-1].isdigit() else None
        holders.setdefault(words[0], []).append(Holder(int(words[1]), name, used, owner(int(words[1]))))
    return holders


def read_holders(run: Run, proc_root: Path) -> dict[str, list[Holder]]:
    """Who holds memory of a host's GPUs, by UUID; empty where the driver does not answer."""
    said = run(_PROCESSES)
    if said is None or said[0] != 0:
        return {}
    found = parse_holders(said[1], lambda pid: process_owner(proc_root, pid))
    owners = {item.owner for items in found.values() for item in items if item.owner}
    if all("." in owner for owner in owners):
        return found
    # Docker's containers are known by their id alone.
    containers = container_names(run)
    return {
        uuid: [replace(item, owner=containers.get(item.owner or "", item.owner)) for item in items]
        for uuid, items in found.items()
    }


class GpuRoom:
    """Asks a host for the memory of its GPUs; one without nvidia-smi, or whose driver does not answer, has no say."""

    def __init__(
        self,
        runner: Runner,
        proc_root: Path = Path("/proc"),
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runner = runner
        self._proc_root = proc_root
        self._progress = progress or Progress()
        self._clock = clock
        self._sleep = sleep

    def _ask(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        try:
            done = self._runner(argv)
        except EngineError:
            return None
        return done.returncode, done.stdout, done.stderr

    def rooms(self, gpus: Collection[Any]) -> list[Room]:
        """Those of the GPUs that are named by index or UUID, without who holds their memory."""
        listed = self._ask(_GPUS)
        if listed is None or listed[0] != 0:
            return []
        names = {str(gpu) for gpu in gpus}
        found = parse_rooms(listed[1])
        return [room for room in found if room.index in names or room.uuid in names]

    def holders(self) -> dict[str, list[Holder]]:
        """Who holds memory, by UUID of the GPU."""
        return read_holders(self._ask, self._proc_root)

    def obstacle(self, plan: Mapping[str, Any], own: str) -> EngineError | None:
        """Why a start would lack memory even with what the service *own* has now; asked before that one is stopped."""
        lacking = _lacking(plan, self.rooms(plan["gpus"])) if plan.get("gpus") else []
        # Without persistence each question wakes all GPUs, which takes a second or two.
        holders = self.holders() if lacking else {}
        mine = (own, own.removesuffix(".service"))
        for room in lacking:
            foreign = [item for item in holders.get(room.uuid, ()) if item.owner not in mine]
            left = room.total_mib - sum(item.used_mib or 0 for item in foreign)
            if left < _needed_mib(plan, room):
                return _refusal(plan, room, left, foreign)
        return None

    def wait(self, plan: Mapping[str, Any], limit_s: float = RELEASE_S) -> float:
        """Seconds until each GPU of the plan had the memory free; EngineError with who holds it after *limit_s*."""
        began = self._clock()
        while plan.get("gpus"):
            lacking = _lacking(plan, self.rooms(plan["gpus"]))
            waited = self._clock() - began
            if not lacking:
                return waited
            if waited >= limit_s:
                room = lacking[0]
                raise _refusal(plan, room, room.free_mib, self.holders().get(room.uuid, ()), waited)
            named = ", ".join(f"GPU {room.index} has {room.free_mib / 1024:.1f} GiB free" for room in lacking)
            self._progress.update(phase="waiting for GPU memory", detail=f"{named}, of at most {limit_s:.0f} s")
            self._sleep(POLL_S)
        return 0.0


def _lacking(plan: Mapping[str, Any], rooms: Sequence[Room]) -> list[Room]:
    return [room for room in rooms if room.free_mib < _needed_mib(plan, room)]


def _needed_mib(plan: Mapping[str, Any], room: Room) -> float:
    return utilisation(plan.get("argv") or []) * room.total_mib - SLACK_MIB


def _refusal(
    plan: Mapping[str, Any], room: Room, free_mib: int, holders: Sequence[Holder], waited_s: float = 0.0
) -> EngineError:
    largest = sorted(holders, key=lambda item: -(item.used_mib or 0))
    who = ", ".join(item.describe() for item in largest) or "no process that nvidia-smi shows"
    after = f" after {waited_s:.0f} s" if waited_s else ""
    part = utilisation(plan.get("argv") or [])
    return EngineError(
        f"Cannot start {plan.get('instance')}: GPU {room.index} has {free_mib / 1024:.1f} of"
        f" {room.total_mib / 1024:.1f} GiB for it{after}, expected {part * room.total_mib / 1024:.1f}"
        f" (gpu-memory-utilization {part:g}); the rest is held by {who}: end that, give the instance another GPU, or"
        " lower gpu-memory-utilization.",
        gpu=room.index,
        holders=[item.describe() for item in largest],
    )
