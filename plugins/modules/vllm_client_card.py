#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_client_card
short_description: Tell how clients use the instances of a host
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Makes a card for each instance from its plan, the file of its model and the records, with addresses for OpenAI,
    Anthropic and Responses clients, names, limits, sampling presets, what each level of effort gets, and settings for
    some clients to copy.
  - A key is never part of a card. Of what the inventory says for it, only the name of a variable is taken.
  - Runs on the controller only; the host is not contacted.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Changes nothing in any mode.
  diff_mode:
    support: none
options:
  plans:
    description: The plans of the host, as M(socle.inference.vllm_plan) returned them.
    type: dict
    required: true
  state:
    description: What the records say of the host, the variable C(socle_state).
    type: dict
    default: {}
  address:
    description: Where clients find the host; by default C(ansible_host), else the name in the inventory.
    type: str
  urls:
    description: Base addresses by instance, of something in front of it such as a proxy with TLS.
    type: dict
    default: {}
  fallback:
    description: The endpoint that clients change to, as a map with C(url), C(model) and C(key) (the name of its key).
    type: dict
    default: {}
  data_path:
    description: Folders with the user's own C(profiles/), searched before those of the collection.
    type: raw
"""

EXAMPLES = r"""
- name: Make the cards
  socle.inference.vllm_client_card:
    plans: "{{ socle_planned.plans }}"
    state: "{{ socle_state | default({}) }}"
  register: cards

- name: Show them
  socle.inference.show:
    lines: "{{ cards.lines }}"
"""

RETURN = r"""
cards:
  description: The cards, sorted by instance.
  returned: success
  type: list
  elements: dict
  sample:
    - instance: agents
      urls:
        openai: http://192.0.2.20:8003/v1
        anthropic: http://192.0.2.20:8003
        responses: http://192.0.2.20:8003/v1/responses
      models: [Qwen3.8-27B]
      key:
        required: true
        name: vault_agents_api_key
        variable: AGENTS_API_KEY
lines:
  description: The cards as text.
  returned: success
  type: list
  elements: str
"""
