# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only double is the commands of a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import Holds

from tests.support.commands import Commands


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def holds(tmp_path: Path) -> Holds:
    return Holds(Files(), tmp_path)
