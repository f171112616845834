# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the variables of the playbooks may hold, told by name before a host is asked for anything.

Ansible takes a word that is neither true nor false for false, and of a wrong number a play dies with a traceback.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._kinds import kind_of
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import SHOWN, closest, known_list, short
from ansible_collections.socle.inference.plugins.module_utils._units import PATH_EXPECTED, path_fault
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath, data_path
from ansible_collections.socle.inference.plugins.plugin_utils.role_values import value_faults, values_of
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import misspelt_variables, role_options

ROLES = ("probe", "vllm_service", "watchdog")
"""Roles of the playbooks that deploy, accept and measure; each tells what its variables may hold."""

_ROLE_PREFIXES = tuple(f"{role}_" for role in ROLES)

_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")
"""What Ansible's filter bool takes for true or false; it takes anything else for false."""

_DIGITS = re.compile(r"[0-9]{1,9}")
_BATCH = re.compile(r"[1-9][0-9]{0,8}%?")


@dataclass(frozen=True)
class Kind:
    """What a variable may hold: in words that stand after "expected", and as a test; *choices* are its words."""

    expected: str
    fits: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def _choice(*names: str) -> Kind:
    return Kind(f"one of {', '.join(names)}", lambda value: value in names, names)


def _whole(minimum: int, expected: str) -> Kind:
    def fits(value: Any) -> bool:
        text = str(value) if isinstance(value, int) and abs(value) < 10**SHOWN else value
        number = isinstance(text, str) and _DIGITS.fullmatch(text) is not None
        return number and not isinstance(value, bool) and int(text) >= minimum

    return Kind(expected, fits)


def _is_percentage(value: Any) -> bool:
    try:
        number = value[:-1] if isinstance(value, str) and value.endswith("%") else value
        return not isinstance(number, bool) and 0 <= float(number) <= 100
    except (TypeError, ValueError, OverflowError):
        return False


def _is_batch(value: Any) -> bool:
    scalar = isinstance(value, (str, int)) and not isinstance(value, bool)
    return scalar and _BATCH.fullmatch(short(value)) is not None


def _is_serial(value: Any) -> bool:
    return all(map(_is_batch, value)) and bool(value) if isinstance(value, (list, tuple)) else _is_batch(value)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and path_fault(value.rstrip("/")) is None


TRUTH = Kind("true or false", lambda value: isinstance(value, (bool, int, str)) and short(value).lower() in _TRUTH)
FOLDER = Kind(PATH_EXPECTED, _is_path)

KINDS: Mapping[str, Kind] = {
    # A name without a prefix of socle's: a site may have it for something else. What is given with -e is a text.
    "retry": Kind(TRUTH.expected, lambda value: not isinstance(value, str) or TRUTH.fits(value)),
    "socle_accept_at_once": TRUTH,
    "socle_benchmark": _choice("missing", "always", "never"),
    "socle_format": _choice("text", "json"),
    "socle_generation": _whole(0, "the number of a generation (0 lists those that there are)"),
    "socle_idle_s": _whole(0, "a whole number of seconds, 0 or more"),
    "socle_image_pull": _choice("missing", "never"),
    "socle_max_fail_percentage": Kind("a number from 0 to 100", _is_percentage),
    "socle_notes": TRUTH,
    "socle_opt_dir": FOLDER,
    "socle_provision": TRUTH,
    "socle_redeploy_flags": Kind(
        "a map of flags such as '{\"max-num-seqs\": 4}'", lambda value: isinstance(value, Mapping)
    ),
    "socle_redeploy_image": Kind("the name of an image", lambda value: isinstance(value, str) and bool(value)),
    "socle_rollback": TRUTH,
    "socle_serial": Kind("a number of hosts from 1 on, a percentage such as 50%, or a list of both", _is_serial),
    "socle_state_dir": FOLDER,
}
"""Each variable of docs/inventory.md whose value can be judged by itself."""

OF_FILES = ("socle_suite", "socle_workloads", "socle_benchmark_params")
"""Variables that name files of the data on the controller."""


def variable_slips(names: Iterable[str], values: Mapping[str, Any] | None = None) -> list[str]:
    """A clause for each of *names* that is misspelt, and for each of a host's *values* that no playbook can use."""
    return [*misspelt_variables(names), *(playbook_value_faults(values) if values is not None else ())]


def playbook_value_faults(values: Mapping[str, Any], evaluate: Callable[[Any], Any] = lambda value: value) -> list[str]:
    """A clause for each of a host's variables that is wrong: "socle_rollback is "perhaps", expected true or false".

    *evaluate* makes its value of what stands in *values*. What cannot be evaluated is told where it is used.
    """

    def known(names: Iterable[str]) -> dict[str, Any]:
        return values_of((name for name in names if name in values), lambda name: evaluate(values[name]))

    faults = [value_fault(name, value) for name, value in known(sorted(KINDS)).items()]
    # To read what roles take costs more than all the rest.
    if any(str(name).startswith(_ROLE_PREFIXES) for name in values):
        options = role_options()
        specified = {name: spec for role in ROLES for name, spec in options[role].items() if not spec.get("required")}
        faults += value_faults(known(specified), specified)
    named = known((*OF_FILES, "socle_data_path", "inventory_dir", "playbook_dir"))
    return [fault for fault in (*faults, *_file_faults(named)) if fault]


def checked_value(value: Any, name: str) -> Any:
    """*value*, for a keyword of a play, which Ansible reads before any task could refuse it; raises AnsibleFilterError
    where the variable *name* cannot hold it."""
    fault = value_fault(name, value)
    if fault:
        raise AnsibleFilterError(f"{fault}. Nothing was changed.")
    return value


def value_fault(name: str, value: Any) -> str:
    """Why the variable *name* of KINDS cannot hold *value*, as a clause; "" where it can."""
    kind = KINDS[name]
    if kind.fits(value):
        return ""
    near = closest(short(value, SHOWN).lower(), kind.choices) if kind.choices else None
    return f"{name} is {_shown(value)}, expected {kind.expected}{f' (did you mean {near}?)' if near else ''}"


def _file_faults(named: Mapping[str, Any]) -> list[str]:
    if not any(named.get(name) is not None for name in (*OF_FILES, "socle_data_path")):
        return []
    try:
        data = data_path(None, named)
        suites, workloads = data.names("suites"), data.names("workloads")
    except PlanError as error:
        return [error.message.rstrip(".")]
    faults = []
    suite = named.get("socle_suite")
    if suite is not None and suite not in suites:
        faults.append(_unknown("socle_suite", suite, "suites", suites, data))
    wanted = named.get("socle_workloads")
    listed = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    # A workload may also be given itself.
    own = [str(item.get("name")) for item in listed if isinstance(item, Mapping)]
    for item in listed:
        if not isinstance(item, Mapping) and item not in workloads:
            faults.append(_unknown("socle_workloads", item, "workloads", workloads, data, "names"))
    params = named.get("socle_benchmark_params")
    if params is not None and not isinstance(params, Mapping):
        faults.append(
            f'socle_benchmark_params is {_shown(params)}, expected a map such as \'{{"B2": {{"repeats": 5}}}}\''
        )
    for item in params if isinstance(params, Mapping) else ():
        if item not in workloads and item not in own:
            faults.append(_unknown("socle_benchmark_params", item, "workloads", workloads, data, "names"))
    return faults


def _unknown(name: str, value: Any, folder: str, known: Iterable[str], data: DataPath, verb: str = "is") -> str:
    near = closest(short(value, SHOWN), known)
    hint = f" (did you mean {near}?)" if near else ""
    return (
        f"{name} {verb} {_shown(value)}, expected one of {known_list(known)}, the files of {folder}/ in"
        f" {data.describe()}{hint}"
    )


def _shown(value: Any) -> str:
    """A short scalar as it is, anything else by its kind."""
    scalar = isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 10**SHOWN)
    text = json.dumps(value, ensure_ascii=False) if scalar else ""
    return text if scalar and len(text) <= SHOWN and "@" not in text else kind_of(value)
