#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds a package source of DNF after it was tried."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dnf_source
short_description: Adds a package source of DNF after it was tried
version_added: 0.2.0
description:
  - Writes C(/etc/yum.repos.d/NAME.repo) and the signing key C(/etc/pki/rpm-gpg/RPM-GPG-KEY-NAME).
    O(name) is also the repository's id.
  - DNF replaces its own variables in O(uri), such as C($basearch).
  - Before anything is written, the source is read apart from the host's own ones, and must offer O(expect). An address
    that cannot be reached, a wrong key or a version that is not there changes nothing.
  - Looks at files only, and downloads nothing, where they are as they should be.
  - Where O(uri) has a password, only root may read the file, and users without root do without the source.
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
  signed:
    description: What the key signs; V(metadata) is the index, which has the checksums of the packages.
    type: str
    choices: [packages, metadata]
    default: packages
seealso:
  - module: socle.inference.dnf_exact
  - module: socle.inference.apt_source
"""

EXAMPLES = r"""
- name: Add the repository of the GPU container toolkit
  socle.inference.dnf_source:
    name: nvidia-container-toolkit
    uri: https://nvidia.github.io/libnvidia-container/stable/rpm/$basearch
    key_url: https://nvidia.github.io/libnvidia-container/gpgkey
    signed: metadata
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

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import run_command
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import DnfRepository, DnfSource
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
            "signed": {"type": "str", "choices": ["packages", "metadata"], "default": "packages"},
        },
        required_if=[("state", "present", ("uri", "key_url"))],
        supports_check_mode=True,
    )
    hide_passwords(module)
    source = DnfRepository(**fields(module.params), signed=module.params["signed"])
    sources = DnfSource(run_command, Files())
    try:
        bring = sources.present if module.params["state"] == "present" else sources.absent
        result = bring(source, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**as_result(result, module._diff))


if __name__ == "__main__":
    main()
