# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host of an engine says of its GPUs: who is on them, how much is free, what the driver complained of.

Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._engine.gpu_room import Holder, read_holders
from ansible_collections.socle.inference.plugins.module_utils._gpu import kernel_log
from ansible_collections.socle.inference.plugins.module_utils._gpu.pci import normalise_bus_id

_GPUS = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Gpu:
    """One GPU, its free memory in MiB."""

    index: str
    uuid: str
    bus_id: str
    free_mib: int


class HostGpus:
    """Asks the host; *began* is how the GPUs were before the first check."""

    def __init__(self, run: Run, proc_root: Path = Path("/proc")) -> None:
        self._run = run
        self._proc_root = proc_root
        self.began: dict[str, Gpu] = self.look()

    def look(self) -> dict[str, Gpu]:
        """All GPUs by UUID; empty where there is no nvidia-smi, or the driver does not answer."""
        answer = self._run(_GPUS)
        found = {}
        for line in answer[1].splitlines() if answer and answer[0] == 0 else ():
            words = [word.strip() for word in line.split(",")]
            if len(words) == 4 and words[3].isdigit():
                found[words[1]] = Gpu(words[0], words[1], normalise_bus_id(words[2]), int(words[3]))
        return found

    def holders(self) -> dict[str, list[Holder]]:
        """Who holds memory, by UUID; Docker's containers by their names."""
        return read_holders(self._run, self._proc_root)

    def xids(self, since: str | None, bus_ids: Collection[str]) -> list[dict[str, Any]] | None:
        """What the driver reported of these GPUs since that time (UTC, ISO 8601); None where no log can be read.

        Without a time, or without a journal, since boot.
        """
        when = ("--since", since.replace("T", " ").replace("Z", " UTC")) if since else ()
        answer = self._run((*kernel_log.COMMANDS[0], *when))
        if answer is not None and kernel_log.readable(answer):
            found: list[dict[str, Any]] | None = kernel_log.parse(answer[1])
        else:
            found = kernel_log.read(self._run)
        return None if found is None else [each for each in found if each["pci_bus_id"] in bus_ids]
