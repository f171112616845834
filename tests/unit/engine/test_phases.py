# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a start is, by the logs of real engines, and what is expected of the next one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import phases
from ansible_collections.socle.inference.plugins.module_utils._engine.diagnosis import Reader
from ansible_collections.socle.inference.plugins.module_utils._engine.phases import (
    Phases,
    expected_phases,
    phase_seconds,
    progress_detail,
)

FIXTURES = Path(__file__).parent / "fixtures"
CLOCK = re.compile(r" (\d\d):(\d\d):(\d\d) \[")


def follow(name: str) -> tuple[Reader, list[str]]:
    """The reader of a whole log, with the log's own times, and the phases that it went through."""
    reader, seen, began = Reader(), [phases.STARTING], None
    at_s = 0.0
    for line in (FIXTURES / name).read_text(encoding="utf-8").splitlines():
        clock = CLOCK.search(line)
        if clock:
            now = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3])
            began = now if began is None else began
            at_s = float(now - began)
        reader.feed(line, at_s)
        if reader.phases.phase != seen[-1]:
            seen.append(reader.phases.phase)
    return reader, seen


def test_milestones_of_a_gpu_start() -> None:
    found = follow("startup-gpu-v0.26.0.log")[0].phases.milestones
    assert found["architecture"]["name"] == "Qwen3_5ForConditionalGeneration"
    assert (found["weights"]["gib"], found["weights"]["took_s"]) == (51.02, 1.59664)
    assert found["attention"]["backend"] == "FLASH_ATTN"
    assert found["kv_memory"]["gib"] == 74.37
    assert found["kv_cache"]["tokens"] == 1067194
    assert (found["kv_concurrency"]["at_tokens"], found["kv_concurrency"]["concurrency"]) == (131072, 8.14)
    assert (found["graphs"]["took_s"], found["graphs"]["gib"]) == (2, 0.05)
    assert (found["engine_ready"]["took_s"], found["engine_ready"]["compilation_s"]) == (128.88, 44.02)
    assert "server" in found


def test_milestones_of_a_cpu_start() -> None:
    reader = Reader()
    for line in (FIXTURES / "startup-cpu-v0.32.0.log").read_text(encoding="utf-8").splitlines():
        reader.feed(line, at_s=1.26)
    assert reader.phases.milestones["kv_cache"] == {
        "at_s": 1.3,
        "tokens": 46592,
        "at_tokens": 4096,
        "concurrency": 11.38,
    }
    assert reader.phases.milestones["kv_memory"] == {"at_s": 1.3, "gib": 1.0}
    assert reader.phases.milestones["engine"] == {"at_s": 1.3, "version": "0.32.0"}
    assert reader.phases.phase == "first answer"


def test_a_gpu_start_goes_through_every_phase_and_each_has_its_time() -> None:
    reader, seen = follow("startup-gpu-v0.26.0.log")
    # With speculation the drafter is compiled after the model was profiled.
    compiled = [phases.COMPILING, phases.PROFILING] * 2
    last = [phases.CACHE, phases.WARMING, phases.GRAPHS, phases.WARMING, phases.SERVER, phases.ANSWER]
    head = [phases.STARTING, phases.CONFIGURING, phases.LOADING]
    assert [name for name in seen if name != phases.ENGINE] == head + compiled + last
    took = reader.phases.took_s
    assert took[phases.COMPILING] == pytest.approx(44, abs=3)  # the log says 44.02 s of compilation
    assert took[phases.PROFILING] > 70  # 71.43 s of the first run
    assert sum(took.values()) == pytest.approx(151, abs=1)


def test_an_eager_start_never_compiles_nor_captures_graphs() -> None:
    seen = follow("startup-gpu-fp8-eager-v0.26.0.log")[1]
    assert phases.PROFILING in seen and phases.WARMING in seen
    assert phases.COMPILING not in seen and phases.GRAPHS not in seen


def test_shards_and_graphs_are_counted() -> None:
    found = Phases()
    found.feed("Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.00s/it]")
    assert (found.phase, found.done, found.total) == (phases.LOADING, 1, 4)
    found.feed("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|#     | 2/19 [00:00<00:01]")
    assert (found.phase, found.done, found.total) == (phases.GRAPHS, 2, 19)


def test_a_worker_that_is_behind_does_not_take_the_phase_back() -> None:
    found = Phases()
    found.feed("Model loading took 25.51 GiB memory and 9.1 seconds", 20.0)
    for line in (
        "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:01<00:03,  1.00s/it]",
        "Starting to load model /models/X...",
    ):
        found.feed(line, 21.0)
        assert found.phase == phases.COMPILING and found.total is None
    found.feed("GPU KV cache size: 1,067,194 tokens", 30.0)
    found.feed("torch.compile took 35.38 s in total", 31.0)
    assert found.phase == phases.WARMING
    # systemd started it again
    found.feed("non-default args: {}", 50.0)
    assert found.phase == phases.CONFIGURING


def deploy(finished: str, results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "deploy", "verdict": "passed", "finished": finished, "results": results, **more}


def took(**seconds: float) -> dict[str, Any]:
    return {"phases": {name.replace("_", " "): value for name, value in seconds.items()}}


def test_records_without_phases_are_read_by_their_milestones() -> None:
    milestones = {
        "arguments": {"at_s": 10.0},
        "load_started": {"at_s": 30.0},
        "weights": {"at_s": 75.5},
        "kv_memory": {"at_s": 100.0},
        "kv_cache": {"at_s": 99.0},  # of another process, and its clock
        "engine_ready": {"at_s": 140.0},
        "server": {},
    }
    assert phase_seconds({"milestones": milestones}) == {
        phases.STARTING: 10.0,
        phases.ENGINE: 20.0,
        phases.LOADING: 45.5,
        phases.PROFILING: 24.5,
        phases.WARMING: 40.0,
    }
    assert phase_seconds({"milestones": {}}) == phase_seconds({}) == {}


def test_the_newest_passed_starts_of_the_same_launch_are_expected_again() -> None:
    records = [
        deploy("2026-11-01T00:00:00Z", took(loading_weights=500.0), launch_fingerprint="sha256:a"),
        *(
            deploy(f"2026-11-1{day}T00:00:00Z", took(loading_weights=float(day)), launch_fingerprint="sha256:a")
            for day in range(5)
        ),
        deploy("2026-11-20T00:00:00Z", took(loading_weights=900.0), launch_fingerprint="sha256:b"),
        {
            **deploy("2026-11-21T00:00:00Z", took(loading_weights=1.0), launch_fingerprint="sha256:b"),
            "verdict": "failed",
        },
        {
            **deploy("2026-11-22T00:00:00Z", took(loading_weights=1.0), launch_fingerprint="sha256:b"),
            "kind": "benchmark",
        },
        deploy("2026-11-23T00:00:00Z", {"milestones": {}}, launch_fingerprint="sha256:a"),
    ]
    assert expected_phases(records, "sha256:a") == {phases.LOADING: 2.0}
    assert expected_phases(records, "sha256:b") == {phases.LOADING: 900.0}
    # Another launch of the instance is the next best guess.
    assert expected_phases(records, "sha256:c") == {phases.LOADING: 3.0}
    assert expected_phases([], "sha256:a") == {}


def test_the_line_of_progress_says_what_was_and_what_is_expected() -> None:
    expected = {phases.LOADING: 90.0, phases.COMPILING: 30.0}
    assert progress_detail(phases.LOADING, 12.2, expected, 1800) == (
        "12s of about 1m30s in this phase, about 2m00s expected in all, at most 30m00s"
    )
    # A phase that is late is not said to end, with the whole start, at a time that has gone by.
    assert progress_detail(phases.COMPILING, 122.0, expected, 1800) == (
        "2m02s in this phase instead of about 30s, about 3m32s expected in all, at most 30m00s"
    )
    assert progress_detail(phases.ANSWER, 3.0, expected, 300) == "about 2m00s expected in all, at most 5m00s"
    assert progress_detail(phases.LOADING, 12.2, {}, 300) == "at most 5m00s"
