# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine's log says of a start that failed: a known cause, or else its first error. Private to socle.inference.

The first matching line is the cause; later ones are consequences, and the last ones are always generic. Only lines that
report an error can match: engines log what users send, at level INFO and in access logs, and that can be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.phases import ANSWER, Phases
from ansible_collections.socle.inference.plugins.module_utils._engine.signatures import (
    BY_NAME,
    OBSERVED,
    SIGNATURES,
    WARNING,
    Cause,
    Signature,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.redaction import redact

_PREFIX = re.compile(
    r"^(?P<process>(?:\([\w-]+(?: rank=\d+)?(?: pid=\d+)?\) )*(?:\[rank\d+\]: ?)?)"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] |:\s+)"
    r"|\[?(?P<native>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ [^\]]*\] )?"
)
"""vLLM's process; its level, time and source, or those of PyTorch's C++ parts."""

ERROR_LEVELS = ("ERROR", "CRITICAL")

_UNLEVELLED = re.compile(
    r"\s*(?:"
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit): "  # the last line of a traceback
    r"|(?:Value error|Assertion failed), "  # below the first line of pydantic's
    r"|what\(\): "  # C++
    r"|Fatal Python error: |!+ Segfault encountered"
    r"|\S+:\d+:\d+ \[\d+\] .*NCCL WARN "
    r"|(?:vllm(?: [\w-]+){0,2}|[\w-]+\.py): error: "  # argparse
    r"|Failed: Cuda error "  # vLLM's own C++
    r"|Worker proc \S+ died unexpectedly"
    r'|time="[^"]*" level=(?:error|fatal) '  # Podman
    r"|docker: (?:Error response from daemon: |Cannot connect )"
    r"|\S+\.py:\d+: UserWarning: CUDA initialization: "  # all that PyTorch says of a driver that does not work
    r"|[\w.@-]+\.service: (?:A process of this unit has been killed by the OOM killer|Failed with result 'oom-kill')"
    r"|(?:\[[ \d.]+\] )?(?:Memory cgroup out of memory|Out of memory): Killed process \d"  # the kernel
    r"|(?:/bin/)?(?:ba)?sh: .*not found"
    r"|\S+:\d+:\d+: fatal error: |(?:gcc|g\+\+|nvcc|ninja): fatal error: |nvcc fatal "  # compilers
    r"|Error: |error: )"
)
"""How a message without a level begins when it reports an error."""

_COMPILER = re.compile(
    r"\S+:\d+:\d+: fatal error: |(?:gcc|g\+\+|nvcc|ninja): fatal error: |nvcc fatal "
    r"|(?:/bin/)?(?:ba)?sh: .*\b(?:nvcc|gcc|[gc]\+\+|ninja): (?:command )?not found"
)
"""What a compiler writes, or the shell that looks for one."""

_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt): \S")

_TRACEBACK = re.compile(r"^[\s|+-]*(?:Exception Group )?Traceback \(most recent call last\):")
_FRAME = re.compile(r"^(?:[ \t]|$)")
_MARGIN = re.compile(r"^ *[|+] ?")
"""What Python draws beside the tracebacks of an exception group."""

_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:: |$)")
_PANIC = re.compile(r"^thread '[^']*'(?: \(\d+\))? panicked at ")
_NATIVE = re.compile(r"what\(\): |Fatal Python error: |!+ Segfault|thread '|\S+:\d+:\d+ \[\d+\] .*NCCL WARN ")
_NCCL = re.compile(r"NCCL WARN (.+)")

_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|Frontend process failed during|EngineDeadError"
    r"|EngineCore (?:failed|encountered)|WorkerProc |Worker proc \S+ died|Worker failed with error|Executor failed"
    r"|Application startup failed|^(?:asyncio\.(?:exceptions\.)?)?CancelledError|^KeyboardInterrupt|^SystemExit"
    r"|BrokenPipeError|ConnectionResetError|^EOFError|ExceptionGroup: |remote process exited"
    r"|Connection (?:closed|reset) by|^RuntimeError: cancelled$|leaked \w+ objects"
)
"""What the other processes say when one has failed."""

_ENGINE = re.compile(r"^\((?:EngineCore|Worker|VllmWorker)")

LINE_LENGTH = 600
"""Some messages list everything that would have been right."""

_MANY_NAMES = re.compile(r"((?:'[^',]{1,80}', ){3})(?:'[^',]{1,80}'(?:, )?){4,}(?:'[^',]*$)?")

READ_LENGTH = 8192
"""Of a line, what is compared: patterns take long for the longest lines of the journal (48 KiB)."""

SIGKILL_STATUS = (9, 137)
KILLED = ("engine_killed", "worker_died", "killed")
"""The causes that the kernel's log can explain."""


@dataclass(frozen=True)
class Diagnosis:
    """Why an instance does not serve."""

    id: str
    name: str
    severity: str
    sentence: str
    """Goes on from "did not become ready,"."""
    remedy: str
    line: str | None = None
    """The message that shows it, or the first error where the cause is not known."""
    evidence: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For a module's result and the record of a deployment."""
        return {
            "id": self.id,
            "name": self.name,
            "severity": self.severity,
            "sentence": self.sentence,
            "remedy": self.remedy,
            "line": self.line,
            "evidence": self.evidence,
        }


_GROUPS = max(signature.pattern.groups for signature in SIGNATURES)


_PLACE = re.compile(r"\{([1-9])\}")


def _fill(text: str, values: Iterable[Any]) -> str:
    # Alternatives of a pattern fill one of their groups and leave the others empty.
    found = [*values, *[None] * _GROUPS]

    def value(place: re.Match[str]) -> str:
        given = found[int(place[1]) - 1]
        # It stands in messages and records, as the line that it is of, and may be all of a command line.
        return "" if given is None else _short(redact(str(given).strip())) or ""

    # What was not found leaves no brackets behind.
    return _PLACE.sub(value, text).replace(" ()", "")


def _short(line: str | None) -> str | None:
    if line is None or len(line) <= LINE_LENGTH:
        return line
    # All names that the engine would have taken help nobody: the message is shown several times on one screen.
    line = _MANY_NAMES.sub(r"\1...", line)
    return line if len(line) <= LINE_LENGTH else f"{line[:LINE_LENGTH]} ..."


def diagnosis_of(cause: Cause, *found: Any, line: str | None = None) -> Diagnosis:
    """The cause with what was *found* in place of "{1}" and so on."""
    return Diagnosis(
        id=cause.id,
        name=cause.name,
        severity=cause.severity,
        sentence=_fill(cause.sentence, found),
        remedy=_fill(cause.remedy, found),
        line=_short(line),
        evidence=cause.evidence,
    )


def observed(name: str, *found: Any, line: str | None = None) -> Diagnosis:
    """A cause that no single line shows."""
    return diagnosis_of(OBSERVED[name], *found, line=line)


def reports_error(line: str) -> bool:
    """Whether the line is an error's, rather than something that was logged and may quote anybody."""
    prefix = _PREFIX.match(line)
    if prefix and prefix["level"]:
        return prefix["level"] in ERROR_LEVELS
    if prefix and prefix["native"]:
        return prefix["native"] in "EF"
    return bool(_UNLEVELLED.match(strip_prefix(line)))


def _process(line: str) -> str:
    prefix = _PREFIX.match(line)
    return prefix["process"] if prefix else ""


def _by_a_compiler(line: str) -> bool:
    """Whether a compiler wrote the line itself, which the engine may get over, rather than an engine that quotes it."""
    prefix = _PREFIX.match(line)
    return not (prefix and prefix["level"]) and bool(_COMPILER.match(strip_prefix(line)))


def strip_prefix(line: str) -> str:
    """The message without vLLM's process, level, time and source."""
    return _PREFIX.sub("", line, count=1).rstrip()


def match(message: str, severity: str | None = None) -> Diagnosis | None:
    """The first signature that *message* bears, of one *severity* or of any but a warning."""
    for signature in SIGNATURES:
        found = _found(signature, message, severity)
        if found:
            return found
    return None


def _found(signature: Signature, message: str, severity: str | None = None) -> Diagnosis | None:
    if (signature.severity == WARNING) is not (severity == WARNING):
        return None
    found = signature.pattern.search(message)
    return diagnosis_of(signature, *found.groups(), line=message) if found else None


@dataclass(frozen=True)
class _Error:
    """One error line."""

    process: str
    message: str
    native: bool

    @property
    def rank(self) -> tuple[bool, int]:
        """Sorts what failed before what noticed: the engine's own errors first, then those without a process."""
        first = bool(_ENGINE.match(self.process)) or (self.native and not self.process)
        return (bool(_CONSEQUENCE.search(self.message)), 0 if first else 1 if not self.process else 2)


class RootCause:
    """Takes an engine's lines in order and finds the error that all others follow from.

    Python prints the exception that came first above those that were raised while it was handled, so that of each
    chain only the first counts. Of several processes the engine and its workers fail first and the API server notices;
    an error of a process that went on with the start was none.
    """

    def __init__(self) -> None:
        self._errors: dict[tuple[str, bool, int], _Error] = {}
        """The first of each process and rank, by which a later one never counts: an engine may say errors for ever."""
        self._tracing: set[str] = set()
        self._panicked: set[str] = set()
        self._nccl: str | None = None

    def feed(self, line: str) -> str | None:
        """One line; the message of the exception that it ends a traceback with, whatever its class is called."""
        prefix = _PREFIX.match(line)
        level = prefix["level"] if prefix else None
        if level and level not in ERROR_LEVELS:
            return None  # also a traceback can be quoted
        process = _process(line)
        message = strip_prefix(line)
        if _TRACEBACK.match(message):
            self._tracing.add(process)
            return None
        if process in self._tracing:
            return self._in_traceback(process, message)
        if process in self._panicked:
            self._panicked.discard(process)
            self._note(process, message, native=True)
        elif _PANIC.match(message):
            self._panicked.add(process)
        elif _NCCL.search(message) and _NATIVE.match(message):
            self._nccl = self._nccl or _NCCL.search(message)[1]  # type: ignore[index]
        elif reports_error(line):
            plain = message.strip()
            if _ERROR.match(plain) or not level:
                self._note(process, plain, native=bool(_NATIVE.match(plain)))
        return None

    def _in_traceback(self, process: str, message: str) -> str | None:
        plain = message
        while _MARGIN.match(plain):
            plain = _MARGIN.sub("", plain, count=1)
        if _FRAME.match(plain) or not _RAISED.match(plain):
            return None
        self._tracing.discard(process)
        self._note(process, plain)
        return plain

    def _note(self, process: str, message: str, native: bool = False) -> None:
        error = _Error(process, message, native)
        self._errors.setdefault((process, *error.rank), error)

    def went_on(self, line: str) -> None:
        """The line is progress of its process, which therefore got over its errors."""
        process = _process(line)
        self._errors = {key: error for key, error in self._errors.items() if error.process != process}

    @property
    def line(self) -> str | None:
        """The root error; None where there was none that its process did not get over."""
        if not self._errors:
            return None
        message = min(self._errors.values(), key=lambda error: error.rank).message
        return self._nccl if self._nccl and "nccl" in message.lower() else message


class Reader:
    """Takes an engine's lines in order; keeps the cause, the first error, and how far the start came."""

    def __init__(self) -> None:
        self.fatal: Diagnosis | None = None
        """A cause that ends the wait."""
        self.probable: Diagnosis | None = None
        """A cause that counts when the engine has ended without a certain one."""
        self.hint: Diagnosis | None = None
        """Why it may be slow or hang."""
        self.phases = Phases()
        self._root = RootCause()
        self._probably = ""
        """The process that the probable cause is of."""
        self._more: tuple[str, str, int] | None = None

    @property
    def first_error(self) -> str | None:
        """The error that the others follow from; None where its process went on."""
        return self._root.line

    def feed(self, line: str, at_s: float | None = None) -> None:
        """One line of output, *at_s* seconds after the unit's start."""
        line = line[:READ_LENGTH]
        message = strip_prefix(line)
        self._continue(line, message)
        raised = self._root.feed(line)
        # Once the server is up, its errors may quote requests ("The model `...` does not exist").
        quotes = self.phases.phase == ANSWER and not _ENGINE.match(_process(line))
        if raised is not None or (reports_error(line) and not quotes):
            self._judge(line, raised or message.strip(), quotes)
        elif self.hint is None:
            self.hint = match(message, WARNING)
        if self.phases.feed(message, at_s):
            self._root.went_on(line)
            if _process(line) == self._probably:
                self.probable = None

    def _judge(self, line: str, message: str, quotes: bool) -> None:
        if self.fatal is not None:
            return
        for signature in SIGNATURES:
            found = _found(signature, message)
            if found is None or (quotes and not (signature.serves and signature.pattern.match(message))):
                continue
            if signature.generic:
                self.fatal = self.conclude(found)
                return
            if signature.certain and not _by_a_compiler(line):
                self.fatal = found
            elif self.probable is None:
                self.probable, self._probably = found, _process(line)
            else:
                continue
            if signature.more:
                self._more = (signature.name, _process(line), signature.more)
            return

    def conclude(self, otherwise: Diagnosis) -> Diagnosis:
        """What the log says of an engine that has ended; *otherwise* where it says nothing, with the root error."""
        if self.fatal is not None:
            return self.fatal
        if self.probable is not None:
            return self.probable
        return replace(otherwise, line=_short(self.first_error) or otherwise.line)

    @property
    def unexplained(self) -> bool:
        """Whether there is an error that no signature knows and that its process did not get over."""
        return self.fatal is None and self.probable is None and self.first_error is not None

    def _continue(self, line: str, message: str) -> None:
        """Adds a line that belongs to the message before it."""
        if self._more is None:
            return
        name, process, left = self._more
        belongs = _process(line) == process and bool(message.strip())
        if not belongs or _TRACEBACK.match(message):
            self._more = None
            return
        for attribute in ("fatal", "probable"):
            found = getattr(self, attribute)
            if found is not None and found.name == name and found.line is not None:
                setattr(self, attribute, replace(found, line=f"{found.line}; {message.strip()}"))
        self._more = (name, process, left - 1) if left > 1 else None


def diagnose(lines: Iterable[str]) -> Diagnosis | None:
    """The cause that the whole log of an engine tells; None where it tells of no failure."""
    reader = Reader()
    for line in lines:
        reader.feed(line)
    if reader.unexplained:
        return reader.conclude(observed("unknown"))
    return reader.fatal or reader.probable


def end_of_unit(active: str, result: str, exit_status: int | None) -> Diagnosis:
    """What systemd's words for the end of a unit mean, where the log says nothing."""
    if result == "oom-kill":
        return diagnosis_of(BY_NAME["killed_for_memory"])
    if active == "inactive" and result == "success":
        return observed("unit_stopped")
    if result == "timeout":
        return observed("unit_timeout")
    if result == "start-limit-hit":
        return observed("start_limit")
    if exit_status in SIGKILL_STATUS:
        return observed("killed")
    return observed("unit_failed", exit_status, result)


def killed_for_memory(diagnosis: Diagnosis, kernel: Iterable[str] = (), oom_killed: bool | None = None) -> Diagnosis:
    """*diagnosis*, or that memory ran out, where the *kernel*'s log or the container engine says so.

    *kernel* are the kernel's lines since the start; a process that was killed elsewhere on the host is no evidence, so
    that only the diagnoses in KILLED are looked into.
    """
    if diagnosis.name not in KILLED:
        return diagnosis
    signature = BY_NAME["killed_for_memory"]
    for line in kernel:
        found = signature.pattern.search(line) if isinstance(signature, Signature) else None
        if found:
            return diagnosis_of(signature, *found.groups(), line=line.strip())
    if oom_killed:
        return diagnosis_of(signature, line="the container engine says OOMKilled")
    return diagnosis
