# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of model files and flags of launches, as the planner of memory reads them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import ARCHITECTURE, architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_layout import kv_layout
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import (
    GIB,
    Launch,
    attention_backend,
    launch_from,
    version_numbers,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.rule_context import RuleContext
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems

from tests.unit.rules.cases import HOPPER, changed, version

from .models import H200_MTP2, HYBRID_27B, S3, SMOLLM2, build


@pytest.mark.parametrize("content", [HYBRID_27B, SMOLLM2, {}])
def test_real_models_pass_the_schema(content: dict[str, Any]) -> None:
    problems = Problems()
    ARCHITECTURE(content, "architecture", problems)
    assert not problems.sentences


def test_misspelt_keys_are_told() -> None:
    problems = Problems()
    ARCHITECTURE({"linear_attention": {"key_head": 16}, "dtype": "fp8"}, "architecture", problems)
    assert "did you mean 'key_heads'?" in problems.sentences[0]
    assert "architecture.dtype" in problems.sentences[1]


def test_each_kind_of_layer_is_told_by_the_other() -> None:
    linear = {name: value for name, value in HYBRID_27B["linear_attention"].items() if name != "layers"}
    by_full = build({**HYBRID_27B, "linear_attention": linear})
    by_linear = build({name: value for name, value in HYBRID_27B.items() if name != "full_attention_layers"})
    for found in (by_full, by_linear):
        assert found.linear is not None
        assert (found.full_attention_layers, found.linear.layers) == (16, 48)


@pytest.mark.parametrize("changes", [{"full_attention_layers": 17}, {"layers": 60}, {"full_attention_layers": 0}])
def test_layers_that_do_not_add_up_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="layers"):
        architecture({**HYBRID_27B, **changes})


def test_kinds_that_cannot_be_told_are_refused() -> None:
    linear = {name: value for name, value in HYBRID_27B["linear_attention"].items() if name != "layers"}
    content = {**HYBRID_27B, "linear_attention": linear}
    del content["full_attention_layers"]
    with pytest.raises(PlanError, match="full_attention_layers"):
        architecture(content)


@pytest.mark.parametrize("missing", ["layers", "kv_heads", "head_dim"])
def test_without_what_every_figure_needs_there_is_none(missing: str) -> None:
    assert architecture({name: value for name, value in HYBRID_27B.items() if name != missing}) is None


def test_flags_become_settings() -> None:
    launch = launch_from(
        {
            "tensor-parallel-size": 2,
            "gpu-memory-utilization": 0.95,
            "kv-cache-dtype": "fp8",
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
            "enable-prefix-caching": True,
            "max-num-seqs": 256,
            "max-num-batched-tokens": 8192,
        },
        {},
        "0.26.0",
        262144,
        memory_mib=81920,
        product="NVIDIA A800 80GB PCIe",
        model="qwen3.8-27b",
    )
    assert launch == S3


def test_json_in_a_string_and_switches_are_read_too() -> None:
    flags = {
        "speculative-config": '{"method": "mtp", "num_speculative_tokens": 2}',
        "max-num-seqs": "2",
        "language-model-only": True,
        "model-is-not-a-flag-here": 1,
    }
    launch = launch_from(flags, {}, "0.26.0", 131072, memory_mib=143771, product="NVIDIA H200", model="qwen-27b-shape")
    assert launch == H200_MTP2


def test_defaults_are_those_of_the_version_and_the_gpu() -> None:
    old = launch_from({}, {}, "0.19.1", 4096, memory_mib=81920, product="NVIDIA A100-SXM4-80GB")
    new = launch_from({}, {}, "0.26.0", 4096, memory_mib=81559, product="NVIDIA H100 80GB HBM3")
    assert (old.gpu_memory_utilization, old.max_num_batched_tokens, old.max_num_seqs) == (0.9, 2048, 256)
    assert (new.gpu_memory_utilization, new.max_num_batched_tokens, new.max_num_seqs) == (0.92, 8192, 1024)
    assert (old.graphs_counted, new.graphs_counted) == (False, True)
    assert old.prefix_caching and new.prefix_caching


@pytest.mark.parametrize(
    ("product", "flags", "whole"),
    [
        ("NVIDIA A800 80GB PCIe", {"kv-cache-dtype": "fp8"}, False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", {"kv-cache-dtype": "fp8_e4m3"}, False),
        ("NVIDIA H200", {"kv-cache-dtype": "fp8"}, True),
        ("NVIDIA H200", {"attention-backend": "FLASHINFER"}, False),
        ("NVIDIA B200", {"kv-cache-dtype": "fp8"}, True),
        ("NVIDIA A800 80GB PCIe", {}, True),
        ("NVIDIA A800 80GB PCIe", {"kv-cache-dtype": "fp8", "speculative-config": None}, True),
    ],
)
def test_whole_steps_are_captured_unless_flashinfer_has_to_speculate(
    product: str, flags: dict[str, Any], whole: bool
) -> None:
    flags = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}, **flags}
    assert launch_from(flags, {}, "0.26.0", 4096, memory_mib=81920, product=product).full_graphs is whole


def launched(flags: dict[str, Any], version: str = "0.32.0", **more: Any) -> Launch:
    return launch_from(flags, {}, version, 4096, **{"memory_mib": 81920, "product": "NVIDIA A800 80GB PCIe", **more})


def test_the_short_flags_of_speculation_are_speculation_too() -> None:
    whole = launched({"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}})
    assert whole.mtp and launched({"spec-method": "mtp", "spec-tokens": 3}) == whole


@pytest.mark.parametrize("method", ["glm4_moe_mtp", "mimo_v2_mtp", "qwen3_next_mtp"])
def test_every_family_s_own_name_of_mtp_is_mtp(method: str) -> None:
    launch = launched({"speculative-config": {"method": method, "num_speculative_tokens": 1}})
    assert launch.mtp and launch.drops_last_block
    assert kv_layout(build(HYBRID_27B), launch) == kv_layout(
        build(HYBRID_27B), launched({"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}})
    )


def test_the_last_block_of_a_prefix_is_kept_where_somebody_asks_for_it() -> None:
    config = {"method": "mtp", "num_speculative_tokens": 1, "disable_eagle_block_drop": True}
    assert not launched({"speculative-config": config}).drops_last_block


def test_a_whole_number_with_a_point_is_that_number() -> None:
    config = {"method": "mtp", "num_speculative_tokens": 3.0}
    assert launched({"speculative-config": config}).speculative_tokens == 3


@pytest.mark.parametrize(("depth", "tokens"), [({}, 24), ({"suffix_decoding_max_tree_depth": 8}, 8)])
def test_suffixes_have_a_number_of_their_own(depth: dict[str, int], tokens: int) -> None:
    assert launched({"speculative-config": {"method": "suffix", **depth}}).speculative_tokens == tokens


def test_fewer_tokens_of_speculation_than_none_are_none() -> None:
    launch = launched({"speculative-config": {"method": "mtp", "num_speculative_tokens": -3}})
    assert launch.speculative_tokens == 0 and not launch.mtp


def test_another_name_of_the_share_of_memory_is_that_share() -> None:
    assert launched({"device-memory-utilization": 0.5}).gpu_memory_utilization == 0.5


@pytest.mark.parametrize(
    ("flags", "length", "tokens", "sequences"),
    [
        ({}, 4096, 8192, 1024),
        ({"performance-mode": "throughput"}, 4096, 16384, 2048),
        ({"performance-mode": "throughput", "max-num-seqs": 64}, 4096, 16384, 64),
        ({"performance-mode": "throughput", "max-num-batched-tokens": "8K"}, 4096, 8192, 2048),
        ({"no-enable-chunked-prefill": True}, 32768, 32768, 1024),
        ({"max-num-seqs": 1}, 4096, 4096, 1),
        ({"max-num-batched-tokens": 512}, 4096, 512, 512),
    ],
)
def test_sizes_of_a_batch_follow_from_each_other_as_in_the_engine(
    flags: dict[str, Any], length: int, tokens: int, sequences: int
) -> None:
    launch = launch_from(flags, {}, "0.32.0", length, 81559, "NVIDIA H100 80GB HBM3")
    assert (launch.max_num_batched_tokens, launch.max_num_seqs) == (tokens, sequences)
    context = changed(HOPPER, version("0.32.0"), {"hardware.memory_mib": 81559, "flags.max-model-len": length})
    context["flags"].update(flags)
    told = RuleContext(context)
    assert told.value("effective", "max_num_batched_tokens") == tokens
    assert told.value("effective", "max_num_seqs") == sequences


def test_the_largest_gpus_have_larger_steps_from_0_33_on() -> None:
    b200 = {"memory_mib": 183359, "product": "NVIDIA B200"}
    assert [launched({}, version, **b200).max_num_batched_tokens for version in ("0.32.0", "0.33.0")] == [8192, 16384]


@pytest.mark.parametrize(
    ("flags", "backend"),
    [
        ({}, None),
        ({"attention-backend": "auto"}, None),
        ({"attention-backend": "flash_attn"}, "FLASH_ATTN"),
        ({"attention-config": {"backend": "FLASHINFER"}}, "FLASHINFER"),
        ({"attention-config": '{"backend": "flashinfer"}'}, "FLASHINFER"),
        ({"attention-config": {"use_cudnn_prefill": False}}, None),
    ],
)
def test_the_backend_of_attention_is_read_as_the_engine_reads_it(flags: dict[str, Any], backend: str | None) -> None:
    assert attention_backend(flags) == backend
    speculation = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}, "kv-cache-dtype": "fp8"}
    assert launched({**speculation, **flags}).full_graphs is (backend == "FLASH_ATTN")


@pytest.mark.parametrize(
    ("flags", "eager", "whole"),
    [
        ({}, False, True),
        ({"enforce-eager": True}, True, True),
        ({"optimization-level": 0}, True, True),
        ({"optimization-level": "O0"}, True, True),
        ({"compilation-config": {"mode": 0}}, True, True),
        ({"compilation-config": {"mode": "NONE"}}, True, True),
        ({"compilation-config": {"mode": 3}}, False, True),
        ({"compilation-config": {"mode": None, "cudagraph_mode": None}}, False, True),
        ({"compilation-config": '{"mode": ' + "[" * 100_000}, False, True),
        ({"compilation-config": '{"mode": ' + "[" * 100_000 + "]" * 100_000 + "}"}, False, True),
        ({"optimization-level": 1}, False, False),
        ({"compilation-config": '{"cudagraph_mode": "piecewise"}'}, False, False),
        ({"optimization-level": 1, "compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}}, False, True),
    ],
)
def test_what_is_compiled_and_captured_follows_from_all_flags_for_it(
    flags: dict[str, Any], eager: bool, whole: bool
) -> None:
    launch = launched(flags)
    assert (launch.enforce_eager, launch.full_graphs) == (eager, whole)


def test_switches_turn_things_off() -> None:
    env = {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}
    launch = launch_from({"no-enable-prefix-caching": True, "enforce-eager": True}, env, "0.26.0", 4096, 81920)
    assert (launch.prefix_caching, launch.enforce_eager, launch.graphs_counted) == (False, True, False)


@pytest.mark.parametrize("flag", ["kv-cache-memory-bytes", "kv-cache-memory"])
def test_bytes_of_kv_cache_are_taken_as_given(flag: str) -> None:
    assert launch_from({flag: "8G"}, {}, "0.26.0", 4096, 81920).kv_cache_memory_bytes == 8 * GIB


def test_a_processor_has_its_space_in_the_environment() -> None:
    launch = launch_from({}, {"VLLM_CPU_KVCACHE_SPACE": "1"}, "0.32.0", 4096)
    assert launch.cpu and launch.kv_cache_memory_bytes == GIB
    assert launch_from({}, {}, "0.32.0", 4096).kv_cache_memory_bytes is None


def test_versions_compare_as_numbers() -> None:
    assert version_numbers("0.26.0+cu129") == (0, 26, 0)
    assert version_numbers("0.9.2") < version_numbers("0.19.1")
