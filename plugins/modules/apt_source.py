#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds a package source after it was tried."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_source
short_description: Adds a package source of apt after it was tried
version_added: 0.1.0
description:
  - Writes C(/etc/apt/sources.list.d/NAME.sources) and the signing key C(/etc/apt/keyrings/NAME.asc), and reads the
    source's lists.
  - Before anything is written, the source is read apart from the host's own ones, and must offer O(expect). An address
    that cannot be reached, a wrong key or a version that is not there changes nothing.
  - For O(expect), V(newest) as a version stands for any.
  - Looks at files only, and downloads nothing, where source and lists are as they should be.
  - User and password in O(uri) go to C(/etc/apt/auth.conf.d/socle-NAME.conf), which only root may read.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.package_source
attributes:
  check_mode:
    support: full
    details: The source is tried in check mode too.
  diff_mode:
    support: full
options:
  suites:
    description: Suite, or V(/) for a flat repository.
    type: str
    default: /
  components:
    description: Components, with spaces between them.
    type: str
    default: ""
seealso:
  - module: socle.inference.apt_exact
"""

EXAMPLES = r"""
- name: Add the repository of the GPU container toolkit
  socle.inference.apt_source:
    name: nvidia-container-toolkit
    uri: https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)
    key_url: https://nvidia.github.io/libnvidia-container/gpgkey
    expect:
      nvidia-container-toolkit: 1.20.0-1
"""

RETURN = r"""
path:
  description: The source's file.
  returned: success
  type: str
removed:
  description: Files that were removed.
  returned: success
  type: list
  elements: str
"""

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_source import AptRepository, AptSource
from ansible_collections.socle.inference.plugins.module_utils._packages.source import (
    ARGUMENTS,
    as_result,
    fields,
    hide_passwords,
)


def main() -> None:
    module = AddressModule(
        argument_spec={
            **ARGUMENTS,
            "suites": {"type": "str", "default": "/"},
            "components": {"type": "str", "default": ""},
        },
        required_if=[("state", "present", ("uri", "key_url"))],
        supports_check_mode=True,
    )
    hide_passwords(module)
    params = module.params
    source = AptRepository(**fields(params), suites=params["suites"], components=params["components"])
    sources = AptSource(run, Files())
    try:
        bring = sources.present if params["state"] == "present" else sources.absent
        result = bring(source, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**as_result(result, module._diff))


if __name__ == "__main__":
    main()
