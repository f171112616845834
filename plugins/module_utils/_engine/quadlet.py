# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman with Quadlet: a plan becomes a ``.container`` file. Private to socle.inference.

Where the API key goes: into Podman's secret store, and from there into the engine's environment. ``EnvironmentFile=``
would put the value into ``Config.Env`` of ``podman inspect`` and into Podman's database (measured with 5.4.2), and a
file read with vLLM's ``--config`` into the log, since vLLM logs all non-default arguments. ``Secret=...,type=env`` is
masked by ``podman inspect`` from 5.3 on (podman #23788, PR 23959); before, the secret is mounted as a file and a line
of shell in front of the engine reads it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend, Image, check_name
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._units import (
    control_character,
    path_fault,
    starts_another_command,
)

Version = tuple[int, int, int]

MINIMUM: Version = (4, 6, 0)

KEY_SINCE: dict[str, Version] = {
    "ShmSize": (4, 7, 0),
    "StopTimeout": (5, 0, 0),
    "Notify": (5, 0, 0),  # "Notify=healthy"; 4.9 takes it for "false" without a word
}
"""First Podman that knows a key (of those newer than MINIMUM): an unknown key drops the whole unit."""

FALLBACK = {"ShmSize": "--shm-size={}", "StopTimeout": "--stop-timeout={}", "Notify": "--sdnotify={}"}
"""The same by PodmanArgs=, which come after Quadlet's own arguments and win."""

MASKED_SINCE: Version = (5, 3, 0)
"""First Podman whose inspect hides secrets of type env."""

ENTRYPOINT = "vllm serve"
"""What the images start; needed where a line of shell takes its place."""

UNIT_DIR = Path("/etc/containers/systemd")

GENERATORS = (
    Path("/usr/libexec/podman/quadlet"),
    Path("/usr/lib/podman/quadlet"),
    Path("/usr/lib/systemd/system-generators/podman-system-generator"),
)

RESTART_SEC = 10
START_LIMIT_BURST = 4
STOP_TIMEOUT_S = 120
STOP_MARGIN_S = 30
HEALTH_INTERVAL_S = 15
HEALTH_TIMEOUT_S = 5
HEALTH_RETRIES = 4
START_TIMEOUT_S = 1800
SHM_SIZE_BYTES = 16 * 1024**3

AFTER = (
    "network-online.target",
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-cdi-refresh.service",
)

_BARE = re.compile(r"[A-Za-z0-9_./:,+@=-]+")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GPU = re.compile(r"[0-9]+|(GPU|MIG)-[0-9A-Za-z-]+")
_ADDRESS = re.compile(r"[0-9A-Za-z.:-]+")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def parse_version(text: str) -> Version:
    """ "podman version 5.4.2-dev" -> (5, 4, 2)."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not found:
        raise EngineError(f"Cannot read Podman's version from '{text.strip()}'; expected 'podman version X.Y.Z'.")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def quote(word: str, what: str = "argument") -> str:
    """One word for a Quadlet value that ends in ``ExecStart=``: read by Quadlet first and by systemd afterwards.

    Quadlet keeps "%" and "$" as they are, so that they must be doubled for systemd.
    """
    shown = json.dumps(word, ensure_ascii=False)
    if control_character(word):
        raise EngineError(f"Cannot put the {what} {shown} into a unit: it holds a control character; remove it.")
    if word == "":
        # Podman 5.4.2's generator drops an empty word and, silently, every word after it.
        raise EngineError(f"Cannot put an empty {what} into a unit: Quadlet would lose all that follow; remove it.")
    if starts_another_command(word):
        raise EngineError(f"Cannot put the {what} ';' into a unit: systemd would start another command; remove it.")
    if _BARE.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _checked(pattern: re.Pattern[str], value: Any, what: str, expected: str) -> str:
    text = str(value)
    if not pattern.fullmatch(text):
        raise EngineError(f"Cannot put the {what} {json.dumps(text)} into a unit: expected {expected}; change it.")
    return text


def _path(value: Any, what: str) -> str:
    path = str(value)
    fault = path_fault(path)
    if fault:
        raise EngineError(f"Cannot put the {what} {json.dumps(path)} into a unit: {fault}; change it.")
    return path


def probe_address(argv: Sequence[str]) -> str:
    """Where the instance answers on its own host: the value of --host, or loopback where it listens everywhere."""
    host = ""
    for index, word in enumerate(argv):
        if word == "--host" and index + 1 < len(argv):
            host = argv[index + 1]
        elif word.startswith("--host="):
            host = word[len("--host=") :]
    if host in ("", "0.0.0.0", "::", "localhost"):
        return "127.0.0.1"
    address = _checked(_ADDRESS, host, "address (--host)", "an IP address or a host name")
    return f"[{address}]" if ":" in address else address


def secret_name(instance: str, name: str) -> str:
    """Name of an instance's secret in Podman's store."""
    return f"socle-{check_name(instance)}-{name}"


def render(plan: dict[str, Any], version: Version) -> str:
    """The text of ``vllm-<instance>.container`` for a sealed plan and a version of Podman."""
    if version < MINIMUM:
        raise EngineError(
            f"Cannot run instances with Podman {'.'.join(map(str, version))}: Quadlet as needed here starts with Podman"
            " 4.6; upgrade Podman or the operating system (the Docker backend for older hosts is not available yet).",
            podman_version=".".join(map(str, version)),
        )
    instance = check_name(str(plan["instance"]))
    start_timeout = int(plan.get("start_timeout_s") or START_TIMEOUT_S)
    port = int(plan["port"])
    address = probe_address(plan["argv"])
    # Longer than all allowed attempts take together, or the limit never trips and a bad flag loops for ever.
    interval = 2 * START_LIMIT_BURST * (start_timeout + RESTART_SEC)

    container: list[tuple[str, str]] = []
    podman_args: list[str] = []

    def add(key: str, value: str) -> None:
        if version >= KEY_SINCE.get(key, MINIMUM):
            container.append((key, value))
        else:
            podman_args.append(FALLBACK[key].format(value))

    digest = str(plan.get("image_digest") or "")
    image = _checked(_IMAGE, plan["image"], "image", "a reference such as registry/name:tag")
    # By id, so that a tag that moved cannot change what a restart runs.
    add("Image", digest[len("sha256:") :] if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else image)
    add("ContainerName", f"vllm-{instance}")
    add("Pull", "never")
    add("Network", str(plan.get("network") or "host"))
    add("ShmSize", str(int(plan.get("shm_size_bytes") or SHM_SIZE_BYTES)))
    add("RunInit", "true")
    add("LogDriver", "journald")
    add("StopTimeout", str(STOP_TIMEOUT_S))
    for key, value in (
        ("instance", instance),
        ("image", image),
        ("launch-fingerprint", plan.get("launch_fingerprint") or "unsealed"),
    ):
        add("Label", quote(f"io.socle.{key}={value}", "label"))
    for gpu in plan.get("gpus") or []:
        add("AddDevice", "nvidia.com/gpu=" + _checked(_GPU, gpu, "GPU", "an index or a UUID such as GPU-..."))
    for mount in sorted(plan.get("mounts") or [], key=lambda mount: str(mount["target"])):
        source = _path(mount["source"], "mount source")
        target = _path(mount["target"], "mount target")
        add("Volume", f"{source}:{target}:{'ro' if mount.get('read_only', True) else 'rw'}")
    for key, value in sorted((plan.get("env") or {}).items()):
        _checked(_ENV_NAME, key, "name of an environment variable", "letters, digits and '_'")
        add("Environment", quote(f"{key}={value}", "environment variable"))
    exports = []
    for secret in plan.get("secrets") or []:
        target = _checked(_ENV_NAME, secret["target"], "name of a secret's variable", "letters, digits and '_'")
        kind = "env" if version >= MASKED_SINCE else "mount"
        add("Secret", f"{secret_name(instance, secret['name'])},type={kind},target={target}")
        exports.append(f'export {target}="$(cat /run/secrets/{target})"')
    if exports and version < MASKED_SINCE:
        script = "; ".join([*exports, f'exec {ENTRYPOINT} "$@"'])
        podman_args.append(quote("--entrypoint=" + json.dumps(["sh", "-c", script, "vllm"])))
    # Podman runs it with the container's shell. No quotes: Podman before 5.8.2 loses them.
    add("HealthCmd", f"curl --noproxy {address.strip('[]')} -fsS -o /dev/null http://{address}:{port}/health")
    add("HealthInterval", f"{HEALTH_INTERVAL_S}s")
    add("HealthTimeout", f"{HEALTH_TIMEOUT_S}s")
    add("HealthRetries", str(HEALTH_RETRIES))
    add("HealthStartPeriod", f"{start_timeout}s")
    add("HealthOnFailure", "kill")
    add("Notify", "healthy")
    container.extend(("PodmanArgs", word) for word in podman_args)
    words = [quote(str(word)) for word in plan["argv"]]
    container.append(("Exec", " \\\n    ".join(words)))

    sections: list[tuple[str, list[tuple[str, str]]]] = [
        (
            "Unit",
            [
                ("Description", f"vLLM instance {instance}"),
                *(("Wants", name) for name in AFTER),
                *(("After", name) for name in AFTER),
                ("StartLimitIntervalSec", str(interval)),
                ("StartLimitBurst", str(START_LIMIT_BURST)),
            ],
        ),
        ("Container", container),
        (
            "Service",
            [
                # The engine exits with 0 when it dies. Status 2 is a command line that it refuses: no use to repeat it.
                ("Restart", "always"),
                ("RestartSec", str(RESTART_SEC)),
                ("RestartPreventExitStatus", "2"),
                ("TimeoutStartSec", str(start_timeout)),
                ("TimeoutStopSec", str(STOP_TIMEOUT_S + STOP_MARGIN_S)),
            ],
        ),
        ("Install", [("WantedBy", "multi-user.target")]),
    ]
    blocks = ["# managed by socle: changes made here are overwritten"]
    for title, entries in sections:
        blocks.append("\n".join([f"[{title}]", *(f"{key}={value}" for key, value in entries)]))
    return "\n\n".join(blocks) + "\n"


class QuadletBackend(Backend):
    """Podman 4.6 or newer, rootful, units made by its Quadlet generator."""

    name = "podman"

    def __init__(
        self, runner: Runner, unit_dir: Path = UNIT_DIR, generators: Iterable[Path] = GENERATORS, podman: str = "podman"
    ) -> None:
        super().__init__(runner)
        self._unit_dir = unit_dir
        self._generators = list(generators)
        self._podman_path = podman
        self._version: Version | None = None

    def _podman(
        self,
        *argv: str,
        input_text: str | None = None,
        timeout_s: float = 60.0,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed[str]:
        return self._runner([self._podman_path, *argv], input_text=input_text, timeout_s=timeout_s, on_line=on_line)

    def version(self) -> Version:
        """Podman's version, asked once."""
        if self._version is None:
            done = self._podman("--version")
            if done.returncode != 0:
                raise EngineError(
                    f"'podman --version' failed: {done.stderr.strip()}; repair the Podman installation.",
                    rc=done.returncode,
                    stderr=done.stderr,
                )
            self._version = parse_version(done.stdout)
        return self._version

    def unit_file(self, instance: str) -> Path:
        return self._unit_dir / f"vllm-{check_name(instance)}.container"

    def render(self, plan: dict[str, Any]) -> str:
        return render(plan, self.version())

    def validate(self, instance: str, text: str) -> None:
        generator = next((path for path in self._generators if os.access(path, os.X_OK)), None)
        if generator is None:
            raise EngineError(
                f"Cannot check the unit of {instance}: Quadlet's generator is not on this host, expected at"
                f" {self._generators[0] if self._generators else GENERATORS[0]}; install Podman 4.6 or newer with"
                " Quadlet (Debian and RHEL package 'podman').",
            )
        with tempfile.TemporaryDirectory(prefix="socle-unit-") as folder:
            name = self.unit_file(instance).name
            (Path(folder) / name).write_text(text, encoding="utf-8")
            done = self._runner(["env", f"QUADLET_UNIT_DIRS={folder}", str(generator), "-dryrun"])
        made = f"---{self.service(instance)}---" in done.stdout
        if done.returncode != 0 or not made:
            words = "; ".join(
                re.sub(r"^quadlet-generator\[\d+\]: ", "", line)
                for line in done.stderr.splitlines()
                if line.strip() and "Loading source unit file" not in line
            )
            raise EngineError(
                f"Quadlet refuses the unit of {instance}: {words or 'it made no service of it, without a reason'};"
                " nothing was installed; this is a fault of the plan's values or of the renderer.",
                unit=text,
                rc=done.returncode,
                stderr=done.stderr,
            )

    def exec(self, instance: str, argv: Sequence[str], timeout_s: float = 60.0) -> Completed[str]:
        return self._podman("exec", f"vllm-{check_name(instance)}", *argv, timeout_s=timeout_s)

    def check_health(self, instance: str) -> None:
        self._podman("healthcheck", "run", f"vllm-{check_name(instance)}")

    def image(self, reference: str) -> Image | None:
        done = self._podman("image", "inspect", "--format", "json", reference)
        if done.returncode != 0:
            # Podman says the same status for "not there" and "broken": ask which one it is.
            if self._podman("image", "exists", reference).returncode == 1:
                return None
            raise EngineError(
                f"Cannot look at image {reference}: {done.stderr.strip()}; repair Podman's storage on the host.",
                rc=done.returncode,
                stderr=done.stderr,
            )
        found = json.loads(done.stdout)[0]
        identifier = str(found["Id"])
        return Image(
            id=identifier if identifier.startswith("sha256:") else f"sha256:{identifier}",
            repo_digests=sorted(found.get("RepoDigests") or []),
        )

    def pull(self, reference: str, on_line: Callable[[str], None] | None = None) -> None:
        done = self._podman("pull", reference, timeout_s=6 * 3600.0, on_line=on_line)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = next(
                (line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "no reason given"
            )
            raise EngineError(
                f"Cannot pull image {reference}: {reason.strip()}; check the name, the registry and the way to it,"
                " or load the image on the host by other means.",
                rc=done.returncode,
                stderr=done.stderr,
            )

    _MARK = "io.socle.hmac"

    def secret_mark(self, instance: str, name: str) -> str | None:
        done = self._podman("secret", "inspect", secret_name(instance, name))
        if done.returncode != 0:
            return None
        labels = json.loads(done.stdout)[0]["Spec"].get("Labels") or {}
        return str(labels.get(self._MARK, ""))

    def put_secret(self, instance: str, name: str, value: str, mark: str) -> None:
        # Not --replace, which Podman 4.6 does not have.
        self.remove_secret(instance, name)
        target = secret_name(instance, name)
        done = self._podman("secret", "create", "--label", f"{self._MARK}={mark}", target, "-", input_text=value)
        if done.returncode != 0:
            raise EngineError(
                f"Cannot store the secret {target} in Podman: {done.stderr.strip()}; repair Podman's storage there.",
                rc=done.returncode,
                stderr=done.stderr,
            )

    def remove_secret(self, instance: str, name: str) -> None:
        if self.secret_mark(instance, name) is not None:
            self._podman("secret", "rm", secret_name(instance, name))
