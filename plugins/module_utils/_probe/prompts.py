# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prompts of an exact length, never seen before. Private to socle.inference."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError

# Common English words: one token each in the vocabularies of today's models, which lets the search below end quickly.
_TEXT = """
    time year people way day man thing woman life child world school state family student group country problem
    hand part place case week company system program question work government number night point home water room
    mother area money story fact month lot right study book eye job word business issue side kind head house
    service friend father power hour game line end member law car city community name president team minute idea
    body information
"""
WORDS = _TEXT.split()

FILLERS = (" a", " 1", "!", "\n", " x", ".")
"""What closes the last gap: in most vocabularies one of these is one token more each time it is repeated."""

NEAR = 8
"""Tokens that fillers have to close; beyond it another number of words is tried first."""

ATTEMPTS = 24

Messages = list[dict[str, Any]]


def unique_messages(text: str, nonce: str, words: int = 0, tail: str = "") -> Messages:
    """One user message: *nonce* first (so that no prefix is shared), so many filler words and *tail*, *text*."""
    choose = random.Random(nonce)
    filler = " ".join(choose.choice(WORDS) for _word in range(words)) + tail
    return [{"role": "user", "content": "\n".join(part for part in (f"[{nonce}]", filler, text) if part)}]


def messages_of_length(text: str, nonce: str, tokens: int, count: Callable[[Messages], int]) -> Messages:
    """Messages that *count* (the server's /tokenize) finds to be exactly *tokens* long, template included.

    As many words as are not too long, whatever each takes, and then fillers of one token.
    """
    counts: list[int] = []

    def counted(words: int, tail: str = "") -> tuple[Messages, int]:
        messages = unique_messages(text, nonce, words, tail)
        counts.append(count(messages))
        return messages, counts[-1]

    messages, base = counted(0)
    if base == tokens:
        return messages
    if base > tokens:
        raise ProbeError(
            f"A prompt of {tokens} tokens was asked for, but question and template alone take {base}.",
            prompt_tokens_min=base,
        )
    short, length = 0, base
    """The most words so far that are not too long, and what they take."""
    long: int | None = None
    per_word = 1.0
    while len(counts) < ATTEMPTS:
        left = tokens - length
        if left <= NEAR or long == short + 1:
            found = _filled(counted, short, length, tokens, ATTEMPTS - len(counts))
            if found is not None:
                return found
            # Fewer words leave another gap, which another filler may close.
            if short == 0:
                break
            long, short = short, short - 1
            _messages, length = counted(short)
            if length == tokens:
                return _messages
            continue
        words = short + max(int(left / per_word), 1)
        if long is not None:
            words = min(words, long - 1)
        messages, found_length = counted(words)
        if found_length == tokens:
            return messages
        per_word = max((found_length - base) / words, 0.5)
        if found_length < tokens:
            short, length = words, found_length
        else:
            long = words
    raise ProbeError(
        f"No prompt of exactly {tokens} tokens was found in {len(counts)} attempts; the counts were {counts}. "
        "Ask for a slightly different length.",
        counts=counts,
    )


def with_needle(messages: Messages, code: str, depth: float) -> Messages:
    """*messages* of unique_messages with a sentence that names *code*, at *depth* (0 to 1) of the filler's words."""
    head, _end, rest = messages[0]["content"].partition("\n")
    filler, newline, question = rest.rpartition("\n")
    words = filler.split(" ")
    place = round(len(words) * depth)
    text = " ".join([*words[:place], f"The code word is {code}.", *words[place:]])
    return [{"role": "user", "content": f"{head}\n{text}{newline}{question}"}]


def _filled(
    counted: Callable[[int, str], tuple[Messages, int]], words: int, length: int, tokens: int, attempts: int
) -> Messages | None:
    """The words with fillers that make up what is missing; None where no filler does."""
    left = tokens - length
    for filler in FILLERS[: max(attempts, 0)]:
        messages, found = counted(words, filler * left)
        if found == tokens:
            return messages
        each, rest = divmod(found - length, left)
        # A filler of two tokens closes an even gap.
        if each > 1 and not rest and not left % each:
            messages, found = counted(words, filler * (left // each))
            if found == tokens:
                return messages
    return None
