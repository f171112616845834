# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine as the watchdog sees it, on a clock that a test moves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._watchdog.judge import Judge, Judgement, patience_of
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import Launch
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import (
    ACTIVE,
    ON,
    Canary,
    Metrics,
    Observation,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings
from ansible_collections.socle.inference.plugins.module_utils._watchdog.watch import Watch

SECRET = "key-0f1e2d3c4b5a6978"

PLAN: dict[str, Any] = {
    "schema": "socle.plan/1",
    "host": "gpu1",
    "instance": "chat",
    "engine": "podman",
    "argv": ["/models/M", "--host", "127.0.0.1", "--port", "8000", "--max-num-batched-tokens", "8192"],
    "env": {},
    "port": 8000,
    "served_names": ["smol"],
    "max_model_len": 262144,
    "api_key_required": True,
    "start_timeout_s": 1800,
    "launch_fingerprint": "sha256:" + "1" * 64,
    "environment_fingerprint": "sha256:" + "e" * 64,
    "model": {"name": "m", "repo": "o/m", "revision": "r"},
    "vllm_version": "0.32.0",
}


class Engine:
    """What an engine does, second by second. Attributes may be changed at any time."""

    def __init__(self) -> None:
        self.now = 10_000.0
        self.run = "run1"
        self.restarts_by_systemd = 0
        self.unit = ACTIVE
        self.started_at = 0.0
        self.tokens_per_s = 0.0
        self.chunks_per_s = 0.0
        self.canary_s: float | None = 0.2
        """How long a canary waits; None is for ever."""
        self.visible = ON
        self.asleep = False
        self.refuses: str | None = None
        self.running = 0
        self.waiting = 0
        self.tokens = 1000.0
        self.chunks = 0.0
        self.canary = Canary()
        self.questions = 0

    def freeze(self) -> None:
        """As by SIGSTOP of its core, whatever it did before."""
        self.tokens_per_s = self.chunks_per_s = 0.0
        self.canary_s = None

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tokens += self.tokens_per_s * seconds
        self.chunks += self.chunks_per_s * seconds
        since = self.canary.waiting_since
        if since is not None and self.canary_s is not None and self.now >= since + self.canary_s:
            self.canary = Canary(answered_at=since + self.canary_s)
            self.tokens += 1

    def ask(self) -> None:
        if self.refuses:
            self.canary = self.canary._replace(refused=self.refuses)
        elif self.canary.waiting_since is None:
            self.questions += 1
            self.canary = self.canary._replace(waiting_since=self.now, refused=None)

    def observe(self) -> Observation:
        counters = {"vllm:generation_tokens_total": float(int(self.tokens))}
        scheduler = {
            "vllm:kv_cache_usage_perc": int(self.chunks) % 97 / 97,
            "vllm:num_requests_running": float(self.running),
            "vllm:num_requests_waiting": float(self.waiting),
        }
        shown = self.visible == ON
        return Observation(
            at=self.now,
            unit=self.unit,
            run=self.run,
            run_age_s=self.now - self.started_at,
            first_start=self.restarts_by_systemd == 0,
            metrics=Metrics(self.visible, counters if shown else None, scheduler if shown else None),
            asleep=self.asleep,
            canary=self.canary,
        )


class Watched:
    """An engine and its judge, looked at every 5 s."""

    def __init__(self, **settings: Any) -> None:
        self.engine = Engine()
        self.settings = Settings("chat", "gpu1", **settings)
        self.judge = Judge()
        self.max_model_len: int | None = 262144
        self.step_tokens: int | None = 8192
        self.states: list[str] = []

    def look(self) -> Judgement:
        patience = patience_of(self.settings, self.max_model_len, self.step_tokens, 1800.0)
        judgement = self.judge(self.engine.observe(), patience)
        if judgement.ask:
            self.engine.ask()
        self.states.append(judgement.state)
        return judgement

    def watch(self, seconds: float) -> Judgement:
        """The last judgement after *seconds*."""
        judgement = self.look()
        until = self.engine.now + seconds
        while self.engine.now < until:
            self.engine.pass_time(5)
            judgement = self.look()
        return judgement

    def until(self, state: str, at_most_s: float) -> float:
        """Seconds until the first judgement *state*."""
        began = self.engine.now
        while self.engine.now - began <= at_most_s:
            if self.look().state == state:
                return self.engine.now - began
            self.engine.pass_time(5)
        raise AssertionError(f"not {state} within {at_most_s} s, but {self.states[-3:]}")


@pytest.fixture
def watched() -> Watched:
    return Watched()


class FakeHost:
    """Host, without systemd: a restart brings another run of the same engine."""

    unit = "vllm-chat.service"
    page: str | None = "vllm:num_requests_running 3\n"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.restarted: list[float] = []
        self.alarms: list[str] = []
        self.cures = False
        self.launch_under_way = False
        self.fault: str | None = None
        self.restart_fault: str | None = None

    def observe(self, _launch: Launch, _canary: Canary) -> Observation:
        if self.fault:
            raise EngineError(self.fault)
        return self.engine.observe()

    @contextlib.contextmanager
    def launch_lock(self) -> Iterator[bool]:
        yield not self.launch_under_way

    def restart(self) -> None:
        if self.restart_fault:
            raise EngineError(self.restart_fault)
        self.restarted.append(self.engine.now)
        self.start_again()

    def start_again(self) -> None:
        """A new run, as somebody's "systemctl restart" makes it."""
        self.engine.run += "'"
        self.engine.started_at = self.engine.now - 3600
        self.engine.canary = Canary()
        if self.cures:
            self.engine.canary_s = 0.2

    def raise_alarm(self) -> None:
        self.alarms.append("raised")

    def clear_alarm(self) -> None:
        self.alarms.append("cleared")


class FakeAsker:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def state(self) -> Canary:
        return self.engine.canary

    @property
    def under_way(self) -> bool:
        return self.engine.canary.waiting_since is not None

    def ask(self, _launch: Launch, key: str | None, _limit_s: float) -> None:
        assert key == SECRET
        self.engine.ask()

    def forget(self) -> None:
        self.engine.canary = Canary(answered_at=self.engine.canary.answered_at)


class FakeCollector:
    """Takes its time, as the real one does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.takes_s = 8.0
        self.collected = 0
        self.then: Any = lambda: None

    def collect(self, **asked: Any) -> dict[str, Any]:
        self.collected += 1
        self.engine.pass_time(self.takes_s)
        self.then()
        return {"processes": [{"name": "VLLM::EngineCore", "pid": 7, "state": "T"}], "journal": [f"key={SECRET}"]}


class Stage:
    """A whole watchdog on a clock that a test moves."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.engine = Engine()
        self.host = FakeHost(self.engine)
        self.collector = FakeCollector(self.engine)
        self.said: list[tuple[int, str]] = []
        self.settings = Settings("chat", "gpu1", state_dir=str(folder), tool_version="0.1.0", **settings)
        self.generate(1)
        (folder / "secrets/chat").mkdir(parents=True)
        (folder / "secrets/chat/env").write_text(f"VLLM_API_KEY={SECRET}\n")
        (folder / "watchdog/chat").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """A fresh process of the watchdog."""
        engine: Any = self.engine
        host: Any = self.host
        asker: Any = FakeAsker(engine)
        collector: Any = self.collector
        self.watch = Watch(
            self.settings,
            host,
            asker,
            collector,
            lambda level, line: self.said.append((level, line)),
            clock=lambda: engine.now,
            wall_clock=lambda: engine.now + 1.7e9,
            utc=lambda: f"2026-11-30T{int(engine.now) // 3600 % 24:02d}:{int(engine.now) // 60 % 60:02d}:00Z",
            sleep=engine.pass_time,
        )

    def generate(self, number: int, **changes: Any) -> None:
        """A launch, as far as its generation tells of it."""
        folder = self.folder / "instances/chat"
        (folder / f"generations/{number}").mkdir(parents=True, exist_ok=True)
        (folder / f"generations/{number}/plan.json").write_text(json.dumps({**PLAN, **changes}))
        (folder / "current").unlink(missing_ok=True)
        (folder / "current").symlink_to(f"generations/{number}")

    def run(self, seconds: float) -> list[str | None]:
        """The states of the next *seconds*."""
        until = self.engine.now + seconds
        states = []
        while self.engine.now < until:
            states.append(self.watch.step())
            self.engine.pass_time(5)
        return states

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / "records").glob("*.json"))]

    def words(self) -> list[str]:
        """What was said, by its stable word."""
        return [line.split()[1].rstrip(":") for _level, line in self.said]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
