# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine allows the lab to do: cgroup tree, capabilities, limits, space. Private to socle.inference."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import resource
import shutil
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import LabError

CAP_SYS_RESOURCE = 24
GIB = 1024**3

LIMIT = 1048576
"""Open files and processes of a host, where limits can be raised."""

LOW_LIMIT = 20000
"""The same where they cannot: above it Podman 4.3 with runc fails, though the caller's own limit is higher."""

PROGRAMS = {
    "podman": "podman",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "iptables": "iptables",
    "ssh-keygen": "openssh-client",
    "runc": "runc",
    "conmon": "conmon",
    "netavark": "netavark",
    "aardvark-dns": "aardvark-dns",
}
"""Programs that the lab needs, and the Debian package of each."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Facts that decide how hosts are started."""

    unified_cgroups: bool
    """Plain cgroup v2; otherwise the lab needs a mount namespace of its own."""
    sys_resource: bool
    """CAP_SYS_RESOURCE: without it limits cannot be raised, and hosts get capabilities one by one."""
    nofile: int
    nproc: int
    architecture: str

    @property
    def privileged(self) -> bool:
        return self.unified_cgroups and self.sys_resource


def has_capability(status: str, capability: int) -> bool:
    """Whether /proc/self/status text *status* shows *capability* as effective."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> capability & 1)
    return False


def bounded_limit(hard: int, wanted: int) -> int:
    """*wanted*, or less where the caller's own *hard* limit is lower; -1 is unlimited."""
    return wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)


def inspect_machine(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Machine:
    """Read the facts of this machine."""
    sys_resource = has_capability((proc / "self/status").read_text(), CAP_SYS_RESOURCE)
    wanted = LIMIT if sys_resource else LOW_LIMIT
    return Machine(
        # Only the unified tree has this file at its root.
        unified_cgroups=(cgroup / "cgroup.controllers").is_file(),
        sys_resource=sys_resource,
        nofile=bounded_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1], wanted),
        nproc=bounded_limit(resource.getrlimit(resource.RLIMIT_NPROC)[1], wanted),
        architecture=platform.machine(),
    )


SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/podman:/usr/libexec/podman"
"""Podman's own helpers are outside of the usual path."""


def check_programs(path: str = SEARCH) -> None:
    """Refuse a machine that lacks a program, naming every missing Debian package at once."""
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)})
    if missing:
        raise LabError(
            f"The virtual lab needs programs of the packages {', '.join(missing)}, which this machine lacks; "
            f"install them (apt-get install {' '.join(missing)}) or run `make lab`, which does.",
            missing=missing,
        )


def check_directory(directory: Path) -> None:
    """Refuse a folder whose name Podman, ssh or a mount option would read as something else."""
    if not re.fullmatch(r"[A-Za-z0-9_./@+=-]+", str(directory)):
        raise LabError(
            f"The virtual lab cannot live in {str(directory)!r}, since mounts and SSH options take no spaces, colons "
            f"or quotes; name another folder with SOCLE_CACHE_DIR."
        )


def make_folder(directory: Path, owner: tuple[int, int]) -> None:
    """Create *directory*; folders above it that had to be made belong to *owner*, who keeps other things there."""
    missing = [folder for folder in directory.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        os.chown(folder, *owner, follow_symlinks=False)
    directory.mkdir(exist_ok=True)


def check_root(uid: int | None = None) -> None:
    """Refuse to build hosts without root."""
    if (os.geteuid() if uid is None else uid) != 0:
        raise LabError(
            "The virtual lab starts systemd hosts, which needs root, and this ran as an ordinary user without sudo; "
            "run as root, or with sudo (ansible-playbook --become, -K if sudo asks for a password)."
        )


def check_space(needed: float, free: float, where: str) -> None:
    """Refuse when *needed* GiB exceed *free* GiB below the folder *where*."""
    if needed > free:
        raise LabError(
            f"Building the virtual lab needs {needed:.1f} GiB below {where}, where {free:.1f} GiB are free; "
            f"free some space (`make clean` removes old caches) or choose another folder with SOCLE_CACHE_DIR.",
            needed_gib=round(needed, 1),
            free_gib=round(free, 1),
        )


def free_gib(folder: Path) -> float:
    """GiB that an ordinary user could still write where *folder* is, or will be."""
    while not folder.exists():
        folder = folder.parent
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize / GIB
