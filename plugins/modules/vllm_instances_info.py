#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says which instances a host has."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_instances_info
short_description: Says which instances a host has, and in which state
version_added: 0.1.0
description:
  - Reads the generations of all instances on the host, under whatever container engine, and the state of their units.
    Changes nothing.
  - What cannot be read, such as a half-written or foreign folder, is left out with a warning.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
"""

EXAMPLES = r"""
- name: Look at the instances
  socle.inference.vllm_instances_info:
  register: found
"""

RETURN = r"""
instances:
  description: State by name of the instance.
  returned: success
  type: dict
  contains:
    generation:
      description: Number of the current generation.
      type: int
    status:
      description: V(prepared), V(starting), V(started), V(accepted) or V(failed).
      type: str
    failed_reason:
      description: Why it failed, or null.
      type: str
    accepted_generation:
      description: Number of the accepted generation, or null.
      type: int
    generations:
      description: Numbers of all generations.
      type: list
      elements: int
    launch_fingerprint:
      description: Launch fingerprint of the current generation.
      type: str
    environment_fingerprint:
      description: Environment fingerprint of the current generation.
      type: str
    engine:
      description: Container engine of the current generation, V(podman) or V(docker).
      type: str
    restores:
      description: Number of the generation that the current one brought back, or null.
      type: int
      version_added: 0.2.0
    overrides:
      description:
        - What of the current launch only the run asked for that made it, as C(flags), C(env) and C(image); the next
          deployment takes it back.
      type: dict
      version_added: 0.2.0
    plan:
      description: The sealed plan of the current generation.
      type: dict
    unit_active:
      description: State of the unit in systemd's words, such as V(active), V(activating), V(failed) or V(inactive).
      type: str
    unit_sub:
      description: The finer state, such as V(running) or V(auto-restart).
      type: str
    restarts:
      description: How often systemd restarted it by itself since it was last started.
      type: int
    since:
      description: When the current generation was last started by a launch, in UTC.
      type: str
    active_since_monotonic_us:
      description: Monotonic time at which the unit became active, or null.
      type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.backends import make_backend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._engine.instances import list_instances
from ansible_collections.socle.inference.plugins.module_utils._engine.select import DEFAULT
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


def main() -> None:
    module = AnsibleModule(
        argument_spec={"state_dir": {"type": "path", "default": "/var/lib/socle"}}, supports_check_mode=True
    )
    try:
        instances, warnings = list_instances(
            make_backend(DEFAULT, run), Path(module.params["state_dir"]) / "instances", Files()
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in warnings:
        module.warn(warning)
    module.exit_json(changed=False, instances=instances)


if __name__ == "__main__":
    main()
