# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the endpoint playbook decides from records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.filter_on_use import on_use


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"recorded_class": on_use("_plan.client_card", "recorded_class")}
