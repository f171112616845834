# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What becomes of an effort that a client sends: by level, API, vLLM version and the aliases that are in force.

A level meets two gates. The API's own schema takes some levels and answers 400 to others, before any template is seen.
What passes goes to the chat template as reasoning_effort, and a template with levels of its own refuses the rest.
Aliases stand in front of the second gate only: either in a chat template made from the model's own, or as vLLM's flag
reasoning-effort-map. Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import version_key
from ansible_collections.socle.inference.plugins.module_utils._plan.models import EFFORTS, THINKING_OFF, Effort

TEMPLATE = "template"
"""Aliases by a chat template that is made from the model's own."""

FLAG = "flag"
"""Aliases by reasoning-effort-map."""

MAP_FLAG = "reasoning-effort-map"
MAP_FLAG_SINCE = "0.33.0"

CHAT, RESPONSES, MESSAGES, KWARGS = "chat", "responses", "messages", "kwargs"
APIS: Mapping[str, str] = {
    CHAT: "/v1/chat/completions, reasoning_effort",
    RESPONSES: "/v1/responses, reasoning.effort",
    MESSAGES: "/v1/messages, output_config.effort",
    KWARGS: "chat_template_kwargs.reasoning_effort of any of them",
}
"""Where a request says its effort."""

_OPENAI = ("none", "minimal", "low", "medium", "high", "xhigh")
_ANTHROPIC = ("low", "medium", "high", "xhigh", "max")

_TAKEN: Mapping[str, tuple[tuple[str, tuple[str, ...] | None], ...]] = {
    CHAT: (("0.23.0", (*_OPENAI, "max")), ("0", ("none", "low", "medium", "high"))),
    RESPONSES: (("0.32.0", (*_OPENAI, "max")), ("0", _OPENAI)),
    MESSAGES: (("0.23.0", _ANTHROPIC), ("0", None)),
    KWARGS: (("0", EFFORTS),),
}
"""Levels that the schema of an API takes, by the oldest version in which that was seen, newest first; None where the
field is not read at all.

Run against 0.19.1, 0.23.0, 0.26.0, 0.32.0 and 0.33.0, and read in their sources. The levels of /v1/responses are those
of the openai package in the image: all up to 0.26.0 want 2.0.0 or newer, and "max" came with a later one (3.57.0 has
it).
"""

_UNKNOWN: Mapping[str, tuple[str, ...]] = {RESPONSES: ("max",)}
"""Levels that depend on the openai package of the image, before the newest entry of _TAKEN."""

_SWITCHES_OFF_SINCE = "0.23.0"
"""From here on vLLM itself turns effort none into enable_thinking=false."""

_REFUSED_BY_TEMPLATE = ((MESSAGES, "0.23.0", "0.32.0", 500),)
"""(API, since, before, status) where a template's refusal is not answered with 400; run against 0.23.0 and 0.26.0."""


@dataclass(frozen=True)
class Answer:
    """HTTP *status*, None where it is not known, and the *effort* that the model works with; "none" is no thinking."""

    status: int | None
    effort: str | None = None

    def __str__(self) -> str:
        if self.status is None:
            return "?"
        if self.effort is None:
            return str(self.status)
        return f"{self.status} {'off' if self.effort == THINKING_OFF else self.effort}"


def means(version: str, own_template: bool = False) -> str | None:
    """How aliases reach the engine: by FLAG where vLLM has it, else by TEMPLATE; None with a template of the user."""
    if own_template:
        return None
    return FLAG if _since(version, MAP_FLAG_SINCE) else TEMPLATE


def effort_map(aliases: Mapping[str, str]) -> dict[str, str]:
    """Aliases as reasoning-effort-map takes them.

    Its keys must be levels that vLLM takes, so ultra is left out. So is none, which the server turns into no thinking
    before the template sees it.
    """
    return {
        level: aliases[level]
        for level in EFFORTS
        if level in aliases and level not in ("ultra", THINKING_OFF) and aliases[level] != level
    }


def answer(
    level: str,
    api: str,
    version: str,
    effort: Effort,
    aliases: Mapping[str, str] | None = None,
    by: str | None = None,
) -> Answer:
    """What a request for *level* gets from a model whose template knows the levels of *effort* and refuses all others.

    *aliases* are in force *by* TEMPLATE or FLAG.
    """
    taken = _from(_TAKEN[api], version)
    if taken is None:
        return Answer(200, effort.default)
    if level not in taken:
        return Answer(None if level in _UNKNOWN.get(api, ()) else 400)
    wanted = level
    if by == FLAG and api != KWARGS:
        # What a request gives the template directly passes the map by.
        wanted = effort_map(aliases or {}).get(level, level)
    switched = wanted == THINKING_OFF and api != KWARGS and _since(version, _SWITCHES_OFF_SINCE)
    if by == TEMPLATE:
        wanted = (aliases or {}).get(wanted, wanted)
        switched = switched or wanted == THINKING_OFF
    if switched:
        return Answer(200, THINKING_OFF)
    if wanted in effort.levels:
        return Answer(200, wanted)
    return Answer(_refusal(api, version))


def effort_table(
    version: str, effort: Effort, aliases: Mapping[str, str] | None = None, by: str | None = None
) -> dict[str, dict[str, Answer]]:
    """{level: {API: what it gets}} of all levels that clients send."""
    return {level: {api: answer(level, api, version, effort, aliases, by) for api in APIS} for level in EFFORTS}


def aliases_in_force(plan: Mapping[str, Any]) -> tuple[Mapping[str, str] | None, str | None]:
    """The aliases of a plan, and by what they are in force; both None where there are none."""
    aliases = plan.get("effort_aliases")
    if MAP_FLAG in plan["sources"]:
        turned = plan["sources"][MAP_FLAG]["value"]
        # Whoever wrote the map may have meant other levels than the aliases do, or use none.
        return (turned if isinstance(turned, Mapping) else aliases), FLAG
    return (aliases, TEMPLATE) if aliases else (aliases, None)


def effort_lines(version: str, effort: Effort, aliases: Mapping[str, str], by: str) -> list[str]:
    """A Markdown table of all levels, each cell "before -> after" where the aliases change something."""
    before, after = effort_table(version, effort), effort_table(version, effort, aliases, by)
    lines = [f"| {version} | " + " | ".join(APIS) + " |", "|---" * (len(APIS) + 1) + "|"]
    for level, row in before.items():
        cells = [_change(str(row[api]), str(after[level][api])) for api in APIS]
        lines.append(f"| `{level}` | " + " | ".join(cells) + " |")
    return lines


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _refusal(api: str, version: str) -> int:
    for where, since, before, status in _REFUSED_BY_TEMPLATE:
        if api == where and _since(version, since) and not _since(version, before):
            return status
    return 400


def _from(entries: tuple[tuple[str, tuple[str, ...] | None], ...], version: str) -> tuple[str, ...] | None:
    return next(levels for since, levels in entries if _since(version, since))


def _since(version: str, first: str) -> bool:
    return version_key(version) >= version_key(first)
