# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model whose chat template knows three levels of effort and refuses all others while it thinks.

Its prompts say which level the model works with, in words and by their number of tokens.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import (
    CHAT,
    KWARGS,
    MESSAGES,
    RESPONSES,
    Answer,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.models import EFFORTS, THINKING_OFF, Effort

from tests.support import lab

LEVELS = ("xhigh", "medium", "low")

XHIGH = {"high": "xhigh", "ultra": "xhigh", "max": "xhigh", "minimal": "low", "none": "none"}
MEDIUM = {**XHIGH, "high": "medium"}

EFFORT = Effort(LEVELS, "xhigh", {"xhigh": XHIGH, "medium": MEDIUM})

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

NAME = "effort-test"
REPO = "Org/Effort-Test"
SMALL = "smollm2-135m-instruct"
"""The model of the lab, whose weights this one has."""

QUESTION = "What is a socle?"
MESSAGES_SENT = [{"role": "user", "content": QUESTION}]


def make_model(hub: Path, template: str = THREE_LEVELS) -> Path:
    """The model in the folder of a hub simulator: the lab's, with another template."""
    found = (lab.cache() / "lab" / "models").glob("*/HuggingFaceTB/SmolLM2-135M-Instruct")
    newest = max(found, key=lambda path: path.stat().st_mtime)
    folder = hub / REPO
    shutil.copytree(newest, folder, copy_function=_link_or_copy)
    change_template(folder, template)
    return folder


def change_template(folder: Path, template: str) -> None:
    """Give the model another template, in a file of its own: the lab's may be a link to it."""
    path = folder / "chat_template.jinja"
    path.unlink()
    path.write_text(template, encoding="utf-8")


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def write_data(folder: Path) -> None:
    """Model file and serving profile as a site has them in its ``site_data``, like those of the lab's model."""
    profiles = lab.PROJECT / "profiles"
    model = yaml.safe_load((profiles / "models" / f"{SMALL}.yml").read_text(encoding="utf-8"))
    model |= {"name": NAME, "repo": REPO, "served_name": NAME, "capabilities": ["chat", "thinking"]}
    model["effort"] = {"levels": list(LEVELS), "default": EFFORT.default, "aliases": {"xhigh": XHIGH, "medium": MEDIUM}}
    serving = yaml.safe_load((profiles / "serving" / f"{SMALL}--cpu.yml").read_text(encoding="utf-8"))
    serving["model"] = NAME
    for name, content in ((f"models/{NAME}", model), (f"serving/{NAME}--cpu", serving)):
        path = folder / "profiles" / f"{name}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content), encoding="utf-8")


def requests(model: str = NAME) -> dict[tuple[str, str], tuple[str, dict[str, Any]]]:
    """{(level, API): (path, body)} of one request for each level on each API."""
    chat = {"model": model, "messages": MESSAGES_SENT, "max_tokens": 1, "return_token_ids": True}
    response = {"model": model, "input": QUESTION, "max_output_tokens": 1}
    message = {"model": model, "messages": MESSAGES_SENT, "max_tokens": 1}
    made: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for level in EFFORTS:
        made[level, CHAT] = "/v1/chat/completions", {**chat, "reasoning_effort": level}
        made[level, RESPONSES] = "/v1/responses", {**response, "reasoning": {"effort": level}}
        made[level, MESSAGES] = "/v1/messages", {**message, "output_config": {"effort": level}}
        made[level, KWARGS] = "/v1/chat/completions", {**chat, "chat_template_kwargs": {"reasoning_effort": level}}
    return made


def markers(model: str = NAME) -> dict[str, tuple[str, dict[str, Any]]]:
    """{level, or none for no thinking: a request to /tokenize that asks for the prompt of that level}."""
    body = {"model": model, "messages": MESSAGES_SENT}
    made = {level: {"reasoning_effort": level} for level in LEVELS}
    made[THINKING_OFF] = {"enable_thinking": False}  # type: ignore[dict-item]
    return {level: ("/tokenize", {**body, "chat_template_kwargs": given}) for level, given in made.items()}


def answer(status: int, content: Any, by_count: dict[int, str]) -> Answer:
    """What a request got: its level by the number of tokens in the prompt, which is how each API tells of it."""
    if status != 200:
        return Answer(status)
    usage = content["usage"]
    return Answer(200, by_count[usage["prompt_tokens"] if "prompt_tokens" in usage else usage["input_tokens"]])
