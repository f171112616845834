# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Workloads that are cut to the instance, use its cache on purpose, and take along what the engine says of itself."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.filter.deploy import benchmark_lines
from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe import server_side
from ansible_collections.socle.inference.plugins.module_utils._probe.benchmark import (
    Bench,
    fit,
    parse_workload,
    run_all,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import EngineFault, ProbeError
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path

from tests.simulators.engine import Behaviour, EngineDouble

DATA = data_path(None, {})
NAMES = DATA.names("workloads")


def shipped(name: str) -> dict[str, Any]:
    return DATA.read("workloads", name)[1]  # type: ignore[no-any-return]


def run(name: str, params: dict[str, Any], limit: int | None = None, **how: Any) -> dict[str, Any]:
    workload = parse_workload(shipped(name), params)
    with EngineDouble(Behaviour(max_model_len=2048, **how)) as double, EngineClient(double.base_url) as client:
        found = run_all(Bench(client, "double", max_model_len=limit), [workload])
    return {"verdict": found["verdict"], **found["workloads"][name]}


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_workload_is_one_and_says_what_it_asks(name: str) -> None:
    workload = parse_workload(shipped(name))
    assert workload.description.rstrip().endswith("?")
    assert fit(workload, 262_144) == (workload, {})


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("L10", None, (10_000, 3000, {})),
        ("L10", 13_000, (10_000, 3000, {})),
        ("L10", 12_999, (9_999, 3000, {"prompt_tokens": [10_000, 9_999]})),
        ("L10", 5_000, (2_500, 2_500, {"prompt_tokens": [10_000, 2_500], "output_tokens": [3_000, 2_500]})),
        ("B6", 1_000, (None, 500, {"output_tokens": [2_048, 500]})),
    ],
)
def test_a_workload_is_cut_to_the_instance_and_says_so(name: str, limit: int | None, expected: Any) -> None:
    workload, cut = fit(parse_workload(shipped(name)), limit)
    assert workload is not None
    assert (workload.params.prompt_tokens, workload.params.output_tokens, cut) == expected


def test_a_workload_of_which_too_little_would_be_left_is_skipped() -> None:
    result = run("L222", {"repeats": 1}, limit=512)
    assert (result["status"], result["verdict"]) == ("skipped", "error"), "alone it proves nothing"
    assert result["warnings"] == ["Skipped: of 222000 tokens of input 256 would be left in an instance of 512 tokens."]
    assert "222000 tokens" in benchmark_lines({"workloads": {"L222": result}}, "gpu-1 chat")[0]


def test_what_was_cut_is_a_warning_with_both_figures() -> None:
    result = run("P8", {"repeats": 1, "warmups": 0, "prompt_tokens": 900}, limit=512)
    assert (result["status"], result["prompt_tokens"]) == ("passed", 496)
    assert result["warnings"][-1:] == ["Cut to the 512 tokens of the instance: prompt_tokens 900 to 496."]


def test_the_same_prompt_twice_is_cold_and_then_warm() -> None:
    result = run("B4", {"prompt_tokens": 200, "repeats": 2}, ttft_s=0.01)
    assert (result["status"], result["cached_prompt_tokens"]) == ("passed", 0)
    assert {each["warm_cached_prompt_tokens"] for each in result["runs"]} == {100}
    assert result["ttft_drop_pct"]["n"] == 2
    assert result["server"]["only_ours"], "both requests of a run are ours"
    assert not any("gave nothing" in each for each in result["warnings"])
    assert "saved" in benchmark_lines({"workloads": {"B4": result}}, "gpu-1 chat")[0]


def test_a_first_request_that_was_not_cold_does_not_count() -> None:
    result = run("B4", {"prompt_tokens": 200, "repeats": 1}, faults=frozenset({"cache_ignores_salt"}))
    assert result["status"] == "failed"
    assert "the run was not cold" in result["faults"][0]


def test_an_engine_without_a_prefix_cache_is_said_to_have_none() -> None:
    result = run("B4", {"prompt_tokens": 200, "repeats": 1}, cache_tokens=0)
    assert result["status"] == "passed"
    assert any("The prefix cache gave nothing" in each for each in result["warnings"])


def test_pure_decode_is_measured_after_the_prompts_are_cached() -> None:
    result = run("D3", {"prompt_tokens": 100, "output_tokens": 16, "repeats": 1}, ttft_s=0.01, itl_s=0.002)
    (once,) = result["runs"]
    assert (result["status"], once["requests"], once["completion_tokens"]) == ("passed", 3, 16)
    assert result["cached_prompt_tokens"] == 3 * 50
    assert (result["server"]["requests"], result["server"]["only_ours"]) == (6, True)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("B4", {"prompt_tokens": None}, "of kind prefix and needs prompt_tokens"),
        ("D3", {"prompt_tokens": None}, "of kind decode and needs prompt_tokens"),
        ("D3", {"requests": 0}, "requests of the workload 'D3' must be a whole number from 1 on"),
        ("D3", {"concurrency": 2}, "sets concurrency, which only one of kind load has"),
        ("B4", {"requests": 2}, "sets requests, which only one of kind load has"),
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        parse_workload(shipped(name), params)


BEFORE = """
vllm:spec_decode_num_drafts_total{engine="0"} 100
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 10
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 10
vllm:prefix_cache_queries_total 1000
vllm:prefix_cache_hits_total 500
"""
# The counters of report A800 on top: 1,097 drafts, 3,291 guessed tokens, 1,564 accepted.
AFTER = """
vllm:spec_decode_num_drafts_total{engine="0"} 1197
vllm:spec_decode_num_draft_tokens_total{engine="0"} 3591
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 1574
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 800
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 500
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 274
vllm:prefix_cache_queries_total 3000
vllm:prefix_cache_hits_total 1000
"""


def test_what_speculation_brought_is_read_from_the_counters() -> None:
    before, after = exposition.parse(BEFORE), exposition.parse(AFTER)
    found = server_side.speculation(before, after)
    assert found == {
        "drafts": 1097,
        "draft_tokens": 3291,
        "accepted_tokens": 1564,
        "acceptance_rate": 0.4752,
        "mean_accepted_length": 2.426,
        "acceptance_by_position": [0.7201, 0.4558, 0.2498],
    }
    assert server_side.hit_rate(before, after) == 0.25


def test_an_engine_that_does_not_speculate_says_nothing_of_it() -> None:
    page = exposition.parse("vllm:prompt_tokens_total 5\n")
    assert server_side.speculation(page, page) is None
    assert server_side.speculation(exposition.parse(AFTER), exposition.parse(AFTER)) is None
    assert server_side.hit_rate(page, page) is None


def test_the_gauges_are_looked_at_while_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side, "WATCH_S", 0.01)
    values = iter([1, 7, 3])

    def look() -> server_side.Page:
        value = next(values, None)
        if value is None:
            raise EngineFault("gone")
        return exposition.parse(f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc 0.{value}\n")

    with server_side.Watch(look) as watch:
        until = time.monotonic() + 5
        while watch.looks < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert watch.figures() == {"running_max": 7.0, "kv_cache_use_max": 0.7, "looks": 3}


def test_the_line_of_a_workload_tells_the_rate_of_reading_only_for_long_prompts() -> None:
    result = yaml.safe_load("""
    status: passed
    kind: generation
    prompt_tokens: 8000
    ttft_ms: {p50: 1450.0, spread_pct: 1.0}
    prefill_tok_per_s: {p50: 5511.0, spread_pct: 1.0}
    speculation: {mean_accepted_length: 2.43}
    """)
    (line,) = benchmark_lines({"workloads": {"P8": result}}, "gpu-1 chat")
    assert line == ("gpu-1 chat P8: TTFT 1450.0 ms (spread 1 %), prefill 5511.0 tok/s (spread 1 %), 2.43 tokens a pass")
    (line,) = benchmark_lines({"workloads": {"B1": {**result, "prompt_tokens": 50}}}, "gpu-1 chat")
    assert "prefill" not in line
