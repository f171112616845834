# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of thinking, its levels of effort, and presets of sampling. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.asking import Asked, ask_by_all, unplanned
from ansible_collections.socle.inference.plugins.module_utils._probe.checks_length import count_tokens
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import DIALECTS, LENGTH, Question
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import (
    CHAT,
    QUESTION,
    Context,
    Outcome,
    chat_body,
    judge,
)

SUM = "What is 17 + 25? Think first, then answer with the number only."
TAGS = ("<think>", "</think>")

_EFFORT_FIELDS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "chat": ("chat", lambda level: {"reasoning_effort": level}),
    "responses": ("responses", lambda level: {"reasoning": {"effort": level}}),
    "messages": ("messages", lambda level: {"output_config": {"effort": level}}),
    "kwargs": ("chat", lambda level: {"chat_template_kwargs": {"reasoning_effort": level}}),
}
"""For each place where a request can say its effort (_plan/effort.py, APIS): the API, and the fields."""


def thinking(context: Context, params: dict[str, Any]) -> Outcome:
    def faults(asked: Asked) -> list[str]:
        reply = asked.reply
        found = _tag_faults(asked)
        if not reply.reasoning.strip():
            found.append("its reasoning is empty")
        if not reply.text.strip() and reply.finish != LENGTH:
            found.append("its text is empty")
        return found

    return _thinking(
        context,
        params,
        True,
        faults,
        "thoughts in the field for them, and none of it in the text",
        "Thoughts in the text, or none at all, come from a reasoning parser that is not the model's: compare flag "
        "reasoning-parser with the parsers of the model file.",
    )


def thinking_off(context: Context, params: dict[str, Any]) -> Outcome:
    def faults(asked: Asked) -> list[str]:
        found = _tag_faults(asked)
        if asked.reply.reasoning.strip():
            found.append(f"it thinks: {asked.reply.reasoning.strip()[:60]!r}")
        if not asked.reply.text.strip():
            found.append("its text is empty")
        return found

    return _thinking(
        context,
        params,
        False,
        faults,
        "text without thoughts, with enable_thinking false",
        "Clients that turn thinking off wait for thoughts all the same, or get the answer as thoughts: compare flag "
        "reasoning-parser with the parsers of the model file, and look whether a chat template replaces the model's.",
    )


def _thinking(
    context: Context,
    params: dict[str, Any],
    on: bool,
    faults: Callable[[Asked], list[str]],
    expected: str,
    remedy: str,
) -> Outcome:
    options = {"temperature": 0, "chat_template_kwargs": {"enable_thinking": on}}
    question = Question(SUM, params["max_tokens"], options=options)
    return ask_by_all(context, "thinking", question, faults, expected, remedy)


def _tag_faults(asked: Asked) -> list[str]:
    return [f"its text holds {tag}" for tag in TAGS if tag in asked.reply.text]


def effort(context: Context, params: dict[str, Any]) -> Outcome:
    """Each level by each place: its status, and by the prompt's tokens what the template made of it."""
    expected = "each level of effort answered as its plan says, by each place where a request can say it"
    reason = unplanned(context, "effort")
    if reason or context.planned.promised is None:
        return Outcome("skipped", expected, reason or "")
    counts: dict[str, int] = {}
    answers, faults, asked = [], [], 0
    for level, row in context.planned.promised.efforts.items():
        for place, promised in row.items():
            api, fields = _EFFORT_FIELDS[place]
            dialect = DIALECTS[api]
            body = {**dialect.ask(context.model, Question(SUM, 1, options={"temperature": 0})), **fields(level)}
            answer = context.client.post(dialect.path, body)
            asked += 1
            found = None
            if promised["status"] not in (None, answer.status):
                found = f"{answer.status}, not {promised['status']}"
            elif promised["status"] is None and answer.status not in (200, 400):
                found = f"{answer.status}, which is neither taken nor refused"
            elif answer.status == 200 and promised["effort"]:
                usage = dialect.read(answer.json()).usage
                wanted = counts.setdefault(promised["effort"], _tokens_with(context, promised["effort"]))
                if usage is None or usage.prompt_tokens != wanted:
                    took = usage.prompt_tokens if usage else "no"
                    found = f"{took} prompt tokens, where {promised['effort']} takes {wanted}"
            if found:
                answers.append(answer)
                faults.append(f"{level} by {place}: {found}")
    return judge(
        not faults,
        expected,
        "; ".join(faults) or f"{asked} requests were answered so",
        "Clients get another effort than the plan tells them, or an error: deploy again, since another chat template "
        "or vLLM version is running than was planned; endpoint.yml shows what each level should do.",
        *answers[:5],
    )


def _tokens_with(context: Context, level: str) -> int:
    """Prompt tokens of the question with the template's own word for *level*."""
    options = {"enable_thinking": False} if level == "none" else {"reasoning_effort": level}
    return count_tokens(context, [{"role": "user", "content": SUM}], chat_template_kwargs=options)


def sampling(context: Context, params: dict[str, Any]) -> Outcome:
    """The presets of the model file, as clients send them."""
    expected = "each preset of the model file is accepted"
    reason = unplanned(context, "sampling")
    if reason or context.planned.promised is None:
        return Outcome("skipped", expected, reason or "")
    presets = context.planned.promised.presets
    answers = {
        name: context.client.post(CHAT, {**chat_body(context, params["max_tokens"]), "messages": QUESTION, **values})
        for name, values in presets.items()
    }
    wrong = {name: answer for name, answer in answers.items() if answer.status != 200}
    return judge(
        not wrong,
        expected,
        "; ".join(f"{name}: {answer.status}, {answer.text[:120]}" for name, answer in wrong.items())
        or f"{', '.join(presets)}: 200",
        "Clients that follow the card are refused: look which field this version of vLLM does not take.",
        *wrong.values(),
    )
