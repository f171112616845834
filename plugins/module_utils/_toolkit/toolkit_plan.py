# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages and sources role gpu_container_toolkit brings to a host. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.select import parse_version
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import refusal
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import upstream_version
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_plan import family, replaced_sources
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import (
    TOOLKIT_DEFAULT,
    check_toolkit_version,
)

PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
"""All four, since each needs the others in its own version, and one left behind broke containers in 1.17.7."""

SOURCE_KINDS = ("nvidia-toolkit", "nvidia-docker-old")

FILES = {
    "debian": "/etc/apt/sources.list.d/nvidia-container-toolkit.sources",
    "redhat": "/etc/yum.repos.d/nvidia-container-toolkit.repo",
}


REPOSITORY: dict[str, dict[str, str]] = {
    "debian": {"name": "nvidia-container-toolkit", "folder": "stable/deb/$(ARCH)", "key": "gpgkey"},
    "redhat": {"name": "nvidia-container-toolkit", "folder": "stable/rpm/$basearch", "key": "gpgkey"},
}
"""What lies where below the repository's base address. A plan has no address, which may hold a password."""


def kept_version(there: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The newest installed version, with its packaging's revision, where it may stay: "1.18.2-1"; else None."""
    found = [str(package["version"]).rpartition(":")[2] for package in there.values()]
    if not found:
        return None
    newest = max(found, key=lambda version: parse_version(upstream_version(version)) or (0, 0, 0))
    try:
        check_toolkit_version(upstream_version(newest))
    except ToolkitError:
        return None
    return newest


def plan(
    packages: Mapping[str, Mapping[str, Any]],
    os: Mapping[str, Any],
    version: str,
    *,
    downgrade: bool = False,
    remove: bool = False,
    own_holds: Collection[str] = (),
    lost_holds: str = "",
    moved: Callable[[Mapping[str, Any]], bool] = lambda _repository: False,
    root: Path = Path("/"),
) -> dict[str, Any]:
    """What is to be installed: {"family", "version", "packages", "due", "changing", "replaces", "expect", "repository"}

    *packages* is the answer of ``read_packages``. An empty *version* keeps what is installed where that may stay, else
    takes TOOLKIT_DEFAULT. *due* says whether a package is missing, or has another version or no hold, or the source has
    another address than its file on the host, which *moved* tells; *changing* the same without holds, so that the
    source is asked; *expect* is what it must offer then. *own_holds* are packages that socle holds, *lost_holds* what
    a refusal says where that is not known. Raises ToolkitError for versions that must not be installed, where one would
    become older, and where somebody else holds a package that would change.
    """
    kind = family(os)
    foreign = {name for name in PACKAGES if packages.get(name, {}).get("held")} - set(own_holds)
    if remove:
        if foreign:
            raise ToolkitError(
                refusal(
                    "remove NVIDIA's container toolkit",
                    foreign,
                    kind,
                    "leave gpu_container_toolkit_state at present",
                    lost_holds,
                )
            )
        return {
            "family": kind,
            "version": version,
            "packages": dict.fromkeys(PACKAGES, ""),
            "due": any(name in packages for name in PACKAGES),
            "replaces": [],
            "changing": False,
            "expect": {},
            "repository": dict(REPOSITORY[kind]),
        }
    there = {name: packages[name] for name in PACKAGES if packages.get(name, {}).get("status") == "installed"}
    kept = None if version else kept_version(there)
    exact = kept or f"{version or TOOLKIT_DEFAULT}-1"
    version = upstream_version(exact)
    wanted = check_toolkit_version(version)
    newer = sorted(
        (name, upstream_version(str(package["version"])))
        for name, package in there.items()
        if (parse_version(upstream_version(str(package["version"]))) or wanted) > wanted
    )
    if newer and not downgrade:
        name, found = newer[0]
        raise ToolkitError(
            f"Will not replace {name} {found} by the older {version}: set gpu_container_toolkit_version to {found} to"
            " keep it, or gpu_container_toolkit_downgrade to true to go back. Nothing was changed."
        )
    foreign -= {name for name, package in there.items() if str(package["version"]).rpartition(":")[2] == exact}
    if foreign:
        raise ToolkitError(refusal(f"install NVIDIA's container toolkit {version}", foreign, kind, lost=lost_holds))
    whole = len(there) == len(PACKAGES) and all(
        str(package["version"]).rpartition(":")[2] == exact for package in there.values()
    )
    settled = whole and all(package["held"] for package in there.values())
    replaces = replaced_sources(root, SOURCE_KINDS, FILES[kind], "NVIDIA's container toolkit")
    changing = not whole or bool(replaces) or moved(REPOSITORY[kind])
    return {
        "family": kind,
        "version": version,
        "packages": dict.fromkeys(PACKAGES, exact),
        "due": not settled or changing,
        "changing": changing,
        "replaces": replaces,
        # A mirror need not keep the version that is installed.
        "expect": {} if whole and not replaces else dict.fromkeys(PACKAGES, exact),
        "repository": dict(REPOSITORY[kind]),
    }
