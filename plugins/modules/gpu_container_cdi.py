#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the description of the GPUs for containers current."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_container_cdi
short_description: Keeps the description of the GPUs for containers (CDI) current
version_added: 0.1.0
description:
  - Enables C(nvidia-cdi-refresh.path) and C(nvidia-cdi-refresh.service), which alone write the description.
  - Sets the flag C(no-additional-gids-for-device-nodes) in C(/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env)
    exactly where the engine would otherwise reject the description (Podman before 5.1, Docker before 26.1, with a
    toolkit from 1.19 on). Other lines and flags of the file stay.
  - Has the description written again where it is missing, was written for another driver, or lacks a GPU or control
    node; then every GPU must be in exactly one description that the engine can read, by index and by UUID.
  - After that, moves what earlier set-ups left, C(/etc/cdi/nvidia.yaml) and Podman's C(oci-nvidia-hook.json), to
    C(gpu_container_toolkit/put_aside) in O(state_dir).
  - Never reloads systemd, restarts no engine and touches no container.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.gpu_container
  - socle.inference.roots.sys_root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  state:
    description: Whether the GPUs shall be described. V(absent) turns the units off and removes what they wrote.
    type: str
    choices: [present, absent]
    default: present
seealso:
  - module: socle.inference.gpu_container_check
"""

EXAMPLES = r"""
- name: Describe the GPUs for Podman
  socle.inference.gpu_container_cdi:
    engine: podman
    toolkit_version: 1.20.0
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, as words.
  returned: success
  type: list
  elements: str
specs:
  description: Paths of the files that describe GPUs.
  returned: success
  type: list
  elements: str
proof_due:
  description: Whether something changed since M(socle.inference.gpu_container_check) succeeded.
  returned: success
  type: bool
devices:
  description: Names of the devices that they describe.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.gpu_check import ARGUMENTS, GpuCheck
from ansible_collections.socle.inference.plugins.module_utils._toolkit.refresh import CdiRefresh
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import engine_version


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
        },
        required_if=[("state", "present", ("engine", "toolkit_version"))],
        supports_check_mode=True,
    )
    params = module.params
    sys_root = Path(params["sys_root"])
    state_dir = Path(params["state_dir"])
    refresh = CdiRefresh(run, Files(), sys_root=sys_root, state_dir=state_dir)
    check = GpuCheck(run, Files(), sys_root=sys_root, state_dir=state_dir)
    due = False
    try:
        if params["state"] == "absent":
            outcome = refresh.absent(check=module.check_mode)
        else:
            version = engine_version(run, params["engine"]) or params["engine_version"] or ""
            outcome = refresh.present(params["engine"], version, params["toolkit_version"], check=module.check_mode)
            due = check.is_due(params["engine"], version, params["toolkit_version"], outcome.uuids)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in outcome.warnings:
        module.warn(warning)
    result = {
        "changed": outcome.changed,
        "actions": outcome.actions,
        "specs": outcome.specs,
        "devices": outcome.devices,
        "proof_due": due,
    }
    if module._diff:
        result["diff"] = [
            {"before_header": path, "after_header": path, "before": before, "after": after}
            for path, before, after in outcome.diffs
        ] + [{"prepared": "".join(f"{action}\n" for action in outcome.actions)}]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
