# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only double: commands of a host."""

from __future__ import annotations

import pytest

from tests.support.commands import Commands


@pytest.fixture
def commands() -> Commands:
    return Commands()
