#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings back what an earlier generation of an instance ran."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_rollback
short_description: Brings back what an earlier generation of an instance ran
version_added: 0.2.0
description:
  - Starts the plan of an earlier generation, by the plan and unit that are kept on the host, as a new generation,
    without waiting for it. M(socle.inference.vllm_ready) does the waiting.
  - That is the accepted generation, or O(generation). Where it runs already, nothing happens. A rollback that was
    interrupted is continued.
  - Refuses, before anything is changed, where the image, the model, the chat template or a secret of that generation is
    not on the host any more. What M(socle.inference.vllm_launch) refuses is refused here too.
  - A rollback that failed before is not repeated without O(retry).
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Says what would run, and what is in the way.
  diff_mode:
    support: full
options:
  instance:
    description: Name of the instance.
    type: str
    required: true
  generation:
    description: Number of the generation to bring back; the accepted one when omitted.
    type: int
  automatic:
    description:
      - Whether this follows a failure. Then only a generation that is marked as failed gives way, and where none was
        accepted nothing happens, and RV(reason) says so.
    type: bool
    default: false
  retry:
    description: Whether to bring back again what failed before when it was brought back.
    type: bool
    default: false
  facts:
    description: What M(socle.inference.gpu_facts) found on the host, for an instance with GPUs.
    type: dict
  idle_s:
    description: As O(socle.inference.vllm_launch#module:idle_s).
    type: int
    default: 30
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
  progress_path:
    description: Internal; set by the action plugin.
    type: path
"""

EXAMPLES = r"""
- name: Bring back what was accepted last
  socle.inference.vllm_rollback:
    instance: chat

- name: Bring back a generation by its number
  socle.inference.vllm_rollback:
    instance: chat
    generation: 4
"""

RETURN = r"""
action:
  description: V(started), V(restarted) or V(none); in check mode V(would_start), V(would_restart) or V(none).
  returned: success
  type: str
generation:
  description: Number of the generation that runs by this, or of the current one where nothing was brought back.
  returned: success
  type: int
restores:
  description: Number of the generation that was brought back; null where RV(reason) says why there is none.
  returned: success
  type: int
reason:
  description: Why nothing is to come back, or null.
  returned: success
  type: str
starting:
  description: As RV(socle.inference.vllm_launch#module:starting).
  returned: success
  type: bool
verified:
  description: Whether it ran already and is accepted, so that there is nothing to be checked.
  returned: success
  type: bool
running:
  description: Whether the unit runs or comes up, after this.
  returned: success
  type: bool
plan:
  description: The sealed plan that was brought back.
  returned: success
  type: dict
unit:
  description: Path of the unit file.
  returned: success
  type: str
launch_fingerprint:
  description: Launch fingerprint of the generation.
  returned: success
  type: str
failed_before:
  description: Generation, reason and time of an earlier failure of the same, or null.
  returned: success
  type: dict
argv_changes:
  description: Flags that were added to and removed from the engine's command line.
  returned: when something is brought back
  type: dict
drain:
  description: As RV(socle.inference.vllm_launch#module:drain).
  returned: when something is brought back
  type: dict
generations:
  description: Numbers of the generations that there are.
  returned: on failure, where the one that is wanted does not exist
  type: list
  elements: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.changes import unit_diff
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import plan_of_way_back
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.host_launcher import host_launcher
from ansible_collections.socle.inference.plugins.module_utils._engine.select import engine_of
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "generation": {"type": "int"},
            "automatic": {"type": "bool", "default": False},
            "retry": {"type": "bool", "default": False},
            "facts": {"type": "dict"},
            "idle_s": {"type": "int", "default": 30},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    state_dir = Path(params["state_dir"])
    which = (params["instance"], params["generation"], params["automatic"])
    try:
        # What comes back may have run under another container engine.
        engine = engine_of(plan_of_way_back(state_dir / "instances", which[0], Files(), *which[1:]))
        launcher = host_launcher(
            engine, state_dir, params["facts"], params["idle_s"], Progress(params["progress_path"])
        )
        result = launcher.roll_back(*which, retry=params["retry"], check=module.check_mode)
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
