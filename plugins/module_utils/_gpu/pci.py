# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sysfs tells about GPUs and the way to them, before any driver. Private to socle.inference."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import read_bytes, read_text

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers; other functions of a card (audio, USB) have others."""

BRIDGE_CLASS = "0x0604"

NVSWITCHES = ("10de:1af1", "10de:22a3")
"""NVSwitch of A100 and of H100/H200 boards (pci.ids). NVLink5 boards have none on the PCI bus."""

NVLINK5_MARK = b"SW_MNG"
"""In the vital product data of the ConnectX bridge that manages the switches of an NVLink5 board (B200, B300)."""

GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}
"""PCIe generation by GT/s of a lane, in the spellings of old and new kernels."""

ACS_CAPABILITY = 0x000D
ACS_REDIRECT = 0b1100
"""P2P Request Redirect (bit 2) and P2P Completion Redirect (bit 3) of the ACS control register."""

EXTENDED_CONFIG_BYTES = 4096

MIB = 1024 * 1024


def normalise_bus_id(text: str) -> str:
    """The kernel's spelling of a PCI address: "00000000:3B:00.0" and "PCI:0000:3b:00" -> "0000:3b:00.0"."""
    match = re.fullmatch(r"(?:pci:)?(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip().lower())
    if not match:
        return text.strip().lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}"


def empty_gpu(pci_bus_id: str | None) -> dict[str, Any]:
    """A GPU of which nothing but its address is known. Shape as in the documentation of the module gpu_facts."""
    return {
        "index": None,
        "uuid": None,
        "product": None,
        "pci_bus_id": pci_bus_id,
        "pci_device_id": None,
        "pci_subsystem_id": None,
        "memory_mib": None,
        "architecture": None,
        "compute_capability": None,
        "bound_driver": None,
        "numa_node": None,
        "on_bus": False,
        "by_driver": False,
        "pcie": {"gen": None, "gen_max": None, "width": None, "width_max": None},
        "bar1_mib": None,
        "memory": {"reserved_mib": None, "used_mib": None, "free_mib": None},
        "mig": None,
        "mig_pending": None,
        "ecc": None,
        "ecc_pending": None,
        "remapped_pending": None,
        "remapped_failure": None,
        "recovery_action": None,
        "power": {"limit_w": None, "default_w": None, "min_w": None, "max_w": None},
        "persistence": None,
        "virtualization": None,
        "fabric_state": None,
        "fabric_status": None,
        "gsp_version": None,
        "processes": [],
    }


def nvidia_devices(sys_root: Path) -> list[Path]:
    """Folders of all functions of NVIDIA on the PCI bus, in the order of their addresses."""
    return [device for device in _devices(sys_root) if read_text(device / "vendor").strip() == NVIDIA]


def read_gpus(devices: Iterable[Path]) -> list[dict[str, Any]]:
    """The GPUs among *devices*."""
    return [_read_gpu(each) for each in devices if read_text(each / "class").strip().startswith(DISPLAY_CLASSES)]


def read_nvswitches(devices: Iterable[Path]) -> list[dict[str, str]]:
    """The NVSwitches among *devices*: {pci_bus_id, pci_device_id}."""
    found = ((device.name, _pci_id(device, "vendor", "device")) for device in devices)
    return [{"pci_bus_id": name, "pci_device_id": number} for name, number in found if number in NVSWITCHES]


def has_nvlink5(sys_root: Path) -> bool:
    """Whether an InfiniBand device manages the switches of an NVLink5 board."""
    return any(NVLINK5_MARK in read_bytes(vpd) for vpd in sorted((sys_root / "class/infiniband").glob("*/device/vpd")))


def _devices(sys_root: Path) -> list[Path]:
    folder = sys_root / "bus/pci/devices"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _read_gpu(device: Path) -> dict[str, Any]:
    gpu = empty_gpu(device.name)
    node = read_text(device / "numa_node").strip()
    gpu.update(
        on_bus=True,
        pci_device_id=_pci_id(device, "vendor", "device"),
        pci_subsystem_id=_pci_id(device, "subsystem_vendor", "subsystem_device"),
        bound_driver=_bound(device / "driver"),
        numa_node=int(node) if node.isdigit() else None,
        bar1_mib=parse_bar1_mib(read_text(device / "resource")),
        pcie={
            "gen": parse_link_speed(read_text(device / "current_link_speed")),
            "gen_max": parse_link_speed(read_text(device / "max_link_speed")),
            "width": parse_link_width(read_text(device / "current_link_width")),
            "width_max": parse_link_width(read_text(device / "max_link_width")),
        },
    )
    return gpu


def _bound(link: Path) -> str | None:
    """The driver behind *link*; Debian's packaging of NVIDIA's (nvidia-current) counts as nvidia."""
    if not link.is_symlink():
        return None
    name = Path(str(link.readlink())).name
    return "nvidia" if name.startswith(("nvidia-current", "nvidia_current")) else name


def _pci_id(device: Path, vendor: str, name: str) -> str | None:
    parts = [read_text(device / each).strip().lower().replace("0x", "", 1) for each in (vendor, name)]
    return ":".join(parts) if all(parts) else None


def parse_link_speed(text: str) -> int | None:
    """The PCIe generation of "32.0 GT/s PCIe" or "8 GT/s"; None for "Unknown"."""
    words = text.split()
    return GENERATIONS.get(words[0]) if words else None


def parse_link_width(text: str) -> int | None:
    """Lanes of a link; None for 0 and for what is no width (a virtual machine may show 63 or 255)."""
    text = text.strip()
    return int(text) if text in ("1", "2", "4", "8", "12", "16", "32") else None


def parse_bar1_mib(text: str) -> int | None:
    """The largest of the six memory regions in a device's "resource" file, which on every GPU is BAR1."""
    sizes = []
    for line in text.splitlines()[:6]:
        numbers = line.split()
        if len(numbers) == 3:
            try:
                start, end, _flags = (int(number, 16) for number in numbers)
            except ValueError:
                continue
            if end > start:
                sizes.append(end - start + 1)
    return max(sizes) // MIB if sizes and max(sizes) >= MIB else None


def parse_acs_redirect(config: bytes) -> bool | None:
    """Whether a bridge sends peer-to-peer traffic up to the root, by its configuration space.

    None when the extended space is missing: without root's rights the kernel hands out 64 bytes. A bridge without
    the capability does not redirect.
    """
    if len(config) < EXTENDED_CONFIG_BYTES:
        return None
    offset, seen = 0x100, set()
    while 0x100 <= offset <= EXTENDED_CONFIG_BYTES - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            return False
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return bool(control & ACS_REDIRECT)
        offset = header >> 20
    return False


def read_acs_redirects(sys_root: Path, gpus: Iterable[Mapping[str, Any]]) -> list[str] | None:
    """Addresses of the bridges above *gpus* that redirect peer-to-peer traffic; None when that cannot be read."""
    buses: dict[str, set[int]] = {}
    for gpu in gpus:
        domain, bus, _rest = str(gpu["pci_bus_id"]).split(":", 2)
        buses.setdefault(domain, set()).add(int(bus, 16))
    redirects, unread = [], False
    for device in _devices(sys_root) if buses else []:
        if not read_text(device / "class").startswith(BRIDGE_CLASS):
            continue
        config = read_bytes(device / "config")
        if len(config) < 0x1B:
            unread = True
            continue
        # Secondary and subordinate bus number: what lies behind the bridge.
        behind = range(config[0x19], config[0x1A] + 1)
        if not buses.get(device.name.split(":", 1)[0], set()).intersection(behind):
            continue
        redirect = parse_acs_redirect(config)
        unread = unread or redirect is None
        if redirect:
            redirects.append(device.name)
    return None if unread and not redirects else redirects


def read_iommu(sys_root: Path, cmdline: str, gpus: Iterable[Mapping[str, Any]]) -> dict[str, bool | None]:
    """{active, passthrough}; what holds for the GPUs' own groups goes before what the kernel was told."""
    folder = sys_root / "class/iommu"
    active = folder.is_dir() and any(folder.iterdir())
    if not active:
        return {"active": False, "passthrough": None}
    types = {read_text(sys_root / f"bus/pci/devices/{gpu['pci_bus_id']}/iommu_group/type").strip() for gpu in gpus}
    types.discard("")
    if types:
        return {"active": True, "passthrough": types == {"identity"}}
    return {"active": True, "passthrough": True if told_passthrough(cmdline) else None}


def told_passthrough(cmdline: str) -> bool:
    """Whether the kernel's command line asks for identity mapping: iommu=pt, iommu.passthrough=1."""
    for word in cmdline.split():
        name, _equals, value = word.partition("=")
        if name == "iommu" and "pt" in value.split(","):
            return True
        if name == "iommu.passthrough" and value in ("1", "y", "Y", "on"):
            return True
    return False
