# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The user and group that the files of a snapshot belong to. Private to socle.inference.

A file is given away once it is published, so that nobody but root could change it before it was proven.
Their folders stay with whoever runs this: somebody who owned these could have root write elsewhere, through a link.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.lease import (
    MODE,
    Change,
    change_still,
    has_leases,
)

HIGHEST = (1 << 32) - 2
"""The largest id; the one above it means "leave it" to the kernel."""


@dataclass(frozen=True)
class Ownership:
    """Ids; None leaves what is there."""

    uid: int | None = None
    gid: int | None = None

    def fits(self, status: os.stat_result) -> bool:
        """Whether a file in this state belongs to them, and is read-only."""
        return stat.S_IMODE(status.st_mode) == MODE and self.owns(status)

    def owns(self, status: os.stat_result) -> bool:
        """Whether a file in this state belongs to them."""
        return self.uid in (None, status.st_uid) and self.gid in (None, status.st_gid)

    def give(self, place: Path, expected: Callable[[os.stat_result], bool]) -> Change:
        """Give them the published file at *place*, read-only, where its state is *expected* and nobody writes to it;
        None where that is not so. Raises StoreError."""
        uid, gid = (-1 if one is None else one for one in (self.uid, self.gid))

        def give(descriptor: int) -> None:
            os.fchmod(descriptor, MODE)
            os.fchown(descriptor, uid, gid)

        try:
            return change_still(place, expected, give)
        except OSError as error:
            # Such as EINVAL for an id that a user namespace does not map, or EPERM on a file system that has no owners.
            raise StoreError(
                f"{place} cannot be given to {self._shown()}: {error.strerror or error}; set the option owner and the "
                "option group to what this host and its file system take, or leave them out"
            ) from error

    def check(self, folder: Path) -> None:
        """Try it in *folder*; raises StoreError where it cannot be done there, or would let others change files
        unseen."""
        if self.uid is None and self.gid is None:
            return
        place = folder / "owner"
        place.touch()
        try:
            if self.uid not in (None, 0, os.geteuid()) and not has_leases(place):
                raise StoreError(
                    f"the option owner is {self._shown()}, and the file system of {folder} has no leases "
                    "(fcntl(2), F_SETLEASE), without which nobody could tell whether that owner changes a file while "
                    "it is checked: leave the option owner out, or keep the store on another file system"
                )
            self.give(place, lambda _status: True)
            if self.uid not in (None, 0, os.geteuid()) and not has_leases(place):
                raise StoreError(
                    f"the option owner is {self._shown()}, and this process may take no lease of that user's files, "
                    "without which nobody could tell whether that owner changes a file while it is checked: leave the "
                    "option owner out, or run with CAP_LEASE"
                )
        finally:
            place.unlink()

    def _shown(self) -> str:
        return ":".join("" if one is None else str(one) for one in (self.uid, self.gid))


def find_ownership(owner: str | None, group: str | None) -> Ownership:
    """The ids of two names or numbers; raises StoreError for what this host does not know, or this user may not set."""
    found = Ownership(
        _number("owner", "user", owner, lambda name: pwd.getpwnam(name).pw_uid),
        _number("group", "group", group, lambda name: grp.getgrnam(name).gr_gid),
    )
    own = os.geteuid()
    groups = {os.getegid(), *os.getgroups()}
    if own and (found.uid not in (None, own) or (found.gid is not None and found.gid not in groups)):
        raise StoreError(
            f"the option owner is {owner or 'unset'} and the option group is {group or 'unset'}, which root alone may "
            f"set, and this is user {own}: run as root (become), or leave them out"
        )
    return found


def _number(option: str, kind: str, name: str | None, look_up: Callable[[str], int]) -> int | None:
    if not name:
        return None
    try:
        found = int(name) if name.isascii() and name.isdecimal() else look_up(name)
    except (KeyError, ValueError) as error:
        raise StoreError(
            f"the option {option} is {name[:120]!r}, and this host has no such {kind}: create it, or give a number"
        ) from error
    if found > HIGHEST:
        raise StoreError(f"the option {option} is {name[:120]!r}, expected a name or a number up to {HIGHEST}")
    return found
