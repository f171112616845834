# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A chat template that understands more levels of effort than the model's own, which follows it unchanged.

Pure text; whether the result does what it should is found out by rendering it, where Jinja is. Private to
socle.inference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.models import EFFORTS, THINKING_OFF

EFFORT = "reasoning_effort"
THINKING = "enable_thinking"

MARK = "{# socle: levels of effort that clients send, as levels of the template below #}"
"""The first line of every overlay."""

MAX_BYTES = 1024 * 1024
"""Chat templates have some kilobytes; more than this is something else."""


def prelude(aliases: Mapping[str, str]) -> str:
    """Jinja statements that give each alias the meaning of its target, and leave everything else as it was sent.

    Each line ends in one line break, which trim_blocks (set by transformers and vLLM alike) takes away, so that the
    template below begins where it began before. Names are tested one by one and never looked up, since a client may
    send anything, lists too. An attribute that an empty map does not have is Jinja's way to write "not given".
    """
    groups: dict[str, list[str]] = {}
    for level in EFFORTS:
        if level in aliases and (aliases[level] != level or level == THINKING_OFF):
            groups.setdefault(aliases[level], []).append(level)
    lines = [MARK]
    for position, (target, levels) in enumerate(groups.items()):
        test = f"{EFFORT} in {json.dumps(levels)}"
        lines.append(f"{{% {'elif' if position else 'if'} {test} %}}")
        if target == THINKING_OFF:
            lines.append(f"{{% set {THINKING} = false %}}")
            lines.append(f"{{% set {EFFORT} = {{}}.not_given %}}")
        else:
            lines.append(f"{{% set {EFFORT} = {json.dumps(target)} %}}")
    if groups:
        lines.append("{% endif %}")
    return "".join(f"{line}\n" for line in lines)


def overlay(base: str, aliases: Mapping[str, str]) -> str:
    """The template of the model with the prelude in front. Raises PlanError for a base that is an overlay already."""
    if base.startswith(MARK):
        raise PlanError(
            "The model's own chat template is one that socle made: restore the file that the model came with, since"
            " the model's folder must stay as it is."
        )
    return prelude(aliases) + base


def digest(text: str) -> str:
    """As plans hold it, and as hosts name the file: 'sha256:' and 64 digits of the UTF-8 text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def file_name(content_digest: str) -> str:
    """Named by its content, so that a template never changes under an engine that runs with it."""
    return f"{content_digest.partition(':')[2][:12]}.jinja"
