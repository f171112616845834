#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks a running engine whether it is the planned one and answers rightly."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_acceptance
short_description: Asks a running engine whether it is the planned one and answers rightly
version_added: 0.1.0
description:
  - Runs a suite of checks against a running engine over HTTP and says for each what was expected, what was found and
    what to do.
  - A check that fails does not fail the task. Look at RV(acceptance.verdict), best after it was recorded.
  - Never goes through a proxy, whatever the environment says, and never shows the API key.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: partial
    details: Sends nothing. Names the checks that would run; the verdict is null.
  diff_mode:
    support: none
options:
  base_url:
    description: Where the engine answers, with or without C(/v1).
    type: str
    required: true
  served_names:
    description: The names that the plan gives the model. The first is used for requests.
    type: list
    elements: str
    required: true
  max_model_len:
    description: The planned longest context, prompt and answer together. Without it nothing is said about it.
    type: int
  vllm_version:
    description: The planned vLLM version. A local part such as V(+cpu) does not count. Without it the check is skipped.
    type: str
  model_root:
    description: The model's path as the engine sees it. Without it nothing is said about it.
    type: str
  plan:
    description:
      - The plan of the instance, as M(socle.inference.vllm_instances_info) returns it.
      - The action plugin reads it, and the file of its model, on the controller, and makes O(promised) of it.
    type: dict
  promised:
    description:
      - What clients may expect beyond the options above; made of O(plan) where that is given.
      - Without both, the checks of tools, thinking, levels of effort, presets and images are skipped.
    type: dict
    suboptions:
      lacks:
        description:
          - What is not to be expected, and why, which is what skipped checks say.
          - Known are C(tools), C(forced tools), C(thinking), C(effort), C(vision) and C(sampling).
        type: dict
        default: {}
      efforts:
        description: For each level of effort and each place of a request, C(status) and C(effort).
        type: dict
        default: {}
      presets:
        description: Fields of a request by the name of each preset of sampling.
        type: dict
        default: {}
      images:
        description: The most images of one request. Without it nothing is said about it.
        type: int
      slo:
        description: Figures that the instance is to reach, as in the plan.
        type: dict
        default: {}
      gpus:
        description: Indices or UUIDs of the GPUs of the instance.
        type: list
        elements: raw
        default: []
      unit:
        description: The systemd service of the instance.
        type: str
        default: ''
      headroom_gib:
        description: What the plan leaves free of each GPU, in GiB.
        type: float
      since:
        description: When the launch was started, UTC, as C(since) of M(socle.inference.vllm_instances_info).
        type: str
  since:
    description: When the launch was started, UTC. Goes into O(promised) where that is made of O(plan).
    type: str
  on_host:
    description: Whether the module runs on the host of the engine, whose GPUs it may then ask for.
    type: bool
    default: false
  api_key:
    description: The instance's API key.
    type: str
  api_key_required:
    description: Whether the plan asks for an API key. If so, the engine must refuse requests without it.
    type: bool
    default: false
  suite:
    description: Name of the suite, a file C(suites/<name>.yml) in O(data_path) or the collection.
    type: str
    default: smoke
  checks:
    description:
      - The checks themselves instead of a suite.
      - Each has C(id), and may have C(params), and C(on_failure) V(failed) or V(degraded).
      - A check that does not exist, a parameter that a check does not know, and no check at all are errors.
    type: list
    elements: dict
  data_path:
    description:
      - Folders on the controller that are searched before the collection.
      - By default the variable C(socle_data_path), else C(site_data/) beside the folder of the inventories.
    type: list
    elements: str
  read_timeout_s:
    description: How long the engine may be silent within an answer, in seconds.
    type: float
    default: 60
  progress_path:
    description: Internal; set by the action plugin.
    type: path
requirements:
  - httpx >= 0.28 (the role P(socle.inference.probe#role) installs it)
seealso:
  - module: socle.inference.vllm_benchmark
  - module: socle.inference.vllm_ready
"""

EXAMPLES = r"""
- name: Accept the instance
  socle.inference.vllm_acceptance:
    base_url: "http://127.0.0.1:{{ plan.port }}"
    served_names: "{{ plan.served_names }}"
    max_model_len: "{{ plan.max_model_len }}"
    vllm_version: "{{ plan.vllm_version }}"
    api_key: "{{ vllm_instances.chat.api_key | default(omit) }}"
    api_key_required: "{{ plan.api_key_required }}"
    plan: "{{ plan }}"
  vars:
    ansible_python_interpreter: "{{ probe_python }}"
  register: accepted

- name: Two checks only, of which one may fail
  socle.inference.vllm_acceptance:
    base_url: http://127.0.0.1:8000
    served_names: [qwen]
    checks:
      - id: chat
        params: {max_tokens: 16}
      - id: metrics
        params: {names: [vllm:num_requests_running]}
        on_failure: degraded
"""

RETURN = r"""
acceptance:
  description: What the checks found.
  returned: success
  type: dict
  contains:
    suite:
      description: Name of the suite.
      type: str
      returned: always
    verdict:
      description:
        - V(passed) when no check failed.
        - V(failed) when a check failed.
        - V(degraded) when only checks failed whose C(on_failure) is V(degraded).
        - V(error) when the probe itself broke, or no check could be done, so that nothing is proven.
        - Null in check mode.
      type: str
      returned: always
    passed:
      description: Number of checks that passed.
      type: int
      returned: always
    failed:
      description: Number of checks that failed.
      type: int
      returned: always
    skipped:
      description: Number of checks that do not apply; each says why in C(found).
      type: int
      returned: always
    errors:
      description: Number of checks that could not be done through the probe's own fault.
      type: int
      returned: always
    checks:
      description: One entry for each check, in the suite's order.
      type: list
      elements: dict
      returned: always
      contains:
        id:
          description: Name of the check.
          type: str
          returned: always
        status:
          description: V(passed), V(failed), V(skipped), V(error), or V(would_run) in check mode.
          type: str
          returned: always
        expected:
          description: What was expected.
          type: str
          returned: always
        found:
          description: What was found.
          type: str
          returned: always
        remedy:
          description: What to do about it; null where nothing is to be done.
          type: str
          returned: always
        evidence:
          description: Requests and answers, shortened, without the key.
          type: list
          elements: dict
          returned: always
        figures:
          description: Numbers of the check that later runs are compared with, such as C(corrupted) of C(conversations).
          type: dict
          returned: always
        duration_ms:
          description: How long the check took.
          type: float
          returned: always
  sample:
    suite: smoke
    verdict: passed
    passed: 10
    failed: 0
    skipped: 1
    errors: 0
    checks:
      - id: engine_version
        status: passed
        expected: 0.32.0; a local part such as +cpu says how it was built and does not count
        found: 0.32.0+cpu
        remedy: null
        evidence: []
        duration_ms: 4.1
started:
  description: When it began, UTC.
  returned: success
  type: str
  sample: "2026-11-30T09:28:44Z"
finished:
  description: When it ended, UTC.
  returned: success
  type: str
  sample: "2026-11-30T09:28:46Z"
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import ProbeError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import run_limited
from ansible_collections.socle.inference.plugins.module_utils._probe.acceptance import (
    parse_checks,
    preview,
    refuse_wrong_key,
    run_suite,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.client import (
    HTTPX_IMPORT_ERROR,
    EngineClient,
    Timeouts,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.host_gpus import HostGpus
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Planned, Promised
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

COMMAND_TIMEOUT_S = 30
"""A driver that hangs must not hold up the verdict on what clients get."""


def main():
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "served_names": {"type": "list", "elements": "str", "required": True},
            "max_model_len": {"type": "int"},
            "vllm_version": {"type": "str"},
            "model_root": {"type": "str"},
            "plan": {"type": "dict"},
            "promised": {
                "type": "dict",
                "options": {
                    "lacks": {"type": "dict", "default": {}},
                    "efforts": {"type": "dict", "default": {}},
                    "presets": {"type": "dict", "default": {}},
                    "images": {"type": "int"},
                    "slo": {"type": "dict", "default": {}},
                    "gpus": {"type": "list", "elements": "raw", "default": []},
                    "unit": {"type": "str", "default": ""},
                    "headroom_gib": {"type": "float"},
                    "since": {"type": "str"},
                },
            },
            "since": {"type": "str"},
            "on_host": {"type": "bool", "default": False},
            "api_key": {"type": "str", "no_log": True},
            "api_key_required": {"type": "bool", "default": False, "no_log": False},
            "suite": {"type": "str", "default": "smoke"},
            "checks": {"type": "list", "elements": "dict"},
            "data_path": {"type": "list", "elements": "str"},
            "read_timeout_s": {"type": "float", "default": 60},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    asked = module.params

    def run(command):
        path = module.get_bin_path(command[0])
        return None if path is None else run_limited([path, *command[1:]], COMMAND_TIMEOUT_S)

    started = utc_now()
    progress = Progress(asked["progress_path"])
    planned = Planned(
        served_names=asked["served_names"],
        max_model_len=asked["max_model_len"],
        vllm_version=asked["vllm_version"],
        model_root=asked["model_root"],
        api_key_required=asked["api_key_required"],
        promised=Promised(**asked["promised"]) if asked["promised"] else None,
    )
    try:
        if not all(name.strip() for name in asked["served_names"] or [""]):
            raise ProbeError("The probe was told no name of the model; give served_names, as the plan has them.")
        wanted = parse_checks(asked["checks"] or [])
        if module.check_mode:
            module.exit_json(
                changed=False, acceptance=preview(asked["suite"], wanted), started=started, finished=utc_now()
            )
        if HTTPX_IMPORT_ERROR:
            module.fail_json(msg=missing_required_lib("httpx"), exception=HTTPX_IMPORT_ERROR)
        with EngineClient(asked["base_url"], asked["api_key"], Timeouts(read_s=asked["read_timeout_s"])) as client:
            refuse_wrong_key(client, planned)
            acceptance = run_suite(
                asked["suite"],
                wanted,
                Context(
                    client,
                    planned,
                    lambda done, total, unit: progress.update("checking", done, total, unit),
                    HostGpus(run) if asked["on_host"] and planned.promised and planned.promised.gpus else None,
                ),
                report=lambda done, total, last: progress.update("checking", done, total, "checks", last),
            )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, acceptance=acceptance, started=started, finished=utc_now())


if __name__ == "__main__":
    main()
