# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan says of its memory: figures, refusals by how much, and values that would do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity import Capacity, plan_capacity
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, NOTE, WARNING, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import Gpu
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch, launch_from

from .models import A800, H200, H200_EAGER, H200_MTP2, HYBRID_27B, S3, SMOLLM2, build, hybrid

A100 = Gpu(81920, host_class="a100_sxm4_80g")
S1 = Launch(
    "0.19.1",
    131072,
    tensor_parallel=2,
    speculative_method="qwen3_next_mtp",
    speculative_tokens=2,
    max_num_seqs=2,
    max_num_batched_tokens=2048,
    language_model_only=True,
    graphs_counted=False,
)


def plan(launch: Launch = S3, gpu: Gpu | None = A800, **content: Any) -> Capacity:
    return plan_capacity(build({**HYBRID_27B, **content}), launch, gpu)


def found(capacity: Capacity, id: str) -> Finding:
    return next(finding for finding in capacity.findings if finding.id == id)


def ids(capacity: Capacity, *severities: str) -> set[str]:
    return {finding.id for finding in capacity.findings if finding.severity in severities}


@pytest.mark.parametrize(
    ("launch", "gpu", "gib"),
    [
        pytest.param(S3, A800, 45.99, id="two A800"),
        pytest.param(H200_MTP2, H200, 74.37, id="H200"),
        pytest.param(H200_EAGER, H200, 12.37, id="H200 without compilation"),
    ],
)
def test_before_the_first_start_the_pool_is_known_within_a_quarter_gib_where_one_was_measured(
    launch: Launch, gpu: Gpu, gib: float
) -> None:
    assert plan(launch, gpu).kv_gib_per_gpu == pytest.approx(gib, abs=0.25)


def test_the_plan_has_its_keys() -> None:
    shown = plan().as_plan()
    assert {"weights_gib_per_gpu", "kv_gib_per_gpu", "kv_tokens", "concurrency_at_full_length", "headroom_gib"} < set(
        shown
    )
    assert shown["weights_gib_per_gpu"] == 26.05
    assert shown["block_tokens"] == 1600
    assert shown["smallest_cacheable_prefix_tokens"] == 3200
    assert shown["prefill_chunk_tokens"] == 8000
    assert shown["contexts_with_checkpoints"] == 6
    assert plan_capacity(None, S3, A800).as_plan().keys() == shown.keys()


def test_headroom_is_what_was_free_on_the_real_hosts() -> None:
    """At 0.92 the two A100 had 5,450 to 6,390 MiB free, at 0.88 8,706, at 0.94 3,844: what vLLM leaves alone, less up
    to 1 GiB that it allocates while it runs."""
    for utilization, free_mib in ((0.92, 6390), (0.88, 8706), (0.94, 3844)):
        headroom = plan(replace(S1, gpu_memory_utilization=utilization), A100).headroom_gib
        assert headroom is not None
        assert 0 <= headroom - free_mib / 1024 < 1


def test_nothing_is_refused_where_the_real_ones_run() -> None:
    for launch, gpu in ((S1, A100), (S3, A800), (H200_MTP2, H200), (H200_EAGER, H200)):
        assert not ids(plan(launch, gpu), ERROR)


def test_weights_that_leave_nothing_are_refused_by_how_much() -> None:
    capacity = plan(replace(S3, tensor_parallel=1), Gpu(49140))
    refusal = found(capacity, "SOC-C01")
    assert refusal.severity == ERROR
    assert re.search(r"need \d+\.\d\d GiB more of each GPU", refusal.sentence)
    assert "tensor-parallel-size" in refusal.remedy


def test_a_request_that_does_not_fit_is_refused_with_values_that_do() -> None:
    launch = replace(S3, gpu_memory_utilization=0.39)
    capacity = plan(launch)
    refusal = found(capacity, "SOC-C02")
    assert refusal.severity == ERROR
    assert "4.64 GiB of KV cache" in refusal.sentence
    utilization = float(re.search(r"gpu-memory-utilization to ([\d.]+)", refusal.remedy)[1])  # type: ignore[index]
    assert not ids(plan(replace(launch, gpu_memory_utilization=utilization)), ERROR, WARNING) & {"SOC-C02", "SOC-C13"}
    length = int(re.search(r"max-model-len to (\d+)", refusal.remedy)[1])  # type: ignore[index]
    assert not ids(plan(replace(launch, max_model_len=length)), ERROR, WARNING) & {"SOC-C02", "SOC-C13"}
    assert ids(plan(replace(launch, max_model_len=length + 1)), ERROR, WARNING) & {"SOC-C02", "SOC-C13"}


def test_within_the_doubt_of_the_estimate_it_is_a_warning() -> None:
    capacity = plan(replace(S3, gpu_memory_utilization=0.42))
    warning = found(capacity, "SOC-C13")
    assert warning.severity == WARNING
    assert "estimated" in warning.sentence


def test_given_bytes_leave_no_doubt() -> None:
    launch = replace(S3, kv_cache_memory_bytes=4 * GIB)
    assert found(plan(launch), "SOC-C02").remedy.startswith("Raise kv-cache-memory-bytes by 0.64 GiB")
    enough = plan(replace(S3, kv_cache_memory_bytes=5 * GIB, max_num_seqs=8))
    assert not ids(enough, ERROR)
    assert enough.kv_gib_per_gpu == 5.0
    assert not {"SOC-C15"} & ids(enough, NOTE)


def test_what_was_never_measured_is_told_with_its_bound_and_what_that_rests_on() -> None:
    note = found(plan(), "SOC-C15")
    assert "give or take 2.20 GiB" in note.sentence
    assert "the worst was 0.9 GiB off" in note.evidence


def test_too_few_batched_tokens_for_a_block_are_refused() -> None:
    refusal = found(plan(replace(S3, max_num_batched_tokens=1024)), "SOC-C03")
    assert refusal.severity == ERROR
    assert "1600" in refusal.remedy and "8000" in refusal.remedy
    assert "SOC-C03" not in ids(plan(replace(S3, max_num_batched_tokens=1024, prefix_caching=False)), ERROR)


@pytest.mark.parametrize(
    ("budget", "severity", "chunk"),
    [(8192, NOTE, 8000), (10240, NOTE, 9600), (16384, NOTE, 16000), (2048, WARNING, 1600)],
)
def test_batched_tokens_that_waste_part_of_a_block_are_told_with_better_ones(
    budget: int, severity: str, chunk: int
) -> None:
    finding = found(plan(replace(S3, max_num_batched_tokens=budget)), "SOC-C07")
    assert finding.severity == severity
    assert f"to {chunk} or {chunk + 1600}" in finding.remedy
    assert "SOC-C07" not in ids(plan(replace(S3, max_num_batched_tokens=chunk)), NOTE, WARNING)


def test_more_gpu_memory_than_is_free_is_refused_as_the_engine_would() -> None:
    """startup-free-memory-v0.26.0.log: 84.78 of 139.8 GiB free, 0.95 wanted 132.81."""
    gpu = replace(H200, free_mib=int(84.78 * 1024))
    refusal = found(plan(replace(H200_MTP2, gpu_memory_utilization=0.95), gpu), "SOC-C04")
    assert "132.81 GiB" in refusal.sentence and "48.03 GiB too little" in refusal.sentence
    assert "0.60" in refusal.remedy
    assert "SOC-C04" not in ids(plan(H200_EAGER, gpu), ERROR)


def test_more_sequences_than_states_are_a_warning_with_the_number_that_fits() -> None:
    finding = found(plan(), "SOC-C05")
    assert finding.severity == WARNING
    fitting = plan().requests_with_states
    assert f"to {fitting} or less" in finding.remedy
    assert "SOC-C05" not in ids(plan(replace(S3, max_num_seqs=fitting)), WARNING)


def test_more_sequences_than_blocks_do_not_start_where_graphs_are_captured() -> None:
    launch = replace(S3, kv_cache_memory_bytes=5 * GIB, full_graphs=True)
    assert "SOC-C06" in ids(plan(launch), ERROR)
    assert "SOC-C06" not in ids(plan(replace(launch, full_graphs=False)), ERROR)
    assert "SOC-C06" not in ids(plan(replace(launch, enforce_eager=True)), ERROR)
    assert "SOC-C06" not in ids(plan(replace(launch, vllm_version="0.19.1")), ERROR)


def test_a_pool_that_keeps_no_context_is_told() -> None:
    assert "SOC-C14" in ids(plan(H200_EAGER, H200), WARNING)
    assert "SOC-C14" not in ids(plan(), WARNING)
    assert "SOC-C14" not in ids(plan(replace(H200_EAGER, prefix_caching=False), H200), WARNING)


def test_the_log_of_an_old_version_is_explained() -> None:
    capacity = plan(S1, A100)
    assert capacity.log_kv_tokens is not None and capacity.kv_tokens is not None
    assert capacity.log_kv_tokens * 3 < capacity.kv_tokens
    assert f"{capacity.log_kv_tokens:,} tokens" in found(capacity, "SOC-C10").sentence
    assert "SOC-C10" not in ids(plan(), NOTE)


def test_a_mode_that_the_model_does_not_have_is_told() -> None:
    assert "SOC-C09" in ids(plan(replace(S3, state_cache_mode="all")), NOTE)


def test_heads_that_cannot_be_spread_are_refused() -> None:
    refusal = found(plan(replace(S3, tensor_parallel=5)), "SOC-C12")
    assert refusal.severity == ERROR
    assert "24 attention heads" in refusal.sentence
    assert refusal.remedy == "Set tensor-parallel-size to 4."


@pytest.mark.parametrize(("kv_heads", "parts", "advised"), [(4, 6, 4), (4, 7, 4), (8, 9, 8), (3, 5, 3), (1, 7, 6)])
def test_the_number_of_gpus_that_is_advised_can_be_used(kv_heads: int, parts: int, advised: int) -> None:
    """6 divides 24 heads of attention, but not 4 of keys and values, and is no multiple of them."""
    dense = build({**SMOLLM2, "attention_heads": 24, "kv_heads": kv_heads})
    refusal = found(plan_capacity(dense, replace(S3, tensor_parallel=parts), A800), "SOC-C12")
    assert refusal.remedy == f"Set tensor-parallel-size to {advised}."
    assert "SOC-C12" not in ids(plan_capacity(dense, replace(S3, tensor_parallel=advised), A800), ERROR)


def test_no_share_of_nothing_is_advised() -> None:
    remedy = found(plan(gpu=replace(A800, free_mib=300)), "SOC-C04").remedy
    assert remedy == "Stop what holds the memory."


def test_unknown_facts_give_a_note_and_what_can_be_told() -> None:
    assert ids(plan_capacity(None, S3, A800), NOTE) == {"SOC-C11"}
    packed = plan(replace(S3, kv_cache_dtype="nvfp4"))
    assert "nvfp4" in found(packed, "SOC-C11").sentence
    assert packed.weights_gib_per_gpu is not None and packed.kv_tokens is None
    no_weights = plan_capacity(hybrid(quantization="nvfp4"), S3, A800)
    assert (no_weights.block_tokens, no_weights.kv_tokens) == (1600, None)
    told = found(no_weights, "SOC-C11")
    assert "the size of the weights of qwen3.8-27b is not known" in told.sentence
    assert "models.yml" in told.remedy and "size_bytes" in told.remedy
    spaceless = plan_capacity(build(SMOLLM2), Launch("0.32.0", 4096, cpu=True), None)
    assert "VLLM_CPU_KVCACHE_SPACE is not set" in found(spaceless, "SOC-C11").sentence


def test_a_processor_needs_the_space_that_it_is_given() -> None:
    launch = Launch("0.32.0", 4096, cpu=True, max_num_seqs=8, kv_cache_memory_bytes=GIB)
    capacity = plan_capacity(build(SMOLLM2), launch, None)
    assert (capacity.kv_tokens, capacity.concurrency_at_full_length, capacity.headroom_gib) == (46592, 11.375, None)
    assert not capacity.findings
    little = plan_capacity(build(SMOLLM2), replace(launch, kv_cache_memory_bytes=GIB // 16), None)
    assert "VLLM_CPU_KVCACHE_SPACE" in found(little, "SOC-C02").remedy
    assert "GPU" not in found(little, "SOC-C02").sentence


def test_every_finding_is_a_sentence_with_a_remedy() -> None:
    launches = [
        (replace(S3, gpu_memory_utilization=0.39), A800),
        (replace(S3, gpu_memory_utilization=0.42), A800),
        (replace(S3, tensor_parallel=1), Gpu(49140)),
        (replace(S3, tensor_parallel=5), A800),
        (replace(S3, max_num_batched_tokens=1024, state_cache_mode="all"), A800),
        (replace(H200_EAGER, kv_cache_dtype="nvfp4"), H200),
        (S1, A100),
        (S3, replace(A800, free_mib=100)),
    ]
    findings = [finding for launch, gpu in launches for finding in plan(launch, gpu).findings]
    assert len({finding.id for finding in findings}) >= 10
    for finding in findings:
        assert finding.sentence.endswith(".")
        assert finding.remedy[0].isupper() and finding.remedy.endswith(".")
        assert finding.subject


@pytest.mark.parametrize(
    ("flags", "block"),
    [
        ({}, 784),
        ({"mamba-ssm-cache-dtype": "auto", "mamba-cache-dtype": "auto"}, 784),
        # The matrix takes 24 x 128 x 128 x 2 bytes, and the window 5,120 x 3 x 2, of 2,048 bytes a token.
        ({"mamba-ssm-cache-dtype": "bfloat16"}, 400),
        ({"mamba-cache-dtype": "float32"}, 800),
        ({"dtype": "half"}, 784),
        # Four bytes in the window, and twice the bytes of each token.
        ({"dtype": "float32"}, 400),
    ],
)
def test_a_state_takes_what_its_dtype_does(flags: dict[str, Any], block: int) -> None:
    launch = launch_from({"tensor-parallel-size": 2, **flags}, {}, "0.26.0", 4096, 81920, "NVIDIA A800 80GB PCIe")
    capacity = plan_capacity(hybrid(), launch, A800)
    assert capacity.block_tokens == block
    assert (capacity.weights_gib_per_gpu or 0) > (50 if "float32" in str(flags.get("dtype")) else 25)


def test_a_checkpoint_in_float32_is_loaded_as_bfloat16() -> None:
    stored = {**SMOLLM2, "dtype": "float32"}
    launch = Launch("0.32.0", 4096, cpu=True, kv_cache_memory_bytes=GIB)
    assert plan_capacity(build(stored), launch, None).kv_tokens == 46592
    assert plan_capacity(build(stored), replace(launch, dtype="float32"), None).kv_tokens == 46592 // 2


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"cpu-offload-gb": 10}, "cpu-offload-gb"),
        ({"enable-lora": True}, "enable-lora"),
        ({"kv-offloading-size": "64"}, "kv-offloading-size"),
        ({"kv-transfer-config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}}, "kv-transfer-config"),
        ({"decode-context-parallel-size": 2}, "decode-context-parallel-size"),
        ({"mamba-block-size": 8192}, "mamba-block-size"),
        ({"kv-cache-dtype-skip-layers": ["3"]}, "kv-cache-dtype-skip-layers"),
    ],
)
def test_what_is_not_calculated_gives_no_figure_and_refuses_nothing(flags: dict[str, Any], name: str) -> None:
    launch = launch_from(flags, {}, "0.26.0", 262144, 49152, "NVIDIA L40S")
    capacity = plan_capacity(hybrid(), launch, Gpu(49152))
    assert [finding.id for finding in capacity.findings] == ["SOC-C11"]
    assert f"{name} is set" in capacity.findings[0].sentence and capacity.kv_gib_per_gpu is None


@pytest.mark.parametrize(
    "flags",
    [{"cpu-offload-gb": 0}, {"decode-context-parallel-size": 1}, {"kv-transfer-config": {}}, {"enable-lora": False}],
)
def test_a_default_that_is_written_out_changes_nothing(flags: dict[str, Any]) -> None:
    launch = launch_from(flags, {}, "0.26.0", 4096, 81920, "NVIDIA A800 80GB PCIe")
    assert launch == launch_from({}, {}, "0.26.0", 4096, 81920, "NVIDIA A800 80GB PCIe")


def test_a_cache_in_one_piece_matters_with_recurrent_layers_alone() -> None:
    launch = launch_from({"disable-hybrid-kv-cache-manager": True}, {}, "0.26.0", 4096, 81920, "NVIDIA H100")
    assert plan_capacity(hybrid(), launch, Gpu(81920)).kv_tokens is None
    assert plan_capacity(build(SMOLLM2), launch, Gpu(81920)).kv_tokens


def test_experts_are_spread_over_data_parallel_ranks_too() -> None:
    launch = launch_from({"data-parallel-size": 2}, {}, "0.26.0", 4096, 81920, "NVIDIA H100")
    assert plan_capacity(hybrid(), launch, A800).kv_tokens
    mixture = plan(launch, moe={"experts": 256, "intermediate_size": 512})
    assert "data-parallel-size is set" in found(mixture, "SOC-C11").sentence and mixture.weights_gib_per_gpu is None


def test_weights_that_are_quantised_while_loading_are_refused_by_no_estimate() -> None:
    """51 GiB of BF16 weights on 48 GB: refused as they are, and a warning where FP8 halves what it can."""
    launch = replace(S3, tensor_parallel=1, max_model_len=8192, max_num_seqs=8, gpu_memory_utilization=0.95)
    small = Gpu(49152)
    assert "SOC-C01" in ids(plan(launch, small), ERROR)
    quantised = plan(replace(launch, quantization="fp8"), small)
    assert ids(quantised, ERROR) == set() and "SOC-C13" in ids(quantised, WARNING)
    told = found(quantised, "SOC-C17")
    assert "quantization fp8" in told.sentence and "51.8" in told.sentence
    assert "SOC-C17" not in ids(plan_capacity(hybrid(quantization="fp8", size_bytes=30 * GIB), launch, small), NOTE)
