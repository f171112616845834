# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsers of what a Linux host says about itself. Private to socle.inference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import read_bytes


def parse_os_release(text: str) -> dict[str, Any]:
    """{id, version_id, codename, id_like}; rolling distributions have no version."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            values[key] = value.strip("\"'")
    return {
        "id": values.get("ID"),
        "version_id": values.get("VERSION_ID"),
        "codename": values.get("VERSION_CODENAME") or None,
        "id_like": values.get("ID_LIKE", "").split(),
    }


def parse_cpuinfo(text: str) -> dict[str, Any]:
    """Model (None where the kernel names none, as on many ARM machines) and number of logical processors."""
    model: str | None = None
    cores = 0
    for line in text.splitlines():
        key, _colon, value = line.partition(":")
        key = key.strip()
        if key == "processor":
            cores += 1
        elif key == "model name" and model is None:
            model = value.strip() or None
    return {"model": model, "cores": cores or None}


def parse_hypervisor(text: str) -> bool:
    """Whether the processor's flags in /proc/cpuinfo say that a hypervisor runs below (x86 only)."""
    return re.search(r"^flags\s*:.*\shypervisor(\s|$)", text, re.MULTILINE) is not None


def parse_memory_mib(text: str) -> int | None:
    """MemTotal of /proc/meminfo in MiB."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) // 1024 if match else None


def parse_engine_version(engine: str, output: str) -> str | None:
    """The version in "podman version 5.4.2" or "Docker version 28.2.2, build e6534b4".

    None when another engine answers: package podman-docker gives Podman the name docker.
    """
    match = re.search(rf"^{engine} version (\d+[0-9A-Za-z.+~-]*)", output, re.MULTILINE | re.IGNORECASE)
    return match.group(1) if match else None


def parse_toolkit_version(output: str) -> str | None:
    """The version in "NVIDIA Container Toolkit CLI version 1.20.0"."""
    match = re.search(r"version (\d+[0-9A-Za-z.+~-]*)", output)
    return match.group(1) if match else None


def read_secure_boot(sys_root: Path) -> bool | None:
    """By the last byte of the EFI variable; False on a host that was not booted by EFI, None when it cannot be read."""
    efi = sys_root / "firmware/efi"
    if not efi.is_dir():
        return False
    for variable in sorted((efi / "efivars").glob("SecureBoot-*")):
        content = read_bytes(variable)
        # Four bytes of attributes, then the value.
        if len(content) == 5:
            return content[4] == 1
    return None


def merge_gpus(by_pci: list[dict[str, Any]], by_smi: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What nvidia-smi shows, completed from PCI, then what only PCI shows (no driver, or a GPU that fell off)."""
    pci = {gpu["pci_bus_id"]: gpu for gpu in by_pci}
    merged = [_merge(gpu, pci.pop(gpu["pci_bus_id"], None)) for gpu in by_smi]
    return merged + [pci[key] for key in sorted(pci)]


def _merge(told: dict[str, Any], seen: dict[str, Any] | None) -> dict[str, Any]:
    """*told* by nvidia-smi, with what it leaves open as *seen* on the bus."""
    if seen is None:
        return told
    merged = {name: seen[name] if value is None else value for name, value in told.items()}
    merged["on_bus"] = True
    merged["pcie"] = {name: seen["pcie"][name] if value is None else value for name, value in told["pcie"].items()}
    return merged
