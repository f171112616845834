# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wrong value of a variable of the playbooks is refused by name before a host is asked, and no right one is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.socle.inference.plugins.plugin_utils.playbook_values import (
    KINDS,
    OF_FILES,
    checked_value,
    playbook_value_faults,
    variable_slips,
)
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import OF_PLAYBOOKS

from tests.support.playbook import play

ROOT = Path(__file__).parents[3]

TOLD_ELSEWHERE = {
    # By Ansible, and by the check of names right after this one.
    *("socle_hosts", "socle_instances"),
    # By the planner.
    *("vllm_flags_class", "vllm_flags_group", "vllm_flags_host", "vllm_flags_promoted"),
    *("vllm_instances", "vllm_rules_ignored"),
}

SUITES, WORKLOADS = (
    ", ".join(sorted(path.stem for path in (ROOT / folder).glob("*.yml"))) for folder in ("suites", "workloads")
)
SERIAL = "expected a number of hosts from 1 on, a percentage such as 50%, or a list of both"
GENERATION = "expected the number of a generation (0 lists those that there are)"
TRUTH = "expected true or false"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("socle_generation", "abc", f'is "abc", {GENERATION}'),
        ("socle_generation", "-1", f'is "-1", {GENERATION}'),
        ("socle_generation", -1, f"is -1, {GENERATION}"),
        ("socle_generation", "", f'is "", {GENERATION}'),
        ("socle_generation", "1.5", f'is "1.5", {GENERATION}'),
        ("socle_generation", True, f"is true, {GENERATION}"),
        ("socle_generation", "\u0661", f'is "\u0661", {GENERATION}'),
        pytest.param("socle_generation", 10**5000, f"is a number, {GENERATION}", id="endless"),
        (
            "socle_suite",
            "nosuch",
            f'is "nosuch", expected one of {SUITES}, the files of suites/ in the collection',
        ),
        (
            "socle_suite",
            "smok",
            f'is "smok", expected one of {SUITES}, the files of suites/ in the collection (did you',
        ),
        ("socle_suite", ["smoke"], f"is a list, expected one of {SUITES}, the files of"),
        ("socle_suite", "../suites/smoke", f'is "../suites/smoke", expected one of {SUITES}, the files of'),
        (
            "socle_workloads",
            ["B1", "B9"],
            f'names "B9", expected one of {WORKLOADS}, the files of workloads/ in the coll',
        ),
        ("socle_workloads", "B1,B2", f'names "B1,B2", expected one of {WORKLOADS}, the files of'),
        ("socle_workloads", 7, "names 7, expected one of B1, B2"),
        ("socle_benchmark_params", {"B9": {}}, 'names "B9", expected one of B1, B2'),
        ("socle_benchmark_params", "B2", """is "B2", expected a map such as '{"B2": {"repeats": 5}}'"""),
        ("socle_benchmark", "maybe", 'is "maybe", expected one of missing, always, never'),
        ("socle_benchmark", "Always", 'is "Always", expected one of missing, always, never (did you mean always?)'),
        ("socle_benchmark", None, "is empty, expected one of missing, always, never"),
        ("socle_image_pull", "sometimes", 'is "sometimes", expected one of missing, never'),
        ("socle_serial", "abc", f'is "abc", {SERIAL}'),
        ("socle_serial", 0, f"is 0, {SERIAL}"),
        ("socle_serial", "-2", f'is "-2", {SERIAL}'),
        ("socle_serial", "12.5%", f'is "12.5%", {SERIAL}'),
        ("socle_serial", [1, "x"], f"is a list, {SERIAL}"),
        ("socle_serial", [], f"is a list, {SERIAL}"),
        ("socle_serial", True, f"is true, {SERIAL}"),
        ("socle_max_fail_percentage", "many", 'is "many", expected a number from 0 to 100'),
        ("socle_max_fail_percentage", 101, "is 101, expected a number from 0 to 100"),
        ("socle_max_fail_percentage", "nan", 'is "nan", expected a number from 0 to 100'),
        ("retry", "maybe", f'is "maybe", {TRUTH}'),
        # Ansible's filter takes it for false.
        ("retry", "y", f'is "y", {TRUTH}'),
        ("socle_rollback", "perhaps", f'is "perhaps", {TRUTH}'),
        ("socle_rollback", None, f"is empty, {TRUTH}"),
        ("socle_accept_at_once", "2", f'is "2", {TRUTH}'),
        ("socle_provision", "nein", f'is "nein", {TRUTH}'),
        ("socle_notes", [], f"is a list, {TRUTH}"),
        ("socle_idle_s", "x", 'is "x", expected a whole number of seconds, 0 or more'),
        ("socle_idle_s", -1, "is -1, expected a whole number of seconds, 0 or more"),
        ("socle_format", "xml", 'is "xml", expected one of text, json'),
        ("socle_state_dir", "state", 'is "state", expected an absolute path without'),
        ("socle_opt_dir", "/opt/../x", 'is "/opt/../x", expected an absolute path without'),
        ("socle_redeploy_flags", "max-num-seqs=4", 'is "max-num-seqs=4", expected a map of flags such as'),
        ("socle_redeploy_image", "", 'is "", expected the name of an image'),
        ("socle_data_path", "/nowhere/at/all", "names /nowhere/at/all, which is no folder; correct it or create"),
        ("probe_location", "hst", 'is "hst", expected one of host, controller (did you mean host?)'),
        ("vllm_service_ready_timeout_s", "soon", 'is "soon", expected a whole number'),
        ("socle_suite", "x" * 1000, "is a string, expected one of agent"),
        ("retry", "http://u:s3cr-t@h", f"is a string, {TRUTH}"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(name: str, value: Any, fault: str) -> None:
    (found,) = playbook_value_faults({name: value, "inventory_dir": "/nowhere/inventories/site"})
    assert found.startswith(f"{name} {fault}") and "\n" not in found and len(found) < 300
    if name in KINDS:
        with pytest.raises(AnsibleFilterError, match="Nothing was changed"):
            checked_value(value, name)


@pytest.mark.parametrize(
    "values",
    [
        {"socle_generation": "3"},
        {"socle_generation": 0},
        {"socle_serial": 1},
        {"socle_serial": "50%"},
        {"socle_serial": [1, "5", "100%"]},
        {"socle_max_fail_percentage": "0"},
        {"socle_max_fail_percentage": 33.3},
        {"socle_max_fail_percentage": "25%"},
        *({"retry": word, "socle_rollback": word} for word in (True, False, "yes", "No", "ON", "off", 1, "0")),
        # Of a site's own playbooks, for which it means something else.
        *({"retry": value} for value in (3, {"count": 3}, None)),
        {"socle_idle_s": "0", "socle_benchmark": "never", "socle_image_pull": "never", "socle_format": "json"},
        {"socle_suite": "smoke", "socle_workloads": ["B1"], "socle_benchmark_params": {"B2": {"repeats": 5}}},
        {"socle_workloads": "B2"},
        {"socle_workloads": [{"name": "own", "kind": "generation"}], "socle_benchmark_params": {"own": {}}},
        {"socle_suite": None, "socle_workloads": None, "socle_data_path": None},
        {"socle_state_dir": "/srv/socle/", "socle_opt_dir": "/opt/socle"},
        {"socle_redeploy_flags": {"max-num-seqs": 4}, "socle_redeploy_image": "x:1"},
        {"socle_room": "maybe", "socle_instance": {}, "vllm_instances": 7, "probe_url": {}, "retries": "x"},
    ],
)
def test_what_the_documents_allow_is_no_fault(values: dict[str, Any]) -> None:
    assert playbook_value_faults({**values, "inventory_dir": "/nowhere/inventories/site"}) == []
    for name in KINDS.keys() & values.keys():
        assert checked_value(values[name], name) is values[name]


def test_a_site_s_own_suites_and_workloads_are_known(tmp_path: Path) -> None:
    for place in ("suites/short.yml", "workloads/long.yml"):
        path = tmp_path / "site_data" / place
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    values = {"inventory_dir": str(tmp_path / "inventories/site"), "socle_suite": "short", "socle_workloads": ["long"]}
    assert playbook_value_faults(values) == []
    (found,) = playbook_value_faults({**values, "socle_suite": "shrt"})
    known = SUITES.replace("smoke", "short, smoke")
    said = f'socle_suite is "shrt", expected one of {known}, the files of suites/ in {tmp_path}/site_data, the'
    assert found.startswith(said) and found.endswith("(did you mean short?)")


def test_every_variable_of_the_playbooks_is_judged_here_or_at_a_place_that_is_known() -> None:
    known = KINDS.keys() | set(OF_FILES) | {"socle_data_path"}
    assert known - {"retry"} | TOLD_ELSEWHERE == OF_PLAYBOOKS and not known & TOLD_ELSEWHERE


def test_names_alone_are_judged_as_names() -> None:
    assert variable_slips(["socle_benchmrk", "retry"]) == [
        "socle_benchmrk is no variable of socle (did you mean socle_benchmark?)"
    ]
    both = variable_slips(["socle_benchmrk"], {"retry": "maybe"})
    assert len(both) == 2 and both[1] == f'retry is "maybe", {TRUTH}'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An inventory of one host that fails as soon as it is asked for anything."""
    host = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": "/nowhere/python3"}
    host["vllm_instances"] = {"chat": {"model": "smollm2-135m-instruct"}}
    # What nobody knows yet is told where it is used.
    host["socle_idle_s"] = "{{ known_later }}"
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"one": host}}}))
    return tmp_path


def run(site: Path, playbook: str, *words: str) -> str:
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ansible-playbook"), f"playbooks/{playbook}.yml"),
            *("-i", site / "hosts.json", *words),
        ],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    output = " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in output and "/nowhere/python3" not in output, output
    return output


@pytest.mark.parametrize("playbook", ["deploy", "rollback", "redeploy", "accept", "benchmark", "plan", "endpoint"])
def test_a_playbook_refuses_wrong_values_before_it_asks_a_host(playbook: str, site: Path) -> None:
    wrong = {"socle_suite": "nosuch", "retry": "maybe", "socle_generation": "abc", "socle_serial": "{{ 1 }}"}
    output = run(site, playbook, "-e", json.dumps(wrong))
    said = (
        f'retry is "maybe", {TRUTH}; socle_generation is "abc", {GENERATION}; socle_suite is "nosuch", expected one of'
        f" {SUITES}, the files of suites/ in the collection. Nothing was changed."
    )
    assert said in output, output


@pytest.mark.parametrize("playbook", ["deploy", "rollback", "redeploy", "provision", "site"])
def test_a_play_of_a_wrong_number_of_hosts_does_not_die_of_it(playbook: str, site: Path) -> None:
    output = run(site, playbook, "-e", "socle_serial=abc")
    assert f'socle_serial is "abc", {SERIAL}. Nothing was changed.' in output and "a bug" not in output, output


def test_site_refuses_wrong_values_before_it_changes_a_host(tmp_path: Path) -> None:
    """Its first play asks for facts, and then for what is in the way."""
    (tmp_path / "ansible.cfg").touch()
    task = {"socle.inference.host_checks": {"facts": {"schema": "socle.gpu_facts/2", "gpus": []}, "stage": "before"}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"one": host}}}), encoding="utf-8")
    done, tasks = play(tmp_path, "-i", "hosts.yml", "-e", "socle_benchmark={{ word }}", "-e", "word=maybe", "play.yml")
    result = tasks[-1]["hosts"]["one"]
    assert done.returncode != 0 and result["msg"] == (
        'socle_benchmark is "maybe", expected one of missing, always, never; correct it. Nothing was changed.'
    )
