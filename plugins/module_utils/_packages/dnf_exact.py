# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exact packages by DNF in one transaction that was tried before, and locked after it. Private to socle.inference."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import dnf
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import ENGLISH, Rpm
from ansible_collections.socle.inference.plugins.module_utils._packages.exact import Outcome
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import RENOTE, SPARED, Holds, refusal
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._packages.version import version_key

RPM_FORMAT = "%{NAME}\t%|EPOCH?{%{EPOCH}}:{0}|\t%{VERSION}\t%{RELEASE}\t%{ARCH}\t@System\n"
PLUGINS = "etc/dnf/plugins"
LOCK_PLUGIN = "python3-dnf-plugin-versionlock"
TRIED = "Operation aborted"
"""What DNF prints at the end of a transaction that it could carry out but was told not to."""

UNKNOWN = "A transaction that had begun may have changed some packages: see 'dnf history info' and 'dnf check'"


@dataclass(frozen=True)
class Request:
    """Packages and how they shall be."""

    packages: Mapping[str, str]
    """Version by name, with or without release; "" takes what is installed, else the newest. A name may also be a
    capability, as "kernel-devel-uname-r = 5.14.0-570.el9.x86_64", since kernels are installed side by side.
    """
    hold: bool | None = None
    """Whether upgrades by others leave the packages alone; None leaves that as it is."""
    lock: tuple[str, ...] = ()
    """Patterns of installed packages that are held with them."""
    downgrade: bool = False
    module: str = ""
    stream: str | None = None
    """Stream of *module* to enable first."""
    replaces: tuple[str, ...] = ()
    """Packages that may go, since they conflict with those that come."""


def has_version(package: Rpm, version: str) -> bool:
    """Whether *version* names this package: "580.178.04", "580.178.04-1.el9" or "3:580.178.04-1.el9"."""
    return version in ("", package.version, package.full, package.evr, f"{package.epoch}:{package.full}")


def removals(output: str) -> list[str]:
    """Names below "Removing:" in DNF's table of a transaction; a row that is too long goes on below, further in."""
    found, inside = [], False
    for line in output.splitlines():
        if re.match(r"\S.*:$", line):
            inside = line.startswith("Removing")
        elif not line.strip():
            inside = False
        elif inside and re.match(r" \S", line):
            found.append(line.split()[0])
    return found


class Exact:
    """Packages of one host. Raises PackageError in one sentence; then packages, streams and locks are as they were.

    With *holds*, locks that are not in them are somebody else's, and respected. Without, the caller has seen to that:
    locks of packages that a request names give way.
    """

    def __init__(self, run: Run, files: Files, root: Path = Path("/"), holds: Holds | None = None) -> None:
        self.run, self.files, self.root, self.holds = run, files, root, holds
        self.lock_list = root / dnf.LOCK_LIST

    def installed(self, patterns: Sequence[str]) -> dict[str, Rpm]:
        """Installed packages that match, by name; of several of one name the newest."""
        answer = self.run([*ENGLISH, "rpm", "-qa", "--qf", RPM_FORMAT, *patterns]) if patterns else None
        found: dict[str, Rpm] = {}
        for package in dnf.parse_query(answer[1] if answer else ""):
            known = found.get(package.name)
            if known is None or version_key(package.version) > version_key(known.version):
                found[package.name] = package
        return found

    def read_locks(self) -> str:
        """The text of DNF's list of locks. Raises EngineError where it is none."""
        with explaining("read DNF's version locks"):
            return self.files.read(self.lock_list) or ""

    def write_locks(self, text: str) -> None:
        """Replace DNF's list of locks where it differs."""
        if text != self.read_locks():
            with explaining("write DNF's version locks"):
                self.files.write(self.lock_list, text)

    def locked_names(self) -> set[str]:
        """Packages that a version lock names."""
        lines = self.read_locks().splitlines()
        return {name for name in map(dnf.lock_name, lines) if name}

    def foreign_locks(self) -> set[str]:
        """Packages that somebody else locked."""
        return self.locked_names() - self.holds.own() if self.holds else set()

    def _respect(self, attempt: str, names: Iterable[str]) -> None:
        others = self.foreign_locks() & set(names)
        if others:
            raise PackageError(refusal(attempt, others, "redhat", lost=self.holds.lost() if self.holds else ""))

    def install(self, request: Request, *, check: bool = False) -> Outcome:
        """Bring packages to their versions, and set or lift their locks."""
        names = [name for name in request.packages if " " not in name]
        found = self.installed(names)
        due = {
            name: request.packages[name]
            for name in names
            if name not in found or not has_version(found[name], request.packages[name])
        }
        lacking = [name for name in request.packages if " " in name and not self._provides(name)]
        stream = dnf.read_stream(self.root, request.module) if request.module else None
        streams = dnf.stream_commands(request.module, stream, request.stream)
        outcome = Outcome(before=self._describe(found, names))
        self._respect(f"install {', '.join(f'{name} {version}'.strip() for name, version in due.items())}", due)
        chosen = self._choose(due, found, request) if due else {}
        if chosen or lacking:
            specs = [*(package.spec for package in chosen.values()), *lacking]
            self._try(specs, request, {package.repository for package in chosen.values()} if streams else set())
            shown = [*(f"{name} {package.full}" for name, package in chosen.items()), *lacking]
            outcome.actions.append(f"install {', '.join(shown)}")
            if not check:
                self._carry_out(specs, request, streams)
        elif streams and not check:
            self._switch(streams, f"enable the stream {request.stream} of {request.module}")
        if streams:
            outcome.actions.append(f"enable stream {request.module}:{request.stream}")
        self._settle(request, outcome, due, check)
        outcome.changed = bool(outcome.actions)
        if check:
            outcome.after = {**outcome.before, **{name: package.evr for name, package in chosen.items()}}
        else:
            outcome.after = self._describe(self.installed(names), names)
        return outcome

    def _provides(self, capability: str) -> bool:
        answer = self.run([*ENGLISH, "rpm", "-q", "--whatprovides", capability])
        return answer is not None and answer[0] == 0

    def remove(self, names: Sequence[str], *, check: bool = False) -> Outcome:
        """Take packages and their locks away; other packages that would go too are a refusal."""
        found = self.installed(names)
        locked = (self.locked_names() - self.foreign_locks()) & set(names)
        self._respect(f"remove {', '.join(sorted(found))}", found)
        outcome = Outcome(before=self._describe(found, names), after=dict.fromkeys(names, "absent"))
        # A run that ended in between has left its note of locks that are gone.
        if not found and not locked and not self._is_outdated(names):
            outcome.after = outcome.before
            return outcome
        outcome.changed = True
        if not found:
            outcome.actions.append(f"unlock {', '.join(sorted(locked))}" if locked else RENOTE)
        else:
            outcome.actions.append(f"remove {', '.join(sorted(found))}")
            # What else they needed may serve others too, such as dkms.
            command = ["dnf", "--setopt=clean_requirements_on_remove=0", "remove", *sorted(found)]
            with self._plugins(set(names)) as plugins:
                attempt = f"remove {', '.join(sorted(found))}"
                output = self._dnf([*command, plugins, "--assumeno"], attempt, trial=True)
                others = sorted(set(removals(output)) - set(names))
                if others:
                    raise PackageError(
                        f"Will not {attempt}: that would also remove {', '.join(others)}; remove"
                        f" these by hand if they are not needed, and repeat the run. {SPARED}."
                    )
                if not check:
                    self._dnf([*command, plugins, "--assumeyes"], attempt, spared=UNKNOWN)
        if not check:
            self.write_locks(dnf.unlocked(self.read_locks(), set(names) - self.foreign_locks()))
            if self.holds:
                self.holds.drop(names)
        return outcome

    def offers(self, names: Sequence[str]) -> list[Rpm]:
        """Versions of *names* in the enabled repositories, of all module streams and whatever is locked."""
        # A key that signs metadata is taken over only where DNF is told yes; what comes after this only says no.
        command = ["dnf", "--quiet", "--assumeyes", "--disableplugin=versionlock"]
        command += ["--setopt=*.module_hotfixes=1", "repoquery"]
        attempt = f"look for {', '.join(names)}"
        return dnf.parse_query(self._dnf([*command, "--qf", dnf.QUERY_FORMAT, *names], attempt))

    def _choose(self, due: Mapping[str, str], found: Mapping[str, Rpm], request: Request) -> dict[str, Rpm]:
        offers = self.offers(list(due))
        chosen = {}
        for name, version in due.items():
            mine = [package for package in offers if package.name == name and package.arch != "src"]
            fitting = [package for package in mine if has_version(package, version)]
            if not fitting:
                versions = sorted({package.full for package in mine}, key=version_key, reverse=True)
                raise PackageError(
                    f"Cannot install {f'{name} {version}'.strip()}: the enabled repositories have"
                    f" {', '.join(versions[:6]) or 'no version of it'}; set a version that is there, or complete the"
                    f" mirror. {SPARED}."
                )
            best = max(fitting, key=lambda package: version_key(package.version))
            present = found.get(name)
            if present and not request.downgrade and version_key(best.version) < version_key(present.version):
                # DNF itself goes back without a word.
                raise PackageError(
                    f"{name} {present.version} is installed, and {best.version} is older: an upgrade in place goes"
                    f" forwards only; set the version to {present.version} or newer, or remove the package first."
                    f" {SPARED}."
                )
            chosen[name] = best
        return chosen

    def _try(self, specs: Sequence[str], request: Request, hotfixes: set[str]) -> None:
        """DNF's word that the transaction can be carried out and takes nothing else away."""
        attempt = f"install {', '.join(specs)}"
        streams = [f"--setopt={repository}.module_hotfixes=1" for repository in sorted(hotfixes)]
        with self._plugins(self._ours(request)) as plugins:
            command = ["dnf", *streams, plugins, *self._erasing(request), "--assumeno", "install", *specs]
            output = self._dnf(command, attempt, trial=True)
        lost = sorted(set(removals(output)) - set(request.replaces))
        if lost:
            raise PackageError(
                f"Will not {attempt}: that would remove {', '.join(lost)}; remove what conflicts by hand, or choose"
                f" another version. {SPARED}."
            )

    def _carry_out(self, specs: Sequence[str], request: Request, streams: Sequence[Sequence[str]]) -> None:
        attempt = f"install {', '.join(specs)}"
        module = self.root / dnf.MODULES_FOLDER / f"{request.module}.module"
        before = self.files.read(module) if streams else None
        try:
            with self._plugins(self._ours(request)) as plugins:
                command = ["dnf", plugins, *self._erasing(request), "--assumeyes"]
                self._switch(streams, attempt)
                # All packages, before the first change: what a mirror lacks shows now.
                self._dnf([*command, "install", "--downloadonly", *specs], attempt)
                self._dnf([*command, "install", *specs], attempt, spared=UNKNOWN)
        except PackageError:
            if streams:
                if before is None:
                    self.files.remove(module)
                else:
                    self.files.write(module, before)
            raise

    def _switch(self, commands: Sequence[Sequence[str]], attempt: str) -> None:
        for command in commands:
            self._dnf(list(command[len(ENGLISH) :]), attempt)

    def _erasing(self, request: Request) -> list[str]:
        return ["--allowerasing"] if self.installed(request.replaces) else []

    def _ours(self, request: Request) -> set[str]:
        names = {name for name in request.packages if " " not in name}
        return {*names, *request.replaces, *self.installed(request.lock)} - self.foreign_locks()

    def _settle(self, request: Request, outcome: Outcome, due: Mapping[str, str], check: bool) -> None:
        """Locks at the versions that are installed now; none where they are not to be held. Those of others stay."""
        if request.hold is None:
            return
        text = self.read_locks()
        patterns = [*(name for name in request.packages if " " not in name), *request.lock]
        foreign = self.foreign_locks()
        ours = {name: package for name, package in self.installed(patterns).items() if name not in foreign}
        gone = set(request.replaces) - set(self.installed(request.replaces))
        kept = text if check else dnf.unlocked(text, gone)
        after = dnf.locked(kept, ours.values()) if request.hold else dnf.unlocked(kept, ours)
        if check and due and request.hold:
            outcome.actions.append(f"lock {', '.join(sorted({*due, *ours}))}")
        elif after != text:
            outcome.actions.append(f"{'lock' if request.hold else 'unlock'} {', '.join(sorted(ours))}")
            if not check:
                if self.holds and request.hold:
                    self.holds.add(ours)
                self.write_locks(after)
        given_up = gone if request.hold else {*gone, *ours}
        if self.holds and self._is_outdated(given_up):
            if not outcome.actions:
                outcome.actions.append(RENOTE)
            if not check:
                self.holds.drop(given_up)

    def _is_outdated(self, given_up: Iterable[str]) -> bool:
        """Whether the note of our locks is damaged, or still has packages whose locks were given up."""
        return self.holds is not None and (self.holds.is_damaged() or bool(self.holds.own() & set(given_up)))

    @contextlib.contextmanager
    def _plugins(self, unlocked: set[str]) -> Iterator[str]:
        """DNF's option for plugins that see all locks but those on *unlocked*; the host's own list stays as it is."""
        parent = self.root / "run"
        parent.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="socle-dnf-", dir=parent))
        shown = f"/{folder.relative_to(self.root)}"
        try:
            for path in sorted((self.root / PLUGINS).glob("*.conf")):
                (folder / path.name).symlink_to(f"/{path.relative_to(self.root)}")
            configuration = folder / "versionlock.conf"
            configuration.unlink(missing_ok=True)
            configuration.write_text(f"[main]\nenabled=1\nlocklist={shown}/versionlock.list\n", encoding="utf-8")
            locks = dnf.unlocked(self.read_locks(), unlocked)
            (folder / "versionlock.list").write_text(locks, encoding="utf-8")
            yield f"--setopt=pluginconfpath={shown}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _dnf(self, command: Sequence[str], attempt: str, trial: bool = False, spared: str = SPARED) -> str:
        answer = self.run([*ENGLISH, *command])
        if answer is None:
            raise PackageError(f"Cannot {attempt}: this host has no dnf; install it, or use a supported distribution.")
        rc, stdout, stderr = answer
        # DNF names a mirror with user and password.
        output = without_password(f"{stdout}\n{stderr}")
        if rc and not (trial and TRIED in output):
            raise PackageError(f"{dnf.explain(attempt, output)} {spared}.", cmd=list(command), output=output)
        return stdout if not trial else output

    def _describe(self, found: Mapping[str, Rpm], names: Sequence[str]) -> dict[str, str]:
        locked = self.locked_names()
        return {
            name: f"{found[name].evr}{', locked' if name in locked else ''}" if name in found else "absent"
            for name in names
        }
