# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host can give an instance its GPUs, told in one sentence before the start. Private to socle.inference.

Else the engine says it later and in other words: "Driver/library version mismatch", "unresolvable CDI devices".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.unit import cdi_devices
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import GPU_KIND, parse_cdi_spec
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import read_regular


def listed_devices(directories: Iterable[Path]) -> set[str]:
    """Names of the NVIDIA devices that specifications list, such as nvidia.com/gpu=0."""
    names: set[str] = set()
    for directory in directories:
        try:
            files = sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".json"))
        except OSError:
            continue
        for path in files:
            found = parse_cdi_spec(read_regular(path))
            if found["kind"] == GPU_KIND:
                names.update(f"{GPU_KIND}={name}" for name in found["devices"])
    return names


def gpu_obstacle(
    plan: Mapping[str, Any], facts: Mapping[str, Any] | None, directories: Sequence[Path]
) -> EngineError | None:
    """Why this host cannot give the plan's GPUs to a container; None where it can, and for a plan without GPUs.

    *facts* are those of gpu_facts, of which the driver's versions are read; *directories* is where the engine looks.
    """
    wanted = cdi_devices(dict(plan))
    if not wanted:
        return None
    instance = plan.get("instance")
    driver = (facts or {}).get("driver") or {}
    module, library = driver.get("version"), driver.get("library_version")
    if module and library and module != library:
        return EngineError(
            f"Cannot start {instance}: the loaded NVIDIA module is version {module} and the libraries are {library},"
            " expected the same; reboot the host (or unload and load the module), best by playbook provision.yml.",
            module_version=module,
            library_version=library,
        )
    if not directories:
        return EngineError(
            f"Cannot start {instance}: the container engine looks nowhere for CDI specifications, so that it can give"
            " no GPU; for Docker, set features.cdi to true in /etc/docker/daemon.json and restart it, or run playbook"
            " provision.yml."
        )
    listed = listed_devices(directories)
    missing = [name for name in wanted if name not in listed]
    if not missing:
        return None
    places = " and ".join(map(str, directories))
    found = f"only {', '.join(sorted(listed))}" if listed else "no device of NVIDIA"
    return EngineError(
        f"Cannot start {instance}: expected a CDI specification with {', '.join(missing)}, found {found} in {places};"
        " write it anew with 'systemctl restart nvidia-cdi-refresh' on the host, or run playbook provision.yml.",
        missing=missing,
        listed=sorted(listed),
    )
