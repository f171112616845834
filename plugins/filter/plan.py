# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over the plans that vllm_plan returns, and over the variables that plans are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.held_weights import weights_due
from ansible_collections.socle.inference.plugins.module_utils._plan.present import (
    plan_images,
    plan_models,
    plan_table,
    plan_url,
)
from ansible_collections.socle.inference.plugins.plugin_utils.playbook_values import checked_value, variable_slips


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "plan_table": plan_table,
            "plan_models": plan_models,
            "plan_images": plan_images,
            "plan_url": plan_url,
            "weights_due": weights_due,
            "misspelt_variables": variable_slips,
            "checked_value": checked_value,
        }
