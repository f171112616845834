#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts, stops or marks an instance."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_launch
short_description: Starts, stops or marks an instance
version_added: 0.1.0
description:
  - Turns a sealed plan into a unit, keeps plan and unit as a numbered generation, installs the unit and asks systemd
    for a start, without waiting for it. M(socle.inference.vllm_ready) does the waiting.
  - Restarts at most once, and only if the launch fingerprint or the unit's text changed or the unit does not run. A run
    that was killed at any point is continued by the next one.
  - The unit is checked with the host's own Quadlet generator, or for Docker with C(systemd-analyze verify), before it
    is installed.
  - An instance that moves to another container engine is stopped, and the unit that it had there is taken away.
  - Launches of one host come one after the other. A second one waits up to 600 s, and shows for whom.
  - Refuses a start, before anything is written, where another instance of the host runs, starts or ends and holds the
    same port or GPU, another process listens on the port, or a unit or container of that name was made by somebody
    else; also where the host cannot give the instance its GPUs, since the versions of driver and libraries differ or no
    CDI specification lists them. In check mode that is a warning.
  - Where a start has systemd read its units anew while Docker containers of NVIDIA's legacy hook run, which lose their
    GPUs by that, a warning names them.
  - What runs is stopped before it is replaced. An engine with C(--shutdown-timeout) then takes no new request and has
    that long for those that it has; for any other the module waits up to O(idle_s) for a moment without requests. The
    weights of another model are read into the page cache meanwhile.
  - Before it starts, the memory of the instance's GPUs must be free, as far as C(--gpu-memory-utilization) asks for it.
    What others hold is told, by process, program and unit or container, before anything is stopped; the memory of the
    instance's own former engine has 60 s to become free.
  - A launch that failed before is not started again without O(retry). Where it runs all the same, it is left as it is,
    with a warning.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Accepts a plan that is not sealed, and then compares what is known of it.
  diff_mode:
    support: full
options:
  instance:
    description: Name of the instance; not needed with O(plan).
    type: str
  plan:
    description: The sealed plan, needed to start.
    type: dict
  state:
    description: Whether the instance shall run. A stopped instance keeps its unit and starts again at the next boot.
    type: str
    choices: [started, stopped]
    default: started
  engine:
    description: Container engine that runs the instance; that of O(plan) when omitted, or V(podman).
    type: str
    choices: [podman, docker]
  facts:
    description:
      - What M(socle.inference.gpu_facts) found on the host, for an instance with GPUs. The versions of driver and
        libraries are read, and whether it has GPUs.
    type: dict
  retry:
    description: Whether to start again what failed before with the same launch fingerprint.
    type: bool
    default: false
  restart:
    description: Whether to start anew also what runs already by this plan.
    type: bool
    default: false
    version_added: 0.2.0
  idle_s:
    description:
      - How many seconds to wait, before an engine without C(--shutdown-timeout) is stopped, for a moment in which it
        has no request.
    type: int
    default: 30
    version_added: 0.2.0
  progress_path:
    description: Internal; set by the action plugin.
    type: path
  mark:
    description:
      - Note that a generation was accepted or failed, instead of starting or stopping anything.
      - Only the current generation can be accepted; where another one took its place while it was probed, the mark is
        refused.
    type: str
    choices: [accepted, failed]
  generation:
    description: The generation to mark; the current one when omitted.
    type: int
  reason:
    description: Why the generation failed, in one sentence.
    type: str
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
"""

EXAMPLES = r"""
- name: Launch the instance
  socle.inference.vllm_launch:
    plan: "{{ sealed.plan }}"

- name: Mark the running generation as accepted
  socle.inference.vllm_launch:
    instance: chat
    mark: accepted

- name: Stop the instance
  socle.inference.vllm_launch:
    instance: chat
    state: stopped
"""

RETURN = r"""
action:
  description:
    - What was done. One of V(started), V(restarted), V(stopped), V(marked_accepted), V(marked_failed), V(none).
    - In check mode V(would_start), V(would_restart), V(would_stop), V(would_be_marked_accepted),
      V(would_be_marked_failed), V(none).
  returned: success
  type: str
starting:
  description:
    - Whether the unit is on its way up and that start is still to be proven. True where this run started it, and where
      it still comes up from an earlier run and its generation was never accepted.
    - The value for O(socle.inference.vllm_ready#module:started).
  returned: when O(state=started) and O(mark) is not given
  type: bool
generation:
  description: Number of the generation; null where there is none, and in check mode with a plan that is not sealed.
  returned: success
  type: int
unit:
  description: Path of the unit file.
  returned: success
  type: str
launch_fingerprint:
  description: Launch fingerprint of the generation.
  returned: success
  type: str
failed_before:
  description: Generation, reason and time of the earlier failure with the same launch fingerprint, or null.
  returned: always
  type: dict
argv_changes:
  description: Flags that were added to and removed from the engine's command line.
  returned: when started
  type: dict
drain:
  description:
    - What the end of the engine before took, or null where none was stopped. C(waited_s) for a moment without requests,
      C(requests) that it still had (null where it did not answer), C(stop_s), C(memory_s) until the memory of the GPUs
      was free, C(warmed_bytes) of weights that were asked into the page cache.
  returned: when started
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.changes import unit_diff
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import current_plan
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.host_launcher import host_launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.select import engine_of
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str"},
            "plan": {"type": "dict"},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "engine": {"type": "str", "choices": ["podman", "docker"]},
            "facts": {"type": "dict"},
            "retry": {"type": "bool", "default": False},
            "restart": {"type": "bool", "default": False},
            "idle_s": {"type": "int", "default": 30},
            "mark": {"type": "str", "choices": ["accepted", "failed"]},
            "generation": {"type": "int"},
            "reason": {"type": "str"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
            "progress_path": {"type": "path"},
        },
        required_one_of=[("instance", "plan")],
        supports_check_mode=True,
    )
    params = module.params
    instance = params["instance"] or params["plan"].get("instance") or ""
    state_dir = Path(params["state_dir"])
    try:
        engine = params["engine"] or engine_of(
            params["plan"] or current_plan(state_dir / "instances", instance, Files())
        )
        launcher = host_launcher(
            engine, state_dir, params["facts"], params["idle_s"], Progress(params["progress_path"])
        )
        if params["mark"]:
            result = launcher.mark(
                instance, params["mark"], params["reason"], params["generation"], check=module.check_mode
            )
        elif params["state"] == "stopped":
            result = launcher.stop(instance, check=module.check_mode)
        elif params["plan"] is None:
            module.fail_json(msg=f"Cannot start {instance}: no plan was given; give the sealed plan as 'plan'.")
        else:
            result = launcher.start(
                params["plan"], retry=params["retry"], check=module.check_mode, restart=params["restart"]
            )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    before, after = result.pop("unit_before", ""), result.pop("unit_after", "")
    for warning in result.pop("warnings", []):
        module.warn(warning)
    if module._diff:
        result["diff"] = unit_diff(result, before, after)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
