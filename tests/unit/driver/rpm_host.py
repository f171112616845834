# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of the RHEL family in memory: packages, repositories and what DNF says of a transaction."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.plan import Host
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import Rpm

URL = "https://mirror.example/repos/rhel9/x86_64/"
KERNEL = "5.14.0-570.12.1.el9_6.x86_64"
PARTS = ("nvidia-driver-cuda", "nvidia-driver-cuda-libs", "libnvidia-ml", "nvidia-kmod-common", "nvidia-persistenced")


def rpm(name: str, version: str, repository: str = "cuda") -> Rpm:
    if name.startswith("nvidia-fabric") or name.startswith("libnvidia-nscq"):
        return Rpm(name, "0", version, "1", "x86_64", repository)
    return Rpm(name, "3", version, "1.el9", "x86_64", repository)


def row(package: Rpm) -> str:
    fields = (package.name, package.epoch, package.version, package.release, package.arch, package.repository)
    return "\t".join(fields) + "\n"


class Interrupted(Files):
    """Ends the run instead of writing or removing files of one name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, path: Path, text: str, mode: int = 0o644, *, follow: bool = False) -> None:
        if path.name == self.name:
            raise KeyboardInterrupt
        super().write(path, text, mode, follow=follow)

    def remove(self, path: Path) -> None:
        if path.name == self.name:
            raise KeyboardInterrupt
        super().remove(path)


class RpmHost:
    """What commands see and change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.installed: dict[str, Rpm] = {}
        self.offered: list[Rpm] = [Rpm("dkms", "0", "3.2.2", "1.el9", "noarch", "epel")]
        for version in ("580.159.03", "580.178.04", "595.91.07"):
            names = (
                *PARTS,
                "kmod-nvidia-open-dkms",
                "kmod-nvidia-latest-dkms",
                "nvidia-modprobe",
                "nvidia-fabricmanager",
            )
            self.offered += [rpm(name, version) for name in (*names, "libnvidia-nscq")]
        for name in ("kernel-devel-matched", "kernel-devel", "epel-release"):
            self.offered.append(Rpm(name, "0", "5.14.0", "570.12.1.el9_6", "x86_64", "baseos"))
        self.refusal = ""
        """What dnf prints instead of carrying a transaction out."""
        self.fails_late = False
        self.removes: list[str] = []
        self.dkms = ""
        self.active: list[str] = []
        """Units that run and use the GPUs."""
        self.builds = True
        """Whether DKMS can build for the kernels that the driver's package does not build for."""
        self.calls: list[list[str]] = []
        for folder in ("etc/dnf/plugins", "etc/dnf/modules.d", "etc/yum.repos.d", "run", "proc"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "etc/dnf/plugins/versionlock.conf").write_text("[main]\nenabled=1\n")

    def host(self) -> Host:
        return Host(self.run, self.root, self.root / "proc", lambda _text: "")

    @property
    def lock_list(self) -> Path:
        return self.root / dnf.LOCK_LIST

    @property
    def locks(self) -> str:
        return self.lock_list.read_text() if self.lock_list.exists() else ""

    def install(self, *packages: Rpm) -> None:
        self.installed.update({package.name: package for package in packages})

    def driver(self, version: str, flavour: str = "open") -> None:
        names = (*PARTS, "kmod-nvidia-open-dkms" if flavour == "open" else "kmod-nvidia-latest-dkms", "nvidia-modprobe")
        self.install(*(rpm(name, version) for name in names))
        self.install(Rpm("dkms", "0", "3.2.2", "1.el9", "noarch"))
        self.install(Rpm("kernel-devel-matched", "0", "5.14.0", "570.12.1.el9_6", "x86_64"))
        self.enable("580-open")

    def enable(self, stream: str) -> None:
        text = f"[nvidia-driver]\nname=nvidia-driver\nstream={stream}\nprofiles=\nstate=enabled\n"
        (self.root / "etc/dnf/modules.d/nvidia-driver.module").write_text(text)

    @property
    def stream(self) -> str | None:
        return dnf.read_stream(self.root, "nvidia-driver")

    def run(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        words = [word for word in argv if word not in dnf.ENGLISH]
        self.calls.append(list(words))
        if words[0] == "dpkg-query":
            return None
        if words[0] == "rpm":
            return self._rpm(words)
        if words[0] == "dkms":
            if "install" in words and self.builds:
                self.dkms += f"nvidia/{words[words.index('-v') + 1]}, {words[-1]}, x86_64: installed\n"
            return 0, self.dkms, ""
        if words[0] == "dnf":
            return self._dnf(words)
        if words[:2] == ["systemctl", "list-units"]:
            return 0, "".join(f"{unit} loaded active running It\n" for unit in self.active), ""
        return 1, "", ""

    def _rpm(self, words: Sequence[str]) -> tuple[int, str, str]:
        if "--whatprovides" in words:
            return (
                (0, "kernel-devel\n", "") if "kernel-devel" in self.installed else (1, "no package provides it\n", "")
            )
        patterns = words[words.index("--qf") + 2 :]
        found = [p for p in self.installed.values() if any(fnmatch.fnmatch(p.name, pattern) for pattern in patterns)]
        if "%{EVR}" in words[words.index("--qf") + 1]:
            return 0, "".join(f"{p.name}\t{p.evr}\t{p.arch}\n" for p in found), ""
        return 0, "".join(row(package) for package in found), ""

    def _dnf(self, words: Sequence[str]) -> tuple[int, str, str]:
        if "repoquery" in words:
            names = words[words.index("--qf") + 2 :]
            if self.refusal.startswith("Error: Failed to download"):
                return 1, "", self.refusal
            return 0, "".join(row(package) for package in self.offered if package.name in names), ""
        if "module" in words:
            if "reset" in words:
                (self.root / "etc/dnf/modules.d/nvidia-driver.module").unlink()
            else:
                self.enable(words[-1].partition(":")[2])
            return 0, "", ""
        if "config-manager" in words:
            file = self.root / "etc/yum.repos.d/rocky.repo"
            state = "enabled=1" if "--set-enabled" in words else "enabled=0"
            file.write_text(file.read_text().replace("enabled=0", state).replace("enabled=1", state))
            return 0, "", ""
        address = words[-1].startswith("https://")
        if self.refusal and not address and not any(word.startswith("epel-release") for word in words):
            return 1, "", self.refusal
        removing = "".join(f" {name} x86_64 1 @System 1 k\n" for name in self.removes)
        if "--assumeno" in words:
            return 1, f"Dependencies resolved.\nRemoving:\n{removing}\n{dnf_aborted()}", ""
        if "--downloadonly" in words:
            return 0, "", ""
        if "install" in words:
            if self.fails_late:
                return 1, "", "Error: Transaction failed\n"
            self._install(words[words.index("install") + 1 :])
            for name in self.removes if "--allowerasing" in words else ():
                self.installed.pop(name, None)
        if "remove" in words:
            for name in words[words.index("remove") + 1 :]:
                self.installed.pop(name, None)
        return 0, "", ""

    def _install(self, specs: Sequence[str]) -> None:
        for spec in specs:
            if spec.startswith("https://"):
                self.install(Rpm("epel-release", "0", "9", "10.el9", "noarch"))
                continue
            match = next((package for package in self.offered if package.spec == spec), None)
            if match is None:
                self.install(Rpm("kernel-devel", "0", "5.14.0", "570.12.1.el9_6", "x86_64"))
                continue
            self.install(match)
            if match.name == "nvidia-driver-cuda":
                self.install(*(rpm(name, match.version) for name in PARTS))
            if match.name.startswith("kmod-nvidia"):
                other = {"kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"} - {match.name}
                self.installed.pop(other.pop(), None)


def dnf_aborted() -> str:
    return "Operation aborted.\n"


def facts(**changes: Any) -> dict[str, Any]:
    gpu = {
        "pci_bus_id": "0000:17:00.0",
        "pci_device_id": "10de:20b2",
        "architecture": "ampere",
        "bound_driver": None,
        "virtualization": None,
        "processes": [],
    }
    driver = dict.fromkeys(
        ("version", "flavour", "library_version", "disk_version", "disk_flavour", "next_kernel", "next_disk_version")
    )
    default = {
        "os": {"id": "rocky", "version_id": "9.6", "codename": None, "id_like": ["rhel", "centos", "fedora"]},
        "arch": "x86_64",
        "kernel": KERNEL,
        "gpus": [gpu],
        "nvswitches": [],
        "nvlink5": False,
        "secure_boot": False,
        "driver": {**driver, "nouveau": False, "error": None},
    }
    return {**default, **changes}
