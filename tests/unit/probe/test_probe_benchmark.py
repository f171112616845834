# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A benchmark counts only runs that are what was asked for, and says how it knows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe.benchmark import (
    Bench,
    Params,
    benchmark_verdict,
    cached_tokens,
    others_ran,
    parse_workload,
    parse_workloads,
    request_body,
    run_all,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Trace

from tests.simulators.engine import Behaviour, EngineDouble

ROOT = Path(__file__).parents[3]
B1, B2 = (yaml.safe_load((ROOT / f"workloads/{name}.yml").read_text()) for name in ("B1", "B2"))


def bench(raw: dict[str, Any] = B2, params: dict[str, Any] | None = None, **how: Any) -> tuple[dict[str, Any], Any]:
    workload = parse_workload(raw, {"output_tokens": 16, "repeats": 3, **(params or {})})
    with EngineDouble(Behaviour(**how)) as double, EngineClient(double.base_url) as client:
        return Bench(client, "double").run(workload), double.state.requests


def test_a_good_run() -> None:
    result, requests = bench(ttft_s=0.02, itl_s=0.005)
    assert (result["status"], result["repeats"], len(result["runs"])) == ("passed", 3, 4)
    assert (result["completion_tokens"], result["cached_prompt_tokens"]) == (16, 0)
    assert result["ttft_ms"]["n"] == 3
    assert result["ttft_p50_ms"] >= 20
    assert result["e2e_p50_ms"] >= 95
    assert 0 < result["decode_p50_tok_per_s"] <= 210
    assert result["server"]["only_ours"]
    assert len({request["cache_salt"] for request in requests}) == 4
    assert len({request["messages"][0]["content"][:18] for request in requests}) == 4


def test_a_slower_engine_measures_slower() -> None:
    fast, slow = (bench(params={"repeats": 1}, itl_s=pause)[0] for pause in (0.001, 0.02))
    assert slow["decode_p50_tok_per_s"] < fast["decode_p50_tok_per_s"]
    assert slow["tpot_p50_ms"] > fast["tpot_p50_ms"]


def test_chunks_of_several_tokens_do_not_change_the_count() -> None:
    result, _engine = bench(tokens_per_chunk=4, itl_s=0.005)
    run = result["runs"][-1]
    assert (run["completion_tokens"], run["token_chunks"]) == (16, 4)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("few_tokens", "8 tokens were generated, 16 asked for"),
        ("cache_ignores_salt", "not cold"),
        ("cut_stream", "without"),
        ("error_frame", "error inside"),
        ("no_usage", "usage"),
    ],
)
def test_a_run_that_is_not_what_was_asked_for_fails(fault: str, words: str) -> None:
    result, _engine = bench(faults=frozenset({fault}))
    assert result["status"] == "failed"
    assert words in " ".join(result["faults"])
    assert benchmark_verdict({"B2": result}) == "failed"


class SharedClient(EngineClient):
    """An engine that others use: during each request one of theirs ends, after 7 tokens from the cache."""

    def __init__(self, double: EngineDouble, told: int | None) -> None:
        super().__init__(double.base_url)
        self._double = double
        self._told = told

    def stream_chat(self, body: dict[str, Any]) -> Trace:
        with self._double.state.lock:
            self._double.state.finished += 1
            self._double.state.hits += 7
        trace = super().stream_chat(body)
        assert trace.usage
        trace.usage = dataclasses.replace(trace.usage, cached_tokens=self._told)
        return trace


@pytest.mark.parametrize(
    ("told", "status", "cached", "proven"),
    [(None, "passed", None, False), (0, "passed", 0, True), (9, "failed", None, True)],
)
def test_cache_hits_of_others_are_not_held_against_a_run(
    told: int | None, status: str, cached: int | None, proven: bool
) -> None:
    with EngineDouble() as double, SharedClient(double, told) as client:
        result = Bench(client, "double").run(parse_workload(B2, {"output_tokens": 4, "repeats": 1, "warmups": 0}))
    assert (result["status"], result["cached_prompt_tokens"]) == (status, cached)
    words = " ".join(result["warnings"])
    assert ("Whether the runs were cold is not known" in words) is not proven
    # What the server says of this very request is proof, whoever else is there.
    assert ("9 prompt tokens came from the cache" in " ".join(result["faults"])) is (told == 9)


def metrics(hits: int, finished: int, running: int = 0, waiting: int = 0) -> list[exposition.Sample]:
    return exposition.parse(
        f"vllm:prefix_cache_hits_total {hits}\nvllm:request_success_total {finished}\n"
        f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
    )


@pytest.mark.parametrize(
    ("before", "after", "busy", "cached"),
    [
        (metrics(0, 0), metrics(5, 1), False, 5),
        (metrics(0, 0), metrics(0, 2), True, 0),
        (metrics(0, 0), metrics(5, 2), True, None),
        # A request of others that has not ended is told by the gauges only.
        (metrics(0, 0, running=1), metrics(5, 1), True, None),
        (metrics(0, 0), metrics(5, 1, running=1), True, None),
        (metrics(0, 0), metrics(5, 1, waiting=1), True, None),
        (None, None, False, None),
    ],
)
def test_whose_cache_hits_they_are(before: Any, after: Any, busy: bool, cached: int | None) -> None:
    assert others_ran(before, after) is busy
    assert cached_tokens(before, after) == cached


def test_without_metrics_the_proof_is_missing_not_zero() -> None:
    result, _engine = bench(faults=frozenset({"no_metrics"}), params={"repeats": 1, "warmups": 0})
    assert result["status"] == "passed"
    assert result["cached_prompt_tokens"] is None
    assert result["server"] is None


def test_prompts_have_the_length_that_was_asked_for() -> None:
    result, _engine = bench(params={"prompt_tokens": 200, "repeats": 2})
    assert (result["status"], result["prompt_tokens"]) == ("passed", 200)


def test_fewer_repeats_and_their_names() -> None:
    assert parse_workload(B1, {"repeats": 5, "warmups": 0}).repeats == 5


@pytest.mark.parametrize(
    ("change", "params", "words"),
    [
        ({}, {"ouput_tokens": 3}, "ouput_tokens"),
        ({"threads": 3}, {}, "threads"),
        ({}, {"output_tokens": 0}, "output_tokens"),
        ({}, {"output_tokens": True}, "output_tokens"),
        ({}, {"repeats": 0}, "repeats"),
        ({}, {"warmups": -1}, "warmups"),
        ({"kind": "ladder"}, {}, "ladder"),
        ({}, {"thinking": True}, "thinking"),
        ({}, {"thinking": False}, "YAML takes on and off without quotes"),
        ({"params": ["prompt"]}, {}, "params of the workload 'B1' must be a map"),
        ({5: 1}, {}, "does not know 5"),
        ({}, {"warmups": True}, "warmups"),
        ({}, {"repeats": 10**9}, "repeats of the workload 'B1' must be a whole number from 1 to 1000"),
        ({}, {"output_tokens": 10**5000}, "found one of 16610 bits"),
        ({}, {"prompt_tokens": "many"}, "prompt_tokens"),
        ({}, {"prompt": 5}, "prompt of the workload 'B1' must be a text"),
        ({}, {"prompt": " "}, "prompt of the workload 'B1' must be a text"),
        ({}, {"cold": "false"}, "cold of the workload 'B1' must be true or false; found 'false'"),
        ({}, {"ignore_eos": 1}, "ignore_eos of the workload 'B1' must be true or false"),
        ({}, {"sampling": [1]}, "sampling of the workload 'B1' must be a map"),
        ({}, {"sampling": {"temperature": float("nan")}}, "cannot be sent as JSON"),
        ({}, {"sampling": {"max_tokens": 1, "n": 3}}, "sets max_tokens, n, which the benchmark sets itself"),
        ({"params": {"prompt": "x"}}, {}, "output_tokens"),
    ],
)
def test_a_workload_that_cannot_be_meant_is_refused(change: dict[str, Any], params: dict[str, Any], words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        parse_workload({**B1, **change}, params)


@pytest.mark.parametrize(
    ("thinking", "model_thinks", "sent"),
    [
        ("auto", False, None),
        ("auto", True, True),
        ("on", False, True),
        ("off", True, False),
        ("unset", True, None),
    ],
)
def test_thinking_preset(thinking: str, model_thinks: bool, sent: bool | None) -> None:
    body = request_body("m", Params("p", 8, thinking=thinking, sampling={"top_p": 0.9}), model_thinks, "salt", [])
    assert body.get("chat_template_kwargs", {}).get("enable_thinking") is sent
    assert (body["top_p"], body["ignore_eos"], body["cache_salt"]) == (0.9, True, "salt")


@pytest.mark.parametrize(
    ("states", "expected"),
    [(["passed"], "passed"), (["passed", "failed"], "failed"), ([], "error"), (["error"], "error")],
)
def test_verdict(states: list[str], expected: str) -> None:
    assert benchmark_verdict({str(place): {"status": state} for place, state in enumerate(states)}) == expected


def test_a_whole_benchmark_says_how_it_was_done() -> None:
    changes = {"B1": {"output_tokens": 4}, "B2": {"output_tokens": 8, "prompt_tokens": 3}}
    with EngineDouble() as double, EngineClient(double.base_url) as client:
        result = run_all(Bench(client, "double"), parse_workloads([B1, B2], changes))
    assert result["workloads"]["B1"]["status"] == "passed"
    # No prompt is shorter than its question: the probe's own fault, not the engine's.
    assert result["workloads"]["B2"]["status"] == "error"
    assert result["verdict"] == "error"
    assert result["method"]["repeats"] == {"B1": 5, "B2": 5}
    assert result["method"]["client_parse_us_per_chunk"] > 0


def test_what_breaks_in_one_workload_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineDouble() as double, EngineClient(double.base_url, "sk-of-the-test") as client:
        bench = Bench(client, "double")
        real = bench.run

        def run(workload: Any) -> dict[str, Any]:
            if workload.name == "B1":
                raise KeyError("sk-of-the-test")
            return real(workload)

        monkeypatch.setattr(bench, "run", run)
        found = run_all(bench, parse_workloads([B1, B2], {"B2": {"output_tokens": 4}}))
    assert (found["verdict"], found["workloads"]["B2"]["status"]) == ("error", "passed")
    words = found["workloads"]["B1"]["faults"][0]
    assert "KeyError" in words and "probe's own fault" in words and "sk-of" not in words


def test_an_engine_without_metrics_leaves_open_whether_runs_were_cold() -> None:
    with EngineDouble() as double, EngineClient(double.base_url) as client:
        bench = Bench(client, "double")
        bench._metrics = lambda: None  # type: ignore[method-assign]
        found = bench.run(parse_workload(B1, {"output_tokens": 4, "repeats": 1}))
    assert found["cached_prompt_tokens"] is None
    assert "Whether the runs were cold is not known: the engine tells of no cache hits." in found["warnings"]


@pytest.mark.parametrize("entries", [[], ["B1"], [B1, B1], [{"kind": "generation"}], [{**B1, "name": " "}]])
def test_workloads_that_cannot_be_meant_are_refused(entries: list[Any]) -> None:
    with pytest.raises(ProbeError):
        parse_workloads(entries)
