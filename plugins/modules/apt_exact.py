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
  - For O(packages), V(newest) as a version is always the candidate.
  - With O(state=absent), configuration files go too.
  - A package that this module holds is changed where its version is named here. One that somebody else holds is not,
    also not as a dependency; that is refused.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.exact_packages
attributes:
  check_mode:
    support: full
    details: The transaction is simulated.
  diff_mode:
    support: full
options:
  source_pending:
    description:
      - For check mode only. Whether M(socle.inference.apt_source) found the packages on offer in a source that is not
        written yet, so that the transaction cannot be simulated.
    type: bool
    default: false
  offered:
    description:
      - For check mode only. Versions on offer by package, as somebody found them who read the package lists, for a host
        that has none itself.
    type: dict
    default: {}
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
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_exact import Wanted, install, remove
from ansible_collections.socle.inference.plugins.module_utils._packages.exact import ARGUMENTS
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import Holds


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "source_pending": {"type": "bool", "default": False},
            "offered": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    params = module.params
    holds = Holds(Files())
    try:
        if params["state"] == "absent":
            outcome = remove(run, list(params["packages"]), holds, check=module.check_mode)
        else:
            wanted = Wanted(
                params["packages"], params["hold"], params["downgrade"], params["source_pending"], params["offered"]
            )
            outcome = install(run, wanted, holds, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**outcome.as_result(module._diff, params["subject"]))


if __name__ == "__main__":
    main()
