# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables that look like those of the collection's roles and playbooks and that none has: slips of the pen."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from typing import Any

import yaml
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

OTHERS = frozenset(
    {
        "model_store_action",
        "model_store_export_path",
        "model_store_export_verify",
        "model_store_export_volume_gib",
        "model_store_import_path",
        "model_store_keep",
        "model_store_remove",
        "model_store_repair",
        "model_store_unlinked_age",
        "probe_python",
        "virtual_lab_kind",
        "virtual_lab_publish",
        "virtual_lab_ssh_directory",
    }
)
"""Variables with a role's prefix that playbooks read, or that the role reads from each host of an inventory."""

LONGEST = 200
"""Characters of a name that is compared, which takes long for the longest; no variable of socle has as many."""

NEAR = 0.8
"""As difflib counts: from here on two names are the same but for a slip."""

OF_PLAYBOOKS = frozenset(
    {
        "socle_accept_at_once",
        "socle_benchmark",
        "socle_benchmark_params",
        "socle_data_path",
        "socle_format",
        "socle_generation",
        "socle_hosts",
        "socle_idle_s",
        "socle_image_pull",
        "socle_instances",
        "socle_max_fail_percentage",
        "socle_notes",
        "socle_opt_dir",
        "socle_provision",
        "socle_redeploy_flags",
        "socle_redeploy_image",
        "socle_rollback",
        "socle_serial",
        "socle_state_dir",
        "socle_suite",
        "socle_workloads",
        "vllm_flags_class",
        "vllm_flags_group",
        "vllm_flags_host",
        "vllm_flags_promoted",
        "vllm_instances",
        "vllm_rules_ignored",
    }
)
"""What playbooks and plans read from an inventory or the command line, as docs/inventory.md lists it."""

_INTERNAL = frozenset({"socle_instance"})
"""Names of the playbooks' own that look like a slip."""

_SAME = 0.9
"""As NEAR, for words that begin names of others too: one letter of twelve may be wrong."""


@cache
def role_options() -> dict[str, dict[str, dict[str, Any]]]:
    """What each role of the collection that documents its variables says of them: {role: {variable: specification}}."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((COLLECTION / "roles").glob("*/meta/argument_specs.yml")):
        # Only the C loader is quick enough for each host.
        specs = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)["argument_specs"]
        options = found.setdefault(path.parents[1].name, {})
        for entry in specs.values():
            options.update(entry.get("options") or {})
    return found


def role_variables() -> dict[str, frozenset[str]]:
    """The variables of each role of the collection that documents them, by the role's name."""
    return {role: frozenset(options) for role, options in role_options().items()}


def misspelt_variables(names: Iterable[str]) -> list[str]:
    """A phrase for each of *names* that is nearly, and not quite, a variable that playbooks or plans read."""
    faults = []
    for name in sorted(set(names) - OF_PLAYBOOKS - _INTERNAL):
        if len(name) <= LONGEST and name.startswith(("socle_", "vllm_")):
            for meant in difflib.get_close_matches(name, sorted(OF_PLAYBOOKS), n=1, cutoff=_SAME):
                faults.append(f"{name} is no variable of socle (did you mean {meant}?)")
    return faults


def unknown_variables(names: Iterable[str]) -> list[dict[str, str | None]]:
    """Those of *names* that begin with a role's name and that no role has: [{"name", "nearest": the name meant}].

    A role's name of one word begins many names of others, so there only what is nearly right counts.
    """
    roles = role_variables()
    known = {*OTHERS, *(f"{role}_result" for role in roles), *(name for own in roles.values() for name in own)}
    prefixes = tuple(f"{role}_" for role in roles)
    found: list[dict[str, str | None]] = []
    for name in sorted(name for name in names if name.startswith(prefixes) and name not in known):
        common = not any("_" in role for role in roles if name.startswith(f"{role}_"))
        compared = name[:LONGEST]
        nearest = difflib.get_close_matches(compared, sorted(known), n=1, cutoff=NEAR if common else 0.6)
        if nearest or not common:
            found.append({"name": short(name), "nearest": nearest[0] if nearest else None})
    return found
