# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CDI specs say about a host's GPUs, and what is wrong with that. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.select import parse_version
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import GPU_KIND, parse_cdi_spec
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import read_regular
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import LABELS, cdi_limit

FOLDERS = ("etc/cdi", "var/run/cdi")
LEFT_OVER = "/etc/cdi/nvidia.yaml"
"""Where instructions from before the refresh unit put the spec: nothing renews it, so it outlives its driver."""


@dataclass(frozen=True)
class Spec:
    """One file that describes GPUs."""

    path: str
    version: str | None
    devices: tuple[str, ...]
    drivers: tuple[str, ...]
    """Versions in the names of the driver libraries that it mounts."""
    error: str | None = None
    nodes: tuple[str, ...] = ()
    """Device nodes that it hands over."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as ``nvidia-smi -L`` lists it."""

    index: int
    uuid: str
    mig: tuple[str, ...] = ()
    """UUIDs of its MIG devices: where there are any, they are given to containers instead of the GPU."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with the specs, and whether writing them again may cure it."""

    text: str
    refreshable: bool = True


@dataclass(frozen=True)
class Expected:
    """What the specs must fit."""

    gpus: Sequence[Gpu]
    driver: str | None
    """Version of the loaded module."""
    engine: str
    engine_version: str
    by_index: bool = True
    """Whether devices must be there by index too; not where the user named other strategies."""
    nodes: tuple[str, ...] = ()
    """Control nodes of the host that containers need."""


def parse_list(text: str) -> list[Gpu]:
    """Output of ``nvidia-smi -L``."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d+):.*\(UUID: (GPU-[^)]+)\)", line)
        mig = re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line)
        if gpu:
            gpus.append(Gpu(int(gpu[1]), gpu[2]))
        elif mig and gpus:
            last = gpus[-1]
            gpus[-1] = Gpu(last.index, last.uuid, (*last.mig, mig[1]))
    return gpus


def device_uuids(gpus: Sequence[Gpu]) -> list[str]:
    """UUIDs of everything that a container given all GPUs must see."""
    return sorted(uuid for gpu in gpus for uuid in (gpu.uuid, *gpu.mig))


def parse(path: str, text: str) -> Spec | None:
    """The file as a spec of GPUs; None where it describes other devices."""
    found = parse_cdi_spec(text)
    kind = found["kind"]
    if kind != GPU_KIND and not (kind is None and "nvidia" in Path(path).name):
        return None
    return Spec(
        path=path,
        version=found["version"],
        devices=tuple(found["devices"]),
        drivers=tuple(found["driver_versions"]),
        error=found["error"],
        nodes=tuple(sorted(set(re.findall(r"path\"?:[ \t]*\"?(/dev/nvidia[\w-]*)\"?", text)))),
    )


def read_specs(root: Path) -> list[Spec]:
    """All specs of GPUs on the host, in the order in which engines look: later folders win."""
    specs = []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.suffix in (".yaml", ".json") and path.is_file():
                spec = parse(f"/{folder}/{path.name}", read_regular(path))
                if spec is not None:
                    specs.append(spec)
    return specs


def version_fault(spec: Spec, engine: str, engine_version: str) -> str | None:
    """Why this engine cannot read the spec; None where it can."""
    limit = cdi_limit(engine, engine_version)
    version = parse_version(spec.version)
    if limit is None or version is None or version <= limit:
        return None
    reads = f"reads CDI up to {'.'.join(map(str, limit))}" if any(limit) else "knows no CDI"
    return (
        f"{spec.path} is written in CDI {spec.version}, but {LABELS[engine]} {engine_version} {reads} and ignores the"
        " whole file"
    )


def judge(specs: Sequence[Spec], expected: Expected) -> list[Fault]:
    """Everything that keeps containers from getting exactly the host's GPUs."""
    if not specs:
        return [Fault("no CDI spec describes the GPUs")]
    faults = []
    for spec in specs:
        if spec.error:
            faults.append(Fault(f"{spec.path} cannot be read: {spec.error}"))
            continue
        unreadable = version_fault(spec, expected.engine, expected.engine_version)
        if unreadable:
            faults.append(Fault(unreadable))
        stale = [version for version in spec.drivers if expected.driver and version != expected.driver]
        if stale:
            faults.append(
                Fault(f"{spec.path} was written for driver {stale[0]}, but driver {expected.driver} is loaded")
            )
    faults += _device_faults([spec for spec in specs if not spec.error], expected)
    return faults


def _device_faults(specs: Sequence[Spec], expected: Expected) -> list[Fault]:
    where: dict[str, list[str]] = {}
    for spec in specs:
        for name in spec.devices:
            where.setdefault(name, []).append(spec.path)
    faults = []
    doubled = {name: paths for name, paths in where.items() if len(paths) > 1}
    if doubled:
        name, paths = next(iter(doubled.items()))
        faults.append(
            Fault(f"{' and '.join(paths)} both describe the device '{name}'; one of them must go", refreshable=False)
        )
    missing = [name for name in _names(expected) if name not in where]
    if missing:
        faults.append(Fault(f"no CDI spec describes {', '.join(missing)}"))
    known = {name for gpu in expected.gpus for name in (str(gpu.index), gpu.uuid, *gpu.mig)}
    gone = [name for name in where if name.startswith("GPU-") and name not in known]
    if gone:
        faults.append(Fault(f"{where[gone[0]][0]} describes {gone[0]}, which the host no longer has"))
    lacking = [node for node in expected.nodes if not any(node in spec.nodes for spec in specs)]
    if lacking and where:
        faults.append(Fault(f"no CDI spec hands {', '.join(lacking)} to containers"))
    return faults


def _names(expected: Expected) -> list[str]:
    names: list[str] = []
    for gpu in expected.gpus:
        if gpu.mig:
            names += gpu.mig
        else:
            names += [str(gpu.index), gpu.uuid] if expected.by_index else [gpu.uuid]
    return names


def explain(said: str, specs: Sequence[Spec], engine: str, engine_version: str, modes: Mapping[str, int]) -> str:
    """The real reason behind an engine's words about CDI, which mostly are "unresolvable CDI devices" alone.

    *modes* are the permission bits of the specs' files.
    """
    text = " ".join(said.split())
    if "unresolvable CDI devices" in text or 'device driver "cdi"' in text or "CDI device injection failed" in text:
        if not specs:
            return "no CDI spec describes the GPUs (/etc/cdi and /var/run/cdi hold none)"
        for spec in specs:
            if spec.error:
                return f"{spec.path} cannot be read: {spec.error}"
            fault = version_fault(spec, engine, engine_version)
            if fault:
                return fault
        hidden = [path for path, mode in modes.items() if not mode & 0o004]
        if hidden:
            return f"{hidden[0]} has mode {modes[hidden[0]]:04o}, so that only root can read it"
        if 'device driver "cdi"' in text:
            return "dockerd runs without CDI (features.cdi in /etc/docker/daemon.json, and a restart after it was set)"
    if "Driver/library version mismatch" in text:
        return "the loaded driver and its libraries have different versions; reboot the host"
    gone = re.search(r"(?:stat|open|lstat) (/\S+?):? no such file", text)
    if gone:
        return f"the CDI spec names {gone[1]}, which is not there, as after a driver upgrade"
    if "Insufficient Permissions" in text:
        return "access to the device nodes was refused (SELinux, or the mode of /dev/nvidia*)"
    return text.rstrip(".")
