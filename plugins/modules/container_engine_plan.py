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
  - Refuses what M(socle.inference.container_engine_config) would refuse of the settings, and an upgrade of Docker that
    would stop containers; see O(restart).
  - Changes nothing but apt's package lists, and these only on a host that never read them. In check mode they are read
    into a temporary folder.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.container_engine
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
fresh:
  description: Whether the engine is not on the host yet.
  returned: success
  type: bool
family:
  description: Kind of package manager, V(debian) or V(redhat).
  returned: success
  type: str
packages:
  description: Packages to install, for O(socle.inference.apt_exact#module:packages).
  returned: success
  type: dict
offered:
  description: Versions on offer of these packages, as far as the distribution's package lists tell.
  returned: success
  type: dict
repository:
  description: Source to add first, with folder and key below its base address; null for none.
  returned: success
  type: dict
"""

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining, run
from ansible_collections.socle.inference.plugins.module_utils._engine.select import ENGINES
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.ahead import Ahead
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_config import EngineConfig
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_plan import Request, plan
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_settings import (
    ARGUMENTS,
    from_options,
    hide_logins,
)
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import engine_version


def main() -> None:
    module = AddressModule(
        argument_spec={
            **ARGUMENTS,
            "engine": {"type": "str", "choices": ["auto", "podman", "docker"], "default": "auto"},
            "docker_source": {"type": "str", "choices": ["distribution", "docker"], "default": "distribution"},
            "docker_repository_url": {"type": "str", "default": "https://download.docker.com"},
            "facts": {"type": "dict", "required": True},
            "host": {"type": "str", "default": "this host"},
        },
        supports_check_mode=True,
    )
    hide_logins(module)
    params = module.params
    request = Request(
        wanted=params["engine"],
        docker_source=params["docker_source"],
        needs_cdi=bool(params["facts"].get("gpus")),
        host=params["host"],
        os=params["facts"].get("os") or {},
        restart=params["restart"],
    )

    def ahead(repository):
        return Ahead("debian", repository, params["docker_repository_url"], "container_engine_docker_repository_url")

    try:
        installed = {engine: engine_version(run, engine) for engine in ENGINES}
        result = plan(
            run,
            request,
            installed,
            check=module.check_mode,
            moved=lambda repository: ahead(repository).is_outdated(),
        )
        # Refusals come before anything is installed, the driver included.
        with explaining("plan the container engine's settings"):
            EngineConfig(run, Files(), state_dir=Path(params["state_dir"])).bring(
                result["engine"],
                from_options(params, request.needs_cdi),
                result["version"],
                check=True,
                fresh=result["fresh"],
                # Packages may bring the client first that tells which containers run.
                restart="always" if result["packages"] else params["restart"],
            )
        if result["repository"] is not None:
            ahead(result["repository"]).probe(result["packages"])
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
