# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The example inventory against the commands of the reports that it reproduces, option by option."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.facts import check_facts, check_schema
from ansible_collections.socle.inference.plugins.module_utils._plan.models import leaves
from ansible_collections.socle.inference.plugins.module_utils._plan.present import plan_table
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request
from ansible_collections.socle.inference.plugins.module_utils._plan.resolve import resolve
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION, DataPath

from tests.unit.gpu.hosts import PRODUCTS, Host

EXAMPLE = COLLECTION / "inventories/example"
CATALOGUE = Catalogue(DataPath([]))
GIB = 1024**3

A100 = """
--runtime nvidia --gpus all --shm-size 16g --ipc host --restart unless-stopped -p 50600:8000
-v /data/models/Qwen3.6-27B:/models/Qwen3.6-27B:ro vllm/vllm-openai:v0.19.1
--model /models/Qwen3.6-27B --tensor-parallel-size 2 --max-model-len 131072 --max-num-seqs 2
--gpu-memory-utilization 0.92 --language-model-only --reasoning-parser qwen3 --enable-prefix-caching
--speculative-config '{"method":"qwen3_next_mtp","num_speculative_tokens":2}'
"""
A100_ROUND_1 = A100 + "--kv-cache-dtype fp8"
RTX = """
--host 0.0.0.0 --port 8000 --served-model-name Qwen3.6-27B-MTP --gpu-memory-utilization {utilization}
--kv-cache-dtype fp8_e4m3 --max-num-seqs 32 --max-num-batched-tokens {batched} --enable-prefix-caching
--enable-chunked-prefill --mm-processor-cache-type shm --limit-mm-per-prompt '{{"image": 32}}'
--trust-remote-code --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser {parser}
--tensor-parallel-size 1 {more}
"""
RTX_FINAL = RTX.format(utilization="0.55", batched=16384, parser="qwen3_xml", more="--dtype bfloat16")
RTX_FIRST = RTX.format(
    utilization="0.60",
    batched=10240,
    parser="qwen3_coder",
    more="""--speculative-config '{"method":"mtp","num_speculative_tokens":3}'""",
)
A800 = """
--gpus device=0,1 --ipc host --shm-size 16g -p {port}:{port} -v /shared/models/{served}:/model-qwen38
-e CUDA_DEVICE_ORDER=PCI_BUS_ID vllm/vllm-openai:v0.26.0
--host 0.0.0.0 --port {port} --served-model-name {served} --tensor-parallel-size 2 --max-model-len 262144
--gpu-memory-utilization 0.95 --trust-remote-code --enable-prefix-caching --enable-chunked-prefill
--watermark 0.1 --max-num-batched-tokens 8192 --max-num-seqs 256 --enable-auto-tool-choice
--tool-call-parser qwen3_coder --reasoning-parser qwen3 --kv-cache-dtype fp8
--speculative-config '{{"method":"mtp","num_speculative_tokens":3}}'
"""
A800_BF16 = A800.format(port=8003, served="Qwen3.8-27B")
A800_FP8 = A800.format(port=8004, served="Qwen3.8-27B-FP8")

SYSTEMS = [
    ("a100-1", "chat", "default", A100),
    ("a100-1", "chat", "round-1", A100_ROUND_1),
    ("a100-1", "chat", "context-200k", A100),
    ("a100-1", "chat", "context-256k", A100),
    ("a100-1", "chat", "low-utilization", A100),
    ("a100-1", "chat", "mtp-4", A100),
    ("a100-1", "chat", "safe", A100),
    ("rtx-1", "home", "default", RTX_FINAL),
    ("rtx-1", "home", "mtp", RTX_FIRST),
    ("rtx-1", "home", "strict-tools", RTX_FINAL),
    ("rtx-1", "home", "safe", RTX_FINAL),
    ("a800-1", "agents", "default", A800_BF16),
    ("a800-1", "agents", "mtp-off", A800_BF16),
    ("a800-1", "agents", "low-utilization", A800_BF16),
    ("a800-1", "agents", "yarn-512k", A800_BF16),
    ("a800-1", "agents", "yarn-1m", A800_BF16),
    ("a800-1", "agents", "effort-aliases", A800_BF16),
    ("a800-1", "agents", "safe", A800_BF16),
    ("a800-1", "agents-fp8", "default", A800_FP8),
    ("a800-1", "agents-fp8", "mtp-off", A800_FP8),
    ("a800-1", "agents-fp8", "safe", A800_FP8),
]
ADDRESSES = {"a100-1": "192.0.2.10", "a800-1": "192.0.2.20", "rtx-1": "192.0.2.30"}
CLASSES = {"a100-1": "a100_sxm4_80g", "a800-1": "a800_pcie_80g", "rtx-1": "rtx_pro_6000"}

NOT_OF_THE_ENGINE = {"-v", "-e", "-p", "--gpus", "--shm-size", "--ipc", "--runtime", "--restart"}
"""Options of docker run, which the plan answers by mounts, env, gpus, shm_size_bytes and the unit."""


def instances_of(host: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((EXAMPLE / f"host_vars/{host}.yml").read_text(encoding="utf-8"))
    return dict(content["vllm_instances"])


def facts_of(host: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((EXAMPLE / f".facts/{host}.json").read_text(encoding="utf-8"))
    return dict(content["gpu_facts"])


def plan(host: str, instance: str, profile: str | None = None, **changes: Any) -> dict[str, Any]:
    instances = instances_of(host)
    instances[instance].update(changes)
    if profile:
        instances[instance]["profile"] = profile
    request = Request(
        host=host,
        instances=instances,
        facts=facts_of(host),
        group_names=[CLASSES[host]],
        address=ADDRESSES[host],
    )
    return resolve(request, CATALOGUE, lambda name: pytest.fail(f"{name} is no template")).plans[instance]


def options(words: list[str]) -> dict[str, Any]:
    """Words as {option: value}; true for an option alone, and JSON as what it means."""
    found: dict[str, Any] = {}
    for word in words:
        if word.startswith("-"):
            found[last := word] = True
        elif found:
            try:
                found[last] = json.loads(word)
            except ValueError:
                found[last] = word
    return found


def document_of(text: str) -> dict[str, Any]:
    """The options of a report's command; the image stands between those of the container and those of the engine."""
    words = shlex.split(text)
    image = next((number for number, word in enumerate(words) if word.startswith("vllm/")), 0)
    return {**options(words[:image]), **options(words[image + bool(image) :])}


@pytest.mark.parametrize(("host", "instance", "profile", "command"), SYSTEMS)
def test_a_plan_is_the_document_s_command_but_for_what_it_explains(
    host: str, instance: str, profile: str, command: str
) -> None:
    made = plan(host, instance, profile)
    document = document_of(command)
    planned = options(made["argv"])
    explained = {change["option"] for change in made["changes"]}
    engine = {name: value for name, value in document.items() if name not in NOT_OF_THE_ENGINE}
    differing = {
        *(name for name, value in engine.items() if planned.get(name) != value),
        *(name for name in planned if name not in engine),
    }
    # The port is that of the document, though in one of them it was only the published one.
    if "--port" not in engine:
        assert planned["--port"] == int(document["-p"].partition(":")[0])
        differing.discard("--port")
    differing |= {f"--{name}" for name in ("ipc", "runtime", "restart") if f"--{name}" in document}
    differing |= {"-p"} & set(document)
    own = {"--gpus", "-v", "vllm", "GPUS", "MODEL_HOST_PATH", "VLLM_ENGINE_READY_TIMEOUT_S"}
    off = {f"--no-{name[2:]}" for name in explained if f"--no-{name[2:]}" in planned}
    assert differing - off == explained - own - set(made["env"])
    assert all(change["reason"] and change["source"] for change in made["changes"])


@pytest.mark.parametrize(("host", "instance", "profile", "command"), SYSTEMS)
def test_what_is_no_flag_is_the_document_s_as_well(host: str, instance: str, profile: str, command: str) -> None:
    made = plan(host, instance, profile)
    document = document_of(command)
    if "--shm-size" in document:
        assert made["shm_size_bytes"] == 16 * GIB
    if "-e" in document:
        name, _equals, value = document["-e"].partition("=")
        assert made["env"][name] == value
    explained = {change["option"] for change in made["changes"]}
    assert {name for name in made["env"] if name not in CATALOGUE.engine().env} - {"VLLM_CACHE_ROOT"} == {
        *(name for name in explained if not name.startswith("-") and name.isupper() and name in made["env"]),
        *([document["-e"].partition("=")[0]] if "-e" in document else []),
    }
    image = next((word for word in shlex.split(command) if word.startswith("vllm/")), "vllm/vllm-openai:v0.23.0")
    assert made["image"] == f"docker.io/{image}"
    assert made["image"].endswith(f":v{made['vllm_version']}")


@pytest.mark.parametrize(
    ("host", "instance", "served", "port", "gpus"),
    [
        ("a100-1", "chat", ["/models/Qwen3.6-27B"], 50600, [0, 1]),
        ("rtx-1", "home", ["Qwen3.6-27B-MTP"], 8000, [0]),
        ("a800-1", "agents", ["Qwen3.8-27B"], 8003, [0, 1]),
        ("a800-1", "agents-fp8", ["Qwen3.8-27B-FP8"], 8004, [6, 7]),
    ],
)
def test_clients_find_what_they_know(host: str, instance: str, served: list[str], port: int, gpus: list[int]) -> None:
    made = plan(host, instance)
    assert (made["served_names"], made["port"], made["gpus"]) == (served, port, gpus)
    assert made["warnings"] == []


def test_contexts_are_those_of_the_reports() -> None:
    wanted = {
        ("a100-1", "chat", "default"): 131072,
        ("a100-1", "chat", "context-200k"): 204800,
        ("a100-1", "chat", "context-256k"): 262144,
        ("rtx-1", "home", "default"): 262144,
        ("a800-1", "agents", "default"): 262144,
        ("a800-1", "agents", "yarn-512k"): 524288,
        ("a800-1", "agents", "yarn-1m"): 1000000,
    }
    assert {key: plan(*key)["max_model_len"] for key in wanted} == wanted


def test_yarn_scales_the_positions_of_the_model_file() -> None:
    extension = CATALOGUE.model("qwen3.8-27b").context.extension["rope_parameters"]
    for profile, factor in (("yarn-512k", 2.0), ("yarn-1m", 4.0)):
        made = plan("a800-1", "agents", profile)
        scaled = made["sources"]["hf-overrides"]["value"]["text_config"]["rope_parameters"]
        assert scaled == {**extension, "factor": factor}
        assert made["max_model_len"] <= factor * extension["original_max_position_embeddings"]


@pytest.mark.parametrize("name", CATALOGUE.serving_names())
def test_every_model_can_be_served_safely(name: str) -> None:
    serving = CATALOGUE.serving(*name.split("--"))
    safe = {flag: value for flag, value in serving.profiles["safe"].flags.items() if value is not None}
    assert safe["no-enable-prefix-caching"] is True
    assert not {"speculative-config", "enable-prefix-caching"} & set(safe)
    recommended = serving.profiles[serving.recommended]
    assert serving.profiles["safe"].vllm_version == recommended.vllm_version


@pytest.mark.parametrize("name", CATALOGUE.serving_names())
def test_parsers_are_those_of_the_model_in_that_version(name: str) -> None:
    model = CATALOGUE.model(name.partition("--")[0])
    for profile in CATALOGUE.serving(*name.split("--")).profiles.values():
        assert model.flags.get("reasoning-parser") == model.reasoning_parser(profile.vllm_version)
        if "tool-call-parser" in profile.flags:
            assert profile.flags["tool-call-parser"] in model.tool_parser_names(profile.vllm_version)


@pytest.mark.parametrize("name", CATALOGUE.model_names())
def test_every_figure_of_a_model_has_evidence(name: str) -> None:
    _origin, content = DataPath([]).read("profiles/models", name)
    named = {"name", "description", "family", "hub", "repo", "revision", "served_name", "evidence"}
    known = set(content["evidence"])
    for path in leaves({key: value for key, value in content.items() if key not in named}):
        if path.startswith("flags."):
            assert path.removeprefix("flags.") in known, path
        else:
            parts = path.split(".")
            assert any(".".join(parts[:count]) in known for count in range(1, len(parts) + 1)), path


def test_a_profile_with_effort_aliases_plans_a_template_that_knows_them() -> None:
    made = plan("a800-1", "agents", "effort-aliases")
    assert made["effort_aliases"] == {
        "high": "xhigh",
        "ultra": "xhigh",
        "max": "xhigh",
        "minimal": "low",
        "none": "none",
    }
    assert made["chat_template_overlay"] == {"levels": ["xhigh", "medium", "low"], "aliases": made["effort_aliases"]}
    assert "effort-aliases" not in [warning["id"] for warning in made["warnings"]]
    assert plan("a800-1", "agents")["effort_aliases"] is None


def test_the_table_shows_the_command_and_why_it_is_another() -> None:
    lines = plan_table(plan("a100-1", "chat"))
    start = lines.index("  command")
    command = "\n".join(lines[start + 1 : lines.index("  changed from report A100, variant R2-A1")])
    # As a shell reads it, and shlex does not: a line that ends in a backslash goes on.
    assert shlex.split(command.replace("\\\n", " ")) == ["vllm", "serve", *plan("a100-1", "chat")["argv"]]
    table = "\n".join(lines)
    assert "    --ipc host -> a private namespace with 16 GiB of shared memory\n" in table
    assert '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2} -> {"method": "mtp"' in table


def test_text_fits_a_narrow_terminal() -> None:
    for host, instance in (("a100-1", "chat"), ("a800-1", "agents"), ("rtx-1", "home")):
        wide = [line for line in plan_table(plan(host, instance), notes=True, width=79) if len(line) > 79]
        # Values, paths and commands, to be copied.
        assert [line for line in wide if not line.startswith(("    --", "    -v", "    vllm serve", "  model "))] == []


@pytest.mark.parametrize("host", sorted(ADDRESSES))
def test_facts_that_were_built_by_hand_say_so_and_have_every_key(host: str, tmp_path: Path) -> None:
    content = json.loads((EXAMPLE / f".facts/{host}.json").read_text(encoding="utf-8"))
    assert content["built_by_hand"].startswith("From report ")
    facts = content["gpu_facts"]
    check_schema(facts)
    check_facts(facts)
    gathered = Host(tmp_path)
    gathered.gpus(PRODUCTS["a800_pcie"], 2, driver="nvidia")
    gathered.drive(PRODUCTS["a800_pcie"], 2)
    real = gathered.facts()
    assert set(facts) == set(real)
    assert all(set(gpu) == set(real["gpus"][0]) for gpu in facts["gpus"])
    assert len(facts["links"]) == len(facts["gpus"]) * (len(facts["gpus"]) - 1) // 2


def test_addresses_are_of_the_range_for_documents() -> None:
    hosts = (EXAMPLE / "hosts.yml").read_text(encoding="utf-8")
    assert all(f"ansible_host: {address}\n" in hosts for address in ADDRESSES.values())


def test_the_playbook_plans_all_hosts_without_asking_any() -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("playbooks/plan.yml", "-i", EXAMPLE, "-e", "ansible_ssh_executable=/bin/false"),
        ],
        cwd=COLLECTION,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(COLLECTION / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for line in (
        "a100-1 chat: qwen3.6-27b on a100_sxm4_80g, profile default, vLLM 0.19.1",
        "rtx-1 home: qwen3.6-27b-nvfp4 on rtx_pro_6000, profile default, vLLM 0.23.0",
        "a800-1 agents: qwen3.8-27b on a800_pcie_80g, profile default, vLLM 0.26.0",
        "a800-1 agents-fp8: qwen3.8-27b-fp8 on a800_pcie_80g, profile default, vLLM 0.26.0",
    ):
        assert line in done.stdout
