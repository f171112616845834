# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A module that shows no password of an address, even where its options are refused. Private to socle.inference."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords


class AddressModule(AnsibleModule):  # type: ignore[misc]
    """For options that may be addresses: a wrong option fails while the module is made, with all arguments in sight."""

    def fail_json(self, msg: str, **fields: Any) -> None:
        hide_passwords(self)
        super().fail_json(msg, **fields)
