# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure parsers of what a Linux host says about itself. Private to socle.inference."""

from __future__ import annotations

import csv
import re
from typing import Any

SMI_FIELDS = ("index", "uuid", "pci.bus_id", "name", "memory.total", "driver_version")
"""What nvidia-smi is asked for, in this order."""

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers; other functions of a card (audio, USB) have others."""


def normalise_bus_id(text: str) -> str:
    """The kernel's spelling of a PCI address: "00000000:00:06.0" -> "0000:00:06.0"."""
    text = text.strip().lower()
    domain, colon, rest = text.partition(":")
    if colon and len(domain) == 8 and domain.startswith("0000"):
        domain = domain[4:]
    return f"{domain}{colon}{rest}"


def _known(text: str) -> str | None:
    """None for what nvidia-smi writes instead of a value: "[N/A]", "[Not Supported]"."""
    text = text.strip()
    return None if not text or text.startswith("[") or text == "N/A" else text


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def parse_smi(output: str) -> tuple[list[dict[str, Any]], str | None]:
    """(GPUs, driver version) of nvidia-smi's CSV without header and units; other lines are skipped."""
    gpus: list[dict[str, Any]] = []
    driver: str | None = None
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) != len(SMI_FIELDS) or not row[0].strip().isdigit():
            continue
        index, uuid, bus_id, name, memory, version = (_known(cell) for cell in row)
        gpus.append(
            {
                "index": _whole(index),
                "uuid": uuid,
                "pci_bus_id": normalise_bus_id(bus_id) if bus_id else None,
                "product": name,
                "pci_device_id": None,
                "memory_mib": _whole(memory),
            }
        )
        driver = driver or version
    return gpus, driver


def parse_driver_version(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, of the open and of the proprietary module."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return match.group(1) if match else None


def parse_os_release(text: str) -> dict[str, str | None]:
    """id and version_id; rolling distributions have no version."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith("#"):
            values[key] = value.strip("\"'")
    return {"id": values.get("ID"), "version_id": values.get("VERSION_ID")}


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


def parse_memory_mib(text: str) -> int | None:
    """MemTotal of /proc/meminfo in MiB."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) // 1024 if match else None


def parse_engine_version(output: str) -> str | None:
    """The version in "podman version 5.4.2" or "Docker version 28.2.2, build e6534b4"."""
    match = re.search(r"version (\d+[0-9A-Za-z.+~-]*)", output)
    return match.group(1) if match else None


def merge_gpus(by_pci: list[dict[str, Any]], by_smi: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the driver shows, completed from PCI, then what only PCI shows (no driver, or a GPU that fell off)."""
    pci = {gpu["pci_bus_id"]: gpu for gpu in by_pci}
    merged = []
    for gpu in by_smi:
        found = pci.pop(gpu["pci_bus_id"], None)
        merged.append({**gpu, "pci_device_id": found["pci_device_id"] if found else None})
    return merged + [pci[key] for key in sorted(pci)]
