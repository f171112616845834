# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with the variables of the role model_store and the playbook models, told before anything is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.names import REPO, repo_of
from ansible_collections.socle.inference.plugins.module_utils._kinds import kind_of
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short
from ansible_collections.socle.inference.plugins.plugin_utils.role_values import value_faults, values_of
from ansible_collections.socle.inference.plugins.plugin_utils.role_variables import role_options, unknown_variables

ROLE = "model_store"
MODELS = "model_store_models"
FORM = "expected a list such as [{repo: ORGANISATION/NAME, revision: master}]"
REMOVE = "model_store_remove"
PATHS = ("model_store_path", "model_store_adopt_from", "model_store_export_path", "model_store_import_path")
STARTS = ("/", "~", "$", "{{")
"""What a path on a host may begin with: the host expands "~" and "$", Ansible an expression."""
ACTIONS = ("sync", "verify", "list", "gc", "remove", "export", "import")
PLAYBOOK: Mapping[str, Mapping[str, Any]] = {
    "model_store_action": {"type": "str", "choices": ACTIONS},
    "model_store_export_verify": {"type": "str", "choices": ("quick", "full")},
    "model_store_export_volume_gib": {"type": "float"},
    "model_store_keep": {"type": "int"},
    "model_store_repair": {"type": "bool"},
}
"""What the playbook reads besides the options of the role."""


def variable_faults(hostvars: Any, hosts: Iterable[str], names: Iterable[str] = ()) -> list[str]:
    """A sentence for each variable of *hosts* that begins with model_store_ and is unknown, or has a wrong value.

    *names*: those of the play, which are none of a host. A fault that only some hosts have begins with these.
    """
    hosts = [str(host) for host in hosts]
    found: dict[str, list[str]] = {}
    for host in hosts:
        own = hostvars[host]
        given = [str(name) for name in own if str(name).startswith(f"{ROLE}_")]
        values = values_of(given, own.__getitem__)
        faults = [
            *map(_unknown, unknown_variables({*given, *(name for name in names if name.startswith(f"{ROLE}_"))})),
            *value_faults({name: value for name, value in values.items() if value is not None}, _specified()),
            *models_faults(values.get(MODELS)),
            *_keep_faults(values.get("model_store_keep")),
            *_remove_faults(values.get(REMOVE)),
            *_path_faults(values),
        ]
        for fault in faults:
            found.setdefault(fault, []).append(host)
    return [fault if having == hosts else f"{', '.join(having)}: {fault}" for fault, having in found.items()]


def _keep_faults(keep: Any) -> list[str]:
    """Why garbage collection would refuse *keep*; what is no number at all is told by its type."""
    number = short(keep).strip()
    if not re.fullmatch(r"-?[0-9]{1,18}", number) or int(number) >= 1:
        return []
    return [f"model_store_keep is {number}, expected 1 or more, since the current revision stays"]


def _remove_faults(named: Any) -> list[str]:
    """Why *named* names no models that could be removed: the first of its faults alone."""
    for name in named if isinstance(named, (list, tuple)) else [named]:
        if name in (None, ""):
            # The action asks for one.
            continue
        if not isinstance(name, str):
            return [f"{REMOVE} holds {kind_of(name)}, expected ORGANISATION/NAME, or a list of such names"]
        if REPO.fullmatch(name):
            continue
        bare = name.partition("@")[0].strip()
        meant = bare if REPO.fullmatch(bare) else repo_of(bare)
        hint = f" (did you mean {meant}?)" if meant else ""
        return [f"{REMOVE} names {short(name)}, expected ORGANISATION/NAME, of which all revisions go{hint}"]
    return []


def _path_faults(values: Mapping[str, Any]) -> list[str]:
    """Each path on a host that is relative, to a folder that nobody knows."""
    faults = []
    for name in PATHS:
        given = values.get(name)
        for path in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(path, str) and path and not path.startswith(STARTS):
                faults.append(f"{name} has the relative path {short(path)}, expected an absolute one")
    return faults


def models_faults(models: Any) -> list[str]:
    """Why *models* is no list of models, if it is none: the first of its faults alone."""
    if models is None:
        return []
    if not isinstance(models, Sequence) or isinstance(models, str):
        return [f"{MODELS} is {kind_of(models)}, {FORM}"]
    known = role_options()[ROLE][MODELS]["options"]
    for number, model in enumerate(models, 1):
        where = f"{MODELS} has {_shown(model)} as entry {number}"
        if not isinstance(model, Mapping):
            return [f"{where}, {FORM}"]
        if not isinstance(model.get("repo"), str) or not model["repo"]:
            return [f"{where}, which names no repo, {FORM}"]
        wrong = [key for key in model if key not in known]
        if wrong:
            return [f"{where}, and a model has no {short(wrong[0])}, only {', '.join(known)}, {FORM}"]
        nested = [key for key, value in model.items() if isinstance(value, (Mapping, list, tuple))]
        if nested:
            return [f"{where}, whose {nested[0]} is {kind_of(model[nested[0]])}, {FORM}"]
    return []


def _shown(model: Any) -> str:
    if isinstance(model, Mapping):
        return short(model["repo"] if isinstance(model.get("repo"), str) else f"{{{', '.join(map(short, model))}}}")
    return f"the string {short(model)}" if isinstance(model, str) else kind_of(model)


def _specified() -> dict[str, Mapping[str, Any]]:
    options = {name: spec for name, spec in role_options()[ROLE].items() if name != MODELS}
    return {**options, **PLAYBOOK}


def _unknown(one: Mapping[str, str | None]) -> str:
    hint = f" (did you mean {one['nearest']}?)" if one["nearest"] else ""
    return f"{short(one['name'])} is no variable of socle{hint}"


class FilterModule:
    """Filters of the role model_store and the playbook models."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"model_store_variable_faults": variable_faults}
