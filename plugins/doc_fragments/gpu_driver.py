# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that the modules of role gpu_driver have in common."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  facts:
    description: What the host is, as M(socle.inference.gpu_facts) returns it.
    type: dict
    required: true
  settings:
    description: What the host shall have. The role C(gpu_driver) documents the variables of the same names.
    type: dict
    default: {}
    suboptions:
      state:
        description: >-
          Whether the driver shall be installed; V(unmanaged) only compares the one that runs with what is needed.
        type: str
        choices: [present, absent, unmanaged]
        default: present
      source:
        description: NVIDIA's repository, or the packages of the distribution.
        type: str
        choices: [nvidia, distribution]
        default: nvidia
      branch:
        description: The first number of the version; empty keeps the one that is installed, else takes 580.
        type: str
        default: ""
      version:
        description: The exact version; empty takes the newest of the branch, and then keeps what is installed.
        type: str
        default: ""
      flavour:
        description: Which kernel modules; V(auto) chooses by the generation of the GPUs.
        type: str
        choices: [auto, open, proprietary]
        default: auto
      architecture:
        description: Generation of the GPUs, where neither driver nor host class tells it.
        type: str
        default: ""
      minimum:
        description: The oldest version or branch that the host class works with.
        type: str
        default: ""
      cuda:
        description: Major version of CUDA in the images that the host is to run; empty for no floor.
        type: str
        default: "13"
      compute_only:
        description: Whether to leave out everything for displays.
        type: bool
        default: true
      upgrade:
        description: >-
          Whether to take the newest version of the branch although one is installed; without O(settings.version) only.
        type: bool
        default: false
      hold:
        description: Whether the packages are held.
        type: bool
        default: true
      repository_url:
        description: The folder that holds the repositories of all distributions.
        type: str
        default: https://developer.download.nvidia.com/compute/cuda/repos
      services:
        description: Units that use the GPUs; empty takes the instances that run.
        type: list
        elements: str
        default: []
      reboot:
        description: >-
          Whether a reboot may come; V(force) also changes the driver under what somebody else runs on the GPUs.
        type: str
        choices: [auto, never, force]
        default: auto
      module_options:
        description: Parameters of the kernel module.
        type: dict
        default: {}
      persistence:
        description: Whether the driver stays initialised while nothing uses the GPUs.
        type: bool
        default: true
"""
