# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container engine of a host runs its instances. Private to socle.inference.

Quadlet as it is needed here starts with Podman 4.6; that Podman also knows CDI (since 4.1). Docker knows CDI since 25
and the rest since 20.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

ENGINES = ("podman", "docker")
"""Container engines, the preferred one first."""

WANTED = ("auto", *ENGINES)

DEFAULT = "podman"

Version = tuple[int, int, int]

PODMAN_MINIMUM: Version = (4, 6, 0)
DOCKER_MINIMUM: Version = (20, 10, 0)
DOCKER_CDI_MINIMUM: Version = (25, 0, 0)

_LABELS = {"podman": "Podman", "docker": "Docker"}


def parse_version(text: str | None) -> Version | None:
    """ "26.1.5+dfsg1" or "podman version 5.4.2-dev" -> (26, 1, 5) and (5, 4, 2); None where there is no version."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def short(version: Version) -> str:
    """(25, 0, 0) -> "25", (4, 6, 0) -> "4.6"."""
    parts = list(version)
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return ".".join(map(str, parts))


def minimum(engine: str, needs_cdi: bool) -> Version:
    """Oldest version of an engine that runs instances, with GPUs or without."""
    if engine == "podman":
        return PODMAN_MINIMUM
    return DOCKER_CDI_MINIMUM if needs_cdi else DOCKER_MINIMUM


def suits(engine: str, version: str | None, needs_cdi: bool) -> bool:
    """Whether this version of the engine runs instances; an unknown version does not."""
    parsed = parse_version(version)
    return parsed is not None and parsed >= minimum(engine, needs_cdi)


def engine_of(plan: Mapping[str, Any] | None) -> str:
    """Engine that a plan names; plans of earlier versions name none and ran under Podman."""
    return str((plan or {}).get("engine") or DEFAULT)


def select(wanted: str, engines: Mapping[str, str | None], needs_cdi: bool, host: str = "this host") -> str:
    """ "podman" or "docker": the wanted engine, or with "auto" Podman where it suits, else Docker.

    *engines* are the versions by name, None for what is not installed; *needs_cdi* says whether instances get GPUs.
    Raises EngineError with the way out where no engine suits.
    """
    if wanted not in WANTED:
        raise EngineError(
            f"Cannot use '{wanted}' as the container engine of {host}: expected auto, podman or docker; correct"
            " container_engine."
        )
    asked = ENGINES if wanted == "auto" else (wanted,)
    for engine in asked:
        if suits(engine, engines.get(engine), needs_cdi):
            return engine
    attempt = "give GPUs to containers" if needs_cdi else "run containers"
    found = " and ".join(
        f"{_LABELS[engine]} {engines[engine]}" if engines.get(engine) else f"no {_LABELS[engine]}" for engine in asked
    )
    expected = " or ".join(f"{_LABELS[engine]} {short(minimum(engine, needs_cdi))}" for engine in asked)
    other = next((engine for engine in ENGINES if engine not in asked), None)
    if other and suits(other, engines.get(other), needs_cdi):
        remedy = f"set container_engine to auto or {other}, since {_LABELS[other]} {engines[other]} is there and suits"
    elif not any(engines.get(engine) for engine in asked):
        remedy = "install one by playbook provision.yml"
    else:
        remedy = (
            "upgrade the operating system for a newer one, or set container_engine to docker and"
            " container_engine_docker_source to docker for Docker's own packages, and run playbook provision.yml"
        )
    raise EngineError(
        f"Cannot {attempt} on {host}: found {found}, expected {expected} or newer; {remedy}.",
        wanted=wanted,
        engines=dict(engines),
    )
