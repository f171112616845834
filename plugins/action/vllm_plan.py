# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans a host's instances on the controller, or seals one plan. Documented in modules/vllm_plan.py."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.lock import locked_manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.weight_headers import weight_files
from ansible_collections.socle.inference.plugins.module_utils._plan import instances as plan_instances
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.checks import IDS, Knowledge
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.facts import check_facts, check_schema
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import FOLDER, read_schemas
from ansible_collections.socle.inference.plugins.module_utils._plan.held_weights import held_weights
from ansible_collections.socle.inference.plugins.module_utils._plan.present import plan_tables
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request, SizeFinder, Template
from ansible_collections.socle.inference.plugins.module_utils._plan.resolve import resolve
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import load_rules
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import describe, known_list, nearest, quoted
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import seal
from ansible_collections.socle.inference.plugins.module_utils._units import path_fault
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import (
    COLLECTION,
    DataPath,
    data_path,
    user_path,
)
from ansible_collections.socle.inference.plugins.plugin_utils.playbook_values import playbook_value_faults
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import misspelt_variables

OPTIONS = frozenset(
    {
        "instances",
        "host_class",
        "facts",
        "facts_file",
        "layers",
        "variant",
        "data_path",
        "state_dir",
        "address",
        "rules_ignored",
        "calibrations",
        "weights",
        "show",
        "notes",
        "source",
        "seal",
    }
)
TEMPLATES = "chat_templates"
WIDEST = 120
"""Columns of a table at most, since longer lines of prose are hard to read."""
INSTANCES = "vllm_instances"

VARIABLES = {
    "data_path": "socle_data_path",
    "host_class": "host_class",
    "state_dir": "socle_state_dir",
    "rules_ignored": "vllm_rules_ignored",
    "calibrations": "socle_calibrations",
    "source": "model_store_source",
    "notes": "socle_notes",
}
"""Options that a host's variables stand in for."""

display = Display()

# Here, since Ansible imports this once and then forks a process for each host, which would read it all again. What is
# wrong with a file is told where it is asked for.
with contextlib.suppress(PlanError):
    Catalogue(DataPath([])).read_all()
with contextlib.suppress(PlanError):
    load_rules(DataPath([]), None, IDS)
with contextlib.suppress(PlanError):
    read_schemas([COLLECTION / FOLDER])


class ActionModule(ActionBase):  # type: ignore[misc]
    """See the module's documentation."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        try:
            args = dict(self._task.args)
            if args.get("seal") is None:
                slips = [*misspelt_variables(task_vars), *playbook_value_faults(task_vars, self._templar.template)]
                if slips:
                    raise PlanError(f"{'; '.join(slips)}. Nothing was changed.")
                for option, variable in VARIABLES.items():
                    if option not in args and variable in task_vars:
                        args[option] = self._evaluated(variable, task_vars)
                if "layers" not in args:
                    names = plan_instances.LAYER_VARIABLES.items()
                    args["layers"] = {
                        layer: self._evaluated(name, task_vars) for layer, name in names if name in task_vars
                    }
                if "instances" not in args:
                    args["instances"] = self._declared(task_vars)
            # As evaluated, also where that is nothing and the default holds.
            answer = _answer(args, {**task_vars, "socle_data_path": args.get("data_path")})
            if boolean(args.get("show", False), strict=False):
                none = f"{task_vars.get('inventory_hostname')}: {INSTANCES} names none, so that nothing is planned"
                # The first line keeps it apart from what Ansible prints.
                display.display(f"\n{answer['table'] or none}")
                # Ansible walks several times through all that a task returns.
                answer = {"host_class": answer["host_class"]}
            result.update(answer)
        except RecursionError:
            message = "vllm_plan was given a value that is nested too deep to read; flatten it."
            result.update(failed=True, msg=message, errors=[message])
        except PlanError as error:
            result.update(failed=True, msg=str(error), errors=[error.message])
            result.update(error.fields)
        return result

    def _evaluated(self, variable: str, task_vars: Mapping[str, Any]) -> Any:
        """A variable of the host, which reaches an action plugin as it was written, templates and all."""
        try:
            return plain(self._templar.template(task_vars[variable]))
        except AnsibleError as error:
            raise PlanError(
                f"{variable} of {task_vars.get('inventory_hostname')} cannot be evaluated ({error}); correct it."
            ) from error

    def _declared(self, task_vars: Mapping[str, Any]) -> Any:
        """The host's variable vllm_instances, without its keys; raises PlanError where it cannot be evaluated."""
        try:
            declared = self._templar.template(task_vars.get(INSTANCES))
            # What is nested is evaluated when it is looked at.
            instances = plain(plan_instances.withhold_secrets(declared))
            reason = f"it must be a map of instance names to their settings, but is {describe(instances)}"
        except AnsibleError as error:
            instances, reason = False, str(error)
        if instances is None or isinstance(instances, dict):
            return instances
        raise PlanError(
            f"{INSTANCES} of {task_vars.get('inventory_hostname')} cannot be used ({reason}): correct it, or leave it "
            "out for a host without instances. Nothing was changed."
        )


def _answer(args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(args) - OPTIONS)
    if unknown:
        raise PlanError(
            f"vllm_plan has no option {quoted(unknown[0])} (it has {known_list(OPTIONS)})"
            f"{nearest(unknown[0], OPTIONS) or '; remove it.'}"
        )
    if args.get("seal") is not None:
        others = sorted(set(args) - {"seal"})
        if others:
            raise PlanError(f"vllm_plan was given seal together with {', '.join(others)}; use seal alone.")
        sealed, missing = seal(plain(args["seal"]))
        return {"plan": sealed, "missing": missing}
    data = data_path(args.get("data_path"), task_vars)
    # Keys are taken out before anything else looks at the instances.
    instances = plain(plan_instances.withhold_secrets(args.get("instances") or {}))
    address = args.get("address") or task_vars.get("ansible_host")
    request = Request(
        host=str(task_vars.get("inventory_hostname", "localhost")),
        instances=instances,
        facts=_facts(args, task_vars),
        host_class=str(args["host_class"]) if args.get("host_class") else None,
        group_names=[str(name) for name in task_vars.get("group_names", [])],
        layers=plain(args.get("layers") or {}),
        variant=plain(args.get("variant")),
        state_dir=_state_dir(args.get("state_dir") or "/var/lib/socle"),
        address=str(address) if address else None,
        calibrations=_calibrations(args.get("calibrations")),
        weights=held_weights(plain(args.get("weights") or {})),
        find_size=_locked_sizes(task_vars.get("inventory_dir"), str(args.get("source") or "modelscope")),
    )
    if not instances:
        return {"plans": {}, "host_class": None, "templates": [], "table": ""}
    knowledge = Knowledge(
        load_rules(data, plain(args.get("rules_ignored")), IDS),
        read_schemas(root / FOLDER for root in data.folders),
    )
    resolution = resolve(request, Catalogue(data), lambda name: _template(name, data, task_vars), knowledge)
    notes = boolean(args.get("notes", False), strict=False) or display.verbosity > 0
    return {
        "plans": resolution.plans,
        "host_class": resolution.host_class,
        "templates": resolution.templates,
        # One text, since whatever walks through registered plans in a template pays for each of their values.
        "table": plan_tables(resolution.plans, notes, min(display.columns, WIDEST)),
    }


def _calibrations(given: Any) -> list[Any]:
    if given is not None and not isinstance(given, list):
        raise PlanError(f"calibrations must be a list of what records hold, but are {describe(given)}; leave them out.")
    return list(plain(given or []))


def _locked_sizes(inventory_dir: Any, source: str) -> SizeFinder:
    """The sizes that models were locked with when they were last brought to a host of this inventory."""

    def find(repo: str, revision: str) -> int | None:
        try:
            manifest = locked_manifest(str(inventory_dir) if inventory_dir else None, source, repo, revision)
        except SocleError:
            # Whoever brings the model is told what is wrong with its lock.
            return None
        return sum(file.size for file in weight_files(manifest.files)) or None if manifest else None

    return find


def _facts(args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any] | None:
    facts = plain(args.get("facts"))
    if facts is None and args.get("facts_file"):
        # As with data: what is not absolute starts at the folder of the inventory.
        base = Path(str(task_vars.get("inventory_dir") or task_vars.get("playbook_dir") or "."))
        path = user_path(base, str(args["facts_file"]), "gpu_facts_file")
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(
                f"The host's facts were looked for in {path} (gpu_facts_file) and could not be read: {error.strerror}; "
                f"correct the path, or leave the variable out to ask the host."
            ) from error
        except (ValueError, RecursionError) as error:
            raise PlanError(
                f"The host's facts in {path} (gpu_facts_file) are not JSON that can be read ({error}); "
                f"give a file with the result of gpu_facts."
            ) from error
        if isinstance(facts, dict) and "gpu_facts" in facts:
            facts = facts["gpu_facts"]
    if facts is None:
        return None
    check_schema(facts)
    check_facts(facts)
    return dict(facts)


def _state_dir(value: Any) -> str:
    text = str(value).rstrip("/")
    fault = path_fault(text)
    if fault:
        raise PlanError(
            f"socle_state_dir (option state_dir) is {quoted(text)}, which a unit cannot mount from: {fault}; "
            "correct it."
        )
    return text


def _template(name: str, data: DataPath, task_vars: Mapping[str, Any]) -> Template:
    """A chat template by path (absolute, or relative to the inventory) or by name in chat_templates/ of the data."""
    candidates = [data.find(f"{TEMPLATES}/{name}"), data.find(f"{TEMPLATES}/{name}.jinja")]
    base = Path(str(task_vars.get("inventory_dir") or "."))
    candidates.append(user_path(base, name, "chat_template"))
    for path in candidates:
        if path and path.is_file():
            try:
                content = path.read_bytes()
            except OSError as error:
                raise PlanError(f"chat template {path} cannot be read ({error}); correct its permissions.") from error
            return Template(str(path.resolve()), hashlib.sha256(content).hexdigest())
    raise PlanError(
        f"chat template {quoted(name)} was looked for in {TEMPLATES}/ of {data.describe()} and as a file beside the "
        "inventory and not found; correct chat_template of the instance or add the file."
    )
