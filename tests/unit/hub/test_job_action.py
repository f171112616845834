# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of model_sync: what it prints, how it waits, and the secret that hosts share."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.action import model_sync
from ansible_collections.socle.inference.plugins.action.model_sync import (
    SECRET,
    ActionModule,
    describe_job,
    describe_result,
    relay_token,
    run_secret,
)

ASKED = {"asked": True}
JOB = {
    "phase": "downloading",
    "done": 1 << 30,
    "total": 4 << 30,
    "unit": "B",
    "rate_per_s": 100 << 20,
    "left_s": 31,
    "file": "model-00001.safetensors",
    "source": "gpu1 (10.0.0.1:4123)",
}
GONE = AnsibleConnectionFailure("Failed to connect to the host via ssh.")


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Lets the action wait on *answers*; returns its result and the lines that it printed."""
    lines: list[str] = []
    monkeypatch.setattr(model_sync.display, "display", lines.append)
    monkeypatch.setattr(model_sync, "RETRY_S", 0)

    def run(*answers: Any) -> tuple[dict[str, Any], list[str]]:
        pending = list(answers)

        def ask(args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
            answer = pending.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return dict(answer)

        action = ActionModule.__new__(ActionModule)
        monkeypatch.setattr(action, "_ask", ask, raising=False)
        return action._wait({"repo": "a/A"}, {"inventory_hostname": "gpu2"}), lines

    return run


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Lets the action start a job where each answer takes 20 s; returns its result and the lines that it printed."""
    lines: list[str] = []
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(model_sync.display, "display", lines.append)
    monkeypatch.setattr(model_sync, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda _s: None))

    def run(*answers: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        pending = list(answers)

        def ask(args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
            clock.now += 20
            return pending.pop(0)

        monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
        action = ActionModule.__new__(ActionModule)
        monkeypatch.setattr(action, "_ask", ask, raising=False)
        action._task = SimpleNamespace(args={"state": "started", "repo": "a/A"}, check_mode=False)
        action._play_context = SimpleNamespace(remote_addr=None)
        return action.run(None, {"inventory_hostname": "gpu2"}), lines

    return run


def act(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], seen: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Run the action with *args*; *seen* gets what the host would be asked."""
    action = ActionModule.__new__(ActionModule)

    def ask(given: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        (seen if seen is not None else []).append(given)
        return dict(ASKED)

    monkeypatch.setattr(ActionBase, "run", lambda self, tmp, task_vars: {})
    monkeypatch.setattr(action, "_ask", ask, raising=False)
    action._task = SimpleNamespace(args=args, check_mode=False)
    action._play_context = SimpleNamespace(remote_addr=None)
    return action.run(None, {})


def test_a_line_says_phase_bytes_rate_time_file_and_source() -> None:
    assert describe_job(JOB) == (
        "downloading, 1.0 GiB of 4.0 GiB, 100.0 MiB/s, 31s left, model-00001.safetensors from gpu1 (10.0.0.1:4123)"
    )


def test_a_line_says_what_a_download_waits_for() -> None:
    trouble = "retrying, hub.example through the proxy 10.0.0.1:3128: Connection refused"
    assert describe_job({"phase": "waiting to begin", "trouble": trouble}) == trouble
    assert describe_job({**JOB, "trouble": trouble}).endswith(f"model-00001.safetensors, {trouble}")


def test_the_end_says_what_came_from_where() -> None:
    counted = {"wan": 1 << 20, "lan": 3 << 20, "disk": 0}
    assert describe_result({"bytes": counted}) == "complete, 1.0 MiB from the hub and 3.0 MiB from neighbours"
    assert describe_result({"bytes": {}}) == "complete, nothing received"


def test_each_poll_is_one_line_and_the_result_is_returned(wait: Any) -> None:
    running = {"finished": False, "job": JOB}
    result, lines = wait(running, running, {"finished": True, "changed": True, "bytes": {"lan": 4 << 30}})
    assert result["changed"]
    assert len(lines) == 3 and all(line.startswith("  [gpu2] a/A: ") for line in lines)
    assert "1.0 GiB of 4.0 GiB" in lines[0] and "4.0 GiB from neighbours" in lines[2]


def test_a_job_that_is_over_at_once_prints_nothing(wait: Any) -> None:
    assert wait({"finished": True, "changed": False}) == ({"finished": True, "changed": False}, [])


def test_a_failure_prints_its_last_line(wait: Any) -> None:
    result, lines = wait({"failed": True, "msg": "first\nthe reason"})
    assert result["failed"] and lines == ["  [gpu2] a/A: the reason"]


def test_a_connection_that_breaks_is_made_again(wait: Any) -> None:
    result, lines = wait(GONE, {"finished": True, "changed": True})
    assert result["finished"]
    assert lines == ["  [gpu2] a/A: connection lost, the download goes on without it"]


def test_a_host_that_stays_away_is_given_up_and_its_download_is_not(wait: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_sync, "LOST_S", -1)
    with pytest.raises(AnsibleConnectionFailure, match="goes on without the connection: run again to wait for it"):
        wait(GONE)


def test_all_processes_of_a_run_share_one_secret_that_nobody_else_reads(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(run_secret(tmp_path))) for _number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found[0]) == 32
    (place,) = tmp_path.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_secrets_that_killed_runs_left_go_with_the_next_run_and_those_of_living_runs_stay(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = {
        "ended": f"ansible-local-{ended.pid}abc_1234",
        "alive": f"ansible-local-{os.getppid()}12345678",
        "own": f"ansible-local-{os.getpid()}abcdefgh",
        "own number before": f"ansible-local-{os.getpid()}bcdefghi",
        "none of Ansible's": "elsewhere",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
    for what in ("ended", "alive", "own number before", "none of Ansible's"):
        run_secret(tmp_path / names[what]) if what == "alive" else (tmp_path / names[what] / SECRET).write_bytes(b"x")
    (tmp_path / names["ended"] / f"{SECRET}.1.abcd").write_bytes(b"staged")
    run_secret(tmp_path / names["own"])
    left = {what for what, name in names.items() if any((tmp_path / name).iterdir())}
    assert left == {"alive", "own", "none of Ansible's"}


def test_folders_of_other_runs_may_go_while_they_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ansible-local-1abcdefgh", "ansible-tmp-1700000000.1-1-1"):
        (tmp_path / name).mkdir()
    scandir = os.scandir

    def vanishing(place: Any) -> Any:
        if Path(place) != tmp_path:
            raise FileNotFoundError(2, "No such file or directory", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", vanishing)
    monkeypatch.setattr(model_sync, "_is_alive", lambda _pid: False)
    model_sync.forget_secrets(tmp_path / "ansible-local-2abcdefgh")


@pytest.mark.parametrize("state", ["inspected", "started"])
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::", "224.0.0.251", "ff02::1", "255.255.255.255", "fe80::1"),
        *("169.254.1.1", "::ffff:127.0.0.1", "gpu1", "10.0.0.5/24"),
    ],
)
def test_an_address_that_no_neighbour_reaches_is_refused_before_a_host_is_asked(
    monkeypatch: pytest.MonkeyPatch, state: str, address: str
) -> None:
    result = act(monkeypatch, {"state": state, "repo": "a/A", "lan_address": address})
    assert result["failed"] and result["msg"].count(". ") == 0
    assert result["msg"].startswith("model_store_lan_address must be an address of the host that its neighbours reach")
    assert repr(address) in result["msg"]


@pytest.mark.parametrize("address", ["10.0.0.5", "8.8.8.8", "fd00::5", "fe80::1%eth1", "2001:db8::5", None])
def test_other_addresses_are_left_to_the_host(monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
    assert act(monkeypatch, {"state": "inspected", "repo": "a/A", "lan_address": address}) == {"asked": True}


SERVING = {"failed": True, "msg": "other hosts take a/A from this host in another run", "serving": True}


def test_neighbours_of_a_killed_run_are_given_time_to_fall_silent(start: Any) -> None:
    result, lines = start(SERVING, SERVING, {"port": 4123})
    assert result == {"port": 4123}
    assert lines == ["  [gpu2] a/A: waiting, other hosts took it from here just now in another run"] * 2


def test_neighbours_that_go_on_are_left_alone(start: Any) -> None:
    result, lines = start(*[SERVING] * 4)
    assert result == SERVING and len(lines) == 2


def test_what_else_fails_is_not_tried_again(start: Any) -> None:
    assert start({"failed": True, "msg": "no room"}) == ({"failed": True, "msg": "no room"}, [])


def test_a_job_is_begun_and_ended_in_the_name_of_one_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(model_sync.constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    for state in ("started", "stopped"):
        act(monkeypatch, {"state": state, "repo": "a/A"}, seen)
    assert seen[0]["run"] == seen[1]["run"] != ""
    assert run_secret(tmp_path).hex() not in str(seen)


def test_each_model_and_each_run_has_a_token_of_its_own() -> None:
    one, other = {"content_id": "sha256:1"}, {"content_id": "sha256:2"}
    assert relay_token(b"a", one) == relay_token(b"a", one)
    assert len({relay_token(b"a", one), relay_token(b"a", other), relay_token(b"b", one)}) == 3
