# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of vllm_chat_template: it has the Jinja that a host need not have."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.modules.vllm_chat_template import ARGUMENT_SPEC
from ansible_collections.socle.inference.plugins.plugin_utils.template_check import checked_overlay

MODULE = "socle.inference.vllm_chat_template"


class ActionModule(ActionBase):
    """Reads the model's template on the host, makes and checks the new one here, and has it written there."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(ARGUMENT_SPEC)
        sent = {name: value for name, value in args.items() if value is not None and name != "text"}
        read = self._execute_module(module_name=MODULE, module_args=sent, task_vars=task_vars)
        if "base" not in read:
            result.update(read)
            return result
        aliases = {str(level): str(target) for level, target in args["aliases"].items()}
        try:
            text = checked_overlay(read["base"], args["levels"], aliases, args["model"] or args["model_path"])
        except SocleError as error:
            result.update(failed=True, msg=str(error), **error.fields)
            return result
        result.update(self._execute_module(module_name=MODULE, module_args={**sent, "text": text}, task_vars=task_vars))
        return result
