# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every check passes against an engine that is right, and fails against the one that is wrong in just that way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from ansible_collections.socle.inference.plugins.action.vllm_acceptance import suite_checks
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import effort_table
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Effort
from ansible_collections.socle.inference.plugins.module_utils._probe.acceptance import (
    parse_checks,
    refuse_wrong_key,
    run_suite,
    verdict,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.checks import CHECKS, public_version
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.host_gpus import HostGpus
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Planned, Promised
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path

from tests.simulators.engine import FAULTS, Behaviour, EngineDouble

ROOT = Path(__file__).parents[3]
SUITES = {name: suite_checks(data_path(None, {}), name) for name in data_path(None, {}).names("suites")}
SMOKE, FULL = SUITES["smoke"], SUITES["full"]
# What takes minutes on a real engine is asked in small.
SMALL = {"tool_soak": {"conversations": 40}, "known_answers": {"load_requests": 16}}
FULL = [{**line, "params": {**line.get("params", {}), **SMALL.get(line["id"], {})}} for line in FULL]
LEVELS = Effort(levels=("xhigh", "medium", "low"), default="xhigh", aliases={})
PROMISED = Promised(
    efforts={
        level: {api: {"status": found.status, "effort": found.effort} for api, found in row.items()}
        for level, row in effort_table("0.32.0", LEVELS).items()
    },
    presets={"default": {"temperature": 1.0, "top_p": 0.95}, "calm": {"temperature": 0.7, "presence_penalty": 1.5}},
    images=4,
    slo={"ttft_ms": 400},
    gpus=[0],
    unit="vllm-chat.service",
)
APIS = {"messages", "messages_stream", "responses", "responses_stream"}
CALLING = {"tools_required", "tools_named", "tools_auto", "tools_parallel", "tools_long_argument"}
MEANT = {*CALLING, "tool_result", "tools_unneeded", "thinking", "thinking_off", "image_number", "images_in_order"}
"""What is asked by each API, whole and streamed, and understood."""
BY_ALL = {*MEANT, "tool_soak", "system_prompt", "api_errors", "exact_limit", "effort", "images_most"}
KEY = "sk-of-the-test"
ENGINE_PROC = Path(__file__).parent / "fixtures/proc"


def accept(checks: list[Any] = FULL, key: str | None = KEY, required: bool = True, **how: Any) -> dict[str, Any]:
    planned = Planned(["double"], 512, "0.32.0", "/models/Double", api_key_required=required, promised=PROMISED)
    with (
        EngineDouble(Behaviour(api_key=key, cache_tokens=3000, **how)) as double,
        EngineClient(double.base_url, key) as client,
    ):
        context = Context(client, planned, host=HostGpus(one_gpu, ENGINE_PROC))
        return run_suite("smoke", parse_checks(checks), context)


def one_gpu(argv: Sequence[str]) -> tuple[int, str, str] | None:
    # A host with one GPU that process 42 of the engine is on.
    if argv[0] != "nvidia-smi":
        return (1, "", "") if argv[0] == "journalctl" else None
    if "--query-compute-apps" in argv[1]:
        return 0, "GPU-a, 42, python3, 70000", ""
    return 0, "0, GPU-a, 00000000:3B:00.0, 5500", ""


def by_id(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in result["checks"]}


def test_an_engine_that_is_right_passes_everything() -> None:
    result = accept()
    assert {check["id"]: check["status"] for check in result["checks"]} == dict.fromkeys(CHECKS, "passed")
    assert (result["verdict"], result["passed"]) == ("passed", len(CHECKS))
    assert [check["id"] for check in result["checks"]] == [line["id"] for line in FULL]


def test_the_documentation_names_each_check_with_its_suites() -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:3]]
        for line in (ROOT / "docs/acceptance.md").read_text().splitlines()
        if line.startswith("| `") and line.count("|") == 4
    ]
    told = {check.strip("`"): suites for checks, suites in rows for check in checks.split(", ")}
    own = {name: {line["id"] for line in lines} for name, lines in SUITES.items() if name != "full"}
    # All begin with smoke, and agent with standard.
    within = {
        check: "all"
        if check in own["smoke"]
        else ", ".join(
            name
            for name in ("standard", "agent", "vision", "long_context")
            if check in own[name] and not (name == "agent" and check in own["standard"])
        )
        for check in CHECKS
    }
    assert {check: suites for check, suites in told.items() if check not in SUITES} == within


@pytest.mark.parametrize("name", sorted(SUITES))
def test_every_suite_begins_with_smoke(name: str) -> None:
    assert SUITES[name][: len(SMOKE)] == SMOKE


def test_the_suite_full_holds_every_check_with_the_consequences_that_it_has_elsewhere() -> None:
    assert {line["id"] for line in FULL} == set(CHECKS)
    elsewhere = {line["id"]: line.get("on_failure") for lines in SUITES.values() for line in lines}
    assert {line["id"]: line.get("on_failure") for line in FULL} == elsewhere


def test_the_key_never_shows() -> None:
    assert KEY not in str(accept())


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("wrong_model_id", {"served_model"}),
        ("wrong_length", {"served_model"}),
        ("wrong_version", {"engine_version"}),
        ("empty_text", {"chat", "chat_stream", "alive", "stop", "repeatable", "canary", "state", *APIS}),
        ("usage_off", {"chat", "chat_stream", "alive", "tool_soak", *MEANT}),
        (
            "no_usage",
            {
                "chat",
                "chat_stream",
                "prompt_tokens",
                "system_prompt",
                "alive",
                "full_length",
                "known_answers",
                "repeatable",
                "stop",
                "slo",
                "exact_limit",
                "effort",
                "canary",
                "state",
            },
        ),
        ("cut_stream", {"chat_stream", "slo"}),
        ("reset_stream", {"chat_stream", "slo"}),
        ("error_frame", {"chat_stream", "slo"}),
        ("aborted", {"chat_stream", "slo"}),
        ("tokenize_off", {"prompt_tokens", "system_prompt", "needle", "effort", "exact_limit", "full_length"}),
        ("over_long_500", {"over_long", "exact_limit"}),
        ("over_long_wordless", {"over_long"}),
        ("any_model", {"unknown_model", "api_errors"}),
        ("broken_json_200", {"broken_json"}),
        ("broken_json_500", {"broken_json"}),
        ("no_metrics", {"metrics"}),
        ("no_auth", {"api_key"}),
        ("few_tokens", {"chat", "chat_stream", "prompt_tokens", "alive", "slo", "full_length", *APIS}),
        ("messages_missing", {"messages", "messages_stream", "stop", *BY_ALL}),
        ("messages_empty", {"messages", "messages_stream", "stop"}),
        ("messages_block_open", {"messages_stream"}),
        ("messages_no_stop", {"messages_stream"}),
        ("messages_error", {"messages_stream"}),
        ("responses_missing", {"responses", "responses_stream", *BY_ALL}),
        ("responses_usage_off", {"responses", "responses_stream"}),
        ("responses_delta_lost", {"responses_stream"}),
        ("responses_number_gap", {"responses_stream"}),
        ("responses_no_end", {"responses_stream"}),
        ("system_dropped", {"system_prompt"}),
        ("stop_ignored", {"stop"}),
        ("stop_unnamed", {"stop"}),
        ("wrong_types_500", {"api_errors"}),
        ("wrong_types_pass", {"api_errors"}),
        ("wrong_types_hang_up", {"api_errors"}),
        ("random_answers", {"repeatable", "canary", "state"}),
        ("seed_ignored", {"repeatable"}),
        ("text_damaged", {"unicode"}),
        ("required_ignored", {"tools_required"}),
        ("named_ignored", {"tools_named"}),
        ("auto_never", {"tools_auto", "tools_parallel", "tools_long_argument"}),
        ("auto_always", {"tools_unneeded"}),
        ("wrong_city", {"tools_auto"}),
        ("parallel_one", {"tools_parallel"}),
        ("result_dropped", {"tool_result"}),
        ("arguments_null", {"tool_soak", *CALLING}),
        ("long_argument_lost", {"tools_long_argument"}),
        ("tool_unknown", {"tool_soak", *CALLING}),
        ("call_in_text", CALLING),
        ("call_without_id", {"tool_soak", *CALLING}),
        ("calls_of_one_id", {"tools_parallel"}),
        ("calls_end_for_stop", CALLING - {"tools_named"}),
        ("thoughts_in_text", {"thinking"}),
        ("thoughts_missing", {"thinking"}),
        ("thinking_stuck", {"thinking_off"}),
        ("effort_refused", {"effort"}),
        ("effort_500", {"effort"}),
        ("effort_ignored", {"effort"}),
        ("preset_refused", {"sampling"}),
        ("limit_early", {"full_length"}),
        ("limit_late", {"exact_limit"}),
        ("slow", {"slo"}),
        ("images_blind", {"image_number", "images_in_order"}),
        ("images_mixed", {"images_in_order"}),
        ("images_mirrored", {"image_number"}),
        ("images_fewer", {"images_most"}),
        ("images_unlimited", {"images_most"}),
        ("needle_lost", {"needle"}),
        ("cache_corrupts", {"canary", "state"}),
        ("eviction_corrupts", {"state"}),
        ("conversation_drifts", {"canary"}),
        ("soak_null", {"tool_soak"}),
        ("soak_half", {"tool_soak"}),
        ("soak_empty", {"tool_soak"}),
        ("soak_dies", {"tool_soak"}),
        ("knows_little", {"known_answers"}),
        ("forgets", {"known_answers"}),
    ],
)
def test_each_fault_is_found(fault: str, failing: set[str]) -> None:
    result = accept(faults=frozenset({fault}))
    found = {check["id"] for check in result["checks"] if check["status"] == "failed"}
    assert found - {"prompt_tokens"} == failing - {"prompt_tokens"}
    if fault in ("tokenize_off", "no_usage"):
        assert "prompt_tokens" in found
    degrading = {line["id"] for line in FULL if line.get("on_failure") == "degraded"}
    assert (result["verdict"], result["errors"]) == ("degraded" if failing <= degrading else "failed", 0)
    for check in result["checks"]:
        assert check["status"] == "passed" or (check["expected"] and check["found"] and check["remedy"])


def test_the_tables_cover_every_fault() -> None:
    elsewhere = {"refuses_key", "dies_of_broken_json", "cache_ignores_salt"}
    here = {
        mark.args[1][place][0] for mark in test_each_fault_is_found.pytestmark for place in range(len(mark.args[1]))
    }
    assert here | elsewhere == set(FAULTS)


def test_a_refused_key_fails() -> None:
    check = by_id(accept(["api_key"], faults=frozenset({"refuses_key"})))["api_key"]
    assert check["status"] == "failed"
    assert "401 with the right one" in check["found"]


def test_an_engine_that_dies_of_a_bad_request_is_noticed_at_the_end() -> None:
    result = accept(["broken_json", "alive"], faults=frozenset({"dies_of_broken_json"}))
    assert by_id(result)["broken_json"]["status"] == "passed"
    assert by_id(result)["alive"]["status"] == "failed"


def test_without_a_key_the_check_is_skipped_and_says_why() -> None:
    result = accept(key=None, required=False)
    assert by_id(result)["api_key"]["status"] == "skipped"
    assert "no API key" in by_id(result)["api_key"]["found"]
    assert (result["verdict"], result["skipped"]) == ("passed", 1)


def test_nothing_listening_is_a_failure_that_names_the_phase() -> None:
    with EngineDouble() as double:
        gone = double.base_url
    with EngineClient(gone) as client:
        result = run_suite("smoke", parse_checks(["chat"]), Context(client, Planned(["double"])))
    assert result["verdict"] == "failed"
    assert "phase connect" in result["checks"][0]["found"]


def test_the_probes_own_fault_is_an_error() -> None:
    with EngineDouble() as double, EngineClient(double.base_url) as client:
        result = run_suite("x", parse_checks(["chat", "engine_version"]), Context(client, Planned([])))
    assert by_id(result)["chat"]["status"] == "error"
    assert result["verdict"] == "error"


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ([], "no checks"),
        (["chat", "no_such_check"], "no_such_check"),
        (["chat", "chat"], "twice"),
        ([{"id": "chat", "params": {"maxtokens": 3}}], "maxtokens"),
        ([{"id": "chat", "severity": "low"}], "severity"),
        ([{"id": "chat", "on_failure": "ignore"}], "ignore"),
        ([{"name": "chat"}], "an id"),
        ([{"id": "chat", 5: 1}], "does not know 5"),
        ([{"id": "chat", "params": ["max_tokens"]}], "must be a map"),
        ([{"id": "chat", "params": {"max_tokens": "8"}}], "whole number from 1"),
        ([{"id": "chat", "params": {"max_tokens": 0}}], "whole number from 1"),
        ([{"id": "chat", "params": {"max_tokens": 10**30}}], "whole number from 1"),
        ([{"id": "repeatable", "params": {"seed": True}}], "whole number from 0"),
        ([{"id": "needle", "params": {"shares": []}}], "a list, each of it a number above 0, up to 1"),
        ([{"id": "needle", "params": {"shares": [0.5, 7]}}], "a list, each of it a number above 0, up to 1"),
        ([{"id": "metrics", "params": {"names": "vllm:x"}}], "a list, each of it a text"),
        ([{"id": "unicode", "params": {"text": ""}}], "a text"),
        ([{"id": "known_answers", "params": {"load_requests": 0}}], "whole number from 1"),
        ([{"id": "known_answers", "params": {"least_right": -1}}], "a number above 0, up to 1"),
        ([{"id": "tool_soak", "params": {"conversations": 10**9}}], "whole number from 1 to 100000"),
        ([{"id": "tool_soak", "params": {"reference": {"corrupted": 1}}}], "a map of corrupted and conversations"),
    ],
)
def test_a_suite_that_cannot_be_meant_is_refused(checks: list[Any], words: str) -> None:
    with pytest.raises(ProbeError, match=words):
        parse_checks(checks)


def test_each_check_takes_what_it_has_by_itself() -> None:
    for name, check in CHECKS.items():
        parse_checks([{"id": name, "params": check.params}])
    parse_checks([{"id": "tool_soak", "params": {"reference": {"corrupted": 0, "conversations": 5}}}])
    parse_checks([{"id": "state", "params": {"evict_most_tokens": 0}}])


def chat_only(answer: Callable[[dict[str, Any]], httpx.Response]) -> httpx.MockTransport:
    return httpx.MockTransport(lambda request: answer(json.loads(request.content)))


def said(text: str, **choice: Any) -> httpx.Response:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}]
    return httpx.Response(200, json={"model": "double", "choices": choices, "usage": usage})


def ask_only(answer: Callable[[dict[str, Any]], httpx.Response], check: dict[str, Any]) -> dict[str, Any]:
    with EngineClient("http://engine", KEY, transport=chat_only(answer)) as client:
        context = Context(client, Planned(["double"], promised=PROMISED))
        return by_id(run_suite("x", parse_checks([check]), context))[check["id"]]


def test_a_load_that_is_refused_proves_nothing() -> None:
    everything = "144 366 mercury au japan 9 six atlantic paris mice co2 120"

    def answer(body: dict[str, Any]) -> httpx.Response:
        loads = "Continue this list" in body["messages"][-1]["content"]
        return httpx.Response(503, json={"error": "busy"}) if loads else said(everything)

    check = {"id": "known_answers", "params": {"load_requests": 4}}
    found = ask_only(answer, check)
    assert (found["status"], "503" in found["found"]) == ("failed", True)
    assert ask_only(lambda _body: said(everything), check)["status"] == "passed"


@pytest.mark.parametrize("choice", [{"message": {"content": ""}}, {"finish_reason": None}, {"finish_reason": "abort"}])
def test_two_bad_answers_are_not_equal(choice: dict[str, Any]) -> None:
    assert ask_only(lambda _body: said("Paris.", **choice), {"id": "repeatable"})["status"] == "failed"
    assert ask_only(lambda _body: said("Paris."), {"id": "repeatable"})["status"] == "passed"


def test_an_answer_of_another_shape_is_the_engines_fault() -> None:
    found = ask_only(lambda _body: said("", message={"content": [{"text": "Paris"}]}), {"id": "chat"})
    assert (found["status"], found["found"]) == ("failed", "The content of the chat answer is no text; expected one.")


def test_what_was_found_is_said_without_the_key() -> None:
    found = ask_only(lambda _body: said(f"Wrong key {KEY}", finish_reason=f"no {KEY}"), {"id": "chat"})
    assert found["status"] == "failed" and KEY not in json.dumps(found) and "********" in found["found"]


def test_what_the_probe_cannot_ask_is_not_its_fault_to_be_reported() -> None:
    with EngineClient("ftp://engine") as client:
        found = by_id(run_suite("x", parse_checks(["chat"]), Context(client, Planned(["double"]))))["chat"]
    assert (found["status"], found["found"][:28]) == ("error", "POST ftp://engine/v1/chat/co")
    assert "says nothing about the engine" in found["remedy"] and "report" not in found["remedy"]


def test_an_interrupted_suite_ends_with_the_request_under_way() -> None:
    asked = []

    def answer(body: dict[str, Any]) -> httpx.Response:
        asked.append(body)
        return said("Paris.")

    def interrupted(*_figures: Any) -> None:
        raise KeyboardInterrupt

    with EngineClient("http://engine", transport=chat_only(answer)) as client:
        context = Context(client, Planned(["double"], promised=PROMISED))
        wanted = parse_checks([{"id": "chat"}, {"id": "tool_soak", "params": {"conversations": 100_000}}])
        with pytest.raises(KeyboardInterrupt):
            run_suite("x", wanted, context, report=interrupted)
        with pytest.raises(ProbeError, match="interrupted"):
            client.get("/health")
        with pytest.raises(ProbeError, match="interrupted"):
            client.stream("/v1/messages", {})


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("p", "passed"),
        ("ps", "passed"),
        ("s", "error"),
        ("pe", "error"),
        ("pef", "failed"),
        ("pd", "degraded"),
        ("d", "degraded"),
        ("de", "error"),
        ("df", "failed"),
    ],
)
def test_verdict(states: str, expected: str) -> None:
    words = {"p": "passed", "s": "skipped", "e": "error", "f": "failed", "d": "failed"}
    checks = [{"id": f"{letter}{place}", "status": words[letter]} for place, letter in enumerate(states)]
    assert verdict(checks, {check["id"] for check in checks if check["id"][0] == "d"}) == expected


@pytest.mark.parametrize(
    ("version", "expected"), [("v0.32.0+cpu", "0.32.0"), ("0.32.0", "0.32.0"), ("0.33.0rc1+g12", "0.33.0rc1")]
)
def test_public_version(version: str, expected: str) -> None:
    assert public_version(version) == expected


@pytest.mark.parametrize("key", [None, "not-the-key"])
def test_the_callers_wrong_key_is_no_verdict_on_the_instance(key: str | None) -> None:
    keyed = Planned(["double"], 512, "0.32.0", "/models/Double", api_key_required=True)
    with EngineDouble(Behaviour(api_key=KEY)) as double, EngineClient(double.base_url, key) as client:
        with pytest.raises(ProbeError, match="set api_key of the instance"):
            refuse_wrong_key(client, keyed)
        refuse_wrong_key(client, Planned(["double"], 512, "0.32.0", "/models/Double", api_key_required=False))
    with EngineDouble(Behaviour(api_key=KEY)) as double, EngineClient(double.base_url, KEY) as client:
        refuse_wrong_key(client, keyed)
