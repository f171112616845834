#!/usr/bin/python
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a chat template with effort aliases from a model's own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_chat_template
short_description: Makes a chat template with effort aliases from a model's own
version_added: 0.1.0
description:
  - Reads the chat template that a model came with on the host, puts a few statements in front that read the levels of
    effort that clients send as those that the template knows, and keeps the result beside the state of the host, named
    by its content. The model's folder stays as it is, and so does the text of its template.
  - The controller renders both templates before anything is written, with all levels and several conversations, in a
    sandbox as the engine uses it. A template is refused that does not know the model's levels, that does not check
    them, that gives an alias another meaning by now, that comes out differently in any other way, or that takes more
    time, memory or output than any template needs.
  - Chat templates that it made more than a day ago, and that no generation of an instance has, are removed.
author:
  - The socle authors (@socle-inference)
extends_documentation_fragment:
  - socle.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - Reads and checks the model's template, and tells what would be written. Before a first deployment, when the
        model is not there yet, tells only that something would be.
  diff_mode:
    support: full
options:
  model_path:
    description: Folder of the model on the host.
    type: path
    required: true
  model:
    description: What messages call the model; by default its folder.
    type: str
  levels:
    description: Levels of effort that the template knows.
    type: list
    elements: str
    default: []
  aliases:
    description:
      - The level that each further one means. C(none) as a meaning turns thinking off.
    type: dict
    default: {}
  text:
    description:
      - The chat template to keep. Set by the controller once it has made and checked it; without it the module only
        reads.
    type: str
  state_dir:
    description: Folder of socle's state on the host.
    type: path
    default: /var/lib/socle
"""

EXAMPLES = r"""
- name: Make a chat template that takes high for xhigh
  socle.inference.vllm_chat_template:
    model_path: "{{ model_store_result['Qwen/Qwen3.8-27B'].path }}"
    levels: [xhigh, medium, low]
    aliases:
      high: xhigh
      max: xhigh
      minimal: low
      none: none
  register: template
"""

RETURN = r"""
path:
  description: Where the chat template lies on the host; null in check mode before the model is there.
  returned: success
  type: str
  sample: /var/lib/socle/chat_templates/0f3b2a6c1d9e.jinja
digest:
  description: C(sha256:<hex>) of its text; null in check mode before the model is there.
  returned: success
  type: str
source:
  description: File of the model's folder that it was made from.
  returned: success
  type: str
  sample: chat_template.jinja
removed:
  description: Paths of earlier templates that were removed, since no generation of an instance has them.
  returned: when the model is there
  type: list
  elements: str
  sample: []
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.socle.inference.plugins.module_utils._engine.chat_template import keep, own_template
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError

ARGUMENT_SPEC = {
    "model_path": {"type": "path", "required": True},
    "model": {"type": "str"},
    "levels": {"type": "list", "elements": "str", "default": []},
    "aliases": {"type": "dict", "default": {}},
    "text": {"type": "str"},
    "state_dir": {"type": "path", "default": "/var/lib/socle"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    given = module.params
    if module.check_mode and not Path(given["model_path"]).is_dir():
        module.exit_json(changed=True, path=None, digest=None, source=None)
    try:
        own = own_template(Path(given["model_path"]), Files())
        if given["text"] is None:
            module.exit_json(changed=False, base=own.text, source=own.source)
        kept = keep(Path(given["state_dir"]), given["text"], Files(), check=module.check_mode)
    except SocleError as error:
        module.fail_json(msg=str(error), **error.fields)
    before = kept.pop("before")
    shown = {"before": before, "after": given["text"], "before_header": kept["path"], "after_header": kept["path"]}
    module.exit_json(source=own.source, diff=shown, **kept)


if __name__ == "__main__":
    main()
