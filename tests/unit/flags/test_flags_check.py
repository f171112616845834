# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of flags and environment before a host is touched."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, NOTE, WARNING, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_check import unchecked
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import FlagSchema

from .conftest import Check


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def is_said(finding: Finding, ident: str, severity: str, *words: str) -> None:
    assert (finding.id, finding.severity) == (ident, severity)
    for word in words:
        assert word in f"{finding.sentence} {finding.remedy}", finding


# Names


def test_a_misspelt_flag_gets_its_nearest_name(check: Check) -> None:
    is_said(only(check("0.26.0", {"max-modle-len": 8192})), "SOC-F01", ERROR, "'max-modle-len'", "'max-model-len'")


def test_short_letters_get_the_flag_they_stand_for(check: Check) -> None:
    is_said(only(check("0.26.0", {"tp": 2})), "SOC-F01", ERROR, "'tensor-parallel-size'")


def test_a_flag_of_newer_versions_names_them(check: Check) -> None:
    found = only(check("0.23.0", {"watermark": 0.1}))
    is_said(found, "SOC-F09", ERROR, "0.26.0, 0.32.0, 0.33.0 have")
    is_said(only(check("0.32.0", {"reasoning-effort-map": {"high": "low"}})), "SOC-F09", ERROR, "which 0.33.0 has")


def test_a_removed_flag_names_the_last_version_and_what_replaced_it(check: Check) -> None:
    is_said(only(check("0.33.0", {"max-num-partial-prefills": 2})), "SOC-F08", ERROR, "0.26.0 was the last")


def test_an_abbreviation_that_argparse_takes_is_refused(check: Check) -> None:
    found = only(check("0.26.0", {"kv-cache-memory": 1024}))
    is_said(found, "SOC-F02", ERROR, "the whole name 'kv-cache-memory-bytes'")
    is_said(only(check("0.26.0", {"enable-prefix": True})), "SOC-F02", ERROR, "'enable-prefix-caching'")


def test_an_abbreviation_of_several_names_them(check: Check) -> None:
    is_said(only(check("0.26.0", {"max-num": 8})), "SOC-F02", ERROR, "'max-num-batched-tokens'", "'max-num-seqs'")


@pytest.mark.parametrize("second", ["disable-prefix-caching", "no-enable-prefix-caching"])
def test_two_names_of_one_flag_are_refused(check: Check, second: str) -> None:
    found = only(check("0.33.0", {"enable-prefix-caching": True, second: True}))
    is_said(found, "SOC-F18", ERROR, "'enable-prefix-caching'", f"'{second}'")


def test_null_is_no_flag(check: Check) -> None:
    assert check("0.26.0", {"no-such-flag": None}) == []


def test_aliases_and_negations_are_names(check: Check) -> None:
    assert check("0.32.0", {"device-memory-utilization": 0.5, "no-enable-prefix-caching": True}) == []
    assert check("0.33.0", {"disable-prefix-caching": True}) == []


# Values


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpu-memory-utilization", 95, "a share above 0 and up to 1, such as 0.92, but is the number 95"),
        ("gpu-memory-utilization", 1.01, "a share above 0 and up to 1"),
        ("gpu-memory-utilization", "0", "a share above 0 and up to 1"),
        ("device-memory-utilization", 90, "a share above 0 and up to 1"),
        ("max-num-seqs", 0, "a number of at least 1, but is the number 0"),
        ("max-num-seqs", "-1", "a number of at least 1"),
        ("max-num-batched-tokens", -1, "a number of at least 1"),
        ("tensor-parallel-size", 0, "a number of at least 1"),
        ("watermark", 1, "a share from 0 to below 1"),
    ],
)
def test_a_number_beyond_its_limit_is_refused(check: Check, name: str, value: Any, expected: str) -> None:
    is_said(only(check("0.32.0", {name: value})), "SOC-F03", ERROR, f"'{name}' expects {expected}")


@pytest.mark.parametrize(
    "flags",
    [
        {"gpu-memory-utilization": 1},
        {"gpu-memory-utilization": "0.5"},
        {"max-num-batched-tokens": "16K"},
        {"max-num-seqs": 1},
        {"watermark": 0.5},
        {"max-model-len": -1},
        {"data-parallel-rank": 0},
    ],
)
def test_a_number_within_its_limit_is_taken(check: Check, flags: Any) -> None:
    assert [finding for finding in check("0.32.0", flags) if finding.severity == ERROR] == []


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-num-seqs", "many"),
        ("max-num-seqs", "8k"),
        ("max-num-seqs", 1.5),
        ("max-num-seqs", True),
        ("max-num-seqs", [1, 2]),
        ("gpu-memory-utilization", "most"),
        ("max-model-len", "1.5K"),
        ("max-model-len", {"a": 1}),
        ("chat-template", {"a": 1}),
        ("max-num-batched-tokens", "auto"),
        ("cudagraph-capture-sizes", ["1", "two"]),
    ],
)
def test_a_value_that_argparse_refuses(check: Check, flag: str, value: Any) -> None:
    is_said(only(check("0.26.0", {flag: value})), "SOC-F03", ERROR, f"'{flag}'")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-num-seqs", "8"),
        ("gpu-memory-utilization", "0.5"),
        ("gpu-memory-utilization", 1),
        ("max-model-len", "256K"),
        ("max-model-len", "auto"),
        ("max-model-len", -1),
        ("kv-cache-memory-bytes", "30G"),
        ("cudagraph-capture-sizes", [1, 2, 4]),
        ("allowed-origins", ["https://example.org"]),
        ("middleware", ["a.b", "c.d"]),
        ("lora-modules", [{"name": "a", "path": "/a"}, "b=/b"]),
        ("hf-overrides", {"rope_scaling": {"factor": 4.0}}),
        ("hf-overrides", "my.module.function"),
        ("attention-backend", "flashinfer"),
        ("attention-backend", "auto"),
        ("limit-mm-per-prompt", {"image": 32}),
        ("limit-mm-per-prompt", '{"image": 32}'),
        ("quantization", "None"),
    ],
)
def test_a_value_that_the_engine_takes(check: Check, flag: str, value: Any) -> None:
    assert check("0.26.0", {flag: value}) == []


def test_small_units_count_in_thousands(check: Check) -> None:
    found = only(check("0.26.0", {"max-model-len": "256k"}))
    is_said(found, "SOC-F04", WARNING, "256,000", "256K is 262,144")


@pytest.mark.parametrize("value", ["false", "False", "true", "0", 0, "/models/x"])
def test_a_switch_takes_no_value(check: Check, value: Any) -> None:
    found = only(check("0.26.0", {"enable-prefix-caching": value}))
    is_said(found, "SOC-F14", ERROR, "take for the model")
    off = str(value).lower() in ("false", "0")
    assert ("'no-enable-prefix-caching: true'" in found.remedy) is off


def test_a_choice_of_another_version_names_it(check: Check) -> None:
    found = only(check("0.19.1", {"kv-cache-dtype": "nvfp4"}))
    is_said(found, "SOC-F05", ERROR, "0.23.0, 0.26.0, 0.32.0, 0.33.0 do")


def test_a_misspelt_choice_gets_its_nearest(check: Check) -> None:
    is_said(only(check("0.26.0", {"kv-cache-dtype": "fp8e4m3"})), "SOC-F05", ERROR, "'fp8_e4m3'")


def test_a_value_that_argparse_no_longer_looks_at_is_checked_all_the_same(check: Check) -> None:
    is_said(only(check("0.33.0", {"kv-cache-dtype": "fp8e4m3"})), "SOC-F06", ERROR, "'fp8_e4m3'")
    # Others may be registered by a plugin.
    is_said(only(check("0.33.0", {"tokenizer-mode": "own"})), "SOC-F06", WARNING, "tokenizer-mode")


@pytest.mark.parametrize("flag", ["tool-call-parser", "reasoning-parser", "load-format", "quantization"])
def test_a_name_that_is_in_no_registry(check: Check, flag: str) -> None:
    is_said(only(check("0.26.0", {flag: "no_such_thing"})), "SOC-F13", ERROR, f"'{flag}'", "no_such_thing")


def test_a_parser_of_other_versions_names_them(check: Check) -> None:
    is_said(only(check("0.26.0", {"tool-call-parser": "qwen3_json"})), "SOC-F13", ERROR, "0.32.0, 0.33.0 do")
    is_said(only(check("0.26.0", {"load-format": "gguf"})), "SOC-F13", ERROR, "0.19.1, 0.23.0 do")


def test_a_plugin_may_bring_its_own_parser(check: Check) -> None:
    assert check("0.26.0", {"tool-call-parser": "mine", "tool-parser-plugin": "/plugins/mine.py"}) == []


# JSON


@pytest.mark.parametrize("value", ["{x", "[1"])
def test_text_that_is_no_json(check: Check, value: str) -> None:
    is_said(only(check("0.26.0", {"speculative-config": value})), "SOC-F10", ERROR, "does not parse as JSON")


def test_json_of_another_kind_than_a_map(check: Check) -> None:
    is_said(only(check("0.26.0", {"speculative-config": "3"})), "SOC-F03", ERROR, "'speculative-config'")


def test_an_unknown_key_gets_its_nearest(check: Check) -> None:
    found = only(check("0.26.0", {"speculative-config": {"methd": "mtp"}}))
    is_said(found, "SOC-F11", ERROR, "'methd'", "'method'", "does not start")


def test_a_key_of_other_versions_names_them(check: Check) -> None:
    found = only(check("0.23.0", {"speculative-config": '{"method": "mtp", "kv_cache_dtype": "fp8"}'}))
    is_said(found, "SOC-F11", ERROR, "0.26.0, 0.32.0, 0.33.0 do")


def test_keys_within_keys_are_checked(check: Check) -> None:
    found = only(check("0.26.0", {"compilation-config": {"dynamic_shapes_config": {"evaluate_gards": True}}}))
    is_said(found, "SOC-F11", ERROR, "compilation-config.dynamic_shapes_config", "'evaluate_guards'")


@pytest.mark.parametrize("value", ["two", [1], {"a": 1}, 1.5, None, True])
def test_a_key_of_the_wrong_type(check: Check, value: Any) -> None:
    found = only(check("0.26.0", {"speculative-config": {"method": "mtp", "num_speculative_tokens": value}}))
    is_said(found, "SOC-F12", ERROR, "speculative-config.num_speculative_tokens", "a whole number")


def test_a_key_with_a_value_that_is_not_offered(check: Check) -> None:
    found = only(check("0.26.0", {"speculative-config": {"method": "mpt", "num_speculative_tokens": 2}}))
    is_said(found, "SOC-F12", ERROR, "'mpt'", "'mtp'")


def test_what_the_engine_checks_by_its_own_rules_is_left_to_it(check: Check) -> None:
    flags = {"compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "mode": 3, "pass_config": {"x": 1}}}
    assert check("0.26.0", flags) == []


# What works, and is worth a word


def test_a_deprecated_flag_names_its_replacement(check: Check) -> None:
    found = only(check("0.32.0", {"log-config-file": "/etc/log.json"}))
    is_said(found, "SOC-F07", WARNING, "announced to go in 0.33.0", "'logging-config'")


def test_a_deprecated_method_names_the_one_it_means(check: Check) -> None:
    found = only(check("0.26.0", {"speculative-config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 2}}))
    is_said(found, "SOC-F07", WARNING, "'qwen3_next_mtp'", "'mtp'")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("tensor-parallel-size", 1),
        ("tensor-parallel-size", "1"),
        ("gpu-memory-utilization", 0.92),
        ("dtype", "auto"),
        ("enable-chunked-prefill", True),
        ("no-enable-sleep-mode", True),
        ("limit-mm-per-prompt", {}),
    ],
)
def test_what_only_repeats_the_default(check: Check, flag: str, value: Any) -> None:
    is_said(only(check("0.26.0", {flag: value})), "SOC-F15", NOTE, f"'{flag}'")


def test_a_default_of_another_version_is_no_repetition(check: Check) -> None:
    assert check("0.19.1", {"gpu-memory-utilization": 0.92}) == []


# Environment


def test_a_misspelt_variable_gets_its_nearest_and_keeps_its_value(check: Check) -> None:
    found = only(check("0.26.0", {}, {"VLLM_LOGGING_LEVLE": "hidden-value"}))
    is_said(found, "SOC-F16", WARNING, "VLLM_LOGGING_LEVEL")
    assert "hidden-value" not in str(found)


def test_a_variable_of_other_versions_names_them(check: Check) -> None:
    found = only(check("0.23.0", {}, {"VLLM_ENABLE_STARTUP_PLAN": "1"}))
    is_said(found, "SOC-F16", WARNING, "0.26.0, 0.32.0, 0.33.0 know")


def test_variables_of_others_are_not_the_engines(check: Check) -> None:
    assert check("0.26.0", {}, {"NCCL_P2P_DISABLE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}) == []


# Versions


def test_a_version_without_a_schema_is_one_warning_with_the_way_to_it(schemas: dict[str, FlagSchema]) -> None:
    found = unchecked("0.27.1", schemas)
    is_said(found, "SOC-F17", WARNING, "0.27.1", "0.19.1, 0.23.0, 0.26.0", "flags.yml")


def test_every_finding_says_what_to_do_in_whole_sentences(check: Check) -> None:
    flags = {"max-modle-len": 1, "watermark": 1, "kv-cache-memory": 1, "max-num-seqs": "x", "max-model-len": "8k"}
    more = {"enable-prefix-caching": "false", "kv-cache-dtype": "x", "dcp-kv-cache-interleave-size": 1, "dtype": "auto"}
    findings = check("0.23.0", {**flags, **more, "speculative-config": {"x": 1}}, {"VLLM_X": "1"})
    assert len({finding.id for finding in findings}) >= 9
    for finding in findings:
        assert finding.sentence.endswith(".") and finding.remedy.endswith("."), finding
        assert finding.evidence.endswith(".") and finding.subject, finding


@pytest.mark.parametrize("tokens", [0, -1, "0", "-3"])
def test_speculation_of_less_than_one_token_is_refused(check: Check, tokens: Any) -> None:
    found = only(check("0.26.0", {"speculative-config": {"method": "mtp", "num_speculative_tokens": tokens}}))
    is_said(found, "SOC-F12", ERROR, "speculative-config.num_speculative_tokens", "a whole number of at least 1")


@pytest.mark.parametrize("digits", [20, 300, 400])
def test_a_number_of_many_digits_within_a_text_of_json_is_refused(check: Check, digits: int) -> None:
    text = f'{{"method": "mtp", "num_speculative_tokens": {"9" * digits}}}'
    is_said(only(check("0.26.0", {"speculative-config": text})), "SOC-F12", ERROR, "num_speculative_tokens")


def test_flags_are_told_by_the_names_that_all_versions_have(schemas: dict[str, FlagSchema]) -> None:
    given = {"device-memory-utilization": 0.5, "disable-prefix-caching": True, "no-async-scheduling": True, "x": 1}
    assert schemas["0.33.0"].in_own_names(given) == {
        "gpu-memory-utilization": 0.5,
        "no-enable-prefix-caching": True,
        "no-async-scheduling": True,
        "x": 1,
    }
    assert schemas["0.26.0"].in_own_names(given) == given
