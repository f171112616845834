# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models and launches of which real figures are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture, architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import Gpu
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import Launch

FIXTURES = Path(__file__).parent.parent / "engine" / "fixtures"

HYBRID_27B: dict[str, Any] = {
    "class": "Qwen3_5ForConditionalGeneration",
    "layers": 64,
    "full_attention_layers": 16,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "attention_heads": 24,
    "kv_heads": 4,
    "head_dim": 256,
    "linear_attention": {
        "layers": 48,
        "key_heads": 16,
        "value_heads": 48,
        "key_head_dim": 128,
        "value_head_dim": 128,
        "conv_kernel": 4,
        "state_dtype": "float32",
    },
    "mtp_layers": 1,
    "vision": {"layers": 27, "hidden_size": 1152, "intermediate_size": 4304, "positions": 2304},
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rotary_dim": 64,
    "rope_sections": 3,
    "dtype": "bfloat16",
}

SMOLLM2: dict[str, Any] = {
    "class": "LlamaForCausalLM",
    "layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "attention_heads": 9,
    "kv_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "tied_embeddings": True,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}

A800 = Gpu(81920, host_class="a800_pcie_80g")
H200 = Gpu(143771, reserved_mib=616, host_class="h200_sxm_141g")

S3 = Launch(
    "0.26.0",
    262144,
    model="qwen3.8-27b",
    tensor_parallel=2,
    gpu_memory_utilization=0.95,
    kv_cache_dtype="fp8",
    speculative_method="mtp",
    speculative_tokens=3,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    full_graphs=False,
)
"""Two A800 80GB PCIe with BF16 weights: the log told 45.99 GiB of KV cache."""

H200_MTP2 = Launch(
    "0.26.0",
    131072,
    model="qwen-27b-shape",
    gpu_memory_utilization=0.92,
    speculative_method="mtp",
    speculative_tokens=2,
    max_num_seqs=2,
    max_num_batched_tokens=8192,
    language_model_only=True,
)
"""startup-gpu-v0.26.0.log"""

H200_EAGER = replace(
    H200_MTP2,
    max_model_len=262144,
    gpu_memory_utilization=0.6,
    kv_cache_dtype="fp8_e4m3",
    speculative_tokens=3,
    max_num_seqs=32,
    max_num_batched_tokens=10240,
    enforce_eager=True,
)
"""startup-gpu-fp8-eager-v0.26.0.log"""

H200_VISION_90 = replace(
    H200_MTP2, max_model_len=32768, gpu_memory_utilization=0.90, max_num_seqs=64, language_model_only=False
)
"""startup-gpu-vision-0.90-v0.26.0.log, of driver 580.159.04"""

H200_VISION_70 = replace(H200_VISION_90, max_model_len=131072, gpu_memory_utilization=0.70, max_num_seqs=16)
"""startup-gpu-vision-0.70-v0.26.0.log, of driver 580.159.04"""


def build(content: dict[str, Any], **facts: Any) -> Architecture:
    found = architecture(content, **facts)
    assert found is not None
    return found


def hybrid(**facts: Any) -> Architecture:
    return build(HYBRID_27B, **facts)


def log(name: str) -> list[str]:
    return (FIXTURES / name).read_text(encoding="utf-8").splitlines()
