# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what GPU software a host has, from files and a few commands, all injected. Private to socle.inference."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import kernel_release
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import LEDGER as DRIVER_HOLDS
from ansible_collections.socle.inference.plugins.module_utils._driver.services import RUNNING, noted_units
from ansible_collections.socle.inference.plugins.module_utils._driver.users import reload_victims
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import LEDGER as PACKAGE_HOLDS
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import damage
from ansible_collections.socle.inference.plugins.module_utils._packages.key_file import holds_key
from ansible_collections.socle.inference.plugins.module_utils._stack import parse
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import (
    foreign_installs,
    read_packages,
    read_sources,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import obstacle, read_regular

SCHEMA = "socle.host_stack/1"

OWN_SOURCE = "# Written by socle"
"""How each package source of ours begins, for apt and for DNF."""
OWN_KEY = re.compile(
    r"^(?:Signed-By: |gpgkey=file://)/(etc/apt/keyrings/\S+|etc/pki/rpm-gpg/RPM-GPG-KEY-\S+)$", re.MULTILINE
)

UNITS = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-cdi-refresh.service",
    "nvidia-cdi-refresh.path",
    "docker.service",
    "unattended-upgrades.service",
)
PROPERTIES = (
    "Id",
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "Result",
    "ConditionResult",
    "ConditionTimestampMonotonic",
    "After",
    "ActiveEnterTimestampMonotonic",
)
CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
CDI_REFRESH_ENVIRONMENT = "etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
OCI_HOOKS = (
    "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
    "etc/containers/oci/hooks.d/oci-nvidia-hook.json",
)
MODULES = (
    "nvidia",
    "nvidia_current",
    "nvidia_current_open",
    "nvidia_uvm",
    "nouveau",
    "ib_umad",
    "mlx5_core",
    "mlx5_ib",
)
"""Kernel modules whose presence the checks ask for."""
DAEMON_KEYS = ("features", "default-runtime", "exec-opts", "default-ulimits", "log-driver")
LOG_KEYS = ("max-size", "max-file")
SIGNING_KEYS = ("var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub")
"""Where DKMS of Ubuntu and of Debian keeps the key that it signs modules with."""


def _output(run: Run, *argv: str) -> str:
    """Both streams of a command; "" where it is missing."""
    answer = run(list(argv))
    return f"{answer[1]}\n{answer[2]}" if answer else ""


def _dkms(run: Run, root: Path) -> list[dict[str, Any]]:
    answer = run(["dkms", "status"])
    modules = [found for found in parse.parse_dkms(answer[1] if answer else "") if "nvidia" in found["module"]]
    for module in modules:
        module["error"] = None
        if module["state"] != "installed":
            log = root / "var/lib/dkms" / module["module"] / module["version"] / "build/make.log"
            module["error"] = parse.first_error(read_regular(log).splitlines())
    return modules


def _units(run: Run) -> dict[str, dict[str, Any]]:
    answer = run(["systemctl", "show", f"--property={','.join(PROPERTIES)}", *UNITS])
    shown = parse.parse_units(answer[1] if answer else "")
    units = {}
    for name in UNITS:
        properties = shown.get(name, {})
        entered = properties.get("ActiveEnterTimestampMonotonic", "")
        units[name] = {
            "present": properties.get("LoadState", "not-found") not in ("not-found", ""),
            "masked": properties.get("LoadState") == "masked",
            "enabled": properties.get("UnitFileState") or None,
            "active": properties.get("ActiveState") or None,
            "result": properties.get("Result") or None,
            # Of a unit that nobody tried to start systemd says "no" as well.
            "condition": properties.get("ConditionResult") != "no"
            or properties.get("ConditionTimestampMonotonic") == "0",
            "after": properties.get("After", "").split(),
            "active_since_us": int(entered) if entered.isdigit() and int(entered) > 0 else None,
        }
    return units


def _mode(path: Path) -> str:
    """The permission bits as four octal digits; those of a link itself where it leads nowhere."""
    try:
        status = path.stat()
    except OSError:
        status = path.lstat()
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _cdi_specs(root: Path) -> list[dict[str, Any]]:
    specs = []
    for folder in CDI_FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.suffix not in (".yaml", ".yml", ".json"):
                continue
            spec = parse.parse_cdi_spec(read_regular(path))
            spec["error"] = obstacle(path) or spec["error"]
            if spec["kind"] and not spec["kind"].startswith("nvidia.com/"):
                continue
            if not spec["kind"] and "nvidia" not in path.name:
                continue
            specs.append({"path": f"/{folder}/{path.name}", "mode": _mode(path), **spec})
    return specs


def _shown(daemon: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of daemon.json that matter here; others (proxies, log drivers) may hold passwords."""
    shown = {key: daemon[key] for key in DAEMON_KEYS if key in daemon}
    if isinstance(daemon.get("runtimes"), dict):
        shown["runtimes"] = {name: {} for name in daemon["runtimes"]}
    if isinstance(daemon.get("log-opts"), dict):
        shown["log-opts"] = {key: daemon["log-opts"][key] for key in LOG_KEYS if key in daemon["log-opts"]}
    return shown


def _docker(root: Path, proc_root: Path, units: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    path = root / "etc/docker/daemon.json"
    daemon, complaint = parse.parse_json_object(read_regular(path))
    started = units.get("docker.service", {}).get("active_since_us")
    boot = [line.split()[1] for line in read_regular(proc_root / "stat").splitlines() if line.startswith("btime ")]
    changed_since_start = False
    if path.is_file() and started and boot:
        # A second of margin: the kernel gives its time of boot in whole seconds.
        changed_since_start = path.stat().st_mtime > int(boot[0]) + started / 1e6 + 1
    return {"daemon": _shown(daemon), "error": complaint, "changed_since_start": changed_since_start}


def _cdi_dirs(root: Path) -> list[str] | None:
    paths = [root / "usr/share/containers/containers.conf", root / "etc/containers/containers.conf"]
    paths += sorted((root / "etc/containers/containers.conf.d").glob("*.conf"))
    return parse.parse_cdi_dirs(read_regular(path) for path in paths)


def _device_nodes(root: Path) -> list[dict[str, str]]:
    nodes = []
    for path in sorted((root / "dev").glob("nvidia*")):
        if not path.is_dir():
            nodes.append({"path": f"/dev/{path.name}", "mode": _mode(path)})
    return nodes


def _modules_load(root: Path) -> list[str]:
    paths = [root / "etc/modules"]
    for folder in ("etc", "usr/lib", "run"):
        paths += sorted((root / folder / "modules-load.d").glob("*.conf"))
    lines = (line.strip() for path in paths for line in read_regular(path).splitlines())
    return sorted({line.replace("-", "_") for line in lines if line and line[0] not in "#;"})


def _signing_key(run: Run, root: Path, secure_boot: bool | None) -> dict[str, Any]:
    """The key that DKMS signs with and whether the firmware knows it; asked only where Secure Boot is on."""
    if not secure_boot:
        return {"path": None, "enrolled": None}
    path = next((name for name in SIGNING_KEYS if (root / name).is_file()), None)
    if path is None:
        return {"path": None, "enrolled": False}
    # mokutil's return code is 1 for a key that is enrolled.
    return {"path": f"/{path}", "enrolled": "already enrolled" in _output(run, "mokutil", "--test-key", f"/{path}")}


def _unattended(root: Path) -> dict[str, Any]:
    return parse.parse_unattended(read_regular(path) for path in sorted((root / "etc/apt/apt.conf.d").glob("*")))


def _selinux(sys_root: Path) -> dict[str, Any]:
    enforce = read_regular(sys_root / "fs/selinux/enforce").strip()
    boolean = read_regular(sys_root / "fs/selinux/booleans/container_use_devices").split()
    return {
        "mode": {"1": "enforcing", "0": "permissive"}.get(enforce),
        "container_use_devices": boolean[0] == "1" if boolean else None,
    }


def _reboot(root: Path) -> dict[str, Any]:
    for folder in ("run", "var/run"):
        if (root / folder / "reboot-required").exists():
            return {"required": True, "packages": read_regular(root / folder / "reboot-required.pkgs").split()}
    return {"required": False, "packages": []}


def _gpu_processes(run: Run, proc_root: Path, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Processes with GPU memory: [{"pid", "name", "memory_mib", "gpu", "owner"}]; owner is a unit or container."""
    found = []
    for gpu in facts.get("gpus") or []:
        for process in gpu.get("processes") or []:
            owner = parse.cgroup_owner(read_regular(proc_root / str(process["pid"]) / "cgroup"))
            found.append({**process, "gpu": gpu.get("pci_bus_id"), "owner": owner})
    docker = {str(process["owner"]) for process in found if str(process["owner"]).startswith("docker-")}
    if docker:
        answer = run(["docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"])
        names = dict(line.split(None, 1) for line in (answer[1] if answer else "").splitlines() if " " in line)
        for process in found:
            identity = str(process["owner"])[len("docker-") : -len(".scope")]
            process["owner"] = names.get(identity, process["owner"])
    return found


def _left_stopped(run: Run, root: Path) -> list[str]:
    """Units that a change of the driver has stopped and nobody has started since."""
    noted = noted_units(Files(), root)
    answer = run(["systemctl", "show", "--property=Id,ActiveState", "--", *noted]) if noted else None
    states = parse.parse_units(answer[1] if answer else "")
    return [unit for unit in noted if states.get(unit, {}).get("ActiveState") not in RUNNING]


def _damaged_notes(root: Path) -> list[dict[str, str]]:
    notes = [(f"/{name}", damage(root / name)) for name in (DRIVER_HOLDS, PACKAGE_HOLDS)]
    return [{"path": path, "why": why} for path, why in notes if why]


def _damaged_keys(root: Path) -> list[dict[str, str]]:
    """Key files of socle's own package sources that hold none: [{"file" of the source, "key"}]."""
    damaged = []
    for folder, suffix in (("etc/apt/sources.list.d", ".sources"), ("etc/yum.repos.d", ".repo")):
        for path in sorted((root / folder).glob(f"*{suffix}")):
            text = read_regular(path)
            # A distribution's own archive, of which a source of ours may name more parts, has its keyring elsewhere.
            key = OWN_KEY.search(text) if text.startswith(OWN_SOURCE) else None
            if key and not holds_key(root / key[1]):
                damaged.append({"file": f"/{folder}/{path.name}", "key": f"/{key[1]}"})
    return damaged


def _reload_victims(
    run: Run, root: Path, units: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]
) -> list[str]:
    """Docker containers that a daemon-reload takes the GPUs from."""
    # Asking a Docker that is stopped starts it, by its socket.
    if units.get("docker.service", {}).get("active") != "active":
        return []
    return reload_victims(run, root, (facts.get("toolkit") or {}).get("version"))


def gather_stack(run: Run, root: Path, sys_root: Path, proc_root: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What software a host has, beside *facts* (of gpu_facts): schema "socle.host_stack/1".

    Without an NVIDIA GPU only files are read, and the units' states where Docker is; the keys are the same, empty.
    """
    with_gpu = bool(facts.get("gpus"))
    packages = read_packages(run, root) if with_gpu else {}
    units = _units(run) if with_gpu or (facts.get("engines") or {}).get("docker") else {}
    return {
        "schema": SCHEMA,
        "packages": packages,
        "sources": read_sources(root),
        "foreign": foreign_installs(run, root, packages) if with_gpu else [],
        "dkms": _dkms(run, root) if with_gpu else [],
        "units": units,
        "cdi": {
            "specs": _cdi_specs(root) if with_gpu else [],
            "environment": parse.parse_environment(read_regular(root / CDI_REFRESH_ENVIRONMENT)),
            "spec_dirs": _cdi_dirs(root),
        },
        "oci_hooks": [f"/{name}" for name in OCI_HOOKS if (root / name).exists()],
        "docker": _docker(root, proc_root, units),
        "nvidia_runtime": parse.parse_runtime_config(read_regular(root / "etc/nvidia-container-runtime/config.toml")),
        "device_nodes": _device_nodes(root),
        "modules": [name for name in MODULES if (sys_root / "module" / name).is_dir()],
        "modules_load": _modules_load(root) if with_gpu else [],
        "signing_key": _signing_key(run, root, with_gpu and facts.get("secure_boot")),
        "unattended": _unattended(root) if with_gpu else {"enabled": False, "blacklist": []},
        "selinux": _selinux(sys_root),
        "reboot": _reboot(root),
        "kernel_release": list(kernel_release(str(facts.get("kernel") or ""), read_regular(proc_root / "version"))),
        "shm_mib": parse.parse_shm_mib(read_regular(proc_root / "mounts"), facts.get("memory_mib")),
        "reload_victims": _reload_victims(run, root, units, facts),
        "left_stopped": _left_stopped(run, root),
        "damaged_notes": _damaged_notes(root),
        "damaged_keys": _damaged_keys(root),
        "gpu_processes": _gpu_processes(run, proc_root, facts),
    }
