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

ATTEMPTS = 16

Messages = list[dict[str, Any]]


def unique_messages(text: str, nonce: str, words: int = 0, choice: int = 0) -> Messages:
    """One user message: *nonce* first (so that no prefix is shared), filler words of the *choice*-th kind, *text*."""
    choose = random.Random(f"{nonce} {choice}")
    filler = " ".join(choose.choice(WORDS) for _word in range(words))
    return [{"role": "user", "content": "\n".join(part for part in (f"[{nonce}]", filler, text) if part)}]


def messages_of_length(text: str, nonce: str, tokens: int, count: Callable[[Messages], int]) -> Messages:
    """Messages that *count* (the server's /tokenize) finds to be exactly *tokens* long, template included."""
    messages = unique_messages(text, nonce)
    base = found = count(messages)
    counts = [base]
    if found == tokens:
        return messages
    if found > tokens:
        raise ProbeError(
            f"A prompt of {tokens} tokens was asked for, but question and template alone take {found}.",
            prompt_tokens_min=found,
        )
    words, per_word, tried = 0, 1.0, {0}
    for attempt in range(ATTEMPTS):
        step = round((tokens - found) / per_word) or (1 if tokens > found else -1)
        words = max(words + step, 1)
        # Where one word more is too much and one less too little, other words are tried.
        messages = unique_messages(text, nonce, words, choice=attempt if words in tried else 0)
        tried.add(words)
        found = count(messages)
        counts.append(found)
        if found == tokens:
            return messages
        per_word = max((found - base) / words, 0.5)
    raise ProbeError(
        f"No prompt of exactly {tokens} tokens was found in {ATTEMPTS} attempts; the counts were {counts}. "
        "Ask for a slightly different length.",
        counts=counts,
    )
