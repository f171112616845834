# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt offers of the driver, and what it would do for it. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
    upstream,
)
from ansible_collections.socle.inference.plugins.module_utils._packages import apt
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password

OPTIONS = (
    *apt.OPTIONS,
    "--no-install-recommends",
    # Which held packages may change is decided before, package by package.
    "--allow-change-held-packages",
)
"""For every transaction of the driver."""

DEPENDENCIES = (
    "nvidia-* libnvidia-* libcuda* libnv* cuda-drivers* libxnvctrl* xserver-xorg-video-nvidia* firmware-nvidia-*"
)
"""Everything that the driver's packages need of one another, at the same version."""


def preferences(version: str) -> str:
    """Prefers one version of the driver over any pin, also for what is only pulled in.

    Else apt takes the newest version of a dependency, and then finds that the exact one was needed.
    """
    return f"Package: {DEPENDENCIES}\nPin: version /^([0-9]+:)?{re.escape(version)}-/\nPin-Priority: 1002\n"


def _check_answered(answer: tuple[int, str, str] | None, attempt: str) -> None:
    if answer is not None and answer[0] == 0:
        return
    why = apt.reason(answer[1], answer[2]).rstrip(".") if answer else "apt is not installed"
    raise DriverError(
        f"Cannot {attempt}: {why}; repair what apt names ('apt-get check' shows it as well), then repeat the run."
        " Nothing was changed."
    )


def offered(run: Run, names: Iterable[str], from_url: str | None, not_from: Iterable[str] = ()) -> dict[str, list[str]]:
    """Name -> versions of packages that apt knows, the newest first.

    With *from_url* only those of that repository; addresses of *not_from* do not count. Raises DriverError where apt
    does not answer, which it never does while a file of its sources is malformed.
    """
    asked = list(dict.fromkeys(names))
    answer = run(["apt-cache", "madison", *asked])
    _check_answered(answer, f"ask apt what it offers of {', '.join(asked[:3])}")
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


def simulate(run: Run, arguments: Sequence[str], preference_file: str) -> apt.Simulation:
    """Ask apt what it would do; nothing is changed, and no lock is needed."""
    answer = run(install_command(arguments, preference_file, "-s"))
    if answer is None:
        return apt.Simulation(problem="apt-get is not installed")
    code, stdout, stderr = answer
    if code != 0:
        return apt.Simulation(problem=apt.reason(stdout, stderr))
    return apt.parse_simulation(stdout)


def removed_with(run: Run, names: Sequence[str]) -> set[str]:
    """All packages that would go if *names* were purged. Raises DriverError where apt does not answer."""
    answer = run(["apt-get", *OPTIONS, "-s", "purge", *names])
    _check_answered(answer, "ask apt what would be removed with the driver")
    return set(apt.parse_simulation(answer[1]).removals) if answer else set()
