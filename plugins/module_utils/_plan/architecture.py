# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dimensions of a model that decide how much memory it needs, as a model file says them.

The names are those of model files; each says which key of the checkpoint's config.json it is. Private to
socle.inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element by what config.json calls it."""

_DTYPE = schema.choice(*DTYPE_BYTES)

ARCHITECTURE = schema.record(
    {
        "class": schema.text(),
        "layers": schema.whole(1),
        "full_attention_layers": schema.whole(0),
        "hidden_size": schema.whole(1),
        "intermediate_size": schema.whole(1),
        "attention_heads": schema.whole(1),
        "kv_heads": schema.whole(1),
        "head_dim": schema.whole(1),
        "attention_output_gate": schema.truth(),
        "linear_attention": schema.record(
            {
                "layers": schema.whole(1),
                "key_heads": schema.whole(1),
                "value_heads": schema.whole(1),
                "key_head_dim": schema.whole(1),
                "value_head_dim": schema.whole(1),
                "conv_kernel": schema.whole(1),
                "state_dtype": _DTYPE,
            }
        ),
        "mtp_layers": schema.whole(0),
        "moe": schema.record(
            {
                "experts": schema.whole(1),
                "experts_per_token": schema.whole(1),
                "shared_experts": schema.whole(0),
                "intermediate_size": schema.whole(1),
            }
        ),
        "vision": schema.record(
            {
                "layers": schema.whole(1),
                "hidden_size": schema.whole(1),
                "intermediate_size": schema.whole(1),
                "patch_size": schema.whole(1),
                "temporal_patch_size": schema.whole(1),
                "merge_size": schema.whole(1),
                "positions": schema.whole(0),
            }
        ),
        "rope_theta": schema.number(),
        "rotary_dim": schema.whole(1),
        "rope_sections": schema.whole(1),
        "vocab_size": schema.whole(1),
        "tied_embeddings": schema.truth(),
        "max_position_embeddings": schema.whole(1),
        "dtype": _DTYPE,
        "weights_per_gpu": schema.list_of(
            schema.record({"tensor_parallel": schema.whole(1), "gib": schema.number()}, ["tensor_parallel", "gib"]),
            filled=True,
        ),
    }
)
"""The key ``architecture`` of a model file. Every key may be missing: what is not known is left out."""

NEEDED = ("layers", "kv_heads", "head_dim")
"""Without these no size of a KV cache can be told."""

_NEEDED_LINEAR = ("key_heads", "value_heads", "key_head_dim", "value_head_dim", "conv_kernel")


@dataclass(frozen=True)
class LinearAttention:
    """Gated DeltaNet: layers that carry a state of constant size instead of keys and values.

    From config.json: linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim,
    linear_conv_kernel_dim, mamba_ssm_dtype.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_dtype: str = "float32"

    @property
    def key_dim(self) -> int:
        return self.key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution: queries, keys and values side by side."""
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class Moe:
    """Feed-forward layers of which a token passes a few: num_experts, num_experts_per_tok, moe_intermediate_size."""

    experts: int
    intermediate_size: int
    shared_experts: int = 0


@dataclass(frozen=True)
class Vision:
    """The vision tower (vision_config): depth, hidden_size, intermediate_size, patch_size and so on."""

    layers: int
    hidden_size: int
    intermediate_size: int
    patch_size: int = 16
    temporal_patch_size: int = 2
    merge_size: int = 2
    positions: int = 0


@dataclass(frozen=True)
class MeasuredWeights:
    """What a start with all parts of the checkpoint logged as weights on each of *tensor_parallel* GPUs."""

    tensor_parallel: int
    gib: float


@dataclass(frozen=True)
class Architecture:
    """A model as the planner of memory sees it. What is None is not known."""

    layers: int
    full_attention_layers: int
    kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    name: str = ""
    """The class of the model in vLLM: architectures[0]."""
    hidden_size: int | None = None
    intermediate_size: int | None = None
    attention_heads: int | None = None
    attention_output_gate: bool = False
    linear: LinearAttention | None = None
    mtp_layers: int = 0
    moe: Moe | None = None
    vision: Vision | None = None
    vision_known: bool = True
    """False for a vision tower whose dimensions are not all known."""
    vocab_size: int | None = None
    tied_embeddings: bool = False
    max_position_embeddings: int | None = None
    rotary_dim: int | None = None
    rope_sections: int = 1
    size_bytes: int | None = None
    """All tensors of the checkpoint together."""
    quantization: str | None = None
    """What the weights are stored in beyond dtype: "none", "fp8", "nvfp4" ...; None when not known."""
    measured_weights: tuple[MeasuredWeights, ...] = ()

    @property
    def hybrid(self) -> bool:
        return self.linear is not None

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


def architecture(
    content: Mapping[str, Any], size_bytes: int | None = None, quantization: str | None = None
) -> Architecture | None:
    """From the key ``architecture`` of a checked model file; None when it says too little for any size.

    Raises PlanError where its keys contradict each other.
    """
    linear_content = content.get("linear_attention")
    if any(key not in content for key in NEEDED):
        return None
    if linear_content and any(key not in linear_content for key in _NEEDED_LINEAR):
        return None
    layers = content["layers"]
    full, linear_layers = _layer_kinds(layers, content.get("full_attention_layers"), linear_content)
    moe = content.get("moe")
    vision = content.get("vision")
    vision_known = not vision or {"layers", "hidden_size", "intermediate_size"} <= set(vision)
    return Architecture(
        layers=layers,
        full_attention_layers=full,
        kv_heads=content["kv_heads"],
        head_dim=content["head_dim"],
        dtype=content.get("dtype", "bfloat16"),
        name=content.get("class", ""),
        hidden_size=content.get("hidden_size"),
        intermediate_size=content.get("intermediate_size"),
        attention_heads=content.get("attention_heads"),
        attention_output_gate=content.get("attention_output_gate", bool(linear_content)),
        linear=LinearAttention(layers=linear_layers, **{k: v for k, v in linear_content.items() if k != "layers"})
        if linear_content
        else None,
        mtp_layers=content.get("mtp_layers", 0),
        moe=Moe(moe["experts"], moe["intermediate_size"], moe.get("shared_experts", 0))
        if moe and {"experts", "intermediate_size"} <= set(moe)
        else None,
        vision=Vision(**vision) if vision and vision_known else None,
        vision_known=vision_known,
        vocab_size=content.get("vocab_size"),
        tied_embeddings=content.get("tied_embeddings", False),
        max_position_embeddings=content.get("max_position_embeddings"),
        rotary_dim=content.get("rotary_dim"),
        rope_sections=content.get("rope_sections", 1),
        size_bytes=size_bytes,
        quantization=quantization,
        measured_weights=tuple(MeasuredWeights(**entry) for entry in content.get("weights_per_gpu", ())),
    )


def _layer_kinds(layers: int, full: int | None, linear: Mapping[str, Any] | None) -> tuple[int, int]:
    """(layers of full attention, linear layers); each is told by the other."""
    if not linear:
        return (layers if full is None else full), 0
    wanted = linear.get("layers")
    if full is None and wanted is None:
        raise PlanError(
            "architecture has linear_attention, but neither full_attention_layers nor linear_attention.layers, so that "
            "the kinds of its layers cannot be told; add one of them."
        )
    full = layers - (wanted or 0) if full is None else full
    counted = layers - full if wanted is None else wanted
    if full + counted != layers or full < 1:
        raise PlanError(
            f"architecture has {layers} layers, but {full} of full attention and {counted} of linear attention; "
            "correct it."
        )
    return full, counted
