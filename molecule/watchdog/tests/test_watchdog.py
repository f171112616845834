# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real engine that is loaded, then frozen. The tests run in this order."""

from __future__ import annotations

import json
import os
import shlex
import time

import pytest
from testinfra.host import Host

from tests.support.engine_load import CLIENTS, LOAD

WATCHDOG = "socle-watchdog@watched.service"
LOAD_S = float(os.environ.get("SOCLE_WATCHDOG_LOAD_S", "120"))
"""Of saturation; ten minutes of it are in tests/slow/test_watchdog_load.py."""

FOUND_S = 120.0
READY_S = 240.0


def invocation(host: Host) -> str:
    return host.check_output("systemctl show --property=InvocationID --value vllm-watched.service")


def state(host: Host) -> str:
    return host.check_output(f"systemctl show --property=StatusText --value {WATCHDOG}").partition(":")[0]


def wait_for_state(host: Host, wanted: str, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while state(host) != wanted:
        assert time.monotonic() < until, host.run(f"journalctl -u {WATCHDOG} -n 20 --no-pager").stdout
        time.sleep(1)


@pytest.fixture(scope="module")
def model(host: Host) -> str:
    plan = json.loads(host.file("/var/lib/socle/instances/watched/current/plan.json").content_string)
    return str(plan["served_names"][0])


def test_the_watchdog_runs_with_few_rights(host: Host) -> None:
    assert host.service(WATCHDOG).is_running and host.service(WATCHDOG).is_enabled
    wait_for_state(host, "healthy", 60)
    pid = host.check_output(f"systemctl show --property=MainPID --value {WATCHDOG}")
    assert "NoNewPrivs:\t1" in host.file(f"/proc/{pid}/status").content_string


def test_saturation_restarts_nothing(host: Host, api_key: str, model: str) -> None:
    before = invocation(host)
    program = f"python3 -c {shlex.quote(LOAD)} http://127.0.0.1:8003 '{model}' {LOAD_S:.0f} {CLIENTS}"
    load = json.loads(host.check_output(f"printf '%s\\n' '{api_key}' | {program}"))
    assert load["answered"] > 0 and not load["failed"] and min(load["waiting"]) > 0
    assert invocation(host) == before
    log = host.check_output(f"journalctl -u {WATCHDOG} -o cat --no-pager")
    assert "watched stuck:" not in log and "watched restart:" not in log


def test_a_frozen_core_is_found_and_restarted_with_its_evidence(host: Host, api_key: str) -> None:
    wait_for_state(host, "healthy", READY_S)
    before = invocation(host)
    pids = host.check_output("podman top vllm-watched hpid args").splitlines()
    core = next(line.split()[0] for line in pids if "EngineCore" in line)
    host.check_output(f"kill -STOP {core}")
    frozen = time.monotonic()
    log = ""
    while "watched restart:" not in log:
        assert time.monotonic() - frozen < FOUND_S, log
        time.sleep(2)
        log = host.check_output(f"journalctl -u {WATCHDOG} -o cat --no-pager")
    (path,) = host.check_output("ls /var/lib/socle/records/*-watched-incident-*.json").split()
    text = host.file(path).content_string
    assert api_key not in text + log
    results = json.loads(text)["results"]
    assert results["action"] == "restart"
    assert [item["pid"] for item in results["evidence"]["processes"] if item["state"] == "T"] == [int(core)]
    assert "was stopped by a signal" in results["likely_causes"][0]
    wait_for_state(host, "healthy", READY_S)
    assert invocation(host) != before
    assert host.run("systemctl is-failed socle-watchdog-alarm@watched.service").rc != 0
