#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_sync
short_description: Bring a model to several hosts, over the WAN once
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - One host of several that need the same model downloads it; the others take it from each other over the LAN while it
    still arrives. Each host proves every file by its SHA-256 for itself. The role
    P(socle.inference.model_store#role) puts the steps in their order; use that, unless you need another one.
  - The steps are the values of O(state). Each is one task for all hosts, so that Ansible's linear strategy makes every
    host wait for the others between them.
  - The download is a process of its own on the host, a transient systemd unit where there is systemd. It outlives a
    broken connection and the end of the run, and a later run finds it and waits for it.
  - The relay that serves the neighbours listens on one address and a port that the kernel chooses, asks for a token
    that each run makes anew, serves nothing but the files of the model, and ends with V(stopped) of the last run that
    uses it, or ten minutes after its last use. Between the hosts the files are not encrypted.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: V(inspected) answers as ever and reports a change where one would be made; the other states do nothing.
  diff_mode:
    support: partial
    details: V(finished) shows commit and content id before and after.
options:
  state:
    description:
      - V(inspected) looks at the store and says what is missing, what is in the way, and whether a job runs. Changes
        nothing, but that a store on a network file system gets a name.
      - V(started) starts the job with its relay, or finds the one that runs. The relay of a job that is over stays only
        where a fresh look finds nothing to do.
      - V(joined) tells the job its O(upstreams); the download begins. A job that knows them already goes on as it is.
      - V(finished) waits for the end of the download, shows its progress, and returns its result.
      - V(stopped) ends the relay, unless another run uses it.
    type: str
    choices: [inspected, started, joined, finished, stopped]
    required: true
  repo:
    description: The model, as C(organisation/name).
    type: str
    required: true
  revision:
    description: What O(manifest) was asked for as; for messages and for the store.
    type: str
    default: master
  manifest:
    description:
      - The files of the revision, as M(socle.inference.model_lock) returns them.
      - Required for O(state=inspected), O(state=started) and O(state=joined).
    type: dict
  source:
    description: The kind of hub that the first host asks.
    type: str
    choices: [modelscope, huggingface, directory]
    default: modelscope
  endpoint:
    description: Address of the hub. Default is the public one of O(source).
    type: str
  token:
    description: Access token of the hub for private models. It is sent to O(endpoint) alone.
    type: str
  proxy:
    description:
      - The proxy for requests to the hub, as C(http://host:port); an empty string uses none. Neighbours are never asked
        through a proxy.
      - When unset, C(HTTP_PROXY), C(HTTPS_PROXY) and C(NO_PROXY) of the task's environment apply.
    type: str
  ca_file:
    description: File on the host with the certificates of authorities that are trusted for O(endpoint).
    type: path
  path:
    description: With O(source=directory), the folder on the host.
    type: path
  store:
    description: The folder that holds the models of this host.
    type: path
    default: /var/lib/socle/models
  link:
    description: Name of the symbolic link in O(store). Default is the name part of O(repo).
    type: str
  verify:
    description:
      - V(quick) compares with the ledger of what was proven; V(structure) also looks into the headers of the files;
        V(full) hashes every file.
    type: str
    choices: [quick, structure, full]
    default: quick
  verify_max_age:
    description: Hash everything where that was last done longer ago, as C(30d), C(12h) or C(90m).
    type: str
  reserve_gib:
    description: GiB that must stay free. Default is the larger of 5 GiB and 2 % of the file system.
    type: float
  adopt_from:
    description: Folders on the host that may hold files of the model already.
    type: list
    elements: path
    default: []
  allow_shared_fs:
    description:
      - Whether O(store) may be on a network file system. Then one host alone may write it; RV(store_name) tells which
        hosts share one, and the role lets the first of them bring the model.
    type: bool
    default: false
  allow_volatile_fs:
    description: Whether O(store) may be where it does not outlive the host (tmpfs) or its container (overlay).
    type: bool
    default: false
  force_prechecks:
    description: Whether to go on although space, inodes or the clock of the host speak against it.
    type: bool
    default: false
  lock_timeout:
    description: Seconds that the job waits for another run that works on the same model in O(store).
    type: int
    default: 600
  owner:
    description: User that the files belong to, by name or number. Default is the one that runs this.
    type: str
  group:
    description: Group that the files belong to, by name or number. Default is that of the user that runs this.
    type: str
  offline:
    description: Whether to fail where something is missing, instead of asking for it.
    type: bool
    default: false
  connections:
    description: Files that are downloaded at once. Default is 4.
    type: int
  relay:
    description: Whether O(state=started) also serves the neighbours.
    type: bool
    default: true
  lan_address:
    description:
      - Address of the host that its neighbours reach.
      - Default is the address that Ansible connects to where the host has it, else that of the default route. A public
        address is used only when it is given here.
    type: str
  upstreams:
    description: For O(state=joined), where to take the files from, best first, as O(state=started) returned it there.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The host's name in the inventory, for messages.
        type: str
        required: true
      address:
        description: Address of its relay.
        type: str
        required: true
      port:
        description: Port of its relay.
        type: int
        required: true
  seed:
    description:
      - Whether the hub belongs to this host, which asks it as soon as its O(upstreams), if any, do not have a file.
      - Any other host asks it only when nothing listens any more at any of its upstreams, or when those that are silent
        have been so for two minutes.
    type: bool
    default: false
  allow_multi_wan:
    description: Whether a host that reaches none of its O(upstreams) may download from the hub for itself, at once.
    type: bool
    default: false
  option_names:
    description: What messages call the options that come from variables; option to variable.
    type: dict
    default: {}
  runtime_dir:
    description: Folder for the files of running jobs. Default is C(/run/socle/models) for root.
    type: path
  relay_token:
    description: Internal; set by the action plugin.
    type: str
  connected_by:
    description: Internal; set by the action plugin.
    type: str
  run:
    description: Internal; set by the action plugin.
    type: str
  content_id:
    description:
      - For O(state=finished), the content that the job is to bring, as M(socle.inference.model_lock) returned it. Where
        another run has put a job for other content in its place, the task fails.
      - Default is whatever the job brings.
    type: str
  wait_s:
    description: Internal; set by the action plugin.
    type: float
    default: 5
seealso:
  - module: socle.inference.model_lock
  - module: socle.inference.modelscope_snapshot
"""

EXAMPLES = r"""
- name: Bring a model to all hosts, with its prechecks and in the right order
  ansible.builtin.include_role:
    name: socle.inference.model_store
  vars:
    model_store_models: [{repo: Qwen/Qwen3-8B}]

- name: See what a host lacks
  socle.inference.model_sync:
    state: inspected
    repo: Qwen/Qwen3-8B
    manifest: "{{ locked.manifest }}"
  become: true
  register: seen

- name: Wait for a job that an interrupted run left
  socle.inference.model_sync:
    state: finished
    repo: Qwen/Qwen3-8B
  become: true
"""

RETURN = r"""
complete:
  description: Whether all files are in the store; C(plan) says how many of them are still to be hashed.
  returned: O(state=inspected)
  type: bool
work:
  description: Whether there is something to do; a file is missing, some or all are to be hashed, or a job runs.
  returned: O(state=inspected)
  type: bool
store_name:
  description: What hosts that share a store on a network file system have in common; null for another store.
  returned: O(state=inspected)
  type: str
plan:
  description:
    - What a run would download (C(bytes)), take from the free space (C(need)), find free (C(free)) and leave free
      (C(reserve)); what of it an interrupted run left (C(staged)), the folders in O(adopt_from) may have
      (C(adoptable)), and what is linked from other revisions instead (C(reusable)); which files are to be fetched
      (C(missing), at most 100, and C(missing_files)); how many the revision lacks (C(wanted_files)), how many do not
      belong there (C(foreign_files)), and how many of the others are not proven, so that the job hashes them
      (C(unproven_files)); what is in the way (C(faults), each with C(id) and C(message)).
  returned: O(state=inspected)
  type: dict
due:
  description: Whether all files are to be hashed this time.
  returned: O(state=inspected)
  type: bool
owner:
  description: Whom the files of the model are to belong to, as C(USER:GROUP).
  returned: O(state=inspected) with O(owner) or O(group)
  type: str
job:
  description:
    - What the job does now; C(phase), C(done) and C(total) in bytes, C(rate_per_s), C(left_s), C(source), C(file).
  returned: O(state=inspected) with a running job, O(state=started)
  type: dict
new:
  description: Whether the job was started just now.
  returned: O(state=started)
  type: bool
address:
  description: Address of the relay; null without one.
  returned: O(state=started)
  type: str
port:
  description: Port of the relay; null without one.
  returned: O(state=started)
  type: int
finished:
  description: The download is over.
  returned: O(state=finished)
  type: bool
stopped:
  description:
    - Whether nothing runs any more; false where a download was still under way, which goes on, and where another run
      uses the relay, which ends with that one.
  returned: O(state=stopped)
  type: bool
path:
  description: The folder with the files of the snapshot.
  returned: O(state=inspected), O(state=finished)
  type: str
link:
  description: The symbolic link that names the current snapshot.
  returned: O(state=inspected), O(state=finished)
  type: str
repo:
  description: The model.
  returned: O(state=inspected), O(state=finished)
  type: str
requested:
  description: The revision as it was asked for.
  returned: O(state=inspected), O(state=finished)
  type: str
commit:
  description: The commit behind the revision; null where the hub does not say.
  returned: O(state=inspected), O(state=finished)
  type: str
content_id:
  description: SHA-256 over the hashes, sizes and paths of all files.
  returned: O(state=inspected), O(state=started), O(state=finished)
  type: str
previous:
  description: Path, commit and content id of the snapshot that the link named before; null without one.
  returned: O(state=inspected), O(state=finished)
  type: dict
bytes:
  description:
    - Sizes in bytes, as in M(socle.inference.modelscope_snapshot); C(wan) came from the hub, C(lan) from neighbours.
  returned: O(state=inspected), O(state=finished)
  type: dict
files:
  description: Counts of files, as in M(socle.inference.modelscope_snapshot).
  returned: O(state=inspected), O(state=finished)
  type: dict
moved_aside:
  description:
    - The C(files) that did not belong into the snapshot and were moved out of it, at most 100, and the C(folder) where
      they are for a week.
  returned: O(state=inspected), O(state=finished)
  type: dict
verify:
  description: How the files were proven, as in M(socle.inference.modelscope_snapshot).
  returned: O(state=inspected), O(state=finished)
  type: dict
seconds:
  description: Duration of the work.
  returned: O(state=inspected), O(state=finished)
  type: float
mb_s:
  description: MB received per second; null without a download.
  returned: O(state=inspected), O(state=finished)
  type: float
sources:
  description: Hubs and neighbours that bytes came from.
  returned: O(state=inspected), O(state=finished)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._hub.sync import sync
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["inspected", "started", "joined", "finished", "stopped"],
                "required": True,
            },
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "master"},
            "manifest": {"type": "dict"},
            "source": {"type": "str", "choices": ["modelscope", "huggingface", "directory"], "default": "modelscope"},
            "endpoint": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "proxy": {"type": "str"},
            "ca_file": {"type": "path"},
            "path": {"type": "path"},
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "link": {"type": "str"},
            "verify": {"type": "str", "choices": ["quick", "structure", "full"], "default": "quick"},
            "verify_max_age": {"type": "str"},
            "reserve_gib": {"type": "float"},
            "adopt_from": {"type": "list", "elements": "path", "default": []},
            "allow_shared_fs": {"type": "bool", "default": False},
            "allow_volatile_fs": {"type": "bool", "default": False},
            "force_prechecks": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "offline": {"type": "bool", "default": False},
            "connections": {"type": "int"},
            "relay": {"type": "bool", "default": True},
            "lan_address": {"type": "str"},
            "upstreams": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "port": {"type": "int", "required": True},
                },
            },
            "seed": {"type": "bool", "default": False},
            "allow_multi_wan": {"type": "bool", "default": False},
            "option_names": {"type": "dict", "default": {}},
            "runtime_dir": {"type": "path"},
            "relay_token": {"type": "str", "no_log": True},
            "connected_by": {"type": "str"},
            "run": {"type": "str"},
            "content_id": {"type": "str"},
            "wait_s": {"type": "float", "default": 5},
        },
        required_if=[("state", value, ["manifest"]) for value in ("inspected", "started", "joined")],
        supports_check_mode=True,
    )
    hide_passwords(module)
    try:
        result = printable(sync(module.params, module.check_mode))
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    for warning in result.pop("warnings", []):
        module.warn(warning)
    diff = result.pop("diff", None)
    if diff and module._diff:
        result["diff"] = diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
