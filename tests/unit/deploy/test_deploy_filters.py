"""What the playbooks decide from records, facts and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.filter import deploy, lab

PLAN = {"instance": "chat", "launch_fingerprint": "sha256:a"}


def state(**chat: Any) -> dict[str, Any]:
    return {"instances": {"chat": chat} if chat else {}}


@pytest.mark.parametrize(
    ("known", "generation", "expected"),
    [
        ({}, 1, False),
        ({"fingerprint": "sha256:a", "generation": 1, "deployed": True}, 1, True),
        # It failed at first, and a retry brought it up.
        ({"fingerprint": "sha256:a", "generation": 1, "deployed": False}, 1, False),
        # Restarted as a new generation: a deployment of its own.
        ({"fingerprint": "sha256:a", "generation": 1, "deployed": True}, 2, False),
        ({"fingerprint": "sha256:b", "generation": 1, "deployed": True}, 1, False),
    ],
)
def test_a_deployment_is_recorded_once(known: dict[str, Any], generation: int, expected: bool) -> None:
    assert deploy.deploy_recorded(state(**known), PLAN, generation) is expected


RUNNING = {"chat": {"plan": PLAN, "launch_fingerprint": "sha256:a"}, "odd": {"plan": None, "launch_fingerprint": None}}


@pytest.mark.parametrize(
    ("known", "choice", "expected"),
    [
        ({}, "missing", ["chat"]),
        ({"fingerprint": "sha256:a", "benchmark": {"B1": {}}}, "missing", []),
        ({"fingerprint": "sha256:a", "benchmark": {}}, "missing", ["chat"]),
        # Figures of another launch say nothing about this one.
        ({"fingerprint": "sha256:b", "benchmark": {"B1": {}}}, "missing", ["chat"]),
        ({"fingerprint": "sha256:a", "benchmark": {"B1": {}}}, "always", ["chat"]),
        ({}, "never", []),
    ],
)
def test_a_launch_is_measured_once_unless_asked(known: dict[str, Any], choice: str, expected: list[str]) -> None:
    assert deploy.benchmark_due(state(**known), RUNNING, choice) == expected


def test_an_unknown_choice_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'sometimes'; use one of missing, always, never"):
        deploy.benchmark_due(state(), RUNNING, "sometimes")


def test_a_refusal_lists_what_failed_and_what_to_do() -> None:
    checks = [
        {"id": "chat", "status": "passed", "expected": "a", "found": "a", "remedy": None},
        {"id": "api_key", "status": "failed", "expected": "401", "found": "200", "remedy": "Set the key."},
        {"id": "metrics", "status": "error", "expected": "names", "found": "no answer", "remedy": None},
    ]
    assert deploy.acceptance_failure({"checks": checks}).splitlines() == [
        "api_key: expected 401, found 200. Set the key.",
        "metrics: expected names, found no answer.",
    ]
    assert deploy.acceptance_failure({"checks": []})


def test_a_build_is_announced_with_size_and_time() -> None:
    step = {"name": "engine image", "gib": 9.5, "minutes": 3.0}
    plan = {"build": [step], "gib": 9.5, "minutes": 3.2, "containers": ["create socle-lab-hub"]}
    assert lab.lab_expectation(plan, "/cache") == [
        "Building engine image: up to 9.5 GiB below /cache, about 3 min on two cores.",
        "Then: create socle-lab-hub.",
    ]
    assert lab.lab_expectation({"build": [], "containers": []}, "/cache") == []


def test_a_build_as_root_gets_the_users_pip_settings_and_proxies_only(tmp_path: Path) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").touch()
    found = {"PIP_FIND_LINKS": "/wheels", "https_proxy": "http://proxy.example:1", "AWS_SECRET_KEY": "x", "HOME": "/h"}
    found["PIP_INDEX_URL"] = "https://user:secret@index.example/simple"
    assert lab.build_environment(str(tmp_path), found) == {
        "PIP_FIND_LINKS": "/wheels",
        "https_proxy": "http://proxy.example:1",
        "PIP_CONFIG_FILE": str(tmp_path / ".config/pip/pip.conf"),
    }
