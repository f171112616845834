# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done to a Debian or Ubuntu host so that it has the wanted driver. Private to socle.inference.

Nothing is changed here. Commands are injected; files are read below a root.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver import apt, decide, names, reboot
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.files import (
    check_units,
    option_values,
    options_that_differ,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
    Repository,
    Wanted,
    branch_of,
    upstream,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.origin import ubuntu_origins
from ansible_collections.socle.inference.plugins.module_utils._driver.repository import check_address, source_files
from ansible_collections.socle.inference.plugins.module_utils._driver.users import (
    MONITORING_UNITS,
    foreign_users,
    reload_victims,
)
from ansible_collections.socle.inference.plugins.module_utils._packages import holds
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import damage
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import (
    foreign_installs,
    is_installed,
    read_packages,
    read_sources,
)

LEDGER = "var/lib/socle/gpu_driver.json"
"""What this role holds, so that a hold of somebody else is told from its own."""

DAMAGED_LEDGER = f"/{LEDGER}, which notes what this role holds, is damaged and would be rewritten"

MOK_KEYS = ("var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub")
"""Where DKMS of Ubuntu and of Debian keeps the public half of its signing key."""


@dataclass(frozen=True)
class Host:
    """How the host is reached: commands, and the roots of its files."""

    run: Run
    root: Path
    proc_root: Path
    preference_file: Callable[[str], str]
    """Writes a preference for apt into a temporary file, and gives its path."""

    def read(self, path: Path) -> str:
        """The text, or "" where there is no such file."""
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


@dataclass
class Plan:
    """The plan; its keys are those of the module's result."""

    action: str = "none"
    version: str | None = None
    installed_version: str | None = None
    flavour: str | None = None
    source: str = "nvidia"
    final: bool = True
    """False where the package index must be read first, so that versions are not known yet."""
    refresh: bool = False
    repository: dict[str, Any] | None = None
    pin: str | None = None
    install: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    unhold: list[str] = field(default_factory=list)
    hold: list[str] = field(default_factory=list)
    hold_also: list[str] = field(default_factory=list)
    """Packages of others that are held with the driver, where they are installed."""
    headers: list[str] = field(default_factory=list)
    preference: str = ""
    """For apt during the transaction."""
    services: list[str] = field(default_factory=list)
    changed_needed: bool = False
    reasons: list[str] = field(default_factory=list)
    reboot: dict[str, str] = field(default_factory=lambda: {"action": "none", "reason": ""})
    warnings: list[str] = field(default_factory=list)
    """What a person should know although the run goes on."""
    refused: str = ""
    """Why a run would change nothing, by a package index that it reads anew first; "" where nothing speaks against."""
    expected: dict[str, str] = field(default_factory=dict)
    """Versions that apt would take of packages that are asked for without one, and of parts that come along."""

    def as_dict(self) -> dict[str, Any]:
        """For the module's result: without the password of a mirror, which only the inventory has."""
        result = dict(vars(self))
        if self.repository is not None:
            shown = without_password(self.repository["url"] or "")
            keys = [without_password(url) for url in self.repository["key_urls"]]
            result["repository"] = {**self.repository, "url": shown or None, "key_urls": keys}
        return result


def summary(plan: Plan) -> str:
    """One line: what would be done, why, and what makes it run."""
    parts = list(plan.reasons)
    if plan.reboot["action"] == "reboot":
        parts.append(f"a reboot would be needed because {plan.reboot['reason']}")
    elif plan.reboot["action"] == "load":
        parts.append(f"the modules would be loaded without a reboot ({plan.reboot['reason']})")
    if plan.services and (plan.changed_needed or plan.reboot["action"] != "none"):
        parts.append(f"{', '.join(plan.services)} would be stopped meanwhile")
    return "; ".join(parts)


def foresee(plan: Plan) -> list[str]:
    """What check mode cannot promise, of a plan by the package index that the host has now; warnings.

    Raises DriverError where that index speaks against a run.
    """
    if plan.refused:
        raise DriverError(
            f"{plan.refused} This is by the package index as this host read it last, since it could not be read anew;"
            " see what 'apt-get update' says, and check again."
        )
    if plan.final or not plan.refresh:
        return []
    where = (plan.repository or {}).get("display") or "the distribution"
    asked = f"driver {plan.version}" if plan.version else "a driver of that branch"
    return [
        f"The package index of {where} is not on this host yet, and check mode does not fetch it: whether it has"
        f" {asked} is not known; a run reads it first, and is refused before anything is changed where it has not."
    ]


def own_holds(host: Host) -> set[str]:
    """Packages that this role holds; none by a ledger that is damaged."""
    return read_ledger(host) or set()


def read_ledger(host: Host) -> set[str] | None:
    """What the ledger says; None where it is damaged."""
    path = host.root / LEDGER
    if damage(path):
        return None
    text = host.read(path)
    return set(json.loads(text)["held"]) if text else set()


def lost_holds(host: Host) -> str:
    """What a refusal over holds of others begins with where the ledger is damaged, else ""."""
    return holds.lost_holds(host.root / LEDGER, LEDGER)


def running_units(host: Host, asked: Sequence[str]) -> list[str]:
    """Units that use the GPUs and run: those *asked* for, else the instances; and NVIDIA's monitoring."""
    named = [name if name.endswith((".service", ".target", ".slice")) else f"{name}.service" for name in asked]
    patterns = [*(named or ["vllm-*.service"]), *MONITORING_UNITS]
    command = ["systemctl", "list-units", "--type=service", "--state=active,activating,reloading", "--plain"]
    answer = host.run([*command, "--no-legend", *patterns])
    lines = answer[1].splitlines() if answer and answer[0] == 0 else []
    return sorted({line.split()[0] for line in lines if line.strip()})


def plan_as_is(host: Host, settings: Settings, facts: Mapping[str, Any]) -> Plan:
    """The plan by the package index that the host has now, which may lack what the repository has by now."""
    return plan(host, settings, facts, fresh=False)


def plan(host: Host, settings: Settings, facts: Mapping[str, Any], *, fresh: bool = True) -> Plan:
    """The plan for one host; raises DriverError, before anything is changed, for what cannot be done.

    Without a *fresh* package index, what only the index speaks against is a reason and no error.
    """
    packages = read_packages(host.run, host.root)
    if settings.state == "absent":
        return _removal(host, settings, facts, packages)
    gpus = facts["gpus"]
    if not gpus:
        return Plan(reasons=["no NVIDIA GPU is on the PCI bus"])
    check_wishes(settings, gpus)
    check_units(host.root, settings.persistence, bool(facts.get("nvswitches") or facts.get("nvlink5")))
    return Planner(host, settings, facts, packages, fresh).plan()


def check_wishes(settings: Settings, gpus: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, before anything is looked up, what no host can have: settings, module parameters, an address, a use."""
    decide.check_settings(settings)
    option_values(settings.module_options)
    if settings.source == "nvidia":
        check_address(settings.repository_url)
    _check_use(gpus)


def _check_use(gpus: Sequence[Mapping[str, Any]]) -> None:
    for gpu in gpus:
        if gpu.get("virtualization") == "vgpu":
            raise DriverError(
                f"GPU {gpu['pci_bus_id']} is a share of a GPU (vGPU), and only whole GPUs are supported, on metal or"
                " passed through; have the whole GPU passed through to this machine, or use another host."
            )
    if all(gpu.get("bound_driver") == "vfio-pci" for gpu in gpus):
        raise DriverError(
            f"GPU {gpus[0]['pci_bus_id']} is reserved for virtual machines (vfio-pci), so that no driver can use it;"
            " release it, or leave this role out for the host."
        )


def verification(host: Host, settings: Settings, facts: Mapping[str, Any]) -> Plan:
    """The plan where somebody else takes care of the driver: no change; raises DriverError for one that will not do."""
    decide.check_settings(settings)
    version, flavour = facts["driver"].get("version"), facts["driver"].get("flavour")
    result = Plan(version=version, installed_version=version, flavour=flavour, source=settings.source)
    if version is None:
        return result
    asked = settings.version or settings.branch
    if asked and asked not in (version, branch_of(version)):
        variable = "gpu_driver_version" if settings.version else "gpu_driver_branch"
        raise DriverError(
            f"{variable} is {asked}, and driver {version} runs, which gpu_driver_state: unmanaged leaves as it is;"
            f" install {asked} by the means that the driver came with, or remove {variable}. Nothing was changed."
        )
    decide.check_version(settings, version, str(flavour), (), signed=True)
    return result


class Planner:
    """One plan for state present."""

    def __init__(
        self,
        host: Host,
        settings: Settings,
        facts: Mapping[str, Any],
        packages: Mapping[str, Mapping[str, Any]],
        fresh: bool = True,
    ) -> None:
        self.fresh = fresh
        self.host, self.facts, self.packages = host, facts, packages
        self.os, self.arch, self.kernel = facts["os"], facts["arch"], facts["kernel"]
        unclear = decide.of_unclear_origin(self.os, packages)
        origins = ubuntu_origins(host.run, unclear, settings.repository_url) if unclear else {}
        self.installed = decide.installed_driver(self.os, packages, origins)
        self.settings = decide.settle_branch(settings, self.installed)
        self.repository: Repository | None = None
        if settings.source == "nvidia":
            self.repository = names.deb_repository(self.os, self.arch, settings.repository_url)
        self.result = Plan(source=settings.source, installed_version=self.installed.version)

    def plan(self) -> Plan:
        settings, result = self.settings, self.result
        sources = read_sources(self.host.root)
        url = self.repository.url if self.repository else ""
        foreign = foreign_installs(self.host.run, self.host.root, self.packages)
        decide.check_sources(settings, self.installed, sources, foreign, url)
        decide.check_branch(settings)
        kinds = decide.generations(settings, self.facts["gpus"])
        result.flavour, why = decide.choose_flavour(settings, kinds, self.installed.flavour)
        result.reasons.append(f"{result.flavour} modules for {', '.join(kinds)}: {why}")
        self._tell_idle_upgrade()
        # A kernel with Secure Boot loads what DKMS built only with a key that was enrolled by hand.
        self.signed = bool(
            self.facts.get("secure_boot") and settings.source == "distribution" and self.os.get("id") == "ubuntu"
        )
        self.release = decide.kernel_release(self.kernel, self.host.read(self.host.proc_root / "version"))
        self.wanted = names.deb_packages(self.os, self.arch, self.kernel, self._wanted(result.flavour))
        self.signed = self.wanted.dkms is None
        result.repository = source_files(self.host.root, self.repository, self.os, settings.source, sources)
        result.hold_also = list(self.wanted.hold_also)
        if self._kept() is not None:
            self._settle_for_installed()
            # Later changes would come from the former address, and with its password.
            result.refresh = result.repository["moved"]
            return result
        decide.check_secure_boot(self.facts.get("secure_boot"), self.signed, self._is_enrolled(), self.os)
        self._check_held()
        result.changed_needed = True
        # Also where an upgrade then finds nothing newer.
        result.refresh = True
        result.pin, result.headers = self.wanted.pin, list(self.wanted.headers)
        result.services = running_units(self.host, settings.services)
        if result.repository["missing"]:
            self._outlook()
        else:
            try:
                self._transaction(sources, url)
            except DriverError as error:
                if self.fresh:
                    raise
                reasons = list(result.reasons)
                # What no index can change is refused here, in its own words.
                self._outlook()
                if self._has_index(url):
                    result.reasons = reasons
                    self._refused(error)
        return result

    def _has_index(self, url: str) -> bool:
        """Whether apt has read what the packages and their headers come from; it may be out of date."""
        needed = [(self.wanted.exact, url or None), (self.wanted.headers, None)]
        try:
            return all(not names or apt.offered(self.host.run, names, origin) for names, origin in needed)
        except DriverError:
            # Not an index that is missing: apt answers nothing at all.
            return True

    def _tell_idle_upgrade(self) -> None:
        told = decide.idle_upgrade(self.settings, self.installed)
        if told is not None:
            self.result.reasons.append(told)
            self.result.warnings.append(told)

    def _refused(self, error: DriverError) -> None:
        """What an index speaks against that a run reads anew first: nothing is promised of what would come after."""
        result = self.result
        result.final, result.action, result.version = False, "none", None
        result.install, result.remove, result.services, result.unhold = [], [], [], []
        result.reboot = vars_of(reboot.Activation("none", ""))
        result.refused = error.message
        why = error.message.removesuffix(" Nothing was changed.").rstrip(".")
        result.reasons.append(
            f"by the package index as it is now, which a run reads anew first, the run would be refused: {why}"
        )

    def _wanted(self, flavour: str) -> Wanted:
        return Wanted(
            source=self.settings.source,
            flavour=flavour,
            branch=self.settings.wanted_branch,
            version=self.settings.version,
            compute_only=self.settings.compute_only,
            signed=self.signed,
            nvswitch=bool(self.facts.get("nvswitches")),
            nvlink5=bool(self.facts.get("nvlink5")),
            installed=frozenset(name for name in self.packages if is_installed(self.packages, name)),
        )

    def _kept(self) -> str | None:
        """The installed version where nothing about the packages is to change."""
        if not decide.keeps(self.settings, self.installed):
            return None
        if self._is_whole():
            return self.installed.version
        held = self._held_by_others()
        if held and self._is_whole(guarded=False):
            self.result.reasons.append(
                f"{lost_holds(self.host)}{held[0]} is held, and not by this role: the driver stays as it is, and what"
                " guards it is left out"
            )
            return self.installed.version
        return None

    def _is_whole(self, guarded: bool = True) -> bool:
        """Whether everything is installed, at the version and flavour of the driver that is there.

        Also what guards it, the pin and the headers for kernels to come, unless *guarded* is false.
        """
        installed, wanted = self.installed, self.wanted
        if installed.version is None or installed.broken or installed.flavour != self.result.flavour:
            return False
        guards = [*wanted.headers, *([wanted.pin] if wanted.pin else [])] if guarded else []
        required = [*wanted.exact, *wanted.independent, *guards]
        return all(is_installed(self.packages, name) for name in required) and all(
            upstream(self.packages[name]["version"]) == installed.version for name in wanted.exact
        )

    def _settle_for_installed(self) -> None:
        """No package changes."""
        self.result.version = self.installed.version
        self._hold_only()
        self._look_at_loaded()

    def _hold_only(self) -> None:
        """Holds that went missing are set again, or given up with gpu_driver_hold: false."""
        own = own_holds(self.host)
        if not self.settings.hold:
            self.result.unhold = sorted(name for name in own if self.packages.get(name, {}).get("held"))
        else:
            self.result.hold = [
                name
                for name in holdable(self.packages, self.installed.version or "", self.wanted.hold_also)
                if not self.packages[name]["held"]
            ]
        ledger = read_ledger(self.host)
        if ledger is None:
            self.result.reasons.append(DAMAGED_LEDGER)
        # A note of what is not held any more would make a later hold of somebody else look like one of ours.
        stale = ledger is None or bool(ledger and not self.settings.hold)
        self.result.changed_needed = bool(self.result.hold or self.result.unhold or stale)

    def _look_at_loaded(self) -> None:
        """The packages may be right and another driver run: after unattended upgrades, or a run without its reboot."""
        params = self.host.read(self.host.proc_root / "driver/nvidia/params")
        different = options_that_differ(self.settings.module_options, params)
        state = facts_state(self.facts)
        wish = reboot.activation(state, different)
        if wish.action != "none":
            self.result.services = running_units(self.host, self.settings.services)
            wish = reboot.activation(state, different, self._foreign_users(wish.reason))
        self.result.reboot = vars_of(wish)

    def _foreign_users(self, why: str) -> list[str]:
        """Processes that the run does not stop by itself; raises DriverError for them unless force is set."""
        users = foreign_users(self.host.run, self.host.proc_root, self.facts["gpus"], self.result.services)
        if users and self.settings.reboot != "force":
            raise DriverError(
                f"Cannot change the driver ({why}): {_some(users)} {'uses' if len(users) == 1 else 'use'} a GPU and"
                " would be ended by it; end that first, or name its unit in gpu_driver_services, and repeat the run; or"
                " set gpu_driver_reboot: force, which changes the driver and reboots all the same. Nothing was changed."
            )
        return users

    def _check_reload(self, why: str) -> None:
        """Packages with units have systemd read all units anew, which takes the GPUs from some containers."""
        if self.settings.reboot == "force" or not any(self._differs(argument) for argument in self.result.install):
            return
        toolkit = (self.facts.get("toolkit") or {}).get("version")
        victims = reload_victims(self.host.run, self.host.root, toolkit, self.result.services)
        if victims:
            raise DriverError(
                f"Cannot change the driver ({why}): its packages have systemd read its units anew, which takes the GPUs"
                f" from Docker containers of the legacy hook, and {_some(victims)}"
                f" {'is' if len(victims) == 1 else 'are'} running; stop them first, or start them with --device"
                " nvidia.com/gpu=..., and repeat the run; or set gpu_driver_reboot: force. Nothing was changed."
            )

    def _differs(self, argument: str) -> bool:
        """Whether a package that is named for installation changes more than the pin, which is one file of apt."""
        name, _equals, version = argument.partition("=")
        if name == self.result.pin:
            return False
        package = self.packages.get(name)
        if package is None or package["status"] != "installed":
            return True
        return bool(version) and upstream(version.rstrip("*")) != upstream(package["version"])

    def _is_enrolled(self) -> bool:
        if not self.facts.get("secure_boot") or self.signed:
            return False
        for key in MOK_KEYS:
            if (self.host.root / key).is_file():
                # The exit status differs between releases, the words do not.
                answer = self.host.run(["mokutil", "--test-key", f"/{key}"])
                if answer is not None and "already enrolled" in answer[1] + answer[2]:
                    return True
        return False

    def _held_by_others(self) -> list[str]:
        names_needed = {*self.wanted.exact, *self.wanted.independent, self.wanted.pin}
        held = {name for name, package in self.packages.items() if package["held"]}
        mine = {name for name in held if names.is_driver_package(name) or name in names_needed}
        return sorted(mine - own_holds(self.host))

    def _check_held(self) -> None:
        own = own_holds(self.host)
        held = {name for name, package in self.packages.items() if package["held"]}
        others = self._held_by_others()
        if others:
            version = self.packages[others[0]]["version"]
            raise DriverError(
                f"Cannot change the driver: {lost_holds(self.host)}{', '.join(others)}"
                f" {'is' if len(others) == 1 else 'are'} held{f' at {version}' if version else ''}, and not by this"
                f" role; release with 'apt-mark unhold {' '.join(others)}' and repeat the run, or leave the driver to"
                " whoever holds it: gpu_driver_state: unmanaged. Nothing was changed."
            )
        self.result.unhold = sorted(held & own)

    def _outlook(self) -> None:
        """What a run would do where the repository is not there yet: names, without versions of a branch."""
        settings, result = self.settings, self.result
        result.final = False
        kept = self.installed.version if decide.keeps(settings, self.installed) else None
        version = kept or settings.version
        result.version = version or None
        result.remove = []
        if version:
            decide.check_direction(settings, self.installed, version)
            decide.check_version(settings, version, str(result.flavour), self.release, self.signed)
        end = f"={version}*" if version else f"={settings.branch}.*"
        result.install = [
            *([self.wanted.pin] if self.wanted.pin else []),
            *(name + end for name in self.wanted.exact),
            *(name + end for name in self.wanted.optional if not kept),
            *self.wanted.independent,
            *(name for name in self.wanted.headers if not is_installed(self.packages, name)),
        ]
        self._name_action(version or f"{settings.branch}, the newest")

    def _transaction(self, sources: Sequence[Mapping[str, str]], url: str) -> None:
        """The exact packages, and apt's word that they can be installed."""
        settings, result, wanted = self.settings, self.result, self.wanted
        where = without_password(url) if self.repository else "the distribution's package sources"
        pin = [wanted.pin] if wanted.pin else []
        present = [
            name
            for name, package in self.packages.items()
            if names.is_driver_package(name) and package["status"] not in ("not-installed", "config-files")
        ]
        asked = [*wanted.exact, *wanted.optional, *pin, *present]
        vendor = [source["uri"] for source in sources if source["kind"].startswith("nvidia")]
        offers = apt.offered(self.host.run, asked, url or None, () if url else vendor)
        version = self._version(offers, where)
        result.version = version
        if version == self.installed.version and self._is_whole():
            result.unhold, result.services, result.headers = [], [], []
            self._settle_for_installed()
            return
        decide.check_direction(settings, self.installed, version)
        decide.check_version(settings, version, str(result.flavour), self.release, self.signed)
        if pin and wanted.pin not in offers:
            raise DriverError(
                f"Cannot pin the driver: {where} has no {wanted.pin}; complete the mirror, or set gpu_driver_version to"
                f" one that has a pin: {', '.join(_pins(offers, self.host, url)) or 'there is none'}. Nothing was"
                " changed."
            )
        lacking = [name for name in wanted.exact if apt.at_version(offers, name, version) is None]
        if lacking:
            raise DriverError(
                f"Cannot install driver {version}: {where} has no {', '.join(lacking)} of that version, and all parts"
                " must have the same; set gpu_driver_version to another one, or mirror the missing packages."
                " Nothing was changed."
            )
        result.remove = self._replaced()
        chosen = [*wanted.exact, *wanted.optional, *(name for name in present if name not in result.remove)]
        versions = {name: apt.at_version(offers, name, version) for name in dict.fromkeys(chosen)}
        exact = [f"{name}={offer}" for name, offer in versions.items() if offer]
        self._check_headers()
        # Headers that are there may be kept back with their kernel, and belong to no driver version.
        absent = [name for name in wanted.headers if not is_installed(self.packages, name)]
        loose = [*wanted.independent, *absent, *self._running_headers()]
        result.install = [*pin, *exact, *loose]
        result.preference = apt.preferences(version)
        self._simulate(where)
        self._name_action(version)

    def _version(self, offers: Mapping[str, Sequence[str]], where: str) -> str:
        installed = self.installed
        if installed.version and decide.keeps(self.settings, installed):
            # Something is missing or broken, and the version is to stay.
            return installed.version
        available = apt.common_versions(offers, self.wanted.driver)
        return decide.choose_version(self.settings, installed, available, where)

    def _replaced(self) -> list[str]:
        """Other pins, and modules of the other flavour; apt would remove them as well, but may find another way."""
        mine = {*self.wanted.exact, *self.wanted.optional, *self.wanted.independent, self.wanted.pin}
        other = re.compile(
            r"nvidia-driver-pinning-.*|nvidia-(kernel-(open-)?|open-kernel-)dkms|nvidia-dkms(-\d+)?(-server)?(-open)?"
            r"|linux-modules-nvidia-.*|nvidia-headless-.*"
        )
        return sorted(
            name
            for name, package in self.packages.items()
            if package["status"] not in ("not-installed", "config-files")
            and other.fullmatch(name)
            and name not in mine
            and not (self.wanted.per_kernel and re.fullmatch(self.wanted.per_kernel, name))
        )

    def _running_headers(self) -> list[str]:
        """Headers of the running kernel, which the metapackage leaves behind once a newer kernel is out."""
        name = f"linux-headers-{self.kernel}"
        if self.wanted.dkms is None or not self.wanted.headers or is_installed(self.packages, name):
            return []
        return [name] if name in apt.offered(self.host.run, [name], None) else []

    def _check_headers(self) -> None:
        if self.wanted.dkms is None:
            return
        name = f"linux-headers-{self.kernel}"
        there = (self.host.root / f"lib/modules/{self.kernel}/build").exists()
        if there or is_installed(self.packages, name) or self._running_headers():
            return
        driver = self.facts["driver"]
        if driver.get("next_kernel") not in (None, self.kernel):
            self.result.reasons.append(f"no headers of kernel {self.kernel}; the next kernel gets the module")
            return
        raise DriverError(
            f"Cannot build the module: the headers of the running kernel {self.kernel} are neither installed nor in the"
            f" package sources ({name}); install the newest kernel and reboot, then repeat the run. Nothing was"
            " changed."
        )

    def _simulate(self, where: str) -> None:
        result = self.result
        arguments = [*result.install, *(f"{name}-" for name in result.remove)]
        simulated = apt.simulate(self.host.run, arguments, self.host.preference_file(result.preference))
        if simulated.problem:
            raise DriverError(
                f"Cannot install driver {result.version}: apt refuses: {simulated.problem.rstrip('.')}; look for held"
                f" packages ('apt-mark showhold') and for package sources beside {where}. Nothing was changed.",
                arguments=arguments,
            )
        lost = [name for name in simulated.removals if not names.is_driver_package(name.partition(":")[0])]
        if lost:
            raise DriverError(
                f"Cannot install driver {result.version}: apt would remove {', '.join(lost)} for it; remove what"
                " conflicts by hand, or choose another version. Nothing was changed."
            )
        own = own_holds(self.host)
        held = sorted(
            name
            for name in (*simulated.installs, *simulated.removals)
            if self.packages.get(name, {}).get("held") and name not in own
        )
        if held:
            raise DriverError(
                f"Cannot install driver {result.version}: {lost_holds(self.host)}{', '.join(held)} would change and is"
                f" held, not by this role; release with 'apt-mark unhold {' '.join(held)}' and repeat the run."
                " Nothing was changed."
            )
        result.remove = sorted({*result.remove, *simulated.removals})
        asked = {name: bool(version) for name, _equals, version in (one.partition("=") for one in result.install)}
        result.expected = {
            name: then
            for name, (_now, then) in sorted(simulated.installs.items())
            if not asked.get(name, not names.is_driver_package(name))
        }

    def _name_action(self, target: str) -> None:
        result, installed = self.result, self.installed
        if installed.version is None:
            result.action = "install"
        elif installed.version != result.version:
            result.action = "upgrade"
        elif installed.flavour not in (None, result.flavour):
            result.action = "switch"
        else:
            result.action = "complete"
        if installed.broken:
            result.reasons.append(f"dpkg did not finish {', '.join(installed.broken)}")
        result.reasons.append(
            {
                "install": f"driver {target} would be installed",
                "upgrade": f"driver {installed.version} would become {target}",
                "switch": f"the {installed.flavour} modules would become {result.flavour} ones",
                "complete": self._pin_alone() or f"parts of driver {installed.version} are missing",
            }[result.action]
        )
        why = result.reasons[-1]
        state = facts_state(self.facts)
        if result.action == "complete" and self._runs(state):
            # What is loaded stays, so that nothing that uses it need stop.
            result.services = []
        else:
            result.reboot = vars_of(reboot.prediction(state, target, self._foreign_users(why)))
        self._check_reload(why)

    def _pin_alone(self) -> str:
        """What is said where nothing but the pinning package changes, else ""."""
        pin, whole = self.result.pin, not self.installed.broken
        if not pin or not whole or any(self._differs(argument) for argument in self.result.install):
            return ""
        former = [
            name
            for name in self.packages
            if name.startswith("nvidia-driver-pinning-") and name != pin and is_installed(self.packages, name)
        ]
        how = f"{pin} would replace {', '.join(sorted(former))}" if former else f"{pin} would be added"
        stays = ", and nothing is reloaded" if self._runs(facts_state(self.facts)) else ""
        return f"only the pin of driver {self.installed.version} would change: {how}{stays}"

    def _runs(self, state: reboot.State) -> bool:
        """Whether the wanted driver is the loaded one, and stays it."""
        return (
            state.loaded is not None
            and state.loaded == state.disk == self.result.version
            and state.loaded_flavour in (None, self.result.flavour)
        )


def vars_of(activation: reboot.Activation) -> dict[str, str]:
    """For a module's result."""
    return {"action": activation.action, "reason": activation.reason}


def facts_state(facts: Mapping[str, Any]) -> reboot.State:
    """The state of the modules from gpu_facts, which do not tell their users."""
    driver = facts["driver"]
    return reboot.State(
        kernel=facts["kernel"],
        loaded=driver.get("version"),
        loaded_flavour=driver.get("flavour"),
        disk=driver.get("disk_version"),
        disk_flavour=driver.get("disk_flavour"),
        next_kernel=driver.get("next_kernel"),
        next_disk=driver.get("next_disk_version"),
        nouveau=bool(driver.get("nouveau")),
        users={},
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _pins(offers: Mapping[str, Sequence[str]], host: Host, url: str) -> list[str]:
    """Versions with a pinning package, of those that the driver's first package has."""
    versions = sorted({upstream(version) for found in offers.values() for version in found})
    pinned = apt.offered(host.run, [f"nvidia-driver-pinning-{version}" for version in versions], url)
    return [version for version in versions if f"nvidia-driver-pinning-{version}" in pinned]


def belongs(name: str, package_version: str, version: str, also: Sequence[str]) -> bool:
    """Whether a package is held with the driver at *version*: its parts, its pin, and *also*."""
    return (
        name in also
        or name.startswith(("nvidia-driver-pinning-", "linux-modules-nvidia-"))
        or name == "nvlsm"
        or (names.is_driver_package(name) and upstream(package_version) == version)
    )


def holdable(packages: Mapping[str, Mapping[str, Any]], version: str, also: Sequence[str]) -> list[str]:
    """Installed packages that belong to the driver at *version*, its pin, and *also* where installed."""
    return sorted(
        name
        for name, package in packages.items()
        if package["status"] == "installed" and belongs(name, package["version"], version, also)
    )


def check_removal(host: Host, settings: Settings, facts: Mapping[str, Any]) -> None:
    """Refuse to take the driver from under what uses it and was not named to be stopped."""
    named = {name.partition(".service")[0] for name in settings.services}
    kept = [
        unit
        for unit in running_units(host, ())
        if unit not in MONITORING_UNITS and unit.partition(".service")[0] not in named
    ]
    stopped = running_units(host, settings.services) if settings.services else ()
    users = [] if kept else foreign_users(host.run, host.proc_root, facts["gpus"], stopped)
    if kept or users:
        raise DriverError(
            f"Cannot remove the driver: {_some(kept or users)} {'uses' if len(kept or users) == 1 else 'use'} it;"
            f" stop {'it' if len(kept or users) == 1 else 'them'} first"
            f"{', or name the units in gpu_driver_services, which stops them' if kept else ''}. Nothing was changed."
        )


def fill_removal(
    result: Plan,
    there: Sequence[str],
    hold: tuple[str, str],
    host: Host,
    settings: Settings,
    facts: Mapping[str, Any],
    packages: Mapping[str, Mapping[str, Any]],
    entries: Callable[[Sequence[str]], Sequence[str]] = list,
) -> None:
    """Everything of the driver goes, which is *there*; *hold* is the word for it and the command that ends it.

    *entries* gives what that command takes for the packages.
    Refuses while something uses a GPU that was not named to be stopped.
    """
    result.action = "remove" if there else "none"
    own = own_holds(host)
    # The kernel that modules of the distribution belong to is held as well, and stays installed.
    result.unhold = sorted(name for name in own if packages.get(name, {}).get("held"))
    if not there:
        # A removal that was interrupted leaves its note, and the next one has to find it.
        noted = read_ledger(host)
        if noted is None:
            result.reasons.append(DAMAGED_LEDGER)
        result.changed_needed = bool(noted is None or noted or (result.repository and result.repository["files"]))
        return
    check_removal(host, settings, facts)
    others = sorted(name for name in there if packages[name]["held"] and name not in own)
    if others:
        state, release = hold
        raise DriverError(
            f"Cannot remove the driver: {lost_holds(host)}{', '.join(others)} is {state}, and not by this role; release"
            f" with '{release} {' '.join(entries(others))}' and repeat the run. Nothing was changed."
        )
    result.remove = list(there)
    result.services = running_units(host, settings.services)
    result.changed_needed = True
    result.reasons.append(f"driver {result.installed_version} would be removed")


def _removal(
    host: Host, settings: Settings, facts: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]]
) -> Plan:
    there = sorted(
        name
        for name, package in packages.items()
        if names.is_driver_package(name) and package["status"] != "not-installed"
    )
    result = Plan(source=settings.source)
    result.repository = source_files(host.root, None, facts["os"], settings.source, [])
    result.installed_version = decide.installed_version(packages)
    fill_removal(result, there, ("held", "apt-mark unhold"), host, settings, facts, packages)
    going = apt.removed_with(host.run, there) if there else set()
    lost = sorted(name for name in going if not names.is_driver_package(name))
    if lost:
        raise DriverError(
            f"Cannot remove the driver: apt would remove {', '.join(lost)} with it; remove that by hand first, if it"
            " shall go. Nothing was changed."
        )
    return result
