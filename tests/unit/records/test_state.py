# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.schema import Record
from ansible_collections.socle.inference.plugins.module_utils._records.state import (
    acceptance_summary,
    groups_of,
    host_state,
    instance_state,
    live_drift,
)

from .conftest import ENV2, FP1, FP2, make

ACCEPTANCE = {
    "suite": "smoke",
    "passed": 5,
    "failed": 1,
    "skipped": 0,
    "checks": [{"id": "health", "status": "passed"}, {"id": "tools", "status": "failed"}],
}


def state_of(*records: tuple[Record, str]) -> dict[str, Any]:
    """The state from records given oldest first."""
    state = instance_state([record for record, _text in reversed(records)])
    assert state is not None
    return state


def test_accepted_after_a_good_acceptance_of_what_was_deployed() -> None:
    state = state_of(
        make(
            "deploy", 1, generation=3, results={"kv_cache": {"kv_tokens": 900}}, plan={"capacity": {"kv_tokens": 1000}}
        ),
        make("acceptance", 2, results=ACCEPTANCE),
        make("benchmark", 3, results={"workloads": {"B1": {"ttft_p50_ms": 12.5, "runs": [{}] * 9}, "B2": "hostile"}}),
    )
    assert state["accepted"] is True
    assert state["accepted_at"] == "2026-11-30T09:02:00Z"
    assert state["fingerprint"] == FP1
    assert state["generation"] == 3
    assert state["acceptance"] == {"passed": 5, "failed": 1, "skipped": 0, "failed_checks": ["tools"]}
    assert state["benchmark"] == {"B1": {"ttft_p50_ms": 12.5}}
    assert state["capacity"] == {"kv_tokens": 900}, "measured wins over predicted"
    assert state["drift"] == []


@pytest.mark.parametrize(
    ("verdict", "accepted"), [("passed", True), ("degraded", True), ("failed", False), ("error", False)]
)
def test_only_a_good_verdict_accepts(verdict: str, accepted: bool) -> None:
    assert state_of(make("deploy", 1), make("acceptance", 2, verdict=verdict))["accepted"] is accepted


def test_the_newest_acceptance_decides() -> None:
    state = state_of(make("deploy", 1), make("acceptance", 2), make("acceptance", 3, verdict="failed"))
    assert state["accepted"] is False and state["accepted_at"] is None and state["verdict"] == "failed"


def test_a_new_deployment_takes_acceptance_and_figures_away_and_is_drift() -> None:
    state = state_of(
        make("deploy", 1),
        make("acceptance", 2),
        make("benchmark", 3, results={"workloads": {"B1": {"ttft_p50_ms": 1}}}),
        make("deploy", 4, launch_fingerprint=FP2),
    )
    assert state["accepted"] is False
    assert state["fingerprint"] == FP2
    assert state["acceptance"] is None and state["benchmark"] == {}
    assert state["drift"] == [{"item": "launch_fingerprint", "expected": FP1, "found": FP2}]


def test_a_return_to_an_accepted_launch_is_accepted_again() -> None:
    state = state_of(
        make("deploy", 1),
        make("acceptance", 2),
        make("deploy", 3, launch_fingerprint=FP2),
        make("acceptance", 4, launch_fingerprint=FP2, verdict="failed"),
        make("deploy", 5),
    )
    assert state["accepted"] is True and state["drift"] == []


def test_a_changed_environment_makes_acceptance_stale() -> None:
    state = state_of(
        make("deploy", 1), make("acceptance", 2), make("benchmark", 3, environment_fingerprint=ENV2, results={})
    )
    assert state["accepted"] is True
    assert [(item["item"], item["found"]) for item in state["drift"]] == [("environment_fingerprint", ENV2)]
    again = state_of(make("deploy", 1), make("acceptance", 2), make("acceptance", 3, environment_fingerprint=ENV2))
    assert again["drift"] == [], "accepted anew in the new environment"


def test_acceptance_without_any_deployment_is_shown_and_not_accepted() -> None:
    state = state_of(make("acceptance", 2, results=ACCEPTANCE))
    assert state["accepted"] is False and state["fingerprint"] is None
    assert state["acceptance"]["passed"] == 5


def test_failed_benchmarks_give_no_figures() -> None:
    bad = {"workloads": {"B1": {"ttft_p50_ms": 1}}}
    state = state_of(make("deploy", 1), make("benchmark", 2, verdict="error", results=bad))
    assert state["benchmark"] == {}


def test_launches_that_were_measured_whatever_came_out() -> None:
    state = state_of(
        make("deploy", 1),
        make("benchmark", 2, verdict="failed"),
        make("benchmark", 3),
        make("benchmark", 4, verdict="error"),
        make("benchmark", 5, launch_fingerprint=FP2, verdict="failed"),
        make("benchmark", 6, launch_fingerprint=None),
    )
    assert state["benchmarked"] == {FP1: "2026-11-30T09:03:00Z", FP2: "2026-11-30T09:05:00Z"}
    assert state_of(make("deploy", 1), make("benchmark", 2, verdict="error"))["benchmarked"] == {}


def test_an_instance_that_was_removed_is_not_in_the_state() -> None:
    assert instance_state([make("deploy", 2, results={"state": "absent"})[0], make("deploy", 1)[0]]) is None


def test_missing_counts_are_counted_over_the_checks_or_null() -> None:
    checks = [{"id": "a", "status": "passed"}, {"id": "b", "status": "error"}, "hostile"]
    assert acceptance_summary({"checks": checks}) == {"passed": 1, "failed": 0, "skipped": 0, "failed_checks": ["b"]}
    assert acceptance_summary({"passed": True}) == {
        "passed": None,
        "failed": None,
        "skipped": None,
        "failed_checks": [],
    }


def test_groups() -> None:
    good = [make("acceptance", 2)[0], make("deploy", 1)[0]]
    bad = [make("deploy", 1)[0]]
    drifted = [make("deploy", 4, launch_fingerprint=FP2)[0], *good]
    assert groups_of(host_state({})) == []
    assert groups_of(host_state({"a": good})) == ["accepted"]
    assert groups_of(host_state({"a": good, "b": bad})) == ["unaccepted"]
    assert groups_of(host_state({"a": good, "b": drifted})) == ["unaccepted", "drifted"]


def test_another_launch_running_than_was_deployed_is_drift() -> None:
    state = state_of(make("deploy", 1), make("acceptance", 2))
    assert live_drift(state, {"launch_fingerprint": FP1}) == []
    assert live_drift(state, {"launch_fingerprint": FP2}) == [{"item": "running", "expected": FP1, "found": FP2}]
    assert live_drift(None, None) == []


def test_what_one_run_asked_for_is_drift_until_a_deployment_without_it() -> None:
    overrides = {"flags": {"max-num-seqs": 4, "enforce-eager": True}, "image": "x:2"}
    tried = make("deploy", 1, results={"overrides": overrides})
    state = state_of(tried, make("acceptance", 2))
    assert state["accepted"] is True and state["overrides"] == overrides
    found = "flags enforce-eager, max-num-seqs; image"
    assert state["drift"] == [{"item": "overrides", "expected": None, "found": found}]
    assert groups_of({"instances": {"chat": state}}) == ["accepted", "drifted"]
    state = state_of(tried, make("acceptance", 2), make("deploy", 3, results={"overrides": {}}))
    assert state["drift"] == [] and state["overrides"] == {}
    assert state_of(make("deploy", 1, results={"overrides": "hostile"}))["overrides"] == {}


def test_the_last_incident_of_the_launch_that_runs_is_shown_and_makes_no_drift() -> None:
    results = {"action": "restart", "reason": "nothing moved", "likely_causes": ["x"], "evidence": {"journal": ["y"]}}
    incident = make("incident", 3, results=results, verdict="failed", environment_fingerprint=None, generation=2)
    state = state_of(make("deploy", 1), make("acceptance", 2, environment_fingerprint=ENV2), incident)
    assert state["incident"] == {
        "at": "2026-11-30T09:03:00Z",
        "generation": 2,
        "action": "restart",
        "reason": "nothing moved",
        "likely_causes": ["x"],
    }
    assert (state["accepted"], state["drift"]) == (True, [])
    assert state_of(incident, make("deploy", 4, launch_fingerprint=FP2))["incident"] is None
