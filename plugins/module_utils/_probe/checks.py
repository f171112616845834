# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The acceptance checks. Private to socle.inference.

A check is a function of the context (client and planned facts) and its parameters, and returns an Outcome. It may let
an EngineFault escape: that is a failed check. Anything else that escapes is the probe's own fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient, Exchange
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Usage, parse_usage

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Which city is the capital of France? Answer in one sentence."}]


@dataclass(frozen=True)
class Planned:
    """What the plan promises about the engine."""

    served_names: list[str]
    max_model_len: int | None = None
    vllm_version: str | None = None
    model_root: str | None = None
    api_key_required: bool = False


@dataclass(frozen=True)
class Context:
    client: EngineClient
    planned: Planned

    @property
    def model(self) -> str:
        return self.planned.served_names[0]


@dataclass(frozen=True)
class Outcome:
    status: str
    expected: str
    found: str
    remedy: str = ""
    evidence: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    run: Callable[[Context, dict[str, Any]], Outcome]
    question: str
    params: dict[str, Any]
    stage: int


def _judge(right: bool, expected: str, found: str, remedy: str, *exchanges: Exchange) -> Outcome:
    evidence = [exchange.evidence() for exchange in exchanges]
    return Outcome("passed" if right else "failed", expected, found, remedy, evidence)


def _chat(context: Context, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": context.model, "messages": QUESTION, "max_tokens": max_tokens, "temperature": 0, **more}


def _answered(exchange: Exchange) -> tuple[str, str | None, Usage]:
    """Text (reasoning included), finish_reason and usage of a chat answer."""
    if exchange.status != 200:
        raise AnswerFault(
            f"{exchange.method} {exchange.path} answered {exchange.status}; expected 200.", evidence=exchange.evidence()
        )
    body = exchange.json()
    usage = parse_usage(body.get("usage"))
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if usage is None or not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        what = "usage" if usage is None else "a choice with a message"
        raise AnswerFault(
            f"The chat answer has no {what}; expected an OpenAI chat completion.", evidence=exchange.evidence()
        )
    message = choice["message"]
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return reasoning + (message.get("content") or ""), choice.get("finish_reason"), usage


def _usage_faults(text: str, finish: str | None, usage: Usage, max_tokens: int) -> list[str]:
    faults = []
    if not text.strip():
        faults.append("the text is empty")
    if finish not in ("stop", "length"):
        faults.append(f"finish_reason is {finish}")
    if usage.prompt_tokens < 1 or usage.completion_tokens < 1:
        faults.append("usage counts no prompt or no completion tokens")
    if usage.total_tokens != usage.prompt_tokens + usage.completion_tokens:
        faults.append(f"usage does not add up to {usage.total_tokens}")
    if usage.completion_tokens > max_tokens:
        faults.append(f"{usage.completion_tokens} tokens were generated, {max_tokens} allowed")
    if finish == "length" and usage.completion_tokens != max_tokens:
        faults.append(f"it stopped for length at {usage.completion_tokens} of {max_tokens} tokens")
    return faults


def _chat_words(text: str, finish: str | None, usage: Usage, faults: list[str]) -> str:
    facts = f"{usage.prompt_tokens} + {usage.completion_tokens} = {usage.total_tokens} tokens, finish_reason {finish}"
    return f"{text.strip()[:80]!r}, {facts}" + (f"; {', '.join(faults)}" if faults else "")


def served_model(context: Context, params: dict[str, Any]) -> Outcome:
    planned = context.planned
    answer = context.client.get("/v1/models")
    entries = answer.json().get("data") if answer.status == 200 else None
    models = {
        str(entry.get("id")): entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    faults = [f"{name} is not served" for name in planned.served_names if name not in models]
    entry = models.get(context.model, {})
    length = (
        f"max_model_len {planned.max_model_len}" if planned.max_model_len else "any max_model_len (none is planned)"
    )
    if planned.max_model_len and entry and entry.get("max_model_len") != planned.max_model_len:
        faults.append(f"max_model_len is {entry.get('max_model_len')}")
    if planned.model_root and entry and entry.get("root") != planned.model_root:
        faults.append(f"root is {entry.get('root')}")
    return _judge(
        not faults,
        f"{', '.join(planned.served_names)} with {length}"
        + (f" from {planned.model_root}" if planned.model_root else ""),
        f"status {answer.status}, models {', '.join(models) or 'none'}, max_model_len {entry.get('max_model_len')}"
        + (f"; {', '.join(faults)}" if faults else ""),
        "Another engine answers on this port, or the running generation is not the planned one: deploy again.",
        answer,
    )


def engine_version(context: Context, params: dict[str, Any]) -> Outcome:
    planned = context.planned.vllm_version
    if not planned:
        return Outcome("skipped", "the planned vLLM version", "the plan names no version")
    answer = context.client.get("/version")
    version = str(answer.json().get("version")) if answer.status == 200 else f"none (status {answer.status})"
    return _judge(
        public_version(version) == public_version(planned),
        f"{public_version(planned)}; a local part such as +cpu says how it was built and does not count",
        version,
        "The image does not hold the version that its profile names: pin the image by digest, or correct the profile.",
        answer,
    )


def public_version(version: str) -> str:
    """The version without its local part: "v0.32.0+cpu" -> "0.32.0"."""
    return version.strip().partition("+")[0].lstrip("v")


def chat(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.post(CHAT, _chat(context, params["max_tokens"]))
    text, finish, usage = _answered(answer)
    faults = _usage_faults(text, finish, usage, params["max_tokens"])
    return _judge(
        not faults,
        f"text of at most {params['max_tokens']} tokens, finish_reason stop or length, usage that adds up",
        _chat_words(text, finish, usage, faults),
        "Check the chat template and the model's files; an empty text often means a wrong template or tokeniser.",
        answer,
    )


def chat_stream(context: Context, params: dict[str, Any]) -> Outcome:
    body = _chat(context, params["max_tokens"])
    trace = context.client.stream_chat(body)
    usage = trace.usage or Usage(0, 0, 0)
    faults = _usage_faults(trace.text, trace.finish_reason, usage, params["max_tokens"])
    if trace.model != context.model:
        faults.append(f"the chunks name the model {trace.model}")
    if "\ufffd" in trace.text[:-1]:
        faults.append("the text holds replacement characters")
    expected = f"a stream of at most {params['max_tokens']} tokens with text, finish_reason, usage and [DONE]"
    found = f"{trace.chunks} chunks, " + _chat_words(trace.text, trace.finish_reason, usage, faults)
    return Outcome(
        "failed" if faults else "passed",
        expected,
        found,
        "Compare with the check chat: if that passed, look at what sits between probe and engine.",
        [{"request": {"method": "POST", "path": CHAT, "stream": True}, "response": {"excerpt": trace.text[:2000]}}],
    )


def prompt_tokens(context: Context, params: dict[str, Any]) -> Outcome:
    counted = context.client.post(
        "/tokenize", {"model": context.model, "messages": QUESTION, "add_generation_prompt": True}
    )
    answer = context.client.post(CHAT, _chat(context, 1))
    _text, _finish, usage = _answered(answer)
    count = counted.json().get("count") if counted.status == 200 else None
    return _judge(
        count is not None and count == usage.prompt_tokens,
        "the prompt tokens of a chat equal to what /tokenize counts for the same messages",
        f"/tokenize {count} (status {counted.status}), usage {usage.prompt_tokens}",
        "Requests and /tokenize use different chat templates: check chat_template and the model's files.",
        counted,
        answer,
    )


def over_long(context: Context, params: dict[str, Any]) -> Outcome:
    limit = context.planned.max_model_len
    if not limit:
        return Outcome("skipped", "a 400 that names the maximum", "the plan names no max_model_len")
    # No tokeniser makes fewer than one token of a word that differs from its neighbours.
    words = " ".join("abcdefghijklmnopqrstuvwxyz"[place % 26] for place in range(limit + params["margin"]))
    body = _chat(context, 1, messages=[{"role": "user", "content": words}])
    answer = context.client.post(CHAT, body)
    named = bool(re.search(rf"(?<!\d){limit}(?!\d)", answer.text))
    return _judge(
        answer.status == 400 and named,
        f"status 400 with a text that names the maximum of {limit} tokens",
        f"status {answer.status}, the text {'names' if named else 'does not name'} {limit}: {answer.text[:200]}",
        "A client must be able to tell a request that is too long from a broken engine: look at the unit's log.",
        answer,
    )


def unknown_model(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.post(CHAT, _chat(context, 1, model=params["model"]))
    return _judge(
        answer.status == 404,
        f"status 404 for the model {params['model']}",
        f"status {answer.status}: {answer.text[:200]}",
        "Something between probe and engine rewrites the model, or this is not vLLM.",
        answer,
    )


def broken_json(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.request("POST", CHAT, content='{"model": "' + context.model + '", "messages": [')
    return _judge(
        400 <= answer.status < 500,
        "a status of 400 to 499 for a body that is not JSON",
        f"status {answer.status}: {answer.text[:200]}",
        "A client's mistake must not look like the engine's: look at the unit's log.",
        answer,
    )


def metrics(context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.get("/metrics")
    present = exposition.families(exposition.parse(answer.text)) if answer.status == 200 else set()
    missing = [name for name in params["names"] if name not in present]
    return _judge(
        answer.status == 200 and not missing and bool(params["names"]),
        f"{len(params['names'])} metrics: {', '.join(params['names'])}",
        f"status {answer.status}, {len(present)} names" + (f"; missing {', '.join(missing)}" if missing else ""),
        "Without them nothing can be watched: remove --disable-log-stats from the flags.",
        answer,
    )


def api_key(context: Context, params: dict[str, Any]) -> Outcome:
    expected = "401 without a key, 401 with a wrong key, 200 with the right one"
    if not context.planned.api_key_required:
        return Outcome("skipped", expected, "the plan asks for no API key: everyone who reaches the port may use it")
    answers = [
        context.client.get("/v1/models", with_key=False),
        context.client.get("/v1/models", other_key="socle-wrong-key"),
        context.client.get("/v1/models"),
    ]
    without, wrong, right = (answer.status for answer in answers)
    return _judge(
        (without, wrong, right) == (401, 401, 200),
        expected,
        f"{without} without a key, {wrong} with a wrong key, {right} with the right one",
        "The engine runs without its secret, or with another one: deploy again and check the vaulted api_key."
        if right != 200
        else "The engine is open: it runs without its secret. Deploy again.",
        *answers,
    )


def alive(context: Context, params: dict[str, Any]) -> Outcome:
    health = context.client.get("/health")
    answer = context.client.post(CHAT, _chat(context, params["max_tokens"]))
    text, finish, usage = _answered(answer)
    faults = _usage_faults(text, finish, usage, params["max_tokens"])
    return _judge(
        health.status == 200 and not faults,
        "after all other checks: /health 200 and another chat answered",
        f"/health {health.status}, " + _chat_words(text, finish, usage, faults),
        "One of the bad requests before harmed the engine: look at the unit's log.",
        health,
        answer,
    )


CHECKS: dict[str, Check] = {
    "served_model": Check(served_model, "The planned model is served with the planned length", {}, 1),
    "engine_version": Check(engine_version, "The engine is the planned vLLM version", {}, 1),
    "chat": Check(chat, "A chat is answered with text and a usage that adds up", {"max_tokens": 8}, 1),
    "chat_stream": Check(chat_stream, "A streamed chat arrives whole, with usage", {"max_tokens": 8}, 1),
    "prompt_tokens": Check(prompt_tokens, "Usage and /tokenize count the same prompt tokens", {}, 1),
    "over_long": Check(over_long, "A request that is too long is a 400 that names the maximum", {"margin": 16}, 1),
    "unknown_model": Check(unknown_model, "An unknown model is a 404", {"model": "socle-no-such-model"}, 1),
    "broken_json": Check(broken_json, "A body that is not JSON is the client's fault", {}, 1),
    "metrics": Check(metrics, "/metrics has the core names", {"names": []}, 2),
    "api_key": Check(api_key, "The API key is enforced", {}, 1),
    "alive": Check(alive, "The engine still answers after all of that", {"max_tokens": 4}, 2),
}
