# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A misspelt variable of a role is told, and nothing that the collection or other people's roles use is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.socle.inference.plugins.plugin_utils.role_values import value_faults
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import (
    OF_PLAYBOOKS,
    misspelt_variables,
    role_variables,
    unknown_variables,
)

from tests.support.playbook import play

ROOT = Path(__file__).parents[3]
USED = (
    "playbooks/**/*.yml",
    "roles/*/tasks/*.yml",
    "roles/*/defaults/*.yml",
    "molecule/**/*.yml",
)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("gpu_driver_brnach", "gpu_driver_branch"),
        ("gpu_driver_reboot_timeout", "gpu_driver_reboot_timeout_s"),
        ("container_engine_docker_sorce", "container_engine_docker_source"),
        ("gpu_container_toolkit_versoin", "gpu_container_toolkit_version"),
        ("model_store_pth", "model_store_path"),
        ("vllm_service_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", None),
        ("probe_locaton", "probe_location"),
    ],
)
def test_a_slip_is_told_with_the_nearest_name(name: str, nearest: str | None) -> None:
    assert unknown_variables([name, "ansible_host"]) == [{"name": name, "nearest": nearest}]


def test_what_roles_have_set_and_register_is_no_slip() -> None:
    known = [name for names in role_variables().values() for name in names]
    assert "container_engine" in known and len(role_variables()) >= 7
    others = ["__gpu_driver_plan", "gpu_driver_result", "probe_python", "gpu_driver", "probe_interval", "probe_url"]
    assert unknown_variables([*known, *others]) == []


def test_nothing_that_the_collection_itself_sets_is_told() -> None:
    texts = [path.read_text(encoding="utf-8") for pattern in USED for path in sorted(ROOT.glob(pattern))]
    keys = {name for text in texts for name in re.findall(r"^\s*-?\s*([a-z_]+):", text, re.MULTILINE)}
    registered = {name for text in texts for name in re.findall(r"register: ([a-z_]+)", text)}
    assert "gpu_driver_facts" in keys
    assert [one["name"] for one in unknown_variables(keys | registered)] == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("vllm_flag_host", "vllm_flags_host"),
        ("vllm_flags_hosts", "vllm_flags_host"),
        ("vllm_instance", "vllm_instances"),
        ("vllm_rule_ignored", "vllm_rules_ignored"),
        ("socle_benchmrk", "socle_benchmark"),
        ("socle_datapath", "socle_data_path"),
    ],
)
def test_a_slip_in_a_variable_of_the_playbooks_is_told(name: str, meant: str) -> None:
    assert misspelt_variables([name, "ansible_host"]) == [f"{name} is no variable of socle (did you mean {meant}?)"]


def test_variables_of_a_site_itself_are_no_slips() -> None:
    assert misspelt_variables(["socle_room", "vllm_port", "vllm_flags", "vllm_hosts", "socle", *OF_PLAYBOOKS]) == []


def test_the_variables_of_the_playbooks_are_those_of_the_documents() -> None:
    text = (ROOT / "docs/inventory.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`((?:socle|vllm)_[a-z_]+)`", text))
    # A key of a serving profile, a variable of a role, which is known by its specification, and an example of a slip.
    assert told - {"vllm_version", "vllm_service_ready_timeout_s", "vllm_flag_host"} == OF_PLAYBOOKS


def test_no_name_of_the_collection_itself_looks_like_a_slip() -> None:
    texts = [path.read_text(encoding="utf-8") for pattern in USED for path in sorted(ROOT.glob(pattern))]
    names = {name for text in texts for name in re.findall(r"\b(?:socle|vllm)_[a-z0-9_]+", text)}
    assert {"socle_instance", "socle_managed", "vllm_flags_host"} <= names
    assert misspelt_variables(names) == []


PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - socle.inference.host_checks:
        facts: {schema: socle.gpu_facts/2, gpus: []}
        intent: "{{ intent | default(omit) }}"
        stage: "{{ stage | default('before') }}"
        root: "{{ tree }}"
        fail: false
        ignore: [SOC-H84]
"""


def test_the_task_tells_the_hosts_own_slips(tmp_path: Path) -> None:
    slip = {"gpu_driver_brnach": 570}
    hosts = {
        "right": {"gpu_driver_branch": "570"},
        "slipped": {**slip, "intent": {"driver_state": "present"}},
        "after": {**slip, "stage": "after"},
    }
    (tmp_path / "tree").mkdir()
    (tmp_path / "ansible.cfg").touch()
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tree": str(tmp_path / "tree"),
    }
    inventory = {"all": {"vars": common, "hosts": hosts}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    done, tasks = play(tmp_path, "-i", "hosts.yml", "play.yml")
    assert done.returncode == 0, done.stdout
    found = {host: result["findings"] for host, result in tasks[-1]["hosts"].items()}
    assert [(one["id"], one["severity"]) for one in found["slipped"]] == [("SOC-H96", "warning")]
    assert "gpu_driver_brnach (did you mean gpu_driver_branch?)" in found["slipped"][0]["message"]
    assert found["right"] == found["after"] == []


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        (
            "gpu_driver_state",
            "Absent",
            'is "Absent", expected one of present, absent, unmanaged (did you mean absent?)',
        ),
        ("gpu_driver_hold", "maybe", 'is "maybe", expected true or false'),
        ("gpu_driver_reboot_timeout_s", "15m", 'is "15m", expected a whole number'),
        ("gpu_driver_version", ["580.178.04"], "is a list, expected a string"),
        ("gpu_driver_services", {"a": 1}, "is a dictionary, expected a list of strings"),
        ("gpu_driver_services", [{"a": 1}], "is a list, expected a list of strings"),
        ("gpu_driver_module_options", "x", 'is "x", expected a dictionary'),
        ("container_engine", "docker ", 'is "docker ", expected one of auto, podman, docker (did you mean docker?)'),
        ("container_engine_restart", "http://u:s3cr-t@host", "is a string, expected one of auto, always, never"),
        ("container_engine_restart", "x" * 100, "is a string, expected one of auto, always, never"),
        ("container_engine_proxy", {"htps": "http://u:s3cr-t@h"}, "has htps, expected {http:, https:, no_proxy:}"),
        ("container_engine_proxy", {"http://u:s3cr-t@h": 1}, "has another key, expected {http:, https:, no_proxy:}"),
        ("container_engine_proxy", {"http": ["http://u:s3cr-t@h"]}, "has a list as http, expected a string"),
        ("container_engine_proxy", "http://u:s3cr-t@h", "is a string, expected {http:, https:, no_proxy:}"),
        ("gpu_container_toolkit_check", None, "is empty, expected one of auto, always, never"),
    ],
)
def test_a_wrong_value_is_told_by_the_name_of_its_variable(name: str, value: object, fault: str) -> None:
    assert value_faults({name: value, "ansible_host": ["x"]}) == [f"{name} {fault}"]


def test_what_the_roles_have_as_defaults_and_what_they_take_is_no_fault() -> None:
    for role in ("container_engine", "gpu_container_toolkit", "gpu_driver"):
        defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text(encoding="utf-8"))
        assert defaults and value_faults(defaults) == []
    taken = {
        "gpu_driver_branch": 580,
        "gpu_driver_hold": "no",
        "gpu_driver_reboot_timeout_s": "900",
        "gpu_driver_services": "train.service",
        "container_engine_nofile": 65536,
        "container_engine_proxy": '{"http": "http://u:p@h"}',
        "gpu_driver_facts": 3,
    }
    assert value_faults(taken) == []


def test_the_task_refuses_wrong_values_by_name_before_it_looks_at_the_host(tmp_path: Path) -> None:
    hosts = {
        "right": {"gpu_driver_state": "{{ wanted }}", "wanted": "absent", "gpu_driver_hold": "{{ not_known_yet }}"},
        "wrong": {
            "gpu_driver_state": "{{ wanted }}",
            "wanted": "Absent",
            "container_engine_proxy": "http://u:s3cr-t@host",
            "intent": {"driver_state": "{{ gpu_driver_state }}"},
        },
    }
    (tmp_path / "tree").mkdir()
    (tmp_path / "ansible.cfg").touch()
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "tree": str(tmp_path / "tree"),
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": common, "hosts": hosts}}), encoding="utf-8")
    done, tasks = play(tmp_path, "-vvv", "-i", "hosts.yml", "play.yml")
    results = tasks[-1]["hosts"]
    assert results["wrong"]["failed"] and results["wrong"]["msg"] == (
        "container_engine_proxy is a string, expected {http:, https:, no_proxy:}; correct it.\n"
        'gpu_driver_state is "Absent", expected one of present, absent, unmanaged (did you mean absent?); correct it.'
        " Nothing was changed."
    )
    assert not results["right"].get("failed"), results["right"]
    assert "s3cr-t" not in done.stdout + done.stderr
