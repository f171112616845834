# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a host through /sys, /proc and three commands, all injected. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from ansible_collections.socle.inference.plugins.module_utils._gpu import parse

SCHEMA = "socle.gpu_facts/1"
ENGINES = ("podman", "docker")
"""Container engines, the preferred one first."""

Run = Callable[[list[str]], Optional[tuple[int, str]]]
"""Runs a command: (return code, output), or None when there is no such command."""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def scan_pci(sys_root: Path) -> list[dict[str, Any]]:
    """NVIDIA display controllers by sysfs, which needs neither driver nor tools."""
    gpus = []
    devices = sys_root / "bus/pci/devices"
    for device in sorted(devices.iterdir()) if devices.is_dir() else []:
        if _read(device / "vendor").strip() != parse.NVIDIA:
            continue
        if not _read(device / "class").strip().startswith(parse.DISPLAY_CLASSES):
            continue
        gpus.append(
            {
                "index": None,
                "uuid": None,
                "pci_bus_id": device.name,
                "product": None,
                "pci_device_id": "10de:" + _read(device / "device").strip().replace("0x", "", 1),
                "memory_mib": None,
            }
        )
    return gpus


def _smi(run: Run) -> tuple[list[dict[str, Any]], str | None, str | None]:
    """(GPUs, driver version, what nvidia-smi complained about)."""
    answer = run(["nvidia-smi", f"--query-gpu={','.join(parse.SMI_FIELDS)}", "--format=csv,noheader,nounits"])
    if answer is None:
        return [], None, None
    code, output = answer
    gpus, driver = parse.parse_smi(output)
    complaint = None if code == 0 else (output.strip().splitlines() or [f"nvidia-smi ended with {code}"])[0]
    return gpus, driver, complaint


def _engine(run: Run) -> dict[str, str | None]:
    for name in ENGINES:
        answer = run([name, "--version"])
        if answer is not None and answer[0] == 0:
            return {"name": name, "version": parse.parse_engine_version(answer[1])}
    return {"name": None, "version": None}


def gather(run: Run, sys_root: Path, proc_root: Path, os_release: Path) -> dict[str, Any]:
    """Everything that a plan and an environment fingerprint need to know of a host."""
    by_smi, driver, complaint = _smi(run)
    gpus = parse.merge_gpus(scan_pci(sys_root), by_smi)
    driver = driver or parse.parse_driver_version(_read(proc_root / "driver/nvidia/version"))
    return {
        "schema": SCHEMA,
        "host_class": None if gpus else "cpu",
        "gpus": gpus,
        "driver": {"version": driver, "error": complaint},
        "cpu": parse.parse_cpuinfo(_read(proc_root / "cpuinfo")),
        "memory_mib": parse.parse_memory_mib(_read(proc_root / "meminfo")),
        "kernel": _read(proc_root / "sys/kernel/osrelease").strip() or None,
        "os": parse.parse_os_release(_read(os_release)),
        "engine": _engine(run),
        "cgroup_version": 2 if (sys_root / "fs/cgroup/cgroup.controllers").is_file() else 1,
    }
