# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A value of a megabyte is refused, or told, in a sentence that a person can read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.filter import deploy, model_store, model_store_variables
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import load_rules
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import describe, known_list, nearest, quoted
from ansible_collections.socle.inference.plugins.plugin_utils import role_values, role_variables, variable_files
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath, data_path
from ansible_collections.socle.inference.plugins.plugin_utils.template_check import checked_overlay

from tests.unit.plan.conftest import knowledge

LONG = "a" * 2**20
WORD = "a" * 100_000
"""Longer than any name, and yet a word that a program can be given."""

READABLE = 2000
"""Characters of a sentence: the longest ones list all keys of a record, or all flags that begin alike."""

CHAT: dict[str, Any] = {"model": "small-chat"}


def test_a_text_is_shown_by_its_beginning_and_its_length() -> None:
    assert describe("a" * 61) == f"the string '{'a' * 60}...' (61 characters)"
    assert quoted(LONG) == f"'{'a' * 60}...' (1,048,576 characters)"
    assert quoted("it's") == '"it\'s"' and quoted(3) == "3"
    assert len(known_list([LONG, *(f"name{number}" for number in range(1000))])) < READABLE
    assert nearest(LONG, ["a"]) == "" and nearest("nmae", ["name", LONG]) == "; did you mean 'name'?"


@pytest.mark.parametrize(
    "instances",
    [
        LONG,
        {LONG: CHAT},
        {"chat": LONG},
        {"chat": {**CHAT, LONG: 1}},
        {"chat": {**CHAT, f"port{LONG}": 1}},
        *({"chat": {**CHAT, key: LONG}} for key in ("gpus", "port", "expose", "flags", "env", "slo", "drain_s")),
        *({"chat": {**CHAT, key: LONG}} for key in ("model", "profile", "effort_aliases", "served_names")),
        {"chat": {**CHAT, "gpus": [LONG]}},
        {"chat": {**CHAT, "gpus": [f"GPU-{LONG}"]}},
        {"chat": {**CHAT, "gpus": [10**5000]}},
        {"chat": {**CHAT, "image": f" {LONG}"}},
        {"chat": {**CHAT, "api_key": f" {LONG}"}},
        {"chat": {**CHAT, "served_names": [f" {LONG}"]}},
        {"chat": {**CHAT, "slo": {f" {LONG}": 1}}},
        {"chat": {**CHAT, "slo": {LONG: "x"}}},
        {"chat": {**CHAT, "env": {f" {LONG}": 1}}},
        {"chat": {**CHAT, "env": {LONG: True}}},
        {"chat": {**CHAT, "env": {LONG: {}}}},
        {"chat": {**CHAT, "env": {LONG: LONG}}},
        {"chat": {**CHAT, "env": {f"{LONG}_TOKEN": "x"}}},
        {"chat": {**CHAT, "flags": {f" {LONG}": 1}}},
        {"chat": {**CHAT, "flags": {f"{LONG}.{LONG}": 1}}},
        {"chat": {**CHAT, "flags": {10**5000: 1}}},
        {"chat": {**CHAT, "flags": {LONG: LONG}}},
        {"chat": {**CHAT, "flags": {LONG: False}}},
        {"chat": {**CHAT, "flags": {LONG: True, f"no-{LONG}": True}}},
        {"chat": {**CHAT, "flags": {LONG: []}}},
        {"chat": {**CHAT, "flags": {LONG: [f"-{LONG}"]}}},
        {"chat": {**CHAT, "flags": {"hf-overrides": {LONG: {LONG: 10**400}}}}},
        {"chat": {**CHAT, "flags": {"hf-overrides": {(LONG, LONG): 1}}}},
        # What only the engine's version refuses.
        {"chat": {**CHAT, "flags": {LONG: 1}}},
        {"chat": {**CHAT, "flags": {"dtype": WORD}}},
        {"chat": {**CHAT, "flags": {"kv-cache-dtype": WORD}}},
        {"chat": {**CHAT, "flags": {"tool-call-parser": WORD}}},
        {"chat": {**CHAT, "flags": {"enable-prefix-caching": WORD}}},
        {"chat": {**CHAT, "flags": {"max-num-seqs": WORD}}},
        {"chat": {**CHAT, "flags": {"max-model-len": WORD}}},
        {"chat": {**CHAT, "flags": {"compilation-config": WORD}}},
        {"chat": {**CHAT, "flags": {"speculative-config": {WORD: 1, "method": WORD, "num_speculative_tokens": WORD}}}},
    ],
)
def test_what_is_refused_of_instances_is_told_readably(errors_of: Any, instances: Any) -> None:
    told = errors_of(instances, knowledge=knowledge())
    assert told and [len(sentence) for sentence in told if len(sentence) > READABLE] == []


@pytest.mark.parametrize(
    "layers",
    [
        {LONG: {}},
        {"host": LONG},
        {"host": {f" {LONG}": 1}},
        {"promoted": {LONG: {}}},
        {"promoted": {"small-chat--cpu/default": {LONG: 1}}},
    ],
)
def test_what_is_refused_of_flag_variables_is_told_readably(errors_of: Any, layers: Any) -> None:
    told = errors_of({"chat": CHAT}, layers=layers)
    assert [len(sentence) for sentence in told if len(sentence) > READABLE] == []


def test_what_is_refused_of_a_host_class_is_told_readably(errors_of: Any) -> None:
    told = errors_of({"chat": CHAT}, host_class=LONG)
    assert [len(sentence) for sentence in told if len(sentence) > READABLE] == []


@pytest.mark.parametrize("variant", [LONG, {LONG: 1}, {"name": [LONG]}, {"profile": LONG}])
def test_what_is_refused_of_a_variant_is_told_readably(errors_of: Any, variant: Any) -> None:
    told = errors_of({"chat": CHAT}, variant=variant)
    assert [len(sentence) for sentence in told if len(sentence) > READABLE] == []


@pytest.mark.parametrize(
    "instance",
    [
        {"image": f"registry.example/{LONG}:v0.20.0"},
        {"env": {f"VLLM_{WORD}": "x"}},
        {"flags": {"kv-events-config": {WORD: 1}}},
        {"flags": {"config-format": WORD}},
        {"flags": {"tokenizer": f"/{WORD}"}},
    ],
)
def test_what_is_told_beside_a_plan_is_readable(plan_one: Any, instance: Any) -> None:
    ignored = knowledge(SOC_F11=LONG, SOC_F06=LONG)
    plan = plan_one(instance, knowledge=ignored, variant={"name": LONG, "flags": {"seed": 1}})
    told = [f"{finding['sentence']} {finding['remedy']}" for finding in plan["findings"]]
    told += [f"{warning['message']} {warning['remedy']}" for warning in plan["warnings"]]
    assert told and [len(sentence) for sentence in told if len(sentence) > READABLE] == []
    assert [source for source in plan["sources"].values() if len(source["origin"]) > READABLE] == []


@pytest.mark.parametrize(
    ("folder", "name", "changes"),
    [
        ("profiles/models", "small-chat", {LONG: 1}),
        ("profiles/models", "small-chat", {"name": LONG}),
        ("profiles/models", "small-chat", {"hub": LONG}),
        ("profiles/models", "small-chat", {"evidence": {LONG: {"source": "x"}}}),
        ("profiles/models", "small-chat", {"effort": {"levels": ["high"], "aliases": {LONG: {"max": "low"}}}}),
        ("profiles/models", "small-chat", {"parsers": {"tool": [{"name": "x", "since": f"0.1.{'9' * 5000}"}]}}),
        ("profiles/models", "small-chat", {"size_bytes": LONG}),
        ("profiles/host_classes", "cpu", {"name": LONG}),
        ("profiles/host_classes", "cpu", {"evidence": {LONG: {"source": "x"}}}),
        ("profiles/serving", "small-chat--cpu", {"recommended": LONG}),
        ("profiles/serving", "small-chat--cpu", {"model": LONG}),
        ("profiles/serving", "small-chat--cpu", {"evidence": {LONG: {"source": "x"}}}),
        ("profiles/serving", "small-chat--cpu", {"profiles": {LONG: {"extends": LONG}}}),
        ("profiles/serving", "small-chat--cpu", {"profiles": {"default": {"extends": LONG}}}),
    ],
)
def test_what_is_refused_of_data_is_told_readably(
    errors_of: Any, documents: Any, folder: str, name: str, changes: Any
) -> None:
    documents[folder][name].update(changes)
    told = errors_of({"chat": CHAT})
    assert [len(sentence) for sentence in told if len(sentence) > READABLE] == []


RULE: dict[str, Any] = {
    "id": "SITE-R01",
    "title": "x",
    "severity": "note",
    "when": {"path": "model.name", "is": "x"},
    "sentence": "X.",
    "remedy": "X.",
    "evidence": "x",
}


@pytest.mark.parametrize(
    "change",
    [
        {LONG: 1},
        {"id": LONG},
        {"severity": LONG},
        {"sentence": f"{{{LONG}}}."},
        {"when": {LONG: []}},
        {"when": {"path": LONG, "is": 1}},
        {"when": {"path": f"flags.no-{LONG}", "is": 1}},
        {"when": {"path": f"flags.{LONG}", "contains": 1}},
        {"when": {"path": "model.name", LONG: 1}},
        {"when": {"path": "model.name", "matches": f"({LONG}"}},
        {"when": {"all": [], LONG: 1}},
    ],
)
def test_what_is_refused_of_rules_is_told_readably(tmp_path: Path, change: Any) -> None:
    (tmp_path / "rules.yml").write_text(json.dumps({"rules": [{**RULE, **change}]}), encoding="utf-8")
    with pytest.raises(PlanError) as refused:
        load_rules(DataPath([tmp_path]))
    assert [len(sentence) for sentence in refused.value.fields["errors"] if len(sentence) > READABLE] == []


@pytest.mark.parametrize("ignored", [LONG, {LONG: "x"}, {"SOC-R01": [LONG]}])
def test_what_is_refused_of_passed_over_ids_is_told_readably(ignored: Any) -> None:
    with pytest.raises(PlanError) as refused:
        load_rules(DataPath([]), ignored)
    assert [len(sentence) for sentence in refused.value.fields["errors"] if len(sentence) > READABLE] == []


@pytest.mark.parametrize("text", [f"{LONG}: 1\n{LONG}: 2", f"x: *{LONG}", f"x: !{LONG} y", f"x: !!int {LONG}"])
def test_what_is_refused_of_a_file_is_told_readably(tmp_path: Path, text: str) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "x.yml").write_text(text, encoding="utf-8")
    with pytest.raises(PlanError) as refused:
        DataPath([tmp_path]).read("profiles", "x")
    assert len(refused.value.message) < READABLE


def test_what_is_refused_of_a_data_path_is_told_readably(tmp_path: Path) -> None:
    for given in (LONG, [LONG], {LONG: 1}):
        with pytest.raises(PlanError) as refused:
            data_path(given, {"inventory_dir": str(tmp_path)})
        assert len(refused.value.message) < READABLE


def test_what_is_refused_of_an_inventory_s_file_is_told_readably(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars" / "gpu1.yml").write_text(f"x: *{LONG}", encoding="utf-8")
    (told,) = variable_files.faults(tmp_path, ["gpu1"])
    assert len(told) < READABLE


def test_what_is_refused_of_variables_is_told_readably() -> None:
    told = role_values.value_faults({"gpu_driver_hold": LONG, "container_engine": LONG, "gpu_driver_reboot": 10**5000})
    assert told and [len(fault) for fault in told if len(fault) > READABLE] == []
    (unknown,) = role_variables.unknown_variables([f"gpu_driver_{LONG}"])
    assert len(str(unknown["name"])) < READABLE
    assert role_variables.misspelt_variables([f"vllm_flags_{LONG}"]) == []


@pytest.mark.parametrize(
    "models",
    [LONG, [LONG], [{LONG: 1}], [{"repo": LONG, "revision": []}], [{"repo": LONG, LONG: 1}]],
)
def test_what_is_refused_of_models_is_told_readably(models: Any) -> None:
    (told,) = model_store_variables.models_faults(models)
    assert len(told) < READABLE


def test_what_filters_refuse_is_told_readably() -> None:
    with pytest.raises(ValueError) as refused:
        deploy.benchmark_due({}, {}, LONG)
    assert len(str(refused.value)) < READABLE
    assert len(deploy.unknown_instances([LONG], {}, [])[0]) < READABLE
    with pytest.raises(Exception, match="is wanted at") as twice:
        model_store.unique_models([{"repo": LONG, "revision": LONG}, {"repo": LONG, "revision": "b"}])
    assert len(str(twice.value)) < READABLE


def test_what_is_refused_of_a_chat_template_is_told_readably() -> None:
    with pytest.raises(PlanError) as refused:
        checked_overlay(f"{{% {LONG} %}}", ["high"], {"max": "high"}, "Small-Chat")
    assert len(refused.value.message) < READABLE
