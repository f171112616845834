# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab, converged once for all tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.support import lab


@dataclass(frozen=True)
class Line:
    """site.yml, run twice, and what was there in between."""

    first: lab.Run
    second: lab.Run
    unit: dict[str, str]
    generation: str
    benchmarks: list[str]
    acceptances: list[str]


@pytest.fixture(scope="session")
def line() -> Line:
    first = lab.play("site.yml").expect_success()
    unit, generation = lab.unit(), lab.generation()
    benchmarks, acceptances = lab.spool("benchmark"), lab.spool("acceptance")
    second = lab.play("site.yml").expect_success()
    return Line(first, second, unit, generation, benchmarks, acceptances)
