# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The three APIs of an engine in one shape: how each is asked, and what it answers. Private to socle.inference.

  chat       POST /v1/chat/completions, OpenAI
  messages   POST /v1/messages, Anthropic; https://docs.anthropic.com/en/api/messages-streaming
  responses  POST /v1/responses, OpenAI; https://platform.openai.com/docs/api-reference/responses-streaming

What an answer lacks, or says twice in two ways, is a fault by name: clients break on it. Calls of tools are put
together from their pieces; what is wrong inside them is for tool_calls.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.sse import Event
from ansible_collections.socle.inference.plugins.module_utils._probe.strict_json import parse_json
from ansible_collections.socle.inference.plugins.module_utils._probe.tool_calls import Call, Tool
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Usage, is_count, parse_usage

STOP, LENGTH, CALLS = "stop", "length", "calls"

AUTO, REQUIRED = "auto", "required"
"""Choices of tools beside the name of one."""


@dataclass
class Reply:
    """One answer, whatever the API. *faults* are what it should not be."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    """stop, length, calls, or the API's own word where it is none of them."""
    stop_sequence: str | None = None
    usage: Usage | None = None
    model: str | None = None
    calls: list[Call] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """What is asked, whatever the API."""

    content: str
    max_tokens: int
    system: str | None = None
    stop: str | None = None
    images: Sequence[bytes] = ()
    """PNG files, which come before *content*."""
    tools: Sequence[Tool] = ()
    choice: str | None = None
    """AUTO, REQUIRED, or the name of the tool that must be called."""
    called: Sequence[tuple[Call, str]] = ()
    """Calls that the model answered *content* with, and what each brought."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the same name in every API: temperature, seed, cache_salt, chat_template_kwargs."""


@dataclass(frozen=True)
class Dialect:
    name: str
    path: str
    ask: Callable[[str, Question], dict[str, Any]]
    """The body of a request, from the model's name and the question."""
    read: Callable[[Mapping[str, Any]], Reply]
    """The answer that is not streamed."""
    follow: Callable[[Sequence[Event]], Reply]
    """The streamed answer, from all of its events."""
    closing: str
    """The type, or the data, of the event after which nothing more comes."""
    streamed: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda body: {**body, "stream": True}
    """The same request for a stream that tells its usage, which most APIs do unasked."""


def _ask_chat(model: str, question: Question) -> dict[str, Any]:
    content: Any = question.content
    if question.images:
        parts = [{"type": "image_url", "image_url": {"url": _data_url(image)}} for image in question.images]
        content = [*parts, {"type": "text", "text": content}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if question.system is not None:
        messages.insert(0, {"role": "system", "content": question.system})
    if question.called:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call, _result in question.called
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in question.called]
    body = {"model": model, "messages": messages, "max_tokens": question.max_tokens, **question.options}
    if question.stop is not None:
        body["stop"] = [question.stop]
    if question.tools:
        body["tools"] = [{"type": "function", "function": _function(tool, "parameters")} for tool in question.tools]
    if question.choice is not None:
        named = {"type": "function", "function": {"name": question.choice}}
        body["tool_choice"] = question.choice if question.choice in (AUTO, REQUIRED) else named
    return body


def _stream_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def _ask_messages(model: str, question: Question) -> dict[str, Any]:
    content: Any = question.content
    if question.images:
        sources = [{"type": "base64", "media_type": "image/png", "data": _base64(image)} for image in question.images]
        content = [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": content}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if question.called:
        uses = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call, _result in question.called
        ]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result} for call, result in question.called
        ]
        messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    body = {"model": model, "messages": messages, "max_tokens": question.max_tokens, **question.options}
    if question.system is not None:
        body["system"] = question.system
    if question.stop is not None:
        body["stop_sequences"] = [question.stop]
    if question.tools:
        body["tools"] = [_function(tool, "input_schema") for tool in question.tools]
    if question.choice is not None:
        words = {AUTO: {"type": "auto"}, REQUIRED: {"type": "any"}}
        body["tool_choice"] = words.get(question.choice, {"type": "tool", "name": question.choice})
    return body


def _ask_responses(model: str, question: Question) -> dict[str, Any]:
    content: Any = question.content
    if question.images:
        parts = [{"type": "input_image", "detail": "auto", "image_url": _data_url(image)} for image in question.images]
        content = [*parts, {"type": "input_text", "text": content}]
    turns: list[dict[str, Any]] = []
    for call, _result in question.called:
        turns.append({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments})
    for call, result in question.called:
        turns.append({"type": "function_call_output", "call_id": call.id, "output": result})
    body = {
        "model": model,
        "input": [{"role": "user", "content": content}, *turns] if turns or question.images else content,
        "max_output_tokens": question.max_tokens,
        "store": False,
        **question.options,
    }
    if question.system is not None:
        body["instructions"] = question.system
    if question.tools:
        body["tools"] = [{"type": "function", **_function(tool, "parameters")} for tool in question.tools]
    if question.choice is not None:
        named = {"type": "function", "name": question.choice}
        body["tool_choice"] = question.choice if question.choice in (AUTO, REQUIRED) else named
    return body


def _function(tool: Tool, schema: str) -> dict[str, Any]:
    """A tool, its schema under the name that the API has for it."""
    strict = {"strict": True} if tool.strict else {}
    return {"name": tool.name, "description": tool.description, schema: tool.schema, **strict}


def _base64(image: bytes) -> str:
    return base64.b64encode(image).decode("ascii")


def _data_url(image: bytes) -> str:
    return f"data:image/png;base64,{_base64(image)}"


def _read_chat(body: Mapping[str, Any]) -> Reply:
    reply = Reply(model=_word(body.get("model")), usage=parse_usage(body.get("usage")))
    choice = _first(body.get("choices"))
    message = _map(choice.get("message"))
    if not message:
        reply.faults.append("there is no choice with a message")
        return reply
    reply.text = _text(message.get("content"))
    reply.reasoning = _text(message.get("reasoning") or message.get("reasoning_content"))
    for raw in _maps(message.get("tool_calls")):
        function = _map(raw.get("function"))
        reply.calls.append(_call(raw.get("id"), function.get("name"), function.get("arguments")))
    reply.finish = _chat_finish(choice)
    reply.stop_sequence = _word(choice.get("stop_reason"))
    return _checked(reply)


def _chat_finish(choice: Mapping[str, Any]) -> str | None:
    reason = _word(choice.get("finish_reason"))
    return CALLS if reason == "tool_calls" else reason


def _follow_chat(events: Sequence[Event]) -> Reply:
    reply = Reply()
    bodies = _bodies(events, reply, skip="[DONE]")
    if [place for place, event in enumerate(events, 1) if event.data == "[DONE]"] != [len(events)]:
        reply.faults.append("its stream does not end with one [DONE]")
    pieces = _Pieces(reply.faults)
    for body in bodies:
        reply.model = _word(body.get("model")) or reply.model
        choice = _first(body.get("choices"))
        if not choice:
            reply.usage = parse_usage(body.get("usage")) or reply.usage
            continue
        delta = _map(choice.get("delta"))
        reply.text += _text(delta.get("content"))
        reply.reasoning += _text(delta.get("reasoning") or delta.get("reasoning_content"))
        for raw in _maps(delta.get("tool_calls")):
            function = _map(raw.get("function"))
            if raw.get("id") or function.get("name"):
                pieces.begin(raw.get("index"), raw.get("id"), function.get("name"))
            pieces.add(raw.get("index"), function.get("arguments"))
        reply.finish = _chat_finish(choice) or reply.finish
        reply.stop_sequence = _word(choice.get("stop_reason")) or reply.stop_sequence
    reply.calls = pieces.calls()
    # Clients keep the calls in a list, by these numbers.
    places = pieces.places()
    if set(places) != set(range(len(places))):
        reply.faults.append(f"its calls have the numbers {', '.join(map(str, places))}, not those from 0 on")
    return _checked(reply)


_MESSAGES_FINISH = {"end_turn": STOP, "stop_sequence": STOP, "max_tokens": LENGTH, "tool_use": CALLS}
_MESSAGES_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


def _messages_usage(raw: Any) -> Usage | None:
    """Anthropic's usage has no total."""
    counts = _counts(raw, "input_tokens", "output_tokens")
    return Usage(counts[0], counts[1], counts[0] + counts[1]) if counts else None


def _read_messages(body: Mapping[str, Any]) -> Reply:
    reply = Reply(model=_word(body.get("model")), usage=_messages_usage(body.get("usage")))
    if body.get("type") != "message" or body.get("role") != "assistant":
        reply.faults.append(f"it is a {body.get('type')} of {body.get('role')}, not a message of assistant")
    for block in _maps(body.get("content")):
        reply.text += _text(block.get("text")) if block.get("type") == "text" else ""
        reply.reasoning += _text(block.get("thinking")) if block.get("type") == "thinking" else ""
        if block.get("type") == "tool_use":
            reply.calls.append(_call(block.get("id"), block.get("name"), json.dumps(block.get("input"))))
    reason = _word(body.get("stop_reason"))
    reply.finish = _MESSAGES_FINISH.get(reason or "", reason)
    reply.stop_sequence = _word(body.get("stop_sequence"))
    if (reason == "stop_sequence") != (reply.stop_sequence is not None):
        reply.faults.append(f"stop_reason is {reason} and stop_sequence {reply.stop_sequence!r}")
    return _checked(reply)


def _follow_messages(events: Sequence[Event]) -> Reply:
    reply = Reply()
    order = []
    blocks: dict[Any, str] = {}
    pieces = _Pieces(reply.faults)
    for body in _bodies(events, reply):
        kind = str(body.get("type"))
        order.append(kind)
        index = _place(body.get("index"))
        if kind == "message_start":
            reply.model = _word(_map(body.get("message")).get("model"))
        elif kind == "content_block_start":
            block = _map(body.get("content_block"))
            if index in blocks:
                reply.faults.append(f"block {index} begins twice")
            blocks[index] = str(block.get("type"))
            if blocks[index] == "tool_use":
                pieces.begin(index, block.get("id"), block.get("name"))
        elif kind == "content_block_delta":
            delta = _map(body.get("delta"))
            if delta.get("type") not in (_MESSAGES_DELTAS.get(blocks.get(index, "")), "signature_delta"):
                reply.faults.append(f"a {delta.get('type')} is in block {index} of type {blocks.get(index)}")
            elif blocks.get(index) == "tool_use":
                pieces.add(index, delta.get("partial_json"))
            reply.text += _text(delta.get("text"))
            reply.reasoning += _text(delta.get("thinking"))
        elif kind == "message_delta":
            reason = _word(_map(body.get("delta")).get("stop_reason"))
            reply.finish = _MESSAGES_FINISH.get(reason or "", reason)
            reply.stop_sequence = _word(_map(body.get("delta")).get("stop_sequence"))
            reply.usage = _messages_usage(body.get("usage")) or reply.usage
    order = [kind for kind in order if kind != "ping"]
    if order[:1] != ["message_start"] or order[-2:] != ["message_delta", "message_stop"]:
        reply.faults.append(f"its events begin with {', '.join(order[:1])} and end with {', '.join(order[-2:])}")
    if order.count("content_block_start") != order.count("content_block_stop"):
        reply.faults.append("a block has no end")
    reply.calls = pieces.calls()
    return _checked(reply)


def _responses_usage(raw: Any) -> Usage | None:
    counts = _counts(raw, "input_tokens", "output_tokens", "total_tokens")
    return Usage(counts[0], counts[1], counts[2]) if counts else None


def _read_responses(body: Mapping[str, Any]) -> Reply:
    reply = Reply(model=_word(body.get("model")), usage=_responses_usage(body.get("usage")))
    if body.get("object") != "response":
        reply.faults.append(f"its object is {body.get('object')}, not response")
    for item in _maps(body.get("output")):
        for part in _maps(item.get("content")):
            text = _text(part.get("text"))
            if item.get("type") == "message" and part.get("type") == "output_text":
                reply.text += text
            elif item.get("type") == "reasoning":
                reply.reasoning += text
        if item.get("type") == "function_call":
            reply.calls.append(_call(item.get("call_id"), item.get("name"), item.get("arguments")))
    status, reason = body.get("status"), _map(body.get("incomplete_details")).get("reason")
    if status == "completed":
        reply.finish = CALLS if reply.calls else STOP
    elif reason == "max_output_tokens":
        reply.finish = LENGTH
    else:
        reply.finish = f"{status} ({reason})"
    return _checked(reply)


def _follow_responses(events: Sequence[Event]) -> Reply:
    gathered = Reply()
    text, done, reasoning, numbers, final = "", None, "", [], None
    arguments: dict[Any, str] = {}
    for body in _bodies(events, gathered):
        kind = str(body.get("type"))
        numbers.append(body.get("sequence_number"))
        if kind == "response.output_text.delta":
            text += _text(body.get("delta"))
        elif kind == "response.output_text.done":
            done = _text(body.get("text"))
        elif kind in ("response.reasoning_text.delta", "response.reasoning.delta"):
            reasoning += _text(body.get("delta"))
        elif kind == "response.function_call_arguments.delta":
            index = _place(body.get("output_index"))
            arguments[index] = arguments.get(index, "") + _text(body.get("delta"))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            if final is not None:
                gathered.faults.append("more than one event closes it")
            final = _map(body.get("response"))
        if final is not None and kind not in ("response.completed", "response.incomplete", "response.failed"):
            gathered.faults.append(f"{kind} comes after its end")
    if numbers != list(range(len(numbers))):
        gathered.faults.append("the sequence numbers of its events have gaps")
    if final is None:
        gathered.faults.append("no event closes it")
        return gathered
    reply = _read_responses(final)
    reply.faults = gathered.faults + reply.faults
    if reply.text != text or done not in (None, text):
        reply.faults.append(f"its deltas say {text[:40]!r}, and its end {reply.text[:40]!r}")
    if arguments and sorted(arguments.values()) != sorted(call.arguments for call in reply.calls):
        said = ", ".join(repr(call.arguments[:40]) for call in reply.calls) or "no call"
        reply.faults.append(f"its deltas say arguments {next(iter(arguments.values()))[:40]!r}, and its end {said}")
    reply.reasoning = reply.reasoning or reasoning
    return reply


class _Pieces:
    """Calls of a stream, by the place that each piece names."""

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._begun: dict[Any, tuple[str, str]] = {}
        self._arguments: dict[Any, str] = {}

    def begin(self, index: Any, call_id: Any, name: Any) -> None:
        """A piece that names its call; one that names it again must say the same."""
        place, said = _place(index), (_text(call_id), _text(name))
        known = self._begun.setdefault(place, said)
        if any(new not in ("", old) for new, old in zip(said, known)):
            self._faults.append(f"call {place} is {known[1]!r} and then {said[1]!r}")

    def add(self, index: Any, arguments: Any) -> None:
        place = _place(index)
        if place not in self._begun and arguments:
            self._faults.append(f"arguments come for call {place}, which has not begun")
        self._arguments[place] = self._arguments.get(place, "") + _text(arguments)

    def places(self) -> list[Any]:
        return list(self._begun)

    def calls(self) -> list[Call]:
        return [Call(*said, self._arguments.get(place, "")) for place, said in self._begun.items()]


def _call(call_id: Any, name: Any, arguments: Any) -> Call:
    return Call(_text(call_id), _text(name), _text(arguments))


def _place(index: Any) -> Any:
    """Something to find a block by: what is no number is kept as words, for the fault that it leads to."""
    return index if isinstance(index, int) and not isinstance(index, bool) else str(index)


def _checked(reply: Reply) -> Reply:
    """What no answer of any API may lack."""
    if reply.usage is None:
        reply.faults.append("it has no usage")
    if reply.model is None:
        reply.faults.append("it names no model")
    if reply.finish not in (STOP, LENGTH, CALLS):
        reply.faults.append("it does not say why it ended" if reply.finish is None else f"it ended for {reply.finish}")
    if "\ufffd" in (reply.text + reply.reasoning)[:-1]:
        reply.faults.append("its text holds replacement characters")
    return reply


def _bodies(events: Sequence[Event], reply: Reply, skip: str | None = None) -> list[dict[str, Any]]:
    """The JSON objects of the events; anything else is a fault, and so is an event that names another type."""
    bodies = []
    for event in events:
        if event.data == skip:
            continue
        try:
            body = parse_json(event.data)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            reply.faults.append(f"an event is no JSON object: {event.data[:80]!r}")
            continue
        if event.type == "error" or body.get("error") or "error" in (body.get("type"), body.get("object")):
            reply.faults.append(f"an error is inside the stream: {event.data[:200]}")
        elif event.type not in ("message", body.get("type")):
            reply.faults.append(f"an event is called {event.type} and is a {body.get('type')}")
        bodies.append(body)
    return bodies


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _first(value: Any) -> Mapping[str, Any]:
    return next(iter(_maps(value)), {})


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _counts(raw: Any, *names: str) -> list[int] | None:
    """Whole numbers of an object; None where one is missing or something else."""
    found = [_map(raw).get(name) for name in names]
    counts = [each for each in found if isinstance(each, int) and is_count(each)]
    return counts if len(counts) == len(found) else None


DIALECTS = {
    "chat": Dialect("chat", "/v1/chat/completions", _ask_chat, _read_chat, _follow_chat, "[DONE]", _stream_chat),
    "messages": Dialect("messages", "/v1/messages", _ask_messages, _read_messages, _follow_messages, "message_stop"),
    "responses": Dialect(
        "responses", "/v1/responses", _ask_responses, _read_responses, _follow_responses, "response.completed"
    ),
}
