# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far an engine's start is: phases and milestones in its log, and how long each phase took before.

Private to socle.inference. Pulling the image is a step of its own before these (module vllm_image).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STARTING = "starting container"
CONFIGURING = "reading configuration"
ENGINE = "starting engine"
LOADING = "loading weights"
COMPILING = "compiling"
PROFILING = "profiling memory"
CACHE = "allocating KV cache"
GRAPHS = "capturing graphs"
WARMING = "warming up"
SERVER = "starting server"
ANSWER = "first answer"

PHASES = (STARTING, CONFIGURING, ENGINE, LOADING, COMPILING, PROFILING, CACHE, GRAPHS, WARMING, SERVER, ANSWER)

ENDS = {
    "arguments": STARTING,
    "engine": CONFIGURING,
    "load_started": ENGINE,
    "weights": LOADING,
    "compile": COMPILING,
    "kv_memory": PROFILING,
    "kv_cache": CACHE,
    "graphs": GRAPHS,
    "engine_ready": WARMING,
    "server": SERVER,
}
"""The phase that each milestone ends, in the order of a start."""

RECENT = 5
"""How many earlier starts an expectation is made of."""


@dataclass(frozen=True)
class Milestone:
    """A line that says how far the engine is; its groups become *keys* of the entry, those that matched."""

    name: str
    pattern: re.Pattern[str]
    keys: tuple[str, ...] = ()
    phase: str | None = None
    last: bool = False
    """Several may come and the last one counts."""


_SHARDS = re.compile(r"Loading \S* ?checkpoint shards:\s+\d+% Completed \| (\d{1,9})/(\d{1,9})(?!\d)")
_GRAPHS = re.compile(r"Capturing CUDA graphs?[^:]*:\s+\d+%\|[^|]*\| (\d{1,9})/(\d{1,9})(?!\d)")

_EAGER = re.compile(r"^non-default args: .*'enforce_eager': True|^Enforce eager set, disabling torch\.compile")

_TAKE_TURNS = ({COMPILING, PROFILING}, {GRAPHS, WARMING})
"""The drafter of speculation is compiled after the model was profiled; kernels warm up before and after the graphs."""

_PHASE_LINES = (
    (re.compile(r"^Using cache directory: \S+ for vLLM's torch\.compile|^Dynamo bytecode transform time"), COMPILING),
    (re.compile(r"^Rank \d+: Torch profiler disabled for CUDA graph capture"), GRAPHS),
)
"""Lines that begin a phase and tell nothing else."""

MILESTONES: tuple[Milestone, ...] = (
    Milestone("arguments", re.compile(r"^non-default args: "), phase=CONFIGURING),
    Milestone("architecture", re.compile(r"^Resolved architecture: (\S+)"), ("name",)),
    Milestone("engine", re.compile(r"^Initializing a V1 LLM engine \(v([^)]+)\)"), ("version",), ENGINE),
    Milestone("nccl", re.compile(r"vLLM is using nccl==(\S+)"), ("version",)),
    Milestone("load_started", re.compile(r"^Starting to load model"), phase=LOADING),
    Milestone("attention", re.compile(r"Using (\S+) attention backend out of potential backends"), ("backend",)),
    Milestone("weights_read", re.compile(r"^Loading weights took ([\d.]+) seconds"), ("took_s",)),
    Milestone(
        "weights",
        re.compile(r"^Model loading took ([\d.]+) GiB(?: memory)? and ([\d.]+) seconds"),
        ("gib", "took_s"),
        PROFILING,
    ),
    Milestone("attention_block", re.compile(r"^Setting attention block size to (\d+) tokens"), ("tokens",)),
    Milestone(
        "compile",
        re.compile(r"torch\.compile (?:and initial profiling/warmup run )?took ([\d.]+) s in total"),
        ("took_s",),
        PROFILING,
        last=True,
    ),
    Milestone(
        "kv_memory",
        re.compile(r"Available KV cache memory: ([\d.]+) GiB|^Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV"),
        ("gib", "gib"),
        CACHE,
    ),
    Milestone(
        "kv_cache",
        re.compile(
            r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens"
            r"(?:, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x)?"
        ),
        ("tokens", "at_tokens", "concurrency"),
        WARMING,
    ),
    Milestone(
        "kv_concurrency",
        re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"),
        ("at_tokens", "concurrency"),
    ),
    Milestone(
        "graphs",
        re.compile(r"Graph capturing finished in (\d+) secs, took ([\d.]+) GiB"),
        ("took_s", "gib"),
        WARMING,
    ),
    Milestone(
        "engine_ready",
        re.compile(
            r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s(?:econds)?"
            r"(?:.*compilation: ([\d.]+) s)?"
        ),
        ("took_s", "compilation_s"),
        SERVER,
    ),
    Milestone("server", re.compile(r"Application startup complete"), phase=ANSWER),
)


def _number(text: str) -> float | int | str:
    plain = text.replace(",", "")
    try:
        return int(plain)
    except ValueError:
        pass
    try:
        return float(plain)
    except ValueError:
        return text


class Phases:
    """Takes the messages of a start in order; keeps milestones, the present phase, and how long each phase took."""

    def __init__(self) -> None:
        self.milestones: dict[str, dict[str, float | int | str]] = {}
        self.phase = STARTING
        self.began_s = 0.0
        """When the present phase began, in seconds after the unit's start."""
        self.done: int | None = None
        self.total: int | None = None
        self._eager = False
        self._took: dict[str, float] = {}

    @property
    def took_s(self) -> dict[str, float]:
        """Seconds by phase, for those that are over; a phase that came twice counts both times."""
        return {phase: round(seconds, 1) for phase, seconds in self._took.items()}

    def feed(self, message: str, at_s: float | None = None) -> bool:
        """One message without its prefix, *at_s* seconds after the start; whether the start went on by it."""
        self._eager = self._eager or bool(_EAGER.search(message))
        for milestone in MILESTONES:
            found = milestone.pattern.search(message)
            if found:
                self._note(milestone, found, at_s)
                return True
        for pattern, phase in _PHASE_LINES:
            if pattern.search(message):
                self._enter(phase, at_s)
                return True
        for pattern, phase in ((_SHARDS, LOADING), (_GRAPHS, GRAPHS)):
            counted = pattern.search(message)
            if counted:
                self._enter(phase, at_s)
                if self.phase == phase:
                    self.done, self.total = int(counted[1]), int(counted[2])
                return True
        return False

    def _note(self, milestone: Milestone, found: re.Match[str], at_s: float | None) -> None:
        if milestone.name not in self.milestones or milestone.last:
            entry: dict[str, float | int | str] = {}
            if at_s is not None:
                entry["at_s"] = round(at_s, 1)
            for key, value in zip(milestone.keys, found.groups()):
                if value is not None:
                    entry[key] = _number(value)
            self.milestones[milestone.name] = entry
        if milestone.phase:
            compiles = milestone.name == "weights" and not self._eager
            self._enter(COMPILING if compiles else milestone.phase, at_s)

    def _enter(self, phase: str, at_s: float | None) -> None:
        # Of several workers, the slower ones must not take the phase back; only a new start begins anew.
        forward = PHASES.index(phase) > PHASES.index(self.phase)
        if phase == self.phase or not (forward or phase == CONFIGURING or {phase, self.phase} in _TAKE_TURNS):
            return
        if at_s is not None:
            self._took[self.phase] = self._took.get(self.phase, 0.0) + max(0.0, at_s - self.began_s)
            self.began_s = at_s
        self.phase, self.done, self.total = phase, None, None


def phase_seconds(results: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by phase of one start, from the results of its record; those of older records from their milestones."""
    phases = results.get("phases")
    if isinstance(phases, Mapping) and phases:
        return {str(name): float(value) for name, value in phases.items() if isinstance(value, (int, float))}
    milestones = results.get("milestones")
    if not isinstance(milestones, Mapping):
        return {}
    found: dict[str, float] = {}
    before = 0.0
    for name, phase in ENDS.items():
        at_s = (milestones.get(name) or {}).get("at_s")
        if isinstance(at_s, (int, float)) and at_s >= before:
            found[phase] = round(at_s - before, 1)
            before = float(at_s)
    return found


def expected_phases(records: Iterable[Mapping[str, Any]], fingerprint: str | None = None) -> dict[str, float]:
    """Seconds that each phase of a start is expected to take: the medians of the newest passed deployments.

    *records* are of one instance. Those of the launch *fingerprint* decide where there are any; else all do, since
    another launch of the same instance is the next best guess. Empty where no start is on record.
    """
    starts = [
        (record, seconds)
        for record in sorted(records, key=lambda record: str(record.get("finished")), reverse=True)
        if record.get("kind") == "deploy" and record.get("verdict") == "passed"
        for seconds in [phase_seconds(record.get("results") or {})]
        if seconds
    ]
    same = [start for start in starts if fingerprint and start[0].get("launch_fingerprint") == fingerprint]
    chosen = [seconds for record, seconds in (same or starts)[:RECENT]]
    names = [phase for phase in PHASES if any(phase in seconds for seconds in chosen)]
    return {
        phase: round(statistics.median(seconds[phase] for seconds in chosen if phase in seconds), 1) for phase in names
    }


def seconds_text(seconds: float) -> str:
    """75.2 -> "1m15s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def progress_detail(phase: str, in_phase_s: float, expected: Mapping[str, float], limit_s: float) -> str:
    """How long the phase has lasted and was expected to, the whole start's expectation, and the limit.

    What a phase takes beyond its expectation is added to that of the whole.
    """
    parts = []
    late_s = max(in_phase_s - expected[phase], 0.0) if phase in expected else 0.0
    if phase in expected:
        usual = seconds_text(expected[phase])
        lasted = seconds_text(in_phase_s)
        parts.append(
            f"{lasted} in this phase instead of about {usual}" if late_s else f"{lasted} of about {usual} in this phase"
        )
    if expected:
        parts.append(f"about {seconds_text(sum(expected.values()) + late_s)} expected in all")
    parts.append(f"at most {seconds_text(limit_s)}")
    return ", ".join(parts)
