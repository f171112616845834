# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The levels of a model that knows three."""

from __future__ import annotations

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Effort

from tests.support.effort_model import EFFORT


@pytest.fixture
def effort() -> Effort:
    return EFFORT
