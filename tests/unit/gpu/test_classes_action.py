# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The class of a host from its own trees: by the facts alone, and by the task as a playbook runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import resolve_class
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath

from tests.support.playbook import play
from tests.unit.gpu.hosts import DRIVER, FIXTURES, PRODUCTS, SMI_TOPO, SMI_XML, Host

ROOT = Path(__file__).parents[3]
CLASSES = dict(Catalogue(DataPath([])).host_classes())

CLASS_OF = {
    "a100_sxm4": "a100_sxm4_80g",
    "a100_pcie": "a100_pcie_80g",
    "a800_sxm4": "a800_sxm4_80g",
    "a800_pcie": "a800_pcie_80g",
    "h100_sxm": "h100_sxm5_80g",
    "h100_pcie": "h100_pcie_80g",
    "h20": "h20_sxm_96g",
    "b200": "b200_sxm_180g",
    "rtx_pro_6000": "rtx_pro_6000",
    "rtx_pro_6000_max_q": "rtx_pro_6000",
    "rtx_5090": "rtx_5090_32g",
    "rtx_4090": "rtx_4090_24g",
    "l40s": "l40s_48g",
}


@pytest.mark.parametrize("key", sorted(PRODUCTS))
def test_a_host_is_of_one_class_with_and_without_its_driver(host: Host, key: str) -> None:
    product = PRODUCTS[key]
    host.gpus(product)
    bare = resolve_class(host.facts(), CLASSES, None, "gpu1")
    host.drive(product)
    driven = resolve_class(host.facts(), CLASSES, None, "gpu1")
    assert (bare.name, bare.count, driven.name, driven.count) == (CLASS_OF[key], 2, CLASS_OF[key], 2)
    assert [*bare.warnings, *driven.warnings] == []
    known = CLASSES[driven.name]
    assert {gpu["compute_capability"] for gpu in host.facts()["gpus"]} == {known.compute_capability}
    assert {gpu["architecture"] for gpu in host.facts()["gpus"]} == {known.architecture}


def test_two_real_h200_are_just_as_their_class_says(host: Host) -> None:
    folder = FIXTURES / "h200_x2"
    host.captured_pci((folder / "pci.txt").read_text(encoding="utf-8"))
    host.write("sys/module/nvidia/version", f"{DRIVER}\n")
    host.commands = {
        SMI_XML: (0, (folder / "nvidia-smi.xml").read_text(encoding="utf-8"), ""),
        SMI_TOPO: (0, (folder / "topo.txt").read_text(encoding="utf-8"), ""),
    }
    found = resolve_class(host.facts(), CLASSES, None, "gpu1")
    assert (found.name, found.count, list(found.warnings)) == ("h200_sxm_141g", 2, [])
    assert [link["link"] for link in host.facts()["links"]] == [CLASSES["h200_sxm_141g"].nvlink_expected]


PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - socle.inference.gpu_facts:
        sys_root: "{{ tree }}/sys"
        proc_root: "{{ tree }}/proc"
        root: "{{ tree }}"
        os_release: "{{ tree }}/os-release"
        host_class: "{{ option | default(omit) }}"
        data_path: "{{ data | default(omit) }}"
        require_class: "{{ required | default(omit) }}"
      register: facts
    - socle.inference.vllm_plan:
        instances: {chat: {model: smollm2-135m-instruct}}
        facts: "{{ facts.gpu_facts }}"
        host_class: "{{ option | default(omit) }}"
        data_path: "{{ data | default(omit) }}"
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By host: the result of gpu_facts, and the sentences of vllm_plan after it. One run, since each costs seconds."""
    folder = tmp_path_factory.mktemp("classes")
    trees = {}
    for name, ids in {"a100": ["20b2"] * 2, "none": [], "unknown": ["beef"], "mixed": ["20b2", "2684"]}.items():
        host = Host(folder / name)
        for number, device in enumerate(ids, start=1):
            host.pci(f"0000:{number:02x}:00.0", device=f"0x{device}")
        trees[name] = {"tree": str(host.root)}
    own = folder / "data/profiles/host_classes"
    own.mkdir(parents=True)
    shipped = (ROOT / "profiles/host_classes/l40s_48g.yml").read_text(encoding="utf-8")
    (own / "own_beef.yml").write_text(shipped.replace("l40s_48g", "own_beef").replace("26b9", "beef"))
    broken = folder / "broken/profiles/host_classes"
    broken.mkdir(parents=True)
    (broken / "own_beef.yml").write_text("name: own_beef\nkind: tpu\n")
    hosts = {
        "found": trees["a100"],
        "without": trees["none"],
        "grouped": trees["a100"],
        "by_variable": {**trees["a100"], "host_class": "{{ 'a100_' ~ 'sxm4_40g' }}"},
        "by_option": {**trees["a100"], "host_class": "a100_sxm4_40g", "option": "a100_sxm4_80g"},
        "unused": {**trees["a100"], "option": "cpu"},
        "contrary": {**trees["a100"], "option": "l40s_48g"},
        "unknown": trees["unknown"],
        "required": {**trees["unknown"], "required": True},
        "not_a_truth": {**trees["unknown"], "required": "perhaps"},
        "own": {**trees["unknown"], "data": [str(folder / "data")]},
        "own_variable": {**trees["unknown"], "socle_data_path": "{{ tree | dirname }}/data"},
        "broken": {**trees["unknown"], "data": [str(folder / "broken")]},
        "mixed": {**trees["mixed"], "option": "rtx_4090_24g"},
    }
    inventory = {
        "all": {
            "vars": {
                "ansible_connection": "local",
                "ansible_become": False,
                "ansible_python_interpreter": sys.executable,
            },
            "hosts": hosts,
            "children": {"a100_sxm4_40g": {"hosts": {"grouped": {}}}},
        }
    }
    (folder / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    (folder / "play.yml").write_text(PLAY, encoding="utf-8")
    (folder / "ansible.cfg").write_text("[defaults]\n", encoding="utf-8")
    _done, tasks = play(folder, "play.yml", "-i", "hosts.json", "--check", "-f", "4")
    return {
        name: {"facts": tasks[0]["hosts"][name], "planned": tasks[1]["hosts"].get(name, {}).get("errors")}
        for name in hosts
    }


@pytest.mark.parametrize(
    ("name", "expected", "count", "origin"),
    [
        ("found", "a100_sxm4_80g", 2, "hardware"),
        ("without", "cpu", 0, "hardware"),
        ("grouped", "a100_sxm4_40g", 2, "group a100_sxm4_40g"),
        ("by_variable", "a100_sxm4_40g", 2, "variable host_class"),
        ("by_option", "a100_sxm4_80g", 2, "variable host_class"),
        ("unused", "cpu", 0, "variable host_class"),
        ("own", "own_beef", 1, "hardware"),
        ("own_variable", "own_beef", 1, "hardware"),
        ("mixed", "rtx_4090_24g", 1, "variable host_class"),
    ],
)
def test_the_facts_name_the_class(ran: dict[str, Any], name: str, expected: str, count: int, origin: str) -> None:
    facts = ran[name]["facts"]
    details = facts["host_class"]
    assert (facts["gpu_facts"]["host_class"], facts["class_problem"], facts["changed"]) == (expected, None, False)
    assert (details["name"], details["count"], details["origin"]) == (expected, count, origin)
    assert details["class"]["name"] == expected


def test_what_a_driver_cannot_tell_yet_comes_from_the_class(ran: dict[str, Any]) -> None:
    facts = ran["found"]["facts"]
    assert facts["gpu_facts"]["gpus"][0]["architecture"] is None
    known = facts["host_class"]["class"]
    assert (known["architecture"], known["nvlink_expected"], known["peer_to_peer"]) == ("ampere", "NV12", True)
    assert known["driver"] == {"flavour": "open", "minimum": "525"}
    assert set(known) == set(ran["without"]["facts"]["host_class"]["class"])


@pytest.mark.parametrize(
    ("name", "part"), [("grouped", "another of family a100"), ("unused", "unused"), ("mixed", "1 x 10de:20b2")]
)
def test_warnings_of_the_class_are_warnings_of_the_task(ran: dict[str, Any], name: str, part: str) -> None:
    assert any(part in told for told in ran[name]["facts"]["warnings"])
    assert not ran["found"]["facts"].get("warnings")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("unknown", ["unknown has 1 x 10de:beef", "site_data/profiles/host_classes/NAME.yml"]),
        ("contrary", ["family l40s", "family a100"]),
        ("broken", ["own_beef.yml", "kind must be one of"]),
    ],
)
def test_without_a_class_there_are_facts_all_the_same_and_no_plan(
    ran: dict[str, Any], name: str, parts: list[str]
) -> None:
    facts = ran[name]["facts"]
    assert (facts["host_class"], facts["gpu_facts"]["host_class"]) == (None, None)
    assert not facts.get("failed") and facts["gpu_facts"]["gpus"]
    assert [part for part in parts if part not in facts["class_problem"]] == []
    # Planning says it in the same words.
    assert facts["class_problem"] == ran[name]["planned"][0]


def test_a_class_that_is_required_fails_the_task_with_the_facts_in_it(ran: dict[str, Any]) -> None:
    facts = ran["required"]["facts"]
    assert facts["failed"] and facts["msg"] == facts["class_problem"] and "10de:beef" in facts["msg"]
    assert facts["gpu_facts"]["gpus"][0]["pci_device_id"] == "10de:beef"


def test_an_option_that_is_no_truth_is_refused(ran: dict[str, Any]) -> None:
    facts = ran["not_a_truth"]["facts"]
    assert facts["failed"] and "require_class" in facts["msg"] and "perhaps" in facts["msg"]
