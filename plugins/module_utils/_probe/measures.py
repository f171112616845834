# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a trace says about speed, and how several of them are summed up. Private to socle.inference.

Definitions (those of vLLM's vllm/benchmarks/lib/endpoint_request_func.py and serve.py, without their known flaws):

  TTFT    t_first_token - t_sent. The chunk that only names the role does not count.
  E2E     t_last_token - t_sent. The chunk that only carries the usage does not count.
  TPOT    (E2E - TTFT) / (completion_tokens - 1)
  decode  (completion_tokens - tokens_in_first_chunk) / (t_last_token - t_first_token). The first chunk holds one token
          unless the server's running count says more (speculative decoding), so this is 1 / TPOT in the plain case.
  prefill prompt_tokens / TTFT. Of a prompt that is partly cached it tells nothing.
  ITL     per token: the gap between two chunks divided by the tokens that the later one brought; needs the running
          count. Gaps between chunks go under a name of their own: under speculation they are longer by a factor of 3.

Tokens are the server's usage, never counted from chunks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Trace

NEAR_ZERO_NS = 200_000
"""A gap below this says that chunks were merged on their way, not that the engine was that fast."""


def ttft_ns(trace: Trace) -> int:
    return trace.marks.at_ns[0] - trace.sent_ns


def e2e_ns(trace: Trace) -> int:
    return trace.marks.at_ns[-1] - trace.sent_ns


def completion_tokens(trace: Trace) -> int:
    return trace.usage.completion_tokens if trace.usage else 0


def tpot_ns(trace: Trace) -> float | None:
    """None for an answer of one token: there is nothing between tokens."""
    tokens = completion_tokens(trace)
    return (e2e_ns(trace) - ttft_ns(trace)) / (tokens - 1) if tokens > 1 else None


def decode_tok_per_s(trace: Trace) -> float | None:
    """None when everything arrived at once: a rate over no time is no rate."""
    elapsed = trace.marks.at_ns[-1] - trace.marks.at_ns[0]
    tokens = completion_tokens(trace) - (trace.marks[0].tokens or 1)
    return tokens * 1e9 / elapsed if elapsed > 0 and tokens > 0 else None


def chunk_gaps_ns(trace: Trace) -> list[int]:
    at_ns = trace.marks.at_ns
    return [later - earlier for earlier, later in zip(at_ns, at_ns[1:])]


def token_gaps_ns(trace: Trace) -> list[float] | None:
    """One gap for each token after the first chunk's; None without the server's running count."""
    counts = trace.marks.counts()
    if counts is None:
        return None
    gaps: list[float] = []
    for gap, earlier, later in zip(chunk_gaps_ns(trace), counts, counts[1:]):
        brought = later - earlier
        if brought > 0:
            gaps.extend([gap / brought] * brought)
    return gaps


def near_zero_gap_share(trace: Trace) -> float | None:
    gaps = chunk_gaps_ns(trace)
    return sum(gap < NEAR_ZERO_NS for gap in gaps) / len(gaps) if gaps else None


def percentile(values: Sequence[float], share: float) -> float:
    """By linear interpolation between the closest ranks, as numpy's default and vLLM's figures."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summary(values: Sequence[float | None], digits: int = 3) -> dict[str, Any]:
    """n, min, p50, p90, p95, p99, max, spread_pct = (max - min) / p50, noise_pct. Missing values do not count."""
    present = [value for value in values if value is not None]
    shares = {f"p{share}": share / 100 for share in (50, 90, 95, 99)}
    if not present:
        return {"n": 0, **dict.fromkeys(("min", *shares, "max", "spread_pct", "noise_pct"))}
    middle = percentile(present, 0.5)
    return {
        "n": len(present),
        "min": round(min(present), digits),
        **{name: round(percentile(present, share), digits) for name, share in shares.items()},
        "max": round(max(present), digits),
        "spread_pct": round((max(present) - min(present)) / middle * 100, 1) if middle else None,
        "noise_pct": noise_pct(present),
    }


def noise_pct(values: Sequence[float]) -> float | None:
    """The noise floor: what the medians of two such series differ by, in percent, in 1 of 20 cases by chance alone.

    1.96 x sqrt(2) x the standard error of a median, which is 1.2533 (sqrt(pi / 2)) times that of the mean where runs
    scatter normally. None for fewer than three values. For few values it is rather too small.
    """
    middle = percentile(values, 0.5)
    if len(values) < 3 or not middle:
        return None
    error = math.sqrt(math.pi / 2) * statistics.stdev(values) / math.sqrt(len(values))
    return round(1.96 * math.sqrt(2) * error / abs(middle) * 100, 1)


def ms(nanoseconds: float | None, digits: int = 3) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / 1e6, digits)


def run_measures(trace: Trace) -> dict[str, Any]:
    """One run as plain numbers, units in the names."""
    token_gaps = token_gaps_ns(trace)
    decode = decode_tok_per_s(trace)
    share = near_zero_gap_share(trace)
    chunk_gaps = chunk_gaps_ns(trace)
    return {
        "ttft_ms": ms(ttft_ns(trace)),
        "e2e_ms": ms(e2e_ns(trace)),
        "tpot_ms": ms(tpot_ns(trace)),
        "itl_p50_ms": ms(percentile(token_gaps, 0.5)) if token_gaps else None,
        "itl_p95_ms": ms(percentile(token_gaps, 0.95)) if token_gaps else None,
        "chunk_gap_p50_ms": ms(percentile(chunk_gaps, 0.5)) if chunk_gaps else None,
        "decode_tok_per_s": None if decode is None else round(decode, 3),
        "prefill_tok_per_s": round(trace.usage.prompt_tokens * 1e9 / ttft_ns(trace), 1) if trace.usage else None,
        "prompt_tokens": trace.usage.prompt_tokens if trace.usage else None,
        "completion_tokens": trace.usage.completion_tokens if trace.usage else None,
        "token_chunks": len(trace.marks),
        "near_zero_gap_share": None if share is None else round(share, 3),
    }
