#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_plan
short_description: Resolve vLLM instances into checked, explained and sealed plans
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Merges model facts, host class, serving profile and the inventory's flag variables into one plan for each
    instance of a host, and refuses what cannot run before anything on the host is touched. Every flag of a plan
    carries its origin and its evidence.
  - Compares flags and variables with what the version of the engine takes, calculates what GPU memory will hold, and
    asks rules about combinations that cannot start, answer wrongly, run slowly or stand open. What these find is in
    C(findings) of a plan, each with its id. An error refuses, a warning is in C(warnings) as well.
  - All errors of one call are reported together in RV(errors).
  - With O(seal), adds to one plan what was fetched for it (image digest, model content) and computes its
    fingerprints.
  - A plan whose profile reproduces a described deployment says in C(document) which one, and in C(changes) where it
    departs from it, with the reason of each.
  - Runs on the controller only; the host is not contacted.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Never changes anything; works the same in check mode.
  diff_mode:
    support: none
options:
  instances:
    description:
      - The instances of the host by name. Without it, the variable C(vllm_instances).
      - The keys of an instance are C(model) (required), C(gpus), C(port), C(profile), C(served_names), C(flags),
        C(env), C(image), C(api_key), C(expose) (C(loopback), C(address) or C(all)), C(chat_template),
        C(effort_aliases), C(drain_s) and C(slo).
      - The value of C(api_key) never enters a plan, a result or a message. Only the fact that there is one does.
      - C(chat_template) is the name of a file in C(chat_templates/) of the data folders, or a file on the
        controller, absolute or relative to the inventory folder.
    type: dict
  host_class:
    description:
      - Name of the host class. Without it, the variable C(host_class), else the group of the host that has the name
        of a known class, else the class that has the PCI ids of the GPUs in O(facts), or C(cpu) without GPUs.
      - A class whose family is not that of the hardware is refused.
    type: str
  facts:
    description:
      - The C(gpu_facts) that M(socle.inference.gpu_facts) returned, of schema C(socle.gpu_facts/2). Without them the
        hardware is not checked.
      - GPUs that are split by MIG, virtual, or not shown by the driver are refused, and so is a driver that is too old
        for the class or for the C(cuda) of the serving profile.
    type: dict
  facts_file:
    description: A JSON file on the controller with such facts, used when O(facts) is not given, to plan for hosts
      that are not there yet.
    type: path
  layers:
    description: The flag variables of the inventory, weakest first. Without it, the variables that are named below.
    type: dict
    suboptions:
      class:
        description: Flags for a host class, the variable C(vllm_flags_class).
        type: dict
      promoted:
        description:
          - Promoted settings, the variable C(vllm_flags_promoted), by C(<model>--<host class>/<profile>),
            each with C(flags), C(env), C(image) and C(evidence).
        type: dict
      group:
        description: Flags for any other group, the variable C(vllm_flags_group).
        type: dict
      host:
        description: Flags for one host, the variable C(vllm_flags_host).
        type: dict
  variant:
    description: The strongest layer of all, a variant of an experiment or what only one run asks for, with C(name),
      C(profile), C(flags), C(env), C(image), and C(instances), the names of those that it is for where not for all.
    type: dict
  data_path:
    description:
      - Folders with the user's own C(profiles/) and C(chat_templates/), searched before those of the collection.
      - Without it, the variable C(socle_data_path), else C(site_data/) beside the folder that holds the inventories.
    type: list
    elements: path
  state_dir:
    description: The folder of the host that holds caches and chat templates. Without it, the variable
      C(socle_state_dir), else C(/var/lib/socle).
    type: path
  address:
    description: The IP address to listen on for instances whose C(expose) is C(address). Without it, the variable
      C(ansible_host).
    type: str
  rules_ignored:
    description:
      - Ids of findings that are passed over, each with the reason. Without it, the variable C(vllm_rules_ignored).
      - An error then is a warning, a warning a note, and both tell the reason.
    type: dict
    version_added: 0.2.0
  calibrations:
    description:
      - What earlier starts taught about memory, the host's own first, as the inventory plugin
        P(socle.inference.records#inventory) gives it in the variable C(socle_calibrations), which is taken without
        this option. Starts on another host class count for nothing.
    type: list
    elements: dict
    version_added: 0.2.0
  weights:
    description:
      - What M(socle.inference.model_weights_info) returned as RV(socle.inference.model_weights_info#module:weights) for
        the host. Memory is then divided by the tensors of a model that the host holds, instead of by its model file;
        what a start of it told goes before both.
    type: dict
    version_added: 0.2.0
  source:
    description:
      - The hub of the models, below which the inventory keeps their locks. Where neither O(weights) nor the model file
        tells how large a model is, its lock does. Without it, the variable C(model_store_source), else C(modelscope).
    type: str
    version_added: 0.2.0
  show:
    description: Prints RV(table) as M(socle.inference.show) does, and returns no plans.
    type: bool
    default: false
    version_added: 0.2.0
  notes:
    description:
      - Shows notes in RV(table) instead of counting them. Without it, the variable C(socle_notes). With C(-v) they are
        always shown.
    type: bool
    version_added: 0.2.0
  seal:
    description: A plan to seal, and what was fetched for it. Excludes all other options.
    type: dict
    suboptions:
      plan:
        description: One of the RV(plans).
        type: dict
        required: true
      image_digest:
        description: Digest of the image on the host, C(sha256:...).
        type: str
      content_id:
        description: Content identity of the model on the host, C(sha256:...).
        type: str
      model_path:
        description: Folder of the model on the host.
        type: str
      chat_template_digest:
        description:
          - Digest of the chat template on the host; it must be the one that was planned, unless the plan has
            C(chat_template_overlay).
        type: str
      chat_template_path:
        description: Where the chat template lies on the host that was made for a plan with C(chat_template_overlay).
        type: str
      secrets_hmac:
        description: Keyed digest of the secrets on the host, C(hmac-sha256:...).
        type: str
      facts:
        description: The C(gpu_facts) of the host, for the environment fingerprint, and for the units that an instance
          with GPUs needs.
        type: dict
      engine:
        description: The container engine that will run the instance.
        type: str
        choices: [podman, docker]
        default: podman
      allow_missing:
        description:
          - Return the plan unsealed instead of failing when digest, content or secret are missing, as in check mode
            before a first deployment.
        type: bool
        default: false
seealso:
  - module: socle.inference.gpu_facts
  - module: socle.inference.model_weights_info
"""

EXAMPLES = r"""
- name: Resolve the plans of the host
  socle.inference.vllm_plan:
    instances: "{{ vllm_instances }}"
    facts: "{{ gpu_facts_result.gpu_facts }}"
    layers:
      class: "{{ vllm_flags_class | default({}) }}"
      promoted: "{{ vllm_flags_promoted | default({}) }}"
      group: "{{ vllm_flags_group | default({}) }}"
      host: "{{ vllm_flags_host | default({}) }}"
  register: planned

- name: Show the plan of one instance
  ansible.builtin.debug:
    msg: "{{ planned.plans.chat | socle.inference.plan_table }}"

- name: Seal it
  socle.inference.vllm_plan:
    seal:
      plan: "{{ planned.plans.chat }}"
      image_digest: "{{ image.digest }}"
      content_id: "{{ model.content_id }}"
      model_path: "{{ model.path }}"
      facts: "{{ gpu_facts_result.gpu_facts }}"
  register: sealed
"""

RETURN = r"""
plans:
  description:
    - One plan for each instance, by name. Empty when there are no instances.
    - C(capacity) is what memory will hold, with null for what is not known and with C(weights_source), which says how
      the weights are known; C(findings) is a list of C(id),
      C(severity), C(sentence), C(remedy), C(evidence) and C(subject).
  returned: success, without O(seal) and O(show)
  type: dict
  sample:
    chat:
      schema: socle.plan/1
      host: gpu1
      instance: chat
      host_class: cpu
      profile: default
      argv: [/models/SmolLM2-135M-Instruct, --host, 127.0.0.1, --port, "8000"]
      sealed: false
table:
  description:
    - What M(socle.inference.show) prints of RV(plans), as one text; for each plan what
      P(socle.inference.plan_table#filter) says.
  returned: success, without O(seal) and O(show)
  type: str
host_class:
  description: The host class that was used.
  returned: success, without O(seal) and O(show)
  type: str
  sample: cpu
templates:
  description: Chat templates that must lie on the host before the instances start.
  returned: success, without O(seal) and O(show)
  type: list
  elements: dict
  contains:
    instance:
      description: Name of the instance.
      type: str
    source:
      description: File on the controller.
      type: str
    target:
      description: File on the host, named by its content.
      type: str
    sha256:
      description: Digest of its content.
      type: str
plan:
  description: The plan with C(sealed), C(engine), C(image_digest), C(content_id), C(launch_fingerprint) and
    C(environment_fingerprint).
  returned: success, with O(seal)
  type: dict
missing:
  description: What kept the plan from being sealed.
  returned: success, with O(seal)
  type: list
  elements: str
errors:
  description: Everything that is wrong, one sentence each.
  returned: failure
  type: list
  elements: str
  sample:
    - vllm_instances.chat.port must be a whole number from 1 to 65535, but is the string '80a'; correct it.
"""
