#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Tell GPUs, links, driver, memory and container engine of a host
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Reads what a host is, for M(socle.inference.vllm_plan), for the roles that install driver and toolkit, and for the
    environment of records.
  - GPUs are found on the PCI bus, so that neither driver nor tools are needed. Where C(nvidia-smi) exists, it adds
    the rest.
  - A C(nvidia-smi) that hangs is given up after a minute, which C(driver.error) then says.
  - On a host without a PCI device of NVIDIA only the container engines are asked for their version; no other command
    is run.
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
  root:
    description: Where the host's other files are looked for, which are kernels, modules and libraries.
    type: path
    default: /
  os_release:
    description: The file that names the operating system.
    type: path
    default: /etc/os-release
  host_class:
    description:
      - The class that the host is meant to be of. Without it, the variable C(host_class), else the inventory group with
        the name of a class, else what the hardware says.
      - A class that the hardware contradicts is no class, see RV(class_problem).
      - Handled by the action plugin on the controller, as O(data_path) and O(require_class) are.
    type: str
  data_path:
    description:
      - Folders with the user's own C(profiles/host_classes/), searched before those of the collection.
      - Without it, the variable C(socle_data_path), else C(site_data/) beside the folder that holds the inventories.
    type: list
    elements: path
  require_class:
    description: Whether to fail when the host is of no known class, instead of saying so in RV(class_problem).
    type: bool
    default: false
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

- name: Read a captured host
  socle.inference.gpu_facts:
    sys_root: /srv/captured/sys
    proc_root: /srv/captured/proc
    root: /srv/captured
    os_release: /srv/captured/etc/os-release

- name: Fail unless every GPU is of the class that the inventory names, or of a known one
  socle.inference.gpu_facts:
    require_class: true
"""

RETURN = r"""
host_class:
  description: The class of the host; null when there is none, as RV(class_problem) then tells.
  returned: always
  type: dict
  contains:
    name:
      description: Name of the class.
      type: str
      sample: a100_sxm4_80g
    count:
      description: GPUs of that class, 0 for a processor.
      type: int
      sample: 2
    origin:
      description: C(hardware), C(variable host_class), or C(group) and the name of the group.
      type: str
      sample: hardware
    warnings:
      description: What differs from the class, each with C(id), C(severity), C(message) and C(remedy).
      type: list
      elements: dict
    class:
      description:
        - What the class says of such hosts, known before there is a driver - C(name), C(kind), C(family),
          C(architecture), C(compute_capability), C(pci_ids), C(products), C(memory_mib), C(link), C(nvlink_expected),
          C(nvswitch), C(fp8), C(fp4), C(peer_to_peer), C(power_default_w) and C(driver) with C(flavour) and
          C(minimum).
      type: dict
class_problem:
  description: Why no class could be found, and the way out; null when there is one.
  returned: always
  type: str
  sample: >-
    gpu-1 has 2 x 10de:beef (NVIDIA Z1), which no host class has; add site_data/profiles/host_classes/NAME.yml with
    name, kind gpu and pci_ids.
gpu_facts:
  description: What the host is. Every key is always there; what is not known is null.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: str
      sample: socle.gpu_facts/2
    host_class:
      description: The host class; C(cpu) when the host has no NVIDIA GPU. Null when no class is known.
      type: str
    kernel:
      description: The running kernel.
      type: str
      sample: 6.12.48+deb13-amd64
    arch:
      description: Machine architecture.
      type: str
      sample: x86_64
    cgroup_version:
      description: 2 for a unified hierarchy, else 1.
      type: int
    cpu:
      description: The processor.
      type: dict
      contains:
        model:
          description: Name of the model.
          type: str
        cores:
          description: Logical processors.
          type: int
    memory_mib:
      description: Memory of the host.
      type: int
    os:
      description: The operating system.
      type: dict
      contains:
        id:
          description: Identifier.
          type: str
          sample: debian
        version_id:
          description: Version.
          type: str
          sample: "13"
        codename:
          description: Code name.
          type: str
          sample: trixie
        id_like:
          description: Identifiers of related systems.
          type: list
          elements: str
    gpus:
      description: NVIDIA GPUs, those that the driver shows first.
      type: list
      elements: dict
      contains:
        index:
          description: Index of the driver; null for a GPU that it does not show or has lost.
          type: int
        uuid:
          description: UUID of the GPU.
          type: str
          sample: GPU-00000000-1111-2222-3333-444444444444
        product:
          description: Product name of the driver.
          type: str
          sample: NVIDIA H200
        pci_bus_id:
          description: PCI address as the kernel spells it.
          type: str
          sample: 0000:00:06.0
        pci_device_id:
          description: PCI vendor and device.
          type: str
          sample: 10de:2335
        pci_subsystem_id:
          description: PCI vendor and device of the board.
          type: str
          sample: 10de:18bf
        memory_mib:
          description: Memory of the GPU.
          type: int
          sample: 143771
        architecture:
          description: Generation in lower case, by the driver.
          type: str
          sample: hopper
        compute_capability:
          description: Compute capability, by the driver.
          type: str
          sample: "9.0"
        bound_driver:
          description: Kernel driver that holds the device, such as C(nvidia), C(nouveau) or C(vfio-pci).
          type: str
          sample: nvidia
        numa_node:
          description: NUMA node; null where the firmware names none.
          type: int
          sample: 0
        on_bus:
          description: Whether the PCI bus shows the GPU.
          type: bool
        by_driver:
          description: Whether C(nvidia-smi) shows the GPU and can still talk to it.
          type: bool
        pcie:
          description: The link to the host, now and at most. An idle GPU lowers its generation.
          type: dict
          contains:
            gen:
              description: PCIe generation now.
              type: int
              sample: 5
            gen_max:
              description: PCIe generation that GPU and slot allow.
              type: int
              sample: 5
            width:
              description: Lanes now.
              type: int
              sample: 16
            width_max:
              description: Lanes that the GPU allows.
              type: int
              sample: 16
        bar1_mib:
          description: Memory that the host can map. At least C(memory_mib) with resizable BAR.
          type: int
          sample: 262144
        memory:
          description: Use of the memory.
          type: dict
          contains:
            reserved_mib:
              description: Kept by driver and ECC.
              type: int
            used_mib:
              description: Used.
              type: int
            free_mib:
              description: Free.
              type: int
        mig:
          description: C(enabled), C(disabled) or null.
          type: str
          sample: disabled
        mig_pending:
          description: The same after the next reset.
          type: str
          sample: disabled
        ecc:
          description: C(enabled), C(disabled) or null.
          type: str
          sample: enabled
        ecc_pending:
          description: The same after the next reset.
          type: str
          sample: enabled
        remapped_pending:
          description: Whether memory rows wait for a reset to be remapped.
          type: bool
        remapped_failure:
          description: Whether memory rows could not be remapped.
          type: bool
        recovery_action:
          description: What the driver asks for, such as C(reset); null when nothing.
          type: str
          sample: reset
        power:
          description: Power limits in watts.
          type: dict
          contains:
            limit_w:
              description: Limit now.
              type: float
              sample: 700.0
            default_w:
              description: Default limit.
              type: float
              sample: 700.0
            min_w:
              description: Lowest limit.
              type: float
              sample: 200.0
            max_w:
              description: Highest limit.
              type: float
              sample: 700.0
        persistence:
          description: Whether persistence is on.
          type: bool
        virtualization:
          description: C(none), C(pass-through), C(vgpu), C(host vgpu) or C(host vsga).
          type: str
          sample: none
        fabric_state:
          description: State of the NVLink fabric in lower case; null where there is none.
          type: str
          sample: completed
        fabric_status:
          description: Its result in lower case.
          type: str
          sample: success
        gsp_version:
          description: Version of the firmware that runs on the GPU.
          type: str
          sample: 580.159.04
        processes:
          description: Processes that hold memory.
          type: list
          elements: dict
          contains:
            pid:
              description: Process.
              type: int
            name:
              description: Program.
              type: str
            memory_mib:
              description: Memory.
              type: int
    nvswitches:
      description: NVSwitches on the PCI bus.
      type: list
      elements: dict
      contains:
        pci_bus_id:
          description: PCI address.
          type: str
          sample: 0000:c1:00.0
        pci_device_id:
          description: PCI vendor and device.
          type: str
          sample: 10de:22a3
    nvlink5:
      description: Whether an InfiniBand bridge manages the NVLink switches, as on B200 and B300 boards.
      type: bool
    links:
      description: How the driver's GPUs are linked, each pair once; empty for a single GPU or when unknown.
      type: list
      elements: dict
      contains:
        a:
          description: PCI address of one GPU.
          type: str
        b:
          description: PCI address of the other.
          type: str
        link:
          description: C(NV) with the number of NVLinks, C(PIX), C(PXB), C(PHB), C(NODE) or C(SYS).
          type: str
          sample: NV12
    driver:
      description: The NVIDIA driver.
      type: dict
      contains:
        version:
          description: Version of the loaded module.
          type: str
          sample: 580.159.04
        flavour:
          description: C(open) or C(proprietary) module.
          type: str
          sample: open
        library_version:
          description: Version of the libraries in user space.
          type: str
          sample: 580.159.04
        disk_version:
          description: Version of the module file for the running kernel.
          type: str
          sample: 580.159.04
        disk_flavour:
          description: Flavour of that file.
          type: str
          sample: open
        next_kernel:
          description: The newest installed kernel, which boots next.
          type: str
        next_disk_version:
          description: Version of the module file for that kernel.
          type: str
          sample: 580.159.04
        cuda_version:
          description: The newest CUDA that the driver serves.
          type: str
          sample: "13.0"
        error:
          description: What C(nvidia-smi) complained about.
          type: str
        nouveau:
          description: Whether the module nouveau is loaded.
          type: bool
    secure_boot:
      description: Whether Secure Boot is on; null when it cannot be read.
      type: bool
    iommu:
      description: The IOMMU.
      type: dict
      contains:
        active:
          description: Whether one is in use.
          type: bool
        passthrough:
          description: Whether it leaves the GPUs' addresses as they are; null when it cannot be told.
          type: bool
    acs_redirects:
      description: >-
        PCI addresses of the bridges above GPUs that send traffic between GPUs up to the root; null when that cannot
        be read.
      type: list
      elements: str
    hypervisor:
      description: Whether the host is a virtual machine, by its processor's flags.
      type: bool
    xids:
      description: >-
        Errors of the driver in the kernel's log since boot, the newest 20 of each code and GPU; null when no log
        can be read.
      type: list
      elements: dict
      contains:
        pci_bus_id:
          description: PCI address of the GPU.
          type: str
        code:
          description: Xid.
          type: int
          sample: 79
        text:
          description: The rest of the line.
          type: str
    engine:
      description: The container engine, Podman before Docker.
      type: dict
      contains:
        name:
          description: C(podman), C(docker) or null.
          type: str
          sample: podman
        version:
          description: Its version.
          type: str
          sample: 5.4.2
    engines:
      description: Versions of both engines.
      type: dict
      contains:
        podman:
          description: Version of Podman.
          type: str
          sample: 5.4.2
        docker:
          description: Version of Docker's client.
          type: str
          sample: 28.2.2
    toolkit:
      description: The NVIDIA Container Toolkit.
      type: dict
      contains:
        version:
          description: Its version.
          type: str
          sample: 1.20.0
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine import podman_config
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import run_limited
from ansible_collections.socle.inference.plugins.module_utils._gpu.gather import gather

NVIDIA_SMI_TIMEOUT_S = 60
"""Without persistence eight GPUs take some 20 s to wake."""

TIMEOUT_S = 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sys_root": {"type": "path", "default": "/sys"},
            "proc_root": {"type": "path", "default": "/proc"},
            "root": {"type": "path", "default": "/"},
            "os_release": {"type": "path", "default": "/etc/os-release"},
            # For the action plugin, which keeps them on the controller.
            "host_class": {"type": "str"},
            "data_path": {"type": "list", "elements": "path"},
            "require_class": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )

    def run(command):
        path = module.get_bin_path(command[0])
        if path is None:
            return None
        return run_limited([path, *command[1:]], NVIDIA_SMI_TIMEOUT_S if command[0] == "nvidia-smi" else TIMEOUT_S)

    roots = [Path(module.params[name]) for name in ("sys_root", "proc_root", "os_release", "root")]
    fault = podman_config.fault(roots[-1]) if module.get_bin_path("podman") else None
    if fault:
        module.warn(f"Podman counts as missing: {fault}, which every Podman would wait for; remove it.")
    module.exit_json(changed=False, gpu_facts=gather(run, *roots))


if __name__ == "__main__":
    main()
