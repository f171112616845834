# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an instance is as fast as its SLO says, for one user at a time. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.benchmark import Bench, Params, Workload
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome

PROMPT = "Tell a story in which all of these words come up."

_KEY = re.compile(r"(?P<figure>ttft|e2e|tpot|decode|prefill)(?:_(?P<thousands>\d+)k)?_(?P<unit>ms|tok_s)")
_UNITS = {"ttft": "ms", "e2e": "ms", "tpot": "ms", "decode": "tok_s", "prefill": "tok_s"}
"""Figures in ms are to be at most the goal, those in tokens a second at least."""

KEYS = "ttft_ms, ttft_10k_ms, e2e_ms, tpot_ms, decode_tok_s, decode_100k_tok_s, prefill_32k_tok_s and the like"


@dataclass(frozen=True)
class Goal:
    """One line of an SLO. *tokens* of input; None for a short question."""

    key: str
    figure: str
    tokens: int | None
    bound: float

    @property
    def unit(self) -> str:
        return "ms" if _UNITS[self.figure] == "ms" else "tok/s"

    def met(self, value: float) -> bool:
        return value <= self.bound if self.unit == "ms" else value >= self.bound

    def words(self) -> str:
        """As a sentence has it: TTFT at 10,000 tokens of input at most 1000 ms."""
        where = f" at {self.tokens:,} tokens of input" if self.tokens else ""
        name = self.figure.upper() if self.figure in ("ttft", "e2e", "tpot") else self.figure
        return f"{name}{where} {'at most' if self.unit == 'ms' else 'at least'} {self.bound:g} {self.unit}"


def parse_goals(slo: Mapping[str, Any]) -> tuple[list[Goal], list[str]]:
    """The goals, and the keys that are none."""
    goals, unknown = [], []
    for key, bound in slo.items():
        match = _KEY.fullmatch(key)
        if not match or match["unit"] != _UNITS[match["figure"]]:
            unknown.append(key)
            continue
        goals.append(Goal(key, match["figure"], int(match["thousands"]) * 1000 if match["thousands"] else None, bound))
    return goals, unknown


def slo(context: Context, params: dict[str, Any]) -> Outcome:
    """The medians of a few cold requests of each length that a goal names."""
    promised = context.planned.promised
    wanted = promised.slo if promised else {}
    if not wanted:
        return Outcome("skipped", "the figures of the SLO", "no slo is planned for this instance")
    goals, unknown = parse_goals(wanted)
    expected = "; ".join(goal.words() for goal in goals)
    faults = [f"{key} is no figure that can be measured; there are {KEYS}" for key in unknown]
    said: list[str] = []
    figures: dict[str, Any] = {}
    limit, output = context.planned.max_model_len, params["output_tokens"]
    for tokens in sorted({goal.tokens for goal in goals}, key=lambda each: each or 0):
        here = [goal for goal in goals if goal.tokens == tokens]
        if tokens and limit and tokens + output > limit:
            faults.append(f"{', '.join(goal.key for goal in here)} needs {tokens + output} tokens, {limit} are planned")
            continue
        found, fault = _measured(context, tokens, output, params["repeats"])
        if fault:
            faults.append(fault)
            continue
        for goal in here:
            value = found[goal.figure]
            if value is None:
                faults.append(f"{goal.key} could not be measured: the answer came at once")
                continue
            figures[goal.key] = round(value, 2)
            (said if goal.met(value) else faults).append(f"{goal.key} is {value:.4g} {goal.unit}")
    return Outcome(
        "failed" if faults else "passed",
        expected or "the figures of the SLO",
        "; ".join([*faults, *said]),
        "It is right, but slower than was promised: look for other load on the host, GPU clocks (check.yml), another "
        "attention backend in the log, and compare with the records of earlier launches; else correct slo.",
        figures=figures,
    )


def _measured(
    context: Context, tokens: int | None, output: int, repeats: int
) -> tuple[dict[str, float | None], str | None]:
    """Medians by the names of goals, or why there are none."""
    bench = Bench(
        context.client, context.model, report=lambda _phase, done, total, unit: context.report(done, total, unit)
    )
    params = Params(prompt=PROMPT, output_tokens=output, prompt_tokens=tokens, thinking="unset")
    result = bench.run(Workload(f"{tokens or 'short'}", params, repeats=repeats))
    if result["status"] != "passed":
        return {}, f"requests of {tokens or 'few'} tokens failed: {'; '.join(result['faults'][:2])}"
    ttft = result["ttft_p50_ms"]
    return {
        "ttft": ttft,
        "e2e": result["e2e_p50_ms"],
        "tpot": result["tpot_p50_ms"],
        "decode": result["decode_p50_tok_per_s"],
        # All of the prompt is computed before the first token comes.
        "prefill": result["prompt_tokens"] / (ttft / 1000) if ttft else None,
    }, None
