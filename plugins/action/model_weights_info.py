# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds out on the controller which models the instances of a host need, and asks the host for them in one go.

Documented in modules/model_weights_info.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.instances import withhold_secrets
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path

OWN_OPTIONS = ("instances", "data_path")
"""Options that never reach the host."""

INSTANCES = "vllm_instances"


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
        args = dict(self._task.args)
        own = {name: args.pop(name, None) for name in OWN_OPTIONS}
        if args.get("models") is None:
            try:
                variables = {**task_vars, "socle_data_path": self._evaluated("socle_data_path", task_vars)}
                instances = own["instances"]
                if instances is None:
                    instances = self._evaluated(INSTANCES, task_vars)
                catalogue = Catalogue(data_path(plain(own["data_path"]), variables))
                args["models"] = models_of(plain(withhold_secrets(instances)), catalogue)
            except (AnsibleError, PlanError):
                # Planning, which reads the same, tells all that is wrong with them at once.
                args["models"] = []
            if not args["models"]:
                return {**result, "changed": False, "weights": {}}
        result.update(self._execute_module(module_name=self._task.action, module_args=args, task_vars=task_vars))
        return result

    def _evaluated(self, variable: str, task_vars: Mapping[str, Any]) -> Any:
        """A variable of the host, which reaches an action plugin as it was written, templates and all."""
        return self._templar.template(task_vars.get(variable))


def models_of(instances: Any, catalogue: Catalogue) -> list[dict[str, Any]]:
    """The models of *instances*, each once, as the module takes them; unknown ones are left out."""
    found = {}
    known = catalogue.model_names()
    for instance in instances.values() if isinstance(instances, dict) else ():
        name = instance.get("model") if isinstance(instance, dict) else None
        if isinstance(name, str) and name in known:
            model = catalogue.model(name)
            found[model.repo] = {
                "repo": model.repo,
                "revision": model.revision,
                "layers": model.architecture.get("layers"),
            }
    return list(found.values())
