# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flags of three systems in production, on every version: what each of them takes."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Check

VERSIONS = ("0.19.1", "0.23.0", "0.26.0", "0.32.0", "0.33.0")

A100: dict[str, Any] = {
    "tensor-parallel-size": 2,
    "max-model-len": 131072,
    "max-num-seqs": 2,
    "gpu-memory-utilization": 0.92,
    "language-model-only": True,
    "reasoning-parser": "qwen3",
    "enable-prefix-caching": True,
    "speculative-config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 2},
}
"""Two A100 SXM4 80 GB, Qwen3.6-27B, in use with 0.19.1."""

PRO6000: dict[str, Any] = {
    "gpu-memory-utilization": 0.60,
    "kv-cache-dtype": "fp8_e4m3",
    "max-num-seqs": 32,
    "max-num-batched-tokens": 10240,
    "max-model-len": 262144,
    "enable-prefix-caching": True,
    "enable-chunked-prefill": True,
    "mm-processor-cache-type": "shm",
    "limit-mm-per-prompt": {"image": 32},
    "trust-remote-code": True,
    "reasoning-parser": "qwen3",
    "enable-auto-tool-choice": True,
    "tool-call-parser": "qwen3_coder",
    "tensor-parallel-size": 1,
    "dtype": "bfloat16",
    "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
}
"""One RTX PRO 6000, Qwen3.6-27B NVFP4, in use with 0.23.0."""

A800: dict[str, Any] = {
    "tensor-parallel-size": 2,
    "max-model-len": 262144,
    "gpu-memory-utilization": 0.95,
    "trust-remote-code": True,
    "enable-prefix-caching": True,
    "enable-chunked-prefill": True,
    "watermark": 0.1,
    "max-num-batched-tokens": 8192,
    "max-num-seqs": 256,
    "enable-auto-tool-choice": True,
    "tool-call-parser": "qwen3_coder",
    "reasoning-parser": "qwen3",
    "kv-cache-dtype": "fp8",
    "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
    "hf-overrides": {"text_config": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}},
}
"""Two A800 PCIe 80 GB, Qwen3.8-27B, in use with 0.26.0."""


def said(check: Check, version: str, flags: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding.id, finding.subject) for finding in check(version, flags)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a100(check: Check, version: str) -> None:
    expected = {("SOC-F07", "speculative-config.method")}
    if version != "0.19.1":
        # Since then it is the default; 0.19.1 has 0.90.
        expected.add(("SOC-F15", "gpu-memory-utilization"))
    assert said(check, version, A100) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_pro6000(check: Check, version: str) -> None:
    assert said(check, version, PRO6000) == {
        ("SOC-F15", "tensor-parallel-size"),
        ("SOC-F15", "enable-chunked-prefill"),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_pro6000_with_the_other_tool_parser(check: Check, version: str) -> None:
    flags = {**PRO6000, "tool-call-parser": "qwen3_xml", "gpu-memory-utilization": 0.55, "speculative-config": None}
    assert not [finding for finding in check(version, flags) if finding.id != "SOC-F15"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a800(check: Check, version: str) -> None:
    expected = {("SOC-F15", "enable-chunked-prefill")}
    if version in ("0.19.1", "0.23.0"):
        expected.add(("SOC-F09", "watermark"))
    assert said(check, version, A800) == expected


def test_the_model_as_an_option_works_and_is_deprecated(check: Check) -> None:
    assert said(check, "0.19.1", {"model": "/models/Qwen3.6-27B"}) == {("SOC-F07", "model")}


def test_one_parser_under_two_names_since_0_26(schemas: dict[str, Any]) -> None:
    for version in VERSIONS:
        parsers = schemas[version].parser_classes["tool_parsers"]
        assert (parsers["qwen3_coder"] == parsers["qwen3_xml"]) is (version not in ("0.19.1", "0.23.0"))
