# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All instances of a host as they are now, from their generations and their units. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import NAME, Backend
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import (
    History,
    overrides_of,
    read_history,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._engine.select import engine_of


def list_instances(backend: Backend, instances_dir: Path, files: Files) -> tuple[dict[str, Any], list[str]]:
    """All instances of the host, with warnings about what is there and cannot be read."""
    with explaining("list the instances of this host", instances_dir):
        return _list_instances(backend, instances_dir, files)


def _list_instances(backend: Backend, instances_dir: Path, files: Files) -> tuple[dict[str, Any], list[str]]:
    warnings: list[str] = []
    histories: dict[str, History] = {}
    try:
        entries = sorted(instances_dir.iterdir(), key=lambda path: path.name)
    except FileNotFoundError:
        entries = []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not entry.is_dir() or not NAME.fullmatch(entry.name):
            warnings.append(f"{entry} is not the folder of an instance: ignored.")
            continue
        history = read_history(entry, files)
        warnings.extend(history.warnings)
        if history.current is None:
            if [path.name for path in entry.iterdir()] == [".lock"]:
                continue  # a first launch that was refused
            warnings.append(f"{entry} has no current generation (a launch that did not get far, or foreign): ignored.")
            continue
        histories[entry.name] = history
    states = backend.states(histories)
    result = {}
    for name, history in histories.items():
        current = history.generations[history.current or 0]
        state = states[name]
        result[name] = {
            "generation": current.number,
            "status": history.status(current.number),
            "failed_reason": current.state.get("reason") if current.failed else None,
            "accepted_generation": history.accepted,
            "generations": sorted(history.generations),
            "launch_fingerprint": current.fingerprint,
            "environment_fingerprint": current.plan.get("environment_fingerprint"),
            "engine": engine_of(current.plan),
            "restores": current.restores,
            "overrides": overrides_of(current.plan),
            "plan": current.plan,
            "unit_active": state.active,
            "unit_sub": state.sub,
            "restarts": state.restarts,
            "since": current.state.get("started_at"),
            "active_since_monotonic_us": state.active_us if state.active == "active" else None,
        }
    return result, warnings
