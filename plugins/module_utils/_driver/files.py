# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the driver on a host: its files, and the units that are enabled. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.users import reload_victims
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._gpu.driver import read_library_version

NOUVEAU = "/etc/modprobe.d/zz-socle-nvidia.conf"
OPTIONS = "/etc/modprobe.d/zz-socle-nvidia-options.conf"
MODULES = "/etc/modules-load.d/socle-nvidia.conf"
PERSISTENCE = "/etc/systemd/system/nvidia-persistenced.service.d/socle.conf"
UNATTENDED = "/etc/apt/apt.conf.d/52socle-nvidia-unattended"

FILES = (NOUVEAU, OPTIONS, MODULES, PERSISTENCE, UNATTENDED)

PERSISTENCED = "nvidia-persistenced.service"
FABRIC_MANAGER = "nvidia-fabricmanager.service"

UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
MODPROBE_FOLDERS = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")

HEADER = "# Written by socle.inference, role gpu_driver; a run replaces it.\n"
APT_HEADER = "// Written by socle.inference, role gpu_driver; a run replaces it.\n"

UNATTENDED_PATTERNS = ("nvidia-", "libnvidia-", "libcuda", "libnvsdm", "linux-modules-nvidia-", "cuda-drivers")
"""Beginnings of package names that must not change on their own; toolkit packages begin with nvidia- as well."""


@dataclass(frozen=True)
class Wishes:
    """What the files depend on."""

    present: bool
    persistence: bool
    options: Mapping[str, Any]
    nvswitch: bool
    nvlink5: bool
    deb: bool
    toolkit: str | None = None
    """Installed version of NVIDIA's container toolkit."""


VALUE = r"[^\s\"'\\\x00-\x1f\x7f]*"
"""What can stand as a value in a modprobe file."""


def option_values(options: Mapping[str, Any]) -> dict[str, str]:
    """Module parameters as text; raises DriverError for what cannot stand in a modprobe file."""
    values = {}
    for name, value in sorted(options.items()):
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if not re.fullmatch(r"NVreg_\w+", name) or not re.fullmatch(VALUE, text):
            raise DriverError(
                f"gpu_driver_module_options has {name!r}: {text!r}, expected parameters of the module nvidia"
                " (NVreg_...) with a number or a word without blanks and quotes; correct it."
            )
        values[name] = text
    return values


def options_that_differ(options: Mapping[str, Any], params: str) -> list[str]:
    """Parameters that the loaded module has with another value, by /proc/driver/nvidia/params."""
    loaded: dict[str, str] = {}
    for line in params.splitlines():
        name, _colon, value = line.partition(":")
        loaded[name.strip()] = value.strip().strip('"')
    different = []
    for name, text in option_values(options).items():
        present = loaded.get(name.partition("_")[2])
        if present is not None and _number(present) != _number(text):
            different.append(name)
    return different


def _number(text: str) -> Any:
    try:
        return int(text, 0)
    except ValueError:
        return text


def persistence_text(unit: str) -> str:
    """The drop-in for nvidia-persistenced, with the program and user of its *unit* text.

    Ubuntu's unit switches persistence off, and the condition of some units is not met before the first device node
    is there, which then skips the service for the whole boot.
    """
    match = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    command = match.group(1).strip() if match else "/usr/bin/nvidia-persistenced --user nvidia-persistenced"
    words = [word for word in command.split() if word not in ("--no-persistence-mode", "--persistence-mode")]
    return (
        f"{HEADER}[Unit]\nConditionPathExistsGlob=\nStartLimitIntervalSec=0\n\n[Service]\nExecStart=\n"
        f"ExecStart={' '.join(words)} --persistence-mode\nRestart=on-failure\nRestartSec=5\n"
    )


PERSISTENCE_AHEAD = re.sub(
    r"(?<=^ExecStart=).+(?= --persistence-mode$)",
    "(program and user of the package's unit)",
    persistence_text(""),
    flags=re.MULTILINE,
)
"""What check mode shows of the drop-in before the package's unit is there."""


def read_unit(root: Path, name: str) -> str | None:
    """The text of an installed unit."""
    for folder in UNIT_FOLDERS:
        path = root / folder / name
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace")
    return None


def is_masked(root: Path, name: str) -> bool:
    """Whether a unit is masked: a link to /dev/null, or an empty file, in its place."""
    for folder in ("etc/systemd/system", "run/systemd/system"):
        path = root / folder / name
        if path.is_symlink():
            if path.readlink() == Path("/dev/null"):
                return True
        elif path.is_file() and path.stat().st_size == 0:
            return True
    return False


def check_units(root: Path, persistence: bool, fabric: bool) -> None:
    """Refuse, before a package changes, units that the driver needs and that somebody masked."""
    if persistence and is_masked(root, PERSISTENCED):
        raise DriverError(
            f"Cannot keep the GPUs initialised: {PERSISTENCED} is masked, so that it cannot be started; run 'systemctl"
            f" unmask {PERSISTENCED}', or set gpu_driver_persistence: false, then repeat the run. Nothing was changed."
        )
    if fabric and is_masked(root, FABRIC_MANAGER):
        raise DriverError(
            f"Cannot configure the NVSwitch fabric: {FABRIC_MANAGER} is masked, so that it cannot be started; run"
            f" 'systemctl unmask {FABRIC_MANAGER}', then repeat the run. Nothing was changed."
        )


def nouveau_is_blocked(root: Path) -> bool:
    """Whether a file other than ours keeps nouveau from loading."""
    for folder in MODPROBE_FOLDERS:
        for path in sorted((root / folder).glob("*.conf")):
            if f"/{path.relative_to(root)}" == NOUVEAU or not path.is_file():
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            if re.search(r"^\s*(blacklist\s+nouveau\b|install\s+nouveau\s+/\S*(false|true)\b)", text, re.MULTILINE):
                return True
    return False


def wanted(root: Path, wishes: Wishes) -> dict[str, str | None]:
    """Path -> text, or None for a file that is not to be there."""
    files: dict[str, str | None] = dict.fromkeys(FILES)
    if not wishes.present:
        return files
    if not nouveau_is_blocked(root):
        files[NOUVEAU] = f"{HEADER}blacklist nouveau\noptions nouveau modeset=0\n"
    values = option_values(wishes.options)
    if values:
        words = " ".join(f"{name}={text}" for name, text in values.items())
        # Debian's own packages name the module nvidia-current; a line for a module that is not there does nothing.
        files[OPTIONS] = f"{HEADER}options nvidia {words}\noptions nvidia-current {words}\n"
    modules = ["nvidia-uvm", *(("mlx5_ib", "ib_umad") if wishes.nvlink5 else ())]
    files[MODULES] = HEADER + "".join(f"{name}\n" for name in modules)
    if wishes.persistence:
        files[PERSISTENCE] = persistence_text(read_unit(root, PERSISTENCED) or "")
    if wishes.deb:
        lines = "".join(f'  "^{pattern}";\n' for pattern in UNATTENDED_PATTERNS)
        files[UNATTENDED] = f"{APT_HEADER}Unattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"
    return files


class Settler:
    """Brings files and units of one host to what is wanted."""

    def __init__(self, run: Run, root: Path, files: Files) -> None:
        self.run, self.root, self.files = run, root, files

    def settle(self, wishes: Wishes, check: bool) -> dict[str, Any]:
        """{"changed", "files", "units", "warnings", "diff"}; with *check* nothing is changed."""
        changed, diffs = [], []
        files = wanted(self.root, wishes)
        if check and read_library_version(self.root) is None:
            # Whether the packages keep nouveau away shows when they are there; most do.
            del files[NOUVEAU]
        if check and files[PERSISTENCE] is not None and read_unit(self.root, PERSISTENCED) is None:
            files[PERSISTENCE] = PERSISTENCE_AHEAD
        for path, text in files.items():
            place = self.root / path.lstrip("/")
            before = self.files.read(place)
            if before == text:
                continue
            changed.append(path)
            diffs.append(
                {
                    "before_header": path,
                    "after_header": path,
                    "before": before or "",
                    "after": text or "",
                }
            )
            if check:
                continue
            if text is None:
                self.files.remove(place)
                if path == PERSISTENCE:
                    self._drop_folder(place.parent)
            else:
                self.files.write(place, text)
        warnings = [] if check else self._follow(changed, wishes)
        units, notes = self._units(wishes, check)
        return {
            "changed": bool(changed or units),
            "files": changed,
            "units": units,
            "warnings": [*warnings, *notes],
            "diff": diffs,
        }

    def _drop_folder(self, folder: Path) -> None:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def _follow(self, changed: Sequence[str], wishes: Wishes) -> list[str]:
        """What the changed files need to take effect."""
        warnings = []
        if PERSISTENCE in changed:
            victims = reload_victims(self.run, self.root, wishes.toolkit)
            if victims:
                warnings.append(
                    f"{PERSISTENCE} takes effect at the next boot: a daemon-reload would take the GPUs from"
                    f" {', '.join(victims)}, which Docker runs with NVIDIA's legacy hook."
                )
            else:
                self.run(["systemctl", "daemon-reload"])
                self.run(["systemctl", "try-restart", PERSISTENCED])
        if NOUVEAU in changed or OPTIONS in changed:
            # nouveau, and the module where it is loaded early, are started from there.
            commands: list[list[str]] = []
            if any((self.root / "boot").glob("initrd.img-*")):
                commands = [["update-initramfs", "-u", "-k", "all"]]
            elif any((self.root / "boot").glob("initramfs-*.img")):
                commands = [["dracut", "-f", "--regenerate-all"]]
            for command in commands:
                answer = self.run(command)
                if answer is None or answer[0] != 0:
                    warnings.append(
                        f"'{' '.join(command)}' failed, so that the next boot may still load nouveau or the module with"
                        " its former options; run it by hand and repair what it reports."
                    )
        return warnings

    def _units(self, wishes: Wishes, check: bool) -> tuple[list[str], list[str]]:
        """(what was or would be done, what a person should know)."""
        done: list[str] = []
        notes: list[str] = []
        if not wishes.present:
            return done, notes
        unit = PERSISTENCED
        if wishes.persistence and self._enabled(unit) == "disabled":
            done.append(f"enable {unit}")
            if not check:
                self._switch("enable", unit, wishes)
        unit = FABRIC_MANAGER
        state = self._enabled(unit)
        if (wishes.nvswitch or wishes.nvlink5) and state == "disabled":
            done.append(f"enable {unit}")
            if not check:
                self._switch("enable", unit, wishes)
        if not wishes.nvswitch and not wishes.nvlink5 and state == "enabled":
            done.append(f"disable {unit}")
            notes.append(f"{unit} was enabled, but this host has no NVSwitch, without which it fails; it is disabled.")
            if not check:
                self._switch("disable", unit, wishes)
                self._systemctl("stop", unit)
        return done, notes

    def _enabled(self, unit: str) -> str:
        """ "enabled", "disabled", "static", ...; "" where there is no such unit."""
        if read_unit(self.root, unit) is None:
            return ""
        answer = self.run(["systemctl", "is-enabled", unit])
        return answer[1].strip() if answer else ""

    def _switch(self, verb: str, unit: str, wishes: Wishes) -> None:
        # systemctl reads all units anew after it, unless told otherwise.
        quiet = ["--no-reload"] if reload_victims(self.run, self.root, wishes.toolkit) else []
        self._systemctl(verb, *quiet, unit)

    def _systemctl(self, *arguments: str) -> None:
        answer = self.run(["systemctl", *arguments])
        if answer is None or answer[0] != 0:
            why = " ".join((answer[2] or answer[1]).split()).rstrip(".") if answer else "systemctl is not installed"
            raise DriverError(f"Cannot {' '.join(arguments)}: {why}; repair the unit, then repeat the run.")
