"""The lab's hosts: what is refused, what is started, recreated or left alone."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import LabError
from ansible_collections.socle.inference.plugins.module_utils._lab import hosts
from ansible_collections.socle.inference.plugins.module_utils._lab.machine import Machine

HERE = Machine(unified_cgroups=False, sys_resource=False, nofile=20000, nproc=20000, architecture="x86_64")
PLAIN = Machine(unified_cgroups=True, sys_resource=True, nofile=1048576, nproc=1048576, architecture="x86_64")


def entry(name: str = "lab-cpu-1", *publish: tuple[int, int]) -> dict[str, Any]:
    ports = publish or ((2201, 22), (18001, 8000))
    return {"name": name, "publish": [{"host_port": outer, "port": inner} for outer, inner in ports]}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry("Lab_1")], "is not a host name"),
        ([entry("../etc")], "is not a host name"),
        ([entry("a;reboot")], "is not a host name"),
        ([entry("a", (18001, 8000))], "publishes no SSH port"),
        ([entry("a", (0, 22))], "publishes port 0, which is not a port"),
        ([entry("a", (70000, 22))], "publishes port 70000"),
        ([entry("a"), entry("b", (2202, 22), (18001, 8000))], "Lab hosts a and b both publish port 18001"),
    ],
)
def test_hosts_that_cannot_work_are_refused(entries: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(LabError, match=re.escape(words)):
        hosts.parse_hosts(entries)


def test_a_host_without_the_right_to_raise_limits_gets_single_capabilities() -> None:
    host = hosts.parse_hosts([entry()])[0]
    words = [str(word) for word in hosts.run_arguments(host, HERE, "image", Path("/store"))]
    assert "--privileged" not in words
    assert {"--cap-add=all", "--cap-drop=SYS_RESOURCE", "--security-opt=unmask=all"} <= set(words)
    plain = [str(word) for word in hosts.run_arguments(host, PLAIN, "image", Path("/store"))]
    assert "--privileged" in plain
    assert not [word for word in plain if word.startswith("--cap")]


def test_ports_are_published_on_loopback_only_and_the_engine_store_is_read_only() -> None:
    host = hosts.parse_hosts([entry()])[0]
    words = [str(word) for word in hosts.run_arguments(host, HERE, "image", Path("/store"))]
    published = [word for word in words if word.startswith("--publish")]
    assert published == ["--publish=127.0.0.1:2201:22", "--publish=127.0.0.1:18001:8000"]
    assert "--volume=/store:/srv/engine-store:ro" in words


def container(arguments: list[Any], state: str = "running") -> dict[str, Any]:
    return {"State": state, "Labels": {"socle.key": hosts.arguments_key(arguments)}}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({}, "create"),
        ({"a": container(["run", "image:1"])}, "none"),
        ({"a": container(["run", "image:1"], "exited")}, "start"),
        ({"a": container(["run", "image:0"])}, "recreate"),
        ({"a": {"State": "running", "Labels": None}}, "recreate"),
    ],
)
def test_a_container_is_touched_only_when_it_must_be(found: dict[str, Any], kind: str) -> None:
    (action,) = hosts.plan_containers({"a": ["run", "image:1"]}, found)
    assert action.kind == kind


def test_a_new_container_carries_the_key_that_later_runs_compare() -> None:
    (action,) = hosts.plan_containers({"a": ["run", "image:1"]}, {})
    assert action.arguments == ("run", f"--label=socle.key={hosts.arguments_key(['run', 'image:1'])}", "image:1")


def test_a_port_that_another_program_holds_is_named_before_anything_is_created() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        parsed = hosts.parse_hosts([entry("a", (port, 22))])
        with pytest.raises(LabError, match=f"port {port} of 127.0.0.1, which another program holds"):
            hosts.check_ports(parsed, [hosts.Action(parsed[0].container, "create")])
        # The host's own port, when it runs already.
        hosts.check_ports(parsed, [hosts.Action(parsed[0].container, "none")])


def test_a_rebuilt_host_replaces_its_own_key_only(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    hosts.remember_host_key(known, "[127.0.0.1]:2201 ssh-ed25519 OLD")
    hosts.remember_host_key(known, "[127.0.0.1]:22010 ssh-ed25519 OTHER")
    hosts.remember_host_key(known, "[127.0.0.1]:2201 ssh-ed25519 NEW")
    assert known.read_text().splitlines() == [
        "[127.0.0.1]:22010 ssh-ed25519 OTHER",
        "[127.0.0.1]:2201 ssh-ed25519 NEW",
    ]


def test_only_a_key_makes_a_host_known(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    (host,) = hosts.parse_hosts([entry("a", (2201, 22))])
    assert not hosts.is_known(known, host)
    # What a line looks like when something else than the key came first.
    known.write_text("[127.0.0.1]:2201 ssh-keygen: generating\n[127.0.0.1]:22010 ssh-ed25519 OTHER\n")
    assert not hosts.is_known(known, host)
    hosts.remember_host_key(known, "[127.0.0.1]:2201 ssh-ed25519 KEY")
    assert hosts.is_known(known, host)
    hosts.forget_host_key(known, host)
    assert known.read_text() == "[127.0.0.1]:22010 ssh-ed25519 OTHER\n"


def test_a_bare_host_has_no_engine_store_and_comes_back_after_a_reboot() -> None:
    host = hosts.parse_hosts([{**entry(), "kind": "bare"}])[0]
    words = [str(word) for word in hosts.run_arguments(host, HERE, "image", Path("/store"))]
    assert not [word for word in words if "/srv/engine-store" in word]
    assert "--restart=always" in words
    assert f"--volume={host.container}-docker:/var/lib/docker" in words
    assert "boot_id" in words[-1] and words[-1].endswith("exec /sbin/init")


def test_an_engine_host_is_started_as_ever() -> None:
    host = hosts.parse_hosts([entry()])[0]
    words = [str(word) for word in hosts.run_arguments(host, HERE, "image", Path("/store"))]
    assert words[-2:] == ["image", "/sbin/init"]
    assert not [word for word in words if word.startswith("--restart") or "/var/lib/docker" in word]


def test_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(LabError, match=r"of kind 'fedora', which the lab cannot build.*engine, bare, bare-bookworm"):
        hosts.parse_hosts([{**entry(), "kind": "fedora"}])


class PodmanOfDeadHost:
    """Answers as Podman does for a host whose systemd never comes up."""

    def __init__(self, state: str, jobs: str, logs: str) -> None:
        self.answers = {"inspect": (0, state), "logs": (0, logs), "systemctl": (0 if jobs else 1, jobs)}

    def run(self, *arguments: str, **_options: Any) -> subprocess.CompletedProcess[str]:
        verb = "systemctl" if "systemctl" in arguments else arguments[0]
        code, text = self.answers.get(verb, (1, ""))
        return subprocess.CompletedProcess(list(arguments), code, text, "can only exec into running containers\n")


@pytest.mark.parametrize(
    ("podman", "words"),
    [
        (
            PodmanOfDeadHost("exited", "", "Failed to allocate manager object: Too many open files\n"),
            "its container is exited, and it says: Failed to allocate manager object: Too many open files",
        ),
        (PodmanOfDeadHost("", "", ""), "its container is gone, and it says: can only exec into running containers"),
        (
            PodmanOfDeadHost("running", "12 docker.service start running\n", ""),
            "its container is running, and it says: docker.service start running;",
        ),
    ],
)
def test_a_host_that_does_not_boot_says_what_it_waits_for(
    podman: PodmanOfDeadHost, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "BOOT_TIMEOUT_S", 0)
    with pytest.raises(LabError, match=re.escape(words)):
        hosts.open_ssh(podman, hosts.parse_hosts([entry()])[0], "ssh-ed25519 AAAA")  # type: ignore[arg-type]


def test_a_host_whose_container_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.time, "sleep", lambda _seconds: pytest.fail("waited for a container that had ended"))
    with pytest.raises(LabError, match="its container is exited"):
        hosts.open_ssh(PodmanOfDeadHost("exited", "", ""), hosts.parse_hosts([entry()])[0], "")  # type: ignore[arg-type]
