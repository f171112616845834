# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What role vllm_service marks, records and tells the wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROLE = Path(__file__).parents[3] / "roles" / "vllm_service" / "tasks" / "main.yml"

LAUNCHED = {"generation": 3, "action": "started", "starting": True}
STILL = {"generation": 3, "action": "none", "starting": True}
IDLE = {"generation": 3, "action": "none", "starting": False}
REFUSED = {"failed": True, "msg": "Will not start chat again"}
GAVE_UP = {"failed": True, "msg": "it ended", "started": "now", "diagnosis": {"id": "unit_failed"}}
NO_ANSWER = {"failed": True, "msg": "left it as it is", "started": "now"}


def tasks(section: str) -> dict[str, dict[str, Any]]:
    return {task["name"]: task for task in yaml.safe_load(ROLE.read_text(encoding="utf-8"))[0][section]}


def evaluate(text: str, launch: dict[str, Any], ready: dict[str, Any]) -> Any:
    expression = jinja2.Environment().compile_expression(text.removeprefix("{{").removesuffix("}}").strip())
    return expression(
        __vllm_service_launch=launch, __vllm_service_ready=ready, ansible_check_mode=False, ansible_failed_result={}
    )


@pytest.mark.parametrize(
    ("launch", "ready", "marked", "recorded"),
    [
        (LAUNCHED, GAVE_UP, True, True),
        (STILL, GAVE_UP, True, True),
        (LAUNCHED, NO_ANSWER, False, True),
        (IDLE, NO_ANSWER, False, False),
        (IDLE, GAVE_UP, False, False),
        (REFUSED, GAVE_UP, False, False),  # what an earlier instance of the host left in the variable
    ],
)
def test_only_what_was_started_and_given_up_is_marked_as_failed(
    launch: dict[str, Any], ready: dict[str, Any], marked: bool, recorded: bool
) -> None:
    rescue = tasks("rescue")
    conditions = rescue["Mark the generation as failed"]["when"]
    assert all(evaluate(condition, launch, ready) for condition in conditions) is marked
    kept = rescue["Keep what failed"]["ansible.builtin.set_fact"]["vllm_service_result"]
    assert ("started" in evaluate(kept["ready"], launch, ready)) is recorded


@pytest.mark.parametrize("launch", [LAUNCHED, STILL, IDLE])
def test_the_wait_is_told_whether_the_start_is_to_be_proven(launch: dict[str, Any]) -> None:
    wait = tasks("block")["Wait until the instance serves"]["socle.inference.vllm_ready"]
    assert evaluate(wait["started"], launch, {}) is launch["starting"]
    # Where earlier starts are on record, by which the time that this one takes is expected.
    assert wait["state_dir"] == "{{ vllm_service_state_dir }}"
    # What another run launched before the wait began is not this run's to stop.
    assert wait["generation"] == "{{ __vllm_service_launch.generation }}"
