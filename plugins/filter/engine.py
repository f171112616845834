# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container engine runs the instances of a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.select import select
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError


def choose_engine(facts: Mapping[str, Any], wanted: str = "auto", host: str = "this host") -> dict[str, str | None]:
    """The engine by gpu_facts, or a fault: a filter that fails would bury its sentence in Ansible's own words."""
    preferred = facts.get("engine") or {}
    engines = facts.get("engines") or {preferred.get("name"): preferred.get("version")}
    try:
        return {"engine": select(wanted, engines, bool(facts.get("gpus")), host), "fault": None}
    except EngineError as error:
        return {"engine": None, "fault": error.message}


def engine_due(
    facts: Mapping[str, Any], instances: Any, driver_state: str = "present", toolkit_state: str = "present"
) -> bool:
    """Whether a host is to have a container engine: not one that gives its driver and toolkit up and runs nothing."""
    engines = facts.get("engines") or {}
    wanted = driver_state != "absent" or toolkit_state != "absent" or bool(instances)
    return wanted or any(version is not None for version in engines.values())


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"choose_engine": choose_engine, "engine_due": engine_due}
