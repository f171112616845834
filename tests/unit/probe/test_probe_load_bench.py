# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads as workloads: what they say of an engine, when they do not count, and what the client says of itself."""

from __future__ import annotations

import itertools
from array import array
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.filter.deploy import benchmark_lines
from ansible_collections.socle.inference.plugins.module_utils._probe import benchmark as benchmark_module
from ansible_collections.socle.inference.plugins.module_utils._probe.benchmark import (
    Bench,
    method,
    parse_workload,
    run_all,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.load import Delivery, LoadReport
from ansible_collections.socle.inference.plugins.module_utils._probe.load_bench import (
    due_times_ns,
    load_measures,
    meets,
    summed_faults,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Mark, Marks, Trace, Usage

from tests.simulators.engine import Behaviour, EngineDouble

ROOT = Path(__file__).parents[3]
MS = 1_000_000
C4 = yaml.safe_load((ROOT / "workloads/C4.yml").read_text())
SMALL = {"output_tokens": 8, "requests": 8, "repeats": 2}


def bench(params: dict[str, Any] | None = None, processors: int = 1, **how: Any) -> tuple[dict[str, Any], Any]:
    workload = parse_workload(C4, {**SMALL, **(params or {})})
    with EngineDouble(Behaviour(**how)) as double, EngineClient(double.base_url, how.get("api_key")) as client:
        return Bench(client, "double", processors=processors).run(workload), double.state.requests


def delivery(sent_ms: float, stamps_ms: list[float], tokens: int = 0, prompt: int = 10) -> Delivery:
    made = tokens or len(stamps_ms)
    marks = Marks(Mark(round(at * MS), place + 1) for place, at in enumerate(stamps_ms))
    sent = round(sent_ms * MS)
    return Delivery(0, sent, sent, Trace(sent, marks, usage=Usage(prompt, made, prompt + made)))


def report(*deliveries: Delivery, lags_ns: tuple[int, ...] = (1000,), cpu_ns: int = 1) -> LoadReport:
    return LoadReport(
        list(deliveries), 0, 1000 * MS, cpu_ns, reads=len(lags_ns), stamped=len(lags_ns), lags_ns=array("q", lags_ns)
    )


def test_a_good_load() -> None:
    result, requests = bench(ttft_s=0.02, itl_s=0.005)
    assert (result["status"], result["repeats"], result["faults"]) == ("passed", 2, [])
    assert len(requests) == 4 + 2 * 8, "as many at once as it runs, to warm up, and two whole loads"
    assert (result["completion_tokens"], result["cached_prompt_tokens"]) == (8, 0)
    assert result["output_tok_per_s"]["n"] == 2
    assert 20 <= result["ttft_ms"]["p50"] <= result["ttft_p99_ms"]["p50"]
    assert result["itl_ms"]["p50"] > 0 and result["e2e_ms"]["p50"] >= 55
    assert result["server"]["only_ours"]
    run = result["runs"][-1]
    assert (run["requests"], run["answered"], run["in_flight_max"]) == (8, 8, 4)
    assert run["client"]["processes"] == 1
    assert len({request["cache_salt"] for request in requests}) == len(requests)
    assert len({request["messages"][0]["content"] for request in requests}) == len(requests)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("few_tokens", "4 tokens were generated, 8 asked for (8 requests)"),
        ("cache_ignores_salt", "the load was not cold"),
        ("cut_stream", "without [DONE]"),
        ("error_frame", "error inside"),
        ("reset_stream", "in the middle of the answer"),
        ("no_usage", "usage"),
        ("aborted", "gave up"),
    ],
)
def test_a_load_that_is_not_what_was_asked_for_fails(fault: str, words: str) -> None:
    result, _requests = bench(faults=frozenset({fault}))
    assert result["status"] == "failed"
    assert words in " ".join(result["faults"])


def test_the_key_goes_along_and_is_in_no_result() -> None:
    result, _requests = bench(api_key="secret-1c7e")
    assert result["status"] == "passed"
    result, _requests = bench(api_key="secret-1c7e", faults=frozenset({"refuses_key"}))
    assert "status 401" in " ".join(result["faults"])
    assert "secret-1c7e" not in str(result)


def test_figures_of_a_load_by_hand() -> None:
    run = load_measures(
        [report(delivery(0, [100, 120, 140]), delivery(50, [250, 270, 290])), report(delivery(200, [500, 600, 1000]))],
        {"ttft_ms": 250, "tpot_ms": 50},
    )
    assert (run["requests"], run["answered"], run["duration_s"]) == (3, 3, 1.0)
    assert (run["output_tok_per_s"], run["input_tok_per_s"], run["request_per_s"]) == (9, 30, 3)
    assert run["goodput_per_s"] == 2, "the third took 300 ms to its first token"
    assert run["ttft_spread_ms"] == {"n": 3, "min": 100, "p50": 200, "p90": 280, "p99": 298, "max": 300}
    assert (run["itl_spread_ms"]["n"], run["itl_ms"], run["itl_spread_ms"]["max"]) == (6, 20, 400)
    assert (run["in_flight_max"], run["in_flight_mean"]) == (2, 1.18)


def test_a_load_without_an_answer_has_no_figures() -> None:
    run = load_measures([report(Delivery(0, 0, 0))], {})
    assert (run["requests"], run["answered"]) == (1, 0)
    assert "ttft_ms" not in run


def test_an_answer_of_one_token_meets_a_limit_between_tokens() -> None:
    trace = delivery(0, [100]).trace
    assert trace is not None
    assert meets(trace, {"tpot_ms": 1}) and not meets(trace, {"ttft_ms": 99})


def test_arrivals_are_those_of_a_poisson_process_and_the_same_each_time() -> None:
    times = due_times_ns(2000, 50.0, seed=3)
    assert times == due_times_ns(2000, 50.0, seed=3) != due_times_ns(2000, 50.0, seed=4)
    gaps = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert (times[0], round(mean, 3)) == (0, pytest.approx(0.02, rel=0.1))
    assert deviation == pytest.approx(mean, rel=0.1), "of an exponential distribution they are equal"
    assert due_times_ns(3, None, 0) == [0, 0, 0]


def test_a_rate_is_kept_without_a_limit_on_streams() -> None:
    result, _requests = bench({"concurrency": None, "rate_per_s": 100.0, "repeats": 1}, ttft_s=0.01)
    assert result["status"] == "passed"
    assert result["params"]["rate_per_s"] == 100.0


def test_a_client_that_did_not_keep_up_takes_more_processes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run_load(target: Any, orders: Any, streams: Any, processes: int, *_rest: Any) -> list[LoadReport]:
        asked.append(processes)
        late = 100 * MS if processes < 4 else 1000
        answers = [delivery(0, [float(place) for place in range(10, 18)]) for _order in orders]
        return [report(*answers, lags_ns=(late,) * 100)]

    monkeypatch.setattr(benchmark_module, "run_load", run_load)
    result, _requests = bench({"warmups": 0}, processors=4)
    assert asked == [1, 2, 4, 4], "what was found out once is not found out again"
    assert not any("keep up" in warning for warning in result["warnings"])
    asked.clear()
    result, _requests = bench({"warmups": 0}, processors=3)
    assert asked == [1, 2, 2]
    assert any("did not keep up" in warning for warning in result["warnings"])


def test_the_requests_of_a_load_that_was_run_again_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the engine's own figures would be said to be those of others."""
    real = benchmark_module.run_load

    def run_load(target: Any, orders: Any, streams: Any, processes: int, *rest: Any) -> list[LoadReport]:
        found = real(target, orders, streams, 1, *rest)
        for each in found:
            each.lags_ns = array("q", [100 * MS if processes < 2 else 1000] * 100)
        return found

    monkeypatch.setattr(benchmark_module, "run_load", run_load)
    result, requests = bench({"warmups": 0, "repeats": 2}, processors=2)
    assert [run["run_again"] for run in result["runs"]] == [1, 0]
    assert (result["server"]["requests"], result["server"]["only_ours"]) == (len(requests), True)


def test_an_interrupted_load_is_on_record_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_load(*_arguments: Any) -> list[LoadReport]:
        found = report(delivery(0, [float(place) for place in range(10, 18)]))
        found.interrupted = True
        return [found]

    monkeypatch.setattr(benchmark_module, "run_load", run_load)
    result, _requests = bench({"warmups": 0, "repeats": 1})
    assert (result["status"], result["faults"]) == ("failed", ["the load was interrupted"])


def test_an_engine_behind_tls_is_refused_in_one_sentence() -> None:
    workload = parse_workload(C4, SMALL)
    with EngineClient("https://127.0.0.1:1") as client:
        found = run_all(Bench(client, "double"), [workload])["workloads"]["C4"]
    assert found["status"] == "error"
    assert "plain HTTP" in found["faults"][0] and "kind generation" in found["faults"][0]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"requests": 0}, "requests of the workload 'C4' must be a whole number from 1 to 100000; found 0"),
        ({"requests": None}, "requests of the workload 'C4' must be a whole number from 1 to 100000; found None"),
        ({"concurrency": "4"}, "concurrency of the workload 'C4' must be a whole number from 1 to 100000; found '4'"),
        ({"concurrency": None}, "says neither concurrency nor rate_per_s"),
        ({"rate_per_s": 0}, "rate_per_s of the workload 'C4' must be a number above 0"),
        ({"rate_per_s": float("inf")}, "rate_per_s of the workload 'C4'"),
        ({"requests": 10**9}, "requests of the workload 'C4' must be a whole number from 1 to 100000"),
        ({"rate_per_s": 1e-300}, "longer than the 24 hours of the longest load"),
        ({"seed": -1}, "seed of the workload 'C4' must be a whole number from 0 on"),
        ({"slo": {"itl_ms": 3}}, "slo of the workload 'C4' must be a map of ttft_ms, tpot_ms, e2e_ms"),
        ({"slo": {"ttft_ms": "fast"}}, "slo of the workload 'C4'"),
        ({"slo": [1]}, "slo of the workload 'C4'"),
    ],
)
def test_wrong_parameters_of_a_load_are_refused_by_name(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ProbeError, match="C4") as caught:
        parse_workload(C4, params)
    assert words in caught.value.message


def test_an_interrupted_load_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[int] = []

    def interrupted(_target: Any, orders: Any, *_how: Any) -> list[LoadReport]:
        began.append(len(orders))
        # It did not keep up either, which would run it again.
        return [LoadReport([delivery(0, [1, 2])], 0, 1, cpu_ns=1, interrupted=True)]

    monkeypatch.setattr(benchmark_module, "run_load", interrupted)
    later = {**C4, "name": "later"}
    with EngineDouble() as double, EngineClient(double.base_url) as client:
        found = run_all(Bench(client, "double", processors=8), [parse_workload(each, SMALL) for each in (C4, later)])
    assert len(began) == 1
    assert found["verdict"] == "failed"
    first, second = found["workloads"]["C4"], found["workloads"]["later"]
    assert first["status"] == "failed" and "the load was interrupted" in first["faults"] and len(first["runs"]) == 1
    assert (second["status"], second["faults"]) == ("error", ["C4 was interrupted before; measure again."])


def test_a_generation_with_parameters_of_a_load_is_refused() -> None:
    raw = yaml.safe_load((ROOT / "workloads/B1.yml").read_text())
    with pytest.raises(ProbeError, match="sets concurrency, which only one of kind load has"):
        parse_workload(raw, {"concurrency": 4})


@pytest.mark.parametrize("name", ["C1", "C2", "C4", "C8"])
def test_the_shipped_loads_run_four_rounds(name: str) -> None:
    raw = yaml.safe_load((ROOT / f"workloads/{name}.yml").read_text())
    params = parse_workload(raw).params
    assert raw["name"] == name and params.requests == 4 * int(name[1:]) == 4 * (params.concurrency or 0)


def test_one_line_tells_what_a_load_found() -> None:
    result, _requests = bench(ttft_s=0.01, itl_s=0.005)
    line = benchmark_lines({"workloads": {"C4": result}}, "host chat")[0]
    assert line.startswith("host chat C4: ")
    for words in (" tok/s (spread ", "TTFT ", "(p99 ", "ITL ", "whole "):
        assert words in line
    assert "goodput" not in line


def test_many_faults_are_told_by_kind_and_number() -> None:
    faults = ["a"] * 3 + ["b"] + [f"c{number}" for number in range(6)]
    assert summed_faults(faults) == ["a (3 requests)", "b", "c0", "c1", "c2", "3 other faults"]


def test_the_method_says_how_many_ran_at_once() -> None:
    found = method([parse_workload(C4), parse_workload(yaml.safe_load((ROOT / "workloads/B1.yml").read_text()))])
    assert found["concurrency"] == {"C4": 4, "B1": 1}
    assert found["rate_per_s"] == {"C4": None}
