#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_lock
short_description: Fix what a branch or tag of a model means for an inventory
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Asks a hub once which files, with which hashes, make up a revision of a model, and keeps the answer as a lock
    beside the inventory. From then on the revision means that content, whatever the hub says later.
  - The controller asks, or a host where the controller has no way to the hub; once in a run, for all of its hosts.
  - The lock is C(.socle/locks/SOURCE/ORG--NAME@REVISION.json) in the folder that the host's inventory comes from; keep
    it under version control. A host that comes from no file has no lock, and the hub's answer of the day counts.
  - When the hub cannot be reached, the lock is used, with a warning.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Asks the hub, writes nothing, and returns what would be locked.
  diff_mode:
    support: full
    details: Shows commit, content id and files before and after.
options:
  repo:
    description: The model on the hub, as C(organisation/name).
    type: str
    required: true
  revision:
    description:
      - A branch, a tag, or a full commit hash. Default is V(main) on Hugging Face and V(master) elsewhere.
      - With a commit hash that is locked, the hub is not asked.
    type: str
  source:
    description:
      - Where the model is. V(directory) is a folder, an export or a tar archive of one, see O(path).
    type: str
    choices: [modelscope, huggingface, directory]
    default: modelscope
  endpoint:
    description:
      - Address of the hub or of a mirror, such as C(https://hf-mirror.com) for V(huggingface).
      - Default is the public hub, C(https://www.modelscope.cn) or C(https://huggingface.co).
    type: str
  token:
    description:
      - Access token for private models. It is sent to O(endpoint) alone, never to where that redirects, and is written
        nowhere.
    type: str
  proxy:
    description:
      - The proxy for all requests, as C(http://host:port); an empty string uses none.
      - When unset, C(HTTP_PROXY), C(HTTPS_PROXY) and C(NO_PROXY) apply, of the controller or of the task's environment
        on the host.
      - Must not hold credentials, since it appears in messages; a proxy that needs some goes into the environment.
    type: str
  ca_file:
    description: PEM file with authorities to trust besides those of the system, where O(ask_from) asks.
    type: path
  path:
    description:
      - The folder or tar archive of O(source=directory), as an absolute path on the host; on the controller with
        O(ask_from=controller).
    type: path
  manifest:
    description:
      - What O(revision) means, as a manifest of the store or of an export has it. It is taken for the answer of the
        hub, which is not asked in this run any more.
    type: dict
  ask_from:
    description:
      - Where the hub is asked. V(auto) asks from the controller, and from the host where the controller cannot reach
        the hub within 5 seconds, or where O(source) is V(directory).
      - With V(controller), no host has a say in what is locked.
    type: str
    choices: [auto, controller, host]
    default: auto
  offline:
    description: Use the lock and never ask the hub; fails without one.
    type: bool
    default: false
  moved:
    description:
      - What to do when the hub has other content for O(revision) than the lock. V(refuse) fails and names both commits;
        V(keep) warns and uses the lock, also when the hub has the revision no more; V(accept) locks what the hub has
        now.
    type: str
    choices: [refuse, keep, accept]
    default: refuse
  store:
    description:
      - The folder that holds the models of the host. What it holds as a full commit that has no lock is taken where no
        hub answers, or with O(offline).
    type: path
  option_names:
    description: What messages call the options that come from variables; option to variable.
    type: dict
    default: {}
seealso:
  - module: socle.inference.modelscope_snapshot
"""

EXAMPLES = r"""
- name: Fix what the branch means
  socle.inference.model_lock:
    repo: Qwen/Qwen3-8B
  register: lock

- name: Bring exactly that to the host
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
    manifest: "{{ lock.manifest }}"
  become: true

- name: Take what the branch means now
  socle.inference.model_lock:
    repo: Qwen/Qwen3-8B
    moved: accept
"""

RETURN = r"""
manifest:
  description: What is locked, C(source), C(content_id), C(created), C(totals) and C(files) with path, size and SHA-256.
  returned: success
  type: dict
content_id:
  description: SHA-256 over the hashes, sizes and paths of all files; equal for equal content from any source.
  returned: success
  type: str
  sample: sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b
commit:
  description: The commit behind the revision; null where the hub does not say.
  returned: success
  type: str
lock:
  description: The file of the lock; null for a host that comes from no inventory file.
  returned: success
  type: str
  sample: /srv/inventory/.socle/locks/modelscope/Qwen--Qwen3-8B@master.json
moved:
  description: Whether the hub had other content than the lock.
  returned: success
  type: bool
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.held import held_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import DEFAULT_REVISION, make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable

ARGUMENT_SPEC = {
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str"},
    "source": {"type": "str", "choices": ["modelscope", "huggingface", "directory"], "default": "modelscope"},
    "endpoint": {"type": "str"},
    "token": {"type": "str", "no_log": True},
    "proxy": {"type": "str"},
    "ca_file": {"type": "path"},
    "path": {"type": "path"},
    "manifest": {"type": "dict"},
    "ask_from": {"type": "str", "choices": ["auto", "controller", "host"], "default": "auto"},
    "offline": {"type": "bool", "default": False},
    "moved": {"type": "str", "choices": ["refuse", "keep", "accept"], "default": "refuse"},
    "store": {"type": "path"},
    "option_names": {"type": "dict", "default": {}},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    options = {name: params[name] for name in ("source", "endpoint", "token", "proxy", "ca_file", "path")}
    try:
        revision = params["revision"] or DEFAULT_REVISION[params["source"]]
        if params["store"]:
            held = held_commit(Path(params["store"]), params["source"], params["repo"], revision)
            module.exit_json(changed=False, manifest=json.loads(held.dumps()) if held else None)
        manifest = make_hub(**options).resolve(params["repo"], revision)
    except SocleError as error:
        unreachable = isinstance(error, HubUnreachable)
        module.fail_json(**printable({**error.fields, "msg": str(error), "hub_unreachable": unreachable}))
    # The lock is the action plugin's.
    module.exit_json(changed=False, manifest=json.loads(manifest.dumps()))


if __name__ == "__main__":
    main()
