# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting: against a real HTTP server on loopback and a recorded systemd."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.ready import (
    Http,
    Waiter,
    await_instance,
    earlier_records,
    parse_cache_info,
    weights_bytes,
)
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress
from ansible_collections.socle.inference.plugins.module_utils._records.schema import build, spool_name

from .conftest import Host

FIXTURES = Path(__file__).parent / "fixtures"
FATAL = (FIXTURES / "startup-free-memory-v0.26.0.log").read_text(encoding="utf-8").splitlines()


class Engine(ThreadingHTTPServer):
    """Answers as vLLM does, so far as readiness goes."""

    daemon_threads = True

    def __init__(self) -> None:
        self.health = 200
        self.models = ["smol"]
        self.api_key: str | None = None
        self.tokens = 1
        self.chat_only = False
        self.seen: list[str] = []
        self.on_token = lambda: None
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, *_args: Any) -> None:
        pass

    def _send(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _allowed(self) -> bool:
        key = self.server.api_key
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            self._send(401, {"error": "Unauthorized"})
            return False
        return True

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        if not self._allowed():
            return
        if self.path == "/health":
            self._send(self.server.health, b"")
        elif self.path == "/version":
            self._send(200, {"version": "0.32.0+cpu"})
        elif self.path == "/v1/models":
            data = [{"id": name, "root": "/models/X", "max_model_len": 4096} for name in self.server.models]
            self._send(200, {"object": "list", "data": data})
        elif self.path == "/metrics":
            self._send(200, (FIXTURES / "metrics-cache-v0.32.0.txt").read_bytes())
        else:
            self._send(404, {})

    def do_POST(self) -> None:
        self.server.seen.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        if self.path == "/v1/completions" and self.server.chat_only:
            self._send(404, {})
        else:
            assert body["max_tokens"] == 1
            self.server.on_token()
            self._send(200, {"choices": [{}], "usage": {"completion_tokens": self.server.tokens}})


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[float, Any] = {}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self.at if moment <= self.now]:
            self.at.pop(moment)()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def waiter(
    backend: QuadletBackend,
    url: str,
    clock: Clock,
    key: str | None = None,
    timeout_s: float = 60,
    started: bool = True,
) -> Waiter:
    return Waiter(
        backend,
        "chat",
        Http(url, key),
        served_names=["smol"],
        timeout_s=timeout_s,
        started=started,
        clock=clock,
        sleep=clock.sleep,
    )


def url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.server_address[1]}"


NOBODY = "http://127.0.0.1:9"


def up(host: Host) -> None:
    host.active, host.invocation, host.started_us, host.active_us = "active", 1, 1_000_000, 35_500_000
    host.job = 0


def starting(host: Host) -> None:
    """As systemd has it: the start job lasts until the unit is active."""
    host.active, host.invocation, host.started_us, host.job = "activating", 1, 1_000_000, 5


def test_a_serving_instance_is_ready_at_once_without_its_journal(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    up(host)
    found = waiter(backend, url(engine), clock).wait()
    assert host.reads == 0 and clock.now == 0
    assert found == {
        "ready": True,
        "ready_s": 34.5,
        "waited_s": 0.0,
        "milestones": {},
        "phases": {},
        "engine_version": "0.32.0+cpu",
        "models": [{"id": "smol", "root": "/models/X", "max_model_len": 4096}],
        "max_model_len": 4096,
        "kv_cache": {"num_gpu_blocks": 364, "block_size": 128, "kv_cache_size_tokens": 46592},
        "unit": {"active": "active", "sub": "running", "result": "success", "restarts": 0, "exit_status": 1},
    }


def test_proxies_are_never_used(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOBODY)
    monkeypatch.delenv("no_proxy", raising=False)
    up(host)
    assert waiter(backend, url(engine), clock).wait()["ready"]


def test_a_start_is_followed_to_the_end(backend: QuadletBackend, host: Host, engine: Engine, clock: Clock) -> None:
    starting(host)
    engine.health = 503
    log = (FIXTURES / "startup-cpu-v0.32.0.log").read_text(encoding="utf-8").splitlines()
    host.journal = [(500_000, FATAL[60])] + [(2_000_000, line) for line in log[:100]]
    clock.at[5] = lambda: host.journal.extend((30_000_000, line) for line in log[100:])
    clock.at[10] = lambda: setattr(engine, "health", 200)
    found = waiter(backend, url(engine), clock).wait()
    assert 10 <= found["waited_s"] < 13
    assert found["milestones"]["arguments"]["at_s"] == 1.0 and found["milestones"]["server"]["at_s"] == 29.0
    # Served, but not yet known to be healthy: the check is run at once instead of at its next turn.
    assert host.count("podman", "healthcheck", "run", "vllm-chat") == 1


def test_an_engine_that_is_about_to_serve_is_asked_often(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    starting(host)
    engine.health = 503
    log = (FIXTURES / "startup-cpu-v0.32.0.log").read_text(encoding="utf-8").splitlines()
    host.journal = [(2_000_000, line) for line in log if "Application startup complete" not in line]
    clock.at[10.05] = lambda: setattr(engine, "health", 200)
    assert waiter(backend, url(engine), clock).wait()["waited_s"] <= 10.6


def test_the_old_engine_does_not_count_while_a_restart_is_queued(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    up(host)
    host.job = 7
    clock.at[3] = lambda: setattr(host, "job", 0)
    assert waiter(backend, url(engine), clock).wait()["waited_s"] >= 3
    assert host.reads == 0 and host.count("podman") == 0


def test_a_known_fatal_line_stops_the_unit_and_names_the_cause(
    backend: QuadletBackend, host: Host, clock: Clock
) -> None:
    starting(host)
    clock.at[4] = lambda: host.journal.extend((6_000_000, line) for line in FATAL)
    with pytest.raises(EngineError, match=r"84\.78 of 139\.8 GiB.*lower gpu-memory-utilization") as caught:
        waiter(backend, NOBODY, clock).wait()
    assert clock.now < 6 and host.active == "inactive" and host.count("systemctl", "stop") == 1
    fields = caught.value.fields
    assert fields["diagnosis"]["name"] == "free_memory" and fields["stopped"] is True
    assert fields["diagnosis"]["id"] in caught.value.message
    assert any("Free memory on device cuda:0" in line for line in fields["excerpt"][-4:])
    assert "\n" not in caught.value.message


def test_a_run_that_failed_before_the_first_look_is_read_while_the_next_is_awaited(
    backend: QuadletBackend, host: Host, clock: Clock
) -> None:
    # "activating" again since 1.38 s, waiting for a restart; the run itself began at 1.08 s.
    host.active, host.sub, host.started_us, host.main_us = "activating", "auto-restart", 1_380_000, 1_080_000
    host.journal = [(1_230_000, "Error: statfs /var/lib/socle/cache/x: no such file or directory")]
    with pytest.raises(EngineError, match="the folder /var/lib/socle/cache/x, which the unit mounts, does not exist"):
        waiter(backend, NOBODY, clock).wait()
    assert clock.now == 0


def test_a_diagnosis_says_how_long_after_the_message_it_came(backend: QuadletBackend, host: Host, clock: Clock) -> None:
    starting(host)
    clock.at[5] = lambda: host.journal.extend((3_500_000, line) for line in FATAL)
    with pytest.raises(EngineError) as caught:
        waiter(backend, NOBODY, clock).wait()
    assert caught.value.fields["diagnosed_after_s"] == pytest.approx(clock.now - 3.5, abs=0.01)


@pytest.mark.parametrize(("ended_us", "after_s"), [(4_250_000, 0.75), (900_000, None)])
def test_without_a_message_the_end_of_the_engine_is_what_counts(
    backend: QuadletBackend, host: Host, clock: Clock, ended_us: int, after_s: float | None
) -> None:
    starting(host)
    host.journal = [(2_000_000, "KeyError: 'odd'")]

    def end() -> None:
        host.active, host.job, host.result, host.ended_us = "failed", 0, "exit-code", ended_us

    clock.at[5] = end
    with pytest.raises(EngineError) as caught:
        waiter(backend, NOBODY, clock).wait()
    # One that ended before this start says nothing of it.
    assert caught.value.fields["diagnosed_after_s"] == after_s


def test_lines_of_an_earlier_start_are_no_cause(backend: QuadletBackend, host: Host, clock: Clock) -> None:
    starting(host)
    host.journal = [(999_999, line) for line in FATAL]
    with pytest.raises(EngineError) as caught:
        waiter(backend, NOBODY, clock, timeout_s=5).wait()
    assert caught.value.fields["diagnosis"]["name"] == "timeout"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"active": "failed", "result": "start-limit-hit"}, "failed so often"),
        ({"active": "failed", "result": "exit-code"}, "ended with status 1"),
        ({"active": "failed", "result": "timeout"}, "TimeoutStartSec"),
        ({"active": "inactive"}, "was stopped, or the engine ended"),
    ],
)
def test_a_unit_that_is_gone_ends_the_wait(
    backend: QuadletBackend, host: Host, clock: Clock, state: dict[str, Any], words: str
) -> None:
    starting(host)
    host.journal = [(2_000_000, "something"), (3_000_000, "KeyError: 'odd'"), (3_000_001, "bye")]
    clock.at[2] = lambda: [setattr(host, key, value) for key, value in {"job": 0, **state}.items()]
    with pytest.raises(EngineError, match=words) as caught:
        waiter(backend, NOBODY, clock).wait()
    assert clock.now < 4
    assert caught.value.fields["diagnosis"]["line"] == "KeyError: 'odd'"
    assert caught.value.fields["excerpt"] == ["something", "KeyError: 'odd'", "bye"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["(APIServer pid=2) KeyError: 'odd'"], r"ended with status 1 \(exit-code\): KeyError: 'odd'"),
        (["ModuleNotFoundError: No module named 'torchvision'"], "lacks a package"),
    ],
)
def test_an_engine_that_ended_with_an_error_is_not_started_again_to_meet_it_again(
    backend: QuadletBackend, host: Host, clock: Clock, lines: list[str], words: str
) -> None:
    starting(host)
    host.journal = [(2_000_000, "something"), *((3_000_000, line) for line in lines), (3_000_001, "bye")]

    def end() -> None:
        host.sub, host.job, host.result, host.main_us = "auto-restart", 0, "exit-code", 1_000_000

    clock.at[4] = end
    with pytest.raises(EngineError, match=words) as caught:
        waiter(backend, NOBODY, clock).wait()
    assert clock.now < 6 and caught.value.fields["stopped"] is True
    assert caught.value.fields["diagnosis"]["line"] == lines[-1].removeprefix("(APIServer pid=2) ")


@pytest.mark.parametrize(
    ("state", "name", "words"),
    [
        ({"result": "oom-kill", "exit_status": 9}, "killed_for_memory", "the host's memory"),
        ({"result": "exit-code", "exit_status": 137}, "killed", r"it was killed \(SIGKILL\)"),
        ({"result": "signal", "exit_status": 9, "oom_killed": "true"}, "killed_for_memory", "says OOMKilled"),
        (
            {
                "result": "exit-code",
                "exit_status": 137,
                "kernel": [
                    (900_000, "Out of memory: Killed process 1 (earlier)"),
                    (2_000_000, "Memory cgroup out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB"),
                ],
            },
            "killed_for_memory",
            r"4711 \(VLLM::EngineCor\)",
        ),
        (
            # A host that is a container itself: the kernel tells it, and its journal does not ask.
            {
                "result": "exit-code",
                "exit_status": 137,
                "ring_buffer": "[    0.900000] Out of memory: Killed process 1 (earlier)\n[    1.500000] eth0: up\n"
                "[    2.000000] Memory cgroup out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB\n",
            },
            "killed_for_memory",
            r"4711 \(VLLM::EngineCor\)",
        ),
    ],
)
def test_a_lack_of_memory_is_no_crash(
    backend: QuadletBackend, host: Host, clock: Clock, state: dict[str, Any], name: str, words: str
) -> None:
    starting(host)
    host.journal = [(2_000_000, "something")]
    ended = {"sub": "auto-restart", "job": 0, "main_us": 1_000_000, **state}
    clock.at[4] = lambda: [setattr(host, key, value) for key, value in ended.items()]
    with pytest.raises(EngineError, match=words) as caught:
        waiter(backend, NOBODY, clock).wait()
    assert clock.now < 6 and caught.value.fields["diagnosis"]["name"] == name


def test_an_engine_process_that_the_kernel_killed_is_looked_up(
    backend: QuadletBackend, host: Host, clock: Clock
) -> None:
    starting(host)
    failed = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'E': -9}"
    host.journal = [(2_000_000, failed)]
    host.kernel = [(1_900_000, "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB")]
    with pytest.raises(EngineError, match="ran out") as caught:
        waiter(backend, NOBODY, clock).wait()
    assert caught.value.fields["diagnosis"]["line"] == host.kernel[0][1]


def test_an_engine_that_serves_with_a_broken_chat_template_is_not_ready(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    starting(host)
    engine.health = 503
    broken = (FIXTURES / "failed-template-v0.32.0.log").read_text(encoding="utf-8").splitlines()

    def serve() -> None:
        # All in one look: what it said, that it is healthy, and that its unit is up.
        host.journal.extend((5_000_000, line) for line in broken)
        engine.health = 200
        up(host)

    clock.at[4] = serve
    with pytest.raises(EngineError, match="chat template cannot be read as Jinja"):
        waiter(backend, url(engine), clock).wait()
    assert host.active == "inactive"


def test_the_reason_of_a_hang_is_named_with_the_time_limit(backend: QuadletBackend, host: Host, clock: Clock) -> None:
    starting(host)
    stuck = (
        "(EngineCore pid=4) INFO 11-30 09:43:57 [shm_broadcast.py:68] No available shared memory broadcast block found"
    )
    host.journal = [(2_000_000, f"{stuck} in 60 seconds. This typically happens when some processes are hanging.")]
    with pytest.raises(EngineError, match=r"does not serve after 30 s.*waited for another.*NCCL_P2P_DISABLE") as caught:
        waiter(backend, NOBODY, clock, timeout_s=30).wait()
    assert caught.value.fields["diagnosis"]["name"] == "timeout"


def test_an_error_that_the_engine_got_over_is_not_blamed_for_a_hang(
    backend: QuadletBackend, host: Host, clock: Clock
) -> None:
    starting(host)
    host.journal = [
        (2_000_000, "(Worker pid=4) ERROR 11-30 09:43:57 [x.py:1] ModuleNotFoundError: No module named 'odd'"),
        (2_000_001, "(Worker pid=4) INFO 11-30 09:43:57 [x.py:68] Starting to load model /models/X..."),
    ]
    with pytest.raises(EngineError, match="does not serve after 30 s, last seen at 'loading weights'") as caught:
        waiter(backend, NOBODY, clock, timeout_s=30).wait()
    assert "Starting to load model" in caught.value.fields["diagnosis"]["line"]


def test_progress_shows_the_weights_in_bytes_and_what_was_expected(
    backend: QuadletBackend, host: Host, clock: Clock, plan: dict[str, Any], tmp_path: Path
) -> None:
    plan["mounts"][0]["source"] = str(tmp_path / "model")
    (tmp_path / "model").mkdir()
    for number in range(4):
        (tmp_path / "model" / f"model-{number}.safetensors").write_bytes(b"x" * 1000)
    assert weights_bytes(plan) == 4000
    shown: list[dict[str, Any]] = []

    class Shown(Progress):
        def update(self, phase: str, *args: Any, **more: Any) -> None:
            shown.append({"phase": phase, **more})

    starting(host)
    shard = "Loading safetensors checkpoint shards:  {} Completed | {}/4 [00:01<00:03,  1.00s/it]"
    host.journal = [(2_000_000, "INFO 11-30 09:43:57 [x.py:68] Starting to load model /models/X...")]
    clock.at[5] = lambda: host.journal.append((6_000_000, shard.format("25%", 1)))
    with pytest.raises(EngineError):
        Waiter(
            backend,
            "chat",
            Http(NOBODY),
            timeout_s=20,
            expected={"loading weights": 40.0, "compiling": 35.0},
            size_bytes=weights_bytes(plan),
            progress=Shown(),
            clock=clock,
            sleep=clock.sleep,
        ).wait()
    last = shown[-1]
    assert (last["phase"], last["done"], last["total"], last["unit"]) == ("loading weights", 1000, 4000, "B")
    assert "of about 40s in this phase, about 1m15s expected in all, at most 20s" in last["detail"]


def test_earlier_deployments_are_read_from_the_host_s_records(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    for number, (instance, kind) in enumerate((("chat", "deploy"), ("other", "deploy"), ("chat", "benchmark"))):
        record, text = build(
            kind=kind,
            host="lab1",
            instance=instance,
            started="2026-11-30T08:00:00Z",
            finished=f"2026-11-30T08:00:0{number}Z",
            verdict="passed",
            results={"phases": {"loading weights": 12.5}},
            tool_version="0.1.0",
        )
        (folder / spool_name(record, text)).write_text(text)
    (folder / "20261130T080009Z-chat-deploy-0123456789ab.json").write_text("{")
    (folder / "notes.txt").write_text("")
    found = earlier_records(tmp_path, "chat")
    assert [record["finished"] for record in found] == ["2026-11-30T08:00:00Z"]
    assert earlier_records(tmp_path / "absent", "chat") == []


def test_a_restart_loop_ends_the_wait(backend: QuadletBackend, host: Host, clock: Clock) -> None:
    starting(host)
    host.nrestarts = 5  # of earlier days
    clock.at[3] = lambda: setattr(host, "nrestarts", 6)
    clock.at[9] = lambda: setattr(host, "nrestarts", 7)
    with pytest.raises(EngineError, match="2 restarts while waiting"):
        waiter(backend, NOBODY, clock).wait()
    assert 9 <= clock.now < 11 and host.active == "inactive"


def test_a_wait_that_takes_too_long_says_how_far_it_came(backend: QuadletBackend, host: Host, clock: Clock) -> None:
    starting(host)
    host.journal = [(2_000_000, "(Worker pid=4) INFO 11-30 09:43:57 [x.py:68] Starting to load model /models/X...")]
    with pytest.raises(EngineError, match=r"after 30 s, last seen at 'loading weights'"):
        waiter(backend, NOBODY, clock, timeout_s=30).wait()


def test_another_server_on_the_port_is_named(backend: QuadletBackend, host: Host, engine: Engine, clock: Clock) -> None:
    up(host)
    engine.models = ["other"]
    with pytest.raises(EngineError, match=r"lists the models \['other'\], expected \['smol'\]") as caught:
        waiter(backend, url(engine), clock).wait()
    # What counts as failed does not go on serving.
    assert caught.value.fields["diagnosis"]["name"] == "served_names"
    assert caught.value.fields["stopped"] is True and host.active == "inactive"


@pytest.mark.parametrize("state", [{"sub": "auto-restart"}, {"main_pid": 0}])
@pytest.mark.parametrize("active", ["activating", "active"])
def test_whoever_answers_does_not_count_while_the_own_unit_has_no_process(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock, state: dict[str, Any], active: str
) -> None:
    up(host)
    for key, value in {**state, "active": active}.items():
        setattr(host, key, value)
    assert waiter(backend, url(engine), clock).look()["ready"] is False
    with pytest.raises(EngineError, match="does not serve after 5 s"):
        waiter(backend, url(engine), clock, timeout_s=5).wait()
    assert host.count("podman", "healthcheck") == 0 and engine.seen == []


def test_an_answer_does_not_count_when_the_unit_ended_meanwhile(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    up(host)
    engine.on_token = lambda: setattr(host, "invocation", host.invocation + 1)
    assert waiter(backend, url(engine), clock).look()["ready"] is False
    with pytest.raises(EngineError, match="does not serve"):
        waiter(backend, url(engine), clock, timeout_s=3).wait()


@pytest.mark.parametrize(
    ("broken", "words", "after_s"),
    [
        ({"health": 503}, "answered /health with HTTP 503", 60),
        ({"tokens": 0}, "without a token", 60),
        ({"models": ["other"]}, "lists the models", 0),
        ({"api_key": "other"}, "refuses the API key", 0),
    ],
)
def test_what_this_run_did_not_start_is_never_stopped_nor_judged_by_its_log(
    backend: QuadletBackend,
    host: Host,
    engine: Engine,
    clock: Clock,
    broken: dict[str, Any],
    words: str,
    after_s: float,
) -> None:
    up(host)
    host.journal = [(40_000_000, line) for line in FATAL]
    for key, value in broken.items():
        setattr(engine, key, value)
    with pytest.raises(EngineError, match=words) as caught:
        waiter(backend, url(engine), clock, timeout_s=1800, started=False).wait()
    assert after_s <= clock.now < after_s + 3
    assert host.active == "active" and host.reads == 0
    assert host.count("systemctl", "stop") == host.count("podman") == 0
    assert "diagnosis" not in caught.value.fields and caught.value.fields["stopped"] is False
    assert "left it as it is" in caught.value.message and "\n" not in caught.value.message


def test_a_running_instance_that_answers_late_is_ready(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    up(host)
    engine.health = 503
    host.journal = [(40_000_000, line) for line in FATAL]
    clock.at[20] = lambda: setattr(engine, "health", 200)
    assert waiter(backend, url(engine), clock, started=False).wait()["waited_s"] >= 20


def test_an_accepted_instance_that_systemd_starts_again_has_the_time_of_a_start(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    starting(host)
    clock.at[200] = lambda: up(host)
    assert waiter(backend, url(engine), clock, timeout_s=300, started=False).wait()["waited_s"] >= 200
    starting(host)
    with pytest.raises(EngineError, match=r"after 300 s: it is not up \(its unit is activating"):
        waiter(backend, url(engine), clock, timeout_s=300, started=False).wait()
    host.active, host.job = "failed", 0
    with pytest.raises(EngineError, match="after 0 s: it is not up"):
        waiter(backend, url(engine), clock, timeout_s=300, started=False).wait()
    assert host.count("systemctl", "stop") == 0


def test_a_start_that_an_interrupted_run_left_behind_is_followed_to_its_end(
    backend: QuadletBackend, host: Host, clock: Clock, plan: dict[str, Any], tmp_path: Path
) -> None:
    plan["mounts"] = []
    launcher = Launcher(backend, tmp_path, Files(), listens=lambda *_: False)
    launcher.start(plan)
    starting(host)
    launch = launcher.start(plan)
    assert launch["action"] == "none"
    clock.at[90] = lambda: host.journal.extend((92_000_000, line) for line in FATAL)
    with pytest.raises(EngineError) as caught:
        waiter(backend, NOBODY, clock, timeout_s=300, started=launch["starting"]).wait()
    assert caught.value.fields["diagnosis"]["name"] == "free_memory" and host.active == "inactive"


def test_the_api_key_is_sent_and_a_wrong_one_is_named_but_not_shown(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    up(host)
    engine.api_key = "right-key"
    assert waiter(backend, url(engine), clock, "right-key").wait()["ready"]
    with pytest.raises(EngineError, match="refuses the API key") as caught:
        waiter(backend, url(engine), clock, "wrong-key").wait()
    assert "wrong-key" not in str(caught.value.fields) + caught.value.message
    assert caught.value.fields["diagnosis"]["name"] == "api_key" and host.active == "inactive"


def test_an_engine_that_only_chats_is_asked_by_chat(
    backend: QuadletBackend, host: Host, engine: Engine, clock: Clock
) -> None:
    up(host)
    engine.chat_only = True
    assert waiter(backend, url(engine), clock).wait()["ready"]
    assert engine.seen[-3] == "/v1/chat/completions"


def test_no_token_is_not_ready(backend: QuadletBackend, host: Host, engine: Engine, clock: Clock) -> None:
    up(host)
    engine.tokens = 0
    with pytest.raises(EngineError, match="does not serve after 5 s"):
        waiter(backend, url(engine), clock, timeout_s=5).wait()


def test_check_mode_looks_once_and_stops_nothing(
    backend: QuadletBackend, host: Host, engine: Engine, plan: dict[str, Any]
) -> None:
    plan["port"] = engine.server_address[1]
    starting(host)
    look = {"check": True, "progress": Progress()}
    assert await_instance(backend, {}, plan, "key", **look)["ready"] is False
    assert host.count("systemctl", "stop") == 0
    up(host)
    assert await_instance(backend, {}, plan, "key", **look)["ready"] is True


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"served_names": ["new"]}, "key", "lists the models"),
        ({}, "other", "refuses the API key"),
        ({}, None, "none was given"),
        ({"port": 9}, "key", "did not answer /health"),
    ],
)
def test_check_mode_does_not_fail_where_something_else_runs_than_is_planned(
    backend: QuadletBackend,
    host: Host,
    engine: Engine,
    plan: dict[str, Any],
    change: dict[str, Any],
    key: str | None,
    words: str,
) -> None:
    up(host)
    engine.api_key = "key"
    wanted = {**plan, "port": engine.server_address[1], **change}
    found = await_instance(backend, {}, wanted, key, check=True, progress=Progress())
    assert found["ready"] is False and words in found["reason"] and found["unit"]["active"] == "active"
    assert host.count("systemctl", "stop") == 0


def test_a_missing_api_key_is_asked_for_before_anything_else(
    backend: QuadletBackend, host: Host, plan: dict[str, Any]
) -> None:
    with pytest.raises(EngineError, match="requires an API key"):
        await_instance(backend, {}, plan, None, progress=Progress())
    assert host.calls == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": None},
        {"port": "x"},
        {"argv": 5},
        {"argv": [5]},
        {"start_timeout_s": "x"},
        {"start_timeout_s": float("nan")},
        {"served_names": "smol"},
        {"mounts": [5]},
        {"instance": ["chat"]},
    ],
    ids=str,
)
def test_a_plan_that_nothing_can_be_waited_for_by_is_refused(
    wrong: dict[str, Any], backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    for started, check in ((True, False), (False, False), (True, True)):
        with pytest.raises(EngineError, match=r"^Cannot (wait for chat: .* of the plan|use .* as the name).*\.$"):
            await_instance(
                backend,
                {},
                {**plan, **wrong},
                "key",
                progress=Progress(),
                started=started,
                check=check,
                state_dir=tmp_path,
            )


def test_cache_facts_that_a_version_does_not_tell_are_missing() -> None:
    old = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n'
    assert parse_cache_info(old) == {"num_gpu_blocks": None, "block_size": 16, "kv_cache_size_tokens": None}
    assert parse_cache_info(b"") == {"num_gpu_blocks": None, "block_size": None, "kv_cache_size_tokens": None}


class Rubbish(ThreadingHTTPServer):
    """Another process on the port, which answers /health and anything else with *body*, slowly where *drip* is set."""

    daemon_threads = True

    def __init__(self, body: bytes, drip: bool = False) -> None:
        self.body, self.drip = body, drip
        super().__init__(("127.0.0.1", 0), RubbishHandler)


class RubbishHandler(BaseHTTPRequestHandler):
    server: Rubbish

    def log_message(self, *_args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/health":
            return
        with contextlib.suppress(OSError):
            for byte in self.server.body if self.server.drip else ():
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
            if not self.server.drip:
                self.wfile.write(self.server.body)

    do_POST = do_GET


@contextlib.contextmanager
def answering(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"data": 5}',
        b'{"data": {"id": "smol"}}',
        b'{"data": [{"id": "smol"}], "usage": {"completion_tokens": "1"}}',
        b'{"data": [{"id": "smol"}], "usage": {"completion_tokens": [1]}}',
    ],
    ids=["nested", "a number", "a map", "a text of tokens", "a list of tokens"],
)
def test_rubbish_from_another_process_is_told_as_not_serving(
    backend: QuadletBackend, host: Host, clock: Clock, body: bytes
) -> None:
    up(host)
    with answering(Rubbish(body)) as address:
        found = waiter(backend, address, clock).look()
    assert found["ready"] is False and found["reason"].startswith("vllm-chat.service answered ")


def test_what_another_server_lists_is_cut_short(backend: QuadletBackend, host: Host, clock: Clock) -> None:
    up(host)
    ids = ["\x1b[2J" + "x" * 100_000, {"a": [[]]}, *map(str, range(5000))]
    with answering(Rubbish(json.dumps({"data": [{"id": name} for name in ids]}).encode())) as address:
        reason = waiter(backend, address, clock).look()["reason"]
    assert "and 990 more" in reason and len(reason) < 1000 and reason.isprintable()


def test_an_answer_that_never_ends_is_none() -> None:
    with answering(Rubbish(b"x" * 100, drip=True)) as address:
        assert Http(address)("/metrics", timeout_s=0.5) == (0, b"")


class Dying(BaseHTTPRequestHandler):
    """An engine that ends, or hangs, in the middle of saying that it is not ready."""

    def log_message(self, *_args: Any) -> None:
        pass

    def do_GET(self) -> None:
        how = self.path.rpartition("/")[2]
        self.send_response(503)
        self.send_header(*(("Transfer-Encoding", "chunked") if how == "chunks" else ("Content-Length", "100000")))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"ff\r\nabc")
            for _turn in range({"drip": 40, "hang": 1}.get(how, 0)):
                time.sleep(2.0 if how == "hang" else 0.05)
                self.wfile.write(b"x")
            if how == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()


@pytest.mark.parametrize("how", ["reset", "chunks", "hang", "drip"])
def test_an_engine_that_dies_while_it_refuses_is_told_by_its_status(how: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dying)
    server.daemon_threads = True
    with answering(server) as address:
        began = time.monotonic()
        assert Http(address)(f"/health/{how}", timeout_s=0.5)[0] == 503
        assert time.monotonic() - began < 1.8


def test_secrets_and_what_users_wrote_stay_out_of_the_excerpt(
    backend: QuadletBackend, host: Host, clock: Clock
) -> None:
    starting(host)
    host.journal = [
        (2_000_000, "INFO 11-30 10:00:00 [logger.py:1] Received request cmpl-1: prompt: 'a private question'"),
        (3_000_000, "ValueError: proxy http://user:hunter22@proxy:3128/ refuses, HF_TOKEN=topsecret: CUDA error: x"),
    ]
    clock.at[2] = lambda: setattr(host, "active", "failed")
    with pytest.raises(EngineError) as caught:
        waiter(backend, NOBODY, clock).wait()
    shown = str(caught.value) + json.dumps(caught.value.fields)
    assert "proxy:3128" in shown and not any(word in shown for word in ("hunter22", "topsecret", "private question"))
