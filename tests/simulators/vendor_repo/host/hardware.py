#!/bin/sh
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
""":"
exec python3 "$0" "$@"
Hardware and kernel of a simulated GPU host: trees like /sys and /proc, device nodes, modules, DKMS, Secure Boot.

Called under the name of the program that it stands for (modprobe, modinfo, ...), or with that name as first word.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import os
import re
import shutil
import socket
import stat
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BASE = Path(os.environ.get("SOCLE_SIM", "/srv/socle-sim"))
ROOT = Path(os.environ.get("SOCLE_SIM_ROOT", "/"))
DEV = Path(os.environ.get("SOCLE_SIM_DEV", "/dev"))
SYS, PROC, STATE, SMI = BASE / "sys", BASE / "proc", BASE / "state", BASE / "smi"
MODULES = ROOT / "lib/modules"
DKMS = ROOT / "var/lib/dkms/nvidia"
SOURCES = ROOT / "usr/src"

NEEDS = {
    "nvidia": [],
    "nvidia_modeset": ["nvidia"],
    "nvidia_drm": ["nvidia_modeset"],
    "nvidia_uvm": ["nvidia"],
    "nvidia_peermem": ["nvidia"],
}
"""The driver's modules and what each of them needs."""
OTHERS = ("overlay", "br_netfilter", "ib_umad", "mlx5_core", "mlx5_ib", "nf_tables", "ip_tables", "fuse", "tun", "loop")
"""Modules of the distribution that always load."""

PCI_RESIZE = {"580": (126, 9), "590": (48, 1)}
"""First releases whose sources know the four arguments of pci_resize_resource(); later branches all do."""

BUILD_ERROR = """\
  CC [M]  /var/lib/dkms/nvidia/{version}/build/nvidia/nv-pci.o
/var/lib/dkms/nvidia/{version}/build/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
/var/lib/dkms/nvidia/{version}/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
  237 |     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);
      |         ^~~~~~~~~~~~~~~~~~~
make[3]: *** [scripts/Makefile.build:204: /var/lib/dkms/nvidia/{version}/build/nvidia/nv-pci.o] Error 1
"""

SECURE_BOOT = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


class Refusal(Exception):
    """What the program prints to standard error, and its exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


# Hardware.


def shape() -> dict:
    found = json.loads((BASE / "shape.json").read_text())
    found.setdefault("nvswitches", [])
    return found


def uuid(place: int) -> str:
    digits = hashlib.sha256(f"{socket.gethostname()} {place}".encode()).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def pci_device(bus_id: str, upstream: list, values: dict) -> None:
    """A device below its bridges, and the link of the bus to it."""
    chain = [f"pci{bus_id.split(':')[0]}:{upstream[0].split(':')[1] if upstream else bus_id.split(':')[1]}"]
    for bridge in upstream:
        chain.append(bridge)
        folder = SYS / "devices" / "/".join(chain)
        for name, value in {"vendor": "0x8086", "device": "0x352a", "class": "0x060400"}.items():
            write(folder / name, f"{value}\n")
        link(SYS / "bus/pci/devices" / bridge, "../../../devices/" + "/".join(chain))
    chain.append(bus_id)
    for name, value in values.items():
        write(SYS / "devices" / "/".join(chain) / name, f"{value}\n")
    link(SYS / "bus/pci/devices" / bus_id, "../../../devices/" + "/".join(chain))


def install(kernel: str, machine: str) -> None:
    """The trees of *machine*, a file of shapes/, with *kernel* running and nothing loaded."""
    for tree in (SYS, PROC, STATE, SMI):
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
    shutil.copy(machine, BASE / "shape.json")
    write(BASE / "kernel", f"{kernel}\n")
    (SYS / "module").mkdir()
    for name in ("cpuinfo", "meminfo", "mounts"):
        link(PROC / name, f"/proc/{name}")
    link(SYS / "fs", "/sys/fs")
    write(PROC / "cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=/dev/vda1 ro quiet\n")
    write(PROC / "sys/kernel/osrelease", f"{kernel}\n")
    write(PROC / "version", f"Linux version {kernel} (simulated)\n")
    machine_shape = shape()
    gpu = machine_shape["gpu"]
    for each in machine_shape["gpus"]:
        size = gpu["bar1_mib"] * 1024 * 1024
        bars = [(0x90000000, 0x90FFFFFF, 0x40200), (0, 0, 0), (1 << 40, (1 << 40) + size - 1, 0x14220C)]
        values = {
            "vendor": "0x10de",
            "device": "0x" + gpu["device"],
            "class": gpu["class"],
            "subsystem_vendor": "0x10de",
            "subsystem_device": "0x" + gpu["subsystem"],
            "numa_node": each["numa"],
            "current_link_speed": f"{gpu['gt_s']} GT/s PCIe",
            "max_link_speed": f"{gpu['gt_s']} GT/s PCIe",
            "current_link_width": "16",
            "max_link_width": "16",
            "resource": "\n".join(" ".join(f"0x{part:016x}" for part in region) for region in bars),
        }
        pci_device(each["bus_id"], each["upstream"], values)
    for each in machine_shape["nvswitches"]:
        values = {"vendor": "0x10de", "device": "0x" + each["device"], "class": "0x068000"}
        pci_device(each["bus_id"], each["upstream"], values)
    boot()


def bind(driver: str) -> None:
    for each in shape()["gpus"]:
        write(SYS / "bus/pci/drivers" / driver / "module", "")
        link(
            SYS / "bus/pci/devices" / each["bus_id"] / "driver",
            os.path.relpath(SYS / "bus/pci/drivers" / driver, (SYS / "bus/pci/devices" / each["bus_id"]).resolve()),
        )


def unbind() -> None:
    for each in shape()["gpus"]:
        (SYS / "bus/pci/devices" / each["bus_id"] / "driver").unlink(missing_ok=True)


def boot() -> None:
    """What a boot does: the newest kernel, nothing loaded, then the drivers that the hardware asks for."""
    for name in (*NEEDS, "nouveau"):
        shutil.rmtree(SYS / "module" / name, ignore_errors=True)
    for name in ("nvidia", "nvidia-nvswitch"):
        shutil.rmtree(PROC / "driver" / name, ignore_errors=True)
    for name in ("holders", "containers"):
        shutil.rmtree(STATE / name, ignore_errors=True)
        (STATE / name).mkdir()
    for name in ("persistence", "fabric"):
        (STATE / name).unlink(missing_ok=True)
    if os.environ.get("INVOCATION_ID"):
        # By systemd, so a real boot of the host; tests count the lines.
        with (STATE / "boots").open("a") as boots:
            boots.write(read(Path("/proc/sys/kernel/random/boot_id")) + "\n")
    unbind()
    installed = [path.name[len("vmlinuz-") :] for path in (ROOT / "boot").glob("vmlinuz-*")]
    kernel = max(installed, key=numbers, default=read(BASE / "kernel"))
    write(PROC / "sys/kernel/osrelease", f"{kernel}\n")
    blacklist = set()
    for _path, words in configuration("modprobe.d"):
        if words[0] == "blacklist" and len(words) > 1:
            blacklist.add(words[1].replace("-", "_"))
    if shape().get("nouveau") and "nouveau" not in blacklist:
        write(SYS / "module/nouveau/refcnt", "1\n")
        bind("nouveau")
    wanted = ["nvidia"] if "nvidia" not in blacklist else []
    wanted += [words[0] for _path, words in configuration("modules-load.d")]
    for name in wanted:
        if name.replace("-", "_") in NEEDS:
            try:
                load(name.replace("-", "_"))
            except Refusal as refusal:
                print(refusal, file=sys.stderr)
    if (SYS / "module/nvidia").exists() and (ROOT / "usr/bin/nvidia-modprobe").exists():
        # udev's rule of the driver's packages.
        load("nvidia_uvm")


def numbers(text: str) -> list:
    return [int(part) for part in re.findall(r"\d+", text)]


def configuration(folder: str) -> list:
    """(file, words) of every line of *folder* in /usr/lib, /run and /etc; a file hides its namesakes."""
    files = {}
    for place in ("usr/lib", "run", "etc"):
        for path in (ROOT / place / folder).glob("*.conf"):
            files[path.name] = path
    lines = []
    for name in sorted(files):
        for line in read(files[name]).splitlines():
            if line.strip() and line.strip()[0] not in "#;":
                lines.append((files[name], line.split()))
    return lines


# Modules.


def running() -> str:
    return read(PROC / "sys/kernel/osrelease")


def module_file(name: str, kernel: str) -> Path | None:
    wanted = name.replace("_", "-")
    for suffix in (".ko.xz", ".ko"):
        for path in sorted((MODULES / kernel).rglob(f"{wanted}{suffix}")):
            return path
    return None


def module_info(path: Path) -> dict:
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode(errors="replace")
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def secure_boot() -> bool | None:
    path = SYS / SECURE_BOOT
    return path.read_bytes()[-1:] == b"\1" if path.exists() else None


def enrolled() -> bool:
    return (STATE / "mok-enrolled").exists()


def refcount(name: str) -> int:
    holders = {"nvidia": ("holders", "containers"), "nvidia_uvm": ("containers",)}.get(name, ())
    return len(users(name)) + sum(len(list((STATE / folder).glob("*"))) for folder in holders)


def update_refcounts() -> None:
    # One at a time: a slower process would write what it counted before a faster one.
    with (STATE / "refcounts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in NEEDS:
            if (SYS / "module" / name).exists():
                write(SYS / "module" / name / "refcnt", f"{refcount(name)}\n")


def node(name: str, major: int, minor: int, mode: int = 0o666) -> None:
    path = DEV / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        path.chmod(mode)


def no_module(name: str) -> Refusal:
    return Refusal(f"modprobe: FATAL: Module {name.replace('_', '-')} not found in directory /lib/modules/{running()}")


def users(name: str) -> list:
    return [other for other, needs in NEEDS.items() if name in needs and (SYS / "module" / other).exists()]


def load(name: str) -> None:
    if (SYS / "module" / name).exists():
        return
    kernel = running()
    path = module_file(name, kernel)
    if path is None:
        raise no_module(name)
    for other in NEEDS[name]:
        load(other)
    if secure_boot() and not enrolled():
        raise Refusal(f"modprobe: ERROR: could not insert '{name}': Key was rejected by service")
    info = module_info(path)
    machine = shape()
    if name == "nvidia":
        if (SYS / "module/nouveau").exists():
            raise Refusal(f"modprobe: ERROR: could not insert '{name}': No such device")
        flavour = "Open Kernel Module" if info["license"] == "Dual MIT/GPL" else "Kernel Module"
        driver = PROC / "driver/nvidia"
        write(
            driver / "version",
            f"NVRM version: NVIDIA UNIX {flavour} for x86_64  {info['version']}  Release Build"
            "  (dvs-builder@simulated)\nGCC version:  gcc version 14.2.0 (Debian 14.2.0-19)\n",
        )
        write(driver / "params", parameters())
        if machine["gpu"].get("open_only") and flavour == "Kernel Module":
            machine["gpus"] = []
        else:
            bind("nvidia")
        prepare_smi(machine, info["version"])
        for place, each in enumerate(machine["gpus"]):
            write(
                driver / "gpus" / each["bus_id"] / "information",
                f"Model: \t\t {machine['gpu']['product']}\nGPU UUID: \t {uuid(place)}\nDevice Minor: \t {place}\n",
            )
            node(f"nvidia{place}", 195, place)
        node("nvidiactl", 195, 255)
        for place, each in enumerate(machine["nvswitches"]):
            write(PROC / "driver/nvidia-nvswitch/devices" / each["bus_id"], f"{place}\n")
            node(f"nvidia-nvswitch{place}", 237, place)
        if machine["nvswitches"]:
            node("nvidia-nvswitchctl", 237, 255)
    elif name == "nvidia_uvm":
        node("nvidia-uvm", 238, 0)
        node("nvidia-uvm-tools", 238, 1)
    elif name == "nvidia_modeset":
        node("nvidia-modeset", 195, 254)
    write(SYS / "module" / name / "version", f"{info['version']}\n")
    write(SYS / "module" / name / "initstate", "live\n")
    update_refcounts()


def parameters() -> str:
    """/proc/driver/nvidia/params with the options of modprobe.d."""
    lines = (HERE / "params").read_text().splitlines()
    for _path, words in configuration("modprobe.d"):
        if words[:2] not in (["options", "nvidia"], ["options", "nvidia-current"]):
            continue
        for word in words[2:]:
            key, _equals, value = word.partition("=")
            key = key.replace("NVreg_", "", 1)
            lines = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in lines]
    return "\n".join(lines) + "\n"


def prepare_smi(machine: dict, version: str) -> None:
    """What nvidia-smi prints of each GPU, in XML and as fields of a query."""
    shutil.rmtree(SMI, ignore_errors=True)
    SMI.mkdir()
    gpu = machine["gpu"]
    template = (HERE / "gpu.xml").read_text()
    managed = bool(machine["nvswitches"])
    for place, each in enumerate(machine["gpus"]):
        domain, bus, slot = each["bus_id"].split(":")
        reserved = gpu["reserved_mib"]
        values = {
            "BUS_ID": f"0000{domain}:{bus}:{slot}".upper(),
            "BUS": bus.upper(),
            "SLOT": slot[:2],
            "SUBCLASS": gpu["class"][5:6],
            "PRODUCT": gpu["product"],
            "ARCHITECTURE": gpu["architecture"],
            "MIG": gpu["mig"],
            "ECC": gpu["ecc"],
            "UUID": uuid(place),
            "MINOR": place,
            "VERSION": version,
            "DEVICE": gpu["device"].upper(),
            "SUBSYSTEM": gpu["subsystem"].upper(),
            "GEN": gpu["gen"],
            "MEMORY": gpu["memory_mib"],
            "RESERVED": reserved,
            "FREE": gpu["memory_mib"] - reserved,
            "BAR1": gpu["bar1_mib"],
            "POWER": f"{gpu['power'][1]:.2f}",
            "POWER_MIN": f"{gpu['power'][0]:.2f}",
            "POWER_MAX": f"{gpu['power'][2]:.2f}",
            "STATE": "@FABRIC_STATE@" if managed else "N/A",
            "STATUS": "@FABRIC_STATUS@" if managed else "N/A",
        }
        text = template
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
        write(SMI / f"gpu{place}.xml", text)
        fields = [
            ("name", values["PRODUCT"], ""),
            ("gpu_name", values["PRODUCT"], ""),
            ("uuid", values["UUID"], ""),
            ("gpu_uuid", values["UUID"], ""),
            ("pci.bus_id", values["BUS_ID"], ""),
            ("gpu_bus_id", values["BUS_ID"], ""),
            ("pci.device_id", f"0x{values['DEVICE']}10DE", ""),
            ("pci.sub_device_id", f"0x{values['SUBSYSTEM']}10DE", ""),
            ("memory.total", values["MEMORY"], "MiB"),
            ("memory.used", 0, "MiB"),
            ("memory.free", values["FREE"], "MiB"),
            ("memory.reserved", reserved, "MiB"),
            ("driver_version", version, ""),
            ("compute_cap", gpu["compute_cap"], ""),
            ("mig.mode.current", gpu["mig"], ""),
            ("mig.mode.pending", gpu["mig"], ""),
            ("ecc.mode.current", gpu["ecc"], ""),
            ("ecc.mode.pending", gpu["ecc"], ""),
            ("power.limit", values["POWER"], "W"),
            ("power.default_limit", values["POWER"], "W"),
            ("power.min_limit", values["POWER_MIN"], "W"),
            ("power.max_limit", values["POWER_MAX"], "W"),
            ("persistence_mode", "@PERSISTENCE@", ""),
            ("fabric.state", values["STATE"], ""),
            ("fabric.status", values["STATUS"], ""),
            ("pcie.link.gen.current", gpu["gen"], ""),
            ("pcie.link.gen.max", gpu["gen"], ""),
            ("pcie.link.width.current", 16, ""),
            ("pcie.link.width.max", 16, ""),
            ("temperature.gpu", 36, ""),
            ("utilization.gpu", 0, "%"),
            ("numa", each["numa"], ""),
        ]
        write(SMI / f"gpu{place}.fields", "".join(f"{name}|{value}|{unit}\n" for name, value, unit in fields))
    pairs = [(a, b) for a in range(len(machine["gpus"])) for b in range(len(machine["gpus"])) if a != b]
    write(SMI / "links", "".join(f"{a} {b} {machine['links']}\n" for a, b in pairs))
    shutil.copy(HERE / "legend", SMI / "legend")


def cdi_hook(words: list) -> None:
    """A container with GPUs starts or has ended: it counts as a user of the driver in between."""
    note = STATE / "containers" / json.load(sys.stdin)["id"]
    if words[:1] == ["forget"]:
        note.unlink(missing_ok=True)
    else:
        write(note, "")
    update_refcounts()


def unload(name: str, program: str, dependencies: bool = False) -> None:
    update_refcounts()
    folder = SYS / "module" / name
    if not folder.exists():
        if name in NEEDS or name == "nouveau":
            raise Refusal(f"{program}: ERROR: Module {name} is not currently loaded")
        raise Refusal(f"{program}: FATAL: Module {name} not found.")
    if users(name):
        raise Refusal(f"{program}: ERROR: Module {name} is in use by: {' '.join(users(name))}")
    if refcount(name) or name == "nouveau":
        raise Refusal(f"{program}: ERROR: Module {name} is in use")
    shutil.rmtree(folder)
    if name == "nvidia":
        unbind()
        shutil.rmtree(PROC / "driver/nvidia", ignore_errors=True)
        shutil.rmtree(PROC / "driver/nvidia-nvswitch", ignore_errors=True)
    update_refcounts()
    for other in NEEDS.get(name, []) if dependencies else []:
        if not refcount(other):
            unload(other, program, dependencies)


def modprobe(words: list) -> None:
    remove = any(word in ("-r", "--remove") for word in words)
    dry = any(word in ("-n", "--dry-run", "--show-depends", "-D") for word in words)
    quiet = any(word in ("-q", "--quiet") for word in words)
    everything = any(word in ("-a", "--all") for word in words)
    names = [word.replace("-", "_") for word in words if not word.startswith("-")]
    names = names if remove or everything else names[:1]
    for name in names:
        if name in OTHERS:
            continue
        if name == "nvidia_current":
            name = "nvidia"
        try:
            if remove and name in NEEDS and not (SYS / "module" / name).exists():
                continue
            if remove:
                unload(name, "modprobe", dependencies=True)
            elif name not in NEEDS or (dry and module_file(name, running()) is None):
                kernel = running()
                raise Refusal(
                    f"modprobe: FATAL: Module {name.replace('_', '-')} not found in directory /lib/modules/{kernel}"
                )
            elif not dry:
                load(name)
        except Refusal:
            if quiet:
                sys.exit(1)
            raise


def rmmod(words: list) -> None:
    for word in words:
        if not word.startswith("-"):
            unload(word.replace("-", "_"), "rmmod")


def lsmod(_words: list) -> None:
    update_refcounts()
    print("Module                  Size  Used by")
    for folder in sorted((SYS / "module").iterdir()):
        if read(folder / "initstate") == "live" or folder.name == "nouveau":
            users = [
                other for other, needs in NEEDS.items() if folder.name in needs and (SYS / "module" / other).exists()
            ]
            print(f"{folder.name:<20} {8392704:>9}  {read(folder / 'refcnt') or 0} {','.join(users)}".rstrip())


def modinfo(words: list) -> None:
    kernel, field, names = running(), "", []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("-k", "--set-version"):
            kernel = words.pop(0)
        elif word in ("-F", "--field"):
            field = words.pop(0)
        elif word in ("-b", "--basedir"):
            words.pop(0)
        elif word in ("-n", "--filename"):
            field = "filename"
        elif word.startswith("--field="):
            field = word.partition("=")[2]
        elif not word.startswith("-"):
            names.append(word)
    for name in names:
        path = Path(name) if "/" in name else module_file(name, kernel)
        if path is None or not path.exists():
            raise Refusal(f"modinfo: ERROR: Module {name} not found.")
        info = {"filename": str(path), **module_info(path)}
        if not field:
            for key, value in info.items():
                print(f"{key + ':':<16}{value}")
        elif field in info:
            print(info[field])


# DKMS.


def builds(version: str, kernel: str) -> bool:
    """Whether the sources of *version* fit a kernel with the four-argument pci_resize_resource()."""
    changed = numbers(kernel)[:3] >= ([6, 12, 97] if kernel.startswith("6.12") else [6, 1, 0])
    branch, *rest = version.split(".")
    if not changed or int(branch) >= 595:
        return True
    return branch in PCI_RESIZE and tuple(map(int, rest)) >= PCI_RESIZE[branch]


def dkms_kernels() -> list:
    return sorted((path.name for path in MODULES.iterdir() if (path / "build").exists()), key=numbers)


def dkms_installed(version: str, kernel: str) -> bool:
    return (DKMS / version / kernel / "x86_64/module").is_dir()


def dkms_build(version: str, kernel: str) -> None:
    if not (MODULES / kernel / "build").exists():
        raise Refusal(
            f"Error! Your kernel headers for kernel {kernel} cannot be found at /lib/modules/{kernel}/build or "
            f"/lib/modules/{kernel}/source.\nPlease install the linux-headers-{kernel} package or use the "
            "--kernelsourcedir option to tell DKMS where it's located.",
            21,
        )
    log = DKMS / version / "build/make.log"
    print(
        "Building module(s)... (bad exit status: 2)" if not builds(version, kernel) else "Building module(s)... done."
    )
    if not builds(version, kernel):
        write(
            log,
            f"DKMS (dkms-3.2.2) make.log for nvidia/{version} for kernel {kernel} (x86_64)\n"
            + BUILD_ERROR.format(version=version),
        )
        raise Refusal(
            f"Failed command:\nmake -j2 modules\n\nError! Bad return status for module build on kernel: {kernel} "
            f"(x86_64)\nConsult /var/lib/dkms/nvidia/{version}/build/make.log for more information.",
            10,
        )
    key = ROOT / "var/lib/dkms"
    if not (key / "mok.key").exists():
        write(key / "mok.key", "simulated\n")
        write(key / "mok.pub", "simulated\n")
    flavour = read(SOURCES / f"nvidia-{version}/flavour")
    license_name = "Dual MIT/GPL" if flavour == "open" else "NVIDIA"
    for name in NEEDS:
        info = {
            "version": version,
            "license": license_name,
            "vermagic": f"{kernel} SMP preempt mod_unload modversions",
            "name": name,
            "signer": "DKMS module signing key",
            "depends": ",".join(NEEDS[name]),
        }
        data = lzma.compress("\0".join(f"{key}={value}" for key, value in info.items()).encode() + b"\0")
        path = MODULES / kernel / "updates/dkms" / f"{name.replace('_', '-')}.ko.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (DKMS / version / kernel / "x86_64/module").mkdir(parents=True, exist_ok=True)
    shutil.rmtree(log.parent, ignore_errors=True)
    depmod(kernel)


def depmod(kernel: str) -> None:
    names = sorted(path.relative_to(MODULES / kernel) for path in (MODULES / kernel).rglob("*.ko*"))
    write(MODULES / kernel / "modules.dep", "".join(f"{name}:\n" for name in names))


def dkms_remove(version: str, kernels: list) -> None:
    for kernel in kernels:
        if dkms_installed(version, kernel):
            shutil.rmtree(DKMS / version / kernel)
            for name in NEEDS:
                (MODULES / kernel / "updates/dkms" / f"{name.replace('_', '-')}.ko.xz").unlink(missing_ok=True)
            depmod(kernel)


def dkms_postinst(words: list) -> None:
    """As DKMS's common.postinst: add, then build for every kernel with headers; the first failure ends it."""
    version = words[1]
    (DKMS / version).mkdir(parents=True, exist_ok=True)
    link(DKMS / version / "source", f"/usr/src/nvidia-{version}")
    print(f"Loading new nvidia/{version} DKMS files...")
    kernel = running()
    if kernel not in dkms_kernels():
        print(f"Module build for kernel {kernel} was skipped since the")
        print("kernel headers for this kernel do not seem to be installed.")
    for each in dkms_kernels():
        dkms_build(version, each)


def dkms(words: list) -> None:
    options, plain = {}, []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("-m", "-v", "-k", "-a"):
            options[word] = words.pop(0)
        elif word == "--all":
            options["--all"] = "yes"
        elif not word.startswith("-"):
            plain.append(word)
    verb = plain[0] if plain else "--version"
    if len(plain) > 1 and "/" in plain[1]:
        options["-m"], options["-v"] = plain[1].split("/")
    versions = sorted(path.name for path in DKMS.iterdir()) if DKMS.is_dir() else []
    if options.get("-v"):
        versions = [version for version in versions if version == options["-v"]]
    if verb == "--version":
        print("dkms-3.2.2")
    elif verb == "status":
        for version in versions:
            done = sorted(path.parent.parent.name for path in (DKMS / version).glob("*/x86_64/module"))
            if options.get("-k"):
                done = [kernel for kernel in done if kernel == options["-k"].split("/")[0]]
            for kernel in done:
                print(f"nvidia/{version}, {kernel}, x86_64: installed")
            if not done:
                print(f"nvidia/{version}: added")
    elif verb in ("autoinstall", "build", "install"):
        for version in versions:
            for kernel in [options["-k"].split("/")[0]] if options.get("-k") else [running()]:
                if not dkms_installed(version, kernel):
                    dkms_build(version, kernel)
    elif verb == "remove":
        for version in versions:
            kernels = [path.parent.parent.name for path in (DKMS / version).glob("*/x86_64/module")]
            dkms_remove(version, kernels if "--all" in options else [options["-k"]])
            if not list((DKMS / version).glob("*/x86_64/module")):
                shutil.rmtree(DKMS / version)
    elif verb != "add":
        raise Refusal(f"Error! Unknown action specified: {verb}", 1)


# Secure Boot and the rest.


def mokutil(words: list) -> None:
    state = secure_boot()
    if state is None:
        raise Refusal("EFI variables are not supported on this system", 255)
    if "--sb-state" in words:
        print("SecureBoot enabled" if state else "SecureBoot disabled")
    elif "--test-key" in words or "-t" in words:
        print(f"{words[-1]} is {'already' if enrolled() else 'not'} enrolled")
        sys.exit(1 if enrolled() else 0)
    elif "--list-enrolled" in words or "-l" in words:
        print("[key 1]" if enrolled() else "MokListRT is empty")
    else:
        raise Refusal("Usage:\n  mokutil OPTIONS [ARGS...]", 255)


def nvidia_modprobe(words: list) -> None:
    load("nvidia")
    if any("u" in word for word in words if word.startswith("-") and not word.startswith("--")):
        load("nvidia_uvm")


def update_initramfs(_words: list) -> None:
    with (STATE / "initramfs").open("a") as log:
        log.write(f"{running()}\n")
    print(f"update-initramfs: Generating /boot/initrd.img-{running()}")


def main() -> None:
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "hardware.py":
        name, words = words[0], words[1:]
    commands = {
        "install": lambda: install(*words),
        "boot": boot,
        "modprobe": lambda: modprobe(words),
        "rmmod": lambda: rmmod(words),
        "lsmod": lambda: lsmod(words),
        "modinfo": lambda: modinfo(words),
        "depmod": lambda: depmod(running()),
        "dkms": lambda: dkms(words),
        "dkms-postinst": lambda: dkms_postinst(words),
        "mokutil": lambda: mokutil(words),
        "refcounts": update_refcounts,
        "cdi-hook": lambda: cdi_hook(words),
        "nvidia-modprobe": lambda: nvidia_modprobe(words),
        "update-initramfs": lambda: update_initramfs(words),
    }
    try:
        commands[name]()
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(refusal.status)


if __name__ == "__main__":
    main()
