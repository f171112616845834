# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The overlay, rendered by the Jinja that engines use; and the templates that it refuses."""

from __future__ import annotations

from typing import Any

import jinja2.meta
import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.template_overlay import (
    MARK,
    digest,
    file_name,
    overlay,
    prelude,
)
from ansible_collections.socle.inference.plugins.plugin_utils import bounded, template_check
from ansible_collections.socle.inference.plugins.plugin_utils.template_check import checked_overlay, environment

from tests.support.effort_model import LEVELS, MEDIUM, THREE_LEVELS, XHIGH

QUESTION: dict[str, Any] = {"messages": [{"role": "user", "content": "Why?"}], "add_generation_prompt": True}


def render(template: str, **arguments: Any) -> str:
    return environment().from_string(template).render(**QUESTION, **arguments)


@pytest.mark.parametrize(
    ("aliases", "sent", "meant"),
    [
        (XHIGH, "high", {"reasoning_effort": "xhigh"}),
        (XHIGH, "max", {"reasoning_effort": "xhigh"}),
        (XHIGH, "ultra", {"reasoning_effort": "xhigh"}),
        (XHIGH, "minimal", {"reasoning_effort": "low"}),
        (XHIGH, "none", {"enable_thinking": False}),
        (XHIGH, "medium", {"reasoning_effort": "medium"}),
        (XHIGH, "low", {"reasoning_effort": "low"}),
        (MEDIUM, "high", {"reasoning_effort": "medium"}),
        (MEDIUM, "max", {"reasoning_effort": "xhigh"}),
    ],
)
def test_each_level_comes_out_as_the_one_that_it_stands_for(
    aliases: dict[str, str], sent: str, meant: dict[str, Any]
) -> None:
    made = checked_overlay(THREE_LEVELS, LEVELS, aliases, "m")
    # As vLLM sends it from 0.23 on, and as clients send it by chat_template_kwargs.
    for switch in ({}, {"enable_thinking": sent != "none"}):
        assert render(made, reasoning_effort=sent, **switch) == render(THREE_LEVELS, **{**switch, **meant})
    assert ("[take your time]" in render(made, reasoning_effort=sent)) is (meant.get("reasoning_effort") == "xhigh")


def test_a_request_without_effort_and_one_with_an_unknown_level_find_the_template_as_it_was() -> None:
    made = checked_overlay(THREE_LEVELS, LEVELS, XHIGH, "m")
    assert render(made) == render(THREE_LEVELS)
    assert render(made, enable_thinking=False) == render(THREE_LEVELS, enable_thinking=False)
    for odd in ("huge", ["high"], {"high": 1}, 3):
        with pytest.raises(Exception, match="is not one of"):
            render(made, reasoning_effort=odd)


def test_the_text_of_the_template_is_kept_whole() -> None:
    assert overlay(THREE_LEVELS, XHIGH).endswith(THREE_LEVELS)
    assert overlay(THREE_LEVELS, XHIGH).startswith(MARK)


@pytest.mark.parametrize(
    "start", ["\n", "  ", "\n\n  text\n", "{# note #}\n", "", "{{ 'x' }}\n", "\t{% if 1 %}y{% endif %}\n"]
)
def test_whatever_a_template_starts_with_comes_out_as_before(start: str) -> None:
    base = start + THREE_LEVELS.replace("{%- set thinks", "{% set thinks", 1)
    made = checked_overlay(base, LEVELS, XHIGH, "m")
    assert render(made) == render(base)


def test_the_engine_passes_the_same_arguments_to_both() -> None:
    """vLLM gives a template only what it finds to be asked for in its text."""
    names = [
        jinja2.meta.find_undeclared_variables(environment().parse(text))
        for text in (THREE_LEVELS, overlay(THREE_LEVELS, XHIGH))
    ]
    assert names[0] == names[1]
    assert {"reasoning_effort", "enable_thinking"} <= names[1]


def test_templates_with_other_tags_of_the_engine_are_read() -> None:
    base = THREE_LEVELS + "{% generation %}{{ strftime_now('%Y') }}{% endgeneration %}"
    assert "%Y" in render(checked_overlay(base, LEVELS, XHIGH, "m"))


def test_a_template_that_learned_an_alias_with_the_same_meaning_still_works() -> None:
    newer = THREE_LEVELS.replace(
        "{%- if thinks and", "{%- if effort == 'high' %}{% set effort = 'xhigh' %}{% endif %}\n{%- if thinks and", 1
    )
    made = checked_overlay(newer, LEVELS, XHIGH, "m")
    assert render(made, reasoning_effort="max") == render(newer, reasoning_effort="xhigh")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("['xhigh', 'medium', 'low']", "['xhigh', 'low']", r"refuses effort medium.*effort.levels"),
        ("thinks and effort not in", "false and effort not in", "takes any level of effort.*low, medium, xhigh"),
        ("['xhigh', 'medium', 'low']", "['xhigh', 'medium', 'low', 'high']", "knows effort high by now"),
        ("reasoning_effort | default", "thinking_level | default", "knows no levels of effort"),
        ("enable_thinking is not defined or enable_thinking", "true", "no way to turn thinking off"),
        ("{%- endmacro %}", "", r"cannot be read as Jinja: .*\(line \d+\)"),
        ("{%- macro hint()", "{{- raise_exception('no') }}{%- macro hint()", r"refuses a plain question \(no\)"),
    ],
)
def test_a_template_that_changed_in_its_meaning_is_refused_in_one_sentence(old: str, new: str, said: str) -> None:
    assert old in THREE_LEVELS
    with pytest.raises(PlanError, match=said) as refused:
        checked_overlay(THREE_LEVELS.replace(old, new), LEVELS, XHIGH, "Qwen/Test")
    assert str(refused.value).startswith("The chat template of Qwen/Test")
    assert "effort_aliases of the instance to false" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (" \n" + prelude(XHIGH), "effort none given comes out in another way"),
        (prelude(MEDIUM), "effort high comes out in another way than xhigh"),
        (prelude({"high": "xhigh"}), r"effort ultra comes out in another way than xhigh .*is not one of"),
        (prelude({**XHIGH, "medium": "low"}), "effort medium comes out in another way"),
        ("{% set reasoning_effort = 'low' %}\n", "no longer gets all that it asks for"),
    ],
)
def test_a_template_that_does_not_come_out_as_it_should_is_refused(
    monkeypatch: pytest.MonkeyPatch, broken: str, said: str
) -> None:
    monkeypatch.setattr(template_check, "overlay", lambda base, _aliases: broken + base)
    with pytest.raises(PlanError, match=said):
        checked_overlay(THREE_LEVELS, LEVELS, XHIGH, "m")


HOSTILE = {
    "an endless loop": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "does not end in 1 s of processor time",
    ),
    "endless output": (
        "{% for a in range(99999) %}{% for b in range(99999) %}much text{% endfor %}{% endfor %}",
        "writes more than 4,194,304 characters",
    ),
    "output that is kept": (
        "{% set ns = namespace(t='x') %}{% for a in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        "needs more than 256 MiB of memory",
    ),
    "one huge value": ("{% set x = 'x' * (messages | length * 10 ** 10) %}", "needs more than 256 MiB of memory"),
    "nesting that no parser ends": ("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}", "ends with RecursionError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_too_much_is_given_up_in_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(bounded, "CPU_S", 1)
    text, said = HOSTILE[name]
    with pytest.raises(PlanError, match=said) as refused:
        checked_overlay(text + THREE_LEVELS, LEVELS, XHIGH, "Qwen/Test")
    assert str(refused.value).startswith("The chat template of Qwen/Test cannot be rendered on the controller: it ")
    assert "effort_aliases of the instance to false" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_template_that_takes_too_much_only_for_a_level_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "CPU_S", 1)
    trap = "{% if reasoning_effort is defined and reasoning_effort == 'low' %}" + HOSTILE["an endless loop"][0]
    with pytest.raises(PlanError, match="does not end"):
        checked_overlay(trap + "{% endif %}" + THREE_LEVELS, LEVELS, XHIGH, "m")


def test_what_a_template_says_is_repeated_only_as_part_of_a_sentence() -> None:
    chatty = "{{ raise_exception('no\\nno\\n' * 10000) }}"
    with pytest.raises(PlanError, match=r"refuses a plain question \(no no ") as refused:
        checked_overlay(chatty + THREE_LEVELS, LEVELS, XHIGH, "m")
    assert len(str(refused.value)) < 500 and "\n" not in str(refused.value)


def test_a_template_of_ours_is_not_taken_for_the_model_s_own() -> None:
    with pytest.raises(PlanError, match="restore the file"):
        checked_overlay(overlay(THREE_LEVELS, XHIGH), LEVELS, MEDIUM, "m")


def test_aliases_of_nothing_change_nothing() -> None:
    assert render(prelude({}) + THREE_LEVELS) == render(THREE_LEVELS)


def test_the_file_is_named_by_the_content() -> None:
    one, other = (digest(overlay(THREE_LEVELS, aliases)) for aliases in (XHIGH, MEDIUM))
    assert one != other
    assert file_name(one) == one[7:19] + ".jinja"
