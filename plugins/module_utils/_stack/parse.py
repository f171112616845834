# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure parsers of what a GPU host's software writes about itself. Private to socle.inference.

Hosts need not have PyYAML, nor a TOML reader before Python 3.11: the few lines that matter are read as lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

GPU_KIND = "nvidia.com/gpu"
"""The CDI kind of whole GPUs and MIG devices."""


def parse_dkms(output: str) -> list[dict[str, Any]]:
    """``dkms status``: [{"module", "version", "kernel" or None, "state"}], of DKMS 2 and 3.

    A module that is only known, not built for any kernel, has state "added" and no kernel.
    """
    found = []
    for line in output.splitlines():
        match = re.match(r"([\w.+-]+)(?:/|,\s*)([^,:\s]+)(?:,\s*([^,:\s]+))?(?:,\s*([^,:\s]+))?:\s*(\w+)", line)
        if match:
            module, version, kernel, _arch, state = match.groups()
            found.append({"module": module, "version": version, "kernel": kernel, "state": state})
    return found


def first_error(lines: Iterable[str]) -> str | None:
    """The first line of a compiler's log that holds "error:"; the ones after it mostly follow from it."""
    for line in lines:
        if re.search(r"\berror:", line, re.IGNORECASE):
            return line.strip()[:300]
    return None


def parse_units(output: str) -> dict[str, dict[str, str]]:
    """``systemctl show`` of several units: {Id: {property: value}}."""
    units = {}
    for block in re.split(r"\n\s*\n", output):
        properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if properties.get("Id"):
            units[properties["Id"]] = properties
    return units


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'")


def _yaml_devices(text: str) -> list[str]:
    section = re.search(r"^devices:[ \t]*\n((?:[ \t-].*\n|\n)*)", text + "\n", re.MULTILINE)
    body = section.group(1) if section else ""
    first = re.search(r"^([ \t]*)- ", body, re.MULTILINE)
    indent = len(first.group(1)) if first else 0
    pattern = rf"^(?:[ ]{{{indent}}}- |[ ]{{{indent + 2}}})name:[ \t]*(.+)$"
    return [_unquoted(name) for name in re.findall(pattern, body, re.MULTILINE)]


def parse_cdi_spec(text: str) -> dict[str, Any]:
    """What matters of a CDI spec (YAML or JSON): {"version", "kind", "devices", "driver_versions", "error"}.

    *driver_versions* are those in the names of the driver libraries that the spec mounts.
    """
    spec: dict[str, Any] = {"version": None, "kind": None, "devices": [], "error": None}
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
            for key, name in (("version", "cdiVersion"), ("kind", "kind")):
                spec[key] = data[name] if isinstance(data.get(name), str) else None
            spec["devices"] = [str(device.get("name")) for device in data.get("devices") or []]
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            spec["error"] = f"it is no valid JSON ({error})"
    else:
        for key, name in (("version", "cdiVersion"), ("kind", "kind")):
            match = re.search(rf"^{name}:[ \t]*(\S+)", text, re.MULTILINE)
            spec[key] = _unquoted(match.group(1)) if match else None
        spec["devices"] = _yaml_devices(text)
    if spec["error"] is None and not spec["version"]:
        spec["error"] = "it has no cdiVersion"
    libraries = re.findall(r"lib(?:cuda|nvidia-ml)\.so\.(\d{2,}\.\d+(?:\.\d+)?)", text)
    spec["driver_versions"] = sorted(set(libraries))
    return spec


def parse_environment(text: str) -> dict[str, str]:
    """A systemd environment file: KEY=value lines."""
    values = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            values[key.strip()] = _unquoted(value)
    return values


def parse_json_object(text: str) -> tuple[dict[str, Any], str | None]:
    """(object, complaint); an empty text is an empty object."""
    if not text.strip():
        return {}, None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {}, str(error)
    if not isinstance(data, dict):
        return {}, f"the top is a {type(data).__name__}, not an object"
    return data, None


def parse_runtime_config(text: str) -> dict[str, Any]:
    """nvidia-container-runtime's config.toml: {"no_cgroups": bool, "mode": "auto"|"legacy"|"cdi"|... or None}."""
    no_cgroups = re.search(r"^\s*no-cgroups\s*=\s*(true|false)", text, re.MULTILINE)
    mode = re.search(r"^\s*mode\s*=\s*\"([\w-]+)\"", text, re.MULTILINE)
    return {
        "no_cgroups": bool(no_cgroups and no_cgroups.group(1) == "true"),
        "mode": mode.group(1) if mode else None,
    }


def parse_cdi_dirs(texts: Iterable[str]) -> list[str] | None:
    """``cdi_spec_dirs`` of containers.conf files, the last that sets it; None where none does."""
    dirs: list[str] | None = None
    for text in texts:
        match = re.search(r"^\s*cdi_spec_dirs\s*=\s*\[([^\]]*)\]", text, re.MULTILINE)
        if match:
            dirs = re.findall(r"[\"']([^\"']+)[\"']", match.group(1))
    return dirs


def parse_unattended(texts: Iterable[str]) -> dict[str, Any]:
    """apt.conf files: {"enabled": bool, "blacklist": patterns of unattended-upgrades}."""
    enabled = False
    blacklist: list[str] = []
    for text in texts:
        plain = re.sub(r"^\s*(//|#).*$", "", text, flags=re.MULTILINE)
        switch = re.search(r"APT::Periodic::Unattended-Upgrade\s+\"?(\w+)\"?", plain)
        if switch:
            enabled = switch.group(1) not in ("0", "never", "no", "false")
        for block in re.findall(r"Unattended-Upgrade::Package-Blacklist\s*\{([^}]*)\}", plain):
            blacklist += re.findall(r"\"([^\"]+)\"", re.sub(r"//.*", "", block))
        blacklist += re.findall(r"Unattended-Upgrade::Package-Blacklist::\s*\"([^\"]+)\"", plain)
    return {"enabled": enabled, "blacklist": blacklist}


def parse_shm_mib(mounts: str, memory_mib: int | None) -> int | None:
    """Size of /dev/shm by /proc/mounts; without a size option tmpfs takes half of the memory."""
    match = re.search(r"^\S+ /dev/shm tmpfs (\S+)", mounts, re.MULTILINE)
    if match is None:
        return None
    size = re.search(r"(?:^|,)size=(\d+)([kmg]?)", match.group(1))
    if size is None:
        return memory_mib // 2 if memory_mib else None
    bytes_ = int(size.group(1)) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[size.group(2)]
    return bytes_ // 1024**2


def cgroup_owner(text: str) -> str | None:
    """The systemd unit or container scope in /proc/PID/cgroup that a process belongs to, the outermost one."""
    for line in text.splitlines():
        match = re.search(r"/([^/]+\.(?:service|scope))", line)
        if match:
            return match.group(1)
    return None
