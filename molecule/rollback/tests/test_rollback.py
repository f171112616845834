# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A launch that the engine refuses gives way to what was accepted, once, and users are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

KEY = "molecule-6b2c9d0e1f3a4857"
FOLDER = "/var/lib/socle/instances/back"
RECORDS = Path(__file__).resolve().parents[1] / "inventory/.socle/records/lab-cpu-1/back"


@pytest.fixture(scope="module")
def generations(host: Host) -> dict[int, dict[str, Any]]:
    numbers = host.check_output(f"ls {FOLDER}/generations").split()
    return {
        int(number): json.loads(host.file(f"{FOLDER}/generations/{number}/state.json").content_string)
        for number in numbers
    }


def records(kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RECORDS.glob(f"*-{kind}.json"))]


def test_the_run_says_what_failed_and_what_runs(said: dict[str, str]) -> None:
    assert "vllm-back.service did not become ready" in said["failed"] and "SOC-D10" in said["failed"]
    assert "back runs generation 3, which is generation 1 anew, and is accepted by suite smoke." in said["failed"]


def test_what_failed_is_not_tried_again_and_nothing_is_touched(said: dict[str, str]) -> None:
    assert "Will not start back again with the same launch: generation 2 of it failed" in said["refused"]
    assert "back runs generation 3, which is accepted, as before." in said["refused"]


def test_a_generation_that_does_not_exist_is_answered_with_those_that_do(said: dict[str, str]) -> None:
    assert (
        "Cannot bring back generation 99 of back: it has 3 (accepted, generation 1 anew), 2 (failed:" in said["unknown"]
    )


def test_what_serves_and_is_not_right_gives_way_too(said: dict[str, str]) -> None:
    assert "back is not accepted. metrics: expected" in said["unaccepted"]
    assert (
        "remove --disable-log-stats from the flags. back runs generation 5, which is generation 3 anew"
        in said["unaccepted"]
    )


def test_five_generations_are_all_that_there_is(generations: dict[int, dict[str, Any]], host: Host) -> None:
    assert sorted(generations) == [1, 2, 3, 4, 5]
    assert [number for number, one in generations.items() if one["verdict"] == "failed"] == [2, 4]
    assert [generations[number]["restores"] for number in (3, 5)] == [1, 3]
    for link in ("current", "accepted"):
        assert host.check_output(f"readlink {FOLDER}/{link}") == "generations/5"
    same = host.run(f"cmp {FOLDER}/generations/1/vllm-back.container /etc/containers/systemd/vllm-back.container")
    assert same.rc == 0


def test_the_service_answers(host: Host) -> None:
    assert host.service("vllm-back.service").is_running
    asked = f"curl -sf -H 'Authorization: Bearer {KEY}' http://127.0.0.1:8003/v1/models"
    assert "smollm2" in host.check_output(asked).lower()


def test_no_process_or_container_stayed_behind(host: Host) -> None:
    assert host.check_output("podman ps --all --noheading --filter name=vllm-back").count("vllm-back") == 1
    units = host.check_output("systemctl list-units --all --plain --no-legend 'vllm-back*'")
    assert "failed" not in units


def test_the_unit_gives_the_engine_time_to_drain(host: Host) -> None:
    unit = host.file("/etc/containers/systemd/vllm-back.container").content_string
    assert "--shutdown-timeout" in unit and "StopTimeout=120\n" in unit and "TimeoutStopSec=150\n" in unit


def test_the_failure_and_the_way_back_are_on_record() -> None:
    found = [(item["verdict"], item["generation"], item["results"]["restores"]) for item in records("deploy")]
    ways = [("passed", 1, None), ("failed", 2, None), ("passed", 3, 1), ("passed", 4, None), ("passed", 5, 3)]
    assert found == ways
    assert records("deploy")[1]["results"]["diagnosis"]["id"] == "SOC-D10"
    accepted = {number: set() for number in (3, 4, 5)}
    for item in records("acceptance"):
        accepted.setdefault(item["generation"], set()).add(item["verdict"])
    assert [accepted[number] for number in (3, 4, 5)] == [{"passed"}, {"failed"}, {"passed"}]


def test_the_key_is_in_no_record_and_no_output(said: dict[str, str], log: str) -> None:
    assert "did not become ready" in " ".join(log.split())
    texts = [path.read_text() for path in RECORDS.glob("*.json")]
    assert texts and not [text for text in [*texts, *said.values(), log] if KEY in text]
