# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts in a temporary folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.gpu.hosts import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)
