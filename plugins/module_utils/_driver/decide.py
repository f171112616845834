# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver fits a host, and what rules one out, before anything is changed; pure. Private to socle.inference.

Facts are those of gpu_facts. Every refusal is a DriverError of one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
    branch_of,
    upstream,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.names import is_driver_package
from ansible_collections.socle.inference.plugins.module_utils._packages.source import is_same, without_password
from ansible_collections.socle.inference.plugins.module_utils._packages.version import version_key

PROPRIETARY_ONLY = ("maxwell", "pascal", "volta")
"""Generations without the processor that the open modules run on; 580 is the last branch that knows them."""
EITHER = ("turing", "ampere", "ada", "hopper")
OPEN_ONLY = ("blackwell", "rubin")
GENERATIONS = (*PROPRIETARY_ONLY, *EITHER, *OPEN_ONLY)

DEFAULT_BRANCH = "580"
"""NVIDIA's long-term branch until June 2028, and the oldest for images with CUDA 13."""
LAST_OLD_BRANCH = 580
FIRST_OPEN_ONLY_BRANCH = 615
"""From this branch on NVIDIA packages the open modules only."""

CUDA_MINIMUM = {"12": "525", "13": "580"}
"""CUDA's major version -> driver branch that runs it without forward compatibility (NVIDIA, CUDA compatibility)."""

BUILDS_FROM = "580.126.09"
"""First release whose open modules build where pci_resize_resource() takes four arguments."""
BUILDS_NOT = {"590.44.01"}
"""Later releases that lack the same change."""


@dataclass(frozen=True)
class Settings:
    """What the inventory asks for; the names are those of the role's variables without gpu_driver_."""

    state: str = "present"
    source: str = "nvidia"
    branch: str = DEFAULT_BRANCH
    """Empty for the one that is installed, else the default one."""
    version: str = ""
    flavour: str = "auto"
    architecture: str = ""
    minimum: str = ""
    cuda: str = "13"
    compute_only: bool = True
    upgrade: bool = False
    hold: bool = True
    repository_url: str = ""
    services: tuple[str, ...] = ()
    reboot: str = "auto"
    """"auto", "never", or "force", which also ends what somebody else runs on the GPUs."""
    module_options: Mapping[str, Any] = field(default_factory=dict)
    persistence: bool = True

    @property
    def wanted_branch(self) -> str:
        """The branch, which an exact version implies."""
        return branch_of(self.version) if self.version else self.branch


@dataclass(frozen=True)
class Installed:
    """The driver that the package manager knows."""

    version: str | None
    flavour: str | None
    source: str | None
    broken: tuple[str, ...]
    """Driver packages that dpkg did not finish."""


def is_version(text: str) -> bool:
    """Whether this can be the exact version of a driver."""
    return re.fullmatch(r"\d{3,}\.\d+(\.\d+)?", text) is not None


def is_branch(text: str) -> bool:
    """Whether this can be the first number of a driver's version."""
    return re.fullmatch(r"\d{3,}", text) is not None


def check_settings(settings: Settings) -> None:
    """Refuse what cannot be a branch or version, and a version of another branch."""
    if settings.version and not is_version(settings.version):
        raise DriverError(
            f"gpu_driver_version is {settings.version!r}, expected an exact version such as 580.178.04 or nothing;"
            " give a branch by gpu_driver_branch."
        )
    if settings.branch and not is_branch(settings.branch):
        raise DriverError(
            f"gpu_driver_branch is {settings.branch!r}, expected the first number of a driver version, such as 580;"
            " correct it."
        )
    if settings.version and settings.branch not in ("", branch_of(settings.version)):
        raise DriverError(
            f"gpu_driver_version is {settings.version}, which is of branch {branch_of(settings.version)}, but"
            f" gpu_driver_branch is {settings.branch}; remove one of them, or make them agree."
        )
    if settings.cuda and settings.cuda not in CUDA_MINIMUM:
        raise DriverError(
            f"gpu_driver_cuda is {settings.cuda!r}, expected one of {', '.join(CUDA_MINIMUM)} or nothing: the major"
            " version of CUDA in the images that this host is to run; correct it."
        )


def settle_branch(settings: Settings, installed: Installed) -> Settings:
    """Where neither branch nor version is asked for: the branch that is installed, else the default one.

    Nobody's driver is changed because a default is another.
    """
    if settings.wanted_branch:
        return settings
    return replace(settings, branch=branch_of(installed.version) if installed.version else DEFAULT_BRANCH)


def _generation(name: str) -> str:
    """nvidia-smi says "ada lovelace"."""
    return name.strip().lower().split(" ")[0]


def generations(settings: Settings, gpus: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Generations of the host's GPUs, sorted; raises DriverError for a GPU of an unknown one."""
    found = {_generation(gpu["architecture"]) for gpu in gpus if gpu.get("architecture")}
    if settings.architecture:
        given = _generation(settings.architecture)
        if given not in GENERATIONS:
            raise DriverError(
                f"gpu_driver_architecture is {settings.architecture!r}, expected one of {', '.join(GENERATIONS)};"
                " correct it."
            )
        contrary = sorted(found - {given})
        if contrary and len(found) == 1:
            raise DriverError(
                f"gpu_driver_architecture is {given}, but the driver says that these GPUs are {contrary[0]}; correct"
                " or remove gpu_driver_architecture, or the host class that it comes from."
            )
        return tuple(sorted({given} | found))
    unknown = [gpu for gpu in gpus if _generation(gpu.get("architecture") or "") not in GENERATIONS]
    if unknown:
        gpu = unknown[0]
        raise DriverError(
            f"Cannot choose the driver: GPU {gpu['pci_bus_id']} has the PCI id {gpu['pci_device_id']}, which is in no"
            " host class; add the id to pci_ids of a class in site_data/profiles/host_classes/NAME.yml, or set"
            " gpu_driver_architecture."
        )
    return tuple(sorted(found))


def choose_flavour(settings: Settings, kinds: Sequence[str], installed: str | None) -> tuple[str, str]:
    """(flavour, why). An installed flavour that fits is kept when the choice is free."""
    branch = int(settings.wanted_branch)
    old = [kind for kind in kinds if kind in PROPRIETARY_ONLY]
    new = [kind for kind in kinds if kind in OPEN_ONLY]
    if old and new:
        raise DriverError(
            f"Cannot drive {old[0]} and {new[0]} GPUs in one host: {old[0]} needs the proprietary modules and {new[0]}"
            " the open ones; take one kind out."
        )
    if old and branch > LAST_OLD_BRANCH:
        raise DriverError(
            f"Cannot drive {old[0]} GPUs with driver {branch}: {LAST_OLD_BRANCH} is the last branch that knows them;"
            f" set gpu_driver_branch to {LAST_OLD_BRANCH}."
        )
    if old and settings.flavour == "open":
        raise DriverError(
            f"gpu_driver_flavour is open, but {old[0]} GPUs run on the proprietary modules only; set it to auto."
        )
    if new and settings.flavour == "proprietary":
        raise DriverError(
            f"gpu_driver_flavour is proprietary, but {new[0]} GPUs run on the open modules only: nvidia-smi would find"
            " no devices; set it to auto."
        )
    if branch >= FIRST_OPEN_ONLY_BRANCH and settings.flavour == "proprietary":
        raise DriverError(
            f"gpu_driver_flavour is proprietary, but from {FIRST_OPEN_ONLY_BRANCH} on NVIDIA packages only the open"
            f" modules, and {branch} is wanted; set it to auto, or take an older branch."
        )
    if settings.flavour != "auto":
        return settings.flavour, "gpu_driver_flavour says so"
    if old:
        return "proprietary", f"{old[0]} GPUs run on nothing else"
    if new:
        return "open", f"{new[0]} GPUs run on nothing else"
    if installed == "proprietary" and branch < FIRST_OPEN_ONLY_BRANCH:
        return installed, "it is installed and drives these GPUs"
    return "open", "NVIDIA's default for these GPUs"


def kernel_release(osrelease: str, proc_version: str) -> tuple[int, ...]:
    """The kernel's real version: Debian keeps "6.1.0-57" as its name while it follows 6.1.192."""
    debian = re.search(r"\bDebian (\d+\.\d+\.\d+)", proc_version)
    return version_key(debian.group(1) if debian else osrelease.partition("-")[0])


def resize_changed(kernel: tuple[int, ...]) -> bool:
    """Whether pci_resize_resource() takes four arguments: from 6.12.97, 6.18.40 and Debian's 6.1.190 on.

    Other releases of the long-term 6.1 and 6.6 got it later than these and are not known to the patch level; there
    DKMS itself tells.
    """
    if kernel[:2] == (6, 12):
        return kernel >= (6, 12, 97)
    if kernel[:2] == (6, 1):
        return kernel >= (6, 1, 190)
    if kernel[:2] == (6, 18):
        return kernel >= (6, 18, 40)
    return kernel >= (6, 19)


def builds(version: str, flavour: str, kernel: tuple[int, ...]) -> bool:
    """Whether DKMS can build the modules for a kernel; NVIDIA's proprietary source is not affected."""
    if flavour != "open" or not resize_changed(kernel):
        return True
    return version_key(version) >= version_key(BUILDS_FROM) and version not in BUILDS_NOT


def _floors(settings: Settings) -> list[tuple[str, str]]:
    """[(version, what needs it)]."""
    floors = []
    if settings.minimum:
        floors.append((settings.minimum, "the host class"))
    if settings.cuda:
        floors.append((CUDA_MINIMUM[settings.cuda], f"an image with CUDA {settings.cuda}"))
    return floors


def check_branch(settings: Settings) -> None:
    """Refuse a branch that is below what host class or images need."""
    wanted = settings.version or settings.branch
    for minimum, needed_by in _floors(settings):
        if int(settings.wanted_branch) < int(branch_of(minimum)):
            raise DriverError(_too_old(f"driver {wanted}", minimum, needed_by))


def _too_old(what: str, minimum: str, needed_by: str) -> str:
    way = "set gpu_driver_branch or gpu_driver_version to it or newer"
    if "CUDA" in needed_by:
        way += ", or set gpu_driver_cuda to 12 and run images made with CUDA 12"
    return f"Cannot take {what}: {needed_by} needs {minimum} or newer; {way}."


def check_version(settings: Settings, version: str, flavour: str, kernel: tuple[int, ...], signed: bool) -> None:
    """Refuse a version that is below a floor or does not build for the running kernel."""
    for minimum, needed_by in _floors(settings):
        if version_key(version) < version_key(minimum):
            raise DriverError(_too_old(f"driver {version}", minimum, needed_by))
    if not signed and not builds(version, flavour, kernel):
        raise DriverError(
            f"Cannot build the open modules of driver {version} for kernel {'.'.join(map(str, kernel))}: its"
            " pci_resize_resource() has an argument more; take"
            f" {BUILDS_FROM} or newer (not {', '.join(sorted(BUILDS_NOT))}) by gpu_driver_version or gpu_driver_branch."
        )


def key_steps(os: Mapping[str, Any]) -> str:
    """How a host gets a key that DKMS signs with and its firmware knows; a clause.

    A bare host has no key yet: DKMS makes one when it first builds a module.
    """
    install, key, make = "dkms and mokutil", "/var/lib/dkms/mok.pub", "dkms generate_mok"
    if os.get("id") == "ubuntu":
        install, key = "dkms, mokutil and shim-signed", "/var/lib/shim-signed/mok/MOK.der"
        make = "update-secureboot-policy --new-key"
    elif os.get("id") == "debian" and os.get("version_id") == "12":
        # DKMS before 3.1 has no word for it; this is what it does at its first build.
        make = (
            "openssl req -new -x509 -newkey rsa:2048 -nodes -days 36500 -subj '/CN=DKMS module signing key'"
            f" -outform DER -keyout /var/lib/dkms/mok.key -out {key}"
        )
    elif os.get("id") != "debian":
        install = "dkms (of EPEL) and mokutil"
    return (
        f'install {install}, make the key with "{make}", enrol it with "mokutil --import {key}", reboot, confirm it at'
        " the console, and repeat the run"
    )


def check_secure_boot(secure_boot: bool | None, signed: bool, enrolled: bool, os: Mapping[str, Any]) -> None:
    """Refuse modules that the kernel would not load: DKMS signs with a key that a person enrols at the console."""
    if not secure_boot or signed or enrolled:
        return
    instead = ""
    if os.get("id") == "ubuntu":
        instead = ", or take Ubuntu's signed modules with gpu_driver_source: distribution"
    raise DriverError(
        "Cannot install the driver: Secure Boot is on, and modules that DKMS builds are signed with a key that this"
        " host's firmware does not know, so the kernel would refuse them ('Key was rejected by service');"
        f" {key_steps(os)}; or turn Secure Boot off in the firmware{instead}. Nothing was changed."
    )


_OPEN_MODULES = re.compile(
    r"nvidia-kernel-open-dkms|nvidia-open-kernel-dkms|nvidia-dkms(-\d+)?(-server)?-open|linux-modules-nvidia-\d+(-server)?-open-.*"
    r"|kmod-nvidia-open.*"
)
_PROPRIETARY_MODULES = re.compile(
    r"nvidia-kernel-dkms|nvidia-dkms(-\d+)?(-server)?|linux-modules-nvidia-\d+(-server)?-(?!open|server).*"
    r"|kmod-nvidia-latest.*"
)
_USER_SPACE = re.compile(
    r"nvidia-driver-cuda|libnvidia-compute(-\d+)?(-server)?|libcuda1|nvidia-smi|nvidia-utils(-\d+)?(-server)?"
)
_DEBIANS_OWN = ("nvidia-smi", "nvidia-open-kernel-dkms", "nvidia-kernel-support", "nvidia-alternative")
_NVIDIAS_OWN = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-driver-assistant")
UNFINISHED = ("half-installed", "half-configured", "unpacked")


def _is_ubuntus(name: str, version: str) -> bool:
    """Whether name or version tell that Ubuntu made the package: updates for a release have it in their revision.

    What came with a release has not: 580.126.09-0ubuntu3 may be Ubuntu's or NVIDIA's.
    """
    return name.startswith("linux-") or "-server" in name or re.search(r"ubuntu\d+\.\d+\.\d+", version) is not None


def _is_part(name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_USER_SPACE, _OPEN_MODULES, _PROPRIETARY_MODULES))


def of_unclear_origin(os: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Installed packages of the driver of which neither name nor version tell who made them."""
    there = [name for name, package in packages.items() if package["status"] not in ("not-installed", "config-files")]
    if os.get("id") != "ubuntu" or any(name.startswith("nvidia-driver-pinning-") for name in there):
        return []
    return sorted(name for name in there if _is_part(name) and not _is_ubuntus(name, packages[name]["version"]))


def _source(name: str, version: str, ubuntu: bool) -> str | None:
    if ubuntu:
        return "distribution" if _is_ubuntus(name, version) else "nvidia"
    if name in _NVIDIAS_OWN:
        return "nvidia"
    return "distribution" if name in _DEBIANS_OWN else None


def installed_version(packages: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The newest version of user space among *packages*; of a driver that is whole there is one."""
    versions = [
        upstream(package["version"])
        for name, package in packages.items()
        if _USER_SPACE.fullmatch(name) and package["status"] not in ("not-installed", "config-files")
    ]
    return max(versions, key=version_key, default=None)


def installed_driver(
    os: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]], origins: Mapping[str, str] | None = None
) -> Installed:
    """The driver among *packages* (of read_packages); raises DriverError for one that is mixed of two sources.

    *origins* are the sources of those packages of which neither name nor version tell it.
    """
    ours = {
        name: package
        for name, package in packages.items()
        if is_driver_package(name) and package["status"] not in ("not-installed", "config-files")
    }
    ubuntu = os.get("id") == "ubuntu"
    sources: dict[str, str] = {}
    for name, package in sorted(ours.items()):
        if _is_part(name):
            origin = (origins or {}).get(name) or _source(name, package["version"], ubuntu)
            if origin:
                sources.setdefault(origin, f"{name} {package['version']}")
    if len(sources) > 1:
        raise DriverError(
            f"This host has a driver mixed of two sources: {sources['nvidia']} is of NVIDIA's repository and"
            f" {sources['distribution']} of the distribution; remove both with gpu_driver_state: absent, then install"
            " again. Nothing was changed."
        )
    flavours = {"open" for name in ours if _OPEN_MODULES.fullmatch(name)}
    flavours |= {"proprietary" for name in ours if _PROPRIETARY_MODULES.fullmatch(name)}
    return Installed(
        version=installed_version(packages),
        flavour=flavours.pop() if len(flavours) == 1 else None,
        source=next(iter(sources), None),
        broken=tuple(sorted(name for name, package in ours.items() if package["status"] in UNFINISHED)),
    )


def check_sources(
    settings: Settings,
    installed: Installed,
    sources: Sequence[Mapping[str, str]],
    foreign: Sequence[Mapping[str, str]],
    url: str,
) -> None:
    """Refuse to mix: a .run install, a PPA, a second repository of NVIDIA, a driver of the other source."""
    for item in foreign:
        raise DriverError(
            f"Cannot install the driver: this host has one without packages ({item['evidence']}); remove it with"
            " 'nvidia-uninstall', reboot, and repeat the run. Nothing was changed."
        )
    if installed.source and installed.source != settings.source:
        raise DriverError(
            f"gpu_driver_source is {settings.source}, but driver {installed.version} of source {installed.source} is"
            " installed, and mixing both breaks packages; set gpu_driver_source to"
            f" {installed.source}, or remove the driver first with gpu_driver_state: absent. Nothing was changed."
        )
    for source in sources:
        kind, uri = source["kind"], source["uri"]
        if kind == "ppa" and "graphics-drivers" in uri:
            what = "a PPA with other builds of the driver"
        elif kind == "nvidia-local":
            what = "a local repository of NVIDIA"
        elif kind == "nvidia-cuda" and settings.source == "distribution":
            what = "NVIDIA's repository, while gpu_driver_source is distribution"
        elif kind == "nvidia-cuda" and not is_same(uri, url) and source["file"] != OWN_SOURCE:
            what = f"another repository of NVIDIA than {without_password(url)}"
        else:
            continue
        raise DriverError(
            f"Cannot install the driver: {source['file']} names {without_password(uri)}, {what}; mixed sources end in"
            " unmet dependencies; remove that file or correct the variable, then repeat the run. Nothing was changed."
        )


OWN_SOURCE = "/etc/apt/sources.list.d/socle-nvidia-cuda.sources"


def check_direction(settings: Settings, installed: Installed, target: str) -> None:
    """Refuse to go back: settings and module parameters of the newer driver stay behind."""
    if installed.version and version_key(target) < version_key(installed.version):
        there = branch_of(installed.version)
        branch = f" (and gpu_driver_branch to {there})" if settings.branch not in ("", there) else ""
        raise DriverError(
            f"Driver {installed.version} is installed, and {target} is older: an upgrade in place goes forwards only;"
            f" set gpu_driver_version to {installed.version} or newer{branch}, or remove the driver first with"
            " gpu_driver_state: absent. Nothing was changed."
        )


def choose_version(settings: Settings, installed: Installed, available: Sequence[str], where: str) -> str:
    """The version to have, from those that *where* offers; raises DriverError where the pin does not exist."""
    if settings.version:
        if settings.version not in available:
            raise DriverError(
                f"Driver {settings.version} is not in {where}; it has {_some(available)}; set gpu_driver_version to one"
                " of these. Nothing was changed."
            )
        return settings.version
    mine = [version for version in available if branch_of(version) == settings.branch]
    if not mine:
        branches = _some([branch_of(version) for version in available])
        raise DriverError(
            f"No driver of branch {settings.branch} is in {where}; it has {branches}; set gpu_driver_branch to one of"
            " these. Nothing was changed."
        )
    return max(mine, key=version_key)


def _some(versions: Sequence[str]) -> str:
    newest = sorted(set(versions), key=version_key, reverse=True)
    more = f" and {len(newest) - 8} older" if len(newest) > 8 else ""
    return (", ".join(newest[:8]) + more) if newest else "none"


def idle_upgrade(settings: Settings, installed: Installed) -> str | None:
    """What a person should know who asks for an upgrade that the pin of the installed version forbids."""
    if settings.upgrade and settings.version and settings.version == installed.version:
        return f"gpu_driver_upgrade is true, but gpu_driver_version pins {settings.version}: change or empty the pin"
    return None


def keeps(settings: Settings, installed: Installed) -> bool:
    """Whether the installed version is the one to have, so that no repository need be asked."""
    if installed.version is None:
        return False
    if settings.version:
        return installed.version == settings.version
    if any(version_key(installed.version) < version_key(minimum) for minimum, _needed_by in _floors(settings)):
        return False
    return branch_of(installed.version) == settings.branch and not settings.upgrade
