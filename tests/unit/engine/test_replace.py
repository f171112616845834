# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Between two engines: requests that end, memory of GPUs that becomes free, weights that are read ahead."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import unit, warm
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import render as render_docker
from ansible_collections.socle.inference.plugins.module_utils._engine.drain import Drain, Load, read_load
from ansible_collections.socle.inference.plugins.module_utils._engine.gpu_room import GpuRoom, utilisation
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import render as render_quadlet
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from .conftest import Host
from .test_launch import nobody

CONTAINER = "ab" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Said(Progress):
    """What a person who waits would read."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def update(self, phase: str, done: Any = None, total: Any = None, unit: Any = None, detail: Any = None) -> None:
        self.lines.append(f"{phase}: {detail}")


def metrics(running: int, waiting: int) -> bytes:
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:num_requests_running{{engine="1"}} 0.0\n'
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}.0\n'
    ).encode()


# Requests


def test_the_load_is_that_of_all_engine_cores() -> None:
    assert read_load(metrics(2, 1)) == Load(2, 1)
    assert read_load(b"up 1\n") is None and read_load(b"\xff") is None
    assert read_load(b"vllm:num_requests_running NaN\n") is None
    assert read_load(b"vllm:num_requests_running 1\nvllm:num_requests_waiting +Inf\n") == Load(1, 0)
    assert read_load(b"vllm:num_requests_running -1\n") == Load(0, 0)


@pytest.mark.parametrize(
    ("argv", "answers", "waited", "left"),
    [
        ([], [(200, metrics(0, 0))], 0, 0),
        ([], [(200, metrics(2, 1)), (200, metrics(1, 0)), (200, metrics(0, 0))], 2, 0),
        ([], [(200, metrics(5, 0))] * 99, 10, 5),
        # It drains itself, and takes no new request meanwhile.
        (["--shutdown-timeout", "60"], [(200, metrics(5, 0))] * 99, 0, 5),
        ([], [(0, b"")], 0, None),
    ],
)
def test_an_engine_that_would_abort_its_requests_is_given_time_to_have_none(
    argv: list[str], answers: list[tuple[int, bytes]], waited: float, left: int | None
) -> None:
    clock, said, coming = Clock(), Said(), iter(answers)
    drain = Drain(lambda _plan: next(coming), 10, said, clock, clock.sleep)
    assert drain.wait_idle({"argv": argv}) == {"waited_s": waited, "requests": left}
    if waited == 2:
        assert said.lines[0] == "draining: 2 running, 1 waiting, of at most 10 s"


def test_while_an_engine_ends_its_requests_are_shown() -> None:
    clock, said = Clock(), Said()
    answers = iter([(200, metrics(3, 0)), (200, metrics(1, 0)), (0, b"")])
    drain = Drain(lambda _plan: next(answers), 10, said, clock, clock.sleep)
    plan = {"argv": ["--shutdown-timeout=60"]}
    for _turn in range(3):
        drain.tick(plan)
        drain.tick(plan)  # asked once a second, however often it is called
        clock.sleep(1)
    assert said.lines[::2] == [
        "stopping: 3 running, 0 waiting, of at most 60 s",
        "stopping: 1 running, 0 waiting, of at most 60 s",
        "stopping: it does not answer any more, of at most 60 s",
    ]


@pytest.mark.parametrize(
    ("argv", "stop", "kill"),
    [([], 120, 150), (["--shutdown-timeout", "60"], 120, 150), (["--shutdown-timeout=300"], 330, 360)],
)
def test_a_unit_gives_an_engine_longer_than_it_may_drain(
    plan: dict[str, Any], argv: list[str], stop: int, kill: int
) -> None:
    wanted = {**plan, "argv": [*plan["argv"], *argv]}
    podman, docker = render_quadlet(wanted, (5, 4, 2)), render_docker(wanted)
    assert f"\nStopTimeout={stop}\n" in podman and f"\nTimeoutStopSec={kill}\n" in podman
    assert (
        f"--stop-timeout={stop}" in docker and f"stop -t {stop} " in docker and f"\nTimeoutStopSec={kill}\n" in docker
    )
    assert unit.shutdown_timeout_s({"argv": ["--shutdown-timeout", "soon"]}) == 0


def test_what_runs_is_stopped_before_anything_of_it_is_replaced(
    backend: QuadletBackend, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    seen: list[str] = []
    unit_file = tmp_path / "systemd/vllm-chat.container"

    def ask(asked: Any) -> tuple[int, bytes]:
        seen.append(f"{host.active} {asked['launch_fingerprint']}")
        return 200, metrics(0, 0)

    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody, drain=Drain(ask))
    assert launcher.start(plan)["drain"] is None and seen == []
    host.active = "active"
    old, answer = unit_file.read_text(), host._answer
    at_stop: list[str] = []

    def watching(words: list[str], *rest: Any) -> Any:
        if words[:2] == ["systemctl", "stop"]:
            at_stop.append(unit_file.read_text())
        return answer(words, *rest)

    host._answer = watching
    drained = launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})["drain"]
    assert seen == ["active sha256:aaaa"] and drained["requests"] == 0
    assert at_stop == [old] and unit_file.read_text() != old
    assert launcher.start(plan | {"launch_fingerprint": "sha256:bbbb"})["action"] == "none" and len(at_stop) == 1


def test_a_restart_that_is_asked_for_keeps_the_generation(
    backend: QuadletBackend, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody)
    launcher.start(plan)
    launcher.mark("chat", "accepted")
    host.active = "active"
    assert launcher.start(plan, restart=True, check=True)["action"] == "would_restart" and host.restarts == 1
    result = launcher.start(plan, restart=True)
    assert (result["action"], result["generation"], result["starting"], host.restarts) == ("restarted", 1, True, 2)


# Memory of GPUs


class Gpus:
    """A host with two GPUs of 80 GiB as nvidia-smi tells of them; *free* and *processes* by time."""

    def __init__(self, free: Sequence[int], processes: str = "") -> None:
        self.free, self.processes = list(free), processes
        self.rc = 0

    def __call__(self, argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        words, out = list(argv), ""
        if words[0] == "docker":
            out = f"{CONTAINER} trainer\n"
        elif words[1].startswith("--query-gpu"):
            free = self.free.pop(0) if len(self.free) > 1 else self.free[0]
            out = f"0, GPU-a, 81920, 81000\n1, GPU-b, 81920, {free}\n2, GPU-m, [N/A], [N/A]\n"
        else:
            out = self.processes
        return subprocess.CompletedProcess(words, self.rc, out, "")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, group in (
        (77, "/system.slice/train.service"),
        (78, f"/system.slice/docker-{CONTAINER}.scope"),
        (79, "/system.slice/vllm-chat.service/libpod-payload-1"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::{group}\n")
    return tmp_path / "proc"


WANTED = {"instance": "chat", "gpus": [0, 1], "argv": ["/model", "--gpu-memory-utilization", "0.9"]}
TWO = "GPU-b, 77, /usr/bin/python3, 56320\nGPU-b, 78, VLLM::Worker, with, commas, 1024\n"


def room_of(gpus: Gpus, proc: Path, said: Said | None = None) -> tuple[GpuRoom, Clock]:
    clock = Clock()
    return GpuRoom(gpus, proc, said or Said(), clock, clock.sleep), clock


def test_the_memory_of_an_engine_that_ended_is_awaited(proc: Path) -> None:
    said = Said()
    room, _clock = room_of(Gpus([10000, 40000, 81000]), proc, said)
    assert room.wait(WANTED) == 2.0
    assert said.lines[0] == "waiting for GPU memory: GPU 1 has 9.8 GiB free, of at most 60 s"


def test_memory_that_does_not_become_free_is_refused_with_who_has_it(proc: Path) -> None:
    room, clock = room_of(Gpus([24000], TWO), proc)
    with pytest.raises(EngineError) as caught:
        room.wait(WANTED)
    assert clock.now == 160.0
    assert caught.value.message == (
        "Cannot start chat: GPU 1 has 23.4 of 80.0 GiB for it after 60 s, expected 72.0 (gpu-memory-utilization 0.9);"
        " the rest is held by process 77 (python3 of train.service, 55.0 GiB), process 78 (VLLM::Worker,with,commas of"
        " trainer, 1.0 GiB): end that, give the instance another GPU, or lower gpu-memory-utilization."
    )
    room, _clock = room_of(Gpus([24000]), proc)
    with pytest.raises(EngineError, match="no process that nvidia-smi shows"):
        room.wait(WANTED)


def test_what_others_hold_is_told_before_the_running_engine_is_stopped(proc: Path) -> None:
    own = "GPU-b, 79, VLLM::EngineCore, 72000\n"
    room, _clock = room_of(Gpus([9000], own), proc)
    assert room.obstacle(WANTED, "vllm-chat.service") is None
    room, _clock = room_of(Gpus([9000], own + TWO), proc)
    refused = room.obstacle(WANTED, "vllm-chat.service")
    assert refused is not None and "77 (python3 of train.service" in refused.message
    assert "79" not in refused.message


@pytest.mark.parametrize(
    ("wanted", "rc", "free"),
    [
        ({**WANTED, "gpus": []}, 0, 0),
        ({**WANTED, "gpus": [0]}, 0, 0),
        ({**WANTED, "gpus": ["GPU-m"]}, 0, 0),  # a part of a GPU: nvidia-smi has no figures for it
        ({**WANTED, "argv": ["--gpu-memory-utilization=0.25"]}, 0, 24000),
        (WANTED, 9, 0),  # no driver that answers: the engine says why
    ],
)
def test_no_start_is_refused_for_memory_that_it_does_not_need(
    wanted: dict[str, Any], rc: int, free: int, proc: Path
) -> None:
    gpus = Gpus([free], TWO)
    gpus.rc = rc
    room, _clock = room_of(gpus, proc)
    assert room.wait(wanted) == 0.0 and room.obstacle(wanted, "x.service") is None


def test_the_default_is_the_least_of_all_versions() -> None:
    assert utilisation([]) == 0.9 and utilisation(["--gpu-memory-utilization"]) == 0.9


def test_a_foreign_holder_is_refused_and_the_old_engine_goes_on(
    backend: QuadletBackend, host: Any, plan: dict[str, Any], tmp_path: Path, proc: Path
) -> None:
    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    gpus = Gpus([81000])
    room, _clock = room_of(gpus, proc)
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody, room=room)
    launcher.start({**plan, "gpus": [0, 1]})
    host.active = "active"
    gpus.free, gpus.processes = [9000], TWO
    with pytest.raises(EngineError, match=r"GPU 1 .*train\.service"):
        launcher.start({**plan, "gpus": [0, 1], "launch_fingerprint": "sha256:bbbb"})
    assert host.count("systemctl", "stop") == 0 and host.active == "active"
    assert sorted(path.name for path in (tmp_path / "instances/chat/generations").iterdir()) == ["1"]


def test_a_launch_that_lacked_memory_is_continued(
    backend: QuadletBackend, host: Any, plan: dict[str, Any], tmp_path: Path, proc: Path
) -> None:
    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    gpus = Gpus([81000])
    room, _clock = room_of(gpus, proc)
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody, room=room)
    launcher.start({**plan, "gpus": [0, 1]})
    host.active = "active"
    # Its own engine ended and left memory behind.
    gpus.free = [9000]
    wanted = {**plan, "gpus": [0, 1], "launch_fingerprint": "sha256:bbbb"}
    with pytest.raises(EngineError, match="no process that nvidia-smi shows"):
        launcher.start(wanted)
    assert host.active == "inactive" and host.restarts == 1
    assert (tmp_path / "instances/chat/current").resolve().name == "1"
    gpus.free = [81000]
    result = launcher.start(wanted)
    assert (result["action"], result["generation"], host.restarts) == ("started", 2, 2)


# Weights


def plan_with_model(folder: Path) -> dict[str, Any]:
    return {"mounts": [{"kind": "cache", "source": "/c"}, {"kind": "model", "source": str(folder)}]}


def test_weights_of_another_model_are_asked_into_the_page_cache(tmp_path: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors", "config.json"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    warmer = warm.start_warming(None, plan_with_model(tmp_path))
    assert warmer is not None
    warmer.join(timeout=10)
    assert warmer.end() == 10000
    # They are there already.
    assert warm.start_warming(plan_with_model(tmp_path), plan_with_model(tmp_path)) is None
    assert warm.start_warming(None, {"mounts": []}) is None


def test_weights_that_do_not_fit_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 5000)
    assert warm.weights(tmp_path, 4999) == [] and len(warm.weights(tmp_path, 5000)) == 1
    assert warm.weights(tmp_path / "nowhere", 5000) == []
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   123456 kB\n")
    assert warm.available_bytes(tmp_path) == 123456 * 1024
    assert warm.available_bytes(tmp_path / "nowhere") == 0


# What is left of an engine that had to be killed


@pytest.mark.parametrize("tool", ["backend", "docker"])
@pytest.mark.parametrize(
    ("result", "instance", "stays"),
    [("timeout", "chat", False), ("timeout", "theirs", True), ("success", "chat", True)],
)
def test_the_container_of_a_killed_engine_does_not_stay(
    request: pytest.FixtureRequest, host: Host, tool: str, result: str, instance: str, stays: bool
) -> None:
    host.active, host.result = "active", result
    host.containers["vllm-chat"] = {"io.socle.instance": instance}
    request.getfixturevalue(tool).stop("chat")
    assert ("vllm-chat" in host.containers) is stays


@pytest.mark.parametrize(("ends_after_s", "kills"), [(3, 0), (25, 1)])
def test_an_engine_whose_start_failed_is_not_waited_for_long(
    backend: QuadletBackend, host: Host, monkeypatch: pytest.MonkeyPatch, ends_after_s: int, kills: int
) -> None:
    now = 0
    killed: list[int] = []
    answer = host._answer

    def stop(words: list[str], text: str | None, on_line: Any) -> tuple[int, str, str]:
        nonlocal now
        if words[:2] == ["systemctl", "stop"]:
            while now < ends_after_s and not killed:
                now += 1
                on_line("")
        if words[:2] == ["systemctl", "kill"]:
            assert words[2:] == ["--signal=SIGKILL", "vllm-chat.service"]
            killed.append(now)
            return 0, "", ""
        return answer(words, text, on_line)

    monkeypatch.setattr(host, "_answer", stop)
    host.active = "activating"
    backend.end("chat", clock=lambda: now)
    assert host.active == "inactive"
    assert killed == [10] * kills, "it has a moment to end by itself"
