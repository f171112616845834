#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a model of a host's store into a folder that travels."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_export
short_description: Bring a model of a host's store into a folder, such as on a disk
version_added: 0.2.0
description:
  - Copies a revision with its manifest into a folder of the host, hashing what is read, so that a damaged file is never
    exported. Nothing is compressed. M(socle.inference.modelscope_snapshot) imports the folder with
    C(source=directory), on hosts without a network.
  - A run that was interrupted is gone on with; what is there is hashed before it counts.
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details: Says whether something would be written, and writes nothing.
  diff_mode:
    support: none
author:
  - The socle authors (@socle-inference)
options:
  repo:
    description: The model, as C(organisation/name).
    type: str
    required: true
  revision:
    description: A branch, tag or full commit that is in the store. Default is what O(link) names.
    type: str
  source:
    description: Where the model came from.
    type: str
    choices: [modelscope, huggingface, directory]
    default: modelscope
  store:
    description: The folder that holds the models of this host.
    type: path
    default: /var/lib/socle/models
  link:
    description: Name of the link in O(store) that names the current revision. Default is the name part of O(repo).
    type: str
  path:
    description: The folder to fill, on the host; made when it is missing. One folder holds one revision.
    type: path
    required: true
  volume_gib:
    description:
      - Split into folders C(volume-001), C(volume-002) and so on of at most so many GiB each, for several media. To
        import, put them side by side into one folder.
      - A file that is larger than a volume is cut into pieces. V(3) suits FAT, which takes no files of 4 GiB.
    type: float
  verify:
    description: V(quick) proves what is written by what was read; V(full) reads it back from the medium too.
    type: str
    choices: [quick, full]
    default: quick
  progress_path:
    description: Internal; set by the action plugin.
    type: path
seealso:
  - module: socle.inference.modelscope_snapshot
"""

EXAMPLES = r"""
- name: Bring a model to a disk
  socle.inference.model_export:
    repo: Qwen/Qwen3-8B
    path: /mnt/usb/Qwen3-8B
    verify: full
  become: true
"""

RETURN = r"""
path:
  description: The folder.
  returned: success
  type: str
repo:
  description: The model.
  returned: success
  type: str
requested:
  description: The revision's name.
  returned: success
  type: str
commit:
  description: The commit; null where the hub did not say.
  returned: success
  type: str
content_id:
  description: The content, as in M(socle.inference.modelscope_snapshot).
  returned: success
  type: str
files:
  description: Number of files.
  returned: success
  type: int
bytes:
  description: C(total) of the revision, C(copied) now, and C(kept) from an earlier run.
  returned: success
  type: dict
read_back:
  description: Whether all files were read from the folder and are right; with O(verify=full), outside of check mode.
  returned: success
  type: bool
rewritten:
  description: Number of files that were in the folder with the right size and wrong content, and were written again.
  returned: success
  type: int
volumes:
  description: Names of the volumes; empty without O(volume_gib).
  returned: success
  type: list
  elements: str
seconds:
  description: Duration.
  returned: success
  type: float
mb_s:
  description: Bytes copied per second, in MB/s; null where nothing was.
  returned: success
  type: float
"""

import math
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.export import Order, export_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import GIB
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def volume_bytes(gib: float | None) -> int | None:
    """The size of a volume; raises StoreError for what is none."""
    if gib is None:
        return None
    if not math.isfinite(gib) or gib <= 0:
        raise StoreError(f"volume_gib must be a number of GiB above 0, found {gib}")
    return int(gib * GIB)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str"},
            "source": {
                "type": "str",
                "choices": ["modelscope", "huggingface", "directory"],
                "default": "modelscope",
            },
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "link": {"type": "str"},
            "path": {"type": "path", "required": True},
            "volume_gib": {"type": "float"},
            "verify": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = export_snapshot(
            Order(
                store=Path(params["store"]),
                hub=params["source"],
                repo=params["repo"],
                path=Path(params["path"]),
                revision=params["revision"],
                link=params["link"],
                volume_bytes=volume_bytes(params["volume_gib"]),
                full=params["verify"] == "full",
                check=module.check_mode,
            ),
            Progress(params["progress_path"]),
        )
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    module.exit_json(**printable(result))


if __name__ == "__main__":
    main()
