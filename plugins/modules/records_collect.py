#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: records_collect
short_description: Bring the records of a host beside the inventory
version_added: 0.1.0
description:
  - Copies the records in the spool of the host that the controller lacks to C(.socle/records/<host>/) in the folder
    that the host's inventory comes from.
  - Each record is checked on both sides. What is not a record of this host is passed over and counted in one warning.
  - Never a change. When there is nothing new this takes one round trip.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode the host is asked, and nothing is written.
  diff_mode:
    support: none
options:
  state_dir:
    description: Folder of socle's state on the host; the spool is C(records) in it.
    type: path
    default: /var/lib/socle
  host:
    description: The host's name in the inventory. Internal; set by the action plugin.
    type: str
  have:
    description: Short hashes of the records that the controller has. Internal; set by the action plugin.
    type: list
    elements: str
    default: []
  after:
    description: Name of the last record that was looked at. Internal; set by the action plugin.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Collect the records that the controller lacks
  socle.inference.records_collect:
  register: collected

- name: Show what is known of the instances
  ansible.builtin.debug:
    var: collected.socle_state.instances
"""

RETURN = r"""
collected:
  description: How many records were new. In check mode, how many would be.
  returned: success
  type: int
received:
  description: How many records the host sent; 0 when there was nothing new.
  returned: success
  type: int
known:
  description: How many records of the host the controller has now.
  returned: success
  type: int
complete:
  description: Whether everything was collected; false when the cap of one task was reached, and the next one goes on.
  returned: success
  type: bool
passed_over:
  description: How many entries were passed over, by kind of fault.
  returned: success
  type: dict
path:
  description: The host's folder of records; null for a host that comes from no file.
  returned: success
  type: str
socle_state:
  description: What the records say about the host's instances, as the inventory plugin C(socle.inference.records) does.
  returned: success
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._records.files import read_spool

ARGUMENT_SPEC = {
    "state_dir": {"type": "path", "default": "/var/lib/socle"},
    "host": {"type": "str"},
    "have": {"type": "list", "elements": "str", "default": []},
    "after": {"type": "str", "default": ""},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    host = module.params["host"]
    if host is None:
        module.fail_json(
            msg="The host is not named: run records_collect as a task, so that its action plugin names it."
        )
    try:
        page = read_spool(
            Path(module.params["state_dir"]) / "records", host, module.params["have"], module.params["after"]
        )
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    records = [{"name": name, "text": text} for name, text in page.records]
    module.exit_json(changed=False, records=records, after=page.after, passed_over=dict(page.skipped))


if __name__ == "__main__":
    main()
