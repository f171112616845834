# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml is killed at random moments, and run again: it always converges.

SOCLE_KILLS is the number of kills (default 5) and SOCLE_KILLS_SEED repeats what an earlier run printed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import lab

KILLS = int(os.environ.get("SOCLE_KILLS", "5"))
SEED = int(os.environ.get("SOCLE_KILLS_SEED") or random.randrange(1_000_000))
LONGEST_S = 60.0
"""About what a run from a host with nothing takes; an engine start is half of it."""

END = "done before it was killed"

RESET = """
systemctl stop 'vllm-*' 2>/dev/null || true
rm -f /etc/containers/systemd/vllm-*
systemctl daemon-reload
podman rm --all --force >/dev/null
podman secret rm --all >/dev/null
rm -rf /var/lib/socle /opt/socle
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """inventories/lab with records of its own, so that nothing is known of the host's past."""
    folder = tmp_path / "inventories" / "lab"
    shutil.copytree(lab.INVENTORY, folder, ignore=shutil.ignore_patterns(".socle"))
    return folder


def _reset_host(inventory: Path) -> None:
    lab.play("playbooks/lab.yml", inventory=inventory).expect_success()
    lab.on_host(RESET)


def _remove_lab(inventory: Path) -> None:
    lab.play("playbooks/lab.yml", "-e", "virtual_lab_state=absent", inventory=inventory).expect_success()


def _kill_a_run(inventory: Path, after_s: float, log: Path) -> str:
    """Start site.yml and kill its whole process group; the task that it was at."""
    with log.open("w") as output:
        process = subprocess.Popen(
            lab.command("site.yml", inventory=inventory),
            cwd=lab.PROJECT,
            env=lab.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=after_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    text = log.read_text()
    if code is not None:
        assert code == 0, f"a run before which others were killed failed:\n{text[-6000:]}"
        return END
    tasks = [line for line in text.splitlines() if line.startswith("TASK [")]
    return tasks[-1].rstrip("*").strip() if tasks else "its start"


@pytest.mark.parametrize("start", [_reset_host, _remove_lab], ids=["host with nothing", "no host"])
def test_killed_runs_converge(
    start: Callable[[Path], None], inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(f"{SEED} {start.__name__}")
    with capsys.disabled():
        print(f"\nSOCLE_KILLS_SEED={SEED} SOCLE_KILLS={KILLS}")
    kills, reached = 0, END
    while kills < KILLS:
        if reached == END:
            start(inventory)
            # Records would tell of a benchmark in the host's former life.
            shutil.rmtree(inventory / ".socle", ignore_errors=True)
        after_s = dice.uniform(0.3, LONGEST_S)
        reached = _kill_a_run(inventory, after_s, tmp_path / f"run-{kills}.log")
        kills += reached != END
        with capsys.disabled():
            print(f"{after_s:.1f} s: {reached}")

    began = time.time()
    lab.play("site.yml", inventory=inventory).expect_success()
    _expect_converged(inventory, began)

    unit = lab.unit()
    benchmarks = lab.spool("benchmark")
    again = lab.play("site.yml", inventory=inventory).expect_success()
    assert again.changed == 0
    assert lab.unit() == unit
    assert lab.spool("benchmark") == benchmarks


def _expect_converged(inventory: Path, began: float) -> None:
    state = lab.inventory_host(inventory=inventory)["socle_state"]["instances"][lab.INSTANCE]
    assert state["accepted"] is True
    assert set(state["benchmark"]) == {"B1", "B2"}
    assert state["drift"] == []
    assert "Paris" in lab.ask("What is the capital of France?")

    unit = lab.unit()
    assert (unit["ActiveState"], unit["NRestarts"]) == ("active", "0")
    running = lab.on_host("systemctl list-units --all --plain --no-legend 'vllm-*.service'").splitlines()
    assert [line.split()[0] for line in running] == [f"vllm-{lab.INSTANCE}.service"]
    assert lab.on_host("podman ps --all --format '{{.Names}}'").split() == [f"vllm-{lab.INSTANCE}"]

    # Whatever a killed run left half done is gone, or was finished.
    leftovers = lab.on_host(
        "find /var/lib/socle -path '*/stage/*' -o -name '*.new' -o -name '.tmp*' -o -name '*.part'; "
        f"find /var/lib/socle/records -name '.*' ! -newermt @{int(began)} -type f"
    ).split()
    assert leftovers == []
    link = f"/var/lib/socle/instances/{lab.INSTANCE}"
    plan = json.loads(lab.on_host(f"cat {link}/current/plan.json"))
    assert plan["sealed"] is True
    assert lab.on_host(f"readlink {link}/current") == lab.on_host(f"readlink {link}/accepted")
    installed = lab.on_host(f"cat /etc/containers/systemd/vllm-{lab.INSTANCE}.container")
    assert lab.on_host(f"cat {link}/current/vllm-{lab.INSTANCE}.container") == installed
