#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out a plan for the driver's packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_packages
short_description: Carries out a plan for the packages of the NVIDIA driver
version_added: 0.2.0
description:
  - Downloads all packages first, lifts the holds that the role set, installs the pinning package and then the rest,
    and holds again.
  - Where anything fails, the packages are put back as they were and held again. A module that DKMS could not build
    is named with the compiler's first error and what to do.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.roots.root
  - socle.inference.roots.proc_root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  plan:
    description: What M(socle.inference.gpu_driver_plan) or M(socle.inference.gpu_driver_repository) returned.
    type: dict
    required: true
  hold:
    description: Whether the packages are held.
    type: bool
    default: true
seealso:
  - module: socle.inference.gpu_driver_plan
"""

EXAMPLES = r"""
- name: Install or change the driver
  socle.inference.gpu_driver_packages:
    plan: "{{ result.plan }}"
"""

RETURN = r"""
version:
  description: The version that is installed.
  returned: success
  type: str
held:
  description: Packages that the role holds.
  returned: success
  type: list
  elements: str
build_log:
  description: The lines around the compiler's first error.
  returned: when a module could not be built
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_transaction import RpmTransaction
from ansible_collections.socle.inference.plugins.module_utils._driver.runner import host_of
from ansible_collections.socle.inference.plugins.module_utils._driver.transaction import Transaction
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "hold": {"type": "bool", "default": True},
            "root": {"type": "path", "default": "/"},
            "proc_root": {"type": "path", "default": "/proc"},
        },
        supports_check_mode=True,
    )
    host = host_of(module)
    kernel = host.read(host.proc_root / "sys/kernel/osrelease").strip()
    plan = module.params["plan"]
    carrier = RpmTransaction if plan.get("family") == "redhat" else Transaction
    transaction = carrier(host, plan, kernel, module.params["hold"], Files())
    try:
        result = transaction.carry_out(module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
