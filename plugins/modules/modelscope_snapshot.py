#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: modelscope_snapshot
short_description: Bring a model to a host, verified
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Downloads a revision of a model from the ModelScope hub, or another O(source), into a store on the host, proves
    every file by its SHA-256, and only then makes it visible, by renames. Whenever the module is interrupted, what is
    visible is either the old or the new snapshot, complete; the next run goes on where it ended.
  - A snapshot lives in C(STORE/.store/SOURCE/ORG--NAME/rev/ID); a relative symbolic link C(STORE/LINK) names the
    current one. Give containers the resolved path that is returned, so that it is visible which revision runs.
  - Files that another revision in the store already holds are hard-linked, not downloaded.
  - Needs nothing but the Python standard library on the host.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Asks the hub for its listing, writes nothing, and returns RV(plan).
  diff_mode:
    support: full
    details: Shows commit and content id before and after.
options:
  repo:
    description: The model on the hub, as C(organisation/name).
    type: str
    required: true
  revision:
    description:
      - A branch, a tag, or a full commit hash.
      - With a commit hash that is in the store and proven, the hub is not asked at all.
      - Default is C(master), and C(main) on Hugging Face.
    type: str
  source:
    description:
      - V(modelscope) and V(huggingface) are hubs. V(directory) is O(path) on the host.
    type: str
    choices: [modelscope, huggingface, directory]
    default: modelscope
  endpoint:
    description:
      - Address of the hub, or of a mirror that speaks its protocol. Default is C(https://www.modelscope.cn) or
        C(https://huggingface.co). Environment variables of the hubs' own tools are not read.
    type: str
  path:
    description:
      - For O(source=directory), the absolute path of what M(socle.inference.model_export) made (a folder, or a tar
        archive of it without compression), or of a plain folder, which is hashed.
    type: path
  manifest:
    description:
      - The manifest of the revision, as M(socle.inference.model_lock) returns it. Then no hub is asked what the
        revision holds, and where the store has all of it no request is sent.
    type: dict
  store:
    description: The folder that holds the models of this host; made when it is missing.
    type: path
    default: /var/lib/socle/models
  link:
    description:
      - Name of the symbolic link in O(store) that names the current snapshot. Default is the name part of
        O(repo).
    type: str
  token:
    description:
      - Access token for private models. It is sent to O(endpoint) alone, never to where that redirects.
      - Must not hold blanks or line breaks, as at the end of a file.
    type: str
  proxy:
    description:
      - The proxy for all requests, as C(http://host:port); an empty string uses none.
      - When unset, C(HTTP_PROXY), C(HTTPS_PROXY) and C(NO_PROXY) of the task's environment apply.
      - Must not hold credentials, since it appears in messages; a proxy that needs some goes into the task's
        environment.
    type: str
  ca_file:
    description: File on the host with certificates (PEM) to trust besides the host's own, as for a proxy's.
    type: path
  verify:
    description:
      - V(quick) compares size, times, inode and device of every file with the ledger of what was proven, and hashes
        only files where something differs. It does not see bit rot.
      - V(structure) also looks whether the files fit together, as is done before every activation.
      - V(full) hashes every file too, with half of the cores and four threads at most, and leaves the page cache as it
        was.
    type: str
    choices: [quick, structure, full]
    default: quick
  verify_max_age:
    description: Hash every file where that was last done longer ago than this, such as V(30d), or is not known.
    type: str
  adopt_from:
    description:
      - Folders on the host that may hold files of the model, such as caches of a hub's own tools. What has the right
        content is hard-linked. It is copied from another file system, and where somebody but root could write to it
        (another owner, or write permission for group or others, of the file or of a folder above it). The rest is
        downloaded.
      - A linked file becomes read-only where it was, since it is the same file.
    type: list
    elements: path
    default: []
  reserve_gib:
    description: GiB that must stay free after the download. Default is the larger of 5 GiB and 2 % of the file system.
    type: float
  allow_shared_fs:
    description: Take a store on a network file system, where locks may not reach other hosts; one host alone may write.
    type: bool
    default: false
  allow_volatile_fs:
    description: Take a store that does not outlive the host (tmpfs) or its container (overlay).
    type: bool
    default: false
  force:
    description: Download in spite of too little space, a clock that is off, or a file system that does not last.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for another run that works on the same model on this host.
    type: int
    default: 600
  owner:
    description:
      - User that the files of the snapshot belong to, by name or number. When unset, they stay with the user that runs
        this, which is root with C(become).
      - Files that have another owner get it, also where they are whole. One that other revisions share, or that
        O(adopt_from) found and that was hard-linked, is the same file there.
      - Folders stay root's, and the files read-only.
    type: str
  group:
    description: Group that the files of the snapshot belong to, by name or number, as with O(owner).
    type: str
  content_id:
    description:
      - The content that is expected, as returned in RV(content_id). Anything else is an error, before any
        download.
    type: str
  offline:
    description: Use what is in the store and never ask the hub; fails when that is not complete.
    type: bool
    default: false
  activate:
    description:
      - With V(false), only verify what is in the store, without a hub. Nothing is published, and the link may name
        another revision and goes on to do so. Nothing is asked of the file system, since no file of a model is written.
      - Only what was found is noted in the store, which check mode leaves out too.
    type: bool
    default: true
  progress_path:
    description: Internal; set by the action plugin.
    type: path
seealso:
  - name: ModelScope
    description: The hub.
    link: https://www.modelscope.cn
"""

EXAMPLES = r"""
- name: Bring a model to the host
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
  become: true
  register: model

- name: Pin the content, whatever the branch says
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
    revision: master
    content_id: "{{ pinned_content_id }}"
  become: true

- name: Take over what the hub's own tool had downloaded
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
    adopt_from: [/root/.cache/modelscope, /data/models]
  become: true

- name: Import from a disk
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
    source: directory
    path: /mnt/usb/Qwen3-8B
  become: true

- name: Hash every file again, without the hub
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
    activate: false
    verify: full
  become: true
"""

RETURN = r"""
path:
  description: The folder with the files of the snapshot.
  returned: success
  type: str
  sample: /var/lib/socle/models/.store/modelscope/Qwen--Qwen3-8B/rev/4a1b2c3d4e5f
link:
  description: The symbolic link that names the current snapshot.
  returned: success
  type: str
  sample: /var/lib/socle/models/Qwen3-8B
repo:
  description: The model.
  returned: success
  type: str
requested:
  description: The revision as it was asked for.
  returned: success
  type: str
commit:
  description: The commit behind the revision; null where the hub does not say, then RV(content_id) alone identifies it.
  returned: success
  type: str
content_id:
  description: SHA-256 over the hashes, sizes and paths of all files; equal for equal content from any source.
  returned: success
  type: str
  sample: sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b
previous:
  description: Path, commit and content id of the snapshot that the link named before; null without one.
  returned: success
  type: dict
bytes:
  description:
    - Sizes in bytes. C(total) of the snapshot; received from the hub (C(wan)), from neighbours (C(lan)) and from
      O(path) (C(disk)); hard-linked from other revisions (C(reused_link)); taken over from interrupted runs
      (C(reused_part)) and from O(adopt_from) (C(adopted)).
  returned: success
  type: dict
  sample: {total: 269060552, wan: 269060552, lan: 0, disk: 0, reused_link: 0, reused_part: 0, adopted: 0}
files:
  description:
    - Counts of files, C(total), C(fetched), C(verified) as they were, C(repaired), and C(removed) foreign ones.
    - C(owner_changed) counts those that were there and belonged to somebody else than O(owner) and O(group), or were
      not read-only.
  returned: success
  type: dict
  sample: {total: 9, fetched: 9, verified: 0, repaired: 0, removed: 0, owner_changed: 0}
moved_aside:
  description:
    - The C(files) that did not belong into the snapshot and were moved out of it, at most 100, and the C(folder) where
      they are for a week.
  returned: success
  type: dict
verify:
  description:
    - C(level), C(seconds) spent, number of files hashed (C(hashed_files)), rate of hashing in MB/s (C(mb_s)), and since
      when all of them have been known by their hashes (C(checked), null when that is not known).
  returned: success
  type: dict
  sample: {level: quick, seconds: 0.001, hashed_files: 0, mb_s: null, checked: '2026-11-30T09:28:44Z'}
seconds:
  description: Duration of the whole run.
  returned: success
  type: float
mb_s:
  description: Bytes received per second of the whole run, in MB/s; null without a download.
  returned: success
  type: float
sources:
  description: Hosts that bytes came from.
  returned: success
  type: list
  elements: str
plan:
  description:
    - What a run would bring (C(bytes)), how much of that an interrupted run left (C(staged)) or O(adopt_from) may have
      (C(adoptable)), how much it would link from other revisions instead (C(reusable)), how much room the rest takes
      (C(need)), what is free (C(free)), which files are to be fetched (C(missing), at most 100, and their number
      C(missing_files)), how many files the revision lacks (C(wanted_files)) and how many do not belong there
      (C(foreign_files)), what is in the way (C(faults)), and what is known of the store's file system (C(store)).
  returned: in check mode
  type: dict
  sample:
    bytes: 269060552
    staged: 0
    adoptable: 0
    need: 269060552
    free: 68719476736
    missing: [config.json, model.safetensors]
    missing_files: 2
    faults: []
    store: {folder: /var/lib/socle/models, file_system: ext4, mount_point: /}
"""

import json
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.ages import parse_age
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import DEFAULT_REVISION, make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import loads
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import reserve_bytes
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._packages.address_module import AddressModule
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def make_request(params: dict[str, Any], check: bool) -> Request:
    """What the options ask for; raises SocleError for what they cannot mean."""
    age = params["verify_max_age"]
    return Request(
        repo=params["repo"],
        revision=params["revision"] or DEFAULT_REVISION[params["source"]],
        store=Path(params["store"]),
        link=params["link"],
        full=params["verify"] == "full",
        structure=params["verify"] == "structure",
        verify_max_age_s=parse_age("verify_max_age", age) if age else None,
        reserve_bytes=reserve_bytes(params["reserve_gib"]),
        lock_timeout_s=params["lock_timeout"],
        content_id=params["content_id"],
        manifest=loads(json.dumps(params["manifest"])) if params["manifest"] else None,
        adopt_from=tuple(map(Path, params["adopt_from"])),
        allow_shared_fs=params["allow_shared_fs"],
        allow_volatile_fs=params["allow_volatile_fs"],
        force=params["force"],
        owner=params["owner"],
        group=params["group"],
        offline=params["offline"] or not params["activate"],
        activate=params["activate"],
        check=check,
    )


def main() -> None:
    module = AddressModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str"},
            "source": {
                "type": "str",
                "choices": ["modelscope", "huggingface", "directory"],
                "default": "modelscope",
            },
            "endpoint": {"type": "str"},
            "path": {"type": "path"},
            "manifest": {"type": "dict"},
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "link": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "proxy": {"type": "str"},
            "ca_file": {"type": "path"},
            "verify": {"type": "str", "choices": ["quick", "structure", "full"], "default": "quick"},
            "verify_max_age": {"type": "str"},
            "adopt_from": {"type": "list", "elements": "path", "default": []},
            "reserve_gib": {"type": "float"},
            "allow_shared_fs": {"type": "bool", "default": False},
            "allow_volatile_fs": {"type": "bool", "default": False},
            "force": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
            "owner": {"type": "str"},
            "group": {"type": "str"},
            "content_id": {"type": "str"},
            "offline": {"type": "bool", "default": False},
            "activate": {"type": "bool", "default": True},
            "progress_path": {"type": "path"},
        },
        required_if=[("source", "directory", ["path"])],
        supports_check_mode=True,
    )
    hide_passwords(module)
    params = module.params
    progress = Progress(params["progress_path"])
    try:
        result = ensure_snapshot(
            make_request(params, module.check_mode),
            make_hub(
                params["source"],
                params["endpoint"],
                params["token"],
                params["proxy"],
                params["ca_file"],
                params["path"],
                progress=progress,
            ),
            progress,
        )
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    result = printable(result)
    for warning in result.pop("warnings"):
        module.warn(warning)
    diff = result.pop("diff")
    if module._diff:
        result["diff"] = diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
