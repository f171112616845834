# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a start teaches: from its log and metrics to a record, and from the record to better plans."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.calibration import (
    Boot,
    Calibration,
    calibrate,
    calibration_from,
    read_boot,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity import plan_capacity
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import LARGEST_ERROR_GIB, Gpu
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

from .models import A800, FIXTURES, H200, H200_EAGER, H200_MTP2, H200_VISION_70, H200_VISION_90, S3, hybrid, log

S3_BOOT = Boot(weights_gib=26.08, kv_gib=45.99, activation_gib=2.31, graphs_gib=0.75)
"""As the report has it, which does not tell the memory of the card."""


def metrics(blocks: int) -> str:
    return f'vllm:cache_config_info{{block_size="1600",num_gpu_blocks="{blocks}",engine="0"}} 1.0\n'


def of_h200() -> Calibration:
    return calibrate(read_boot(log("startup-gpu-v0.26.0.log")), hybrid(), H200_MTP2, "h200_sxm_141g")


def of_s3() -> Calibration:
    return calibrate(S3_BOOT, hybrid(), S3, "a800_pcie_80g", A800.total_bytes)


def vision_boot(launch: Launch) -> Boot:
    """One of two starts of the same host and model, which differ in utilisation, length and sequences."""
    name = f"vision-{launch.gpu_memory_utilization:.2f}-v0.26.0"
    return read_boot(log(f"startup-gpu-{name}.log"), "\n".join(log(f"metrics-gpu-{name}.txt")))


def of_vision(launch: Launch) -> Calibration:
    return calibrate(vision_boot(launch), hybrid(), launch, "h200_sxm_141g")


VISION_STARTS = [(H200_VISION_90, 71.04, 846403, 1369, 25.83), (H200_VISION_70, 43.57, 624826, 839, 4.77)]


def test_a_log_is_read() -> None:
    assert read_boot(log("startup-gpu-v0.26.0.log"), metrics(1433)) == Boot(
        weights_gib=51.02,
        kv_gib=74.37,
        total_gib=139.8,
        requested_gib=128.62,
        activation_gib=2.93,
        non_torch_gib=0.25,
        graphs_gib=0.05,
        kv_tokens=1067194,
        block_tokens=800,
        blocks=1433,
    )


def test_of_several_ranks_the_fullest_counts() -> None:
    lines = [
        "(Worker_TP0 pid=1) INFO [x.py:1] Model loading took 26.08 GiB memory and 1.5 seconds",
        "(Worker_TP1 pid=2) INFO [x.py:1] Model loading took 26.05 GiB memory and 1.5 seconds",
        "(Worker_TP0 pid=1) INFO [x.py:1] Available KV cache memory: 45.99 GiB",
        "(Worker_TP1 pid=2) INFO [x.py:1] Available KV cache memory: 46.20 GiB",
    ]
    boot = read_boot(lines)
    assert (boot.weights_gib, boot.kv_gib) == (26.08, 45.99)


def test_metrics_of_a_real_engine_tell_its_blocks() -> None:
    text = (FIXTURES / "metrics-cache-v0.32.0.txt").read_text(encoding="utf-8")
    assert read_boot([], text).blocks == 364


def test_a_calibrated_plan_gives_the_start_back_to_the_token() -> None:
    capacity = plan_capacity(hybrid(), H200_MTP2, H200, of_h200())
    assert (capacity.kv_tokens, capacity.blocks, capacity.calibrated) == (1067194, 1433, True)
    assert capacity.weights_gib_per_gpu == pytest.approx(51.02, abs=0.01)
    assert capacity.uncertainty_gib == 1.0


def test_blocks_of_the_metrics_settle_what_two_digits_leave_open() -> None:
    """45.99 GiB may be 1,772 or 1,773 blocks."""
    for blocks, tokens in ((1772, 2595079), (1773, 2596543)):
        boot = replace(S3_BOOT, blocks=blocks)
        calibration = calibrate(boot, hybrid(), S3, "a800_pcie_80g", A800.total_bytes)
        assert plan_capacity(hybrid(), S3, A800, calibration).kv_tokens == tokens


@pytest.mark.parametrize(("launch", "gib", "tokens", "blocks", "concurrency"), VISION_STARTS)
def test_what_a_start_logged_gives_its_tokens_back(
    launch: Launch, gib: float, tokens: int, blocks: int, concurrency: float
) -> None:
    boot = vision_boot(launch)
    assert (boot.kv_gib, boot.kv_tokens, boot.blocks) == (gib, tokens, blocks)
    capacity = plan_capacity(hybrid(), launch, H200, of_vision(launch))
    assert (capacity.kv_tokens, capacity.blocks, capacity.block_tokens) == (tokens, blocks, 800)
    assert capacity.concurrency_at_full_length == pytest.approx(concurrency, abs=0.005)
    given = plan_capacity(hybrid(), replace(launch, kv_cache_memory_bytes=int(gib * GIB)), H200)
    assert (given.kv_tokens, given.blocks, given.calibrated) == (tokens, blocks, False)


@pytest.mark.parametrize(
    ("taught", "launch", "gib", "tokens", "estimated"),
    [
        (H200_VISION_90, H200_VISION_70, 43.57, 624826, 42.67),
        (H200_VISION_70, H200_VISION_90, 71.04, 846403, 70.14),
    ],
)
def test_another_start_of_the_host_is_predicted_to_the_token(
    taught: Launch, launch: Launch, gib: float, tokens: int, estimated: float
) -> None:
    """Utilisation by a fifth, length by 4 and sequences by 4: neither log is what the other plan is made of."""
    capacity = plan_capacity(hybrid(), launch, H200, of_vision(taught))
    assert capacity.calibrated and capacity.kv_gib_per_gpu == pytest.approx(gib, abs=0.01)
    assert capacity.kv_tokens == tokens
    blind = plan_capacity(hybrid(), launch, H200)
    assert not blind.calibrated and blind.kv_gib_per_gpu == pytest.approx(estimated, abs=0.01)
    assert abs(blind.kv_gib_per_gpu - gib) < LARGEST_ERROR_GIB + 0.01 < blind.uncertainty_gib


def test_a_record_that_tells_no_graphs_predicts_those_of_another_start_all_the_same() -> None:
    """Records of deployments tell weights and KV cache alone."""
    boot = replace(vision_boot(H200_VISION_90), graphs_gib=None, activation_gib=None, requested_gib=None)
    calibration = calibrate(boot, hybrid(), H200_VISION_90, "h200_sxm_141g")
    capacity = plan_capacity(hybrid(), H200_VISION_70, H200, calibration)
    assert capacity.kv_gib_per_gpu == pytest.approx(43.57, abs=0.02)


def test_log_and_metrics_of_different_starts_are_refused() -> None:
    with pytest.raises(PlanError, match="contradict each other"):
        calibrate(replace(S3_BOOT, blocks=1900), hybrid(), S3, "a800_pcie_80g", A800.total_bytes)


def test_a_record_comes_back_as_it_went() -> None:
    calibration = of_h200()
    assert calibration_from(json.loads(json.dumps(calibration.as_record()))) == calibration
    with pytest.raises(PlanError, match=r"socle\.calibration/1"):
        calibration_from({"schema": "socle.calibration/9"})


def test_other_weights_on_the_same_hosts_are_predicted_within_a_gib() -> None:
    """The same two GPUs served FP8 weights: 14.96 GiB on each, and a log of 3.217 M tokens, which is 57.0 GiB."""
    model = hybrid(quantization="fp8", size_bytes=int(2 * 14.96 * GIB) - 2 * 2**27)
    capacity = plan_capacity(model, replace(S3, model="qwen3.8-27b-fp8"), A800, of_s3())
    assert capacity.weights_gib_per_gpu == pytest.approx(14.96, abs=0.01)
    assert capacity.kv_tokens == pytest.approx(3217000, rel=0.005)
    assert capacity.kv_gib_per_gpu == pytest.approx(57.0, abs=1.0)


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({"gpu_memory_utilization": 0.88}, 74.37 - 0.04 * 139.8),
        ({"max_model_len": 262144}, 74.37),
        ({"max_num_seqs": 8}, 74.37),
        ({"max_num_seqs": 256}, 74.37 - 0.99),
    ],
)
def test_changed_utilisation_moves_the_pool_and_length_and_sequences_hardly_do(
    changes: dict[str, Any], gib: float
) -> None:
    capacity = plan_capacity(hybrid(), replace(H200_MTP2, **changes), H200, of_h200())
    assert capacity.kv_gib_per_gpu == pytest.approx(gib, abs=0.1)
    assert capacity.uncertainty_gib == 1.0
    assert "SOC-C16" not in {finding.id for finding in capacity.findings}


def test_a_difference_that_counts_is_told_and_trusted_less() -> None:
    capacity = plan_capacity(hybrid(), replace(H200_MTP2, max_num_batched_tokens=16384), H200, of_h200())
    assert capacity.kv_gib_per_gpu == pytest.approx(74.37 - 0.84, abs=0.02)
    assert capacity.uncertainty_gib == 2.0
    note = next(finding for finding in capacity.findings if finding.id == "SOC-C16")
    assert "max-num-batched-tokens" in note.sentence


@pytest.mark.parametrize(
    ("launch", "gpu"),
    [
        (replace(H200_MTP2, enforce_eager=True), H200),
        (replace(H200_MTP2, tensor_parallel=2), H200),
        (H200_MTP2, Gpu(81559, host_class="h100_sxm5_80g")),
    ],
)
def test_a_start_of_another_kind_says_nothing(launch: Any, gpu: Gpu) -> None:
    assert not plan_capacity(hybrid(), launch, gpu, of_h200()).calibrated


def test_an_eager_start_is_calibrated_by_itself() -> None:
    """Its log ends before the line that tells the GPU's memory."""
    boot = read_boot(log("startup-gpu-fp8-eager-v0.26.0.log"))
    calibration = calibrate(boot, hybrid(), H200_EAGER, "h200_sxm_141g", H200.total_bytes)
    capacity = plan_capacity(hybrid(), H200_EAGER, H200, calibration)
    assert (capacity.kv_tokens, capacity.blocks) == (348549, 238)
    assert calibration.other_bytes / GIB == pytest.approx(20.46, abs=0.01)


def test_a_log_that_ends_too_early_is_refused_with_what_is_missing() -> None:
    lines = log("startup-free-memory-v0.26.0.log")
    with pytest.raises(PlanError) as refused:
        calibrate(read_boot(lines), hybrid(), H200_MTP2, "h200_sxm_141g")
    assert "Model loading took" in refused.value.message
    assert "Available KV cache memory" in refused.value.message


def test_weights_of_another_format_are_not_those_of_the_start() -> None:
    """A start with FP8 made of BF16 weights told half of what they take without the flag, and the other way."""
    halved = replace(S3_BOOT, weights_gib=14.9, kv_gib=57.0)
    fp8 = replace(S3, quantization="fp8")
    taught = calibrate(halved, hybrid(), fp8, "a800_pcie_80g", A800.total_bytes)
    assert plan_capacity(hybrid(), fp8, A800, taught).weights_gib_per_gpu == pytest.approx(14.9, abs=0.01)
    plain = plan_capacity(hybrid(), S3, A800, taught)
    assert (plain.weights_gib_per_gpu, plain.weights_source) == (pytest.approx(26.05, abs=0.05), "architecture")
    other_way = plan_capacity(hybrid(), fp8, A800, of_s3())
    assert other_way.weights_source == "architecture" and (other_way.uncertainty_gib or 0) > 19
    assert calibration_from(json.loads(json.dumps(taught.as_record()))) == taught
