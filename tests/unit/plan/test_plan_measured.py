# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a start on record to the plan that rests on it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.measured import calibration_of
from ansible_collections.socle.inference.plugins.module_utils._records.state import (
    calibrations_of,
    distinct_calibrations,
)

from tests.unit.plan.test_plan_findings import ids, real

STARTED = {
    "milestones": {"weights": {"at_s": 60.0, "gib": 26.08}, "kv_memory": {"at_s": 130.0, "gib": 45.5}},
    "kv_cache": {"num_gpu_blocks": None},
    "max_model_len": 262144,
}
"""As the A800 of the report would tell it, with another KV cache than the estimate."""


def test_a_plan_rests_on_the_start_that_is_on_record() -> None:
    before = real("a800-1", "agents")
    content = json.loads(json.dumps(calibration_of(STARTED, before)))
    after = real("a800-1", "agents", calibrations=[content])
    assert (before["capacity"]["calibrated"], after["capacity"]["calibrated"]) == (False, True)
    assert after["capacity"]["kv_gib_per_gpu"] == 45.5
    assert after["capacity"]["weights_gib_per_gpu"] == 26.08
    assert "SOC-C15" in ids(before) and "SOC-C15" not in ids(after)
    assert after["argv"] == before["argv"]


def test_a_start_on_another_class_or_with_more_gpus_says_nothing() -> None:
    content = calibration_of(STARTED, real("a800-1", "agents"))
    assert content is not None
    for changed in (
        {**content, "host_class": "h200_sxm_141g"},
        {**content, "launch": {**content["launch"], "tensor_parallel": 4}},
    ):
        assert real("a800-1", "agents", calibrations=[changed])["capacity"]["calibrated"] is False


def test_the_same_launch_goes_before_one_that_differs() -> None:
    content = calibration_of(STARTED, real("a800-1", "agents"))
    assert content is not None
    older = {**content, "weights_bytes": 1, "launch": {**content["launch"], "vllm_version": "0.23.0"}}
    plan = real("a800-1", "agents", calibrations=[older, content])
    assert plan["capacity"]["weights_gib_per_gpu"] == 26.08 and "SOC-C16" not in ids(plan)


@pytest.mark.parametrize("wrong", [None, 5, {}, {"schema": "socle.calibration/1"}, ["x"], {"launch": {"os": 1}}])
def test_what_is_no_calibration_is_passed_over(wrong: Any) -> None:
    content = calibration_of(STARTED, real("a800-1", "agents"))
    assert content is not None
    damaged = {**content, **wrong} if isinstance(wrong, dict) and wrong else wrong
    if isinstance(damaged, dict) and "launch" in damaged and "os" in damaged["launch"]:
        assert real("a800-1", "agents", calibrations=[damaged])["capacity"]["calibrated"] is False
    assert real("a800-1", "agents", calibrations=[wrong, content])["capacity"]["calibrated"] is True


@pytest.mark.parametrize("key", ["graphs_bytes", "launch", "total_bytes", "hidden_size", "schema"])
def test_a_damaged_calibration_is_passed_over(key: str) -> None:
    content = calibration_of(STARTED, real("a800-1", "agents"))
    assert content is not None
    del content[key]
    assert real("a800-1", "agents", calibrations=[content])["capacity"]["calibrated"] is False


@pytest.mark.parametrize(
    "results",
    [
        {},
        {**STARTED, "milestones": {"weights": {"gib": 26.08}}},
        {**STARTED, "milestones": {}},
        # 9 blocks of 27.8 MB are no 45.5 GiB.
        {**STARTED, "kv_cache": {"num_gpu_blocks": 9}},
    ],
)
def test_a_start_that_told_too_little_teaches_nothing(results: Any) -> None:
    assert calibration_of(results, real("a800-1", "agents")) is None


def test_a_start_with_a_given_cache_or_an_older_plan_teaches_nothing() -> None:
    plan = real("a800-1", "agents", flags={"kv-cache-memory-bytes": 40 * 1024**3})
    assert calibration_of(STARTED, plan) is None
    older = real("a800-1", "agents")
    del older["gpu"]
    older["model"].pop("architecture")
    assert calibration_of(STARTED, older) is None
    assert calibration_of(STARTED, {}) is None


def test_records_give_the_newest_start_of_each_kind() -> None:
    def deploy(finished: str, content: Any, kind: str = "deploy") -> dict[str, Any]:
        return {"kind": kind, "finished": finished, "results": {"calibration": content}}

    old, new, other = {"model": "a", "n": 1}, {"model": "a", "n": 2}, {"model": "b"}
    records: Any = {
        "chat": [deploy("2026-11-30T10:00:00Z", new), deploy("2026-11-30T09:00:00Z", old)],
        "code": [deploy("2026-11-30T11:00:00Z", other), deploy("2026-11-30T08:00:00Z", None), deploy("x", 1, "plan")],
    }
    assert calibrations_of(records) == [other, new, old]
    assert distinct_calibrations(calibrations_of(records)) == [other, new]


@pytest.mark.parametrize("flags", [{"cpu-offload-gb": 8}, {"enable-lora": True}])
def test_a_start_with_memory_elsewhere_teaches_nothing(flags: dict[str, Any]) -> None:
    plan = real("a800-1", "agents")
    assert calibration_of(STARTED, plan) is not None
    plan["sources"].update({name: {"value": value} for name, value in flags.items()})
    assert calibration_of(STARTED, plan) is None
