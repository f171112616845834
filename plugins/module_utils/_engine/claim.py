# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a launch is still the newest of its instance, and the lock of its launches. Private to socle.inference.

The module that waits for a start goes on by itself on its host when its run is killed. It must not stop what the next
run has started meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.generations import read_history
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.locks import locked


@contextlib.contextmanager
def instance_lock(folder: Path, timeout_s: float) -> Iterator[None]:
    """Keep others from launching the instance of *folder* meanwhile; `LockHeld` after *timeout_s* of another one.

    Any other OSError says what is wrong with the file of the lock.
    """
    with locked(folder / ".lock", f"changing {folder.name}", timeout_s):
        yield


class Claim:
    """The launch that was the newest one of an instance when this was made."""

    def __init__(self, folder: Path, files: Files, generation: int | None = None) -> None:
        """*folder* is the instance's, of which there is none where nothing was launched by socle. *generation* is the
        one that was launched: where another is current by now, this one is the newest no more."""
        self._folder = folder
        self._files = files
        self._made = self._newest()
        self._ours = generation is None or self._made[1] == generation

    def _newest(self) -> tuple[Any, ...]:
        """What every launch changes before it stops what runs: a generation, or what one notes of its start."""
        history = read_history(self._folder, self._files)
        current = history.generations.get(history.current) if history.current else None
        state = current.state if current else {}
        return (history.highest, history.current, *(state.get(key) for key in ("applied", "invocation_before")))

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Whether it is the newest one still; where it is, no launch begins before the block ends."""
        with contextlib.ExitStack() as stack:
            if self._folder.is_dir():
                try:
                    stack.enter_context(instance_lock(self._folder, timeout_s=0))
                except OSError:  # a launch is under way
                    yield False
                    return
            yield self._ours and self._newest() == self._made
