# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves that a container given all GPUs sees exactly the host's. Private to socle.inference."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine import unit
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import GPU_RUNTIME
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import (
    Completed,
    Files,
    Runner,
    explaining,
)
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit import cdi, check_image
from ansible_collections.socle.inference.plugins.module_utils._toolkit.refresh import list_gpus, loaded_driver
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import LABELS, Which

ARGUMENTS: dict[str, dict[str, Any]] = {
    "engine": {"type": "str", "choices": ["podman", "docker"]},
    "engine_version": {"type": "str"},
    "toolkit_version": {"type": "str"},
    "sys_root": {"type": "path", "default": "/sys"},
    "state_dir": {"type": "path", "default": "/var/lib/socle"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}
"""The argument spec of the options that fragment gpu_container documents, with sys_root and state."""

STAMP = "gpu_container_toolkit/check.json"

RUN_S = 180.0


@dataclass(frozen=True)
class Subject:
    """What the last success holds for."""

    engine: str
    engine_version: str
    toolkit_version: str
    driver: str | None
    uuids: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As the stamp has it."""
        return {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "toolkit_version": self.toolkit_version,
            "driver": self.driver,
            "uuids": list(self.uuids),
        }


@dataclass
class Outcome:
    """What came of it."""

    ran: bool = False
    changed: bool = False
    """Whether an image was made."""
    image: str | None = None
    uuids: list[str] = field(default_factory=list)


class GpuCheck:
    """The check on one host."""

    def __init__(
        self,
        runner: Runner,
        files: Files,
        root: Path = Path("/"),
        sys_root: Path = Path("/sys"),
        state_dir: Path = Path("/var/lib/socle"),
        which: Which = shutil.which,
        proc_root: Path = Path("/proc"),
    ) -> None:
        self._run = runner
        self._files = files
        self._root = root
        self._sys_root = sys_root
        self._stamp = state_dir / STAMP
        self._which = which
        self._proc_root = proc_root

    def run(
        self, engine: str, engine_version: str, toolkit_version: str, *, always: bool = False, check: bool = False
    ) -> Outcome:
        """Run it where something changed since the last success; ToolkitError in one sentence where it fails."""
        driver = loaded_driver(self._files, self._sys_root)
        try:
            uuids = tuple(cdi.device_uuids(list_gpus(self._run)))
        except SocleError:
            # Before the driver is there.
            if check:
                return Outcome(ran=True)
            raise
        subject = Subject(engine, engine_version, toolkit_version, driver, uuids)
        outcome = Outcome(uuids=list(uuids))
        if not always and not self.is_due(engine, engine_version, toolkit_version, uuids):
            return outcome
        outcome.ran = True
        if check:
            return outcome
        with explaining("forget the last GPU check", self._stamp):
            self._files.remove(self._stamp)
        outcome.image, outcome.changed = self._image(engine)
        self._compare(engine, engine_version, outcome.image, uuids)
        with explaining("note that the GPU check passed", self._stamp):
            self._files.write(self._stamp, json.dumps(subject.as_dict(), indent=1) + "\n")
        return outcome

    def is_due(self, engine: str, engine_version: str, toolkit_version: str, uuids: Sequence[str]) -> bool:
        """Whether something changed since the last success, for one who knows the host's GPUs already."""
        driver = loaded_driver(self._files, self._sys_root)
        return bool(self._last() != Subject(engine, engine_version, toolkit_version, driver, tuple(uuids)).as_dict())

    def forget(self, *, check: bool = False) -> bool:
        """Remove images and the note of the last success; whether there were any."""
        there = self._stamp.exists()
        images = []
        for engine in LABELS:
            if self._which(engine):
                done = self._run([engine, "images", "--quiet", check_image.REPOSITORY])
                images += [(engine, name) for name in dict.fromkeys(done.stdout.split())]
        if not check:
            for engine, name in images:
                self._run([engine, "rmi", "--force", name])
            with explaining("forget the last GPU check", self._stamp):
                self._files.remove(self._stamp)
        return there or bool(images)

    def _last(self) -> Any:
        try:
            return json.loads(self._files.read(self._stamp) or "null")
        except (OSError, ValueError, RecursionError):
            # A damaged one proves nothing.
            return None

    def _image(self, engine: str) -> tuple[str, bool]:
        layer = check_image.pack(check_image.members(self._run, self._root))
        image = check_image.reference(layer)
        if self._run([engine, "image", "inspect", "--format", "{{.Id}}", image]).returncode == 0:
            return image, False
        with tempfile.TemporaryDirectory(prefix="socle-gpu-check-") as folder, explaining("make the GPU check's image"):
            archive = Path(folder) / "layer.tar"
            archive.write_bytes(layer)
            done = self._run([engine, "import", str(archive), image], timeout_s=RUN_S)
        if done.returncode != 0:
            raise ToolkitError(
                f"Cannot make the image of the GPU check: {_last_line(done)}; see whether '{engine} info' works on the"
                " host and its storage has room.",
                stderr=done.stderr,
            )
        return image, True

    def _compare(self, engine: str, engine_version: str, image: str, uuids: tuple[str, ...]) -> None:
        # Only what the units of instances say as well, or it proves nothing about them.
        argv = [engine, "run", "--rm", "--network=none", "--device=nvidia.com/gpu=all"]
        argv += [GPU_RUNTIME] if engine == "docker" else []
        argv += [f"--security-opt={option}" for option in unit.security_options(gpus=True, selinux=True)]
        argv += [f"--ulimit={limit}" for limit in unit.raised_limits(self._proc_root)]
        argv += [image, "/usr/bin/nvidia-smi", "-L"]
        done = self._run(argv, timeout_s=RUN_S)
        label = f"{LABELS[engine]} {engine_version}"
        if done.returncode != 0:
            specs = cdi.read_specs(self._root)
            modes = {spec.path: stat.S_IMODE((self._root / spec.path.lstrip("/")).stat().st_mode) for spec in specs}
            said = f"{done.stderr}\n{done.stdout}"
            reason = cdi.explain(said, specs, engine, engine_version, modes)
            if reason in " ".join(said.split()):
                # The engine's own words, which need not be about GPUs at all.
                remedy = f"see whether '{engine} run --rm {image} /bin/sh -c true' works"
            else:
                remedy = "run role container_engine for the engine, or restart nvidia-cdi-refresh.service for the spec"
            raise ToolkitError(
                f"A container of {label} does not get the GPUs: {reason}; {remedy}, and repeat the run.",
                cmd=argv,
                rc=done.returncode,
                stdout=done.stdout,
                stderr=done.stderr,
            )
        inside = tuple(cdi.device_uuids(cdi.parse_list(done.stdout)))
        if inside == uuids:
            return
        lacking = [uuid for uuid in uuids if uuid not in inside]
        more = [uuid for uuid in inside if uuid not in uuids]
        found = f"it lacks {', '.join(lacking)}" if lacking else f"it also sees {', '.join(more)}"
        raise ToolkitError(
            f"A container of {label} given all GPUs sees {len(inside)} of the host's {len(uuids)} GPUs: {found};"
            " restart nvidia-cdi-refresh.service on the host, and repeat the run.",
            host=list(uuids),
            container=list(inside),
        )


def _last_line(done: Completed[str]) -> str:
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else f"exit status {done.returncode}"
