# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts watchdogs on a host and takes them away. Private to socle.inference."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import check_name
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, Runner, explaining
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import MANAGED
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._watchdog import program, units
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

ROOT = "ansible_collections.socle.inference.plugins.module_utils"

MODULES = (
    "_clock",
    "_engine.backend",
    "_engine.host_io",
    "_engine.unit",
    "_errors",
    "_exposition",
    "_records.files",
    "_records.schema",
    "_units",
    "_watchdog.bounds",
    "_watchdog.canary",
    "_watchdog.commands",
    "_watchdog.evidence",
    "_watchdog.host",
    "_watchdog.http",
    "_watchdog.incident",
    "_watchdog.judge",
    "_watchdog.launch",
    "_watchdog.observation",
    "_watchdog.processes",
    "_watchdog.program",
    "_watchdog.redaction",
    "_watchdog.settings",
    "_watchdog.units",
    "_watchdog.watch",
)
"""All that the program imports of the collection, below ROOT."""

MAIN = f"""{MANAGED}: changes made here are overwritten
import sys

from {ROOT}._watchdog.program import main

sys.exit(main(sys.argv))
"""

NEEDED_PYTHON = (3, 9)

ENTRY = program.main
"""Named here so that Ansible brings the program, with all that it imports, to the host."""


def program_files() -> dict[str, str]:
    """{path below the program's folder: text}."""
    files = {"__main__.py": MAIN}
    for module in MODULES:
        parts = f"{ROOT}.{module}".split(".")
        # By its loader, since Ansible brings modules to a host in a zip file.
        spec = importlib.util.find_spec(".".join(parts))
        read: Callable[[str], str | None] = getattr(spec and spec.loader, "get_source", lambda name: None)
        source = read(".".join(parts))
        if source is None:
            raise EngineError(f"The watchdog's module {module} is not part of this run, which is a fault of socle.")
        files["/".join(parts) + ".py"] = source
        for depth in range(1, len(parts)):
            # Whole packages: with a namespace package an Ansible that the host has could come first.
            files.setdefault("/".join([*parts[:depth], "__init__.py"]), "")
    return files


class Installer:
    """Makes the host's watchdogs what they should be."""

    def __init__(
        self,
        runner: Runner,
        files: Files,
        *,
        program_dir: Path,
        python: str,
        check: bool = False,
        unit_dir: Path = units.UNIT_DIR,
    ) -> None:
        self._runner = runner
        self._files = files
        self._program_dir = program_dir
        self._python = python
        self._check = check
        self._unit_dir = unit_dir

    def present(self, settings: Settings) -> dict[str, Any]:
        """Install the program, its units and the settings of one instance; start the watchdog, anew where needed."""
        instance = check_name(settings.instance)
        with explaining(f"install the watchdog of {instance}", self._program_dir):
            self._check_python()
            wanted = program_files()
            template = units.template_text(self._python, str(self._program_dir), settings.state_dir)
            changed = self._sync_program(wanted)
            unit_texts = {units.TEMPLATE: template, units.ALARM: units.alarm_text()}
            reload = [name for name, text in unit_texts.items() if self._write(self._unit_dir / name, text, 0o644)]
            changed += reload
            folder = Path(settings.state_dir) / "watchdog" / instance
            if not self._check:
                folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            if self._write(folder / "settings.json", settings.text(), 0o640):
                changed.append("settings")
            if reload:
                self._systemctl("daemon-reload")
            unit = units.service(instance)
            enabled, active = self._states(unit)
            if not enabled:
                changed.append("enabled")
                self._systemctl("enable", unit)
            if not active or changed:
                changed.append("started")
                # What was started before it was written anew still runs the old program.
                self._systemctl("restart", unit)
        return {"changed": bool(changed), "changes": sorted(set(changed)), "unit": unit}

    def absent(self, instance: str, state_dir: Path) -> dict[str, Any]:
        """Stop the watchdog of one instance and forget it; with the last one the program goes too."""
        check_name(instance)
        changed: list[str] = []
        with explaining(f"remove the watchdog of {instance}", self._program_dir):
            unit = units.service(instance)
            folder = state_dir / "watchdog" / instance
            enabled, active = self._states(unit)
            if enabled or active:
                changed.append("stopped")
                self._systemctl("disable", "--now", unit)
            if folder.is_dir():
                changed.append("settings")
                if not self._check:
                    for entry in sorted(folder.iterdir()):
                        entry.unlink()
                    folder.rmdir()
                    self._runner(["systemctl", "reset-failed", units.alarm(instance)])
            if not self._others(state_dir / "watchdog", instance):
                changed += self._remove_program()
        return {"changed": bool(changed), "changes": sorted(set(changed)), "unit": unit}

    def _check_python(self) -> None:
        done = self._runner([self._python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        text = done.stdout.strip()
        version = tuple(int(part) for part in text.split(".")) if text.replace(".", "").isdigit() else ()
        if version < NEEDED_PYTHON:
            raise EngineError(
                f"The watchdog cannot run with {self._python}: found {text or done.stderr.strip() or 'nothing'},"
                " expected Python 3.9 or newer; set watchdog_host_python."
            )

    def _sync_program(self, wanted: Mapping[str, str]) -> list[str]:
        """Write what differs and remove what is no longer part of it; never what somebody else put there."""
        folder = self._program_dir / "ansible_collections"
        found = sorted(folder.rglob("*.py")) if folder.is_dir() else []
        stale = [path for path in found if path.relative_to(self._program_dir).as_posix() not in wanted]
        differ = {path: text for path, text in wanted.items() if self._files.read(self._program_dir / path) != text}
        if not self._check:
            for path in stale:
                path.unlink()
            for name, text in sorted(differ.items()):
                target = self._program_dir / name
                target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._files.write(target, text, mode=0o644)
        return ["program"] if stale or differ else []

    def _remove_program(self) -> list[str]:
        changed = []
        for name in (units.TEMPLATE, units.ALARM):
            if self._files.read(self._unit_dir / name) is not None:
                changed.append(name)
                if not self._check:
                    self._files.remove(self._unit_dir / name)
        if changed:
            self._systemctl("daemon-reload")
        if self._files.read(self._program_dir / "__main__.py") is not None:
            changed.append("program")
            if not self._check:
                self._clear_program()
        return changed

    def _clear_program(self) -> None:
        """Remove the files of the program and the folders that this leaves empty."""
        for path in program_files():
            self._files.remove(self._program_dir / path)
        for folder in sorted((entry for entry in self._program_dir.rglob("*") if entry.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
        if not any(self._program_dir.iterdir()):
            self._program_dir.rmdir()

    def _others(self, folder: Path, instance: str) -> list[str]:
        try:
            return [entry.name for entry in folder.iterdir() if entry.name != instance]
        except OSError:
            return []

    def _write(self, path: Path, text: str, mode: int) -> bool:
        same = self._files.read(path) == text and stat.S_IMODE(path.stat().st_mode) == mode
        if not same and not self._check:
            self._files.write(path, text, mode=mode)
        return not same

    def _states(self, unit: str) -> tuple[bool, bool]:
        """Whether it starts at boot, and whether it runs."""
        done = self._runner(["systemctl", "show", "--property=UnitFileState,ActiveState", unit])
        values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        return values.get("UnitFileState") == "enabled", values.get("ActiveState") in ("active", "activating")

    def _systemctl(self, *argv: str) -> None:
        if self._check:
            return
        done = self._runner(["systemctl", *argv])
        if done.returncode != 0:
            raise EngineError(
                f"systemctl {' '.join(argv)} failed: {' '.join(done.stderr.split()) or done.returncode}; look at it"
                " with 'systemctl status' on the host.",
                rc=done.returncode,
                stderr=done.stderr,
            )
