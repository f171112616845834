# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Suites and workloads are resolved on the controller: the user's files before the shipped ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.socle.inference.plugins.action import vllm_acceptance, vllm_benchmark
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError

ROOT = Path(__file__).parents[3]


def resolve(plugin: Any, args: dict[str, Any], **task_vars: Any) -> dict[str, Any]:
    loader = DataLoader()
    templar = Templar(loader=loader, variables=task_vars)
    action = plugin.ActionModule(None, None, None, loader, templar, None)
    return action.prepare_module_args(args, task_vars)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for folder in ("suites", "workloads"):
        (tmp_path / folder).mkdir()
    (tmp_path / "suites/smoke.yml").write_text("name: smoke\nchecks: [alive]\n")
    (tmp_path / "suites/ours.yml").write_text("name: ours\nchecks:\n  - id: chat\n    params: {max_tokens: 3}\n")
    (tmp_path / "suites/empty.yml").write_text("name: empty\nchecks: []\n")
    (tmp_path / "workloads/B1.yml").write_text("name: B1\nparams: {prompt: x, output_tokens: 2}\n")
    (tmp_path / "workloads/odd.yml").write_text("name: even\n")
    return tmp_path


def test_the_shipped_suite_is_the_default() -> None:
    assert resolve(vllm_acceptance, {})["checks"] == yaml.safe_load((ROOT / "suites/smoke.yml").read_text())["checks"]


@pytest.mark.parametrize(
    ("suite", "checks"), [("smoke", [{"id": "alive"}]), ("ours", [{"id": "chat", "params": {"max_tokens": 3}}])]
)
def test_the_users_suite_comes_first(site: Path, suite: str, checks: list[Any]) -> None:
    assert resolve(vllm_acceptance, {"suite": suite}, socle_data_path=str(site))["checks"] == checks
    assert resolve(vllm_acceptance, {"suite": suite, "data_path": [str(site)]})["checks"] == checks


def test_a_suite_may_begin_with_another_one(site: Path) -> None:
    (site / "suites/more.yml").write_text(
        "name: more\nextends: ours\nchecks:\n  - alive\n  - {id: chat, on_failure: degraded}\n"
    )
    checks = resolve(vllm_acceptance, {"suite": "more", "data_path": [str(site)]})["checks"]
    assert checks == [{"id": "alive"}, {"id": "chat", "on_failure": "degraded"}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: other\nchecks: [chat]", r"extends itself \(ring > other > ring\)"),
        ("extends: [smoke]\nchecks: [chat]", "the name of one suite"),
        ("extends: none_such\nchecks: [chat]", "not found"),
        ("include: smoke\nchecks: [chat]", "'include', which no suite has"),
        ("checks: [[chat]]", r"has the check \['chat'\]; expected the id of one"),
        ("checks: [5]", "has the check 5; expected the id of one"),
        ("checks: [{id: [chat]}]", "expected the id of one"),
    ],
)
def test_a_suite_that_extends_what_it_cannot_is_refused(site: Path, text: str, words: str) -> None:
    (site / "suites/ring.yml").write_text(f"name: ring\n{text}\n")
    (site / "suites/other.yml").write_text("name: other\nextends: ring\nchecks: [alive]\n")
    with pytest.raises(SocleError, match=words):
        resolve(vllm_acceptance, {"suite": "ring", "data_path": [str(site)]})


def test_what_is_promised_is_made_of_plan_and_model_file(site: Path) -> None:
    flags = {"enable-auto-tool-choice": {"value": True}, "reasoning-parser": {"value": "qwen3"}}
    plan = {"model": {"name": "qwen3.8-27b"}, "vllm_version": "0.26.0", "sources": flags, "slo": {}}
    args = resolve(vllm_acceptance, {"suite": "smoke", "plan": plan})
    assert args["promised"]["lacks"] == {}
    assert "plan" not in args
    gone = resolve(vllm_acceptance, {"suite": "smoke", "plan": {**plan, "model": {"name": "no-such-model"}}})
    assert "is gone or cannot be read" in gone["promised"]["lacks"]["tools"]


def test_checks_given_outright_are_left_alone() -> None:
    checks = [{"id": "alive"}]
    assert resolve(vllm_acceptance, {"checks": checks, "suite": "none"})["checks"] == checks


@pytest.mark.parametrize(("suite", "words"), [("none", "not found"), ("empty", "prove nothing")])
def test_a_suite_that_is_not_there(site: Path, suite: str, words: str) -> None:
    with pytest.raises(SocleError, match=words):
        resolve(vllm_acceptance, {"suite": suite}, socle_data_path=str(site))


def test_the_users_workload_comes_first(site: Path) -> None:
    mine, shipped = resolve(vllm_benchmark, {}, socle_data_path=[str(site)])["workloads"]
    assert (mine["params"]["output_tokens"], shipped["params"]["output_tokens"]) == (2, 512)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"workloads": ["B9"]}, "not found"),
        ({"workloads": ["odd"]}, "must be equal"),
        ({"workloads": ["B1"], "params": {"B22": {}}}, "B22"),
    ],
)
def test_a_workload_that_is_not_there(site: Path, args: dict[str, Any], words: str) -> None:
    with pytest.raises(SocleError, match=words):
        resolve(vllm_benchmark, args, socle_data_path=str(site))


def test_params_may_name_a_workload_that_does_not_run_now() -> None:
    assert len(resolve(vllm_benchmark, {"workloads": ["B1"], "params": {"B2": {"repeats": 1}}})["workloads"]) == 1


def test_the_role_says_all_of_its_inputs() -> None:
    role = ROOT / "roles/probe"
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
