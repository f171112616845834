# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman's drop-in files: containers.conf and registries.conf, as text. Private to socle.inference.

Podman merges what lies in containers.conf.d and registries.conf.d over the main files, which stay the user's.
"""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

from ansible_collections.socle.inference.plugins.module_utils._engine.select import Version, parse_version
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.daemon_json import Settings
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import (
    PODMAN_APPENDED_LISTS,
    PODMAN_CDI_DIRS,
)

CONTAINERS = "etc/containers/containers.conf.d/50-socle.conf"
REGISTRIES = "etc/containers/registries.conf.d/50-socle.conf"

CDI_DIRS = ("/etc/cdi", "/var/run/cdi")

FILES = (CONTAINERS, REGISTRIES)

_MARK = "# Written by socle;"
_HEADER = f"{_MARK} put your own settings into a file of another name.\n"

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def is_ours(text: str) -> bool:
    """Whether a drop-in is one that was written here."""
    return text.startswith(_MARK)


def without_settings(text: str, *, cdi: bool) -> str:
    """What stays of a drop-in of containers.conf where Podman is not used any more; *cdi* keeps what GPUs need."""
    return containers_conf(Settings(needs_cdi=cdi and "cdi_spec_dirs" in text), None)


def size_bytes(text: str) -> int:
    """ "50m" -> 52428800. Raises ToolkitError."""
    found = re.fullmatch(r"(\d+)([bkmg]?)", text.strip().lower())
    if not found or int(found[1]) == 0:
        raise ToolkitError(
            f"Cannot use '{text}' as the size of a log: expected a number with k, m or g, such as 50m; correct"
            " container_engine_log_max_size."
        )
    return int(found[1]) * _UNITS[found[2]]


def containers_conf(settings: Settings, version: str | None) -> str:
    """Text of the drop-in of containers.conf; "" where nothing is to be set. An unknown version is the newest."""
    parsed: Version = parse_version(version) or (999, 0, 0)
    containers = []
    if settings.log_max_size:
        containers.append(f"log_size_max = {size_bytes(settings.log_max_size)}")
    if settings.proxies:
        # By default Podman hands its own proxies, passwords and all, to every container.
        containers.append("http_proxy = false")
    engine = []
    if settings.needs_cdi and parsed >= PODMAN_CDI_DIRS:
        engine.append(f"cdi_spec_dirs = {json.dumps(list(CDI_DIRS))}")
    if settings.proxies:
        variables = []
        for name, value in settings.proxies.items():
            variable = name.replace("-", "_")
            variables += [f"{variable}={value}", f"{variable.upper()}={value}"]
        listed = ", ".join(json.dumps(variable) for variable in variables)
        append = ", {append=true}" if parsed >= PODMAN_APPENDED_LISTS else ""
        engine.append(f"env = [{listed}{append}]")
    tables = {"containers": containers, "engine": engine}
    parts = [f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in tables.items() if lines]
    return _HEADER + "\n" + "\n".join(parts) if parts else ""


def registries_conf(settings: Settings) -> str:
    """Text of the drop-in of registries.conf: mirrors of docker.io; "" without any."""
    if not settings.mirrors:
        return ""
    parts = ['[[registry]]\nprefix = "docker.io"\nlocation = "docker.io"\n']
    for mirror in settings.mirrors:
        address = urlsplit(mirror)
        location = f"{address.netloc}{address.path.rstrip('/')}"
        insecure = "insecure = true\n" if address.scheme == "http" else ""
        parts.append(f"[[registry.mirror]]\nlocation = {json.dumps(location)}\n{insecure}")
    return _HEADER + "\n" + "\n".join(parts)


def check_proxies(settings: Settings) -> None:
    """Raises ToolkitError where a proxy's address has a user or a password in it.

    The Podman of every user reads each file of containers.conf.d, and fails at one that it may not read; so there is no
    place for a secret.
    """
    if settings.secret:
        raise ToolkitError(
            "Cannot give Podman a proxy with user and password in its address: its settings in"
            f" /{CONTAINERS} are read by every user of the host; set container_engine_proxy to a proxy without a"
            " password, such as a forwarding proxy on the host that logs in to yours, or take Docker, whose settings"
            " only root reads. Nothing was changed."
        )
