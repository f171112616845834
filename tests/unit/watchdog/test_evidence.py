# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept of a stuck engine, and what never is."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.schema import MAX_BYTES
from ansible_collections.socle.inference.plugins.module_utils._watchdog.commands import Answer
from ansible_collections.socle.inference.plugins.module_utils._watchdog.evidence import (
    BYTES,
    Collector,
    clip,
    container_facts,
    likely_causes,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.incident import incident_record
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import launch_of
from ansible_collections.socle.inference.plugins.module_utils._watchdog.redaction import redact
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

from tests.unit.watchdog.conftest import PLAN, SECRET

INSPECTED = json.dumps(
    [
        {
            "Image": "sha256:abc",
            "RestartCount": 0,
            "Config": {"Env": ["OTHER_SECRET_THING=hidden"], "Cmd": ["--flag"]},
            "State": {"Pid": 100, "Status": "running", "OOMKilled": False, "Health": {"Status": "healthy"}},
            "HostConfig": {"ShmSize": 17179869184, "NetworkMode": "host"},
        }
    ],
    indent=1,
)

XID = "2026-11-30T09:00:00+0000 gpu1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."


def process(proc: Path, pid: int, parent: int, name: str, state: str, ticks: int = 0) -> None:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    rest = [state, str(parent), *["0"] * 9, str(ticks), "0", "0", "0", "0", "0", "3", "0", "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(rest)}\n")
    (folder / "cmdline").write_text(f"python3\0{name}\0--token=abcdefgh\0")
    (folder / "wchan").write_text("do_signal_stop")
    (folder / "task" / str(pid) / "stack").write_text("[<0>] do_signal_stop+0x1\n[<0>] get_signal+0x2\n")


class Commands:
    """Answers by the first word, and by the second one of journalctl."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str], _limit_s: float = 0) -> Answer:
        self.calls.append(list(argv))
        name = argv[0].replace("-", "_")
        if name == "journalctl":
            name = "kernel" if "--dmesg" in argv else "journal"
        return self.answers.get(name, Answer(None, "", f"{argv[0]} cannot be run: No such file or directory"))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, 1, 0, "systemd", "S")
    process(tmp_path, 100, 1, "vllm (odd) name", "S")
    process(tmp_path, 101, 100, "VLLM::EngineCore", "T")
    process(tmp_path, 102, 101, "VLLM::Worker_TP0", "R")
    process(tmp_path, 200, 1, "sshd", "S")
    return tmp_path


def collect(
    commands: Commands, proc: Path, metrics: str | None = "vllm:x 1\n", clock: Any = lambda: 0.0
) -> dict[str, Any]:
    return Collector(commands, proc, clock).collect(
        unit="vllm-chat.service", container="vllm-chat", engine="podman", metrics=metrics, secrets=[SECRET]
    )


def test_the_bundle(proc: Path) -> None:
    commands = Commands(
        podman=Answer(0, f"level=warning msg=x\n{INSPECTED}\n"),
        journal=Answer(0, f"line one\nVLLM_API_KEY={SECRET}\n"),
        kernel=Answer(0, f"usb 1-1: new device\n{XID}\n"),
        nvidia_smi=Answer(0, "==NVSMI LOG==\n"),
        py_spy=Answer(0, "Thread 101 (idle): wait\n"),
    )
    parts = collect(commands, proc)
    assert [(item["pid"], item["state"]) for item in parts["processes"]] == [(100, "S"), (101, "T"), (102, "R")]
    engine_core = parts["processes"][1]
    assert (engine_core["name"], engine_core["threads"], engine_core["wait_channel"]) == (
        "VLLM::EngineCore",
        3,
        "do_signal_stop",
    )
    assert engine_core["kernel_stacks"] == [
        {"threads": 1, "frames": ["[<0>] do_signal_stop+0x1", "[<0>] get_signal+0x2"]}
    ]
    assert parts["container"]["health"] == "healthy" and parts["container"]["shm_size_bytes"] == 17179869184
    assert parts["kernel"] == [XID]
    assert parts["nvidia_smi"] == ["==NVSMI LOG=="]
    assert parts["python_stacks"].count("Thread 101 (idle): wait") == 3
    assert parts["unanswered"] == {}
    text = json.dumps(parts)
    assert SECRET not in text and "hidden" not in text and "abcdefgh" not in text
    causes = likely_causes(parts)
    assert causes[0].startswith("VLLM::EngineCore (101) was stopped by a signal")
    assert "Xid 79" in causes[1]


def test_what_cannot_be_had_says_why_and_the_rest_goes_on(proc: Path) -> None:
    commands = Commands(
        journal=Answer(0, "line\n"),
        nvidia_smi=Answer(None, "", "nvidia-smi did not end within 15 s, and cannot be killed"),
    )
    parts = collect(commands, proc, metrics=None)
    assert parts["journal"] == ["line"] and parts["processes"] == [] and parts["container"] == {}
    assert set(parts["unanswered"]) == {"container", "unit", "kernel", "nvidia_smi", "metrics"}
    assert any("nvidia-smi did not answer" in cause for cause in likely_causes(parts))


def test_a_process_that_spins_is_told_from_one_that_stands(proc: Path) -> None:
    def spin(argv: Sequence[str], _limit_s: float = 0) -> Answer:
        process(proc, 102, 101, "VLLM::Worker_TP0", "R", ticks=200)
        return Answer(0, INSPECTED if argv[0] == "podman" else "")

    times = iter([0.0, 2.0])
    parts = Collector(spin, proc, lambda: next(times)).collect(
        unit="u", container="c", engine="podman", metrics="", secrets=[]
    )
    assert [item["cpu_cores_used"] for item in parts["processes"]] == [0.0, 0.0, 1.0]


def test_the_kernels_own_table_can_be_read() -> None:
    commands = Commands(podman=Answer(0, json.dumps([{"State": {"Pid": os.getpid()}}])))
    parts = collect(commands, Path("/proc"))
    assert parts["processes"][0]["pid"] == os.getpid() and parts["processes"][0]["threads"] >= 1


def test_a_flood_stays_within_the_limits_of_a_record(proc: Path) -> None:
    flood = "\n".join(f'{place} "quoted" \\ ' + "x" * 5000 for place in range(3000))
    every = Answer(0, flood)
    commands = Commands(
        podman=Answer(0, INSPECTED),
        journal=every,
        kernel=Answer(0, "\n".join([XID] * 9000)),
        nvidia_smi=every,
        py_spy=every,
    )
    parts = collect(commands, proc, metrics=flood)
    assert parts["journal"][-1].startswith("2999 ")
    _name, text = incident_record(
        Settings("chat", "gpu1"),
        launch_of(PLAN, 3),
        started="2026-11-30T09:00:00Z",
        finished="2026-11-30T09:01:00Z",
        reason="r",
        action="restart",
        restarts_last_hour=0,
        causes=[],
        evidence=parts,
        secrets=[SECRET],
    )
    assert len(text.encode()) < MAX_BYTES * 0.6


def test_lines_are_cut_after_they_are_cleaned() -> None:
    (line,) = clip("x" * 590 + f" {SECRET}", "journal", [SECRET])
    assert SECRET[:5] not in line
    assert len(clip("a\n" * 10**6, "kernel", [])) * 2 <= BYTES["kernel"]
    # Users can put this into the id of a request, and what follows is theirs still.
    (line,) = clip("Received request cmpl-1\x85 a private question\n", "journal", [])
    assert "private" not in line


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("Authorization: Bearer abc.def-ghi", "abc.def"),
        ("{'authorization': 'Basic dXNlcjpwYXNz', 'x': 1}", "dXNlcjpwYXNz"),
        ('"api_key": "topsecret", "port": 8000', "topsecret"),
        ("VLLM_API_KEY=topsecret --port 8000", "topsecret"),
        ("hf_token: hf_abcdefghijklmnop", "abcdefghijklmnop"),
        ("password = hunter22; next", "hunter22"),
        ("proxy http://user:hunter22@proxy:3128/", "hunter22"),
        ("key sk-abcdefghijklmnop was used", "abcdefghijklmnop"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
        ("Received request cmpl-1: prompt: 'my private question', params", "private"),
        ("Request cmpl-1 details: prompt: 'my private question', prompt_token_ids: [1]", "private"),
        ("AWS_SECRET_ACCESS_KEY=topsecret", "topsecret"),
        ("aws_access_key_id: TOPSECRET", "TOPSECRET"),
        ("DB_PASS=hunter22", "hunter22"),
        ('"password": "hun\\"ter22"', "ter22"),
        ("vllm serve --api-key topsecret --port 8000", "topsecret"),
        ("['--hf-token', 'topsecret']", "topsecret"),
        ("proxy http://user:hunt@er22@proxy:3128/", "er22"),
        ("Cookie: session=topsecret", "topsecret"),
        ("github_pat_11ABCDEFGH0123456789abcd", "0123456789"),
        (f"plain {SECRET} text", SECRET),
    ],
)
def test_secrets_and_prompts_are_taken_out(text: str, gone: str) -> None:
    assert gone not in redact(text, [SECRET])


@pytest.mark.parametrize(
    "text",
    [
        "Avg prompt throughput: 12.3 tokens/s, Running: 3 reqs, generation_tokens=512",
        "Maximum concurrency for 4,096 tokens per request: 12.00x, max_num_batched_tokens: 8192",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.",
        "prompt_token: 17",
        "non-default args: {'max_num_batched_tokens': 8192}, --max-num-batched-tokens 8192, bypass=1",
        "GET http://127.0.0.1:8000/v1/models by user@host",
    ],
)
def test_figures_stay(text: str) -> None:
    assert redact(text, [SECRET]) == text


def test_an_inspection_that_is_none() -> None:
    for text in ("", "no such container", "[]", "{}", "[1]"):
        assert container_facts(text).get("pid") is None


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"processes": [{"name": "w", "pid": 5, "state": "D"}]}, "reboot"),
        ({"kernel": ["kernel: Out of memory: Killed process 7 (python3)"]}, "want of memory"),
        ({"journal": ["INFO No available shared memory broadcast block found in 60 seconds"]}, "NCCL_P2P_DISABLE=1"),
    ],
)
def test_what_evidence_points_to(parts: dict[str, Any], words: str) -> None:
    (cause,) = likely_causes(parts)
    assert words in cause


def test_without_evidence_nothing_is_guessed() -> None:
    assert likely_causes({"processes": [{"name": "w", "pid": 5, "state": "S"}]}) == []
