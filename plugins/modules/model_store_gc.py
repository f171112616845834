#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Frees what is not needed in the model store of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store_gc
short_description: Frees what is not needed in the model store of a host
version_added: 0.2.0
description:
  - Removes revisions that nothing needs, and what downloads that were cut off left more than 7 days ago.
  - A revision stays where a link of the store names it, or named it before (O(keep)); where a process has a file of it
    open or mapped, or a container has it mounted; and where a unit C(vllm-*) or a generation of an instance names it.
  - Nothing outside C(STORE/.store) is touched. A model that is being downloaded is left alone. A run that dies leaves
    at most trash, which the next one removes.
  - Must run as root, since nobody else sees what all processes hold open.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Returns what would be removed, and how much that would free.
  diff_mode:
    support: none
options:
  store:
    description: The folder that holds the models of this host.
    type: path
    default: /var/lib/socle/models
  keep:
    description: How many revisions of each link stay, the current one included.
    type: int
    default: 2
  unlinked_age:
    description:
      - A model that no link names any more is removed once it is older than this. V(0d) removes it at once.
      - To be rid of a model at once, use M(socle.inference.model_store_remove).
    type: str
    default: 7d
  state_dir:
    description: Folder of socle's state on the host, whose instances name the revisions that they use.
    type: path
    default: /var/lib/socle
seealso:
  - module: socle.inference.model_store_info
  - module: socle.inference.model_store_remove
"""

EXAMPLES = r"""
- name: Free old revisions
  socle.inference.model_store_gc:
  become: true
"""

RETURN = r"""
freed_bytes:
  description: What became free on disk; files that another name still holds do not count.
  returned: success
  type: int
removed:
  description:
    - Revisions that went (C(hub), C(repo), C(id), C(commit), C(requested), C(names), C(size), C(path)), with the
      C(bytes) that each gave back.
  returned: success
  type: list
  elements: dict
kept:
  description: Revisions that stay, each with the C(reason).
  returned: success
  type: list
  elements: dict
  sample:
    - hub: modelscope
      repo: Qwen/Qwen3-8B
      id: 4a1b2c3d4e5f
      commit: null
      requested: master
      names: [master]
      size: 16381470720
      path: /var/lib/socle/models/.store/modelscope/Qwen--Qwen3-8B/rev/4a1b2c3d4e5f
      reason: it is the current one of Qwen3-8B
stage:
  description: Left-overs of downloads that went (C(repo), C(path), C(bytes)).
  returned: success
  type: list
  elements: dict
busy:
  description: Models that were left alone, since another run works on them.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.ages import parse_age
from ansible_collections.socle.inference.plugins.module_utils._hub.gc import Rules, collect
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "keep": {"type": "int", "default": 2},
            "unlinked_age": {"type": "str", "default": "7d"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        rules = Rules(
            keep=params["keep"],
            unlinked_age_s=parse_age("unlinked_age", params["unlinked_age"]),
            state_dir=Path(params["state_dir"]),
            check=module.check_mode,
        )
        result = printable(collect(Path(params["store"]), rules, Progress()))
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
