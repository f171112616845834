#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits until an instance serves, or says why it does not."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_ready
short_description: Waits until an instance serves, or says why it does not
version_added: 0.1.0
description:
  - Waits until the unit is active, C(/health) answers, the models are listed and one token was generated. An
    instance that
    serves already is noticed at once.
  - Meanwhile reads the engine's log. At the first line that is known to be fatal, stops the unit and fails with what
    the line
    means and what to do; likewise when the unit failed, restarts again and again, or takes too long.
  - With O(started=false) an instance that does not answer is left as it is, and its log is not read.
  - Only the instance's own running unit counts as ready, whatever answers on its port.
  - Calls the instance directly on its own host, never by a proxy.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Looks once, neither waits nor stops anything, and does not fail where the instance does not serve.
  diff_mode:
    support: none
options:
  instance:
    description: Name of the instance; not needed with O(plan).
    type: str
  plan:
    description: The plan; gives name, port, address, served names and time limit where these are not given.
    type: dict
  port:
    description: Port of the instance.
    type: int
  address:
    description: Address at which it answers on its own host; that of O(plan), or V(127.0.0.1).
    type: str
  served_names:
    description: Names under which the model must be listed.
    type: list
    elements: str
  api_key:
    description: The API key, where the instance has one.
    type: str
  timeout_s:
    description:
      - Time limit; that of O(plan), or V(1800).
      - With O(started=false) at most 60 s of it while the unit is not coming up.
    type: int
  started:
    description:
      - Whether this run started the instance, or continues to wait for a start that nothing has proven yet;
        RV(socle.inference.vllm_launch#module:starting) says so. Then an instance that does not become ready is stopped.
      - With V(false), it ran before this run and may be in use. It is asked for a short time, and never stopped.
    type: bool
    default: true
  generation:
    description:
      - The generation that was started, as RV(socle.inference.vllm_launch#module:generation) says. Where another run
        has launched the instance anew before this wait began, that run's engine is left alone, as it is later.
    type: int
    version_added: 0.2.0
  engine:
    description: Container engine that runs the instance; that of O(plan) when omitted, or V(podman).
    type: str
    choices: [podman, docker]
  state_dir:
    description:
      - Folder of socle's state on the host. What earlier starts of the instance took is read from its records, and
        shown beside what this one takes.
    type: path
    version_added: 0.2.0
  progress_path:
    description: Internal; set by the action plugin.
    type: path
"""

EXAMPLES = r"""
- name: Wait until the instance serves
  socle.inference.vllm_ready:
    plan: "{{ sealed.plan }}"
    api_key: "{{ vllm_instances.chat.api_key | default(omit) }}"
"""

RETURN = r"""
ready:
  description: Whether the instance serves; false only in check mode.
  returned: success
  type: bool
reason:
  description: Why it does not serve.
  returned: in check mode, when not ready
  type: str
ready_s:
  description: Seconds from the start of the unit until it was active, or null.
  returned: when ready
  type: float
waited_s:
  description: Seconds that this module waited.
  returned: when ready
  type: float
milestones:
  description:
    - What the engine's log told on the way, by name, each with C(at_s), seconds after the start of the unit. Empty
      for an
      instance that served already.
  returned: always
  type: dict
phases:
  description: Seconds that each phase of the start took, by its name (V(loading weights), V(compiling) and so on).
  returned: always
  type: dict
engine_version:
  description: Version of vLLM.
  returned: when ready
  type: str
models:
  description: What it serves, each with C(id), C(root) and C(max_model_len).
  returned: when ready
  type: list
  elements: dict
max_model_len:
  description: Context length.
  returned: when ready
  type: int
kv_cache:
  description: C(num_gpu_blocks), C(block_size) and C(kv_cache_size_tokens) (vLLM 0.24 and newer) from the metrics.
  returned: when ready
  type: dict
started:
  description: When the wait began, UTC.
  returned: always
  type: str
finished:
  description: When it ended, UTC.
  returned: always
  type: str
unit:
  description: State of the unit.
  returned: always
  type: dict
diagnosis:
  description:
    - The cause, with C(id) and C(name) of docs/diagnosis.md, C(severity), C(sentence), C(remedy), C(line) (the message
      that shows it, or the first error where the cause is not known) and C(evidence).
  returned: on failure with O(started=true)
  type: dict
diagnosed_after_s:
  description:
    - Seconds from the message that ended the wait, or from the end of the engine, to the diagnosis. Null where neither
      of them was seen, as at the time limit.
  returned: on failure with O(started=true)
  type: float
  version_added: 0.2.0
excerpt:
  description: Lines of the engine's log up to the cause and shortly after it, or its last lines.
  returned: on failure with O(started=true)
  type: list
  elements: str
lack:
  description: What did not answer as it should, V(unit), V(answer), V(api_key), V(served_names) or V(token).
  returned: on failure with O(started=false)
  type: str
stopped:
  description: Whether the unit was stopped.
  returned: on failure
  type: bool
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._engine.backends import make_backend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import run
from ansible_collections.socle.inference.plugins.module_utils._engine.ready import await_instance
from ansible_collections.socle.inference.plugins.module_utils._engine.select import engine_of
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str"},
            "plan": {"type": "dict"},
            "port": {"type": "int"},
            "address": {"type": "str"},
            "served_names": {"type": "list", "elements": "str"},
            "api_key": {"type": "str", "no_log": True},
            "timeout_s": {"type": "int"},
            "started": {"type": "bool", "default": True},
            "generation": {"type": "int"},
            "engine": {"type": "str", "choices": ["podman", "docker"]},
            "state_dir": {"type": "path"},
            "progress_path": {"type": "path"},
        },
        required_one_of=[("instance", "plan"), ("port", "plan")],
        supports_check_mode=True,
    )
    started = utc_now()
    try:
        result = await_instance(
            make_backend(module.params["engine"] or engine_of(module.params["plan"]), run),
            {key: module.params[key] for key in ("instance", "port", "address", "served_names", "timeout_s")},
            module.params["plan"],
            module.params["api_key"],
            progress=Progress(module.params["progress_path"]),
            started=module.params["started"],
            check=module.check_mode,
            state_dir=Path(module.params["state_dir"]) if module.params["state_dir"] else None,
            generation=module.params["generation"],
        )
    except SocleError as error:
        module.fail_json(msg=str(error), started=started, finished=utc_now(), **error.fields)
    module.exit_json(changed=False, started=started, finished=utc_now(), **result)


if __name__ == "__main__":
    main()
