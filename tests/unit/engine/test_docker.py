# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a plan to a service that runs Docker in the foreground, and what Docker is asked."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import (
    DockerBackend,
    health_command,
    quote,
    readiness_command,
    render,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._engine.image import ensure_image
from ansible_collections.socle.inference.plugins.module_utils._engine.secret import ensure_api_key
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import gpu_guard
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from .conftest import DIGEST, Host
from .test_quadlet import WORDS, lines, systemd_reads

GOLDEN = Path(__file__).parent / "fixtures" / "vllm-chat.service"
KEY = "s3cr3t $%\"' value"
LIMITS = ["nofile=1048576:1048576", "memlock=-1:-1"]


def start_words(unit: str) -> list[str]:
    start = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    assert start
    return systemd_reads(start[1].replace("\\\n", " "))


def test_the_lab_plan_gives_exactly_this_unit(plan: dict[str, Any]) -> None:
    assert render(plan) == GOLDEN.read_text(encoding="utf-8")


def test_the_same_plan_in_another_order_gives_the_same_unit(plan: dict[str, Any]) -> None:
    plan["env"] = dict(reversed(plan["env"].items()))
    plan["mounts"] = plan["mounts"][::-1]
    assert render(plan) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("word", [*WORDS, "", ";", "@file", "!", "+x", ":"])
def test_an_argument_arrives_as_it_was_written(plan: dict[str, Any], word: str) -> None:
    plan["argv"] += [word, "--last"]
    assert start_words(render(plan))[-len(plan["argv"]) :] == plan["argv"]


@pytest.mark.parametrize("word", ["two\nlines", "nul\0", "tab\t", "\x7f", "cr\r"])
def test_an_argument_that_no_unit_can_carry_is_refused(word: str) -> None:
    with pytest.raises(EngineError, match="Cannot put"):
        quote(word)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("instance", "a b"),
        ("image", "x\n[Service]"),
        ("image", "x --privileged"),
        ("gpus", ["0 --privileged"]),
        ("env", {"A B": "1"}),
        ("env", {"A": "1\nExecStartPre=/bin/sh"}),
        ("requires", ["a.service\nExecStart=/bin/sh"]),
        ("mounts", [{"source": "/a,readonly=false", "target": "/b", "read_only": True}]),
    ],
)
def test_a_value_cannot_smuggle_another_directive(plan: dict[str, Any], key: str, value: Any) -> None:
    plan[key] = value
    with pytest.raises(EngineError):
        render(plan)


def test_gpus_come_by_cdi_and_by_nothing_else(plan: dict[str, Any]) -> None:
    plan["gpus"] = [0, "GPU-5f2c0000-0000-0000-0000-000000000001"]
    words = start_words(render(plan, LIMITS))
    assert [word for word in words if word.startswith("--device")] == [
        "--device=nvidia.com/gpu=0",
        "--device=nvidia.com/gpu=GPU-5f2c0000-0000-0000-0000-000000000001",
    ]
    # NVIDIA's runtime as the default would add all GPUs that NVIDIA_VISIBLE_DEVICES of the image names.
    assert "--runtime=runc" in words and "--security-opt=no-new-privileges" in words
    assert [word for word in words if word.startswith("--ulimit")] == [f"--ulimit={limit}" for limit in LIMITS]


def test_the_image_is_taken_by_its_id(plan: dict[str, Any]) -> None:
    words = start_words(render({**plan, "secrets": []}))
    assert words[-len(plan["argv"]) - 1] == DIGEST and "--pull=never" in words
    words = start_words(render({**plan, "secrets": [], "image_digest": None}))
    assert words[-len(plan["argv"]) - 1] == plan["image"]


def test_a_plan_without_a_key_starts_what_the_image_starts(plan: dict[str, Any]) -> None:
    unit = render({**plan, "secrets": []})
    assert "--entrypoint" not in unit and "/run/secrets" not in unit


def test_the_fabric_manager_is_required_where_the_plan_says_so(plan: dict[str, Any]) -> None:
    unit = render({**plan, "requires": ["nvidia-fabricmanager.service"]})
    assert lines(unit, "Requires") == ["docker.service", "nvidia-fabricmanager.service"]
    assert "nvidia-fabricmanager.service" in lines(unit, "After")
    assert "nvidia-fabricmanager.service" not in lines(unit, "Wants")


def test_a_gpu_instance_starts_no_service_that_was_turned_off(plan: dict[str, Any]) -> None:
    unit = render({**plan, "gpus": [0]})
    assert lines(unit, "Wants") == ["network-online.target", "nvidia-cdi-refresh.service"]
    assert {"nvidia-fabricmanager.service", "nvidia-persistenced.service"} <= set(lines(unit, "After"))


@pytest.mark.parametrize(("gpus", "selinux"), [([0], False), ([0], True), ([], True)])
def test_selinux_keeps_no_container_from_its_model_and_gpus(
    docker: DockerBackend, plan: dict[str, Any], tmp_path: Path, gpus: list[int], selinux: bool
) -> None:
    if selinux:
        (tmp_path / "sys/fs/selinux").mkdir(parents=True)
        (tmp_path / "sys/fs/selinux/enforce").write_text("1")
    words = start_words(docker.render({**plan, "gpus": gpus}))
    assert "--security-opt=label=disable" in words
    assert ("--security-opt=no-new-privileges" in words) == bool(gpus)


def test_a_gpu_instance_asks_the_driver_before_each_start(plan: dict[str, Any]) -> None:
    plan["gpus"] = [0, 1]
    guard, cleaning = lines(render(plan), "ExecStartPre")
    assert systemd_reads(guard) == ["/bin/sh", "-c", gpu_guard(plan)] and "rm -f" in cleaning


@pytest.mark.parametrize("gpus", [[], [0]])
def test_an_instance_waits_for_the_file_systems_that_it_reads(plan: dict[str, Any], gpus: list[int]) -> None:
    assert lines(render({**plan, "gpus": gpus}), "RequiresMountsFor") == [
        "/var/lib/socle/models/store/smol/rev/0123456789ab",
        "/var/lib/socle/cache/abc",
        "/var/lib/socle/secrets/chat/docker-api_key",
    ]


def test_the_start_limit_can_be_reached_and_stop_has_its_time(plan: dict[str, Any]) -> None:
    for timeout in (60, 1800, 7200):
        unit = render({**plan, "start_timeout_s": timeout})
        attempts = int(lines(unit, "StartLimitBurst")[0]) * (timeout + int(lines(unit, "RestartSec")[0]))
        assert int(lines(unit, "StartLimitIntervalSec")[0]) > attempts
        stop = re.search(r"docker stop -t (\d+)", lines(unit, "ExecStop")[0])
        assert stop and int(stop[1]) < int(lines(unit, "TimeoutStopSec")[0])


def test_the_api_key_is_in_a_file_for_root_and_nowhere_else(
    docker: DockerBackend, host: Host, plan: dict[str, Any], tmp_path: Path
) -> None:
    first = ensure_api_key(docker, tmp_path / "secrets", "chat", KEY, Files())
    unit = docker.render(plan)
    source = re.search(r"--mount=type=bind,source=(\S+),target=/run/secrets/VLLM_API_KEY,readonly", unit)
    assert source and Path(source[1]).read_text() == KEY
    assert stat.S_IMODE(Path(source[1]).stat().st_mode) == 0o600
    assert KEY not in unit and not any(KEY in word for call in host.calls for word in call)
    assert ensure_api_key(docker, tmp_path / "secrets", "chat", KEY, Files()) == {
        "changed": False,
        "hmac": first["hmac"],
    }
    assert ensure_api_key(docker, tmp_path / "secrets", "chat", "other", Files())["changed"]
    assert Path(source[1]).read_text() == "other"
    assert ensure_api_key(docker, tmp_path / "secrets", "chat", None, Files()) == {"changed": True, "hmac": None}
    assert not list((tmp_path / "secrets" / "chat").iterdir())


def test_the_shell_gives_the_key_to_the_engine_as_it_is(plan: dict[str, Any], tmp_path: Path) -> None:
    words = start_words(render(plan))
    script, rest = words[words.index("-c") + 1], words[words.index("-c") + 2 :]
    (tmp_path / "key").write_text(KEY)
    script = script.replace("/run/secrets/VLLM_API_KEY", str(tmp_path / "key"))
    engine = tmp_path / "vllm"
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$VLLM_API_KEY" "$@"\n')
    engine.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", script, *rest],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [KEY, "serve", *plan["argv"]]


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def shell(script: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_readiness_comes_with_the_first_answer_and_ends_with_the_container(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    tools = tmp_path / "bin"
    count = f"echo >>{tmp_path}/calls; test $(wc -l <{tmp_path}/calls)"
    tool(tools, "sleep", "exit 0")
    # Not there yet, then one whose engine answers at the third try.
    tool(tools, "docker", f'{count} -gt 2 || exit 1; shift 2; exec "$@"')
    tool(tools, "curl", f"{count} -gt 5 || exit 7")
    script = readiness_command(plan, docker="docker")
    assert shell(script, tools, MAINPID=str(os.getpid())).returncode == 0
    assert len((tmp_path / "calls").read_text().splitlines()) == 6
    # The client has ended, and with it the container.
    gone = subprocess.Popen(["true"])
    gone.wait()
    tool(tools, "docker", "exit 1")
    assert shell(script, tools, MAINPID=str(gone.pid)).returncode == 1


def test_a_stop_before_the_first_answer_ends_the_container_at_once(plan: dict[str, Any], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    calls = tmp_path / "calls"
    # As the container would, the inner loop lasts until it is killed.
    tool(tools, "docker", f'echo "$1 $2" >>{tmp_path}/calls; test "$1" = kill || exec sleep 20')
    with subprocess.Popen(
        ["sh", "-c", readiness_command(plan, docker="docker")],
        env={"PATH": f"{tools}:{os.environ['PATH']}", "MAINPID": str(os.getpid())},
        start_new_session=True,
    ) as process:
        try:
            # Its line, not only the file: a loaded machine has a moment between the two.
            while not calls.exists() or not calls.read_text():
                assert process.poll() is None
            process.terminate()
            assert process.wait(timeout=10) == 1
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert calls.read_text().splitlines() == ["exec vllm-chat", "kill vllm-chat"]


def test_health_ends_an_engine_that_hangs_but_none_that_still_starts(plan: dict[str, Any], tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    script = health_command(plan)
    assert script.endswith("kill -9 -1")
    script = script.replace("kill -9 -1", "echo ended").replace("/tmp/.socle-healthy", str(tmp_path / "healthy"))
    tool(tools, "sleep", "exit 0")
    tool(tools, "curl", f"echo >>{tmp_path}/asked; exit 28")
    starting = shell(script, tools)
    assert (starting.returncode, starting.stdout) == (1, "")
    tool(tools, "curl", "exit 0")
    assert (shell(script, tools).returncode, (tmp_path / "healthy").exists()) == (0, True)
    tool(tools, "curl", f"echo >>{tmp_path}/asked; exit 28")
    (tmp_path / "asked").unlink()
    assert shell(script, tools).stdout == "ended\n"
    assert len((tmp_path / "asked").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("version", "gpus", "refusal"),
    [
        ("26.1.5+dfsg1", [0], None),
        ("25.0.0", [0], None),
        ("20.10.24", [], None),
        ("24.0.9", [0], r"with GPUs under Docker 24\.0\.9: expected Docker 25 or newer, the first that knows CDI"),
        ("19.03.15", [], r"under Docker 19\.3\.15: expected Docker 20\.10 or newer; upgrade"),
        ("", [], r"Cannot ask Docker's daemon for its version: Cannot connect to the Docker daemon; start it"),
    ],
)
def test_a_docker_that_is_too_old_is_refused_with_the_way_out(
    docker: DockerBackend, host: Host, plan: dict[str, Any], version: str, gpus: list[int], refusal: str | None
) -> None:
    host.docker = version
    if refusal is None:
        assert docker.render({**plan, "gpus": gpus})
        return
    with pytest.raises(EngineError, match=refusal):
        docker.render({**plan, "gpus": gpus})


@pytest.mark.parametrize("dirs", ["null", "[]"])
def test_a_docker_whose_cdi_is_off_looks_nowhere(docker: DockerBackend, host: Host, dirs: str) -> None:
    assert docker.cdi_dirs() == [Path("/etc/cdi"), Path("/var/run/cdi")]
    host.cdi_dirs = dirs
    assert docker.cdi_dirs() == []


def test_a_line_that_systemd_would_leave_out_is_refused_in_its_words(
    docker: DockerBackend, host: Host, plan: dict[str, Any]
) -> None:
    text = docker.render(plan)
    docker.validate("chat", text)
    assert host.verified == [text]
    host.refuse = "/usr/lib/systemd/system/docker.socket:6: a warning about another unit\n"
    docker.validate("chat", text)
    host.refuse = "@:12: Unknown key 'KilMode' in section [Service], ignoring.\n"
    with pytest.raises(EngineError, match=r"refuses the unit of chat: vllm-chat\.service:12: Unknown key 'KilMode'"):
        docker.validate("chat", text)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_the_real_systemd_reads_the_unit(plan: dict[str, Any], tmp_path: Path) -> None:
    plan["argv"] += [*WORDS, "", ";"]
    plan["gpus"] = [0]
    # What this machine need not have: Docker and its service.
    text = render(plan, LIMITS, docker="/bin/true").replace("Requires=docker.service\n", "")
    backend = DockerBackend(run, unit_dir=tmp_path)
    backend.validate("chat", text)
    with pytest.raises(EngineError, match="KilMode"):
        backend.validate("chat", text.replace("KillMode", "KilMode"))
    with pytest.raises(EngineError, match=r"(?i)quot"):
        backend.validate("chat", text.replace("--rm", '"--rm'))


def image(backend: DockerBackend, seen: list[str] | None = None, **options: Any) -> dict[str, Any]:
    progress = Progress()
    if seen is not None:
        progress.update = lambda **kw: seen.append(str(kw.get("detail")))  # type: ignore[method-assign]
    given: dict[str, Any] = {"pull": "missing", "progress": progress, "clock": lambda: 0.0, **options}
    return ensure_image(backend, "registry/x:1", **given)


def test_a_missing_image_is_pulled_once_and_its_parts_are_counted(docker: DockerBackend, host: Host) -> None:
    seen: list[str] = []
    first = image(docker, seen)
    assert first["changed"] and first["digest"] == "sha256:" + "ab" * 32
    assert seen[-1] == "registry/x:1, 2 of 2 parts"
    assert image(docker)["changed"] is False and host.count("docker", "pull") == 1


def test_a_pull_that_fails_says_why(docker: DockerBackend, host: Host) -> None:
    host.refuse = "Error response from daemon: manifest for registry/x:1 not found: No such image"
    with pytest.raises(EngineError, match=r"Cannot pull image registry/x:1: Error response from daemon: manifest"):
        image(docker)


def test_a_broken_docker_is_not_taken_for_a_missing_image(docker: DockerBackend, host: Host) -> None:
    host.refuse = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\n"
    with pytest.raises(EngineError, match=r"Cannot look at image registry/x:1: Cannot connect"):
        image(docker)


def test_a_host_without_docker_is_told_what_to_install(tmp_path: Path) -> None:
    backend = DockerBackend(run, docker=str(tmp_path / "docker"))
    with pytest.raises(EngineError, match=r"Cannot run docker on this host.*install Docker 20\.10"):
        backend.version()
