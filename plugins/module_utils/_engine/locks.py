# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that only one run on a host has at a time, and whose run that is. Private to socle.inference.

The kernel gives such a lock (flock(2)) back when its process ends, however that comes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import make_folders

HOST = Path("/run/socle/launch.lock")
"""Of all launches of a host, whatever the state folder is: ports and GPUs are the host's. Not on a network's disk."""

POLL_S = 0.2

_OWNER_BYTES = 1024
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_PURPOSE = re.compile(r"[A-Za-z0-9_ .-]{1,200}")
_SINCE = re.compile(r"[0-9TZ:.+-]{1,40}")


class LockHeld(BlockingIOError):
    """Another process has the lock; *holder* says which one, in words that follow a sentence's subject."""

    def __init__(self, holder: str) -> None:
        super().__init__()
        self.holder = holder


@contextlib.contextmanager
def locked(
    path: Path,
    purpose: str,
    timeout_s: float,
    on_wait: Callable[[float, str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Have *path* for this process alone; LockHeld after *timeout_s* in which another one had it.

    *purpose* is what others are told meanwhile, such as "launching chat". *on_wait* gets the seconds so far and who has
    it. Any other OSError says what is wrong with the file.
    """
    descriptor = _open(path)
    try:
        began = clock()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited, holder = clock() - began, _holder(descriptor)
                if waited >= timeout_s:
                    raise LockHeld(holder) from None
                if on_wait is not None:
                    on_wait(waited, holder)
            sleep(POLL_S)
        _sign(descriptor, purpose)
        try:
            yield
        finally:
            _sign(descriptor, None)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        make_folders(path.parent)
        return os.open(path, flags, 0o600)


def _sign(descriptor: int, purpose: str | None) -> None:
    """Write who has the lock and for what; without a *purpose*, that nobody has."""
    # On a full disk the lock holds all the same, without a name.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        if purpose is not None:
            # Set by sudo, by which a run of Ansible becomes root.
            said = {"purpose": purpose, "pid": os.getpid(), "since": utc_now(), "user": os.environ.get("SUDO_USER")}
            os.pwrite(descriptor, json.dumps(said).encode(), 0)


def _holder(descriptor: int) -> str:
    """ "launching chat (process 77 of alice, since 2026-12-01T10:00:00Z)"."""
    try:
        said: Any = json.loads(os.pread(descriptor, _OWNER_BYTES, 0))
        purpose, pid, since = _PURPOSE.fullmatch(said["purpose"]), int(said["pid"]), _SINCE.fullmatch(said["since"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        purpose, pid, since = None, 0, None
    if not (purpose and since):
        return "a process that does not say what it does"
    user = _USER.fullmatch(str(said.get("user") or ""))
    return f"{purpose[0]} (process {pid}{f' of {user[0]}' if user else ''}, since {since[0]})"
