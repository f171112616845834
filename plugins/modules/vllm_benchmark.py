#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures how fast a running engine answers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_benchmark
short_description: Measures how fast a running engine answers
version_added: 0.1.0
description:
  - Runs workloads against a running engine, each with warm-ups and repeats, and gives every figure with its spread. A
    workload of kind C(generation) is one streamed request at a time, one of kind C(load) many, at once or as they come.
  - Tokens are the server's own count. A run with fewer tokens than asked for is a failed run, not a fast one; so is a
    cold run whose prompt came from the prefix cache.
  - The engine's own histograms are given beside the client's figures, with what the client itself costs.
  - A run that fails does not fail the task. Look at RV(benchmark.verdict), best after it was recorded.
  - Never goes through a proxy, whatever the environment says, and never shows the API key.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: partial
    details: Sends nothing. Names the workloads that would run; the verdict is null.
  diff_mode:
    support: none
options:
  base_url:
    description: Where the engine answers, with or without C(/v1).
    type: str
    required: true
  served_name:
    description: The model's name in requests.
    type: str
    required: true
  api_key:
    description: The instance's API key.
    type: str
  workloads:
    description:
      - Names of workloads, files C(workloads/<name>.yml) in O(data_path) or the collection, or workloads themselves.
      - By default V(B1) and V(B2).
    type: list
    elements: raw
  params:
    description:
      - Changes to workloads, a map of maps by the workload's name.
      - Known are C(prompt), C(prompt_tokens), C(output_tokens), C(ignore_eos), C(thinking), C(cold), C(sampling),
        C(repeats) and C(warmups).
      - Of a load also C(requests), C(concurrency) (how many at once at most), C(rate_per_s) (Poisson arrivals),
        C(seed) (of the arrivals) and C(slo) (C(ttft_ms), C(tpot_ms), C(e2e_ms) that goodput is held against).
    type: dict
    default: {}
  thinking:
    description:
      - Whether the model has a thinking mode. Workloads whose C(thinking) is V(auto) then switch it on; for other
        models nothing is sent.
    type: bool
    default: false
  max_model_len:
    description:
      - The planned longest context.
      - A workload that needs more is cut to it and says so. It is skipped where less than a quarter of its prompt would
        be left.
    type: int
  data_path:
    description:
      - Folders on the controller that are searched before the collection.
      - By default the variable C(socle_data_path), else C(site_data/) beside the folder of the inventories.
    type: list
    elements: str
  read_timeout_s:
    description: How long the engine may be silent within an answer, in seconds.
    type: float
    default: 120
  run_timeout_s:
    description: How long one run may take, in seconds.
    type: float
    default: 900
  progress_path:
    description: Internal; set by the action plugin.
    type: path
requirements:
  - httpx >= 0.28 (the role P(socle.inference.probe#role) installs it)
seealso:
  - module: socle.inference.vllm_acceptance
"""

EXAMPLES = r"""
- name: Measure the instance
  socle.inference.vllm_benchmark:
    base_url: "http://127.0.0.1:{{ plan.port }}"
    served_name: "{{ plan.served_names[0] }}"
    api_key: "{{ vllm_instances.chat.api_key | default(omit) }}"
    params: "{{ benchmark_params | default({}) }}"
  vars:
    ansible_python_interpreter: "{{ probe_python }}"
  register: measured

- name: Long generation only, on a small machine
  socle.inference.vllm_benchmark:
    base_url: http://127.0.0.1:8000
    served_name: qwen
    workloads: [B2]
    params:
      B2: {output_tokens: 64, repeats: 5}
"""

RETURN = r"""
benchmark:
  description: What was measured.
  returned: success
  type: dict
  contains:
    verdict:
      description:
        - V(passed) when every run was what was asked for, V(failed) when one was not.
        - V(error) when the probe itself broke.
        - Null in check mode.
      type: str
      returned: always
    workloads:
      description:
        - A map by the workload's name.
        - C(ttft_ms), C(e2e_ms), C(tpot_ms) and C(decode_tok_per_s) each hold C(n), C(min), C(p50), C(p95), C(max) and
          C(spread_pct), the range in percent of the median; the medians also stand alone as C(ttft_p50_ms) and so on.
        - Of a load, C(output_tok_per_s), C(input_tok_per_s), C(request_per_s) and C(goodput_per_s), and
          C(ttft_ms), C(itl_ms), C(tpot_ms) and C(e2e_ms) (the medians over its requests) with C(ttft_p99_ms) and so on,
          each summed up over the repeats in the same way. Each run says in C(client) how well the client kept up.
        - C(cached_prompt_tokens) is the largest count by the engine, null where it does not say or others used it
          meanwhile.
        - C(server) holds the means by the engine's own histograms, null where it has none.
        - C(runs) holds every run, warm-ups too.
      type: dict
      returned: always
    method:
      description: How it was measured (client, version, clock, definitions, what the client costs for one chunk).
      type: dict
      returned: always
  sample:
    verdict: passed
    workloads:
      B2:
        status: passed
        repeats: 3
        prompt_tokens: 58
        completion_tokens: 512
        cached_prompt_tokens: 0
        ttft_p50_ms: 41.2
        decode_p50_tok_per_s: 70.9
        decode_tok_per_s: {n: 3, min: 70.4, p50: 70.9, p95: 71.2, max: 71.3, spread_pct: 1.3}
    method:
      client: socle-probe (one request at a time by httpx, loads by a loop of its own; streamed)
started:
  description: When it began, UTC.
  returned: success
  type: str
  sample: "2026-11-30T09:28:44Z"
finished:
  description: When it ended, UTC.
  returned: success
  type: str
  sample: "2026-11-30T09:29:31Z"
"""

import os

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import ProbeError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._probe.benchmark import (
    Bench,
    parse_workloads,
    preview,
    run_all,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.client import (
    HTTPX_IMPORT_ERROR,
    EngineClient,
    Timeouts,
)
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main():
    module = AnsibleModule(
        argument_spec={
            "base_url": {"type": "str", "required": True},
            "served_name": {"type": "str", "required": True},
            "api_key": {"type": "str", "no_log": True},
            "workloads": {"type": "list", "elements": "raw"},
            "params": {"type": "dict", "default": {}},
            "thinking": {"type": "bool", "default": False},
            "max_model_len": {"type": "int"},
            "data_path": {"type": "list", "elements": "str"},
            "read_timeout_s": {"type": "float", "default": 120},
            "run_timeout_s": {"type": "float", "default": 900},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    started = utc_now()
    progress = Progress(asked["progress_path"])
    try:
        if not asked["served_name"].strip():
            raise ProbeError("The probe was told no name of the model; give served_name, as the plan has it.")
        workloads = parse_workloads(asked["workloads"] or [], asked["params"])
        if module.check_mode:
            module.exit_json(changed=False, benchmark=preview(workloads), started=started, finished=utc_now())
        if HTTPX_IMPORT_ERROR:
            module.fail_json(msg=missing_required_lib("httpx"), exception=HTTPX_IMPORT_ERROR)
        timeouts = Timeouts(read_s=asked["read_timeout_s"], whole_s=asked["run_timeout_s"])
        with EngineClient(asked["base_url"], asked["api_key"], timeouts) as client:
            bench = Bench(
                client,
                asked["served_name"],
                asked["thinking"],
                report=progress.update,
                processors=len(os.sched_getaffinity(0)),
                max_model_len=asked["max_model_len"],
            )
            benchmark = run_all(bench, workloads)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    module.exit_json(changed=False, benchmark=benchmark, started=started, finished=utc_now())


if __name__ == "__main__":
    main()
