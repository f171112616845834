# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How GPUs are linked, by "nvidia-smi topo -m". Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run

COMMAND = ("nvidia-smi", "topo", "-m")

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")


def read(run: Run, gpus: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Links between *gpus*; not asked for fewer than two, nor told for a GPU without an index."""
    addresses = {gpu["index"]: gpu["pci_bus_id"] for gpu in gpus if gpu["index"] is not None}
    answer = run(COMMAND) if len(addresses) > 1 else None
    return parse(answer[1], addresses) if answer else []


def parse(output: str, addresses: Mapping[int, str]) -> list[dict[str, str]]:
    """Each pair once, {a, b, link}, by PCI addresses. Columns of NICs and affinities are passed over.

    A cell is found by its tab from the left: rows have more cells than the header, which is underlined on a terminal.
    """
    links = []
    columns: dict[int, int] = {}
    for line in _ESCAPE.sub("", output).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if not columns:
            columns = {
                place: number for place, cell in enumerate(cells) if place and (number := _gpu(cell)) is not None
            }
            continue
        row = _gpu(cells[0])
        if row is None:
            continue
        for place, column in columns.items():
            cell = cells[place] if place < len(cells) else ""
            if row < column and _LINK.fullmatch(cell) and {row, column} <= addresses.keys():
                links.append({"a": addresses[row], "b": addresses[column], "link": cell})
    return links


def _gpu(cell: str) -> int | None:
    match = re.fullmatch(r"GPU(\d+)", cell)
    return int(match.group(1)) if match else None
