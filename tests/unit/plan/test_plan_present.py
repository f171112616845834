# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.present import (
    plan_images,
    plan_models,
    plan_table,
    plan_url,
)

from tests.unit.plan.conftest import knowledge


def test_the_table_explains_each_value(plan_one: Any) -> None:
    plan = plan_one({"flags": {"hf-overrides": {"b": 1, "a": 2}}, "expose": "all"}, knowledge=knowledge())
    table = "\n".join(plan_table(plan))
    for pattern in [
        r"gpu1 chat: small-chat on cpu, profile default, vLLM 0\.26\.0",
        r"image   registry\.example/vllm:v0\.26\.0 ",
        r"--max-model-len +4096\s+profiles/serving/small-chat--cpu\.yml \(default\): measured",
        r"--enable-prefix-caching\s+profiles/serving",
        r"--hf-overrides +\{\"a\": 2, \"b\": 1\} +vllm_instances\.chat\.flags",
        r"HF_HUB_OFFLINE +1 +profiles/engine\.yml",
        r"/models/Small-Chat +read only +known once fetched",
        r"warning SOC-R80: (.|\n)*api_key",
    ]:
        assert re.search(pattern, table), pattern
    lines = plan_table(plan)
    explained = lines[lines.index("  flags") : lines.index("  environment")]
    flags = [line.split()[0] for line in explained if line.strip().startswith("--")]
    assert flags == [word for word in plan["argv"] if word.startswith("--")]


@pytest.mark.parametrize("width", [79, 100])
def test_lines_of_text_fit_the_terminal(plan_one: Any, width: int) -> None:
    settings = {"flags": {"hf-overrides": {"a": 2}}, "expose": "all"}
    for notes in (False, True):
        lines = plan_table(plan_one(settings, knowledge=knowledge()), notes, width)
        assert [line for line in lines if len(line) > width] == []
    # What does not fit beside its value is below it, whole.
    told = " ".join("\n".join(lines).split())
    assert "set api_key of the instance (from a vault), or expose to loopback behind a proxy" in told
    start = next(number for number, line in enumerate(lines) if line.startswith("    warning SOC-R80"))
    assert lines[start + 1].startswith("        ")


def test_what_is_copied_is_not_broken(plan_one: Any) -> None:
    overrides = {"rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 262144, "rope_type": "yarn"}}
    lines = plan_table(plan_one({"flags": {"hf-overrides": overrides}}), width=79)
    value = '{"rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 262144, "rope_type": "yarn"}}'
    assert any(line.startswith("    --hf-overrides") and line.endswith(value) for line in lines)
    assert any("--hf-overrides '{" in line and "}}'" in line for line in lines)


def test_a_key_shows_as_its_name(plan_one: Any) -> None:
    table = "\n".join(plan_table(plan_one({"api_key": "sk-very-secret"})))
    assert "VLLM_API_KEY  (secret api_key)" in table
    assert "sk-very-secret" not in table


def test_models_and_images_are_listed_once(plan_all: Any) -> None:
    chat = {"model": "small-chat"}
    plans = plan_all({"a": chat, "b": {**chat, "port": 1}, "c": {**chat, "port": 2, "image": "other:1"}}).plans
    model = {"repo": "org/Small-Chat", "revision": "master"}
    assert plan_models(plans) == [model]
    assert plan_models([plans, plans]) == [model]
    assert plan_images(plans) == ["other:1", "registry.example/vllm:v0.26.0"]
    assert plan_models({}) == []


@pytest.mark.parametrize(
    ("expose", "address", "url"),
    [
        ("loopback", None, "http://127.0.0.1:8000"),
        ("all", None, "http://127.0.0.1:8000"),
        ("address", "192.0.2.7", "http://192.0.2.7:8000"),
        ("address", "2001:db8::7", "http://[2001:db8::7]:8000"),
    ],
)
def test_the_url_is_one_that_the_host_reaches(plan_one: Any, expose: str, address: str | None, url: str) -> None:
    assert plan_url(plan_one({"expose": expose}, address=address)) == url


@pytest.mark.parametrize(
    ("expose", "url"),
    [("all", "http://192.0.2.9:8000"), ("address", "http://192.0.2.7:8000")],
)
def test_from_the_controller_an_open_port_is_at_the_host_s_address(plan_one: Any, expose: str, url: str) -> None:
    assert plan_url(plan_one({"expose": expose}, address="192.0.2.7"), "controller", "192.0.2.9") == url


def test_the_controller_cannot_probe_what_only_its_host_reaches(plan_one: Any) -> None:
    with pytest.raises(PlanError, match="set probe_location to host"):
        plan_url(plan_one({"expose": "loopback"}), "controller", "192.0.2.9")


def test_what_is_only_worth_knowing_stands_among_the_notes(plan_one: Any) -> None:
    settings = {"image": "other:1", "expose": "all", "api_key": "sk"}
    plan = plan_one(settings)
    assert {(told["id"], told["severity"]) for told in plan["warnings"]} == {
        ("image-override", "info"),
        ("open-paths", "warning"),
    }
    lines = plan_table(plan)
    assert [line for line in lines if "image-override" in line] == []
    assert lines[-1] == "  notes   1, shown with -e socle_notes=true or -v"
    assert any(line.startswith("    warning open-paths: ") for line in lines)
    lines = plan_table(plan, notes=True)
    (told,) = [number for number, line in enumerate(lines) if line.startswith("    image-override: ")]
    assert lines.index("  warnings") < lines.index("  notes") < told


def test_a_plan_with_nothing_but_notes_has_no_warnings(plan_one: Any) -> None:
    assert "  warnings" not in plan_table(plan_one({"image": "other:1"}))
