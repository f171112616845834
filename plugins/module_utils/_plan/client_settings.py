# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of usual clients for an instance, ready to be copied. A key is named, and read from the environment where
the client can; nowhere does a card hold one. Private to socle.inference.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.effort import MESSAGES

CLAUDE_CODE_DEFAULT = "high"
"""The effort that Claude Code sends unless told otherwise (https://github.com/QwenLM/Qwen3.8/issues/217)."""

NO_KEY = "no-key"
"""Clients want some text even where the engine asks for none."""

_EFFORTS_OF_CLAUDE_CODE = ("medium", "high", "xhigh", "max", "low")
"""Its own levels, in the order in which one is chosen in place of its default."""


def unknown_default(card: Mapping[str, Any]) -> str | None:
    """The level that Claude Code has to be told, since the one that it sends by itself is refused; else None."""
    effort = card["effort"]
    if effort is None or _answered(effort, CLAUDE_CODE_DEFAULT):
        return None
    return next((level for level in _EFFORTS_OF_CLAUDE_CODE if _answered(effort, level)), None)


def _answered(effort: Mapping[str, Any], level: str) -> bool:
    return str(effort["answers"][level][MESSAGES]).startswith("200")


def claude_code(card: Mapping[str, Any]) -> dict[str, Any]:
    """Content of settings.json. The header that it leaves out would make each request's beginning unlike any other, so
    that no prefix is found in the cache.
    """
    settings = _claude_code(card["urls"]["anthropic"], card["models"][0], card["no_proxy"], unknown_default(card))
    key = card["key"]
    if key["required"]:
        settings["apiKeyHelper"] = f"printenv {key['variable']}"
    else:
        settings["env"]["ANTHROPIC_AUTH_TOKEN"] = NO_KEY
    found: dict[str, Any] = {
        "title": "Claude Code: ~/.claude/settings.json",
        "settings": settings,
        "lines": json.dumps(settings, indent=2).splitlines(),
    }
    fallback = card["fallback"]
    if fallback:
        model = fallback["model"] or card["models"][0]
        change = {"env": {"ANTHROPIC_BASE_URL": fallback["url"], **_claude_models(model)}}
        found["fallback"] = change
        found["lines"] += ["", "to fall back, change these:", *json.dumps(change, indent=2).splitlines()]
    return found


def _claude_code(url: str, model: str, no_proxy: str, effort: str | None) -> dict[str, Any]:
    env: dict[str, str] = {
        "ANTHROPIC_BASE_URL": url,
        **_claude_models(model),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "NO_PROXY": no_proxy,
    }
    if effort:
        env["CLAUDE_CODE_EFFORT_LEVEL"] = effort
    return {"env": env}


def _claude_models(model: str) -> dict[str, str]:
    kinds = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("OPUS", "SONNET", "HAIKU")))
    return dict.fromkeys(kinds, model)


def openai_agent(card: Mapping[str, Any]) -> dict[str, Any]:
    """Variables that the OpenAI libraries read, and a provider of Codex, which speaks Responses only."""
    key = card["key"]
    secret = f"${key['variable']}" if key["required"] else NO_KEY
    environment = {
        "OPENAI_BASE_URL": card["urls"]["openai"],
        "OPENAI_API_KEY": secret,
        "OPENAI_MODEL": card["models"][0],
        "NO_PROXY": card["no_proxy"],
    }
    provider = f"socle-{card['instance']}"
    table = [
        f"model = {_toml(card['models'][0])}",
        f"model_provider = {_toml(provider)}",
        *([f"model_context_window = {card['context']['max_model_len']}"] if card["context"]["max_model_len"] else []),
        "",
        f"[model_providers.{_toml(provider)}]",
        f"name = {_toml(str(card['host']) + ' ' + str(card['instance']))}",
        f"base_url = {_toml(card['urls']['openai'])}",
        'wire_api = "responses"',
        *([f"env_key = {_toml(key['variable'])}"] if key["required"] else []),
    ]
    found: dict[str, Any] = {
        "title": "OpenAI agent: environment, and ~/.codex/config.toml",
        "environment": environment,
        "codex": "\n".join(table) + "\n",
        "lines": [*_exports(environment, ["OPENAI_API_KEY"] if key["required"] else []), "", *table],
    }
    fallback = card["fallback"]
    if fallback:
        change = {"OPENAI_BASE_URL": f"{fallback['url']}/v1", "OPENAI_MODEL": fallback["model"] or card["models"][0]}
        found["fallback"] = change
        found["lines"] = [*found["lines"], "", "to fall back, change these:", *_exports(change)]
    return found


def _toml(text: str) -> str:
    """A basic string of TOML, which unlike JSON has no pairs of surrogates and escapes the last character of ASCII."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _exports(environment: Mapping[str, str], references: Collection[str] = ()) -> list[str]:
    """As lines for a shell, in which NO_PROXY keeps what it had. Those of *references* have "$" and the name of another
    variable as their value, which stays one; whatever else begins so is a text.
    """
    lines = []
    for name, value in environment.items():
        word = f'"{value}"' if name in references else shlex.quote(value)
        lines.append(f"export {name}=" + (f'"${{NO_PROXY:+$NO_PROXY,}}"{word}' if name == "NO_PROXY" else word))
    return lines


def desktop_chat(card: Mapping[str, Any]) -> dict[str, Any]:
    """What such programs ask for in a form: a provider that is compatible with OpenAI."""
    key = card["key"]
    sampling: Mapping[str, Any] = next(iter(card["sampling"].values()), {})
    fields = {
        "provider": "OpenAI compatible",
        "API host": card["urls"]["openai"],
        "API key": f"the one called {key['name']}" if key["required"] else NO_KEY,
        "model": card["models"][0],
        "context": card["context"]["max_model_len"],
        **{name: value for name, value in sampling.items() if name != "chat_template_kwargs"},
        "images": "yes" if "vision" in card["capabilities"] else "no",
        "proxy": f"none for {card['no_proxy']}",
    }
    found: dict[str, Any] = {"title": "Desktop chat program", "fields": fields, "lines": _form(fields)}
    fallback = card["fallback"]
    if fallback:
        change = {"API host": f"{fallback['url']}/v1", "model": fallback["model"] or card["models"][0]}
        found["fallback"] = change
        found["lines"] += ["", "to fall back, change these:", *_form(change)]
    return found


def _form(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name:<18} {value}" for name, value in fields.items() if value is not None]
