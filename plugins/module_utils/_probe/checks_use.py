# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of correctness under use: many tool calls, caches that must not change answers, and answers after load.

Private to socle.inference.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe.asking import ask, unplanned
from ansible_collections.socle.inference.plugins.module_utils._probe.dialects import AUTO, DIALECTS, Question
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault, EngineFault
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import (
    CHAT,
    Context,
    Outcome,
    answered,
    fitting,
    no_thoughts,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.prompts import WORDS
from ansible_collections.socle.inference.plugins.module_utils._probe.proportions import more_often, wilson
from ansible_collections.socle.inference.plugins.module_utils._probe.server_side import HITS, delta, settled
from ansible_collections.socle.inference.plugins.module_utils._probe.tool_calls import TOOLS, WEATHER, call_faults

CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Quito", "Delhi", "Z\u00fcrich", "Malm\u00f6")

EXAMPLES = 5
"""Of faults, and of evidence for them."""

SURE = 0.05
"""A reference arm is taken as better where the chance of what was seen is below this."""

TIE = 0.7
"""Nats between the two likeliest tokens, below which a kernel's rounding may choose the other one (a factor of two)."""


@dataclass
class _Conversation:
    turns: int = 0
    faults: list[str] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    """Of its turns, the last one first."""


def tool_soak(context: Context, params: dict[str, Any]) -> Outcome:
    """Conversations of two turns over a long prefix that all share: a call, its result, and the answer."""
    expected = f"{params['conversations']} conversations with a tool call each, none of them corrupted"
    reason = unplanned(context, "tools")
    if reason:
        return Outcome("skipped", expected, reason)
    words = fitting(context, params["prefix_words"], 0.25)
    prefix = " ".join(WORDS[place % len(WORDS)] for place in range(words))
    params = {**params, "max_tokens": fitting(context, params["max_tokens"], 0.25)}
    system = f"You answer questions of the weather with the tool. Notes of no importance: {prefix}"
    done: list[_Conversation] = []
    with ThreadPoolExecutor(max_workers=params["at_once"]) as pool:
        for conversation in pool.map(
            lambda number: _converse(context, params, system, number), range(params["conversations"])
        ):
            done.append(conversation)
            context.report(len(done), params["conversations"], "conversations")
    turns = sum(each.turns for each in done)
    wrong = sum(bool(each.faults) for each in done)
    low, high = wilson(wrong, len(done))
    figures: dict[str, Any] = {
        "conversations": len(done),
        "turns": turns,
        "prefix_words": words,
        "corrupted": wrong,
        "rate": wrong / len(done),
        "rate_low": round(low, 5),
        "rate_high": round(high, 5),
    }
    found = f"{wrong} of {len(done)} were ({low:.2%} to {high:.2%} with 95 % confidence)"
    right = wrong <= params["most_corrupted"]
    reference = params["reference"]
    if reference:
        chance = more_often(wrong, len(done), reference["corrupted"], reference["conversations"])
        figures["chance_of_reference"] = round(chance, 4)
        found += f"; the reference arm had {reference['corrupted']} of {reference['conversations']} (p = {chance:.3f})"
        right = right or chance >= SURE
    examples = list(dict.fromkeys(fault for each in done for fault in each.faults))[:EXAMPLES]
    return Outcome(
        "passed" if right else "failed",
        expected,
        "; ".join([found, *examples]),
        "Compare arms: without speculation, without the prefix cache (vLLM issues 43559, 46281), and with the other "
        "parser of the model's family (35615, 40861, 43074); what ends the corruption is its cause.",
        [each.evidence[0] for each in done if each.faults and each.evidence][:EXAMPLES],
        figures,
    )


def _converse(context: Context, params: dict[str, Any], system: str, number: int) -> _Conversation:
    """One conversation; every second one streamed, by each API in turn. An answer that fails is a corrupted one."""
    made = _Conversation()
    city, degrees = CITIES[number % len(CITIES)], f"{10 + number % 17}.{number % 10}5"
    dialect = list(DIALECTS.values())[number % len(DIALECTS)]
    options = {"temperature": 0.0, **no_thoughts(context)}
    question = Question(
        f"[{secrets.token_hex(4)}] What is the temperature in {city}? Use the tool.",
        params["max_tokens"],
        system=system,
        tools=TOOLS,
        choice=AUTO,
        options=options,
    )
    streamed = bool(number % 2)
    try:
        made.turns += 1
        first = ask(context, dialect, question, streamed)
        made.evidence.insert(0, first.evidence)
        made.faults += [f"{city}: {fault}" for fault in first.faults(context, params["max_tokens"])]
        calls = first.reply.calls
        made.faults += [f"{city}: {fault}" for call in calls for fault in call_faults(call, TOOLS)]
        if made.faults:
            return made
        # One that answers without a call is not corrupted, as long as it says something.
        if not calls:
            if not first.reply.text.strip():
                made.faults.append(f"{city}: an empty turn")
            return made
        call = calls[0]
        said = json.loads(call.arguments).get("city", "") if call.name == WEATHER.name else city
        if city.lower() not in said.lower():
            made.faults.append(f"{city}: asked for {said!r}")
            return made
        made.turns += 1
        results = [(each, f"{degrees} degrees in {city}") for each in calls]
        second = ask(context, dialect, replace(question, called=results), streamed)
        made.evidence.insert(0, second.evidence)
        made.faults += [f"{city}: {fault}" for fault in second.faults(context, params["max_tokens"])]
        made.faults += [f"{city}: {fault}" for each in second.reply.calls for fault in call_faults(each, TOOLS)]
        if not second.reply.calls and not second.reply.text.strip():
            made.faults.append(f"{city}: an empty turn after the tool's result")
    except EngineFault as fault:
        made.faults.append(f"{city}: {fault.message}")
        made.evidence.insert(0, fault.fields)
    return made


@dataclass(frozen=True)
class _Greedy:
    """A greedy answer: its tokens, and how far each was ahead of the next likeliest, in nats."""

    tokens: tuple[str, ...]
    lead: tuple[float, ...]
    cached: int | None

    def evidence(self, how: str) -> dict[str, Any]:
        return {"request": {"path": CHAT, "cache": how}, "response": {"excerpt": "".join(self.tokens)[:1000]}}


def _greedy(context: Context, messages: Sequence[Any], max_tokens: int, salt: str | None) -> _Greedy:
    body: dict[str, Any] = {
        "model": context.model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        **no_thoughts(context),
    }
    if salt is not None:
        body["cache_salt"] = salt
    before = _page(context)
    answer = context.client.post(CHAT, body)
    _text, _finish, usage = answered(answer)
    entries = ((answer.json()["choices"][0].get("logprobs") or {}).get("content")) or []
    if not entries:
        raise AnswerFault("The answer has no logprobs, which were asked for.", evidence=answer.evidence())
    tokens, lead = [], []
    for entry in entries:
        top = sorted((each["logprob"] for each in entry.get("top_logprobs") or []), reverse=True)
        tokens.append(str(entry["token"]))
        lead.append(top[0] - top[1] if len(top) > 1 else float("inf"))
    cached = usage.cached_tokens
    if cached is None:
        cached = int(delta(before, settled(lambda: _page(context), before), HITS) or 0)
    return _Greedy(tuple(tokens), tuple(lead), cached)


def _page(context: Context) -> list[exposition.Sample]:
    return exposition.parse(context.client.get("/metrics").text)


def parting(one: _Greedy, other: _Greedy) -> str | None:
    """Where two greedy answers to one prompt part although neither was near a tie; None where they do not.

    Kernels round differently with other batches and chunks, so that near a tie either token is right. After the first
    token that differs the texts are about different things, and tell nothing.
    """
    for place, (left, right) in enumerate(zip(one.tokens, other.tokens)):
        if left != right:
            lead = min(one.lead[place], other.lead[place])
            if lead < TIE:
                return None
            return f"token {place + 1} is {left!r} and {right!r}, {lead:.1f} nats ahead"
    if len(one.tokens) != len(other.tokens):
        return f"one ends after {len(one.tokens)} tokens, the other after {len(other.tokens)}"
    return None


def canary(context: Context, params: dict[str, Any]) -> Outcome:
    """A conversation that grows, each turn from the cache of the one before, against the same turns computed afresh."""
    salt, most = secrets.token_hex(8), fitting(context, params["max_tokens"], 0.1)
    topics = ("a lighthouse", "its keeper", "the storm", "the morning after")
    story = _story(fitting(context, params["prefix_words"], 0.25))
    messages: list[dict[str, str]] = [{"role": "system", "content": story}]
    faults, evidence, warm = [], [], 0
    for number, topic in enumerate(topics[: params["turns"]]):
        messages.append({"role": "user", "content": f"Tell me two sentences about {topic}."})
        grown = _greedy(context, messages, most, salt)
        fresh = _greedy(context, messages, most, secrets.token_hex(8))
        warm += grown.cached or 0
        fault = parting(grown, fresh)
        if fault:
            faults.append(f"turn {number + 1}: {fault}")
            evidence += [grown.evidence(f"warm, turn {number + 1}"), fresh.evidence(f"fresh, turn {number + 1}")]
        messages.append({"role": "assistant", "content": "".join(fresh.tokens)})
        context.report(number + 1, params["turns"], "turns")
    return Outcome(
        "failed" if faults else "passed",
        f"{params['turns']} turns of a conversation equal to the same turns of a fresh cache, near ties aside",
        "; ".join(faults) or f"they are equal, and {warm} prompt tokens came from the cache",
        "Reused state changes answers, which stays so until a restart: turn the prefix cache or speculation off, and "
        "compare (vLLM issues 43559, 46281, 53912).",
        evidence[: 2 * EXAMPLES],
        {"cached_tokens": warm, "turns": params["turns"], "parted": len(faults)},
    )


def _story(words: int) -> str:
    return "You tell short stories. Words to choose from: " + " ".join(
        WORDS[place % len(WORDS)] for place in range(words)
    )


def state(context: Context, params: dict[str, Any]) -> Outcome:
    """The same long prompt cold, warm, and after its blocks were given to others."""
    salt, most = secrets.token_hex(8), fitting(context, params["max_tokens"], 0.1)
    story = _story(fitting(context, params["prefix_words"], 0.5))
    content = f"{story}\nWhich of these words do you like best? Say why in two sentences."
    messages = [{"role": "user", "content": content}]
    expected = "the same answer to a long prompt cold, warm and after eviction, near ties aside"
    cold = _greedy(context, messages, most, salt)
    warm = _greedy(context, messages, most, salt)
    said, faults = [f"{warm.cached} prompt tokens warm"], []
    fault = parting(cold, warm)
    evidence = []
    if fault:
        faults.append(f"warm: {fault}")
        evidence += [cold.evidence("cold"), warm.evidence("warm")]
    capacity = _capacity_tokens(context)
    if not warm.cached:
        said.append("the prefix cache gave nothing, so that warm was cold")
    elif capacity is None or capacity > params["evict_most_tokens"]:
        said.append(f"not evicted: the cache holds {capacity or 'an unknown number of'} tokens")
    else:
        _evict(context, capacity, params)
        evicted = _greedy(context, messages, most, salt)
        said.append(f"{evicted.cached} prompt tokens after eviction")
        fault = parting(cold, evicted)
        if fault:
            faults.append(f"after eviction: {fault}")
            evidence += [cold.evidence("cold"), evicted.evidence("after eviction")]
    return Outcome(
        "failed" if faults else "passed",
        expected,
        "; ".join([*faults, *said]),
        "Reused state changes answers, which stays so until a restart: turn the prefix cache or speculation off, and "
        "compare (vLLM issues 43559, 46281, 53912).",
        evidence,
        {"cached_warm": warm.cached or 0, "parted": len(faults)},
    )


def _capacity_tokens(context: Context) -> int | None:
    """Tokens that the KV cache holds, by vllm:cache_config_info (vLLM 0.24 and newer tell them outright)."""
    for sample in _page(context):
        if sample.name == "vllm:cache_config_info":
            labels = sample.labels
            if labels.get("kv_cache_size_tokens", "").isdecimal():
                return int(labels["kv_cache_size_tokens"])
            numbers = (labels.get("num_gpu_blocks", ""), labels.get("block_size", ""))
            if all(number.isdecimal() for number in numbers):
                return int(numbers[0]) * int(numbers[1])
    return None


def _evict(context: Context, capacity: int, params: dict[str, Any]) -> None:
    """Fill the cache with prompts of others, one after the other."""
    limit = context.planned.max_model_len or 4096
    words = max(int(limit * 0.6), 1)
    rounds = capacity // words + 2
    for number in range(rounds):
        filler = " ".join(WORDS[(place * (number + 7)) % len(WORDS)] for place in range(words))
        answer = context.client.post(
            CHAT,
            {
                "model": context.model,
                "messages": [{"role": "user", "content": f"[{secrets.token_hex(8)}] {filler}"}],
                "max_tokens": 1,
                "temperature": 0,
            },
        )
        # One that is refused evicts nothing.
        answered(answer)
        context.report(number + 1, rounds, "prompts of others")


KNOWN = (
    ("What is 12 times 12?", "144"),
    ("How many days does a leap year have?", "366"),
    ("Which planet is nearest to the Sun?", "mercury"),
    ("What is the chemical symbol of gold?", "au"),
    ("In which country is Kyoto?", "japan"),
    ("What is the square root of 81?", "9"),
    ("How many sides does a hexagon have?", "6|six"),
    ("Which ocean lies between Europe and America?", "atlantic"),
    ("\u6cd5\u56fd\u7684\u9996\u90fd\u662f\u54ea\u91cc\uff1f", "\u5df4\u9ece|paris"),
    ("What is the plural of mouse, the animal?", "mice"),
    ("Which gas do plants take in for photosynthesis?", "carbon dioxide|co2|co\u2082"),
    ("How many minutes are two hours?", "120"),
)
"""Questions that a model of any use answers, and the words of which one must be in the answer, as a pattern."""


def known_answers(context: Context, params: dict[str, Any]) -> Outcome:
    """Before and after a load: what a model knows does not depend on what was asked of it meanwhile."""
    before = _known(context, params)
    total = params["load_requests"]
    with ThreadPoolExecutor(max_workers=params["at_once"]) as pool:
        for number, _done in enumerate(pool.map(lambda _each: _loaded(context, params), range(total)), 1):
            context.report(number, total, "requests of the load")
    after = _known(context, params)
    right = [sum(is_right for is_right, _text in found) for found in (before, after)]
    lost = [place for place in range(len(KNOWN)) if before[place][0] and not after[place][0]]
    failed = right[0] < params["least_right"] * len(KNOWN) or len(lost) > params["most_lost"]
    wrong = [place for place, (is_right, _text) in enumerate(before) if not is_right] + lost
    return Outcome(
        "failed" if failed else "passed",
        f"{params['least_right']:.0%} of {len(KNOWN)} questions answered rightly, and the same after {total} requests",
        f"{right[0]} right before, {right[1]} after"
        + (f"; lost: {', '.join(KNOWN[place][0] for place in lost)}" if lost else ""),
        "Answers that are wrong from the start come from damaged weights, a wrong chat template or quantisation; those "
        "that are lost under load from state that requests share.",
        [
            {"question": KNOWN[place][0], "before": before[place][1], "after": after[place][1]}
            for place in (wrong if failed else [])
        ],
        {"right_before": right[0], "right_after": right[1], "lost": len(lost)},
    )


def _known(context: Context, params: dict[str, Any]) -> list[tuple[bool, str]]:
    """For each question whether it was answered rightly, and the answer."""
    found = []
    for question, words in KNOWN:
        answer = context.client.post(
            CHAT,
            {
                "model": context.model,
                "messages": [{"role": "user", "content": f"{question} Answer in a few words."}],
                "max_tokens": params["max_tokens"],
                "temperature": 0,
                **no_thoughts(context),
            },
        )
        text, _finish, _usage = answered(answer)
        # "au" is not in "because". Chinese has no spaces between words.
        is_right = re.search(rf"(?<![a-z0-9])({words})(?![a-z0-9])", text.lower()) is not None
        found.append((is_right, text.strip()[:200]))
    return found


def _loaded(context: Context, params: dict[str, Any]) -> None:
    """One request of the load; whether it is right is for other checks, but one that is refused is no load."""
    words = " ".join(secrets.choice(WORDS) for _word in range(200))
    answered(
        context.client.post(
            CHAT,
            {
                "model": context.model,
                "messages": [{"role": "user", "content": f"Continue this list of words: {words}"}],
                "max_tokens": params["max_tokens"],
                "temperature": 1,
            },
        )
    )
