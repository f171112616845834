# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is in the way of a download, found before its first byte. Private to socle.inference.

read_facts() looks at the host, judge() is pure: the same facts can be judged elsewhere, for all hosts in one table.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import MAX_BYTES

GIB = 1 << 30
RESERVE_BYTES = 5 * GIB
RESERVE_SHARE = 0.02
SPARE_INODES = 64
PROBE_BYTES = 1 << 20
MOUNTINFO = Path("/proc/self/mountinfo")

SHARED_TYPES = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p"),
        *("orangefs", "pvfs2", "wekafs", "panfs", "virtiofs", "gfs2", "ocfs2", "fuse"),
    )
)
"""Several hosts may write them, and flock does not always reach across: gfs2 and ocfs2 are cluster file systems."""

LOCAL_FUSE = frozenset(("fuse.fuse-overlayfs", "fuse.bindfs", "fuse.mergerfs", "fuse.ntfs-3g", "fuse.exfat"))
"""FUSE types that are on this host; every other one is taken for a network's."""

VOLATILE_TYPES = frozenset(("tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "fuse.fuse-overlayfs"))
"""Lost with the next start of the host, or with its container."""

CLOCK_FLOOR_S = 1_735_689_600.0
"""2025-01-01: no host that runs this has a clock before it, unless that was never set."""

CLOCK_SLACK_S = 86_400.0


@dataclass(frozen=True)
class Mount:
    """What a folder is on."""

    point: str
    type: str
    read_only: bool


@dataclass(frozen=True)
class StoreFacts:
    """What a host says about the place of its store."""

    folder: str
    free: int
    """Bytes for the user who asks (f_bavail): what is set aside for root alone does not count."""
    total: int
    inodes: int | None
    """None where the file system makes them as they are needed."""
    file_system: str
    """Its type, such as ext4; empty where the host does not say."""
    mount_point: str
    devices: tuple[int, ...]
    """Those of where files arrive and where they are published."""
    write_fault: str | None
    clock_s: float
    newest_s: float
    """The latest time that the store itself was written at; 0 for a new one."""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "devices": list(self.devices)}


@dataclass(frozen=True)
class Allowed:
    """What a person accepts."""

    reserve_bytes: int | None = None
    shared_fs: bool = False
    volatile_fs: bool = False
    force: bool = False


@dataclass(frozen=True)
class Fault:
    """One thing that is in the way."""

    id: str
    message: str


def needed_bytes(missing: int, staged: int, linkable: int) -> int:
    """What a download takes from the free space: neither what had arrived already, nor what is only linked."""
    return max(0, missing - staged - linkable)


def reserve_bytes(gib: float | None) -> int | None:
    """The reserve that a person asked for, in bytes; raises StoreError for what is no size."""
    if gib is None:
        return None
    if not math.isfinite(gib) or not 0 <= gib * GIB <= MAX_BYTES:
        raise StoreError(f"reserve_gib must be a number of GiB, 0 or more, found {gib}")
    return int(gib * GIB)


def judge(facts: StoreFacts, need: int, files: int, allowed: Allowed, reclaimable: int | None = None) -> list[Fault]:
    """What is in the way of *need* bytes in *files* files; empty where nothing is.

    *reclaimable*: bytes that garbage collection could free, for the message; None where nobody looked.
    """
    faults = []
    where = f"{facts.folder} ({facts.file_system or 'unknown file system'} at {facts.mount_point})"
    if facts.write_fault:
        faults.append(Fault("write", f"{facts.folder} cannot be written: {facts.write_fault}"))
    if len(set(facts.devices)) > 1:
        faults.append(
            Fault(
                "devices",
                f"{facts.folder} spans several file systems, so that a snapshot cannot be published by one rename: "
                "mount one below all of it",
            )
        )
    if is_shared(facts.file_system) and not allowed.shared_fs:
        faults.append(
            Fault(
                "shared_fs",
                f"{where} is a network file system, where locks between hosts cannot be relied on: choose a local "
                "store, or set allow_shared_fs and let one host alone write it",
            )
        )
    if allowed.force:
        return faults
    if facts.file_system in VOLATILE_TYPES and not allowed.volatile_fs:
        faults.append(
            Fault(
                "volatile_fs",
                f"{where} does not outlive the next start of the host or its container: choose another store, or set "
                "allow_volatile_fs",
            )
        )
    faults += _judge_clock(facts) + _judge_space(facts, where, need, files, allowed.reserve_bytes, reclaimable)
    return faults


def is_shared(file_system: str) -> bool:
    """Whether other hosts may write a file system of this type."""
    return file_system in SHARED_TYPES or (file_system.startswith("fuse.") and file_system not in LOCAL_FUSE)


def _judge_clock(facts: StoreFacts) -> list[Fault]:
    if facts.clock_s >= CLOCK_FLOOR_S and facts.clock_s >= facts.newest_s - CLOCK_SLACK_S:
        return []
    since = "the store was last written" if facts.newest_s > CLOCK_FLOOR_S else "socle was made"
    return [
        Fault(
            "clock",
            f"the clock of the host says {_day(facts.clock_s)}, which is before {since} "
            f"({_day(max(facts.newest_s, CLOCK_FLOOR_S))}): set it, or pass over this with the option force",
        )
    ]


def _judge_space(
    facts: StoreFacts, where: str, need: int, files: int, reserve: int | None, reclaimable: int | None
) -> list[Fault]:
    faults = []
    kept = max(RESERVE_BYTES, int(facts.total * RESERVE_SHARE)) if reserve is None else reserve
    if need and facts.free < need + kept:
        gc = ""
        if reclaimable is not None:
            gc = f"; garbage collection (action gc of the playbook models) could free {_size(reclaimable)}"
        # A smaller reserve is of use only where the files themselves fit.
        cure = ", choose another store or lower reserve_gib" if facts.free >= need else " or choose another store"
        faults.append(
            Fault(
                "space",
                f"{where} has {_size(facts.free)} free, but {_size(need)} are to be downloaded and {_size(kept)} must "
                f"stay free{gc}: make room{cure}",
            )
        )
    if files and facts.inodes is not None and facts.inodes < files + SPARE_INODES:
        faults.append(
            Fault("inodes", f"{where} has {facts.inodes} inodes left, but {files} files are to come: make room")
        )
    return faults


def _size(count: float) -> str:
    """As the tables of models show sizes: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def read_facts(folder: Path, places: tuple[Path, ...], newest_s: float, probe: bool) -> StoreFacts:
    """Look at the store *folder*; *places* are where files arrive and are published, whether they exist or not.

    With *probe*, what a download does is tried with a small file; otherwise only the permissions are read.
    """
    there = existing(folder)
    found = os.statvfs(there)
    mount = find_mount(_read_mounts(), there.resolve())
    fault = "it is mounted read-only" if mount and mount.read_only else None
    devices = []
    for place in places:
        there = existing(place)
        if fault is None and not there.is_dir():
            fault = f"{there} is no folder"
        fault = fault or (try_writing(there) if probe else _access_fault(there))
        devices.append(there.stat().st_dev)
    return StoreFacts(
        folder=str(folder),
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        inodes=found.f_favail if found.f_files else None,
        file_system=mount.type if mount else "",
        mount_point=mount.point if mount else "/",
        devices=tuple(devices),
        write_fault=fault,
        clock_s=time.time(),
        newest_s=newest_s,
    )


def existing(folder: Path) -> Path:
    """*folder*, or the nearest of its parents that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def try_writing(folder: Path, allocate: Callable[[int, int, int], None] = os.posix_fallocate) -> str | None:
    """Do in *folder* what a download does, with a small file: make it, take its room, rename it; returns the fault."""
    first, second = (folder / f".socle-probe-{secrets.token_hex(6)}{end}" for end in ("", ".new"))
    try:
        descriptor = os.open(first, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                allocate(descriptor, 0, PROBE_BYTES)
            except OSError as error:
                # Some C libraries do not write zeros in its place, as a download then does.
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
        finally:
            os.close(descriptor)
        first.rename(second)
    except OSError as error:
        return f"{error.strerror or error} in {folder}"
    finally:
        for place in (first, second):
            with contextlib.suppress(OSError):
                place.unlink()
    return None


def _access_fault(folder: Path) -> str | None:
    return None if os.access(folder, os.W_OK | os.X_OK) else f"this user must not write in {folder}"


def _read_mounts() -> str:
    try:
        return MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def find_mount(mountinfo: str, path: Path) -> Mount | None:
    """The mount that *path*, without symbolic links, is on, by the text of /proc/self/mountinfo (proc(5))."""
    found = None
    for line in mountinfo.splitlines():
        fields, separator, rest = line.partition(" - ")
        before, after = fields.split(" "), rest.split(" ")
        if not separator or len(before) < 6 or len(after) < 3:
            continue
        point = unescape(before[4])
        inside = path == Path(point) or Path(point) in path.parents
        # A later line of the same place lies on top of it.
        if inside and (found is None or len(point) >= len(found.point)):
            read_only = "ro" in before[5].split(",") or "ro" in after[2].split(",")
            found = Mount(point, after[0], read_only)
    return found


def unescape(text: str) -> str:
    """A path of a table in /proc, where blanks and backslashes are octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def newest_time(places: tuple[Path, ...]) -> float:
    """The latest time of change of those *places* that exist."""
    newest = 0.0
    for place in places:
        with contextlib.suppress(OSError):
            status = place.lstat()
            if not stat.S_ISLNK(status.st_mode):
                newest = max(newest, status.st_mtime)
    return newest
