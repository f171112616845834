# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights on each GPU against what real engines logged, and from the headers of real files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch, launch_from
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import (
    Tensor,
    group,
    header_bytes,
    parse_header,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.weights import (
    from_architecture,
    from_groups,
    weights_per_gpu,
)

from tests.support.model_store import safetensors

from .models import H200_MTP2, HYBRID_27B, S3, SMOLLM2, build, hybrid

WHOLE = Launch("0.26.0", 4096, speculative_method="mtp", speculative_tokens=1)


@pytest.mark.parametrize(
    ("launch", "logged"),
    [pytest.param(H200_MTP2, 51.02, id="H200, no vision"), pytest.param(S3, 26.08, id="two A800, with vision")],
)
def test_the_architecture_gives_what_was_logged_within_a_twentieth_of_a_gib(launch: Launch, logged: float) -> None:
    weights = weights_per_gpu(hybrid(), launch)
    assert weights is not None and weights.source == "architecture"
    assert weights.gib == pytest.approx(logged, abs=0.05)


def test_the_whole_checkpoint_has_its_published_size() -> None:
    """51.75 GiB in 18 files; what no tensor is (sines and cosines) is not part of it."""
    assert from_architecture(hybrid(), WHOLE) == pytest.approx(51.75 * GIB, abs=0.01 * GIB)


def test_smollm2_has_its_published_size() -> None:
    """134,515,008 parameters in BF16: 269 MB, which the engine calls 0.25 GiB."""
    assert from_architecture(build(SMOLLM2), Launch("0.32.0", 4096, cpu=True)) == 2 * 134515008


@pytest.mark.parametrize(
    ("overrides", "gib"),
    [
        ({}, 0.0),
        ({"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}}, 0.375),
        ('{"rope_scaling": {"type": "yarn", "factor": 2}}', 0.125),
        ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, 0.0),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "many"}}, 0.0),
        ({"rope_parameters": {"rope_type": "yarn", "factor": float("inf")}}, 0.0),
    ],
)
def test_longer_positions_take_more_of_each_gpu(overrides: Any, gib: float) -> None:
    """262,144 positions of 64 numbers, four times for the axes of images: 0.125 GiB, as often as the factor says."""

    def weights(flags: dict[str, Any]) -> float:
        found = weights_per_gpu(hybrid(), launch_from(flags, {}, "0.26.0", 4096, 81920))
        assert found is not None
        return found.gib

    assert weights({"hf-overrides": overrides}) - weights({}) == pytest.approx(gib)


def test_what_is_not_loaded_takes_nothing() -> None:
    plain = replace(WHOLE, speculative_tokens=0, speculative_method=None)
    text = replace(plain, language_model_only=True)
    sizes = [from_architecture(hybrid(), launch) for launch in (WHOLE, plain, text)]
    assert None not in sizes
    mtp, vision = (sizes[0] or 0) - (sizes[1] or 0), (sizes[1] or 0) - (sizes[2] or 0)
    assert mtp / GIB == pytest.approx(0.79, abs=0.01)
    assert vision / GIB == pytest.approx(0.86, abs=0.01)


def test_a_vision_tower_in_data_parallel_is_whole_on_each_gpu() -> None:
    spread, whole = S3, replace(S3, encoder_data_parallel=True)
    more = (from_architecture(hybrid(), whole) or 0) - (from_architecture(hybrid(), spread) or 0)
    assert more / GIB == pytest.approx(0.43, abs=0.01)


def test_quantised_weights_are_taken_from_the_size_of_the_checkpoint() -> None:
    weights = weights_per_gpu(hybrid(quantization="fp8", size_bytes=30 * GIB), S3)
    assert weights is not None
    assert (weights.source, weights.gib) == ("size", 15.125)
    assert weights_per_gpu(hybrid(quantization="fp8"), S3) is None


def test_weights_that_a_start_logged_are_taken_for_quantised_ones() -> None:
    """FP8 weights on two A800: 14.96 GiB each, of which 0.125 are sines and cosines that every GPU keeps."""
    content = {**HYBRID_27B, "weights_per_gpu": [{"tensor_parallel": 2, "gib": 14.96}]}
    model = build(content, quantization="fp8")
    for parallel, gib in ((2, 14.96), (1, 2 * 14.96 - 0.125), (4, 14.96 / 2 + 0.0625)):
        weights = weights_per_gpu(model, replace(S3, tensor_parallel=parallel))
        assert weights is not None and weights.source == "measured"
        assert weights.gib == pytest.approx(gib, abs=0.001)
    less = weights_per_gpu(model, replace(S3, language_model_only=True))
    assert less is not None and less.gib == pytest.approx(14.96 - 0.43, abs=0.01)


def test_experts_are_counted() -> None:
    """Qwen3.6-35B-A3B: 256 experts of 512 and a shared one, 40 layers of which 10 have full attention."""
    content = {**HYBRID_27B, "layers": 40, "full_attention_layers": 10, "hidden_size": 2048, "attention_heads": 16}
    content.update(kv_heads=2, moe={"experts": 256, "intermediate_size": 512, "shared_experts": 1}, vision={})
    content["linear_attention"] = {**HYBRID_27B["linear_attention"], "layers": 30, "value_heads": 32}
    parameters = (from_architecture(build(content), Launch("0.26.0", 4096)) or 0) / 2
    assert parameters / 1e9 == pytest.approx(34.7, abs=0.3)


def test_unknown_dimensions_give_no_figure() -> None:
    content = {name: value for name, value in HYBRID_27B.items() if name != "intermediate_size"}
    assert from_architecture(build(content), S3) is None
    partly = {**HYBRID_27B, "vision": {"layers": 27}}
    assert from_architecture(build(partly), S3) is None
    assert from_architecture(build(partly), replace(S3, language_model_only=True)) is not None


TENSORS = {
    "model.language_model.embed_tokens.weight": 1600,
    "model.language_model.layers.3.self_attn.q_proj.weight": 800,
    "model.language_model.layers.3.self_attn.k_proj.weight": 800,
    "model.language_model.layers.3.mlp.gate_proj.weight": 800,
    "model.language_model.layers.3.mlp.gate.weight": 40,
    "model.language_model.layers.3.input_layernorm.weight": 40,
    "model.language_model.norm.weight": 40,
    "model.visual.blocks.0.mlp.linear_fc1.weight": 160,
    "model.visual.patch_embed.proj.weight": 40,
    "mtp.fc.weight": 80,
    "mtp.layers.0.mlp.up_proj.weight": 160,
    "lm_head.weight": 1600,
}


def tensors(**changes: Any) -> int:
    launch = replace(WHOLE, **changes)
    return from_groups(hybrid(), launch, group(Tensor(name, size) for name, size in TENSORS.items()))


def test_one_gpu_holds_all_tensors() -> None:
    assert tensors() == sum(TENSORS.values())


def test_norms_routers_and_small_projections_are_not_cut() -> None:
    whole = 40 + 40 + 40 + 40 + 80
    assert tensors(tensor_parallel=4) == (sum(TENSORS.values()) - whole) // 4 + whole


def test_keys_and_values_are_cut_no_further_than_their_heads() -> None:
    whole = 40 + 40 + 40 + 40 + 80
    assert tensors(tensor_parallel=8) == (sum(TENSORS.values()) - whole - 800) // 8 + whole + 800 // 4


def test_tensors_that_are_not_loaded_take_nothing() -> None:
    assert tensors(speculative_tokens=0) == sum(TENSORS.values()) - 240
    assert tensors(language_model_only=True) == sum(TENSORS.values()) - 200


def test_tied_embeddings_are_held_once() -> None:
    model = build({**HYBRID_27B, "tied_embeddings": True})
    both = [Tensor("lm_head.weight", 8), Tensor("model.embed_tokens.weight", 8)]
    assert from_groups(model, WHOLE, group(both)) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tensor_parallel": 2},
        {"tensor_parallel": 8, "speculative_tokens": 0},
        {"tensor_parallel": 8, "language_model_only": True},
        {"tensor_parallel": 4, "encoder_data_parallel": True},
    ],
)
def test_groups_give_what_their_tensors_give_within_the_rounding(changes: Any) -> None:
    """Sizes that no number of GPUs divides: each tensor alone is rounded up, by less than a byte."""
    launch, model = replace(WHOLE, **changes), build({**HYBRID_27B, "tied_embeddings": True})
    odd = [
        Tensor(f"{name.rpartition('.')[0]}.{number}.{name.rpartition('.')[2]}", size + number)
        for name, size in TENSORS.items()
        for number in (1, 3, 5)
    ] + [Tensor(name, size + 1) for name, size in TENSORS.items()]
    grouped = group(odd)
    assert len(grouped) < len(odd) / 4 and sum(each.count for each in grouped) == len(odd)
    alone = sum(from_groups(model, launch, group([tensor])) for tensor in odd)
    assert 0 <= alone - from_groups(model, launch, grouped) < len(odd)


def test_layers_beyond_those_of_the_model_are_for_mtp() -> None:
    """As DeepSeek and GLM number them; other towers may have more layers."""
    beyond = ["model.layers.64.mlp.up_proj.weight", "model.language_model.layers.64.eh_proj.weight"]
    others = ["model.layers.63.mlp.up_proj.weight", "audio_tower.layers.64.fc1.weight"]
    found = group([Tensor(name, 8) for name in (*beyond, *others)], layers=64)
    assert sorted((each.mtp, each.count) for each in found) == [(False, 2), (True, 2)]
    assert not any(each.mtp for each in group([Tensor(name, 8) for name in beyond]))


def test_what_is_stored_in_float32_is_loaded_in_the_dtype_of_the_model() -> None:
    stored = group([Tensor("model.layers.0.mlp.up_proj.weight", 4000, "F32")])
    assert from_groups(hybrid(), WHOLE, stored) == 2000
    # There they are scales, which stay as they are.
    assert from_groups(hybrid(quantization="fp8"), WHOLE, stored) == 4000


def test_headers_are_preferred_to_the_architecture() -> None:
    weights = weights_per_gpu(hybrid(), WHOLE, group([Tensor("a", GIB)]))
    assert weights is not None
    assert (weights.source, weights.gib) == ("headers", 1.125)


def test_a_header_is_read_without_the_rest_of_its_file() -> None:
    content = safetensors(TENSORS)
    assert header_bytes(content[:8]) == len(content)
    assert parse_header(content + b"\0" * 100, "a") == [Tensor(k, v, "BF16") for k, v in TENSORS.items()]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        safetensors(TENSORS)[:-1],
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        (1).to_bytes(8, "little") + b"x",
    ],
)
def test_a_broken_header_is_told_with_its_file(content: bytes) -> None:
    with pytest.raises(PlanError, match=r"^model-00001\.safetensors (has|should begin)"):
        parse_header(content, "model-00001.safetensors")
