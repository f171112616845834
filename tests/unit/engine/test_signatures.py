# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What single messages are taken for, and that docs/diagnosis.md says the same.

The messages are those of the page: texts of vLLM's source, of drivers and of container engines. What real engines wrote
is in test_diagnosis.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.diagnosis import (
    Diagnosis,
    Reader,
    diagnose,
    match,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.signatures import (
    BY_NAME,
    ERROR,
    OBSERVED,
    SIGNATURES,
    WARNING,
)

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"


def rows(columns: int) -> list[list[str]]:
    """Rows of the page's table with so many columns."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == columns and cells[0].startswith("SOC-D"):
            found.append(cells)
    return found


ROWS = {row[1]: row for row in rows(6)}
MESSAGES = {name: row[2].strip("`") for name, row in ROWS.items()}
ERRORS = {name: message for name, message in MESSAGES.items() if BY_NAME[name].severity == ERROR}
WARNINGS = {name: message for name, message in MESSAGES.items() if BY_NAME[name].severity == WARNING}


def test_the_page_has_every_cause_once_and_in_order() -> None:
    assert [row[:2] for row in rows(6)] == [[signature.id, signature.name] for signature in SIGNATURES]
    told = {cause.id: cause.sentence.replace("{1}", "N").replace("{2}", "WHAT") for cause in OBSERVED.values()}
    assert rows(4) == [[cause.id, cause.name, told[cause.id], cause.remedy] for cause in OBSERVED.values()]
    assert "{" not in "".join(told.values())


@pytest.mark.parametrize("name", MESSAGES)
def test_the_page_says_what_the_diagnosis_says(name: str) -> None:
    number, _name, message, cause, remedy, source = ROWS[name]
    found = match(message.strip("`"), WARNING) if name in WARNINGS else diagnose([message.strip("`")])
    assert found is not None
    assert (found.id, found.name, found.sentence, found.remedy) == (number, name, cause, remedy)
    assert source.startswith(found.evidence) and found.evidence


def test_identifiers_are_unique_and_every_cause_is_complete() -> None:
    causes = [*SIGNATURES, *OBSERVED.values()]
    assert len({cause.id for cause in causes}) == len({cause.name for cause in causes}) == len(causes)
    for cause in causes:
        assert re.fullmatch(r"SOC-D\d\d", cause.id)
        assert cause.sentence and not cause.sentence.endswith(".") and cause.remedy.endswith(".")
        assert cause.severity in (ERROR, WARNING)


@pytest.mark.parametrize(("expected", "message"), ERRORS.items())
def test_each_message_has_its_diagnosis(expected: str, message: str) -> None:
    found = diagnose(
        ["INFO 11-30 08:00:00 [x.py:1] something", f"(EngineCore pid=7) ERROR 11-30 08:00:01 [core.py:9] {message}"]
    )
    assert found is not None and found.name == expected
    assert "{1}" not in found.sentence + found.remedy and "()" not in found.sentence + found.remedy
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
    assert reader.fatal is None and reader.probable is None and reader.first_error is None


@pytest.mark.parametrize("message", MESSAGES.values())
def test_a_traceback_that_a_user_sends_is_no_diagnosis(message: str) -> None:
    reader = Reader()
    for line in ("Traceback (most recent call last):", '  File "x.py", line 1, in main', message):
        reader.feed(f"(APIServer pid=2) INFO 11-30 08:00:01 [logger.py:39] {line}")
    assert reader.fatal is None and reader.probable is None and reader.first_error is None


@pytest.mark.parametrize(("expected", "message"), ERRORS.items())
@pytest.mark.parametrize(
    "prefix", ["", "(APIServer pid=7) ", "(Worker_TP0 pid=7) [rank0]: ", "(EngineCore_DP0 pid=7)   "]
)
def test_errors_without_a_level_are_known_by_how_they_begin(prefix: str, expected: str, message: str) -> None:
    found = diagnose([prefix + message])
    assert found is not None and found.name == expected


@pytest.mark.parametrize(("expected", "message"), WARNINGS.items())
def test_a_warning_ends_nothing_and_is_kept_as_a_hint(expected: str, message: str) -> None:
    reader = Reader()
    reader.feed(f"(EngineCore pid=7) INFO 11-30 08:00:01 [shm_broadcast.py:9] {message}")
    assert reader.fatal is None and reader.probable is None
    assert reader.hint is not None and reader.hint.name == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "(APIServer pid=2) ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000)",
            "port_taken",
        ),
        ('time="2026-11-30T08:00:00Z" level=error msg="unresolvable CDI devices nvidia.com/gpu=7"', "cdi"),
        (
            "(APIServer pid=2) /usr/lib/python3/torch/cuda/__init__.py:174: UserWarning: CUDA initialization:"
            " Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized (Triggered at x.cpp)",
            "fabric_manager",
        ),
        (
            "[12345.678901] Memory cgroup out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB",
            "killed_for_memory",
        ),
        ("vllm-chat.service: Failed with result 'oom-kill'.", "killed_for_memory"),
        ("/bin/sh: 1: exec: vllm: not found", "image_entrypoint"),
        ("terminate called after throwing an instance of 'c10::Error'", None),
        ("  what():  CUDA error: an illegal memory access was encountered", "gpu_fault"),
        (
            "[rank1]:[E1130 08:15:51.011683023 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation"
            " timeout: WorkNCCL(SeqNum=3)",
            "collective_timeout",
        ),
        (
            "[rank0]:[W1130 08:15:51.011683023 ProcessGroupNCCL.cpp:1575] Watchdog caught collective operation timeout",
            None,
        ),
    ],
)
def test_errors_of_other_writers_are_known(line: str, expected: str | None) -> None:
    found = diagnose([line])
    assert (found.name if found else None) == expected


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
    assert found is not None and found.name == cause and words in found.sentence


def test_the_first_cause_wins_over_its_consequences() -> None:
    found = diagnose([MESSAGES["mamba_block"], MESSAGES["no_device"], MESSAGES["engine_failed"]])
    assert found is not None and found.name == "mamba_block" and "1600" in found.remedy


@pytest.mark.parametrize("first", ["python_package", "permission", "nccl", "config_invalid"])
def test_what_engines_get_over_gives_way_to_a_certain_cause_and_explains_a_general_failure(first: str) -> None:
    found = diagnose([MESSAGES[first], MESSAGES["free_memory"]])
    assert found is not None and found.name == "free_memory"
    found = diagnose([MESSAGES[first], MESSAGES["engine_failed"]])
    assert found is not None and found.name == first


def test_what_engines_get_over_ends_no_wait_by_itself() -> None:
    reader = Reader()
    reader.feed(MESSAGES["python_package"])
    assert reader.fatal is None
    assert isinstance(reader.probable, Diagnosis) and reader.probable.name == "python_package"


COMPILING = [
    ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.", None),
    ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor", None),
    ("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", None),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'", None),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", None),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", None),
    ("RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)", None),
    ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", None),
    ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found", None),
    ("/bin/sh: line 1: g++: command not found", None),
    ("g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory", None),
    ("/tmp/tmp1/main.c:4:10: fatal error: Python.h: No such file or directory", "Python.h"),
    ("/tmp/x.cu:3:10: fatal error: cublasLt.h: No such file or directory", "cublasLt.h"),
]


@pytest.mark.parametrize(("message", "header"), COMPILING)
def test_what_a_start_lacks_to_compile_is_named(message: str, header: str | None) -> None:
    found = diagnose([f"(EngineCore pid=7) ERROR 11-30 08:00:01 [core.py:9] {message}"])
    assert found is not None and found.name == ("header_missing" if header else "compiler_missing")
    assert header is None or header in found.sentence
    assert "enforce-eager" in found.remedy


def test_a_header_that_is_missing_explains_that_code_does_not_compile() -> None:
    failed = "torch._inductor.exc.InductorError: CppCompileError: C++ compile error"
    lines = [failed, "", "Output:", "/x.cpp:80:10: fatal error: Python.h: No such file or directory", "80 | #include"]
    found = diagnose([f"(Worker pid=7) ERROR 11-30 08:00:01 [multiproc_executor.py:9] {line}" for line in lines])
    assert found is not None and found.name == "header_missing"
    found = diagnose([f"(Worker pid=7) ERROR 11-30 08:00:01 [multiproc_executor.py:9] {failed}"])
    assert found is not None and found.name == "compile_failed"
    found = diagnose(["nvcc fatal   : Unsupported gpu architecture 'compute_120a'"])
    assert found is not None and "(Unsupported gpu architecture 'compute_120a')" in found.sentence


@pytest.mark.parametrize(
    "line",
    [
        "/tmp/tmp1/main.c:4:10: fatal error: Python.h: No such file or directory",
        "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
    ],
)
def test_what_a_compiler_writes_by_itself_counts_when_the_engine_has_ended(line: str) -> None:
    # Triton looks for its driver in this way, and vLLM goes on without it.
    reader = Reader()
    reader.feed(line)
    assert reader.fatal is None and reader.probable is not None
    reader.feed(MESSAGES["engine_failed"])
    assert reader.fatal is not None and reader.fatal.name == reader.probable.name


def test_a_warning_of_headers_that_are_not_needed_is_no_diagnosis() -> None:
    line = (
        "site-packages/torch/_inductor/cpp_builder.py:1361: UserWarning: Can't find Python.h in /usr/include/python3.11"
    )
    assert diagnose([line]) is None
