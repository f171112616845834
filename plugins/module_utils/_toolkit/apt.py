# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exact packages by apt, tried before anything is changed. Private to socle.inference."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._packages.dpkg import Installed, read_installed

QUIET = ("env", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
"""Plain English answers that are parsed, and no questions."""

NEWEST = "newest"
"""In place of a version: the candidate, also where an older one is installed."""

UPDATE_S = 600.0
INSTALL_S = 3600.0


@dataclass(frozen=True)
class Policy:
    """What apt knows of one package."""

    installed: str | None = None
    candidate: str | None = None
    versions: tuple[str, ...] = ()
    """Versions that are on offer, newest first; the installed one is among them only when a source has it."""


def parse_policy(text: str) -> dict[str, Policy]:
    """Output of ``apt-cache policy NAME ...`` by package; an unknown package is missing from it."""
    found: dict[str, Policy] = {}
    for block in re.split(r"\n(?=\S)", text):
        name, _colon, rest = block.partition(":\n")
        if not rest:
            continue
        values = dict(re.findall(r"^  (Installed|Candidate): (.*)$", rest, re.MULTILINE))
        versions: dict[str, bool] = {}
        current = ""
        for line in rest.partition("Version table:")[2].splitlines():
            entry = re.match(r"^ (?:\*\*\*|   ) (\S+)", line)
            if entry:
                current = entry[1]
                versions[current] = False
            elif current and re.match(r"^ {8,}-?\d+ \S", line) and "/var/lib/dpkg/status" not in line:
                versions[current] = True
        found[name.strip()] = Policy(
            installed=_version(values.get("Installed")),
            candidate=_version(values.get("Candidate")),
            versions=tuple(version for version, on_offer in versions.items() if on_offer),
        )
    return found


def _version(text: str | None) -> str | None:
    return None if text in (None, "", "(none)") else text


def read_policy(run: Runner, names: Sequence[str], options: Sequence[str] = ()) -> dict[str, Policy]:
    """What apt knows of these packages, each of them present in the answer."""
    done = run([*QUIET, "apt-cache", *options, "policy", *names])
    if done.returncode != 0:
        raise ToolkitError(
            f"Cannot ask apt for {', '.join(names)}: {first_error(done)}; run 'apt-get check' on the host."
        )
    found = parse_policy(done.stdout)
    return {name: found.get(name, Policy()) for name in names}


def first_error(done: Completed[str]) -> str:
    """The line of apt's or dpkg's output that says why it failed."""
    lines = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
    for pattern in (
        r"^E: (?!Sub-process|Some index files|Some packages could not|Unable to correct)",
        r"^(Err:|dpkg: error)",
        r"^E: ",
        r"^W: ",
    ):
        for line in lines:
            if re.match(pattern, line):
                return re.sub(r"^[EW]: ", "", line).rstrip(".")
    return lines[-1].rstrip(".") if lines else f"exit status {done.returncode}"


def update(run: Runner, options: Sequence[str] = ()) -> str | None:
    """Read the package lists; None where all of them could be read, else the first error."""
    done = run([*QUIET, "apt-get", *options, "-q", "update", "--error-on=any"], timeout_s=UPDATE_S)
    return None if done.returncode == 0 else first_error(done)


def has_lists(root: Path) -> bool:
    """Whether the host ever read its package lists; images come without them."""
    folder = root / "var/lib/apt/lists"
    return any(folder.glob("*_InRelease")) or any(folder.glob("*_Release")) or any(folder.glob("*_Packages*"))


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder for what apt downloads aside; it goes with all that is in it."""
    with tempfile.TemporaryDirectory(prefix="socle-apt-") as name:
        folder = Path(name)
        # apt downloads as a user of its own, and makes no folders outside its usual ones.
        folder.chmod(0o755)
        (folder / "lists/partial").mkdir(parents=True)
        yield folder


def isolated(source: Path, folder: Path) -> list[str]:
    """apt's options to read one source alone, with all that is downloaded below *folder*."""
    return [
        "-o",
        f"Dir::Etc::sourcelist={source}",
        "-o",
        "Dir::Etc::sourceparts=-",
        "-o",
        f"Dir::State::lists={folder}/lists",
        "-o",
        "Dir::Cache::pkgcache=",
        "-o",
        "Dir::Cache::srcpkgcache=",
    ]


def elsewhere(folder: Path) -> list[str]:
    """apt's options to read the host's sources with all that is downloaded below *folder*: the host stays as it is."""
    return ["-o", f"Dir::State::lists={folder}/lists", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]


@dataclass(frozen=True)
class Wanted:
    """Packages and how they shall be."""

    packages: Mapping[str, str]
    """Version by name, or NEWEST; "" takes any version that is installed, else the candidate."""
    hold: bool | None = None
    """Whether upgrades by others leave the packages alone; None leaves that as it is."""
    downgrade: bool = False
    source_pending: bool = False
    """Check mode alone: the packages' source was tried, and is not written yet."""


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: bool = False
    actions: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    def as_result(self) -> dict[str, object]:
        """For a module's result."""
        return {"changed": self.changed, "actions": self.actions}


def _apt_get(run: Runner, arguments: Sequence[str], timeout_s: float = INSTALL_S) -> Completed[str]:
    options = ["-y", "-q", "-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120"]
    return run([*QUIET, "apt-get", *options, *arguments], timeout_s=timeout_s)


def _mark(run: Runner, mark: str, names: Sequence[str]) -> None:
    if names:
        done = run([*QUIET, "apt-mark", mark, *names])
        if done.returncode != 0:
            raise ToolkitError(f"Cannot {mark} {', '.join(names)}: {first_error(done)}; run 'apt-mark {mark}' by hand.")


def _describe(found: Mapping[str, Installed], names: Sequence[str]) -> dict[str, str]:
    states = {}
    for name in names:
        package = found.get(name)
        if package is None or not package.present:
            states[name] = "absent"
        else:
            broken = "" if package.whole else f" ({package.status})"
            states[name] = f"{package.version}{broken}{', held' if package.held else ''}"
    return states


def install(run: Runner, wanted: Wanted, *, check: bool = False, root: Path = Path("/")) -> Outcome:
    """Bring packages to their versions in one transaction.

    It is simulated first, then downloaded, and only then installed: a conflict or a broken download changes nothing.
    Refuses what would remove other packages. Raises ToolkitError in one sentence.
    """
    names = list(wanted.packages)
    found = read_installed(run, names)
    moving = [name for name, version in wanted.packages.items() if version == NEWEST]
    candidates = read_policy(run, moving) if moving else {}
    due = {
        name: version
        for name, asked in wanted.packages.items()
        for version in [(candidates[name].candidate or "") if name in candidates else asked]
        if name not in found or not found[name].whole or (version and found[name].version != version)
    }
    outcome = Outcome(before=_describe(found, names))
    if due:
        specs = [f"{name}={version}" if version else name for name, version in due.items()]
        arguments = ["install", "--no-install-recommends", "--no-remove", "--allow-change-held-packages"]
        if wanted.downgrade:
            arguments.append("--allow-downgrades")
        for step, extra in (("install", ["-s"]), ("download", ["--download-only"]), ("install", [])):
            # Without lists, as images come, or without their source, apt knows no package to simulate with.
            if check and (extra != ["-s"] or wanted.source_pending or not has_lists(root)):
                break
            done = _apt_get(run, [*extra, *arguments, *specs])
            # Lists that are some weeks old name files that the mirror no longer has.
            if done.returncode != 0 and step == "download" and update(run) is None:
                done = _apt_get(run, [*extra, *arguments, *specs])
            if done.returncode != 0:
                raise ToolkitError(
                    _refusal(step, specs, done, changed=not extra), rc=done.returncode, stderr=done.stderr
                )
        outcome.changed = True
        outcome.actions.append(f"install {', '.join(specs)}")
    if wanted.hold is not None:
        # apt takes the hold away from a held package that it changes.
        now = read_installed(run, names) if due and not check else found
        marked = [name for name in names if (name in now and now[name].held) != wanted.hold]
        if marked:
            outcome.changed = True
            outcome.actions.append(f"{'hold' if wanted.hold else 'unhold'} {', '.join(marked)}")
            if not check:
                _mark(run, "hold" if wanted.hold else "unhold", marked)
    outcome.after = dict(outcome.before) if not outcome.changed else _after(run, wanted, found, due, check)
    return outcome


def _after(
    run: Runner, wanted: Wanted, found: Mapping[str, Installed], due: Mapping[str, str], check: bool
) -> dict[str, str]:
    names = list(wanted.packages)
    if not check:
        return _describe(read_installed(run, names), names)
    states = {}
    for name in names:
        held = wanted.hold if wanted.hold is not None else name in found and found[name].held
        version = (due[name] or "the version on offer") if name in due else found[name].version
        states[name] = f"{version}{', held' if held else ''}"
    return states


def _refusal(step: str, specs: Sequence[str], done: Completed[str], *, changed: bool) -> str:
    reason = first_error(done)
    detail = re.search(r"^ (\S+ : (?:Depends|Breaks|Conflicts|PreDepends).*)$", done.stdout, re.MULTILINE)
    if detail:
        reason = f"{reason} ({' '.join(detail[1].split())})"
    if changed:
        rest = "look at 'dpkg --audit' on the host, put it right ('apt-get -f install'), and repeat the run"
    elif "remove" in reason.lower():
        rest = "remove what is in the way by hand, and repeat the run. Nothing was changed"
    elif "lock" in reason.lower():
        rest = "wait until the other package manager ends, and repeat the run. Nothing was changed"
    else:
        rest = "put the host's package sources right, and repeat the run. Nothing was changed"
    return f"Cannot {step} {', '.join(specs)}: {reason}; {rest}."


def remove(run: Runner, names: Sequence[str], *, check: bool = False) -> Outcome:
    """Take packages away with their configuration files and holds; other packages that would go too are a refusal."""
    found = read_installed(run, names)
    there = [name for name in names if name in found and found[name].status != "not-installed"]
    held = [name for name in names if name in found and found[name].held]
    outcome = Outcome(before=_describe(found, names))
    if not there and not held:
        outcome.after = dict(outcome.before)
        return outcome
    outcome.changed = True
    outcome.after = dict.fromkeys(names, "absent")
    outcome.actions = [f"remove {', '.join(there)}"] if there else []
    if there:
        done = _apt_get(run, ["-s", "purge", "--allow-change-held-packages", *there])
        if done.returncode != 0:
            refusal = _refusal("remove", there, done, changed=False)
            raise ToolkitError(refusal, rc=done.returncode, stderr=done.stderr)
        going = set(re.findall(r"^(?:Remv|Purg) (\S+)", done.stdout, re.MULTILINE)) - set(names)
        if going:
            raise ToolkitError(
                f"Will not remove {', '.join(there)}: that would also remove {', '.join(sorted(going))}; remove these"
                " by hand if they are not needed, and repeat the run. Nothing was changed."
            )
    if check:
        return outcome
    _mark(run, "unhold", held)
    if there:
        done = _apt_get(run, ["purge", *there])
        if done.returncode != 0:
            raise ToolkitError(_refusal("remove", there, done, changed=True), rc=done.returncode, stderr=done.stderr)
    return outcome
