# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of variables that roles would refuse, told by the variables' names.

Ansible compares them when a role begins, which is after modules have read some of them under names of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.socle.inference.plugins.module_utils._kinds import kind_of
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import SHOWN, closest, short
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import role_options
from jinja2 import Undefined

ROLES = ("container_engine", "gpu_container_toolkit", "gpu_driver")
"""The roles of playbook provision.yml."""

WORDS = {
    "bool": "true or false",
    "dict": "a dictionary",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "path": "a path",
    "str": "a string",
}


def checked_variables() -> dict[str, Mapping[str, Any]]:
    """The options of the roles that an inventory may set, by name; required ones are handed over by playbooks."""
    options = role_options()
    return {name: spec for role in ROLES for name, spec in options[role].items() if not spec.get("required")}


def values_of(names: Iterable[str], read: Callable[[str], Any]) -> dict[str, Any]:
    """What *read* gives for each of *names*, without those that cannot be evaluated yet.

    Ansible, which knows their line, tells of them where they are used.
    """
    found = {}
    for name in names:
        try:
            value = read(name)
        except AnsibleError:
            continue
        # What hostvars give in place of an error.
        if not isinstance(value, Undefined):
            found[name] = plain(value)
    return found


def value_faults(values: Mapping[str, Any], specified: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
    """A clause for each of *values*, by variable and without templates, that is wrong: "gpu_driver_hold is 3, ..".

    *specified*: the options to compare with, by name; by default those of the roles that provision a host.

    No password is in it: values of secrets, of dictionaries and of addresses with a user are not shown.
    """
    checked = checked_variables() if specified is None else specified
    faults = (_fault(name, checked[name], values[name]) for name in sorted(checked.keys() & values.keys()))
    return [fault for fault in faults if fault]


def _fault(name: str, spec: Mapping[str, Any], value: Any) -> str:
    bare = {key: spec[key] for key in ("type", "choices", "elements", "options") if key in spec}
    # Ansible cannot write a number of thousands of digits.
    endless = isinstance(value, int) and abs(value) >= 10**SHOWN
    valid = not endless and not ArgumentSpecValidator({name: bare}).validate({name: value}).error_messages
    options = spec.get("options")
    if isinstance(value, Mapping) and options:
        # Ansible makes a string of whatever stands where one is expected.
        for key, part in value.items():
            if key not in options:
                shown = key if re.fullmatch(r"\w{1,40}", str(key)) else "another key"
                return f"{name} has {shown}, expected {_expected(spec)}"
            if not _fits(options[key], part):
                return f"{name} has {kind_of(part)} as {key}, expected {_expected(options[key])}"
    if valid and _fits(spec, value):
        return ""
    near = closest(short(value, SHOWN).lower(), map(str, spec.get("choices") or ()))
    hint = f" (did you mean {near}?)" if near else ""
    return f"{name} is {_shown(spec, value)}, expected {_expected(spec)}{hint}"


def _fits(spec: Mapping[str, Any], value: Any) -> bool:
    nested = (Mapping, list, tuple)
    if spec.get("type", "str") in ("str", "path"):
        return not isinstance(value, nested)
    if spec.get("type") == "list" and spec.get("elements") in ("str", "path") and isinstance(value, (list, tuple)):
        return not any(isinstance(item, nested) for item in value)
    return True


def _expected(spec: Mapping[str, Any]) -> str:
    if spec.get("choices"):
        return f"one of {', '.join(map(str, spec['choices']))}"
    if spec.get("options"):
        return f"{{{', '.join(f'{name}:' for name in spec['options'])}}}"
    word = WORDS[spec.get("type", "str")]
    return f"{word} of strings" if spec.get("elements") in ("str", "path") else word


def _shown(spec: Mapping[str, Any], value: Any) -> str:
    scalar = isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 10**SHOWN)
    text = json.dumps(value, ensure_ascii=False) if scalar else ""
    hidden = spec.get("no_log") or spec.get("options") or "@" in text or len(text) > SHOWN
    return text if scalar and not hidden else kind_of(value)
