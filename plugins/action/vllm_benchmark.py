# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolves the workloads on the controller, where the data is. Documented in modules/vllm_benchmark.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import ProbeError
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import quoted
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath, data_path
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import ProgressActionBase


class ActionModule(ProgressActionBase):
    """See the module's documentation."""

    def prepare_module_args(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        wanted = args.pop("data_path", None) or self._templar.template(task_vars.get("socle_data_path"))
        data = data_path(wanted, task_vars)
        names = args.get("workloads") or ["B1", "B2"]
        names = [names] if isinstance(names, (str, dict)) else names
        args["workloads"] = [_read(data, entry) if isinstance(entry, str) else entry for entry in names]
        known = [str(workload.get("name")) for workload in args["workloads"]]
        for name in args.get("params") or {}:
            # One variable may serve several runs with other workloads; a name that exists nowhere is a slip.
            if name not in known and name not in data.names("workloads"):
                raise ProbeError(
                    f"params names the workload {quoted(name)}, which does not exist; "
                    f"there are {', '.join(data.names('workloads'))}."
                )
        return args


def _read(data: DataPath, name: str) -> dict[str, Any]:
    shown, workload = data.read("workloads", name)
    if not isinstance(workload, dict):
        raise ProbeError(f"{shown} is not a map of name, kind, params, repeats and warmups.")
    if workload.get("name") != name:
        raise ProbeError(f"{shown} calls itself {quoted(workload.get('name'))}; file name and name must be equal.")
    return workload
