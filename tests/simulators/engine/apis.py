# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Anthropic's and OpenAI's newer API in the words of the double: requests turned into chats, answers out of texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Faulty = Callable[[str], bool]

LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}
CONTENTS = {"/v1/chat/completions": "messages", "/v1/messages": "messages", "/v1/responses": "input"}


def wrong_field(path: str, body: Any) -> str | None:
    """The first field of a wrong type or value, as a server's validation finds it."""
    if not isinstance(body, dict):
        return "body"
    limit, content = LIMITS[path], CONTENTS[path]
    if not isinstance(body.get(limit, 1), int) or body.get(limit, 1) < 0:
        return limit
    if not isinstance(body.get("temperature", 0), (int, float)):
        return "temperature"
    return None if isinstance(body.get(content), (list, str)) else content


def as_chat(path: str, body: dict[str, Any], faulty: Faulty) -> dict[str, Any]:
    """The same request as a chat's."""
    if path == "/v1/messages":
        system, messages, stop = body.get("system"), _turns(body["messages"]), body.get("stop_sequences")
    elif path == "/v1/responses":
        asked = body["input"]
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else _turns(asked)
        system, stop = body.get("instructions"), None
    else:
        return body
    if system is not None and not faulty("system_dropped"):
        messages = [{"role": "system", "content": system}, *messages]
    return {**body, "messages": messages, "max_tokens": body.get(LIMITS[path], 16), "stop": stop}


def _turns(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns of a conversation as a chat's: results of tools are turns of their own."""
    turns = []
    for turn in raw:
        if turn.get("type") == "function_call_output":
            turns.append({"role": "tool", "content": turn["output"]})
        elif turn.get("type") == "function_call":
            turns.append({"role": "assistant", "content": ""})
        elif isinstance(turn["content"], list) and turn["content"][0].get("type") == "tool_result":
            turns += [{"role": "tool", "content": part["content"]} for part in turn["content"]]
        else:
            turns.append(turn)
    return turns


def messages_usage(prompt: int, tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": tokens}


def responses_usage(prompt: int, tokens: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": tokens, "total_tokens": prompt + tokens}


def messages_answer(model: str, text: str, finish: str, stop: str | None, prompt: int, tokens: int) -> dict[str, Any]:
    return {
        "id": "msg_double",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "model": model,
        "stop_reason": _messages_reason(finish, stop),
        "stop_sequence": stop,
        "usage": messages_usage(prompt, tokens),
    }


def _messages_reason(finish: str, stop: str | None) -> str:
    return "stop_sequence" if stop else {"stop": "end_turn", "length": "max_tokens"}.get(finish, finish)


def messages_events(answer: dict[str, Any], words: list[str], faulty: Faulty) -> list[dict[str, Any]]:
    """The events of a streamed message; each is sent under its type."""
    start = {**answer, "content": [], "stop_reason": None, "usage": messages_usage(answer["usage"]["input_tokens"], 0)}
    delta = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    events = [
        {"type": "message_start", "message": start},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in words),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": answer["usage"]},
        {"type": "message_stop"},
    ]
    if faulty("messages_block_open"):
        events = [event for event in events if event["type"] != "content_block_stop"]
    if faulty("messages_no_stop"):
        events = events[:-1]
    return events


def responses_answer(model: str, text: str, finish: str, prompt: int, tokens: int) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "resp_double",
        "object": "response",
        "model": model,
        "status": "completed" if finish == "stop" else "incomplete",
        "incomplete_details": None if finish == "stop" else {"reason": "max_output_tokens"},
        "output": [{"id": "msg_double", "type": "message", "role": "assistant", "content": [part]}],
        "usage": responses_usage(prompt, tokens),
    }


def responses_events(answer: dict[str, Any], words: list[str], faulty: Faulty) -> list[dict[str, Any]]:
    """The events of a streamed response, numbered."""
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    text = answer["output"][0]["content"][0]["text"]
    deltas = [{"type": "response.output_text.delta", "delta": word} for word in words]
    if faulty("responses_delta_lost"):
        deltas = deltas[:-1]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "item": {"type": "message"}},
        *deltas,
        {"type": "response.output_text.done", "text": text},
        {"type": "response.completed", "response": answer},
    ]
    if faulty("responses_no_end"):
        events = events[:-1]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    if faulty("responses_number_gap"):
        numbered[-1]["sequence_number"] += 1
    return numbered
