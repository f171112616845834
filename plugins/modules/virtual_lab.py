#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: virtual_lab
short_description: Build and run virtual hosts with systemd, an engine and a model hub on this machine
version_added: 0.1.0
description:
  - Builds an image of a Debian host with systemd, SSH and Podman, an image of vLLM for the CPU and a small language
    model, without any image registry or model hub, and starts the hosts as Podman containers in stores of their own.
  - Works on plain cgroup v2 with all privileges and on version 1 or hybrid trees without C(CAP_SYS_RESOURCE);
    it detects which.
  - What was built is kept below O(directory), keyed by its inputs, and reused.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Returns what would be built, with GiB and minutes.
  diff_mode:
    support: none
options:
  state:
    description:
      - V(present) builds what is missing and starts the hosts, V(absent) removes hosts, hub and network and keeps the
        caches.
    type: str
    choices: [present, absent]
    default: present
  directory:
    description: Folder of the lab's stores and caches.
    type: path
    required: true
  hosts:
    description:
      - The hosts to build. With O(state=absent), the hosts to remove; an empty list removes everything that runs.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Host name.
        type: str
        required: true
      publish:
        description:
          - Ports of 127.0.0.1 on this machine that lead to ports of the host; one of them must lead to port 22.
        type: list
        elements: dict
        default: []
        suboptions:
          host_port:
            description: Port on this machine.
            type: int
            required: true
          port:
            description: Port of the lab host.
            type: int
            required: true
      kind:
        description:
          - V(engine) is Debian 13 with Podman and the shared engine image.
          - V(bare) is Debian 13 and V(bare-bookworm) Debian 12, without a container engine; a reboot brings them back.
        type: str
        choices: [engine, bare, bare-bookworm]
        default: engine
  engine_image:
    description: Name that the engine image gets.
    type: str
    default: localhost/socle/vllm-cpu:0.32.0
  engine_lock:
    description: Requirements file that pins every wheel of the engine image.
    type: path
    required: true
  converter:
    description: Script that makes the model directory; it runs in the engine image.
    type: path
    required: true
  hub_source:
    description: Folder of the hub simulator.
    type: path
    required: true
  pip:
    description: Command that runs pip on this machine, as a list of words.
    type: list
    elements: str
    default: [python3, -m, pip]
  torch_index:
    description: Package index that has the CPU build of torch, asked only when pip's own configuration finds none.
    type: str
    default: https://download.pytorch.org/whl/cpu
  mirror:
    description: Debian mirror; empty for the default of C(mmdebstrap).
    type: str
    default: ""
  subnet:
    description: Addresses of the lab's own bridge network.
    type: str
    default: 10.187.64.0/24
  owner:
    description: Numeric user that owns the lab's SSH key.
    type: int
    default: 0
  group:
    description: Numeric group that owns the lab's SSH key.
    type: int
    default: 0
  progress_path:
    description: Internal; set by the action plugin.
    type: path
author:
  - The socle authors (@socle-inference)
"""

EXAMPLES = r"""
- name: Start one lab host
  socle.inference.virtual_lab:
    directory: /root/.cache/socle/lab
    hosts:
      - name: lab-cpu-1
        publish:
          - {host_port: 2201, port: 22}
          - {host_port: 18000, port: 8000}
    engine_lock: "{{ role_path }}/files/engine-requirements.txt"
    converter: "{{ role_path }}/files/convert_model.py"
    hub_source: "{{ playbook_dir }}/../tests/simulators/hub"
"""

RETURN = r"""
lab:
  description: What was done, or in check mode what would be done.
  returned: success
  type: dict
  sample:
    built: [host image, wheels, engine image, model]
    containers: [create socle-lab-hub, create socle-lab-lab-cpu-1]
    opened: [lab-cpu-1]
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._lab.lab import Lab, Settings
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def run(module):
    params = module.params
    settings = Settings(
        directory=Path(params["directory"]),
        hosts=params["hosts"],
        engine_image=params["engine_image"],
        engine_lock=Path(params["engine_lock"]),
        converter=Path(params["converter"]),
        hub_source=Path(params["hub_source"]),
        pip=params["pip"],
        torch_index=params["torch_index"],
        mirror=params["mirror"],
        subnet=params["subnet"],
        owner=(params["owner"], params["group"]),
    )
    lab = Lab(settings, Progress(params["progress_path"]))
    if params["state"] == "absent":
        if module.check_mode:
            names = sorted(lab.podman.containers())
            return {"changed": bool(names), "lab": {"removed": names}}
        removed = lab.absent([host["name"] for host in params["hosts"]])
        return {"changed": bool(removed), "lab": {"removed": removed}}
    plan = lab.describe()
    if module.check_mode or not plan["pending"]:
        return {"changed": plan["pending"], "lab": plan}
    done = lab.present()
    return {"changed": any(done.values()), "lab": done}


def main():
    port = dict(host_port=dict(type="int", required=True), port=dict(type="int", required=True))
    host = dict(
        name=dict(type="str", required=True),
        publish=dict(type="list", elements="dict", default=[], options=port),
        kind=dict(type="str", choices=["engine", "bare", "bare-bookworm"], default="engine"),
    )
    module = AnsibleModule(
        argument_spec=dict(
            state=dict(type="str", choices=["present", "absent"], default="present"),
            directory=dict(type="path", required=True),
            hosts=dict(type="list", elements="dict", default=[], options=host),
            engine_image=dict(type="str", default="localhost/socle/vllm-cpu:0.32.0"),
            engine_lock=dict(type="path", required=True),
            converter=dict(type="path", required=True),
            hub_source=dict(type="path", required=True),
            pip=dict(type="list", elements="str", default=["python3", "-m", "pip"]),
            torch_index=dict(type="str", default="https://download.pytorch.org/whl/cpu"),
            mirror=dict(type="str", default=""),
            subnet=dict(type="str", default="10.187.64.0/24"),
            owner=dict(type="int", default=0),
            group=dict(type="int", default=0),
            progress_path=dict(type="path"),
        ),
        supports_check_mode=True,
    )
    try:
        module.exit_json(**run(module))
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)


if __name__ == "__main__":
    main()
