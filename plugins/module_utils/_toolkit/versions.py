# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What versions of engines and toolkit know about CDI. Private to socle.inference.

Sources: go.mod and vendored configuration of containers/podman at the tags 4.3.1 to 5.8.2; moby's release notes of
25.0, 26.1 and 28.2; release notes of NVIDIA/nvidia-container-toolkit 1.17.7 to 1.20.0.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Callable, Optional

from ansible_collections.socle.inference.plugins.module_utils._engine import podman_config
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Runner
from ansible_collections.socle.inference.plugins.module_utils._engine.select import Version, parse_version, short
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError

LABELS = {"podman": "Podman", "docker": "Docker"}

Which = Callable[[str], Optional[str]]

_CDI_READ: dict[str, tuple[tuple[Version, Version], ...]] = {
    "podman": (
        ((4, 1, 0), (0, 5, 0)),
        ((4, 7, 0), (0, 6, 0)),
        ((5, 1, 0), (0, 7, 0)),
        ((5, 2, 0), (0, 8, 0)),
        ((5, 5, 0), (1, 0, 0)),
    ),
    "docker": (
        ((25, 0, 0), (0, 6, 0)),
        ((26, 1, 0), (0, 7, 0)),
    ),
}

ADDITIONAL_GIDS_READ: dict[str, Version] = {"podman": (5, 1, 0), "docker": (26, 1, 0)}
"""Oldest engines that read CDI 0.7.0, whose additionalGids make older ones reject the whole file."""

ADDITIONAL_GIDS_WRITTEN: Version = (1, 19, 0)
"""First toolkit that writes additionalGids unless it is told not to."""

DOCKER_CDI_DEFAULT: Version = (28, 2, 0)
"""First Docker that needs no features.cdi."""

DOCKER_PROXIES: Version = (23, 0, 0)
"""First Docker that reads proxies from daemon.json, and that can validate the file."""

PODMAN_CDI_DIRS: Version = (5, 1, 0)
"""First Podman with cdi_spec_dirs; it looks into /etc/cdi alone without it. Older ones warn about an unknown key."""

PODMAN_APPENDED_LISTS: Version = (4, 8, 0)
"""First Podman that can append to a list of an earlier configuration file."""

TOOLKIT_MINIMUM: Version = (1, 18, 0)

TOOLKIT_DEFAULT = "1.20.0"
"""What a host gets that has none, or one that must not stay."""


def plain(version: str) -> str:
    """Without epoch, packaging and build: "5:28.1.1-1~debian.12" -> "28.1.1", "4.3.1+ds1-8" -> "4.3.1"."""
    found = re.match(r"\d+(\.\d+)*", version.rpartition(":")[2])
    return found[0] if found else version


def cdi_limit(engine: str, version: str) -> Version | None:
    """The newest CDI version that an engine reads; (0, 0, 0) for none at all, None where no limit is known."""
    parsed = parse_version(version)
    if parsed is None:
        return None
    limits = [limit for since, limit in _CDI_READ[engine] if parsed >= since]
    if not limits:
        return (0, 0, 0)
    # What the newest engines of the table read is a lower bound for all that come after them.
    return limits[-1] if len(limits) < len(_CDI_READ[engine]) else None


def needs_plain_gids(engine: str, engine_version: str, toolkit_version: str) -> bool:
    """Whether the toolkit must be told to leave additionalGids out, since this engine would reject them."""
    engine_parsed, toolkit_parsed = parse_version(engine_version), parse_version(toolkit_version)
    if engine_parsed is None or toolkit_parsed is None:
        return False
    return engine_parsed < ADDITIONAL_GIDS_READ[engine] and toolkit_parsed >= ADDITIONAL_GIDS_WRITTEN


def check_toolkit_version(version: str) -> Version:
    """The version as numbers, or ToolkitError where it must not be installed."""
    parsed = parse_version(version) if re.fullmatch(r"\d+\.\d+\.\d+", version) else None
    advice = "set gpu_container_toolkit_version to 1.20.0 or another newer release"
    if parsed is None:
        raise ToolkitError(
            f"Cannot install NVIDIA's container toolkit in version '{version}': expected three numbers such as 1.20.0;"
            " correct gpu_container_toolkit_version."
        )
    if parsed == (1, 19, 0):
        raise ToolkitError(
            "Will not install NVIDIA's container toolkit 1.19.0: its nvidia-cdi-refresh.service is ordered after"
            " multi-user.target, which makes an ordering cycle, so that Docker and GPU services may not start at boot;"
            f" {advice}."
        )
    if parsed == (1, 17, 7):
        raise ToolkitError(
            "Will not install NVIDIA's container toolkit 1.17.7: containers lose their CUDA compatibility libraries"
            f" with it; {advice}."
        )
    if parsed < TOOLKIT_MINIMUM:
        raise ToolkitError(
            f"Will not install NVIDIA's container toolkit {version}: it has no nvidia-cdi-refresh unit, which came"
            f" with {short(TOOLKIT_MINIMUM)} and keeps the description of the GPUs current; {advice}."
        )
    return parsed


def engine_version(run: Runner, engine: str, which: Which = shutil.which, root: Path = Path("/")) -> str | None:
    """Version of an installed engine, None where it is not there. Raises ToolkitError for one that would never answer.

    Docker's daemon is asked, not its client: podman-docker brings a client of that name, and one alone runs nothing.
    """
    program = which("dockerd" if engine == "docker" else "podman")
    if program is None:
        return None
    fault = podman_config.fault(root) if engine == "podman" else None
    if fault:
        raise ToolkitError(
            f"Cannot use Podman: {fault}, which every Podman would wait for; remove it, then repeat the run. Nothing"
            " was changed."
        )
    done = run([program, "--version"])
    parsed = parse_version(done.stdout)
    return ".".join(map(str, parsed)) if done.returncode == 0 and parsed else None
