# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Launches: one restart, only when needed, whatever interrupts them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._engine import host_io, host_launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.changes import unit_diff
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import DockerBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.instances import list_instances
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.modules import vllm_launch

from .conftest import Host


def nobody(_address: str, _port: int) -> bool:
    return False


@pytest.fixture
def launcher(backend: QuadletBackend, tmp_path: Path) -> Launcher:
    return Launcher(backend, tmp_path / "instances", Files(), listens=nobody)


@pytest.fixture
def plan(plan: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The lab's plan, with a cache that a launch may make."""
    plan["mounts"][1]["source"] = str(tmp_path / "cache" / "abc")
    return plan


def info(backend: QuadletBackend, tmp_path: Path) -> dict[str, Any]:
    return list_instances(backend, tmp_path / "instances", Files())[0]


def test_containers_that_a_reload_takes_the_gpus_from_are_named(
    backend: QuadletBackend, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    asked: list[int] = []

    def victims() -> list[str]:
        # While they still have them.
        asked.append(host.count("systemctl", "daemon-reload"))
        return ["trainer", "labeller"]

    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody, reload_victims=victims)
    unsealed = {**plan, "sealed": False, "launch_fingerprint": None}
    for wanted, check in ((unsealed, True), (plan, True), (plan, False)):
        (warning,) = launcher.start(wanted, check=check)["warnings"]
        assert "trainer, labeller; restart them" in warning and "nvidia.com/gpu" in warning
    assert asked == [0, 0, 0] and host.count("systemctl", "daemon-reload") == 1
    assert launcher.start(plan)["warnings"] == [] and len(asked) == 3, "nothing is reloaded"


@pytest.mark.parametrize(("gpus", "named"), [([{"uuid": "GPU-1"}], ["trainer"]), ([], [])])
def test_the_module_looks_for_such_containers_on_hosts_with_gpus(
    gpus: list[dict[str, str]],
    named: list[str],
    plan: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    class Asking(Launcher):
        def start(self, *_given: Any, **_options: Any) -> dict[str, Any]:
            return {"changed": True, "warnings": list(self._obstacles._reload_victims())}

    monkeypatch.setattr(host_launcher, "Launcher", Asking)
    monkeypatch.setattr(vllm_launch.AnsibleModule, "warn", lambda _self, text: told.append(text))
    monkeypatch.setattr(vllm_launch, "unit_diff", lambda *_given: [])
    monkeypatch.setattr(
        host_launcher, "reload_victims", lambda _run, _root, toolkit: ["trainer"] if toolkit == "1.17.8" else []
    )
    options = {"plan": plan, "facts": {"gpus": gpus, "toolkit": {"version": "1.17.8"}}, "state_dir": str(tmp_path)}
    with patch_module_args(options), pytest.raises(SystemExit):
        vllm_launch.main()
    assert told == named


WRONG: dict[str, list[Any]] = {
    "instance": [5, ["chat"], "a\nb", "x" * 300],
    "argv": [None, 5, "x", [1], [None]],
    "port": [None, "8000", True, 0, -1, 1.5, float("nan"), 10**30],
    "image": [None, 5, "", "\ud800"],
    "env": ["x", [1], {"X": None}, {"X": []}],
    "mounts": ["x", [1], [{}], [{"kind": "model", "source": "/a", "target": 5}]],
    "secrets": ["x", [1], [{}], [{"name": "api_key"}]],
    "gpus": [5, "0", [None], [[]]],
    "requires": [5, [5]],
    "network": [5, "\ud800"],
    "shm_size_bytes": ["16g", -1, float("inf"), 10**30],
    "start_timeout_s": ["x", -1, float("nan"), 10**30],
    "engine": [5, "cri-o"],
    "max_model_len": [float("nan"), float("inf"), "\ud800"],
}


@pytest.mark.parametrize("engine", ["podman", "docker"])
@pytest.mark.parametrize("key", WRONG)
def test_a_plan_of_wrong_values_is_refused_in_one_sentence_and_changes_nothing(
    key: str,
    engine: str,
    backend: QuadletBackend,
    docker: DockerBackend,
    host: Host,
    plan: dict[str, Any],
    tmp_path: Path,
) -> None:
    backends = {"podman": backend, "docker": docker}
    launcher = Launcher(backends[engine], tmp_path / "instances", Files(), listens=nobody)
    there = sorted(tmp_path.rglob("*"))
    missing = [{name: value for name, value in plan.items() if name != key}] if key in ("argv", "port", "image") else []
    for wrong in [*missing, *({**plan, key: value} for value in WRONG[key])]:
        for sealed, check in ((True, False), (True, True), (False, True)):
            with pytest.raises(EngineError) as refused:
                launcher.start({**wrong, "sealed": sealed}, check=check)
            said = str(refused.value)
            assert said.endswith(".") and len(said) < 400 and said.isprintable()
    assert sorted(tmp_path.rglob("*")) == there and host.restarts == 0


def test_a_first_launch_starts_and_a_second_does_nothing(
    launcher: Launcher, host: Any, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    first = launcher.start(plan)
    assert (first["changed"], first["action"], first["generation"]) == (True, "started", 1)
    unit = tmp_path / "systemd" / "vllm-chat.container"
    assert unit.read_text() == backend.render(plan)
    assert (tmp_path / "instances/chat/current").resolve().name == "1"
    assert (tmp_path / "cache/abc").is_dir()
    second = launcher.start(plan)
    assert (second["changed"], second["action"], second["generation"]) == (False, "none", 1)
    assert host.restarts == 1 and host.count("systemctl", "daemon-reload") == 1


def test_a_changed_launch_restarts_once_as_the_next_generation(
    launcher: Launcher, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    host.active = "active"
    changed = {**plan, "launch_fingerprint": "sha256:bbbb", "argv": [*plan["argv"], "--max-num-seqs", "8"]}
    result = launcher.start(changed)
    assert (result["action"], result["generation"]) == ("restarted", 2)
    assert result["argv_changes"] == {"added": ["--max-num-seqs 8"], "removed": []}
    assert host.restarts == 2
    assert sorted(path.name for path in (tmp_path / "instances/chat/generations").iterdir()) == ["1", "2"]
    # Back to what ran before: history goes on, it is not rewritten.
    host.active = "active"
    assert launcher.start(plan)["generation"] == 3


def test_failures_of_the_past_are_reset_before_the_restart(launcher: Launcher, host: Any, plan: dict[str, Any]) -> None:
    launcher.start(plan)
    order = [call[1] for call in host.calls if call[0] == "systemctl" and call[1] != "show"]
    assert order == ["daemon-reload", "reset-failed", "restart"]


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_an_instance_that_does_not_run_is_started_again(
    launcher: Launcher, host: Any, plan: dict[str, Any], active: str
) -> None:
    launcher.start(plan)
    host.active = active
    result = launcher.start(plan)
    assert (result["action"], result["generation"], host.restarts) == ("started", 1, 2)


def test_a_unit_that_somebody_edited_is_put_right(
    launcher: Launcher, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    unit = tmp_path / "systemd" / "vllm-chat.container"
    wanted = unit.read_text()
    unit.write_text(wanted + "PodmanArgs=--privileged\n")
    assert launcher.start(plan)["action"] == "restarted"
    assert unit.read_text() == wanted


class Killed(BaseException):
    """As a SIGKILL: no handler of ours catches it."""


class Fuse:
    """Burns at one step, before or after the step's effect."""

    def __init__(self, step: int, after: bool) -> None:
        self.left, self.after, self.burnt = step, after, False

    def around(self, effect: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.burnt = True
            if self.after:
                effect()
            raise Killed
        return effect()


class FusedFiles(Files):
    """Files whose every change may be the last."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        self.fuse.around(lambda: Files.write(self, path, text, mode))

    def ensure_folder(self, path: Path) -> None:
        self.fuse.around(lambda: Files.ensure_folder(self, path))

    def make_folder(self, path: Path, texts: dict[str, str]) -> None:
        self.fuse.around(lambda: Files.make_folder(self, path, texts))

    def point(self, link: Path, target: str) -> None:
        self.fuse.around(lambda: Files.point(self, link, target))

    def remove(self, path: Path) -> None:
        self.fuse.around(lambda: Files.remove(self, path))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", ["nothing", "running", "stopped"])
def test_a_run_killed_at_any_step_is_continued_with_one_restart_in_all(
    tmp_path: Path, plan: dict[str, Any], before: str, after: bool
) -> None:
    for step in range(1, 60):
        host = Host()
        folder = tmp_path / str(step)
        generators = [Path("/bin/true")]
        calm = QuadletBackend(host, folder / "systemd", generators)
        whole = Launcher(calm, folder / "instances", Files(), listens=nobody)
        wanted = dict(plan)
        if before != "nothing":
            whole.start(plan)
            host.active = "active" if before == "running" else "inactive"
            if before == "running":
                wanted = {**plan, "launch_fingerprint": "sha256:bbbb"}
        restarts = host.restarts
        fuse = Fuse(step, after)
        runner: Any = lambda argv, **kw: fuse.around(lambda: host(argv, **kw))  # noqa: B023, E731
        backend = QuadletBackend(runner, folder / "systemd", generators)
        with contextlib.suppress(Killed):
            Launcher(backend, folder / "instances", FusedFiles(fuse), listens=nobody).start(wanted)
        if not fuse.burnt:
            assert step > 8, "the launch has more steps than that"
            return
        host.active = "active" if host.active == "activating" else host.active
        result = whole.start(wanted)
        again = whole.start(wanted)
        assert host.restarts - restarts == 1, f"step {step}: {result}"
        assert again["action"] == "none"
        count = 2 if before == "running" else 1
        generations = sorted(path.name for path in (folder / "instances/chat/generations").glob("[0-9]*"))
        assert generations == [str(number + 1) for number in range(count)]
        assert (folder / "instances/chat/current").resolve().name == str(count)
        state = json.loads((folder / "instances/chat/current/state.json").read_text())
        assert state["applied"] == "started"
    raise AssertionError("the launch does not end")


@pytest.mark.parametrize("where", ["cache", "current", "unit", "full disk"])
def test_what_serves_is_not_stopped_for_a_launch_that_the_disk_refuses(
    where: str, launcher: Launcher, host: Host, plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.start(plan)
    host.active = "active"
    mounts = [plan["mounts"][0], {**plan["mounts"][1], "source": str(tmp_path / "other")}]
    wanted = {**plan, "launch_fingerprint": "sha256:bbbb", "argv": [*plan["argv"], "--x"], "mounts": mounts}
    current = tmp_path / "instances/chat/current"
    if where == "cache":
        (tmp_path / "other").write_text("in its place")
    elif where == "current":
        current.unlink()
        current.mkdir()
    elif where == "unit":
        (tmp_path / "systemd/.vllm-chat.container.new").mkdir()
    else:
        real = os.open

        def full(path: Any, *given: Any, **options: Any) -> int:
            if "systemd" in str(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return real(path, *given, **options)

        monkeypatch.setattr(host_io.os, "open", full)
    for _turn in range(2):
        with pytest.raises(EngineError, match=r"^Cannot launch chat: .* \(.*\); .*, then repeat the run\.$"):
            launcher.start(wanted)
        assert host.active == "active" and host.count("systemctl", "stop") == 0 and host.restarts == 1
    monkeypatch.undo()
    if where == "cache":
        (tmp_path / "other").unlink()
    elif where == "current":
        current.rmdir()
        current.symlink_to("generations/1")
    elif where == "unit":
        (tmp_path / "systemd/.vllm-chat.container.new").rmdir()
    assert launcher.start(wanted)["generation"] == 2 and host.restarts == 2
    assert not list(tmp_path.rglob("*.new"))


@pytest.mark.parametrize("facts", [{"toolkit": "1.17.8"}, {"driver": 580}, {"gpus": "all"}, {"gpus": [0]}], ids=str)
def test_facts_that_are_none_are_refused_by_the_module(
    facts: dict[str, Any], plan: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"plan": {**plan, "gpus": ["0"]}, "facts": facts, "state_dir": str(tmp_path / "state")}
    with patch_module_args(options), pytest.raises(SystemExit):
        vllm_launch.main()
    said = json.loads(capsys.readouterr().out)
    assert said["failed"] and said["msg"].startswith("facts.") and "give a result of gpu_facts" in said["msg"]
    assert not (tmp_path / "state").exists()


def test_a_stop_that_cannot_read_the_unit_is_told(
    launcher: Launcher, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    host.active = "active"
    unit = tmp_path / "systemd/vllm-chat.container"
    unit.unlink()
    unit.mkdir()
    for check in (True, False):
        with pytest.raises(EngineError, match=r"^Cannot stop chat: Is a directory \(.*\.container\); move that folder"):
            launcher.stop("chat", check=check)


def test_a_failed_launch_is_not_repeated_unless_asked(
    launcher: Launcher, host: Any, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    launcher.mark("chat", "failed", "only 8 of 80 GiB are free")
    host.active = "inactive"
    with pytest.raises(EngineError, match=r"generation 1.*only 8 of 80 GiB are free.*-e retry=true"):
        launcher.start(plan)
    assert host.restarts == 1
    assert info(backend, tmp_path)["chat"]["status"] == "failed"
    result = launcher.start(plan, retry=True)
    assert result["action"] == "started" and result["failed_before"]["generation"] == 1
    assert info(backend, tmp_path)["chat"]["status"] == "started"
    # Another launch is free to go, and going back to the failed one is not.
    launcher.mark("chat", "failed", "again")
    launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})
    with pytest.raises(EngineError, match="generation 1"):
        launcher.start(plan)


def tree(folder: Path) -> list[str]:
    """All that a launch may have left, without its lock."""
    return sorted(str(path) for path in folder.rglob("*") if path.name != ".lock")


def test_a_launch_marked_as_failed_that_runs_is_left_as_it_is(
    launcher: Launcher, host: Any, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    host.active = "active"
    launcher.mark("chat", "failed", "wrong answers")
    for check in (True, False):
        result = launcher.start(plan, check=check)
        assert (result["action"], result["changed"], result["starting"]) == ("none", False, False)
        assert "wrong answers" in result["warnings"][0]
        assert result["failed_before"]["generation"] == 1
    assert host.restarts == 1
    # Acceptance decides, not this run.
    assert info(backend, tmp_path)["chat"]["status"] == "failed"
    with pytest.raises(EngineError, match="Will not start"):
        launcher.start({**plan, "start_timeout_s": 9})  # the same fingerprint, another text of the unit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "port 8000;"),
        ({"gpus": ["GPU-a", 2]}, "port 8000 and GPU 2;"),
        ({"port": 8001, "gpus": [0, 2]}, "GPU 2;"),
        ({"port": 8001, "gpus": [0]}, None),
    ],
)
def test_what_another_running_instance_holds_is_not_taken_from_it(
    launcher: Launcher,
    host: Any,
    backend: QuadletBackend,
    plan: dict[str, Any],
    tmp_path: Path,
    change: dict[str, Any],
    words: str | None,
) -> None:
    launcher.start({**plan, "instance": "other", **change})
    host.active, host.others["other"] = "inactive", "active"
    wanted = {**plan, "gpus": [2, 3]}
    left, restarts = tree(tmp_path), host.restarts
    if words is None:
        assert launcher.start(wanted)["action"] == "started"
        return
    with pytest.raises(EngineError, match=r"instance other .*holds") as caught:
        launcher.start(wanted)
    assert words in caught.value.message and "'systemctl stop vllm-other'" in caught.value.message
    assert [path for path in tree(tmp_path) if path not in left] == [str(tmp_path / "instances/chat")]
    assert host.restarts == restarts
    # Nothing but the lock, which is no instance.
    assert info(backend, tmp_path).keys() == {"other"}
    assert list_instances(backend, tmp_path / "instances", Files())[1] == []
    found = launcher.start(wanted, check=True)
    assert found["action"] == "would_start" and found["warnings"] == [caught.value.message]
    unsealed = {**wanted, "sealed": False, "launch_fingerprint": None}
    assert launcher.start(unsealed, check=True)["warnings"] == [caught.value.message]
    host.others["other"] = "inactive"
    assert launcher.start(wanted)["action"] == "started"
    # Once it runs, nothing is to be asked.
    host.others["other"] = "active"
    assert launcher.start(wanted)["action"] == "none"


def test_a_port_that_somebody_listens_on_is_refused(
    backend: QuadletBackend, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    taken: set[int] = {8000}
    asked: list[tuple[str, int]] = []

    def listens(address: str, port: int) -> bool:
        asked.append((address, port))
        return port in taken

    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=listens)
    with pytest.raises(EngineError, match=r"listens on port 8000 of 127\.0\.0\.1 already.*'ss -ltnp'"):
        launcher.start(plan)
    assert asked == [("127.0.0.1", 8000)] and host.restarts == 0
    assert tree(tmp_path / "instances") == [str(tmp_path / "instances/chat")]
    assert not (tmp_path / "systemd").exists()
    taken.clear()
    launcher.start(plan)
    # From here on it is our own engine that listens.
    taken.add(8000)
    assert launcher.start(plan)["action"] == "none"
    for state in ("active", "deactivating"):
        host.active = state
        assert launcher.start({**plan, "launch_fingerprint": f"sha256:{state}"})["action"] == "restarted"
    # ... but not on a port that it moves to.
    taken.add(8001)
    host.active = "active"
    with pytest.raises(EngineError, match="listens on port 8001"):
        launcher.start({**plan, "port": 8001, "launch_fingerprint": "sha256:moved"})


def test_a_start_is_to_be_proven_until_its_generation_was_accepted(
    launcher: Launcher, host: Any, plan: dict[str, Any]
) -> None:
    assert launcher.start(plan)["starting"] is True
    # A run that was interrupted while it waited: the unit still comes up.
    again = launcher.start(plan)
    assert (again["action"], again["starting"]) == ("none", True)
    host.active = "active"
    assert launcher.start(plan)["starting"] is False
    # One that served before and comes up again, after a crash or a reboot.
    launcher.mark("chat", "accepted")
    host.active = "activating"
    assert launcher.start(plan)["starting"] is False
    assert launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})["starting"] is True


def test_only_one_generation_is_accepted(
    launcher: Launcher, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    assert launcher.mark("chat", "accepted")["changed"] is True
    assert launcher.mark("chat", "accepted")["changed"] is False
    assert launcher.start(plan)["action"] == "none"
    assert info(backend, tmp_path)["chat"]["status"] == "accepted"
    launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})
    found = info(backend, tmp_path)["chat"]
    assert (found["status"], found["generation"], found["accepted_generation"]) == ("started", 2, 1)
    launcher.mark("chat", "accepted")
    assert info(backend, tmp_path)["chat"]["accepted_generation"] == 2
    launcher.mark("chat", "failed", "wrong answers")
    found = info(backend, tmp_path)["chat"]
    assert (found["status"], found["accepted_generation"], found["failed_reason"]) == ("failed", None, "wrong answers")


def test_marking_what_is_not_there_says_so(launcher: Launcher) -> None:
    with pytest.raises(EngineError, match="deploy it first"):
        launcher.mark("chat", "accepted")


def test_check_mode_tells_and_touches_nothing(
    launcher: Launcher, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    result = launcher.start(plan, check=True)
    assert (result["action"], result["changed"]) == ("would_start", True)
    assert not (tmp_path / "instances").exists() and not (tmp_path / "systemd").exists() and host.restarts == 0
    launcher.start(plan)
    assert launcher.start(plan, check=True)["action"] == "none"
    changed = {**plan, "launch_fingerprint": "sha256:bbbb", "argv": [*plan["argv"], "--enforce-eager"]}
    result = launcher.start(changed, check=True)
    assert result["action"] == "would_restart" and host.restarts == 1
    diff = unit_diff(result, result["unit_before"], result["unit_after"])
    assert "--enforce-eager" in diff[0]["after"] and diff[1] == {
        "before_header": "engine arguments",
        "after_header": "engine arguments",
        "before": "",
        "after": "--enforce-eager\n",
    }


def test_check_mode_takes_a_plan_whose_model_is_not_there_yet(
    launcher: Launcher, host: Any, plan: dict[str, Any]
) -> None:
    unsealed = {**plan, "sealed": False, "image_digest": None, "launch_fingerprint": None}
    unsealed["mounts"] = [{**plan["mounts"][0], "source": None}]
    with pytest.raises(EngineError, match="not sealed"):
        launcher.start(unsealed)
    assert launcher.start(unsealed, check=True)["action"] == "would_start"
    launcher.start(plan)
    assert launcher.start(unsealed, check=True)["action"] == "none"
    assert launcher.start({**unsealed, "port": 8001}, check=True)["action"] == "would_restart"


def test_stopping_twice_changes_once(launcher: Launcher, host: Any, plan: dict[str, Any]) -> None:
    launcher.start(plan)
    assert launcher.stop("chat", check=True)["action"] == "would_stop" and host.active == "activating"
    assert launcher.stop("chat")["action"] == "stopped"
    assert launcher.stop("chat")["changed"] is False


@pytest.mark.parametrize("how", ["another launch", "stop"])
@pytest.mark.parametrize(("active", "ended"), [("activating", ["chat"]), ("active", [])])
def test_an_engine_that_only_starts_is_ended_without_patience(
    launcher: Launcher,
    backend: QuadletBackend,
    host: Any,
    plan: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    active: str,
    ended: list[str],
) -> None:
    launcher.start(plan)
    host.active = active
    seen: list[str] = []
    end = backend.end
    monkeypatch.setattr(backend, "end", lambda instance: seen.append(instance) or end(instance))
    if how == "stop":
        launcher.stop("chat")
    else:
        launcher.start({**plan, "launch_fingerprint": "sha256:other"})
    assert seen == ended


def test_foreign_and_half_written_folders_are_left_out_with_a_warning(
    launcher: Launcher, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    instances = tmp_path / "instances"
    (instances / "foreign dir").mkdir()
    (instances / "a-file").write_text("x")
    (instances / "empty").mkdir()
    (instances / "chat/generations/2").mkdir()
    (instances / "chat/generations/notes").mkdir()
    (instances / "broken/generations/1").mkdir(parents=True)
    (instances / "broken/generations/1/plan.json").write_text("[1, 2")
    (instances / "broken/current").symlink_to("generations/1")
    found, warnings = list_instances(backend, instances, Files())
    assert list(found) == ["chat"] and found["chat"]["generation"] == 1
    for name in ("foreign dir", "a-file", "empty", "generations/2", "notes", "broken"):
        assert any(name in warning for warning in warnings), name
    # Numbers go on behind what cannot be read.
    assert launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})["generation"] == 3
    assert (instances / "chat/current").resolve().name == "3"


class FullFiles(Files):
    """A file system that fails at the *step*-th change, as the kernel tells it."""

    def __init__(self, step: int, code: int) -> None:
        self.left, self.code = step, code

    def _use(self, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.code, os.strerror(self.code), str(path))

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        self._use(path)
        Files.write(self, path, text, mode)

    def ensure_folder(self, path: Path) -> None:
        self._use(path)
        Files.ensure_folder(self, path)

    def point(self, link: Path, target: str) -> None:
        self._use(link)
        Files.point(self, link, target)


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system"), (errno.EBUSY, "busy")],
)
def test_a_disk_that_refuses_is_one_sentence_and_the_next_run_goes_on(
    backend: QuadletBackend, host: Host, plan: dict[str, Any], tmp_path: Path, code: int, words: str
) -> None:
    for step in range(1, 30):
        instances = tmp_path / str(step)
        host.restarts, host.active = 0, "inactive"
        (tmp_path / "systemd" / "vllm-chat.container").unlink(missing_ok=True)
        files = FullFiles(step, code)
        try:
            Launcher(backend, instances, files, listens=nobody).start(plan)
        except EngineError as error:
            assert error.message.startswith("Cannot launch chat: ") and words in error.message
            assert str(tmp_path) in error.fields["path"] and error.fields["path"] in error.message
            assert "\n" not in error.message
        else:
            assert files.left > 0 and step > 5
            break
        Launcher(backend, instances, Files(), listens=nobody).start(plan)
        assert (instances / "chat/current/state.json").exists() and host.restarts in (1, 2)
    with pytest.raises(EngineError, match=r"Cannot mark chat as failed: .*state\.json\)"):
        Launcher(backend, instances, FullFiles(1, code), listens=nobody).mark("chat", "failed", "x")


def test_a_folder_that_cannot_be_made_is_one_sentence(
    backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "instances").write_text("a file")
    with pytest.raises(EngineError, match=r"Cannot launch chat: .* \(.*instances.*\); "):
        Launcher(backend, tmp_path / "instances", Files(), listens=nobody).start(plan)


def test_a_host_without_instances_has_none(backend: QuadletBackend, tmp_path: Path) -> None:
    assert list_instances(backend, tmp_path / "nowhere", Files()) == ({}, [])


class Move:
    """A host that runs an instance under one engine, and launchers for both."""

    def __init__(self, folder: Path, plan: dict[str, Any], host: Host, files: Files | None = None) -> None:
        self.folder, self.host, self.files, self.plan = folder, host, files or Files(), plan

    def backends(self, runner: Any) -> dict[str, Any]:
        return {
            "podman": QuadletBackend(runner, self.folder / "quadlet", [Path("/bin/true")]),
            "docker": DockerBackend(runner, self.folder / "system", self.folder / "secrets", docker="docker"),
        }

    def launcher(self, engine: str, runner: Any = None, files: Files | None = None) -> Launcher:
        backends = self.backends(runner or self.host)
        mine = backends.pop(engine)
        return Launcher(
            mine, self.folder / "instances", files or self.files, listens=nobody, others=list(backends.values())
        )

    def start(self, engine: str, runner: Any = None, files: Files | None = None) -> dict[str, Any]:
        return self.launcher(engine, runner, files).start({**self.plan, "engine": engine})

    def unit_files(self) -> list[str]:
        found = [*self.folder.glob("quadlet/*"), *self.folder.glob("system/*")]
        return [path.name for path in found if not path.name.startswith(".")]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("old", "new"), [("podman", "docker"), ("docker", "podman")])
def test_an_instance_moves_to_another_engine_also_when_it_is_interrupted(
    tmp_path: Path, plan: dict[str, Any], old: str, new: str, after: bool
) -> None:
    for step in range(1, 80):
        host = Host()
        move = Move(tmp_path / str(step), plan, host)
        move.start(old)
        host.active = "active"
        host.secrets["socle-chat-api_key"] = ("value", "mark")
        fuse = Fuse(step, after)
        runner: Any = lambda argv, **kw: fuse.around(lambda: host(argv, **kw))  # noqa: B023, E731
        with contextlib.suppress(Killed):
            move.start(new, runner, FusedFiles(fuse))
        if not fuse.burnt:
            assert step > 12, "the move has more steps than that"
            return
        host.active = "active" if host.active == "activating" else host.active
        restarts, stops = host.restarts, host.count("systemctl", "stop")
        move.start(new)
        again = move.start(new)
        assert (again["action"], again["generation"]) == ("none", 2), f"step {step}"
        assert move.unit_files() == [f"vllm-chat.{'service' if new == 'docker' else 'container'}"], f"step {step}"
        assert host.enabled == ({"vllm-chat.service"} if new == "docker" else set()), f"step {step}"
        assert host.restarts <= max(restarts, 2) and host.count("systemctl", "stop") <= max(stops, 1)
        if new == "docker":
            assert host.secrets == {}
        found = list_instances(move.backends(host)[new], move.folder / "instances", Files())[0]["chat"]
        assert (found["engine"], found["generations"]) == (new, [1, 2])
    raise AssertionError("the move does not end")


def test_an_engine_that_is_gone_does_not_keep_its_instance(
    tmp_path: Path, plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host()
    move = Move(tmp_path, plan, host)
    move.start("podman")
    host.active = "active"
    answer = host._answer

    def without_podman(words: list[str], *rest: Any) -> Any:
        if words[0] == "podman":
            raise EngineError("Cannot run podman on this host: it is not installed.")
        return answer(words, *rest)

    monkeypatch.setattr(host, "_answer", without_podman)
    assert move.start("docker")["action"] == "restarted"
    assert move.unit_files() == ["vllm-chat.service"]


def test_check_mode_tells_of_a_move_and_makes_none(tmp_path: Path, plan: dict[str, Any]) -> None:
    host = Host()
    move = Move(tmp_path, plan, host)
    move.start("podman")
    host.active = "active"
    result = move.launcher("docker").start({**plan, "engine": "docker"}, check=True)
    assert result["action"] == "would_restart" and result["generation"] == 2
    unsealed = {**plan, "engine": "docker", "sealed": False, "launch_fingerprint": None}
    assert move.launcher("docker").start(unsealed, check=True)["action"] == "would_restart"
    assert move.unit_files() == ["vllm-chat.container"] and host.count("systemctl", "stop") == 0


def test_a_host_that_cannot_give_its_gpus_is_refused_before_anything_is_written(
    host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    conf = tmp_path / "other/etc/containers/containers.conf.d/cdi.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(f'[engine]\ncdi_spec_dirs = ["{tmp_path}/cdi"]\n')
    backend = QuadletBackend(host, tmp_path / "systemd", [Path("/bin/true")], root=tmp_path / "other")
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody)
    plan["gpus"] = [0]
    with pytest.raises(
        EngineError, match=rf"expected a CDI specification with nvidia.com/gpu=0.*{tmp_path}/cdi"
    ) as caught:
        launcher.start(plan)
    assert host.restarts == 0 and tree(tmp_path / "instances") == [str(tmp_path / "instances/chat")]
    assert launcher.start(plan, check=True)["warnings"] == [caught.value.message]
    (tmp_path / "cdi").mkdir()
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}
    (tmp_path / "cdi/nvidia.json").write_text(json.dumps(spec))
    assert launcher.start(plan)["action"] == "started"
    # What runs is not asked again.
    (tmp_path / "cdi/nvidia.json").unlink()
    host.active = "active"
    assert launcher.start(plan)["action"] == "none"
    # One without GPUs needs none.
    assert launcher.start({**plan, "gpus": [], "launch_fingerprint": "sha256:bbbb"})["action"] == "restarted"


def test_versions_that_differ_are_told_before_the_start(
    backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    facts = {"driver": {"version": "570.195.03", "library_version": "580.126.09"}}
    launcher = Launcher(backend, tmp_path / "instances", Files(), listens=nobody, facts=facts)
    with pytest.raises(EngineError, match=r"module is version 570\.195\.03 and the libraries are 580\.126\.09"):
        launcher.start({**plan, "gpus": [0]})


def test_a_docker_without_cdi_starts_no_instance_with_gpus(
    docker: DockerBackend, host: Any, plan: dict[str, Any], tmp_path: Path
) -> None:
    host.cdi_dirs = "[]"
    launcher = Launcher(docker, tmp_path / "instances", Files(), listens=nobody)
    with pytest.raises(EngineError, match=r"Cannot start chat: .* looks nowhere for CDI.*set features\.cdi to true"):
        launcher.start({**plan, "gpus": [0]})
    assert launcher.start(plan)["action"] == "started"
    assert host.enabled == {"vllm-chat.service"}


HAND_MADE = "[Service]\nExecStart=/usr/bin/python3 -m http.server\n"


@pytest.mark.parametrize("new", ["podman", "docker"])
@pytest.mark.parametrize("place", ["quadlet/vllm-chat.container", "system/vllm-chat.service"])
def test_a_unit_that_somebody_else_wrote_is_left_alone(
    tmp_path: Path, plan: dict[str, Any], new: str, place: str
) -> None:
    host = Host()
    host.active = "active"
    move = Move(tmp_path, plan, host)
    theirs = tmp_path / place
    theirs.parent.mkdir()
    theirs.write_text(HAND_MADE)
    said = rf"Will not touch vllm-chat\.service: its unit {theirs} does not begin with .*move the file away"
    with pytest.raises(EngineError, match=said):
        move.start(new)
    with pytest.raises(EngineError, match=said):
        move.launcher(new).stop("chat")
    assert theirs.read_text() == HAND_MADE and len(move.unit_files()) == 1
    assert host.restarts == 0 and host.count("systemctl", "stop") == 0 and host.count("systemctl", "disable") == 0
    assert not (tmp_path / "instances/chat/generations").exists()
    (warning,) = move.launcher(new).start({**plan, "engine": new}, check=True)["warnings"]
    assert "Will not touch vllm-chat.service" in warning


@pytest.mark.parametrize("new", ["podman", "docker"])
@pytest.mark.parametrize("labels", [None, {"com.example": "x"}, {"io.socle.instance": "other"}])
def test_a_container_of_somebody_else_is_not_removed_for_its_name(
    tmp_path: Path, plan: dict[str, Any], new: str, labels: dict[str, str] | None
) -> None:
    host = Host()
    host.containers["vllm-chat"] = labels
    move = Move(tmp_path, plan, host)
    with pytest.raises(EngineError, match=rf"Cannot start chat: {new.title()} has a container vllm-chat without the"):
        move.start(new)
    assert move.unit_files() == [] and host.restarts == 0
    host.containers["vllm-chat"] = {"io.socle.instance": "chat"}
    assert move.start(new)["action"] == "started"


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_an_engine_that_cannot_tell_of_its_containers_is_not_taken_for_one_without(
    tmp_path: Path, plan: dict[str, Any], engine: str
) -> None:
    host = Host()
    host.refuse = "Error: database is locked"
    with pytest.raises(EngineError, match="Cannot look at container vllm-chat: Error: database is locked"):
        Move(tmp_path, plan, host).backends(host)[engine].container_labels("chat")
