# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolves the suite on the controller, where the data is. Documented in modules/vllm_acceptance.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError, ProbeError
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model
from ansible_collections.socle.inference.plugins.module_utils._plan.promises import promises
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import quoted
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath, data_path
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import ProgressActionBase


class ActionModule(ProgressActionBase):
    """See the module's documentation."""

    def prepare_module_args(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        wanted = args.pop("data_path", None) or self._templar.template(task_vars.get("socle_data_path"))
        data = data_path(wanted, task_vars)
        plan = args.pop("plan", None)
        if plan is not None:
            args["promised"] = promises(plain(plan), _model(data, str(plan["model"]["name"])))
            args["promised"]["since"] = args.pop("since", None)
        if args.get("checks") is None:
            args["checks"] = suite_checks(data, str(args.get("suite") or "smoke"))
        return args


def suite_checks(data: DataPath, name: str, within: tuple[str, ...] = ()) -> list[Any]:
    """The checks of suite *name*: those of the one that it extends, and its own, which replace those of the same id.

    Errors: ProbeError for a suite without checks, and for one that extends itself, *within* the others.
    """
    if name in within:
        raise ProbeError(f"The suite {quoted(name)} extends itself ({' > '.join([*within, name])}); break the circle.")
    shown, suite = data.read("suites", name)
    checks = suite.get("checks") if isinstance(suite, dict) else None
    if not isinstance(checks, list) or not checks:
        raise ProbeError(f"{shown} has no list of checks, so it would prove nothing; give it one.")
    unknown = sorted(set(map(str, suite)) - {"name", "description", "extends", "checks"})
    if unknown:
        raise ProbeError(
            f"{shown} has {', '.join(map(quoted, unknown))}, which no suite has; it takes name, description, extends "
            "and checks."
        )
    own = [{"id": entry} if isinstance(entry, str) else entry for entry in checks]
    wrong = next((entry for entry in own if not isinstance(entry, dict) or not isinstance(entry.get("id"), str)), None)
    if wrong is not None:
        raise ProbeError(f"{shown} has the check {wrong!r}; expected the id of one, or a map with an id.")
    base = suite.get("extends")
    if base is None:
        return own
    if not isinstance(base, str):
        raise ProbeError(f"{shown} extends {base!r}; expected the name of one suite.")
    replaced = {entry["id"] for entry in own}
    kept = [entry for entry in suite_checks(data, base, (*within, name)) if entry["id"] not in replaced]
    return [*kept, *own]


def _model(data: DataPath, name: str) -> Model | None:
    """None where the file of a model that runs is gone, or cannot be read any more: it serves all the same."""
    try:
        return Catalogue(data).model(name)
    except PlanError:
        return None
