# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words of a rule: what conditions mean, what a site may add or pass over, and how mistakes are told."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.rule_context import (
    PATHS,
    RuleContext,
    version_key,
    worst_path,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import evaluate, load_rules
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath

from tests.unit.plan.conftest import MemoryReader
from tests.unit.rules.cases import BASE, MTP, PREFIX, changed

OWN_RULES = load_rules(DataPath([]))

RULE: dict[str, Any] = {
    "id": "SOC-R01",
    "title": "A test",
    "severity": "warning",
    "when": {"path": "model.hybrid", "is": True},
    "sentence": "It is so.",
    "remedy": "Change it.",
    "evidence": "seen",
}


def reader(*rules: Any, site: Any = None) -> MemoryReader:
    documents: dict[str, dict[str, Any]] = {"profiles": {"rules": {"rules": list(rules)}}}
    if site is not None:
        documents["."] = {"rules": site}
    return MemoryReader(documents)


def held(when: Any, context: Any = BASE) -> bool:
    return bool(evaluate(load_rules(reader({**RULE, "when": when})), context))


def refused(*rules: Any, site: Any = None, ignored: Any = None) -> list[str]:
    with pytest.raises(PlanError) as error:
        load_rules(reader(*rules, site=site), ignored)
    sentences: list[str] = error.value.fields["errors"]
    return sentences


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"path": "model.hybrid", "is": True}, True),
        ({"path": "model.hybrid", "is_not": True}, False),
        ({"path": "model.name", "in": ["a", "qwen3.6-27b"]}, True),
        ({"path": "model.name", "not_in": ["a"]}, True),
        ({"path": "model.name", "matches": "qwen3.*"}, True),
        ({"path": "model.name", "matches": "qwen3"}, False),
        ({"path": "hardware.memory_mib", "ge": 81920, "lt": 81921}, True),
        ({"path": "hardware.memory_mib", "gt": 81920}, False),
        ({"path": "hardware.memory_mib", "le": 81919}, False),
        ({"path": "engine.image_cuda", "ge": 13}, True),
        ({"path": "engine.vllm_version", "lt": "0.100.0"}, True),
        ({"path": "engine.vllm_version", "is": "0.26"}, True),
        ({"path": "engine.vllm_version", "in": ["0.23.0", "0.26"]}, True),
        ({"path": "driver.version", "ge": "580.65.06"}, True),
        ({"path": "model.attention_heads", "multiple_of": {"path": "model.kv_heads"}}, True),
        ({"path": "model.attention_heads", "multiple_of": 5}, False),
        ({"path": "model.kv_heads", "lt": {"path": "model.attention_heads"}}, True),
        ({"path": "flags.max-model-len", "is": "262144"}, True),
        ({"path": "flags.enable-prefix-caching", "is": False}, True),
        ({"path": "flags.enable-prefix-caching", "disabled": True}, True),
        ({"path": "flags.enable-prefix-caching", "present": True}, True),
        ({"path": "flags.seed", "absent": True}, True),
        ({"path": "flags.seed", "enabled": True}, False),
        ({"path": "env.A", "absent": True}, True),
        ({"path": "effective.speculation", "is": "none"}, True),
        ({"all": [{"path": "model.hybrid", "is": True}, {"not": {"path": "model.moe", "is": True}}]}, True),
        ({"any": [{"path": "model.moe", "is": True}, {"path": "model.vision", "is": True}]}, True),
    ],
)
def test_operators(when: Any, expected: bool) -> None:
    assert held(when) is expected


@pytest.mark.parametrize(
    ("value", "when", "expected"),
    [
        ({"method": "mtp"}, {"has_key": "method"}, True),
        ({"method": "mtp"}, {"has_key": "model"}, False),
        ('{"method": "mtp"}', {"has_key": "method"}, True),
        ('{"method": ', {"has_key": "method"}, False),
        (["*"], {"contains": "*"}, True),
        ('["*"]', {"contains": "*"}, True),
        (["a"], {"contains": "*"}, False),
        ("32k", {"gt": 31999}, True),
        ("32k", {"gt": 32000}, False),
        (True, {"is": 1}, False),
        (1, {"is": True}, False),
        (2, {"is": "2"}, True),
    ],
)
def test_values_of_flags(value: Any, when: Any, expected: bool) -> None:
    context = changed({"flags.some-flag": value})
    assert held({"path": "flags.some-flag", **when}, context) is expected


def test_a_word_within_the_json_of_a_flag() -> None:
    for config in ({"method": "mtp"}, '{"method": "mtp"}'):
        context = changed({"flags.speculative-config": config})
        assert held({"path": "flags.speculative-config.method", "is": "mtp"}, context)


def test_flags_are_found_however_they_are_spelled() -> None:
    for name in ("max_num_seqs", "--max-num-seqs", "max-num-seqs"):
        assert held({"path": "flags.max-num-seqs", "is": 7}, changed({f"flags.{name}": 7}))
    assert held({"path": "flags.gpu-memory-utilization", "is": 0.9}, changed({"flags.device-memory-utilization": 0.9}))


@pytest.mark.parametrize(
    "when",
    [
        {"path": "model.moe", "is": True},
        {"path": "model.moe", "is_not": True},
        {"not": {"path": "model.moe", "is": True}},
        {"path": "model.kv_heads", "gt": 1},
        {"not": {"path": "model.kv_heads", "gt": 1}},
        {"path": "model.name", "not_in": ["a"]},
        {"path": "model.name", "matches": ".*"},
        {"path": "capacity.blocks", "lt": {"path": "model.kv_heads"}},
        {"not": {"all": [{"path": "model.hybrid", "is": True}, {"path": "model.moe", "is": True}]}},
        {"any": [{"path": "model.moe", "is": True}, {"path": "model.kv_heads", "gt": 1}]},
        {"not": {"any": [{"path": "model.moe", "is": True}, {"path": "model.hybrid", "is": False}]}},
    ],
)
def test_what_is_not_known_is_neither_true_nor_false(when: Any) -> None:
    context = {"model": {"hybrid": True, "moe": None}, "capacity": None, "flags": {}, "env": {}}
    assert not held(when, context)


def test_what_is_known_decides_beside_what_is_not() -> None:
    context = {"model": {"hybrid": True}}
    known, unknown = {"path": "model.hybrid", "is": True}, {"path": "model.moe", "is": True}
    assert held({"any": [unknown, known]}, context)
    assert held({"not": {"all": [unknown, {"not": known}]}}, context)
    assert held({"path": "model.moe", "unknown": True}, context)
    assert not held({"path": "model.hybrid", "unknown": True}, context)


def test_a_range_does_not_hold_for_an_unknown_version() -> None:
    rules = load_rules(reader({**RULE, "since": "0.1.0"}))
    assert evaluate(rules, BASE)
    assert not evaluate(rules, changed({"engine.vllm_version": None}))
    assert not evaluate(rules, changed({"engine.vllm_version": "nightly"}))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("0.26.0rc1", "0.26.0"),
        ("0.26.0.dev3", "0.26.0"),
        ("0.9.2", "0.10.0"),
        ("0.26.0", "0.26.1rc1"),
        ("0.26.0+cu129", "0.26.1"),
    ],
)
def test_versions_in_order(earlier: str, later: str) -> None:
    first, second = version_key(earlier), version_key(later)
    assert first is not None and second is not None and first < second


def test_versions_that_are_the_same() -> None:
    assert version_key("v0.26.0+cu129") == version_key("0.26") == version_key("0.26.0.post1")


@pytest.mark.parametrize(
    ("changes", "effective"),
    [
        ({}, {"prefix_caching": False, "speculation": "none", "speculative_tokens": 0, "kv_fp8": False}),
        ({"flags.no-enable-prefix-caching": None, "model.hybrid": False}, {"prefix_caching": True}),
        ({"flags.no-enable-prefix-caching": None, "engine.vllm_version": None}, {"prefix_caching": None}),
        ({"flags.spec-method": "mtp", "flags.spec-tokens": 2}, {"speculation": "mtp", "speculative_tokens": 2}),
        ({"flags.speculative-config": {"model": "/draft"}}, {"speculation": None}),
        ({"flags.speculative-config": "mtp"}, {"speculation": None, "speculative_tokens": None}),
        ({"flags.max-model-len": None}, {"max_model_len": 262144}),
        ({"flags.max-model-len": "auto"}, {"max_model_len": None}),
        ({"flags.max-model-len": "128K"}, {"max_model_len": 131072}),
        ({}, {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}),
        ({"hardware.family": "a100"}, {"max_num_seqs": 256, "max_num_batched_tokens": 2048}),
        ({"hardware.memory_mib": 46068}, {"max_num_seqs": 256, "max_num_batched_tokens": 2048}),
        ({"hardware.memory_mib": 183359}, {"max_num_batched_tokens": 8192}),
        ({"hardware.memory_mib": 183359, "engine.vllm_version": "0.33.0"}, {"max_num_batched_tokens": 16384}),
        ({"hardware.memory_mib": None}, {"max_num_seqs": None}),
        ({"flags.pipeline-parallel-size": 2}, {"tensor_parallel": 2, "world_size": 4}),
        ({"flags.hf-overrides": {"a": {"rope_scaling": {}}}}, {"rope_override": True}),
        ({"flags.hf-overrides": {"architectures": ["X"]}}, {"rope_override": False}),
        ({"flags.hf-overrides": "{broken"}, {"rope_override": None}),
    ],
)
def test_what_a_launch_amounts_to(changes: dict[str, Any], effective: dict[str, Any]) -> None:
    context = RuleContext(changed(changes))
    assert {name: context.value("effective", name) for name in effective} == effective


LINKS = [
    {"a": "0", "b": "1", "link": "NV8"},
    {"a": "0", "b": "2", "link": "NODE"},
    {"a": "1", "b": "2", "link": "PIX"},
    {"a": "2", "b": "3", "link": "NV4"},
    {"a": "1", "b": "4", "link": "NV12"},
    {"a": "0", "b": "4", "link": "NV4"},
]


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [("01", "NV8"), ("12", "PIX"), ("012", "NODE"), ("014", "NV4"), ("0", None), ("", None), ("013", None)],
)
def test_the_worst_path_between_gpus(addresses: str, expected: str | None) -> None:
    assert worst_path(LINKS, list(addresses)) == expected


def test_a_pattern_sees_the_whole_value() -> None:
    context = changed({"engine.image": "registry.example/" + "x" * 200 + ":v0.26.0-cu129"})
    assert held({"path": "engine.image", "matches": ".*-cu129"}, context)


def test_values_in_sentences_stay_on_one_line_and_short() -> None:
    rule = {
        **RULE,
        "sentence": "{{It}} is {flags.some-flag}, {model.moe}, {model.kv_heads}, {model.architecture}.",
        "remedy": "Set {flags.other-flag} by {capacity.headroom_gib}.",
    }
    context = changed(
        {
            "flags.some-flag": "{model.name}\n\x1b[31mred " + "x" * 500,
            "flags.other-flag": {"b": 1, "a": [True]},
            "model.architecture": None,
            "capacity.headroom_gib": 0.123456789,
        }
    )
    (finding,) = evaluate(load_rules(reader(rule)), context)
    assert finding.sentence.startswith("{It} is {model.name} [31mred xxx")
    assert finding.sentence.endswith("..., false, 4, unknown.")
    assert len(finding.sentence) < 150
    assert finding.remedy == 'Set {"a":[true],"b":1} by 0.123.'


@pytest.mark.parametrize("path", [*PATHS, "flags.speculative-config", "flags.max-model-len", "env.A"])
def test_no_value_makes_it_fall(path: str) -> None:
    """Whatever facts or flags hold, a plan gets its findings."""
    deep: Any = {}
    for _level in range(2000):
        deep = {"rope": [deep]}
    nasty = [
        "",
        "x" * 10000,
        "-1",
        0,
        -5,
        10**400,
        float("nan"),
        float("inf"),
        [],
        [[]],
        {"a": {}},
        {1: 2},
        True,
        "[",
        "{",
    ]
    for value in [*nasty, b"\xff", object(), deep]:
        top, _dot, name = path.partition(".")
        context = copy.deepcopy(BASE)
        context.setdefault(top, {})[name] = value
        assert isinstance(evaluate(OWN_RULES, context), list)


@pytest.mark.parametrize("context", [{}, {"flags": None, "model": 3, "env": []}, {"capacity": "none"}])
def test_a_context_without_its_parts_is_one_of_which_nothing_is_known(context: Any) -> None:
    assert not held({"path": "model.hybrid", "is": True}, context)


SITE_RULE = {**RULE, "id": "SITE-R01"}


def test_a_site_adds_rules(tmp_path: Path) -> None:
    """Beside the collection's, from the data folder, whatever else is there."""
    folder = tmp_path / "site_data"
    folder.mkdir()
    (folder / "rules.yml").write_text(yaml.safe_dump({"rules": [SITE_RULE]}), encoding="utf-8")
    found = evaluate(load_rules(DataPath([folder])), changed(MTP, PREFIX))
    assert [finding.id for finding in found][-1] == "SITE-R01"
    assert "SOC-R02" in [finding.id for finding in found]


def test_a_site_s_mistake_names_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "site_data"
    folder.mkdir()
    (folder / "rules.yml").write_text(yaml.safe_dump({"rules": [{**SITE_RULE, "severity": "fatal"}]}), encoding="utf-8")
    with pytest.raises(PlanError) as error:
        load_rules(DataPath([folder]))
    assert error.value.message.startswith("site_data/rules.yml: rule SITE-R01.severity must be one of error, warning")


@pytest.mark.parametrize(("severity", "left"), [("error", "warning"), ("warning", "note"), ("note", "note")])
def test_a_rule_that_is_passed_over_is_told_more_quietly(severity: str, left: str) -> None:
    rules = load_rules(reader({**RULE, "severity": severity}), {"SOC-R01": " measured clean over a week. "})
    (finding,) = evaluate(rules, BASE)
    assert (finding.severity, finding.sentence) == (
        left,
        "It is so (passed over by vllm_rules_ignored: measured clean over a week).",
    )


@pytest.mark.parametrize(
    ("ignored", "parts"),
    [
        ({"SOC-R11": "x"}, ["vllm_rules_ignored names 'SOC-R11'", "did you mean 'SOC-R01'?"]),
        ({7: "x"}, ["vllm_rules_ignored names '7'", "the id of no rule"]),
        ({"soc-r01": "x"}, ["vllm_rules_ignored names 'soc-r01'", "did you mean 'SOC-R01'?"]),
        (["SOC-R01"], ["must be a map of rule ids to reasons", "a list"]),
        ({"SOC-R01": ""}, ["vllm_rules_ignored.SOC-R01 must be the reason", "''"]),
        ({"SOC-R01": None}, ["must be the reason", "nothing (null)"]),
        ({"SOC-R01": True}, ["must be the reason", "true"]),
        ({"SOC-R01": "two\nlines"}, ["as one line of text"]),
    ],
)
def test_passing_over_needs_an_id_that_exists_and_a_reason(ignored: Any, parts: list[str]) -> None:
    (sentence,) = refused(RULE, ignored=ignored)
    assert all(part in sentence for part in parts), sentence


def nested(levels: int) -> Any:
    when: Any = {"path": "model.hybrid", "is": True}
    for _level in range(levels):
        when = {"not": when}
    return when


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"id": "R1"}, ["rules[0].id must be 'SOC-R' and two or three digits", "'R1'"]),
        ({"id": ["SOC-R01"]}, ["rules[0].id must be", "a list"]),
        ({"severity": "fatal"}, ["severity must be one of error, warning, note", "'fatal'"]),
        ({"severity": "warnign"}, ["did you mean 'warning'?"]),
        ({"sentence": "No stop"}, ["sentence must be one sentence on one line with its full stop"]),
        ({"sentence": "Two\nlines."}, ["sentence must be one sentence on one line"]),
        ({"remedy": None}, ["remedy must be one sentence", "nothing (null)"]),
        ({"evidence": "  "}, ["evidence must be one line of text"]),
        ({"sentnce": "x"}, ["unknown key 'sentnce'", "did you mean 'sentence'?"]),
        ({"since": "0.26"}, ["since must be a version of three numbers"]),
        ({"since": 0.26}, ["since must be a version of three numbers", "the number 0.26"]),
        ({"since": "0.26.0", "until": "0.26.0"}, ["between which there is no version"]),
        ({"sentence": "Is {model.nme}."}, ["sentence has a place for 'model.nme'", "did you mean 'model.name'?"]),
        ({"sentence": "Is {model}."}, ["a place for 'model'", "no path of the context"]),
        ({"sentence": "Is {}."}, ["a place for ''"]),
        ({"remedy": "Set { here."}, ["remedy has a single '{'", "write '{{'"]),
        ({"when": None}, ["when must be a map", "nothing (null)"]),
        ({"when": {}}, ["when must be a map with all, any or not"]),
        ({"when": "true"}, ["when must be a map", "the string 'true'"]),
        ({"when": {"all": []}}, ["when.all must be a list with at least one condition"]),
        ({"when": {"any": {"path": "model.moe", "is": True}}}, ["when.any must be a list", "a map"]),
        ({"when": {"all": [{"path": "model.moe", "is": True}], "any": []}}, ["has 'all' beside 'any'"]),
        ({"when": {"al": []}}, ["has 'al' and no path", "did you mean 'all'?"]),
        ({"when": {"path": "model.hybird", "is": True}}, ["'model.hybird'", "did you mean 'model.hybrid'?"]),
        ({"when": {"path": "hybrid", "is": True}}, ["'hybrid'", "no path of the context"]),
        ({"when": {"path": 3, "is": True}}, ["is not a path of words joined by dots"]),
        ({"when": {"path": "flags.max_num_seqs", "is": 3}}, ["lower-case words joined by dashes"]),
        ({"when": {"path": "flags.no-enable-x", "is": True}}, ["a negation", "flags.enable-x being false"]),
        ({"when": {"path": "flags.a..b", "is": 3}}, ["an empty part"]),
        ({"when": {"path": "env.A.b", "is": "3"}}, ["no path of the context"]),
        ({"when": {"path": "model.hybrid"}}, ["has no operator"]),
        ({"when": {"path": "model.hybrid", "equals": True}}, ["the unknown operator 'equals'"]),
        ({"when": {"path": "model.hybrid", "is": "yes"}}, ["of the kind of model.hybrid (truth)", "'yes'"]),
        ({"when": {"path": "model.hybrid", "is": None}}, ["of the kind of model.hybrid", "nothing (null)"]),
        ({"when": {"path": "model.hybrid", "gt": 1}}, ["cannot be asked of model.hybrid"]),
        ({"when": {"path": "model.name", "gt": "a"}}, ["cannot be asked of model.name"]),
        ({"when": {"path": "model.kv_heads", "gt": "4"}}, ["(number)", "the string '4'"]),
        ({"when": {"path": "model.kv_heads", "gt": float("nan")}}, ["(number)"]),
        ({"when": {"path": "model.kv_heads", "is": 10**400}}, ["(number)", "more than 60 digits"]),
        ({"when": {"path": "model.kv_heads", "multiple_of": 0}}, ["a whole number above 0"]),
        ({"when": {"path": "engine.vllm_version", "lt": "soon"}}, ["(version)", "'soon'"]),
        ({"when": {"path": "model.kv_heads", "gt": {"path": "model.nam"}}}, ["did you mean 'model.name'?"]),
        ({"when": {"path": "model.kv_heads", "gt": {"path": "model.name"}}}, ["compares", "(number)", "(text)"]),
        ({"when": {"path": "model.kv_heads", "gt": {"paths": "model.name"}}}, ["the one key 'path'"]),
        ({"when": {"path": "model.name", "in": "a"}}, ["in must be a list with at least one value"]),
        ({"when": {"path": "model.name", "in": []}}, ["in must be a list with at least one value"]),
        ({"when": {"path": "model.name", "in": [{}]}}, ["in[0] must be of the kind", "a map"]),
        ({"when": {"path": "model.name", "matches": "("}}, ["is no regular expression"]),
        ({"when": {"path": "model.name", "matches": "(a+)+b"}}, ["repeats a group that repeats"]),
        ({"when": {"path": "model.name", "matches": "a" * 201}}, ["201 characters"]),
        ({"when": {"path": "model.name", "matches": 3}}, ["matches must be a text"]),
        ({"when": {"path": "model.name", "has_key": "a"}}, ["cannot be asked of model.name"]),
        ({"when": {"path": "flags.a", "present": False}}, ["present must be true", "wrap the condition in 'not'"]),
        ({"when": {"path": "flags.a", "unknown": True}}, ["cannot be asked of flags.a", "present or absent"]),
        ({"when": {"path": "model.moe", "absent": True}}, ["cannot be asked of model.moe", "known or unknown"]),
        ({"when": nested(40)}, ["more than 16 levels"]),
    ],
)
def test_a_mistake_is_told_in_one_sentence(changes: dict[str, Any], parts: list[str]) -> None:
    (sentence,) = refused({**RULE, **changes})
    assert all(part in sentence for part in parts), sentence
    assert sentence.startswith("profiles/rules.yml: rule")
    assert len(sentence) < 500 and sentence[-1] in ".?" and sentence.isprintable()


@pytest.mark.parametrize("content", [None, [], "rules", {"rules": {}}, {"rules": [], "more": 1}, {"rule": []}])
def test_a_file_of_another_shape(content: Any) -> None:
    with pytest.raises(PlanError, match="must be a map with the one key 'rules', a list") as error:
        load_rules(MemoryReader({"profiles": {"rules": content}}))
    assert len(error.value.fields["errors"]) == 1


def test_ids() -> None:
    assert "is there twice" in refused(RULE, RULE)[0]
    assert "other than SOC" in refused(RULE, site={"rules": [RULE]})[0]
    assert "rules[0] must be a map" in refused("SOC-R01")[0]
    assert "lacks the key 'when'" in refused({key: value for key, value in RULE.items() if key != "when"})[0]
    assert "more than the 2000" in refused(*[RULE] * 2001)[0]


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {**RULE, "id": "SOC-R02", "when": {"path": "model.x", "is": True}, "sentence": "Is {y}."}
    assert len(refused({**RULE, "severity": 1}, wrong, site={"rules": [{**SITE_RULE, "title": 1}]})) == 4
