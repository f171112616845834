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


def unique_messages(text: str, nonce: str, words: int = 0) -> Messages:
    """One user message that begins with *nonce* (so that no prefix is shared), then filler words, then *text*."""
    choose = random.Random(nonce)
    filler = " ".join(choose.choice(WORDS) for _ in range(words))
    return [{"role": "user", "content": "\n".join(part for part in (f"[{nonce}]", filler, text) if part)}]


def messages_of_length(text: str, nonce: str, tokens: int, count: Callable[[Messages], int]) -> Messages:
    """Messages that *count* (the server's /tokenize) finds to be exactly *tokens* long, template included."""
    words = 0
    counts: list[int] = []
    for _attempt in range(ATTEMPTS):
        messages = unique_messages(text, nonce, words)
        found = count(messages)
        counts.append(found)
        if found == tokens:
            return messages
        if words == 0 and found > tokens:
            raise ProbeError(
                f"A prompt of {tokens} tokens was asked for, but question and template alone take {found}.",
                prompt_tokens_min=found,
            )
        words = max(words + tokens - found, 0)
    raise ProbeError(
        f"No prompt of exactly {tokens} tokens was found in {ATTEMPTS} attempts; the counts were {counts}. "
        "Ask for a slightly different length.",
        counts=counts,
    )
