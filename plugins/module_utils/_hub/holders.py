# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which processes and containers hold files of a store. Private to socle.inference."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import unescape

PROC = Path("/proc")


@dataclass
class Claims:
    """What is looked for: the inodes of each snapshot, and the path that a mount of it ends in or lies below."""

    inodes: dict[tuple[int, int], str] = field(default_factory=dict)
    """(device, inode) -> key of a snapshot."""
    names: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """inode -> [(file name, key)], where the device of a table differs from the one of stat, as on btrfs."""
    places: dict[str, str] = field(default_factory=dict)
    """Path from the store on, such as /.store/modelscope/Org--Model/rev/0123456789ab -> key."""

    def add(self, key: str, folder: Path, place: str) -> None:
        """Look for *folder* and everything in it."""
        self.places[place] = key
        for parent, _folders, files in os.walk(folder):
            for entry in (Path(parent), *(Path(parent, name) for name in files)):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.lstat()
                    self.inodes[(status.st_dev, status.st_ino)] = key
                    if stat.S_ISREG(status.st_mode):
                        self.names.setdefault(status.st_ino, []).append((entry.name, key))


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
            key = _inode_key(descriptor, claims.inodes)
            if key:
                yield key, f"has {_target(descriptor)} open"
        for name in ("cwd", "root"):
            key = _inode_key(process / name, claims.inodes)
            if key:
                yield key, "works in it"
        for line in _lines(process / "maps"):
            key = _mapped_key(line, claims)
            if key:
                yield key, f"has {line.split(maxsplit=5)[-1]} mapped"
        namespace = _target(process / "ns" / "mnt")
        if not namespace or namespace not in namespaces:
            for line in _lines(process / "mountinfo"):
                key = _mounted_key(line, claims.places)
                if key:
                    yield key, f"has it mounted at {unescape(line.split(' ')[4])}"
            namespaces.add(namespace)
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        # It ended meanwhile, and holds nothing any more.
        return
    except PermissionError as error:
        raise StoreError(
            f"what process {process.name} holds open cannot be seen by this user: run as root, so that nothing in use "
            "is removed; nothing was touched"
        ) from error


def _entries(folder: Path) -> list[Path]:
    return [Path(entry.path) for entry in os.scandir(folder)]


def _lines(table: Path) -> list[str]:
    return table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _inode_key(link: Path, inodes: Mapping[tuple[int, int], str]) -> str | None:
    """The snapshot that an open descriptor belongs to. Only what has a path is asked for its status."""
    try:
        if not _target(link).startswith("/"):
            return None
        status = link.stat()
    except PermissionError:
        raise
    except OSError:
        # Closed meanwhile, or on a file system that does not answer: none of ours.
        return None
    return inodes.get((status.st_dev, status.st_ino))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def _mapped_key(line: str, claims: Claims) -> str | None:
    """By a line of /proc/PID/maps (proc(5)): address, permissions, offset, device, inode, path."""
    parts = line.split(maxsplit=5)
    if len(parts) < 6 or not parts[4].isdecimal() or int(parts[4]) not in claims.names:
        return None
    inode = int(parts[4])
    major, _colon, minor = parts[3].partition(":")
    key = claims.inodes.get((os.makedev(int(major, 16), int(minor, 16)), inode))
    if key:
        return key
    mapped = parts[5].rsplit("/", 1)[-1]
    return next((owner for name, owner in claims.names[inode] if mapped in (name, f"{name} (deleted)")), None)


def _mounted_key(line: str, places: Mapping[str, str]) -> str | None:
    """By a line of mountinfo, whose fourth field is the folder within its file system that is mounted."""
    fields = line.split(" ")
    if len(fields) < 5 or "/.store/" not in fields[3]:
        return None
    root = unescape(fields[3])
    for place, key in places.items():
        if root.endswith(place) or f"{place}/" in root:
            return key
    return None


def _name_of(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "ended"
