# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan says of files that flags name, and that are perhaps not in the container."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.conftest import knowledge

ID = "SOC-F19"
MODEL = "/models/Small-Chat"
CACHE = "/root/.cache/vllm"
ADAPTER = {"lora-modules": [f"a={MODEL}/a"], "enable-lora": True}


def found(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in plan["findings"] if finding["id"] == ID]


@pytest.mark.parametrize(
    "instance",
    [
        {},
        {"flags": {"chat-template": "{{ messages[0].content }}"}},
        {"flags": {"chat-template": f"{MODEL}/chat_template.jinja"}},
        {"flags": {"chat-template": "template_chatml.jinja"}},
        {"flags": {"tool-parser-plugin": f"{CACHE}/plugins/../plugins/parser.py"}},
        {"flags": {"tokenizer": MODEL, "hf-config-path": f"{MODEL}/"}},
        {"flags": {"generation-config": "vllm"}},
        {"flags": {"speculative-config": {"method": "ngram", "model": "ngram", "num_speculative_tokens": 2}}},
        {"flags": {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}},
        {"flags": ADAPTER},
        {"chat_template": "mine.jinja"},
        {"flags": {"allowed-local-media-path": "/models"}},
        {"flags": {"allowed-local-media-path": "/etc/socle"}, "chat_template": "mine.jinja"},
        {"env": {"HF_HUB_OFFLINE": "0"}, "flags": {"tokenizer": "org/Other"}},
        {"env": {"VLLM_NCCL_SO_PATH": "/usr/lib/libnccl.so.2"}},
    ],
)
def test_what_a_mount_has_or_is_no_path_is_not_told(plan_one: Any, instance: Any) -> None:
    assert found(plan_one(instance, knowledge=knowledge())) == []


@pytest.mark.parametrize(
    ("instance", "where", "said"),
    [
        ({"flags": {"chat-template": "/templates/x.jinja"}}, "chat-template", "so that only the image can hold it"),
        (
            {"flags": {"chat-template": "examples/tool_chat_template_hermes.jinja"}},
            "chat-template",
            "in its working folder, or among vLLM's own templates",
        ),
        ({"flags": {"chat-template": "mine.jinja"}}, "chat-template", "'mine.jinja', which only the image can hold"),
        ({"flags": {"tool-parser-plugin": "/plugins/p.py"}}, "tool-parser-plugin", "where the plan mounts nothing"),
        ({"flags": {"tool-parser-plugin": "~/p.py"}}, "tool-parser-plugin", "in its working folder: the plan mounts"),
        ({"flags": {"reasoning-parser-plugin": f"{MODEL}-other/p.py"}}, "reasoning-parser-plugin", "mounts nothing"),
        ({"flags": {"tokenizer": f"{MODEL}/../Other"}}, "tokenizer", "where the plan mounts nothing"),
        (
            {"flags": {"tokenizer": "org/Other"}},
            "tokenizer",
            "the name of a model on a hub, from which the engine takes",
        ),
        ({"flags": {"hf-config-path": "/models/Other"}}, "hf-config-path", "mounts nothing"),
        ({"flags": {"generation-config": "./mine"}}, "generation-config", "in its working folder"),
        (
            {"flags": {"structured-outputs-config": {"reasoning_parser_plugin": "/p.py"}}},
            "structured-outputs-config.reasoning_parser_plugin",
            "mounts nothing",
        ),
        (
            {
                "flags": {
                    "speculative-config": {"method": "eagle3", "model": "/models/Draft", "num_speculative_tokens": 2}
                }
            },
            "speculative-config.model",
            "where the plan mounts nothing",
        ),
        (
            {
                "flags": {
                    "speculative-config": '{"method": "eagle3", "model": "org/Draft", "num_speculative_tokens": 2}'
                }
            },
            "speculative-config.model",
            "the name of a model on a hub",
        ),
        ({"flags": {**ADAPTER, "lora-modules": ["a=/adapters/a"]}}, "lora-modules", "'/adapters/a', where"),
        (
            {"flags": {**ADAPTER, "lora-modules": [{"name": "a", "path": "/adapters/a"}]}},
            "lora-modules",
            "'/adapters/a', where",
        ),
        ({"env": {"VLLM_LOGGING_CONFIG_PATH": "/log.json"}}, "VLLM_LOGGING_CONFIG_PATH", "mounts nothing"),
    ],
)
def test_what_only_an_image_can_hold_is_a_warning(plan_one: Any, instance: Any, where: str, said: str) -> None:
    plan = plan_one(instance, knowledge=knowledge())
    (told,) = found(plan)
    assert (told["severity"], told["subject"]) == ("warning", where)
    assert told["sentence"].startswith(f"'{where}' is ") and said in told["sentence"]
    assert [warning["id"] for warning in plan["warnings"] if warning["id"] == ID] == [ID]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"chat-template": "/etc/socle/chat_template.jinja"}, "where the container has only what the plan mounts"),
        ({"chat-template": "/etc/socle/other.jinja"}, "set chat_template of the instance to the file"),
        ({"chat-template": "/var/lib/socle/chat_templates/abc.jinja"}, "a path of the host, of which the container"),
        ({"tool-parser-plugin": "/var/lib/socle/plugins/p.py"}, "a path of the host, of which the container"),
        ({"tokenizer": "/var/lib/socle/models/org--Other"}, f"name a file of the model's folder {MODEL}"),
    ],
)
def test_what_no_image_has_is_refused(errors_of: Any, flags: Any, said: str) -> None:
    (told,) = errors_of({"chat": {"model": "small-chat", "flags": flags}}, knowledge=knowledge())
    assert told.startswith("vllm_instances.chat: ") and f"({ID}, which" in told and said in told


def test_the_state_folder_is_the_one_of_the_host(errors_of: Any) -> None:
    instances = {"chat": {"model": "small-chat", "flags": {"chat-template": "/data/socle/x.jinja"}}}
    (told,) = errors_of(instances, state_dir="/data/socle", knowledge=knowledge())
    assert ID in told


def test_who_knows_the_image_passes_it_over(plan_one: Any) -> None:
    flags = {"chat-template": "/vllm-workspace/examples/tool_chat_template_hermes.jinja"}
    plan = plan_one({"flags": flags}, knowledge=knowledge(SOC_F19="it is in our image"))
    assert [finding["severity"] for finding in found(plan)] == ["note"]


def test_a_flag_that_the_version_does_not_have_is_told_once(errors_of: Any) -> None:
    told = errors_of(
        {"chat": {"model": "small-chat", "flags": {"tokenizer": ["/models/Other"]}}}, knowledge=knowledge()
    )
    assert [ID in one for one in told] == [False]
