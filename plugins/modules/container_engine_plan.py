#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides which container engine a host gets, and from where."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_engine_plan
short_description: Decides which container engine a host gets, and from where
version_added: 0.1.0
description:
  - Keeps an engine that is installed and new enough. Else takes Podman of the distribution from 4.6 on, else Docker of
    the distribution (25 or newer where containers get GPUs), else fails in one sentence with the way out.
  - Changes nothing but apt's package lists, and these only on a host that never read them. In check mode they are read
    into a temporary folder.
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
  engine:
    description: The engine that is wanted; V(auto) takes what is there and usable, and prefers Podman.
    type: str
    choices: [auto, podman, docker]
    default: auto
  docker_source:
    description: Where Docker comes from; V(docker) is Docker's own repository.
    type: str
    choices: [distribution, docker]
    default: distribution
  docker_repository_url:
    description: Base address of Docker's own repository, or of a mirror of it.
    type: str
    default: https://download.docker.com
  facts:
    description: The facts of the host, RV(socle.inference.gpu_facts#module:gpu_facts).
    type: dict
    required: true
  host:
    description: How messages name the host.
    type: str
    default: this host
seealso:
  - module: socle.inference.container_engine_config
"""

EXAMPLES = r"""
- name: Choose the container engine
  socle.inference.container_engine_plan:
    facts: "{{ socle_facts.gpu_facts }}"
  register: plan
"""

RETURN = r"""
engine:
  description: V(podman) or V(docker).
  returned: success
  type: str
version:
  description: Version that is installed or on offer; null before Docker's own repository was read.
  returned: success
  type: str
source:
  description: V(installed), V(distribution) or V(docker).
  returned: success
  type: str
family:
  description: Kind of package manager, V(debian) or V(redhat).
  returned: success
  type: str
packages:
  description: Packages to install, for O(socle.inference.apt_exact#module:packages).
  returned: success
  type: dict
repository:
  description: Source to add first, with options of M(socle.inference.apt_source); null for none.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import run
from ansible_collections.socle.inference.plugins.module_utils._engine.select import ENGINES
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_plan import Request, plan
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import engine_version


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": ["auto", "podman", "docker"], "default": "auto"},
            "docker_source": {"type": "str", "choices": ["distribution", "docker"], "default": "distribution"},
            "docker_repository_url": {"type": "str", "default": "https://download.docker.com"},
            "facts": {"type": "dict", "required": True},
            "host": {"type": "str", "default": "this host"},
        },
        supports_check_mode=True,
    )
    params = module.params
    request = Request(
        wanted=params["engine"],
        docker_source=params["docker_source"],
        needs_cdi=bool(params["facts"].get("gpus")),
        host=params["host"],
        os=params["facts"].get("os") or {},
        docker_url=params["docker_repository_url"],
    )
    try:
        installed = {engine: engine_version(run, engine) for engine in ENGINES}
        result = plan(run, request, installed, check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
