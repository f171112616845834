#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what an exported folder or archive holds."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_directory_info
short_description: Say what an exported folder or archive of a model holds
version_added: 0.2.0
description:
  - Reads the manifest of what M(socle.inference.model_export) wrote, and looks whether each file is there with its
    size, in whatever volume. A plain folder of files is hashed. Changes nothing.
  - Fails where it is another model or revision, cannot be read, or is not complete.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  repo:
    description: The model that it has to be, as C(organisation/name).
    type: str
    required: true
  revision:
    description: The branch, tag or full commit that it has to be.
    type: str
    default: master
  path:
    description: The folder, or the tar archive, on the host.
    type: path
    required: true
  progress_path:
    description: Internal; set by the action plugin.
    type: path
seealso:
  - module: socle.inference.model_export
  - module: socle.inference.modelscope_snapshot
"""

EXAMPLES = r"""
- name: Look at a disk
  socle.inference.model_directory_info:
    repo: Qwen/Qwen3-8B
    path: /mnt/usb/Qwen--Qwen3-8B
  register: offered
"""

RETURN = r"""
path:
  description: The folder or archive.
  returned: success
  type: str
manifest:
  description: Which files make up the revision, as in M(socle.inference.model_lock).
  returned: success
  type: dict
content_id:
  description: The content, as in M(socle.inference.modelscope_snapshot).
  returned: success
  type: str
commit:
  description: The commit; null where it is not known, as in a plain folder.
  returned: success
  type: str
bytes:
  description: Size of its files.
  returned: success
  type: int
files:
  description: Their number.
  returned: success
  type: int
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.directory import DirectoryHub
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "master"},
            "path": {"type": "path", "required": True},
            "progress_path": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        hub = DirectoryHub(params["path"], progress=Progress(params["progress_path"]))
        manifest = hub.resolve(params["repo"], params["revision"])
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    module.exit_json(
        changed=False,
        path=params["path"],
        manifest=json.loads(manifest.dumps()),
        content_id=manifest.content_id,
        commit=manifest.commit,
        bytes=manifest.total_bytes,
        files=len(manifest.files),
    )


if __name__ == "__main__":
    main()
