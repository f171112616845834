# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools that checks offer to a model, and what is wrong with a call of one. Private to socle.inference.

A call is held against the JSON Schema of its tool by the few keywords that the tools here use. A library that knows all
of them brings compiled code to every host that is probed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.strict_json import parse_json


@dataclass(frozen=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """Of its arguments; keywords: type, properties, required, additionalProperties, items, enum."""
    strict: bool = False
    """Ask for a grammar of the arguments, too: without it vLLM 0.32 forces the call, and not what is in it."""


@dataclass(frozen=True)
class Call:
    """One call, put together where it was streamed."""

    id: str
    name: str
    arguments: str
    """JSON, as it came."""


def _record(properties: Mapping[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


WEATHER = Tool(
    "get_weather",
    "The present weather of a city.",
    _record(
        {
            "city": {"type": "string", "description": "Name of the city."},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        optional=["unit"],
    ),
)
WRITE = Tool(
    "write_file",
    "Writes lines of text to a file.",
    _record(
        {
            "path": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "string"}, "description": "The text, line by line."},
        }
    ),
)
UNIT = Tool(
    "set_unit",
    "Sets the unit in which temperatures are told.",
    _record({"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}),
    strict=True,
)
LAMP = Tool(
    "set_lamp",
    "Turns the lamp of a room on or off.",
    _record({"room": {"type": "string", "enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}}),
    strict=True,
)
"""With UNIT for calls that a grammar forces: no argument is free text, which a small model would not end."""

TOOLS = (WEATHER, WRITE, UNIT, LAMP)


def call_faults(call: Call, tools: Iterable[Tool]) -> list[str]:
    """What is wrong with *call*: no id, a tool that was not offered, arguments that are no JSON or break the schema."""
    faults = [] if call.id else [f"the call of {call.name or 'a tool without a name'} has no id"]
    tool = next((each for each in tools if each.name == call.name), None)
    if tool is None:
        return [*faults, f"it calls {call.name!r}, which was not offered"]
    try:
        arguments = parse_json(call.arguments)
    except ValueError:
        return [*faults, f"the arguments of {call.name} are not JSON: {call.arguments[:80]!r}"]
    return [*faults, *(f"{call.name}: {fault}" for fault in schema_faults(arguments, tool.schema, "its arguments"))]


def schema_faults(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """How *value* breaks *schema*, each as "place is this, not that"."""
    kind = schema.get("type")
    if kind is not None and not _is(value, kind):
        return [f"{where} is {json.dumps(value)[:40]}, not of type {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {json.dumps(value)[:40]}, not one of {', '.join(map(str, schema['enum']))}"]
    faults: list[str] = []
    if kind == "object":
        known = schema.get("properties", {})
        faults += [f"{where} lacks {name}" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            if name in known:
                faults += schema_faults(each, known[name], name)
            elif schema.get("additionalProperties") is False:
                faults.append(f"{where} has {name}, which the schema does not know")
    elif kind == "array":
        for place, each in enumerate(value):
            faults += schema_faults(each, schema.get("items", {}), f"{where}[{place}]")
    return faults


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        # In Python true is a number; in JSON it is none. 3.0 is an integer in JSON Schema.
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (kind == "number" or isinstance(value, int) or value.is_integer())
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[kind])
