# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine itself says of a run: its counters before and after, and samples during it.

Private to socle.inference. All counters are of the whole engine, so that requests of others are in them, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import EngineFault, ProbeError

Page = list[exposition.Sample]

HITS = "vllm:prefix_cache_hits_total"
FINISHED = "vllm:request_success_total"
IN_FLIGHT = ("vllm:num_requests_running", "vllm:num_requests_waiting")
HISTOGRAMS = {
    "ttft_mean_ms": "vllm:time_to_first_token_seconds",
    "e2e_mean_ms": "vllm:e2e_request_latency_seconds",
    "itl_mean_ms": "vllm:inter_token_latency_seconds",
}
QUERIES = "vllm:prefix_cache_queries_total"
SPECULATED = "vllm:spec_decode_num_"
ACCEPTED_AT = SPECULATED + "accepted_tokens_per_pos_total"
GAUGES = {
    "running_max": "vllm:num_requests_running",
    "waiting_max": "vllm:num_requests_waiting",
    "kv_cache_use_max": "vllm:kv_cache_usage_perc",
}

SETTLE_S = 2.0
"""The engine updates its metrics a moment after the last byte."""

WATCH_S = 1.0
"""Between two looks at the gauges: the page has hundreds of lines, and the client has other things to do."""


def delta(before: list[exposition.Sample] | None, after: list[exposition.Sample] | None, name: str) -> float | None:
    """How far a counter rose; None when it is absent. A label set that is new began at 0."""
    end = exposition.total(after or (), name)
    if end is None or before is None:
        return None
    return end - (exposition.total(before, name) or 0.0)


def settled(
    look: Callable[[], Page | None],
    before: Page | None,
    requests: int = 1,
    sleep: Callable[[float], None] = time.sleep,
) -> Page | None:
    """The metrics once they count the requests that just ended, or the latest ones when they never do."""
    after = look()
    for _attempt in range(int(SETTLE_S / 0.05)):
        ended = delta(before, after, FINISHED)
        if ended is None or ended >= requests:
            break
        sleep(0.05)
        after = look()
    return after


def cached_tokens(
    before: list[exposition.Sample] | None, after: list[exposition.Sample] | None, requests: int = 1
) -> int | None:
    """Prompt tokens of our requests that came from the prefix cache, by a counter of the whole engine.

    None when the engine does not say, and when others ran meanwhile: a hit may be theirs. No hit at all is nobody's.
    """
    hits = delta(before, after, HITS)
    if hits is None or (hits and others_ran(before, after, requests)):
        return None
    return round(hits)


def other_requests(
    before: list[exposition.Sample] | None, after: list[exposition.Sample] | None, requests: int = 1
) -> int | None:
    """Requests of others that ended meanwhile: they blur every figure taken from the metrics."""
    ended = delta(before, after, FINISHED)
    return None if ended is None else max(round(ended) - requests, 0)


def others_ran(
    before: list[exposition.Sample] | None, after: list[exposition.Sample] | None, requests: int = 1
) -> bool:
    """Whether requests of others ended meanwhile, or were in flight before or after ours."""
    in_flight = (exposition.total(samples or (), name) for samples in (before, after) for name in IN_FLIGHT)
    return bool(other_requests(before, after, requests)) or any(in_flight)


def server_means(
    before: list[exposition.Sample] | None, after: list[exposition.Sample] | None, requests: int
) -> dict[str, Any] | None:
    """The same figures by the engine's own histograms, over all counted runs; None when it has none."""
    ended = delta(before, after, HISTOGRAMS["e2e_mean_ms"] + "_count")
    if not ended:
        return None
    means: dict[str, Any] = {"requests": round(ended), "only_ours": round(ended) == requests}
    for key, name in HISTOGRAMS.items():
        seconds, count = delta(before, after, name + "_sum"), delta(before, after, name + "_count")
        means[key] = round(seconds * 1000 / count, 3) if seconds is not None and count else None
    return means


def speculation(before: Page | None, after: Page | None) -> dict[str, Any] | None:
    """What became of guessed tokens; None where the engine does not speculate.

    acceptance_rate is accepted / guessed tokens. mean_accepted_length is tokens for each pass of the model, the one
    that a pass makes anyway included: 1 + accepted / drafts.
    """
    counts = {
        name: delta(before, after, f"{SPECULATED}{name}_total")
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    }
    drafts, guessed, accepted = counts["drafts"], counts["draft_tokens"], counts["accepted_tokens"]
    if not drafts or not guessed or accepted is None:
        return None
    positions = {sample.labels.get("position", "") for sample in after or () if sample.name == ACCEPTED_AT}
    by_position = {
        int(position): (_at(after, position) - _at(before, position)) / drafts
        for position in positions
        if position.isdecimal()
    }
    return {
        "drafts": round(drafts),
        "draft_tokens": round(guessed),
        "accepted_tokens": round(accepted),
        "acceptance_rate": round(accepted / guessed, 4),
        "mean_accepted_length": round(1 + accepted / drafts, 3),
        "acceptance_by_position": [round(by_position[position], 4) for position in sorted(by_position)],
    }


def _at(page: Page | None, position: str) -> float:
    return sum(
        sample.value
        for sample in page or ()
        if sample.name == ACCEPTED_AT and sample.labels.get("position") == position
    )


def hit_rate(before: Page | None, after: Page | None) -> float | None:
    """The share of prompt tokens that the prefix cache had; None where it was not asked."""
    asked, hits = delta(before, after, QUERIES), delta(before, after, HITS)
    return round(hits / asked, 4) if asked and hits is not None else None


class Watch:
    """A context manager: the largest values of the gauges while its block runs. *look* reads the page."""

    def __init__(self, look: Callable[[], Page | None]) -> None:
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.found: dict[str, float] = {}
        self.looks = 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(WATCH_S):
            try:
                page = self._look()
            except (EngineFault, ProbeError):
                # The requests themselves tell what is wrong.
                continue
            self.looks += 1
            for key, name in GAUGES.items():
                value = exposition.total(page or (), name)
                if value is not None:
                    self.found[key] = max(self.found.get(key, 0.0), value)

    def figures(self) -> dict[str, Any]:
        """Largest values by their names; none for a run that was over before the first look."""
        return {**{key: round(value, 4) for key, value in self.found.items()}, "looks": self.looks}
