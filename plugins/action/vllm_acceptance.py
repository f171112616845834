# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolves the suite on the controller, where the data is. Documented in modules/vllm_acceptance.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import ProbeError
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import ProgressActionBase


class ActionModule(ProgressActionBase):
    """See the module's documentation."""

    def prepare_module_args(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        option = args.pop("data_path", None)
        if args.get("checks") is None:
            wanted = option or self._templar.template(task_vars.get("socle_data_path"))
            name = str(args.get("suite") or "smoke")
            shown, suite = data_path(wanted, task_vars).read("suites", name)
            checks = suite.get("checks") if isinstance(suite, dict) else None
            if not isinstance(checks, list) or not checks:
                raise ProbeError(f"{shown} has no list of checks, so it would prove nothing; give it one.")
            args["checks"] = [{"id": entry} if isinstance(entry, str) else entry for entry in checks]
        return args
