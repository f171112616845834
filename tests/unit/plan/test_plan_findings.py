# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What flag schemas, capacity and rules make of a plan: what refuses it, what is shown, and what a site passes over."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.checks import (
    IDS,
    SAID_BETTER,
    SAID_BETTER_OF_FLAG,
    Knowledge,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.held_weights import held_weights
from ansible_collections.socle.inference.plugins.module_utils._plan.present import plan_table
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request
from ansible_collections.socle.inference.plugins.module_utils._plan.resolve import resolve
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import launch_fingerprint
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION

from tests.unit.plan.conftest import knowledge
from tests.unit.plan.test_systems import ADDRESSES, CATALOGUE, CLASSES, SYSTEMS, facts_of, instances_of

REFUSED = {("rtx-1", "home", "mtp")}
"""Profiles that only a site which passes a finding over can use."""


def real(
    host: str,
    instance: str,
    known: Knowledge | None = None,
    facts: Any = None,
    calibrations: Any = (),
    weights: Any = None,
    **changes: Any,
) -> dict[str, Any]:
    """The plan of one instance of the example inventory, with *changes* of its keys."""
    instances = instances_of(host)
    instances[instance].update(changes)
    request = Request(
        host=host,
        instances={instance: instances[instance]},
        facts=facts or facts_of(host),
        group_names=[CLASSES[host]],
        address=ADDRESSES[host],
        calibrations=calibrations,
        weights=held_weights(weights or {}),
    )
    return resolve(request, CATALOGUE, pytest.fail, known or knowledge()).plans[instance]


def errors(*arguments: Any, **changes: Any) -> list[str]:
    with pytest.raises(PlanError) as refused:
        real(*arguments, **changes)
    return list(refused.value.fields["errors"])


def ids(plan: dict[str, Any], severity: str | None = None) -> list[str]:
    return [finding["id"] for finding in plan["findings"] if severity in (None, finding["severity"])]


@pytest.mark.parametrize(("host", "instance", "profile", "_command"), SYSTEMS)
def test_every_profile_of_the_example_can_be_planned(host: str, instance: str, profile: str, _command: str) -> None:
    if (host, instance, profile) in REFUSED:
        (message,) = errors(host, instance, profile=profile)
        assert "(SOC-R01, which vllm_rules_ignored can pass over with a reason)" in message
    else:
        told = real(host, instance, profile=profile)
        assert ids(told, "error") == []
        assert len(ids(told)) == len(set(ids(told))), "a fault is told once"


def test_errors_are_told_together_with_whoever_set_the_flag_a_remedy_and_an_id() -> None:
    found = errors(
        "a800-1",
        "agents",
        flags={"enable-prefix-cashing": True, "max-num-seqs": "many", "max-model-len": 300000},
        env={"VLLM_ATTENTION_BAKEND": "x"},
    )
    assert [re.search(r"\((SOC-\w+),", sentence).group(1) for sentence in found] == ["SOC-F01", "SOC-F03", "SOC-R41"]
    assert all(sentence.startswith("vllm_instances.agents: ") and sentence.endswith(".") for sentence in found)
    assert "; write 'enable-prefix-caching' if that is what is meant" in found[0]


def test_a_flag_of_another_layer_is_told_with_its_origin(documents: Any, errors_of: Any) -> None:
    (message,) = errors_of(
        {"chat": {"model": "small-chat"}}, layers={"group": {"max-num-sekvs": 4}}, knowledge=knowledge()
    )
    assert message.startswith("vllm_instances.chat (max-num-sekvs by vllm_flags_group): ")


def test_a_warning_is_there_once_and_shown_once() -> None:
    plan = real("a800-1", "agents")
    assert {"SOC-R02", "SOC-C05", "SOC-R80"} <= set(ids(plan, "warning"))
    assert [warning["id"] for warning in plan["warnings"]] == ids(plan, "warning")
    table = "\n".join(plan_table(plan))
    assert table.count("SOC-R02") == 1
    assert "SOC-C15" not in table and re.search(r"  notes   \d+, shown with -e socle_notes=true or -v", table)
    assert "    SOC-C15: The KV cache is estimated" in "\n".join(plan_table(plan, notes=True))


def test_a_refusal_can_be_passed_over_with_a_reason_and_stays_a_warning() -> None:
    plan = real("rtx-1", "home", knowledge(SOC_R01="one user, who checks tool calls"), profile="mtp")
    (told,) = [warning for warning in plan["warnings"] if warning["id"] == "SOC-R01"]
    assert told["message"].endswith("(passed over by vllm_rules_ignored: one user, who checks tool calls)")
    assert ids(plan, "error") == []
    assert "speculative-config" in plan["sources"]


@pytest.mark.parametrize(
    ("name", "flags", "left"),
    [
        ("SOC_F01", {"our-own-flag": 1}, "warning"),
        ("SOC_C03", {"max-num-batched-tokens": 1024}, "warning"),
        ("SOC_C05", {}, "note"),
    ],
)
def test_findings_of_flags_and_capacity_are_passed_over_alike(name: str, flags: Any, left: str) -> None:
    plan = real("a800-1", "agents", knowledge(**{name: "patched image"}), flags=flags)
    (told,) = [finding for finding in plan["findings"] if finding["id"] == name.replace("_", "-")]
    assert told["severity"] == left and "(passed over by vllm_rules_ignored: patched image)" in told["sentence"]


def test_an_id_that_no_check_has_is_refused() -> None:
    with pytest.raises(PlanError, match=r"names 'SOC-F91', which is the id of no rule"):
        knowledge(SOC_F91="x")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("soc_r02", "names 'soc-r02', which is the id of no rule; did you mean 'SOC-R02'?"),
        ("SOC_R1", "names 'SOC-R1', which is the id of no rule; did you mean 'SOC-R01'?"),
        ("SOC_R44", "names 'SOC-R44', which is gone; SOC-C05 and SOC-C06 tell what it told."),
        ("SOC_R63", "names 'SOC-R63', which is gone; plans hand GPUs in by CDI alone."),
    ],
)
def test_an_id_that_is_gone_or_wrong_is_told_with_what_to_name_instead(name: str, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        knowledge(**{name: "x"})
    assert refused.value.fields["errors"] == [f"vllm_rules_ignored {said}"]


def test_ids_that_find_nothing_are_named_in_a_note() -> None:
    plan = real("a800-1", "agents", knowledge(SOC_R02="measured", SOC_R36="never", SOC_F01="patched"))
    (told,) = [finding for finding in plan["findings"] if finding["id"] == "SOC-R00"]
    assert told["severity"] == "note"
    assert (
        told["sentence"]
        == "vllm_rules_ignored passes over SOC-F01, SOC-R36, which find nothing in the plans of a800-1."
    )
    assert "SOC-R00" in "\n".join(plan_table(plan, notes=True))
    assert "SOC-R00" not in [warning["id"] for warning in plan["warnings"]]


def test_an_id_that_one_instance_of_the_host_needs_is_no_note(plan_all: Any) -> None:
    chat = {"model": "small-chat"}
    plans = plan_all(
        {"a": {**chat, "flags": {"our-own-flag": 1}}, "b": {**chat, "port": 1}}, knowledge=knowledge(SOC_F01="patched")
    ).plans
    assert [ids(plan) for plan in plans.values() if "SOC-R00" in ids(plan)] == []
    assert "SOC-F01" in ids(plans["a"]) and "SOC-F01" not in ids(plans["b"])


def test_an_id_whose_finding_another_tells_better_is_no_note() -> None:
    flags = {"speculative-config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 1}}
    found = ids(real("a800-1", "agents", knowledge(SOC_R08="known"), flags=flags))
    assert "SOC-F07" in found and not {"SOC-R08", "SOC-R00"} & set(found)


def test_ids_that_can_be_passed_over_are_those_that_are_documented() -> None:
    listed = [
        ident
        for name in ("flags", "capacity")
        for ident in re.findall(r"(?m)^\| (SOC-[FC]\d\d) \|", (COLLECTION / f"docs/{name}.md").read_text("utf-8"))
    ]
    assert sorted(IDS) == sorted(listed)
    known = {*IDS, *(rule.id for rule in knowledge().rules.rules)}
    for table in (SAID_BETTER, SAID_BETTER_OF_FLAG):
        assert known.issuperset({*table, *(better for found in table.values() for better in found)})


@pytest.mark.parametrize(
    ("host", "instance", "flags", "env", "told", "silent"),
    [
        (
            "a800-1",
            "agents",
            {"max-num-seqs": 2000, "kv-cache-dtype": "auto"},
            {},
            "SOC-C06",
            {"SOC-C05", "SOC-R50"},
        ),
        ("a800-1", "agents", {"max-num-seqs": 2000}, {}, "SOC-C05", {"SOC-C06", "SOC-R50"}),
        ("a800-1", "agents", {"tensor-parallel-size": 5}, {}, "SOC-C12", {"SOC-R70", "SOC-R71"}),
        ("rtx-1", "home", {"watermark": 0.1}, {}, "SOC-F09", {"SOC-R51"}),
        (
            "a100-1",
            "chat",
            {"max-model-len": 300000},
            {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
            "SOC-R42",
            {"SOC-R41"},
        ),
    ],
)
def test_a_fault_that_two_checks_find_is_told_once(
    host: str, instance: str, flags: Any, env: Any, told: str, silent: set[str]
) -> None:
    try:
        plan = real(host, instance, flags=flags, env=env)
        found = set(ids(plan))
    except PlanError as error:
        found = {match for text in error.fields["errors"] for match in re.findall(r"\((SOC-\w+)", text)}
    assert told in found
    assert not silent & found


def test_a_version_without_a_schema_is_one_warning(documents: Any, plan_one: Any) -> None:
    profile = documents["profiles/serving"]["small-chat--cpu"]["profiles"]["default"]
    flags = {**profile["flags"], "no-such-flag": 1}
    profile.update(vllm_version="0.27.7", image="registry.example/vllm:v0.27.7", flags=flags)
    plan = plan_one(knowledge=knowledge())
    assert [warning["id"] for warning in plan["warnings"]] == ["SOC-F17"]
    assert "0.27.7" in plan["warnings"][0]["message"]


def test_a_plan_tells_what_the_launch_will_hold() -> None:
    plan = real("a800-1", "agents")
    capacity = plan["capacity"]
    assert 44 < capacity["kv_gib_per_gpu"] < 48 and 9 < capacity["concurrency_at_full_length"] < 11
    assert (capacity["block_tokens"], capacity["smallest_cacheable_prefix_tokens"]) == (1600, 3200)
    lines = plan_table(plan)
    start = lines.index("  capacity")
    told = " ".join(line.strip() for line in lines[start + 1 : lines.index("  command")])
    weights, cache = r"weights 26\.\d\d GiB \(by dimensions\)", r"KV cache 4\d\.\d\d GiB"
    assert re.match(rf"{weights}, {cache} \(give or take 2\.\d\d\), headroom 3\.\d\d GiB ", told)
    assert told.endswith("requests of 262,144 at once, prefixes from 3,200 tokens on are cached")


def test_prefixes_of_an_older_hybrid_model_are_not_cached_by_themselves() -> None:
    assert (
        real("a100-1", "chat", flags={"enable-prefix-caching": None})["capacity"]["smallest_cacheable_prefix_tokens"]
        is None
    )


def test_what_is_not_known_is_null_and_told(plan_one: Any) -> None:
    plan = plan_one(knowledge=knowledge())
    assert {value for name, value in plan["capacity"].items() if name != "calibrated"} == {None}
    assert "SOC-C11" in ids(plan)
    assert "  capacity  How much the KV cache holds cannot be told" in "\n".join(plan_table(plan))


@pytest.mark.parametrize("value", [1e15, 0, -0.5, 1.5])
def test_a_share_of_memory_that_cannot_be_is_refused_and_gives_no_figures(value: float) -> None:
    flags = {"gpu-memory-utilization": value}
    assert [error.count("(SOC-F03, ") for error in errors("a800-1", "agents", flags=flags)] == [1]
    passed_over = real("a800-1", "agents", knowledge(SOC_F03="tried"), flags=flags)
    assert passed_over["capacity"]["kv_tokens"] is None


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"max-model-len": "0"}, "must be a number of tokens"),
        ({"tensor-parallel-size": 10**12}, "spread the model over 1000000000000"),
    ],
)
def test_absurd_values_are_refused_at_once(flags: Any, part: str) -> None:
    assert part in errors("a800-1", "agents", flags=flags)[0]


def test_a_length_that_the_engine_chooses_is_no_reason_to_refuse() -> None:
    plan = real("a800-1", "agents", flags={"max-model-len": "auto", "gpu-memory-utilization": 0.4})
    assert plan["capacity"]["kv_tokens"] is None and not {"SOC-C01", "SOC-C02"} & set(ids(plan))


@pytest.mark.parametrize(("process", "refused"), [("ollama", True), ("VLLM::Worker_TP0", False), ("python3", False)])
def test_memory_that_an_engine_of_ours_holds_will_be_free(process: str, refused: bool) -> None:
    facts = facts_of("a800-1")
    for gpu in facts["gpus"]:
        gpu["memory"] = {"reserved_mib": 600, "used_mib": 60000, "free_mib": 21320}
        gpu["processes"] = [{"pid": 1, "name": process, "memory_mib": 60000}]
    if refused:
        assert "SOC-C04" in " ".join(errors("a800-1", "agents", facts=facts))
    else:
        assert "SOC-C04" not in ids(real("a800-1", "agents", facts=facts))


def test_nothing_that_is_found_restarts_an_engine() -> None:
    def fingerprint(plan: dict[str, Any]) -> str:
        return launch_fingerprint({**plan, "image_digest": None, "content_id": None}, None)

    plan = real("a800-1", "agents")
    assert fingerprint(plan) == fingerprint({**plan, "findings": [], "warnings": [], "capacity": {}, "model": {}})


def test_the_same_findings_come_in_the_same_order() -> None:
    plan = real("a800-1", "agents")
    ranks = {"warning": 0, "note": 1}
    assert [ranks[finding["severity"]] for finding in plan["findings"]] == sorted(
        ranks[finding["severity"]] for finding in plan["findings"]
    )
    assert plan["findings"] == real("a800-1", "agents")["findings"]


def test_the_short_flags_of_speculation_take_the_same_memory() -> None:
    short = {"speculative-config": None, "spec-method": "mtp", "spec-tokens": 3}
    assert real("a800-1", "agents", flags=short)["capacity"] == real("a800-1", "agents")["capacity"]


@pytest.mark.parametrize("off", ["no-enable-prefix-caching", "disable-prefix-caching"])
def test_what_turns_a_flag_off_counts_under_each_of_its_names(documents: Any, plan_one: Any, off: str) -> None:
    model = documents["profiles/models"]["small-chat"]
    model["architecture"] = {"class": "X", "layers": 8, "full_attention_layers": 2, "kv_heads": 2, "head_dim": 64}
    model["architecture"]["linear_attention"] = {"layers": 6, "key_heads": 2, "value_heads": 2}
    model["architecture"]["linear_attention"].update(key_head_dim=64, value_head_dim=64, conv_kernel=4)
    profile = documents["profiles/serving"]["small-chat--cpu"]["profiles"]["default"]
    profile.update(vllm_version="0.33.0", image="registry.example/vllm:v0.33.0", env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    profile.update(flags={"max-model-len": 4096, off: True})
    plan = plan_one(knowledge=knowledge())
    assert not {"SOC-R55", "SOC-R58"} & set(ids(plan))
    assert plan["capacity"]["blocks"] and plan["capacity"]["smallest_cacheable_prefix_tokens"] is None


def test_a_length_that_follows_from_scaled_positions_is_left_to_the_engine() -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 262144}
    flags = {"max-model-len": None, "hf-overrides": {"text_config": {"rope_parameters": rope}}}
    plan = real("a800-1", "agents", flags=flags)
    assert plan["max_model_len"] is None and plan["capacity"]["kv_tokens"] is None


@pytest.mark.parametrize("tokens", ["many", 0])
def test_a_wrong_number_of_tokens_is_told_as_that_alone(tokens: Any) -> None:
    (told,) = errors(
        "a800-1", "agents", flags={"speculative-config": {"method": "mtp", "num_speculative_tokens": tokens}}
    )
    assert "(SOC-F12, " in told


@pytest.mark.parametrize("version", ["9" * 5000, "\N{SUPERSCRIPT TWO}", "unknown"])
def test_a_driver_whose_version_is_no_number_is_told_as_it_is(version: str) -> None:
    facts = facts_of("a800-1")
    facts["driver"]["version"] = version
    (told,) = errors("a800-1", "agents", facts=facts)
    assert f"has NVIDIA driver {version[:7]}" in told and "525 or newer" in told and len(told) < 300


@pytest.mark.parametrize(
    ("instance", "changes", "tokens"),
    [
        ("agents-fp8", {}, 3210165),
        ("agents", {"model": "qwen3.6-35b-a3b", "profile": "mtp", "flags": {"kv-cache-dtype": None}}, 3528861),
    ],
)
def test_the_documentation_compares_what_plans_tell_with_the_reports(
    instance: str, changes: dict[str, Any], tokens: int
) -> None:
    assert real("a800-1", instance, **changes)["capacity"]["kv_tokens"] == tokens
    assert f"{tokens:,}" in (COLLECTION / "docs/capacity.md").read_text(encoding="utf-8")
