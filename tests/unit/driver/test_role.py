# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role hands over what the modules take, under one set of names."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.socle.inference.plugins.doc_fragments.gpu_driver import ModuleDocFragment
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.runner import SETTINGS

ROLE = Path(__file__).parents[3] / "roles/gpu_driver"
FAMILIES = ("debian", "redhat")
ROOTLESS = ("packages", "services")
"""Modules that read neither /sys nor /proc."""


def load(name: str) -> Any:
    return yaml.safe_load((ROLE / name).read_text(encoding="utf-8"))


def test_settings_have_the_same_names_everywhere() -> None:
    names = {field.name for field in dataclasses.fields(Settings)}
    assert set(load("vars/main.yml")["__gpu_driver_settings"]) == names == set(SETTINGS)
    documented = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]["settings"]["suboptions"]
    assert set(documented) == names


def test_settings_have_the_same_defaults_everywhere() -> None:
    defaults = load("defaults/main.yml")
    for name, option in SETTINGS.items():
        given = defaults[f"gpu_driver_{name}"]
        if "{{" not in str(given):
            assert option["default"] == given, name
    for field in dataclasses.fields(Settings):
        if field.default is not dataclasses.MISSING and field.name not in ("repository_url", "services", "branch"):
            assert SETTINGS[field.name]["default"] == field.default, field.name


@pytest.mark.parametrize("step", ["plan", "packages", "unsource"])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_has_its_steps(step: str, family: str) -> None:
    assert load(f"tasks/{step}_{family}.yml")


def test_every_module_reads_the_roots_that_a_simulated_host_sets() -> None:
    for path in sorted((ROLE / "tasks").glob("*.yml")):
        for task in yaml.safe_load(path.read_text(encoding="utf-8")):
            for name, arguments in task.items():
                if name.startswith("socle.inference.gpu_driver_") and name.rpartition("_")[2] not in ROOTLESS:
                    assert "proc_root" in arguments, f"{path.name}: {task['name']}"


def evaluated(expression: str, variables: dict[str, Any]) -> Any:
    """What Ansible makes of an expression with the role's own variables."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.tests["failed"] = lambda result: bool(result.get("failed"))
    known = dict(variables)
    for name in ("__gpu_driver_stays", "__gpu_driver_gone"):
        if "__gpu_driver_plan" in variables:
            known[name] = environment.compile_expression(load("vars/main.yml")[name].strip("{} "))(**known)
    return environment.compile_expression(expression)(**known)


def truth(condition: Any, variables: dict[str, Any]) -> bool:
    """What Ansible makes of a task's "when"."""
    conditions = condition if isinstance(condition, list) else [condition]
    return all(evaluated(one, variables) for one in conditions)


def carried_out() -> dict[str, Any]:
    tasks = load("tasks/main.yml")[0]["block"]
    return next(task for task in tasks if task["name"] == "Carry out the plan")


def start_again() -> dict[str, Any]:
    return next(task for task in carried_out()["always"] if task["name"] == "Start again what was stopped")


@pytest.mark.parametrize(
    ("state", "packages", "remove", "then"),
    [
        ("present", {"failed": True}, [], "started"),
        ("unmanaged", None, [], "started"),
        ("absent", {"failed": False}, ["libcuda1"], "forgotten"),
        ("absent", {"failed": True}, ["libcuda1"], "started"),
        ("absent", None, ["libcuda1"], "started"),
        # A removal that was interrupted after its packages were gone.
        ("absent", None, [], "forgotten"),
    ],
)
def test_what_was_stopped_runs_again_unless_the_driver_is_gone(
    state: str, packages: Any, remove: list[str], then: str
) -> None:
    plan = {"remove": remove, "services": ["vllm-chat.service"]}
    variables: dict[str, Any] = {"gpu_driver_state": state, "__gpu_driver_plan": plan}
    if packages is not None:
        variables["__gpu_driver_packages"] = packages
    arguments = start_again()["socle.inference.gpu_driver_services"]
    assert evaluated(arguments["state"].strip("{} "), variables) == then


@pytest.mark.parametrize(
    ("services", "noted", "runs"),
    [([], [], False), (["vllm-chat.service"], [], True), ([], ["vllm-chat.service"], True)],
)
@pytest.mark.parametrize("state", ["present", "absent", "unmanaged"])
def test_what_an_earlier_run_left_stopped_is_started_and_nothing_costs_a_task_else(
    state: str, services: list[str], noted: list[str], runs: bool
) -> None:
    variables = {
        "gpu_driver_state": state,
        "__gpu_driver_plan": {"services": services, "remove": []},
        "__gpu_driver_planned": {"stopped": noted},
    }
    assert truth(start_again()["when"], variables) is runs
    assert truth(carried_out()["when"], variables) is (state != "unmanaged" or bool(noted))
    (stop,) = [task for task in carried_out()["block"] if task["name"] == "Stop what uses the GPUs"]
    assert truth(stop["when"], variables) is bool(services)


def test_a_driver_of_somebody_else_is_not_touched() -> None:
    unmanaged = {"gpu_driver_state": "unmanaged"}
    assert not truth(carried_out()["when"], {**unmanaged, "__gpu_driver_planned": {"stopped": []}})
    for task in carried_out()["block"]:
        if task["name"] != "Stop what uses the GPUs":
            assert not truth(task["when"], unmanaged)
