# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that was killed goes on waiting on the host, and must leave alone what the next run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.claim import Claim, instance_lock
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.launch import Launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.ready import Http, Waiter, await_instance
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from .conftest import Host
from .test_launch import nobody


@pytest.fixture
def launcher(backend: QuadletBackend, tmp_path: Path, plan: dict[str, Any]) -> Launcher:
    plan["mounts"] = []
    return Launcher(backend, tmp_path / "instances", Files(), listens=nobody)


def waiter(backend: QuadletBackend, tmp_path: Path) -> Waiter:
    claim = Claim(tmp_path / "instances/chat", Files())
    return Waiter(backend, "chat", Http("http://127.0.0.1:1"), timeout_s=5, claim=claim, sleep=lambda _seconds: None)


def ours(claim: Claim) -> bool:
    with claim.held() as held:
        return held


@pytest.mark.parametrize("changes", [{}, {"launch_fingerprint": "sha256:bbbb"}], ids=["same launch", "another launch"])
def test_what_a_later_run_started_is_not_stopped(
    launcher: Launcher,
    backend: QuadletBackend,
    host: Host,
    tmp_path: Path,
    plan: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    launcher.start(plan)
    orphan = waiter(backend, tmp_path)
    launcher.start({**plan, **changes}, restart=True)
    host.active, host.sub, stops = "inactive", "dead", host.count("systemctl", "stop")
    with pytest.raises(EngineError, match="another run has launched chat meanwhile") as caught:
        orphan.wait()
    # Without a diagnosis no generation is marked as failed.
    assert "diagnosis" not in caught.value.fields and caught.value.fields["stopped"] is False
    assert host.count("systemctl", "stop") == stops


def test_what_the_own_launch_left_is_stopped(
    launcher: Launcher, backend: QuadletBackend, host: Host, tmp_path: Path, plan: dict[str, Any]
) -> None:
    launcher.start(plan)
    host.active, host.sub = "failed", "failed"
    with pytest.raises(EngineError) as caught:
        waiter(backend, tmp_path).wait()
    assert caught.value.fields["stopped"] is True and caught.value.fields["diagnosis"]
    assert host.count("systemctl", "stop") == 1


def test_the_module_claims_what_it_waits_for(
    launcher: Launcher, backend: QuadletBackend, host: Host, tmp_path: Path, plan: dict[str, Any]
) -> None:
    launcher.start(plan)

    class Interrupted(Progress):
        """The next run launches while this one waits."""

        def update(self, *_args: Any, **_more: Any) -> None:
            if host.active != "inactive":
                launcher.start(plan, restart=True)
                host.active, host.job = "inactive", 0

    host.active, host.job = "activating", 1
    with pytest.raises(EngineError, match="another run has launched chat meanwhile"):
        await_instance(backend, {}, plan, "key", progress=Interrupted(), state_dir=tmp_path)


def test_what_another_run_launched_before_the_wait_began_is_not_ours(
    launcher: Launcher, backend: QuadletBackend, host: Host, tmp_path: Path, plan: dict[str, Any]
) -> None:
    generation = launcher.start(plan)["generation"]
    assert ours(Claim(tmp_path / "instances/chat", Files(), generation))
    launcher.start({**plan, "launch_fingerprint": "sha256:bbbb"})
    assert not ours(Claim(tmp_path / "instances/chat", Files(), generation))
    host.active, host.sub, stops = "failed", "failed", host.count("systemctl", "stop")
    with pytest.raises(EngineError, match="another run has launched chat meanwhile") as caught:
        await_instance(backend, {}, plan, "key", progress=Progress(), state_dir=tmp_path, generation=generation)
    assert "diagnosis" not in caught.value.fields and host.count("systemctl", "stop") == stops


def test_a_launch_under_way_is_another_run_s(launcher: Launcher, tmp_path: Path, plan: dict[str, Any]) -> None:
    launcher.start(plan)
    claim = Claim(tmp_path / "instances/chat", Files())
    assert ours(claim)
    with instance_lock(tmp_path / "instances/chat", timeout_s=0):
        assert not ours(claim)
    assert ours(claim)
    launcher.mark("chat", "accepted")
    assert ours(claim)


def test_nothing_is_made_for_an_instance_that_socle_did_not_launch(tmp_path: Path) -> None:
    assert ours(Claim(tmp_path / "instances/theirs", Files()))
    assert list(tmp_path.iterdir()) == []
