# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks for misspelt and wrong variables on the controller, where all of a host's are. See modules/host_checks.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.plugin_utils.playbook_values import playbook_value_faults
from ansible_collections.socle.inference.plugins.plugin_utils.role_values import (
    checked_variables,
    value_faults,
    values_of,
)
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import unknown_variables


class ActionModule(ActionBase):  # type: ignore[misc]
    """See the module's documentation."""

    TRANSFERS_FILES = False
    _requires_connection = True
    _supports_check_mode = True
    _supports_async = False
    _supports_diff = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        # Of all playbooks, since site.yml begins with the one that asks for this.
        faults = [*value_faults(self._set_values(task_vars)), *playbook_value_faults(task_vars, self._templar.template)]
        if faults:
            told = "\n".join(f"{fault}; correct it." for fault in faults)
            result.update(failed=True, msg=f"{told} Nothing was changed.", findings=[], checked=[])
            return result
        args = dict(self._task.args)
        intent = args.get("intent") or {}
        unknown = unknown_variables(task_vars)
        # What is no map is refused by the module.
        if unknown and isinstance(intent, Mapping) and "unknown_variables" not in intent:
            args["intent"] = {**intent, "unknown_variables": unknown}
        result.update(self._execute_module(module_name=self._task.action, module_args=args, task_vars=task_vars))
        return result

    def _set_values(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """The values of the host's variables that roles document."""
        # They reach an action plugin as they were written, templates and all.
        return values_of(
            checked_variables().keys() & task_vars.keys(), lambda name: self._templar.template(task_vars[name])
        )
