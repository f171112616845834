#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: host_checks
short_description: Find what is wrong with a GPU host
version_added: 0.2.0
author:
  - The socle authors (@socle-inference)
description:
  - Compares hardware, driver, container engine and GPU toolkit of a host with what serving needs, and names each known
    failure that can be seen with an id, one sentence and a remedy. All of them are in C(docs/host-checks.md).
  - Fails where a variable of the host has a value that a role of C(provision.yml) would refuse, and names the variable.
  - Reads files and runs a few commands; changes nothing. On a host without an NVIDIA GPU it runs none but
    C(systemctl show).
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.roots.sys_root
  - socle.inference.roots.proc_root
attributes:
  check_mode:
    support: full
    details: Never changes anything; works the same in check mode.
  diff_mode:
    support: none
options:
  facts:
    description: What M(socle.inference.gpu_facts) returned as C(gpu_facts) for this host.
    type: dict
    required: true
  intent:
    description: What the host is meant to be. What is left out is taken from the facts, or not checked.
    type: dict
    default: {}
    suboptions:
      driver_state:
        description: >-
          Whether the driver is to be there; with V(unmanaged) somebody else takes care of it, and nothing is said about
          where it came from and how it is kept; with V(absent) nothing is said about it.
        type: str
        choices: [present, absent, unmanaged]
      driver_branch:
        description: Branch of the driver, such as V(580).
        type: str
      driver_version:
        description: Exact version of the driver.
        type: str
      driver_source:
        description: Where the driver comes from.
        type: str
        choices: [nvidia, distribution]
      driver_flavour:
        description: Flavour of the kernel modules.
        type: str
        choices: [auto, open, proprietary]
      driver_hold:
        description: Whether driver packages are to be held.
        type: bool
      driver_persistence:
        description: Whether persistence is to be on.
        type: bool
      engine:
        description: The container engine that runs the instances.
        type: str
        choices: [auto, podman, docker]
      toolkit_state:
        description: Whether the NVIDIA Container Toolkit is to be there; with V(absent) nothing is said about it.
        type: str
        choices: [present, absent]
      toolkit_version:
        description: Version of the NVIDIA Container Toolkit.
        type: str
      image_cuda:
        description: Version of CUDA that images are made with, such as V(13) or V(12.9).
        type: str
      env:
        description: Environment of the instances.
        type: dict
      class:
        description: The host class, as M(socle.inference.gpu_facts) returns it in C(host_class.class).
        type: dict
      class_problem:
        description: Why the host class could not be told, as M(socle.inference.gpu_facts) returns it.
        type: str
      unknown_variables:
        description: >-
          Variables of the host that no role of the collection has. The action plugin looks for them on the controller
          where this is left out.
        type: list
        elements: dict
        suboptions:
          name:
            description: The variable.
            type: str
            required: true
          nearest:
            description: The variable that may have been meant.
            type: str
  stage:
    description:
      - V(before) checks what must be right before driver, engine and toolkit are installed; nothing that their roles
        put right is an error then.
      - V(after) checks what must be right once they are installed.
      - V(all) checks both.
    type: str
    choices: [before, after, all]
    default: all
  ignore:
    description: Ids of checks to pass over.
    type: list
    elements: str
    default: []
  fail:
    description: Whether findings of severity error fail the module.
    type: bool
    default: true
  root:
    description: Where the other files are read from. Another folder serves for captured trees.
    type: path
    default: /
seealso:
  - module: socle.inference.gpu_facts
"""

EXAMPLES = r"""
- name: Read what the host is
  socle.inference.gpu_facts:
  register: socle_facts

- name: Find what is in the way of the driver
  socle.inference.host_checks:
    facts: "{{ socle_facts.gpu_facts }}"
    stage: before
    intent:
      driver_branch: "580"
      toolkit_version: 1.20.0
      class: "{{ socle_facts.host_class.class }}"

- name: See everything, and do not fail
  socle.inference.host_checks:
    facts: "{{ socle_facts.gpu_facts }}"
    ignore: [SOC-H47]
    fail: false
  register: checked

- name: Show it
  ansible.builtin.debug:
    msg: "{{ checked.findings | socle.inference.host_findings_lines }}"
"""

RETURN = r"""
findings:
  description: What is wrong, errors first.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Id of the check.
      type: str
      sample: SOC-H24
    severity:
      description: V(error) or V(warning).
      type: str
      sample: error
    title:
      description: The check in a few words.
      type: str
      sample: Driver and library do not match
    message:
      description: What was found and what is expected.
      type: str
    remedy:
      description: What to do.
      type: str
    evidence:
      description: The values behind the message.
      type: dict
checked:
  description: Ids of the checks that were made.
  returned: always
  type: list
  elements: str
  sample: [SOC-H01, SOC-H02]
stack:
  description: What software the host has, as the checks saw it.
  returned: always
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import run_limited
from ansible_collections.socle.inference.plugins.module_utils._stack.catalogue import check_host, failure_message

TIMEOUT_S = 20

INTENT = {
    "driver_state": {"type": "str", "choices": ["present", "absent", "unmanaged"]},
    "driver_branch": {"type": "str"},
    "driver_version": {"type": "str"},
    "driver_source": {"type": "str", "choices": ["nvidia", "distribution"]},
    "driver_flavour": {"type": "str", "choices": ["auto", "open", "proprietary"]},
    "driver_hold": {"type": "bool"},
    "driver_persistence": {"type": "bool"},
    "engine": {"type": "str", "choices": ["auto", "podman", "docker"]},
    "toolkit_state": {"type": "str", "choices": ["present", "absent"]},
    "toolkit_version": {"type": "str"},
    "image_cuda": {"type": "str"},
    "env": {"type": "dict"},
    "class": {"type": "dict"},
    "class_problem": {"type": "str"},
    "unknown_variables": {
        "type": "list",
        "elements": "dict",
        "options": {"name": {"type": "str", "required": True}, "nearest": {"type": "str"}},
    },
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "facts": {"type": "dict", "required": True},
            "intent": {"type": "dict", "default": {}, "options": INTENT},
            "stage": {"type": "str", "choices": ["before", "after", "all"], "default": "all"},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "fail": {"type": "bool", "default": True},
            "sys_root": {"type": "path", "default": "/sys"},
            "proc_root": {"type": "path", "default": "/proc"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )

    def run(command):
        path = module.get_bin_path(command[0])
        return None if path is None else run_limited([path, *command[1:]], TIMEOUT_S)

    options = module.params
    roots = [Path(options[name]) for name in ("root", "sys_root", "proc_root")]
    try:
        result = check_host(run, *roots, options["facts"], options["intent"], options["stage"], options["ignore"])
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    message = failure_message(result["findings"]) if options["fail"] else None
    if message is not None:
        module.fail_json(msg=message, **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
