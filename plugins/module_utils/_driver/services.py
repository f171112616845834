# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stops units around a change of the driver, and starts them again even by a later run. Private to socle.inference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import (
    Files,
    Runner,
    explaining,
    read_noted,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import parse_units

NOTE = "var/lib/socle/gpu_driver_stopped.json"
"""Units that are stopped until the driver runs again; not below /run, since the change may need a reboot, which starts
enabled units only."""

STOP_S = 1800.0
"""For systemctl alone: what it waits for has limits of its own."""

RUNNING = ("active", "activating", "reloading")


def noted_units(files: Files, root: Path) -> list[str]:
    """Units that a run has stopped and not started again; none by a note that is damaged or cannot be read."""
    try:
        content = read_noted(files, root / NOTE)
    except OSError:
        return []
    units = content.get("units") if isinstance(content, dict) else None
    return sorted({unit for unit in units if _is_name(unit)}) if isinstance(units, list) else []


def _is_name(unit: Any) -> bool:
    # systemctl would take it for an option.
    return isinstance(unit, str) and bool(unit) and not unit.startswith("-")


class Services:
    """The units of one host that use its GPUs."""

    def __init__(self, run: Runner, files: Files, root: Path = Path("/")) -> None:
        self._run, self._files, self._root = run, files, root

    def stop(self, units: Sequence[str], *, check: bool = False) -> dict[str, Any]:
        """Note units, then stop them. Raises SocleError where either fails; what is noted then is started again."""
        if units and not check:
            self._write(sorted({*noted_units(self._files, self._root), *units}))
            done = self._run(["systemctl", "stop", "--", *units], timeout_s=STOP_S)
            if done.returncode != 0:
                raise DriverError(
                    f"Cannot stop {', '.join(units)} for the change of the driver: {_said(done.stderr)}; see 'systemctl"
                    f" status {units[0]}', then repeat the run."
                )
        return {"changed": bool(units), "units": sorted(units), "gone": []}

    def start(self, *, check: bool = False) -> dict[str, Any]:
        """Start what is noted, without waiting for it, and forget the note; what runs or is gone is left alone.

        Raises SocleError where that fails; the note stays then.
        """
        noted = noted_units(self._files, self._root)
        states = self._states(noted)
        there = {unit for unit in noted if states.get(unit, {}).get("LoadState") == "loaded"}
        idle = sorted(unit for unit in there if states[unit].get("ActiveState") not in RUNNING)
        if idle and not check:
            # Without waiting: an engine loads its model for minutes, and its readiness is proven elsewhere.
            done = self._run(["systemctl", "start", "--no-block", "--", *idle])
            if done.returncode != 0:
                raise DriverError(
                    f"Cannot start {', '.join(idle)} again, which a change of the driver had stopped:"
                    f" {_said(done.stderr)}; see 'systemctl status {idle[0]}', then repeat the run, which tries again."
                )
        self.forget(check=check)
        return {"changed": bool(idle), "units": idle, "gone": sorted(set(noted) - there)}

    def forget(self, *, check: bool = False) -> dict[str, Any]:
        """Leave what is noted stopped for good, as where the driver is removed."""
        if not check:
            with explaining("clear the note of units that were stopped"):
                self._files.remove(self._root / NOTE)
        return {"changed": False, "units": [], "gone": []}

    def _states(self, units: Sequence[str]) -> dict[str, dict[str, str]]:
        if not units:
            return {}
        shown = self._run(["systemctl", "show", "--property=Id,LoadState,ActiveState", "--", *units])
        return parse_units(shown.stdout)

    def _write(self, units: Sequence[str]) -> None:
        with explaining("note which units are stopped"):
            self._files.write(self._root / NOTE, json.dumps({"units": units}, indent=1) + "\n", mode=0o600)


def _said(stderr: str) -> str:
    return " ".join(stderr.split()).rstrip(".") or "systemctl says nothing"
