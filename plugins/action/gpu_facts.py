# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the host by the module, and finds its class on the controller, where classes are. See modules/gpu_facts.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import find_override, resolve_class
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue, HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import quoted
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path

OWN_OPTIONS = ("host_class", "data_path", "require_class")
"""Options that the module accepts for its documentation's sake, and that never reach the host."""


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
        own = {name: plain(args.pop(name, None)) for name in OWN_OPTIONS}
        try:
            required = boolean(own["require_class"] or False)
        except TypeError:
            result.update(
                failed=True,
                msg=f"require_class of gpu_facts must be true or false, but is {quoted(own['require_class'])}.",
            )
            return result
        result.update(self._execute_module(module_name=self._task.action, module_args=args, task_vars=task_vars))
        facts = result.get("gpu_facts")
        if result.get("failed") or not isinstance(facts, dict):
            return result
        # Variables reach an action plugin as they were written, templates and all.
        variables = {
            **task_vars,
            **{name: plain(self._templar.template(task_vars.get(name))) for name in ("host_class", "socle_data_path")},
        }
        result.update(host_class=None, class_problem=None)
        facts["host_class"] = None
        try:
            details = _class_of(facts, own, variables)
        except PlanError as error:
            # Facts are wanted most of all where the hardware is not known.
            result["class_problem"] = str(error)
            if required:
                result.update(failed=True, msg=str(error))
            return result
        facts["host_class"] = details["name"]
        result["host_class"] = details
        for told in details["warnings"]:
            if told["severity"] == "warning":
                result.setdefault("warnings", []).append(f"{told['message']}; {told['remedy']}.")
        return result


def _class_of(facts: Mapping[str, Any], options: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """The host's class as the result tells it; raises PlanError where there is none."""
    host = str(variables.get("inventory_hostname", "localhost"))
    classes = Catalogue(data_path(options["data_path"], variables)).host_classes()
    groups = [str(name) for name in variables.get("group_names", [])]
    override = find_override(options["host_class"] or variables["host_class"], groups, classes, host)
    found = resolve_class(facts, classes, override, host)
    return {
        "name": found.name,
        "count": found.count,
        "origin": found.origin,
        "warnings": [dict(told) for told in found.warnings],
        "class": _properties(classes[found.name]),
    }


def _properties(known: HostClass) -> dict[str, Any]:
    """What roles and checks need to know of a class before the driver can tell it."""
    return {
        "name": known.name,
        "kind": known.kind,
        "family": known.family,
        "architecture": known.architecture,
        "compute_capability": known.compute_capability,
        "pci_ids": list(known.pci_ids),
        "products": list(known.products),
        "memory_mib": known.memory_mib,
        "link": known.link,
        "nvlink_expected": known.nvlink_expected,
        "nvswitch": known.nvswitch,
        "fp8": known.fp8,
        "fp4": known.fp4,
        "peer_to_peer": known.peer_to_peer,
        "power_default_w": known.power_default_w,
        "driver": dict(known.driver),
    }
