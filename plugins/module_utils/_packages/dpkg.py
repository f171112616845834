# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What dpkg says of packages. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Runner

FORM = "${Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"


@dataclass(frozen=True)
class Installed:
    """One package as dpkg has it."""

    version: str
    status: str
    held: bool

    @property
    def whole(self) -> bool:
        """Unpacked and configured."""
        return self.status == "installed"

    @property
    def present(self) -> bool:
        """Anything of it beyond configuration files is on the host."""
        return self.status not in ("not-installed", "config-files")


def query_argv(names: Sequence[str]) -> list[str]:
    """Asks for packages by name or pattern.

    It ends with 1 where one of them is unknown, and prints the others all the same.
    """
    return ["dpkg-query", "-W", f"-f={FORM}", *names]


def rows(text: str) -> Iterator[tuple[str, Installed]]:
    """Name and package for each line of the answer; a name comes once for each of its architectures."""
    for line in text.splitlines():
        name, version, want, status = [*line.split("\t"), "", "", ""][:4]
        yield name, Installed(version, status, want == "hold")


def read_installed(run: Runner, names: Sequence[str]) -> dict[str, Installed]:
    """The packages among *names* that dpkg knows."""
    found: dict[str, Installed] = {}
    for name, package in rows(run(query_argv(names)).stdout):
        if name not in found or package.whole:
            found[name] = package
    return found
