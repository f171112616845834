# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out a plan with apt: all of it, or back to what was there. Private to socle.inference."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver import apt, dkms
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError, upstream
from ansible_collections.socle.inference.plugins.module_utils._driver.names import is_driver_package
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import (
    LEDGER,
    Host,
    belongs,
    holdable,
    own_holds,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.apt import reason
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import read_packages

Packages = Mapping[str, Mapping[str, Any]]

ABSENT = ("not-installed", "config-files")


def diff(packages: Packages, plan: Mapping[str, Any], hold: bool) -> dict[str, str]:
    """Before and after, one package a line, from a plan.

    Of a plan that was made without the package index no version is shown that nobody has seen.
    """

    def line(name: str, version: str | None, held: bool) -> str:
        return f"{name} {version or ''}{' (held)' if held else ''}".rstrip() + "\n"

    known, also = plan.get("final", True), plan.get("hold_also") or []
    expected = plan.get("expected") or {}
    after: dict[str, str] = {}
    before: dict[str, str] = {}
    for argument in [*plan["install"], *expected]:
        name, _equals, asked = argument.partition("=")
        if name in after:
            continue
        package = packages.get(name)
        present = package["version"] if package is not None and package["status"] not in ABSENT else None
        if package is not None and present is not None:
            before[name] = line(name, present, package["held"])
        same = present is not None and asked.endswith("*") and upstream(present) == asked.rstrip("*")
        if known or same:
            version = present if same else asked or expected.get(name) or present
            # On the RHEL family a version that is asked for is one that is locked.
            ours = bool(asked) or belongs(name, version or "", str(plan["version"]), also)
            after[name] = line(name, version, hold and ours)
        else:
            after[name] = unknown(name, asked)
    for name in plan["remove"]:
        if name in packages and name not in after:
            before[name] = line(name, packages[name]["version"], packages[name]["held"])
    for name in [*plan["hold"], *plan["unhold"]]:
        if name in packages and name not in after and name not in plan["remove"]:
            before[name] = line(name, packages[name]["version"], packages[name]["held"])
            after[name] = line(name, packages[name]["version"], name in plan["hold"] or hold)
    return {
        "before_header": "driver packages",
        "after_header": "driver packages",
        "before": "".join(text for _name, text in sorted(before.items())),
        "after": "".join(text for _name, text in sorted(after.items())),
    }


def unknown(name: str, asked: str) -> str:
    """The line of a package that a run asks a repository for whose index nobody has read."""
    if asked.endswith(".*"):
        return f"{name} (the newest of {asked.removesuffix('.*')} that the repository has)\n"
    return f"{name} ({asked.rstrip('*')}{' ' if asked else ''}if the repository has it)\n"


class Transaction:
    """One plan on one host. Raises DriverError; then the packages are as before, and held as before."""

    def __init__(self, host: Host, plan: Mapping[str, Any], kernel: str, hold: bool, files: Files) -> None:
        self.host, self.plan, self.kernel, self.hold, self.files = host, plan, kernel, hold, files
        self.before: dict[str, dict[str, Any]] = {}

    def carry_out(self, check: bool) -> dict[str, Any]:
        """Do it, or with *check* tell what would be done."""
        plan = self.plan
        self.before = read_packages(self.host.run, self.host.root)
        result = {
            "changed": bool(plan["changed_needed"]),
            "version": plan["version"],
            "held": [],
            "diff": diff(self.before, plan, self.hold),
        }
        if check or not plan["changed_needed"]:
            return result
        if plan["action"] == "remove":
            self._remove()
            return result
        if plan["action"] == "none":
            self._mark("unhold", plan["unhold"])
            result["held"] = self._settle_holds(plan["hold"])
            return result
        self._download()
        self._mark("unhold", plan["unhold"])
        try:
            self._install()
        except DriverError as error:
            left = self._roll_back()
            raise DriverError(f"{error.message}; {left}.", **error.fields) from error
        result["held"] = self._settle_holds(None)
        return result

    def _apt(self, command: Sequence[str], attempt: str) -> None:
        answer = self.host.run(command)
        if answer is None or answer[0] != 0:
            why = reason(answer[1], answer[2]) if answer else "apt-get is not installed"
            tail = "\n".join((answer[1] + answer[2]).splitlines()[-40:]) if answer else ""
            raise DriverError(f"{attempt}: {why.rstrip('.')}", cmd=list(command), output=tail)

    def _mark(self, verb: str, packages: Sequence[str]) -> None:
        if packages:
            self._apt(["apt-mark", verb, *packages], f"Cannot {verb} {', '.join(packages)}")

    def _arguments(self) -> list[str]:
        # apt names again what it would remove by itself; a package that is asked for twice is an error.
        asked = {argument.partition("=")[0] for argument in self.plan["install"]}
        return [*self.plan["install"], *(f"{name}-" for name in self.plan["remove"] if name not in asked)]

    def _download(self) -> None:
        """All packages, before the first change: what a mirror lacks shows now."""
        preference = self.host.preference_file(self.plan["preference"])
        command = apt.install_command(self._arguments(), preference, "--download-only")
        try:
            self._apt(command, f"Cannot download driver {self.plan['version']}")
        except DriverError as error:
            raise DriverError(
                f"{error.message}; see whether the mirror is complete and reachable from this host, then repeat the"
                " run. Nothing was changed.",
                **error.fields,
            ) from error

    def _install(self) -> None:
        plan = self.plan
        version = plan["version"]
        preference = self.host.preference_file(plan["preference"])
        arguments = self._arguments()
        if plan["pin"]:
            pins = [plan["pin"], *(name for name in arguments if name.startswith("nvidia-driver-pinning-"))]
            first = [*dict.fromkeys(name for name in pins if name == plan["pin"] or name.endswith("-"))]
            self._apt(apt.install_command(first, preference), f"Cannot install {plan['pin']}")
            self._purge_pins(plan["pin"])
            arguments = [name for name in arguments if name not in first]
        try:
            self._apt(apt.install_command(arguments, preference), f"Cannot install driver {version}")
        except DriverError as error:
            raise self._diagnosed(error) from error
        self._check_module()

    def _purge_pins(self, present: str) -> None:
        """A pinning package is one configuration file, which stays in force when the package is removed only."""
        packages = read_packages(self.host.run, self.host.root)
        left = sorted(
            name
            for name, package in packages.items()
            if name.startswith("nvidia-driver-pinning-") and name != present and package["status"] == "config-files"
        )
        if left:
            self._apt(["dpkg", "--purge", *left], f"Cannot purge {', '.join(left)}")

    def _diagnosed(self, error: DriverError) -> DriverError:
        log = dkms.read_log(self.host.root, self.plan["version"])
        if dkms.first_error(log) is None:
            return error
        return self._build_failed(log, error.fields)

    def _build_failed(self, log: str, fields: Mapping[str, Any]) -> DriverError:
        kernel = next(
            (line.partition("for kernel ")[2].split(" ")[0] for line in log.splitlines()[:1] if "for kernel " in line),
            self.kernel,
        )
        sentence = dkms.complaint(self.plan["version"], kernel, log)
        return DriverError(sentence, **{**fields, "build_log": dkms.excerpt(log)})

    def _check_module(self) -> None:
        """DKMS skips a kernel without headers in silence, and some packages end well although a build failed."""
        version = self.plan["version"]
        entries = [entry for entry in dkms.read_status(self.host.run) if entry.version == version]
        if not entries or any(entry.state == "installed" for entry in entries):
            return
        raise self._build_failed(dkms.read_log(self.host.root, version), {})

    def _roll_back(self) -> str:
        """Put the packages back; a clause that says how it went."""
        after = read_packages(self.host.run, self.host.root)
        was = {name: package for name, package in self.before.items() if package["status"] not in ABSENT}
        fresh = sorted(
            name
            for name, package in after.items()
            if is_driver_package(name) and name not in was and package["status"] not in ABSENT
        )
        moved = sorted(
            name
            for name, package in was.items()
            if is_driver_package(name)
            and package["status"] == "installed"
            and (after.get(name, {}).get("version"), after.get(name, {}).get("status"))
            != (package["version"], "installed")
        )
        problem = ""
        if fresh or moved:
            arguments = [*(f"{name}={was[name]['version']}" for name in moved), *(f"{name}-" for name in fresh)]
            command = apt.install_command(arguments, self.host.preference_file(""), "--allow-downgrades", "--purge")
            try:
                self._apt(command, "")
            except DriverError as error:
                problem = error.message.lstrip(": ")
        with contextlib.suppress(DriverError):
            self._purge_pins("")
        unheld = ""
        try:
            self._settle_holds(self.plan["unhold"])
        except SocleError as error:
            unheld = f", but without their holds ({error.message.rstrip('.')})"
        if problem:
            names = ", ".join([*moved, *fresh][:6])
            return f"the former packages could not be put back ({problem}): see {names} with 'dpkg --audit'"
        return (
            "the packages are as before the run" if moved or not fresh else "what was installed was removed again"
        ) + unheld

    def _settle_holds(self, wanted: Sequence[str] | None) -> list[str]:
        """Hold *wanted* (None: what belongs to the driver now), and note it as ours; with hold off, release ours."""
        own = own_holds(self.host)
        packages = read_packages(self.host.run, self.host.root)
        present = {name for name, package in packages.items() if package["status"] not in ABSENT}
        if not self.hold:
            self._mark("unhold", sorted(name for name in own if packages.get(name, {}).get("held")))
            self._note([])
            return []
        if wanted is None:
            wanted = holdable(packages, str(self.plan["version"]), self.plan.get("hold_also") or [])
        todo = sorted(name for name in wanted if name in present and not packages[name]["held"])
        # What was released because it no longer belongs to the driver is not ours any more.
        held = sorted({*(name for name in own & present if packages[name]["held"]), *todo})
        # Noted first: what is noted and not held is held by the next run; held and not noted is nobody's that it knows.
        self._note(held)
        self._mark("hold", todo)
        return held

    def _note(self, held: Sequence[str]) -> None:
        path = self.host.root / LEDGER
        with explaining("note which packages this role holds"):
            if held:
                self.files.write(path, json.dumps({"held": list(held)}, indent=1) + "\n")
            else:
                self.files.remove(path)

    def _remove(self) -> None:
        self._mark("unhold", self.plan["unhold"])
        command = ["apt-get", *apt.OPTIONS, "purge", *self.plan["remove"]]
        try:
            self._apt(command, "Cannot remove the driver")
        except DriverError:
            # Why the packages could not go is what the run has to end with.
            with contextlib.suppress(SocleError):
                self._settle_holds(self.plan["unhold"])
            raise
        self._note([])
