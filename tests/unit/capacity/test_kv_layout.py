# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks and tokens against what real engines logged: exact, or wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.calibration import kv_bytes_range
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity import log_lines, log_tokens
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_layout import Unknown, kv_layout
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_pool import KvPool
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

from .models import H200_EAGER, H200_MTP2, HYBRID_27B, S3, SMOLLM2, build, hybrid

PRO_6000 = Launch("0.23.0", 262144, kv_cache_dtype="fp8")
H20 = Launch("0.19.0", 32768, prefix_caching=False)
SMOL = Launch("0.32.0", 4096, cpu=True, max_num_seqs=8, kv_cache_memory_bytes=GIB)
QWEN3_TINY = {"layers": 2, "kv_heads": 2, "head_dim": 32}
"""512 bytes of keys and values per token, which is all that counts of it here."""

TINY_HYBRID = {
    "layers": 8,
    "full_attention_layers": 2,
    "kv_heads": 2,
    "head_dim": 64,
    "linear_attention": {
        "key_heads": 4,
        "value_heads": 8,
        "key_head_dim": 128,
        "value_head_dim": 128,
        "conv_kernel": 4,
    },
    "mtp_layers": 1,
}


def pool(launch: Launch, kv_bytes: int, model: Architecture | None = None) -> KvPool:
    return KvPool(kv_layout(model or hybrid(), launch), launch, kv_bytes)


def of_blocks(launch: Launch, blocks: int) -> KvPool:
    layout = kv_layout(hybrid(), launch)
    return KvPool(layout, launch, blocks * layout.block_bytes)


@pytest.mark.parametrize(
    ("launch", "gib", "tokens", "concurrency"),
    [
        pytest.param(S3, 45.99, 2595079, "9.90", id="two A800, fp8, MTP 3"),
        pytest.param(H200_MTP2, 74.37, 1067194, "8.14", id="H200, bf16, MTP 2"),
        pytest.param(H200_EAGER, 12.37, 348549, "1.33", id="H200, fp8, MTP 3"),
        pytest.param(
            replace(
                H200_MTP2, max_model_len=32768, speculative_tokens=0, speculative_method=None, prefix_caching=False
            ),
            73.74,
            1121393,
            "34.22",
            id="H200, bf16, no MTP, no prefix cache",
        ),
        pytest.param(
            replace(S3, max_model_len=131072, speculative_tokens=0, speculative_method=None),
            4.99,
            302921,
            "2.31",
            id="two 3090, fp8, no MTP",
        ),
    ],
)
def test_bytes_that_round_to_the_logged_gib_give_the_logged_tokens(
    launch: Launch, gib: float, tokens: int, concurrency: str
) -> None:
    layout = kv_layout(hybrid(), launch)
    least, most = kv_bytes_range(gib, None, layout)
    pools = [KvPool(layout, launch, amount) for amount in range(least, most, layout.block_bytes // 8)]
    assert tokens in {pool.tokens for pool in pools}
    assert len({pool.blocks for pool in pools}) <= 2, "two digits of GiB leave one block open at most"
    fitting = next(pool for pool in pools if pool.tokens == tokens)
    assert f"{fitting.concurrency:.2f}" == concurrency
    assert f"{fitting.kv_bytes / GIB:.2f}" == f"{gib}"


def test_plain_gib_of_the_reports_are_exact_too() -> None:
    assert pool(S3, int(45.99 * GIB)).tokens == 2595079
    assert pool(H200_MTP2, int(74.37 * GIB)).tokens == 1067194
    assert pool(H200_EAGER, int(12.37 * GIB)).tokens == 348549
    assert pool(S3, int(45.99 * GIB)).blocks == 1772


@pytest.mark.parametrize(
    ("launch", "blocks", "tokens", "concurrency"),
    [
        pytest.param(PRO_6000, 1110, 1672297, "6.38", id="RTX PRO 6000, fp8"),
        pytest.param(replace(PRO_6000, kv_cache_dtype="auto"), 1107, 851007, "3.25", id="RTX PRO 6000, bf16"),
        pytest.param(PRO_6000, 1261, 1899790, "7.25", id="RTX PRO 6000, NVFP4 weights"),
        pytest.param(
            replace(PRO_6000, speculative_method="qwen3_next_mtp", speculative_tokens=2),
            1087,
            1619037,
            "6.18",
            id="RTX PRO 6000, MTP 2",
        ),
    ],
)
def test_published_tokens_follow_from_one_number_of_blocks(
    launch: Launch, blocks: int, tokens: int, concurrency: str
) -> None:
    found = of_blocks(launch, blocks)
    assert (found.blocks, found.tokens, f"{found.concurrency:.2f}") == (blocks, tokens, concurrency)


def test_before_0_20_the_log_tells_a_quarter_of_what_fits() -> None:
    found = of_blocks(H20, 1487)
    assert log_tokens(found) == 290864
    assert f"{found.concurrency:.2f}" == "33.04"
    assert found.tokens == 1082800
    assert log_lines(found) == (
        "GPU KV cache size: 290,864 tokens",
        "Maximum concurrency for 32,768 tokens per request: 33.04x",
    )
    assert log_tokens(replace(found, launch=replace(H20, vllm_version="0.20.2"))) == 1082800


def test_smollm2_on_a_processor_as_the_lab_logged_it() -> None:
    found = pool(SMOL, GIB, build(SMOLLM2))
    assert (found.layout.block_tokens, found.blocks, found.tokens, found.concurrency) == (128, 364, 46592, 11.375)
    assert log_lines(found) == (
        "CPU KV cache size: 46,592 tokens, Maximum concurrency for 4,096 tokens per request: 11.38x",
    )


@pytest.mark.parametrize(
    ("changes", "padding", "logged"),
    [
        ({}, "9.92%", "372,736 tokens, Maximum concurrency for 4,096 tokens per request: 91.00x"),
        (
            {"speculative_method": "mtp", "speculative_tokens": 2},
            "8.27%",
            "206,848 tokens, Maximum concurrency for 4,096 tokens per request: 50.50x",
        ),
    ],
)
def test_a_small_hybrid_on_a_processor_as_the_real_engine_logged_it(
    changes: dict[str, Any], padding: str, logged: str
) -> None:
    """0.32.0 also logged 'Setting attention block size to 1152 tokens', and how far it padded the states."""
    found = pool(Launch("0.32.0", 4096, cpu=True, max_num_seqs=4, **changes), GIB, build(TINY_HYBRID))
    assert found.layout.block_tokens == 1152
    assert f"{found.layout.page_bytes / found.layout.state_bytes - 1:.2%}" == padding
    assert log_lines(found) == (f"CPU KV cache size: {logged}",)


@pytest.mark.parametrize("version", ["0.19.1", "0.23.0", "0.26.0", "0.32.0"])
def test_a_dense_model_is_the_same_in_every_version(version: str) -> None:
    found = pool(Launch(version, 4096, cpu=True), GIB, build(QWEN3_TINY))
    assert (found.blocks, log_tokens(found), found.concurrency) == (16384, 2097152, 512.0)


@pytest.mark.parametrize(
    ("speculative_tokens", "bf16", "fp8"),
    [(0, 784, 1568), (1, 800, 1584), (2, 800, 1600), (3, 800, 1600), (4, 816, 1616)],
)
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_a_block_is_as_long_as_a_state_takes(speculative_tokens: int, bf16: int, fp8: int, parallel: int) -> None:
    launch = Launch(
        "0.26.0",
        262144,
        tensor_parallel=parallel,
        speculative_method="mtp" if speculative_tokens else None,
        speculative_tokens=speculative_tokens,
    )
    assert kv_layout(hybrid(), launch).block_tokens == bf16
    assert kv_layout(hybrid(), replace(launch, kv_cache_dtype="fp8")).block_tokens == fp8


def test_fp8_makes_blocks_longer_and_not_more() -> None:
    small, large = pool(S3, 46 * GIB), pool(replace(S3, kv_cache_dtype="auto"), 46 * GIB)
    assert small.blocks == large.blocks
    assert small.layout.block_tokens == 2 * large.layout.block_tokens
    assert 1.9 < small.tokens / large.tokens < 1.95


def test_mtp_costs_a_tenth_of_the_pool() -> None:
    without = pool(replace(S3, speculative_tokens=0, speculative_method=None), int(45.99 * GIB))
    assert without.tokens == 2895636
    assert (without.layout.padding_layers, pool(S3, GIB).layout.padding_layers) == (0, 3)


def test_speculation_without_layers_of_its_own_only_adds_states() -> None:
    ngram = kv_layout(hybrid(), replace(S3, speculative_method="ngram"))
    assert (ngram.layers_per_group, ngram.states, ngram.padding_layers) == (16, 5, 0)
    assert pool(replace(S3, speculative_method="ngram"), GIB).smallest_cacheable_prefix == ngram.block_tokens


def test_kv_heads_are_repeated_when_there_are_more_gpus() -> None:
    launch = Launch("0.26.0", 4096, tensor_parallel=8)
    model = build({"layers": 10, "kv_heads": 4, "head_dim": 128})
    assert kv_layout(model, launch).page_bytes == 16 * 2 * 128 * 2


def test_kinds_of_nearly_equal_numbers_share_groups_of_the_larger() -> None:
    """12 and 13 layers make two groups of 13, as v1/core/kv_cache_utils.py says of its own rule."""
    content = {**HYBRID_27B, "layers": 25, "full_attention_layers": 13}
    content["linear_attention"] = {**HYBRID_27B["linear_attention"], "layers": 12}
    layout = kv_layout(build(content), Launch("0.26.0", 4096))
    assert (layout.layers_per_group, layout.groups, layout.padding_layers) == (13, 2, 1)


def test_without_prefix_caching_a_request_holds_one_state_less() -> None:
    align, none = kv_layout(hybrid(), S3), kv_layout(hybrid(), replace(S3, prefix_caching=False))
    assert (align.mode, align.states, none.mode, none.states) == ("align", 5, "none", 4)
    assert align.blocks_of_request(262144) == 179
    assert none.blocks_of_request(262144) == 176


def test_block_size_of_the_flags_is_the_unit_or_the_floor() -> None:
    launch = replace(S3, block_size=64)
    assert kv_layout(hybrid(), launch).block_tokens == 1600
    assert kv_layout(hybrid(), replace(launch, block_size=128)).block_tokens == 1664
    assert kv_layout(hybrid(), replace(launch, block_size=128, vllm_version="0.19.1")).block_tokens == 1600
    assert kv_layout(hybrid(), replace(launch, block_size=4096, vllm_version="0.19.1")).block_tokens == 4096


def test_a_prefix_shorter_than_a_block_is_never_cached_and_with_mtp_than_two() -> None:
    without = replace(S3, speculative_tokens=0, speculative_method=None)
    assert pool(S3, GIB).smallest_cacheable_prefix == 3200
    assert pool(without, GIB).smallest_cacheable_prefix == 1568
    assert pool(replace(S3, prefix_caching=False), GIB).smallest_cacheable_prefix is None


def test_contexts_keep_a_state_for_each_chunk() -> None:
    """222,000 tokens at chunks of 9,600 and blocks of 1,600: 139 blocks of attention and 3 x 24 states."""
    launch = Launch(
        "0.23.0",
        222000,
        kv_cache_dtype="fp8",
        speculative_method="mtp",
        speculative_tokens=3,
        max_num_batched_tokens=10240,
    )
    layout = kv_layout(hybrid(), launch)
    assert of_blocks(launch, 1).chunk == 9600
    assert layout.blocks_of_cached(222000, 9600, launch) == 211
    # The pool of utilisation 0.55 held two of three contexts (65.7 % of hits), that of 0.60 nearly all.
    assert of_blocks(launch, 505).contexts_with_checkpoints == 2
    assert of_blocks(launch, 634).contexts_with_checkpoints == 3


def test_from_0_29_a_context_keeps_its_latest_states_alone() -> None:
    launch = replace(S3, vllm_version="0.29.0")
    layout = kv_layout(hybrid(), launch)
    assert layout.blocks_of_cached(262144, 8000, launch) == layout.blocks_of_request(262144)
    often = replace(launch, retention_interval=16000)
    assert layout.blocks_of_cached(262144, 8000, often) == 164 + 3 * 17
    assert layout.blocks_of_cached(262144, 8000, S3) == 164 + 3 * 33


def test_the_block_that_is_never_handed_out_counts_in_newer_checks() -> None:
    exact = kv_layout(hybrid(), S3).blocks_of_request(262144)
    old, new = of_blocks(S3, exact), of_blocks(replace(S3, vllm_version="0.32.0"), exact)
    assert old.checked_blocks == exact and old.longest_context == 262144
    assert new.checked_blocks == exact - 1 and new.longest_context == 163 * 1600


def test_an_override_of_the_blocks_is_taken_as_it_is() -> None:
    assert pool(replace(S3, num_gpu_blocks_override=500), 46 * GIB).blocks == 500


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (replace(S3, kv_cache_dtype="turboquant_4bit"), "turboquant_4bit"),
        (replace(S3, speculative_method="eagle3"), "eagle3"),
        (replace(S3, pipeline_parallel=2), "pipeline"),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(launch: Launch, reason: str) -> None:
    with pytest.raises(Unknown, match=reason):
        kv_layout(hybrid(), launch)


def test_other_kinds_of_layers_are_not_known() -> None:
    model = build({"layers": 24, "full_attention_layers": 12, "kv_heads": 8, "head_dim": 64})
    with pytest.raises(Unknown, match="neither"):
        kv_layout(model, Launch("0.26.0", 4096))
