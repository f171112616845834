# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the installed driver the running one, and proves that it is. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver import reboot
from ansible_collections.socle.inference.plugins.module_utils._driver.files import (
    PERSISTENCE,
    options_that_differ,
    read_unit,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.users import OWN_UNITS, foreign_users
from ansible_collections.socle.inference.plugins.module_utils._gpu import driver, pci, smi

HOLDERS = {"nvidia": ("nvidia_uvm", "nvidia_modeset", "nvidia_peermem"), "nvidia_modeset": ("nvidia_drm",)}
"""Module -> those that count as its users while they are loaded."""

FABRIC_UNIT = "nvidia-fabricmanager.service"
CDI_UNIT = "nvidia-cdi-refresh.service"
CDI_PATH = "nvidia-cdi-refresh.path"

ANSWER_S = 60.0
"""How long nvidia-smi may take to see every GPU after the modules were loaded; open modules initialise slowly."""
IDLE_S = 5.0
"""How long the modules' use counts may take to fall after the units were stopped: a monitor's or CDI refresh's
nvidia-smi ends by itself within this time, and would otherwise cost a reboot."""
FABRIC_S = 300.0
"""How long an NVSwitch fabric may take to be configured: about a minute on eight GPUs, more after a cold boot."""


@dataclass(frozen=True)
class Expected:
    """What has to be true."""

    version: str | None
    """The installed driver; None proves only that versions agree."""
    flavour: str | None
    options: Mapping[str, Any]
    nvswitch: bool
    reboot: str = "auto"
    """"auto", "never", or "force": also under what somebody else runs on the GPUs."""
    stopped: tuple[str, ...] = ()
    """Units that the caller has stopped; with check, would have stopped."""


@dataclass(frozen=True)
class Roots:
    """Where files are read."""

    root: Path
    sys: Path
    proc: Path


class Activator:
    """One host. *sleep* and *clock* (monotonic seconds) are injected."""

    def __init__(self, run: Run, roots: Roots, sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
        self.run, self.roots, self.sleep, self.clock = run, roots, sleep, clock

    def activate(self, expected: Expected, check: bool) -> dict[str, Any]:
        """{"changed", "action", "reason", "reboot_required", "loaded_version", "gpus"}.

        A host that needs a reboot is left as it is; the caller reboots it and asks again.
        """
        state = self.state()
        params = self._read(self.roots.proc / "driver/nvidia/params")
        different = options_that_differ(expected.options, params)
        wish = reboot.activation(state, different)
        if wish.action == "none" and state.loaded is None:
            raise DriverError(
                f"Cannot load the driver: {wish.reason} for kernel {state.kernel}; see 'dkms status' and whether the"
                f" kernel's headers (linux-headers-{state.kernel}) are installed, then repeat the run."
            )
        units: list[str] = []
        if wish.action != "none" and state.loaded is not None:
            others = self._foreign_users(expected, wish)
            if not check:
                units = self._stop_units()
                wish = reboot.activation(self._idle_state(), different)
            elif expected.stopped or self._running_units():
                # How much of the count is theirs cannot be told before they are stopped.
                wish = reboot.activation(replace(state, users={}), different, others)
        if wish.action == "reboot":
            self._start_units(units)
            if expected.reboot == "never" and not check:
                raise DriverError(
                    f"The driver does not run yet: a reboot is needed because {wish.reason}, and gpu_driver_reboot is"
                    " never; reboot the host and repeat the run."
                )
            return self._result(True, wish, state, [])
        if wish.action == "load":
            if check:
                return self._result(True, wish, state, [])
            try:
                self._reload()
            finally:
                watch = [CDI_PATH] if CDI_PATH in units else []
                own = [unit for unit in units if unit != CDI_PATH] or self._own_units(expected.nvswitch)
                self._start_units([*own, *watch])
            self._refresh_cdi()
            state = self.state()
        started = self._start_missing(expected.nvswitch, check)
        if started and check:
            return self._result(True, wish, state, [])
        self._prove_options(expected.options)
        gpus = self._prove(expected, state, fresh=wish.action == "load" or bool(started))
        return self._result(wish.action == "load" or bool(started), wish, state, gpus)

    def _foreign_users(self, expected: Expected, wish: reboot.Activation) -> list[str]:
        """Processes that neither this nor the caller stops; raises DriverError for them unless force is set."""
        others = foreign_users(self.run, self.roots.proc, (), expected.stopped)
        if others and expected.reboot != "force":
            raise DriverError(
                f"The driver does not run yet: {wish.reason}, but {', '.join(others[:5])} would be ended by a change;"
                " end that first and repeat the run, or set gpu_driver_reboot: force, which changes the module or"
                " reboots all the same."
            )
        return others

    def verify(self, expected: Expected) -> dict[str, Any]:
        """Prove a driver that somebody else takes care of; nothing is loaded, started or stopped."""
        state = self.state()
        if state.loaded is None:
            raise DriverError(
                "No driver is loaded, and gpu_driver_state is unmanaged, so that this run installs and loads none; load"
                " it by the means it was installed with, or set gpu_driver_state: present."
            )
        gpus = self._prove(expected, state, fresh=False)
        return self._result(False, reboot.Activation("none", f"module {state.loaded} is loaded"), state, gpus)

    def unload(self, check: bool) -> dict[str, Any]:
        """Remove the loaded modules, before their packages go; raises DriverError while something uses them."""
        state = self.state()
        wish = reboot.Activation("none", "no module is loaded")
        if self._loaded():
            wish = reboot.Activation("unload", f"module {state.loaded} is loaded")
        if check or wish.action == "none":
            return self._result(wish.action != "none", wish, state, [])
        units = self._stop_units()
        busy = [f"{name} ({count})" for name, count in sorted(self._idle_state().users.items()) if count > 0]
        if busy:
            self._start_units(units)
            raise DriverError(
                f"Cannot remove the driver: {', '.join(busy)} is in use; stop what uses the GPUs"
                " ('fuser -v /dev/nvidia*' shows it), then repeat the run. Nothing was changed."
            )
        try:
            self._remove_modules()
        except DriverError:
            self._start_units(units)
            raise
        return self._result(True, wish, self.state(), [])

    def _result(
        self, changed: bool, wish: reboot.Activation, state: reboot.State, gpus: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        return {
            "changed": changed,
            "action": wish.action,
            "reason": wish.reason,
            "reboot_required": wish.action == "reboot",
            "loaded_version": state.loaded,
            "gpus": [gpu["uuid"] for gpu in gpus],
        }

    def state(self) -> reboot.State:
        """The modules, loaded and on disk."""
        read = driver.read(self.run, self.roots.sys, self.roots.proc, self.roots.root, present=True)
        kernel = self._read(self.roots.proc / "sys/kernel/osrelease").strip()
        loaded = self._loaded()
        users = {}
        for name, folder in loaded.items():
            count = self._read(folder / "refcnt").strip()
            holders = sum(1 for holder in HOLDERS.get(name, ()) if holder in loaded)
            users[name] = int(count) - holders if count.isdigit() else 0
        return reboot.State(
            kernel=kernel,
            loaded=read["version"],
            loaded_flavour=read["flavour"],
            disk=read["disk_version"],
            disk_flavour=read["disk_flavour"],
            next_kernel=read["next_kernel"],
            next_disk=read["next_disk_version"],
            nouveau=read["nouveau"],
            users=users,
        )

    def _idle_state(self) -> reboot.State:
        """The modules once nothing uses them, or as they still are after IDLE_S."""
        deadline = self.clock() + IDLE_S
        while True:
            state = self.state()
            if not any(count > 0 for count in state.users.values()) or self.clock() >= deadline:
                return state
            self.sleep(0.5)

    def _loaded(self) -> dict[str, Path]:
        """Loaded modules of the driver: usual name -> folder; Debian's own packages call them nvidia_current_uvm."""
        folder = self.roots.sys / "module"
        found = {}
        for path in sorted(folder.glob("nvidia*")) if folder.is_dir() else []:
            name = re.sub(r"^nvidia_(current(_open)?|tesla_\d+)", "nvidia", path.name)
            if name in reboot.MODULES and (path / "refcnt").exists():
                found[name] = path
        return found

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _own_units(self, nvswitch: bool) -> list[str]:
        units = [unit for unit in reversed(OWN_UNITS) if read_unit(self.roots.root, unit) is not None]
        # Without a switch fabric manager fails, and stays behind as a failed unit.
        return units if nvswitch else [unit for unit in units if unit != FABRIC_UNIT]

    def _stop_units(self) -> list[str]:
        """Stop the driver's own units that run; in the order in which they start again.

        What writes the CDI specification opens the devices, which keeps the modules in use, and is set off by its path
        unit. It is not started again here: it is made to write once the modules are loaded.
        """
        stopped = self._running_units((CDI_PATH,))
        for unit in (CDI_PATH, CDI_UNIT):
            if self._running_units((unit,)):
                self.run(["systemctl", "stop", unit])
        for unit in self._running_units():
            self._must(["systemctl", "stop", unit], f"Cannot stop {unit}")
            stopped.insert(0, unit)
        return stopped

    def _running_units(self, units: Sequence[str] = OWN_UNITS) -> list[str]:
        running = []
        for unit in units:
            answer = self.run(["systemctl", "is-active", unit])
            if answer is not None and answer[1].strip() in ("active", "activating", "reloading"):
                running.append(unit)
        return running

    def _start_units(self, units: Sequence[str]) -> None:
        for unit in units:
            # A unit that was started too often while the driver was away would be refused.
            self.run(["systemctl", "reset-failed", unit])
            self.run(["systemctl", "start", unit])

    def _start_missing(self, nvswitch: bool, check: bool) -> list[str]:
        """Units that should run and were stopped by hand or gave up before the driver was there."""
        units = self._own_units(nvswitch)
        if not (self.roots.root / PERSISTENCE.lstrip("/")).is_file():
            units = [unit for unit in units if unit == FABRIC_UNIT]
        missing = [unit for unit in units if self._is_down(unit)]
        if check:
            return missing
        self._start_units(missing)
        return [unit for unit in missing if not self._is_down(unit)]

    def _is_down(self, unit: str) -> bool:
        answer = self.run(["systemctl", "is-active", unit])
        return answer is not None and answer[1].strip() in ("inactive", "failed")

    def _remove_modules(self) -> None:
        loaded = self._loaded()
        for name in reboot.MODULES:
            # Removing a module takes those along that it alone used.
            if name in loaded and (loaded[name] / "refcnt").exists():
                self._must(["modprobe", "-r", loaded[name].name], f"Cannot remove module {loaded[name].name}")

    def _reload(self) -> None:
        self._remove_modules()
        self._must(["modprobe", "nvidia"], "Cannot load module nvidia")
        self._must(["modprobe", "nvidia-uvm"], "Cannot load module nvidia-uvm")
        # The control nodes are made on demand only, and a CDI specification that is made before them lacks them.
        self.run(["nvidia-modprobe", "-u", "-c", "0"])

    def _refresh_cdi(self) -> None:
        if read_unit(self.roots.root, CDI_UNIT) is None:
            return
        # New libraries set off refreshes that fail until the module is the same, up to the start limit of both units.
        fell = self._is_down(CDI_PATH)
        self.run(["systemctl", "reset-failed", CDI_UNIT, CDI_PATH])
        self._must(["systemctl", "restart", CDI_UNIT], f"Cannot write the CDI specification anew by {CDI_UNIT}")
        if fell:
            self.run(["systemctl", "start", CDI_PATH])

    def _must(self, command: Sequence[str], attempt: str) -> None:
        answer = self.run(command)
        if answer is not None and answer[0] == 0:
            return
        why = " ".join((answer[2] or answer[1]).split()) if answer else f"{command[0]} is not installed"
        raise DriverError(f"{attempt}: {why.rstrip('.') or 'no reason was given'}; {_remedy(why)}.", cmd=list(command))

    def _prove(self, expected: Expected, state: reboot.State, fresh: bool) -> Sequence[Mapping[str, Any]]:
        """Raise DriverError unless the driver runs as it should; the GPUs that it shows."""
        on_bus = [
            gpu
            for gpu in pci.read_gpus(pci.nvidia_devices(self.roots.sys))
            if gpu["bound_driver"] not in ("vfio-pci", "pci-stub")
        ]
        deadline = self.clock() + (ANSWER_S if fresh else 0.0)
        while True:
            report = smi.read(self.run)
            if (report.error is None and len(report.gpus) >= len(on_bus)) or self.clock() >= deadline:
                break
            self.sleep(2.0)
        library = driver.read_library_version(self.roots.root)
        versions = {
            "loaded module": state.loaded,
            "module on disk": state.disk,
            "libraries": library,
            "nvidia-smi": report.driver_version,
            "packages": expected.version,
        }
        known = {name: version for name, version in versions.items() if version is not None}
        if len(set(known.values())) > 1:
            told = ", ".join(f"{name} {version}" for name, version in known.items())
            raise DriverError(
                f"The parts of the driver have different versions: {told}; containers cannot start like this. Update"
                " the parts that are behind, then reboot the host."
            )
        if report.driver_version is None and self.run(["nvidia-smi", "--version"]) is None:
            raise DriverError(
                "nvidia-smi is not installed, so that nothing shows whether the driver works; install the package that"
                " brings it (nvidia-utils, nvidia-driver-cuda or nvidia-smi), then repeat the run."
            )
        if report.error is not None:
            raise DriverError(f"nvidia-smi does not answer: {_told(report.error)}; {_remedy(report.error)}.")
        if len(report.gpus) < len(on_bus):
            shown = {gpu["pci_bus_id"] for gpu in report.gpus}
            lost = [gpu for gpu in on_bus if gpu["pci_bus_id"] not in shown]
            names = ", ".join(f"{gpu['pci_bus_id']} ({gpu['pci_device_id']})" for gpu in lost)
            raise DriverError(
                f"The driver shows {len(report.gpus)} of {len(on_bus)} GPUs; not {names}; read the kernel's messages"
                " ('dmesg | grep NVRM') about it: a GPU that fell off the bus needs a power cycle, one that needs the"
                " other module flavour gpu_driver_flavour, one with too small an address space 'Above 4G Decoding' in"
                " the firmware."
            )
        if expected.flavour and state.loaded_flavour and state.loaded_flavour != expected.flavour:
            raise DriverError(
                f"The {state.loaded_flavour} module is loaded, and the {expected.flavour} one was installed; reboot the"
                " host and repeat the run."
            )
        if expected.nvswitch:
            self._prove_fabric(report.gpus)
        return report.gpus

    def _prove_options(self, options: Mapping[str, Any]) -> None:
        different = options_that_differ(options, self._read(self.roots.proc / "driver/nvidia/params"))
        if different:
            raise DriverError(
                f"The module was loaded, but has other values of {', '.join(different)} than gpu_driver_module_options"
                " asks for; look for another file in /etc/modprobe.d, or an old initramfs, that sets them."
            )

    def _prove_fabric(self, gpus: Sequence[Mapping[str, Any]]) -> None:
        """Without a configured fabric CUDA fails with error 802; A100 boards do not tell their state."""
        unit = FABRIC_UNIT
        deadline = self.clock() + FABRIC_S
        while True:
            answer = self.run(["systemctl", "is-active", unit])
            active = answer[1].strip() if answer else "unknown"
            states = {gpu["fabric_state"] or "" for gpu in gpus} - {""}
            if active == "active" and states <= {"completed"}:
                return
            if active in ("failed", "inactive") or self.clock() >= deadline:
                break
            self.sleep(5.0)
            gpus = smi.read(self.run).gpus
        told = f"the fabric is {', '.join(sorted(states))}" if states else "the fabric's state is not told"
        raise DriverError(
            f"The NVSwitch fabric is not ready: {unit} is {active} and {told}, so that CUDA would fail with error 802;"
            f" read 'journalctl -u {unit}', and compare the versions of fabric manager and driver."
        )


TOLD = 200
"""Characters of a program's words that a sentence quotes; a damaged program prints anything."""


def _told(text: str) -> str:
    """The words of a program, as they can stand in a sentence."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:TOLD].rstrip(" .") or "nothing that can be read"


def _remedy(text: str) -> str:
    """What to do, from the words of modprobe or nvidia-smi."""
    if re.search(r"Key was rejected|Required key|unavailable key", text):
        return "Secure Boot refuses the module: enrol DKMS's key at the console, or turn Secure Boot off"
    if "No such device" in text:
        return "the module found no GPU that it can drive: see gpu_driver_flavour, and 'dmesg | grep NVRM'"
    if re.search(r"in use|busy", text):
        return "something still uses the GPUs ('fuser -v /dev/nvidia*'): stop it or reboot, then repeat the run"
    if "journalctl" in text:
        return "read the journal of that unit"
    if "not found" in text:
        return "see 'dkms status' and whether the kernel's headers are installed"
    if "mismatch" in text.lower():
        return "reboot the host"
    return "read the kernel's messages ('dmesg | grep NVRM'), then repeat the run"
