# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schemas that the collection ships, and one way to check flags against them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_check import check_flags
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import FlagSchema, read_schemas

FOLDER = Path(__file__).parents[3] / "profiles/vllm"

Check = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def schemas() -> dict[str, FlagSchema]:
    return read_schemas([FOLDER])


@pytest.fixture
def check(schemas: dict[str, FlagSchema]) -> Check:
    def run(version: str, flags: dict[str, Any], env: dict[str, Any] | None = None) -> list[Finding]:
        return check_flags(flags, env or {}, schemas[version], schemas)

    return run
