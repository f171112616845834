# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a lock or a stage folder, and whether that process still runs. Private to socle.inference."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROC = Path("/proc")
MAX_PID = 1 << 22
"""PID_MAX_LIMIT of Linux."""

ALIVE = "it is alive"
GONE = "it is gone, and something that it started holds the lock on (fuser names it)"
ELSEWHERE = "it runs on another host or in a container"


def own_identity() -> dict[str, Any]:
    """What this process writes about itself."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "boot_id": _boot_id(), "since": utc_now()}


def parse_owner(text: str) -> dict[str, Any] | None:
    """Host, process, start and state of what own_identity() wrote; None where that is no owner."""
    try:
        owner = json.loads(text)
        pid = int(owner["pid"])
        found = {"host": str(owner["host"]), "pid": pid, "since": str(owner["since"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not 0 < pid <= MAX_PID:
        return None
    if found["host"] != socket.gethostname() or owner.get("boot_id") not in (None, _boot_id()):
        return {**found, "state": ELSEWHERE}
    return {**found, "state": ALIVE if (PROC / str(pid)).exists() else GONE}


def describe_owner(text: str) -> str:
    """The owner in words."""
    owner = parse_owner(text)
    if owner is None:
        return "a process that has just started"
    return f"process {owner['pid']} on {owner['host']} since {owner['since']} ({owner['state']})"


def _boot_id() -> str | None:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
