# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Effort aliases in a plan: who asks for them, by what means they come, and how they are sealed."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.present import plan_table
from ansible_collections.socle.inference.plugins.module_utils._plan.seal import seal

ALIASES = {"high": "xhigh", "ultra": "xhigh", "minimal": "low", "none": "none"}
TARGET = "/etc/socle/chat_template.jinja"
DIGEST = "sha256:" + "4" * 64
PATH = "/var/lib/socle/chat_templates/444444444444.jinja"


@pytest.fixture(autouse=True)
def levels(documents: dict[str, dict[str, Any]]) -> None:
    documents["profiles/models"]["small-chat"]["effort"] = {
        "levels": ["xhigh", "medium", "low"],
        "default": "xhigh",
        "aliases": {"xhigh": ALIASES, "medium": {**ALIASES, "high": "medium"}},
    }


@pytest.fixture
def profile(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    profiles: dict[str, Any] = documents["profiles/serving"]["small-chat--cpu"]["profiles"]
    return profiles.setdefault("default", {})


def effort_line(plan: dict[str, Any]) -> list[str]:
    return [line for line in plan_table(plan) if line.startswith("  effort  ")]


@pytest.mark.parametrize(
    ("version", "own", "raised", "means"),
    [
        ("0.26.0", {}, "high, ultra", "by a chat template made of the model's own"),
        ("0.33.0", {}, "high", "by --reasoning-effort-map"),
        ("0.26.0", {"chat_template": "mine.jinja"}, "high, ultra", "where the instance's own chat template knows them"),
    ],
)
def test_the_table_says_in_one_line_what_becomes_of_other_levels(
    plan_one: Any, profile: dict[str, Any], version: str, own: dict[str, Any], raised: str, means: str
) -> None:
    profile["vllm_version"] = version
    plan = plan_one({"effort_aliases": "xhigh", **own})
    assert effort_line(plan) == [f"  effort  {raised} -> xhigh; minimal -> low; none -> off ({means})"]
    assert effort_line(plan_one()) == []


def mount_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [mount for mount in plan["mounts"] if mount["kind"] == "chat_template"]


def test_without_aliases_the_engine_takes_the_model_s_own_template(plan_one: Any) -> None:
    plan = plan_one()
    assert (plan["effort_aliases"], plan["chat_template_overlay"], mount_of(plan)) == (None, None, [])
    assert "--chat-template" not in plan["argv"]


def test_an_instance_asks_for_a_set_by_its_name(plan_one: Any) -> None:
    plan = plan_one({"effort_aliases": "medium"})
    assert plan["effort_aliases"]["high"] == "medium"
    assert plan["chat_template_overlay"] == {"levels": ["xhigh", "medium", "low"], "aliases": plan["effort_aliases"]}
    assert plan["argv"][plan["argv"].index("--chat-template") + 1] == TARGET
    assert mount_of(plan) == [{"source": None, "target": TARGET, "read_only": True, "kind": "chat_template"}]
    assert plan["sources"]["chat-template"]["origin"] == "vllm_instances.chat.effort_aliases"


def test_an_instance_can_leave_out_what_its_profile_has(plan_one: Any, profile: dict[str, Any]) -> None:
    profile["effort_aliases"] = "xhigh"
    assert plan_one()["chat_template_overlay"] is not None
    off = plan_one({"effort_aliases": False})
    assert (off["effort_aliases"], off["chat_template_overlay"]) == (None, None)


def test_from_0_33_the_engine_s_own_map_does_it(plan_one: Any, profile: dict[str, Any]) -> None:
    profile["vllm_version"] = "0.33.0"
    plan = plan_one({"effort_aliases": "xhigh"})
    word = plan["argv"][plan["argv"].index("--reasoning-effort-map") + 1]
    assert word == '{"high":"xhigh","minimal":"low"}'
    assert (plan["chat_template_overlay"], mount_of(plan)) == (None, [])
    assert [warning["severity"] for warning in plan["warnings"] if warning["id"] == "effort-aliases"] == ["info"]


def test_a_map_that_somebody_wrote_stays(plan_one: Any, profile: dict[str, Any]) -> None:
    profile["vllm_version"] = "0.33.0"
    plan = plan_one({"effort_aliases": "xhigh", "flags": {"reasoning-effort-map": {"high": "low"}}})
    assert plan["argv"][plan["argv"].index("--reasoning-effort-map") + 1] == '{"high":"low"}'


@pytest.mark.parametrize("own", [{"chat_template": "mine.jinja"}, {"flags": {"chat-template": "/x.jinja"}}])
def test_a_template_of_the_user_is_left_alone(plan_one: Any, own: dict[str, Any]) -> None:
    plan = plan_one({"effort_aliases": "xhigh", **own})
    assert plan["chat_template_overlay"] is None
    assert plan["effort_aliases"] == ALIASES
    assert len(mount_of(plan)) == ("chat_template" in own)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("xhig", "did you mean 'xhigh'?"),
        (True, "or false for none"),
        ("", "or false for none"),
        (3, "or false for none"),
    ],
)
def test_a_set_that_is_not_there_is_refused(errors_of: Any, value: Any, said: str) -> None:
    (sentence,) = errors_of({"chat": {"model": "small-chat", "effort_aliases": value}})
    assert "vllm_instances.chat.effort_aliases" in sentence
    assert said in sentence


def sealed(plan: dict[str, Any], **changes: Any) -> tuple[dict[str, Any], list[str]]:
    return seal(
        {
            "plan": plan,
            "image_digest": "sha256:" + "1" * 64,
            "content_id": "sha256:" + "2" * 64,
            "model_path": "/var/lib/socle/models/m",
            "chat_template_digest": DIGEST,
            "chat_template_path": PATH,
            **changes,
        }
    )


def test_sealing_fills_in_the_template_that_was_made(plan_one: Any) -> None:
    plan, missing = sealed(plan_one({"effort_aliases": "xhigh"}))
    assert (plan["sealed"], missing, plan["chat_template_digest"]) == (True, [], DIGEST)
    assert mount_of(plan)[0]["source"] == PATH


def test_another_template_is_another_launch(plan_one: Any) -> None:
    one = sealed(plan_one({"effort_aliases": "xhigh"}))[0]
    other = sealed(plan_one({"effort_aliases": "xhigh"}), chat_template_digest="sha256:" + "5" * 64)[0]
    assert one["launch_fingerprint"] != other["launch_fingerprint"]


def test_a_plan_whose_template_was_not_made_is_not_sealed(plan_one: Any) -> None:
    plan = plan_one({"effort_aliases": "xhigh"})
    with pytest.raises(PlanError, match="lacks chat_template_digest, chat_template_path"):
        sealed(plan, chat_template_digest=None, chat_template_path=None)
    found, missing = sealed(plan, chat_template_digest=None, chat_template_path=None, allow_missing=True)
    assert (found["sealed"], missing) == (False, ["chat_template_digest", "chat_template_path"])


def test_a_template_at_a_place_that_no_unit_can_mount_is_refused(plan_one: Any) -> None:
    with pytest.raises(PlanError, match=r"seal\.chat_template_path is '/a:b', which a unit cannot mount from"):
        sealed(plan_one({"effort_aliases": "xhigh"}), chat_template_path="/a:b")
