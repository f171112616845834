#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the driver's settings."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_files
short_description: Writes the settings of the NVIDIA driver
version_added: 0.2.0
description:
  - Writes files of its own beside those of packages. They keep nouveau away (where no package does), set module
    parameters, load C(nvidia-uvm) at boot, switch persistence on, and keep unattended upgrades off the driver.
  - Enables C(nvidia-persistenced) where its unit can be enabled, and C(nvidia-fabricmanager) where an NVSwitch is;
    disables the latter where none is.
  - Has systemd read its units anew where a unit's file changed, but not while Docker runs containers with NVIDIA's
    legacy hook, which would lose their GPUs; the change then waits for the next boot.
  - Rebuilds the initramfs where a file that it holds changed.
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
  state:
    description: Whether the files shall be there.
    type: str
    choices: [present, absent]
    default: present
  facts:
    description: What the host is, as M(socle.inference.gpu_facts) returns it.
    type: dict
    required: true
  persistence:
    description: Whether the driver stays initialised while nothing uses the GPUs.
    type: bool
    default: true
  module_options:
    description: Parameters of the kernel module, such as V(NVreg_EnableStreamMemOPs).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Write the driver's settings
  socle.inference.gpu_driver_files:
    facts: "{{ socle_facts.gpu_facts }}"
    module_options:
      NVreg_EnableStreamMemOPs: 1
"""

RETURN = r"""
files:
  description: Files that were, or would be, written or removed.
  returned: success
  type: list
  elements: str
units:
  description: What was, or would be, done to units.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._driver.files import Settler, Wishes
from ansible_collections.socle.inference.plugins.module_utils._driver.runner import host_of
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "facts": {"type": "dict", "required": True},
            "persistence": {"type": "bool", "default": True},
            "module_options": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/"},
            "proc_root": {"type": "path", "default": "/proc"},
        },
        supports_check_mode=True,
    )
    params = module.params
    host, facts = host_of(module), params["facts"]
    wishes = Wishes(
        present=params["state"] == "present",
        persistence=params["persistence"],
        options=params["module_options"],
        nvswitch=bool(facts.get("nvswitches")),
        nvlink5=bool(facts.get("nvlink5")),
        deb=(host.root / "etc/apt").is_dir(),
        toolkit=(facts.get("toolkit") or {}).get("version"),
    )
    try:
        result = Settler(host.run, host.root, Files()).settle(wishes, module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
