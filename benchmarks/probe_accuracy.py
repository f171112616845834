# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far the load client's figures are from what really happened, at 1, 8, 64 and 256 streams of 50 tokens/s.

Usage: python benchmarks/probe_accuracy.py [--streams 1 8 64 256] [--seconds 10] [--stepped]. A server on a script in
a process of its own (tests/simulators/engine/paced.py) writes down when it got each request and when it handed each
chunk to the kernel; both clocks are CLOCK_MONOTONIC. The error of a time to first token is what the client says less
what the server wrote down; it holds two ways through the loopback device. The error of a gap likewise. Targets: p99
within 2 ms up to 64 streams, within 5 ms at 256, and every token counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.socle.inference.plugins.module_utils._probe.load import (  # noqa: E402
    LoadClient,
    LoadReport,
    Order,
    Target,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.measures import percentile  # noqa: E402
from machine import describe_machine  # noqa: E402

from tests.simulators.engine.paced import MODEL, Script, paced  # noqa: E402

TTFT_S, GAP_S = 0.1, 0.02
TARGETS_MS = {256: 5.0}
TARGET_MS = 2.0


def orders(count: int, tokens: int) -> list[Order]:
    """As many requests, all due at once."""
    made = []
    for number in range(count):
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"[{number}] Go on."}],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        made.append(Order(number, json.dumps(body).encode()))
    return made


def schedule_of(address: tuple[str, int]) -> list[dict[str, Any]]:
    """What the server wrote down, and forgets by that."""
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/schedule") as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def errors_ms(report: LoadReport, schedule: list[dict[str, Any]]) -> tuple[list[float], list[float], int]:
    """Of times to first token, of gaps between chunks, and how many tokens are missing or too many."""
    first, gaps, wrong = [], [], 0
    # Both in the order in which the requests went out.
    sent = sorted(report.deliveries, key=lambda delivery: delivery.sent_ns)
    for delivery, truth in zip(sent, sorted(schedule, key=lambda each: each["received_ns"]), strict=True):
        trace = delivery.trace
        if trace is None:
            sys.exit(f"A request failed: {delivery.fault}")
        stamps, really = trace.marks.at_ns, truth["sent_ns"]
        wrong += abs(trace.marks[-1].tokens - sum(truth["tokens"])) + abs(len(stamps) - len(really))
        first.append((stamps[0] - delivery.sent_ns - (really[0] - truth["received_ns"])) / 1e6)
        for place in range(1, min(len(stamps), len(really))):
            ours, theirs = stamps[place] - stamps[place - 1], really[place] - really[place - 1]
            gaps.append((ours - theirs) / 1e6)
    return first, gaps, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--gap-ms", type=float, default=GAP_S * 1000)
    parser.add_argument("--stepped", action="store_true", help="chunks of all streams leave at the same moments")
    asked = parser.parse_args()
    print(
        f"{'streams':>7}{'chunks':>9}{'TTFT p50 ms':>13}{'p99':>7}{'ITL p99 ms':>12}{'max':>7}{'tokens':>9}"
        f"{'lag p99 ms':>12}{'shared':>8}{'us/chunk':>10}{'target':>8}"
    )
    gap = asked.gap_ms / 1000
    for streams in asked.streams:
        tokens = max(round(asked.seconds / gap), 2)
        with paced(Script(TTFT_S, gap, stepped=asked.stepped)) as address:
            client = LoadClient(
                Target(address, "/v1/chat/completions", (("Content-Type", "application/json"),)), streams
            )
            report = client.run(orders(streams, tokens))
            first, gaps, wrong = errors_ms(report, schedule_of(address))
        chunks = sum(len(delivery.trace.marks) for delivery in report.deliveries if delivery.trace)
        shared = sum(delivery.shared for delivery in report.deliveries)
        ttft_p99, gap_p99 = (percentile([abs(each) for each in found], 0.99) for found in (first, gaps))
        target = TARGETS_MS.get(streams, TARGET_MS)
        met = "met" if max(ttft_p99, gap_p99) <= target and not wrong else "missed"
        print(
            f"{streams:>7}{chunks:>9}{percentile(first, 0.5):>13.3f}{ttft_p99:>7.3f}{gap_p99:>12.3f}"
            f"{max(map(abs, gaps)):>7.2f}{'exact' if not wrong else f'{wrong} off':>9}"
            f"{percentile(report.lags_ns, 0.99) / 1e6:>12.3f}{shared:>8}{report.cpu_ns / 1000 / chunks:>10.1f}{met:>8}",
            flush=True,
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory of the client and this benchmark at its most: {most:.0f} MiB")
    print(describe_machine(1))


if __name__ == "__main__":
    main()
