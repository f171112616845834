# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the weights take on each GPU: from the tensors of a checkpoint, from its size, or from the architecture.

Tensor parallelism cuts most tensors; which ones every GPU holds whole was read in the model classes of vLLM 0.32.0.
Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import DTYPE_BYTES, Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import KV, LM_HEAD, VISION, TensorGroup

MULTIMODAL_ROPE_FACTOR = 4
"""Models whose positions have several axes keep sines and cosines for this times max_position_embeddings."""


@dataclass(frozen=True)
class Weights:
    """What the weights take on the fullest GPU, and how that is known."""

    bytes_per_gpu: int
    source: str
    """ "boot", "headers", "architecture", "measured" or "size"."""
    uncertainty_bytes: int
    shrinks: bool = False
    """Whether the engine quantises them while it loads them: they then take less than what is stored, told here."""

    @property
    def gib(self) -> float:
        return self.bytes_per_gpu / GIB


UNCERTAINTY_BYTES = {
    "boot": GIB // 20,
    "headers": GIB // 4,
    "architecture": GIB // 4,
    "measured": GIB // 4,
    "size": GIB // 2,
}
"""How far each source may be off. Measured: the architecture of the 27B hybrid gives 51.01 GiB where a start logged
51.02 (1 GPU), and 26.05 where one logged 26.08 (2 GPUs); kernels that repack quantised weights take more than their
tensors."""

SHRINKING = 0.75
"""Part of its weights that a model may lose when the engine quantises it while loading: to 4 of 16 bits at most. How
much it does lose depends on which layers the method leaves alone."""


def weights_per_gpu(architecture: Architecture, launch: Launch, groups: Sequence[TensorGroup] = ()) -> Weights | None:
    """The best that is known; None when neither tensors nor size nor all dimensions are.

    *groups* are the tensors of the checkpoint that the host holds, by their headers.
    """
    found = _stored(architecture, launch, groups)
    if found is None:
        return None
    amount, source = found
    doubt = UNCERTAINTY_BYTES[source]
    if launch.quantization is None or architecture.quantization not in (None, "none"):
        return Weights(amount, source, doubt)
    return Weights(amount, source, doubt + int(SHRINKING * amount), shrinks=True)


def _stored(architecture: Architecture, launch: Launch, groups: Sequence[TensorGroup]) -> tuple[int, str] | None:
    """(bytes on one GPU as stored, how that is known)"""
    extra = rope_cache_bytes(architecture, launch)
    if groups:
        return from_groups(architecture, launch, groups) + extra, "headers"
    plain = architecture.quantization in (None, "none")
    counted = from_architecture(architecture, launch)
    if plain and counted is not None:
        return counted + extra, "architecture"
    if architecture.measured_weights:
        return _from_measured(architecture, launch, extra) + extra, "measured"
    if architecture.size_bytes is not None:
        return _from_size(architecture, launch, architecture.size_bytes) + extra, "size"
    return None


def from_groups(architecture: Architecture, launch: Launch, groups: Iterable[TensorGroup]) -> int:
    """Bytes of *groups* on one GPU, rounded up once a group. What is not loaded (vision, MTP) is left out."""
    total = 0
    plain = architecture.quantization in (None, "none")
    for group in groups:
        parts = launch.tensor_parallel
        if group.mtp and not launch.mtp:
            continue
        if group.part == VISION:
            if launch.language_model_only:
                continue
            if launch.encoder_data_parallel:
                parts = 1
        elif group.part == KV:
            parts = min(parts, architecture.kv_heads)
        elif group.part == LM_HEAD and architecture.tied_embeddings:
            continue
        if group.replicated:
            parts = 1
        # All of an unquantised checkpoint is loaded in the model's dtype, whatever it stores: four bytes each, or two.
        loaded = group.size_bytes
        if plain:
            loaded = loaded * architecture.element_bytes // DTYPE_BYTES["float32" if group.float32 else "bfloat16"]
        total += -(-loaded // parts)
    return total


def as_loaded(architecture: Architecture, launch: Launch) -> Architecture:
    """The model in the dtype that the engine loads it in: as a flag says, else its own, but float32 as bfloat16."""
    dtype = launch.dtype or ("bfloat16" if architecture.dtype == "float32" else architecture.dtype)
    return architecture if dtype == architecture.dtype else replace(architecture, dtype=dtype)


def rope_cache_bytes(architecture: Architecture, launch: Launch) -> int:
    """Sines and cosines of all positions, which every GPU keeps beside the weights (counted as weights by the log).

    YaRN lengthens them by its factor (model_executor/layers/rotary_embedding).
    """
    positions, dims = architecture.max_position_embeddings, architecture.rotary_dim
    if positions is None:
        return 0
    factor = MULTIMODAL_ROPE_FACTOR if architecture.rope_sections > 1 else 1
    return int(positions * launch.yarn_factor) * factor * (dims or architecture.head_dim) * architecture.element_bytes


def from_architecture(architecture: Architecture, launch: Launch) -> int | None:
    """Bytes on one GPU of weights that are stored in the architecture's dtype; None when a dimension is missing."""
    hidden, vocabulary, heads = architecture.hidden_size, architecture.vocab_size, architecture.attention_heads
    feed_forward = _feed_forward(architecture, launch.tensor_parallel)
    if hidden is None or vocabulary is None or heads is None or feed_forward is None:
        return None
    parts = launch.tensor_parallel
    sharded, replicated = feed_forward
    query = heads * architecture.head_dim * (2 if architecture.attention_output_gate else 1)
    key_value = 2 * max(1, architecture.kv_heads // parts) * architecture.head_dim
    attention = hidden * ((query + heads * architecture.head_dim) // parts + key_value)
    norms = 2 * hidden
    layer = sharded + replicated + norms
    parameters = architecture.full_attention_layers * attention + hidden
    parameters += architecture.layers * layer
    if architecture.linear is not None:
        linear = architecture.linear
        inner = hidden * (linear.conv_dim + 2 * linear.value_dim + 2 * linear.value_heads)
        inner += linear.conv_dim * linear.conv_kernel + 2 * linear.value_heads
        parameters += linear.layers * (inner // parts + linear.value_head_dim)
    parameters += vocabulary * hidden // parts * (1 if architecture.tied_embeddings else 2)
    if launch.mtp:
        parameters += architecture.mtp_layers * (attention + layer) + 2 * hidden * hidden + 3 * hidden
    if not launch.language_model_only:
        vision = vision_parameters(architecture, 1 if launch.encoder_data_parallel else parts)
        if vision is None:
            return None
        parameters += vision
    return parameters * architecture.element_bytes


def _feed_forward(architecture: Architecture, parts: int) -> tuple[int, int] | None:
    """(cut, whole) parameters of one feed-forward layer on one GPU."""
    hidden, moe = architecture.hidden_size, architecture.moe
    if hidden is None:
        return None
    if moe is not None:
        shared = moe.shared_experts * moe.intermediate_size
        router = hidden * (moe.experts + (1 if moe.shared_experts else 0))
        return 3 * hidden * (moe.experts * moe.intermediate_size + shared) // parts, router
    if architecture.intermediate_size is None:
        return None
    return 3 * hidden * architecture.intermediate_size // parts, 0


def vision_parameters(architecture: Architecture, parts: int) -> int | None:
    """Parameters of the vision tower and its merger on one GPU; None when its dimensions are not known."""
    vision = architecture.vision
    if not architecture.vision_known or (vision is not None and architecture.hidden_size is None):
        return None
    if vision is None or architecture.hidden_size is None:
        return 0
    width, merged = vision.hidden_size, vision.hidden_size * vision.merge_size**2
    block = 4 * width * width + 2 * width * vision.intermediate_size
    merger = merged * (merged + architecture.hidden_size)
    whole = 3 * vision.temporal_patch_size * vision.patch_size**2 * width + vision.positions * width
    return (vision.layers * block + merger) // parts + whole


def _from_measured(architecture: Architecture, launch: Launch, extra: int) -> int:
    """Bytes on one GPU by the start whose number of GPUs is nearest, cut anew; *extra* is whole on every GPU."""
    parts = launch.tensor_parallel
    nearest = min(architecture.measured_weights, key=lambda measured: abs(measured.tensor_parallel - parts))
    cut = (int(nearest.gib * GIB) - extra) * nearest.tensor_parallel
    return max(0, cut - _unused(architecture, launch)) // parts


def _unused(architecture: Architecture, launch: Launch) -> int:
    """Bytes of the vision tower where it is not loaded; quantised checkpoints keep it in the architecture's dtype."""
    if not launch.language_model_only:
        return 0
    return (vision_parameters(architecture, 1) or 0) * architecture.element_bytes


def _from_size(architecture: Architecture, launch: Launch, size_bytes: int) -> int:
    """Bytes on one GPU of a checkpoint of which only the size is known: cut evenly, less what is not loaded."""
    return max(0, size_bytes - _unused(architecture, launch)) // launch.tensor_parallel
