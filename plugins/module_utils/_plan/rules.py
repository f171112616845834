# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about combinations of model, hardware, driver, engine and flags: read from data, asked of a plan's context.

The collection's rules are ``profiles/rules.yml``; a site adds its own in ``rules.yml`` of a data folder. A condition is
true, false, or unknown where a fact that it asks for is not known; a rule fires only where its condition is true.
docs/rules.md has the words of a condition. Private to socle.inference.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import canonical_json
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Reader
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import (
    IGNORED_VARIABLE,
    NOTE,
    SEVERITIES,
    Finding,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.rule_context import (
    ANY,
    LIST,
    NUMBER,
    TEXT,
    TRUTH,
    VERSION,
    Path,
    RuleContext,
    number_of,
    parse_path,
    version_key,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    Problems,
    describe,
    known_list,
    nearest,
    short,
)

FOLDER = "profiles"
SITE_FOLDER = "."
NAME = "rules"

MAX_DEPTH = 16
"""Levels of all, any and not within one condition; the collection's rules have three."""

MAX_RULES = 2000
MAX_PATTERN = 200
_MAX_MATCHED = 1000
_MAX_SHOWN = 80
_MAX_REASON = 400

GONE: Mapping[str, str] = {
    "SOC-R44": "SOC-C05 and SOC-C06 tell what it told",
    "SOC-R45": "SOC-C05 and SOC-C06 tell what it told",
    "SOC-R46": "SOC-C03 tells what it told",
    "SOC-R63": "plans hand GPUs in by CDI alone",
    "SOC-R73": "no plan shares the IPC of its host",
    "SOC-R74": "no plan shares the IPC of its host",
}
"""Ids of rules that there are no more, and why they are not needed; an id is not used again."""

IDLE = "SOC-R00"
"""What is said of ids that are passed over and found nothing."""

_OWN_ID = r"SOC-R\d{2,3}"
_SITE_ID = r"(?!SOC-)[A-Z][A-Z0-9]{1,15}-R\d{2,4}"
_ONE_DIGIT = re.compile(r"(-[A-Z])(\d)$", re.IGNORECASE)
_RANGE = r"\d+\.\d+\.\d+"
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NESTED_REPEAT = re.compile(r"[+*}]\)[+*{]")

Condition = Callable[[RuleContext], Optional[bool]]

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": lambda found, limit: bool(found > limit),
    "ge": lambda found, limit: bool(found >= limit),
    "lt": lambda found, limit: bool(found < limit),
    "le": lambda found, limit: bool(found <= limit),
}
_EQUALS = ("is", "is_not")
_MEMBERS = ("in", "not_in")
_SWITCHES = ("enabled", "disabled")
_STATES = ("present", "absent", *_SWITCHES, "unknown")
OPERATORS = (*_EQUALS, *_MEMBERS, *_ORDERS, "multiple_of", "matches", "contains", "has_key", *_STATES)
_JOINS = ("all", "any", "not")

_ORDERED = (NUMBER, VERSION, ANY)


@dataclass(frozen=True)
class Text:
    """A sentence with places for values of the context: literal texts and paths in turn."""

    parts: tuple[Any, ...]

    def render(self, context: RuleContext) -> str:
        return "".join(part if isinstance(part, str) else shown(context.get(part)) for part in self.parts)


@dataclass(frozen=True)
class Rule:
    id: str
    title: str
    severity: str
    sentence: Text
    remedy: Text
    evidence: str
    subject: str
    condition: Condition
    since: str | None = None
    until: str | None = None
    origin: str = ""

    def fires(self, context: RuleContext) -> bool:
        return self._in_range(context) and self.condition(context) is True

    def _in_range(self, context: RuleContext) -> bool:
        """From ``since`` on, and before ``until``; an unknown version is in no range."""
        if self.since is None and self.until is None:
            return True
        version = version_key(context.value("engine", "vllm_version"))
        if version is None:
            return False
        since, until = version_key(self.since), version_key(self.until)
        return (since is None or version >= since) and (until is None or version < until)


@dataclass(frozen=True)
class RuleSet:
    rules: tuple[Rule, ...]
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Why a finding of that id is passed over: of a rule, or of another check of a plan."""


def load_rules(reader: Reader, ignored: Any = None, others: Iterable[str] = ()) -> RuleSet:
    """The collection's rules and those of the site; *ignored* is the variable vllm_rules_ignored.

    *others* are ids of findings that no rule makes and that may be passed over as well.
    Raises PlanError with one sentence for each thing that is wrong in the files or the variable.
    """
    problems = Problems()
    rules: list[Rule] = []
    sources = [(FOLDER, _own_rules), *([(SITE_FOLDER, _site_rules)] if NAME in reader.names(SITE_FOLDER) else [])]
    for folder, make in sources:
        try:
            rules += reader.made(folder, NAME, make)
        except PlanError as error:
            problems.take(error)
    problems.raise_if_any()
    reasons = _ignored(ignored, [*(rule.id for rule in rules), *others], problems)
    problems.raise_if_any()
    return RuleSet(tuple(rules), reasons)


def evaluate(rules: RuleSet, context: Mapping[str, Any]) -> list[Finding]:
    """What the rules have to say about a plan, in the order of the files.

    One that is passed over and would fire is still told, with the reason.
    """
    whole = RuleContext(context)
    findings = []
    for rule in rules.rules:
        if not rule.fires(whole):
            continue
        finding = Finding(
            rule.id,
            rule.severity,
            rule.sentence.render(whole),
            rule.remedy.render(whole),
            rule.evidence,
            rule.subject,
        )
        reason = rules.ignored.get(rule.id)
        findings.append(finding if reason is None else finding.passed_over(reason))
    return findings


def idle(ignored: Iterable[str], found: Collection[str], host: str) -> Finding | None:
    """What to say of those of the *ignored* ids that are not among *found*, of any instance of *host*."""
    names = sorted(set(ignored) - set(found))
    if not names:
        return None
    one = len(names) == 1
    return Finding(
        IDLE,
        NOTE,
        f"{IGNORED_VARIABLE} passes over {known_list(names)}, which {'finds' if one else 'find'} nothing in the plans "
        f"of {host}.",
        f"Remove {'it' if one else 'them'} from {IGNORED_VARIABLE}, unless other hosts need {'it' if one else 'them'}, "
        "or what is asked for is not known yet.",
        subject=IGNORED_VARIABLE,
    )


def shown(value: Any) -> str:
    """A value within a sentence: one line, of a length that a person reads, whatever it holds."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(round(value, 3)) if schema.finite(value) and abs(value) < 1e18 else "a number out of range"
    try:
        text = value if isinstance(value, str) else canonical_json(value)
    except (TypeError, ValueError, RecursionError):
        text = describe(value)
    text = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _MAX_SHOWN]).split())
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _ignored(given: Any, known: list[str], problems: Problems) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        problems.add(
            f"{IGNORED_VARIABLE} must be a map of rule ids to reasons, but is {describe(given)}; "
            "write lines such as 'SOC-R01: measured clean over a week'."
        )
        return {}
    reasons = {}
    for rule, reason in given.items():
        if rule in GONE:
            problems.add(f"{IGNORED_VARIABLE} names '{rule}', which is gone; {GONE[rule]}.")
        elif rule not in known:
            problems.add(
                f"{IGNORED_VARIABLE} names {shown(rule)!r}, which is the id of no rule"
                f"{nearest(_padded(str(rule)), known) or '; see docs/rules.md, flags.md and capacity.md for the ids.'}"
            )
        elif not isinstance(reason, str) or not reason.strip() or not reason.isprintable():
            problems.add(
                f"{IGNORED_VARIABLE}.{rule} must be the reason as one line of text, but is {describe(reason)}; "
                "write why the rule does not hold here."
            )
        else:
            reasons[rule] = short(reason.strip().rstrip("."), _MAX_REASON)
    return reasons


def _padded(rule: str) -> str:
    """An id as ids are written: 'SOC-R01' for 'soc-r1', which is closer to it than the 'SOC-R91' that looks like it."""
    return _ONE_DIGIT.sub(r"\g<1>0\g<2>", short(rule, _MAX_REASON).upper())


def _own_rules(origin: str, content: Any) -> tuple[Rule, ...]:
    return _sound_rules(origin, content, _OWN_ID, "'SOC-R' and two or three digits, such as 'SOC-R01'")


def _site_rules(origin: str, content: Any) -> tuple[Rule, ...]:
    expected = "a word of your own in capitals other than SOC, '-R' and digits, such as 'SITE-R01'"
    return _sound_rules(origin, content, _SITE_ID, expected)


def _sound_rules(origin: str, content: Any, ids: str, ids_expected: str) -> tuple[Rule, ...]:
    problems = Problems()
    rules = _rules(origin, content, ids, ids_expected, problems)
    problems.raise_if_any()
    return tuple(rules)


def _rules(origin: str, content: Any, ids: str, ids_expected: str, problems: Problems) -> list[Rule]:
    if not isinstance(content, dict) or set(content) != {"rules"} or not isinstance(content.get("rules"), list):
        problems.add(
            f"{origin} must be a map with the one key 'rules', a list, but is {describe(content)}; correct it."
        )
        return []
    entries = content["rules"]
    if len(entries) > MAX_RULES:
        problems.add(f"{origin} has {len(entries)} rules, more than the {MAX_RULES} that are read; remove some.")
        return []
    check = _entry_check(ids, ids_expected)
    rules = []
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        where = f"{origin}: rules[{position}]"
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and re.fullmatch(ids, entry["id"]):
            where = f"{origin}: rule {entry['id']}"
            if entry["id"] in seen:
                problems.add(f"{where} is there twice; give one of them another id.")
            seen.add(entry["id"])
        found = Problems()
        check(entry, where, found)
        if not found.sentences:
            rules.append(_rule(entry, where, origin, found))
        for sentence in found.sentences:
            problems.add(sentence)
    return rules


def _line(value: Any, where: str, problems: Problems) -> None:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        problems.add(f"{where} must be one line of text, but is {describe(value)}; correct it.")


def _sentence(value: Any, where: str, problems: Problems) -> None:
    if not isinstance(value, str) or not value.isprintable() or not re.search(r"\S.*\.$", value):
        problems.add(
            f"{where} must be one sentence on one line with its full stop, but is {describe(value)}; correct it."
        )


def _entry_check(ids: str, ids_expected: str) -> schema.Check:
    version = schema.text(_RANGE, "a version of three numbers in quotes, such as '0.26.0'")
    return schema.record(
        {
            "id": schema.text(ids, ids_expected),
            "title": _line,
            "severity": schema.choice(*SEVERITIES),
            "since": version,
            "until": version,
            "when": schema.anything(),
            "sentence": _sentence,
            "remedy": _sentence,
            "evidence": _line,
            "subject": _line,
        },
        ["id", "title", "severity", "when", "sentence", "remedy", "evidence"],
    )


def _rule(entry: Mapping[str, Any], where: str, origin: str, problems: Problems) -> Rule:
    """The rule of a sound entry; its condition never holds where *problems* got something."""
    since, until = entry.get("since"), entry.get("until")
    first, end = version_key(since), version_key(until)
    if first is not None and end is not None and first >= end:
        problems.add(
            f"{where}: since is {since} and until is {until}, between which there is no version; until is the first "
            "version that the rule no longer holds for."
        )
    return Rule(
        id=entry["id"],
        title=entry["title"],
        severity=entry["severity"],
        sentence=_text(entry["sentence"], f"{where}.sentence", problems),
        remedy=_text(entry["remedy"], f"{where}.remedy", problems),
        evidence=entry["evidence"],
        subject=entry.get("subject", ""),
        condition=_condition(entry["when"], f"{where}.when", problems),
        since=since,
        until=until,
        origin=origin,
    )


def _text(text: str, where: str, problems: Problems) -> Text:
    parts: list[Any] = []
    end = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        token = match.group()
        if token in ("{{", "}}"):
            parts.append(token[0])
        elif match.group(1) is None:
            problems.add(f"{where} has a single {token!r}, which is no place for a value; write {token * 2!r}.")
        else:
            path, why = parse_path(match.group(1))
            if path is None:
                problems.add(f"{where} has a place for {shown(match.group(1))!r}, which {why}")
            else:
                parts.append(path)
    parts.append(text[end:])
    return Text(tuple(parts))


def _never(_context: RuleContext) -> bool | None:
    return None


def _condition(value: Any, where: str, problems: Problems, depth: int = 0) -> Condition:
    if depth > MAX_DEPTH:
        problems.add(f"{where[:200]} is nested more than {MAX_DEPTH} levels deep; make it flatter.")
        return _never
    if not isinstance(value, dict) or not value:
        problems.add(
            f"{where} must be a map with all, any or not, or with path and an operator, but is {describe(value)}; "
            "correct it."
        )
        return _never
    join = next((name for name in _JOINS if name in value), None)
    if join is None:
        return _comparison(value, where, problems)
    if len(value) > 1:
        others = ", ".join(sorted(str(name) for name in value if name != join))
        problems.add(f"{where} has {join!r} beside {shown(others)!r}; a map has one of them, so nest them.")
        return _never
    if join == "not":
        return _negate(_condition(value["not"], f"{where}.not", problems, depth + 1))
    if not isinstance(value[join], list) or not value[join]:
        problems.add(
            f"{where}.{join} must be a list with at least one condition, but is {describe(value[join])}; correct it."
        )
        return _never
    conditions = tuple(
        _condition(item, f"{where}.{join}[{position}]", problems, depth + 1)
        for position, item in enumerate(value[join])
    )
    return _every(conditions) if join == "all" else _some(conditions)


def _negate(inner: Condition) -> Condition:
    def negated(context: RuleContext) -> bool | None:
        held = inner(context)
        return None if held is None else not held

    return negated


def _every(conditions: tuple[Condition, ...]) -> Condition:
    def every(context: RuleContext) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            held = condition(context)
            if held is False:
                return False
            if held is None:
                result = None
        return result

    return every


def _some(conditions: tuple[Condition, ...]) -> Condition:
    def some(context: RuleContext) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            held = condition(context)
            if held is True:
                return True
            if held is None:
                result = None
        return result

    return some


def _comparison(value: Mapping[str, Any], where: str, problems: Problems) -> Condition:
    if "path" not in value:
        known = [*_JOINS, "path"]
        name = str(next(iter(value)))
        problems.add(
            f"{where} has {shown(name)!r} and no path; a condition has one of {', '.join(known)}"
            f"{nearest(name, known) or '; correct it.'}"
        )
        return _never
    path, why = parse_path(value["path"])
    if path is None:
        problems.add(f"{where}.path is {shown(value['path'])!r}, which {why}")
        return _never
    operators = [name for name in value if name != "path"]
    unknown = [name for name in operators if name not in OPERATORS]
    if unknown or not operators:
        found = f"has the unknown operator {shown(unknown[0])!r}" if unknown else "has no operator"
        hint = nearest(unknown[0], OPERATORS) if unknown else ""
        problems.add(f"{where} {found} (known: {', '.join(OPERATORS)}){hint or '; correct it.'}")
        return _never
    conditions = [_operator(path, name, value[name], f"{where}.{name}", problems) for name in operators]
    return conditions[0] if len(conditions) == 1 else _every(tuple(conditions))


def _operator(path: Path, name: str, operand: Any, where: str, problems: Problems) -> Condition:
    """The condition of one operator on one path."""
    count = len(problems.sentences)
    condition: Condition = _never
    if name in _STATES:
        condition = _state(path, name, operand, where, problems)
    elif name in _MEMBERS:
        condition = _membership(path, name == "in", operand, where, problems)
    elif name in ("matches", "has_key", "contains"):
        condition = _content(path, name, operand, where, problems)
    elif name not in _EQUALS and (path.kind not in _ORDERED or (name == "multiple_of" and path.kind == VERSION)):
        problems.add(f"{where} cannot be asked of {path.text}, which is of kind {path.kind}; use another operator.")
    else:
        other = _other(path, operand, where, problems)
        if other is None and len(problems.sentences) == count:
            _check_operand(path, name, operand, where, problems)
        if name in _EQUALS:
            condition = _equality(path, name == "is", operand, other)
        else:
            condition = _order(path, name, operand, other)
    return condition if len(problems.sentences) == count else _never


def _other(path: Path, operand: Any, where: str, problems: Problems) -> Path | None:
    """The path of ``{path: ...}`` as an operand."""
    if not isinstance(operand, dict):
        return None
    if set(operand) != {"path"}:
        problems.add(f"{where} must be a value or a map with the one key 'path', but is another map; correct it.")
        return None
    other, why = parse_path(operand["path"])
    if other is None:
        problems.add(f"{where}.path is {shown(operand['path'])!r}, which {why}")
    elif ANY not in (path.kind, other.kind) and path.kind != other.kind:
        problems.add(f"{where} compares {path.text} ({path.kind}) with {other.text} ({other.kind}); correct it.")
    return other


def _check_operand(path: Path, name: str, operand: Any, where: str, problems: Problems) -> None:
    """Whether a value can be compared with what is at *path*."""
    expected = path.kind
    if isinstance(operand, bool):
        fits = path.kind in (TRUTH, ANY) and name in _EQUALS
    elif isinstance(operand, (int, float)):
        fits = path.kind in (NUMBER, ANY) and schema.finite(operand)
    elif isinstance(operand, str):
        fits = path.kind in (TEXT, ANY) or (path.kind == VERSION and version_key(operand) is not None)
    else:
        fits = False
    if fits and name == "multiple_of":
        fits = isinstance(operand, int) and operand > 0
        expected = "a whole number above 0"
    elif fits and name in _ORDERS and path.kind == ANY:
        fits = not isinstance(operand, str)
        expected = NUMBER
    if not fits:
        problems.add(
            f"{where} must be of the kind of {path.text} ({expected}), but is {describe(operand)}; correct it."
        )


def _state(path: Path, name: str, operand: Any, where: str, problems: Problems) -> Condition:
    if operand is not True:
        problems.add(f"{where} must be true, but is {describe(operand)}; wrap the condition in 'not' for its opposite.")
    if path.of_plan == (name == "unknown"):
        use = "present, absent, enabled or disabled" if path.of_plan else "unknown, or is with true or false"
        problems.add(
            f"{where} cannot be asked of {path.text}: what a plan sets is present or absent, a fact is known or "
            f"unknown; use {use}."
        )

    def state(context: RuleContext) -> bool | None:
        found = context.get(path)
        if name in _SWITCHES:
            # A switch that is left out is off, and a variable of the environment is a text.
            switched = found is True or (isinstance(found, str) and found.lower() in ("1", "true"))
            return switched == (name == "enabled")
        return (found is not None) == (name == "present")

    return state


def _equal(path: Path, found: Any, wanted: Any) -> bool:
    return version_key(found) == version_key(wanted) if path.kind == VERSION else _same(found, wanted)


def _same(found: Any, wanted: Any) -> bool:
    """Equality as people mean it: true is not 1, and the number 2 is also the text '2'."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        if isinstance(found, str):
            return isinstance(wanted, bool) and found.lower() == str(wanted).lower()
        return found is wanted
    if isinstance(wanted, (int, float)):
        return number_of(found) == wanted
    if isinstance(found, (int, float)):
        number = number_of(wanted)
        return number is not None and found == number
    return bool(found == wanted)


def _equality(path: Path, positive: bool, operand: Any, other: Path | None) -> Condition:
    def equality(context: RuleContext) -> bool | None:
        found = context.get(path)
        wanted = context.get(other) if other is not None else operand
        if found is None or wanted is None:
            return None
        return _equal(path, found, wanted) == positive

    return equality


def _membership(path: Path, positive: bool, operand: Any, where: str, problems: Problems) -> Condition:
    if not isinstance(operand, list) or not operand:
        problems.add(f"{where} must be a list with at least one value, but is {describe(operand)}; correct it.")
        return _never
    for position, item in enumerate(operand):
        _check_operand(path, "is", item, f"{where}[{position}]", problems)

    def membership(context: RuleContext) -> bool | None:
        found = context.get(path)
        if found is None:
            return None
        return any(_equal(path, found, item) for item in operand) == positive

    return membership


def _order(path: Path, name: str, operand: Any, other: Path | None) -> Condition:
    read: Callable[[Any], Any] = version_key if path.kind == VERSION else number_of

    def order(context: RuleContext) -> bool | None:
        found = read(context.get(path))
        limit = read(context.get(other) if other is not None else operand)
        if found is None or limit is None:
            return None
        if name == "multiple_of":
            return bool(found % limit == 0) if limit > 0 else None
        return _ORDERS[name](found, limit)

    return order


def _content(path: Path, name: str, operand: Any, where: str, problems: Problems) -> Condition:
    kinds = {"matches": (TEXT, VERSION, ANY), "has_key": (ANY,), "contains": (LIST, ANY)}[name]
    if path.kind not in kinds:
        problems.add(f"{where} cannot be asked of {path.text}, which is of kind {path.kind}; use another operator.")
        return _never
    if not isinstance(operand, str) or not operand:
        problems.add(f"{where} must be a text, but is {describe(operand)}; correct it.")
        return _never
    if name != "matches":

        def holds(context: RuleContext) -> bool | None:
            found = context.get(path)
            if not isinstance(found, dict if name == "has_key" else list):
                return None
            return operand in found

        return holds
    pattern = _pattern(operand, where, problems)

    def matches(context: RuleContext) -> bool | None:
        found = context.get(path)
        if pattern is None or found is None or isinstance(found, (dict, list)):
            return None
        text = found if isinstance(found, str) else shown(found)
        return pattern.fullmatch(text[:_MAX_MATCHED]) is not None

    return matches


def _pattern(text: str, where: str, problems: Problems) -> re.Pattern[str] | None:
    if len(text) > MAX_PATTERN:
        problems.add(f"{where} is a pattern of {len(text)} characters, more than {MAX_PATTERN}; shorten it.")
        return None
    if _NESTED_REPEAT.search(text):
        problems.add(f"{where} repeats a group that repeats something itself, which can take for ever; rewrite it.")
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        problems.add(f"{where} is no regular expression ({shown(str(error))}); correct it.")
        return None
