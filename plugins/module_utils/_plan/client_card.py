# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody who wants to use an instance has to know: addresses, names, limits, and settings to copy.

Made of a plan, the model's file and the records. Never of a key, which a card only names. Private to socle.inference.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.socle.inference.plugins.module_utils._address import WEB, address_fault
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._kinds import kind_of
from ansible_collections.socle.inference.plugins.module_utils._plan import client_settings
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import (
    APIS,
    KWARGS,
    aliases_in_force,
    effort_table,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.models import EFFORTS, Model
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import describe, known_list, quoted, short

SCHEMA = "socle.client_card/1"

LOOPBACK = ("127.0.0.1", "::1")
ANYWHERE = ("0.0.0.0", "::")

_NAMED_VALUE = re.compile(r"\{\{-?\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(?:\|[^}]*)?-?\}\}")
LONGEST_NAME = 500
_FALLBACK_KEYS = ("url", "model", "key")


@dataclass(frozen=True)
class Place:
    """Where clients find a host: its *address* for them, and a *url* of something in front of the instance."""

    address: str
    url: str | None = None


def key_name(written: Any, where: str) -> str:
    """What the key of an instance is called: the variable that the inventory names, else the key's place.

    *written* is the text of the inventory before any variable in it was looked up. A key that is written there itself
    is not repeated.
    """
    named = _NAMED_VALUE.fullmatch(written.strip()) if isinstance(written, str) else None
    return named.group(1) if named else where


def key_variable(instance: str) -> str:
    """The environment variable from which settings here take the key: "agents-fp8" -> "AGENTS_FP8_API_KEY"."""
    name = re.sub(r"\W", "_", instance, flags=re.ASCII).upper()
    # No shell takes a name that starts with a digit.
    return f"{'' if name[:1].isalpha() else 'VLLM_'}{name}_API_KEY"


def client_url(url: Any, where: str) -> str:
    """A base address for clients, without a slash at its end and without /v1; raises PlanError where it is none."""
    text = str(url).rstrip("/")
    fault = address_fault(text, WEB)
    if not fault and "@" in urlsplit(text).netloc:
        fault = "has a user or password in it, which would end up in everybody's settings"
    if not fault and (urlsplit(text).query or urlsplit(text).fragment):
        fault = "has a query or fragment"
    if fault:
        raise PlanError(f"{where} {fault}; write it as http://host:port or https://name, without /v1.")
    return text[: -len("/v1")] if text.endswith("/v1") else text


def fallback_of(given: Any) -> dict[str, Any] | None:
    """{url, model, key} of the endpoint that clients change to; raises PlanError for what is none."""
    if not given:
        return None
    if not isinstance(given, Mapping) or "url" not in given or set(given) - set(_FALLBACK_KEYS):
        raise PlanError(
            f"endpoint_fallback must be a map with the key url, and model and key (the name of its key) if need be, "
            f"but {_found(given)}; correct it."
        )
    return {
        "url": client_url(given["url"], "endpoint_fallback.url"),
        "model": _name(given.get("model"), "endpoint_fallback.model", "the name of the model there"),
        "key": _name(given.get("key"), "endpoint_fallback.key", "the name of its key"),
    }


def _found(given: Any) -> str:
    return f"has {known_list(map(short, given))}" if isinstance(given, Mapping) else f"is {describe(given)}"


def _name(given: Any, where: str, expected: str) -> str | None:
    """A name that ends up on cards and in settings, None without one; raises PlanError for what cannot be one."""
    if given in (None, ""):
        return None
    if not isinstance(given, str) or not given.isprintable() or len(given) > LONGEST_NAME:
        # Somebody may have put a key in the place of its name.
        found = kind_of(given) if where.endswith(".key") else describe(given)
        raise PlanError(
            f"{where} must be {expected}, one line of at most {LONGEST_NAME} printable characters, but is {found}; "
            "correct it."
        )
    return given


def recorded_class(state: Mapping[str, Any] | None, instances: Mapping[str, Any]) -> str | None:
    """The host class that the records tell, where it is enough to plan *instances* without asking the host.

    It is when all of them are on record, for one class, and name their GPUs.
    """
    known = (state or {}).get("instances") or {}
    classes = {((known.get(name) or {}).get("environment") or {}).get("host_class") for name in instances}
    if len(classes) != 1 or None in classes:
        return None
    found = str(classes.pop())
    return found if found == "cpu" or all((each or {}).get("gpus") for each in instances.values()) else None


def client_card(
    plan: Mapping[str, Any],
    model: Model,
    place: Place,
    key: str | None = None,
    state: Mapping[str, Any] | None = None,
    fallback: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The card of one instance. *key* is the name of its key, *state* what the records say of it."""
    url, tunnel, host = _reach(plan, place)
    name = str(plan["instance"])
    needs_key = bool(plan["api_key_required"])
    card: dict[str, Any] = {
        "schema": SCHEMA,
        "host": plan["host"],
        "instance": name,
        "model": model.name,
        "description": model.description,
        "vllm_version": plan["vllm_version"],
        "urls": {
            "openai": f"{url}/v1",
            "anthropic": url,
            "responses": f"{url}/v1/responses",
            "models": f"{url}/v1/models",
        },
        "tunnel": tunnel,
        "models": list(plan["served_names"]),
        "key": {"required": needs_key, "name": key if needs_key else None, "variable": None},
        "context": _context(plan, state),
        "capabilities": list(model.capabilities),
        "tools": "enable-auto-tool-choice" in plan["sources"],
        "sampling": {preset: dict(values) for preset, values in model.sampling.items()},
        "template_defaults": dict(model.template_defaults),
        "effort": _effort(plan, model),
        "no_proxy": host,
        "accepted": None if state is None else bool(state.get("accepted")),
        "accepted_at": (state or {}).get("accepted_at"),
        "fallback": dict(fallback) if fallback else None,
    }
    if needs_key:
        card["key"]["variable"] = key_variable(name)
    card["clients"] = {
        "claude_code": client_settings.claude_code(card),
        "openai_agent": client_settings.openai_agent(card),
        "desktop_chat": client_settings.desktop_chat(card),
    }
    card["notes"] = _notes(card, plan)
    return card


def _reach(plan: Mapping[str, Any], place: Place) -> tuple[str, str | None, str]:
    """(base address for clients, command that makes it reachable, name for NO_PROXY)"""
    bound = str(plan["sources"]["host"]["value"])
    port = plan["port"]
    if not place.address.isprintable() or " " in place.address:
        raise PlanError(
            f"ansible_host of {plan['host']} (option address) is {quoted(place.address)}, which is no address for "
            "clients; correct it."
        )
    if place.url is not None:
        return place.url, None, urlsplit(place.url).hostname or ""
    if bound in LOOPBACK:
        # What begins with a dash would be an option.
        words = ["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *["--"] * place.address.startswith("-"), place.address]
        return f"http://127.0.0.1:{port}", shlex.join(words), "127.0.0.1"
    host = place.address if bound in ANYWHERE else bound
    return f"http://{_in_url(host)}:{port}", None, host


def _in_url(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def _context(plan: Mapping[str, Any], state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Tokens of one request, prompt and answer together, and of all at once; the record wins over a prediction."""
    recorded = (state or {}).get("capacity") or {}
    planned = plan.get("capacity") or {}
    measured = recorded.get("kv_cache_size_tokens")
    return {
        "max_model_len": plan["max_model_len"],
        "kv_tokens": measured or recorded.get("kv_tokens") or planned.get("kv_tokens"),
        "kv_tokens_measured": bool(measured),
    }


def _effort(plan: Mapping[str, Any], model: Model) -> dict[str, Any] | None:
    """What each level gets; None for a model without levels. With a template of the user, what it should do."""
    if not model.effort.levels:
        return None
    aliases, by = aliases_in_force(plan)
    table = effort_table(str(plan["vllm_version"]), model.effort, aliases, by)
    return {
        "levels": list(model.effort.levels),
        "default": model.effort.default,
        "aliases": dict(aliases) if aliases else {},
        "by": by,
        "answers": {level: {api: str(found) for api, found in row.items()} for level, row in table.items()},
    }


def _notes(card: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    notes = []
    if card["tunnel"]:
        notes.append(
            f"It listens on its own host only: run `{card['tunnel']}` and leave it open, or set expose of the instance."
        )
    elif not card["key"]["required"]:
        notes.append("Whoever reaches this address can use it: no key is asked for.")
    if not card["tools"]:
        notes.append("Tools are not turned on (flag enable-auto-tool-choice), without which no agent can work.")
    if card["accepted"] is False:
        notes.append("It is not accepted: accept.yml checks it.")
    chosen = client_settings.unknown_default(card)
    if chosen:
        notes.append(
            f"Effort high, which Claude Code sends by itself, is refused: the settings below ask for {chosen}. With"
            " effort_aliases of the instance, high is understood."
        )
    if card["effort"] and "chat-template" in plan["sources"] and plan.get("chat_template_overlay") is None:
        notes.append("What the levels of effort mean is up to the chat template of the instance.")
    return notes


def card_lines(card: Mapping[str, Any]) -> list[str]:
    """The card for a terminal, or to be sent to somebody."""
    key = card["key"]
    context = card["context"]
    rows = [
        ("OpenAI clients", card["urls"]["openai"]),
        ("Anthropic clients", card["urls"]["anthropic"]),
        ("Responses clients", f"{card['urls']['openai']} (POST {card['urls']['responses']})"),
        ("model", ", ".join(card["models"])),
        ("key", f"{key['name']}, here taken from ${key['variable']}" if key["required"] else "none is asked for"),
        ("context", _tokens(context)),
        ("can", ", ".join(card["capabilities"]) or "not told by the model file"),
        ("NO_PROXY", f"{card['no_proxy']} (behind an HTTP proxy, add it to what you have)"),
        ("accepted", _accepted(card)),
    ]
    if card["fallback"]:
        rows.append(("fallback", _fallback(card["fallback"])))
    lines = [f"{card['host']} {card['instance']}: {card['model']} on vLLM {card['vllm_version']}"]
    lines += [f"  {name:<18} {value}" for name, value in rows]
    if card["sampling"]:
        lines.append("  sampling")
        lines += [f"    {preset:<18} {_values(values)}" for preset, values in card["sampling"].items()]
    lines += _effort_lines(card["effort"])
    lines += [f"  note: {note}" for note in card["notes"]]
    for text in card["clients"].values():
        lines += ["", f"  {text['title']}", *(f"    {line}".rstrip() for line in text["lines"])]
    return lines


def _tokens(context: Mapping[str, Any]) -> str:
    length, shared = context["max_model_len"], context["kv_tokens"]
    text = f"{length:,} tokens for prompt and answer" if length else "set by the engine"
    if not shared:
        return text
    return f"{text}, {'' if context['kv_tokens_measured'] else 'about '}{shared:,} for all requests at once"


def _accepted(card: Mapping[str, Any]) -> str:
    if card["accepted"] is None:
        return "nothing is on record"
    return f"since {card['accepted_at']}" if card["accepted"] else "no"


def _fallback(fallback: Mapping[str, Any]) -> str:
    model = f", model {fallback['model']}" if fallback["model"] else ""
    return f"{fallback['url']}{model}" + (f", key {fallback['key']}" if fallback["key"] else "")


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _effort_lines(effort: Mapping[str, Any] | None) -> list[str]:
    if effort is None:
        return []
    names = [api for api in APIS if api != KWARGS]
    lines = [f"  effort             levels {', '.join(effort['levels'])}; without one {effort['default']}"]
    lines.append("    HTTP status, and the level that the model works with; off is no thinking, ? is not known")
    lines.append("    " + f"{'level':<8} " + " ".join(f"{name:<12}" for name in names).rstrip())
    for level in EFFORTS:
        row = effort["answers"][level]
        lines.append("    " + f"{level:<8} " + " ".join(f"{row[name]:<12}" for name in names).rstrip())
    return lines
