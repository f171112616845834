# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What socle asks of a container engine under systemd: one interface for Quadlet and Docker.

Private to socle.inference. Whatever systemd does is the same for both and lives here; a subclass adds the engine.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, TypeVar

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")

RUNNING = ("active", "activating", "reloading")

INSTANCE_LABEL = "io.socle.instance"
"""The label of every container of ours, with the instance's name."""

STOP_S = 300.0
"""How long a stop may take: longer than the limit in the unit, after which systemd kills."""

END_S = 10.0
"""What an engine that serves nobody has to end by itself; one that loads, or lost its core, never does."""

PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,NRestarts,InvocationID,Job,ExecMainStatus,MainPID,ControlPID,"
    "InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic,ExecMainStartTimestampMonotonic,"
    "ExecMainExitTimestampMonotonic"
)

JOURNAL_BYTES = 16 << 20
"""Of a journal as JSON, read at once: some ten thousand lines."""

JOURNAL_PIECES = 4

_KERNEL_LINE = re.compile(r"\[ *(\d+)\.(\d{6})\] (.*)")
"""What dmesg prints: seconds since the boot, and the message."""

_JSON = ["--no-pager", "--quiet", "--all", "-o", "json"]
"""How the journal is read. Without --all, journalctl gives null in place of a message of more than 4096 bytes, such as
one that lists every architecture that vLLM knows."""

_LINE_END = re.compile(r"[\r\n]+")
"""No other one: what str.splitlines takes for a line's end, such as U+0085, users can put into what engines log."""

_SHOWN_BYTES = 2000

Answer = TypeVar("Answer")

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""A colour, as of VLLM_LOGGING_COLOR=1, or another order to a terminal."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")

_COUNT = re.compile(r"[0-9]{1,20}")

SAID_CHARS = 600
"""Of what a command says, in a sentence; the fields of the result have all of it."""


def one_line(text: str) -> str:
    """*text* as a part of a sentence, without what a terminal would obey; of a long one the end, where the error is."""
    words = " ".join(_CONTROL.sub(" ", _ESCAPE.sub("", text)).split()).rstrip(".")
    return words if len(words) <= SAID_CHARS else f"... {words[-SAID_CHARS:]}"


def complaint(done: Completed[str]) -> str:
    """What a command that failed said of it; of one that said nothing, its exit status."""
    return one_line(done.stderr) or f"exit status {done.returncode}"


def last_error(done: Completed[str]) -> str:
    """Of a command that says much before it fails: its last line that is an error, else its last one."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    return one_line(told) or complaint(done)


def check_name(instance: str) -> str:
    """The instance's name, or EngineError where it cannot be part of a unit's name."""
    if not isinstance(instance, str) or not NAME.fullmatch(instance):
        raise EngineError(
            f"Cannot use {str(instance)[:80]!r} as the name of an instance: expected at most 63 letters, digits, '_',"
            " '.' and '-', starting with a letter or digit; rename it in vllm_instances."
        )
    return instance


@dataclass(frozen=True)
class UnitState:
    """What systemd says about an instance's unit, as of now."""

    loaded: bool = False
    active: str = "inactive"
    sub: str = "dead"
    result: str = "success"
    restarts: int = 0
    invocation_id: str = ""
    job_pending: bool = False
    exit_status: int | None = None
    started_us: int | None = None
    """Monotonic clock, when its present or last run began."""
    active_us: int | None = None
    ended_us: int | None = None
    """Monotonic clock, when the main process of a run ended last."""
    has_process: bool = False
    """Whether a process of the unit is alive; none is while it waits for systemd to start it again."""

    @property
    def running(self) -> bool:
        """Up, coming up, or waiting for systemd to start it, again or at all."""
        return self.active in RUNNING or self.coming_up

    @property
    def coming_up(self) -> bool:
        """On its way up; with Podman's health check that lasts until the engine answers."""
        # A start that systemd was asked for and has not begun leaves the unit inactive, with a job.
        return self.active == "activating" or (self.job_pending and self.active != "deactivating")

    @property
    def holds(self) -> bool:
        """Whether it has what its plan gives it, port and GPUs, or is about to: also while it ends."""
        return self.running or self.active == "deactivating"

    @property
    def alive(self) -> bool:
        """Up or coming up with a process of its own, so that it can be the one that answers."""
        return self.running and self.has_process and not self.sub.startswith("auto-restart")

    def as_dict(self) -> dict[str, Any]:
        """For a module's result."""
        return {
            "active": self.active,
            "sub": self.sub,
            "result": self.result,
            "restarts": self.restarts,
            "exit_status": self.exit_status,
        }


@dataclass(frozen=True)
class Image:
    """An image that is present: its id, and the digests under which registries know it."""

    id: str
    repo_digests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JournalLine:
    """One line of an instance's output."""

    text: str
    monotonic_us: int


def _number(values: dict[str, str], key: str) -> int:
    return int(values[key]) if _COUNT.fullmatch(values.get(key, "")) else 0


def parse_show(text: str) -> dict[str, UnitState]:
    """Output of ``systemctl show`` for one or more units, by unit name."""
    states = {}
    for block in re.split(r"\n\s*\n", text.strip()):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if not values.get("Id"):
            continue

        # systemd counts waiting for a restart as "activating" too, from the end of the run that failed.
        ended = values.get("ActiveState") in ("failed", "inactive") or values.get("SubState") == "auto-restart"
        started = _number(values, "ExecMainStartTimestampMonotonic") if ended else 0
        states[values["Id"]] = UnitState(
            loaded=values.get("LoadState") == "loaded",
            active=values.get("ActiveState", "inactive"),
            sub=values.get("SubState", "dead"),
            result=values.get("Result", "success"),
            restarts=_number(values, "NRestarts"),
            invocation_id=values.get("InvocationID", ""),
            job_pending=_number(values, "Job") > 0,
            exit_status=_number(values, "ExecMainStatus") if values.get("ExecMainStatus") else None,
            started_us=started or _number(values, "InactiveExitTimestampMonotonic") or None,
            active_us=_number(values, "ActiveEnterTimestampMonotonic") or None,
            ended_us=_number(values, "ExecMainExitTimestampMonotonic") or None,
            has_process=_number(values, "MainPID") > 0 or _number(values, "ControlPID") > 0,
        )
    return states


def parse_journal(text: str) -> tuple[list[JournalLine], str | None]:
    """Output of ``journalctl -o json``: the lines, and the last one's cursor."""
    lines: list[JournalLine] = []
    cursor = None
    for raw in text.split("\n"):
        try:
            entry = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        cursor = str(entry.get("__CURSOR") or "") or cursor
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # journald's form for what is not plain text
            message = bytes(byte for byte in message if isinstance(byte, int) and 0 <= byte < 256).decode(
                "utf-8", "replace"
            )
        if isinstance(message, str):
            for line in filter(None, _LINE_END.split(_ESCAPE.sub("", message))):
                at = str(entry.get("__MONOTONIC_TIMESTAMP"))
                lines.append(JournalLine(_CONTROL.sub(" ", line), int(at) if _COUNT.fullmatch(at) else 0))
    return lines, cursor


def image_of(inspected: Any) -> Image:
    """The image of what ``image inspect`` says as JSON."""
    (found,) = inspected
    return Image(id=str(found["Id"]), repo_digests=sorted(map(str, found.get("RepoDigests") or [])))


def said_json(done: Completed[str], attempt: str, read: Callable[[Any], Answer]) -> Answer:
    """What *read* makes of the JSON that a command said; EngineError, "Cannot <attempt>: ...", where that is none."""
    try:
        return read(json.loads(done.stdout))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise EngineError(
            f"Cannot {attempt}: '{' '.join(done.args[:3])}' answered something else than the JSON that is known of it"
            f" ({type(error).__name__}); run it by hand on the host, and repair or update what it is part of.",
            rc=done.returncode,
            stdout=done.stdout[:_SHOWN_BYTES],
        ) from error


class Backend(ABC):
    """A container engine whose instances are systemd services named ``vllm-<instance>.service``."""

    name: str
    label: str
    """Its name in sentences."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def _inspect_container(self, tool: str, instance: str) -> Completed[str]:
        words = ["container", "inspect", "--format", "{{json .Config.Labels}}", f"vllm-{check_name(instance)}"]
        return self._runner([tool, *words])

    # The engine's part

    @abstractmethod
    def _ask(self, *argv: str, input_text: str | None = None, timeout_s: float = 60.0) -> Completed[str]:
        """Run the engine's own client."""

    @abstractmethod
    def unit_file(self, instance: str) -> Path:
        """Where the file that defines the service is installed."""

    @abstractmethod
    def render(self, plan: dict[str, Any]) -> str:
        """The unit's text; pure, the same plan gives the same text."""

    @abstractmethod
    def validate(self, instance: str, text: str) -> None:
        """Raise EngineError with the tool's own words where the host would not accept this unit."""

    @abstractmethod
    def exec(self, instance: str, argv: Sequence[str], timeout_s: float = 60.0) -> Completed[str]:
        """Run a command inside the instance's container."""

    @abstractmethod
    def check_health(self, instance: str) -> None:
        """Let the engine run its health check now rather than at its next turn."""

    @abstractmethod
    def image(self, reference: str) -> Image | None:
        """The image if it is present."""

    @abstractmethod
    def pull(self, reference: str, on_progress: Callable[[str], None] | None = None) -> None:
        """Fetch the image, or raise EngineError; *on_progress* gets how far it is, in words."""

    @abstractmethod
    def secret_mark(self, instance: str, name: str) -> str | None:
        """The mark (HMAC) of the secret that the engine holds, None where it holds none."""

    @abstractmethod
    def put_secret(self, instance: str, name: str, value: str, mark: str) -> None:
        """Give the engine a secret, in place of an earlier one."""

    @abstractmethod
    def remove_secret(self, instance: str, name: str) -> None:
        """Take the secret away from the engine."""

    @abstractmethod
    def container_labels(self, instance: str) -> dict[str, str] | None:
        """Labels of the container that bears the instance's name, running or not; None where there is none."""

    @abstractmethod
    def cdi_dirs(self) -> list[Path]:
        """Where the engine looks for specifications of devices; none where it was told not to look."""

    def run_program(
        self, image: str, words: Sequence[str], *, name: str, input_text: str, timeout_s: float
    ) -> Completed[str]:
        """Run a program of an image that is present, in a container *name* without a network of which nothing stays."""
        options = ["--rm", "--interactive", "--network=none", "--pull=never", f"--name={name}"]
        try:
            return self._ask(
                "run",
                *options,
                f"--entrypoint={words[0]}",
                image,
                *words[1:],
                input_text=input_text,
                timeout_s=timeout_s,
            )
        except BaseException:
            # Giving up on the client leaves what it started. What was wrong with it is what counts.
            with contextlib.suppress(EngineError):
                self._ask("rm", "--force", name)
            raise

    def enable(self, instance: str) -> None:  # noqa: B027 - units of a generator have nothing to enable
        """Let the unit start at boot."""

    def disable(self, instance: str) -> None:  # noqa: B027
        """Undo enable."""

    # systemd's part

    def service(self, instance: str) -> str:
        """Name of the systemd service."""
        return f"vllm-{check_name(instance)}.service"

    def _systemctl(
        self, *argv: str, timeout_s: float = 60.0, on_wait: Callable[[], None] | None = None
    ) -> Completed[str]:
        on_line = None if on_wait is None else lambda _line: on_wait()
        done = self._runner(["systemctl", *argv], timeout_s=timeout_s, on_line=on_line)
        if done.returncode != 0:
            words = [word for word in argv if not word.startswith("--")]
            raise EngineError(
                f"systemctl {' '.join(words)} failed: {complaint(done)}; look at it with 'systemctl status' on the"
                " host.",
                cmd=["systemctl", *argv],
                rc=done.returncode,
                stderr=done.stderr,
            )
        return done

    def reload(self) -> None:
        """Let systemd read the unit files again."""
        self._systemctl("daemon-reload")

    def restart(self, instance: str) -> None:
        """Start the unit, stopping it first if it runs; returns at once. Earlier failures do not count against it."""
        # Not an error when there is nothing to reset; manual restarts count towards the start limit as well.
        self._runner(["systemctl", "reset-failed", self.service(instance)])
        self._systemctl("restart", "--no-block", self.service(instance))

    def stop(self, instance: str, timeout_s: float = STOP_S, on_wait: Callable[[], None] | None = None) -> None:
        """Stop the unit and wait for it; *on_wait* is called about once a second meanwhile."""
        self._systemctl("stop", self.service(instance), timeout_s=timeout_s, on_wait=on_wait)
        # Of an engine that systemd had to kill, the unit's own commands cannot remove the container. The next start
        # would replace it, and there may be none.
        if self.state(instance).result != "success":
            with contextlib.suppress(EngineError):
                self._remove_container(instance)

    def end(self, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Stop a unit that serves nobody: what does not end within END_S is killed."""
        killing_at = clock() + END_S

        def hasten() -> None:
            nonlocal killing_at
            if clock() >= killing_at:
                killing_at += END_S
                self._systemctl("kill", "--signal=SIGKILL", self.service(instance))

        self.stop(instance, on_wait=hasten)

    def _remove_container(self, instance: str) -> None:
        if (self.container_labels(instance) or {}).get(INSTANCE_LABEL) == instance:
            self._ask("rm", "--force", f"vllm-{instance}")

    def states(self, instances: Iterable[str]) -> dict[str, UnitState]:
        """Unit state by instance; a unit that there is none of is inactive."""
        names = list(instances)
        if not names:
            return {}
        shown = self._systemctl("show", f"--property={PROPERTIES}", *(self.service(name) for name in names))
        found = parse_show(shown.stdout)
        # It also tells of units that there are none of, and where it was not asked of systemd (in a chroot it does
        # nothing and ends well) it tells of none: what runs must not be taken for stopped.
        untold = [self.service(name) for name in names if self.service(name) not in found]
        if untold:
            said = one_line(f"{shown.stdout} {shown.stderr}") or "nothing"
            raise EngineError(
                f"Cannot tell whether {', '.join(untold)} runs: 'systemctl show' does not say, but says '{said}';"
                " see whether systemd runs on the host ('systemctl is-system-running'), and run it by hand.",
                stdout=shown.stdout[:_SHOWN_BYTES],
                stderr=shown.stderr[:_SHOWN_BYTES],
            )
        return {name: found[self.service(name)] for name in names}

    def state(self, instance: str) -> UnitState:
        """Unit state of one instance."""
        return self.states([instance])[instance]

    def follow(self, instance: str, since_us: int, cursor: str | None = None) -> tuple[list[JournalLine], str | None]:
        """The unit's journal after *cursor*, or from the monotonic time *since_us* on; and the next cursor.

        Of an engine that says more than is read at once, the rest comes with the next call.
        """
        argv = ["journalctl", "--unit", self.service(instance), *_JSON]
        # A coarse bound for speed; the exact one is the monotonic time, which no clock step can move.
        age_s = time.monotonic() - since_us / 1e6
        beginning = ["--boot", f"--since=@{int(time.time() - age_s) - 5}"]
        found: list[JournalLine] = []
        for _piece in range(JOURNAL_PIECES):
            done = self._runner([*argv, *(["--after-cursor", cursor] if cursor else beginning)], enough=JOURNAL_BYTES)
            lines, last = parse_journal(done.stdout)
            found += [line for line in lines if line.monotonic_us >= since_us]
            if done.returncode != -signal.SIGKILL:
                return found, last or cursor
            if last is None:
                raise EngineError(
                    f"Cannot read the journal of {self.service(instance)}: it has an entry of more than"
                    f" {JOURNAL_BYTES >> 20} MiB; see 'journalctl -u {self.service(instance)}' on the host."
                )
            cursor = last
        return found, cursor

    def kernel_log(self, since_us: int) -> list[str]:
        """The kernel's messages from the monotonic time *since_us* on; none where the host does not show them."""
        age_s = time.monotonic() - since_us / 1e6
        since = f"--since=@{int(time.time() - age_s) - 5}"
        done = self._runner(["journalctl", "--dmesg", *_JSON, since])
        lines, _last = parse_journal(done.stdout) if done.returncode == 0 else ([], None)
        # The journal of a host that is a container itself does not have them.
        return [line.text for line in lines or self._ring_buffer() if line.monotonic_us >= since_us]

    def _ring_buffer(self) -> list[JournalLine]:
        """What the kernel itself still has of its messages."""
        try:
            done = self._runner(["dmesg"])
        except EngineError:  # it is not installed
            return []
        found = [_KERNEL_LINE.match(line) for line in done.stdout.splitlines()]
        return [JournalLine(line[3], int(line[1]) * 1_000_000 + int(line[2])) for line in found if line]

    def oom_killed(self, instance: str) -> bool | None:
        """Whether the container engine saw the kernel kill in the container; None where there is no container."""
        name = f"vllm-{check_name(instance)}"
        done = self._ask("container", "inspect", "--format", "{{.State.OOMKilled}}", name)
        return done.stdout.strip() == "true" if done.returncode == 0 else None
