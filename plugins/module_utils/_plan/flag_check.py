# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares flags and environment of a plan with what the version of the engine takes. Private to socle.inference.

Whatever argparse, or the first look at a value, would end the engine with is said before a host is touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, NOTE, WARNING, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_json import check_class
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import Flag, FlagSchema, version_key
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import parse_size
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import closest, describe, quoted, short

PARSER_FLAGS = {
    "tool-call-parser": ("tool_parsers", "tool-parser-plugin"),
    "reasoning-parser": ("reasoning_parsers", "reasoning-parser-plugin"),
    "load-format": ("load_formats", ""),
    "quantization": ("quantization_methods", ""),
    "attention-backend": ("attention_backends", ""),
}
"""Flags whose values are names in a registry, and the flag with which a plugin adds names to it."""

CLOSED = frozenset({"kv-cache-dtype"})
"""Flags whose value argparse no longer looks at (0.33.0), while the engine dies of any that it does not know."""

DECIDED_AT_START = {"enable-chunked-prefill": True}
"""What the engine decides by itself for every generating model where the parser has no default (0.19.1 to 0.33.0,
`vllm/engine/arg_utils.py`)."""

ANNOUNCED = {"model": "name the model as the first word after `vllm serve`"}
"""Flags of which the engine says only when it meets them that they will go, and what to do instead."""

_AT_LEAST_ONE = ("a number of at least 1", lambda number: number >= 1)
_LIMITS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "gpu-memory-utilization": ("a share above 0 and up to 1, such as 0.92", lambda share: 0 < share <= 1),
    "watermark": ("a share from 0 to below 1", lambda share: 0 <= share < 1),
    "block-size": _AT_LEAST_ONE,
    "data-parallel-size": _AT_LEAST_ONE,
    "max-num-batched-tokens": _AT_LEAST_ONE,
    "max-num-seqs": _AT_LEAST_ONE,
    "pipeline-parallel-size": _AT_LEAST_ONE,
    "stream-interval": _AT_LEAST_ONE,
    "tensor-parallel-size": _AT_LEAST_ONE,
}
"""Of numbers that argparse takes and the engine's configuration refuses, in all of 0.23.0, 0.26.0 and 0.32.0."""

_TRUTH_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "0", "1"})
_SMALL_UNIT = re.compile(r"\d+(?:\.\d+)?[kmgt]")
_INT = re.compile(r"[+-]?\d+")

_EXPECTED = {
    "str": "one word of text",
    "int": "a whole number",
    "float": "a number",
    "size": "a whole number, or one with a unit such as 8192 or 256K",
    "size_or_auto": "a whole number, one with a unit such as 256K, or auto",
    "json": "JSON",
    "json_or_str": "JSON or one word of text",
}


def check_flags(
    flags: Mapping[str, Any], env: Mapping[str, Any], schema: FlagSchema, others: Mapping[str, FlagSchema]
) -> list[Finding]:
    """What is wrong or worth knowing of *flags* (names without dashes) and *env* for the version of *schema*.

    *others* are the schemas of all versions that are known, by version, to say which of them take what this one does
    not. Flags that are null are not there.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    findings: list[Finding] = []
    spelled: dict[str, str] = {}
    for name in sorted(given):
        known = schema.options.get(name)
        if known is None:
            findings.append(_not_taken(name, schema, others))
            continue
        flag, negated = known
        if flag.name in spelled:
            findings.append(_twice(flag, spelled[flag.name], name, schema))
        spelled[flag.name] = name
        findings.extend(_check_value(name, given[name], flag, negated, given, schema, others))
        findings.extend(_check_deprecated(name, flag, schema))
        findings.extend(_check_default(name, given[name], flag, negated, schema))
    findings.extend(_check_env(env, schema, others))
    return findings


def unchecked(version: str, known: Iterable[str]) -> Finding:
    """The one finding of a version of which there is no schema."""
    names = ", ".join(sorted(known, key=version_key)) or "none"
    return Finding(
        "SOC-F17",
        WARNING,
        f"The flags were not checked, since there is no flag schema of vLLM {version} (there are {names}).",
        "Make it from the image, on any one host: 'ansible-playbook playbooks/flags.yml -i INVENTORY --limit HOST"
        f" -e flags_image=IMAGE' writes profiles/vllm/{version}.json into the site's data.",
        subject="vllm_version",
    )


# Names


def _evidence(schema: FlagSchema) -> str:
    return f"The parser of `vllm serve` {schema.version} ({schema.origin})."


def _versions(found: Iterable[str]) -> str:
    return ", ".join(sorted(found, key=version_key))


def _verb(found: Sized, one: str, several: str) -> str:
    return several if len(found) > 1 else one


def _not_taken(name: str, schema: FlagSchema, others: Mapping[str, FlagSchema]) -> Finding:
    starts = sorted(word for word in schema.options if word.startswith(name))
    if starts:
        return _abbreviation(name, starts, schema)
    shown = short(name)
    having = {version: other for version, other in others.items() if name in other.options}
    versions = _versions(having)
    if having and all(version_key(version) < schema.version_key for version in having):
        return _removed(name, schema, having)
    if having:
        return Finding(
            "SOC-F09",
            ERROR,
            f"vLLM {schema.version} does not have the flag '{shown}', which {versions} {_verb(having, 'has', 'have')}.",
            f"Remove '{shown}', or let the instance run {_verb(having, 'that version', 'one of these versions')}.",
            _evidence(schema),
            name,
        )
    # A short name cannot be written in a map of flags, so it may have been meant by its letters.
    letters = [flag.name for flag in schema.flags.values() if f"-{name}" in flag.aliases]
    near = letters[0] if letters else closest(name, schema.options)
    remedy = f"Write '{near}' if that is what is meant, else remove it." if near else f"Remove '{shown}'."
    elsewhere = "" if not others else " nor any other version of which there is a flag schema"
    return Finding(
        "SOC-F01",
        ERROR,
        f"Neither vLLM {schema.version}{elsewhere} has the flag '{shown}'."
        if elsewhere
        else f"vLLM {schema.version} does not have the flag '{shown}'.",
        remedy,
        _evidence(schema),
        name,
    )


def _abbreviation(name: str, starts: list[str], schema: FlagSchema) -> Finding:
    shown = ", ".join(f"'{word}'" for word in starts[:4]) + (" and others" if len(starts) > 4 else "")
    if len(starts) == 1:
        sentence = f"'{name}' is only the beginning of the flag {shown}, which the next version may take for another."
        remedy = f"Write the whole name {shown}."
    else:
        sentence = f"'{name}' is only the beginning of several flags of vLLM {schema.version}: {shown}."
        remedy = "Write the whole name of the one that is meant."
    return Finding("SOC-F02", ERROR, sentence, remedy, _evidence(schema), name)


def _removed(name: str, schema: FlagSchema, having: Mapping[str, FlagSchema]) -> Finding:
    last = max(having, key=version_key)
    going = having[last].options[name][0].deprecated
    instead = going.use if going is not None and going.use in schema.options else ""
    return Finding(
        "SOC-F08",
        ERROR,
        f"vLLM {schema.version} no longer has the flag '{name}' ({last} was the last known to have it).",
        f"Use '{instead}' instead." if instead else f"Remove '{name}'.",
        _evidence(schema),
        name,
    )


def _twice(flag: Flag, first: str, second: str, schema: FlagSchema) -> Finding:
    return Finding(
        "SOC-F18",
        ERROR,
        f"'{first}' and '{second}' both set the flag '{flag.name}', of which the engine keeps whichever comes last.",
        f"Keep one of them, '{flag.name}' by its own name.",
        _evidence(schema),
        second,
    )


# Values


def _check_value(
    name: str,
    value: Any,
    flag: Flag,
    negated: bool,
    flags: Mapping[str, Any],
    schema: FlagSchema,
    others: Mapping[str, FlagSchema],
) -> Iterator[Finding]:
    if flag.type == "switch":
        yield from _check_switch(name, value, flag, negated, schema)
        return
    if value is True and flag.nargs == "?":
        return
    fault = _fault(value, flag)
    if fault:
        yield Finding(
            "SOC-F10" if fault == "json" else "SOC-F03",
            ERROR,
            f"'{name}' expects {_expected(flag)}, but is {_shown(value)}"
            + (", which does not parse as JSON." if fault == "json" else "."),
            f"Correct '{name}'." if fault != "json" else f"Write '{name}' as a map, which becomes JSON by itself.",
            _evidence(schema),
            name,
        )
        return
    yield from _check_limit(name, value, flag)
    if flag.type in ("size", "size_or_auto"):
        yield from _check_unit(name, value, schema)
    if flag.json_class:
        yield from check_class(name, _parsed(value), flag.json_class, schema, others)
    for item in value if isinstance(value, list) else [value]:
        yield from _check_choice(name, item, flag, flags, schema, others)


def _check_limit(name: str, value: Any, flag: Flag) -> Iterator[Finding]:
    if flag.name not in _LIMITS:
        return
    expected, holds = _LIMITS[flag.name]
    number = _number(value)
    if number is not None and not holds(number):
        yield Finding(
            "SOC-F03",
            ERROR,
            f"'{name}' expects {expected}, but is {_shown(value)}.",
            f"Correct '{name}'.",
            "vllm/config: limits of the field in CacheConfig, SchedulerConfig or ParallelConfig",
            name,
        )


def _number(value: Any) -> float | None:
    """What the engine reads, of a number, a size or the text of one; None for anything else, such as auto."""
    size = parse_size(value)
    if size is not None:
        return float(size)
    try:
        return None if isinstance(value, (bool, list, dict)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _expected(flag: Flag) -> str:
    if flag.nargs in ("+", "*") or flag.repeats:
        return f"{_EXPECTED[flag.type]} or a list of such"
    return _EXPECTED[flag.type]


def _shown(value: Any) -> str:
    return "a switch (true)" if value is True else describe(value)


def _fault(value: Any, flag: Flag) -> str:
    """ "" where argparse takes the value, "json" where it does not parse, else "type"."""
    if isinstance(value, list) and flag.type not in ("json", "json_or_str"):
        if flag.nargs not in ("+", "*") and not flag.repeats:
            return "type"
        # Entries that are maps become one word of JSON each, which such flags read by themselves.
        items = [item for item in value if not isinstance(item, dict) or flag.type != "str"]
        return next((fault for fault in (_fault_of_word(item, flag) for item in items) if fault), "")
    if isinstance(value, dict) and flag.type == "str" and (flag.nargs in ("+", "*") or flag.repeats):
        return ""
    return _fault_of_word(value, flag)


def _fault_of_word(value: Any, flag: Flag) -> str:
    if isinstance(value, bool):
        return "type"
    if flag.optional and value in ("None", ""):
        return ""
    if flag.type in ("json", "json_or_str"):
        if isinstance(value, str):
            if flag.type == "json_or_str" and not value.strip().startswith("{"):
                return ""
            try:
                json.loads(value)
            except (ValueError, RecursionError):
                return "json"
        if flag.json_class and not isinstance(_parsed(value), dict):
            return "type"
        return ""
    if isinstance(value, (dict, list)):
        return "type"
    text = str(value).strip()
    if flag.type == "int":
        fits = isinstance(value, int) or bool(isinstance(value, str) and _INT.fullmatch(text))
    elif flag.type == "float":
        fits = isinstance(value, (int, float)) or _is_number(text)
    elif flag.type in ("size", "size_or_auto"):
        whole = isinstance(value, int) or bool(_INT.fullmatch(text))
        fits = whole or parse_size(value) is not None or (flag.type == "size_or_auto" and text == "auto")
    else:
        fits = True
    return "" if fits else "type"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _check_switch(name: str, value: Any, flag: Flag, negated: bool, schema: FlagSchema) -> Iterator[Finding]:
    if value is True:
        return
    off = (isinstance(value, str) and value.lower() in ("false", "no", "off", "0")) or value is False or value == 0
    wanted = name
    if off:
        wanted = flag.name if negated else next(iter(_preferred(flag)), "")
    text = isinstance(value, str) and value.lower() not in _TRUTH_WORDS
    yield Finding(
        "SOC-F14",
        ERROR,
        f"'{name}' takes no value, but has {describe(value)}, which the engine would take for the model.",
        (f"Write '{wanted}: true'." if not text else f"Write '{name}: true' to turn it on, or remove it.")
        if wanted
        else f"Remove '{name}'.",
        _evidence(schema),
        name,
    )


def _preferred(flag: Flag) -> list[str]:
    """Ways to turn a switch off, the one that more versions have first."""
    return sorted(flag.negations, key=lambda word: (not word.startswith("no-"), word))


def _check_unit(name: str, value: Any, schema: FlagSchema) -> Iterator[Finding]:
    if not isinstance(value, str) or not _SMALL_UNIT.fullmatch(value):
        return
    meant = parse_size(value)
    number = value[:-1]
    power = 1024 ** ("kmgt".index(value[-1]) + 1)
    # 1.5K is refused by the engine.
    other = f"{number}{value[-1].upper()} is {int(number) * power:,}" if number.isdigit() else "K counts in 1,024"
    yield Finding(
        "SOC-F04",
        WARNING,
        f"'{name}' is {value}, which the engine reads as {meant:,}, since small units count in thousands; {other}.",
        f"Write the number itself, or {number}{value[-1].upper()} if that is meant."
        if number.isdigit()
        else "Write the number itself.",
        _evidence(schema),
        name,
    )


def _check_choice(
    name: str, value: Any, flag: Flag, flags: Mapping[str, Any], schema: FlagSchema, others: Mapping[str, FlagSchema]
) -> Iterator[Finding]:
    if isinstance(value, (dict, list)) or (flag.optional and value in ("None", "")):
        return
    word = str(value)
    registry, plugin = PARSER_FLAGS.get(flag.name, ("", ""))
    if registry and flag.choices is None:
        names = schema.registries[registry]
        key = word
        if registry == "attention_backends":
            # The engine reads them in any case, and auto as none.
            key = word.upper()
            names = names | {"AUTO"}
        if key in names or (plugin and flags.get(plugin)):
            return
        having = [version for version, other in others.items() if key in other.registries[registry]]
        yield _choice("SOC-F13", ERROR, name, key, sorted(names), having, schema)
        return
    if flag.choices is not None and word not in _words(flag.choices):
        having = [version for version, other in others.items() if word in _offered(other, flag.name)]
        yield _choice("SOC-F05", ERROR, name, word, _words(flag.choices), having, schema)
    elif flag.advised is not None and word not in _words(flag.advised):
        having = [version for version, other in others.items() if word in _offered(other, flag.name)]
        severity = ERROR if flag.name in CLOSED else WARNING
        yield _choice("SOC-F06", severity, name, word, _words(flag.advised), having, schema)


def _words(values: Iterable[Any]) -> list[str]:
    return [str(value) for value in values]


def _offered(schema: FlagSchema, name: str) -> list[str]:
    known = schema.options.get(name)
    return _words((known[0].choices or known[0].advised or ()) if known else ())


def _choice(
    ident: str, severity: str, name: str, word: str, names: list[str], having: list[str], schema: FlagSchema
) -> Finding:
    near = closest(word, names)
    if ident == "SOC-F06":
        start = f"'{name}' is {quoted(word)}, which vLLM {schema.version} accepts on its command line but does not name"
    else:
        start = f"'{name}' is {quoted(word)}, which vLLM {schema.version} does not offer"
    if having:
        start += f"; {_versions(having)} {_verb(having, 'does', 'do')}"
    shown = ", ".join(names) if len(names) <= 24 else f"{len(names)} names, see {schema.origin}"
    return Finding(
        ident,
        severity,
        f"{start}.",
        f"Write {near!r} if that is what is meant; there are {shown}." if near else f"Choose one of: {shown}.",
        _evidence(schema),
        name,
    )


# What works, and is worth a word


def _check_deprecated(name: str, flag: Flag, schema: FlagSchema) -> Iterator[Finding]:
    if flag.deprecated is None:
        if flag.name in ANNOUNCED:
            yield Finding(
                "SOC-F07",
                WARNING,
                f"'{name}' is deprecated in vLLM {schema.version}.",
                f"Instead {ANNOUNCED[flag.name]}.",
                _evidence(schema),
                name,
            )
        return
    gone = flag.deprecated.removed_in
    when = f" and announced to go in {gone}" if gone and version_key(gone) > schema.version_key else ""
    use = flag.deprecated.use
    yield Finding(
        "SOC-F07",
        WARNING,
        f"'{name}' is deprecated in vLLM {schema.version}{when}.",
        f"Use '{use}' instead." if use else f"Remove '{name}' unless it is known to be needed.",
        _evidence(schema),
        name,
    )


def _check_default(name: str, value: Any, flag: Flag, negated: bool, schema: FlagSchema) -> Iterator[Finding]:
    by_parser = flag.default_known and flag.default is not None
    default = flag.default if by_parser else DECIDED_AT_START.get(flag.name)
    if default is None:
        return
    set_to: Any = value
    if flag.type == "switch":
        if value is not True:
            return
        set_to = not negated
    elif flag.type in ("size", "size_or_auto"):
        set_to = parse_size(value)
    elif flag.type in ("int", "float") and isinstance(value, str) and _is_number(value):
        set_to = float(value)
    elif flag.json_class:
        set_to = _parsed(value)
    if set_to == default and isinstance(set_to, bool) == isinstance(default, bool):
        yield Finding(
            "SOC-F15",
            NOTE,
            f"'{name}' only repeats what vLLM {schema.version} does by itself.",
            f"Remove '{name}', unless it is to hold for other versions too.",
            _evidence(schema),
            name,
        )


def _check_env(env: Mapping[str, Any], schema: FlagSchema, others: Mapping[str, FlagSchema]) -> Iterator[Finding]:
    for name in sorted(env):
        if not name.startswith("VLLM_") or name in schema.environment or env[name] is None:
            continue
        having = [version for version, other in others.items() if name in other.environment]
        near = closest(name, schema.environment)
        shown = short(name)
        sentence = f"vLLM {schema.version} does not know the environment variable {shown}"
        if having:
            sentence += f", which {_versions(having)} {_verb(having, 'knows', 'know')}"
        yield Finding(
            "SOC-F16",
            WARNING,
            f"{sentence}.",
            f"Write {near} if that is what is meant, else remove it." if near and not having else f"Remove {shown}.",
            f"vllm.envs of {schema.version} ({schema.origin}).",
            name,
        )
