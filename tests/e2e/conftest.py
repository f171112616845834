# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab, converged once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import lab


@dataclass(frozen=True)
class State:
    """What a run left."""

    unit: dict[str, str]
    generation: str
    spool: list[str]
    collected: list[Path]

    @classmethod
    def read(cls) -> State:
        return cls(lab.unit(), lab.generation(), lab.spool(), lab.collected(""))

    def spooled(self, kind: str) -> list[str]:
        return [name for name in self.spool if f"-{kind}-" in name]

    def newest(self, kind: str) -> Path:
        """The newest record of a kind beside the inventory."""
        return [path for path in self.collected if path.stem.endswith(f"-{kind}")][-1]


@dataclass(frozen=True)
class Line:
    """site.yml, run twice."""

    first: lab.Run
    before: State
    second: lab.Run
    after: State


@pytest.fixture(scope="session")
def line() -> Line:
    first = lab.play("site.yml").expect_success()
    before = State.read()
    second = lab.play("site.yml").expect_success()
    return Line(first, before, second, State.read())
