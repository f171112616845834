# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E402  # A plugin's imports follow its documentation blocks, by Ansible's rule.

from __future__ import annotations

DOCUMENTATION = r"""
name: records
short_description: What the records say about the hosts of an inventory
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Reads the records in C(.socle/records) of the inventory's folder and gives each host that the inventory already has
    the variable C(socle_state), what is known of its instances; and the groups C(accepted), C(unaccepted), C(drifted).
  - C(socle_state.instances.<name>) has C(accepted), C(accepted_at), C(verdict), C(fingerprint), C(generation),
    C(acceptance) (C(passed), C(failed), C(skipped), C(failed_checks)), C(benchmark) by workload, C(capacity),
    C(environment) and C(drift), a list of C(item), C(expected), C(found).
  - Each host also has C(socle_calibrations), what starts taught about the memory of GPUs, its own first, for
    M(socle.inference.vllm_plan).
  - An instance is accepted when the newest acceptance of the launch that was deployed last is good. A host is in
    C(accepted) when all of its instances are, in C(unaccepted) when one is not, and in neither without records.
  - It creates no host. Measured values are data, and never templates.
  - It warns of a file in C(group_vars) or C(host_vars) beside it that is not valid YAML, with the file's name and the
    line, which Ansible's own error lacks.
  - Its file must come last in the inventory's folder, by its name, so that the hosts are known. Files named
    C(records.yml), C(*_records.yml) and C(*.socle.yml) are accepted.
options:
  plugin:
    description: Marks the file as one for this plugin.
    required: true
    choices: [socle.inference.records]
  newest:
    description: How many records of each kind are read for an instance.
    type: int
    default: 50
"""

EXAMPLES = r"""
# inventories/site/zz_records.yml
plugin: socle.inference.records
"""

from pathlib import Path
from typing import Any

from ansible.plugins.inventory import BaseInventoryPlugin
from ansible_collections.socle.inference.plugins.module_utils._records.controller import STATE_FOLDER, records_root
from ansible_collections.socle.inference.plugins.module_utils._records.files import read_tree, summarise
from ansible_collections.socle.inference.plugins.module_utils._records.state import (
    calibrations_of,
    distinct_calibrations,
    groups_of,
    host_state,
)
from ansible_collections.socle.inference.plugins.plugin_utils.variable_files import faults

GROUPS = ("accepted", "unaccepted", "drifted")
ENDINGS = ("_records.yml", "_records.yaml", ".socle.yml", ".socle.yaml")


class InventoryModule(BaseInventoryPlugin):
    NAME = "socle.inference.records"

    def verify_file(self, path: str) -> bool:
        name = Path(path).name
        named = name in ("records.yml", "records.yaml") or name.endswith(ENDINGS)
        return named and bool(super().verify_file(path))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        for group in GROUPS:
            inventory.add_group(group)
        for fault in faults(Path(path).parent, {*inventory.hosts, *inventory.groups}):
            # Not an error, which would have every other inventory plugin try this file, and complain.
            self.display.warning(fault)
        # The rule by which record and records_collect choose the folder, so that both ends agree.
        hosts_of: dict[Path, list[str]] = {Path(path).parent / STATE_FOLDER / "records": []}
        for name, host in inventory.hosts.items():
            root = records_root(host.vars.get("inventory_dir"))
            if root is not None:
                hosts_of.setdefault(root, []).append(name)
        measured: dict[str, list[dict[str, Any]]] = {}
        for root, hosts in hosts_of.items():
            tree, skipped = read_tree(root, hosts, newest=self.get_option("newest"))
            for name, records in sorted(tree.items()):
                state = host_state(records)
                inventory.set_variable(name, "socle_state", state)
                measured[name] = calibrations_of(records)
                for group in groups_of(state):
                    inventory.add_child(group, name)
            warning = summarise(skipped, str(root))
            if warning:
                self.display.warning(warning)
        shared = distinct_calibrations(content for own in measured.values() for content in own)
        inventory.set_variable("all", "socle_calibrations", shared)
        for name, own in measured.items():
            if own:
                inventory.set_variable(name, "socle_calibrations", distinct_calibrations([*own, *shared]))
