# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tensors of a checkpoint by their safetensors headers, grouped by what decides which share of them a GPU holds.

A checkpoint has up to 150 000 tensors, of which only some sums matter. Pure. Private to socle.inference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import LARGEST

HEADER_LENGTH_BYTES = 8
HEADER_LIMIT_BYTES = 100_000_000
"""The limit of the safetensors format itself."""

TEXT, KV, LM_HEAD, VISION = "text", "kv", "lm_head", "vision"
PARTS = (TEXT, KV, LM_HEAD, VISION)
"""What a tensor belongs to: keys and values and the last projection are told apart from the rest of the text model."""

_VISION = re.compile(r"(^|\.)(visual|vision_tower|vision_model)\.")
_MTP = re.compile(r"(^|\.)mtp\.")
_KV = re.compile(r"\.(k_proj|v_proj)\.")
_LAYER = re.compile(r"(?:(?:model|language_model)\.)*layers\.(\d{1,6})\.")
_REPLICATED = re.compile(
    r"norm\w*\.(weight|bias)$"
    r"|\.mlp\.gate\.weight$|\.shared_expert_gate\.weight$"
    r"|(^|\.)mtp\.fc\.weight$|patch_embed\.|pos_embed\."
    r"|\.(o_proj|out_proj|down_proj|proj|linear_fc2)\.bias$"
    r"|\.(input_scale|weight_scale_2|input_global_scale|weight_global_scale|k_scale|v_scale)$"
)
"""Norms, routers, the projection into the MTP layer, what embeds patches, biases after a sum over GPUs, and scales of a
whole tensor."""


@dataclass(frozen=True)
class Tensor:
    """One entry of a safetensors header."""

    name: str
    size_bytes: int
    dtype: str = ""
    """As the header says it: "BF16", "F32", "F8_E4M3" ..."""


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of which a GPU holds the same share."""

    part: str
    """One of PARTS."""
    mtp: bool
    """Loaded for speculation by MTP alone."""
    replicated: bool
    """Whole on every GPU."""
    float32: bool
    size_bytes: int
    count: int

    def as_dict(self) -> dict[str, Any]:
        """What model_weights_info returns of it."""
        return {
            "part": self.part,
            "mtp": self.mtp,
            "replicated": self.replicated,
            "float32": self.float32,
            "bytes": self.size_bytes,
            "tensors": self.count,
        }


GROUPS = schema.list_of(
    schema.record(
        {
            "part": schema.choice(*PARTS),
            "mtp": schema.truth(),
            "replicated": schema.truth(),
            "float32": schema.truth(),
            "bytes": schema.whole(0),
            "tensors": schema.whole(1),
        },
        ["part", "mtp", "replicated", "float32", "bytes", "tensors"],
    )
)
"""The groups of a model as they come from a host."""


def groups_from(content: Iterable[Mapping[str, Any]]) -> tuple[TensorGroup, ...]:
    """From what GROUPS found sound."""
    return tuple(
        TensorGroup(
            each["part"], each["mtp"], each["replicated"], each["float32"], int(each["bytes"]), int(each["tensors"])
        )
        for each in content
    )


def group(tensors: Iterable[Tensor], layers: int | None = None) -> tuple[TensorGroup, ...]:
    """The sums that matter. *layers* is the number of layers of the model: those beyond are for MTP, as DeepSeek and
    GLM number them."""
    sums: dict[tuple[str, bool, bool, bool], tuple[int, int]] = {}
    for tensor in tensors:
        part = _part(tensor.name)
        key = (part, _is_mtp(tensor.name, part, layers), bool(_REPLICATED.search(tensor.name)), tensor.dtype == "F32")
        size, count = sums.get(key, (0, 0))
        sums[key] = (size + tensor.size_bytes, count + 1)
    return tuple(TensorGroup(*key, *sums[key]) for key in sorted(sums))


def _part(name: str) -> str:
    if _VISION.search(name):
        return VISION
    if _KV.search(name):
        return KV
    return LM_HEAD if name.endswith("lm_head.weight") else TEXT


def _is_mtp(name: str, part: str, layers: int | None) -> bool:
    if _MTP.search(name):
        return True
    if layers is None or part == VISION:
        return False
    # From the beginning of the name: other towers may have more layers.
    layer = _LAYER.match(name)
    return layer is not None and int(layer.group(1)) >= layers


def parse_header(content: bytes, where: str) -> list[Tensor]:
    """Tensors of a safetensors file, of which *content* is the beginning: 8 bytes of length, then JSON.

    Raises PlanError, without a remedy, for what is no such file, or cut off within its header.
    """
    if len(content) < HEADER_LENGTH_BYTES:
        raise PlanError(f"{where} has {len(content)} bytes, too few for a safetensors file")
    end = header_bytes(content)
    length = end - HEADER_LENGTH_BYTES
    if length > HEADER_LIMIT_BYTES or len(content) < end:
        raise PlanError(
            f"{where} should begin with a safetensors header of {length} bytes, but "
            f"{len(content) - HEADER_LENGTH_BYTES} are there"
        )
    try:
        entries = json.loads(content[HEADER_LENGTH_BYTES:end])
        return [
            Tensor(str(name), _extent(*entry["data_offsets"]), str(entry.get("dtype", ""))[:16])
            for name, entry in entries.items()
            if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error)[:120]
        raise PlanError(f"{where} has a safetensors header that cannot be read ({reason})") from error


def _extent(start: Any, end: Any) -> int:
    """Bytes from one offset to the other; ValueError for what are none."""
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= LARGEST):
        raise ValueError(f"data_offsets are {ascii(start)[:40]} and {ascii(end)[:40]}")
    return end - start


def header_bytes(beginning: bytes) -> int:
    """How many bytes of a file its header takes, from its first eight: what to read before parse_header."""
    return HEADER_LENGTH_BYTES + int.from_bytes(beginning[:HEADER_LENGTH_BYTES], "little")
