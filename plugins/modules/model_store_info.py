#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what the model store of a host holds."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store_info
short_description: Says what the model store of a host holds
version_added: 0.2.0
description:
  - Lists the models of a store that M(socle.inference.modelscope_snapshot) filled, with their revisions, what is
    current, when everything was last hashed, who holds a lock, and what cut off downloads left. Changes nothing and
    hashes nothing.
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
  store:
    description: The folder that holds the models of this host.
    type: path
    default: /var/lib/socle/models
  state_dir:
    description: Folder of socle's state on the host, whose instances name the revisions that they use.
    type: path
    default: /var/lib/socle
seealso:
  - module: socle.inference.modelscope_snapshot
  - module: socle.inference.model_store_gc
"""

EXAMPLES = r"""
- name: Look into the model store
  socle.inference.model_store_info:
  become: true
  register: found
"""

RETURN = r"""
models:
  description: One entry for each repository in the store.
  returned: success
  type: list
  elements: dict
  contains:
    hub:
      description: Where it came from, V(modelscope), V(huggingface) or V(directory).
      type: str
    repo:
      description: The model.
      type: str
    links:
      description: Names in the store that mean a revision of it.
      type: list
      elements: str
    lock:
      description: Who works on it now (C(host), C(pid), C(since), C(state)); null when nobody does.
      type: dict
    stage:
      description: What is not published, each with C(path), C(bytes) on disk and time of the last change (C(changed)).
      type: list
      elements: dict
    downloads:
      description: >-
        What unfinished downloads are to become (C(id), C(requested), C(commit), size C(bytes), null where an older
        version began them), and how much of it is there (C(received)).
      type: list
      elements: dict
    revisions:
      description: The revisions, the latest published first.
      type: list
      elements: dict
      contains:
        id:
          description: Names the revision in the store.
          type: str
        path:
          description: Its folder.
          type: str
        commit:
          description: Its commit; null where the hub does not say, or its manifest is lost.
          type: str
        content_id:
          description: Its content.
          type: str
        requested:
          description: The branch, tag or commit that it was first asked for by.
          type: str
        names:
          description: Branches and tags that meant it when they were last asked for.
          type: list
          elements: str
        bytes:
          description: Size of its files; those that it shares with another revision count in both.
          type: int
        files:
          description: Number of its files.
          type: int
        published:
          description: When it was published, in UTC.
          type: str
        current_of:
          description: Links that name it.
          type: list
          elements: str
        previous_of:
          description: Links that named it before.
          type: list
          elements: str
        used_by:
          description: Units and generations that name it.
          type: list
          elements: str
        verified:
          description: Since when all of its files have been known by their hashes, in UTC; null when that is not known.
          type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import describe_store
from ansible_collections.socle.inference.plugins.module_utils._hub.printable import printable


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "store": {"type": "path", "default": "/var/lib/socle/models"},
            "state_dir": {"type": "path", "default": "/var/lib/socle"},
        },
        supports_check_mode=True,
    )
    try:
        result = printable(describe_store(Path(module.params["store"]), Path(module.params["state_dir"])))
    except SocleError as error:
        module.fail_json(**printable({**error.fields, "msg": str(error)}))
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
