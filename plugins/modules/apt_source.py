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
  - Looks at files only, and downloads nothing, where source and lists are as they should be.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: The source is tried in check mode too.
  diff_mode:
    support: full
options:
  name:
    description: Name of the files.
    type: str
    required: true
  uri:
    description: Address of the repository.
    type: str
  suites:
    description: Suite, or V(/) for a flat repository.
    type: str
    default: /
  components:
    description: Components, with spaces between them.
    type: str
    default: ""
  key_url:
    description: Address of the signing key, armoured or binary.
    type: str
  replaces:
    description: Files to remove, since they define the same source with another key, which apt refuses.
    type: list
    elements: path
    default: []
  expect:
    description: Version by package that the source must offer; an empty one or V(newest) stands for any.
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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.apt_source import AptSource, Source


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "uri": {"type": "str"},
            "suites": {"type": "str", "default": "/"},
            "components": {"type": "str", "default": ""},
            # Not a secret, whatever its name makes Ansible think.
            "key_url": {"type": "str", "no_log": False},
            "replaces": {"type": "list", "elements": "path", "default": []},
            "expect": {"type": "dict", "default": {}},
            "variable": {"type": "str", "default": "the repository's URL"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ("uri", "key_url"))],
        supports_check_mode=True,
    )
    params = module.params
    source = Source(
        name=params["name"],
        uri=params["uri"] or "",
        key_url=params["key_url"] or "",
        suites=params["suites"],
        components=params["components"],
        replaces=params["replaces"],
        expect=params["expect"],
        variable=params["variable"],
    )
    sources = AptSource(run, Files())
    try:
        bring = sources.present if params["state"] == "present" else sources.absent
        result = bring(source, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    before, after = result.pop("before"), result.pop("after")
    if module._diff:
        header = result["path"]
        result["diff"] = [{"before_header": header, "after_header": header, "before": before, "after": after}]
        result["diff"] += [{"prepared": f"removed {path}\n"} for path in result["removed"]]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
