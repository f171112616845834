# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the parts of the driver code hand to each other. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


class DriverError(SocleError):
    """The driver cannot be installed, changed or removed as asked."""


@dataclass(frozen=True)
class Wanted:
    """What names depend on."""

    source: str
    """"nvidia" (its repository) or "distribution"."""
    flavour: str
    """"open" or "proprietary"."""
    branch: str
    """The first number of the version: "580"."""
    version: str
    """The exact version, or "" for the branch."""
    compute_only: bool
    """Without X and Wayland."""
    signed: bool
    """Modules that the distribution built and signed, instead of DKMS."""
    nvswitch: bool
    nvlink5: bool
    installed: frozenset[str] = frozenset()
    """Names of installed packages: of alternatives, those that are there stay."""


@dataclass(frozen=True)
class Repository:
    """Where NVIDIA's packages come from."""

    distro: str
    """The folder's name: "debian13", "ubuntu2404", "rhel9"."""
    arch: str
    """"x86_64" or "sbsa"."""
    url: str
    """The folder of the repository, with a slash at the end."""
    key_urls: tuple[str, ...]
    """Where its signing key is found; the first one that answers is taken."""


@dataclass(frozen=True)
class DriverPackages:
    """The packages of one driver on one host, by what holds for their version."""

    driver: tuple[str, ...]
    """At the driver's exact version. The first one is asked for the versions that exist."""
    companions: tuple[str, ...] = ()
    """At the driver's exact version: fabric manager, NSCQ, NVSDM. Empty where no NVSwitch and no NVLink 5 was found."""
    optional: tuple[str, ...] = ()
    """At the driver's exact version where the repository has them, else left to dependencies."""
    independent: tuple[str, ...] = ()
    """At any version: nvlsm, infiniband-diags, nvidia-persistenced of Debian."""
    pin: str | None = None
    """The pinning package, installed before all others (deb family)."""
    headers: tuple[str, ...] = ()
    """Header metapackages of the running kernel's flavour, so that DKMS also builds for the next kernel."""
    hold_also: tuple[str, ...] = ()
    """Held with the driver where they are installed: the kernel that precompiled modules belong to."""
    stream: str | None = None
    """The DNF module stream, such as "580-open"; None where streams do not select the branch."""
    lock: tuple[str, ...] = ()
    """Patterns for dnf versionlock."""
    module: str = "nvidia"
    """Name of the kernel module's file: Debian's own packages call it nvidia-current."""
    dkms: str | None = "nvidia"
    """Name that DKMS knows the module by; None for precompiled modules."""
    per_kernel: str = ""
    """Pattern of the packages that hold precompiled modules for one kernel each; they stay with their kernels."""

    @property
    def exact(self) -> tuple[str, ...]:
        """Packages that must all have the driver's version."""
        return (*self.driver, *self.companions)


def upstream(version: str) -> str:
    """The driver's version in that of a package: "580.178.04" in "2:580.178.04-0ubuntu1" and "3:580.178.04-1.el9"."""
    return version.rpartition(":")[2].partition("-")[0].partition("~")[0]


def branch_of(version: str) -> str:
    """ "580" of "580.178.04"."""
    return version.partition(".")[0]
