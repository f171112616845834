# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a command that may never end: on a host with a broken driver, nvidia-smi cannot even be killed.

Private to socle.inference.
"""

# The watchdog runs without Ansible.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

KILL_S = 1.0


class Answer(NamedTuple):
    """How a command ended; *status* is None where it did not, or is not installed."""

    status: int | None
    output: str
    fault: str | None = None


def run_bounded(argv: Sequence[str], limit_s: float = 15.0, max_bytes: int = 512 * 1024) -> Answer:
    """The end of what *argv* writes, errors included, within *limit_s*; what cannot be killed is left behind."""
    with tempfile.TemporaryFile() as sink:
        try:
            # Into a file: a pipe would have to be read to its end, which a child that cannot die holds open.
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            )
        except OSError as error:
            return Answer(None, "", f"{argv[0]} cannot be run: {error.strerror}")
        fault = None
        status = _wait(process, limit_s)
        if status is None:
            process.kill()
            ended = _wait(process, KILL_S)
            fault = f"{argv[0]} did not end within {limit_s:.0f} s"
            fault += "" if ended is not None else ", and cannot be killed"
        size = sink.seek(0, os.SEEK_END)
        sink.seek(max(0, size - max_bytes))
        return Answer(status, sink.read(max_bytes).decode("utf-8", "replace"), fault)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    deadline = time.monotonic() + limit_s
    while True:
        status = process.poll()
        if status is not None or time.monotonic() > deadline:
            return status
        time.sleep(0.02)
