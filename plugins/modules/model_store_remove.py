#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes a model from the model store of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store_remove
short_description: Remove a model from the model store of a host
version_added: 0.2.0
description:
  - Removes the links, all revisions and the unfinished downloads of one model, whatever hub they came from.
  - Removes nothing where anything of the model is in use, which is where a process has a file of it open or mapped, a
    container has it mounted, a unit C(vllm-*) or the current or accepted generation of an instance names it, or another
    run works on it.
  - Files that were hard-linked into the store from elsewhere stay where they were. Nothing outside of O(store) is
    touched. A run that dies is ended by the next one.
  - Must run as root, since nobody else sees what all processes hold open.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Returns what would be removed, and in RV(in_use) what is in the way, without failing for it.
  diff_mode:
    support: none
options:
  repo:
    description: The model, as C(organisation/name).
    type: str
    required: true
  store:
    description: The folder that holds the models of this host.
    type: path
    default: /var/lib/socle/models
  state_dir:
    description: Folder of socle's state on the host, whose instances name the revisions that they use.
    type: path
    default: /var/lib/socle
seealso:
  - module: socle.inference.model_store_gc
  - module: socle.inference.model_store_info
"""

EXAMPLES = r"""
- name: Be rid of a model
  socle.inference.model_store_remove:
    repo: Qwen/Qwen3-8B
  become: true
"""

RETURN = r"""
repo:
  description: The model.
  returned: success
  type: str
freed_bytes:
  description: What became free on disk; files that another name still holds do not count.
  returned: success
  type: int
links:
  description: Names in the store that meant a revision of the model, and went.
  returned: success
  type: list
  elements: str
removed:
  description:
    - Revisions that went (C(hub), C(repo), C(id), C(commit), C(requested), C(names), C(size), C(path)), with the
      C(bytes) that each gave back.
  returned: success
  type: list
  elements: dict
stage:
  description: Unfinished downloads that went (C(repo), C(path), C(bytes)).
  returned: success
  type: list
  elements: dict
in_use:
  description: What is in the way, each with the C(reason); with a revision, as in RV(removed).
  returned: in check mode, or where it made the module fail
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
      reason: /etc/containers/systemd/vllm-chat.container names it
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.gc import Rules
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._hub.removal import remove_model
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        rules = Rules(state_dir=Path(params["state_dir"]), check=module.check_mode)
        result = printable(remove_model(Path(params["store"]), params["repo"], rules, Progress()))
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
