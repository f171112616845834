# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the checks of tools, pictures and correctness under use rest on: schemas, shares, near ties, reference arms."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe import pictures
from ansible_collections.socle.inference.plugins.module_utils._probe.acceptance import parse_checks, run_suite
from ansible_collections.socle.inference.plugins.module_utils._probe.checks_use import _Greedy, parting
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import DIALECTS, Question
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Planned, Promised
from ansible_collections.socle.inference.plugins.module_utils._probe.proportions import more_often, wilson
from ansible_collections.socle.inference.plugins.module_utils._probe.sse import Event
from ansible_collections.socle.inference.plugins.module_utils._probe.tool_calls import TOOLS, Call, call_faults

from tests.simulators.engine import Behaviour, EngineDouble, mind


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("get_weather", '{"city": "Paris"}', None),
        ("get_weather", '{"city": "Paris", "unit": "celsius"}', None),
        ("get_weather", '{"city": null}', "city is null, not of type string"),
        ("get_weather", "{}", "lacks city"),
        ("get_weather", '{"city": "Paris", "unit": "kelvin"}', "not one of celsius, fahrenheit"),
        ("get_weather", '{"city": "Paris", "when": "now"}', "has when, which the schema does not know"),
        ("get_weather", '{"city": "Par', "are not JSON"),
        ("get_weather", '["Paris"]', "not of type object"),
        ("get_weather", '{"city": NaN}', "are not JSON"),
        ("get_weather", "[" * 100_000, "are not JSON"),
        ("write_file", '{"path": "a", "lines": ["x", 3]}', "lines[1] is 3, not of type string"),
        ("set_lamp", '{"room": "hall", "on": 1}', "on is 1, not of type boolean"),
        ("no_tool", "{}", "which was not offered"),
    ],
)
def test_a_call_is_held_against_the_schema_of_its_tool(name: str, arguments: str, words: str | None) -> None:
    faults = call_faults(Call("call_1", name, arguments), TOOLS)
    assert (not faults) if words is None else any(words in fault for fault in faults), faults


def test_a_call_needs_an_id() -> None:
    assert call_faults(Call("", "get_weather", '{"city": "Paris"}'), TOOLS) == ["the call of get_weather has no id"]


@pytest.mark.parametrize(("count", "total"), [(0, 200), (1, 10), (20, 200), (10, 10)])
def test_the_bounds_of_a_share_are_those_of_wilson(count: int, total: int) -> None:
    """At each bound what was seen is exactly 1.96 standard deviations away: that is how they are defined."""
    share, bounds = count / total, wilson(count, total)
    for bound in bounds:
        away = abs(share - bound)
        assert away == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / total), rel=1e-9, abs=1e-12)
    assert bounds[0] <= share <= bounds[1]


@pytest.mark.parametrize(
    ("counts", "chance"),
    [
        # All five events in the first half of 400.
        ((5, 200, 0, 200), math.comb(200, 5) / math.comb(400, 5)),
        # Eight or nine of the nine events in the first half of 20.
        ((8, 10, 1, 10), (math.comb(10, 8) * 10 + 10) / math.comb(20, 9)),
        ((0, 200, 0, 200), 1.0),
    ],
)
def test_whether_one_share_is_larger_is_fishers_test(counts: tuple[int, int, int, int], chance: float) -> None:
    assert more_often(*counts) == pytest.approx(chance, rel=1e-9)


@pytest.mark.parametrize("counts", [(1, 0), (3, 2), (-1, 5)])
def test_a_share_of_nothing_is_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a share needs"):
        wilson(*counts)


def greedy(words: str, *lead: float) -> _Greedy:
    tokens = tuple(words.split())
    return _Greedy(tokens, lead or (6.0,) * len(tokens), 0)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (greedy("a b c"), greedy("a b c"), None),
        (greedy("a b c"), greedy("a x c"), "token 2 is 'b' and 'x', 6.0 nats ahead"),
        # Near a tie either token is right, and what follows is about something else.
        (greedy("a b c", 6, 0.2, 6), greedy("a x y"), None),
        (greedy("a b c"), greedy("a x y", 6, 0.2, 6), None),
        (greedy("a b c"), greedy("a b"), "one ends after 3 tokens, the other after 2"),
    ],
)
def test_answers_part_where_the_engine_was_sure(one: _Greedy, other: _Greedy, words: str | None) -> None:
    assert parting(one, other) == words


def soak(faults: frozenset[str], **params: Any) -> dict[str, Any]:
    planned = Planned(["double"], 512, promised=Promised())
    lines = [{"id": "tool_soak", "params": {"conversations": 40, **params}}]
    with EngineDouble(Behaviour(faults=faults)) as double, EngineClient(double.base_url) as client:
        (check,) = run_suite("x", parse_checks(lines), Context(client, planned))["checks"]
    return check  # type: ignore[no-any-return]


def test_a_soak_tells_the_rate_with_its_bounds() -> None:
    check = soak(frozenset({"soak_null"}))
    assert check["status"] == "failed"
    assert check["figures"] == {
        "conversations": 40,
        "turns": 76,
        "prefix_words": 128,
        "corrupted": 4,
        "rate": 0.1,
        "rate_low": 0.03958,
        "rate_high": 0.23052,
    }
    assert "4 of 40 were (3.96% to 23.05% with 95 % confidence)" in check["found"]
    assert "city is null" in check["found"]


@pytest.mark.parametrize(("corrupted", "status"), [(12, "passed"), (0, "failed")])
def test_a_soak_is_held_against_its_reference_arm(corrupted: int, status: str) -> None:
    """As bad as the reference is no worse; much worse is."""
    check = soak(frozenset({"soak_null"}), reference={"corrupted": corrupted, "conversations": 200})
    assert (check["status"], "the reference arm had" in check["found"]) == (status, True)


@pytest.mark.parametrize("digits", ["407", "123", "698", "550"])
def test_a_picture_of_a_number_can_be_read(digits: str) -> None:
    body = DIALECTS["chat"].ask("m", Question("Which number?", 8, images=[pictures.number(digits)]))
    assert mind.answer(body, lambda _fault: False) == mind.Said(digits)


def chat_stream(*deltas: dict[str, Any]) -> list[Event]:
    chunks = [{"model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks.append({"model": "m", "choices": [], "usage": usage})
    return [*(Event("message", json.dumps(chunk)) for chunk in chunks), Event("message", "[DONE]")]


@pytest.mark.parametrize("events", [[0, 1, 2], [3, 0, 1, 2], [0, 1, 2, 3, 3], []])
def test_a_chat_stream_ends_with_one_done(events: list[int]) -> None:
    whole = chat_stream({"content": "x"})
    assert len(whole) == 4 and not DIALECTS["chat"].follow(whole).faults
    assert "its stream does not end with one [DONE]" in DIALECTS["chat"].follow([whole[each] for each in events]).faults


@pytest.mark.parametrize("status", ["failed", "cancelled", None])
def test_an_answer_that_failed_is_a_fault_whatever_it_says(status: str | None) -> None:
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    item = {"type": "message", "content": [{"type": "output_text", "text": "Paris"}]}
    body = {"object": "response", "model": "m", "status": status, "output": [item], "usage": usage}
    assert DIALECTS["responses"].read(body).faults == [f"it ended for {status} (None)"]
    body["status"] = "completed"
    assert DIALECTS["responses"].read(body).faults == []
    events = [
        {"type": "response.output_text.delta", "delta": "Paris"},
        {"type": "response.completed", "response": body},
        {"type": "response.output_text.delta", "delta": ""},
    ]
    stream = [Event("message", json.dumps({**each, "sequence_number": number})) for number, each in enumerate(events)]
    assert DIALECTS["responses"].follow(stream[:2]).faults == []
    assert DIALECTS["responses"].follow(stream).faults == ["response.output_text.delta comes after its end"]


def piece(index: Any, **said: Any) -> dict[str, Any]:
    call_id = said.pop("id", None)
    return {"tool_calls": [{"index": index, **({"id": call_id} if call_id else {}), "function": said}]}


@pytest.mark.parametrize(
    ("deltas", "calls", "fault"),
    [
        (
            [piece(0, id="a", name="f", arguments=""), piece(0, arguments='{"x"'), piece(0, arguments=": 1}")],
            [Call("a", "f", '{"x": 1}')],
            None,
        ),
        # Two calls whose pieces are mixed.
        (
            [piece(1, id="b", name="g"), piece(0, id="a", name="f"), piece(1, arguments="2"), piece(0, arguments="1")],
            [Call("b", "g", "2"), Call("a", "f", "1")],
            None,
        ),
        ([piece(0, arguments="{}")], [], "arguments come for call 0, which has not begun"),
        (
            [piece(0, id="a", name="f"), piece(0, id="b", name="g")],
            [Call("a", "f", "")],
            "call 0 is 'f' and then 'g'",
        ),
        # Some servers repeat name and id with each piece.
        (
            [piece(0, id="a", name="f", arguments="{"), piece(0, id="a", name="f", arguments="}")],
            [Call("a", "f", "{}")],
            None,
        ),
        (
            [piece("x", id="a", name="f", arguments="{}")],
            [Call("a", "f", "{}")],
            "its calls have the numbers x, not those from 0 on",
        ),
        (
            [piece(5, id="a", name="f", arguments="{}")],
            [Call("a", "f", "{}")],
            "its calls have the numbers 5, not those from 0 on",
        ),
    ],
)
def test_calls_are_put_together_from_their_pieces(
    deltas: list[dict[str, Any]], calls: list[Call], fault: str | None
) -> None:
    reply = DIALECTS["chat"].follow(chat_stream(*deltas))
    assert (reply.calls, reply.faults, reply.finish) == (calls, [fault] if fault else [], "calls")


def known(monkeypatch: pytest.MonkeyPatch, **answers: str) -> dict[str, Any]:
    monkeypatch.setattr(
        mind, "KNOWN", {**mind.KNOWN, **{name.replace("_", " "): said for name, said in answers.items()}}
    )
    lines = [{"id": "known_answers", "params": {"load_requests": 4}}]
    with EngineDouble() as double, EngineClient(double.base_url) as client:
        (check,) = run_suite("x", parse_checks(lines), Context(client, Planned(["double"], 512)))["checks"]
    return check  # type: ignore[no-any-return]


def test_a_word_inside_another_one_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    check = known(monkeypatch, symbol_of_gold="Because it shines", Kyoto="Japan.")
    assert (check["status"], check["figures"]["right_before"]) == ("passed", 11)


def test_what_was_answered_wrongly_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict.fromkeys(("symbol_of_gold", "Kyoto", "hexagon", "two_hours"), "I do not know")
    check = known(monkeypatch, **wrong)
    assert (check["status"], len(check["evidence"])) == ("failed", 4)
    assert check["evidence"][0]["before"] == "I do not know"


def test_corrupted_conversations_are_shown() -> None:
    evidence = soak(frozenset({"soak_null"}))["evidence"]
    assert len(evidence) == 4
    assert "null" in evidence[0]["response"]["excerpt"]
