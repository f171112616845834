# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done to a host of the RHEL family so that it has the wanted driver. Private to socle.inference.

The decisions are those of Debian and Ubuntu; packages, module stream and locks are DNF's. The repository is asked
directly, so that a plan knows exact versions before its file, the stream or EPEL are there.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver import decide, rpm_names
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Installed, Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.files import check_units
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
    DriverPackages,
    Repository,
    branch_of,
    upstream,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import (
    DAMAGED_LEDGER,
    Host,
    Plan,
    Planner,
    check_wishes,
    fill_removal,
    lost_holds,
    own_holds,
    read_ledger,
    running_units,
)
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import HEADER, DnfRepository, render
from ansible_collections.socle.inference.plugins.module_utils._packages.key_file import holds_key
from ansible_collections.socle.inference.plugins.module_utils._packages.source import is_same, without_password
from ansible_collections.socle.inference.plugins.module_utils._packages.version import version_key
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import (
    foreign_installs,
    is_installed,
    matching_locks,
    read_packages,
    read_sources,
    read_version_locks,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import read_regular

NAME = "socle-nvidia-cuda"
"""Of the repository and its files."""

KMOD = {"open": "kmod-nvidia-open-dkms", "proprietary": "kmod-nvidia-latest-dkms"}
USER_SPACE = ("nvidia-driver-cuda", "nvidia-driver-cuda-libs", "libnvidia-ml")

LOCK_PLUGIN = "etc/dnf/plugins/versionlock.conf"


@dataclass
class RpmPlan(Plan):
    """A plan for DNF: its keys beside those of every plan."""

    family: str = "redhat"
    packages: dict[str, str] = field(default_factory=dict)
    """Version by package, for one transaction."""
    stream: str | None = None
    """Stream of the module nvidia-driver to enable first."""
    lock: list[str] = field(default_factory=list)
    """Patterns of installed packages that are locked."""
    enable: list[str] = field(default_factory=list)
    """Repositories of the distribution to enable first."""
    prepare: dict[str, str] = field(default_factory=dict)
    """Packages to install before: EPEL, by its address where no repository has it, and the plugin that locks."""
    kernels: list[str] = field(default_factory=list)
    """Kernels that get the modules: the running one, and the one that boots next."""


def installed_rpm(packages: Mapping[str, Mapping[str, Any]]) -> Installed:
    """The driver among *packages* (of read_packages); raises DriverError for one of another packager."""
    others = sorted(name for name in packages if rpm_names.OTHER_BUILDS.fullmatch(name))
    if others:
        raise DriverError(
            f"This host has a driver of another packager ({others[0]} {packages[others[0]]['version']}): RPM Fusion and"
            " ELRepo name its parts differently, and mixing them with NVIDIA's breaks both; remove it with 'dnf remove"
            f" {' '.join(others[:4])}', then repeat the run. Nothing was changed."
        )
    versions = [upstream(packages[name]["version"]) for name in USER_SPACE if is_installed(packages, name)]
    flavours = {flavour for flavour, name in KMOD.items() if is_installed(packages, name)}
    for flavour, pattern in rpm_names.PRECOMPILED.items():
        flavours |= {flavour for name in packages if pattern.fullmatch(name)}
    found = bool(versions or flavours)
    return Installed(
        version=max(versions, key=version_key, default=None),
        flavour=flavours.pop() if len(flavours) == 1 else None,
        source="nvidia" if found else None,
        broken=(),
    )


def enabled_repositories(root: Path) -> dict[str, bool]:
    """Id -> whether it is enabled, of all files in /etc/yum.repos.d."""
    found: dict[str, bool] = {}
    for path in sorted((root / "etc/yum.repos.d").glob("*.repo")):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(read_regular(path))
        except configparser.Error:
            continue
        for name in parser.sections():
            found[name] = parser.get(name, "enabled", fallback="1").strip().lower() in ("1", "yes", "true")
    return found


def newest(packages: Iterable[dnf.Rpm], name: str, branch: str, version: str = "") -> dnf.Rpm | None:
    """The newest package of *name* in *branch*, or the one of exactly *version*; None where there is none."""
    found = [
        each
        for each in packages
        if each.name == name and (each.version == version if version else branch_of(each.version) == branch)
    ]
    return max(found, key=lambda each: version_key(each.version), default=None)


def rpm_source(repository: Repository) -> DnfRepository:
    """NVIDIA's repository as a package source of DNF."""
    return DnfRepository(NAME, repository.url, repository.key_urls[0], variable="gpu_driver_repository_url")


def source_state(host: Host, repository: Repository | None, sources: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """What the package source should be; keys as those of Debian's (repository.source_files)."""
    none = DnfRepository(NAME, "", "")
    paths = [none.path, none.key_path]
    result: dict[str, Any] = {
        "family": "redhat",
        "url": None,
        "key_urls": [],
        "source": none.path,
        "key": none.key_path,
        "components": "",
        "missing": False,
        "moved": False,
        "files": [path for path in paths if (host.root / path.lstrip("/")).is_file()],
        "foreign": False,
        "foreign_files": [],
        "display": "",
    }
    if repository is None:
        return result
    same = [entry["file"] for entry in sources if is_same(entry["uri"], repository.url)]
    foreign = [file for file in dict.fromkeys(same) if file != none.path]
    text = host.read(host.root / none.path.lstrip("/"))
    written = text == render(rpm_source(repository))
    has_key = holds_key(host.root / none.key_path.lstrip("/"))
    result.update(
        url=repository.url,
        key_urls=list(repository.key_urls),
        folder=f"{repository.distro}/{repository.arch}/",
        key_file=repository.key_urls[0].rpartition("/")[2],
        foreign=bool(foreign),
        foreign_files=foreign,
        moved=not foreign and text.startswith(HEADER) and (f"\nbaseurl={repository.url}\n" not in text or not has_key),
        missing=not foreign and not (written and has_key),
        display=without_password(repository.url),
    )
    return result


def rpm_plan(host: Host, settings: Settings, facts: Mapping[str, Any]) -> Plan:
    """The plan for one host; raises DriverError, before anything is changed, for what cannot be done."""
    packages = read_packages(host.run, host.root)
    if settings.state == "absent":
        return _removal(host, settings, facts, packages)
    gpus = facts["gpus"]
    if not gpus:
        return RpmPlan(reasons=["no NVIDIA GPU is on the PCI bus"])
    check_wishes(settings, gpus)
    check_units(host.root, settings.persistence, bool(facts.get("nvswitches") or facts.get("nvlink5")))
    return RpmPlanner(host, settings, facts, packages).plan()


def lock_entries(host: Host, packages: Mapping[str, Mapping[str, Any]], arch: str, locked: Sequence[str]) -> list[str]:
    """What 'dnf versionlock delete' takes for *locked* packages: it finds a glob by the glob's own text only."""
    lines = read_version_locks(host.root)
    found = [
        line
        for name in locked
        for each in (arch, "noarch")
        for line in matching_locks(name, packages[name]["version"], each, lines)
    ]
    return [f'"{entry}"' if re.search(r"[*?\[]", entry) else entry for entry in dict.fromkeys(found or locked)]


class RpmPlanner(Planner):
    """One plan for state present."""

    result: RpmPlan
    wanted: DriverPackages

    def __init__(
        self, host: Host, settings: Settings, facts: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.host, self.facts, self.packages = host, facts, packages
        self.os, self.arch, self.kernel = facts["os"], facts["arch"], facts["kernel"]
        self.installed = installed_rpm(packages)
        self.settings = decide.settle_branch(settings, self.installed)
        self.source = rpm_names.rpm_repository(self.os, self.arch, settings.repository_url)
        self.repository = self.source
        self.signed = False
        dkms = {name for name in KMOD.values() if is_installed(packages, name)}
        self.precompiled = [] if dkms else sorted(name for name in packages if rpm_names.is_precompiled(name))
        self.result = RpmPlan(source=settings.source, installed_version=self.installed.version)

    def plan(self) -> RpmPlan:
        settings, result = self.settings, self.result
        every = read_sources(self.host.root)
        sources = [source for source in every if source["file"] != rpm_source(self.source).path]
        foreign = foreign_installs(self.host.run, self.host.root, self.packages)
        decide.check_sources(settings, self.installed, sources, foreign, self.source.url)
        decide.check_branch(settings)
        kinds = decide.generations(settings, self.facts["gpus"])
        result.flavour, why = decide.choose_flavour(settings, kinds, self.installed.flavour)
        result.reasons.append(f"{result.flavour} modules for {', '.join(kinds)}: {why}")
        self._tell_idle_upgrade()
        self.release = decide.kernel_release(self.kernel, self.host.read(self.host.proc_root / "version"))
        self.wanted = rpm_names.rpm_packages(self.os, self.arch, self.kernel, self._wanted(result.flavour))
        if self.precompiled:
            self.wanted = rpm_names.without_dkms(self.wanted, settings.compute_only)
        result.repository = source_state(self.host, self.source, every)
        result.lock = list(self.wanted.lock)
        kept = self._kept()
        if kept is not None and self._stream_is_right():
            result.version = kept
            self._hold_only()
            self._look_at_loaded()
            return result
        self._check_precompiled()
        known = bool(self.precompiled) or self._is_enrolled()
        decide.check_secure_boot(self.facts.get("secure_boot"), False, known, self.os)
        self._check_held()
        result.changed_needed = True
        result.headers = list(self.wanted.headers)
        result.services = running_units(self.host, settings.services)
        self._choose()
        return result

    def _check_precompiled(self) -> None:
        """Parts may be added to a driver with precompiled modules, but its modules are not this role's to move."""
        installed = self.installed
        stays = decide.keeps(self.settings, installed) and installed.flavour == self.result.flavour
        if self.precompiled and not stays:
            module = f"{self.precompiled[0]} {self.packages[self.precompiled[0]]['version']}"
            raise DriverError(
                f"Cannot change the driver: {module} has precompiled modules, which come by their own source, and this"
                " role would build others with DKMS; change the driver by 'dnf upgrade' after a run with"
                f" gpu_driver_hold: false, or keep it with gpu_driver_version: {installed.version}, or remove it first"
                " with gpu_driver_state: absent. Nothing was changed."
            )

    def _stream_is_right(self) -> bool:
        return self.wanted.stream in (None, dnf.read_stream(self.host.root, rpm_names.MODULE))

    def _parts(self) -> list[str]:
        mine = (name for name in self.packages if rpm_names.is_driver_rpm(name))
        return sorted(name for name in mine if not rpm_names.is_precompiled(name))

    def _hold_only(self) -> None:
        """Locks that went missing are set again, and what is noted of others is forgotten; or all are given up."""
        result, packages = self.result, self.packages
        noted = read_ledger(self.host)
        if noted is None:
            result.reasons.append(DAMAGED_LEDGER)
        belonging = {name for name in packages if any(fnmatchcase(name, pattern) for pattern in self.wanted.lock)}
        if not self.settings.hold:
            belonging = set()
        own = noted or set()
        result.hold = sorted(name for name in belonging if not packages[name]["held"])
        result.unhold = sorted(own - belonging)
        result.changed_needed = bool(result.hold or result.unhold or noted is None)

    def _held_by_others(self) -> list[str]:
        needed = {*self.wanted.exact, *self.wanted.independent, *self._parts()}
        held = {name for name in needed if self.packages.get(name, {}).get("held")}
        return sorted(held - own_holds(self.host))

    def _check_held(self) -> None:
        own = own_holds(self.host)
        held = {name for name, package in self.packages.items() if package["held"]}
        others = self._held_by_others()
        if others:
            raise DriverError(
                f"Cannot change the driver: {lost_holds(self.host)}{', '.join(others)}"
                f" {'is' if len(others) == 1 else 'are'} locked at {self.packages[others[0]]['version']}, and not by"
                " this role; release with 'dnf versionlock delete"
                f" {' '.join(lock_entries(self.host, self.packages, self.arch, others))}' and repeat the run, or leave"
                " the driver to whoever locks it: gpu_driver_state: unmanaged. Nothing was changed."
            )
        self.result.unhold = sorted(held & own)

    def _choose(self) -> None:
        """The exact packages; what DNF says of the transaction comes when it is tried, before anything is changed."""
        settings, result, wanted = self.settings, self.result, self.wanted
        url = self.source.url
        where = without_password(url)
        offers = dnf.query(self.host.run, url, [*wanted.exact, *wanted.optional])
        versions = [{offer.version for offer in offers if offer.name == name} for name in wanted.driver]
        available = sorted(set.intersection(*versions))
        keep = self.installed.version and decide.keeps(settings, self.installed)
        version = str(self.installed.version) if keep else self._version_of(available, where)
        result.version = version
        if version == self.installed.version and self._is_whole() and self._stream_is_right():
            result.services, result.headers, result.unhold = [], [], []
            self._settle_for_installed()
            return
        decide.check_direction(settings, self.installed, version)
        decide.check_version(settings, version, str(result.flavour), self.release, bool(self.precompiled))
        exact = {name: newest(offers, name, settings.wanted_branch, version) for name in wanted.exact}
        lacking = [name for name, offer in exact.items() if offer is None]
        if lacking:
            raise DriverError(
                f"Cannot install driver {version}: {where} has no {', '.join(lacking)} of that version, and all parts"
                " must have the same; set gpu_driver_version to another one, or mirror the missing packages."
                " Nothing was changed."
            )
        more = {name: newest(offers, name, settings.wanted_branch, version) for name in wanted.optional}
        chosen = {name: offer.evr for name, offer in {**exact, **more}.items() if offer is not None}
        loose = dict.fromkeys((*wanted.independent, *self._running_headers()), "")
        result.packages = {**chosen, **self._headers(), **loose}
        result.install = [f"{name}={version}" if version else name for name, version in result.packages.items()]
        result.remove = [name for name in KMOD.values() if name not in chosen and is_installed(self.packages, name)]
        result.stream = None if self._stream_is_right() else wanted.stream
        self._prepare()
        self._name_action(version)

    def _version_of(self, available: Sequence[str], where: str) -> str:
        return decide.choose_version(self.settings, self.installed, available, where)

    def _headers(self) -> dict[str, str]:
        """Versions of the metapackage of headers, "" where it is there; and names the kernels that get the modules.

        It brings the kernel of its own version along, so that of the kernel that boots next is taken if there is one.
        """
        result, following = self.result, str(self.facts["driver"].get("next_kernel") or self.kernel)
        versions = dict.fromkeys(self.wanted.headers, "")
        lacking = [name for name in versions if not is_installed(self.packages, name)]
        if lacking:
            answer = self.host.run([*dnf.ENGLISH, "dnf", "--quiet", "repoquery", "--qf", dnf.QUERY_FORMAT, *lacking])
            offers = dnf.parse_query(answer[1]) if answer is not None and answer[0] == 0 else []
            for name in lacking:
                mine = {offer.full: offer for offer in offers if offer.name == name}
                version = rpm_names.kernel_version(following)
                if mine and version not in mine:
                    newest_one = mine[max(mine, key=version_key)]
                    version = newest_one.full
                    result.reasons.append(
                        f"kernel {version} would be installed with its headers ({name}), since those of kernel"
                        f" {following} are in no repository any more"
                    )
                    following = rpm_names.kernel_name(following, version)
                versions[name] = version if mine else ""
        result.kernels = list(dict.fromkeys((self.kernel, following))) if versions else []
        return versions

    def _running_headers(self) -> list[str]:
        """Headers of the running kernel, which the metapackage leaves behind once a newer kernel is out."""
        there = (self.host.root / f"lib/modules/{self.kernel}/build").exists()
        return [] if there or not self.wanted.headers else [f"kernel-devel-uname-r = {self.kernel}"]

    def _prepare(self) -> None:
        """EPEL for dkms, with the repository that it builds on; and the plugin that locks."""
        result, repositories = self.result, enabled_repositories(self.host.root)
        if self.settings.hold and not (self.host.root / LOCK_PLUGIN).is_file():
            result.prepare["python3-dnf-plugin-versionlock"] = ""
        if self.precompiled or is_installed(self.packages, "dkms"):
            return
        answer = self.host.run([*dnf.ENGLISH, "dnf", "--quiet", "repoquery", "--qf", dnf.QUERY_FORMAT, "dkms"])
        if answer is not None and answer[0] == 0 and dnf.parse_query(answer[1]):
            return
        result.prepare.update(dict.fromkeys(rpm_names.epel_packages(self.os), ""))
        builder = rpm_names.builder_repository(self.os, self.arch)
        if rpm_names.rpm_release(self.os) != "9" and repositories.get(builder) is False:
            result.enable.append(builder)
        result.reasons.append("dkms comes from EPEL, which would be enabled")


def _removal(
    host: Host, settings: Settings, facts: Mapping[str, Any], packages: Mapping[str, Mapping[str, Any]]
) -> RpmPlan:
    result = RpmPlan(source=settings.source)
    result.repository = source_state(host, None, [])
    result.installed_version = installed_rpm(packages).version
    there = sorted(name for name in packages if rpm_names.is_driver_rpm(name))
    fill_removal(
        result,
        there,
        ("locked", "dnf versionlock delete"),
        host,
        settings,
        facts,
        packages,
        entries=lambda others: lock_entries(host, packages, facts["arch"], others),
    )
    own = own_holds(host)
    if own and not there:
        # Locks stay in DNF's list when their packages go.
        result.unhold = sorted(own)
        result.reasons.append(f"locks on {', '.join(result.unhold)} would be lifted")
    stream = dnf.read_stream(host.root, rpm_names.MODULE)
    if stream is not None:
        result.action, result.changed_needed = "remove", True
        result.reasons.append(f"stream {stream} of the module {rpm_names.MODULE} would no longer be enabled")
    return result
