# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints what `vllm serve` takes as one JSON document, read off the parser of the vLLM that is installed here.

It runs inside an engine image, without a GPU and without a network: `python3 - < extract.py`. It needs Python 3.9 and
an importable vLLM (0.19.1 to 0.33.0 are known to work), and nothing else of this collection. The document has no help
texts: of them only whether a flag is deprecated, what replaces it and when it goes.

vLLM refuses to build its parser where it finds no device, so the platform is set to the processor before anything asks
for it. Which flags there are does not depend on the platform; a few defaults do, which vLLM chooses at start anyway.
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import enum
import importlib
import json
import math
import os
import pathlib
import platform
import re
import sys
import types
import typing
from typing import Any

SCHEMA = "socle.vllm_flags/1"

_DEPRECATED = re.compile(
    r"\[deprecated|^\s*deprecated\b|\b(?:is|are|been|now) (?:deprecated|replaced)\b|\bdeprecated(?: and|:|,|\.)"
    r"|has no effect (?:and|since)",
    re.IGNORECASE,
)
_REPLACEMENT = re.compile(
    r"(?:use|replaced (?:by|with)|in favou?r of)\s+(?:the\s+)?[`'\"]*(--[a-z0-9][a-z0-9_-]*|[a-z0-9]+_[a-z0-9_]+)",
    re.IGNORECASE,
)
_REMOVAL = re.compile(r"removed\s+in\s+(?:version\s+)?v?(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)

_SCALARS = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null", pathlib.Path: "str"}
_TYPES = {
    "int": "int",
    "float": "float",
    "str": "str",
    "loads": "json",
    "union_dict_and_str": "json_or_str",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "size_or_auto",
    "parse_dataclass": "json",
}
"""What argparse calls for a value, by the last part of its name, and what people write for it."""


def first_module(*names: str) -> Any:
    """The first of these modules that this version has."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    return importlib.import_module(names[-1])


def serve_parser() -> Any:
    """The argparse parser of `vllm serve`."""
    # Help is only filled in when asked for, and it alone says what is deprecated.
    # "--help" as a word of its own would leave out --model.
    sys.argv = ["vllm", "serve", "--help=all"]
    platforms = importlib.import_module("vllm.platforms")
    processor = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    for name in ("current_platform", "_current_platform"):
        setattr(platforms, name, processor)
    flexible = first_module("vllm.utils.argparse_utils", "vllm.utils").FlexibleArgumentParser
    subparsers = flexible(prog="vllm").add_subparsers()
    return importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand().subparser_init(subparsers)


def unwrap(function: Any) -> tuple[Any, bool]:
    """(what converts a value, whether "None" is taken for none), without the functions wrapped around it."""
    optional = False
    while getattr(function, "__closure__", None):
        names = function.__code__.co_freevars
        if "return_type" not in names:
            break
        optional = optional or "optional" in function.__name__
        function = function.__closure__[names.index("return_type")].cell_contents
    return function, optional


def converted(action: Any) -> dict[str, Any]:
    """Type of a flag's value: {"type": ..., "class": of its JSON, "optional": true}."""
    if action.nargs == 0:
        return {"type": "switch"}
    function, optional = unwrap(action.type)
    described: dict[str, Any] = {"type": "str"}
    if function is not None:
        name = getattr(function, "__name__", type(function).__name__)
        described["type"] = _TYPES.get(name, "str")
        for default in getattr(function, "__defaults__", None) or ():
            if dataclasses.is_dataclass(default):
                described["class"] = default
    if optional:
        described["optional"] = True
    return described


def plain(value: Any) -> Any:
    """*value* as JSON; raises ValueError where it has no such form."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(value)
        return value
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    raise ValueError(value)


def in_order(values: Any) -> list[Any]:
    """*values* sorted: numbers by size, then words."""
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def deprecation(action: Any, marked: bool) -> dict[str, Any] | None:
    """What the parser says of a flag that is on its way out: {"use": flag, "removed_in": version}, each if known."""
    text = action.help if isinstance(action.help, str) else ""
    if not (marked or "Deprecated" in type(action).__name__ or _DEPRECATED.search(text)):
        return None
    found: dict[str, Any] = {}
    replacement = _REPLACEMENT.search(text)
    if replacement and replacement.group(1) not in action.option_strings:
        found["use"] = replacement.group(1).strip("-").replace("_", "-")
    removal = _REMOVAL.search(text)
    if removal:
        found["removed_in"] = removal.group(1)
    return found


def described_flag(action: Any, accepted: list[str], marked: bool) -> tuple[str, dict[str, Any]]:
    """(name, entry) of one flag; what is usual (no choices, no aliases, default null) is left out."""
    positive = [option for option in accepted if option in action.option_strings]
    negative: set[str] = set()
    if isinstance(action, argparse.BooleanOptionalAction):
        negative = set(getattr(action, "negative_option_strings", ()))
        negative = negative or {option for option in accepted if option.startswith("--no-")}
    positive = [option for option in accepted if option not in negative]
    long_names = [option for option in positive if option.startswith("--")]
    name = long_names[0][2:] if long_names else positive[0]

    entry = converted(action)
    if action.dest != name.replace("-", "_"):
        entry["dest"] = action.dest
    aliases = sorted(option[2:] if option.startswith("--") else option for option in positive)
    if len(aliases) > 1:
        entry["aliases"] = [alias for alias in aliases if alias != name]
    if negative:
        entry["negations"] = sorted(option[2:] for option in negative)
    if action.nargs not in (None, 0):
        entry["nargs"] = action.nargs
    if isinstance(action, getattr(argparse, "_AppendAction")):  # noqa: B009 - private by its name only
        entry["repeats"] = True
    if action.choices is not None:
        # Some versions add the word None for nothing, which the conversion has made of it before it is looked up.
        entry["choices"] = in_order(plain(choice) for choice in action.choices if choice not in (None, "None"))
    elif isinstance(action.metavar, (list, tuple)):
        # argparse lets any value pass and the engine dies of it later; the names are only shown.
        entry["advised"] = in_order(plain(choice) for choice in action.metavar if choice is not None)
    if action.default is not argparse.SUPPRESS:
        try:
            # Of a dataclass no key is set as long as nobody sets one.
            entry["default"] = {} if dataclasses.is_dataclass(action.default) else plain(action.default)
        except ValueError:
            entry["default_unknown"] = True
        if entry.get("default", "") is None:
            del entry["default"]
    going = deprecation(action, marked)
    if going is not None:
        entry["deprecated"] = going
    return name, entry


def hint_entry(hint: Any) -> dict[str, Any]:
    """A type as {"types": [...], "choices": [...], "class": dataclass}; what cannot be told is the type "any"."""
    if hint in _SCALARS:
        return {"types": [_SCALARS[hint]]}
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        values = list(typing.get_args(hint))
        return {"types": [_SCALARS.get(type(value), "any") for value in values], "choices": values}
    if origin is typing.Union or origin is getattr(types, "UnionType", typing.Union):
        return merged([hint_entry(part) for part in typing.get_args(hint)])
    if hasattr(hint, "__metadata__"):
        return hint_entry(typing.get_args(hint)[0])
    kind = origin or hint
    if dataclasses.is_dataclass(kind):
        return {"types": ["map"], "class": kind}
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return {"types": ["any"]}
        if issubclass(kind, collections.abc.Mapping):
            return {"types": ["map"]}
        if issubclass(kind, (list, tuple, set, frozenset, collections.abc.Sequence)) and not issubclass(kind, bytes):
            return {"types": ["list"]}
    return {"types": ["any"]}


def merged(entries: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"types": []}
    open_text = False
    for entry in entries:
        result["types"] += entry["types"]
        result.setdefault("choices", []).extend(entry.get("choices", []))
        open_text = open_text or (any(kind not in ("null",) for kind in entry["types"]) and "choices" not in entry)
        if "class" in entry:
            result["class"] = entry["class"]
    if open_text or not result.get("choices"):
        result.pop("choices", None)
    return result


def described_class(cls: Any) -> tuple[dict[str, Any], list[Any]]:
    """(entry of a dataclass that a flag's JSON becomes, dataclasses among its keys)."""
    try:
        hints = typing.get_type_hints(cls, include_extras=False)
    except (NameError, TypeError, AttributeError):
        hints = {}
    own_rules = set()
    decorators = getattr(cls, "__pydantic_decorators__", None)
    if decorators is not None:
        for decorator in decorators.field_validators.values():
            # Such a function sees what was written before its type is checked, and may take more.
            if decorator.info.mode in ("before", "plain", "wrap"):
                own_rules.update(decorator.info.fields)
    keys: dict[str, Any] = {}
    inner = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        entry = hint_entry(hints.get(field.name, Any))
        if field.name in own_rules or "*" in own_rules:
            entry = {"types": ["any"]}
        if "class" in entry:
            inner.append(entry["class"])
            entry["class"] = entry["class"].__name__
        entry["types"] = sorted(set(entry["types"]))
        if "choices" in entry:
            entry["choices"] = in_order(set(entry["choices"]))
        keys[field.name] = entry
    if cls.__name__ == "SpeculativeConfig" and "method" in keys:
        keys["method"]["replaced"] = replaced_methods()
    config = getattr(cls, "__pydantic_config__", None) or {}
    rest = config.get("extra", "ignore") if decorators is not None else "forbid"
    return {"rest": rest, "keys": keys}, inner


def replaced_methods() -> dict[str, Any]:
    """Older names of a method of speculation, which the engine takes with a warning: {"by": name, "values": [...]}."""
    names = typing.get_args(getattr(importlib.import_module("vllm.config.speculative"), "MTPModelTypes", None))
    return {"by": "mtp", "values": sorted(set(names) - {"mtp"})}


def class_of_dest(dest: str) -> Any:
    """The dataclass that the engine makes of a flag whose JSON the parser itself does not look into, or None."""
    config = importlib.import_module("vllm.config").VllmConfig
    for owner in (config, importlib.import_module("vllm.engine.arg_utils").EngineArgs):
        try:
            hint = typing.get_type_hints(owner).get(dest)
        except (NameError, TypeError, AttributeError):
            continue
        found = hint_entry(hint).get("class") if hint is not None else None
        if found is not None:
            return found
    return None


def registry(manager: Any) -> dict[str, str]:
    """Class by name of what a registry of parsers has."""
    names = {name: place[1] for name, place in getattr(manager, "lazy_parsers", {}).items()}
    for attribute in ("tool_parsers", "reasoning_parsers"):
        for name, cls in (getattr(manager, attribute, None) or {}).items():
            names.setdefault(name, cls.__name__)
    return names


def document() -> dict[str, Any]:
    """The whole document."""
    parser = serve_parser()
    accepted: dict[int, list[str]] = {}
    actions = {}
    for option, action in getattr(parser, "_option_string_actions").items():  # noqa: B009
        accepted.setdefault(id(action), []).append(option)
        actions[id(action)] = action
    marked = {id(action) for action in getattr(parser, "_deprecated", ()) if not isinstance(action, str)}

    flags: dict[str, Any] = {}
    waiting = []
    for key, action in actions.items():
        if isinstance(action, getattr(argparse, "_HelpAction")):  # noqa: B009
            continue
        name, entry = described_flag(action, accepted[key], key in marked or bool(getattr(action, "deprecated", False)))
        if entry["type"] in ("json", "json_or_str"):
            cls = entry.pop("class", None) or class_of_dest(action.dest)
            if cls is not None:
                entry["class"] = cls.__name__
                waiting.append(cls)
        flags[name] = entry

    classes: dict[str, Any] = {}
    while waiting:
        cls = waiting.pop()
        if cls.__name__ not in classes:
            classes[cls.__name__], inner = described_class(cls)
            waiting += inner

    loaders = importlib.import_module("vllm.model_executor.model_loader")
    tools = first_module("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "pydantic"):
        versions[name] = str(importlib.import_module(name).__version__)
    return {
        "schema": SCHEMA,
        "vllm_version": importlib.import_module("vllm").__version__.partition("+")[0],
        "made_with": versions,
        "flags": flags,
        "classes": classes,
        "registries": {
            "attention_backends": sorted(
                importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum.__members__
            ),
            "load_formats": sorted(getattr(loaders, "_LOAD_FORMAT_TO_MODEL_LOADER")),  # noqa: B009
            "quantization_methods": sorted(
                importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
            ),
            "reasoning_parsers": registry(importlib.import_module("vllm.reasoning").ReasoningParserManager),
            "tool_parsers": registry(tools.ToolParserManager),
        },
        "environment": sorted(importlib.import_module("vllm.envs").environment_variables),
    }


def main() -> None:
    # vLLM and what it imports write to the standard output as they like; the document alone belongs there.
    answer = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(document(), sort_keys=True)
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        stream.write(text + "\n")


if __name__ == "__main__":
    main()
