"""Progress of long modules: what is written, when, and how a person reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import (
    format_bytes,
    format_duration,
    format_progress,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_short_run_writes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(str(tmp_path / "p"), clock)
    clock.now += 1.9
    progress.update("downloading", 1, 10, "B")
    assert list(tmp_path.iterdir()) == []


def test_rate_and_time_left_belong_to_the_phase(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(str(tmp_path / "p"), clock)
    progress.update("listing")
    clock.now += 10
    progress.update("downloading", 0, 100, "B")
    clock.now += 5
    progress.update("downloading", 50, 100, "B", "model.safetensors")
    state = json.loads((tmp_path / "p").read_text())
    assert (state["rate_per_s"], state["left_s"], state["elapsed_s"]) == (10, 5, 15)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_what_was_there_before_counts_for_no_rate(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(str(tmp_path / "p"), clock)
    clock.now += 5
    progress.update("downloading", 900, 1000, "B")
    clock.now += 5
    progress.update("downloading", 950, 1000, "B")
    state = json.loads((tmp_path / "p").read_text())
    assert (state["rate_per_s"], state["left_s"], state["done"]) == (10, 5, 950)


def test_updates_within_a_second_are_one_write_but_a_new_phase_is_told_at_once(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(str(tmp_path / "p"), clock)
    clock.now += 5
    progress.update("downloading", 1)
    clock.now += 0.5
    progress.update("downloading", 2)
    assert json.loads((tmp_path / "p").read_text())["done"] == 1
    progress.update("verifying")
    assert json.loads((tmp_path / "p").read_text())["phase"] == "verifying"


def test_progress_that_cannot_be_written_does_not_end_the_work(tmp_path: Path) -> None:
    clock = Clock()
    progress = Progress(str(tmp_path / "missing" / "p"), clock)
    clock.now += 5
    progress.update("downloading", 1)
    progress.update("verifying")
    assert progress.phase == "verifying"


def test_a_link_that_somebody_planted_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "p.7").symlink_to(victim)
    clock = Clock()
    progress = Progress(str(tmp_path / "p"), clock)
    clock.now += 5
    progress.update("downloading")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ({"phase": "waiting"}, "waiting"),
        (
            {"phase": "downloading", "done": 1536, "total": 1048576, "unit": "B", "rate_per_s": 1536, "left_s": 61},
            "downloading, 1.5 KiB of 1.0 MiB, 1.5 KiB/s, 1m01s left",
        ),
        ({"phase": "B2", "done": 1, "total": 4, "unit": "runs", "detail": "warm-up"}, "B2, 1 of 4 runs, warm-up"),
    ],
)
def test_a_line_says_phase_amount_rate_and_rest(state: dict[str, Any], line: str) -> None:
    assert format_progress(state) == line


def test_amounts_are_readable() -> None:
    assert [format_bytes(count) for count in (0, 1023, 1024, 5 * 1024**4)] == ["0 B", "1023 B", "1.0 KiB", "5.0 TiB"]
    assert [format_duration(seconds) for seconds in (0.4, 59.6, 75, 3661)] == ["0s", "1m00s", "1m15s", "1h01m"]


def test_the_file_goes_with_the_process_also_where_its_run_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys; from ansible_collections.socle.inference.plugins.module_utils._progress import Progress;"
        "progress = Progress(sys.argv[1], iter((0.0, 10.0)).__next__); progress.update('waiting');"
        "print(os.path.exists(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "p")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
    assert list(tmp_path.iterdir()) == []
