# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is malformed is refused in one sentence, never passed over and never a traceback."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.action import vllm_plan
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.facts import check_facts
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import Gpu
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import seal
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath, data_path

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site_data" / "profiles" / "models").mkdir(parents=True)
    return tmp_path / "site_data"


@pytest.mark.parametrize("kind", ["dangling", "loop", "pipe", "folder"])
def test_a_site_s_file_that_is_no_file_is_refused(site: Path, kind: str) -> None:
    path = site / "profiles" / "models" / f"{MODEL}.yml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else site / "nowhere")
    with pytest.raises(PlanError, match=rf"{MODEL}\.yml is .*; correct or remove it\."):
        DataPath([site]).read("profiles/models", MODEL)


def test_another_suffix_is_refused(site: Path) -> None:
    (site / "profiles" / "models" / f"{MODEL}.yaml").write_text("name: x\n", encoding="utf-8")
    for call in (DataPath([site]).names, lambda folder: DataPath([site]).read(folder, MODEL)):
        with pytest.raises(PlanError, match=r"\.yaml is not read.*rename to \.yml"):
            call("profiles/models")


def test_a_default_folder_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site_data").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PlanError, match="is no folder; correct or remove it"):
        data_path(None, {"inventory_dir": str(tmp_path / "inventories" / "lab")})


@pytest.mark.parametrize(
    "text",
    [
        "revision: 2026-13-45",
        "size_bytes: 0x_",
        f"size_bytes: {'9' * 5000}",
        "flags: !!map x",
        "flags: !!int x",
        "flags: !!timestamp x",
        "flags: &a {b: *a}",
        "flags: &a [*a]",
        "flags: " + "[" * 100 + "]" * 100,
        "flags: " + "[" * 3000 + "]" * 3000,
    ],
)
def test_yaml_that_cannot_be_built_is_refused_by_the_name_of_its_file(site: Path, text: str) -> None:
    (site / "profiles" / "models" / f"{MODEL}.yml").write_text(text + "\n", encoding="utf-8")
    with pytest.raises(PlanError, match=rf"^site_data/profiles/models/{MODEL}\.yml (holds|is) .*\.$"):
        DataPath([site]).read("profiles/models", MODEL)


@pytest.mark.parametrize("given", [5, [5], {"a": 1}, "~nouser/x", "n" * 300, "a\0b"])
def test_a_data_path_that_is_none_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(PlanError, match=r"^socle_data_path (must be|names) .*correct it"):
        data_path(given, {"inventory_dir": str(tmp_path)})


@pytest.mark.parametrize(
    "inside",
    [
        {"gpus": 5},
        {"gpus": [1, 2]},
        {"gpus": [{"uuid": []}]},
        {"gpus": [{"mig": True}]},
        {"gpus": [{"memory_mib": "80 GB"}]},
        {"gpus": [{"by_driver": "yes"}]},
        {"links": {}},
        {"links": ["NV12"]},
        {"links": [{"a": 1}]},
        {"engine": "x"},
        {"driver": 1},
        {"driver": {"error": []}},
        {"host_class": {}},
    ],
)
def test_facts_that_are_wrong_inside_are_refused(tmp_path: Path, inside: dict[str, Any]) -> None:
    (tmp_path / "f.json").write_text(json.dumps({"schema": "socle.gpu_facts/2", **inside}), encoding="utf-8")
    with pytest.raises(PlanError, match=r"^facts\..* must be .* gpu_facts"):
        vllm_plan._facts({"facts_file": "f.json"}, {"inventory_dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        ({"schema": "socle.gpu_facts/1"}, ["socle.gpu_facts/1", "socle.gpu_facts/2 is needed", "gather them again"]),
        (
            {"schema": "socle.gpu_facts/3"},
            ["have as schema the string 'socle.gpu_facts/3'", "gather them with gpu_facts"],
        ),
        ({"schema": ["x"]}, ["have as schema a list; gather them"]),
        ({}, ["(the file of gpu_facts_file, where that is set)", "have as schema nothing (null); gather them"]),
        ([], ["are a list; gather them"]),
    ],
)
def test_facts_of_another_version_are_refused(facts: Any, parts: list[str]) -> None:
    with pytest.raises(PlanError) as refused:
        vllm_plan._facts({"facts": facts}, {})
    assert [part for part in parts if part not in refused.value.message] == []


@pytest.mark.parametrize("name", ["deep.json", "~nouser/x", "n" * 300])
def test_a_facts_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep.json").write_text("[" * 100000 + "]" * 100000, encoding="utf-8")
    with pytest.raises(PlanError, match="gpu_facts_file"):
        vllm_plan._facts({"facts_file": name}, {"inventory_dir": str(tmp_path)})


@pytest.mark.parametrize("name", ["~nouser/x", "n" * 300])
def test_a_chat_template_that_cannot_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError):
        vllm_plan._template(name, DataPath([]), {"inventory_dir": str(tmp_path)})


def deep() -> Any:
    value: Any = 1
    for _level in range(100):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "instance",
    [
        {"slo": {"ttft_p50_ms": 10**400}},
        {"slo": {"ttft_p50_ms": 10**5000}},
        {"port": 10**5000},
        {"flags": {"seed": 10**5000}},
        {"flags": {"x": {"y": 10**5000}}},
        {"env": {"X": 10**5000}},
        {"flags": {"x": deep()}},
    ],
)
def test_numbers_and_depths_beyond_sense_are_refused(errors_of: Any, instance: dict[str, Any]) -> None:
    errors = errors_of({"chat": {"model": "small-chat", **instance}})
    assert len(errors) == 1 and len(errors[0]) < 300


@pytest.mark.parametrize(
    "change",
    [
        {"mounts": None},
        {"mounts": [1]},
        {"mounts": [{"kind": "model"}]},
        {"gpus": 5},
        {"argv": "x"},
        {"env": []},
        {"port": "x"},
        {"secrets": 1},
        {"network": None},
        {"shm_size_bytes": {}},
    ],
)
def test_sealing_refuses_a_malformed_plan(plan_one: Any, change: dict[str, Any]) -> None:
    name = next(iter(change))
    plan = plan_one()
    for broken in ({**plan, **change}, {key: value for key, value in plan.items() if key != name}):
        with pytest.raises(PlanError, match=rf"seal\.plan.*{name}"):
            seal({"plan": copy.deepcopy(broken), "allow_missing": True})


@pytest.mark.parametrize("facts", [{"engine": "x"}, {"gpus": 5}, {"driver": [1]}])
def test_sealing_refuses_malformed_facts(plan_one: Any, facts: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"seal\.facts\."):
        seal({"plan": plan_one(), "facts": facts, "allow_missing": True})


@pytest.mark.parametrize("path", ["/a/../b", "/a b", "/a:b", "/a%n", "relative"])
def test_sealing_refuses_a_model_path_that_a_unit_cannot_mount(plan_one: Any, path: str) -> None:
    with pytest.raises(PlanError, match=r"seal\.model_path is"):
        seal({"plan": plan_one(), "model_path": path, "allow_missing": True})


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ({"memory": "81920"}, "facts.gpus[0].memory must be a map"),
        ({"memory": {"free_mib": -1}}, "facts.gpus[0].memory.free_mib must be a whole number of at least 0"),
        ({"memory": {"reserved_mib": 10**400}}, "facts.gpus[0].memory.reserved_mib must be"),
        ({"memory_mib": 10**400}, "facts.gpus[0].memory_mib must be a whole number of at least 1"),
        ({"memory_mib": 0}, "facts.gpus[0].memory_mib must be a whole number of at least 1"),
        ({"index": -1}, "facts.gpus[0].index must be a whole number of at least 0"),
    ],
)
def test_memory_that_facts_cannot_mean_is_told(gpu: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        check_facts({"gpus": [{"index": 0, **gpu}]})
    assert refused.value.message.startswith(said) and len(refused.value.message) < 300


def test_a_gpu_that_keeps_all_its_memory_for_itself_is_planned_with_all_the_same() -> None:
    assert Gpu(490).total_bytes > 0 and Gpu(100, reserved_mib=616).total_bytes > 0
