# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a launch's memory, or worth knowing, by how much, and which value would do.

Private to socle.inference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.calibration import Calibration
from ansible_collections.socle.inference.plugins.module_utils._plan.cuda_graphs import captured_graphs
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, NOTE, WARNING, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import (
    LARGEST_ERROR_GIB,
    MIB,
    Gpu,
    Memory,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_layout import (
    TOKENS_BY_CONCURRENCY_SINCE,
    KvLayout,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_pool import KvPool
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

HIGHEST_UTILIZATION = 0.98
"""More is never advised: the CUDA context itself and other processes need the rest."""

STATES_CHECKED_SINCE = (0, 20)
"""From some version after 0.19.1 and up to 0.23.0 on, capturing full graphs fails when there are more sequences than
blocks; 0.19.1 captures fewer graphs instead."""

WASTE = 0.1
"""Part of the batched tokens from which on waste is a warning: 2,048 tokens at blocks of 1,600 waste 22 %."""

_SOURCE = "vLLM 0.26.0, v1/core/kv_cache_utils.py"


def weights_finding(launch: Launch) -> Finding:
    """Neither the model file nor a start tells the weights, without which no memory can be divided."""
    if launch.cpu:
        return Finding(
            "SOC-C11",
            NOTE,
            "How much the KV cache holds cannot be told: VLLM_CPU_KVCACHE_SPACE is not set.",
            "Set VLLM_CPU_KVCACHE_SPACE in env to the GiB that it may take.",
            subject="VLLM_CPU_KVCACHE_SPACE",
        )
    return Finding(
        "SOC-C11",
        NOTE,
        "How much the KV cache holds cannot be told: the size of the weights of "
        f"{launch.model or 'the model'} is not known.",
        "Sync the model with models.yml, whose lock then tells its size, set size_bytes in its model file, or start it "
        "once: the record of a start tells the weights.",
        subject="size_bytes",
    )


def unknown_finding(reason: str) -> Finding:
    return Finding(
        "SOC-C11",
        NOTE,
        f"How much the KV cache holds cannot be told: {reason}.",
        "Add the missing facts to the model file, or read the figures from the log of the first start.",
        subject="architecture",
    )


def uncounted_finding(names: Sequence[str]) -> Finding:
    one = len(names) == 1
    return Finding(
        "SOC-C11",
        NOTE,
        f"How much the KV cache holds cannot be told: {', '.join(names)} {'is' if one else 'are'} set, which "
        f"{'changes' if one else 'change'} what memory holds in a way that is not calculated.",
        f"Read the figures from the log of the first start, or remove {'it' if one else 'them'}.",
        subject=names[0],
    )


def division_findings(architecture: Architecture, launch: Launch) -> list[Finding]:
    """Heads that cannot be spread over the GPUs."""
    parts = launch.tensor_parallel
    linear = architecture.linear
    counts = [
        ("attention heads", architecture.attention_heads),
        ("heads of linear attention's keys", linear.key_heads if linear else None),
        ("heads of linear attention's values", linear.value_heads if linear else None),
    ]
    wrong = [f"{count} {name}" for name, count in counts if count is not None and count % parts]
    kv = architecture.kv_heads
    if kv % parts and parts % kv:
        wrong.append(f"{kv} heads of keys and values")
    if not wrong:
        return []
    return [
        Finding(
            "SOC-C12",
            ERROR,
            f"The model cannot be spread over {parts} GPUs: it has {' and '.join(wrong)}, no multiple of that.",
            f"Set tensor-parallel-size to {_divisor(architecture, parts)}.",
            "vLLM 0.26.0 refuses such a number",
            "tensor-parallel-size",
        )
    ]


def _divisor(architecture: Architecture, parts: int) -> int:
    linear = architecture.linear
    counts = [architecture.attention_heads, *((linear.key_heads, linear.value_heads) if linear else ())]
    common = math.gcd(*[count for count in counts if count is not None]) if any(counts) else architecture.kv_heads
    kv = architecture.kv_heads
    fitting = [size for size in range(1, min(parts, common) + 1) if common % size == 0]
    return max(size for size in fitting if kv % size == 0 or size % kv == 0)


def layout_findings(launch: Launch, layout: KvLayout) -> list[Finding]:
    """What follows from blocks alone, however many there are."""
    findings = []
    block, budget = layout.block_tokens, launch.max_num_batched_tokens
    if launch.state_cache_mode == "all" and layout.mode == "align":
        findings.append(
            Finding(
                "SOC-C09",
                NOTE,
                "mamba-cache-mode is all, which Gated DeltaNet does not have: the engine takes align.",
                "Remove mamba-cache-mode; vLLM 0.32.0 refuses the value all.",
                "vLLM 0.26.0, model_executor/models/config.py",
                "mamba-cache-mode",
            )
        )
    if layout.mode != "align" or budget is None:
        return findings
    chunk = budget // block * block
    if not chunk:
        findings.append(
            Finding(
                "SOC-C03",
                ERROR,
                f"max-num-batched-tokens is {budget}, less than one block of {block} tokens: with prefix caching the "
                "engine refuses to start.",
                f"Set max-num-batched-tokens to {block} or a multiple of it, such as {_multiple(8192, block)}.",
                "vLLM: 'In Mamba cache align mode, block_size must be <= max_num_batched_tokens'",
                "max-num-batched-tokens",
            )
        )
    elif chunk < budget:
        wasted = 1 - chunk / budget
        findings.append(
            Finding(
                "SOC-C07",
                WARNING if wasted >= WASTE else NOTE,
                f"A prefill step ends on a whole block of {block} tokens, so that of max-num-batched-tokens {budget} "
                f"only {chunk} are used ({wasted:.1%} wasted), while memory is kept for all.",
                f"Set max-num-batched-tokens to {chunk} or {chunk + block}.",
                f"block of {block} tokens: one page holds a recurrent state of {layout.state_bytes} bytes ({_SOURCE})",
                "max-num-batched-tokens",
            )
        )
    return findings


def _multiple(near: int, block: int) -> int:
    return max(1, near // block) * block


def memory_findings(
    launch: Launch,
    layout: KvLayout,
    pool: KvPool,
    memory: Memory | None,
    gpu: Gpu | None,
    calibration: Calibration | None,
) -> list[Finding]:
    """What follows from the number of blocks."""
    findings = _not_free(launch, memory, gpu)
    short = _too_small(launch, layout, pool, memory)
    findings += short
    if not any(finding.severity == ERROR for finding in short):
        findings += _states(launch, layout, pool) + _contexts(launch, layout, pool)
        findings += _meaning(launch, layout, pool)
    return findings + _shrinking(launch, memory) + _confidence(launch, memory, calibration)


def _not_free(launch: Launch, memory: Memory | None, gpu: Gpu | None) -> list[Finding]:
    if memory is None or gpu is None or gpu.free_mib is None or launch.kv_cache_memory_bytes is not None:
        return []
    lacking = memory.requested - gpu.free_mib * MIB
    if lacking <= 0:
        return []
    fitting = math.floor(gpu.free_mib * MIB / memory.total * 100) / 100
    other = f", or set gpu-memory-utilization to {fitting:.2f} or less" if fitting > 0 else ""
    return [
        Finding(
            "SOC-C04",
            ERROR,
            f"gpu-memory-utilization {launch.gpu_memory_utilization:g} asks for {memory.requested / GIB:.2f} GiB of a "
            f"GPU, but {gpu.free_mib / 1024:.2f} GiB are free: {lacking / GIB:.2f} GiB too little, and the engine "
            "refuses to start.",
            f"Stop what holds the memory{other}.",
            "vLLM: 'Free memory on device ... is less than desired GPU memory utilization'",
            "gpu-memory-utilization",
        )
    ]


def _too_small(launch: Launch, layout: KvLayout, pool: KvPool, memory: Memory | None) -> list[Finding]:
    """No request of max_model_len fits: an error beyond the doubt of the estimate, a warning within it."""
    needed = pool.blocks_needed * layout.block_bytes
    overridden = launch.num_gpu_blocks_override is not None
    have = pool.blocks * layout.block_bytes if overridden else pool.kv_bytes
    lacking = needed - have
    if pool.checked_blocks >= layout.blocks_of_request(launch.max_model_len):
        return []
    doubt = 0 if memory is None or overridden else memory.uncertainty
    sure = lacking > doubt
    remedies = _remedies(launch, pool, memory, lacking + (0 if sure else doubt))
    hedge = "" if sure else f" (estimated, give or take {doubt / GIB:.2f} GiB)"
    if have <= 0:
        return [
            Finding(
                "SOC-C01" if sure else "SOC-C13",
                ERROR if sure else WARNING,
                "No memory is left for the KV cache: weights and working memory need "
                f"{max(0, -have) / GIB:.2f} GiB more of each GPU than gpu-memory-utilization "
                f"{launch.gpu_memory_utilization:g} gives{hedge}, and one request of max-model-len "
                f"{launch.max_model_len} needs another {needed / GIB:.2f} GiB.",
                remedies,
                "vLLM: 'No available memory for the cache blocks'",
                "gpu-memory-utilization",
            )
        ]
    where = "" if launch.cpu else " on each GPU"
    return [
        Finding(
            "SOC-C02" if sure else "SOC-C13",
            ERROR if sure else WARNING,
            f"One request of max-model-len {launch.max_model_len} needs {needed / GIB:.2f} GiB of KV cache{where}, "
            f"but {have / GIB:.2f} GiB are there{hedge}: {lacking / GIB:.2f} GiB too little.",
            remedies,
            "vLLM: 'To serve at least one request with the model's max seq len'",
            "max-model-len",
        )
    ]


def _remedies(launch: Launch, pool: KvPool, memory: Memory | None, lacking: int) -> str:
    """Values that would do, as one sentence."""
    ways = []
    if launch.num_gpu_blocks_override is not None:
        ways.append("remove num-gpu-blocks-override")
    elif launch.kv_cache_memory_bytes is not None:
        name = "VLLM_CPU_KVCACHE_SPACE" if launch.cpu else "kv-cache-memory-bytes"
        ways.append(f"raise {name} by {lacking / GIB:.2f} GiB")
    elif memory is not None:
        utilization = math.ceil((memory.requested + lacking) / memory.total * 100) / 100
        if utilization <= HIGHEST_UTILIZATION:
            ways.append(f"set gpu-memory-utilization to {utilization:.2f}")
    longest = pool.longest_context
    if longest:
        ways.append(f"set max-model-len to {longest} or less")
    if not ways:
        ways.append("spread the model over more GPUs (tensor-parallel-size), or take smaller weights")
    sentence = ", or ".join(ways)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _states(launch: Launch, layout: KvLayout, pool: KvPool) -> list[Finding]:
    sequences, fitting = launch.max_num_seqs, pool.requests_with_states
    if sequences is None or fitting is None:
        return []
    if sequences > pool.blocks and captured_graphs(launch)[1] and launch.version >= STATES_CHECKED_SINCE:
        return [
            Finding(
                "SOC-C06",
                ERROR,
                f"max-num-seqs is {sequences}, more than the {pool.blocks} blocks of the KV cache, with which no full "
                "CUDA graphs can be captured: the engine refuses to start.",
                f"Set max-num-seqs to {max(1, fitting)} or less.",
                "vLLM: 'max_num_seqs exceeds available Mamba cache blocks' (0.23.0 and later)",
                "max-num-seqs",
            )
        ]
    if sequences <= fitting:
        return []
    return [
        Finding(
            "SOC-C05",
            WARNING,
            f"max-num-seqs is {sequences}, but the KV cache holds the recurrent states of {fitting} running requests "
            f"({layout.state_blocks} blocks each, of {pool.blocks}); beyond that requests push each other out.",
            f"Set max-num-seqs to {max(1, fitting)} or less.",
            "throughput at 32 requests fell by 24 % below about 116 blocks (vllm-project/vllm#55580)",
            "max-num-seqs",
        )
    ]


def _contexts(launch: Launch, layout: KvLayout, pool: KvPool) -> list[Finding]:
    smallest, contexts = pool.smallest_cacheable_prefix, pool.contexts_with_checkpoints
    if smallest is None or contexts is None or not layout.linear_groups:
        return []
    findings = [
        Finding(
            "SOC-C08",
            NOTE,
            f"A prefix of less than {smallest} tokens never comes from the prefix cache.",
            "Put what requests share at their beginning, and expect nothing of short system prompts.",
            f"a block has {layout.block_tokens} tokens"
            + (", and speculation drops the last one that matches" if launch.drops_last_block else ""),
            "enable-prefix-caching",
        )
    ]
    if not contexts:
        findings.append(
            Finding(
                "SOC-C14",
                WARNING,
                f"Not one finished context of max-model-len {launch.max_model_len} stays cached with its checkpoints, "
                "so that continuing one computes it again.",
                "Raise gpu-memory-utilization, use max-num-batched-tokens of more blocks, or turn prefix caching off.",
                "one of three contexts lost its checkpoints at 0.55, none at 0.60 (hit rates of 65.7 % and 98.6 %)",
                "enable-prefix-caching",
            )
        )
    return findings


def _meaning(launch: Launch, layout: KvLayout, pool: KvPool) -> list[Finding]:
    if launch.version >= TOKENS_BY_CONCURRENCY_SINCE or layout.groups == 1:
        return []
    told = pool.blocks // layout.groups * layout.block_tokens
    return [
        Finding(
            "SOC-C10",
            NOTE,
            f"The log of vLLM {launch.vllm_version} will tell {told:,} tokens of KV cache where requests of full "
            f"length have {pool.tokens:,}.",
            "Compare the concurrency that it logs, not the tokens, with other versions.",
            "up to 0.19.1 the log divides by the groups of layers (vllm-project/vllm#40691)",
            "capacity.log_kv_tokens",
        )
    ]


def _shrinking(launch: Launch, memory: Memory | None) -> list[Finding]:
    if memory is None or not memory.weights_shrink:
        return []
    return [
        Finding(
            "SOC-C17",
            NOTE,
            f"quantization {launch.quantization} quantises the weights while they are loaded: the "
            f"{memory.weights / GIB:.2f} GiB of each GPU are what is stored, and they take less, which leaves more for "
            "the KV cache.",
            "Start it once: its log tells what they take.",
            "vLLM, model_executor/layers/quantization",
            "quantization",
        )
    ]


def _confidence(launch: Launch, memory: Memory | None, calibration: Calibration | None) -> list[Finding]:
    if memory is None or launch.kv_cache_memory_bytes is not None:
        return []
    if calibration is None:
        return [
            Finding(
                "SOC-C15",
                NOTE,
                f"The KV cache is estimated, give or take {memory.uncertainty / GIB:.2f} GiB on each GPU, since no "
                "start like it was measured on this host class.",
                "Start it once: its log and metrics calibrate the next plans.",
                f"of five known starts of one model on two kinds of GPU the worst was {LARGEST_ERROR_GIB} GiB off",
                "gpu-memory-utilization",
            )
        ]
    differing = calibration.differences(launch)
    if not differing:
        return []
    return [
        Finding(
            "SOC-C16",
            NOTE,
            "The KV cache is estimated from a start that differs in "
            f"{', '.join(name.replace('_', '-') for name in differing)}.",
            "Start it once: its log and metrics calibrate the next plans.",
            subject="gpu-memory-utilization",
        )
    ]
