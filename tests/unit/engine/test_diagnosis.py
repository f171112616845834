# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What whole logs of starts that failed are taken for.

The fixtures failed-*.log were written by real engines that were made to fail: vLLM 0.32.0 on a CPU with a small model,
and Podman; the middle of tracebacks was taken out. The texts in this file are made up after the forms that Python, C++,
NCCL, Rust and systemd give their errors, for what needs GPUs or several workers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.diagnosis import (
    Reader,
    RootCause,
    diagnose,
    end_of_unit,
    killed_for_memory,
    observed,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.signatures import SIGNATURES

FIXTURES = Path(__file__).parent / "fixtures"

GOOD = ["startup-gpu-v0.26.0.log", "startup-gpu-fp8-eager-v0.26.0.log", "startup-cpu-v0.32.0.log"]

FAILED = {
    "bad-flag-v0.32.0": ("SOC-D01", "this vLLM does not know the arguments --no-such-flag 3"),
    "bad-json-v0.32.0": ("SOC-D02", "the value of --speculative-config is no JSON ({method: mtp})"),
    "bad-dtype-v0.32.0": (
        "SOC-D03",
        "the value of --dtype is not valid (invalid choice: 'float13' (choose from 'auto', 'bfloat16', 'float',"
        " 'float16', 'float32', 'half'))",
    ),
    "template-v0.32.0": (
        "SOC-D09",
        "the chat template cannot be read as Jinja (unexpected '}'), so that every chat would be refused",
    ),
    "port-v0.32.0": ("SOC-D55", "the port is in use by another process"),
    "tool-parser-v0.32.0": ("SOC-D05", "there is no tool call parser hermez"),
    "missing-shard-v0.32.0": (
        "SOC-D13",
        "files of weights that the model's index names are missing"
        " ({'/models/missingshard/model-00002-of-00002.safetensors'})",
    ),
    "truncated-v0.32.0": (
        "SOC-D15",
        "a file of weights is cut off or damaged (Error while deserializing header: incomplete metadata, file not fully"
        " covered)",
    ),
    "length-v0.32.0": ("SOC-D28", "max-model-len 100000 is more than the model's own context length (8192)"),
    "kv-small-v0.32.0": (
        "SOC-D36",
        "one request of 100000 tokens needs 2.15 GiB of KV cache and 1.0 GiB are there",
    ),
    "killed-v0.32.0": ("SOC-D84", "a worker of the engine died without a word"),
    "unknown-arch-v0.32.0": ("SOC-D18", "this image cannot serve the architecture ['NoSuchForCausalLM']"),
    "spec-key-v0.32.0": ("SOC-D04", "the speculative configuration has a wrong key or method"),
    "quant-v0.32.0": ("SOC-D24", "the model has no configuration for the quantisation awq"),
    "reasoning-parser-v0.32.0": ("SOC-D06", "there is no reasoning parser qwen33"),
    "template-path-v0.32.0": ("SOC-D08", "the chat template /templates/x.jinja is not in the container"),
    "bad-config-v0.32.0": ("SOC-D16", "the model's file /models/badconfig/config.json is no JSON"),
    "batched-v0.32.0": (
        "SOC-D29",
        "max-num-batched-tokens 4 is less than max-num-seqs, or than the context where chunked prefill is off",
    ),
    "tokenizer-v0.32.0": (
        "SOC-D85",
        "a JSON file of the model, or a setting, is cut off or damaged (Expecting value: line 51 column 2 (char 1000))",
    ),
    "bad-env-v0.32.0": ("SOC-D10", "a number was expected and 'never' was found, most likely in a variable of vLLM"),
    "no-model-v0.32.0": ("SOC-D11", "the model is not at the path that the engine was given"),
    "no-weights-v0.32.0": ("SOC-D12", "the model's folder holds no weights"),
    "tp-heads-v0.32.0": ("SOC-D32", "9 attention heads cannot be spread over 2 GPUs"),
    "shm-v0.32.0": (
        "SOC-D49",
        "the container's shared memory is too small (160 MiB required, 8 MiB free)",
    ),
    "image-missing-podman-4.3.1": ("SOC-D62", "the image is not on the host any more"),
    "unknown-v0.32.0": ("SOC-D83", "the engine failed"),
    "compiler-v0.32.0": ("SOC-D43", "a kernel must be compiled and the image has no compiler for it"),
    "header-v0.32.0": ("SOC-D86", "code is compiled at the start and the image lacks the header Python.h"),
}


def read(name: str) -> list[str]:
    return (FIXTURES / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", GOOD)
def test_a_good_start_has_no_diagnosis(name: str) -> None:
    assert diagnose(read(name)) is None


@pytest.mark.parametrize(("name", "expected"), FAILED.items())
def test_what_a_real_engine_wrote_is_diagnosed(name: str, expected: tuple[str, str]) -> None:
    found = diagnose(read(f"failed-{name}.log"))
    assert found is not None and (found.id, found.sentence) == expected


def test_every_log_of_a_failure_is_tested() -> None:
    assert {path.name for path in FIXTURES.glob("failed-*.log")} == {f"failed-{name}.log" for name in FAILED}


def test_a_cause_that_is_known_from_a_log_has_that_log() -> None:
    known = {signature.id for signature in SIGNATURES if signature.evidence.startswith("log of vLLM 0.32.0")}
    assert known <= {number for number, _sentence in FAILED.values()}


def test_no_log_names_the_machine_on_which_it_was_made() -> None:
    for path in FIXTURES.glob("failed-*.log"):
        text = path.read_text(encoding="utf-8")
        assert "/home/" not in text and "/root/" not in text


def test_a_cause_is_known_before_the_processes_that_notice_it_have_ended() -> None:
    reader = Reader()
    for line in read("failed-truncated-v0.32.0.log"):
        assert "EngineCore failed to start" not in line
        reader.feed(line)
        if reader.fatal is not None:
            break
    assert reader.fatal is not None and reader.fatal.name == "weights_damaged"


def test_memory_taken_by_others_is_named_with_its_numbers() -> None:
    found = diagnose(read("startup-free-memory-v0.26.0.log"))
    assert found is not None and found.name == "free_memory"
    assert "84.78 of 139.8 GiB" in found.sentence and "0.95 needs 132.81 GiB" in found.sentence
    assert found.line is not None and found.line.startswith("ValueError: Free memory on device cuda:0")


def test_a_failure_that_is_not_known_is_quoted_by_the_worker_that_failed_first() -> None:
    found = diagnose(read("failed-unknown-v0.32.0.log"))
    assert found is not None and found.line is not None
    assert found.line.startswith("subprocess.CalledProcessError: Command 'lscpu --json")


ENGINE = "(EngineCore_DP0 pid=272) ERROR 11-30 08:15:50 [core.py:1510] "
WORKER0 = "(Worker_TP0 pid=301) ERROR 11-30 08:15:49 [multiproc_executor.py:953] "
WORKER1 = "(Worker_TP1 pid=302) ERROR 11-30 08:15:49 [multiproc_executor.py:953] "
SERVER = "(APIServer pid=1) "
GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def traceback(
    prefix: str,
    error: str,
    *,
    again: str = "",
    how: str = "During handling of the above exception, another exception occurred:",
) -> list[str]:
    """A traceback as vLLM logs it, with a second exception in its chain where *again* is given."""
    frames = ["Traceback (most recent call last):", '  File "x.py", line 1, in main', "    work()", "    ^^^^^^"]
    lines = [*frames, error]
    if again:
        lines += ["", how, "", *frames, again]
    return [prefix + line for line in lines]


DIRECT = "The above exception was the direct cause of the following exception:"

ROOTS: dict[str, tuple[list[str], str]] = {
    "the exception that came first of a chain": (
        traceback(ENGINE, "KeyError: 'rope'", again="OddError: cannot read the configuration"),
        "KeyError: 'rope'",
    ),
    "the direct cause": (
        traceback(ENGINE, "ZeroDivisionError: by zero", again="OddError: no figures", how=DIRECT),
        "ZeroDivisionError: by zero",
    ),
    "a chain that the API server prints without a level": (
        [*traceback(SERVER, "KeyError: 'a'", again="OddError: b"), SERVER + GENERIC],
        "KeyError: 'a'",
    ),
    "an exception without a message": (
        [*traceback(WORKER0, "AssertionError"), ENGINE + "EngineCore failed to start.", SERVER + GENERIC],
        "AssertionError",
    ),
    "an exception whose name ends in nothing usual": (
        [*traceback(WORKER0, "odd.lib.Stop: the odd library stopped"), SERVER + GENERIC],
        "odd.lib.Stop: the odd library stopped",
    ),
    "the worker that failed first, not the one that lost its peer": (
        [
            *traceback(WORKER1, "OddError: on the second GPU"),
            *traceback(WORKER0, "OddError: later on the first GPU"),
            *traceback(ENGINE, "Exception: WorkerProc initialization failed due to an exception in a background"),
            SERVER + GENERIC,
        ],
        "OddError: on the second GPU",
    ),
    "the worker although the server complained before": (
        [
            *traceback(SERVER, "OddError: telemetry is not reachable"),
            *traceback(WORKER0, "OddError: the cause"),
            SERVER + GENERIC,
        ],
        "OddError: the cause",
    ),
    "no error that its process got over": (
        [
            *traceback(WORKER0, "OddError: no optional kernels"),
            "(Worker_TP0 pid=301) INFO 11-30 08:15:49 [x.py:1] Model loading took 25.51 GiB memory and 9.1 seconds",
            *traceback(WORKER0, "OddError: the cause"),
            SERVER + GENERIC,
        ],
        "OddError: the cause",
    ),
    "a plain traceback without any prefix": (
        traceback("", "OddError: plain"),
        "OddError: plain",
    ),
    "what C++ threw, not what Python made of the dead process": (
        [
            "terminate called after throwing an instance of 'std::out_of_range'",
            "  what():  vector::_M_range_check",
            *traceback(SERVER, "OddError: the process is gone"),
            SERVER + GENERIC,
        ],
        "what():  vector::_M_range_check",
    ),
    "a Rust panic": (
        [
            "thread '<unnamed>' (4711) panicked at src/lib.rs:10:5:",
            "index out of bounds: the len is 0",
            *traceback(SERVER, "pyo3_runtime.PanicException: index out of bounds"),
            SERVER + GENERIC,
        ],
        "index out of bounds: the len is 0",
    ),
    "one of a group of exceptions": (
        [
            SERVER + "  + Exception Group Traceback (most recent call last):",
            SERVER + '  |   File "x.py", line 1, in main',
            SERVER + "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
            SERVER + "  +-+---------------- 1 ----------------",
            SERVER + "    | Traceback (most recent call last):",
            SERVER + '    |   File "y.py", line 1, in part',
            SERVER + "    | OddError: in the group",
            SERVER + "    +------------------------------------",
        ],
        "OddError: in the group",
    ),
}


@pytest.mark.parametrize("name", ROOTS)
def test_the_root_error_is_quoted(name: str) -> None:
    lines, expected = ROOTS[name]
    found = diagnose(["(APIServer pid=1) INFO 11-30 08:15:40 [x.py:1] hello", *lines])
    assert found is not None and found.name in ("unknown", "engine_failed")
    assert found.line == expected


def test_an_engine_that_only_got_over_its_errors_has_no_diagnosis() -> None:
    went_on = "(Worker_TP0 pid=301) INFO 11-30 08:15:49 [x.py:1] Model loading took 25.51 GiB memory and 9.1 seconds"
    for error in ("OddError: no optional kernels", "ModuleNotFoundError: No module named 'odd'"):
        assert diagnose([*traceback(WORKER0, error), went_on]) is None
        found = diagnose([*traceback(WORKER0, error), went_on, *traceback(WORKER0, "OddError: the cause")])
        assert found is not None and found.line == "OddError: the cause"


def test_what_nccl_warned_of_is_the_root_of_its_error() -> None:
    found = diagnose(
        [
            "gpu1:301:301 [0] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed: no memory for a segment",
            *traceback(WORKER0, "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled system error"),
            SERVER + GENERIC,
        ]
    )
    assert found is not None and found.name == "nccl"
    reader = Reader()
    reader.feed("gpu1:301:301 [0] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed")
    assert reader.fatal is None and reader.first_error is None
    for line in traceback(WORKER0, "OddError: ncclInternalError"):
        reader.feed(line)
    assert reader.first_error == "Call to posix_fallocate failed"


def test_the_lines_of_one_message_stay_together() -> None:
    found = diagnose(
        [
            "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig",
            "(APIServer pid=1) num_speculative_token",
            "(APIServer pid=1)   Unexpected keyword argument [type=unexpected_keyword_argument, input_value=2]",
            "(APIServer pid=1)     For further information visit https://errors.pydantic.dev/",
        ]
    )
    assert found is not None and found.name == "speculative_config" and found.line is not None
    assert found.line.endswith(
        "SpeculativeConfig; num_speculative_token; Unexpected keyword argument"
        " [type=unexpected_keyword_argument, input_value=2]"
    )


def test_a_message_that_lists_all_that_would_be_right_is_shortened() -> None:
    found = diagnose(read("failed-unknown-arch-v0.32.0.log"))
    assert found is not None and found.line == (
        "Value error, Model architectures ['NoSuchForCausalLM'] are not supported for now. "
        "Supported architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM', 'AXK1ForCausalLM', ..."
    )


@pytest.mark.parametrize(
    ("active", "result", "status", "name"),
    [
        ("failed", "oom-kill", 9, "killed_for_memory"),
        ("failed", "exit-code", 137, "killed"),
        ("failed", "signal", 9, "killed"),
        ("failed", "exit-code", 1, "unit_failed"),
        ("failed", "timeout", 15, "unit_timeout"),
        ("failed", "start-limit-hit", 1, "start_limit"),
        ("inactive", "success", 0, "unit_stopped"),
    ],
)
def test_what_systemd_says_of_the_end(active: str, result: str, status: int, name: str) -> None:
    found = end_of_unit(active, result, status)
    assert found.name == name and "{" not in found.sentence + found.remedy and "()" not in found.sentence


def test_a_worker_that_the_kernel_killed_is_told_by_the_kernel_s_log() -> None:
    # Of the same failure as the fixture: a worker that filled the memory of its control group.
    kernel = (FIXTURES / "kernel-oom.txt").read_text(encoding="utf-8").splitlines()
    died = diagnose(read("failed-killed-v0.32.0.log"))
    assert died is not None
    found = killed_for_memory(died, kernel)
    assert found.id == "SOC-D50"
    assert found.sentence.startswith("the kernel killed it since the host's memory, or the limit of its unit, ran out")
    assert found.sentence.endswith("(4429 (VLLM::Worker))")


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve: error: unrecognized arguments: --hf-tokn x --api-key hunter22 --proxy http://u:hunter22@proxy",
        "ERROR 11-30 10:00:00 [core.py:1] ValueError: invalid literal for int() with base 10: 'token=hunter22'",
        'time="x" level=error msg="OCI runtime error: crun: open HF_TOKEN=hunter22: no such file"',
        "ImportError: cannot fetch https://u:hunter22@pypi.example/simple",
    ],
)
def test_a_diagnosis_repeats_no_secret_of_the_line_in_its_sentence(line: str) -> None:
    reader = Reader()
    reader.feed(line)
    found = reader.fatal or reader.probable
    assert found is not None
    assert "***" in found.sentence and "hunter22" not in found.sentence + found.remedy


def test_a_sentence_is_no_longer_than_its_line_and_holds_it_as_it_is() -> None:
    reader = Reader()
    reader.feed(f"vllm serve: error: unrecognized arguments: --a {{2}} {'x' * 8000}")
    assert reader.fatal is not None
    assert "--a {2} x" in reader.fatal.sentence and len(reader.fatal.sentence) < 700


def test_an_engine_that_says_errors_without_end_is_read_in_a_bounded_memory() -> None:
    cause = RootCause()
    for number in range(2000):
        cause.feed(f"(EngineCore pid=7) ERROR 11-30 10:00:00 [x.py:1] MyError: cannot reach {number}")
        cause.feed(f"(APIServer pid=1) ERROR 11-30 10:00:00 [x.py:1] OtherError: {number}")
    assert len(cause._errors) == 2 and cause.line == "MyError: cannot reach 0"
    cause.went_on("(EngineCore pid=7) INFO 11-30 10:00:00 [x.py:1] Starting to load model")
    assert cause.line == "OtherError: 0"
    cause.feed("(EngineCore pid=7) ERROR 11-30 10:00:00 [x.py:1] MyError: again")
    assert cause.line == "MyError: again"


KERNEL = ["usb 1-1: new device", "Memory cgroup out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB"]


def test_a_killed_process_is_explained_by_the_kernel_or_the_container_engine() -> None:
    killed = observed("killed")
    assert killed_for_memory(killed, KERNEL).line == KERNEL[1]
    assert killed_for_memory(killed, KERNEL[:1], oom_killed=True).name == "killed_for_memory"
    assert killed_for_memory(killed, KERNEL[:1], oom_killed=False) is killed
    assert killed_for_memory(killed) is killed


def test_another_failure_is_not_blamed_on_a_process_that_was_killed_elsewhere() -> None:
    failed = observed("unit_failed", 1, "exit-code")
    assert killed_for_memory(failed, KERNEL, oom_killed=True) is failed


def test_a_diagnosis_goes_into_results_and_records_whole() -> None:
    found = diagnose(read("failed-length-v0.32.0.log"))
    assert found is not None
    assert set(found.as_dict()) == {"id", "name", "severity", "sentence", "remedy", "line", "evidence"}
    assert all(found.as_dict().values())


STARTED = "(APIServer pid=1) INFO:     Application startup complete."


@pytest.mark.parametrize(
    "lines",
    [
        [
            "(APIServer pid=1) ERROR 11-30 10:00:00 [serving.py:210] Error with model error=ErrorInfo("
            "message='The model `torch.OutOfMemoryError: CUDA out of memory. Tried` does not exist.', code=404)"
        ],
        [
            "(APIServer pid=1) ERROR:    Exception in ASGI application",
            "(APIServer pid=1) Traceback (most recent call last):",
            '(APIServer pid=1)   File "/x.py", line 1, in f',
            "(APIServer pid=1) ValueError: no role jinja2.exceptions.TemplateSyntaxError: RuntimeError: CUDA error: x",
        ],
        ["ERROR:    No available memory for the cache blocks. of a request"],
    ],
)
def test_what_a_server_that_is_up_says_of_requests_is_no_failure_of_the_start(lines: list[str]) -> None:
    reader = Reader()
    for line in [STARTED, *lines]:
        reader.feed(line)
    assert reader.fatal is None and reader.probable is None
    # Before, nobody can have asked anything.
    reader = Reader()
    for line in lines:
        reader.feed(line)
    assert reader.fatal is not None


def test_what_the_engine_says_counts_also_after_its_server_is_up() -> None:
    reader = Reader()
    reader.feed(STARTED)
    reader.feed(
        "(EngineCore pid=9) ERROR 11-30 10:00:00 [core.py:900] torch.OutOfMemoryError: CUDA out of memory. Tried"
    )
    assert reader.fatal is not None and reader.fatal.name == "generic_out_of_memory"


def test_of_the_longest_lines_only_the_beginning_is_compared() -> None:
    reader = Reader()
    reader.feed("(APIServer pid=1) ERROR: " + "x" * 40_000 + " torch.OutOfMemoryError: CUDA out of memory.")
    assert reader.fatal is None
    reader.feed("(APIServer pid=1) ERROR: torch.OutOfMemoryError: CUDA out of memory. " + "x" * 40_000)
    assert reader.fatal is not None and reader.fatal.name == "generic_out_of_memory"
