# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the JSON of a flag with the class that the engine makes of it, which argparse never looks into.

Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, WARNING, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import FlagSchema, Key, version_key
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    closest,
    describe,
    quoted,
    short,
    usable,
)

_NAMES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "map": "a map",
    "null": "null",
}

_TRUTH_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "0", "1"})

_AT_LEAST_ONE = frozenset({("SpeculativeConfig", "num_speculative_tokens")})
"""Keys, by their class, of numbers that the engine refuses below 1 (config/speculative.py: gt=0)."""


def check_class(
    where: str, value: Any, class_name: str, schema: FlagSchema, others: Mapping[str, FlagSchema]
) -> Iterator[Finding]:
    """Findings of one map of JSON and of the maps within; *where* is the flag, then its keys ("flag.key")."""
    described = schema.classes.get(class_name)
    if described is None or not isinstance(value, dict):
        return
    for name in sorted(value, key=str):
        key = described.keys.get(name)
        if key is not None:
            yield from _check_key(f"{where}.{short(name)}", value[name], key, class_name, name, schema, others)
        elif described.rest != "allow":
            yield _unknown(where, name, class_name, schema, others)


def _evidence(schema: FlagSchema, class_name: str) -> str:
    return f"Class {class_name} of vLLM {schema.version} ({schema.origin})."


def _having(others: Mapping[str, FlagSchema], class_name: str, name: str) -> list[tuple[str, Key]]:
    found = []
    for version in sorted(others, key=version_key):
        other = others[version].classes.get(class_name)
        if other is not None and name in other.keys:
            found.append((version, other.keys[name]))
    return found


def _unknown(where: str, name: str, class_name: str, schema: FlagSchema, others: Mapping[str, FlagSchema]) -> Finding:
    described = schema.classes[class_name]
    having = [version for version, _key in _having(others, class_name, name)]
    near = closest(name, described.keys)
    elsewhere = f" ({', '.join(having)} {'do' if len(having) > 1 else 'does'})" if having else ""
    ends = "does not start with it" if described.rest == "forbid" else "passes over it in silence"
    return Finding(
        "SOC-F11",
        ERROR if described.rest == "forbid" else WARNING,
        f"vLLM {schema.version} does not know the key {quoted(name)} of '{where}'{elsewhere} and {ends}.",
        f"Write {near!r} if that is what is meant, else remove it."
        if near and not having
        else f"Remove {quoted(name)}.",
        _evidence(schema, class_name),
        f"{where}.{short(name)}",
    )


def _check_key(
    where: str,
    value: Any,
    key: Key,
    class_name: str,
    name: str,
    schema: FlagSchema,
    others: Mapping[str, FlagSchema],
) -> Iterator[Finding]:
    if "any" in key.types:
        return
    limited = (class_name, name) in _AT_LEAST_ONE
    if not any(_fits(value, kind, 1 if limited else None) for kind in key.types):
        expected = " or ".join(_NAMES[kind] for kind in key.types) + " of at least 1" * limited
        yield Finding(
            "SOC-F12",
            ERROR,
            f"'{where}' must be {expected}, but is {describe(value)}.",
            f"Correct '{where}'.",
            _evidence(schema, class_name),
            where,
        )
        return
    if isinstance(value, dict) and key.json_class:
        yield from check_class(where, value, key.json_class, schema, others)
    elif key.choices is not None and value is not None and value not in key.choices:
        having = [
            version for version, other in _having(others, class_name, name) if other.choices and value in other.choices
        ]
        shown = [str(choice) for choice in key.choices]
        near = closest(value, shown)
        elsewhere = f"; {', '.join(having)} {'do' if len(having) > 1 else 'does'}" if having else ""
        yield Finding(
            "SOC-F12",
            ERROR,
            f"'{where}' is {quoted(value)}, which vLLM {schema.version} does not offer{elsewhere}.",
            f"Write {near!r} if that is what is meant." if near else f"Choose one of: {', '.join(shown)}.",
            _evidence(schema, class_name),
            where,
        )
    elif isinstance(value, str) and value in key.replaced:
        yield Finding(
            "SOC-F07",
            WARNING,
            f"'{where}' is {value!r}, a deprecated name that vLLM {schema.version} reads as {key.replaced_by!r}.",
            f"Write {key.replaced_by!r}.",
            _evidence(schema, class_name),
            where,
        )


def _fits(value: Any, kind: str, least: int | None = None) -> bool:
    """Whether the engine takes *value* for this type: it reads a number out of text, but makes no text of a number.

    Only true in a number's place, which it reads as 1, is left out here, since nobody means that.
    """
    if kind == "null":
        return value is None
    if kind == "map":
        return isinstance(value, dict)
    if kind == "list":
        return isinstance(value, list)
    if kind == "str":
        return isinstance(value, str)
    if kind == "bool":
        return isinstance(value, bool) or str(value).lower() in _TRUTH_WORDS
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return False
    if kind == "float":
        return True
    whole = number.is_integer() and usable(value if isinstance(value, int) else number)
    return whole and (least is None or number >= least)
