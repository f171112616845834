# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What surrounds an engine on its host: container engine, driver, units that it needs. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import digest

FABRIC_MANAGER = "nvidia-fabricmanager.service"


def host_engine(facts: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Name and version of the container engine *name*, by default of the one that the facts prefer."""
    preferred = facts.get("engine") or {}
    if name is None or name == preferred.get("name"):
        return {"name": preferred.get("name"), "version": preferred.get("version")}
    return {"name": name, "version": (facts.get("engines") or {}).get(name)}


def units_needed(facts: Mapping[str, Any]) -> list[str]:
    """Units without which no GPU of the host can be used: the fabric manager where there are NVSwitches."""
    return [FABRIC_MANAGER] if facts.get("nvswitches") or facts.get("nvlink5") else []


def environment_fingerprint(facts: Mapping[str, Any], engine_name: str | None = None) -> str:
    """What surrounds the engine: its change makes an acceptance stale, but restarts nothing.

    *engine_name* is the container engine that runs it, by default the one that the facts prefer.
    """
    engine = host_engine(facts, engine_name)
    return digest(
        {
            "driver": (facts.get("driver") or {}).get("version"),
            "toolkit": (facts.get("toolkit") or {}).get("version"),
            "engine": [engine.get("name"), engine.get("version")],
            "kernel": facts.get("kernel"),
        }
    )
