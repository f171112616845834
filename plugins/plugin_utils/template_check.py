# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders chat templates as the engine would, to find out whether one with effort aliases does what it should.

On the controller, where Jinja is: it belongs to Ansible. A template is a program that somebody else wrote, so that it
runs in a process of its own, which ends by its bounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.models import THINKING_OFF
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import known_list, short
from ansible_collections.socle.inference.plugins.module_utils._plan.template_overlay import EFFORT, THINKING, overlay
from ansible_collections.socle.inference.plugins.plugin_utils.bounded import OutOfBounds, bounded

NO_LEVEL = "no-such-level"
"""What no template knows, to see whether it checks at all."""

SWITCH = "effort_aliases"

MAX_CHARACTERS = 4 * 1024 * 1024
"""Of one rendering; the conversations here come to some thousands."""

_SAID = 200
"""Characters of a template's own words that messages repeat."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {"word": "socle"}}}

CONVERSATIONS: Mapping[str, Mapping[str, Any]] = {
    "a question": {"messages": [{"role": "user", "content": "What is a socle?"}]},
    "instructions and a question": {
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is a socle?"}]
    },
    "several turns": {
        "messages": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello!", "reasoning_content": "A greeting.", "reasoning": "A greeting."},
            {"role": "user", "content": "What is a socle?"},
        ]
    },
    "a tool call": {
        "tools": [_TOOL],
        "messages": [
            {"role": "user", "content": "What is a socle?"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "A base."},
        ],
    },
}
"""What is rendered before and after. A template may refuse some of these by its own rules, but not the first."""


class _Generation(jinja2.ext.Extension):
    """The tag by which training marks what the model says; transformers knows it, and here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 that is how Jinja declares it

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """As transformers makes it for chat templates, with a clock that stands still, so that two renderings compare."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: form
    return made


@dataclass(frozen=True)
class Rendering:
    """What came out, or what the template refused it with."""

    text: str | None
    refusal: str | None = None

    @property
    def said(self) -> str:
        """The refusal as part of a sentence: one line, of a length that people read."""
        return short(" ".join((self.refusal or "").split()), _SAID)


class _Renderer:
    def __init__(self, text: str, what: str) -> None:
        self._environment = environment()
        try:
            self.variables = jinja2.meta.find_undeclared_variables(self._environment.parse(text))
            self._template = self._environment.from_string(text)
        except jinja2.TemplateError as error:
            line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise PlanError(
                f"{what} cannot be read as Jinja: {short(' '.join(str(error).split()), _SAID)}{line}; {_instead()}."
            ) from error

    def __call__(self, arguments: Mapping[str, Any]) -> Rendering:
        try:
            # As vLLM does, which passes on only what the template asks for.
            allowed = {"messages", "tools", "documents", "add_generation_prompt"} | self.variables
            return Rendering(self._text({k: v for k, v in arguments.items() if k in allowed}))
        except (OutOfBounds, MemoryError):
            raise
        except Exception as error:  # whatever a template makes Python raise is its way to refuse
            return Rendering(None, str(error) or type(error).__name__)

    def _text(self, arguments: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        left = MAX_CHARACTERS
        for piece in self._template.generate(arguments):
            left -= len(piece)
            if left < 0:
                raise OutOfBounds(f"writes more than {MAX_CHARACTERS:,} characters")
            pieces.append(piece)
        return "".join(pieces)


def _instead() -> str:
    return f"set {SWITCH} of the instance to false, or chat_template of the instance to a template of yours"


def checked_overlay(base: str, levels: Sequence[str], aliases: Mapping[str, str], model: str) -> str:
    """The overlay of *base*, proven by rendering both; raises PlanError with one sentence where it cannot be made.

    Refused are a base that does not know all *levels*, that has no check of them, that gives an alias a meaning of its
    own, or for which any rendering differs from what it should be: that of the target for an alias, and the one of the
    base for everything else; and one that takes more than a process of its own may.
    """
    what = f"The chat template of {model}"
    try:
        return bounded(lambda: _checked_overlay(base, levels, aliases, what))
    except OutOfBounds as error:
        raise PlanError(f"{what} cannot be rendered on the controller: it {error}; {_instead()}.") from error


def _checked_overlay(base: str, levels: Sequence[str], aliases: Mapping[str, str], what: str) -> str:
    before = _Renderer(base, what)
    made = overlay(base, aliases)
    after = _Renderer(made, f"{what} with effort aliases")
    _check_base(before, what, levels, aliases)
    if before.variables != after.variables:
        raise PlanError(
            f"{what} could not be given effort aliases, since it no longer gets all that it asks for; {_instead()}."
        )
    for name, arguments in _requests(before):
        for change, meant in _expectations(levels, aliases, arguments):
            wanted, found = before(meant), after(change)
            if wanted.text == found.text and (wanted.text is not None or wanted.refusal == found.refusal):
                continue
            sent, same = change.get(EFFORT, "none given"), meant.get(EFFORT, "none given")
            raise PlanError(
                f"{what} could not be given effort aliases: for {name}, effort {sent} comes out in another way than"
                f" {same} does without them{f' ({found.said})' if found.refusal else ''}; {_instead()}."
            )
    return made


def _check_base(before: _Renderer, what: str, levels: Sequence[str], aliases: Mapping[str, str]) -> None:
    plain = {"add_generation_prompt": True, **CONVERSATIONS["a question"]}
    usual = before(plain)
    if usual.text is None:
        raise PlanError(f"{what} refuses a plain question ({usual.said}); {_instead()}.")
    if EFFORT not in before.variables:
        raise PlanError(f"{what} knows no levels of effort, so that aliases for them mean nothing; {_instead()}.")
    unknown = [level for level in levels if before({**plain, EFFORT: level}).text is None]
    if unknown:
        raise PlanError(
            f"{what} refuses effort {known_list(unknown)}, which its model file says it knows; correct effort.levels"
            f" there, or {_instead()}."
        )
    if before({**plain, EFFORT: NO_LEVEL}).text is not None:
        raise PlanError(
            f"{what} takes any level of effort, where one that knows {known_list(levels)} only was expected, so that"
            f" aliases could change what it does; {_instead()}."
        )
    off = [level for level, target in aliases.items() if target == THINKING_OFF]
    if off and THINKING not in before.variables:
        raise PlanError(
            f"{what} has no way to turn thinking off ({THINKING}), which effort {known_list(off)} should do;"
            f" {_instead()}."
        )
    for level, target in aliases.items():
        own = before({**plain, EFFORT: level})
        if own.text is not None and own.text != before({**plain, **_as(target)}).text:
            raise PlanError(
                f"{what} knows effort {level} by now and does not take it for {target}; remove {level} from the aliases"
                f" in the model file, or {_instead()}."
            )


def _as(target: str) -> dict[str, Any]:
    return {THINKING: False} if target == THINKING_OFF else {EFFORT: target}


def _requests(before: _Renderer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every kind of conversation that the base takes, with and without a prompt to answer and a word on thinking."""
    for (name, conversation), prompt, thinking in product(CONVERSATIONS.items(), (True, False), (None, True, False)):
        arguments = {**conversation, "add_generation_prompt": prompt}
        if thinking is not None:
            arguments[THINKING] = thinking
        if before(arguments).text is not None:
            yield name, arguments


def _expectations(
    levels: Sequence[str], aliases: Mapping[str, str], arguments: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(what is sent to the overlay, what must come out of the base in the same way)"""
    yield arguments, arguments
    for level in (*levels, NO_LEVEL):
        yield {**arguments, EFFORT: level}, {**arguments, EFFORT: level}
    for level, target in aliases.items():
        yield {**arguments, EFFORT: level}, {**arguments, **_as(target)}
