# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of what people write, each failure one sentence: where, what was expected, what was found, what to do.

A check is a function (value, where, problems); the functions here build them. Private to socle.inference.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError

LARGEST = 2**63 - 1
"""Of the numbers that people and files may say."""


class Problems:
    """Sentences collected over one call, so that a person sees all of them at once."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def take(self, error: PlanError) -> None:
        """Adopt what a part that raised had to say."""
        for sentence in error.fields.get("errors", [error.message]):
            self.add(sentence)

    def raise_if_any(self) -> None:
        if not self.sentences:
            return
        more = len(self.sentences) - 1
        suffix = f" (and {more} more, see errors)" if more else ""
        raise PlanError(self.sentences[0] + suffix, errors=list(self.sentences))


Check = Callable[[Any, str, Problems], None]

SHOWN = 60
"""Characters of a text that a sentence repeats; nobody reads more, and a text may be a whole file."""

UNITS = {"bytes": 1, "MiB": 1024**2}
"""Bytes of the units that names of keys end in (``_bytes``, ``_mib``)."""

_WITH_UNIT = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(?:([kmgt])(?:i?b)?|b(?:ytes?)?)", re.IGNORECASE)

_LISTED = 50
"""Names of a list of what is known."""

_COMPARED = 200
"""Characters of a name that is looked for among known ones, which takes long for the longest."""


def short(value: Any, limit: int = SHOWN) -> str:
    """A name or text within a sentence: whole, or its beginning and its length where it is longer than *limit*."""
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        # Python refuses to write a number of thousands of digits, and nobody reads one.
        return f"a number of more than {SHOWN} digits"
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters)"


def quoted(value: Any) -> str:
    """The same as Python writes it: "'abc'", "3"."""
    if not isinstance(value, str):
        return short(value)
    return repr(value) if len(value) <= SHOWN else f"{value[:SHOWN] + '...'!r} ({len(value):,} characters)"


def describe(value: Any) -> str:
    """What was found, for a person: "the string 'abc'", "a list", "nothing (null)"."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        return short(value)
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the string {quoted(str(value))}"
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    return f"a value of type {type(value).__name__}"


def finite(value: float) -> bool:
    """Whether *value* is a number that a double can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def usable(value: float) -> bool:
    """Whether *value* is a number that engines and the arithmetic of plans can take: no more than 64 bits hold."""
    return finite(value) and abs(value) <= LARGEST


def nearest(name: Any, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" when something known looks like *name*, else nothing."""
    found = closest(name, known)
    return f"; did you mean {found!r}?" if found else ""


def closest(name: Any, known: Iterable[str]) -> str:
    """What is known and looks like *name*, else ""."""
    text = short(name, _COMPARED)
    if len(text) > _COMPARED:
        return ""
    return next(iter(difflib.get_close_matches(text, [each for each in known if len(each) <= _COMPARED], n=1)), "")


def known_list(known: Iterable[str]) -> str:
    """ "a, b, c", or "none" when there is nothing."""
    names = sorted(known)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(short, names[:_LISTED])) + more or "none"


def text(pattern: str | None = None, expected: str = "a string") -> Check:
    compiled = re.compile(pattern) if pattern else None

    def check(value: Any, where: str, problems: Problems) -> None:
        if not isinstance(value, str) or (compiled and not compiled.fullmatch(value)):
            problems.add(f"{where} must be {expected}, but is {describe(value)}; correct it.")

    return check


def secret() -> Check:
    """A string whose value never shows up anywhere."""

    def check(value: Any, where: str, problems: Problems) -> None:
        # What a header of HTTP, a file of NAME=VALUE lines and a shell carry alike.
        sound = isinstance(value, str) and all("!" <= char <= "~" for char in value) and value != ""
        if value is not None and not sound:
            problems.add(
                f"{where} must be printable ASCII without spaces, but is not (its value is withheld); correct it, "
                "put it into quotes if it is a number, or leave it out for none."
            )

    return check


def whole(minimum: int | None = None, maximum: int | None = None) -> Check:
    limits = "a whole number"
    if minimum is not None and maximum is not None:
        limits += f" from {minimum} to {maximum}"
    elif minimum is not None:
        limits += f" of at least {minimum}"

    def check(value: Any, where: str, problems: Problems) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and usable(value)
        if fits and minimum is not None and value < minimum:
            fits = False
        if fits and maximum is not None and value > maximum:
            fits = False
        if not fits:
            problems.add(f"{where} must be {limits}, but is {describe(value)}; correct it.")

    return check


def size(unit: str) -> Check:
    """A size as a whole number of *unit*, one of UNITS, which its key names; one with a unit of its own is counted."""

    def check(value: Any, where: str, problems: Problems) -> None:
        if isinstance(value, int) and not isinstance(value, bool) and usable(value) and value > 0:
            return
        written = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
        remedy = "correct it"
        if written:
            # As Docker and Podman read them, in which 16g, 16GB and 16GiB are the same.
            amount, prefix = written.groups()
            total = Fraction(amount) * 1024 ** " kmgt".index((prefix or " ").lower()) / UNITS[unit]
            if total >= 1 and total.denominator == 1 and usable(int(total)):
                meant = f"{amount} {prefix.upper()}iB" if prefix else f"{amount} bytes"
                remedy = f"write {int(total)} for {meant}"
        elif isinstance(value, str) and value.isascii() and value.isdigit():
            remedy = "remove the quotes"
        problems.add(f"{where} must be a whole number of {unit} without a unit, but is {describe(value)}; {remedy}.")

    return check


def number() -> Check:
    def check(value: Any, where: str, problems: Problems) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not usable(value):
            problems.add(f"{where} must be a number, but is {describe(value)}; correct it.")

    return check


def truth() -> Check:
    def check(value: Any, where: str, problems: Problems) -> None:
        if not isinstance(value, bool):
            problems.add(f"{where} must be true or false, but is {describe(value)}; correct it.")

    return check


def choice(*names: str) -> Check:
    def check(value: Any, where: str, problems: Problems) -> None:
        if value not in names or not isinstance(value, str):
            hint = nearest(value, names) if isinstance(value, str) else ""
            problems.add(
                f"{where} must be one of {', '.join(names)}, but is {describe(value)}{hint or '; correct it.'}"
            )

    return check


def anything() -> Check:
    def check(value: Any, where: str, problems: Problems) -> None:
        return None

    return check


def nullable(inner: Check) -> Check:
    def check(value: Any, where: str, problems: Problems) -> None:
        if value is not None:
            inner(value, where, problems)

    return check


def list_of(inner: Check, filled: bool = False) -> Check:
    def check(value: Any, where: str, problems: Problems) -> None:
        if not isinstance(value, list):
            problems.add(f"{where} must be a list, but is {describe(value)}; correct it.")
            return
        if filled and not value:
            problems.add(f"{where} must be a list with at least one entry, but is empty; fill it or leave it out.")
        for position, item in enumerate(value):
            inner(item, f"{where}[{position}]", problems)

    return check


def map_of(inner: Check, key: str | None = None, key_expected: str = "a string") -> Check:
    compiled = re.compile(key) if key else None

    def check(value: Any, where: str, problems: Problems) -> None:
        if not isinstance(value, dict):
            problems.add(f"{where} must be a map, but is {describe(value)}; correct it.")
            return
        for name, item in value.items():
            if not isinstance(name, str) or (compiled and not compiled.fullmatch(name)):
                problems.add(f"{where} has the key {quoted(name)}, which must be {key_expected}; correct it.")
                continue
            inner(item, f"{where}.{short(name)}", problems)

    return check


def record(fields: Mapping[str, Check], required: Iterable[str] = ()) -> Check:
    """A map with these keys and no other."""
    needed = list(required)

    def check(value: Any, where: str, problems: Problems) -> None:
        if not isinstance(value, dict):
            problems.add(f"{where} must be a map, but is {describe(value)}; correct it.")
            return
        for name, item in value.items():
            if name not in fields:
                hint = nearest(name, fields) or "; remove it."
                problems.add(f"{where} has the unknown key {quoted(name)} (known: {known_list(fields)}){hint}")
            else:
                fields[name](item, f"{where}.{name}", problems)
        for name in needed:
            if name not in value:
                problems.add(f"{where} lacks the key {name!r}, which is required; add it.")

    return check
