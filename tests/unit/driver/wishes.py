# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What names of driver packages depend on, as most hosts have it."""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.model import Wanted


def wanted(**changes: Any) -> Wanted:
    default: dict[str, Any] = {
        "source": "nvidia",
        "flavour": "open",
        "branch": "580",
        "version": "",
        "compute_only": True,
        "signed": False,
        "nvswitch": False,
        "nvlink5": False,
    }
    return Wanted(**{**default, **changes})
