# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a launch decides how its GPU memory is divided: flags, variables and the defaults of the version.

Defaults were read in the sources of vLLM 0.19.1, 0.23.0, 0.26.0 and 0.32.0. Private to socle.inference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.flags import parse_size
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import LARGEST

GIB = 1024**3

MTP = "mtp"
"""Speculation by layers of the checkpoint itself; each family's own name of it, such as qwen3_next_mtp, means the same.
"""

DROPS_LAST_BLOCK = frozenset({MTP, "eagle", "eagle3", "dflash", "dspark"})
"""Methods that read hidden states, so that the last matching block of the prefix cache is computed again."""

SUFFIX_TOKENS = 24
"""Tokens of speculation by suffixes where no number is given: suffix_decoding_max_tree_depth, by default this."""

WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that need no layer of their own."""

GRAPHS_COUNTED_SINCE = (0, 20, 2)
"""From here on the estimate for CUDA graphs is taken off the KV cache; before only with
VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1."""

UNCOUNTED = (
    "cpu-offload-gb",
    "decode-context-parallel-size",
    "enable-lora",
    "kv-cache-dtype-skip-layers",
    "kv-offloading-size",
    "kv-sharing-fast-prefill",
    "kv-transfer-config",
    "offload-group-size",
    "prefill-context-parallel-size",
)
UNCOUNTED_WITH_STATES = ("disable-hybrid-kv-cache-manager", "mamba-block-size")
UNCOUNTED_WITH_EXPERTS = ("data-parallel-size",)
"""Flags that move weights or keys and values elsewhere, need memory of their own, or cut the cache in another way; the
latter where there are recurrent layers, or experts, which vLLM spreads over data parallel ranks as well."""

_DTYPES = {"float": "float32", "half": "float16", "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}

FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
"""Types of a KV cache of one byte for each element, with one scale for a layer. Others that begin so, such as
fp8_per_token_head, have scales of their own beside the elements."""

RETENTION_SINCE = (0, 29)
"""From here on checkpoints of recurrent states are only kept where they are likely to be used again."""


_FP8_WITHOUT_FLASHINFER = re.compile(r"\b(H100|H200|H20|H800|GH200)\b")
_FLASHINFER_WHOLE = re.compile(r"\b(G?B200|G?B300)\b")
"""GPUs, by their names, whose FP8 KV cache is read by FLASH_ATTN, and those on which FLASHINFER captures steps of
several tokens."""


def version_numbers(version: str) -> tuple[int, ...]:
    """ "0.26.0+cu129" -> (0, 26, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


@dataclass(frozen=True)
class Launch:
    """The settings of one launch. Lengths in tokens; None means that the engine decides and nobody knows how."""

    vllm_version: str
    max_model_len: int
    model: str = ""
    """The name of the model file."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    gpu_memory_utilization: float = 0.92
    dtype: str | None = None
    """What the model is loaded in, where a flag says so."""
    quantization: str | None = None
    """What a flag says the weights are quantised to."""
    kv_cache_dtype: str = "auto"
    speculative_method: str | None = None
    speculative_tokens: int = 0
    keeps_last_block: bool = False
    """disable_eagle_block_drop of speculative-config."""
    prefix_caching: bool = True
    state_cache_mode: str = "auto"
    """mamba-cache-mode as asked for: "auto", "align", "all" or "none"."""
    state_dtype: str | None = None
    """mamba-ssm-cache-dtype; None for that of the model."""
    convolution_dtype: str | None = None
    """mamba-cache-dtype; None for the dtype of the model."""
    retention_interval: int = 0
    """prefix-cache-retention-interval; -1 keeps every checkpoint."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enforce_eager: bool = False
    """Whether nothing is compiled, by enforce-eager or whatever else leaves it out."""
    language_model_only: bool = False
    encoder_data_parallel: bool = False
    """mm-encoder-tp-mode "data": each GPU holds the whole vision tower."""
    graphs_counted: bool = True
    full_graphs: bool = True
    """Whether a step of decoding is captured as one graph, beside its pieces between attention layers."""
    cpu: bool = False
    yarn_factor: float = 1.0
    """By how much hf-overrides lengthen the positions (YaRN)."""
    uncounted: tuple[str, ...] = ()
    """Flags that are set and change what memory holds in a way that is not calculated here."""

    @property
    def version(self) -> tuple[int, ...]:
        return version_numbers(self.vllm_version)

    @property
    def mtp(self) -> bool:
        return self.speculative_tokens > 0 and (self.speculative_method or "").endswith(MTP)

    @property
    def drops_last_block(self) -> bool:
        reads_states = self.mtp or self.speculative_method in DROPS_LAST_BLOCK
        return self.speculative_tokens > 0 and reads_states and not self.keeps_last_block


def launch_from(
    flags: Mapping[str, Any],
    env: Mapping[str, Any],
    vllm_version: str,
    max_model_len: int,
    memory_mib: int | None = None,
    product: str = "",
    model: str = "",
) -> Launch:
    """Settings from full flag names without dashes, as planned. *memory_mib* is None on a host without a GPU.

    *product* is what nvidia-smi calls the GPU: vLLM's defaults depend on its memory and on "a100" in its name.
    """
    version = version_numbers(vllm_version)
    cpu = memory_mib is None
    speculation = _speculation(flags)
    # Fewer than none are refused by the engine, and must not shrink a state here.
    tokens = max(0, _whole(speculation.get("num_speculative_tokens")) or 0)
    method = speculation.get("method")
    if method == "suffix" and not tokens:
        tokens = max(0, _whole(speculation.get("suffix_decoding_max_tree_depth")) or SUFFIX_TOKENS)
    estimate = str(env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", ""))
    batched, sequences = batch_sizes(flags, memory_mib, "a100" in product.lower(), version, max_model_len)
    utilization = flags.get("gpu-memory-utilization", flags.get("device-memory-utilization"))
    return Launch(
        vllm_version=vllm_version,
        max_model_len=max_model_len,
        model=model,
        tensor_parallel=_whole(flags.get("tensor-parallel-size")) or 1,
        pipeline_parallel=_whole(flags.get("pipeline-parallel-size")) or 1,
        gpu_memory_utilization=_number(utilization, 0.9 if version < (0, 20) else 0.92),
        dtype=_dtype(flags.get("dtype")),
        quantization=_named(flags.get("quantization")),
        kv_cache_dtype=str(flags.get("kv-cache-dtype") or "auto"),
        speculative_method=str(method) if method else None,
        speculative_tokens=tokens,
        keeps_last_block=speculation.get("disable_eagle_block_drop") is True,
        prefix_caching=not flags.get("no-enable-prefix-caching") and flags.get("enable-prefix-caching") is not False,
        state_cache_mode=str(flags.get("mamba-cache-mode") or "auto"),
        state_dtype=_dtype(flags.get("mamba-ssm-cache-dtype")),
        convolution_dtype=_dtype(flags.get("mamba-cache-dtype")),
        retention_interval=_whole(flags.get("prefix-cache-retention-interval")) or 0,
        max_num_seqs=sequences,
        max_num_batched_tokens=batched,
        block_size=_whole(flags.get("block-size")),
        kv_cache_memory_bytes=_kv_bytes(flags, env, cpu),
        num_gpu_blocks_override=_whole(flags.get("num-gpu-blocks-override")),
        enforce_eager=_uncompiled(flags),
        language_model_only=bool(flags.get("language-model-only")),
        encoder_data_parallel=flags.get("mm-encoder-tp-mode") == "data",
        graphs_counted=estimate == "1" if estimate else version >= GRAPHS_COUNTED_SINCE,
        full_graphs=not _pieces_alone(flags)
        and (tokens == 0 or not _flashinfer(flags, product) or bool(_FLASHINFER_WHOLE.search(product))),
        cpu=cpu,
        yarn_factor=_yarn_factor(flags.get("hf-overrides")),
        uncounted=tuple(
            name
            for name in (*UNCOUNTED, *UNCOUNTED_WITH_STATES, *UNCOUNTED_WITH_EXPERTS)
            if _is_set(name, flags.get(name))
        ),
    )


def _yarn_factor(overrides: Any) -> float:
    """The factor of rope_parameters, which stand in hf-overrides themselves or in a part such as text_config."""
    level = [_map(overrides)]
    for _depth in range(4):
        for found in level:
            rope = _map(found.get("rope_parameters") or found.get("rope_scaling"))
            if (rope.get("rope_type") or rope.get("type")) == "yarn":
                return max(1.0, _number(rope.get("factor"), 1.0))
        level = [value for found in level for value in found.values() if isinstance(value, Mapping)]
    return 1.0


def _dtype(value: Any) -> str | None:
    """A dtype by the name that model files have for it; None for auto."""
    return _DTYPES.get(value) if isinstance(value, str) else None


def _named(value: Any) -> str | None:
    return str(value) if value not in (None, "", "None", "none") else None


def _is_set(name: str, value: Any) -> bool:
    """Whether a flag of UNCOUNTED asks for something; 0, and 1 for a number of GPUs, are the defaults."""
    if isinstance(value, (bool, list, dict)) or value is None:
        return bool(value)
    return _number(value, 2.0) > (1 if name.endswith("parallel-size") else 0)


def _flashinfer(flags: Mapping[str, Any], product: str) -> bool:
    """Whether attention runs on FLASHINFER, which captures no whole step of speculation: 'CUDAGraphMode.
    FULL_AND_PIECEWISE is not supported with spec-decode for attention backend FlashInferBackend' (0.26.0)."""
    backend = attention_backend(flags)
    if backend:
        return backend == "FLASHINFER"
    fp8 = str(flags.get("kv-cache-dtype")) in FP8
    return fp8 and bool(product) and not _FP8_WITHOUT_FLASHINFER.search(product)


def _uncompiled(flags: Mapping[str, Any]) -> bool:
    """Level 0 of optimization leaves compilation and graphs out (config/vllm.py), mode 0 of compilation the former."""
    mode = _mode(flags, "mode")
    return bool(flags.get("enforce-eager")) or _level(flags) == "0" or mode in ("0", "NONE")


def _pieces_alone(flags: Mapping[str, Any]) -> bool:
    """Whether flags ask for graphs of pieces only: level 1 of optimization does, or the mode of graphs itself."""
    mode = _mode(flags, "cudagraph_mode")
    return mode in ("1", "PIECEWISE") or (not mode and _level(flags) == "1")


def _mode(flags: Mapping[str, Any], key: str) -> str:
    """A mode of compilation-config in capitals, by its name or number; "" where null or nothing leaves it alone."""
    found = _map(flags.get("compilation-config")).get(key)
    return "" if found is None else str(found).upper()


def _level(flags: Mapping[str, Any]) -> str:
    return str(flags.get("optimization-level", "")).upper().removeprefix("O")


def attention_backend(flags: Mapping[str, Any]) -> str | None:
    """The backend that flags ask for, in capitals as the engine reads it; None for auto, and where none is named."""
    named = flags.get("attention-backend") or _map(flags.get("attention-config")).get("backend")
    found = named.upper() if isinstance(named, str) else None
    return None if found == "AUTO" else found


def _speculation(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """speculative-config, or what the short flags for its main keys (from 0.23.0 at the latest) make of it."""
    if flags.get("speculative-config") is not None:
        return _map(flags["speculative-config"])
    return {"method": flags.get("spec-method"), "num_speculative_tokens": flags.get("spec-tokens")}


def batch_sizes(
    flags: Mapping[str, Any],
    memory_mib: float | None,
    a100: bool,
    version: tuple[int, ...],
    max_model_len: int | None,
) -> tuple[int | None, int | None]:
    """(max-num-batched-tokens, max-num-seqs) of the API server: as given, or its own by GPU and other flags.

    None where neither is known: *memory_mib* is None on a host without a GPU, and *a100* tells what a GPU is called.
    By GPU as read in engine/arg_utils.py of vLLM 0.19.1 to 0.33.0; how they follow from each other and from other flags
    was read in recent versions of it alone.
    """
    given, given_seqs = parse_size(flags.get("max-num-batched-tokens")), parse_size(flags.get("max-num-seqs"))
    if memory_mib is None:
        return given, given_seqs
    if memory_mib >= 160 * 1024 and version >= (0, 33):
        tokens, sequences = 16384, 1024
    elif memory_mib >= 70 * 1024 and not a100:
        tokens, sequences = 8192, 1024
    else:
        tokens, sequences = 2048, 256
    times = 2 if flags.get("performance-mode") == "throughput" else 1
    sequences = given_seqs or sequences * times
    tokens = given or tokens * times
    if given is None and max_model_len is not None:
        if flags.get("no-enable-chunked-prefill") or flags.get("enable-chunked-prefill") is False:
            tokens = max(tokens, max_model_len)
        tokens = min(tokens, sequences * max_model_len)
    return tokens, sequences if given_seqs else min(sequences, tokens)


def _kv_bytes(flags: Mapping[str, Any], env: Mapping[str, Any], cpu: bool) -> int | None:
    explicit = parse_size(flags.get("kv-cache-memory-bytes")) or parse_size(flags.get("kv-cache-memory"))
    if explicit is not None or not cpu:
        return explicit
    space = _number(env.get("VLLM_CPU_KVCACHE_SPACE"), 0.0)
    return int(space * GIB) or None


def _map(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        # Keys of JSON may be written so, which the engine takes for the whole number.
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None


def _number(value: Any, default: float) -> float:
    if isinstance(value, bool) or value is None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    # Neither NaN nor infinity is.
    return number if abs(number) <= LARGEST else default
