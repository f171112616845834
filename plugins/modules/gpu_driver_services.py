#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stops units around a change of the driver, and starts them again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_services
short_description: Stops units around a change of the NVIDIA driver, and starts them again
version_added: 0.2.0
description:
  - Notes on the host which units it stops, before it does, in C(/var/lib/socle/gpu_driver_stopped.json). So a later
    run starts them where the one that stopped them did not come to its end.
  - M(socle.inference.gpu_driver_plan) returns what is noted as RV(socle.inference.gpu_driver_plan#module:stopped).
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.roots.root
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  state:
    description:
      - With V(stopped), O(units) are noted and stopped.
      - With V(started), all that is noted is started without waiting, and the note is cleared. Units that are gone or
        masked meanwhile are passed over.
      - With V(forgotten), the note is cleared and nothing is started, as where the driver was removed.
    type: str
    choices: [stopped, started, forgotten]
    required: true
  units:
    description: Units to stop, with their suffix; only with O(state=stopped).
    type: list
    elements: str
    default: []
seealso:
  - module: socle.inference.gpu_driver_plan
"""

EXAMPLES = r"""
- name: Stop what uses the GPUs
  socle.inference.gpu_driver_services:
    state: stopped
    units: [vllm-chat.service]

- name: Start again what was stopped
  socle.inference.gpu_driver_services:
    state: started
"""

RETURN = r"""
units:
  description: Units that were, or in check mode would be, stopped or started.
  returned: success
  type: list
  elements: str
gone:
  description: Units that were noted and cannot be started, since they are gone or masked.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._driver.services import Services
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["stopped", "started", "forgotten"], "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params = module.params
    services = Services(run, Files(), Path(params["root"]))
    try:
        if params["state"] == "stopped":
            result = services.stop(params["units"], check=module.check_mode)
        elif params["state"] == "started":
            result = services.start(check=module.check_mode)
        else:
            result = services.forget(check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for unit in result["gone"]:
        module.warn(f"{unit} was stopped for a change of the driver and is not started again: it is gone or masked.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
