# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody edited, damaged or removed below the folder of instances stops no run, and is never taken for sound."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.instances import list_instances
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

from .conftest import Host

Damage = Callable[[Path], Any]


@pytest.fixture
def launcher(backend: QuadletBackend, tmp_path: Path) -> Launcher:
    return Launcher(backend, tmp_path / "instances", Files(), listens=lambda _address, _port: False)


@pytest.fixture
def plan(plan: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    plan["mounts"][1]["source"] = str(tmp_path / "cache")
    return plan


def in_plan(**changes: Any) -> Damage:
    def damage(generation: Path) -> None:
        path = generation / "plan.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def in_state(generation: Path, **changes: Any) -> None:
    path = generation / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def relink(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def nested(depth: int) -> Any:
    value: Any = 1
    for _level in range(depth):
        value = [value]
    return value


DAMAGES: dict[str, Damage] = {
    "nested": lambda generation: (generation / "plan.json").write_text("[" * 100_000),
    "argv is a number": in_plan(argv=5),
    "argv of numbers": in_plan(argv=[1, 2]),
    "no port": in_plan(port=None),
    "mounts is a text": in_plan(mounts="x"),
    "a mount without a source": in_plan(mounts=[{"kind": "model"}]),
    "gpus is a number": in_plan(gpus=5),
    "sources of texts": in_plan(sources={"max-num-seqs": "4"}),
    "a limit of no number": in_plan(start_timeout_s="x"),
    "memory without end": in_plan(shm_size_bytes=10**30),
    "another engine": in_plan(engine="cri-o"),
    "a secret of no line": in_plan(secrets=[{"name": "a\nb", "target": "X"}]),
    "another instance's": in_plan(instance="other"),
    "a plan of nothing": lambda generation: (generation / "plan.json").write_text("{}"),
    "an empty plan": lambda generation: (generation / "plan.json").write_text(""),
    "no plan": lambda generation: (generation / "plan.json").unlink(),
    "a list": lambda generation: (generation / "plan.json").write_text("[]"),
    "a plan without end": lambda generation: (generation / "plan.json").write_bytes(b" " * (5 << 20)),
    "an endless plan": lambda generation: relink(generation / "plan.json", "/dev/zero"),
    "deep within": in_plan(env={"a": nested(200)}),
    "half a character": in_plan(image="\ud800"),
    "no number": in_plan(max_model_len=float("nan")),
    "a port beyond all": in_plan(port=10**30),
    "a port below all": in_plan(port=-1),
    "a mount of no path": in_plan(mounts=[{"kind": "model", "source": "/a\0b", "target": "/b"}]),
    "a state without end": lambda generation: (generation / "state.json").write_bytes(b" " * (2 << 20)),
    "a state of half a character": lambda generation: in_state(generation, reason="\ud800"),
    "a state of no map": lambda generation: (generation / "state.json").write_text("7"),
    "no unit": lambda generation: (generation / "vllm-chat.container").unlink(),
    "a unit of no text": lambda generation: (generation / "vllm-chat.container").write_bytes(b"\xff"),
    "half a state": lambda generation: (generation / "state.json").write_text('{"schema": "socle.gen'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_generation_is_ignored_with_a_warning_and_replaced(
    damage: Damage, launcher: Launcher, host: Host, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    host.active = "active"
    launcher.mark("chat", "accepted")
    damage(tmp_path / "instances/chat/generations/1")
    found, warnings = list_instances(backend, tmp_path / "instances", Files())
    (warning,) = (warning for warning in warnings if "generations/1 " in warning)
    assert found == {} and "\n" not in warning
    assert warning.endswith("; put that file right, or remove the folder.")
    assert any(file in warning for file in ("plan.json", "state.json", "its unit "))
    with pytest.raises(EngineError, match="none is accepted"):
        launcher.roll_back("chat")
    assert launcher.stop("chat", check=True)["action"] == "would_stop"
    # Neither the instance itself nor one beside it is kept from its start.
    beside = {**plan, "instance": "beside", "port": 8001, "launch_fingerprint": "sha256:cccc"}
    host.others["beside"] = "inactive"
    assert launcher.start(beside)["generation"] == 1
    assert launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})["generation"] == 2
    assert list_instances(backend, tmp_path / "instances", Files())[0]["chat"]["status"] == "started"


def test_a_number_after_which_none_comes_is_told(
    launcher: Launcher, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "instances/chat"
    (folder / "generations/999999999").mkdir(parents=True)
    with pytest.raises(EngineError, match=rf"has the number 999999999, the last .*; remove that folder, .* {folder}\."):
        launcher.start(plan)
    assert host.restarts == 0
    (folder / "generations/999999999").rmdir()
    assert launcher.start(plan)["generation"] == 1


def test_nothing_is_kept_that_would_not_be_read_again(
    launcher: Launcher, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"Cannot keep the plan of chat: it has \d+ KiB, .*; shorten flags, env"):
        launcher.start({**plan, "evidence": "x" * (5 << 20)})
    assert host.restarts == 0 and not (tmp_path / "systemd").exists()
    launcher.start(plan)
    host.active = "active"
    for _turn in range(2):
        result = launcher.mark("chat", "failed", "x" * (5 << 20))
    # Cut in the same way each time, it is the same reason.
    assert result["changed"] is False
    state = json.loads((tmp_path / "instances/chat/generations/1/state.json").read_text())
    assert state["reason"] == "x" * 10_000


@pytest.mark.parametrize("place", ["instances", "instances/chat"])
def test_what_is_in_the_place_of_the_instances_is_no_traceback(
    place: str, backend: QuadletBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    if place == "instances":
        path.write_text("a file")
    else:
        path.mkdir()
        real = Path.iterdir

        def broken(self: Path) -> Any:
            if self.name == "chat":
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
            return real(self)

        monkeypatch.setattr(Path, "iterdir", broken)
    with pytest.raises(EngineError, match=rf"Cannot list the instances of this host: .* \({path}\); "):
        list_instances(backend, tmp_path / "instances", Files())


@pytest.mark.parametrize("name", ["²", "٣", "01", "1" * 20])
def test_a_folder_that_is_only_nearly_a_number_is_no_generation(
    name: str, launcher: Launcher, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    folder = tmp_path / "instances/chat"
    shutil.copytree(folder / "generations/1", folder / "generations" / name)
    (folder / "accepted").symlink_to(f"generations/{name}")
    found, warnings = list_instances(backend, tmp_path / "instances", Files())
    assert found["chat"]["generations"] == [1] and found["chat"]["accepted_generation"] is None
    assert len(warnings) == 2


def test_the_launch_after_a_removed_accepted_generation_is_not_accepted_by_its_link(
    launcher: Launcher, host: Host, backend: QuadletBackend, plan: dict[str, Any], tmp_path: Path
) -> None:
    launcher.start(plan)
    host.active = "active"
    launcher.mark("chat", "accepted")
    shutil.rmtree(tmp_path / "instances/chat/generations/1")
    assert launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})["generation"] == 2
    found = list_instances(backend, tmp_path / "instances", Files())[0]["chat"]
    assert (found["status"], found["accepted_generation"]) == ("started", None)


def test_what_is_in_the_lock_s_place_is_told_as_that_and_never_written_through(
    launcher: Launcher, plan: dict[str, Any], tmp_path: Path
) -> None:
    lock = tmp_path / "instances/chat/.lock"
    lock.mkdir(parents=True)
    with pytest.raises(EngineError, match=r"Cannot launch chat: Is a directory \(.*\.lock\)"):
        launcher.start(plan)
    lock.rmdir()
    precious = tmp_path / "precious"
    precious.write_text("kept")
    lock.symlink_to(precious)
    with pytest.raises(EngineError, match=r"Cannot launch chat: .*\.lock"):
        launcher.start(plan)
    assert precious.read_text() == "kept"


def test_a_mark_keeps_what_another_run_noted_meanwhile(
    launcher: Launcher, plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.start(plan)
    path = tmp_path / "instances/chat/generations/1/state.json"
    lock = launcher._lock

    def held(instance: str) -> Any:
        path.write_text(json.dumps({**json.loads(path.read_text()), "applied": "starting"}))
        return lock(instance)

    monkeypatch.setattr(launcher, "_lock", held)
    launcher.mark("chat", "failed", "it ended.")
    state = json.loads(path.read_text())
    assert (state["applied"], state["verdict"]) == ("starting", "failed")
