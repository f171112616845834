#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Tell GPUs, driver, memory and container engine of a host
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Reads what a host is, for M(socle.inference.vllm_plan) and for the environment of records.
  - GPUs are found on the PCI bus, so that neither driver nor tools are needed. Where C(nvidia-smi) exists, it adds
    index, UUID, product and memory.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Never changes anything; works the same in check mode.
  diff_mode:
    support: none
options:
  sys_root:
    description: Where sysfs is mounted. Another folder serves for captured trees.
    type: path
    default: /sys
  proc_root:
    description: Where procfs is mounted. Another folder serves for captured trees.
    type: path
    default: /proc
  os_release:
    description: The file that names the operating system.
    type: path
    default: /etc/os-release
seealso:
  - module: socle.inference.vllm_plan
"""

EXAMPLES = r"""
- name: Read what the host is
  socle.inference.gpu_facts:
  register: gpu_facts_result

- name: Show its GPUs
  ansible.builtin.debug:
    msg: "{{ gpu_facts_result.gpu_facts.gpus | map(attribute='product') }}"
"""

RETURN = r"""
gpu_facts:
  description: What the host is. What is not known is null.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: str
      sample: socle.gpu_facts/1
    host_class:
      description: C(cpu) when the host has no NVIDIA GPU, else null.
      type: str
    gpus:
      description: NVIDIA GPUs, those that the driver shows first.
      type: list
      elements: dict
      contains:
        index:
          description: Index of the driver, null for a GPU that it does not show.
          type: int
        uuid:
          description: UUID of the GPU.
          type: str
          sample: GPU-00000000-1111-2222-3333-444444444444
        pci_bus_id:
          description: PCI address as the kernel spells it.
          type: str
          sample: 0000:00:06.0
        product:
          description: Product name.
          type: str
          sample: NVIDIA H200
        pci_device_id:
          description: PCI vendor and device.
          type: str
          sample: 10de:2335
        memory_mib:
          description: Memory of the GPU.
          type: int
          sample: 143771
    driver:
      description: The loaded NVIDIA driver, with C(version), and C(error) with what C(nvidia-smi) complained about.
      type: dict
    cpu:
      description: The processor, with C(model) and the number of logical C(cores).
      type: dict
    memory_mib:
      description: Memory of the host.
      type: int
    kernel:
      description: The running kernel.
      type: str
    os:
      description: The operating system, with C(id) and C(version_id).
      type: dict
    engine:
      description: The container engine, with C(name) (C(podman), C(docker) or null) and C(version).
      type: dict
    cgroup_version:
      description: 2 for a unified hierarchy, else 1.
      type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._gpu.gather import gather


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sys_root": {"type": "path", "default": "/sys"},
            "proc_root": {"type": "path", "default": "/proc"},
            "os_release": {"type": "path", "default": "/etc/os-release"},
        },
        supports_check_mode=True,
    )

    def run(command):
        path = module.get_bin_path(command[0])
        if path is None:
            return None
        code, stdout, stderr = module.run_command([path, *command[1:]])
        return code, stdout or stderr

    facts = gather(
        run, Path(module.params["sys_root"]), Path(module.params["proc_root"]), Path(module.params["os_release"])
    )
    module.exit_json(changed=False, gpu_facts=facts)


if __name__ == "__main__":
    main()
