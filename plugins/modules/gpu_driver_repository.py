#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds the package source of the driver, and plans with its index."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_repository
short_description: Adds the package source of the NVIDIA driver and plans with its index
version_added: 0.2.0
description:
  - Writes the source (deb822, with a key of its own in C(/etc/apt/keyrings)), on Debian also one for the components
    that the packages need, and reads the index of these files only. The index of the distribution is read as well
    where it is missing or older than a day.
  - Then plans as M(socle.inference.gpu_driver_plan) does. Where that fails, or the index cannot be read, the files
    are put back as they were.
  - A source of somebody else for the same address is used as it is.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.gpu_driver
  - socle.inference.roots.root
  - socle.inference.roots.sys_root
  - socle.inference.roots.proc_root
attributes:
  check_mode:
    support: partial
    details: >-
      Tells which files would be written. Where the host's package index speaks against a run, or was never read, it
      is read anew aside, and what a run would refuse is refused. Where the source itself is yet to be added, RV(plan)
      stays without exact versions, and a warning says so.
  diff_mode:
    support: full
options:
  key:
    description: The signing key, as ASCII armour or as an address; empty takes the one beside the packages.
    type: str
    default: ""
  remove:
    description: Remove the files that this module wrote, instead of adding any.
    type: bool
    default: false
seealso:
  - module: socle.inference.gpu_driver_plan
"""

EXAMPLES = r"""
- name: Add NVIDIA's repository
  socle.inference.gpu_driver_repository:
    facts: "{{ socle_facts.gpu_facts }}"
    settings:
      branch: "580"
      repository_url: https://mirror.example.org/nvidia/cuda/repos
"""

RETURN = r"""
plan:
  description: As RV(socle.inference.gpu_driver_plan#module:plan), with exact versions.
  returned: when O(remove) is false
  type: dict
summary:
  description: As RV(socle.inference.gpu_driver_plan#module:summary).
  returned: when O(remove) is false
  type: str
files:
  description: Paths that were, or would be, written or removed.
  returned: success
  type: list
  elements: str
"""

import time

from ansible_collections.socle.inference.plugins.module_utils._driver.plan import (
    foresee,
    plan,
    plan_as_is,
    summary,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.runner import ARGUMENTS, host_of, settings_of
from ansible_collections.socle.inference.plugins.module_utils._driver.sources import Sources, diff
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.source import fetch, hide_passwords


def main() -> None:
    module = AddressModule(
        argument_spec={
            **ARGUMENTS,
            "key": {"type": "str", "default": "", "no_log": False},
            "remove": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    hide_passwords(module)
    host, settings, facts = host_of(module), settings_of(module), module.params["facts"]
    try:
        outlook = plan_as_is(host, settings, facts)
        sources = Sources(host.run, host.root, fetch, outlook.repository, time.time)
        if module.params["remove"]:
            files = sources.remove(module.check_mode)
            module.exit_json(changed=bool(files), files=files, diff=diff(sources.former, {}))
        if module.check_mode:
            if outlook.refresh and not outlook.final and not outlook.repository["missing"]:
                outlook = sources.look_ahead(host, lambda aside: plan(aside, settings, facts)) or outlook
            for warning in foresee(outlook):
                module.warn(warning)
            changes = sources.outlook(module.params["key"])
            module.exit_json(
                changed=bool(changes),
                files=list(changes),
                diff=diff(sources.former, changes),
                plan=outlook.as_dict(),
                summary=summary(outlook),
            )
        final, written, warnings = sources.settle(module.params["key"], lambda: plan(host, settings, facts))
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in warnings:
        module.warn(warning)
    module.exit_json(
        changed=bool(written),
        files=written,
        diff=diff(sources.former, sources.present()),
        plan=final.as_dict(),
        summary=summary(final),
    )


if __name__ == "__main__":
    main()
