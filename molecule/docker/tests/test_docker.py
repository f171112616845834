# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deployment under Docker leaves on its host, and how it comes back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from testinfra.host import Host

from tests.support.key_places import SECRETS, assert_absent, places

FOLDER = "/var/lib/socle/instances/keyed"
UNIT = "/etc/systemd/system/vllm-keyed.service"
START_S = 600
"""More than a start takes on a busy machine."""
UPPER = "$(docker inspect --format '{{.GraphDriver.Data.UpperDir}}' vllm-keyed)"
PLACES = places(
    "keyed",
    {
        "Docker": "docker inspect vllm-keyed; find /var/lib/containers/docker/containers -type f -exec cat {} +",
        "container layer": f"echo {UPPER}; find {UPPER} -xdev -type f -exec cat {{}} +",
    },
)


@pytest.fixture(scope="module")
def plan(host: Host) -> dict[str, Any]:
    found = json.loads(host.file(f"{FOLDER}/current/plan.json").content_string)
    assert isinstance(found, dict)
    return found


def status(host: Host, path: str, key: str | None = None) -> str:
    header = f"--header 'Authorization: Bearer {key}'" if key else ""
    # No answer at all is "000".
    return host.run(
        "curl --silent --noproxy '*' --max-time 10 --output /dev/null --write-out '%{http_code}' "
        f"{header} http://127.0.0.1:8001{path}"
    ).stdout


def wait_for_another_run(host: Host, invocation: str) -> None:
    deadline = time.monotonic() + START_S
    shown: dict[str, str] = {}
    while time.monotonic() < deadline:
        shown = host.service("vllm-keyed.service").systemd_properties
        if shown["InvocationID"] != invocation and shown["ActiveState"] == "active":
            return
        time.sleep(1)
    raise AssertionError(f"the unit is {shown.get('ActiveState')}, {shown.get('SubState')} after {START_S} s")


def test_the_unit_runs_and_comes_back_at_boot(host: Host) -> None:
    unit = host.file(UNIT)
    assert (unit.user, unit.group, unit.mode) == ("root", "root", 0o644)
    service = host.service("vllm-keyed.service")
    assert service.is_running and service.is_enabled
    shown = service.systemd_properties
    assert (shown["Restart"], shown["NRestarts"], shown["Result"]) == ("always", "0", "success")
    assert "docker.service" in shown["Requires"].split() and "docker.service" in shown["After"].split()
    assert not host.file("/etc/containers/systemd/vllm-keyed.container").exists
    assert host.file(f"{FOLDER}/generations/1/vllm-keyed.service").content_string == unit.content_string


def test_the_container_is_what_was_planned(host: Host, plan: dict[str, Any]) -> None:
    assert plan["engine"] == "docker"
    inspected = json.loads(host.check_output("docker inspect vllm-keyed"))[0]
    assert inspected["Image"] == plan["image_digest"]
    assert inspected["Config"]["Labels"]["io.socle.launch-fingerprint"] == plan["launch_fingerprint"]
    assert inspected["Config"]["Cmd"][-len(plan["argv"]) :] == plan["argv"]
    assert inspected["HostConfig"]["ShmSize"] == plan["shm_size_bytes"]
    # systemd restarts it and has its output: Docker does neither.
    assert inspected["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
    assert inspected["HostConfig"]["LogConfig"]["Type"] == "none"
    model = next(mount for mount in inspected["Mounts"] if mount["Destination"] == plan["model"]["container_path"])
    assert (model["RW"], model["Source"]) == (False, plan["mounts"][0]["source"])


def test_its_output_is_in_the_journal(host: Host) -> None:
    assert "Application startup complete" in host.check_output("journalctl --no-pager --unit=vllm-keyed.service")


def test_the_api_key_is_enforced_and_is_in_files_of_root_alone(host: Host, api_key: str) -> None:
    assert [status(host, "/v1/models", key) for key in (None, "wrong", api_key)] == ["401", "401", "200"]
    modes = dict(line.split() for line in host.check_output(f"find {SECRETS} -printf '%p %m:%U:%y\n'").splitlines())
    assert {modes[path] for path in modes if "." in path or path.endswith(("env", "api_key"))} == {"600:0:f"}
    assert {modes[SECRETS], modes[f"{SECRETS}/keyed"]} == {"700:0:d"}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_key_is_nowhere_else_on_the_host(host: Host, api_key: str, place: str) -> None:
    assert_absent(host, place, api_key)


def test_the_records_name_docker(host: Host) -> None:
    listed = host.check_output("find /var/lib/socle/records -name '*-keyed-*'").splitlines()
    records = [json.loads(host.file(path).content_string) for path in listed]
    assert sorted({record["kind"] for record in records}) == ["acceptance", "benchmark", "deploy"]
    # The second run deployed and measured nothing.
    assert [record["kind"] for record in records].count("deploy") == 1
    assert [record["kind"] for record in records].count("benchmark") == 1
    assert {record["verdict"] for record in records} == {"passed"}
    assert {record["environment"]["engine"]["name"] for record in records} == {"docker"}


@pytest.mark.parametrize("victim", ["engine", "client", "daemon"])
def test_whatever_is_killed_it_serves_again(host: Host, api_key: str, victim: str) -> None:
    invocation = host.service("vllm-keyed.service").systemd_properties["InvocationID"]
    process = {
        "engine": "$(docker top vllm-keyed -o pid,args | awk '/EngineCore/ {print $1; exit}')",
        "client": "$(systemctl show --property=MainPID --value vllm-keyed.service)",
        "daemon": "$(systemctl show --property=MainPID --value docker.service)",
    }[victim]
    host.check_output(f"kill -9 {process}")
    wait_for_another_run(host, invocation)
    assert status(host, "/v1/models", api_key) == "200"
    assert host.check_output("docker ps --all --quiet | wc -l") == "1"


def test_a_stop_while_it_starts_takes_no_minute(host: Host) -> None:
    # What was killed before counts towards the limit of starts.
    host.check_output("systemctl reset-failed vllm-keyed.service; systemctl restart --no-block vllm-keyed.service")
    deadline = time.monotonic() + START_S
    while not host.run(
        "systemctl show --property=SubState vllm-keyed | grep start-post && docker top vllm-keyed"
    ).succeeded:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    # Into the time in which it loads.
    time.sleep(10)
    # vLLM loses a SIGTERM that comes while it loads; the stop must not wait for it until TimeoutStopSec.
    assert host.run("timeout 60 systemctl stop vllm-keyed.service").rc == 0
    assert host.check_output("docker ps --all --quiet") == ""
