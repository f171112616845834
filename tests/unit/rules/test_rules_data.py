# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's rules: each fires where it should and only there, and the documentation lists them as they are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, NOTE, WARNING
from ansible_collections.socle.inference.plugins.module_utils._plan.rule_context import OF_PLAN, PATHS, RuleContext
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import OPERATORS, evaluate, load_rules
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION, DataPath

from tests.unit.rules.cases import BASE, CASES, FP8_KV, MTP, PREFIX, RTX_PRO, TOOLS, changed, version

RULES = load_rules(DataPath([]))
TEXT = (COLLECTION / "profiles/rules.yml").read_text(encoding="utf-8")
ENTRIES = {entry["id"]: entry for entry in yaml.safe_load(TEXT)["rules"]}
DOCS = (COLLECTION / "docs/rules.md").read_text(encoding="utf-8")


def ids(context: dict[str, Any], severity: str | None = None) -> list[str]:
    return [finding.id for finding in evaluate(RULES, context) if severity in (None, finding.severity)]


def test_there_are_rules_and_every_rule_has_both_plans() -> None:
    assert len(RULES.rules) >= 30
    assert [rule.id for rule in RULES.rules] == sorted(CASES)


@pytest.mark.parametrize("rule", sorted(CASES))
def test_a_plan_triggers_it_and_a_changed_one_does_not(rule: str) -> None:
    trigger, change = CASES[rule]
    fired = [finding for finding in evaluate(RULES, changed(trigger)) if finding.id == rule]
    assert len(fired) == 1
    assert fired[0].severity == ENTRIES[rule]["severity"]
    assert "unknown" not in fired[0].sentence + fired[0].remedy, "a value that the plan has is missing in the sentence"
    assert not re.search(r"[{}]", fired[0].sentence)
    assert rule not in ids(changed(trigger, change))


def test_a_sound_plan_is_left_alone() -> None:
    assert ids(BASE) == []


@pytest.mark.parametrize("rule", sorted(CASES))
def test_nothing_fires_where_nothing_is_known(rule: str) -> None:
    """Facts that are not known trigger nothing; only what a plan leaves out can."""
    trigger, _change = CASES[rule]
    context = changed(trigger)
    bare = {key: context[key] if key in OF_PLAN else {} for key in context}
    for finding in evaluate(RULES, bare):
        entry = ENTRIES[finding.id]
        paths = re.findall(r"'path': '([a-z]+)\.", str(entry["when"]))
        assert set(paths) <= {"flags", "env", "effective"}, finding


def test_the_published_systems_get_what_is_known_about_them() -> None:
    """Figures and flags as their reports have them: dual A100, one RTX PRO 6000 in two forms, dual A800 by PCIe."""
    nvlink_a100 = {
        "hardware.class": "a100_sxm4_80g",
        "hardware.family": "a100",
        "hardware.link": "nvlink",
        **version("0.19.1"),
        "flags.max-model-len": 131072,
        "flags.max-num-seqs": 2,
        "flags.gpu-memory-utilization": 0.92,
        "flags.language-model-only": True,
        **PREFIX,
        "flags.speculative-config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 2},
    }
    assert ids(changed(nvlink_a100), ERROR) == []
    assert {"SOC-R03", "SOC-R06", "SOC-R08"} <= set(ids(changed(nvlink_a100), NOTE))
    mtp_form = {
        **RTX_PRO,
        **version("0.23.0"),
        "hardware.gpus": 1,
        "flags.tensor-parallel-size": 1,
        "model.quantization": "nvfp4",
        **FP8_KV,
        **PREFIX,
        **TOOLS,
        "flags.trust-remote-code": True,
        "flags.speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
    }
    assert ids(changed(mtp_form), ERROR) == ["SOC-R01"]
    assert {"SOC-R04", "SOC-R20", "SOC-R28", "SOC-R34"} <= set(ids(changed(mtp_form), WARNING))
    final = {**mtp_form, "flags.speculative-config": None, "flags.tool-call-parser": "qwen3_xml"}
    assert ids(changed(final), ERROR) == []
    pcie_a800 = {
        "model.family": "qwen3.8",
        **PREFIX,
        **TOOLS,
        **FP8_KV,
        **MTP,
        "flags.watermark": 0.1,
        "flags.max-num-seqs": 256,
        "flags.max-num-batched-tokens": 8192,
        "flags.gpu-memory-utilization": 0.95,
        "flags.trust-remote-code": True,
        "env.CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert ids(changed(pcie_a800), ERROR) == []
    assert ids(changed(pcie_a800), WARNING) == ["SOC-R02", "SOC-R14", "SOC-R20", "SOC-R24", "SOC-R28"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("0.20.1", "SOC-R03"),
        ("0.20.2", "SOC-R01"),
        ("0.25.1", "SOC-R01"),
        ("0.26.0rc1", "SOC-R01"),
        ("0.26.0", "SOC-R02"),
        ("v0.26.0+cu129", "SOC-R02"),
        ("0.33.0", "SOC-R02"),
    ],
)
def test_a_range_takes_in_its_start_and_leaves_out_its_end(number: str, expected: str) -> None:
    found = ids(changed(MTP, PREFIX, version(number)))
    assert [rule for rule in found if rule in ("SOC-R01", "SOC-R02", "SOC-R03")] == [expected]


def test_gpus_without_a_bridge_talk_over_pcie() -> None:
    """Where bridges are optional the host's topology decides, and nothing is said where it is unknown."""
    assert "SOC-R64" in ids(changed(RTX_PRO, {"hardware.worst_path": None}))
    assert "SOC-R64" in ids(changed({"hardware.worst_path": "NODE"}))
    assert "SOC-R64" not in ids(changed({"hardware.worst_path": None}))
    assert "SOC-R64" not in ids(changed({"hardware.worst_path": "PIX", "flags.tensor-parallel-size": 1}))


@pytest.mark.parametrize(("number", "rule"), [("0.26.0", "SOC-R14"), ("0.33.0", "SOC-R15")])
@pytest.mark.parametrize(("aliases", "fires"), [(None, True), (False, True), (True, False)])
def test_levels_of_effort_that_a_profile_adds_answer_the_rule(
    number: str, rule: str, aliases: bool | None, fires: bool
) -> None:
    context = changed({"model.family": "qwen3.8", "instance.effort_aliases": aliases}, version(number))
    assert (rule in ids(context)) is fires


def test_the_default_of_a_version_counts_as_what_it_does() -> None:
    """From 0.28 on a hybrid model's prefixes are cached unless the plan says otherwise."""
    silent = {**MTP, "flags.no-enable-prefix-caching": None}
    assert "SOC-R02" in ids(changed(silent, version("0.28.0")))
    assert "SOC-R02" not in ids(changed(silent, version("0.27.1")))


def test_a_flag_schema_s_defaults_change_no_verdict() -> None:
    """Defaults of a version filled in as values: switches that are off, lists and maps that are empty."""
    defaults = {
        "flags.disable-custom-all-reduce": False,
        "flags.enable-auto-tool-choice": False,
        "flags.enable-prompt-tokens-details": False,
        "flags.allowed-origins": ["*"],
        "flags.limit-mm-per-prompt": {},
        "flags.linear-backend": "auto",
        "flags.kv-cache-dtype": "auto",
        "flags.mm-processor-cache-gb": 4,
        "flags.watermark": 0.0,
        "flags.gpu-memory-utilization": 0.92,
    }
    assert ids(changed(defaults)) == []
    for rule, (trigger, _change) in CASES.items():
        # From 0.32 on no origin is allowed by default.
        newer = {"flags.allowed-origins": []} if rule == "SOC-R84" else {}
        assert rule in ids(changed(defaults, newer, trigger)), rule


def test_the_work_for_one_plan_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few look-ups for each rule, so that hundreds of plans take well under a second."""
    asked: list[str] = []
    looked_up = RuleContext.get

    def get(self: RuleContext, path: Any) -> Any:
        asked.append(path.text)
        return looked_up(self, path)

    monkeypatch.setattr(RuleContext, "get", get)
    evaluate(RULES, changed(*(trigger for trigger, _change in CASES.values())))
    assert len(asked) < 6 * len(RULES.rules)


def test_every_flag_that_a_rule_names_exists() -> None:
    schemas = sorted((COLLECTION / "profiles/vllm").glob("*.json"))
    if not schemas:
        pytest.skip("this tree has no flag schemas (profiles/vllm/*.json)")
    known: set[str] = set()
    for path in schemas:
        known |= set(re.findall(r'"(?:--)?([a-z][a-z0-9-]*)"', json.dumps(json.loads(path.read_text("utf-8")))))
    named = set(re.findall(r"flags\.([a-z0-9-]+)", TEXT))
    assert named - known == set()


def test_the_documentation_lists_every_rule_as_it_is() -> None:
    rows = {
        cells[0]: cells
        for cells in (
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in DOCS.splitlines()
            if line.startswith("| SOC-R")
        )
    }
    assert list(rows) == [rule.id for rule in RULES.rules]
    for rule in RULES.rules:
        span = " ".join(
            [*([f"from {rule.since}"] if rule.since else []), *([f"before {rule.until}"] if rule.until else [])]
        )
        assert rows[rule.id] == [rule.id, rule.title, rule.severity, span or "all", rule.subject]


def test_the_documentation_lists_every_path_and_operator() -> None:
    for word in (*PATHS, *OPERATORS):
        assert f"`{word}`" in DOCS, word


def test_the_documentation_s_example_is_a_sound_file(tmp_path: Any) -> None:
    example = re.search(r"```yaml\n(---\n.*?)```", DOCS, re.DOTALL)
    assert example
    (tmp_path / "site_data").mkdir()
    (tmp_path / "site_data/rules.yml").write_text(example.group(1), encoding="utf-8")
    loaded = load_rules(DataPath([tmp_path / "site_data"]))
    assert loaded.rules[-1].id == "SITE-R01"


def test_limits_of_nothing_go_with_a_model_without_eyes() -> None:
    only_text = {"flags.language-model-only": True}
    assert "SOC-R22" not in ids(changed(only_text, {"flags.limit-mm-per-prompt": {"image": 0, "video": 0}}))
    assert "SOC-R22" in ids(changed(only_text, {"flags.limit-mm-per-prompt": {"image": 0, "video": 2}}))


@pytest.mark.parametrize(
    ("backend", "fires"),
    [
        ({"flags.attention-backend": "flash_attn"}, "SOC-R26"),
        ({"flags.attention-config": {"backend": "FLASH_ATTN"}}, "SOC-R26"),
        ({"flags.attention-backend": "auto"}, "SOC-R24"),
        ({"flags.attention-backend": "triton_attn"}, "SOC-R27"),
        ({"flags.attention-config": {"backend": "FLASHINFER"}}, None),
    ],
)
def test_a_backend_counts_however_it_is_written(backend: dict[str, Any], fires: str | None) -> None:
    found = set(ids(changed(FP8_KV, backend))) & {"SOC-R24", "SOC-R26", "SOC-R27"}
    assert found == ({fires} if fires else set())


def test_a_length_that_follows_from_scaled_positions_is_not_known() -> None:
    """The engine takes what they come to, so that nothing is said of a length that is not that."""
    scaled = {"flags.hf-overrides": {"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}}}
    assert "SOC-R43" in ids(changed(scaled))
    assert "SOC-R43" not in ids(changed(scaled, {"flags.max-model-len": None}))


def test_a_processor_of_any_name_may_run_without_compilation() -> None:
    eager = {"flags.enforce-eager": True, "hardware.class": "epyc", "hardware.gpus": 0}
    assert "SOC-R85" not in ids(changed(eager))


def test_a_model_of_its_own_tells_how_many_tokens_are_speculated() -> None:
    config = {"method": "mtp"}
    assert "SOC-R96" in ids(changed({"flags.speculative-config": config}))
    assert "SOC-R96" not in ids(changed({"flags.speculative-config": {**config, "model": "/models/draft"}}))
    assert "SOC-R96" not in ids(changed({"flags.speculative-config": {"method": "suffix"}}))


@pytest.mark.parametrize(("dtype", "plain"), [("fp8", True), ("fp8_e5m2", True), ("fp8_per_token_head", False)])
def test_formats_with_scales_of_their_own_are_not_plain_fp8(dtype: str, plain: bool) -> None:
    assert ("SOC-R28" in ids(changed({"flags.kv-cache-dtype": dtype}))) is plain
