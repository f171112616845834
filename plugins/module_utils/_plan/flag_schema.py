# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a version of vLLM takes on its command line, as typed objects read from ``profiles/vllm/VERSION.json``.

The files are made by `_flags/extract.py` inside an image of that version. Private to socle.inference.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short

SCHEMA = "socle.vllm_flags/1"
FOLDER = "profiles/vllm"

REGISTRIES = ("attention_backends", "load_formats", "quantization_methods", "reasoning_parsers", "tool_parsers")

TYPES = frozenset({"switch", "str", "int", "float", "size", "size_or_auto", "json", "json_or_str"})
"""What a flag takes."""

KEY_TYPES = frozenset({"bool", "int", "float", "str", "list", "map", "null", "any"})
"""What a key of a flag's JSON is; any where the engine has rules of its own."""

_VERSION = re.compile(r"\d+(?:\.\d+)*")
_WHOLE_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9a-z]{1,20}){1,5}")


@dataclass(frozen=True)
class Deprecation:
    """A flag that its version still takes and announces to remove."""

    use: str = ""
    """The flag to use instead, where the version names one."""
    removed_in: str = ""


@dataclass(frozen=True)
class Flag:
    """One flag; names have no dashes in front, except those of a single dash ("-tp")."""

    name: str
    type: str
    """One of TYPES."""
    aliases: tuple[str, ...] = ()
    negations: tuple[str, ...] = ()
    """Names that turn a switch off."""
    choices: tuple[Any, ...] | None = None
    """Values that argparse takes; None where it takes any."""
    advised: tuple[Any, ...] | None = None
    """Values that are only shown as known, while argparse lets any pass."""
    nargs: Any = None
    repeats: bool = False
    optional: bool = False
    """Whether the word None stands for nothing."""
    default: Any = None
    default_known: bool = True
    json_class: str = ""
    """Class that the engine makes of its JSON, one of FlagSchema.classes."""
    deprecated: Deprecation | None = None


@dataclass(frozen=True)
class Key:
    """One key of a flag's JSON."""

    types: tuple[str, ...]
    """Of KEY_TYPES."""
    choices: tuple[Any, ...] | None = None
    json_class: str = ""
    replaced: tuple[str, ...] = ()
    """Values that are taken with a warning and mean *replaced_by*."""
    replaced_by: str = ""


@dataclass(frozen=True)
class JsonClass:
    keys: Mapping[str, Key]
    rest: str = "forbid"
    """What happens to other keys: forbid, ignore or allow."""


@dataclass(frozen=True)
class FlagSchema:
    """All that `vllm serve` of one version takes."""

    version: str
    origin: str
    """The file, for a person."""
    flags: Mapping[str, Flag]
    classes: Mapping[str, JsonClass]
    registries: Mapping[str, frozenset[str]]
    parser_classes: Mapping[str, Mapping[str, str]]
    """Class by name, of "reasoning_parsers" and "tool_parsers": two names of one class are one parser."""
    environment: frozenset[str]
    options: Mapping[str, tuple[Flag, bool]] = field(default_factory=dict)
    """Every word with two dashes that is taken, with its flag and whether it turns that off."""

    @property
    def version_key(self) -> tuple[int, ...]:
        return version_key(self.version)

    def defaults(self) -> dict[str, Any]:
        """Default by flag name; what the engine only decides at start is None."""
        return {flag.name: flag.default for flag in self.flags.values() if flag.default_known}

    def in_own_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """*given* by the names that its flags have in all versions: aliases by their flag, what turns one off by "no-".

        "disable-prefix-caching" is so "no-enable-prefix-caching". What this version does not have stays as it is.
        """
        named = {}
        for name, value in given.items():
            flag, negated = self.options.get(name, (None, False))
            if flag is not None and negated and name.startswith("no-"):
                named[name] = value
            elif flag is not None:
                named[f"no-{flag.name}" if negated else flag.name] = value
            else:
                named[name] = value
        return named


def version_key(version: str) -> tuple[int, ...]:
    """For sorting: "0.26.0" -> (0, 26, 0); what is no version comes first."""
    match = _VERSION.match(version)
    return tuple(int(part) for part in match.group(0).split(".")) if match else ()


def _flag(name: str, entry: Mapping[str, Any]) -> Flag:
    going = entry.get("deprecated")
    return Flag(
        name=name,
        type=str(entry["type"]),
        aliases=tuple(entry.get("aliases", ())),
        negations=tuple(entry.get("negations", ())),
        choices=tuple(entry["choices"]) if "choices" in entry else None,
        advised=tuple(entry["advised"]) if "advised" in entry else None,
        nargs=entry.get("nargs"),
        repeats=bool(entry.get("repeats", False)),
        optional=bool(entry.get("optional", False)),
        default=entry.get("default"),
        default_known=not entry.get("default_unknown", False),
        json_class=str(entry.get("class", "")),
        deprecated=None if going is None else Deprecation(going.get("use", ""), going.get("removed_in", "")),
    )


def _key(entry: Mapping[str, Any]) -> Key:
    replaced = entry.get("replaced", {})
    return Key(
        types=tuple(entry["types"]),
        choices=tuple(entry["choices"]) if "choices" in entry else None,
        json_class=str(entry.get("class", "")),
        replaced=tuple(replaced.get("values", ())),
        replaced_by=str(replaced.get("by", "")),
    )


def parse_schema(document: Any, origin: str) -> FlagSchema:
    """The schema of a document; *origin* names it in messages. Raises PlanError where it is none."""
    again = "make it again with socle.inference.vllm_flag_schema"
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise PlanError(f"{origin} is no flag schema of kind {SCHEMA}; {again}, or remove it.")
    try:
        flags = {name: _flag(name, entry) for name, entry in document["flags"].items()}
        classes = {
            name: JsonClass({key: _key(value) for key, value in entry["keys"].items()}, str(entry["rest"]))
            for name, entry in document["classes"].items()
        }
        registries = {name: frozenset(document["registries"][name]) for name in REGISTRIES}
        parsers = {name: dict(document["registries"][name]) for name in ("reasoning_parsers", "tool_parsers")}
        environment = frozenset(document["environment"])
        unknown = {flag.type for flag in flags.values()} - TYPES
        unknown |= {kind for each in classes.values() for key in each.keys.values() for kind in key.types} - KEY_TYPES
        if unknown:
            raise ValueError(f"{min(map(str, unknown))[:40]!r} is no type")
        version = str(document["vllm_version"])
        # It becomes the name of a file, and an image may say anything.
        if not _WHOLE_VERSION.fullmatch(version):
            raise ValueError(f"vllm_version is {version[:40]!r}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PlanError(
            f"{origin} is a flag schema with a part missing or damaged ({short(repr(error), 200)}); {again}."
        ) from error

    options: dict[str, tuple[Flag, bool]] = {}
    for flag in flags.values():
        for word in (flag.name, *flag.aliases):
            if not word.startswith("-"):
                options[word] = (flag, False)
        for word in flag.negations:
            options[word] = (flag, True)
    return FlagSchema(version, origin, flags, classes, registries, parsers, environment, options)


@functools.lru_cache(maxsize=64)
def _read(path: Path, origin: str, changed_ns: int, size: int) -> FlagSchema:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PlanError(
            f"{origin} is no JSON ({error}); make it again with socle.inference.vllm_flag_schema, or remove it."
        ) from error
    schema = parse_schema(document, origin)
    if schema.version != path.stem:
        raise PlanError(
            f"{origin} is the flag schema of vLLM {schema.version}, but is named for {path.stem};"
            f" rename it to {schema.version}.json."
        )
    return schema


def read_schemas(folders: Iterable[Path]) -> dict[str, FlagSchema]:
    """Schema by version, from the ``*.json`` of *folders*, of which the first that has a version wins.

    A file that has not changed is read once in the life of a process. Raises PlanError for one that is damaged.
    """
    found: dict[str, FlagSchema] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            if path.stem in found:
                continue
            origin = f"{FOLDER}/{path.name}"
            try:
                status = path.stat()
                found[path.stem] = _read(path, origin, status.st_mtime_ns, status.st_size)
            except OSError as error:
                raise PlanError(f"{path} cannot be read ({error.strerror}); correct the file or remove it.") from error
    return found
