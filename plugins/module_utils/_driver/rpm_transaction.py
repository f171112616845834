# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out a plan with DNF: all of it, or back to what was there. Private to socle.inference."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver import dkms
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import LEDGER, Host, own_holds
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_names import MODULE, is_driver_rpm
from ansible_collections.socle.inference.plugins.module_utils._driver.transaction import diff
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._gpu.driver import newest_kernel
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_exact import Exact, Request
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import read_packages

EPEL_RELEASE = "epel-release"
UNCHANGED = "Nothing was changed."


class RpmTransaction:
    """One plan on one host. Where it raises DriverError or PackageError, packages and locks are as before."""

    def __init__(self, host: Host, plan: Mapping[str, Any], kernel: str, hold: bool, files: Files) -> None:
        self.host, self.plan, self.kernel, self.hold, self.files = host, plan, kernel, hold, files
        self.exact = Exact(host.run, files, host.root)
        self.enabled: list[str] = []
        self.added: list[str] = []

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
            self._release()
            self._forget_stream()
            return result
        if plan["action"] == "none":
            result["held"] = self._settle_locks()
            return result
        self._install()
        result["held"] = self._settle_locks()
        return result

    def _prepare(self) -> None:
        for repository in self.plan["enable"]:
            self._dnf(["config-manager", "--set-enabled", repository], f"enable repository {repository}")
            self.enabled.append(repository)
        names = {EPEL_RELEASE if "://" in name else name for name in self.plan["prepare"]}
        before = self.exact.installed(sorted(names))
        try:
            packages = {name: version for name, version in self.plan["prepare"].items() if "://" not in name}
            if packages:
                self.exact.install(Request(packages))
            for address in self.plan["prepare"]:
                if "://" in address and EPEL_RELEASE not in before:
                    self._dnf(["install", address], f"install {address}")
        finally:
            self.added = sorted(set(self.exact.installed(sorted(names))) - set(before))

    def _dnf(self, words: list[str], attempt: str) -> None:
        command = ["dnf", "--assumeyes", *words]
        answer = self.host.run([*dnf.ENGLISH, *command])
        if answer is None or answer[0] != 0:
            # DNF names a mirror with user and password.
            output = without_password("\n".join(answer[1:])) if answer else ""
            raise DriverError(f"{dnf.explain(attempt, output)} {UNCHANGED}", cmd=command)

    def _take_back(self) -> list[str]:
        """Undo what made the transaction possible, and the package source of this run; what stays all the same."""
        left = []
        if self.added:
            try:
                self.exact.remove(self.added)
            except PackageError:
                left += self.added
        for repository in self.enabled:
            try:
                self._dnf(["config-manager", "--set-disabled", repository], f"disable repository {repository}")
            except DriverError:
                left.append(f"repository {repository}")
        source = self.plan["repository"] or {}
        for path in (source["source"], source["key"]) if source.get("missing") else ():
            if path in source["files"]:
                left.append(path)
            else:
                self.files.remove(self.host.root / path.lstrip("/"))
        return left

    def _install(self) -> None:
        plan = self.plan
        patterns = [*plan["packages"], *plan["lock"], *plan["remove"]]
        before, stream = self.exact.installed(patterns), dnf.read_stream(self.host.root, MODULE)
        request = Request(
            plan["packages"],
            lock=tuple(plan["lock"]),
            module=MODULE,
            stream=plan["stream"],
            replaces=tuple(plan["remove"]),
        )
        try:
            self._prepare()
            self.exact.install(request)
        except SocleError as error:
            left = self._take_back()
            if not left:
                raise
            told = error.message.removesuffix(UNCHANGED).rstrip()
            stay = f"{', '.join(left)} {'stays' if len(left) == 1 else 'stay'}"
            raise DriverError(f"{told} No package of the driver was changed, but {stay}.", **error.fields) from error
        try:
            self._check_modules()
        except DriverError as error:
            left_over = self._roll_back(before, patterns, stream)
            raise DriverError(f"{error.message}; {left_over}.", **error.fields) from error

    def _check_modules(self) -> None:
        """The packages build for the running kernel only, and their script ends well although the build failed."""
        version = str(self.plan["version"])
        entries = [entry for entry in dkms.read_status(self.host.run) if entry.version == version]
        if not entries:
            return
        kernels = list(dict.fromkeys((self.kernel, newest_kernel(self.host.root, self.kernel) or self.kernel)))
        for kernel in kernels:
            if not dkms.is_built(entries, version, kernel):
                self.host.run(["dkms", "install", "-m", entries[0].name, "-v", version, "-k", kernel])
        entries = dkms.read_status(self.host.run)
        lacking = next((kernel for kernel in kernels if not dkms.is_built(entries, version, kernel)), None)
        if lacking is not None:
            log = dkms.read_log(self.host.root, version)
            raise DriverError(dkms.complaint(version, lacking, log), build_log=dkms.excerpt(log))

    def _roll_back(self, before: Mapping[str, Any], patterns: list[str], stream: str | None) -> str:
        """Put the packages and the stream back; a clause that says how it went."""
        after = self.exact.installed(patterns)
        fresh = sorted(name for name in after if name not in before and is_driver_rpm(name))
        moved = {
            name: package.evr
            for name, package in before.items()
            if after.get(name) != package and (is_driver_rpm(name) or name in self.plan["remove"])
        }
        try:
            if moved:
                request = Request(moved, downgrade=True, replaces=tuple(fresh), module=MODULE, stream=stream)
                self.exact.install(request)
            left = [name for name in fresh if name in self.exact.installed(fresh)]
            if left:
                self.exact.remove(left)
            if stream is None and self.plan["stream"]:
                self._dnf(["module", "reset", MODULE], f"reset the module {MODULE}")
        except SocleError as error:
            return f"the former packages could not be put back ({error.message.rstrip('.')}): see 'dnf history'"
        others = sorted(name for name in after if name not in before and not is_driver_rpm(name))
        others += [*self.added, *(f"repository {name}" for name in self.enabled)]
        source = self.plan["repository"] or {}
        others += [source["source"]] if source.get("missing") else []
        stay = f", but {', '.join(others)} {'stays' if len(others) == 1 else 'stay'}" if others else ""
        return ("the driver is as before the run" if moved else "what was installed was removed again") + stay

    def _settle_locks(self) -> list[str]:
        """Lock what belongs to the driver now, and note it as ours; with hold off, release ours."""
        own = own_holds(self.host)
        if not self.hold:
            self._release()
            return []
        packages = read_packages(self.host.run, self.host.root)
        # A lock that is there and not noted is somebody else's.
        ours = {
            name: package
            for name, package in self.exact.installed(self.plan["lock"]).items()
            if name in own or not packages.get(name, {}).get("held")
        }
        # Noted before it is locked, and until it no longer is: the next run puts right what is not so.
        self._note(own | set(ours))
        self.exact.write_locks(dnf.locked(dnf.unlocked(self.exact.read_locks(), own - set(ours)), ours.values()))
        if own - set(ours):
            self._note(ours)
        return sorted(ours)

    def _release(self) -> None:
        """Lift every lock of ours, also on what is no part of the driver any more."""
        self.exact.write_locks(dnf.unlocked(self.exact.read_locks(), own_holds(self.host)))
        self._note([])

    def _forget_stream(self) -> None:
        """A stream that stays enabled keeps others away; 'dnf module reset' fails where no repository has it."""
        with explaining(f"reset the module {MODULE}"):
            self.files.remove(self.host.root / dnf.MODULES_FOLDER / f"{MODULE}.module")

    def _note(self, names: Iterable[str]) -> None:
        path, held = self.host.root / LEDGER, sorted(names)
        with explaining("note which packages this role locks"):
            if held:
                self.files.write(path, json.dumps({"held": held}, indent=1) + "\n")
            else:
                self.files.remove(path)
