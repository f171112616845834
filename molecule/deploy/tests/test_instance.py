# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deployment leaves on its host."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host

FOLDER = "/var/lib/socle/instances/keyed"
STORE = "/var/lib/socle/models"


@pytest.fixture(scope="module")
def plan(host: Host) -> dict[str, Any]:
    found = json.loads(host.file(f"{FOLDER}/current/plan.json").content_string)
    assert isinstance(found, dict)
    return found


def test_the_unit_runs_and_comes_back(host: Host) -> None:
    unit = host.file("/etc/containers/systemd/vllm-keyed.container")
    assert (unit.user, unit.group, unit.mode) == ("root", "root", 0o644)
    service = host.service("vllm-keyed.service")
    assert service.is_running
    shown = service.systemd_properties
    assert shown["Restart"] == "always"
    assert shown["NRestarts"] == "0"
    assert shown["Result"] == "success"
    assert shown["FragmentPath"].startswith("/run/systemd/generator/")
    # Started at boot: what Quadlet makes of WantedBy=.
    assert "multi-user.target" in shown["WantedBy"].split()
    # A start limit that trips, and a start that is not cut off while weights load.
    assert shown["StartLimitBurst"] == "4"
    assert host.run("systemctl show vllm-keyed --property=TimeoutStartUSec --value").stdout.strip() == "15min"
    assert host.check_output("systemctl list-units --failed --plain --no-legend 'vllm-keyed*'") == ""


def test_the_container_is_what_was_planned(host: Host, plan: dict[str, Any]) -> None:
    inspected = json.loads(host.check_output("podman inspect vllm-keyed"))[0]
    assert inspected["Image"] == plan["image_digest"].removeprefix("sha256:")
    assert inspected["Config"]["Labels"]["io.socle.launch-fingerprint"] == plan["launch_fingerprint"]
    assert inspected["Config"]["Cmd"] == plan["argv"]
    assert inspected["State"]["Health"]["Status"] == "healthy"
    assert inspected["HostConfig"]["ShmSize"] == plan["shm_size_bytes"]
    model = next(mount for mount in inspected["Mounts"] if mount["Destination"] == plan["model"]["container_path"])
    assert (model["RW"], model["Source"]) == (False, plan["mounts"][0]["source"])


def test_it_listens_on_loopback_alone(host: Host) -> None:
    listening = host.check_output("ss -Hltn 'sport = :8001'").splitlines()
    assert [line.split()[3] for line in listening] == ["127.0.0.1:8001"]


def test_the_api_key_is_enforced(host: Host, api_key: str) -> None:
    def status(path: str, key: str | None) -> str:
        header = f"--header 'Authorization: Bearer {key}'" if key else ""
        return host.check_output(
            f"curl --silent --noproxy '*' --output /dev/null --write-out '%{{http_code}}' {header} "
            f"http://127.0.0.1:8001{path}"
        )

    assert status("/v1/models", None) == "401"
    assert status("/v1/models", "wrong") == "401"
    assert status("/v1/models", api_key) == "200"
    # What systemd's health check asks works without one.
    assert status("/health", None) == "200"


def test_generations(host: Host, plan: dict[str, Any]) -> None:
    assert sorted(host.file(FOLDER).listdir()) == ["accepted", "current", "generations"]
    for link in ("current", "accepted"):
        assert host.check_output(f"readlink {FOLDER}/{link}") == "generations/1"
    assert host.file(f"{FOLDER}/generations").listdir() == ["1"]
    installed = host.file("/etc/containers/systemd/vllm-keyed.container").content_string
    assert host.file(f"{FOLDER}/generations/1/vllm-keyed.container").content_string == installed
    state = json.loads(host.file(f"{FOLDER}/generations/1/state.json").content_string)
    assert (state["applied"], state["verdict"]) == ("started", None)
    assert plan["sealed"] is True
    assert plan["sources"]["max-num-seqs"]["origin"] == "vllm_instances.keyed.flags"
    assert plan["argv"][plan["argv"].index("--max-num-seqs") + 1] == "4"


def test_the_model_store(host: Host, plan: dict[str, Any]) -> None:
    source = plan["mounts"][0]["source"]
    assert source.startswith(f"{STORE}/.store/modelscope/HuggingFaceTB--SmolLM2-135M-Instruct/rev/")
    assert host.check_output(f"readlink -f {STORE}/HuggingFaceTB--SmolLM2-135M-Instruct") == source
    files = dict(
        line.split(" ", 1) for line in host.check_output(f"find {source} -type f -printf '%f %m %U %y\n'").splitlines()
    )
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert set(files.values()) == {"444 0 f"}
    assert host.check_output(f"find {source} -type l") == ""
    # Nothing is under way, and nothing came in wrong.
    assert host.check_output(f"ls {source}/../../stage") == ""


def test_the_records(host: Host) -> None:
    listed = host.check_output("find /var/lib/socle/records -name '*-keyed-*' -printf '%f %m %U\n'").splitlines()
    kinds = [line.split("-keyed-")[1].split("-")[0] for line in listed]
    # The second converge proves itself again, but deployed nothing.
    assert kinds.count("deploy") == 1
    assert kinds.count("acceptance") >= 2
    assert {line.split()[2] for line in listed} == {"0"}
    for line in listed:
        record = json.loads(host.file(f"/var/lib/socle/records/{line.split()[0]}").content_string)
        assert (record["host"], record["instance"], record["verdict"]) == ("lab-cpu-1", "keyed", "passed")
        if record["kind"] == "acceptance":
            checks = {check["id"]: check["status"] for check in record["results"]["checks"]}
            assert checks["api_key"] == "passed"


def test_the_probe(host: Host) -> None:
    python = host.file("/opt/socle/probe/bin/python")
    assert python.exists
    assert host.check_output("/opt/socle/probe/bin/python -c 'import httpx; print(httpx.__version__)'")
    assert host.file("/opt/socle").user == "root"
    assert host.check_output("find /opt/socle -perm -o+w ! -type l") == ""
