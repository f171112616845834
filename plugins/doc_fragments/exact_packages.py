# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that the modules for exact packages have in common."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  packages:
    description:
      - Version by package; an empty one takes what is installed, else the newest on offer.
    type: dict
    required: true
  hold:
    description:
      - Whether upgrades by others shall leave the packages alone; left as it is when omitted.
      - Holds that are set here are noted in C(/var/lib/socle/package_holds.json); no other is ever released.
    type: bool
  downgrade:
    description: Whether a package may become older.
    type: bool
    default: false
  state:
    description: Whether the packages shall be there. V(absent) also removes the holds that were set here.
    type: str
    choices: [present, absent]
    default: present
  subject:
    description: What the packages are of, in one word, for the heading of the diff.
    type: str
    default: ""
"""
