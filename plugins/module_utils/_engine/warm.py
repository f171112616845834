# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading the weights of the next engine into the page cache while the one before it ends. Private to socle.inference.

The kernel is only told what will be needed (POSIX_FADV_WILLNEED): nothing is copied into this process, and what it has
no room for it forgets. Weights that are there already cost a few system calls.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PIECE_BYTES = 64 * 1024**2
"""What is asked for at once, so that the reading ends soon after it is told to."""

ROOM = 0.8
"""The part of the available memory that weights may take: beyond it, the kernel would drop their beginning again."""

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def model_folder(plan: Mapping[str, Any] | None) -> Path | None:
    """Where the plan's model lies on this host."""
    mounts = (plan or {}).get("mounts") or []
    source = next((mount.get("source") for mount in mounts if mount.get("kind") == "model"), None)
    return Path(source) if source else None


def available_bytes(proc_root: Path = Path("/proc")) -> int:
    """Memory that can be had without swapping; 0 where the kernel does not tell."""
    try:
        found = _AVAILABLE.search((proc_root / "meminfo").read_text(encoding="utf-8"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def weights(folder: Path, room_bytes: int) -> list[Path]:
    """The weights, in the order in which they are loaded; none where they do not fit in *room_bytes*."""
    try:
        files = sorted(folder.glob("*.safetensors"))
        return files if sum(path.stat().st_size for path in files) <= room_bytes else []
    except OSError:
        return []


class Warmer(threading.Thread):
    """Asks for the files piece by piece until told to stop."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(name="page-cache", daemon=True)
        self._files = files
        self._ended = threading.Event()
        self.asked_bytes = 0

    def run(self) -> None:
        for path in self._files:
            try:
                handle = os.open(path, os.O_RDONLY)
            except OSError:
                continue  # the engine will say what is wrong with it
            try:
                size = os.fstat(handle).st_size
                for offset in range(0, size, PIECE_BYTES):
                    if self._ended.is_set():
                        return
                    length = min(PIECE_BYTES, size - offset)
                    os.posix_fadvise(handle, offset, length, os.POSIX_FADV_WILLNEED)
                    self.asked_bytes += length
            except OSError:
                continue
            finally:
                os.close(handle)

    def end(self) -> int:
        """Stop asking; the bytes that were asked for."""
        self._ended.set()
        self.join(timeout=30.0)
        return self.asked_bytes


def start_warming(before: Mapping[str, Any] | None, plan: Mapping[str, Any]) -> Warmer | None:
    """Read the weights of *plan* where they are others than those of *before*, which the page cache has as it may."""
    folder = model_folder(plan)
    if folder is None or folder == model_folder(before):
        return None
    files = weights(folder, int(ROOM * available_bytes()))
    if not files:
        return None
    warmer = Warmer(files)
    warmer.start()
    return warmer
