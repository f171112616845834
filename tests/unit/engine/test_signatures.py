# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What real start-up logs are taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.signatures import SIGNATURES, Reader, diagnose

FIXTURES = Path(__file__).parent / "fixtures"

GOOD = ["startup-gpu-v0.26.0.log", "startup-gpu-fp8-eager-v0.26.0.log", "startup-cpu-v0.32.0.log"]

MESSAGES = {
    "unknown_flag": "vllm serve: error: unrecognized arguments: --no-such-flag",
    "bad_flag_value": "vllm serve: error: argument --dtype: invalid choice: 'x' (choose from x)",
    "speculative_config": "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig",
    "tool_parser": "KeyError: 'invalid tool call parser: hermez (chose from { hermes })'",
    "reasoning_parser": "KeyError: \"Reasoning parser 'x' not found.\"",
    "tool_parser_missing": "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser",
    "chat_template": "ValueError: The supplied chat template string (/x.jinja) appears path-like, but doesn't exist!",
    "model_path": "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
    "weights_missing": "RuntimeError: Cannot find any model weights with `/models/X`",
    "architecture": "ValueError: Model architectures ['X'] failed to be inspected. Please check the logs",
    "max_model_len": "Value error, User-specified max_model_len (9999) is greater than the derived max_model_len (1)",
    "no_cache_memory": "ValueError: No available memory for the cache blocks. Try increasing",
    "cache_too_small": (
        "ValueError: To serve at least one request with the models's max seq len (262144), (16.0 GiB KV cache is needed"
        ", which is larger than the available KV cache memory (7.5 GiB). Based on the available memory, the estimated"
        " maximum model length is 122880."
    ),
    "load_memory": "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
    "mamba_block": (
        "AssertionError: In Mamba cache align mode, block_size (1600) must be <= max_num_batched_tokens (1024)"
    ),
    "port_taken": "OSError: [Errno 98] Address already in use",
    "no_device": "RuntimeError: Failed to infer device type, please set the environment variable",
    "gpu_missing": (
        "error: nvidia-smi does not list GPU 0, which chat needs, but says: Failed to initialize NVML: Driver/library"
        " version mismatch NVML library version: 580.126"
    ),
    "cdi": "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=7",
    "cdi_off": 'docker: Error response from daemon: could not select device driver "cdi" with capabilities: [].',
    "secret_missing": 'Error: no secret with name or id "socle-chat-api_key": no such secret',
    "mount_missing": "Error: statfs /var/lib/socle/models/x: no such file or directory",
    "limits": (
        "docker: Error response from daemon: failed to create task for container: failed to create shim task:"
        " OCI runtime create failed: runc create failed: unable to start container process: error during container"
        " init: error setting rlimits for ready process: error setting rlimit type 8: operation not permitted: unknown."
    ),
    "docker_daemon": (
        "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?."
    ),
    "driver_old": "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
    "fabric_manager": "RuntimeError: CUDA error: Error 802: system not yet initialized",
    "engine_timeout": "TimeoutError: Timed out waiting for engine core processes to start.",
    "engine_failed": "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
}


def read(name: str) -> list[str]:
    return (FIXTURES / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", GOOD)
def test_a_good_start_has_no_diagnosis(name: str) -> None:
    assert diagnose(read(name)) is None


def test_memory_taken_by_others_is_named_with_its_numbers() -> None:
    found = diagnose(read("startup-free-memory-v0.26.0.log"))
    assert found is not None and found.id == "free_memory"
    assert "84.78 of 139.8 GiB" in found.sentence and "0.95 needs 132.81 GiB" in found.sentence
    assert found.line is not None and found.line.startswith("ValueError: Free memory on device cuda:0")


@pytest.mark.parametrize(("expected", "message"), MESSAGES.items())
def test_each_message_has_its_diagnosis(expected: str, message: str) -> None:
    found = diagnose(
        ["INFO 11-30 08:00:00 [x.py:1] something", f"(EngineCore pid=7) ERROR 11-30 08:00:01 [core.py:9] {message}"]
    )
    assert found is not None and found.id == expected
    assert "{" not in found.sentence + found.remedy
    assert found.line == message


PROMPTS = [
    "INFO 11-30 08:00:01 [logger.py:39] Received request cmpl-1: prompt: '{}', params: SamplingParams(n=1)",
    "(APIServer pid=2) INFO 11-30 08:00:01 [logger.py:39] {}",
    "(APIServer pid=2) WARNING 11-30 08:00:01 [serving.py:9] {}",
    "(EngineCore pid=7) DEBUG 11-30 08:00:01 [core.py:9] {}",
    '(APIServer pid=2) INFO:     127.0.0.1:5 - "GET /v1/{} HTTP/1.1" 404 Not Found',
    "non-default args: {{'model': '{}'}}",
    "prompt: {}",
]


@pytest.mark.parametrize("form", PROMPTS)
@pytest.mark.parametrize("message", MESSAGES.values())
def test_what_a_user_sends_is_no_diagnosis(form: str, message: str) -> None:
    reader = Reader()
    reader.feed(form.format(message))
    assert reader.fatal is None and reader.first_error is None


@pytest.mark.parametrize(("expected", "message"), MESSAGES.items())
@pytest.mark.parametrize(
    "prefix", ["", "(APIServer pid=7) ", "(Worker_TP0 pid=7) [rank0]: ", "(EngineCore_DP0 pid=7)   "]
)
def test_errors_without_a_level_are_known_by_how_they_begin(prefix: str, expected: str, message: str) -> None:
    found = diagnose([prefix + message])
    assert found is not None and found.id == expected


def test_errors_of_other_writers_are_known() -> None:
    taken = "(APIServer pid=2) ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000)"
    podman = 'time="2026-11-30T08:00:00Z" level=error msg="unresolvable CDI devices nvidia.com/gpu=7"'
    torch = (
        "(APIServer pid=2) /usr/lib/python3/torch/cuda/__init__.py:174: UserWarning: CUDA initialization: Unexpected"
        " error from cudaGetDeviceCount(). Error 802: system not yet initialized (Triggered internally at x.cpp:109.)"
    )
    for line, expected in ((taken, "port_taken"), (podman, "cdi"), (torch, "fabric_manager")):
        found = diagnose([line])
        assert found is not None and found.id == expected


def test_the_first_cause_wins_over_its_consequences() -> None:
    found = diagnose([MESSAGES["mamba_block"], MESSAGES["no_device"], MESSAGES["engine_failed"]])
    assert found is not None and found.id == "mamba_block" and "1600" in found.remedy


def test_an_unknown_cause_is_quoted_where_the_engine_says_only_that_it_failed() -> None:
    lines = ["(Worker_TP0 pid=1) ERROR 11-30 08:00:01 [x.py:1] ZeroDivisionError: by zero", MESSAGES["engine_failed"]]
    found = diagnose(lines)
    assert found is not None and found.id == "engine_failed" and found.line == "ZeroDivisionError: by zero"


def test_identifiers_are_unique() -> None:
    assert len({signature.id for signature in SIGNATURES}) == len(SIGNATURES)


def test_milestones_of_a_gpu_start() -> None:
    reader = Reader()
    for line in read("startup-gpu-v0.26.0.log"):
        reader.feed(line)
    found = reader.milestones
    assert found["architecture"] == {"name": "Qwen3_5ForConditionalGeneration"}
    assert found["weights"] == {"gib": 51.02, "took_s": 1.59664}
    assert found["attention"] == {"backend": "FLASH_ATTN"}
    assert found["kv_memory"] == {"gib": 74.37}
    assert found["kv_cache"] == {"tokens": 1067194}
    assert found["kv_concurrency"] == {"at_tokens": 131072, "concurrency": 8.14}
    assert found["graphs"] == {"took_s": 2, "gib": 0.05}
    assert found["engine_ready"] == {"took_s": 128.88, "compilation_s": 44.02}
    assert "server" in found


def test_milestones_of_a_cpu_start() -> None:
    reader = Reader()
    for line in read("startup-cpu-v0.32.0.log"):
        reader.feed(line, at_s=1.26)
    assert reader.milestones["kv_cache"] == {"at_s": 1.3, "tokens": 46592, "at_tokens": 4096, "concurrency": 11.38}
    assert reader.milestones["engine"] == {"at_s": 1.3, "version": "0.32.0"}
    assert reader.phase == "first answer"


@pytest.mark.parametrize(
    ("line", "cause", "words"),
    [
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7.", "cdi", "the GPUs nvidia.com/gpu=7"),
        (
            'invalid mount config for type "bind": bind source path does not exist: /var/lib/x.',
            "mount_missing",
            "the folder /var/lib/x, which",
        ),
        ("No such image: sha256:8eb354016a26.", "image_missing", "the image is not on the host"),
    ],
)
def test_what_docker_says_is_known_as_well(line: str, cause: str, words: str) -> None:
    found = diagnose([f"docker: Error response from daemon: {line}", "See 'docker run --help'."])
    assert found is not None and found.id == cause and words in found.sentence
