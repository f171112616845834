# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where modules read a host's files; each option is a fragment of its own, such as roots.sys_root."""

from __future__ import annotations


class ModuleDocFragment:
    ROOT = r"""
options:
  root:
    description: Where the host's files are; another folder serves for tests.
    type: path
    default: /
"""
    SYS_ROOT = r"""
options:
  sys_root:
    description: Where sysfs is mounted. Another folder serves for captured trees.
    type: path
    default: /sys
"""
    PROC_ROOT = r"""
options:
  proc_root:
    description: Where procfs is mounted. Another folder serves for captured trees.
    type: path
    default: /proc
"""
