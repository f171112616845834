# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watchdog asks of an engine and of systemd, against the engine double and recorded commands."""

from __future__ import annotations

import fcntl
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._watchdog import program
from ansible_collections.socle.inference.plugins.module_utils._watchdog.canary import CanaryAsker
from ansible_collections.socle.inference.plugins.module_utils._watchdog.commands import Answer, run_bounded
from ansible_collections.socle.inference.plugins.module_utils._watchdog.host import Host
from ansible_collections.socle.inference.plugins.module_utils._watchdog.http import Call
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import Launch, launch_of
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import (
    ACTIVE,
    OFF,
    ON,
    SILENT,
    STARTING,
    STOPPED,
    Canary,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

from tests.simulators.engine import Behaviour, EngineDouble
from tests.unit.watchdog.conftest import PLAN, SECRET

LIMIT_S = 20.0


def launch_at(double: EngineDouble, **changes: object) -> Launch:
    port = int(double.base_url.rpartition(":")[2])
    return launch_of({**PLAN, "port": port, "served_names": ["double"], **changes}, 1)


def eventually(found: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


class Systemd:
    """Answers "systemctl show" for one unit, and records the rest."""

    def __init__(self, **values: str) -> None:
        self.values = {
            "Id": "vllm-chat.service",
            "LoadState": "loaded",
            "ActiveState": "active",
            "SubState": "running",
            "InvocationID": "abc",
            "NRestarts": "0",
            "MainPID": "7",
            **values,
        }
        self.calls: list[list[str]] = []
        self.status = 0

    def __call__(self, argv: list[str], _limit_s: float = 0) -> Answer:
        self.calls.append(argv[1:])
        if argv[1] == "show":
            return Answer(self.status, "".join(f"{key}={value}\n" for key, value in self.values.items()))
        return Answer(self.status, "Access denied" if self.status else "")


@pytest.mark.parametrize(
    ("faults", "visible", "healthy", "asleep"),
    [
        (set(), ON, True, False),
        ({"frozen_core"}, ON, True, False),
        ({"no_metrics"}, OFF, True, False),
        ({"asleep"}, ON, True, True),
        ({"asleep", "no_metrics"}, OFF, True, True),
    ],
)
def test_an_engine_is_seen_as_it_is(
    tmp_path: Path, faults: set[str], visible: str, healthy: bool, asleep: bool
) -> None:
    with EngineDouble(Behaviour(faults=frozenset(faults))) as double:
        launch = launch_at(double, env={"VLLM_SERVER_DEV_MODE": "1"})
        seen = Host("chat", tmp_path, run=Systemd()).observe(launch, Canary())
    assert (seen.unit, seen.run, seen.metrics.visible, seen.healthy, seen.asleep) == (
        ACTIVE,
        "abc",
        visible,
        healthy,
        asleep,
    )


def test_a_server_that_accepts_and_never_answers_is_silent(tmp_path: Path) -> None:
    behaviour = Behaviour(faults=frozenset({"frozen_server"}))
    with EngineDouble(behaviour) as double:
        host = Host("chat", tmp_path, run=Systemd(), call=lambda address, port, _limit: Call(address, port, 0.2))
        seen = host.observe(launch_at(double), Canary())
        behaviour.faults = frozenset()
    assert (seen.metrics.visible, seen.healthy, host.page) == (SILENT, None, None)


def test_a_prompt_that_is_read_moves_the_scheduler_alone(tmp_path: Path) -> None:
    with EngineDouble(Behaviour(prefill_tokens_per_s=20.0, api_key=SECRET)) as double:
        launch = launch_at(double)
        host = Host("chat", tmp_path, run=Systemd())
        before = host.observe(launch, Canary()).metrics
        asker = CanaryAsker(time.monotonic)
        asker.ask(launch, SECRET, LIMIT_S)
        eventually(lambda: double.state.chunks > 2)
        during = host.observe(launch, Canary()).metrics
        eventually(lambda: asker.state.answered_at is not None)
        after = host.observe(launch, Canary()).metrics
    assert (during.counters, during.running) == (before.counters, 1)
    assert during.scheduler != before.scheduler
    assert after.counters != before.counters


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ({"ActiveState": "activating", "SubState": "start"}, STARTING),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, STARTING),
        ({"Job": "17"}, STARTING),
        ({"ActiveState": "deactivating", "SubState": "stop-sigterm"}, STOPPED),
        ({"ActiveState": "failed", "SubState": "failed"}, STOPPED),
        ({"ActiveState": "inactive", "SubState": "dead", "LoadState": "not-found"}, STOPPED),
    ],
)
def test_a_unit_that_does_not_serve_is_not_asked(tmp_path: Path, values: dict[str, str], unit: str) -> None:
    def forbidden(*_where: object) -> Call:
        raise AssertionError("asked")

    host = Host("chat", tmp_path, run=Systemd(**values), call=forbidden)
    assert host.observe(launch_of(PLAN, 1), Canary()).unit == unit


def test_a_restart_does_not_wait_and_is_not_refused_by_the_start_limit(tmp_path: Path) -> None:
    systemd = Systemd()
    Host("chat", tmp_path, run=systemd).restart()
    assert systemd.calls == [
        ["reset-failed", "vllm-chat.service"],
        ["restart", "--no-block", "vllm-chat.service"],
    ]
    systemd.status = 1
    with pytest.raises(EngineError, match="failed: Access denied"):
        Host("chat", tmp_path, run=systemd).restart()


def test_a_launch_is_held_off_and_holds_off(tmp_path: Path) -> None:
    host = Host("chat", tmp_path, run=Systemd())
    with host.launch_lock() as free:
        assert free  # nothing was ever launched
    lock = tmp_path / "instances/chat/.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as launching:
        fcntl.flock(launching, fcntl.LOCK_EX)
        with host.launch_lock() as free:
            assert not free
    with host.launch_lock() as free, lock.open("w") as launching:
        assert free
        with pytest.raises(BlockingIOError):
            fcntl.flock(launching, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_canary_is_one_token_that_no_cache_answers() -> None:
    with EngineDouble(Behaviour(api_key=SECRET)) as double:
        asker = CanaryAsker(time.monotonic)
        launch = launch_at(double)
        for _turn in range(2):
            asker.ask(launch, SECRET, LIMIT_S)
            eventually(lambda: not asker.under_way)
            asker.forget()
        state = asker.state
    assert state.answered_at is not None and state.waiting_since is None
    first, second = double.state.requests
    assert first["max_tokens"] == 1 and first["prompt"] != second["prompt"]


def test_a_canary_without_an_answer_waits_and_is_taken_back() -> None:
    behaviour = Behaviour(faults=frozenset({"frozen_core"}))
    with EngineDouble(behaviour) as double:
        asker = CanaryAsker(time.monotonic)
        asker.ask(launch_at(double), None, LIMIT_S)
        since = asker.state.waiting_since
        asker.ask(launch_at(double), None, LIMIT_S)  # not a second one
        assert asker.under_way and since is not None and asker.state.waiting_since == since
        asker.forget()
        assert not asker.under_way and asker.state == Canary()
        behaviour.faults = frozenset()


def test_a_canary_that_is_cut_off_counts_from_when_it_was_asked_first() -> None:
    now = [100.0]
    behaviour = Behaviour(faults=frozenset({"frozen_core"}))
    with EngineDouble(behaviour) as double:
        asker = CanaryAsker(lambda: now[0])
        asker.ask(launch_at(double), None, 0.1)
        eventually(lambda: not asker.under_way)
        now[0] = 130.0
        asker.ask(launch_at(double), None, 0.1)
        assert asker.state.waiting_since == 100.0
        eventually(lambda: not asker.under_way)
        behaviour.faults = frozenset()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [(Behaviour(api_key="another"), "HTTP 401"), (Behaviour(faults=frozenset({"fails_tokens"})), "HTTP 500")],
)
def test_another_answer_is_told_and_not_waited_for(behaviour: Behaviour, words: str) -> None:
    with EngineDouble(behaviour) as double:
        asker = CanaryAsker(time.monotonic)
        asker.ask(launch_at(double), SECRET, LIMIT_S)
        eventually(lambda: not asker.under_way)
    assert asker.state == Canary(refused=words)


def test_a_closed_port_is_no_answer() -> None:
    asker = CanaryAsker(time.monotonic)
    with EngineDouble() as double:
        launch = launch_at(double)
    asker.ask(launch, None, 1.0)
    eventually(lambda: not asker.under_way)
    assert asker.state.waiting_since is not None and asker.state.refused is None


def test_a_call_ends_in_time_also_while_bytes_trickle() -> None:
    with EngineDouble(Behaviour(faults=frozenset({"frozen_server"}))) as double:
        call = Call("127.0.0.1", int(double.base_url.rpartition(":")[2]), 30.0)
        thread = threading.Timer(0.1, call.abandon)
        thread.start()
        assert call("/health") is None
        thread.join()


def test_a_command_that_does_not_end_is_left() -> None:
    answer = run_bounded(["sh", "-c", "echo begun; exec sleep 60"], 0.3)
    assert (answer.status, answer.output) == (None, "begun\n")
    assert answer.fault == "sh did not end within 0 s"


def test_a_command_says_its_end_and_its_errors() -> None:
    answer = run_bounded(["sh", "-c", "seq 1 2000; echo wrong >&2; exit 3"], 10, max_bytes=11)
    assert (answer.status, answer.output, answer.fault) == (3, "2000\nwrong\n", None)
    missing = run_bounded(["/nowhere/py-spy"], 1)
    assert missing.status is None and "cannot be run" in str(missing.fault)


@pytest.mark.parametrize("key", ["k\u00f6y", "k\ny"])
def test_a_question_that_cannot_be_asked_does_not_count_as_unanswered(key: str) -> None:
    asked: list[tuple[str, int, float]] = []

    def call(address: str, port: int, limit_s: float) -> Call:
        asked.append((address, port, limit_s))
        return Call(address, port, limit_s)

    asker = CanaryAsker(time.monotonic, call)
    asker.ask(launch_of(PLAN, 1), key, LIMIT_S)
    eventually(lambda: not asker.under_way)
    # An engine that does nothing, and does not get its canary, would be restarted.
    assert len(asked) == 1 and asker.state.waiting_since is None
    assert asker.state.refused is not None and "API key" in asker.state.refused and key not in asker.state.refused


def test_a_fault_of_its_own_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    outcomes = iter(["x", "x", None, "x", "y"])

    class Faulty:
        def __init__(self, *_given: object, **_options: object) -> None:
            pass

        def step(self) -> None:
            outcome = next(outcomes, "end")
            if outcome == "end":
                signal.raise_signal(signal.SIGTERM)
            elif outcome is not None:
                raise KeyError(outcome)

    monkeypatch.setattr(program, "Watch", Faulty)
    monkeypatch.setattr(program, "read_settings", lambda _path: Settings("chat", "gpu1", interval_s=0))
    monkeypatch.setattr(program, "say", lambda _level, line: said.append(line))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert program.main(["socle-watchdog", "settings.json"]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [line.partition(";")[0] for line in said] == [f"chat fault: KeyError: {key!r}" for key in ("x", "x", "y")]
