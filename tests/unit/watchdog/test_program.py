# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installed program as a process of its own, with the engine double; small windows, and systemd as a script."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._watchdog.install import program_files

from tests.simulators.engine import Behaviour, EngineDouble
from tests.unit.watchdog.conftest import PLAN, SECRET

LIMIT_S = 30.0

SYSTEMCTL = """#!/bin/sh
run=$(cat "$0.run" 2>/dev/null || echo 1)
case "$1" in
show) printf 'Id=vllm-chat.service\nLoadState=loaded\nActiveState=active\nSubState=running\nInvocationID=run%s\n' "$run"
      printf 'NRestarts=0\nMainPID=%s\n' "$PPID" ;;
restart) echo "$((run + 1))" >"$0.run"; echo "$*" >>"$0.log" ;;
*) echo "$*" >>"$0.log" ;;
esac
"""


def eventually(found: Callable[[], Any]) -> Any:
    until = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < until
        time.sleep(0.05)
    return found()


class Process:
    """The program with its folder, and what it told systemd."""

    def __init__(self, folder: Path, port: int, **settings: Any) -> None:
        self.folder = folder
        for path, text in program_files().items():
            target = folder / "program" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        generation = folder / "instances/chat/generations/1"
        generation.mkdir(parents=True)
        plan = {**PLAN, "port": port, "served_names": ["double"], "max_model_len": 512}
        (generation / "plan.json").write_text(json.dumps(plan))
        (folder / "instances/chat/current").symlink_to("generations/1")
        (folder / "secrets/chat").mkdir(parents=True)
        (folder / "secrets/chat/env").write_text(f"VLLM_API_KEY={SECRET}\n")
        (folder / "watchdog/chat").mkdir(parents=True)
        values = {
            "instance": "chat",
            "host": "gpu1",
            "state_dir": str(folder),
            "interval_s": 1,
            "window_s": 1,
            "canary_after_s": 1,
            "canary_patience_s": 1,
            "prefill_floor_tokens_per_s": 100_000,
        }
        (folder / "settings.json").write_text(json.dumps({**values, **settings}))
        self.tools = folder / "bin"
        self.tools.mkdir()
        for name, text in {
            "systemctl": SYSTEMCTL,
            "podman": "#!/bin/sh\nexit 1\n",
            "journalctl": "#!/bin/sh\n",
        }.items():
            (self.tools / name).write_text(text)
            (self.tools / name).chmod(0o755)
        self.notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notes.bind(str(folder / "notify"))
        self.notes.setblocking(False)
        self.said = (folder / "said").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", folder / "program", folder / "settings.json"],
            stdout=self.said,
            env={"PATH": f"{self.tools}:{os.environ['PATH']}", "NOTIFY_SOCKET": str(folder / "notify")},
        )

    def log(self) -> str:
        path = self.tools / "systemctl.log"
        return path.read_text() if path.exists() else ""

    def lines(self) -> str:
        return (self.folder / "said").read_text()

    def end(self) -> int:
        self.process.terminate()
        status = self.process.wait(LIMIT_S)
        self.said.close()
        self.notes.close()
        return status


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour(api_key=SECRET)


@pytest.fixture
def double(behaviour: Behaviour) -> Iterator[EngineDouble]:
    with EngineDouble(behaviour) as serving:
        yield serving
        behaviour.faults = frozenset()


def test_a_core_that_freezes_is_found_and_restarted(tmp_path: Path, double: EngineDouble, behaviour: Behaviour) -> None:
    process = Process(tmp_path, int(double.base_url.rpartition(":")[2]), restarts_per_hour=1)
    try:
        eventually(lambda: "chat healthy:" in process.lines())
        behaviour.faults = frozenset({"frozen_core"})
        eventually(lambda: "restart --no-block vllm-chat.service" in process.log())
        # The engine of the next run does not answer either: it gives up, and says so where systemd shows it.
        eventually(lambda: "start --no-block socle-watchdog-alarm@chat.service" in process.log())
        process.process.send_signal(signal.SIGHUP)
        eventually(lambda: process.log().count("restart --no-block vllm-chat.service") == 2)
        told = process.notes.recv(65536)
    finally:
        status = process.end()
    assert (status, told) == (0, b"READY=1")
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "records").iterdir())]
    assert {record["results"]["action"] for record in records} >= {"restart", "give_up"}
    shown = records[0]["results"]["evidence"]
    assert any("generation_tokens_total" in line for line in shown["metrics"])
    assert shown["processes"][0]["pid"] == process.process.pid
    assert SECRET not in process.lines() + json.dumps(records)
    words = [line.split()[1] for line in process.lines().splitlines()]
    assert "gave-up:" in words and "reset:" in words


def test_an_engine_under_load_is_left_alone(tmp_path: Path, double: EngineDouble, behaviour: Behaviour) -> None:
    # A prompt after the other: each takes longer than the window, and no canary gets its turn before its end.
    behaviour.prefill_tokens_per_s = 1.5
    process = Process(tmp_path, int(double.base_url.rpartition(":")[2]), window_s=3)
    try:
        eventually(lambda: double.state.finished >= 2)
    finally:
        status = process.end()
    assert status == 0
    assert "restart" not in process.log()
