# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of a watchdog's unit: reads its settings, then looks again and again. Private to socle.inference."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._watchdog.canary import CanaryAsker
from ansible_collections.socle.inference.plugins.module_utils._watchdog.evidence import Collector
from ansible_collections.socle.inference.plugins.module_utils._watchdog.host import Host
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings, from_mapping
from ansible_collections.socle.inference.plugins.module_utils._watchdog.watch import Watch


def read_settings(path: Path) -> Settings:
    """The settings in *path*; raises EngineError."""
    try:
        values = json.loads(Files().read(path) or "")
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"The watchdog cannot read its settings {path} ({error}); run deploy.yml again.") from error
    return from_mapping(values if isinstance(values, dict) else {})


def say(level: int, line: str) -> None:
    """One line on standard output, as the journal takes it: systemd reads the priority in front."""
    sys.stdout.write(f"<{level}>{' '.join(line.split())}\n")
    sys.stdout.flush()


def notify(state: str) -> None:
    """Tell systemd; nothing where it did not ask to be told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sink:
        # A manager that does not read must not hold up the watch.
        sink.setblocking(False)
        sink.sendto(state.encode(), address)


def main(argv: Sequence[str]) -> int:
    """Runs until it is told to end."""
    if len(argv) != 2:
        sys.stderr.write("usage: socle-watchdog SETTINGS.json\n")
        return 2
    try:
        settings = read_settings(Path(argv[1]))
    except SocleError as error:
        say(3, error.message)
        return 1
    ended, asked = threading.Event(), threading.Event()
    woken = threading.Event()

    def end(_number: int, _frame: Any) -> None:
        ended.set()
        woken.set()

    def forget(_number: int, _frame: Any) -> None:
        asked.set()
        woken.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, forget)
    watch = Watch(
        settings,
        Host(settings.instance, Path(settings.state_dir)),
        CanaryAsker(time.monotonic),
        Collector(),
        say,
        alive=lambda state: notify(f"WATCHDOG=1\nSTATUS={' '.join(state.split())}"),
    )
    notify("READY=1")
    told = ""
    while not ended.is_set():
        if asked.is_set():
            asked.clear()
            watch.forget()
        try:
            watch.step()
            told = ""
        except Exception as error:
            # A fault of its own must not end the watch; the next look may go well. Told once, not with every look.
            fault = f"{type(error).__name__}: {error}"
            if fault != told:
                say(3, f"{settings.instance} fault: {fault}; report it, it is a fault of socle")
            told = fault
        woken.wait(settings.interval_s)
        woken.clear()
    notify("STOPPING=1")
    return 0
