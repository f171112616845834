# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out a plan with DNF: all of it, or back to what was there. Private to socle.inference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver import dkms
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import LEDGER, Host, own_holds
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_names import MODULE, is_driver_rpm
from ansible_collections.socle.inference.plugins.module_utils._driver.transaction import diff
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_exact import Exact, Request
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import read_packages


class RpmTransaction:
    """One plan on one host. Where it raises DriverError or PackageError, packages and locks are as before."""

    def __init__(self, host: Host, plan: Mapping[str, Any], kernel: str, hold: bool, files: Files) -> None:
        self.host, self.plan, self.kernel, self.hold, self.files = host, plan, kernel, hold, files
        self.exact = Exact(host.run, files, host.root)

    def carry_out(self, check: bool) -> dict[str, Any]:
        """Do it, or with *check* tell what would be done."""
        plan = self.plan
        before = read_packages(self.host.run, self.host.root)
        result: dict[str, Any] = {
            "changed": bool(plan["changed_needed"]),
            "version": plan["version"],
            "held": [],
            "diff": diff(before, plan, self.hold),
        }
        if check or not plan["changed_needed"]:
            return result
        if plan["action"] == "remove":
            self.exact.remove(plan["remove"])
            self._note([])
            return result
        if plan["action"] == "none":
            result["held"] = self._settle_locks()
            return result
        self._prepare()
        self._install()
        result["held"] = self._settle_locks()
        return result

    def _prepare(self) -> None:
        for repository in self.plan["enable"]:
            attempt = f"enable repository {repository}"
            command = ["dnf", "--assumeyes", "config-manager", "--set-enabled", repository]
            answer = self.host.run([*dnf.ENGLISH, *command])
            if answer is None or answer[0] != 0:
                output = "\n".join(answer[1:]) if answer else ""
                raise DriverError(f"{dnf.explain(attempt, output)} Nothing was changed.", cmd=command)
        if self.plan["prepare"]:
            self.exact.install(Request(self.plan["prepare"]))

    def _install(self) -> None:
        plan = self.plan
        patterns = [*plan["packages"], *plan["lock"], *plan["remove"]]
        before = self.exact.installed(patterns)
        request = Request(
            plan["packages"],
            lock=tuple(plan["lock"]),
            module=MODULE,
            stream=plan["stream"],
            replaces=tuple(plan["remove"]),
        )
        self.exact.install(request)
        try:
            self._check_module()
        except DriverError as error:
            left = self._roll_back(before, patterns)
            raise DriverError(f"{error.message}; {left}.", **error.fields) from error

    def _check_module(self) -> None:
        """The package's script ends well although the build failed."""
        version = str(self.plan["version"])
        entries = [entry for entry in dkms.read_status(self.host.run) if entry.version == version]
        if not entries or any(entry.state == "installed" for entry in entries):
            return
        log = dkms.read_log(self.host.root, version)
        raise DriverError(dkms.complaint(version, self.kernel, log), build_log=dkms.excerpt(log))

    def _roll_back(self, before: Mapping[str, Any], patterns: list[str]) -> str:
        """Put the packages back; a clause that says how it went."""
        after = self.exact.installed(patterns)
        fresh = sorted(name for name in after if name not in before and is_driver_rpm(name))
        moved = {name: package.evr for name, package in before.items() if after.get(name) != package}
        try:
            if moved:
                self.exact.install(Request(moved, downgrade=True, replaces=tuple(fresh)))
            left = [name for name in fresh if name in self.exact.installed(fresh)]
            if left:
                self.exact.remove(left)
        except PackageError as error:
            return f"the former packages could not be put back ({error.message.rstrip('.')}): see 'dnf history'"
        return "the packages are as before the run" if moved else "what was installed was removed again"

    def _settle_locks(self) -> list[str]:
        """Lock what belongs to the driver now, and note it as ours; with hold off, release ours."""
        own = own_holds(self.host)
        if not self.hold:
            self._write(dnf.unlocked(self._locks(), own))
            self._note([])
            return []
        installed = self.exact.installed(self.plan["lock"])
        stale = own - set(installed)
        self._write(dnf.locked(dnf.unlocked(self._locks(), stale), installed.values()))
        held = sorted(installed)
        self._note(held)
        return held

    def _locks(self) -> str:
        return self.files.read(self.exact.lock_list) or ""

    def _write(self, text: str) -> None:
        if text != self._locks():
            self.files.write(self.exact.lock_list, text)

    def _note(self, held: list[str]) -> None:
        path = self.host.root / LEDGER
        if held:
            self.files.write(path, json.dumps({"held": held}, indent=1) + "\n")
        else:
            self.files.remove(path)
