# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the NVIDIA driver wrote into the kernel's log since boot. Private to socle.inference."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Answer, Run
from ansible_collections.socle.inference.plugins.module_utils._gpu.pci import normalise_bus_id

COMMANDS = (("journalctl", "-k", "-b", "-o", "cat", "--grep", "NVRM: Xid"), ("dmesg",))
"""The journal first: the kernel's ring buffer forgets."""

KEPT = 20
"""Newest lines of one code of one GPU; a broken GPU writes thousands."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\):? *(\d+)(?:, *(.*))?")


def read(run: Run) -> list[dict[str, Any]] | None:
    """Xids in the order of the log; None when no log can be read."""
    for command in COMMANDS:
        answer = run(command)
        if answer is not None and readable(answer):
            return parse(answer[1])
    return None


def readable(answer: Answer) -> bool:
    """Whether a log was read, be there Xids in it or not."""
    # journalctl ends with 1 when nothing matches, as grep does, and also, with a complaint, when it cannot read.
    return answer[0] == 0 or (answer[0] == 1 and not answer[2].strip())


def parse(output: str) -> list[dict[str, Any]]:
    """{pci_bus_id, code, text} of lines "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."."""
    newest: list[dict[str, Any]] = []
    counts: dict[tuple[str, int], int] = {}
    for match in reversed(list(_XID.finditer(output))):
        kind = (normalise_bus_id(match.group(1)), int(match.group(2)))
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= KEPT:
            newest.append({"pci_bus_id": kind[0], "code": kind[1], "text": (match.group(3) or "").strip()})
    return newest[::-1]
