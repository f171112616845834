# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of a host, answered from a table."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from typing import Any

Answer = tuple[int, str, str]


class Commands:
    """Answers a command by the first entry whose words occur in it, in order; others end with 0 and say nothing."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.table: list[tuple[tuple[str, ...], Callable[[list[str]], Answer]]] = []

    def on(self, *words: str, out: str = "", rc: int = 0, err: str = "") -> None:
        """From now on, what such a command answers; later entries come first."""
        self.table.insert(0, (words, lambda _argv: (rc, out, err)))

    def do(self, *words: str, then: Callable[[list[str]], Answer]) -> None:
        """From now on, what such a command does."""
        self.table.insert(0, (words, then))

    def ran(self, *words: str) -> int:
        """How many commands had these words, in order."""
        return sum(_has(call, words) for call in self.calls)

    def __call__(
        self, argv: Sequence[str], *, input_text: str | None = None, timeout_s: float = 60.0, on_line: Any = None
    ) -> subprocess.CompletedProcess[str]:
        words = list(argv)
        self.calls.append(words)
        for pattern, then in self.table:
            if _has(words, pattern):
                rc, out, err = then(words)
                return subprocess.CompletedProcess(words, rc, out, err)
        return subprocess.CompletedProcess(words, 0, "", "")


def _has(words: Sequence[str], pattern: Sequence[str]) -> bool:
    rest = iter(words)
    return all(any(word == wanted for word in rest) for wanted in pattern)
