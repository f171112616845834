# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which holds of packages are socle's own: those of others are respected. Private to socle.inference."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining, read_noted

LEDGER = "var/lib/socle/package_holds.json"

RELEASE = {"debian": "apt-mark unhold", "redhat": "dnf versionlock delete"}
"""What ends a hold, by kind of package manager."""

RENOTE = "note anew which packages are held"

SPARED = "These packages are as they were"
"""The end of a refusal without its full stop: other packages may have been changed earlier in the run."""


class Holds:
    """The names of the packages that socle holds on one host, beside what apt or DNF know."""

    def __init__(self, files: Files, root: Path = Path("/")) -> None:
        self._files = files
        self._path = root / LEDGER

    def _read(self) -> set[str] | None:
        """What the file says, which is nothing where there is none; None where it is damaged."""
        content = read_noted(self._files, self._path)
        held = content.get("held") if isinstance(content, dict) else None
        if isinstance(held, list) and all(isinstance(name, str) for name in held):
            return set(held)
        return None if self._path.exists() else set()

    def own(self) -> set[str]:
        """Packages that socle holds; none where the file is damaged, so that nothing is taken for ours."""
        return self._read() or set()

    def is_damaged(self) -> bool:
        """Whether the file says nothing that can be used; the next change of it writes it anew."""
        return self._read() is None

    def add(self, names: Iterable[str]) -> None:
        """Note packages, before they are held: an interrupted run must not take its own holds for somebody else's."""
        self._write(self.own() | set(names))

    def drop(self, names: Iterable[str]) -> None:
        """Forget packages, after they were released."""
        self._write(self.own() - set(names))

    def _write(self, names: set[str]) -> None:
        if names == self._read():
            return
        with explaining("note which packages are held"):
            if names:
                self._files.write(self._path, json.dumps({"held": sorted(names)}, indent=1) + "\n")
            else:
                self._files.remove(self._path)


def refusal(attempt: str, names: Iterable[str], family: str, instead: str = "") -> str:
    """The sentence for packages that somebody else holds; *instead* is another way out, as a clause."""
    held = sorted(names)
    return (
        f"Cannot {attempt}: {', '.join(held)} {'is' if len(held) == 1 else 'are'} held, and not by socle; release with"
        f" '{RELEASE[family]} {' '.join(held)}'{f', or {instead}' if instead else ''}, and repeat the run. {SPARED}."
    )
