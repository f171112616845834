# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shipped model files against figures of the real deployments, before anything was measured on their hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture, architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity import Capacity, plan_capacity
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

from .models import A800, S3

MODELS = Path(__file__).parents[3] / "profiles" / "models"
NAMES = sorted(path.stem for path in MODELS.glob("*.yml"))


def shipped(name: str) -> Architecture:
    content: dict[str, Any] = yaml.safe_load((MODELS / f"{name}.yml").read_text(encoding="utf-8"))
    found = architecture(content["architecture"], content.get("size_bytes"), content.get("quantization"))
    assert found is not None
    return found


def plan(name: str, **changes: Any) -> Capacity:
    return plan_capacity(shipped(name), replace(S3, model=name, **changes), A800)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_says_enough_for_the_size_of_its_blocks(name: str) -> None:
    capacity = plan_capacity(shipped(name), Launch("0.26.0", 4096, model=name, kv_cache_memory_bytes=GIB), A800)
    assert capacity.kv_tokens


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3.8-27b", "qwen3.8-27b-fp8", "qwen3.6-27b-nvfp4"])
def test_the_27b_models_give_the_logged_tokens(name: str) -> None:
    assert plan(name, kv_cache_memory_bytes=int(45.99 * GIB)).kv_tokens == 2595079


def test_two_a800_with_bf16_weights() -> None:
    capacity = plan("qwen3.8-27b")
    assert capacity.kv_gib_per_gpu == pytest.approx(45.99, abs=0.25)
    assert capacity.weights_gib_per_gpu == pytest.approx(26.08, abs=0.05)


def test_two_a800_with_fp8_weights() -> None:
    """Its log told 3.217 M tokens."""
    assert plan("qwen3.8-27b-fp8").kv_tokens == pytest.approx(3217000, rel=0.01)


def test_two_a800_with_the_mixture_of_experts() -> None:
    """The report tells 3.55 M tokens and no settings; with those of its other models, and bf16 in the cache, they come
    out."""
    assert plan("qwen3.6-35b-a3b", kv_cache_dtype="auto").kv_tokens == pytest.approx(3550000, rel=0.01)
