# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ten minutes of a saturated engine, of which the watchdog thinks nothing; then its core is frozen under that load.

molecule/watchdog freezes an idle one. SOCLE_WATCHDOG_LOAD_S sets another time of saturation. The tests run in this
order.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import lab
from tests.support.engine_load import CLIENTS, LOAD, Load
from tests.support.lab_site import LabSite, python_on_host

NAME = "loaded"
MODEL = "smollm2-135m-instruct"
SEQUENCES = 4
LOAD_S = float(os.environ.get("SOCLE_WATCHDOG_LOAD_S", "600"))
FOUND_S = 120.0
READY_S = 300.0
WATCHDOG = f"socle-watchdog@{NAME}.service"


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    lab.play("playbooks/lab.yml").expect_success()
    made = LabSite(NAME, 8005, tmp_path_factory.mktemp("site"), {"model": MODEL, "flags": {"max-num-seqs": SEQUENCES}})
    try:
        made.deploy().expect_success()
        yield made
    finally:
        made.remove()


def journal(since: float) -> list[tuple[float, str]]:
    """(time, line) of what the watchdog said."""
    text = lab.on_host(f"journalctl -u {WATCHDOG} --since @{since:.0f} -o json --output-fields=MESSAGE --no-pager")
    lines = [json.loads(line) for line in text.splitlines()]
    return [(int(line["__REALTIME_TIMESTAMP"]) / 1e6, str(line["MESSAGE"])) for line in lines]


def clock() -> float:
    """The host's, in seconds of the epoch."""
    return float(lab.on_host("date +%s.%N"))


def state() -> str:
    return lab.on_host(f"systemctl show --property=StatusText --value {WATCHDOG}").partition(":")[0].strip()


def wait_for(wanted: str, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while state() != wanted:
        assert time.monotonic() < until, lab.on_host(f"journalctl -u {WATCHDOG} -n 20 --no-pager")
        time.sleep(2)


def load_arguments(seconds: float) -> list[str]:
    return ["http://127.0.0.1:8005", MODEL, str(seconds), str(CLIENTS)]


def test_saturation_restarts_nothing(instance: LabSite) -> None:
    wait_for("healthy", 60)
    began, before = clock(), lab.unit(NAME)
    load = Load(**json.loads(python_on_host(LOAD, *load_arguments(LOAD_S), timeout_s=LOAD_S + 120)))
    said = [line for _at, line in journal(began)]
    print(
        f"\n{LOAD_S:.0f} s of load: {load.answered} requests of {CLIENTS} clients answered by {SEQUENCES} sequences,"
        f" {load.generated:.0f} tokens generated, {min(load.waiting):.0f} to {max(load.waiting):.0f} waiting;"
        f" the watchdog said {said or 'nothing'}"
    )
    assert load.failed == []
    assert load.answered > 2 * SEQUENCES
    assert min(load.waiting) > 0, "the engine was not saturated"
    assert lab.unit(NAME) == before
    assert not [line for line in said if f"{NAME} stuck:" in line or f"{NAME} restart:" in line]
    assert lab.spool("incident", NAME) == []


@contextlib.contextmanager
def under_load(seconds: float) -> Iterator[None]:
    words = shlex.join(["python3", "-c", LOAD, *load_arguments(seconds)])
    process = subprocess.Popen(
        [*lab.ssh_command("-tt"), words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        yield
    finally:
        # The terminal goes with the connection, and the program with the terminal.
        process.kill()
        process.communicate()


def incident() -> dict[str, Any]:
    (name,) = lab.spool("incident", NAME)
    return dict(json.loads(lab.on_host(f"cat /var/lib/socle/records/{name}")))


def test_a_core_that_stops_under_load_is_found_in_two_minutes(instance: LabSite) -> None:
    wait_for("healthy", READY_S)
    before = lab.unit(NAME)
    core = lab.on_host(f"podman top vllm-{NAME} hpid args | awk '/EngineCore/ {{print $1; exit}}'").strip()
    with under_load(2 * FOUND_S):
        time.sleep(15)
        lab.on_host(f"kill -STOP {core}")
        frozen, began = clock(), time.monotonic()
        restarted: list[float] = []
        while not restarted:
            assert time.monotonic() - began < FOUND_S, journal(frozen)
            time.sleep(2)
            restarted = [at for at, line in journal(frozen) if line.startswith(f"{NAME} restart:")]
    found = [at for at, line in journal(frozen) if line.startswith(f"{NAME} stuck:")]
    record = incident()
    wait_for("healthy", READY_S)
    healthy = clock()
    print(
        f"\nfrozen under load: found after {found[0] - frozen:.0f} s, restarted after {restarted[0] - frozen:.0f} s,"
        f" healthy after {healthy - frozen:.0f} s"
    )
    assert found[0] - frozen < FOUND_S
    assert record["results"]["action"] == "restart"
    assert [each["pid"] for each in record["results"]["evidence"]["processes"] if each["state"] == "T"] == [int(core)]
    assert lab.unit(NAME)["InvocationID"] != before["InvocationID"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "What is 2+2?"}], "max_tokens": 16}
    ((status, answer),) = instance.ask([("/v1/chat/completions", body)])
    assert status == 200 and answer["choices"][0]["message"]["content"]
    assert len(lab.spool("incident", NAME)) == 1
