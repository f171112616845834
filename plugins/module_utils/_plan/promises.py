# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients of a planned instance may expect of it, for acceptance to ask. Private to socle.inference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.effort import aliases_in_force, effort_table
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model

NO_TOOLS = "the plan turns no tools on (flag enable-auto-tool-choice)"
TEXT_ONLY = "the plan turns images off (flag language-model-only)"


def promises(plan: Mapping[str, Any], model: Model | None) -> dict[str, Any]:
    """As option promised of vllm_acceptance takes it. Of a *model* whose file is gone nothing is promised."""
    flags = {name: source["value"] for name, source in plan["sources"].items()}
    lacks = _lacks(plan, model, flags)
    return {
        "lacks": lacks,
        "efforts": {} if model is None or "effort" in lacks else _efforts(plan, model),
        "presets": {} if model is None else {name: dict(values) for name, values in model.sampling.items()},
        "images": None if "vision" in lacks else most_images(flags.get("limit-mm-per-prompt")),
        "slo": dict(plan.get("slo") or {}),
        "gpus": list(plan.get("gpus") or []),
        "unit": f"vllm-{plan.get('instance')}.service",
        "headroom_gib": (plan.get("capacity") or {}).get("headroom_gib"),
    }


def _lacks(plan: Mapping[str, Any], model: Model | None, flags: Mapping[str, Any]) -> dict[str, str]:
    """{what is not to be expected: why}"""
    lacks = {} if "enable-auto-tool-choice" in flags else {"forced tools": NO_TOOLS, "tools": NO_TOOLS}
    if model is None:
        gone = f"the file of model {plan['model']['name']}, which says what it can, is gone or cannot be read"
        return {**dict.fromkeys(("tools", "thinking", "effort", "vision", "sampling"), gone), **lacks}
    for name in ("tools", "thinking", "vision"):
        if name not in model.capabilities:
            lacks.setdefault(name, f"the file of model {model.name} does not count {name} among what it can")
    if "reasoning-parser" not in flags:
        lacks.setdefault("thinking", "no reasoning-parser is planned, so that thoughts are part of the text")
    if flags.get("language-model-only"):
        lacks.setdefault("vision", TEXT_ONLY)
    if most_images(flags.get("limit-mm-per-prompt")) == 0:
        lacks.setdefault("vision", "the plan lets a request have 0 images (flag limit-mm-per-prompt)")
    if not model.effort.levels:
        lacks["effort"] = f"the file of model {model.name} names no levels of effort"
    elif "chat-template" in flags and plan.get("chat_template_overlay") is None:
        lacks["effort"] = "the instance has a chat template of its own, which decides what levels mean"
    if not model.sampling:
        lacks["sampling"] = f"the file of model {model.name} names no presets"
    return lacks


def _efforts(plan: Mapping[str, Any], model: Model) -> dict[str, dict[str, dict[str, Any]]]:
    aliases, by = aliases_in_force(plan)
    table = effort_table(str(plan["vllm_version"]), model.effort, aliases, by)
    return {
        level: {api: {"status": found.status, "effort": found.effort} for api, found in row.items()}
        for level, row in table.items()
    }


def most_images(limit: Any) -> int | None:
    """Images of one request by flag limit-mm-per-prompt, a map or its JSON; None where it does not say."""
    if isinstance(limit, str):
        try:
            limit = json.loads(limit)
        except ValueError:
            return None
    found = limit.get("image") if isinstance(limit, Mapping) else None
    if isinstance(found, Mapping):
        # Newer versions take {"count": 3, "width": 512, ...} as well.
        found = found.get("count")
    return found if isinstance(found, int) and not isinstance(found, bool) else None
