# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which holds of packages are socle's own: those of others are respected. Private to socle.inference."""

from __future__ import annotations

import json
import os
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

    def lost(self) -> str:
        """What a refusal begins with where the file is damaged; "" where it is not."""
        return lost_holds(self._path, LEDGER)

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


def damage(path: Path) -> str:
    """Why a note of holds cannot be used, as "it ..."; "" for a good one, and where there is none."""
    try:
        if not os.path.lexists(path):
            return ""
        # What is a pipe or a device is not opened: it may have its reader wait for ever.
        if not path.is_file():
            return "it is a folder" if path.is_dir() else "it is no regular file"
        content = json.loads(path.read_text(encoding="utf-8") or '{"held": []}')
    except OSError as error:
        return f"it is not accessible: {error.strerror}"
    except (ValueError, RecursionError):
        return "it is no JSON"
    held = content.get("held") if isinstance(content, dict) else None
    fits = isinstance(held, list) and all(isinstance(name, str) for name in held)
    return "" if fits else "it names no packages"


def lost_holds(path: Path, shown: str) -> str:
    """What a refusal begins with where the note of holds at *path* is damaged; *shown* is its name below the root."""
    why = damage(path)
    if not why:
        return ""
    return f"/{shown}, which notes socle's own holds, cannot be read ({why}), so they count as somebody else's: "


def refusal(attempt: str, names: Iterable[str], family: str, instead: str = "", lost: str = "") -> str:
    """The sentence for packages that somebody else holds; *instead* is another way out, as a clause.

    *lost* says that these may be socle's own holds after all, as `lost_holds` does.
    """
    held = sorted(names)
    return (
        f"Cannot {attempt}: {lost}{', '.join(held)} {'is' if len(held) == 1 else 'are'} held, and not by socle; release"
        f" with '{RELEASE[family]} {' '.join(held)}'{f', or {instead}' if instead else ''}, and repeat the run."
        f" {SPARED}."
    )
