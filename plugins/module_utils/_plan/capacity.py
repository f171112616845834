# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch will hold: KV cache in tokens, requests at full length, contexts that stay cached, and what is left.

Given the bytes of KV cache everything here is exact, to the token that vLLM logs; the bytes themselves are an estimate
until one start of the host class was measured. Pure. Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.calibration import Calibration
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity_findings import (
    division_findings,
    layout_findings,
    memory_findings,
    uncounted_finding,
    unknown_finding,
    weights_finding,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import Gpu, Memory, divide
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_layout import (
    TOKENS_BY_CONCURRENCY_SINCE,
    KvLayout,
    Unknown,
    kv_layout,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_pool import KvPool
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import (
    GIB,
    UNCOUNTED_WITH_EXPERTS,
    UNCOUNTED_WITH_STATES,
    Launch,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import TensorGroup
from ansible_collections.socle.inference.plugins.module_utils._plan.weights import as_loaded, weights_per_gpu

ONE_LINE_SINCE = (0, 28)
"""From here on the log tells tokens and concurrency in one line, and names the kind of device."""


@dataclass(frozen=True)
class Capacity:
    """The figures of one launch; None where they cannot be told. GiB are per GPU."""

    weights_gib_per_gpu: float | None = None
    weights_source: str | None = None
    """How they are known, see weights.Weights."""
    kv_gib_per_gpu: float | None = None
    kv_tokens: int | None = None
    """Tokens that requests of max_model_len have in the cache together, whatever the version's log calls so."""
    concurrency_at_full_length: float | None = None
    headroom_gib: float | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    requests_with_states: int | None = None
    """Requests whose recurrent states fit side by side; None without recurrent layers."""
    prefill_chunk_tokens: int | None = None
    """Tokens of a prefill step, after rounding to whole blocks."""
    smallest_cacheable_prefix_tokens: int | None = None
    contexts_with_checkpoints: int | None = None
    """Finished contexts of max_model_len that stay cached and can be continued."""
    longest_context_tokens: int | None = None
    """The longest request that the cache holds alone."""
    log_lines: tuple[str, ...] = ()
    """What this version's log will say of it."""
    log_kv_tokens: int | None = None
    calibrated: bool = False
    uncertainty_gib: float | None = None
    findings: tuple[Finding, ...] = ()
    layout: KvLayout | None = field(default=None, repr=False)
    memory: Memory | None = field(default=None, repr=False)

    def as_plan(self) -> dict[str, Any]:
        """The key ``capacity`` of a plan."""
        return {
            "weights_gib_per_gpu": _rounded(self.weights_gib_per_gpu),
            "weights_source": self.weights_source,
            "kv_gib_per_gpu": _rounded(self.kv_gib_per_gpu),
            "kv_tokens": self.kv_tokens,
            "concurrency_at_full_length": _rounded(self.concurrency_at_full_length),
            "headroom_gib": _rounded(self.headroom_gib),
            "blocks": self.blocks,
            "block_tokens": self.block_tokens,
            "requests_with_states": self.requests_with_states,
            "prefill_chunk_tokens": self.prefill_chunk_tokens,
            "smallest_cacheable_prefix_tokens": self.smallest_cacheable_prefix_tokens,
            "contexts_with_checkpoints": self.contexts_with_checkpoints,
            "longest_context_tokens": self.longest_context_tokens,
            "log_kv_tokens": self.log_kv_tokens,
            "calibrated": self.calibrated,
            "uncertainty_gib": _rounded(self.uncertainty_gib),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def plan_capacity(
    architecture: Architecture | None,
    launch: Launch,
    gpu: Gpu | None,
    calibration: Calibration | None = None,
    groups: Sequence[TensorGroup] = (),
) -> Capacity:
    """What *launch* will hold on each *gpu* (None: a processor), as far as the facts of the model allow.

    *groups* are the tensors of the checkpoint by its safetensors headers, when it is at hand. A calibration that says
    nothing about this launch is not used.
    """
    if architecture is not None:
        architecture = as_loaded(architecture, launch)
    if architecture is None:
        reason = "the model file lacks layers, kv_heads, head_dim or what its linear attention needs"
        return Capacity(findings=(unknown_finding(reason),))
    findings = division_findings(architecture, launch)
    if findings:
        return Capacity(findings=tuple(findings))
    counted = [] if architecture.hybrid else list(UNCOUNTED_WITH_STATES)
    counted += [] if architecture.moe else UNCOUNTED_WITH_EXPERTS
    uncounted = [name for name in launch.uncounted if name not in counted]
    if uncounted:
        return Capacity(findings=(uncounted_finding(uncounted),))
    weights = weights_per_gpu(architecture, launch, groups)
    if calibration is not None and (gpu is None or not calibration.fits(launch, architecture, gpu.host_class)):
        calibration = None
    memory = None if gpu is None else divide(architecture, launch, gpu, weights, calibration)
    weights_gib = memory.weights / GIB if memory else (weights.gib if weights else None)
    source = memory.weights_source if memory else (weights.source if weights else None)
    rest = _beside_weights(architecture, launch, gpu, memory, calibration)
    return replace(rest, weights_gib_per_gpu=weights_gib, weights_source=source)


def _beside_weights(
    architecture: Architecture, launch: Launch, gpu: Gpu | None, memory: Memory | None, calibration: Calibration | None
) -> Capacity:
    """All figures but those of the weights."""
    try:
        layout = kv_layout(architecture, launch)
    except Unknown as unknown:
        return Capacity(
            kv_gib_per_gpu=memory.kv / GIB if memory else None,
            headroom_gib=memory.headroom / GIB if memory else None,
            findings=(unknown_finding(str(unknown)),),
            memory=memory,
        )
    findings = layout_findings(launch, layout)
    kv = memory.kv if memory else launch.kv_cache_memory_bytes
    if kv is None:
        return Capacity(block_tokens=layout.block_tokens, findings=(*findings, weights_finding(launch)), layout=layout)
    pool = KvPool(layout, launch, kv)
    findings += memory_findings(launch, layout, pool, memory, gpu, calibration)
    return _filled(launch, layout, pool, memory, findings)


def _filled(
    launch: Launch,
    layout: KvLayout,
    pool: KvPool,
    memory: Memory | None,
    findings: Sequence[Finding],
) -> Capacity:
    tokens = log_tokens(pool)
    return Capacity(
        kv_gib_per_gpu=pool.kv_bytes / GIB,
        kv_tokens=pool.tokens,
        concurrency_at_full_length=pool.concurrency,
        headroom_gib=memory.headroom / GIB if memory else None,
        blocks=pool.blocks,
        block_tokens=layout.block_tokens,
        requests_with_states=pool.requests_with_states,
        prefill_chunk_tokens=pool.chunk,
        smallest_cacheable_prefix_tokens=pool.smallest_cacheable_prefix,
        contexts_with_checkpoints=pool.contexts_with_checkpoints,
        longest_context_tokens=pool.longest_context,
        log_lines=log_lines(pool),
        log_kv_tokens=tokens,
        calibrated=bool(memory and memory.calibrated),
        uncertainty_gib=memory.uncertainty / GIB if memory else 0.0,
        findings=tuple(findings),
        layout=layout,
        memory=memory,
    )


def log_tokens(pool: KvPool) -> int:
    """The tokens that the log of this version tells."""
    if pool.launch.version >= TOKENS_BY_CONCURRENCY_SINCE:
        return pool.tokens
    return pool.blocks // pool.layout.groups * pool.layout.block_tokens


def log_lines(pool: KvPool) -> tuple[str, ...]:
    """What the log of this version says of the KV cache, without its prefix."""
    launch = pool.launch
    device = "CPU" if launch.cpu and launch.version >= ONE_LINE_SINCE else "GPU"
    size = f"{device} KV cache size: {log_tokens(pool):,} tokens"
    concurrency = f"Maximum concurrency for {launch.max_model_len:,} tokens per request: {pool.concurrency:.2f}x"
    if launch.version >= ONE_LINE_SINCE:
        return (f"{size}, {concurrency}",)
    return (size, concurrency)
