# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU hosts for tests: trees like /sys and /proc, and what nvidia-smi says, derived from a capture of an H200."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ansible_collections.socle.inference.plugins.module_utils._gpu.gather import gather

FIXTURES = Path(__file__).parent / "fixtures"
H200_XML = (FIXTURES / "h200/nvidia-smi.xml").read_text(encoding="utf-8")
H200_DRIVER = (FIXTURES / "h200/driver_version.txt").read_text(encoding="utf-8")
DRIVER = "580.159.04"
KERNEL = "6.12.48+deb13-amd64"
LEGEND = "\nLegend:\n\n  X    = Self\n  NODE = Connection traversing PCIe as well as the interconnect between bridges\n"

HEALTHY: dict[str, Any] = {
    "on_bus": True,
    "by_driver": True,
    "bound_driver": "nvidia",
    "mig": "disabled",
    "mig_pending": "disabled",
    "ecc": "enabled",
    "ecc_pending": "enabled",
    "remapped_pending": False,
    "remapped_failure": False,
    "recovery_action": None,
    "persistence": True,
    "fabric_state": None,
    "fabric_status": None,
    "processes": [],
}
"""What facts say of an idle GPU without NVSwitch and with nothing wrong, whatever its product."""

SMI_XML = "nvidia-smi -q -x"
SMI_CSV = "nvidia-smi --query-gpu=index,pci.bus_id,compute_cap "
SMI_TOPO = "nvidia-smi topo -m"
JOURNAL = "journalctl -k -b -o cat --grep NVRM: Xid"


class Product(NamedTuple):
    """What differs between GPUs in nvidia-smi's XML, and how two of them are linked."""

    name: str
    architecture: str
    capability: str
    device: str
    memory_mib: int
    power_w: int
    link: str
    pci_class: str = "0x030200"
    mig: str = "Disabled"
    ecc: str = "Enabled"
    fabric: str = "N/A"
    subsystem: str = "18BF"
    dtd: int = 13


PRODUCTS = {
    "a100_sxm4": Product(
        "NVIDIA A100-SXM4-80GB", "Ampere", "8.0", "20B2", 81920, 400, "NV12", subsystem="147F", dtd=12
    ),
    "a100_pcie": Product("NVIDIA A100 80GB PCIe", "Ampere", "8.0", "20B5", 81920, 300, "NODE"),
    "a800_sxm4": Product("NVIDIA A800-SXM4-80GB", "Ampere", "8.0", "20F3", 81920, 400, "NV8"),
    "a800_pcie": Product("NVIDIA A800 80GB PCIe", "Ampere", "8.0", "20F5", 81920, 300, "NV8"),
    "h100_sxm": Product("NVIDIA H100 80GB HBM3", "Hopper", "9.0", "2330", 81559, 700, "NV18", fabric="Completed"),
    "h100_pcie": Product("NVIDIA H100 PCIe", "Hopper", "9.0", "2331", 81559, 350, "PIX"),
    "h20": Product("NVIDIA H20", "Hopper", "9.0", "2329", 97871, 500, "NV18", fabric="Completed"),
    "b200": Product("NVIDIA B200", "Blackwell", "10.0", "2901", 183359, 1000, "NV18", fabric="Completed"),
    "rtx_pro_6000": Product(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "Blackwell",
        "12.0",
        "2BB1",
        97887,
        600,
        "NODE",
        pci_class="0x030000",
        mig="N/A",
        ecc="Disabled",
    ),
    "rtx_pro_6000_max_q": Product(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Blackwell",
        "12.0",
        "2BB4",
        97887,
        300,
        "SYS",
        pci_class="0x030000",
        mig="N/A",
        ecc="Disabled",
        subsystem="204C",
    ),
    "rtx_5090": Product(
        "NVIDIA GeForce RTX 5090", "Blackwell", "12.0", "2B85", 32607, 575, "PHB", "0x030000", mig="N/A", ecc="N/A"
    ),
    "rtx_4090": Product(
        "NVIDIA GeForce RTX 4090", "Ada Lovelace", "8.9", "2684", 24564, 450, "PHB", "0x030000", mig="N/A", ecc="N/A"
    ),
    "l40s": Product("NVIDIA L40S", "Ada Lovelace", "8.9", "26B9", 46068, 350, "SYS", mig="N/A"),
}


def addresses(count: int) -> list[str]:
    """PCI addresses of so many GPUs, on buses of their own."""
    return [f"0000:{0x3B + 0x10 * number:02x}:00.0" for number in range(count)]


def smi_xml(product: Product, count: int = 2, changes: Mapping[int, Mapping[str, str]] | None = None) -> str:
    """What "nvidia-smi -q -x" says on a host with *count* such GPUs; *changes* are texts by path, for single GPUs."""
    tree = ElementTree.fromstring(H200_XML)
    pattern = tree.find("gpu")
    assert pattern is not None
    tree.remove(pattern)
    _set(tree, {"attached_gpus": str(count)})
    for number, address in enumerate(addresses(count)):
        gpu = copy.deepcopy(pattern)
        bus_id = f"0000{address}".upper()
        gpu.set("id", bus_id)
        _set(
            gpu,
            {
                "product_name": product.name,
                "product_architecture": product.architecture,
                "uuid": uuid(number),
                "minor_number": str(number),
                "pci/pci_bus_id": bus_id,
                "pci/pci_device_id": f"{product.device}10DE",
                "pci/pci_sub_system_id": f"{product.subsystem}10DE",
                "fb_memory_usage/total": f"{product.memory_mib} MiB",
                "fb_memory_usage/free": f"{product.memory_mib - 616} MiB",
                "mig_mode/current_mig": product.mig,
                "mig_mode/pending_mig": product.mig,
                "ecc_mode/current_ecc": product.ecc,
                "ecc_mode/pending_ecc": product.ecc,
                "gpu_virtualization_mode/virtualization_mode": "None",
                "fabric/state": product.fabric,
                "fabric/status": "Success" if product.fabric == "Completed" else "N/A",
                **{f"gpu_power_readings/{name}_power_limit": f"{product.power_w}.00 W" for name in POWER_LIMITS},
            },
        )
        if product.dtd == 12:
            _to_v12(gpu)
        _set(gpu, (changes or {}).get(number, {}))
        tree.append(gpu)
    head = f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{product.dtd}.dtd">\n'
    return head + ElementTree.tostring(tree, encoding="unicode") + "\n"


POWER_LIMITS = ("current", "requested", "default", "max")


def uuid(number: int) -> str:
    return f"GPU-00000000-1111-2222-3333-{number:012d}"


def add_process(xml: str, text: str) -> str:
    """*xml* with one process_info of the last GPU, as *text*."""
    head, _closing, tail = xml.rpartition("</processes>")
    return f"{head}<process_info>{text}</process_info></processes>{tail}"


def smi_csv(product: Product, count: int = 2) -> str:
    """What the CSV query says."""
    lines = (f"{number}, 0000{address}, {product.capability}\n" for number, address in enumerate(addresses(count)))
    return "".join(lines)


def topo(link: str, count: int = 2, nics: int = 0) -> str:
    """What "nvidia-smi topo -m" says of GPUs that are all linked alike, with NICs in the way."""
    names = [f"GPU{number}" for number in range(count)] + [f"NIC{number}" for number in range(nics)]
    header = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    rows = []
    for row, name in enumerate(names):
        cells = [
            " X " if row == column else (link if max(row, column) < count else "SYS") for column in range(len(names))
        ]
        rows.append("\t".join([name, *cells, *(["0-15", "0", "", "N/A"] if row < count else [])]))
    return header.replace("\t", "\t\x1b[4m", 1) + "\x1b[0m\n" + "\n".join(rows) + "\n" + LEGEND


def acs_config(secondary: int, subordinate: int, control: int | None, length: int = 4096) -> bytes:
    """Configuration space of a bridge before buses *secondary* to *subordinate*; None for no ACS capability."""
    config = bytearray(4096)
    config[0x19], config[0x1A] = secondary, subordinate
    # Advanced error reporting first, as on real ports, then ACS.
    struct.pack_into("<I", config, 0x100, 0x0001 | 2 << 16 | (0 if control is None else 0x148 << 20))
    if control is not None:
        struct.pack_into("<IHH", config, 0x148, 0x000D | 1 << 16, 0x5F, control)
    return bytes(config[:length])


class Host:
    """A tree like a host's /sys and /proc, and answers to commands. *calls* has the commands that were run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: dict[str, tuple[int, str, str]] = {}
        self.calls: list[str] = []
        self.write("proc/meminfo", "MemTotal:       131980288 kB\nMemFree: 1 kB\n")
        self.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon\n\nprocessor\t: 1\nmodel name\t: Xeon\n")
        self.write("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz root=/dev/sda1 ro quiet\n")
        self.write("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.write("proc/sys/kernel/arch", "x86_64\n")
        self.write("os-release", 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n')
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")

    def write(self, relative: str, content: str | bytes) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def link(self, relative: str, target: str) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def pci(
        self,
        address: str,
        vendor: str = "0x10de",
        device: str = "0x2335",
        kind: str = "0x030200",
        driver: str | None = None,
        **files: str | bytes,
    ) -> None:
        folder = f"sys/bus/pci/devices/{address}"
        for name, value in {"vendor": vendor, "device": device, "class": kind, **files}.items():
            self.write(f"{folder}/{name}", value if isinstance(value, bytes) else f"{value}\n")
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"../../drivers/{driver}")

    def captured_pci(self, text: str) -> None:
        """Devices as in the fixture h200_x2/pci.txt."""
        names = text.splitlines()[0].lstrip("# ").split("|")
        for line in text.splitlines()[1:]:
            row = dict(zip(names, line.split("|"), strict=True))
            address, driver = row.pop("address"), row.pop("driver")
            files: dict[str, str | bytes] = {name: value for name, value in row.items() if value and " " not in name}
            kind = files.pop("class")
            config = bytes(int(row["bytes of config"]))
            self.pci(address, kind=str(kind), driver=driver or None, config=config, **files)  # type: ignore[arg-type]

    def gpus(self, product: Product, count: int = 2, driver: str | None = None) -> None:
        """*count* GPUs on the PCI bus."""
        for address in addresses(count):
            self.pci(address, device=f"0x{product.device.lower()}", kind=product.pci_class, driver=driver)

    def drive(
        self,
        product: Product,
        count: int = 2,
        changes: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """A loaded driver that answers for *count* such GPUs."""
        self.write("sys/module/nvidia/version", f"{DRIVER}\n")
        self.write("proc/driver/nvidia/version", H200_DRIVER)
        self.commands |= {
            SMI_XML: (0, smi_xml(product, count, changes), ""),
            SMI_CSV: (0, smi_csv(product, count), ""),
            SMI_TOPO: (0, topo(product.link, count), ""),
        }

    def module_file(self, version: str, license_name: str, kernel: str = KERNEL, name: str = "nvidia") -> None:
        """A module file that modinfo finds for *kernel*."""
        for field, value in (("version", version), ("license", license_name)):
            self.commands[f"modinfo -b {self.root} -k {kernel} -F {field} {name} "] = (0, f"{value}\n", "")

    def run(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        command = " ".join(argv)
        self.calls.append(command)
        known = [key for key in self.commands if f"{command} ".startswith(key)]
        if known:
            return self.commands[max(known, key=len)]
        programs = {key.split()[0] for key in self.commands}
        return (1, "", f"{argv[0]}: not prepared for this") if argv[0] in programs else None

    def facts(self, run: Callable[[Sequence[str]], tuple[int, str, str] | None] | None = None) -> dict[str, Any]:
        return gather(run or self.run, self.root / "sys", self.root / "proc", self.root / "os-release", self.root)


def _set(element: ElementTree.Element, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        found = element.find(path)
        assert found is not None, f"the capture has no {path}"
        found.clear()
        found.text = text


def _to_v12(gpu: ElementTree.Element) -> None:
    """As driver 535 wrote it: two questions about a reset, and the pending remaps as one word with MIG on."""
    action = gpu.find("gpu_recovery_action")
    assert action is not None
    gpu.remove(action)
    status = ElementTree.SubElement(gpu, "gpu_reset_status")
    for name in ("reset_required", "drain_and_reset_recommended"):
        ElementTree.SubElement(status, name).text = "No"
