#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells what a host needs to have the wanted driver."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_plan
short_description: Tells what a host needs to have the wanted NVIDIA driver
version_added: 0.2.0
description:
  - Compares the driver that a host of the Debian or RHEL family has with the wanted one, and names the packages,
    holds, units and the reboot that lie between them. Changes nothing.
  - Refuses, in one sentence and before anything is changed, what cannot work. This is an unknown GPU, the wrong
    module flavour, a version below a floor or one that does not build for the kernel, Secure Boot without a signed
    module, mixed sources, packages held by somebody else, a downgrade, a pin that does not exist, and a transaction
    that apt refuses.
  - Where the package source is not there yet, RV(plan.final) is false and the plan names packages without exact
    versions; M(socle.inference.gpu_driver_repository) adds the source and plans again.
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
    support: full
    details: Never changes anything; works the same in check mode.
  diff_mode:
    support: none
seealso:
  - module: socle.inference.gpu_driver_repository
  - module: socle.inference.gpu_driver_packages
"""

EXAMPLES = r"""
- name: See what the driver needs
  socle.inference.gpu_driver_plan:
    facts: "{{ socle_facts.gpu_facts }}"
    settings:
      branch: "580"
  register: result

- name: Say whether a reboot would be needed
  ansible.builtin.debug:
    msg: "{{ result.summary }}"
"""

RETURN = r"""
plan:
  description: What is to be done.
  returned: success
  type: dict
  contains:
    action:
      description: One of V(none), V(install), V(upgrade), V(switch) (of the flavour), V(complete), V(remove).
      type: str
    version:
      description: The version to have; null where it is not known yet.
      type: str
    installed_version:
      description: The version that is installed.
      type: str
    flavour:
      description: V(open) or V(proprietary).
      type: str
    source:
      description: V(nvidia) or V(distribution).
      type: str
    final:
      description: Whether versions are exact and apt has said that they can be installed.
      type: bool
    refresh:
      description: Whether the package index must be read before the packages change.
      type: bool
    repository:
      description: The files of the package source, and what of them is there.
      type: dict
    pin:
      description: The pinning package.
      type: str
    install:
      description: Packages to install, as C(name=version) where the version matters.
      type: list
      elements: str
    remove:
      description: Packages that go.
      type: list
      elements: str
    unhold:
      description: Packages whose hold, set by the role, is lifted for the change.
      type: list
      elements: str
    hold:
      description: Packages that lack their hold.
      type: list
      elements: str
    hold_also:
      description: Packages of others that are held with the driver.
      type: list
      elements: str
    headers:
      description: Metapackages of kernel headers.
      type: list
      elements: str
    preference:
      description: Preference for apt during the change.
      type: str
    services:
      description: Units that run, use the GPUs, and are stopped for the change.
      type: list
      elements: str
    changed_needed:
      description: Whether packages or holds change.
      type: bool
    reasons:
      description: What was decided, and why.
      type: list
      elements: str
    reboot:
      description: What makes the driver run, with C(action) (V(none), V(load), V(reboot)) and C(reason).
      type: dict
    warnings:
      description: What a person should know although the run goes on.
      type: list
      elements: str
    refused:
      description: >-
        Why a run would be refused by the package index that the host has now; empty where nothing speaks against it.
        A run reads the index anew first.
      type: str
    expected:
      description: Versions of packages that are asked for without one, and of parts that come along, by apt's word.
      type: dict
summary:
  description: One line for a person, with the reason of a reboot if one would be needed.
  returned: success
  type: str
stopped:
  description: >-
    Units that a run stopped and did not come to start again; M(socle.inference.gpu_driver_services) starts them.
  returned: success
  type: list
  elements: str
"""

from ansible_collections.socle.inference.plugins.module_utils._driver.plan import plan_as_is, summary, verification
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_names import is_rpm_system
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_plan import rpm_plan
from ansible_collections.socle.inference.plugins.module_utils._driver.runner import ARGUMENTS, host_of, settings_of
from ansible_collections.socle.inference.plugins.module_utils._driver.services import noted_units
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords


def main() -> None:
    module = AddressModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    hide_passwords(module)
    facts = module.params["facts"]
    settings = settings_of(module)
    make = rpm_plan if is_rpm_system(facts["os"]) else plan_as_is
    host = host_of(module)
    try:
        result = (verification if settings.state == "unmanaged" else make)(host, settings, facts)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in result.warnings:
        module.warn(f"{warning}.")
    module.exit_json(
        changed=False, plan=result.as_dict(), summary=summary(result), stopped=noted_units(Files(), host.root)
    )


if __name__ == "__main__":
    main()
