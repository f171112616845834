# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a load of many requests says about an engine, and about the client. Private to socle.inference."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe import measures
from ansible_collections.socle.inference.plugins.module_utils._probe.load import Delivery, LoadReport
from ansible_collections.socle.inference.plugins.module_utils._probe.shards import kept_up
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Trace

SLO = ("ttft_ms", "tpot_ms", "e2e_ms")
"""What a request is held against. A request that has no such figure (TPOT of one token) meets it."""

SHOWN_FAULTS = 5


def due_times_ns(requests: int, rate_per_s: float | None, seed: int) -> list[int]:
    """When requests are due after the load began: Poisson arrivals (exponential gaps) of that rate, or all at once."""
    if rate_per_s is None:
        return [0] * requests
    chance = random.Random(seed)
    at, times = 0.0, []
    for _number in range(requests):
        times.append(round(at * 1e9))
        at += chance.expovariate(rate_per_s)
    return times


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """n, min, p50, p90, p99 and max of one figure over the requests, or the tokens, of a load."""
    present = [value for value in values if value is not None]
    if not present:
        return {"n": 0, "min": None, "p50": None, "p90": None, "p99": None, "max": None}
    return {
        "n": len(present),
        "min": round(min(present), 3),
        **{f"p{share}": round(measures.percentile(present, share / 100), 3) for share in (50, 90, 99)},
        "max": round(max(present), 3),
    }


def meets(trace: Trace, slo: Mapping[str, float]) -> bool:
    """Whether a request was as good as was promised."""
    found = {
        "ttft_ms": measures.ms(measures.ttft_ns(trace)),
        "tpot_ms": measures.ms(measures.tpot_ns(trace)),
        "e2e_ms": measures.ms(measures.e2e_ns(trace)),
    }
    return all(found[name] is None or (found[name] or 0) <= most for name, most in slo.items())


def load_measures(reports: Sequence[LoadReport], slo: Mapping[str, float]) -> dict[str, Any]:
    """One load as plain numbers, units in the names. Requests that failed are in no figure.

    The time of the load runs from its first request to the last token of any. `output_tok_per_s` and the others over
    time are of all of that: beginning and end, in which fewer requests run, are in it.
    """
    deliveries = [delivery for report in reports for delivery in report.deliveries]
    traces = [delivery.trace for delivery in deliveries if delivery.trace is not None]
    run: dict[str, Any] = {"requests": len(deliveries), "answered": len(traces)}
    if not traces:
        return {**run, "client": client_figures(reports, deliveries)}
    first = min(trace.sent_ns for trace in traces)
    seconds = (max(trace.marks.at_ns[-1] for trace in traces) - first) / 1e9
    gaps = [measures.token_gaps_ns(trace) for trace in traces]
    tokens = sum(measures.completion_tokens(trace) for trace in traces)
    ends = [measures.e2e_ns(trace) for trace in traces]
    figures = {
        "ttft": spread([measures.ms(measures.ttft_ns(trace)) for trace in traces]),
        "tpot": spread([measures.ms(measures.tpot_ns(trace)) for trace in traces]),
        "e2e": spread([measures.ms(end) for end in ends]),
        "itl": spread([gap / 1e6 for found in gaps if found for gap in found]) if None not in gaps else spread([]),
    }
    run.update({f"{name}_spread_ms": figure for name, figure in figures.items()})
    run.update({f"{name}_ms": figure["p50"] for name, figure in figures.items()})
    run.update({f"{name}_p99_ms": figure["p99"] for name, figure in figures.items()})
    near_zero = [share for share in map(measures.near_zero_gap_share, traces) if share is not None]
    run.update(
        duration_s=round(seconds, 3),
        output_tok_per_s=_rate(tokens, seconds),
        input_tok_per_s=_rate(sum(trace.usage.prompt_tokens for trace in traces if trace.usage), seconds),
        request_per_s=_rate(len(traces), seconds),
        goodput_per_s=_rate(sum(meets(trace, slo) for trace in traces), seconds) if slo else None,
        in_flight_mean=round(sum(ends) / 1e9 / seconds, 2) if seconds else None,
        in_flight_max=most_at_once(traces),
        near_zero_gap_share=round(sum(near_zero) / len(near_zero), 3) if near_zero else None,
        prompt_tokens=_largest(trace.usage.prompt_tokens for trace in traces if trace.usage),
        completion_tokens=_largest(map(measures.completion_tokens, traces)),
        system_fingerprint=traces[0].fingerprint,
        client=client_figures(reports, deliveries),
    )
    return run


def client_figures(reports: Sequence[LoadReport], deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """How well the client kept up, so that nobody takes its own limits for the engine's."""
    reads = sum(report.reads for report in reports)
    lags = [lag / 1e6 for report in reports for lag in report.lags_ns]
    late = [(delivery.sent_ns - delivery.due_ns) / 1e6 for delivery in deliveries if delivery.sent_ns]
    marks = sum(len(delivery.trace.marks) for delivery in deliveries if delivery.trace)
    return {
        "processes": len(reports),
        "kept_up": kept_up(reports),
        "cpu_share_max": round(max(report.cpu_ns / max(report.ended_ns - report.began_ns, 1) for report in reports), 3),
        "us_per_chunk": round(sum(report.cpu_ns for report in reports) / 1000 / marks, 1) if marks else None,
        "kernel_stamp_share": round(sum(report.stamped for report in reports) / reads, 3) if reads else None,
        "shared_stamp_share": round(sum(delivery.shared for delivery in deliveries) / marks, 4) if marks else None,
        "read_lag_p99_ms": round(measures.percentile(lags, 0.99), 3) if lags else None,
        "send_late_p99_ms": round(measures.percentile(late, 0.99), 3) if late else None,
    }


def most_at_once(traces: Sequence[Trace]) -> int:
    """The most requests that were under way at one moment, as the client saw it."""
    steps = [(trace.sent_ns, 1) for trace in traces] + [(trace.marks.at_ns[-1], -1) for trace in traces]
    running = most = 0
    for _at, step in sorted(steps):
        running += step
        most = max(most, running)
    return most


def summed_faults(faults: Iterable[str]) -> list[str]:
    """Each fault once, with how many requests had it; the most frequent first, and no more than can be read."""
    counts: dict[str, int] = {}
    for fault in faults:
        counts[fault] = counts.get(fault, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    shown = [f"{fault} ({count} requests)" if count > 1 else fault for fault, count in ordered[:SHOWN_FAULTS]]
    rest = len(ordered) - len(shown)
    return [*shown, f"{rest} other faults"] if rest else shown


def _rate(amount: float, seconds: float) -> float | None:
    return round(amount / seconds, 3) if seconds > 0 else None


def _largest(counts: Iterable[int]) -> int | None:
    return max(counts, default=None)
