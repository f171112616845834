# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt offers, and what it would do; command lines and parsers of their output. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.socle.inference.plugins.module_utils._driver.decide import without_password
from ansible_collections.socle.inference.plugins.module_utils._driver.model import Run, upstream

ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}
"""For every apt command: no questions, English messages, and no restarts of services beside ours."""

OPTIONS = (
    "-y",
    "-q",
    "--no-install-recommends",
    # Which held packages may change is decided before, package by package.
    "--allow-change-held-packages",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
    "-o",
    "DPkg::Lock::Timeout=300",
)


@dataclass(frozen=True)
class Simulation:
    """What `apt-get -s` would do."""

    installs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (version now or "", version then)."""
    removals: tuple[str, ...] = ()
    problem: str = ""
    """Apt's reason, in one line, where it would refuse."""


DEPENDENCIES = (
    "nvidia-* libnvidia-* libcuda* libnv* cuda-drivers* libxnvctrl* xserver-xorg-video-nvidia* firmware-nvidia-*"
)
"""Everything that the driver's packages need of one another, at the same version."""


def preferences(version: str) -> str:
    """Prefers one version of the driver over any pin, also for what is only pulled in.

    Else apt takes the newest version of a dependency, and then finds that the exact one was needed.
    """
    return f"Package: {DEPENDENCIES}\nPin: version /^([0-9]+:)?{re.escape(version)}-/\nPin-Priority: 1002\n"


def offered(run: Run, names: Iterable[str], from_url: str | None, not_from: Iterable[str] = ()) -> dict[str, list[str]]:
    """Name -> versions of packages that apt knows, the newest first.

    With *from_url* only those of that repository; addresses of *not_from* do not count.
    """
    answer = run(["apt-cache", "madison", *dict.fromkeys(names)])
    found: dict[str, list[str]] = {}
    excluded = [uri.rstrip("/") for uri in not_from]
    for line in answer[1].splitlines() if answer else []:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 3 or not cells[2].endswith("Packages"):
            continue
        name, version, origin = cells
        uri = origin.split(" ")[0].rstrip("/")
        if from_url is not None and without_password(uri) != without_password(from_url).rstrip("/"):
            continue
        if uri in excluded:
            continue
        versions = found.setdefault(name, [])
        if version not in versions:
            versions.append(version)
    return found


def common_versions(offers: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[str]:
    """Versions of the driver that every one of *names* has."""
    sets = [{upstream(version) for version in offers.get(name, ())} for name in names]
    return sorted(set.intersection(*sets)) if sets else []


def at_version(offers: Mapping[str, Sequence[str]], name: str, version: str) -> str | None:
    """The newest packaging of *name* with that version of the driver."""
    return next((offer for offer in offers.get(name, ()) if upstream(offer) == version), None)


def install_command(arguments: Sequence[str], preference_file: str, *extra: str) -> list[str]:
    """apt-get install; an argument is "name", "name=version" or "name-" (remove)."""
    return ["apt-get", *OPTIONS, "-o", f"Dir::Etc::preferences={preference_file}", *extra, "install", *arguments]


def simulate(run: Run, arguments: Sequence[str], preference_file: str) -> Simulation:
    """Ask apt what it would do; nothing is changed, and no lock is needed."""
    answer = run(install_command(arguments, preference_file, "-s"))
    if answer is None:
        return Simulation(problem="apt-get is not installed")
    code, stdout, stderr = answer
    if code != 0:
        return Simulation(problem=reason(stdout, stderr))
    installs, removals = {}, []
    for line in stdout.splitlines():
        match = re.match(r"Inst (\S+) (?:\[(\S+)\] )?\((\S+)", line)
        if match:
            installs[match.group(1)] = (match.group(2) or "", match.group(3))
        match = re.match(r"(?:Remv|Purg) (\S+)", line)
        if match:
            removals.append(match.group(1))
    return Simulation(installs, tuple(removals))


def reason(stdout: str, stderr: str) -> str:
    """Why apt refused, in one line: the first unmet dependency, else its first error."""
    # apt runs dpkg on a terminal, whose lines end with two characters.
    stdout, stderr = stdout.replace("\r", ""), stderr.replace("\r", "")
    lines = stdout.splitlines()
    for number, line in enumerate(lines):
        if "unmet dependencies" in line:
            following = [other.strip() for other in lines[number + 1 : number + 4] if other.startswith(" ")]
            if following:
                return re.sub(r"\s+", " ", following[0])
    failed = re.search(
        r"^dpkg: error processing (?:package|archive) (\S+) .*:\n\s*(.+)$", stdout + "\n" + stderr, re.MULTILINE
    )
    if failed:
        return f"dpkg failed at {failed.group(1)}: {failed.group(2)}"
    errors = [line[2:].strip() for line in (stderr + "\n" + stdout).splitlines() if line.startswith("E:")]
    if errors:
        # These two only say that there was an error.
        telling = [line for line in errors if not line.startswith(("Sub-process", "Some index files"))]
        return without_password((telling or errors)[0])
    return next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "no reason was given")
