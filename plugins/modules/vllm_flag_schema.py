#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks an engine image which flags it takes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_flag_schema
short_description: Asks an engine image which flags it takes
version_added: 0.2.0
description:
  - Runs a small program in a container of the image, without a GPU and without a network, which builds the parser of
    C(vllm serve) and reads flags, values, registries of parsers, keys of JSON flags and environment variables off it.
    That takes half a minute to two minutes. Help texts are left out.
  - The answer is kept by the image's id in C(cache/flags) of the state folder, so that an image is asked once.
  - Where RV(document) is written to C(profiles/vllm/VERSION.json) of the site's data, plans of that version are checked
    against it.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: The image is asked then too, and nothing is kept.
  diff_mode:
    support: none
options:
  image:
    description: Reference of an image that is present on the host.
    type: str
    required: true
  engine:
    description: Container engine that has the image.
    type: str
    choices: [podman, docker]
    default: podman
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
  timeout:
    description: Time in seconds that the image may take to answer.
    type: int
    default: 600
seealso:
  - module: socle.inference.vllm_image
  - module: socle.inference.vllm_plan
"""

EXAMPLES = r"""
- name: Ask the image for its flags
  socle.inference.vllm_flag_schema:
    image: docker.io/vllm/vllm-openai:v0.27.1
  become: true
  register: found

- name: Keep them where plans look for them
  ansible.builtin.copy:
    content: "{{ found.document }}"
    dest: "{{ inventory_dir }}/../../site_data/profiles/vllm/{{ found.vllm_version }}.json"
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
image:
  description: The reference as it was given.
  returned: success
  type: str
digest:
  description: Id of the image, C(sha256:<hex>).
  returned: success
  type: str
cached:
  description: Whether the answer was there from an earlier run.
  returned: success
  type: bool
vllm_version:
  description: Version of vLLM in the image, without what a build adds to it.
  returned: success
  type: str
schema:
  description: The flag schema, of kind C(socle.vllm_flags/1).
  returned: success
  type: dict
  contains:
    flags:
      description: What each flag takes, by its name without dashes.
      type: dict
    classes:
      description: Keys of the JSON of flags, by the class that the engine makes of it.
      type: dict
    registries:
      description: Names of parsers, attention backends, load formats and quantization methods.
      type: dict
    environment:
      description: Environment variables that this version reads.
      type: list
      elements: str
    made_with:
      description: Versions of Python and libraries in the image, and its id.
      type: dict
    vllm_version:
      description: Version of vLLM.
      type: str
document:
  description: The schema as the text of its file, with one line for each flag.
  returned: success
  type: str
"""

import inspect
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.backends import make_backend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._flags import extract
from ansible_collections.socle.inference.plugins.module_utils._flags.obtain import obtain_schema


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": ["podman", "docker"], "default": "podman"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
            "timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    state_dir = Path(module.params["state_dir"])
    try:
        result = obtain_schema(
            make_backend(module.params["engine"], run, state_dir),
            module.params["image"],
            script=inspect.getsource(extract),
            state_dir=state_dir,
            files=Files(),
            container=f"socle-flags-{os.getpid()}",
            timeout_s=module.params["timeout"],
            check=module.check_mode,
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
