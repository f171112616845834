#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the installed driver the running one, and proves it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_activate
short_description: Makes the installed NVIDIA driver the running one, and proves it
version_added: 0.2.0
description:
  - Compares the loaded module with the one on disk. Where they differ, stops the driver's own units, loads the
    modules anew, starts the units again and has the CDI specification written anew.
  - Where modules cannot be removed because something uses them, or nouveau holds the GPUs, nothing is changed and
    RV(reboot_required) says so. Where processes of somebody else use them, it fails and names them.
  - Then proves that C(nvidia-smi) answers with every GPU of the PCI bus, that all versions are equal, that the
    flavour is right, and on hosts with an NVSwitch that the fabric is configured.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.roots.root
  - socle.inference.roots.sys_root
  - socle.inference.roots.proc_root
attributes:
  check_mode:
    support: full
    details: Proves what already runs; tells what would be loaded, or that a reboot would be needed.
  diff_mode:
    support: none
options:
  state:
    description: >-
      With V(absent) the modules are unloaded, before their packages are removed. With V(unmanaged) the driver is proven
      as it is, and nothing is changed.
    type: str
    choices: [present, absent, unmanaged]
    default: present
  version:
    description: The version that must run; omitted, the versions need only be equal.
    type: str
  flavour:
    description: The flavour that must run.
    type: str
    choices: [open, proprietary]
  module_options:
    description: Parameters that the loaded module must have.
    type: dict
    default: {}
  nvswitch:
    description: Whether the host has an NVSwitch, whose fabric must be configured.
    type: bool
    default: false
  reboot:
    description: >-
      With V(never), a host that needs a reboot fails with the reason. With V(auto) and V(never), one fails where
      processes that are not of O(stopped) use the GPUs; V(force) changes the driver in spite of them.
    type: str
    choices: [auto, never, force]
    default: auto
  stopped:
    description: Units that were stopped before, or in check mode would have been.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Load the driver
  socle.inference.gpu_driver_activate:
    version: 580.178.04
    flavour: open
  register: result

- name: Reboot where the modules cannot be changed while the host runs
  ansible.builtin.reboot:
  when: result.reboot_required
"""

RETURN = r"""
action:
  description: V(none), V(load), V(unload), or V(reboot).
  returned: success
  type: str
reason:
  description: Why, as a clause.
  returned: success
  type: str
reboot_required:
  description: Whether the host must be rebooted for the driver to run.
  returned: success
  type: bool
loaded_version:
  description: The version of the loaded module.
  returned: success
  type: str
gpus:
  description: UUIDs of the GPUs that the driver shows; empty where it was not asked.
  returned: success
  type: list
  elements: str
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._driver.activate import Activator, Expected, Roots
from ansible_collections.socle.inference.plugins.module_utils._driver.runner import host_of
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "unmanaged"], "default": "present"},
            "version": {"type": "str"},
            "flavour": {"type": "str", "choices": ["open", "proprietary"]},
            "module_options": {"type": "dict", "default": {}},
            "nvswitch": {"type": "bool", "default": False},
            "reboot": {"type": "str", "choices": ["auto", "never", "force"], "default": "auto"},
            "stopped": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
            "sys_root": {"type": "path", "default": "/sys"},
            "proc_root": {"type": "path", "default": "/proc"},
        },
        supports_check_mode=True,
    )
    params = module.params
    roots = Roots(*(Path(params[name]) for name in ("root", "sys_root", "proc_root")))
    expected = Expected(
        version=params["version"],
        flavour=params["flavour"],
        options=params["module_options"],
        nvswitch=params["nvswitch"],
        reboot=params["reboot"],
        stopped=tuple(params["stopped"]),
    )
    try:
        activator = Activator(host_of(module).run, roots, time.sleep, time.monotonic)
        if params["state"] == "absent":
            result = activator.unload(module.check_mode)
        elif params["state"] == "unmanaged":
            result = activator.verify(expected)
        else:
            result = activator.activate(expected, module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
