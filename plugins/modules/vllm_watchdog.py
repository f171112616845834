#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the liveness watchdog of an instance, or takes it away."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_watchdog
short_description: Installs the liveness watchdog of an instance
version_added: 0.1.0
description:
  - Brings the watchdog's program to the host, writes its systemd units and the settings of one instance, and starts
    C(socle-watchdog@NAME.service). The program needs the standard library of Python 3.9 or newer only.
  - The watchdog restarts an engine that makes no progress, never one that is slow, and keeps the evidence as a record
    of kind C(incident) before it does so.
  - A watchdog is started anew when its program, its unit or its settings changed, and when it does not run.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: What changes is named in RV(changes).
options:
  instance:
    description: Name of the instance.
    type: str
    required: true
  state:
    description: Whether the instance is watched. The program goes with the last instance that was.
    type: str
    choices: [present, absent]
    default: present
  host:
    description: Name of the host in the inventory, which the records carry; needed unless O(state=absent).
    type: str
  tool_version:
    description: Version that the records name.
    type: str
    default: "0"
  restart:
    description: Whether a stuck engine is restarted; else it is reported only.
    type: bool
    default: true
  restarts_per_hour:
    description: After so many restarts within an hour the watchdog only reports.
    type: int
    default: 3
  interval_s:
    description: Seconds between two looks.
    type: int
    default: 5
  window_s:
    description: Seconds in which nothing must have moved; more where one step of the engine may take longer.
    type: int
    default: 60
  canary_after_s:
    description: Seconds without any movement after which a canary token is asked for.
    type: int
    default: 40
  canary_patience_s:
    description: Seconds that a canary token may take; more where the engine's scheduler cannot be seen.
    type: int
    default: 40
  prefill_floor_tokens_per_s:
    description: No engine of the site reads prompts slower than this.
    type: int
    default: 500
  program_dir:
    description: Folder of the program.
    type: path
    default: /opt/socle/watchdog
  python:
    description: The host's Python that runs it.
    type: path
    default: /usr/bin/python3
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
"""

EXAMPLES = r"""
- name: Watch the instance
  socle.inference.vllm_watchdog:
    instance: chat
    host: "{{ inventory_hostname }}"

- name: Watch it no more
  socle.inference.vllm_watchdog:
    instance: chat
    state: absent
"""

RETURN = r"""
unit:
  description: The watchdog's systemd unit.
  returned: success
  type: str
changes:
  description: What was written, started or removed.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._watchdog.install import Installer
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import from_mapping

SETTINGS = (
    "instance",
    "host",
    "state_dir",
    "tool_version",
    "interval_s",
    "window_s",
    "canary_after_s",
    "canary_patience_s",
    "prefill_floor_tokens_per_s",
    "restart",
    "restarts_per_hour",
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "host": {"type": "str"},
            "tool_version": {"type": "str", "default": "0"},
            "restart": {"type": "bool", "default": True},
            "restarts_per_hour": {"type": "int", "default": 3},
            "interval_s": {"type": "int", "default": 5},
            "window_s": {"type": "int", "default": 60},
            "canary_after_s": {"type": "int", "default": 40},
            "canary_patience_s": {"type": "int", "default": 40},
            "prefill_floor_tokens_per_s": {"type": "int", "default": 500, "no_log": False},
            "program_dir": {"type": "path", "default": "/opt/socle/watchdog"},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
        },
        required_if=[("state", "present", ["host"])],
        supports_check_mode=True,
    )
    params = module.params
    installer = Installer(
        run, Files(), program_dir=Path(params["program_dir"]), python=params["python"], check=module.check_mode
    )
    try:
        if params["state"] == "absent":
            result = installer.absent(params["instance"], Path(params["state_dir"]))
        else:
            result = installer.present(from_mapping({name: params[name] for name in SETTINGS}))
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
