# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.instances import withhold_secrets

from tests.unit.plan.conftest import knowledge

KEY = "sk-very-secret-0815"
PROMOTED = "small-chat--cpu/default"


def test_a_plan_says_everything(plan_one: Any) -> None:
    plan = plan_one({"port": 8003, "api_key": KEY, "slo": {"decode_tok_s": 50}})
    assert plan["argv"] == [
        *["/models/Small-Chat", "--host", "127.0.0.1", "--port", "8003", "--served-model-name", "small-chat"],
        *["--max-model-len", "4096", "--enable-prefix-caching", "--reasoning-parser", "qwen3"],
    ]
    assert plan["env"] == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": "/root/.cache/vllm",
        "VLLM_SKIP_P2P_CHECK": "1",
    }
    assert plan["model"]["container_path"] == "/models/Small-Chat"
    model, cache = plan["mounts"]
    assert (model["source"], model["read_only"]) == (None, True)
    assert cache["source"].startswith("/var/lib/socle/cache/") and len(cache["source"].rsplit("/", 1)[1]) == 12
    assert plan["secrets"] == [{"name": "api_key", "target": "VLLM_API_KEY"}]
    assert plan["api_key_required"] is True
    assert plan["slo"] == {"ttft_p50_ms": 1000, "decode_tok_s": 50}
    assert (plan["vllm_version"], plan["max_model_len"], plan["gpus"], plan["sealed"]) == ("0.26.0", 4096, [], False)
    assert plan["sources"]["max-model-len"] == {
        "value": 4096,
        "origin": "profiles/serving/small-chat--cpu.yml (default)",
        "evidence": {"source": "measured"},
    }
    assert plan["sources"]["reasoning-parser"]["origin"] == "profiles/models/small-chat.yml"


def test_no_instances_no_plans(plan_all: Any) -> None:
    assert plan_all({}).plans == {}
    assert plan_all(None).plans == {}


LAYERS = ["model", "class_data", "profile", "class", "promoted", "group", "host", "instance", "variant"]
ORIGINS = {
    "model": "profiles/models/small-chat.yml",
    "class_data": "profiles/host_classes/cpu.yml",
    "profile": "profiles/serving/small-chat--cpu.yml (default)",
    "class": "vllm_flags_class",
    "promoted": f"vllm_flags_promoted[{PROMOTED}]",
    "group": "vllm_flags_group",
    "host": "vllm_flags_host",
    "instance": "vllm_instances.chat.flags",
    "variant": "variant mtp-off",
}


@pytest.mark.parametrize("strongest", range(len(LAYERS)))
def test_a_stronger_layer_wins_and_is_named(
    strongest: int, plan_one: Any, documents: dict[str, dict[str, Any]]
) -> None:
    given = {name: {"max-num-seqs": position} for position, name in enumerate(LAYERS[: strongest + 1])}
    documents["profiles/models"]["small-chat"]["flags"] = given.get("model", {})
    documents["profiles/host_classes"]["cpu"]["flags"] = given.get("class_data", {})
    documents["profiles/serving"]["small-chat--cpu"]["profiles"]["default"]["flags"] = given.get("profile", {})
    documents["profiles/serving"]["small-chat--cpu"]["profiles"]["default"]["evidence"] = {}
    layers: dict[str, Any] = {name: given.get(name, {}) for name in ("class", "group", "host")}
    if "promoted" in given:
        layers["promoted"] = {PROMOTED: {"flags": given["promoted"], "evidence": {"experiment": "e1"}}}
    variant = {"name": "mtp-off", "flags": given["variant"]} if "variant" in given else None
    plan = plan_one({"flags": given.get("instance", {})}, layers=layers, variant=variant)
    source = plan["sources"]["max-num-seqs"]
    assert (source["value"], source["origin"]) == (strongest, ORIGINS[LAYERS[strongest]])
    assert source["evidence"] == ({"experiment": "e1"} if LAYERS[strongest] == "promoted" else None)


def test_a_variant_may_be_for_some_instances_only(plan_one: Any) -> None:
    for names, value in ((["chat"], "3"), (["other"], None)):
        plan = plan_one({}, variant={"name": "redeploy", "instances": names, "flags": {"max-num-seqs": 3}})
        source = plan["sources"].get("max-num-seqs", {})
        assert (source.get("origin") == "variant redeploy") is (value == "3")


@pytest.mark.parametrize(("instance", "value"), [({}, None), ({"drain_s": 60}, 60), ({"drain_s": 0}, 0)])
def test_the_time_to_drain_is_a_flag_of_the_engine(instance: dict[str, Any], value: int | None, plan_one: Any) -> None:
    plan = plan_one(instance)
    assert ("--shutdown-timeout" in plan["argv"]) is (value is not None)
    if value is not None:
        assert plan["sources"]["shutdown-timeout"]["value"] == value
        assert plan["sources"]["shutdown-timeout"]["origin"] == "vllm_instances.chat.drain_s"
    stronger = plan_one({**instance, "flags": {"shutdown-timeout": 7}})
    assert stronger["sources"]["shutdown-timeout"]["value"] == 7


def test_null_removes_and_an_opposite_replaces(plan_one: Any) -> None:
    plan = plan_one({"flags": {"reasoning-parser": None, "no-enable-prefix-caching": True}})
    assert "--reasoning-parser" not in plan["argv"]
    assert "--enable-prefix-caching" not in plan["argv"]
    assert "--no-enable-prefix-caching" in plan["argv"]
    back = plan_one({"profile": "safe", "flags": {"enable-prefix-caching": True}})
    assert "--no-enable-prefix-caching" not in back["argv"]
    assert back["sources"]["enable-prefix-caching"]["origin"] == "vllm_instances.chat.flags"


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("registry.example/vllm:v0.26.0-cu129", False),
        ("registry.example/vllm:0.26.0", False),
        ("registry.example:5000/vllm", False),
        ("registry.example/vllm:latest", False),
        ("registry.example/vllm:v0.26.0@sha256:" + "a" * 64, False),
        ("registry.example/vllm:20261130.1.2build", False),
        ("registry.example/vllm:v0.27.1", True),
        ("registry.example/vllm:v0.27.1@sha256:" + "a" * 64, True),
        ("registry.example/vllm:0.19.1-patched", True),
    ],
)
def test_an_image_of_another_version_than_the_profile_s_is_told(plan_one: Any, image: str, warned: bool) -> None:
    found = [warning for warning in plan_one({"image": image})["warnings"] if warning["id"] == "image-version"]
    assert bool(found) is warned
    if warned:
        assert found[0]["severity"] == "warning"
        assert image in found[0]["message"] and "vllm_version of profile default is 0.26.0" in found[0]["message"]


def test_promoted_settings_reach_only_their_profile(plan_one: Any) -> None:
    layers = {
        "promoted": {PROMOTED: {"image": "registry.example/vllm:v0.27.0", "env": {"A": 1}, "evidence": {"run": "r1"}}}
    }
    plan = plan_one(layers=layers)
    assert plan["image"] == "registry.example/vllm:v0.27.0"
    assert plan["image_source"] == {
        "value": "registry.example/vllm:v0.27.0",
        "origin": f"vllm_flags_promoted[{PROMOTED}]",
        "evidence": {"run": "r1"},
    }
    assert plan["env"]["A"] == "1"
    assert [warning["id"] for warning in plan["warnings"]] == ["image-override", "image-version"]
    assert plan_one({"profile": "safe"}, layers=layers)["image"] == "registry.example/vllm:v0.26.0"


@pytest.mark.parametrize(
    ("expose", "address", "host"),
    [("loopback", None, "127.0.0.1"), ("all", None, "0.0.0.0"), ("address", "192.0.2.7", "192.0.2.7")],
)
def test_expose_decides_the_listening_address(plan_one: Any, expose: str, address: str | None, host: str) -> None:
    plan = plan_one({"expose": expose}, address=address)
    assert plan["argv"][1:3] == ["--host", host]
    told = plan_one({"expose": expose}, address=address, knowledge=knowledge())["warnings"]
    assert [warning["id"] for warning in told] == ([] if expose == "loopback" else ["SOC-R80"])


def test_a_chat_template_is_mounted_by_content(plan_all: Any) -> None:
    result = plan_all({"chat": {"model": "small-chat", "chat_template": "mine.jinja"}})
    plan = result.plans["chat"]
    path = f"/var/lib/socle/chat_templates/{'ab' * 6}.jinja"
    assert plan["argv"][-4:-2] == ["--chat-template", "/etc/socle/chat_template.jinja"] or (
        "--chat-template" in plan["argv"]
    )
    assert plan["mounts"][-1] == {
        "source": path,
        "target": "/etc/socle/chat_template.jinja",
        "read_only": True,
        "kind": "chat_template",
    }
    assert plan["chat_template_digest"] == "sha256:" + "ab" * 32
    assert result.templates == [
        {"instance": "chat", "source": "/controller/mine.jinja", "target": path, "sha256": "ab" * 32}
    ]


def test_two_instances_share_the_gpus_of_a_host(plan_all: Any, facts: Any) -> None:
    plans = plan_all(
        {
            "a": {"model": "small-chat", "gpus": [0, 1], "port": 8003},
            "b": {"model": "small-chat", "gpus": ["GPU-00000002-aaaa", 3], "port": 8004},
        },
        facts=facts["gpu"],
        host_class="a800_pcie_80g",
    ).plans
    assert plans["a"]["gpus"] == [0, 1]
    assert plans["b"]["gpus"] == ["GPU-00000002-aaaa", 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"host_class": "cpu"}, "cpu"),
        ({"host_class": None, "group_names": ["all", "cpu", "paris"]}, "cpu"),
        ({"host_class": None, "group_names": ["paris"]}, "cpu"),
        ({"host_class": "cpu", "group_names": ["a800_pcie_80g"]}, "cpu"),
    ],
)
def test_the_class_comes_from_option_then_group_then_hardware(
    plan_all: Any, changes: dict[str, Any], expected: str
) -> None:
    assert plan_all({"chat": {"model": "small-chat"}}, **changes).host_class == expected


def test_a_cpu_class_on_a_gpu_host_is_a_warning(plan_one: Any, facts: Any) -> None:
    assert [warning["id"] for warning in plan_one(facts=facts["gpu"])["warnings"]] == ["gpus-unused"]


CHAT = {"model": "small-chat"}


@pytest.mark.parametrize(
    ("instances", "parts"),
    [
        ([], ["vllm_instances must be a map", "a list"]),
        ({"Chat": CHAT}, ["'Chat'", "lower-case"]),
        ({"-chat": CHAT}, ["'-chat'"]),
        ({"a" * 43: CHAT}, ["1 to 42"]),
        ({"chat": None}, ["vllm_instances.chat must be a map", "nothing (null)"]),
        ({"chat": {}}, ["lacks the key 'model'"]),
        ({"chat": {**CHAT, "gpu": [0]}}, ["unknown key 'gpu'", "did you mean 'gpus'"]),
        ({"chat": {**CHAT, "port": "80a"}}, ["chat.port", "1 to 65535", "'80a'"]),
        ({"chat": {**CHAT, "port": 0}}, ["the number 0"]),
        ({"chat": {**CHAT, "port": 65536}}, ["the number 65536"]),
        ({"chat": {**CHAT, "port": True}}, ["but is true"]),
        ({"chat": {**CHAT, "gpus": "0,1"}}, ["list of GPU indices", "[0, 1]"]),
        ({"chat": {**CHAT, "gpus": [-1]}}, ["gpus[0]", "UUID"]),
        ({"chat": {**CHAT, "gpus": [0]}}, ["names GPUs", "class cpu"]),
        ({"chat": {**CHAT, "served_names": []}}, ["at least one"]),
        ({"chat": {**CHAT, "served_names": ["a b"]}}, ["without spaces"]),
        ({"chat": {**CHAT, "served_names": ["$(id)"]}}, ["of letters, digits and . _ : / + @ -", "'$(id)'"]),
        ({"chat": {**CHAT, "served_names": ["-x"]}}, ["begins with none of : + @ -", "'-x'"]),
        ({"chat": {**CHAT, "image": "a b"}}, ["image reference of letters, digits", "without spaces"]),
        ({"chat": {**CHAT, "flags": None}}, ["chat.flags must be a map", "nothing (null)", "or leave it out for none"]),
        ({"chat": {**CHAT, "env": None}}, ["chat.env must be a map", "'NAME: value' lines, or leave it out for none"]),
        ({"chat": {**CHAT, "image": "a$b"}}, ["of letters, digits and . _ : / @ -"]),
        ({"chat": {**CHAT, "expose": "al"}}, ["loopback, address, all", "did you mean 'all'"]),
        ({"chat": {**CHAT, "expose": "address"}}, ["IP address", "nothing (null)"]),
        ({"chat": {**CHAT, "slo": {"ttft": "fast"}}}, ["slo.ttft must be a number"]),
        ({"chat": {**CHAT, "api_key": ""}}, ["chat.api_key", "withheld"]),
        ({"chat": {**CHAT, "api_key": [KEY]}}, ["chat.api_key", "withheld"]),
        ({"chat": {**CHAT, "api_key": KEY + "\n"}}, ["chat.api_key", "withheld"]),
        ({"chat": {**CHAT, "api_key": KEY + " x"}}, ["chat.api_key", "printable ASCII without spaces", "withheld"]),
        ({"chat": {**CHAT, "api_key": 12345}}, ["chat.api_key", "put it into quotes if it is a number", "withheld"]),
        ({"chat": {**CHAT, "api_key": KEY + "ü"}}, ["chat.api_key", "printable ASCII without spaces", "withheld"]),
        ({"chat": {**CHAT, "api_key": KEY + "\x7f"}}, ["chat.api_key", "withheld"]),
        ({"chat": {"model": "smal-chat"}}, ["no known model", "known: small-chat", "did you mean 'small-chat'"]),
        ({"chat": {**CHAT, "profile": "saef"}}, ["does not have", "default, safe", "did you mean 'safe'"]),
        ({"chat": {**CHAT, "flags": {"max-model-len": "long"}}}, ["number of tokens", "'long'"]),
        ({"a": CHAT, "b": CHAT}, ["port 8000", "a and b"]),
    ],
)
def test_bad_instances_are_told_in_one_sentence(errors_of: Any, instances: Any, parts: list[str]) -> None:
    errors = errors_of(instances)
    assert len(errors) == 1
    assert [part for part in parts if part not in errors[0]] == []
    assert KEY not in errors[0]


@pytest.mark.parametrize(
    ("instances", "changes", "parts"),
    [
        ({"a": {**CHAT, "gpus": [0, 9]}}, {}, ["GPU 9", "0, 1, 2, 3"]),
        ({"a": {**CHAT, "gpus": [0, "GPU-ffff"]}}, {}, ["GPU-ffff"]),
        ({"a": {**CHAT, "gpus": [0, 0]}}, {}, ["GPU 0 twice"]),
        ({"a": {**CHAT, "gpus": []}}, {}, ["a.gpus is empty"]),
        ({"a": CHAT}, {}, ["has 4 GPUs", "over 2"]),
        (
            {"a": {**CHAT, "gpus": [0, 1]}, "b": {**CHAT, "gpus": [1, 2], "port": 1}},
            {},
            ["GPU 1", "two instances, a and b"],
        ),
        (
            {"a": {**CHAT, "gpus": [0, 1]}, "b": {**CHAT, "gpus": ["GPU-00000001-aaaa", 2], "port": 1}},
            {},
            ["two instances, a and b"],
        ),
        (
            {"a": {**CHAT, "gpus": [0, 1], "flags": {"tensor-parallel-size": "2"}}},
            {},
            ["tensor-parallel-size must be a whole number"],
        ),
        ({"a": {**CHAT, "gpus": [0, 1]}}, {"facts": "cpu"}, ["a800_pcie_80g", "no NVIDIA GPU", "class cpu"]),
        ({"a": CHAT}, {"host_class": "a800"}, ["no known host class", "a800_pcie_80g, cpu, h200_sxm_141g"]),
        (
            {"a": CHAT},
            {"host_class": None, "group_names": ["cpu", "a800_pcie_80g"]},
            ["2 groups", "a800_pcie_80g, cpu"],
        ),
        ({"a": CHAT}, {"host_class": None, "facts": None}, ["no host class", "a800_pcie_80g, cpu, h200_sxm_141g"]),
        ({"a": CHAT}, {"facts": None}, ["a.gpus is not set"]),
    ],
)
def test_bad_hardware_is_told_in_one_sentence(
    errors_of: Any, facts: Any, instances: Any, changes: dict[str, Any], parts: list[str]
) -> None:
    settings = {"facts": "gpu", "host_class": "a800_pcie_80g", **changes}
    settings["facts"] = facts[settings["facts"]] if settings["facts"] else None
    errors = errors_of(instances, **settings)
    assert [part for part in parts if part not in errors[0]] == []


def test_another_product_than_the_class_is_refused(errors_of: Any, facts: Any) -> None:
    facts["gpu"]["gpus"][1]["product"] = "NVIDIA H200"
    errors = errors_of({"a": {**CHAT, "gpus": [0, 1]}}, facts=facts["gpu"], host_class="a800_pcie_80g")
    assert len(errors) == 1 and "NVIDIA H200" in errors[0] and "a800_pcie_80g" in errors[0]


def test_a_model_without_profile_for_the_class_is_refused(errors_of: Any, documents: Any) -> None:
    del documents["profiles/serving"]["small-chat--cpu"]
    (error,) = errors_of({"chat": CHAT})
    assert "host class cpu" in error and "a800_pcie_80g" in error and "small-chat--cpu.yml" in error


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"layers": {"class": {"max_num_seqs": 1}}}, ["vllm_flags_class", "write 'max-num-seqs'"]),
        ({"layers": {"host": {"port": 1}}}, ["vllm_flags_host.port"]),
        ({"layers": {"group": ["x"]}}, ["vllm_flags_group must be a map"]),
        ({"layers": {"grup": {}}}, ["unknown key 'grup'", "did you mean 'group'"]),
        ({"layers": {"promoted": {"default": {}}}}, ["'default'", "small-chat--cpu"]),
        ({"layers": {"promoted": {PROMOTED: {"flag": {}}}}}, ["unknown key 'flag'", "did you mean 'flags'"]),
        ({"variant": {"flags": {"X": 1}}}, ["variant.flags", "write 'x'"]),
    ],
)
def test_bad_layers_are_told_in_one_sentence(errors_of: Any, changes: dict[str, Any], parts: list[str]) -> None:
    errors = errors_of({"chat": CHAT}, **changes)
    assert len(errors) == 1
    assert [part for part in parts if part not in errors[0]] == []


def test_all_errors_are_told_together(errors_of: Any) -> None:
    errors = errors_of({"a": {"model": "nope"}, "b": {**CHAT, "port": 0}, "C": CHAT})
    assert len(errors) == 3


def test_the_key_is_nowhere(plan_all: Any) -> None:
    result = plan_all({"chat": {**CHAT, "api_key": KEY}})
    assert KEY not in json.dumps([result.plans, result.templates])


def test_the_order_of_writing_does_not_matter(plan_all: Any) -> None:
    one = {"model": "small-chat", "flags": {"a": {"x": 1, "y": 2}, "b": 2}, "env": {"A": 1, "B": 2}}
    two = {"env": {"B": 2, "A": 1}, "flags": {"b": 2, "a": {"y": 2, "x": 1}}, "model": "small-chat"}
    assert json.dumps(plan_all({"chat": one}).plans) == json.dumps(plan_all({"chat": two}).plans).replace(
        '{"y": 2, "x": 1}', '{"x": 1, "y": 2}'
    )


@pytest.mark.parametrize(("key", "word"), [(KEY, "withheld"), (None, None), ("", False), ([KEY], False)])
def test_a_key_is_taken_out_before_anything_else(key: Any, word: Any) -> None:
    written = {"chat": {**CHAT, "api_key": key}, "other": CHAT}
    taken_out = withhold_secrets(written)
    assert taken_out == {"chat": {**CHAT, "api_key": word}, "other": CHAT}
    assert withhold_secrets(taken_out) == taken_out
    assert written["chat"]["api_key"] == key


def test_another_number_of_gpus_than_the_profile_s_is_a_warning(plan_one: Any, facts: Any) -> None:
    changes = {"facts": facts["gpu"], "host_class": "a800_pcie_80g"}
    assert plan_one({"gpus": [0, 1]}, **changes)["warnings"] == []
    plan = plan_one({"gpus": [0], "flags": {"tensor-parallel-size": None}}, **changes)
    assert [warning["id"] for warning in plan["warnings"]] == ["gpu-count"]
