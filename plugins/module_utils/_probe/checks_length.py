# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the context: its exact limit, and what is found again in long inputs. Private to socle.inference."""

from __future__ import annotations

import secrets
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.asking import reply_of
from ansible_collections.socle.inference.plugins.module_utils._probe.client import Exchange
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import DIALECTS, Dialect, Question
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault, ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import (
    CHAT,
    QUESTION,
    Context,
    Outcome,
    answered,
    judge,
    no_thoughts,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.prompts import (
    Messages,
    messages_of_length,
    with_needle,
)

CONTENT = QUESTION[0]["content"]
NO_LENGTH = "the plan names no max_model_len"


def exact_limit(context: Context, params: dict[str, Any]) -> Outcome:
    """Prompt and answer together: exactly the limit passes, and one token more does not.

    A stop string ends the answer at its first space, so that asking for the whole context costs a few tokens. The
    Responses API has none, so that there only the refusal is asked for.
    """
    limit = context.planned.max_model_len
    expected = f"prompt and max_tokens of {limit or 'max_model_len'} tokens together pass, and one more is a 400"
    if not limit:
        return Outcome("skipped", expected, NO_LENGTH)
    answers, faults = [], []
    for dialect in DIALECTS.values():
        first = _limited(context, dialect, 1)
        usage = reply_of(dialect, first).usage
        if usage is None:
            raise AnswerFault("An answer has no usage, so that its prompt's length is not known.", **first.evidence())
        room = limit - usage.prompt_tokens
        for most, right in ((room, (200,)), (room + 1, (400, 422))):
            if most == room and dialect.name == "responses":
                continue
            answer = _limited(context, dialect, most)
            if answer.status not in right:
                answers.append(answer)
                faults.append(f"{dialect.name} with {usage.prompt_tokens} + {most} tokens: {answer.status}")
    return judge(
        not faults,
        expected,
        "; ".join(faults) or "it is so by each API",
        "Clients that fill the context are refused too early, or are cut without a word: look for what sits between "
        "probe and engine.",
        *answers,
    )


def _limited(context: Context, dialect: Dialect, max_tokens: int) -> Exchange:
    stop = None if dialect.name == "responses" else " "
    question = Question(CONTENT, max_tokens, stop=stop, options={"temperature": 0})
    return context.client.post(dialect.path, dialect.ask(context.model, question))


def needle(context: Context, params: dict[str, Any]) -> Outcome:
    """A code word in the middle of a long text of which nothing was seen before, for each share of the length."""
    limit = context.planned.max_model_len
    expected = (
        f"a code word found again in inputs of {', '.join(f'{share:.0%}' for share in params['shares'])} of "
        f"{limit or 'max_model_len'} tokens"
    )
    if not limit:
        return Outcome("skipped", expected, NO_LENGTH)
    exchanges, said, faults = [], [], []
    for place, share in enumerate(params["shares"]):
        tokens = int(limit * share) - params["max_tokens"]
        code = f"{secrets.choice(('amber', 'cobalt', 'violet'))}-{secrets.randbelow(9000) + 1000}"
        # Each at another depth: what is lost in the middle is not lost at the end.
        depth = (0.1, 0.5, 0.3, 0.8)[place % 4]
        messages = needle_messages(context, tokens, code, depth)
        answer = context.client.post(
            CHAT,
            {
                "model": context.model,
                "messages": messages,
                "max_tokens": params["max_tokens"],
                "temperature": 0,
                **no_thoughts(context),
            },
        )
        text, _finish, usage = answered(answer)
        if usage.prompt_tokens != tokens:
            faults.append(f"{share:.0%}: {usage.prompt_tokens} prompt tokens, {tokens} sent")
        if code not in text:
            exchanges.append(answer)
            faults.append(f"{share:.0%} ({tokens} tokens, depth {depth:.0%}): {text.strip()[:60]!r}, not {code}")
        else:
            said.append(f"{tokens} tokens in {answer.elapsed_ms / 1000:.1f} s")
    return judge(
        not faults,
        expected,
        "; ".join([*faults, *(f"found in {each}" for each in said)]),
        "What a long input says is lost: check rope overrides and max-model-len against what the model was made for, "
        "then the attention backend and the type of the KV cache.",
        *exchanges,
    )


def needle_messages(context: Context, tokens: int, code: str, depth: float) -> Messages:
    """One message of exactly so many *tokens* by /tokenize, with the *code* at *depth* (0 to 1) of the filler."""

    def count(messages: Messages) -> int:
        counted = context.client.post(
            "/tokenize",
            {
                "model": context.model,
                "messages": with_needle(messages, code, depth),
                "add_generation_prompt": True,
                **no_thoughts(context),
            },
        )
        found = counted.json().get("count") if counted.status == 200 else None
        if not isinstance(found, int):
            raise AnswerFault(f"/tokenize answered {counted.status}; expected a count.", evidence=counted.evidence())
        return found

    if tokens < 1:
        raise ProbeError(f"The planned length leaves {tokens} tokens for the input; ask for larger shares.")
    question = "What is the code word in the text above? Answer with the code word only."
    return with_needle(messages_of_length(question, secrets.token_hex(8), tokens, count), code, depth)
