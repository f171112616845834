# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes a file's name, owner or mode while nobody can write its content. Private to socle.inference.

Each of these renews the file's ctime, which tells whether somebody wrote to it. So the ctime is compared before and
read again after the change, and in between the kernel keeps writers out by a lease (fcntl(2), F_SETLEASE): it gives one
only where nobody has the file open for writing, and lets whoever opens it so wait until the lease is given back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import MOUNTINFO, find_mount, is_shared
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular

MODE = 0o444
"""Of every file of a snapshot."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
COARSE_CLOCK = 5
"""CLOCK_REALTIME_COARSE of Linux, from which file systems take their times."""
TICK_NS = 20_000_000
"""More than one step of that clock, which is 10 ms at most."""

LEASED = "leased"
WRITTEN = "written"
UNKNOWN = "unknown"

Change = Optional[tuple[os.stat_result, os.stat_result]]
"""A file's states right before and right after; None where nothing was changed."""


@dataclass(frozen=True)
class Grip:
    """A file, open for reading."""

    descriptor: int
    state: str
    """LEASED, WRITTEN (somebody has it open for writing), or UNKNOWN where there are no leases for this user."""

    @property
    def status(self) -> os.stat_result:
        return os.fstat(self.descriptor)

    @property
    def is_still(self) -> bool:
        """Whether nobody can write to it: by the lease, or since it is root's (this user's) alone."""
        return self.state == LEASED or (self.state == UNKNOWN and is_own(self.status))


def is_own(status: os.stat_result) -> bool:
    """Whether root and this user alone may write to the file, as far as owner and mode tell."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & OTHERS_WRITE


@contextlib.contextmanager
def gripped(place: Path) -> Iterator[Grip]:
    """Open the regular file *place*, under a lease where that can be had. Raises OSError."""
    descriptor = open_regular(place)
    try:
        yield Grip(descriptor, _take_lease(descriptor, place))
    finally:
        # Gives the lease back as well.
        os.close(descriptor)


def ask_for_lease(descriptor: int, kind: int) -> int:
    """Take a lease of the *kind* F_RDLCK (nobody writes) or F_WRLCK (nobody else has it open), until *descriptor* is
    closed; returns 0, or the errno of the refusal: EAGAIN where somebody has the file open so."""
    try:
        # Whoever opens it just now must not end this process by the default signal.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


def _take_lease(descriptor: int, place: Path) -> str:
    refused = ask_for_lease(descriptor, fcntl.F_RDLCK)
    if not refused:
        return LEASED
    # NFS answers EAGAIN as well where its server gave no delegation, and CIFS without an oplock.
    return WRITTEN if refused == errno.EAGAIN and not is_on_network(place) else UNKNOWN


def is_on_network(place: Path) -> bool:
    """Whether a server has the file, so that a lease that is refused tells nothing of who has it open."""
    mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"), place.parent.resolve())
    return mount is not None and is_shared(mount.type)


def has_leases(place: Path) -> bool:
    """Whether this process can keep others from writing to the file."""
    with gripped(place) as grip:
        return grip.state == LEASED


def is_written(place: Path) -> bool:
    """Whether somebody has the file open for writing, as far as the kernel tells."""
    with gripped(place) as grip:
        return grip.state == WRITTEN


def change_still(
    place: Path, expected: Callable[[os.stat_result], bool], change: Callable[[int], Any], settled: bool = True
) -> Change:
    """Do *change*, which gets a descriptor, to the file *place* while its content stands still.

    Nothing is changed where somebody has it open for writing, or where its state is not *expected*. Raises OSError.
    Who may write to it afterwards finds another time on the clock, with *settled*.
    """
    with gripped(place) as grip:
        before = grip.status
        if not grip.is_still or not expected(before):
            return None
        change(grip.descriptor)
        after = grip.status
        if settled and not (is_own(before) and is_own(after)):
            wait_for_tick(after)
        return before, after


def wait_for_tick(status: os.stat_result) -> None:
    """Until a write gives the file another ctime than *status* has: within one step of the clock it would be the same,
    and nobody could tell that there was one."""
    # A file system with another clock than this one is not waited for.
    while 0 <= status.st_ctime_ns - _coarse_ns() < TICK_NS:
        time.sleep(0.001)


def _coarse_ns() -> int:
    return time.clock_gettime_ns(COARSE_CLOCK)
