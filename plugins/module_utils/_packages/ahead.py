# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan asks about a package source: whether its address is new, and whether it answers. Private."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_source import AptRepository, AptSource
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import run_command
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import DnfRepository, DnfSource
from ansible_collections.socle.inference.plugins.module_utils._packages.source import Fetch, fetch


class Ahead:
    """The source of *repository*, a plan's description of it, below the address *base*, on a host.

    *family* is "debian" or "redhat"; *variable* is what the user sets the address with.
    """

    def __init__(
        self,
        family: str,
        repository: Mapping[str, Any],
        base: str,
        variable: str,
        root: Path = Path("/"),
        fetcher: Fetch = fetch,
    ) -> None:
        place = base.rstrip("/")
        self.apt, self.family = AptSource(run, Files(), root, fetcher), family
        self.dnf = DnfSource(run_command, Files(), root, fetcher)
        self.fields = {
            "name": repository["name"],
            "uri": f"{place}/{repository['folder']}",
            "key_url": f"{place}/{repository['key']}",
            "variable": variable,
            "spared": "Nothing was changed.",
        }
        self.layout = {name: repository[name] for name in ("suites", "components") if name in repository}

    def is_outdated(self) -> bool:
        """Whether the host has the source by a file of ours with another address, or with a key that is none."""
        if self.family == "debian":
            return self.apt.is_outdated(self._deb({}))
        return self.dnf.is_outdated(self._rpm({}))

    def probe(self, expect: Mapping[str, str]) -> None:
        """Ask for key and index, and whether *expect* is on offer. Raises PackageError in one sentence."""
        if self.family == "debian":
            self.apt.probe(self._deb(expect))
        else:
            self.dnf.probe(self._rpm(expect))

    def _deb(self, expect: Mapping[str, str]) -> AptRepository:
        return AptRepository(**self.fields, **self.layout, expect=expect)

    def _rpm(self, expect: Mapping[str, str]) -> DnfRepository:
        # As in NVIDIA's own file: the packages have no signatures.
        return DnfRepository(**self.fields, signed="metadata", expect=expect)
