# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that ask all three APIs of an engine: chat, messages, responses. Private to socle.inference."""

from __future__ import annotations

import secrets
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.asking import reply_of
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import (
    DIALECTS,
    LENGTH,
    STOP,
    Dialect,
    Question,
    Reply,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import TransportFault
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import (
    QUESTION,
    Context,
    Outcome,
    chat_words,
    judge,
    usage_faults,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Usage

CONTENT = QUESTION[0]["content"]
SYSTEM = "You are a patient teacher of geography."
COLD = {"temperature": 0}

SCRIPTS = (
    "Z\u00fcrich, \u65e5\u672c\u8a9e\u3068\u4e2d\u6587, \u0627\u0644\u0639\u0631\u0628\u064a\u0629, "
    "na\u00efve, \U0001f682 \U0001f469\u200d\U0001f469\u200d\U0001f467 end"
)
"""Accents, scripts of two and three bytes, one from right to left, characters of four bytes that belong together."""


def messages(context: Context, params: dict[str, Any]) -> Outcome:
    return _whole(DIALECTS["messages"], context, params)


def messages_stream(context: Context, params: dict[str, Any]) -> Outcome:
    return _streamed(DIALECTS["messages"], context, params)


def responses(context: Context, params: dict[str, Any]) -> Outcome:
    return _whole(DIALECTS["responses"], context, params)


def responses_stream(context: Context, params: dict[str, Any]) -> Outcome:
    return _streamed(DIALECTS["responses"], context, params)


def _whole(dialect: Dialect, context: Context, params: dict[str, Any]) -> Outcome:
    answer = context.client.post(
        dialect.path, dialect.ask(context.model, Question(CONTENT, params["max_tokens"], options=COLD))
    )
    reply = reply_of(dialect, answer)
    faults = _faults(context, reply, params["max_tokens"])
    return judge(
        not faults,
        f"text of at most {params['max_tokens']} tokens by {dialect.path}, an end for stop or length, sound usage",
        _words(reply, faults),
        "Compare with the check chat: if that passed, this version of vLLM does not speak this API as its clients do.",
        answer,
    )


def _streamed(dialect: Dialect, context: Context, params: dict[str, Any]) -> Outcome:
    body = dialect.ask(context.model, Question(CONTENT, params["max_tokens"], options=COLD))
    events = context.client.stream(dialect.path, body)
    reply = dialect.follow(events)
    faults = _faults(context, reply, params["max_tokens"])
    excerpt = "\n".join(event.data for event in events)[-2000:]
    return Outcome(
        "failed" if faults else "passed",
        f"a stream of at most {params['max_tokens']} tokens by {dialect.path}, its events in their order and closed",
        f"{len(events)} events, " + _words(reply, faults),
        f"Compare with the check {dialect.name}: if that passed, look at what sits between probe and engine.",
        [{"request": {"method": "POST", "path": dialect.path, "stream": True}, "response": {"excerpt": excerpt}}],
    )


def _faults(context: Context, reply: Reply, max_tokens: int) -> list[str]:
    faults = list(reply.faults)
    if reply.usage is not None:
        faults += usage_faults(reply.reasoning + reply.text, reply.finish, reply.usage, max_tokens)
    if reply.model is not None and reply.model != context.model:
        faults.append(f"it names the model {reply.model}")
    return faults


def _words(reply: Reply, faults: list[str]) -> str:
    return chat_words(reply.reasoning + reply.text, reply.finish, reply.usage or Usage(0, 0, 0), faults)


def system_prompt(context: Context, params: dict[str, Any]) -> Outcome:
    asked = [{"role": "system", "content": SYSTEM}, *QUESTION]
    counted = context.client.post(
        "/tokenize", {"model": context.model, "messages": asked, "add_generation_prompt": True}
    )
    count = counted.json().get("count") if counted.status == 200 else None
    answers = [
        context.client.post(dialect.path, dialect.ask(context.model, Question(CONTENT, 1, SYSTEM, options=COLD)))
        for dialect in DIALECTS.values()
    ]
    replies = [reply_of(dialect, answer) for dialect, answer in zip(DIALECTS.values(), answers)]
    found = {
        dialect.name: reply.usage.prompt_tokens if reply.usage else None
        for dialect, reply in zip(DIALECTS.values(), replies)
    }
    return judge(
        count is not None and set(found.values()) == {count},
        "the prompt tokens of a chat with a system prompt, by each API, equal to what /tokenize counts for the same",
        f"/tokenize {count} (status {counted.status}), " + ", ".join(f"{name} {used}" for name, used in found.items()),
        "An API drops the system prompt or words it differently: its clients get another model than the others.",
        counted,
        *answers,
    )


def stop(context: Context, params: dict[str, Any]) -> Outcome:
    """A space: no sentence of a language with words goes without, whatever the model says."""
    answers, faults = [], []
    for name in ("chat", "messages"):
        dialect = DIALECTS[name]
        question = Question(CONTENT, params["max_tokens"], stop=" ", options=COLD)
        answer = context.client.post(dialect.path, dialect.ask(context.model, question))
        answers.append(answer)
        reply = reply_of(dialect, answer)
        text = reply.reasoning + reply.text
        faults += [f"{name}: {fault}" for fault in reply.faults]
        if reply.finish != STOP or " " in text or reply.stop_sequence != " ":
            faults.append(f"{name}: {text[:40]!r}, ended for {reply.finish}, stop string {reply.stop_sequence!r}")
    return judge(
        not faults,
        f"an answer that ends before its first space, for {STOP} and not for {LENGTH}, and names the stop string",
        "; ".join(faults) or "chat and messages ended before it",
        "Clients that end answers by stop strings get more than they asked for: look at the unit's log.",
        *answers,
    )


def repeatable(context: Context, params: dict[str, Any]) -> Outcome:
    faults, answers = [], []
    for what, options in (
        ("temperature 0", {"temperature": 0}),
        ("a seed", {"temperature": 1.0, "seed": params["seed"]}),
    ):
        texts = []
        for _time in range(2):
            # Each on its own prefix cache: what was computed once more must be the same.
            question = Question(CONTENT, params["max_tokens"], options={**options, "cache_salt": secrets.token_hex(8)})
            answer = context.client.post(DIALECTS["chat"].path, DIALECTS["chat"].ask(context.model, question))
            answers.append(answer)
            reply = reply_of(DIALECTS["chat"], answer)
            texts.append(reply.reasoning + reply.text)
            faults += [f"with {what}: {fault}" for fault in reply.faults]
        # Two empty ones are equal, too.
        if not texts[0].strip() or texts[0] != texts[1]:
            faults.append(f"with {what}: {texts[0][:60]!r}, then {texts[1][:60]!r}")
    return judge(
        not faults,
        "two equal answers with temperature 0, and two with the same seed",
        "; ".join(faults) or "both pairs are equal",
        "Other requests at that moment change what is computed, so repeat it on an idle engine; if it stays, sampling "
        "or a kernel is wrong.",
        *answers,
    )


def api_errors(context: Context, params: dict[str, Any]) -> Outcome:
    """Requests that are wrong in one way, by each API: all of them are the client's fault."""
    answers, faults, asked = [], [], 0
    for dialect in DIALECTS.values():
        right = dialect.ask(context.model, Question(CONTENT, 1, options=COLD))
        limit = "max_output_tokens" if dialect.name == "responses" else "max_tokens"
        content = "input" if dialect.name == "responses" else "messages"
        wrong: dict[str, tuple[Any, tuple[int, ...]]] = {
            "an unknown model": ({**right, "model": "socle-no-such-model"}, (404,)),
            f"{limit} as a word": ({**right, limit: "many"}, (400, 422)),
            f"{limit} below 0": ({**right, limit: -1}, (400, 422)),
            "temperature as a word": ({**right, "temperature": "hot"}, (400, 422)),
            f"{content} as a number": ({**right, content: 5}, (400, 422)),
            "a list as the body": ([right], (400, 422)),
        }
        for what, (body, right_status) in wrong.items():
            asked += 1
            try:
                answer = context.client.post(dialect.path, body)
            except TransportFault as fault:
                # What came before may have closed the connection; the other requests still tell.
                faults.append(f"{dialect.name} with {what}: no answer ({fault.phase})")
                continue
            if answer.status not in right_status:
                answers.append(answer)
                expected = " or ".join(map(str, right_status))
                faults.append(f"{dialect.name} with {what}: {answer.status}, not {expected}")
    return judge(
        not faults,
        "404 for an unknown model, and 400 or 422 for wrong types and values, by each API",
        "; ".join(faults) or f"{asked} wrong requests were refused so",
        "A client's mistake must not look like the engine's, nor pass: look at the unit's log.",
        *answers,
    )


def unicode_text(context: Context, params: dict[str, Any]) -> Outcome:
    """The engine repeats the prompt before its answer (echo), out of its tokens."""
    text = params["text"]
    answer = context.client.post(
        "/v1/completions",
        {"model": context.model, "prompt": text, "max_tokens": 1, "echo": True, "temperature": 0},
    )
    choices = answer.json().get("choices") if answer.status == 200 else None
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    found = str(choice.get("text") or "")
    return judge(
        found.startswith(text),
        f"the text {text!r} back as it was sent",
        f"status {answer.status}, {found[: len(text) + 20]!r}",
        "The tokeniser's files do not belong to this model, or are damaged: verify the model (models.yml, verify).",
        answer,
    )
