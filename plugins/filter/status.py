# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters behind the status playbook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.socle.inference.plugins.module_utils._records.table import rows_of_host, status_table


def status_rows(
    hosts: Iterable[str], hostvars: Mapping[str, Any], collected: str, running: str
) -> list[dict[str, Any]]:
    """A row per instance, from the variables *collected* and *running* that hold the results of the two modules."""
    rows: list[dict[str, Any]] = []
    for host in hosts:
        variables = hostvars[host]
        brought = _mapping(variables, collected)
        found = _mapping(variables, running)
        lost = bool(brought.get("unreachable") or found.get("unreachable"))
        instances = found.get("instances")
        host_class = variables.get("host_class")
        rows += rows_of_host(
            str(host),
            reachable=not lost,
            declared=_mapping(variables, "vllm_instances"),
            running=instances if isinstance(instances, Mapping) and not lost else None,
            # What was collected in this run is newer than what the inventory plugin read at its start.
            state=brought.get("socle_state") or _mapping(variables, "socle_state"),
            host_class=host_class if isinstance(host_class, str) else None,
        )
    return rows


def _mapping(variables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    try:
        value = variables.get(name)
    except AnsibleError:
        # One host's broken variable must not hide the state of all others.
        return {}
    return value if isinstance(value, Mapping) else {}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"status_rows": status_rows, "status_table": status_table}
