# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What checks are given and answer, and how they judge a chat. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient, Exchange
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault
from ansible_collections.socle.inference.plugins.module_utils._probe.host_gpus import HostGpus
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Usage, parse_usage

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Which city is the capital of France? Answer in one sentence."}]


@dataclass(frozen=True)
class Promised:
    """What the plan and the model let clients expect; made by _plan/promises.py, where the words are."""

    lacks: Mapping[str, str] = field(default_factory=dict)
    """What clients may not expect, and why: tools, forced tools, thinking, effort, vision, sampling."""
    efforts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """{level: {API: {status, effort}}}"""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of a request by the name of the preset."""
    images: int | None = None
    """The most of one request; None where the plan says nothing."""
    slo: Mapping[str, float] = field(default_factory=dict)
    gpus: Sequence[Any] = ()
    """Indices or UUIDs."""
    unit: str = ""
    """The systemd service of the instance."""
    headroom_gib: float | None = None
    """What the plan leaves free of each GPU."""
    since: str | None = None
    """When the launch was started, UTC."""


@dataclass(frozen=True)
class Planned:
    """What the plan promises about the engine."""

    served_names: list[str]
    max_model_len: int | None = None
    vllm_version: str | None = None
    model_root: str | None = None
    api_key_required: bool = False
    promised: Promised | None = None
    """None: the probe was not told."""


@dataclass(frozen=True)
class Context:
    client: EngineClient
    planned: Planned
    report: Callable[[int, int, str], None] = lambda done, total, unit: None
    """How far a check is that takes long."""
    host: HostGpus | None = None
    """Where the probe runs on the engine's own host."""

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
    figures: dict[str, Any] = field(default_factory=dict)
    """Numbers that later runs are compared with."""


@dataclass(frozen=True)
class Check:
    run: Callable[[Context, dict[str, Any]], Outcome]
    question: str
    params: dict[str, Any]
    stage: int


def judge(right: bool, expected: str, found: str, remedy: str, *exchanges: Exchange) -> Outcome:
    evidence = [exchange.evidence() for exchange in exchanges]
    return Outcome("passed" if right else "failed", expected, found, remedy, evidence)


def fitting(context: Context, tokens: int, share: float) -> int:
    """*tokens*, or that *share* of the planned length where that is less: a short context cannot hold all."""
    limit = context.planned.max_model_len
    return max(min(tokens, int(limit * share)), 1) if limit else tokens


def no_thoughts(context: Context) -> dict[str, Any]:
    """Thinking off where the model can think: thoughts would take the tokens of the answer."""
    promised = context.planned.promised
    thinks = promised is not None and "thinking" not in promised.lacks
    return {"chat_template_kwargs": {"enable_thinking": False}} if thinks else {}


def chat_body(context: Context, max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"model": context.model, "messages": QUESTION, "max_tokens": max_tokens, "temperature": 0, **more}


def answered(exchange: Exchange) -> tuple[str, str | None, Usage]:
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
    content = message.get("content") or ""
    if not (isinstance(reasoning, str) and isinstance(content, str)):
        raise AnswerFault("The content of the chat answer is no text; expected one.", evidence=exchange.evidence())
    return reasoning + content, choice.get("finish_reason"), usage


def usage_faults(text: str, finish: str | None, usage: Usage, max_tokens: int) -> list[str]:
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


def chat_words(text: str, finish: str | None, usage: Usage, faults: list[str]) -> str:
    facts = f"{usage.prompt_tokens} + {usage.completion_tokens} = {usage.total_tokens} tokens, finish_reason {finish}"
    return f"{text.strip()[:80]!r}, {facts}" + (f"; {', '.join(faults)}" if faults else "")
