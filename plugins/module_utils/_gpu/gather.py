# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a host through /sys, /proc and a few commands, all injected. Private to socle.inference."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._engine import podman_config
from ansible_collections.socle.inference.plugins.module_utils._gpu import (
    driver,
    kernel_log,
    parse,
    pci,
    smi,
    topology,
)
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import (
    read_text,
)

SCHEMA = "socle.gpu_facts/2"
ENGINES = ("podman", "docker")
"""Container engines, the preferred one first."""


def gather(run: Run, sys_root: Path, proc_root: Path, os_release: Path, root: Path = Path("/")) -> dict[str, Any]:
    """The result of gpu_facts, whose documentation gives its shape.

    On a host without a PCI device of NVIDIA the engines are asked for their versions, and no other command is run. A
    Podman that would never answer, by podman_config.fault, is not asked.
    """
    run = smi.sparing(run)
    devices = pci.nvidia_devices(sys_root)
    present = bool(devices)
    on_bus = pci.read_gpus(devices)
    report = smi.read(run) if present else smi.SmiReport([], None, None, None)
    gpus = parse.merge_gpus(on_bus, report.gpus)
    versions = driver.read(run, sys_root, proc_root, root, present)
    versions.update(
        version=versions["version"] or report.driver_version, cuda_version=report.cuda_version, error=report.error
    )
    cpuinfo = read_text(proc_root / "cpuinfo")
    silent = podman_config.fault(root) is not None
    engines = {name: None if silent and name == "podman" else _engine_version(run, name) for name in ENGINES}
    preferred = next((name for name in ENGINES if engines[name]), None)
    return {
        "schema": SCHEMA,
        "host_class": None if gpus else "cpu",
        "kernel": read_text(proc_root / "sys/kernel/osrelease").strip() or None,
        "arch": read_text(proc_root / "sys/kernel/arch").strip() or platform.machine(),
        "cgroup_version": 2 if (sys_root / "fs/cgroup/cgroup.controllers").is_file() else 1,
        "cpu": parse.parse_cpuinfo(cpuinfo),
        "memory_mib": parse.parse_memory_mib(read_text(proc_root / "meminfo")),
        "os": parse.parse_os_release(read_text(os_release)),
        "gpus": gpus,
        "nvswitches": pci.read_nvswitches(devices),
        "nvlink5": pci.has_nvlink5(sys_root),
        "links": topology.read(run, gpus),
        "driver": versions,
        "secure_boot": parse.read_secure_boot(sys_root),
        "iommu": pci.read_iommu(sys_root, read_text(proc_root / "cmdline"), on_bus),
        "acs_redirects": pci.read_acs_redirects(sys_root, on_bus),
        "hypervisor": parse.parse_hypervisor(cpuinfo),
        "xids": kernel_log.read(run) if present else [],
        "engine": {"name": preferred, "version": engines[preferred] if preferred else None},
        "engines": engines,
        "toolkit": {"version": _toolkit_version(run) if present else None},
    }


def _engine_version(run: Run, name: str) -> str | None:
    answer = run([name, "--version"])
    return parse.parse_engine_version(name, answer[1]) if answer and answer[0] == 0 else None


def _toolkit_version(run: Run) -> str | None:
    answer = run(["nvidia-ctk", "--version"])
    return parse.parse_toolkit_version(answer[1]) if answer and answer[0] == 0 else None
