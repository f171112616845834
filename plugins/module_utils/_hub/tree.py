# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks through folders that others may change meanwhile, and opens files in them: follows no symbolic link, and
waits for nobody. Private to socle.inference."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def entries_below(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """*place* and everything below, each with its state; what is gone meanwhile is passed over.

    Unlike os.walk(), it does not follow a link in the place of *place* either: what a person linked into a snapshot is
    moved aside as it is.
    """
    pending = [place]
    while pending:
        entry = pending.pop()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = entry.lstat()
            yield entry, status
            if stat.S_ISDIR(status.st_mode):
                pending += [Path(inner.path) for inner in os.scandir(entry)]


def files_below(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Those of entries_below() that are no folders."""
    return ((entry, status) for entry, status in entries_below(place) if not stat.S_ISDIR(status.st_mode))


def open_regular(place: Path) -> int:
    """A descriptor of the regular file *place*, for reading; never waits for somebody who writes into a pipe. Raises
    OSError, also for one of another kind."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(place, flags | os.O_NONBLOCK)
    except BlockingIOError:
        # Somebody has a lease of it, so it is a file; the kernel takes that back for who waits (fcntl(2)).
        descriptor = os.open(place, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(place))
    return descriptor
