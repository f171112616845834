#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a container image present on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_image
short_description: Makes the container image of an instance present
version_added: 0.1.0
description:
  - Pulls the image unless it is present, and returns the identity of what is present.
  - An image that is present is never pulled again; a tag that moved is followed by removing the image from the host
    first.
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
  image:
    description: Reference of the image, with its registry and tag or digest.
    type: str
    required: true
  pull:
    description:
      - V(missing) pulls an image that is not present; V(never) fails then, for hosts without a way to a registry.
    type: str
    choices: [missing, never]
    default: missing
  engine:
    description: Container engine that runs the instance.
    type: str
    choices: [podman, docker]
    default: podman
  progress_path:
    description: Internal; set by the action plugin.
    type: path
"""

EXAMPLES = r"""
- name: Make the image present
  socle.inference.vllm_image:
    image: docker.io/vllm/vllm-openai:v0.26.0
  register: image
"""

RETURN = r"""
image:
  description: The reference as it was given.
  returned: success
  type: str
present:
  description: Whether the image is present now; false only in check mode.
  returned: success
  type: bool
digest:
  description: Id of the image, C(sha256:<hex>), or null where it is not present (check mode).
  returned: success
  type: str
repo_digests:
  description: Digests under which registries know the image.
  returned: success
  type: list
  elements: str
seconds:
  description: Time that the pull took, null without a pull.
  returned: success
  type: float
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.backends import make_backend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import run
from ansible_collections.socle.inference.plugins.module_utils._engine.image import ensure_image
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "pull": {"type": "str", "choices": ["missing", "never"], "default": "missing"},
            "engine": {"type": "str", "choices": ["podman", "docker"], "default": "podman"},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        result = ensure_image(
            make_backend(module.params["engine"], run),
            module.params["image"],
            pull=module.params["pull"],
            progress=Progress(module.params["progress_path"]),
            clock=time.monotonic,
            check=module.check_mode,
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
