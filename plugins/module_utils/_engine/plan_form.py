# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What launches go by in a plan, and whether it is there as a plan has it. Private to socle.inference.

A plan comes from a file that somebody may have edited, and from whoever calls a module by himself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.select import ENGINES
from ansible_collections.socle.inference.plugins.module_utils._units import control_character, path_fault

REQUIRED = ("argv", "port")
"""What is read of every plan that was launched."""

RENDERED = (*REQUIRED, "image")
"""What no unit can be without."""

LONGEST_S = 10**9
"""Of a time limit: some 30 years. systemd refuses much longer ones."""

LARGEST_BYTES = 2**63 - 1

_KINDS: Mapping[str, tuple[Any, Any]] = {
    "argv": (list, str),
    "mounts": (list, dict),
    "secrets": (list, dict),
    "served_names": (list, str),
    "gpus": (list, (int, str)),
    "requires": (list, str),
    "port": (int, None),
    "shm_size_bytes": (int, None),
    "start_timeout_s": (int, None),
    "env": (dict, (int, float, str)),
    "model": (dict, None),
    "sources": (dict, dict),
    "env_sources": (dict, dict),
    "image_source": (dict, None),
    "image": (str, None),
    "network": (str, None),
    "engine": (str, None),
    "launch_fingerprint": (str, None),
}
"""Its kind, and that of what it holds. Each may be null, and may be missing but for REQUIRED."""

_LIMITS = {"port": 65535, "shm_size_bytes": LARGEST_BYTES, "start_timeout_s": LONGEST_S}
"""The largest of each number, which is at least 1."""


def plan_fault(plan: Mapping[str, Any], where: str, required: Sequence[str] = REQUIRED) -> str | None:
    """What in a plan no launch could go by, "argv of <where> is ..."; None where nothing is."""
    for key, (kind, inner) in _KINDS.items():
        value = plan.get(key)
        if value is None:
            if key in required:
                return f"{key} of {where} is missing"
            continue
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        wrong = not isinstance(value, kind) or isinstance(value, bool)
        if wrong or (inner is not None and not all(isinstance(item, inner) for item in held)):
            return f"{key} of {where} is not what a plan has there"
        if key in _LIMITS and not 0 < value <= _LIMITS[key]:
            return f"{key} of {where} is not from 1 to {_LIMITS[key]}"
    if plan.get("engine") not in (None, *ENGINES):
        return f"engine of {where} is none of {', '.join(ENGINES)}"
    parts = {"mounts": ("kind", "source", "target"), "secrets": ("name", "target")}
    return next(filter(None, (_lack(key, plan, where, needed) for key, needed in parts.items())), None)


def _lack(key: str, plan: Mapping[str, Any], where: str, needed: Sequence[str]) -> str | None:
    for item in plan.get(key) or []:
        for part in needed:
            if not isinstance(item.get(part), str):
                return f"{key} of {where} have no {part}"
            if part in ("source", "target") and key == "mounts" and path_fault(item[part]):
                return f"{part} of {key} of {where} is no path"
            if control_character(item[part]):
                return f"{part} of {key} of {where} has a control character"
    return None
