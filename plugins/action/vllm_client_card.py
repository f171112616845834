# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the client cards of a host on the controller. Documented in modules/vllm_client_card.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.client_card import (
    Place,
    card_lines,
    client_card,
    client_url,
    fallback_of,
    key_name,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import known_list, nearest, quoted
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import data_path

ARGUMENT_SPEC = {
    "plans": {"type": "dict", "required": True},
    "state": {"type": "dict", "default": {}},
    "address": {"type": "str"},
    "urls": {"type": "dict", "default": {}},
    "fallback": {"type": "dict", "default": {}},
    "data_path": {"type": "raw"},
}


class ActionModule(ActionBase):
    """See the module's documentation."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(ARGUMENT_SPEC)
        variables = {**task_vars, "socle_data_path": self._templar.template(task_vars.get("socle_data_path"))}
        # As with vllm_plan: what the inventory says of an address may be a template.
        address = args["address"] or self._templar.template(task_vars.get("ansible_host"))
        address = address or task_vars.get("inventory_hostname", "localhost")
        try:
            cards = _cards(args, variables, str(address))
        except SocleError as error:
            result.update(failed=True, msg=str(error), **error.fields)
            return result
        lines = [line for card in cards for line in ("", *card_lines(card))]
        result.update(changed=False, cards=cards, lines=lines)
        return result


def _cards(args: Mapping[str, Any], task_vars: Mapping[str, Any], address: str) -> list[dict[str, Any]]:
    catalogue = Catalogue(data_path(args["data_path"], task_vars))
    plans: Mapping[str, Any] = plain(args["plans"])
    known: Mapping[str, Any] = (plain(args["state"]) or {}).get("instances") or {}
    fallback = fallback_of(plain(args["fallback"]))
    urls = plain(args["urls"])
    for name in urls:
        if name not in plans:
            raise PlanError(
                f"endpoint_urls has {quoted(name)}, which is no instance of the host (it has: {known_list(plans)})"
                f"{nearest(name, plans) or '; remove it.'}"
            )
    return [
        client_card(
            plan,
            catalogue.model(plan["model"]["name"]),
            Place(address, client_url(urls[name], f"endpoint_urls.{name}") if name in urls else None),
            key_name(_written_key(task_vars, name), f"api_key of vllm_instances.{name} on {plan['host']}"),
            known.get(name),
            fallback,
        )
        for name, plan in sorted(plans.items())
    ]


def _written_key(task_vars: Mapping[str, Any], instance: str) -> Any:
    """What the inventory says for the key of an instance, which reaches an action plugin as it was written."""
    instances = task_vars.get("vllm_instances")
    found = instances.get(instance) if isinstance(instances, Mapping) else None
    return found.get("api_key") if isinstance(found, Mapping) else None
