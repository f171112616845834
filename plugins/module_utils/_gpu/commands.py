# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading files and running commands, of which none may hang the facts. Private to socle.inference."""

# A hung nvidia-smi must not hang the module, and the module's own run_command knows no time limit.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._commands import Answer

TIMED_OUT = 124
"""The return code of timeout(1) for a command that did not end; none of the commands here uses it by itself."""

KILL_WAIT_S = 2.0
"""A process in the driver may ignore SIGKILL for ever (state D); it is left behind then."""


READ_LIMIT = 4 * 1024**2
"""Bytes of a file that are read; /proc/cpuinfo of a thousand processors has some 1.5 MiB."""


def read_bytes(path: Path) -> bytes:
    """The first READ_LIMIT bytes of a file; none where it cannot be read, or is a pipe, a device or a folder.

    Of what sysfs and procfs hold the size is not asked: they say 0 or 4096 whatever comes.
    """
    try:
        # Asked before it is opened, since an opened device may act and an opened pipe waits for its writer.
        if not path.is_file():
            return b""
        with path.open("rb") as stream:
            return stream.read(READ_LIMIT)
    except OSError:
        return b""


def read_text(path: Path) -> str:
    """The text of *path*, as `read_bytes` reads it; "" where that has none."""
    return read_bytes(path).decode("utf-8", "replace").replace("\r\n", "\n")


def run_limited(argv: Sequence[str], timeout_s: float) -> Answer:
    """Runs *argv* in plain English and returns within *timeout_s* and KILL_WAIT_S, whatever the command does.

    The code of one that did not end is TIMED_OUT, beside what it had said.
    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
    # Files instead of pipes: nothing waits for the end of a pipe that a process in state D keeps open.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return 127, "", f"{argv[0]} cannot be run: {error.strerror}"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            code = TIMED_OUT
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    if code == TIMED_OUT:
        texts[1] = f"{Path(argv[0]).name} did not end within {timeout_s:.0f} s\n{texts[1]}"
    return code, texts[0], texts[1]


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_WAIT_S)
    except (OSError, subprocess.TimeoutExpired):
        process.returncode = TIMED_OUT  # else its destructor warns of a process that nobody can end
