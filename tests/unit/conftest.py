# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of many subjects share."""

from __future__ import annotations

import pytest
from ansible.module_utils.basic import AnsibleModule


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What modules that run in this process warn of.

    Where a plugin of the controller was imported before, Ansible shows a warning and leaves it out of the result.
    """
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, warning: said.append(warning))
    return said
