# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container engine a sealed plan names, and what it needs beside it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.filter.deploy import facts_environment
from ansible_collections.socle.inference.plugins.filter.engine import choose_engine, engine_due
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import seal
from ansible_collections.socle.inference.plugins.module_utils._plan.surroundings import (
    environment_fingerprint,
    units_needed,
)

FACTS: dict[str, Any] = {
    "driver": {"version": "580.126.09"},
    "kernel": "6.12",
    "engine": {"name": "podman", "version": "5.4.2"},
    "engines": {"podman": "5.4.2", "docker": "26.1.5"},
    "gpus": [{"index": 0}],
}


@pytest.fixture
def request_seal(plan_one: Any) -> dict[str, Any]:
    return {
        "plan": plan_one(None),
        "image_digest": "sha256:" + "1" * 64,
        "content_id": "sha256:" + "2" * 64,
        "model_path": "/var/lib/socle/models/org/Small-Chat/rev/0123456789ab",
    }


def test_a_plan_names_its_engine_and_launches_the_same_under_both(request_seal: Any) -> None:
    silent = seal(request_seal)[0]
    podman = seal({**request_seal, "engine": "podman"})[0]
    docker = seal({**request_seal, "engine": "docker"})[0]
    assert (silent["engine"], podman["engine"], docker["engine"]) == ("podman", "podman", "docker")
    assert silent["launch_fingerprint"] == podman["launch_fingerprint"] == docker["launch_fingerprint"]
    with pytest.raises(PlanError, match="engine"):
        seal({**request_seal, "engine": "containerd"})


def test_the_environment_is_that_of_the_engine_which_runs_the_instance() -> None:
    assert environment_fingerprint(FACTS) == environment_fingerprint(FACTS, "podman")
    under_docker = environment_fingerprint(FACTS, "docker")
    assert under_docker != environment_fingerprint(FACTS)
    newer = {
        **FACTS,
        "engines": {**FACTS["engines"], "podman": "5.6.0"},
        "engine": {"name": "podman", "version": "5.6.0"},
    }
    assert environment_fingerprint(newer, "docker") == under_docker
    assert environment_fingerprint(newer) != environment_fingerprint(FACTS)
    assert facts_environment(FACTS, "docker")["engine"] == {"name": "docker", "version": "26.1.5"}
    assert facts_environment(FACTS)["engine"] == FACTS["engine"]


@pytest.mark.parametrize(
    ("facts", "units"),
    [
        ({}, []),
        ({"nvswitches": [], "nvlink5": False}, []),
        ({"nvswitches": [{"pci_bus_id": "0000:07:00.0"}], "nvlink5": False}, ["nvidia-fabricmanager.service"]),
        ({"nvswitches": [], "nvlink5": True}, ["nvidia-fabricmanager.service"]),
    ],
)
def test_the_fabric_manager_is_needed_only_where_there_are_switches(facts: dict[str, Any], units: list[str]) -> None:
    assert units_needed(facts) == units


def test_the_engine_of_a_host_is_chosen_by_its_facts() -> None:
    assert choose_engine(FACTS) == {"engine": "podman", "fault": None}
    assert choose_engine(FACTS, "docker") == {"engine": "docker", "fault": None}
    old = {**FACTS, "engines": {"podman": "4.3.1", "docker": "20.10.24"}}
    assert choose_engine({**old, "gpus": []}) == {"engine": "docker", "fault": None}
    refused = choose_engine(old, "auto", "gpu-7")
    assert refused["engine"] is None
    assert str(refused["fault"]).startswith(
        "Cannot give GPUs to containers on gpu-7: found Podman 4.3.1 and Docker 20.10"
    )


@pytest.mark.parametrize(
    ("engine", "instances", "driver", "toolkit", "due"),
    [
        (None, {}, "absent", "absent", False),
        ("5.4.2", {}, "absent", "absent", True),
        (None, {"chat": {}}, "absent", "absent", True),
        (None, {}, "present", "absent", True),
        (None, {}, "absent", "present", True),
    ],
)
def test_a_host_that_gives_everything_up_gets_no_engine_for_it(
    engine: str | None, instances: dict[str, Any], driver: str, toolkit: str, due: bool
) -> None:
    facts = {**FACTS, "engines": {"podman": engine, "docker": None}}
    assert engine_due(facts, instances, driver, toolkit) is due
