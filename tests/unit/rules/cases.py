# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""For every rule a plan that triggers it, and the smallest change after which it does not.

A case is (changes of BASE, further changes); a path that is changed to None is taken out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

BASE: dict[str, Any] = {
    "model": {
        "name": "qwen3.6-27b",
        "architecture": "Qwen3_5ForConditionalGeneration",
        "family": "qwen3.6",
        "hybrid": True,
        "moe": False,
        "vision": True,
        "mtp_layers": 1,
        "native_context": 262144,
        "attention_heads": 24,
        "kv_heads": 4,
        "quantization": "none",
        "trust_remote_code_needed": False,
    },
    "hardware": {
        "class": "a800_pcie_80g",
        "family": "a800",
        "architecture": "ampere",
        "compute_capability": 8.0,
        "memory_mib": 81920,
        "link": "nvlink_optional",
        "worst_path": "NV8",
        "fp8": False,
        "fp4": False,
        "peer_to_peer": True,
        "gpus": 2,
        "gpus_on_host": 2,
    },
    "driver": {"version": "580.159.03", "branch": 580, "flavour": "open", "cuda": "13.0"},
    "engine": {
        "name": "podman",
        "version": "5.4.2",
        "vllm_version": "0.26.0",
        "image": "registry.example/vllm:v0.26.0",
        "image_cuda": "13.0",
        "injection": "cdi",
    },
    "flags": {
        "tensor-parallel-size": 2,
        "max-model-len": 262144,
        "no-enable-prefix-caching": True,
        "reasoning-parser": "qwen3",
        "shutdown-timeout": 60,
    },
    "env": {},
    "instance": {
        "name": "chat",
        "port": 8000,
        "expose": "loopback",
        "api_key": True,
        "network": "host",
        "ipc": "private",
        "shm_size_bytes": 17179869184,
        "effort_aliases": False,
    },
    "capacity": {"kv_tokens": 2595079, "blocks": 1772, "block_tokens": 1600, "headroom_gib": 3.5},
}
"""A plan without anything to remark."""

Changes = Mapping[str, Any]

MTP = {"flags.speculative-config": {"method": "mtp", "num_speculative_tokens": 1}}
NGRAM = {"flags.speculative-config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}
PREFIX = {"flags.no-enable-prefix-caching": None, "flags.enable-prefix-caching": True}
TOOLS = {"flags.enable-auto-tool-choice": True, "flags.tool-call-parser": "qwen3_coder"}
FP8_KV = {"flags.kv-cache-dtype": "fp8"}
OPEN = {"instance.expose": "all"}
RTX_PRO = {
    "hardware.class": "rtx_pro_6000",
    "hardware.family": "rtx_pro_6000",
    "hardware.architecture": "blackwell",
    "hardware.compute_capability": 12.0,
    "hardware.memory_mib": 97887,
    "hardware.link": "pcie",
    "hardware.fp8": True,
    "hardware.fp4": True,
}
HOPPER = {"hardware.class": "h200_sxm_141g", "hardware.family": "h200", "hardware.compute_capability": 9.0}


def version(number: str) -> dict[str, Any]:
    return {"engine.vllm_version": number}


CASES: dict[str, tuple[Changes, Changes]] = {
    "SOC-R01": ({**MTP, **PREFIX, **version("0.25.1")}, {"flags.speculative-config": None}),
    "SOC-R02": ({**MTP, **PREFIX, **version("0.26.0")}, {"flags.enable-prefix-caching": False}),
    "SOC-R03": ({**MTP, **PREFIX, **version("0.19.1")}, {"model.hybrid": False}),
    "SOC-R04": ({**MTP, **TOOLS, **version("0.23.0")}, version("0.24.0")),
    "SOC-R05": ({**NGRAM, **TOOLS}, {"flags.enable-auto-tool-choice": None}),
    "SOC-R06": (
        {"flags.speculative-config": '{"method": "mtp", "num_speculative_tokens": 3}'},
        {"flags.speculative-config": '{"method": "mtp", "num_speculative_tokens": 1}'},
    ),
    "SOC-R07": ({**MTP, "model.mtp_layers": 0}, {"model.mtp_layers": 1}),
    "SOC-R08": ({"flags.speculative-config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 1}}, MTP),
    "SOC-R09": (
        {"flags.speculative-config": {"method": "mtp", "num_speculative_tokens_per_batch_size": {"1": 3}}},
        MTP,
    ),
    "SOC-R10": ({**MTP, **version("0.27.1")}, {"flags.max-model-len": "64K"}),
    "SOC-R11": ({**MTP, **TOOLS}, {"flags.speculative-config": None}),
    "SOC-R12": ({"flags.enable-auto-tool-choice": True}, {"flags.tool-call-parser": "qwen3_coder"}),
    "SOC-R13": ({"flags.tool-call-parser": "qwen3_coder"}, {"flags.enable-auto-tool-choice": True}),
    "SOC-R14": ({"model.family": "qwen3.8", **version("0.26.0")}, {"flags.chat-template": "/templates/own.jinja"}),
    "SOC-R15": (
        {"model.family": "qwen3.8", **version("0.33.0")},
        {"flags.reasoning-effort-map": {"high": "xhigh"}},
    ),
    "SOC-R16": ({**TOOLS, **version("0.23.0")}, {"env.VLLM_ENFORCE_STRICT_TOOL_CALLING": "1"}),
    "SOC-R17": (
        {**version("0.23.0"), "env.VLLM_ENFORCE_STRICT_TOOL_CALLING": "true"},
        {"env.VLLM_ENFORCE_STRICT_TOOL_CALLING": 1},
    ),
    "SOC-R18": (
        {**version("0.23.0"), "flags.tool-call-parser": "qwen3_xml", "env.VLLM_ENFORCE_STRICT_TOOL_CALLING": 1},
        {"flags.tool-call-parser": "qwen3_coder"},
    ),
    "SOC-R19": ({"flags.reasoning-parser": None}, {"model.family": "smollm2"}),
    "SOC-R20": ({"flags.trust-remote-code": True}, {"model.trust_remote_code_needed": None}),
    "SOC-R21": ({"model.trust_remote_code_needed": True}, {"flags.trust-remote-code": True}),
    "SOC-R22": (
        {"flags.language-model-only": True, "flags.limit-mm-per-prompt": {"image": 4}},
        {"flags.limit-mm-per-prompt": None},
    ),
    "SOC-R23": ({"model.quantization": "fp8"}, {"hardware.compute_capability": 8.9}),
    "SOC-R24": (FP8_KV, {"flags.attention-backend": "FLASHINFER"}),
    "SOC-R25": ({**FP8_KV, **RTX_PRO}, {"hardware.compute_capability": 9.0}),
    "SOC-R26": (
        {"flags.kv-cache-dtype": "fp8_e4m3", "flags.attention-backend": "FLASH_ATTN"},
        {"hardware.compute_capability": 9.0},
    ),
    "SOC-R27": ({**FP8_KV, "flags.attention-backend": "TRITON_ATTN"}, {"hardware.compute_capability": 8.9}),
    "SOC-R28": (FP8_KV, {"flags.kv-cache-dtype": "auto"}),
    "SOC-R29": ({"flags.calculate-kv-scales": True}, {"model.hybrid": False}),
    "SOC-R30": ({"flags.calculate-kv-scales": True, **version("0.28.0")}, version("0.27.1")),
    "SOC-R31": ({**FP8_KV, "flags.max-model-len": 32768}, {"flags.max-model-len": 65536}),
    "SOC-R32": ({**FP8_KV, **HOPPER}, {"hardware.compute_capability": 10.0}),
    "SOC-R33": ({"model.quantization": "nvfp4"}, RTX_PRO),
    "SOC-R34": ({"model.quantization": "nvfp4", **RTX_PRO}, {"flags.linear-backend": "marlin"}),
    "SOC-R35": ({"flags.kv-cache-dtype": "nvfp4", **RTX_PRO}, {"hardware.compute_capability": 10.0}),
    "SOC-R36": ({"hardware.compute_capability": 7.5, "flags.dtype": "bfloat16"}, {"flags.dtype": "half"}),
    "SOC-R37": ({"env.VLLM_BATCH_INVARIANT": "1"}, {"model.hybrid": False}),
    "SOC-R38": (
        {"env.VLLM_BATCH_INVARIANT": "1", "hardware.compute_capability": 7.5},
        {"hardware.compute_capability": 8.0},
    ),
    "SOC-R39": ({"flags.enable-expert-parallel": True}, {"model.moe": True}),
    "SOC-R40": ({"flags.enable-expert-parallel": True, "hardware.gpus": 1}, {"hardware.gpus": 2}),
    "SOC-R41": (
        {"flags.max-model-len": 524288},
        {"flags.hf-overrides": {"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}}},
    ),
    "SOC-R42": (
        {"flags.max-model-len": 524288, "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
        {"env.VLLM_ALLOW_LONG_MAX_MODEL_LEN": None},
    ),
    "SOC-R43": (
        {"flags.hf-overrides": '{"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}'},
        {"flags.max-model-len": 524288},
    ),
    "SOC-R47": ({"flags.gpu-memory-utilization": 0.98}, {"flags.gpu-memory-utilization": 0.95}),
    "SOC-R48": ({"capacity.headroom_gib": 0.5}, {"capacity.headroom_gib": 1}),
    "SOC-R49": (
        {"env.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"},
        {"flags.gpu-memory-utilization": 0.85},
    ),
    "SOC-R50": ({"capacity.blocks": 100, "flags.max-num-seqs": 32}, {"flags.max-num-seqs": 8}),
    "SOC-R51": ({"flags.watermark": 0.1, **version("0.23.0")}, version("0.24.0")),
    "SOC-R52": ({"flags.watermark": 0.1}, {"flags.watermark": 0.0}),
    "SOC-R53": ({"flags.kv-cache-memory-bytes": "40G"}, {"flags.kv-cache-memory-bytes": None}),
    "SOC-R54": (
        {"flags.no-enable-prefix-caching": None, **version("0.27.1")},
        {"flags.no-enable-prefix-caching": True},
    ),
    "SOC-R55": ({"flags.no-enable-prefix-caching": None, **version("0.28.0")}, {"model.hybrid": False}),
    "SOC-R56": ({"flags.mamba-cache-mode": "all", **version("0.32.0")}, {"flags.mamba-cache-mode": "align"}),
    "SOC-R57": ({"flags.mamba-cache-mode": "align", **version("0.33.0")}, version("0.32.0")),
    "SOC-R58": (PREFIX, {"flags.enable-prompt-tokens-details": True}),
    "SOC-R59": ({"driver.version": "575.57.08", "driver.branch": 575}, {"engine.image_cuda": "12.9"}),
    "SOC-R60": ({"engine.image_cuda": "12.9", "driver.branch": 520}, {"driver.branch": 525}),
    "SOC-R61": ({"env.VLLM_ENABLE_CUDA_COMPATIBILITY": 1}, {"driver.branch": 575}),
    "SOC-R62": (
        {**RTX_PRO, "env.VLLM_ENABLE_CUDA_COMPATIBILITY": 1, "driver.branch": 575},
        {"hardware.family": "a800"},
    ),
    "SOC-R64": ({"hardware.worst_path": "PIX"}, {"env.NCCL_P2P_DISABLE": "1", "flags.disable-custom-all-reduce": True}),
    "SOC-R65": ({"env.NCCL_P2P_DISABLE": "1"}, {"flags.disable-custom-all-reduce": True}),
    "SOC-R66": ({"hardware.peer_to_peer": False}, {"flags.tensor-parallel-size": 1}),
    "SOC-R67": ({"hardware.link": "nvlink", "env.NCCL_P2P_DISABLE": "1"}, {"env.NCCL_P2P_DISABLE": "0"}),
    "SOC-R68": ({"hardware.worst_path": "SYS"}, {"hardware.worst_path": "NV12"}),
    "SOC-R69": ({"hardware.worst_path": "NODE"}, {"hardware.worst_path": None}),
    "SOC-R70": ({"flags.tensor-parallel-size": 5}, {"flags.tensor-parallel-size": 8}),
    "SOC-R71": ({"flags.tensor-parallel-size": 6}, {"flags.tensor-parallel-size": 8}),
    "SOC-R72": ({"flags.tensor-parallel-size": 8}, {"flags.tensor-parallel-size": 4}),
    "SOC-R75": ({"instance.shm_size_bytes": 67108864}, {"instance.shm_size_bytes": 167772160}),
    "SOC-R76": ({"instance.shm_size_bytes": 536870912}, {"flags.tensor-parallel-size": 1}),
    "SOC-R77": (
        {"flags.mm-processor-cache-type": "shm", "instance.shm_size_bytes": 1073741824},
        {"flags.mm-processor-cache-gb": 0.5},
    ),
    "SOC-R78": ({"hardware.gpus_on_host": 8}, {"env.CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    "SOC-R79": ({"flags.device-ids": "0,1"}, {"flags.device-ids": None}),
    "SOC-R80": ({**OPEN, "instance.api_key": False}, {"instance.expose": "loopback"}),
    "SOC-R81": ({**OPEN, "env.VLLM_SERVER_DEV_MODE": "1"}, {"env.VLLM_SERVER_DEV_MODE": "0"}),
    "SOC-R82": ({"env.VLLM_SERVER_DEV_MODE": "1"}, {"env.VLLM_SERVER_DEV_MODE": None}),
    "SOC-R83": (OPEN, {"flags.allowed-origins": ["http://chat.example"]}),
    "SOC-R84": ({**OPEN, **version("0.32.0")}, {"flags.allowed-origins": ["*"]}),
    "SOC-R85": ({"flags.enforce-eager": True}, {"hardware.class": "cpu", "hardware.gpus": 0}),
    "SOC-R86": ({"env.VLLM_DISABLE_COMPILE_CACHE": "1"}, {"env.VLLM_DISABLE_COMPILE_CACHE": "0"}),
    "SOC-R87": ({"flags.shutdown-timeout": None}, {"flags.shutdown-timeout": 30}),
    "SOC-R88": ({"flags.disable-log-stats": True}, {"flags.disable-log-stats": None}),
    "SOC-R89": ({"flags.enable-sleep-mode": True}, {"env.VLLM_SERVER_DEV_MODE": "1"}),
    "SOC-R90": ({"flags.tool-call-parser": "hermes"}, {"model.family": "qwen3"}),
    "SOC-R91": ({**RTX_PRO, "engine.image_cuda": "12.6"}, {"engine.image_cuda": "12.9"}),
    "SOC-R92": ({"hardware.compute_capability": 7.0}, {"engine.image_cuda": "12.9"}),
    "SOC-R93": (MTP, {"flags.no-async-scheduling": True}),
    "SOC-R94": ({**MTP, **RTX_PRO}, {"model.hybrid": False}),
    "SOC-R95": (
        {"env.VLLM_ENABLE_CUDA_COMPATIBILITY": 1, "driver.version": "575.57.08", "driver.branch": 575},
        {"engine.image_cuda": "12.9"},
    ),
    "SOC-R96": ({"flags.spec-method": "mtp"}, {"flags.spec-tokens": 1}),
    "SOC-R97": ({"flags.max-num-batched-tokens": "2K", "flags.max-num-seqs": 2049}, {"flags.max-num-seqs": 2048}),
    "SOC-R98": (
        {"flags.no-enable-chunked-prefill": True, "flags.max-num-batched-tokens": 8192},
        {"flags.max-num-batched-tokens": "256K"},
    ),
}


def changed(*changes: Changes) -> dict[str, Any]:
    """BASE with the changes, later ones over earlier ones."""
    context = copy.deepcopy(BASE)
    for change in changes:
        for path, value in change.items():
            top, dot, name = path.partition(".")
            if not dot:
                context[top] = value
            elif value is None:
                context[top].pop(name, None)
            else:
                context[top][name] = value
    return context
