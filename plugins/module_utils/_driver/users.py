# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of somebody else a change of the driver would disturb: processes and containers. Private to socle.inference."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import read_text
from ansible_collections.socle.inference.plugins.module_utils._packages.version import version_key
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import cgroup_owner, parse_runtime_config

OWN_UNITS = ("nvidia-fabricmanager.service", "nvidia-persistenced.service")
"""Units of the driver that keep its modules in use; stopped before a reload and started after it."""

MONITORING_UNITS = ("nvidia-dcgm.service", "dcgm.service", "dcgm-exporter.service")
"""Units beside the instances that hold the modules in use, and are stopped with them."""

CDI_BY_DEFAULT = (1, 18, 0)
"""From this toolkit on the runtime nvidia injects GPUs by CDI unless told otherwise."""

DOCKERD = "run/docker.pid"
"""There while Docker's daemon runs."""

_DOCKER_ID = re.compile(r"/docker[-/]([0-9a-f]{64})")

_INSPECT = "[{{json .Name}},{{json .HostConfig.Runtime}},{{json .HostConfig.DeviceRequests}},{{json .Config.Env}}]"


def foreign_users(run: Run, proc_root: Path, gpus: Sequence[Mapping[str, Any]], stopped: Collection[str]) -> list[str]:
    """Processes that use the GPUs and do not belong to units in *stopped*: "process 77 (python3 of train.service)".

    *gpus* are those of gpu_facts; what has a device node open counts as well, since nvidia-smi fails when its version
    is not that of the module.
    """
    names: dict[int, str] = {}
    for gpu in gpus:
        for process in gpu.get("processes") or ():
            names[int(process["pid"])] = str(process.get("name") or "unknown")
    for pid in _with_open_nodes(proc_root):
        names.setdefault(pid, read_text(proc_root / str(pid) / "comm").strip() or "unknown")
    # One that looks, and is gone in a moment.
    users = [pid for pid, name in names.items() if name.rpartition("/")[2] != "nvidia-smi"]
    owners = {pid: process_owner(proc_root, pid) for pid in users}
    if any(owner and not owner.endswith((".service", ".scope")) for owner in owners.values()):
        containers = container_names(run)
        owners = {pid: containers.get(owner or "", owner) for pid, owner in owners.items()}
    mine = {*stopped, *OWN_UNITS, *MONITORING_UNITS}
    return [
        f"process {pid} ({names[pid]}{f' of {owner}' if owner else ''})"
        for pid, owner in sorted(owners.items())
        if owner not in mine and f"{owner}.service" not in mine
    ]


def _with_open_nodes(proc_root: Path) -> Iterator[int]:
    for folder in proc_root.glob("[0-9]*/fd"):
        try:
            entries = list(folder.iterdir())
        except OSError:
            # It ended meanwhile.
            continue
        for entry in entries:
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("/dev/nvidia"):
                yield int(folder.parent.name)
                break


def process_owner(proc_root: Path, pid: int) -> str | None:
    """The unit or scope of a process, or the id of its Docker container."""
    text = read_text(proc_root / str(pid) / "cgroup")
    docker = _DOCKER_ID.search(text)
    return docker.group(1) if docker else cgroup_owner(text)


def container_names(run: Run) -> dict[str, str]:
    """Names of the running Docker containers by their ids."""
    answer = run(["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"])
    return dict(line.split(None, 1) for line in (answer[1] if answer else "").splitlines() if " " in line)


def reload_victims(run: Run, root: Path, toolkit: str | None, stopped: Collection[str] = ()) -> list[str]:
    """Running Docker containers, other than those of units in *stopped*, that lose their GPUs at a daemon-reload.

    systemd then sets the devices of a container's cgroup anew by what it knows, and NVIDIA's legacy hook adds the GPUs
    behind its back. *toolkit* is the installed version of NVIDIA's container toolkit.
    """
    # A stopped daemon has no containers, and asking would start it by its socket.
    if not (root / DOCKERD).exists():
        return []
    running = run(["docker", "ps", "--quiet", "--no-trunc"])
    ids = running[1].split() if running and running[0] == 0 else []
    if not ids:
        return []
    driver = run(["docker", "info", "--format", "{{.CgroupDriver}}"])
    if driver is not None and driver[1].strip() == "cgroupfs":
        return []
    mode = parse_runtime_config(read_text(root / "etc/nvidia-container-runtime/config.toml"))["mode"]
    old = toolkit is None or version_key(toolkit) < CDI_BY_DEFAULT
    legacy = mode == "legacy" or (mode in (None, "auto") and old)
    answer = run(["docker", "inspect", "--format", _INSPECT, *ids])
    found = []
    # One that ended meanwhile makes an error of the whole, with the lines of the others.
    for line in answer[1].splitlines() if answer else ():
        try:
            name, runtime, requests, environment = json.loads(line)
        except ValueError:
            continue
        # "--gpus" sets the hook whatever the runtime's mode is.
        hooked = any(_asks_for_gpus(request) for request in requests or ())
        if hooked or (legacy and runtime == "nvidia" and _sees_gpus(environment or ())):
            found.append(str(name).lstrip("/"))
    return sorted(name for name in found if name not in stopped and f"{name}.service" not in stopped)


def _asks_for_gpus(request: Mapping[str, Any]) -> bool:
    wanted = {word for words in request.get("Capabilities") or () for word in words}
    return request.get("Driver") != "cdi" and "gpu" in wanted


def _sees_gpus(environment: Sequence[str]) -> bool:
    """The runtime, where it is Docker's default one, does nothing to other containers."""
    values = dict(entry.split("=", 1) for entry in environment if "=" in entry)
    return values.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "void", "none")
