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
    """A prompt as long as the context is refused, since no token of an answer fits; all of the rest may be asked for.

    Newer versions cut max_tokens to the room that is left, so that only the prompt's length tells where the limit is.
    A stop string ends the answer at its first space, so that asking for all of the room costs a few tokens; the
    Responses API has none, and is only asked for the refusal.
    """
    limit = context.planned.max_model_len
    expected = (
        f"a prompt of {limit or 'max_model_len'} tokens refused with 400, and max_tokens of all the room accepted"
    )
    if not limit:
        return Outcome("skipped", expected, NO_LENGTH)
    answers, faults = [], []
    full = exact_content(context, limit)
    for dialect in DIALECTS.values():
        answer = _asked(context, dialect, full, 1)
        if answer.status not in (400, 422):
            answers.append(answer)
            faults.append(f"{dialect.name} with a prompt of {limit} tokens: {answer.status}")
        if dialect.name == "responses":
            continue
        usage = reply_of(dialect, _asked(context, dialect, CONTENT, 1)).usage
        room = limit - (usage.prompt_tokens if usage else 0)
        answer = _asked(context, dialect, CONTENT, room)
        if answer.status != 200 or usage is None:
            answers.append(answer)
            faults.append(f"{dialect.name} with max_tokens {room}: {answer.status}, {answer.text[:120]}")
    return judge(
        not faults,
        expected,
        "; ".join(faults) or "it is so by each API",
        "Another length is in force than was planned, so that clients are refused too early, or cut without a word: "
        "compare with the check served_model, and look for what sits between probe and engine.",
        *answers,
    )


def full_length(context: Context, params: dict[str, Any]) -> Outcome:
    """One token less than the context, and one token of answer: the longest request that there can be."""
    limit = context.planned.max_model_len
    expected = f"a prompt of {limit - 1 if limit else 'max_model_len - 1'} tokens answered with one token"
    if not limit:
        return Outcome("skipped", expected, NO_LENGTH)
    answer = _asked(context, DIALECTS["chat"], exact_content(context, limit - 1), 1)
    usage = reply_of(DIALECTS["chat"], answer).usage
    made = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
    return judge(
        made == (limit - 1, 1),
        expected,
        f"{made[0]} + {made[1]} tokens in {answer.elapsed_ms / 1000:.1f} s",
        "The context is shorter than it says: look at the unit's log for the time of this check (memory of "
        "activations, blocks of the KV cache).",
        answer,
    )


def _asked(context: Context, dialect: Dialect, content: str, max_tokens: int) -> Exchange:
    stop = None if dialect.name == "responses" else " "
    question = Question(content, max_tokens, stop=stop, options={"temperature": 0})
    return context.client.post(dialect.path, dialect.ask(context.model, question))


def exact_content(context: Context, tokens: int) -> str:
    """A question of exactly so many *tokens*, template included, of which nothing was seen before."""
    messages = messages_of_length(CONTENT, secrets.token_hex(8), tokens, lambda asked: count_tokens(context, asked))
    return str(messages[0]["content"])


def count_tokens(context: Context, messages: Messages, **options: Any) -> int:
    """By the server's /tokenize, template included. Errors: AnswerFault where it does not say."""
    body = {"model": context.model, "messages": messages, "add_generation_prompt": True, **options}
    counted = context.client.post("/tokenize", body)
    found = counted.json().get("count") if counted.status == 200 else None
    if not isinstance(found, int):
        raise AnswerFault(f"/tokenize answered {counted.status}; expected a count.", evidence=counted.evidence())
    return found


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
        return count_tokens(context, with_needle(messages, code, depth), **no_thoughts(context))

    if tokens < 1:
        raise ProbeError(f"The planned length leaves {tokens} tokens for the input; ask for larger shares.")
    question = "What is the code word in the text above? Answer with the code word only."
    return with_needle(messages_of_length(question, secrets.token_hex(8), tokens, count), code, depth)
