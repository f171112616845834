# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which revisions of a store the units and generations of a host name. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

NAMED = re.compile(r"\.store/([^/\s]+)/([^/\s]+)/rev/([0-9a-f]{12})")
MAX_BYTES = 4 << 20
UNITS = ("etc/containers/systemd/vllm-*.container", "etc/systemd/system/vllm-*.service")
GENERATIONS = "instances/*/generations/*/*"
LIVE = ("instances/*/current", "instances/*/accepted")
"""Links, each to a generation."""

Key = tuple[str, str, str]
"""Hub, folder of the repository, snapshot."""


def find_mentions(state_dir: Path, system: Path = Path("/")) -> dict[Key, list[Path]]:
    """The files below *state_dir*, and units below *system*, that name each revision, wherever their store is."""
    return _read([*_units(system), *sorted(state_dir.glob(GENERATIONS))])


def find_live_mentions(state_dir: Path, system: Path = Path("/")) -> dict[Key, list[Path]]:
    """Like find_mentions(), with the current and the accepted generations alone: older ones are never started again."""
    folders = {link.resolve() for pattern in LIVE for link in state_dir.glob(pattern)}
    return _read([*_units(system), *(place for folder in sorted(folders) for place in sorted(folder.glob("*")))])


def _units(system: Path) -> list[Path]:
    return [place for pattern in UNITS for place in sorted(system.glob(pattern))]


def _read(places: Iterable[Path]) -> dict[Key, list[Path]]:
    found: dict[Key, list[Path]] = {}
    for place in places:
        if not place.is_file():
            continue
        try:
            with place.open("rb") as handle:
                text = handle.read(MAX_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            # A deployment gave up an old generation meanwhile.
            continue
        for key in {(match[1], match[2], match[3]) for match in NAMED.finditer(text)}:
            found.setdefault(key, []).append(place)
    return found
