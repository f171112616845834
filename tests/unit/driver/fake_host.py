# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Debian host whose apt and dpkg are a few dictionaries, and whose other files are real ones below a folder."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.plan import Host

KERNEL = "6.12.118+deb13-cloud-amd64"
URL = "https://mirror.example.org/cuda/repos/debian13/x86_64/"
VERSIONS = ("570.211.01", "580.126.09", "580.178.04", "595.91.07")
DRIVER = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1")
NAMES = (*DRIVER, "nvidia-kernel-dkms", "nvidia-persistenced", "nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm")


def facts(**changes: Any) -> dict[str, Any]:
    """gpu_facts of a Debian 13 host with one A100, before the driver."""
    gpu = {
        "pci_bus_id": "0000:01:00.0",
        "pci_device_id": "10de:20b2",
        "architecture": None,
        "bound_driver": None,
        "virtualization": None,
        "processes": [],
    }
    driver = {
        "version": None,
        "flavour": None,
        "library_version": None,
        "disk_version": None,
        "disk_flavour": None,
        "next_kernel": KERNEL,
        "next_disk_version": None,
        "nouveau": False,
    }
    driver.update(changes.pop("driver", {}))
    return {
        "os": {"id": "debian", "version_id": "13", "codename": "trixie", "id_like": []},
        "arch": "x86_64",
        "kernel": KERNEL,
        "gpus": [{**gpu, **changes.pop("gpu", {})}],
        "nvswitches": [],
        "nvlink5": False,
        "secure_boot": False,
        "driver": driver,
        **changes,
    }


class FakeHost:
    """Commands change `packages`; what apt is to fail at is in `failures` (words of the command -> its output)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages: dict[str, dict[str, Any]] = {}
        self.offers: dict[str, list[str]] = {name: [f"{version}-1" for version in VERSIONS] for name in NAMES}
        for version in (*VERSIONS, "570", "580", "595"):
            self.offers[f"nvidia-driver-pinning-{version}"] = [f"{version}-1"]
        self.distribution = {"linux-headers-cloud-amd64": "6.12.118-1", f"linux-headers-{KERNEL}": "6.12.118-1"}
        self.active: set[str] = set()
        self.failures: dict[str, str] = {}
        self.dkms = ""
        self.extra_removals: list[str] = []
        self.extra_installs: dict[str, str] = {}
        """What apt says that comes along."""
        self.read_aside: dict[str, list[str]] | None = None
        """What the repository has by now, where that is not what the host's index says."""
        self.calls: list[list[str]] = []
        self.preferences: list[str] = []
        self.write("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.write("proc/version", f"Linux version {KERNEL} #1 SMP Debian 6.12.118-1\n")

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def add_source(self, uri: str = URL, name: str = "socle-nvidia-cuda.sources") -> None:
        """NVIDIA's repository as the role writes it."""
        from ansible_collections.socle.inference.plugins.module_utils._driver.repository import OWN_KEY, source_text
        from ansible_collections.socle.inference.plugins.module_utils._packages.source import ARMOUR

        self.write(f"{OWN_KEY[1:]}.gpg", ARMOUR)
        self.write(f"etc/apt/sources.list.d/{name}", source_text(uri, f"{OWN_KEY}.gpg"))

    def install(self, version: str, *, held: bool = False, flavour: str = "open", pin: str | None = "580") -> None:
        module = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
        for name in ("nvidia-driver-cuda", module, "libcuda1", "nvidia-persistenced"):
            self.packages[name] = {"version": f"{version}-1", "status": "installed", "held": held}
        if pin:
            name = f"nvidia-driver-pinning-{pin}"
            self.packages[name] = {"version": f"{pin}-1", "status": "installed", "held": held}
        for name, offer in self.distribution.items():
            self.packages[name] = {"version": offer, "status": "installed", "held": False}

    def host(self) -> Host:
        return Host(self.run, self.root, self.root / "proc", self.preference_file)

    def preference_file(self, text: str) -> str:
        self.preferences.append(text)
        return "/tmp/preferences"

    def installed(self) -> dict[str, str]:
        return {name: package["version"] for name, package in self.packages.items() if package["status"] == "installed"}

    def held(self) -> list[str]:
        return sorted(name for name, package in self.packages.items() if package["held"])

    def said(self, *words: str) -> list[list[str]]:
        """Commands that had all *words*."""
        return [call for call in self.calls if set(words) <= set(call)]

    def run(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        command = list(argv)
        self.calls.append(command)
        for words, output in self.failures.items():
            if set(words.split()) <= set(command):
                return 100, output, "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
        answer = getattr(self, f"_{command[0].replace('-', '_')}", None)
        return answer(command) if answer else None

    def _dpkg_query(self, command: list[str]) -> tuple[int, str, str]:
        lines = []
        for name, package in sorted(self.packages.items()):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in command[3:]):
                want = "hold" if package["held"] else "install"
                lines.append(f"{name}\t{package['version']}\t{want}\t{package['status']}\n")
        return 1, "".join(lines), ""

    def _apt_cache(self, command: list[str]) -> tuple[int, str, str]:
        lines = []
        aside = any(word.startswith("Dir::State::lists=") for word in command)
        offers = self.read_aside if aside and self.read_aside is not None else self.offers
        for name in command[command.index("madison") + 1 :]:
            for version in sorted(offers.get(name, []), reverse=True):
                lines.append(f" {name} | {version} | {URL.rstrip('/')}  Packages\n")
            if name in self.distribution:
                lines.append(
                    f" {name} | {self.distribution[name]} | http://deb.debian.org/debian trixie/main amd64 Packages\n"
                )
        return 0, "".join(lines), ""

    def _apt_mark(self, command: list[str]) -> tuple[int, str, str]:
        for name in command[2:]:
            self.packages[name]["held"] = command[1] == "hold"
        return 0, "", ""

    def _apt_get(self, command: list[str]) -> tuple[int, str, str]:
        if "update" in command:
            return 0, "", ""
        verb = "purge" if "purge" in command else "install"
        arguments = command[command.index(verb) + 1 :]
        installs, removals = [], list(self.extra_removals)
        for argument in arguments:
            name, _equals, version = argument.partition("=")
            if verb == "purge" or name.endswith("-"):
                removals.append(name.removesuffix("-"))
                continue
            offers = [*self.offers.get(name, []), *([self.distribution[name]] if name in self.distribution else [])]
            if not offers:
                return 100, "", f"E: Unable to locate package {name}\n"
            installs.append((name, version or max(offers)))
        if "-s" in command:
            every = [*installs, *self.extra_installs.items()]
            lines = [f"Inst {name} ({version} repo [amd64])\n" for name, version in every]
            return 0, "".join([*lines, *(f"Remv {name} [1]\n" for name in removals)]), ""
        if "--download-only" not in command:
            for name, version in installs:
                held = self.packages.get(name, {}).get("held", False)
                self.packages[name] = {"version": version, "status": "installed", "held": held}
            for name in removals:
                pin = "pinning" in name and verb != "purge" and "--purge" not in command
                if pin and name in self.packages:
                    self.packages[name].update(status="config-files", held=False)
                else:
                    self.packages.pop(name, None)
        return 0, "", ""

    def _systemctl(self, command: list[str]) -> tuple[int, str, str]:
        if command[1] == "list-units":
            patterns = command[command.index("--no-legend") + 1 :]
            found = [unit for unit in sorted(self.active) if any(fnmatch.fnmatchcase(unit, one) for one in patterns)]
            return 0, "".join(f"{unit} loaded active running It\n" for unit in found), ""
        if command[1] == "is-active":
            active = command[2] in self.active
            return (0, "active\n", "") if active else (3, "inactive\n", "")
        return 0, "", ""

    def _dpkg(self, command: list[str]) -> tuple[int, str, str]:
        for name in command[2:]:
            del self.packages[name]
        return 0, "", ""

    def _dkms(self, command: list[str]) -> tuple[int, str, str]:
        return 0, self.dkms, ""

    def _mokutil(self, command: list[str]) -> tuple[int, str, str]:
        enrolled = (self.root / "enrolled").exists()
        return (
            (1, f"{command[2]} is already enrolled\n", "") if enrolled else (0, f"{command[2]} is not enrolled\n", "")
        )
