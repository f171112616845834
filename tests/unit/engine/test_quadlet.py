# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a plan to a unit that Quadlet and systemd read as it was meant."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import (
    FALLBACK,
    GENERATORS,
    KEY_SINCE,
    QuadletBackend,
    quote,
    render,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import gpu_guard, probe_address
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

from .conftest import Host

GOLDEN = Path(__file__).parent / "fixtures" / "vllm-chat.container"
NEW = (5, 4, 2)

WORDS = [
    "plain",
    "--max-model-len=4096",
    '{"method": "mtp", "num_speculative_tokens": 2}',
    "100%",
    "%n %h",
    "$HOME ${PATH} $$",
    "it's",
    'a "quoted" word',
    "back\\slash\\",
    "\\n is not a line break",
    " leading and trailing ",
    "ünïcödé 模型",
    "#hash",
    ";semi",
    "a;b",
    "-",
    "[Service]",
    "`id` $(id) | & > <",
]


def systemd_reads(text: str) -> list[str]:
    """Words as systemd takes them from ExecStart=: quotes, C escapes, then "%%" and "$$"."""
    words: list[str] = []
    for match in re.finditer(r'"((?:[^"\\]|\\.)*)"|(\S+)', text):
        word = re.sub(r"\\(.)", r"\1", match[1]) if match[1] is not None else match[2]
        plain = word.replace("%%", "").replace("$$", "")
        if not words and word.startswith("ExecStart="):
            plain = ""
        assert "%" not in plain.replace("%t/%N", "") and "$" not in plain, f"systemd would expand {word}"
        words.append(word.replace("%%", "%").replace("$$", "$"))
    return words


def exec_words(unit: str) -> list[str]:
    return systemd_reads(re.search(r"^Exec=((?:.*\\\n)*.*)$", unit, re.MULTILINE)[1].replace("\\\n", " "))


def lines(unit: str, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in unit.splitlines() if line.startswith(f"{key}=")]


def test_the_lab_plan_gives_exactly_this_unit(plan: dict[str, Any]) -> None:
    assert render(plan, NEW) == GOLDEN.read_text(encoding="utf-8")


def test_the_same_plan_in_another_order_gives_the_same_unit(plan: dict[str, Any]) -> None:
    plan["env"] = dict(reversed(plan["env"].items()))
    plan["mounts"] = plan["mounts"][::-1]
    assert render(plan, NEW) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("word", WORDS)
def test_an_argument_arrives_as_it_was_written(plan: dict[str, Any], word: str) -> None:
    plan["argv"] += [word, "--last"]
    assert exec_words(render(plan, NEW)) == plan["argv"]


@pytest.mark.parametrize("word", ["", ";", "two\nlines", "nul\0", "tab\t", "\x7f", "cr\r"])
def test_an_argument_that_no_unit_can_carry_is_refused(word: str) -> None:
    with pytest.raises(EngineError, match="Cannot put"):
        quote(word)


@pytest.mark.parametrize("source", ["relative", "/with space", "/a:b", "/a%n", "/a$b", '/a"b', "/a/../b", "/a\nb", ""])
def test_a_path_that_would_be_taken_apart_is_refused(plan: dict[str, Any], source: str) -> None:
    plan["mounts"][0]["source"] = source
    with pytest.raises(EngineError, match="mount source"):
        render(plan, NEW)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("instance", "a b"),
        ("instance", "../x"),
        ("image", "x\n[Service]"),
        ("image", "x --privileged"),
        ("gpus", ["0 --privileged"]),
        ("env", {"A B": "1"}),
        ("env", {"A": "1\nPodmanArgs=--privileged"}),
    ],
)
def test_a_value_cannot_smuggle_another_directive(plan: dict[str, Any], key: str, value: Any) -> None:
    plan[key] = value
    with pytest.raises(EngineError):
        render(plan, NEW)


def test_each_gpu_is_passed_by_cdi(plan: dict[str, Any]) -> None:
    plan["gpus"] = [0, "GPU-5f2c0000-0000-0000-0000-000000000001"]
    devices = lines(render(plan, NEW), "AddDevice")
    assert devices == ["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-5f2c0000-0000-0000-0000-000000000001"]


@pytest.mark.parametrize(
    ("version", "arguments"),
    [
        ((4, 6, 1), ["--shm-size=536870912", "--stop-timeout=120", "--sdnotify=healthy"]),
        ((4, 9, 3), ["--stop-timeout=120", "--sdnotify=healthy"]),
        ((5, 0, 0), []),
        ((5, 8, 0), []),
    ],
)
def test_an_older_podman_gets_no_key_that_it_does_not_know(
    plan: dict[str, Any], version: tuple[int, int, int], arguments: list[str]
) -> None:
    plan["secrets"] = []
    unit = render(plan, version)
    assert lines(unit, "PodmanArgs") == arguments
    assert bool(lines(unit, "Notify")) == (version >= (5, 0, 0))
    assert bool(lines(unit, "ShmSize")) == (version >= (4, 7, 0))


LIMITS = ["nofile=1048576:1048576", "memlock=-1:-1"]
VERSIONS = [(4, 6, 2), (4, 7, 2), (4, 9, 3), (5, 0, 3), (5, 4, 2)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_gpu_instance_says_the_same_to_every_podman(plan: dict[str, Any], version: tuple[int, int, int]) -> None:
    plan.update(gpus=[0], secrets=[])
    unit = render(plan, version, LIMITS)
    said = {
        "StopTimeout": ["120"],
        "Notify": ["healthy"],
        "Ulimit": LIMITS,
        "ShmSize": [str(plan["shm_size_bytes"])],
    }
    arguments = lines(unit, "PodmanArgs")
    for key, values in said.items():
        wanted = [FALLBACK[key].format(value) for value in values]
        if version >= KEY_SINCE[key]:
            assert lines(unit, key) == values and not any(word in arguments for word in wanted)
        else:
            assert lines(unit, key) == [] and [word for word in arguments if word in wanted] == wanted
    assert lines(unit, "NoNewPrivileges") == ["true"]


def test_a_podman_of_ubuntu_24_04_is_told_to_wait_for_health_by_an_argument(plan: dict[str, Any]) -> None:
    plan.update(gpus=[0], secrets=[])
    assert lines(render(plan, (4, 9, 3), LIMITS), "PodmanArgs") == [
        "--stop-timeout=120",
        "--ulimit=nofile=1048576:1048576",
        "--ulimit=memlock=-1:-1",
        "--sdnotify=healthy",
    ]


def test_every_newer_key_can_be_said_to_an_older_podman() -> None:
    assert FALLBACK.keys() == KEY_SINCE.keys()
    assert all(value.count("{}") == 1 and value.startswith("--") for value in FALLBACK.values())


def test_an_instance_without_gpus_asks_for_no_limit(plan: dict[str, Any]) -> None:
    unit = render(plan, NEW, LIMITS)
    assert unit == GOLDEN.read_text(encoding="utf-8")
    assert not any(lines(unit, key) for key in ("Ulimit", "NoNewPrivileges", "Requires"))


def test_the_fabric_manager_is_required_where_the_plan_says_so(plan: dict[str, Any]) -> None:
    name = "nvidia-fabricmanager.service"
    unit = render({**plan, "gpus": [0], "requires": [name]}, NEW)
    assert lines(unit, "Requires") == [name] and lines(unit, "After").count(name) == 1
    assert name not in lines(unit, "Wants")


def test_a_gpu_instance_starts_no_service_that_was_turned_off(plan: dict[str, Any]) -> None:
    unit = render({**plan, "gpus": [0]}, NEW)
    assert lines(unit, "Wants") == ["network-online.target", "nvidia-cdi-refresh.service"]
    assert {"nvidia-fabricmanager.service", "nvidia-persistenced.service"} <= set(lines(unit, "After"))


def test_a_gpu_instance_asks_the_driver_before_each_start(plan: dict[str, Any]) -> None:
    plan["gpus"] = [0, 1]
    (guard,) = lines(render(plan, NEW), "ExecStartPre")
    assert systemd_reads(guard) == ["/bin/sh", "-c", gpu_guard(plan)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("gpus", "selinux"), [([0], False), ([0], True), ([], True)])
def test_selinux_keeps_no_container_from_its_model_and_gpus(
    plan: dict[str, Any], version: tuple[int, int, int], gpus: list[int], selinux: bool
) -> None:
    unit = render({**plan, "gpus": gpus}, version, LIMITS, selinux)
    assert lines(unit, "SecurityLabelDisable") == ["true"]
    assert lines(unit, "NoNewPrivileges") == (["true"] if gpus else [])


def test_a_host_with_selinux_changes_one_line_of_an_instance_without_gpus(
    backend: Any, plan: dict[str, Any], tmp_path: Path, host: Any
) -> None:
    before = backend.render(plan).splitlines()
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").write_text("1")
    after = QuadletBackend(host, sys_root=tmp_path / "sys").render(plan).splitlines()
    assert [line for line in after if line not in before] == ["SecurityLabelDisable=true"]
    assert [line for line in after if line != "SecurityLabelDisable=true"] == before


def test_a_podman_whose_inspect_shows_secrets_gets_them_as_files(plan: dict[str, Any]) -> None:
    unit = render(plan, (5, 2, 5))
    assert lines(unit, "Secret") == ["socle-chat-api_key,type=mount,target=VLLM_API_KEY"]
    (word,) = systemd_reads(lines(unit, "PodmanArgs")[0])
    script = 'export VLLM_API_KEY="$(cat /run/secrets/VLLM_API_KEY)"; exec vllm serve "$@"'
    assert json.loads(word.removeprefix("--entrypoint=")) == ["sh", "-c", script, "vllm"]
    assert lines(render(plan, (5, 3, 0)), "Secret") == ["socle-chat-api_key,type=env,target=VLLM_API_KEY"]
    assert "--entrypoint" not in render({**plan, "secrets": []}, (5, 2, 5))


def test_a_podman_without_what_is_needed_is_refused_with_the_way_out(plan: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"Podman 4\.3\.1.*upgrade Podman"):
        render(plan, (4, 3, 1))


def test_the_start_limit_can_be_reached(plan: dict[str, Any]) -> None:
    for timeout in (60, 300, 1800, 7200):
        unit = render({**plan, "start_timeout_s": timeout}, NEW)
        attempts = int(lines(unit, "StartLimitBurst")[0]) * (timeout + int(lines(unit, "RestartSec")[0]))
        assert int(lines(unit, "StartLimitIntervalSec")[0]) > attempts
        assert lines(unit, "TimeoutStartSec") == [str(timeout)]
        assert int(lines(unit, "StopTimeout")[0]) < int(lines(unit, "TimeoutStopSec")[0])


@pytest.mark.parametrize(
    ("argv", "address"),
    [
        ([], "127.0.0.1"),
        (["--host", "0.0.0.0"], "127.0.0.1"),
        (["--host=192.0.2.7"], "192.0.2.7"),
        (["--host", "2001:db8::1"], "[2001:db8::1]"),
    ],
)
def test_the_health_check_goes_where_the_engine_listens(plan: dict[str, Any], argv: list[str], address: str) -> None:
    assert probe_address(argv) == address
    unit = render({**plan, "argv": ["/models/x", *argv], "port": 8001}, NEW)
    assert lines(unit, "HealthCmd")[0].endswith(f" http://{address}:8001/health")


def test_a_refused_unit_is_reported_in_the_generators_words(backend: Any, host: Any, plan: dict[str, Any]) -> None:
    host.refuse = "converting \"vllm-chat.container\": unsupported key 'Memory' in group 'Container'"
    with pytest.raises(EngineError, match="unsupported key 'Memory' in group 'Container'"):
        backend.validate("chat", backend.render(plan))


@pytest.mark.skipif(not os.access(GENERATORS[0], os.X_OK), reason="needs Podman's Quadlet generator")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_real_generator_keeps_every_argument(
    plan: dict[str, Any], tmp_path: Path, version: tuple[int, int, int]
) -> None:
    plan["argv"] += WORDS
    plan["gpus"] = [0]
    (tmp_path / "vllm-chat.container").write_text(render(plan, version, LIMITS), encoding="utf-8")
    done = subprocess.run(
        [str(GENERATORS[0]), "-dryrun"],
        env={"QUADLET_UNIT_DIRS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    start = next(line for line in done.stdout.splitlines() if line.startswith("ExecStart="))
    assert systemd_reads(start)[-len(plan["argv"]) :] == plan["argv"]


def test_what_systemd_or_the_kernel_would_not_take_is_refused_before_it_is_written(plan: dict[str, Any]) -> None:
    for word, why in (("x" * 131_072, "131071 bytes"), ("\ud800", "control character")):
        with pytest.raises(EngineError, match=why) as caught:
            render({**plan, "argv": [*plan["argv"], "--x", word]}, NEW)
        assert len(caught.value.message) < 300
    with pytest.raises(EngineError, match="systemd reads 1000000 at most"):
        render({**plan, "argv": [*plan["argv"], *["x" * 100_000] * 10]}, NEW)


def test_a_container_that_a_start_makes_at_that_moment_is_looked_at_again(
    backend: QuadletBackend, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = host._answer

    def late(words: list[str], text: str | None, on_line: Any) -> tuple[int, str, str]:
        if words[:3] == ["podman", "container", "exists"]:
            host.containers["vllm-chat"] = {"io.socle.instance": "chat"}
        return answer(words, text, on_line)

    monkeypatch.setattr(host, "_answer", late)
    assert (backend.container_labels("chat") or {}).get("io.socle.instance") == "chat"
