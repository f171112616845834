#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings packages to exact versions in one transaction of DNF."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dnf_exact
short_description: Brings packages of DNF to exact versions in one transaction, and locks them
version_added: 0.2.0
description:
  - The transaction is tried first, then downloaded, then carried out. A conflict or a broken download changes nothing.
  - Holds are version locks. A version may be given with or without its release.
  - Nothing else is removed for it. A lock that was set here gives way, that of anybody else does not.
  - Unlike M(ansible.builtin.dnf), refuses to go back to an older version, which DNF does without a word.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.exact_packages
attributes:
  check_mode:
    support: full
    details: The transaction is tried.
  diff_mode:
    support: full
options:
  lock:
    description: Patterns of installed packages that are locked with them.
    type: list
    elements: str
    default: []
  module:
    description: DNF module whose O(stream) is enabled first.
    type: str
    default: ""
  stream:
    description: Stream of O(module); none is touched when omitted.
    type: str
  replaces:
    description: Packages that may go, since they conflict with those that come.
    type: list
    elements: str
    default: []
seealso:
  - module: socle.inference.dnf_source
  - module: socle.inference.apt_exact
"""

EXAMPLES = r"""
- name: Install the base of the GPU container toolkit at one version and lock it
  socle.inference.dnf_exact:
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
  sample: ["install nvidia-container-toolkit-base 1.20.0-1", "lock nvidia-container-toolkit-base"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import run_command
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_exact import Exact, Request
from ansible_collections.socle.inference.plugins.module_utils._packages.exact import ARGUMENTS
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import Holds


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "lock": {"type": "list", "elements": "str", "default": []},
            "module": {"type": "str", "default": ""},
            "stream": {"type": "str"},
            "replaces": {"type": "list", "elements": "str", "default": []},
        },
        required_by={"stream": ("module",)},
        supports_check_mode=True,
    )
    params = module.params
    exact = Exact(run_command, Files(), holds=Holds(Files()))
    try:
        if params["state"] == "absent":
            outcome = exact.remove(list(params["packages"]), check=module.check_mode)
        else:
            request = Request(
                packages={name: str(version or "") for name, version in params["packages"].items()},
                hold=params["hold"],
                lock=tuple(params["lock"]),
                downgrade=params["downgrade"],
                module=params["module"],
                stream=params["stream"],
                replaces=tuple(params["replaces"]),
            )
            outcome = exact.install(request, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**outcome.as_result(module._diff, params["subject"]))


if __name__ == "__main__":
    main()
