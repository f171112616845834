#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: record
short_description: Keep what was observed of an instance as a record
version_added: 0.1.0
description:
  - Writes one immutable JSON document (schema C(socle.record/1)) about an instance into the spool of its host,
    and the same document beside the inventory.
  - The document is built on the controller. The copy beside the inventory is
    C(.socle/records/<host>/<instance>/<UTC time>-<kind>.json) in the folder that the host's inventory comes from.
    A host that comes from no file has its record in the spool only.
  - A record is never replaced, and writing one is never a change.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is written, on the host or the controller.
  diff_mode:
    support: none
options:
  kind:
    description: What was observed.
    type: str
    required: true
    choices: [plan, acceptance, benchmark, deploy, incident]
  instance:
    description: Name of the instance.
    type: str
    required: true
  started:
    description: When the observation began, in UTC, like V(2026-11-30T09:28:44Z).
    type: str
    required: true
  finished:
    description: When it ended. Names and orders the record.
    type: str
    required: true
  verdict:
    description:
      - How it ended. V(degraded) is right but outside of the service level objective; V(error) is a fault of the probe
        itself and says nothing about the instance.
    type: str
    required: true
    choices: [passed, failed, degraded, error]
  plan:
    description:
      - The instance's plan as M(socle.inference.vllm_plan) returns it, best the sealed one. Both fingerprints, the
        predicted capacity and the surroundings (model, image, profile) are taken from it.
    type: dict
  launch_fingerprint:
    description: Fingerprint of the launch; wins over the one in O(plan).
    type: str
  environment_fingerprint:
    description: Fingerprint of the host's environment; wins over the one in O(plan).
    type: str
  generation:
    description: Number of the instance's generation.
    type: int
  environment:
    description: Surroundings of the observation, such as driver, GPU, clocks; added to what O(plan) knows.
    type: dict
  results:
    description: What was found. Units belong into the names of the keys; what is missing is null.
    type: dict
  method:
    description: How it was found, such as client, version, repeats.
    type: dict
  secrets:
    description: Values that must not get into the record; each occurrence is replaced by V(***). A last guard.
    type: list
    elements: str
  state_dir:
    description: Folder of socle's state on the host; the spool is C(records) in it.
    type: path
    default: /var/lib/socle
  document:
    description: The text of the record. Internal; set by the action plugin.
    type: str
"""

EXAMPLES = r"""
- name: Record the acceptance
  socle.inference.record:
    kind: acceptance
    instance: chat
    plan: "{{ sealed_plan }}"
    started: "{{ probe.started }}"
    finished: "{{ probe.finished }}"
    verdict: "{{ probe.acceptance.verdict }}"
    results: "{{ probe.acceptance }}"
    secrets: "{{ [vault_chat_api_key] }}"
"""

RETURN = r"""
record:
  description: The record as it was built.
  returned: success
  type: dict
spool_path:
  description: The record on the host.
  returned: success
  type: str
collected_path:
  description: The record beside the inventory; null for a host that comes from no file.
  returned: success
  type: str
note:
  description: Why there is no copy beside the inventory; null when there is one.
  returned: success
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._records.files import write_once
from ansible_collections.socle.inference.plugins.module_utils._records.schema import Invalid, parse, spool_name

ARGUMENT_SPEC = {
    "kind": {
        "type": "str",
        "required": True,
        "choices": ["plan", "acceptance", "benchmark", "deploy", "incident"],
    },
    "instance": {"type": "str", "required": True},
    "started": {"type": "str", "required": True},
    "finished": {"type": "str", "required": True},
    "verdict": {"type": "str", "required": True, "choices": ["passed", "failed", "degraded", "error"]},
    "plan": {"type": "dict"},
    "launch_fingerprint": {"type": "str"},
    "environment_fingerprint": {"type": "str"},
    "generation": {"type": "int"},
    "environment": {"type": "dict"},
    "results": {"type": "dict"},
    "method": {"type": "dict"},
    "secrets": {"type": "list", "elements": "str", "no_log": True},
    "state_dir": {"type": "path", "default": "/var/lib/socle"},
    # Not a secret, but of no use in the host's log.
    "document": {"type": "str", "no_log": True},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    text = module.params["document"]
    if text is None:
        module.fail_json(msg="The record was not built: run record as a task, so that its action plugin builds it.")
    folder = Path(module.params["state_dir"]) / "records"
    try:
        name = spool_name(parse(text), text)
        if not module.check_mode:
            write_once(folder, name, text)
    except Invalid as error:
        module.fail_json(msg=f"The document is not a valid record: {error.reason}.", fault=error.kind)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, spool_path=str(folder / name))


if __name__ == "__main__":
    main()
