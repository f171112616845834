# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repositories and package names of the driver on Debian and Ubuntu. Private to socle.inference.

The names of NVIDIA's repository are those of NVIDIA's driver installation guide and driver container: with the branch
in them up to 580 on Ubuntu, and for the companions below 580; without it from then on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
    DriverPackages,
    Repository,
    Wanted,
)

DEB_DISTROS = {
    ("debian", "12"): "debian12",
    ("debian", "13"): "debian13",
    ("ubuntu", "22.04"): "ubuntu2204",
    ("ubuntu", "24.04"): "ubuntu2404",
    ("ubuntu", "26.04"): "ubuntu2604",
}
"""(ID, VERSION_ID) of os-release -> folder of NVIDIA's repository."""

ARCHES = {"x86_64": "x86_64", "aarch64": "sbsa"}

KEYRINGS = ("cuda-archive-keyring.gpg", "3bf863cc.pub")
"""Files of the signing key beside the packages, as a keyring and as ASCII armour."""

GENERAL_KERNELS = {"22.04": (5, 15), "24.04": (6, 8), "26.04": (7, 0)}
"""The kernel an Ubuntu release came with; a newer one of the general flavour is its hardware enablement kernel."""

DEBIAN_COMPONENTS = {"nvidia": ("contrib",), "distribution": ("contrib", "non-free", "non-free-firmware")}
"""Components of the Debian archive that the packages of each source depend on or are in."""

_BRANCH = r"(-\d+)?(-server)?"
"""How Ubuntu and, up to 580, NVIDIA tell the branches apart."""

OURS = re.compile(
    # NVIDIA's repository and Debian
    r"nvidia-driver(-cuda|-bin|-full|-libs\S*|-assistant|-pinning-\S+)?|nvidia-(open|driver)-\d+\S*|nvidia-open"
    r"|nvidia-(kernel|kernel-open|open-kernel)-(dkms|support|source|common)|nvidia-kernel-\d\S*"
    r"|nvidia-(smi|modprobe|persistenced|settings|xconfig|alternative|legacy-check|support|detect|cuda-mps|powerd)"
    r"|nvidia-(installer-cleanup|suspend-common|libopencl1\S*|vdpau-driver\S*|nonglvnd-vulkan-\S+)"
    r"|nvidia-(egl|opencl|vulkan)-(common|icd)\S*|nvidia-(tesla|legacy)(-\d+(xx)?)?(-\S+)?"
    r"|nvidia-(fabricmanager|fabric-manager|imex)(-\d+|-dev(-\d+)?)?|nvlsm|firmware-nvidia-(gsp|tesla)\S*"
    r"|cuda-drivers(-\d+|-fabricmanager(-\d+)?)?"
    # Ubuntu
    rf"|nvidia-(utils|compute-utils|kernel-source|kernel-common|dkms|headless|headless-no-dkms){_BRANCH}(-open)?"
    rf"|nvidia-firmware{_BRANCH}(-[\d.]+)?|(xserver-xorg-video|xorg-driver)-nvidia\S*"
    r"|linux-(modules|objects|signatures)-nvidia-\S+"
    # libraries
    r"|libcuda1\S*|libcudadebugger1|libnvcuvid1|libnvoptix1|libnvsdm\S*|libxnvctrl0"
    r"|libnvidia-(allocator|api|cbl|cfg|common|compiler|compute|decode|egl|eglcore|encode|extra|fbc|fbc1|gl|glcore)\S*"
    r"|libnvidia-(glsi|glvkspirv|gpucomp|ifr|ml\d*(?!-dev)|ngx|nscq|nvoptix|nvvm|opencl|opticalflow|pkcs11|present)\S*"
    r"|libnvidia-(ptxjitcompiler|rtcore|sandboxutils|tileiras|tls|vgpu|vksc-core|wayland-client)\S*"
    r"|lib(egl|gles|gl1|glx|vulkan)-nvidia\S*|libnvidia-(tesla|legacy)-\S+|libglx-nvidia0"
)
"""Packages of the driver and its companions, of any source: what removal removes and a transaction may replace.

A closed list, since others are named alike: the toolkit for containers, which has a pin of its own, CUDA's compilers
and libraries, GPUDirect storage, profilers and files for developers.
"""
_NOT_OURS = re.compile(r"\S+-dev|libnvidia-egl-(wayland|gbm|xcb|xlib)\S*")
"""Names that the patterns for libraries would take: headers, and libraries that are built apart from the driver."""


def is_driver_package(name: str) -> bool:
    """Whether a package is part of the driver; neither toolkit nor CUDA libraries are."""
    return OURS.fullmatch(name) is not None and _NOT_OURS.fullmatch(name) is None


def deb_repository(os: Mapping[str, Any], arch: str, base_url: str) -> Repository:
    """NVIDIA's repository for a Debian or Ubuntu release; raises DriverError where there is none."""
    distro = DEB_DISTROS.get((str(os.get("id")), str(os.get("version_id"))))
    folder = ARCHES.get(arch)
    if distro is None or folder is None:
        known = ", ".join(f"{name.capitalize()} {version}" for name, version in DEB_DISTROS)
        raise DriverError(
            f"Cannot install the NVIDIA driver: this host runs {os.get('id')} {os.get('version_id')} on {arch}, and"
            f" NVIDIA's packages are known for {known} on {' and '.join(ARCHES)}; install one of these."
        )
    url = f"{base_url.rstrip('/')}/{distro}/{folder}/"
    return Repository(distro, folder, url, tuple(url + name for name in KEYRINGS))


def headers(os: Mapping[str, Any], kernel: str) -> tuple[str, ...]:
    """The header metapackage of the running kernel's flavour; () for a kernel that is not the distribution's."""
    if os.get("id") == "debian":
        flavour = re.search(r"-((?:cloud-|rt-)?(?:amd64|arm64(?:-16k)?))$", kernel)
        return (f"linux-headers-{flavour.group(1)}",) if flavour else ()
    name = ubuntu_flavour(os, kernel)
    return (f"linux-headers-{name}",) if name else ()


def ubuntu_flavour(os: Mapping[str, Any], kernel: str) -> str | None:
    """The end of the names of an Ubuntu kernel's metapackages: "generic", "generic-hwe-24.04", "aws"."""
    match = re.match(r"(\d+)\.(\d+)\.\d+-\d+-([a-z][a-z0-9-]*)$", kernel)
    if match is None:
        return None
    version, flavour = str(os.get("version_id")), match.group(3)
    came_with = GENERAL_KERNELS.get(version)
    enablement = came_with is not None and (int(match.group(1)), int(match.group(2))) > came_with
    return f"{flavour}-hwe-{version}" if enablement and flavour.startswith(("generic", "lowlatency")) else flavour


def _companions(wanted: Wanted, arch: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(at the driver's version, the same where it exists, at any version)."""
    if not wanted.nvswitch and not wanted.nvlink5:
        return (), (), ()
    branch = int(wanted.branch)
    end = "" if branch >= 580 else f"-{branch}"
    exact = (f"nvidia-fabricmanager{end}", f"libnvidia-nscq{end}")
    optional = (f"libnvsdm{end}",) if arch == "x86_64" and branch >= 560 else ()
    return exact, optional, ("nvlsm", "infiniband-diags") if wanted.nvlink5 else ()


def deb_packages(os: Mapping[str, Any], arch: str, kernel: str, wanted: Wanted) -> DriverPackages:
    """What to install on a Debian or Ubuntu host; raises DriverError for what does not exist there."""
    if wanted.source == "nvidia":
        return _nvidia(os, arch, kernel, wanted)
    return _debian(os, kernel, wanted) if os.get("id") == "debian" else _ubuntu(os, kernel, wanted)


def _nvidia(os: Mapping[str, Any], arch: str, kernel: str, wanted: Wanted) -> DriverPackages:
    is_open, branch = wanted.flavour == "open", int(wanted.branch)
    named = os.get("id") == "ubuntu" and branch <= 580
    middle = f"-{branch}" if named else ""
    driver: tuple[str, ...]
    optional: tuple[str, ...] = ()
    if not wanted.compute_only:
        if named:
            driver = (f"nvidia-driver-{branch}-open" if is_open else f"nvidia-driver-{branch}",)
        else:
            driver = ("nvidia-open" if is_open else "cuda-drivers",)
    elif os.get("id") == "debian":
        driver = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms" if is_open else "nvidia-kernel-dkms")
        optional = ("nvidia-persistenced", "nvidia-modprobe")
    else:
        driver = (
            f"libnvidia-compute{middle}",
            f"nvidia-dkms{middle}{'-open' if is_open else ''}",
            f"nvidia-utils{middle}",
            f"nvidia-compute-utils{middle}",
        )
        optional = ("nvidia-modprobe",)
    companions, same, independent = _companions(wanted, arch)
    return DriverPackages(
        driver=driver,
        companions=companions,
        optional=(*optional, *same),
        independent=independent,
        pin=f"nvidia-driver-pinning-{wanted.version or wanted.branch}",
        headers=headers(os, kernel),
    )


def _debian(os: Mapping[str, Any], kernel: str, wanted: Wanted) -> DriverPackages:
    if wanted.nvswitch or wanted.nvlink5:
        raise DriverError(
            "Cannot take the driver from Debian: this host has an NVSwitch, and Debian has no fabric manager, without"
            " which CUDA fails with error 802; set gpu_driver_source to nvidia."
        )
    module = "nvidia-open-kernel-dkms" if wanted.flavour == "open" else "nvidia-kernel-dkms"
    return DriverPackages(
        driver=("nvidia-smi", module, "libcuda1"),
        independent=("nvidia-persistenced", "nvidia-modprobe"),
        headers=headers(os, kernel),
        module="nvidia-current" if wanted.flavour == "proprietary" else "nvidia-current-open",
        dkms="nvidia-current" if wanted.flavour == "proprietary" else "nvidia-current-open",
    )


def _ubuntu(os: Mapping[str, Any], kernel: str, wanted: Wanted) -> DriverPackages:
    """The archive has each branch twice, for desktops and (the default) for servers, and may have it with its desktop.

    Of all of these, and of modules built here or by Ubuntu, those stay that are installed.
    """
    here = wanted.installed
    desktop = any(re.fullmatch(r"nvidia-utils-\d+", name) for name in here)
    server = any(re.fullmatch(r"nvidia-utils-\d+-server", name) for name in here)
    branch = wanted.branch if desktop and not server else f"{wanted.branch}-server"
    flavoured = f"{branch}{'-open' if wanted.flavour == 'open' else ''}"
    whole = f"nvidia-driver-{flavoured}"
    base = whole if whole in here else f"nvidia-headless-no-dkms-{flavoured}"
    driver = [f"nvidia-utils-{branch}", base, f"nvidia-compute-utils-{branch}"]
    companions: tuple[str, ...] = ()
    if wanted.nvswitch or wanted.nvlink5:
        companions = (f"nvidia-fabricmanager-{wanted.branch}", f"libnvidia-nscq-{wanted.branch}")
    independent = ("nvlsm", "infiniband-diags") if wanted.nvlink5 else ()
    flavour = ubuntu_flavour(os, kernel)
    # The modules' version is that of the kernel, so it is no part of the exact set.
    modules = f"linux-modules-nvidia-{flavoured}-{flavour}"
    if not wanted.signed and (modules not in here or f"nvidia-dkms-{flavoured}" in here):
        driver.append(f"nvidia-dkms-{flavoured}")
        return DriverPackages(tuple(driver), companions, (), independent, headers=headers(os, kernel))
    if flavour is None:
        raise DriverError(
            f"Cannot install signed modules: kernel {kernel} is none of Ubuntu's, and Ubuntu signs modules for its own"
            " kernels only; boot a kernel of Ubuntu, or turn Secure Boot off in the firmware."
        )
    kernel_names = (f"linux-{flavour}", f"linux-image-{flavour}", f"linux-headers-{flavour}")
    return DriverPackages(
        tuple(driver),
        companions,
        (),
        (modules, *independent),
        hold_also=kernel_names,
        dkms=None,
        per_kernel=rf"linux-(modules|objects|signatures)-nvidia-{flavoured}-\d.*",
    )
