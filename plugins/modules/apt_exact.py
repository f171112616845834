#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings packages to exact versions in one transaction."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_exact
short_description: Brings packages of apt to exact versions in one transaction, and holds them
version_added: 0.1.0
description:
  - The transaction is simulated first, then downloaded, then installed. A conflict or a broken download changes
    nothing.
  - Nothing else is removed for it, recommended packages are not installed, and configuration files of the user stay.
  - Held packages are changed where their version is named here; that is what the hold protects from others.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: The transaction is simulated.
  diff_mode:
    support: full
options:
  packages:
    description:
      - Version by package. An empty one takes what is installed, else the candidate; V(newest) always the candidate.
    type: dict
    required: true
  hold:
    description: Whether upgrades by others shall leave the packages alone; left as it is when omitted.
    type: bool
  downgrade:
    description: Whether a package may become older.
    type: bool
    default: false
  source_pending:
    description:
      - For check mode only. Whether M(socle.inference.apt_source) found the packages on offer in a source that is not
        written yet, so that the transaction cannot be simulated.
    type: bool
    default: false
  state:
    description: Whether the packages shall be there. V(absent) also removes their configuration files and holds.
    type: str
    choices: [present, absent]
    default: present
seealso:
  - module: ansible.builtin.apt
  - module: socle.inference.apt_source
"""

EXAMPLES = r"""
- name: Install the base of the GPU container toolkit at one version and hold it
  socle.inference.apt_exact:
    packages:
      nvidia-container-toolkit-base: 1.20.0-1
    hold: true
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be, as words.
  returned: success
  type: list
  elements: str
  sample: ["install nvidia-container-toolkit-base=1.20.0-1", "hold nvidia-container-toolkit-base"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.apt import Wanted, install, remove


def lines(states: dict) -> str:
    return "".join(f"{name} {state}\n" for name, state in sorted(states.items()))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "hold": {"type": "bool"},
            "downgrade": {"type": "bool", "default": False},
            "source_pending": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        if params["state"] == "absent":
            outcome = remove(run, list(params["packages"]), check=module.check_mode)
        else:
            wanted = Wanted(params["packages"], params["hold"], params["downgrade"], params["source_pending"])
            outcome = install(run, wanted, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    result = outcome.as_result()
    if module._diff:
        result["diff"] = {"before": lines(outcome.before), "after": lines(outcome.after)}
    module.exit_json(**result)


if __name__ == "__main__":
    main()
