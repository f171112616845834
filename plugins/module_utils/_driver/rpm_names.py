# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repositories and package names of the driver on RHEL, Rocky Linux and AlmaLinux. Private to socle.inference.

The names are those of NVIDIA's driver installation guide and driver container. Up to release 9 a DNF module stream
selects the branch and the flavour; release 10 has no modules, so there only the version of each package does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.decide import key_steps
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
    DriverPackages,
    Repository,
    Wanted,
)

RPM_SYSTEMS = {
    "rhel": "RHEL",
    "rocky": "Rocky Linux",
    "almalinux": "AlmaLinux",
    "centos": "CentOS Stream",
}
"""ID of os-release -> name for a person. Oracle's own kernel needs headers of other names, so it is not one of them."""

RPM_KEYS = {"9": "D42D0685.pub", "10": "CDF6BA43.pub"}
"""Release -> file of the signing key beside the packages; NVIDIA took a new key with release 10."""

RPM_ARCHES = {"x86_64": "x86_64", "aarch64": "sbsa"}

STREAMS_END = 9
"""The last release with DNF modules."""

MODULE = "nvidia-driver"
"""Name of the DNF module."""

OURS = re.compile(
    r"kmod-nvidia-\S+|nvidia-(driver|kmod|persistenced|modprobe|settings|xconfig|open|libXNVCtrl|fabric|imex|gsp)\S*"
    r"|libnvidia-(?!container)\S+|libnvsdm\S*|nvlsm|xorg-x11-nvidia|cuda-drivers\S*|dnf-plugin-nvidia"
)
"""Packages of the driver and its companions; the toolkit (nvidia-container-*) has a pin of its own."""

LOCKS = (
    "kmod-nvidia-*",
    "nvidia-driver*",
    "nvidia-kmod*",
    "nvidia-open*",
    "nvidia-persistenced",
    "nvidia-modprobe",
    "nvidia-settings",
    "nvidia-xconfig",
    "nvidia-libXNVCtrl*",
    "nvidia-fabric*",
    "nvidia-imex*",
    "libnvidia-ml",
    "libnvidia-cfg",
    "libnvidia-fbc",
    "libnvidia-gpucomp",
    "libnvidia-nscq*",
    "libnvsdm*",
    "xorg-x11-nvidia",
    "cuda-drivers*",
)
"""Installed packages that are locked with the driver: a lock on some of them alone makes 'dnf upgrade --best' fail."""

MODULE_LOCKS = ("kmod-nvidia-", "nvidia-open")
"""How the patterns of LOCKS begin that modules are locked by."""

PRECOMPILED = {
    "open": re.compile(r"kmod-nvidia-open(-\d+\.\d+\S*)?|nvidia-open-kmod"),
    "proprietary": re.compile(r"kmod-nvidia-\d{3,}\.\d+(\.\d+)?-\d+\.\d+\.\d+-\S+"),
}
"""Flavour -> packages of modules that were built and signed elsewhere, each for one kernel.

AlmaLinux has kmod-nvidia-open; NVIDIA's streams without "dkms" or "open" in their name have
kmod-nvidia-580.95.05-5.14.0-570.12.1, with the driver's version before the kernel's.
"""

OTHER_BUILDS = re.compile(
    r"akmod-nvidia\S*|xorg-x11-drv-nvidia\S*|nvidia-x11-drv\S*"
    # Built by akmods for one kernel, whose version comes first; and ELRepo's, which have none.
    r"|kmod-nvidia-(\d{3}xx-)?\d{1,2}\.\d+\.\S+|kmod-nvidia(-\d{3}xx)?"
)
"""Packages of RPM Fusion and ELRepo."""

EPEL_RELEASE_URL = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{release}.noarch.rpm"
"""Where RHEL itself, which has no epel-release package, gets it from."""


def is_driver_rpm(name: str) -> bool:
    """Whether a package is part of the driver; neither toolkit nor CUDA libraries are."""
    return OURS.fullmatch(name) is not None


def is_precompiled(name: str) -> bool:
    """Whether a package holds modules that were built elsewhere."""
    return any(pattern.fullmatch(name) for pattern in PRECOMPILED.values())


def locked_with_driver(installed: Iterable[str]) -> list[str]:
    """Of *installed* packages those that a run locks, sorted; not precompiled modules, which go on with kernels."""
    there = sorted(installed)
    dkms = any(name.startswith("kmod-nvidia-") and name.endswith("-dkms") for name in there)
    free = not dkms and any(is_precompiled(name) for name in there)
    patterns = [pattern for pattern in LOCKS if not (free and pattern.startswith(MODULE_LOCKS))]
    return [name for name in there if any(fnmatchcase(name, pattern) for pattern in patterns)]


def without_dkms(packages: DriverPackages, compute_only: bool) -> DriverPackages:
    """*packages* on a host that has precompiled modules: these come, and go on with kernels, by their own source."""
    return replace(
        packages,
        driver=("nvidia-driver-cuda",) if compute_only else ("nvidia-driver", "nvidia-driver-cuda"),
        headers=(),
        stream=None,
        # A lock would keep the modules for the next kernel away.
        lock=tuple(pattern for pattern in packages.lock if not pattern.startswith(MODULE_LOCKS)),
        dkms=None,
    )


def is_rpm_system(os: Mapping[str, Any]) -> bool:
    """Whether the host belongs to the family of this file, whatever its release."""
    return os.get("id") in RPM_SYSTEMS or "rhel" in os.get("id_like", ())


def rpm_release(os: Mapping[str, Any]) -> str:
    """The main release, "9" of "9.6"."""
    return str(os.get("version_id") or "").partition(".")[0]


def rpm_repository(os: Mapping[str, Any], arch: str, base_url: str) -> Repository:
    """NVIDIA's repository for a release of the family; raises DriverError where there is none."""
    release, folder = rpm_release(os), RPM_ARCHES.get(arch)
    if os.get("id") not in RPM_SYSTEMS or release not in RPM_KEYS or folder is None:
        raise DriverError(
            f"Cannot install the NVIDIA driver: this host runs {os.get('id')} {os.get('version_id')} on {arch}, and"
            f" NVIDIA's packages are known for releases {' and '.join(RPM_KEYS)} of"
            f" {', '.join(RPM_SYSTEMS.values())} on {' and '.join(RPM_ARCHES)}; install one of these."
        )
    url = f"{base_url.rstrip('/')}/rhel{release}/{folder}/"
    return Repository(f"rhel{release}", folder, url, (url + RPM_KEYS[release],))


def rpm_headers(kernel: str) -> tuple[str, ...]:
    """The metapackage that keeps headers at the kernel's own version; () for a kernel that is not the distribution's.

    "5.14.0-570.12.1.el9_6.x86_64" -> kernel-devel-matched, "6.12.0-55.el10.aarch64+64k" -> kernel-64k-devel-matched.
    """
    match = re.search(r"\.el\d+(?:_\d+)?(?:\.\d+)*\.(?:x86_64|aarch64)(?:\+(64k|rt|rt-64k))?$", kernel)
    if match is None:
        return ()
    variant = f"-{match.group(1)}" if match.group(1) else ""
    return (f"kernel{variant}-devel-matched",)


_KERNEL_END = re.compile(r"\.(?:x86_64|aarch64)(?:\+\S+)?$")


def kernel_version(kernel: str) -> str:
    """The version of a kernel's packages: "5.14.0-570.12.1.el9_6" of "5.14.0-570.12.1.el9_6.x86_64"."""
    return _KERNEL_END.sub("", kernel)


def kernel_name(like: str, version: str) -> str:
    """The kernel of *version* of the same architecture and variant as *like*."""
    end = _KERNEL_END.search(like)
    return version + (end.group(0) if end else "")


def epel_packages(os: Mapping[str, Any]) -> tuple[str, ...]:
    """What to install for the EPEL repository, the only one with dkms: a package, on RHEL its address."""
    if os.get("id") == "rhel":
        return (EPEL_RELEASE_URL.format(release=rpm_release(os)),)
    return ("epel-release",)


def builder_repository(os: Mapping[str, Any], arch: str) -> str:
    """The id of the repository that EPEL's packages take their dependencies from, off by default."""
    if os.get("id") == "rhel":
        return f"codeready-builder-for-rhel-{rpm_release(os)}-{arch}-rpms"
    return "crb"


def rpm_stream(os: Mapping[str, Any], wanted: Wanted) -> str | None:
    """The stream of the module nvidia-driver for a branch and flavour; None where releases have no modules."""
    if int(rpm_release(os)) > STREAMS_END:
        return None
    return f"{wanted.branch}-{'open' if wanted.flavour == 'open' else 'dkms'}"


def _companions(wanted: Wanted, arch: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(at the driver's version, the same where it exists, at any version)."""
    if not wanted.nvswitch and not wanted.nvlink5:
        return (), (), ()
    branch = int(wanted.branch)
    # Fabric manager lost its second hyphen and NSCQ its branch with 580.
    exact = (
        ("nvidia-fabricmanager", "libnvidia-nscq")
        if branch >= 580
        else ("nvidia-fabric-manager", f"libnvidia-nscq-{branch}")
    )
    optional: tuple[str, ...] = ()
    if arch == "x86_64" and branch >= 570:
        optional = ("libnvsdm",) if branch >= 580 else (f"libnvsdm-{branch}",)
    return exact, optional, ("nvlsm", "infiniband-diags") if wanted.nvlink5 else ()


def rpm_packages(os: Mapping[str, Any], arch: str, kernel: str, wanted: Wanted) -> DriverPackages:
    """What to install on a host of the family; raises DriverError for what does not exist there."""
    if wanted.source != "nvidia":
        raise DriverError(
            f"Cannot take the driver from {RPM_SYSTEMS.get(str(os.get('id')), os.get('id'))}: its repositories have no"
            " NVIDIA driver; set gpu_driver_source to nvidia."
        )
    if wanted.signed:
        raise DriverError(
            "Cannot install signed modules: for this distribution NVIDIA has modules that DKMS builds and signs with a"
            f" key of this host; {key_steps(os)}; or turn Secure Boot off in the firmware."
        )
    is_open = wanted.flavour == "open"
    driver: tuple[str, ...]
    if wanted.compute_only:
        driver = ("nvidia-driver-cuda", "kmod-nvidia-open-dkms" if is_open else "kmod-nvidia-latest-dkms")
    else:
        driver = ("nvidia-open" if is_open else "cuda-drivers",)
    companions, same, independent = _companions(wanted, arch)
    return DriverPackages(
        driver=driver,
        companions=companions,
        optional=("nvidia-persistenced", "nvidia-modprobe", *same),
        independent=independent,
        headers=rpm_headers(kernel),
        stream=rpm_stream(os, wanted),
        lock=LOCKS,
    )
