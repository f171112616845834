# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes and containers hold files of a store. Private to socle.inference."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.lease import ask_for_lease, is_on_network
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import unescape
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import entries_below, open_regular

PROC = Path("/proc")


@dataclass
class Claims:
    """What is looked for. A file that another revision shares is found by its path alone: whoever has it open may mean
    the other one, and loses nothing when this name of it goes."""

    inodes: dict[tuple[int, int], str] = field(default_factory=dict)
    """(device, inode) of folders, and of files with no other name -> key of a snapshot."""
    names: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """inode -> [(file name, key)], where the device of a table differs from the one of stat, as on btrfs."""
    places: dict[str, str] = field(default_factory=dict)
    """Path from the store on, such as /.store/modelscope/Org--Model/rev/0123456789ab -> key."""

    def add(self, key: str, folder: Path, place: str) -> None:
        """Look for *folder* and everything in it."""
        self.places[place] = key
        for entry, status in entries_below(folder):
            if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:
                self.inodes[(status.st_dev, status.st_ino)] = key
                self.names.setdefault(status.st_ino, []).append((entry.name, key))

    def at(self, path: str) -> str | None:
        """The snapshot that *path* names or lies in, wherever the store is mounted."""
        if "/.store/" in path or "/trash-" in path:
            for place, key in self.places.items():
                if path.endswith(place) or f"{place}/" in path:
                    return key
        return None


def is_open(place: Path) -> bool:
    """Whether anybody else has the file open (or mapped), in whatever container.

    The kernel says so: it gives no lease then (fcntl(2)). False also where the file system knows no leases or is a
    network's, or where the file is somebody else's and this user may not have one.
    """
    descriptor = open_regular(place)
    try:
        return ask_for_lease(descriptor, fcntl.F_WRLCK) == errno.EAGAIN and not is_on_network(place)
    finally:
        os.close(descriptor)


def find_holders(claims: Claims, proc: Path = PROC) -> dict[str, str]:
    """Key -> who holds something of it, in words. Raises StoreError where this user may not look."""
    found: dict[str, str] = {}
    namespaces: set[str] = set()
    own = str(os.getpid())
    for process in _processes(proc):
        if process.name == own:
            continue
        for key, how in _held_by(process, claims, namespaces):
            found.setdefault(key, f"process {process.name} ({_name_of(process)}) {how}")
    return found


def _processes(proc: Path) -> list[Path]:
    return sorted(
        (Path(entry.path) for entry in os.scandir(proc) if entry.name.isdecimal()), key=lambda path: int(path.name)
    )


def _held_by(process: Path, claims: Claims, namespaces: set[str]) -> Iterator[tuple[str, str]]:
    try:
        for descriptor in _entries(process / "fd"):
            key = _link_key(descriptor, claims)
            if key:
                yield key, f"has {_target(descriptor)} open"
        for name in ("cwd", "root"):
            key = _link_key(process / name, claims)
            if key:
                yield key, "works in it"
        for line in _lines(process / "maps"):
            key = _mapped_key(line, claims)
            if key:
                yield key, f"has {line.split(maxsplit=5)[-1]} mapped"
        namespace = _target(process / "ns" / "mnt")
        if not namespace or namespace not in namespaces:
            for line in _lines(process / "mountinfo"):
                # The fourth field is the folder within its file system that is mounted.
                fields = line.split(" ")
                key = claims.at(unescape(fields[3])) if len(fields) > 4 else None
                if key:
                    yield key, f"has it mounted at {unescape(fields[4])}"
            namespaces.add(namespace)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        # It ended meanwhile, and holds nothing any more.
        return
    except PermissionError as error:
        if os.geteuid() == 0:
            raise StoreError(
                f"what process {process.name} holds open cannot be seen, since the host of this container does not let "
                "its root look: run this on the host itself, or in a container with CAP_SYS_PTRACE, so that nothing in "
                "use is removed; nothing was touched"
            ) from error
        raise StoreError(
            f"what process {process.name} holds open cannot be seen by this user: run as root, so that nothing in use "
            "is removed; nothing was touched"
        ) from error


def _entries(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in os.scandir(folder)]


def _lines(table: Path) -> list[str]:
    try:
        return table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        # The kernel's answer for the mounts of a process that has ended and was not waited for yet.
        if error.errno == errno.EINVAL:
            return []
        raise


def _link_key(link: Path, claims: Claims) -> str | None:
    """The snapshot that an open descriptor belongs to. Only what has a path is asked for its status."""
    try:
        target = _target(link)
        if not target.startswith("/"):
            return None
        found = claims.at(target.removesuffix(" (deleted)"))
        if found:
            return found
        status = link.stat()
    except PermissionError:
        raise
    except OSError:
        # Closed meanwhile, or on a file system that does not answer: none of ours.
        return None
    return claims.inodes.get((status.st_dev, status.st_ino))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def _mapped_key(line: str, claims: Claims) -> str | None:
    """By a line of /proc/PID/maps (proc(5)): address, permissions, offset, device, inode, path."""
    parts = line.split(maxsplit=5)
    if len(parts) < 6:
        return None
    path = parts[5].removesuffix(" (deleted)")
    inode = int(parts[4]) if parts[4].isdecimal() else 0
    if inode not in claims.names:
        return claims.at(path)
    major, _colon, minor = parts[3].partition(":")
    key = claims.inodes.get((os.makedev(int(major, 16), int(minor, 16)), inode))
    mapped = path.rsplit("/", 1)[-1]
    return key or next((owner for name, owner in claims.names[inode] if name == mapped), None) or claims.at(path)


def _name_of(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "ended"
