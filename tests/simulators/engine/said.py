# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers with thoughts and calls, in the words of each API, whole and as events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.simulators.engine.apis import messages_usage, responses_usage
from tests.simulators.engine.mind import Said

Faulty = Callable[[str], bool]

PIECE = 7
"""Characters of a delta."""


def _pieces(text: str) -> list[str]:
    return [text[place : place + PIECE] for place in range(0, len(text), PIECE)]


def _argument_pieces(arguments: str, faulty: Faulty) -> list[str]:
    pieces = _pieces(arguments)
    if faulty("long_argument_lost") and len(pieces) > 20:
        del pieces[12]
    return pieces


def _id(number: int, faulty: Faulty) -> str:
    return "" if faulty("call_without_id") else f"call_{0 if faulty('calls_of_one_id') else number}"


def chat_whole(said: Said, model: str, usage: dict[str, int], faulty: Faulty) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "reasoning": said.reasoning or None}
    if said.calls:
        message["tool_calls"] = [
            {"id": _id(number, faulty), "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(said.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": _chat_reason(said, faulty)}
    return {"model": model, "choices": [choice], "usage": usage}


def _chat_reason(said: Said, faulty: Faulty) -> str:
    return "tool_calls" if said.calls and not faulty("calls_end_for_stop") else "stop"


def chat_events(said: Said, model: str, usage: dict[str, int], faulty: Faulty) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in _pieces(said.reasoning)]
    deltas += [{"content": piece} for piece in _pieces(said.text)]
    for number, (name, arguments) in enumerate(said.calls):
        function = {"name": name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": number, "id": _id(number, faulty), "function": function}]})
        deltas += [
            {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}
            for piece in _argument_pieces(arguments, faulty)
        ]
    chunks = [{"model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = _chat_reason(said, faulty)  # type: ignore[index]
    return [*chunks, {"model": model, "choices": [], "usage": usage}]


def _messages_blocks(said: Said, faulty: Faulty) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.reasoning:
        blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": "double"})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    for number, (name, arguments) in enumerate(said.calls):
        blocks.append({"type": "tool_use", "id": _id(number, faulty), "name": name, "input": _input(arguments)})
    return blocks


def _input(arguments: str) -> Any:
    """As parsers do that give up on what is cut: nothing is left of it."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def messages_whole(said: Said, model: str, prompt: int, tokens: int, faulty: Faulty) -> dict[str, Any]:
    return {
        "id": "msg_double",
        "type": "message",
        "role": "assistant",
        "content": _messages_blocks(said, faulty),
        "model": model,
        "stop_reason": "tool_use" if said.calls and not faulty("calls_end_for_stop") else "end_turn",
        "stop_sequence": None,
        "usage": messages_usage(prompt, tokens),
    }


def messages_events(said: Said, model: str, prompt: int, tokens: int, faulty: Faulty) -> list[dict[str, Any]]:
    whole = messages_whole(said, model, prompt, tokens, faulty)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    calls = iter(said.calls)
    for index, block in enumerate(whole["content"]):
        kind = block["type"]
        if kind == "tool_use":
            begun: dict[str, Any] = {**block, "input": {}}
            pieces = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in _argument_pieces(next(calls)[1], faulty)
            ]
        else:
            begun = {"type": kind, kind: ""}
            pieces = [{"type": f"{kind}_delta", kind: piece} for piece in _pieces(block[kind])]
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": piece} for piece in pieces]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": delta, "usage": whole["usage"]}, {"type": "message_stop"}]


def responses_whole(said: Said, model: str, prompt: int, tokens: int, faulty: Faulty) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if said.reasoning:
        output.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": said.reasoning}]})
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": []}
        output.append({"type": "message", "role": "assistant", "content": [part]})
    for number, (name, arguments) in enumerate(said.calls):
        call_id = _id(number, faulty)
        output.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
    return {
        "id": "resp_double",
        "object": "response",
        "model": model,
        "status": "completed",
        "incomplete_details": None,
        "output": output,
        "usage": responses_usage(prompt, tokens),
    }


def responses_events(said: Said, model: str, prompt: int, tokens: int, faulty: Faulty) -> list[dict[str, Any]]:
    whole = responses_whole(said, model, prompt, tokens, faulty)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    events += [{"type": "response.reasoning_text.delta", "delta": piece} for piece in _pieces(said.reasoning)]
    events += [{"type": "response.output_text.delta", "delta": piece} for piece in _pieces(said.text)]
    for index, (_name, arguments) in enumerate(said.calls):
        events += [
            {"type": "response.function_call_arguments.delta", "output_index": index, "delta": piece}
            for piece in _argument_pieces(arguments, faulty)
        ]
    events.append({"type": "response.completed", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]
