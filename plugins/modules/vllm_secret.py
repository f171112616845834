#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stores an instance's API key on its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_secret
short_description: Stores the API key of an instance on its host
version_added: 0.1.0
description:
  - Writes the key to a file that only root can read, and to the container engine's secret store or, for Docker, which
    has none, to another such file. From there the engine gets it as its environment. Without a key, removes both.
  - Returns an HMAC of the key, made with a key of the host's own, by which a launch notices that the key changed.
  - The API key appears in no unit file, command line, log, plan, generation, and not in what C(podman inspect) or
    C(docker inspect) show.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details: The only content is secret.
options:
  instance:
    description: Name of the instance.
    type: str
    required: true
  api_key:
    description: The API key; omitted or empty, the instance has none.
    type: str
  engine:
    description: Container engine that runs the instance.
    type: str
    choices: [podman, docker]
    default: podman
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
"""

EXAMPLES = r"""
- name: Store the API key
  socle.inference.vllm_secret:
    instance: chat
    api_key: "{{ vllm_instances.chat.api_key | default(omit) }}"
  register: secret
"""

RETURN = r"""
hmac:
  description:
    - C(hmac-sha256:<hex>) of the secrets; null where the instance has none, and in check mode on a host that holds
      no HMAC
      key yet.
  returned: success
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.backends import make_backend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._engine.secret import ensure_api_key
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "api_key": {"type": "str", "no_log": True},
            "engine": {"type": "str", "choices": ["podman", "docker"], "default": "podman"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
        },
        supports_check_mode=True,
    )
    try:
        result = ensure_api_key(
            make_backend(module.params["engine"], run, Path(module.params["state_dir"])),
            Path(module.params["state_dir"]) / "secrets",
            module.params["instance"],
            module.params["api_key"],
            Files(),
            check=module.check_mode,
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
