# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of record: builds the document, and keeps a copy beside the inventory."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.measured import calibration_of
from ansible_collections.socle.inference.plugins.module_utils._records.controller import records_root, tool_version
from ansible_collections.socle.inference.plugins.module_utils._records.files import write_collected
from ansible_collections.socle.inference.plugins.module_utils._records.schema import build
from ansible_collections.socle.inference.plugins.modules.record import ARGUMENT_SPEC

PASSED_ON = ("kind", "instance", "started", "finished", "verdict", "state_dir")


class ActionModule(ActionBase):
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(ARGUMENT_SPEC)
        host = task_vars["inventory_hostname"]
        results = dict(args["results"] or {})
        if args["kind"] == "deploy" and args["verdict"] == "passed":
            results["calibration"] = calibration_of(plain(results), plain(args["plan"] or {}))
        try:
            record, text = build(
                kind=args["kind"],
                host=host,
                instance=args["instance"],
                started=args["started"],
                finished=args["finished"],
                verdict=args["verdict"],
                tool_version=tool_version(),
                plan=args["plan"],
                launch_fingerprint=args["launch_fingerprint"],
                environment_fingerprint=args["environment_fingerprint"],
                generation=args["generation"],
                environment=args["environment"],
                results=results,
                method=args["method"],
                secrets=args["secrets"] or (),
            )
        except SocleError as error:
            result.update(failed=True, msg=str(error), **error.fields)
            return result

        module_args = {name: args[name] for name in PASSED_ON}
        module_args["document"] = text
        written = self._execute_module(module_name=self._task.action, module_args=module_args, task_vars=task_vars)
        if written.get("failed"):
            written.pop("invocation", None)
            result.update(written)
            return result

        root = records_root(task_vars.get("inventory_dir"))
        result.update(
            changed=False,
            record=record,
            spool_path=written.get("spool_path"),
            collected_path=None,
            note=None,
        )
        if root is None:
            result["note"] = f"The inventory of {host} is not a file: its record is in the spool of the host only."
        elif not self._task.check_mode:
            try:
                path, _new = write_collected(root, host, record, text)
            except SocleError as error:
                # The spool has it, and the next collection brings it.
                result.setdefault("warnings", []).append(str(error))
            else:
                result["collected_path"] = str(path)
        return result
