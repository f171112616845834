# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs on one host at one moment: one after the other, with the other's name, and nothing is given twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import host_launcher, launch, locks
from ansible_collections.socle.inference.plugins.module_utils._engine.claim import instance_lock
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.locks import LockHeld, locked
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from .conftest import Host
from .test_launch import nobody

ROOT = Path(__file__).parents[3]


@pytest.fixture
def plan(plan: dict[str, Any]) -> dict[str, Any]:
    return {**plan, "mounts": [], "secrets": []}


@pytest.fixture
def other(plan: dict[str, Any]) -> dict[str, Any]:
    """Another instance, on the same port."""
    return {**plan, "instance": "other", "launch_fingerprint": "sha256:oooo"}


class Waiting(Progress):
    """What a person who waits would read, and that somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.said: list[str] = []

    def update(self, phase: str, done: Any = None, total: Any = None, unit: Any = None, detail: Any = None) -> None:
        self.said.append(f"{phase}: {detail}")
        self.began.set()


class Second(threading.Thread):
    """A second run, which is begun where the first one has looked at the host and has not started anything yet."""

    def __init__(self, make: Any, plan: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.progress = Waiting()
        self.result: Any = None
        self._launcher = make(progress=self.progress)
        self._plan = plan

    def run(self) -> None:
        try:
            self.result = self._launcher.start(self._plan)
        except EngineError as error:
            self.result = error
        finally:
            self.progress.began.set()

    def begin(self) -> list[str]:
        self.start()
        assert self.progress.began.wait(60)
        return []


def maker(backend: QuadletBackend, folder: Path) -> Any:
    def make(**options: Any) -> Launcher:
        return Launcher(backend, folder / "instances", Files(), listens=nobody, **options)

    return make


def test_two_instances_launched_at_one_moment_do_not_both_get_the_port(
    backend: QuadletBackend, host: Host, plan: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    make = maker(backend, tmp_path)
    second = Second(make, other)
    assert make(reload_victims=second.begin).start(plan)["action"] == "started"
    second.join(60)
    assert isinstance(second.result, EngineError), second.result
    said = "Cannot start other: the instance chat is starting on this host and holds port 8000; stop it first with"
    assert second.result.message.startswith(said)
    assert host.restarts == 1
    assert f"waiting for another run: launching chat (process {os.getpid()}" in second.progress.said[0]


def test_two_runs_on_one_instance_start_it_once(
    backend: QuadletBackend, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    make = maker(backend, tmp_path)
    second = Second(make, plan)
    first = make(reload_victims=second.begin).start(plan)
    second.join(60)
    assert (first["action"], second.result["action"], second.result["generation"]) == ("started", "none", 1)
    # It waits for the same start, which nobody has proven yet.
    assert second.result["starting"] and host.restarts == 1


def test_a_launch_does_not_wait_for_ever_and_says_for_whom_it_waited(
    backend: QuadletBackend,
    host: Host,
    plan: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "HOST_LOCK_S", 0)
    monkeypatch.setattr(launch, "LOCK_TIMEOUT_S", 0)
    monkeypatch.setenv("SUDO_USER", "alice")
    launcher = maker(backend, tmp_path)()
    with locked(tmp_path / "instances/.lock", "launching other", 0):
        for act in (lambda: launcher.start(plan), lambda: launcher.roll_back("chat")):
            with pytest.raises(
                EngineError, match=r"within 0 s, launching other \(process \d+ of alice, since 2"
            ) as said:
                act()
            assert said.value.message.endswith("; wait for its end, or end that process, then repeat the run.")
        # Neither who only looks, nor who only marks or stops, is kept from it.
        assert launcher.start(plan, check=True)["action"] == "would_start"
        assert not (tmp_path / "instances/chat").exists()
    assert launcher.start(plan)["action"] == "started"
    with instance_lock(tmp_path / "instances/chat", 0), pytest.raises(EngineError) as said:
        launcher.stop("chat")
    assert "another run has been at it for 0 s, changing chat (process " in said.value.message
    assert host.restarts == 1


@pytest.mark.parametrize(
    ("active", "job", "doing", "remedy"),
    [
        ("active", 0, "runs", "stop it first"),
        ("activating", 0, "is starting", "stop it first"),
        # Asked for, and not begun by systemd.
        ("inactive", 77, "is starting", "stop it first"),
        ("failed", 77, "is starting", "stop it first"),
        # It may answer its last requests for minutes.
        ("deactivating", 0, "is ending", "wait for its end, then repeat the run."),
        ("deactivating", 77, "is ending", "wait for its end, then repeat the run."),
    ],
)
def test_a_unit_on_its_way_up_or_down_holds_its_port_and_gpus(
    backend: QuadletBackend,
    host: Host,
    plan: dict[str, Any],
    other: dict[str, Any],
    tmp_path: Path,
    active: str,
    job: int,
    doing: str,
    remedy: str,
) -> None:
    launcher = maker(backend, tmp_path)()
    launcher.start({**plan, "gpus": ["0"]})
    host.others = {"chat": active, "other": "inactive"}
    host.job = job
    with pytest.raises(EngineError, match=rf"the instance chat {doing} on this host and holds port 8000; {remedy}"):
        launcher.start(other)
    with pytest.raises(EngineError, match=rf"the instance chat {doing} on this host and holds GPU 0; {remedy}"):
        launcher.start({**other, "port": 8001, "gpus": ["0"]})
    host.others["chat"], host.job = "inactive", 0
    assert launcher.start(other)["action"] == "started"


def test_a_start_that_systemd_has_not_begun_is_not_asked_for_again(
    backend: QuadletBackend, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher = maker(backend, tmp_path)()
    launcher.start(plan)
    host.active, host.job = "inactive", 77
    assert launcher.start(plan)["action"] == "none" and host.restarts == 1
    assert launcher.stop("chat")["action"] == "stopped"


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "run/launch.lock"
    module = locks.__name__
    code = (
        f"import sys, time; from pathlib import Path; from {module} import locked\n"
        f"with locked(Path({str(path)!r}), 'launching chat', 0): print('held', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            with pytest.raises(LockHeld) as caught, locked(path, "x", 0):
                raise AssertionError("two have it")
            assert caught.value.holder.startswith(f"launching chat (process {process.pid}")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    with locked(path, "launching other", 0):
        assert json.loads(path.read_text())["purpose"] == "launching other"
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\x00",
        b"[" * 5000,
        b"{}",
        b'{"purpose": "a\\u001b[31m", "pid": 1, "since": "2026"}',
        b'{"pid": 1e999}',
    ],
)
def test_what_stands_in_a_lock_s_file_is_not_trusted(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "lock"
    with locked(path, "x", 0):
        path.write_bytes(text)
        with pytest.raises(LockHeld) as caught, locked(path, "y", 0):
            raise AssertionError("two have it")
    assert caught.value.holder == "a process that does not say what it does"


def test_the_failure_of_one_launch_leaves_the_host_to_the_next(
    backend: QuadletBackend, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    def fail() -> list[str]:
        raise EngineError("x")

    with pytest.raises(EngineError, match="x"):
        maker(backend, tmp_path)(reload_victims=fail).start(plan)
    assert maker(backend, tmp_path)().start(plan)["action"] == "started"


def test_all_launches_of_a_host_share_one_lock_whatever_their_state_folders_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_launcher, "HOST", tmp_path / "launch.lock")
    for name in ("a", "b"):
        made = host_launcher.host_launcher("podman", tmp_path / name)
        assert made._host_lock == tmp_path / "launch.lock"
    assert str(locks.HOST).startswith("/run/"), "which no network has"


def test_a_lock_is_for_root_alone(tmp_path: Path) -> None:
    with locked(tmp_path / "lock", "launching chat", 1.0):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
