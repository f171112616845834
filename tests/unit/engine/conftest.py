# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as the lab has it, and the only double: systemd, Podman and Docker as a recorded runner."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import DockerBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.select import parse_version

DIGEST = "sha256:" + "8eb354016a265cc363137588785c4b620ca9864990c07b49974660cf7a84a2fa"

PLAN: dict[str, Any] = {
    "schema": "socle.plan/1",
    "host": "lab1",
    "instance": "chat",
    "image": "localhost/socle/vllm-cpu:0.32.0",
    "image_digest": DIGEST,
    "argv": [
        "/models/SmolLM2-135M-Instruct",
        "--host",
        "127.0.0.1",
        "--port",
        "8000",
        "--max-model-len",
        "4096",
        "--served-model-name",
        "smol",
        "--override-generation-config",
        '{"temperature": 0.5}',
    ],
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    "secrets": [{"name": "api_key", "target": "VLLM_API_KEY"}],
    "mounts": [
        {
            "source": "/var/lib/socle/models/store/smol/rev/0123456789ab",
            "target": "/models/SmolLM2-135M-Instruct",
            "read_only": True,
            "kind": "model",
        },
        {"source": "/var/lib/socle/cache/abc", "target": "/root/.cache/vllm", "read_only": False, "kind": "cache"},
    ],
    "gpus": [],
    "port": 8000,
    "network": "host",
    "shm_size_bytes": 536870912,
    "start_timeout_s": 300,
    "served_names": ["smol"],
    "max_model_len": 4096,
    "api_key_required": True,
    "launch_fingerprint": "sha256:aaaa",
    "environment_fingerprint": "sha256:eeee",
    "sealed": True,
}


@pytest.fixture
def plan() -> dict[str, Any]:
    return copy.deepcopy(PLAN)


class Host:
    """Answers the commands that a launch runs, as a host with systemd, Podman and Docker would."""

    def __init__(self, podman: str = "5.4.2", docker: str = "26.1.5+dfsg1") -> None:
        self.podman = podman
        self.docker = docker
        self.cdi_dirs = '["/etc/cdi","/var/run/cdi"]'
        self.enabled: set[str] = set()
        self.verified: list[str] = []
        self.calls: list[list[str]] = []
        self.active = "inactive"
        self.invocation = 0
        self.restarts = 0
        self.nrestarts = 0
        self.job = 0
        self.result = "success"
        self.started_us = 0
        self.main_us = 0
        self.ended_us = 0
        self.sub = "running"
        self.main_pid = 4711
        self.others: dict[str, str] = {}
        """State of other instances' units, by name of the instance."""
        self.active_us = 0
        self.journal: list[tuple[int, str]] = []
        self.kernel: list[tuple[int, str]] = []
        self.ring_buffer = ""
        """What dmesg prints, where the journal has nothing of the kernel."""
        self.oom_killed: str | None = None
        self.exit_status = 1
        self.reads = 0
        self.secrets: dict[str, tuple[str, str]] = {}
        self.images: dict[str, list[str]] = {}
        self.containers: dict[str, dict[str, str] | None] = {}
        """Labels of the containers that are there; Podman and Docker have the same."""
        self.refuse = ""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        input_text: str | None = None,
        timeout_s: float = 60.0,
        on_line: Any = None,
        enough: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = list(argv)
        self.calls.append(words)
        rc, out, err = self._answer(words, input_text, on_line)
        if enough is not None and len(out) > enough:
            rc, out = -signal.SIGKILL, out[:enough]
        return subprocess.CompletedProcess(words, rc, out, err)

    def count(self, *words: str) -> int:
        return sum(call[: len(words)] == list(words) for call in self.calls)

    def _answer(self, words: list[str], input_text: str | None, on_line: Any) -> tuple[int, str, str]:
        match words:
            case ["podman", "--version"]:
                return 0, f"podman version {self.podman}\n", ""
            case ["env", _, _, "-dryrun"]:
                folder = Path(words[1].split("=", 1)[1])
                service = next(folder.iterdir()).name.replace(".container", ".service")
                if self.refuse:
                    return (
                        1,
                        "",
                        f"quadlet-generator[7]: Loading source unit file x\nquadlet-generator[7]: {self.refuse}\n",
                    )
                return 0, f"---{service}---\n", ""
            case ["systemctl", "show", _, *services]:
                return 0, "\n".join(self._show(service) for service in services), ""
            case ["systemctl", "restart", "--no-block", _]:
                self.restarts += 1
                self.invocation += 1
                self.active = "activating"
                self.nrestarts = 0
                return 0, "", ""
            case ["systemctl", "stop", _]:
                self.active = "inactive"
                return 0, "", ""
            case ["systemctl", "daemon-reload" | "reset-failed", *_]:
                return 0, "", ""
            case ["systemctl", "enable", service]:
                self.enabled.add(service)
                return 0, "", ""
            case ["systemctl", "disable", service]:
                self.enabled.discard(service)
                return 0, "", ""
            case ["systemd-analyze", "verify", path]:
                self.verified.append(Path(path).read_text(encoding="utf-8"))
                # An unknown key is no failure for it.
                return 0, "", self.refuse.replace("@", path)
            case ["docker", "version", "--format", _]:
                return (
                    (0, f"{self.docker}\n", "") if self.docker else (1, "\n", "Cannot connect to the Docker daemon.\n")
                )
            case ["docker", "info", "--format", _]:
                return 0, f"{self.cdi_dirs}\n", ""
            case ["docker", "image", "inspect", name]:
                if name not in self.images:
                    return 1, "[]\n", self.refuse or f"Error response from daemon: No such image: {name}\n"
                return 0, json.dumps([{"Id": "sha256:" + "ab" * 32, "RepoDigests": self.images[name]}]), ""
            case ["podman" | "docker", "container", "inspect", "--format", "{{json .Config.Labels}}", name]:
                if name in self.containers:
                    return 0, json.dumps(self.containers[name]) + "\n", ""
                if words[0] == "podman":
                    return 125, "", self.refuse or f"Error: no such container {name}\n"
                return 1, "\n", self.refuse or f"Error response from daemon: No such container: {name}\n"
            case ["podman" | "docker", "rm", "--force", name]:
                self.containers.pop(name, None)
                return 0, "", ""
            case ["podman", "container", "exists", name]:
                return (125 if self.refuse else 0 if name in self.containers else 1), "", self.refuse
            case ["docker", "pull", name]:
                lines = ["1: Pulling from x", "0123456789ab: Pulling fs layer", "ba9876543210: Already exists"]
                for line in [*lines, "0123456789ab: Pull complete"]:
                    on_line(line)
                if self.refuse:
                    return 1, "", f"{self.refuse}\n"
                self.images[name] = ["registry/x@sha256:" + "cd" * 32]
                return 0, "", ""
            case ["journalctl", "--dmesg", *_]:
                entries = [json.dumps({"__MONOTONIC_TIMESTAMP": str(at), "MESSAGE": text}) for at, text in self.kernel]
                return 0, "\n".join(entries), ""
            case ["dmesg"]:
                return 0, self.ring_buffer, ""
            case ["podman" | "docker", "container", "inspect", "--format", "{{.State.OOMKilled}}", _]:
                return (125, "", "no such container") if self.oom_killed is None else (0, self.oom_killed, "")
            case ["journalctl", *_]:
                self.reads += 1
                start = int(words[words.index("--after-cursor") + 1]) if "--after-cursor" in words else 0
                entries = [
                    json.dumps({"__CURSOR": str(index + 1), "__MONOTONIC_TIMESTAMP": str(at), "MESSAGE": text})
                    for index, (at, text) in enumerate(self.journal)
                    if index >= start
                ]
                return 0, "\n".join(entries), ""
            case ["podman", "secret", "inspect", name]:
                if name not in self.secrets:
                    return 1, "[]", "no such secret"
                return 0, json.dumps([{"Spec": {"Labels": {"io.socle.hmac": self.secrets[name][1]}}}]), ""
            case ["podman", "secret", "exists", name]:
                return (0 if name in self.secrets else 1), "", ""
            case ["podman", "secret", "create", "--label", label, name, "-"]:
                assert name not in self.secrets and input_text
                self.secrets[name] = (input_text, label.split("=", 1)[1])
                return 0, "", ""
            case ["podman", "secret", "create", "--label", label, "--replace", name, "-"]:
                # What is not there it replaces only since 5.1.
                assert name in self.secrets and input_text and (parse_version(self.podman) or ()) >= (4, 7)
                self.secrets[name] = (input_text, label.split("=", 1)[1])
                return 0, "", ""
            case ["podman", "secret", "rm", name]:
                del self.secrets[name]
                return 0, "", ""
            case ["podman", "image", "exists", name]:
                return (0 if name in self.images else 1), "", ""
            case ["podman", "image", "inspect", "--format", "json", name]:
                if name not in self.images:
                    return 125, "", f"Error: {name}: image not known"
                return 0, json.dumps([{"Id": "ab" * 32, "RepoDigests": self.images[name]}]), ""
            case ["podman", "pull", name]:
                if self.refuse:
                    return 125, "", f"Trying to pull {name}...\n{self.refuse}\n"
                self.images[name] = ["registry/x@sha256:" + "cd" * 32]
                return 0, "ab", ""
            case ["podman", "healthcheck", "run", _]:
                self.active, self.job = "active", 0
                return 0, "", ""
        raise AssertionError(f"unexpected command {words}")

    def _show(self, service: str) -> str:
        active = self.others.get(service.removeprefix("vllm-").removesuffix(".service"), self.active)
        values = {
            "Id": service,
            "LoadState": "loaded",
            "ActiveState": active,
            "MainPID": self.main_pid if active in ("active", "activating") else 0,
            "SubState": self.sub,
            "Result": self.result,
            "NRestarts": self.nrestarts,
            "InvocationID": f"{self.invocation:032x}" if self.invocation else "",
            "Job": self.job or "",
            "ExecMainStatus": self.exit_status,
            "InactiveExitTimestampMonotonic": self.started_us,
            "ActiveEnterTimestampMonotonic": self.active_us,
            "ExecMainStartTimestampMonotonic": self.main_us,
            "ExecMainExitTimestampMonotonic": self.ended_us,
        }
        return "\n".join(f"{key}={value}" for key, value in values.items()) + "\n"


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def backend(host: Host, tmp_path: Path) -> QuadletBackend:
    """Podman on a host whose CDI specification lists a few GPUs."""
    conf = tmp_path / "root/etc/containers/containers.conf"
    specification = tmp_path / "root/cdi/nvidia.json"
    for path in (conf, specification):
        path.parent.mkdir(parents=True)
    conf.write_text(f'[engine]\ncdi_spec_dirs = ["{specification.parent}"]\n')
    devices = [{"name": name} for name in ("0", "1", "2", "3", "GPU-a")]
    specification.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}))
    return QuadletBackend(
        host, tmp_path / "systemd", [Path("/bin/true")], root=tmp_path / "root", sys_root=tmp_path / "sys"
    )


@pytest.fixture
def docker(host: Host, tmp_path: Path) -> DockerBackend:
    return DockerBackend(
        host,
        unit_dir=tmp_path / "system",
        secrets_dir=tmp_path / "secrets",
        docker="docker",
        sys_root=tmp_path / "sys",
    )
