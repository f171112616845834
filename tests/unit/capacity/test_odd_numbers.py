# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers that are none, or beyond all sense, are refused in words or passed over; the planner does not fall over."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import ARCHITECTURE
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity import plan_capacity
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import check_env, check_flags, parse_size
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import launch_from
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import LARGEST, Problems
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import parse_header

from .models import H200, HYBRID_27B, SMOLLM2, build

ODD = [float("nan"), float("inf"), -float("inf"), 10**30, 10**400, 1e300]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("key", ["layers", "hidden_size", "vocab_size", "rope_theta"])
def test_a_dimension_beyond_64_bits_is_refused(key: str, value: Any) -> None:
    problems = Problems()
    ARCHITECTURE({**HYBRID_27B, key: value}, "architecture", problems)
    assert len(problems.sentences) == 1 and problems.sentences[0].startswith(f"architecture.{key} must be")
    assert len(problems.sentences[0]) < 300


@pytest.mark.parametrize("value", ODD)
def test_a_flag_or_variable_beyond_64_bits_is_refused(value: Any) -> None:
    problems = Problems()
    check_flags({"max-num-seqs": value, "x": {"y": [value]}}, "flags", problems)
    check_env({"VLLM_CPU_KVCACHE_SPACE": value}, "env", problems)
    assert len(problems.sentences) == 3


TEXTS = [*map(str, ODD[:3]), "1e400", "1e300", "9" * 5000, "9" * 400 + "k", "-1", "0", "-0.0"]
KEYS = ("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "block-size", "kv-cache-memory-bytes")


@pytest.mark.parametrize("value", TEXTS)
def test_such_a_number_in_a_text_is_none(value: str) -> None:
    for key in KEYS:
        for gpu in (H200, None):
            memory = gpu.memory_mib if gpu else None
            launch = launch_from({key: value}, {"VLLM_CPU_KVCACHE_SPACE": value}, "0.26.0", 4096, memory)
            plan_capacity(build(SMOLLM2), launch, gpu)
    assert value.startswith(("-", "0")) or parse_size(value) is None


def test_the_largest_numbers_are_calculated_with() -> None:
    content = copy.deepcopy(HYBRID_27B)
    for key in ("hidden_size", "intermediate_size", "attention_heads", "kv_heads", "head_dim", "vocab_size"):
        content[key] = LARGEST
    content["max_position_embeddings"] = LARGEST
    launch = launch_from({"max-num-batched-tokens": LARGEST, "max-num-seqs": LARGEST}, {}, "0.26.0", LARGEST, 143771)
    plan_capacity(build(content), launch, H200)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a": {"data_offsets": [5, 1]}}',
        b'{"a": {"data_offsets": [-5, 1]}}',
        b'{"a": {"data_offsets": [0, NaN]}}',
        b'{"a": {"data_offsets": [0, 1e400]}}',
        b'{"a": {"data_offsets": [0, 99999999999999999999]}}',
        b'{"a": {"data_offsets": [0]}}',
        b'{"a": {"data_offsets": [0, 1, 2]}}',
    ],
)
def test_a_header_with_offsets_that_are_none_cannot_be_read(header: bytes) -> None:
    with pytest.raises(PlanError, match=r"m\.safetensors has a safetensors header that cannot be read"):
        parse_header(len(header).to_bytes(8, "little") + header, "m.safetensors")
