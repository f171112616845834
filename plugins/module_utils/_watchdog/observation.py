# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at an engine, and what its counters say. Pure; private to socle.inference.

Which metrics tell of progress, by vLLM 0.19.1 to 0.33.0: token counters move when a step made tokens, or when a prompt
was read to its end. While a long prompt is read they stand still; what moves then, with every chunk, is what the
scheduler reports of itself (share of the KV cache in use, requests that run). Both come from the engine's core and stop
with it. Counts of finished requests do not prove anything: the API server counts requests that were aborted by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition

COUNTERS = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:iteration_tokens_total_sum",
)
"""Tokens that came out, or went in."""

SCHEDULER = (
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions_total",
)
"""What every step of the scheduler may change."""

SERVED = "vllm:generation_tokens_total"

ON, OFF, SILENT = "on", "off", "silent"
"""Whether /metrics shows the scheduler; "off" is a page without it, "silent" is no page."""

ACTIVE, STARTING, STOPPED = "active", "starting", "stopped"


@dataclass(frozen=True)
class Metrics:
    """What /metrics said."""

    visible: str = SILENT
    counters: Mapping[str, float] | None = None
    scheduler: Mapping[str, float] | None = None
    asleep: bool | None = None
    """None where the page does not say."""

    @property
    def running(self) -> int | None:
        return _count(self.scheduler, "vllm:num_requests_running")

    @property
    def waiting(self) -> int | None:
        return _count(self.scheduler, "vllm:num_requests_waiting")


class Canary(NamedTuple):
    """The canary token: since when one is waited for, when the last one came, and what was answered instead."""

    waiting_since: float | None = None
    answered_at: float | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Observation:
    """All that is known of an engine at one moment. Times are seconds of the monotonic clock."""

    at: float
    unit: str = ACTIVE
    run: str = ""
    """systemd's invocation of the unit."""
    run_age_s: float = 1e9
    first_start: bool = False
    """Whether somebody started this run; systemd started it again where not."""
    healthy: bool | None = True
    """What /health said; None without an answer."""
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    asleep: bool = False
    canary: Canary = dataclasses.field(default_factory=Canary)


def read_metrics(page: str | None) -> Metrics:
    """What a page of /metrics says; None is no answer."""
    if page is None:
        return Metrics()
    samples = exposition.parse(page)

    def values(names: tuple[str, ...]) -> dict[str, float]:
        found = {name: exposition.total(samples, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    counters, scheduler = values(COUNTERS), values(SCHEDULER)
    awake = [
        sample.value
        for sample in samples
        if sample.name == "vllm:engine_sleep_state" and sample.labels.get("sleep_state") == "awake"
    ]
    return Metrics(
        visible=ON if counters and scheduler else OFF,
        counters=counters,
        scheduler=scheduler,
        asleep=not any(awake) if awake else None,
    )


def _count(values: Mapping[str, float] | None, name: str) -> int | None:
    value = (values or {}).get(name)
    return None if value is None else int(value)
