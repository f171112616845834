# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What acceptance asks follows the plan and the model file, and what it does not ask has its reason."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.promises import most_images, promises
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path

CATALOGUE = Catalogue(data_path(None, {}))


def promised(model: str | None = "qwen3.8-27b", **flags: Any) -> dict[str, Any]:
    names = {name.replace("_", "-"): value for name, value in flags.items()}
    plan = {
        "model": {"name": model or "gone"},
        "vllm_version": "0.26.0",
        "sources": {name: {"value": value} for name, value in names.items()},
        "effort_aliases": None,
        "chat_template_overlay": None,
        "slo": {"ttft_10k_ms": 1000},
    }
    return promises(plan, CATALOGUE.model(model) if model else None)


FULL = {"enable_auto_tool_choice": True, "tool_call_parser": "qwen3_coder", "reasoning_parser": "qwen3"}


def test_a_model_that_can_everything_promises_it() -> None:
    found = promised(**FULL)
    assert found["lacks"] == {}
    assert found["efforts"]["high"]["messages"] == {"status": 500, "effort": None}
    assert found["efforts"]["none"]["chat"] == {"status": 200, "effort": "none"}
    assert (set(found["presets"]), found["slo"]) == ({"default"}, {"ttft_10k_ms": 1000})


@pytest.mark.parametrize(
    ("flags", "lacking", "words"),
    [
        ({**FULL, "enable_auto_tool_choice": None}, {"tools", "forced tools"}, "enable-auto-tool-choice"),
        ({**FULL, "reasoning_parser": None}, {"thinking"}, "no reasoning-parser"),
        ({**FULL, "language_model_only": True}, {"vision"}, "language-model-only"),
        ({**FULL, "limit_mm_per_prompt": {"image": 0}}, {"vision"}, "0 images"),
        ({**FULL, "chat_template": "/t.jinja"}, {"effort"}, "chat template of its own"),
    ],
)
def test_what_the_flags_leave_out_is_not_promised(flags: dict[str, Any], lacking: set[str], words: str) -> None:
    found = promised(**{name: value for name, value in flags.items() if value is not None})
    assert set(found["lacks"]) == lacking
    assert all(words in reason for reason in found["lacks"].values())


def test_a_small_model_promises_only_what_a_grammar_forces() -> None:
    found = promised("smollm2-135m-instruct", enable_auto_tool_choice=True, tool_call_parser="hermes")
    assert set(found["lacks"]) == {"tools", "thinking", "vision", "effort", "sampling"}
    assert "does not count tools" in found["lacks"]["tools"]


def test_a_model_without_its_file_promises_nothing_of_its_own() -> None:
    found = promised(None, **FULL)
    assert set(found["lacks"]) == {"tools", "thinking", "effort", "vision", "sampling"}
    assert "is gone or cannot be read" in found["lacks"]["tools"]


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ({"image": 32}, 32),
        ('{"image": 4, "video": 1}', 4),
        ({"image": {"count": 3, "width": 512}}, 3),
        ({"video": 1}, None),
        ("nonsense", None),
        (None, None),
        ({"image": True}, None),
    ],
)
def test_the_most_images_are_read_from_the_flag(limit: Any, most: int | None) -> None:
    assert most_images(limit) == most
