# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The backend of a container engine by its name. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend
from ansible_collections.socle.inference.plugins.module_utils._engine.docker import DOCKER, DockerBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Runner
from ansible_collections.socle.inference.plugins.module_utils._engine.quadlet import QuadletBackend
from ansible_collections.socle.inference.plugins.module_utils._engine.select import ENGINES
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

CLIENTS = (DOCKER, "/usr/local/bin/docker")
"""Where packages and static builds put Docker's client; a unit needs the whole path."""

STATE_DIR = Path("/var/lib/socle")
"""Where socle keeps its state on a host unless told otherwise."""


def make_backend(engine: str, runner: Runner, state_dir: Path = STATE_DIR) -> Backend:
    """The backend of "podman" or "docker" on this host."""
    if engine == "podman":
        return QuadletBackend(runner)
    if engine == "docker":
        client = next((path for path in CLIENTS if Path(path).exists()), DOCKER)
        return DockerBackend(runner, secrets_dir=state_dir / "secrets", docker=client)
    raise EngineError(f"Cannot run instances under {engine[:80]!r}: expected podman or docker; correct the engine.")


def other_backends(engine: str, runner: Runner, state_dir: Path) -> list[Backend]:
    """The backends of all other engines, whose units an instance may have from before."""
    return [make_backend(name, runner, state_dir) for name in ENGINES if name != engine]
