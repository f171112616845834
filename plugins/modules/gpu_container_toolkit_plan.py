#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which packages of NVIDIA's container toolkit a host gets."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_container_toolkit_plan
short_description: Decides which packages of NVIDIA's container toolkit a host gets
version_added: 0.1.0
description:
  - Names the four packages at one version, the repository, and the sources that must go since they define it again.
  - Refuses 1.19.0 (its refresh unit makes an ordering cycle), 1.17.7 (containers lose libraries) and everything before
    1.18 (no refresh unit), a version that is older than the installed one, and a change of packages that somebody else
    holds.
  - Where packages or the repository's address change, asks the repository for its key, its index and the versions that
    are needed, apart from the host's own sources; else nothing is downloaded. Changes nothing.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  version:
    description:
      - Version of all four packages. An empty one keeps the installed version where it is not refused, else takes
        1.20.0.
    type: str
    default: ""
  downgrade:
    description: Whether an installed newer version may be replaced.
    type: bool
    default: false
  state:
    description: Whether the packages shall be there; V(absent) refuses no version.
    type: str
    choices: [present, absent]
    default: present
  repository_url:
    description: Base address of NVIDIA's repository, or of a mirror of it.
    type: str
    default: https://nvidia.github.io/libnvidia-container
  facts:
    description: The facts of the host, RV(socle.inference.gpu_facts#module:gpu_facts).
    type: dict
    required: true
seealso:
  - module: socle.inference.gpu_container_cdi
  - module: socle.inference.gpu_container_check
"""

EXAMPLES = r"""
- name: Choose the packages of the GPU container toolkit
  socle.inference.gpu_container_toolkit_plan:
    facts: "{{ socle_facts.gpu_facts }}"
  register: plan
"""

RETURN = r"""
version:
  description: Version that the packages will have, without the packaging's revision.
  returned: success
  type: str
family:
  description: Kind of package manager, V(debian) or V(redhat).
  returned: success
  type: str
packages:
  description: Version by package, with the packaging's revision.
  returned: success
  type: dict
due:
  description: Whether a package is missing, or has another version or no hold, a source must go, or the repository's
    address is new.
  returned: success
  type: bool
changing:
  description: As RV(due), but without holds; the repository was asked then.
  returned: success
  type: bool
expect:
  description: What the repository must offer, for O(socle.inference.apt_source#module:expect).
  returned: success
  type: dict
replaces:
  description: Files that define the repository elsewhere.
  returned: success
  type: list
  elements: str
repository:
  description: Name of the repository, and folder and key below its base address.
  returned: success
  type: dict
"""

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.ahead import Ahead
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import Holds
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import read_packages
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_plan import family
from ansible_collections.socle.inference.plugins.module_utils._toolkit.toolkit_plan import plan


def ask(argv):
    try:
        done = run(argv)
    except EngineError:
        return None
    return done.returncode, done.stdout, done.stderr


def main() -> None:
    module = AddressModule(
        argument_spec={
            "version": {"type": "str", "default": ""},
            "downgrade": {"type": "bool", "default": False},
            "facts": {"type": "dict", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "repository_url": {"type": "str", "default": "https://nvidia.github.io/libnvidia-container"},
        },
        supports_check_mode=True,
    )
    hide_passwords(module)
    params = module.params
    os = params["facts"].get("os") or {}

    def ahead(repository):
        return Ahead(family(os), repository, params["repository_url"], "gpu_container_toolkit_repository_url")

    holds = Holds(Files())
    try:
        result = plan(
            read_packages(ask, Path("/")),
            os,
            params["version"],
            downgrade=params["downgrade"],
            remove=params["state"] == "absent",
            own_holds=holds.own(),
            lost_holds=holds.lost(),
            moved=lambda repository: ahead(repository).is_outdated(),
        )
        # Found out before the driver, which comes first in a run.
        if result["changing"]:
            ahead(result["repository"]).probe(result["expect"])
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
