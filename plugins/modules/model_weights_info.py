#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what the weights of models in the store of a host are made of."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights_info
short_description: Say what the weights of models in the store of a host are made of
version_added: 0.2.0
author:
  - The socle authors (@socle-inference)
description:
  - Reads the headers of the safetensors files of models that the store of the host holds, and sums up their tensors by
    what decides which share of them a GPU gets, for the option O(socle.inference.vllm_plan#module:weights) of
    M(socle.inference.vllm_plan).
  - Where a model has C(model.safetensors.index.json), the files that it names are read, as the engine does it. Changes
    nothing and hashes nothing.
  - Of each file at most the 100 MB that the format allows a header are read; 2,000 files, 256 MB of headers and
    1,000,000 tensors of a model are the most, about ten times what the largest models have.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  instances:
    description:
      - The instances whose models are meant, as in M(socle.inference.vllm_plan). Without it, the variable
        C(vllm_instances). A model that no data folder knows is left out.
      - Handled by the action plugin on the controller, as O(data_path) is. Where it names no model, the host is not
        contacted.
    type: dict
  data_path:
    description:
      - Folders with the user's own C(profiles/models/), searched before those of the collection.
      - Without it, the variable C(socle_data_path), else C(site_data/) beside the folder that holds the inventories.
    type: list
    elements: path
  models:
    description: The models. Without it, those of O(instances).
    type: list
    elements: dict
    suboptions:
      repo:
        description: The model, as C(organisation/name).
        type: str
        required: true
      revision:
        description: The branch, tag or full commit that is meant, as the store knows it.
        type: str
        default: master
      layers:
        description: The number of its layers. Tensors of layers beyond count as those of speculation.
        type: int
  source:
    description: Where the store got the models from, one of V(modelscope), V(huggingface) and V(directory).
    type: str
    default: modelscope
  store:
    description: The folder that holds the models of this host.
    type: path
    default: /var/lib/socle/models
seealso:
  - module: socle.inference.vllm_plan
  - module: socle.inference.model_store_info
"""

EXAMPLES = r"""
- name: Read what the weights of the host's models take
  socle.inference.model_weights_info:
  become: true
  register: held

- name: Plan with them
  socle.inference.vllm_plan:
    weights: "{{ held.weights }}"
  register: planned

- name: Look at one model
  socle.inference.model_weights_info:
    models:
      - repo: Qwen/Qwen3-8B
  become: true
"""

RETURN = r"""
weights:
  description: By repository, for those that the store holds.
  returned: success
  type: dict
  sample:
    HuggingFaceTB/SmolLM2-135M-Instruct:
      bytes: 269030016
      content_id: sha256:8449c20c1a43cff12dd409f8bdaf6927feacd2455d836a5259fb6740e19e5376
      fault: null
      files: 1
      groups:
        - {bytes: 13271040, float32: false, mtp: false, part: kv, replicated: false, tensors: 60}
        - {bytes: 255688704, float32: false, mtp: false, part: text, replicated: false, tensors: 151}
        - {bytes: 70272, float32: false, mtp: false, part: text, replicated: true, tensors: 61}
      tensors: 272
  contains:
    content_id:
      description: The content that was read, as in M(socle.inference.modelscope_snapshot).
      type: str
    files:
      description: Number of files with weights.
      type: int
    tensors:
      description: Number of tensors.
      type: int
    bytes:
      description: Size of all tensors.
      type: int
    groups:
      description:
        - Sums over tensors, each with C(part) (V(text), V(kv) for keys and values, V(lm_head), V(vision)), C(mtp) for
          what only speculation loads, C(replicated) for what every GPU holds whole, C(float32), C(bytes) and
          C(tensors).
        - Empty with C(fault).
      type: list
      elements: dict
    fault:
      description: Why the headers cannot be used, as one sentence; null where they can.
      type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.weight_headers import describe_weights


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            # For the action plugin, which keeps them on the controller.
            "instances": {"type": "dict"},
            "data_path": {"type": "list", "elements": "path"},
            "models": {
                "type": "list",
                "elements": "dict",
                "options": {
                    "repo": {"type": "str", "required": True},
                    "revision": {"type": "str", "default": "master"},
                    "layers": {"type": "int"},
                },
            },
            "source": {"type": "str", "default": "modelscope"},
            "store": {"type": "path", "default": "/var/lib/socle/models"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        found = describe_weights(Path(params["store"]), params["source"], params["models"] or [])
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, weights=found)


if __name__ == "__main__":
    main()
