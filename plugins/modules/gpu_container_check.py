#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves that containers see the host's GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_container_check
short_description: Proves that a container given all GPUs sees exactly the host's
version_added: 0.1.0
description:
  - Runs C(nvidia-smi -L) in a container with C(--device nvidia.com/gpu=all) and compares the UUIDs with the host's.
  - Needs no registry. The image C(localhost/socle/gpu-check) is made of the host's own shell and C library, once;
    C(nvidia-smi) and the driver's libraries come from the description of the GPUs, as for every container.
  - Runs where driver, toolkit, engine or GPUs changed since the last success. A failure names the real reason behind
    the engine's "unresolvable CDI devices".
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.gpu_container
  - socle.inference.roots.sys_root
attributes:
  check_mode:
    support: full
    details: Tells whether it would run.
  diff_mode:
    support: none
options:
  always:
    description: Whether to run where nothing changed too.
    type: bool
    default: false
  state:
    description: V(absent) forgets the last success and removes the image, and runs nothing.
    type: str
    choices: [present, absent]
    default: present
seealso:
  - module: socle.inference.gpu_container_cdi
"""

EXAMPLES = r"""
- name: Prove that containers see the GPUs
  socle.inference.gpu_container_check:
    engine: podman
    toolkit_version: 1.20.0
"""

RETURN = r"""
ran:
  description: Whether the check ran, or in check mode would.
  returned: success
  type: bool
image:
  description: The image that it ran; null where it did not.
  returned: success
  type: str
uuids:
  description: UUIDs of the host's GPUs and MIG devices.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.gpu_check import ARGUMENTS, GpuCheck
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import engine_version


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "always": {"type": "bool", "default": False},
        },
        required_if=[("state", "present", ("engine", "toolkit_version"))],
        supports_check_mode=True,
    )
    params = module.params
    check = GpuCheck(run, Files(), sys_root=Path(params["sys_root"]), state_dir=Path(params["state_dir"]))
    try:
        if params["state"] == "absent":
            forgotten = check.forget(check=module.check_mode)
            module.exit_json(changed=forgotten, ran=False, image=None, uuids=[])
        version = engine_version(run, params["engine"]) or params["engine_version"] or ""
        outcome = check.run(
            params["engine"],
            version,
            params["toolkit_version"],
            always=params["always"],
            check=module.check_mode,
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=outcome.changed, ran=outcome.ran, image=outcome.image, uuids=outcome.uuids)


if __name__ == "__main__":
    main()
