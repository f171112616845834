# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a function in a child process that can use no more than so much processor time, memory and result.

For what others wrote and a controller evaluates: the child is given up, and the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError

CPU_S = 20
"""Of processor time, not of the clock, so that a busy controller refuses nothing that an idle one takes."""

WALL_S = 120.0
"""The child is waited for no longer, should the kernel not count its time."""

MEMORY_BYTES = 256 * 1024 * 1024
"""Beyond what the process has when it is split off."""

RESULT_BYTES = 8 * 1024 * 1024


class OutOfBounds(Exception):
    """What the function did beyond its bounds, as words that stand after "it"."""


def bounded(function: Callable[[], str]) -> str:
    """What *function* returns, a text; PlanError that it raises comes out as it is, without its fields.

    Raises OutOfBounds where it took too much, or did not end in an ordinary way.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _be_the_child(function, reading, writing)
    os.close(writing)
    try:
        answer = _read(reading)
    finally:
        os.close(reading)
        # It has answered, or is given up.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _child, status = os.waitpid(child, 0)
    if not answer:
        raise OutOfBounds(_end(os.waitstatus_to_exitcode(status)))
    kind, text = json.loads(answer)
    if kind == "refused":
        raise PlanError(text)
    if kind == "out of bounds":
        raise OutOfBounds(text)
    return str(text)


def _be_the_child(function: Callable[[], str], reading: int, writing: int) -> None:
    """Never returns: what the parent has to end stays its own."""
    try:
        os.close(reading)
        # The parent may be killed; then nobody else ends this.
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        _limit(resource.RLIMIT_CPU, CPU_S)
        _limit(resource.RLIMIT_CORE, 0)
        held = _address_space()
        if held is not None:
            _limit(resource.RLIMIT_AS, held + MEMORY_BYTES)
        try:
            answer = ["done", function()]
        except PlanError as error:
            answer = ["refused", error.message]
        except OutOfBounds as error:
            answer = ["out of bounds", str(error)]
        except MemoryError:
            answer = ["out of bounds", f"needs more than {MEMORY_BYTES >> 20} MiB of memory"]
        except Exception as error:  # there is nobody here whom a traceback would reach
            answer = ["out of bounds", f"ends with {type(error).__name__} ({str(error)[:200]})"]
        with os.fdopen(writing, "wb") as stream:
            stream.write(json.dumps(answer).encode())
    finally:
        # Not sys.exit: nothing that the parent opened or will clean up is this process's.
        os._exit(0)


def _limit(kind: int, wanted: int) -> None:
    """Lower a limit; where the system knows none of this kind, the parent's clock remains."""
    with contextlib.suppress(ValueError, OSError):
        _soft, hard = resource.getrlimit(kind)
        lowered = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (lowered, hard))


def _address_space() -> int | None:
    """Bytes that this process has mapped; None where /proc does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").partition(" ")[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return None


def _read(reading: int) -> bytes:
    """All that the child writes before it ends, empty where it was killed."""
    until = time.monotonic() + WALL_S
    answer = b""
    while True:
        ready, _writable, _failed = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise OutOfBounds(f"does not end in {WALL_S:.0f} s")
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return answer
        answer += chunk
        if len(answer) > RESULT_BYTES:
            raise OutOfBounds(f"comes to more than {RESULT_BYTES >> 20} MiB")


def _end(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"does not end in {CPU_S} s of processor time"
    return f"ends with {signal.Signals(-code).name}" if code < 0 else "gives no answer"
