#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merges socle's settings into those of a container engine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_engine_config
short_description: Merges settings into those of a container engine
version_added: 0.1.0
description:
  - For Docker, merges settings into C(/etc/docker/daemon.json). What is there and not named here stays, C(exec-opts),
    C(live-restore), C(data-root) and everything else. A file that is not valid JSON is refused.
  - The new file is tried with C(dockerd --validate) (Docker 23 or newer) before it replaces the old one. dockerd is
    restarted or reloaded only when the file changed in a way that needs it, and see O(restart). When it does not come
    back, the old file does.
  - A dockerd that does not run is started, and enabled where it would not start at boot. One that is masked is refused.
  - A key is not written where a flag of C(docker.service) sets the same thing, since dockerd would not start with both.
  - For Podman, writes C(/etc/containers/containers.conf.d/50-socle.conf) and
    C(/etc/containers/registries.conf.d/50-socle.conf), which Podman merges over the main files. Nothing is restarted.
    Every user's Podman reads these files, so a proxy with user and password in its address is refused. With a proxy,
    C(http_proxy = false) is set for all containers of the host, so that Podman does not hand its proxy to them.
  - Log rotation and the limit of open files fill gaps in C(daemon.json) only; a value of the user's own stays, and a
    Docker that was on the host before gets them only when they are asked for. What was set here before follows the
    options, and goes when they no longer name it.
  - A key of C(daemon.json) that the options name is theirs while they name it. What somebody else had set there is
    noted below O(state_dir), readable by root only, and comes back afterwards.
  - What was set here for the other engine is taken out of its files, a proxy's password among it. Its dockerd is not
    restarted, but a warning says that it has the former settings until its next restart. What gives GPUs to units of
    that engine stays as long as there are any.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
  - socle.inference.container_engine
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: User names and passwords in addresses are masked.
options:
  engine:
    description: The engine whose settings are merged.
    type: str
    choices: [podman, docker]
    required: true
  version:
    description: Version that the engine will have, for check mode on a host where it is not installed yet.
    type: str
  cdi:
    description:
      - Whether containers get GPUs. Sets C(features.cdi) for Docker before 28.2, and spells C(cdi_spec_dirs) out for
        Podman from 5.1 on.
    type: bool
    default: false
  fresh:
    description: Whether the engine was not on the host before this run; then V(auto) settings are for it too.
    type: bool
    default: false
seealso:
  - module: socle.inference.container_engine_plan
"""

EXAMPLES = r"""
- name: Let Docker give GPUs by CDI and rotate its logs
  socle.inference.container_engine_config:
    engine: docker
    cdi: true
    log_max_size: 50m
    log_max_files: 3
"""

RETURN = r"""
action:
  description: What dockerd got, or in check mode would. One of V(none), V(reload), V(restart), V(start).
  returned: success
  type: str
version:
  description: Version of the engine; null where it is neither installed nor known beforehand.
  returned: success
  type: str
containers:
  description: How many containers ran when dockerd was restarted.
  returned: success
  type: int
enabled:
  description: Whether docker.service was, or in check mode would be, enabled, so that it starts at boot.
  returned: success
  type: bool
files:
  description: Paths of the files that changed.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_config import EngineConfig
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
            "engine": {"type": "str", "choices": ["podman", "docker"], "required": True},
            "version": {"type": "str"},
            "cdi": {"type": "bool", "default": False},
            "fresh": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    hide_logins(module)
    params = module.params
    config = EngineConfig(run, Files(), state_dir=Path(params["state_dir"]))
    try:
        version = engine_version(run, params["engine"]) or params["version"]
        with explaining("bring the container engine to its settings"):
            outcome = config.bring(
                params["engine"],
                from_options(params, params["cdi"]),
                version,
                check=module.check_mode,
                fresh=params["fresh"],
                restart=params["restart"],
            )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in outcome.warnings:
        module.warn(warning)
    if outcome.action == "restart" and outcome.containers:
        module.warn(
            f"dockerd {'would be' if module.check_mode else 'was'} restarted for its new settings;"
            f" containers that run on it: {outcome.containers}."
        )
    result = {
        "changed": outcome.changed,
        "version": version,
        "action": outcome.action,
        "containers": outcome.containers,
        "enabled": outcome.enabled,
        "files": [file["path"] for file in outcome.files],
    }
    if module._diff:
        result["diff"] = [
            {
                "before_header": file["path"],
                "after_header": file["path"],
                "before": file["before"],
                "after": file["after"],
            }
            for file in outcome.files
        ]
        if outcome.unit:
            result["diff"].append(
                {
                    "before_header": "docker.service",
                    "after_header": "docker.service",
                    "before": f"{outcome.unit[0]}\n",
                    "after": f"{outcome.unit[1]}\n",
                }
            )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
