# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running apt, asking it, and what its words mean. Private to socle.inference."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Runner, make_folders
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password

ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}
"""For every apt command: no questions, English messages, and no restarts of services beside ours."""

QUIET = ("env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()))
"""In front of a command whose runner sets no environment."""

OPTIONS = (
    "-y",
    "-q",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "DPkg::Lock::Timeout=300",
)
"""For every transaction: configuration files of the user stay."""

UPDATE = (
    "apt-get",
    "-q",
    "-o",
    # Else apt answers "success" when it could not reach a source.
    "APT::Update::Error-Mode=any",
    "-o",
    "Acquire::Retries=2",
    "-o",
    "Acquire::http::Timeout=30",
    "-o",
    "Acquire::https::Timeout=30",
    "-o",
    "DPkg::Lock::Timeout=300",
)
"""Reads package lists, once "update" follows."""

UPDATE_S = 600.0
INSTALL_S = 3600.0


def alone(source: Path | str) -> list[str]:
    """apt's options to read one source and no other."""
    return ["-o", f"Dir::Etc::sourcelist={source}", "-o", "Dir::Etc::sourceparts=-"]


def beside(source: Path | str) -> list[str]:
    """apt's options to read the lists of one source, and leave those of the others where they are."""
    return [*alone(source), "-o", "APT::Get::List-Cleanup=0"]


def elsewhere(folder: Path) -> list[str]:
    """apt's options to read the host's sources with all that is downloaded below *folder*: the host stays as it is."""
    return ["-o", f"Dir::State::lists={folder}/lists", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]


def isolated(source: Path, folder: Path) -> list[str]:
    """apt's options to read one source alone, with all that is downloaded below *folder*."""
    return [*alone(source), *elsewhere(folder)]


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A folder for what apt downloads aside; it goes with all that is in it."""
    with tempfile.TemporaryDirectory(prefix="socle-apt-") as name:
        folder = Path(name)
        # apt downloads as a user of its own, and makes no folders outside its usual ones.
        folder.chmod(0o755)
        make_folders(folder / "lists/partial")
        yield folder


def has_lists(root: Path) -> bool:
    """Whether the host ever read its package lists; images come without them."""
    folder = root / "var/lib/apt/lists"
    return any(folder.glob("*_InRelease")) or any(folder.glob("*_Release")) or any(folder.glob("*_Packages*"))


def update(run: Runner, options: Sequence[str] = ()) -> str | None:
    """Read the package lists; None where all of them could be read, else the first error."""
    done = run([*QUIET, *UPDATE, *options, "update"], timeout_s=UPDATE_S)
    return None if done.returncode == 0 else why(done)


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
        raise PackageError(f"Cannot ask apt for {', '.join(names)}: {why(done)}; run 'apt-get check' on the host.")
    found = parse_policy(done.stdout)
    return {name: found.get(name, Policy()) for name in names}


@dataclass(frozen=True)
class Simulation:
    """What ``apt-get -s`` would do."""

    installs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (version now or "", version then)."""
    removals: tuple[str, ...] = ()
    problem: str = ""
    """Apt's reason, in one line, where it would refuse."""


def parse_simulation(stdout: str) -> Simulation:
    """The output of an ``apt-get -s`` that ended well."""
    installs, removals = {}, []
    for line in stdout.splitlines():
        match = re.match(r"Inst (\S+) (?:\[(\S+)\] )?\((\S+)", line)
        if match:
            installs[match.group(1)] = (match.group(2) or "", match.group(3))
        match = re.match(r"(?:Remv|Purg) (\S+)", line)
        if match:
            removals.append(match.group(1))
    return Simulation(installs, tuple(removals))


def unmet_dependency(stdout: str) -> str:
    """The first dependency that apt cannot meet, in one line; "" where it names none."""
    listed = re.search(r"unmet dependencies.*\n(?:\S.*\n){0,2} (.*)", stdout) or re.search(
        r"^ (\S+ : (?:Depends|Breaks|Conflicts|PreDepends).*)$", stdout, re.MULTILINE
    )
    return " ".join(listed[1].split()) if listed else ""


def first_error(stdout: str, stderr: str) -> str:
    """The line of apt's or dpkg's output that says why it failed, without passwords; "" where there is none."""
    said = [[line.strip() for line in text.splitlines() if line.strip()] for text in (stderr, stdout)]
    lines = [*said[0], *said[1]]
    for pattern in (
        # The others only say that there was an error.
        r"^E: (?!Sub-process|Some index files|Some packages could not|Unable to correct)",
        r"^(Err:|dpkg: error)",
        r"^E: ",
        r"^W: ",
    ):
        for line in lines:
            if re.match(pattern, line):
                return without_password(re.sub(r"^[EW]: ", "", line).rstrip("."))
    return without_password((said[0] or said[1] or [""])[-1].rstrip("."))


def why(done: Completed[str]) -> str:
    """The first error of a command, or how it ended."""
    return first_error(done.stdout, done.stderr) or f"exit status {done.returncode}"


def reason(stdout: str, stderr: str) -> str:
    """Why a transaction failed, in one line: the first unmet dependency or failed package, else the first error."""
    # apt runs dpkg on a terminal, whose lines end with two characters.
    stdout, stderr = stdout.replace("\r", ""), stderr.replace("\r", "")
    unmet = unmet_dependency(stdout)
    if unmet:
        return unmet
    failed = re.search(
        r"^dpkg: error processing (?:package|archive) (\S+) .*:\n\s*(.+)$", stdout + "\n" + stderr, re.MULTILINE
    )
    if failed:
        return f"dpkg failed at {failed.group(1)}: {failed.group(2)}"
    return first_error(stdout, stderr) or "no reason was given"
