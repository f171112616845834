# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Flag maps and environment maps: what may be written, and how it becomes words for the engine.

A flag map is never a string to be split: ``true`` gives ``--name``; a number or string ``--name value``; a map
``--name`` and one word of compact sorted JSON; a list ``--name a b c``, since vLLM declares its list flags with
nargs="+", where a repeated one would replace the former, except those of REPEATED, which it appends, and of JSON_LISTS,
which it reads as one word. ``null`` removes what a weaker layer set. Private to socle.inference.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import canonical_json
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    Problems,
    describe,
    quoted,
    short,
    usable,
)
from ansible_collections.socle.inference.plugins.module_utils._units import (
    MAX_WORD_BYTES,
    control_character,
    starts_another_command,
    too_long,
)

REPEATED = frozenset({"middleware"})
"""List flags that argparse appends (action="append"): one ``--name value`` for each entry."""

JSON_LISTS = frozenset({"allowed-headers", "allowed-methods", "allowed-origins"})
"""List flags that argparse reads by json.loads: one word of JSON (vLLM 0.19.1 to 0.33.0)."""

_TLS = "leave it out, since everything here speaks http to the engine: TLS belongs to a proxy in front of it"

OWNED_FLAGS = {
    "host": "set expose (loopback, address or all) of the instance instead",
    "port": "set port of the instance instead",
    "served-model-name": "set served_names of the instance instead",
    "api-key": "set api_key of the instance (from a vault) instead, so that the key stays out of the process list",
    "model": "set model of the instance instead",
    "model-tag": "set model of the instance instead",
    "hf-token": "leave it out, since weights come from the model store and a token would show in the process list",
    "config": "write the flags themselves instead, so that the plan shows them",
    "uds": "set expose of the instance instead",
    "ssl-keyfile": _TLS,
    "ssl-certfile": _TLS,
    "ssl-ca-certs": _TLS,
    "ssl-cert-reqs": _TLS,
}
"""Flags that the plan sets itself or that would get around it, and what to do instead."""

OWNED_ENV = {
    "VLLM_API_KEY": "set api_key of the instance (from a vault) instead",
    "VLLM_PORT": "leave it out (it is for the engine's internal sockets) and set port of the instance instead",
    "VLLM_CACHE_ROOT": "leave it out, since the cache volume is mounted there",
    "CUDA_VISIBLE_DEVICES": "set gpus of the instance instead",
    "NVIDIA_VISIBLE_DEVICES": "set gpus of the instance instead",
}
"""Environment variables that the plan sets itself or that would get around it."""

MAX_DEPTH = 32
"""Levels of maps and lists within one flag."""

_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|PASSW(OR)?D|PASS(PHRASE)?|SECRET|CREDENTIALS?|(API|ACCESS|PRIVATE|SECRET)_?KEY)$", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"(?i:\b[a-z][a-z0-9+.-]{0,15}://[^\s/:@]*:[^\s/]+@)"  # the password of a URL, as of a proxy
    r"|\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}\b)"
)
"""What is a secret whatever it is called."""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([kmgtKMGT]?)")


def right_spelling(name: str) -> str:
    """The flag name that was probably meant: "--maxModel_len" -> "max-model-len"."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", name.strip().lstrip("-"))
    return re.sub(r"[^a-z0-9]+", "-", spaced.lower()).strip("-")


def _check_secret(value: str, where: str, problems: Problems) -> None:
    if _SECRET_VALUE.search(value):
        problems.add(
            f"{where} holds a password or a token (its value is withheld), which would be stored in plans, units and "
            "records and show in the process list; leave it out."
        )


def _check_json(value: Any, where: str, problems: Problems, depth: int = 0) -> None:
    if isinstance(value, str):
        _check_secret(value, where, problems)
    if depth > MAX_DEPTH:
        problems.add(f"{where.split('.', 1)[0]} holds JSON of more than {MAX_DEPTH} levels; flatten it.")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                problems.add(f"{where} has the key {quoted(key)} inside its JSON, which must be a string; quote it.")
            _check_json(item, f"{where}.{short(key)}", problems, depth + 1)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _check_json(item, f"{where}[{position}]", problems, depth + 1)
    elif isinstance(value, float):
        if not usable(value):
            problems.add(f"{where} must be a finite number of at most 64 bits, but is {value}; correct it.")
    elif isinstance(value, int) and not usable(value):
        problems.add(f"{where} is {describe(value)}, which no engine takes; correct it.")
    elif value is not None and not isinstance(value, (bool, int, str)):
        problems.add(f"{where} cannot become JSON, being {describe(value)}; quote it to make it a string.")


def _check_word(value: Any, where: str, problems: Problems, in_list: bool) -> None:
    """A single value: a number, a string, or a map."""
    if isinstance(value, dict):
        _check_json(value, where, problems)
    elif isinstance(value, bool):
        problems.add(f"{where} must be a number, a string or a map, but is {describe(value)}; correct it.")
    elif isinstance(value, float):
        if not usable(value):
            problems.add(f"{where} must be a finite number of at most 64 bits, but is {value}; correct it.")
    elif isinstance(value, str):
        broken = control_character(value)
        _check_secret(value, where, problems)
        if broken:
            problems.add(f"{where} must be one line of plain text, but contains {broken}; remove it.")
        elif starts_another_command(value):
            problems.add(f"{where} is ';' alone, with which systemd would start another command; remove it.")
        elif not value:
            problems.add(f"{where} is an empty string, which no flag takes; use null to remove the flag.")
        elif in_list and value.startswith("-"):
            problems.add(f"{where} is {quoted(value)}, which the engine would read as a flag; remove the leading dash.")
    elif in_list and isinstance(value, list):
        problems.add(f"{where} must be a number, a string or a map, but is {describe(value)}; correct it.")
    elif isinstance(value, int) and not usable(value):
        problems.add(f"{where} is {describe(value)}, which no engine takes; correct it.")
    elif not isinstance(value, int):
        problems.add(
            f"{where} must be true, null, a number, a string, a map or a list, but is {describe(value)}; "
            "quote it to make it a string."
        )


def check_flag(name: Any, value: Any, where: str, problems: Problems) -> None:
    """One entry of a flag map; *where* names the map. The value of a refused flag is not repeated."""
    if not isinstance(name, str) or not _KEBAB.fullmatch(name):
        if isinstance(name, str) and "." in name:
            head = right_spelling(name.split(".", 1)[0])
            fix = f"write {quoted(head)} with a map as its value"
        else:
            spelling = right_spelling(short(name))
            fix = f"write {spelling!r}" if _KEBAB.fullmatch(spelling) else "use lower-case words joined by dashes"
        problems.add(
            f"{where} has the flag name {quoted(name)}, which is not lower-case words joined by dashes; {fix}."
        )
        return
    place = f"{where}.{short(name)}"
    if name in OWNED_FLAGS:
        problems.add(f"{place} cannot be set as a flag; {OWNED_FLAGS[name]}.")
        return
    whole = next((owned for owned in OWNED_FLAGS if owned.startswith(name)), None)
    if whole is not None and len(name) > 1:
        # The engine takes a beginning for the flag, also in versions whose flags nobody can compare; of one letter
        # there are always several.
        problems.add(f"{place} is the beginning of {whole}, which cannot be set as a flag; {OWNED_FLAGS[whole]}.")
        return
    if value is None or value is True:
        return
    own = Problems()
    if value is False:
        opposite = name[3:] if name.startswith("no-") else f"no-{name}"
        own.add(f"{place} is false, which is no word; use '{short(opposite)}: true', or null to remove it.")
    elif isinstance(value, list):
        if not value:
            own.add(f"{place} is an empty list; use null to remove the flag.")
        for position, item in enumerate(value):
            _check_word(item, f"{place}[{position}]", own, in_list=True)
    else:
        _check_word(value, place, own, in_list=False)
    words = [] if own.sentences or value is False else render_flag(name, value)
    # Within JSON, all but this is escaped.
    if any(map(control_character, words)):
        own.add(f"{place} must be plain text, but contains half of a surrogate pair; remove it.")
    elif any(map(too_long, words)):
        own.add(f"{place} is a word of more than {MAX_WORD_BYTES} bytes, which no program can be given; shorten it.")
    for sentence in own.sentences:
        problems.add(sentence)


def check_flags(value: Any, where: str, problems: Problems) -> None:
    """A whole flag map (usable as a schema check)."""
    if not isinstance(value, dict):
        problems.add(
            f"{where} must be a map of flag names to values, but is {describe(value)}; "
            "write 'flag-name: value' lines (true for a flag without a value), or leave it out for none."
        )
        return
    for name, item in value.items():
        check_flag(name, item, where, problems)
        if isinstance(name, str) and item is not None and value.get(f"no-{name}") is not None:
            problems.add(f"{where} sets both {quoted(name)} and {quoted(f'no-{name}')}; keep one of them.")


def check_env(value: Any, where: str, problems: Problems) -> None:
    """An environment map: names to strings or numbers; null removes."""
    if not isinstance(value, dict):
        problems.add(
            f"{where} must be a map of variable names to values, but is {describe(value)}; write 'NAME: value' lines, "
            "or leave it out for none."
        )
        return
    for name, item in value.items():
        place = f"{where}.{short(name)}"
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            problems.add(
                f"{where} has the name {quoted(name)}, which is not a legal environment variable name; correct it."
            )
        elif name in OWNED_ENV:
            problems.add(f"{place} cannot be set here; {OWNED_ENV[name]}.")
        elif _SECRET_NAME.search(name):
            problems.add(
                f"{place} looks like a secret, which would be stored in plans and records; "
                "leave it out, since the engine works offline."
            )
        elif isinstance(item, bool):
            shown = "1" if item else "0"
            problems.add(f"{place} must be a string or a number, but is {describe(item)}; write {shown!r} in quotes.")
        elif isinstance(item, str):
            broken = control_character(item)
            _check_secret(item, place, problems)
            if broken:
                problems.add(f"{place} must be one line of plain text, but contains {broken}; remove it.")
            elif too_long(f"{name}={item}"):
                problems.add(
                    f"{place} is longer than the {MAX_WORD_BYTES} bytes that a program can be given; shorten it."
                )
        elif item is not None and (not isinstance(item, (int, float)) or not usable(item)):
            problems.add(f"{place} must be a string or a number, but is {describe(item)}; quote it.")


def _word(value: Any) -> str:
    return canonical_json(value) if isinstance(value, (dict, list)) else str(value)


def render_flag(name: str, value: Any) -> list[str]:
    """The words of one checked flag."""
    option = f"--{name}"
    if value is True:
        return [option]
    if isinstance(value, list) and name not in JSON_LISTS:
        words = [_word(item) for item in value]
        if name in REPEATED:
            return [part for word in words for part in (option, word)]
        return [option, *words]
    word = _word(value)
    if isinstance(value, str) and word.startswith("-"):
        # As a word of its own argparse would take it for the next option.
        return [f"{option}={word}"]
    return [option, word]


def render_env(value: Any) -> str:
    return str(value)


def parse_size(value: Any) -> int | None:
    """vLLM's human-readable whole numbers (256k = 256,000, 256K = 262,144); None for "auto" and what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value > 0 else None
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if not match:
        return None
    amount, unit = match.groups()
    if not unit:
        return int(amount) if "." not in amount else None
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(amount) * 1000**power)
    return int(amount) * 1024**power if "." not in amount else None
