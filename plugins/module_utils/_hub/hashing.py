# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SHA-256 of many large files at once, without pushing out what a serving engine keeps in memory. Private to
socle.inference."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

BUFFER_BYTES = 1 << 20
DROP_BYTES = 64 << 20
MAX_WORKERS = 4


def hash_workers(cores: int | None = None) -> int:
    """Half of the cores, four at most: an engine may be serving on this host."""
    return min(MAX_WORKERS, max(1, (cores or os.cpu_count() or 2) // 2))


def hash_file(location: Path, tell: Callable[[int], None] | None = None) -> str:
    """The SHA-256 of a regular file; raises OSError for another kind. *tell* gets the bytes read since its last call.

    What was read leaves the page cache again, except where somebody has it mapped.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    descriptor = open_regular(location)
    with os.fdopen(descriptor, "rb", buffering=0) as handle:
        _advise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        start = end = 0
        while True:
            count = handle.readinto(buffer)
            if count:
                digest.update(buffer[:count])
                end += count
            if end - start >= DROP_BYTES or not count:
                _advise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
                if tell:
                    tell(end - start)
                start = end
            if not count:
                return digest.hexdigest()


def _advise(descriptor: int, start: int, length: int, advice: int) -> None:
    """Tell the page cache what to expect; a file system that takes no advice reads all the same."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, start, length, advice)


def hash_files(
    locations: Sequence[Path],
    total: int,
    progress: Progress,
    phase: str = "verifying",
    unreadable: str | None = None,
) -> list[str]:
    """The SHA-256 of each, in order, several at once; *total* is the sum of their sizes, for progress.

    *unreadable* stands for a file that the disk itself cannot read any more (EIO). Raises OSError with its filename.
    """
    lock = threading.Lock()
    done = 0

    def hash_one(location: Path) -> str:
        def tell(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                progress.update(phase, done=done, total=total, unit="B", detail=location.name)

        try:
            return hash_file(location, tell)
        except OSError as error:
            if unreadable is not None and error.errno == errno.EIO:
                return unreadable
            # Reading tells no name.
            raise OSError(error.errno, error.strerror, str(location)) from error

    if not locations:
        return []
    with ThreadPoolExecutor(hash_workers()) as pool:
        return list(pool.map(hash_one, locations))
