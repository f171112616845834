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
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine import unit
from ansible_collections.socle.inference.plugins.module_utils._engine.backend import (
    Backend,
    Image,
    check_name,
    complaint,
    image_of,
    last_error,
    one_line,
    said_json,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Runner
from ansible_collections.socle.inference.plugins.module_utils._engine.select import (
    PODMAN_MINIMUM,
    Version,
    parse_version,
    short,
)
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import parse_cdi_dirs
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import read_regular
from ansible_collections.socle.inference.plugins.module_utils._units import starts_another_command

LOOKS = 3
"""How often Podman is asked for what it says is not there, and then that it is: a start may have made it in between."""

KEY_SINCE: dict[str, Version] = {
    "PidsLimit": (4, 7, 0),
    "ShmSize": (4, 7, 0),
    "Entrypoint": (5, 0, 0),
    "Notify": (5, 0, 0),  # "Notify=healthy"; 4.9 takes it for "false" without a word
    "StopTimeout": (5, 0, 0),
    "Ulimit": (5, 0, 0),  # known since 4.7, which keeps only one of several lines
    "GroupAdd": (5, 1, 0),
    "LogOpt": (5, 2, 0),
    "StopSignal": (5, 2, 0),
    "AddHost": (5, 3, 0),
    "CgroupsMode": (5, 3, 0),
    "Memory": (5, 5, 0),
    "AppArmor": (5, 8, 0),
}
"""First Podman whose Quadlet knows a key (of those newer than PODMAN_MINIMUM): an unknown key drops the whole unit."""

FALLBACK = {
    "PidsLimit": "--pids-limit={}",
    "ShmSize": "--shm-size={}",
    "Entrypoint": "--entrypoint={}",
    "Notify": "--sdnotify={}",
    "StopTimeout": "--stop-timeout={}",
    "Ulimit": "--ulimit={}",
    "GroupAdd": "--group-add={}",
    "LogOpt": "--log-opt={}",
    "StopSignal": "--stop-signal={}",
    "AddHost": "--add-host={}",
    "CgroupsMode": "--cgroups={}",
    "Memory": "--memory={}",
    "AppArmor": "--security-opt=apparmor={}",
}
"""The same by PodmanArgs=, which come after Quadlet's own arguments and win."""

MASKED_SINCE: Version = (5, 3, 0)
"""First Podman whose inspect hides secrets of type env."""

REPLACE_SINCE: Version = (4, 7, 0)
"""First Podman that replaces a secret in one command (secret create --replace), and so under its own lock."""

_WITHOUT_CONTENT = ("no secret data with ID", "secret name in use")
"""What Podman before 5.1 says of a secret that it lists and whose content is gone: it neither replaces nor removes it.
"""

SECURITY_KEYS = {
    unit.NO_NEW_PRIVILEGES: "NoNewPrivileges",
    unit.NO_SELINUX_LABEL: "SecurityLabelDisable",
}

UNIT_DIR = Path("/etc/containers/systemd")

CONTAINERS_CONF = ("usr/share/containers/containers.conf", "etc/containers/containers.conf")
CONTAINERS_CONF_DIR = "etc/containers/containers.conf.d"

CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Where Podman looks unless told otherwise."""

GENERATORS = (
    Path("/usr/libexec/podman/quadlet"),
    Path("/usr/lib/podman/quadlet"),
    Path("/usr/lib/systemd/system-generators/podman-system-generator"),
)

_BARE = re.compile(r"[A-Za-z0-9_./:,+@=-]+")


def quote(word: str, what: str = "argument") -> str:
    """One word for a Quadlet value that ends in ``ExecStart=``: read by Quadlet first and by systemd afterwards.

    Quadlet keeps "%" and "$" as they are, so that they must be doubled for systemd.
    """
    unit.printable(word, what)
    if word == "":
        # Podman 5.4.2's generator drops an empty word and, silently, every word after it.
        raise EngineError(f"Cannot put an empty {what} into a unit: Quadlet would lose all that follow; remove it.")
    if starts_another_command(word):
        raise EngineError(f"Cannot put the {what} ';' into a unit: systemd would start another command; remove it.")
    if _BARE.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def secret_name(instance: str, name: str) -> str:
    """Name of an instance's secret in Podman's store."""
    return f"socle-{check_name(instance)}-{name}"


def render(plan: dict[str, Any], version: Version, limits: Sequence[str] = (), selinux: bool = False) -> str:
    """The text of ``vllm-<instance>.container`` for a sealed plan, a version of Podman and what the host allows.

    *limits* are the raised limits of a GPU instance, as NAME=SOFT:HARD; *selinux* is whether the host has SELinux.
    """
    if version < PODMAN_MINIMUM:
        found = ".".join(map(str, version))
        raise EngineError(
            f"Cannot run instances with Podman {found}: Quadlet as needed here starts with Podman"
            f" {short(PODMAN_MINIMUM)}; upgrade Podman or the operating system, or let the host use Docker"
            " (container_engine: docker).",
            podman_version=found,
        )
    instance = check_name(str(plan["instance"]))
    container: unit.Entries = []
    podman_args: list[str] = []

    def add(key: str, value: str) -> None:
        if version >= KEY_SINCE.get(key, PODMAN_MINIMUM):
            container.append((key, value))
        else:
            podman_args.append(FALLBACK[key].format(value))

    add("Image", unit.image_id(plan) or unit.checked_image(plan))
    add("ContainerName", f"vllm-{instance}")
    add("Pull", "never")
    add("Network", str(plan.get("network") or "host"))
    add("ShmSize", str(int(plan.get("shm_size_bytes") or unit.SHM_SIZE_BYTES)))
    add("RunInit", "true")
    add("LogDriver", "journald")
    add("StopTimeout", str(unit.stop_timeout_s(plan)))
    for label in unit.labels(plan):
        add("Label", quote(label, "label"))
    devices = unit.cdi_devices(plan)
    for device in devices:
        add("AddDevice", device)
    for option in unit.security_options(bool(devices), selinux):
        add(SECURITY_KEYS[option], "true")
    if devices:
        for limit in limits:
            add("Ulimit", limit)
    for source, target, read_only in unit.mounts(plan):
        add("Volume", f"{source}:{target}:{'ro' if read_only else 'rw'}")
    for key, value in sorted((plan.get("env") or {}).items()):
        add("Environment", quote(f"{unit.env_name(key)}={value}", "environment variable"))
    targets = []
    for secret in plan.get("secrets") or []:
        target = unit.env_name(secret["target"], "name of a secret's variable")
        kind = "env" if version >= MASKED_SINCE else "mount"
        add("Secret", f"{secret_name(instance, secret['name'])},type={kind},target={target}")
        targets.append(target)
    if targets and version < MASKED_SINCE:
        # Not Entrypoint=, which 5.0 to 5.2 know: none of their instances shall restart for another way to say the same.
        command = json.dumps(["sh", "-c", unit.export_secrets(targets), "vllm"])
        podman_args.append(quote(f"--entrypoint={command}"))
    # Podman runs it with the container's shell. No quotes: Podman before 5.8.2 loses them.
    host, url = unit.health_probe(plan)
    add("HealthCmd", f"curl --noproxy {host} -fsS -o /dev/null {url}")
    add("HealthInterval", f"{unit.HEALTH_INTERVAL_S}s")
    add("HealthTimeout", f"{unit.HEALTH_TIMEOUT_S}s")
    add("HealthRetries", str(unit.HEALTH_RETRIES))
    add("HealthStartPeriod", f"{unit.start_timeout_s(plan)}s")
    add("HealthOnFailure", "kill")
    add("Notify", "healthy")
    container.extend(("PodmanArgs", word) for word in podman_args)
    guard = unit.gpu_guard(plan)
    before = [("ExecStartPre", f"/bin/sh -c {quote(guard)}")] if guard else []
    words = [quote(str(word)) for word in plan["argv"]]
    container.append(("Exec", " \\\n    ".join(words)))
    return unit.write_sections(
        [
            unit.unit_section(plan),
            ("Container", container),
            ("Service", [*before, *unit.service_entries(plan)]),
            unit.INSTALL,
        ]
    )


class QuadletBackend(Backend):
    """Podman 4.6 or newer, rootful, units made by its Quadlet generator."""

    name = "podman"
    label = "Podman"

    def __init__(
        self,
        runner: Runner,
        unit_dir: Path = UNIT_DIR,
        generators: Iterable[Path] = GENERATORS,
        podman: str = "podman",
        proc_root: Path = Path("/proc"),
        root: Path = Path("/"),
        sys_root: Path = Path("/sys"),
    ) -> None:
        super().__init__(runner)
        self._unit_dir = unit_dir
        self._generators = list(generators)
        self._podman_path = podman
        self._proc_root = proc_root
        self._root = root
        self._sys_root = sys_root
        self._version: Version | None = None

    def _podman(
        self,
        *argv: str,
        input_text: str | None = None,
        timeout_s: float = 60.0,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed[str]:
        return self._runner([self._podman_path, *argv], input_text=input_text, timeout_s=timeout_s, on_line=on_line)

    def _ask(self, *argv: str, input_text: str | None = None, timeout_s: float = 60.0) -> Completed[str]:
        return self._podman(*argv, input_text=input_text, timeout_s=timeout_s)

    def version(self) -> Version:
        """Podman's version, asked once."""
        if self._version is None:
            done = self._podman("--version")
            if done.returncode != 0:
                raise EngineError(
                    f"'podman --version' failed: {complaint(done)}; repair the Podman installation.",
                    rc=done.returncode,
                    stderr=done.stderr,
                )
            self._version = parse_version(done.stdout)
        if self._version is None:
            raise EngineError(
                f"Cannot read Podman's version from '{one_line(done.stdout)}'; expected 'podman version X.Y.Z'."
            )
        return self._version

    def unit_file(self, instance: str) -> Path:
        return self._unit_dir / f"vllm-{check_name(instance)}.container"

    def render(self, plan: dict[str, Any]) -> str:
        limits = unit.raised_limits(self._proc_root)
        return render(plan, self.version(), limits, unit.has_selinux(self._sys_root))

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
            reason = one_line(words) or "it made no service of it, without a reason"
            raise EngineError(
                f"Quadlet refuses the unit of {instance}: {reason};"
                " nothing was installed; this is a fault of the plan's values or of the renderer.",
                unit=text,
                rc=done.returncode,
                stderr=done.stderr,
            )

    def cdi_dirs(self) -> list[Path]:
        paths = [self._root / path for path in CONTAINERS_CONF]
        paths += sorted((self._root / CONTAINERS_CONF_DIR).glob("*.conf"))
        found = parse_cdi_dirs([text for text in map(read_regular, paths) if text])
        return [Path(folder) for folder in (CDI_DIRS if found is None else found)]

    def exec(self, instance: str, argv: Sequence[str], timeout_s: float = 60.0) -> Completed[str]:
        return self._podman("exec", f"vllm-{check_name(instance)}", *argv, timeout_s=timeout_s)

    def check_health(self, instance: str) -> None:
        self._podman("healthcheck", "run", f"vllm-{check_name(instance)}")

    def container_labels(self, instance: str) -> dict[str, str] | None:
        for _look in range(LOOKS):
            done = self._inspect_container(self._podman_path, instance)
            if done.returncode == 0:
                return said_json(done, f"look at container vllm-{instance}", lambda labels: dict(labels or {}))
            # As for images, one status for "not there" and "broken"; one that a start makes meanwhile is there by now.
            if self._podman("container", "exists", f"vllm-{check_name(instance)}").returncode == 1:
                return None
        raise EngineError(
            f"Cannot look at container vllm-{instance}: {complaint(done)}; repair Podman's storage on the host.",
            rc=done.returncode,
            stderr=done.stderr,
        )

    def image(self, reference: str) -> Image | None:
        done = self._podman("image", "inspect", "--format", "json", reference)
        if done.returncode != 0:
            # Podman says the same status for "not there" and "broken": ask which one it is.
            if self._podman("image", "exists", reference).returncode == 1:
                return None
            raise EngineError(
                f"Cannot look at image {reference}: {complaint(done)}; repair Podman's storage on the host.",
                rc=done.returncode,
                stderr=done.stderr,
            )
        found = said_json(done, f"look at image {reference}", image_of)
        return found if found.id.startswith("sha256:") else replace(found, id=f"sha256:{found.id}")

    def pull(self, reference: str, on_progress: Callable[[str], None] | None = None) -> None:
        layers: set[str] = set()

        def note(line: str) -> None:
            # Without a terminal Podman names each part once, as it begins with it.
            if line.startswith(("Copying blob", "Copying config")):
                layers.add(line.split(" ")[2] if line.count(" ") >= 2 else line)
            if on_progress is not None:
                on_progress(f"{len(layers)} parts begun")

        done = self._podman("pull", reference, timeout_s=6 * 3600.0, on_line=note)
        if done.returncode != 0:
            reason = last_error(done)
            raise EngineError(
                f"Cannot pull image {reference}: {reason}; check the name, the registry and the way to it,"
                " or load the image on the host by other means.",
                rc=done.returncode,
                stderr=done.stderr,
            )

    _MARK = "io.socle.hmac"

    def secret_mark(self, instance: str, name: str) -> str | None:
        target = secret_name(instance, name)
        done = self._podman("secret", "inspect", target)
        if done.returncode == 0:
            return said_json(done, f"look at secret {target}", self._mark_of)
        if "no such secret" in done.stderr.lower():
            return None
        # As for images: a Podman that is broken must not be taken for one that holds no key.
        exists = self._podman("secret", "exists", target).returncode
        if exists in (0, 1):
            # Of one whose mark cannot be read, any other counts.
            return None if exists else ""
        raise EngineError(
            f"Cannot look at secret {target}: {complaint(done)}; repair Podman's storage on the host.",
            rc=done.returncode,
            stderr=done.stderr,
        )

    def _mark_of(self, said: Any) -> str:
        return str((said[0]["Spec"].get("Labels") or {}).get(self._MARK, ""))

    def put_secret(self, instance: str, name: str, value: str, mark: str) -> None:
        target = secret_name(instance, name)
        # Only by standard input: an argument would show in "ps".
        create = ["secret", "create", "--label", f"{self._MARK}={mark}"]
        if self.secret_mark(instance, name) is None:
            pass
        elif self.version() >= REPLACE_SINCE:
            # Only what is there, which Podman before 5.1 asks for.
            create.append("--replace")
        else:
            # A run that is killed after this leaves none, which the next one finds and stores anew.
            self.remove_secret(instance, name)
        done = self._podman(*create, target, "-", input_text=value)
        if done.returncode == 0:
            return
        remedy = "repair Podman's storage there"
        if any(words in done.stderr for words in _WITHOUT_CONTENT):
            remedy = (
                "Podman lists it without its content, as after it was killed at work on it: take its entries out of"
                " secrets/secrets.json below the folder that 'podman info -f {{.Store.GraphRoot}}' names, then repeat"
                " the run"
            )
        raise EngineError(
            f"Cannot store the secret {target} in Podman: {complaint(done)}; {remedy}.",
            rc=done.returncode,
            stderr=done.stderr,
        )

    def remove_secret(self, instance: str, name: str) -> None:
        if self.secret_mark(instance, name) is not None:
            done = self._podman("secret", "rm", secret_name(instance, name))
            # Somebody else may have been faster.
            if done.returncode != 0 and self.secret_mark(instance, name) is not None:
                raise EngineError(
                    f"Cannot remove the secret {secret_name(instance, name)} from Podman: {complaint(done)}; repair"
                    " Podman's storage on the host, then repeat the run.",
                    rc=done.returncode,
                    stderr=done.stderr,
                )
