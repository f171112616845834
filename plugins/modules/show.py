#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print lines on the terminal as they are
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Prints a table or a plan without the quotes and line breaks that M(ansible.builtin.debug) adds.
  - Runs on the controller only; the host is not contacted.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Prints in check mode as well.
  diff_mode:
    support: none
options:
  lines:
    description: The lines to print.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Show what would run
  socle.inference.show:
    lines: "{{ planned.plans.chat | socle.inference.plan_table }}"
"""

RETURN = r"""
lines:
  description: The lines that were printed.
  returned: success
  type: list
  elements: str
"""
