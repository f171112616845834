# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import seal

IMAGE = "sha256:" + "1" * 64
CONTENT = "sha256:" + "2" * 64
HMAC = "hmac-sha256:" + "3" * 64


@pytest.fixture
def request_of(plan_one: Any, facts: Any) -> Callable[..., dict[str, Any]]:
    def call(instance: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        return {
            "plan": plan_one(instance),
            "image_digest": IMAGE,
            "content_id": CONTENT,
            "model_path": "/var/lib/socle/models/org/Small-Chat/rev/0123456789ab",
            "facts": facts["cpu"],
            **changes,
        }

    return call


def fingerprints(request: dict[str, Any]) -> tuple[str, str]:
    plan, missing = seal(request)
    assert missing == []
    return plan["launch_fingerprint"], plan["environment_fingerprint"]


def test_sealing_fills_in_what_was_fetched(request_of: Any) -> None:
    request = request_of()
    before = copy.deepcopy(request)
    plan, missing = seal(request)
    assert (plan["sealed"], missing) == (True, [])
    assert (plan["image_digest"], plan["content_id"]) == (IMAGE, CONTENT)
    assert plan["mounts"][0]["source"] == "/var/lib/socle/models/org/Small-Chat/rev/0123456789ab"
    assert plan["launch_fingerprint"].startswith("sha256:") and len(plan["launch_fingerprint"]) == 71
    assert request == before


def test_fingerprints_stay_the_same_over_releases(request_of: Any) -> None:
    # A different value here restarts every engine of every user once: change it only on purpose.
    assert fingerprints(request_of()) == (
        "sha256:7a83f6d7a5e3c8a24516555fda2385fda3ab905eab54cbd84f082e369a77edfb",
        "sha256:7eb901ec8869ead1cee92e7ba8dfd00d0439069a289db2c06851c352e1dfb577",
    )


@pytest.mark.parametrize(
    "instance",
    [
        {"flags": {"max-num-seqs": 3}},
        {"env": {"A": "1"}},
        {"port": 8001},
        {"served_names": ["other"]},
        {"expose": "all"},
        {"chat_template": "t.jinja"},
    ],
)
def test_what_runs_changes_the_launch_fingerprint(request_of: Any, instance: dict[str, Any]) -> None:
    plain, changed = fingerprints(request_of()), fingerprints(request_of(instance))
    assert plain[0] != changed[0]
    assert plain[1] == changed[1]


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.update(shm_size_bytes=1),
        lambda plan: plan.update(network="bridge"),
        lambda plan: plan.update(gpus=[0]),
        lambda plan: plan["mounts"][0].update(read_only=False),
        lambda plan: plan["mounts"][0].update(target="/elsewhere"),
        lambda plan: plan["argv"].reverse(),
    ],
)
def test_each_part_of_the_plan_changes_the_launch_fingerprint(request_of: Any, change: Any) -> None:
    request = request_of()
    change(request["plan"])
    assert fingerprints(request)[0] != fingerprints(request_of())[0]


@pytest.mark.parametrize("key", ["image_digest", "content_id"])
def test_what_was_fetched_changes_the_launch_fingerprint(request_of: Any, key: str) -> None:
    assert fingerprints(request_of(**{key: "sha256:" + "9" * 64}))[0] != fingerprints(request_of())[0]


def test_only_the_hmac_tells_secrets_apart(request_of: Any) -> None:
    first = request_of({"api_key": "one"}, secrets_hmac=HMAC)
    assert fingerprints(first) == fingerprints(request_of({"api_key": "two"}, secrets_hmac=HMAC))
    other = request_of({"api_key": "one"}, secrets_hmac="hmac-sha256:" + "4" * 64)
    assert fingerprints(first)[0] != fingerprints(other)[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.update(start_timeout_s=1, slo={"a": 1}, warnings=[], host="other"),
        lambda plan: plan["mounts"].reverse(),
        lambda plan: plan["mounts"][1].update(source="/elsewhere"),
        lambda plan: plan.update(env=dict(reversed(plan["env"].items()))),
        lambda plan: plan.update(sources={}),
    ],
)
def test_what_does_not_run_leaves_the_launch_fingerprint(request_of: Any, change: Any) -> None:
    request = request_of()
    change(request["plan"])
    assert fingerprints(request)[0] == fingerprints(request_of())[0]


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "6.13.0"},
        {"driver": {"version": "580.1"}},
        {"engine": {"name": "podman", "version": "5.5.0"}},
        {"engine": {"name": "docker", "version": "5.4.2"}},
        {"toolkit": {"version": "1.18.0"}},
    ],
)
def test_surroundings_change_only_the_environment_fingerprint(request_of: Any, facts: Any, change: Any) -> None:
    before, after = fingerprints(request_of()), fingerprints(request_of(facts={**facts["cpu"], **change}))
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_before_a_first_deploy_the_plan_may_stay_unsealed(request_of: Any) -> None:
    plan, missing = seal(request_of(content_id=None, model_path=None, allow_missing=True))
    assert (plan["sealed"], plan["launch_fingerprint"]) == (False, None)
    assert missing == ["content_id", "model_path"]


@pytest.mark.parametrize(
    ("instance", "changes", "part"),
    [
        ({}, {"image_digest": None}, "lacks image_digest"),
        ({"api_key": "k"}, {}, "lacks secrets_hmac"),
        ({}, {"secrets_hmac": HMAC}, "has no secrets"),
        ({}, {"image_digest": "latest"}, "seal.image_digest"),
        ({}, {"model_path": "/a b"}, "without spaces"),
        ({}, {"chat_template_digest": "sha256:" + "5" * 64}, "plan again"),
        ({}, {"plan": {"schema": "socle.plan/0"}}, "socle.plan/1"),
        ({}, {"digest": "x"}, "unknown key 'digest'"),
    ],
)
def test_a_bad_seal_is_told_in_one_sentence(request_of: Any, instance: Any, changes: Any, part: str) -> None:
    with pytest.raises(PlanError) as refused:
        seal(request_of(instance, **changes))
    assert part in refused.value.message
    assert len(refused.value.fields["errors"]) == 1


def test_a_sealed_plan_is_not_sealed_again(request_of: Any) -> None:
    sealed, _missing = seal(request_of())
    with pytest.raises(PlanError, match="sealed already"):
        seal(request_of(plan=sealed))
