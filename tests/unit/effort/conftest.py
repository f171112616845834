# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A chat template that knows three levels of effort and refuses all others while it thinks."""

from __future__ import annotations

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Effort

LEVELS = ("xhigh", "medium", "low")

XHIGH = {"high": "xhigh", "ultra": "xhigh", "max": "xhigh", "minimal": "low", "none": "none"}
MEDIUM = {**XHIGH, "high": "medium"}

THREE_LEVELS = """\
{%- set thinks = enable_thinking is not defined or enable_thinking %}
{%- set effort = reasoning_effort | default('xhigh') %}
{%- if thinks and effort not in ['xhigh', 'medium', 'low'] %}
    {{- raise_exception('effort ' ~ effort ~ ' is not one of xhigh, medium, low') }}
{%- endif %}
{%- macro hint() %}
    {%- if thinks and effort == 'xhigh' %}[take your time]{% elif thinks and effort == 'low' %}[be quick]{% endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<tools>' ~ (tools | tojson) ~ '</tools>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '<call>' ~ call.function.name ~ (call.function.arguments | tojson) ~ '</call>\\n' }}
        {%- endfor %}
        {%- continue %}
    {%- endif %}
    {{- '<' ~ message.role ~ '>' ~ message.content ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' ~ hint() ~ ('<think>' if thinks else '<think></think>') ~ '\\n' }}
{%- endif %}
"""


@pytest.fixture
def effort() -> Effort:
    return Effort(LEVELS, "xhigh", {"xhigh": XHIGH, "medium": MEDIUM})
