# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that the modules for package sources have in common."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  name:
    description: Name of the files.
    type: str
    required: true
  uri:
    description: Address of the repository.
    type: str
  key_url:
    description: Address of the signing key, or the key itself as ASCII armour.
    type: str
  replaces:
    description: Files to remove, since they define the same source.
    type: list
    elements: path
    default: []
  expect:
    description: Version by package that the source must offer; an empty one stands for any.
    type: dict
    default: {}
  variable:
    description: The variable that a message names when the address cannot be used.
    type: str
    default: the repository's URL
  state:
    description: Whether the source shall be there.
    type: str
    choices: [present, absent]
    default: present
"""
