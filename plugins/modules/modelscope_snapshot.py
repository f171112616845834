#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: modelscope_snapshot
short_description: Bring a model from ModelScope to a host, verified
version_added: 0.1.0
author:
  - The socle authors (@socle-inference)
description:
  - Downloads a revision of a model from the ModelScope hub into a store on the host, proves every file by its SHA-256,
    and only then makes it visible, by renames. Whenever the module is interrupted, what is visible is either the
    old or the new snapshot, complete; the next run goes on where it ended.
  - A snapshot lives in C(STORE/.store/modelscope/ORG--NAME/rev/ID); a relative symbolic link C(STORE/LINK) names the
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
    type: str
    default: master
  endpoint:
    description: Address of the hub. Environment variables of ModelScope's own tools are not read.
    type: str
    default: https://www.modelscope.cn
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
  verify:
    description:
      - V(quick) compares size, times, inode and device of every file with the ledger of what was proven, and hashes
        only files where something differs. It does not see bit rot.
      - V(full) hashes every file.
    type: str
    choices: [quick, full]
    default: quick
  reserve_gib:
    description: GiB that must stay free after the download. Default is the larger of 5 GiB and 2 % of the file system.
    type: float
  lock_timeout:
    description: Seconds to wait for another run that works on the same model on this host.
    type: int
    default: 600
  content_id:
    description:
      - The content that is expected, as returned in RV(content_id). Anything else is an error, before any
        download.
    type: str
  offline:
    description: Use what is in the store and never ask the hub; fails when that is not complete.
    type: bool
    default: false
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

- name: Hash every file again, without the hub
  socle.inference.modelscope_snapshot:
    repo: Qwen/Qwen3-8B
    offline: true
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
    - Sizes in bytes. C(total) of the snapshot; received from the hub (C(wan)) and from neighbours (C(lan)); hard-
      linked from other revisions (C(reused_link)); taken over from interrupted runs (C(reused_part)) and from
      existing folders (C(adopted)).
  returned: success
  type: dict
  sample: {total: 269060552, wan: 269060552, lan: 0, reused_link: 0, reused_part: 0, adopted: 0}
files:
  description:
    - Counts of files, C(total), C(fetched), C(verified) as they were, C(repaired), and C(removed) foreign ones.
  returned: success
  type: dict
  sample: {total: 9, fetched: 9, verified: 0, repaired: 0, removed: 0}
verify:
  description:
    - C(level), C(seconds) spent, number of files hashed (C(hashed_files)), and rate of hashing in MB/s
      (C(mb_s)).
  returned: success
  type: dict
  sample: {level: quick, seconds: 0.001, hashed_files: 0, mb_s: null}
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
    - What a run would download (C(bytes)), what is free (C(free)), and which files are missing (C(missing), at most
      100, and their number C(missing_files)).
  returned: in check mode
  type: dict
  sample: {bytes: 269060552, free: 68719476736, missing: [config.json, model.safetensors], missing_files: 2}
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.store import reserve_bytes
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Hub
from ansible_collections.socle.inference.plugins.module_utils._packages.source import hide_passwords
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "master"},
            "endpoint": {"type": "str", "default": "https://www.modelscope.cn"},
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "link": {"type": "str"},
            "token": {"type": "str", "no_log": True},
            "proxy": {"type": "str"},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "reserve_gib": {"type": "float"},
            "lock_timeout": {"type": "int", "default": 600},
            "content_id": {"type": "str"},
            "offline": {"type": "bool", "default": False},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    hide_passwords(module)
    params = module.params
    try:
        result = ensure_snapshot(
            Request(
                repo=params["repo"],
                revision=params["revision"],
                store=Path(params["store"]),
                link=params["link"],
                full=params["verify"] == "full",
                reserve_bytes=reserve_bytes(params["reserve_gib"]),
                lock_timeout_s=params["lock_timeout"],
                content_id=params["content_id"],
                offline=params["offline"],
                check=module.check_mode,
            ),
            Hub(params["endpoint"], params["token"], params["proxy"]),
            Progress(params["progress_path"]),
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    for warning in result.pop("warnings"):
        module.warn(warning)
    diff = result.pop("diff")
    if module._diff:
        result["diff"] = diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
