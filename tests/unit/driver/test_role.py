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
                if name.startswith("socle.inference.gpu_driver_") and name != "socle.inference.gpu_driver_packages":
                    assert "proc_root" in arguments, f"{path.name}: {task['name']}"


def truth(condition: Any, variables: dict[str, Any]) -> bool:
    """What Ansible makes of a task's "when" with the role's own variables."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.tests["failed"] = lambda result: bool(result.get("failed"))
    own = load("vars/main.yml")["__gpu_driver_stays"]
    stays = environment.from_string(own).render(variables) == "True"
    conditions = condition if isinstance(condition, list) else [condition]
    return all(environment.compile_expression(one)(**variables, __gpu_driver_stays=stays) for one in conditions)


def carried_out() -> dict[str, Any]:
    tasks = load("tasks/main.yml")[0]["block"]
    return next(task for task in tasks if task["name"] == "Carry out the plan")


@pytest.mark.parametrize(
    ("state", "packages", "again"),
    [
        ("present", {"failed": True}, True),
        ("absent", {"failed": False}, False),
        ("absent", {"failed": True}, True),
        ("absent", None, True),
    ],
)
def test_what_was_stopped_runs_again_unless_the_driver_is_gone(state: str, packages: Any, again: bool) -> None:
    variables: dict[str, Any] = {"gpu_driver_state": state, "ansible_check_mode": False}
    if packages is not None:
        variables["__gpu_driver_packages"] = packages
    start = next(task for task in carried_out()["always"] if task["name"] == "Start again what was stopped")
    assert truth(start["when"], variables) is again


def test_a_driver_of_somebody_else_is_not_touched() -> None:
    assert not truth(carried_out()["when"], {"gpu_driver_state": "unmanaged"})
