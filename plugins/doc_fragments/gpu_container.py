# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that the modules for GPUs in containers have in common."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  engine:
    description: The container engine in use; needed for O(state=present).
    type: str
    choices: [podman, docker]
  engine_version:
    description: Version of the engine where it is not installed yet, as in check mode.
    type: str
  toolkit_version:
    description: Version of the toolkit; needed for O(state=present).
    type: str
  state_dir:
    description: Folder of socle's state on the host, where M(socle.inference.gpu_container_check) notes its success.
    type: path
    default: /var/lib/socle
"""
