# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker under systemd: a plan becomes a service that runs ``docker run``. Private to socle.inference.

systemd owns the container, not Docker's restart policy: so it starts after the GPU's services, has a limit of starts, a
readiness and the journal. Docker alone would start it as soon as its daemon is up, and never restart what hangs.

Where the API key goes: into a file that only root can read, which a line of shell in front of the engine reads inside
the container. ``--env`` and ``--env-file`` would put it into ``docker inspect``.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
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
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Files, Runner
from ansible_collections.socle.inference.plugins.module_utils._engine.select import (
    Version,
    minimum,
    parse_version,
    short,
)
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

DOCKER = "/usr/bin/docker"

UNIT_DIR = Path("/etc/systemd/system")

SECRETS_DIR = Path("/var/lib/socle/secrets")

DAEMON = "docker.service"

GPU_RUNTIME = "--runtime=runc"
"""NVIDIA's own runtime, where it is the default, would add every GPU that the image's environment asks for."""

HEALTHY = "/tmp/.socle-healthy"
"""In the container: there once the engine answered."""

_BARE = re.compile(r"[A-Za-z0-9_./:,+@=-]+")


def quote(word: str, what: str = "argument") -> str:
    """One word for systemd's ``ExecStart=``, which knows quotes and C escapes and expands "%" and "$"."""
    unit.printable(word, what)
    if _BARE.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def secret_file(secrets_dir: Path, instance: str, name: str) -> Path:
    """Where the value of a secret lies on the host."""
    return secrets_dir / check_name(instance) / f"docker-{name}"


def _probe(plan: dict[str, Any]) -> str:
    host, url = unit.health_probe(plan)
    return f"curl --noproxy {host} -fs -o /dev/null --max-time {unit.HEALTH_TIMEOUT_S} {url}"


def health_command(plan: dict[str, Any]) -> str:
    """Shell for the container: ends an engine that answered once and no longer does, as Podman's HealthOnFailure=kill.

    Docker itself only marks it. A signal to process 1 would not end an engine that hangs; without the processes below,
    the init process ends as well, and systemd starts anew.
    """
    waits = " ".join(["0", *[str(unit.HEALTH_INTERVAL_S)] * (unit.HEALTH_RETRIES - 1)])
    return (
        f"for wait in {waits}; do sleep $wait; if {_probe(plan)}; then : >{HEALTHY}; exit 0; fi;"
        f" [ -e {HEALTHY} ] || exit 1; done; kill -9 -1"
    )


def readiness_command(plan: dict[str, Any], docker: str = DOCKER) -> str:
    """Shell for the host: returns once the engine answers, and fails when the container is gone.

    The inner loop runs in the container, whose image has curl, and dies with it; the outer one bridges the moment
    before there is a container. Whoever stops the unit meanwhile stops this shell too, and only this shell: vLLM loses
    a SIGTERM that comes while it loads, and there is no request yet that it could finish.
    """
    inner = f"until {_probe(plan)}; do sleep 1; done"
    name = f"vllm-{check_name(str(plan['instance']))}"
    return (
        f"trap '{docker} kill {name} >/dev/null 2>&1; exit 1' TERM;"
        f" until {docker} exec {name} sh -c '{inner}' >/dev/null 2>&1 & wait $!;"
        ' do kill -0 "$MAINPID" 2>/dev/null || exit 1; sleep 1; done'
    )


def _quietly(command: str) -> str:
    """A command whose failure is no matter, without its words: the container is gone already, as a rule."""
    return f"-/bin/sh -c {quote(f'{command} >/dev/null 2>&1')}"


def secret_mounts(plan: dict[str, Any], secrets_dir: Path) -> list[tuple[str, str]]:
    """Each secret's file on the host, and the variable that it is for."""
    instance = check_name(str(plan["instance"]))
    return [
        (
            unit.checked_path(secret_file(secrets_dir, instance, str(secret["name"])), "file of a secret"),
            unit.env_name(secret["target"], "name of a secret's variable"),
        )
        for secret in plan.get("secrets") or []
    ]


def run_words(
    plan: dict[str, Any], limits: Sequence[str] = (), secrets_dir: Path = SECRETS_DIR, selinux: bool = False
) -> list[str]:
    """All words after ``docker run``."""
    instance = check_name(str(plan["instance"]))
    longest_check_s = unit.HEALTH_RETRIES * (unit.HEALTH_INTERVAL_S + unit.HEALTH_TIMEOUT_S)
    words = ["--rm", f"--name=vllm-{instance}", "--init", "--pull=never"]
    words.append(f"--network={plan.get('network') or 'host'}")
    words.append(f"--shm-size={int(plan.get('shm_size_bytes') or unit.SHM_SIZE_BYTES)}")
    # systemd's journal has the output already.
    words.append("--log-driver=none")
    words.append(f"--stop-timeout={unit.stop_timeout_s(plan)}")
    words += [f"--label={label}" for label in unit.labels(plan)]
    devices = unit.cdi_devices(plan)
    words += [f"--device={device}" for device in devices]
    if devices:
        words.append(GPU_RUNTIME)
    words += [f"--security-opt={option}" for option in unit.security_options(bool(devices), selinux)]
    if devices:
        words += [f"--ulimit={limit}" for limit in limits]
    for source, target, read_only in unit.mounts(plan):
        # Not --volume, which makes an empty folder where the source is missing.
        words.append(f"--mount=type=bind,source={source},target={target}" + (",readonly" if read_only else ""))
    for key, value in sorted((plan.get("env") or {}).items()):
        words.append(f"--env={unit.env_name(key)}={value}")
    words += [f"--health-cmd={health_command(plan)}", f"--health-interval={unit.HEALTH_INTERVAL_S}s"]
    words += [f"--health-timeout={longest_check_s}s", "--health-retries=1"]
    words.append(f"--health-start-period={unit.start_timeout_s(plan)}s")
    targets = []
    for source, target in secret_mounts(plan, secrets_dir):
        words.append(f"--mount=type=bind,source={source},target=/run/secrets/{target},readonly")
        targets.append(target)
    hexadecimal = unit.image_id(plan)
    image = f"sha256:{hexadecimal}" if hexadecimal else unit.checked_image(plan)
    if targets:
        words += ["--entrypoint=sh", image, "-c", unit.export_secrets(targets), "vllm"]
    else:
        words.append(image)
    return words + [str(word) for word in plan["argv"]]


def render(
    plan: dict[str, Any],
    limits: Sequence[str] = (),
    secrets_dir: Path = SECRETS_DIR,
    docker: str = DOCKER,
    selinux: bool = False,
) -> str:
    """The text of ``vllm-<instance>.service`` for a sealed plan.

    *limits* are the raised limits of a GPU instance, as NAME=SOFT:HARD; *selinux* is whether the host has SELinux.
    """
    name = f"vllm-{check_name(str(plan['instance']))}"
    words = " \\\n    ".join(quote(word) for word in run_words(plan, limits, secrets_dir, selinux))
    # Quadlet adds this by itself.
    paths = [source for source, _target, _read_only in unit.mounts(plan)]
    paths += [source for source, _target in secret_mounts(plan, secrets_dir)]
    guard = unit.gpu_guard(plan)
    commands = [
        ("Type", "exec"),
        ("SyslogIdentifier", name),
        *([("ExecStartPre", f"/bin/sh -c {quote(guard)}")] if guard else []),
        # What a client that was killed left behind holds the name, and GPUs.
        ("ExecStartPre", _quietly(f"{docker} rm -f {name}")),
        ("ExecStart", f"{docker} run \\\n    {words}"),
        # The unit is "activating" until this returns, within TimeoutStartSec.
        ("ExecStartPost", f"/bin/sh -c {quote(readiness_command(plan, docker))}"),
        ("ExecStop", _quietly(f"{docker} stop -t {unit.stop_timeout_s(plan)} {name}")),
        # ExecStop is not run for a client that died.
        ("ExecStopPost", _quietly(f"{docker} rm -f {name}")),
        ("KillMode", "mixed"),
        # What a shell or an engine says that was asked to end.
        ("SuccessExitStatus", "143"),
    ]
    return unit.write_sections(
        [
            unit.unit_section(plan, requires=[DAEMON], paths=paths),
            ("Service", [*commands, *unit.service_entries(plan)]),
            unit.INSTALL,
        ]
    )


class PullProgress:
    """Docker's lines about a pull, as the number of parts that are done."""

    _LAYER = re.compile(r"([0-9a-f]{12}): (.+)")

    def __init__(self) -> None:
        self._done: dict[str, bool] = {}

    def feed(self, line: str) -> str:
        """The state after this line, in words."""
        found = self._LAYER.fullmatch(line.strip())
        if found:
            self._done[found[1]] = found[2] in ("Pull complete", "Already exists")
        return f"{sum(self._done.values())} of {len(self._done)} parts"


def _unanswered(subject: str, done: Completed[str]) -> EngineError:
    """Docker did not say whether there is one."""
    return EngineError(
        f"Cannot look at {subject}: {complaint(done)}; start Docker's daemon or repair its storage on the host.",
        rc=done.returncode,
        stderr=done.stderr,
    )


class DockerBackend(Backend):
    """Docker 20.10 or newer, 25 or newer for GPUs, rootful, one service of its own for each instance."""

    name = "docker"
    label = "Docker"

    def __init__(
        self,
        runner: Runner,
        unit_dir: Path = UNIT_DIR,
        secrets_dir: Path = SECRETS_DIR,
        docker: str = DOCKER,
        files: Files | None = None,
        proc_root: Path = Path("/proc"),
        sys_root: Path = Path("/sys"),
    ) -> None:
        super().__init__(runner)
        self._unit_dir = unit_dir
        self._secrets_dir = secrets_dir
        self._docker_path = docker
        self._files = files or Files()
        self._proc_root = proc_root
        self._sys_root = sys_root
        self._version: Version | None = None

    def _docker(
        self, *argv: str, timeout_s: float = 60.0, on_line: Callable[[str], None] | None = None
    ) -> Completed[str]:
        return self._runner([self._docker_path, *argv], timeout_s=timeout_s, on_line=on_line)

    def _ask(self, *argv: str, input_text: str | None = None, timeout_s: float = 60.0) -> Completed[str]:
        return self._runner([self._docker_path, *argv], input_text=input_text, timeout_s=timeout_s)

    def version(self) -> Version:
        """Version of the daemon, asked once."""
        if self._version is None:
            done = self._docker("version", "--format", "{{.Server.Version}}")
            found = parse_version(done.stdout)
            if done.returncode != 0 or found is None:
                reason = complaint(done) if done.returncode else f"it said '{one_line(done.stdout)}'"
                raise EngineError(
                    f"Cannot ask Docker's daemon for its version: {reason}; start it ('systemctl start docker') or"
                    " repair it ('journalctl -u docker' on the host).",
                    rc=done.returncode,
                    stderr=done.stderr,
                )
            self._version = found
        return self._version

    def unit_file(self, instance: str) -> Path:
        return self._unit_dir / f"vllm-{check_name(instance)}.service"

    def render(self, plan: dict[str, Any]) -> str:
        gpus = bool(plan.get("gpus"))
        needed = minimum(self.name, gpus)
        if self.version() < needed:
            found = ".".join(map(str, self.version()))
            raise EngineError(
                f"Cannot run {plan.get('instance')} {'with GPUs ' if gpus else ''}under Docker {found}: expected Docker"
                f" {short(needed)} or newer{', the first that knows CDI' if gpus else ''}; upgrade Docker"
                " (container_engine_docker_source: docker takes Docker's own packages), or let the host use Podman.",
                docker_version=found,
            )
        return render(
            plan,
            unit.raised_limits(self._proc_root),
            self._secrets_dir,
            self._docker_path,
            unit.has_selinux(self._sys_root),
        )

    def cdi_dirs(self) -> list[Path]:
        done = self._docker("info", "--format", "{{json .CDISpecDirs}}")
        if done.returncode != 0:
            raise EngineError(
                f"Cannot ask Docker's daemon where it looks for CDI specifications: {complaint(done)}; start it"
                " ('systemctl start docker').",
                rc=done.returncode,
                stderr=done.stderr,
            )
        attempt = "ask Docker's daemon where it looks for CDI specifications"
        return said_json(done, attempt, lambda folders: [Path(str(folder)) for folder in folders or []])

    def validate(self, instance: str, text: str) -> None:
        with tempfile.TemporaryDirectory(prefix="socle-unit-") as folder:
            staged = Path(folder) / self.unit_file(instance).name
            staged.write_text(text, encoding="utf-8")
            done = self._runner(["systemd-analyze", "verify", str(staged)])
        # systemd only warns about a line that it does not understand, and leaves it out.
        blamed = [line for line in done.stderr.splitlines() if str(staged) in line or f"{staged.name}:" in line]
        if done.returncode != 0 or blamed:
            words = "; ".join(blamed or [line for line in done.stderr.splitlines() if line.strip()])
            reason = one_line(words.replace(f"{folder}/", "")) or "without a reason"
            raise EngineError(
                f"systemd refuses the unit of {instance}: {reason};"
                " nothing was installed; see whether docker.service is there, else this is a fault of the plan's values"
                " or of the renderer.",
                unit=text,
                rc=done.returncode,
                stderr=done.stderr,
            )

    def enable(self, instance: str) -> None:
        self._systemctl("enable", self.service(instance))

    def disable(self, instance: str) -> None:
        self._systemctl("disable", self.service(instance))

    def exec(self, instance: str, argv: Sequence[str], timeout_s: float = 60.0) -> Completed[str]:
        return self._docker("exec", f"vllm-{check_name(instance)}", *argv, timeout_s=timeout_s)

    def check_health(self, instance: str) -> None:
        # The unit's own readiness loop asks every second.
        return

    def container_labels(self, instance: str) -> dict[str, str] | None:
        done = self._inspect_container(self._docker_path, instance)
        if done.returncode == 0:
            return said_json(done, f"look at container vllm-{instance}", lambda labels: dict(labels or {}))
        if "no such container" in done.stderr.lower():
            return None
        raise _unanswered(f"container vllm-{instance}", done)

    def image(self, reference: str) -> Image | None:
        done = self._docker("image", "inspect", reference)
        if done.returncode != 0:
            if "no such image" in done.stderr.lower():
                return None
            raise _unanswered(f"image {reference}", done)
        return said_json(done, f"look at image {reference}", image_of)

    def pull(self, reference: str, on_progress: Callable[[str], None] | None = None) -> None:
        progress = PullProgress()

        def note(line: str) -> None:
            if on_progress is not None:
                on_progress(progress.feed(line))

        done = self._docker("pull", reference, timeout_s=6 * 3600.0, on_line=note)
        if done.returncode != 0:
            reason = last_error(done)
            raise EngineError(
                f"Cannot pull image {reference}: {reason}; check the name, the registry and the way to it, or load the"
                " image on the host by other means.",
                rc=done.returncode,
                stderr=done.stderr,
            )

    def _mark_file(self, instance: str, name: str) -> Path:
        value = secret_file(self._secrets_dir, instance, name)
        return value.with_name(f"{value.name}.hmac")

    def secret_mark(self, instance: str, name: str) -> str | None:
        value = self._files.read(secret_file(self._secrets_dir, instance, name))
        return None if value is None else (self._files.read(self._mark_file(instance, name)) or "").strip()

    def put_secret(self, instance: str, name: str, value: str, mark: str) -> None:
        # The mark comes last: without it the value counts as another one.
        self._files.remove(self._mark_file(instance, name))
        self._files.write(secret_file(self._secrets_dir, instance, name), value, mode=0o600)
        self._files.write(self._mark_file(instance, name), mark + "\n", mode=0o600)

    def remove_secret(self, instance: str, name: str) -> None:
        self._files.remove(secret_file(self._secrets_dir, instance, name))
        self._files.remove(self._mark_file(instance, name))
