# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of vllm_watchdog: says which version of socle the records of the watchdog name."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._records.controller import tool_version


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        module_args = {"tool_version": tool_version(), **self._task.args}
        result.update(
            self._execute_module(module_name=self._task.action, module_args=module_args, task_vars=task_vars or {})
        )
        return result
