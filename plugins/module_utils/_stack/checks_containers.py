# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of container engine, container toolkit, CDI specs and device nodes. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from ansible_collections.socle.inference.plugins.module_utils._engine.select import ENGINES, select, short
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._stack.check import (
    AFTER,
    BEFORE,
    BOTH,
    ERROR,
    WARNING,
    Check,
    Evidence,
    Tree,
    engine_of,
    engine_version,
    gpus,
    is_before,
    those,
    tree,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import upstream_version, version_key
from ansible_collections.socle.inference.plugins.module_utils._stack.parse import GPU_KIND
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import (
    DOCKER_CDI_DEFAULT,
    LABELS,
    PODMAN_CDI_DIRS,
    cdi_limit,
    check_toolkit_version,
)

TOOLKIT_PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
"""All must have one version since 1.18."""

DOCKER_CDI_SINCE = (25, 0, 0)
DOCKER_LOW_NOFILE_SINCE = (29, 0, 0)
"""First Docker whose containers get 1024 open files unless told otherwise (moby issue 51485)."""
PODMAN_HEALTHY_REGRESSION = (5, 7, 1)
"""Podman issue 27771: a unit with Notify=healthy may never become ready."""
LEGACY_BY_DEFAULT_BEFORE = (1, 18, 0)
"""Toolkits before this one inject GPUs by the legacy hook unless told otherwise."""

RUNNING = ("active", "activating", "reloading")
"""What systemd says of a unit that is up, or comes up."""

DEFAULT_CDI_DIRS = ("/etc/cdi",)
"""Where Podman looks without cdi_spec_dirs, since it has that key."""


def _toolkit_to_be(facts: Tree, intent: Tree) -> str | None:
    version = intent.get("toolkit_version")
    if not version and not is_before(intent):
        version = tree(facts, "toolkit").get("version")
    return str(version) if version else None


def _uses_docker(facts: Tree, intent: Tree) -> bool:
    return engine_of(facts, intent) == "docker"


def _daemon(stack: Tree) -> Tree:
    return tree(stack, "docker", "daemon")


def _gpu_specs(stack: Tree) -> list[Tree]:
    """Readable specs of GPUs."""
    specs = tree(stack, "cdi").get("specs") or []
    return [spec for spec in specs if spec["kind"] == GPU_KIND and not spec["error"]]


def _engine_text(facts: Tree, intent: Tree) -> tuple[str, str] | None:
    """(name, version) of the engine that runs instances."""
    engine = engine_of(facts, intent)
    version = tree(facts, "engines").get(str(engine)) if engine else None
    return (str(engine), str(version)) if version else None


def _legacy_runtime(facts: Tree, stack: Tree) -> str | None:
    """How Docker's runtime nvidia injects GPUs as it is installed now, in words, where that is the legacy hook.

    What the toolkit will be says nothing: containers that run keep what they were started with.
    """
    toolkit = tree(facts, "toolkit").get("version")
    if engine_version(facts, "docker") is None or "nvidia" not in tree(_daemon(stack), "runtimes") or not toolkit:
        return None
    mode = tree(stack, "nvidia_runtime").get("mode")
    legacy = mode == "legacy" or (mode in (None, "auto") and version_key(toolkit)[0] < LEGACY_BY_DEFAULT_BEFORE)
    if not legacy or "native.cgroupdriver=cgroupfs" in (_daemon(stack).get("exec-opts") or []):
        return None
    return f"Docker's runtime nvidia uses the legacy hook (toolkit {toolkit}, {mode or 'the default mode'})"


def _removes_toolkit(intent: Tree) -> bool:
    return bool(intent.get("toolkit_state") == "absent")


def _toolkit_change(facts: Tree, intent: Tree) -> str | None:
    """What provisioning would do to the toolkit's packages, in words."""
    found, asked = tree(facts, "toolkit").get("version"), str(intent.get("toolkit_version") or "")
    if _removes_toolkit(intent):
        return f"removes container toolkit {found}" if found else None
    if not found:
        return "installs the container toolkit"
    if asked:
        return f"replaces container toolkit {found} by {asked}" if upstream_version(asked) != found else None
    try:
        check_toolkit_version(str(found))
    except ToolkitError:
        return f"replaces container toolkit {found}"
    return None


def _reload_causes(facts: Tree, stack: Tree, intent: Tree) -> list[str]:
    """What provisioning would do that has systemd read its units anew; of the driver its role tells when it plans."""
    causes = [_toolkit_change(facts, intent)]
    if engine_unsuitable(facts, stack, intent):
        causes.append("installs a container engine")
    return [cause for cause in causes if cause]


def reload_ahead(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    victims = stack.get("reload_victims") or []
    causes = _reload_causes(facts, stack, intent) if victims else []
    if not causes:
        return None
    # CDI goes with the toolkit, so that there is no other way for them to keep their GPUs.
    remedy = (
        "Stop them for good, as none of them gets GPUs without the toolkit, or leave gpu_container_toolkit_state at"
        " present; to let it happen, set host_checks_ignore: [SOC-H94]"
        if _removes_toolkit(intent)
        else "Stop them for the run, or start them with --device nvidia.com/gpu=... instead of --gpus or --runtime"
        " nvidia; to let it happen, set host_checks_ignore: [SOC-H94] and restart them afterwards"
    )
    return {"containers": victims, "causes": " and ".join(causes), "remedy": remedy}


def legacy_hook(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    victims = stack.get("reload_victims") or []
    if victims:
        found = f"Docker containers got their GPUs by the legacy hook ({', '.join(victims)})"
        # Where a reload is ahead, SOC-H94 says so.
        ahead = intent.get("stage") != AFTER and reload_ahead(facts, stack, intent)
        return None if ahead else {"found": found}
    runtime = _legacy_runtime(facts, stack)
    return {"found": runtime} if runtime else None


def toolkit_1_19_0(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return {"version": "1.19.0"} if _toolkit_to_be(facts, intent) == "1.19.0" else None


def toolkit_1_17_7(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return {"version": "1.17.7"} if _toolkit_to_be(facts, intent) == "1.17.7" else None


def refresh_failed(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    unit = tree(stack, "units", "nvidia-cdi-refresh.service")
    if unit.get("active") != "failed":
        return None
    return {"result": unit.get("result") or "unknown"}


def refresh_off(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    path = tree(stack, "units", "nvidia-cdi-refresh.path")
    if not path.get("present") or (path.get("active") == "active" and path.get("enabled") != "disabled"):
        return None
    return {"state": f"{path.get('enabled')}, {path.get('active')}"}


def refresh_cycle(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    after = tree(stack, "units", "nvidia-cdi-refresh.service").get("after") or []
    return {"target": "multi-user.target"} if "multi-user.target" in after else None


def spec_mode(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    closed = [spec for spec in _gpu_specs(stack) if not int(spec["mode"], 8) & 0o004]
    return {"path": closed[0]["path"], "mode": closed[0]["mode"]} if closed else None


def spec_too_new(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    engine = _engine_text(facts, intent)
    limit = cdi_limit(*engine) if engine else None
    if engine is None or limit is None:
        return None
    for spec in _gpu_specs(stack):
        if version_key(spec["version"])[0] > limit:
            reads = f"up to {'.'.join(map(str, limit))}" if any(limit) else "no CDI at all"
            return {
                "path": spec["path"],
                "version": spec["version"],
                "engine": f"{LABELS[engine[0]]} {engine[1]}",
                "reads": reads,
            }
    return None


def spec_stale(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    loaded = tree(facts, "driver").get("version")
    for spec in _gpu_specs(stack):
        versions = spec["driver_versions"]
        if loaded and versions and loaded not in versions:
            return {"path": spec["path"], "versions": versions, "loaded": loaded, "way": _renewal(spec)}
    return None


def _renewal(spec: Tree) -> str:
    if spec["path"].startswith("/etc/cdi/"):
        return f"Remove {spec['path']} and run 'systemctl restart nvidia-cdi-refresh'"
    return "Run 'systemctl restart nvidia-cdi-refresh'"


def spec_not_searched(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    engine = _engine_text(facts, intent)
    specs = _gpu_specs(stack)
    if engine is None or engine[0] != "podman" or not specs:
        return None
    searched = tree(stack, "cdi").get("spec_dirs")
    if searched is None:
        version = engine_version(facts, "podman")
        if version is None or version < PODMAN_CDI_DIRS:
            return None
        searched = list(DEFAULT_CDI_DIRS)
    folders = {str(PurePosixPath(folder)).replace("/var/run/", "/run/", 1) for folder in searched}
    found = [
        spec for spec in specs if str(PurePosixPath(spec["path"]).parent).replace("/var/run/", "/run/", 1) in folders
    ]
    return None if found else {"path": specs[0]["path"], "searched": searched}


def docker_cdi_off(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    version = engine_version(facts, "docker")
    if not _uses_docker(facts, intent) or version is None or version < DOCKER_CDI_SINCE:
        return None
    switch = tree(_daemon(stack), "features").get("cdi")
    if switch is True or (switch is None and version >= DOCKER_CDI_DEFAULT):
        return None
    return {"docker": tree(facts, "engines").get("docker"), "since": short(DOCKER_CDI_DEFAULT)}


def toolkit_missing(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if tree(facts, "toolkit").get("version") or engine_of(facts, intent) is None:
        return None
    return {"engine": LABELS[str(engine_of(facts, intent))]}


def closed_nodes(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [
        f"{node['path']} ({node['mode']})"
        for node in stack.get("device_nodes") or []
        if re.fullmatch(r"/dev/nvidia(\d+|ctl|-uvm)", node["path"]) and int(node["mode"], 8) & 0o006 != 0o006
    ]
    return {"nodes": found} if found else None


def uvm_missing(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    nodes = {node["path"] for node in stack.get("device_nodes") or []}
    missing = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if path not in nodes]
    return {"nodes": missing} if missing and tree(facts, "driver").get("version") else None


def uvm_not_at_boot(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    names = stack.get("modules_load") or []
    if not tree(facts, "driver").get("version") or any(name.endswith("nvidia_uvm") for name in names):
        return None
    return {"module": "nvidia-uvm"}


def selinux(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    state = tree(stack, "selinux")
    if state.get("mode") != "enforcing" or state.get("container_use_devices"):
        return None
    return {"boolean": "container_use_devices"}


def podman_regression(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if engine_of(facts, intent) != "podman" or engine_version(facts, "podman") != PODMAN_HEALTHY_REGRESSION:
        return None
    return {"version": short(PODMAN_HEALTHY_REGRESSION)}


def docker_nofile(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    version = engine_version(facts, "docker")
    if not _uses_docker(facts, intent) or version is None or version < DOCKER_LOW_NOFILE_SINCE:
        return None
    return None if "nofile" in tree(_daemon(stack), "default-ulimits") else {"docker": tree(facts, "engines")["docker"]}


def old_sources(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    sources = stack.get("sources") or []
    old = sorted({source["file"] for source in sources if source["kind"] == "nvidia-docker-old"})
    if not old or not any(source["kind"] == "nvidia-toolkit" for source in sources):
        return None
    return {"files": old, "remove": " ".join(old)}


def spec_missing(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if not tree(facts, "driver").get("version") or _gpu_specs(stack):
        return None
    broken = [spec for spec in tree(stack, "cdi").get("specs") or [] if spec["error"]]
    found = f"{broken[0]['path']} cannot be used, as {broken[0]['error']}" if broken else "there is none"
    if not tree(facts, "toolkit").get("version"):
        return {
            "found": found,
            "way": "Run playbook provision.yml: the container toolkit, which writes it, is missing.",
        }
    way = "Run 'systemctl restart nvidia-cdi-refresh', and see 'journalctl -b -u nvidia-cdi-refresh'."
    return {"found": found, "way": way}


def spec_doubled(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    where: dict[str, list[str]] = {}
    for spec in _gpu_specs(stack):
        for name in spec["devices"]:
            where.setdefault(name, []).append(spec["path"])
    doubled = sorted(name for name, paths in where.items() if len(paths) > 1)
    if not doubled:
        return None
    return {"device": f"{GPU_KIND}={doubled[0]}", "count": len(doubled), "paths": where[doubled[0]]}


def _missing_in_specs(facts: Tree, specs: list[Tree]) -> Iterator[Tree]:
    names = {name for spec in specs for name in spec["devices"]}
    for gpu in gpus(facts):
        if gpu.get("by_driver") and gpu.get("uuid") and not {gpu["uuid"], str(gpu.get("index"))} & names:
            yield gpu


def spec_lacks_gpu(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    specs = _gpu_specs(stack)
    return those(_missing_in_specs(facts, specs), paths=[spec["path"] for spec in specs]) if specs else None


def oci_hook(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    hooks = stack.get("oci_hooks") or []
    return {"hooks": hooks, "remove": " ".join(hooks)} if hooks else None


def toolkit_split(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    packages = tree(stack, "packages")
    versions = {
        name: upstream_version(packages[name]["version"])
        for name in TOOLKIT_PACKAGES
        if packages.get(name, {}).get("status") == "installed"
    }
    if len(set(versions.values())) < 2:
        return None
    return {"packages": [f"{name} {version}" for name, version in versions.items()]}


def daemon_invalid(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    complaint = tree(stack, "docker").get("error")
    return {"complaint": complaint} if complaint else None


def default_runtime(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if engine_version(facts, "docker") is None or _daemon(stack).get("default-runtime") != "nvidia":
        return None
    return {"runtime": "nvidia"}


def no_cgroups(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if not _uses_docker(facts, intent) or not tree(stack, "nvidia_runtime").get("no_cgroups"):
        return None
    return {"file": "/etc/nvidia-container-runtime/config.toml"}


def docker_off(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    unit = tree(stack, "units", "docker.service")
    if not _uses_docker(facts, intent) or not unit.get("present"):
        return None
    masked = str(unit.get("enabled")).startswith("masked")
    faults = [] if unit.get("active") in RUNNING else [str(unit.get("active"))]
    if masked or unit.get("enabled") == "disabled":
        faults.append("masked" if masked else "not enabled, so that it does not start at boot")
    if not faults:
        return None
    remedy = "Run 'systemctl enable --now docker.service' (playbook provision.yml does)"
    if masked:
        remedy = "Run 'systemctl unmask docker.socket docker.service', then 'systemctl enable --now docker.service'"
    if unit.get("active") == "failed":
        remedy = f"See 'journalctl -b -u docker'. {remedy}"
    return {"state": " and ".join(faults), "remedy": remedy}


def docker_not_restarted(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return {"file": "/etc/docker/daemon.json"} if tree(stack, "docker").get("changed_since_start") else None


def engine_unsuitable(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    engines = {name: tree(facts, "engines").get(name) for name in ENGINES}
    try:
        select(str(intent.get("engine") or "auto"), engines, needs_cdi=bool(gpus(facts)))
    except EngineError as error:
        found, _semicolon, remedy = error.message.rstrip(".").partition("; ")
        return {"found": found, "remedy": f"{remedy[:1].upper()}{remedy[1:]}"}
    return None


def cgroup_v1(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if engine_of(facts, intent) != "podman" or facts.get("cgroup_version") != 1:
        return None
    return {"found": 1}


CHECKS = (
    Check(
        "SOC-H01",
        "daemon-reload takes GPUs from Docker containers",
        WARNING,
        BOTH,
        "Docker containers that run with GPUs by the legacy hook; or the runtime nvidia, the installed toolkit in"
        " legacy mode (by its configuration, or before 1.18), and no cgroupfs driver in exec-opts.",
        "{found}: each 'systemctl daemon-reload' takes the GPUs from such containers ('Failed to initialize NVML:"
        " Unknown Error'). Instances of socle use CDI and are not affected.",
        'Start other containers with --device nvidia.com/gpu=..., or set mode = "cdi" in'
        " /etc/nvidia-container-runtime/config.toml.",
        legacy_hook,
    ),
    Check(
        "SOC-H02",
        "Container toolkit 1.19.0",
        ERROR,
        BOTH,
        "Version asked for, else installed.",
        "The container toolkit is {version}, whose nvidia-cdi-refresh.service is ordered after multi-user.target: an"
        " ordering cycle in which Docker may not start at boot.",
        "Set gpu_container_toolkit_version to 1.20.0 or newer.",
        toolkit_1_19_0,
    ),
    Check(
        "SOC-H03",
        "CDI refresh failed",
        ERROR,
        (AFTER,),
        "State of nvidia-cdi-refresh.service.",
        "nvidia-cdi-refresh.service failed (result {result}): the CDI spec may lack devices or be of an old driver.",
        "See 'journalctl -b -u nvidia-cdi-refresh', then 'systemctl restart nvidia-cdi-refresh'.",
        refresh_failed,
    ),
    Check(
        "SOC-H04",
        "CDI spec is not readable for all",
        WARNING,
        (AFTER,),
        "File mode of the spec.",
        "{path} has mode {mode}, expected 0644: engines without root say 'unresolvable CDI devices'.",
        "Run 'chmod 0644 {path}'.",
        spec_mode,
    ),
    Check(
        "SOC-H05",
        "CDI spec is too new for the engine",
        ERROR,
        (AFTER,),
        "cdiVersion of the spec against what the engine's version reads.",
        "{path} has CDI version {version}, but {engine} reads {reads}: it rejects the whole file and says only"
        " 'unresolvable CDI devices'.",
        "Set NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes in"
        " /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env and restart nvidia-cdi-refresh (playbook provision.yml"
        " does), or upgrade the engine.",
        spec_too_new,
    ),
    Check(
        "SOC-H06",
        "CDI spec is of another driver",
        ERROR,
        (AFTER,),
        "Version in the names of the libraries that the spec mounts against the loaded module's.",
        "{path} names libraries of driver {versions}, but {loaded} is loaded: containers do not start ('no such"
        " file').",
        "{way}.",
        spec_stale,
    ),
    Check(
        "SOC-H07",
        "Podman does not look where the CDI spec is",
        ERROR,
        (AFTER,),
        "cdi_spec_dirs of containers.conf against the spec's folder.",
        "The CDI spec is {path}, but Podman looks only into {searched}: it says 'unresolvable CDI devices'.",
        'Set cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"] in the section [engine] of a file in'
        " /etc/containers/containers.conf.d/ (playbook provision.yml does).",
        spec_not_searched,
    ),
    Check(
        "SOC-H08",
        "CDI is off in Docker",
        ERROR,
        (AFTER,),
        "features.cdi of daemon.json and Docker's version.",
        "Docker {docker} has CDI off: it says 'could not select device driver \"cdi\"'; it is on by itself from"
        " {since} on.",
        'Set "features": {{"cdi": true}} in /etc/docker/daemon.json and restart Docker (playbook provision.yml does).',
        docker_cdi_off,
    ),
    Check(
        "SOC-H09",
        "No container toolkit",
        ERROR,
        (AFTER,),
        "Version of nvidia-ctk.",
        "{engine} is there, but NVIDIA's container toolkit is not: no container gets a GPU ('could not select device"
        " driver', 'unresolvable CDI devices').",
        "Run playbook provision.yml with gpu_container_toolkit_state: present.",
        toolkit_missing,
    ),
    Check(
        "SOC-H10",
        "Device nodes are closed",
        WARNING,
        (AFTER,),
        "Modes of /dev/nvidia*.",
        "Device nodes are not open to all: {nodes}, expected 0666; users other than root get 'NVML: Insufficient"
        " Permissions'.",
        "Remove NVreg_DeviceFileMode from gpu_driver_module_options and /etc/modprobe.d, and reload the driver.",
        closed_nodes,
    ),
    Check(
        "SOC-H11",
        "Container toolkit 1.17.7",
        ERROR,
        BOTH,
        "Version asked for, else installed.",
        "The container toolkit is {version}, with which containers lose CUDA's compatibility libraries.",
        "Set gpu_container_toolkit_version to 1.20.0 or newer.",
        toolkit_1_17_7,
    ),
    Check(
        "SOC-H27",
        "Control device nodes are missing",
        ERROR,
        (AFTER,),
        "/dev/nvidiactl and /dev/nvidia-uvm, with the driver loaded.",
        "{nodes} is missing though the driver is loaded: CUDA fails in containers with 'unknown error'.",
        "Run 'nvidia-modprobe -u -c 0', then 'systemctl restart nvidia-cdi-refresh'.",
        uvm_missing,
    ),
    Check(
        "SOC-H36",
        "Podman 5.7.1 may never report healthy",
        WARNING,
        BOTH,
        "Podman's version.",
        "Podman is {version}, with which a unit that waits to be healthy may wait for ever (podman issue 27771).",
        "Upgrade or downgrade Podman.",
        podman_regression,
        needs_gpu=False,
    ),
    Check(
        "SOC-H38",
        "Docker allows containers few open files",
        WARNING,
        (AFTER,),
        "Docker 29 or newer, and no default-ulimits.nofile in daemon.json.",
        "Docker {docker} gives containers 1024 open files: 'Too many open files' under load. Instances of socle have a"
        " limit of their own.",
        'For other containers set "default-ulimits": {{"nofile": {{"Name": "nofile", "Hard": 1048576, "Soft": 1048576'
        "}}}} in /etc/docker/daemon.json.",
        docker_nofile,
        needs_gpu=False,
    ),
    Check(
        "SOC-H66",
        "Old sources of the container toolkit",
        WARNING,
        BOTH,
        "Source files of NVIDIA's former container repositories beside the present one.",
        "{files} is of NVIDIA's former container repositories and clashes with the present one: apt says 'Conflicting"
        " values set for option Signed-By'.",
        "Remove it: 'rm {remove}', then 'apt-get update'.",
        old_sources,
    ),
    Check(
        "SOC-H71",
        "No CDI spec",
        ERROR,
        (AFTER,),
        "Specs of kind nvidia.com/gpu in /etc/cdi and /var/run/cdi, with the driver loaded.",
        "No usable CDI spec of the GPUs in /etc/cdi and /var/run/cdi: {found}.",
        "{way}",
        spec_missing,
    ),
    Check(
        "SOC-H72",
        "CDI spec is doubled",
        ERROR,
        (AFTER,),
        "Device names that two specs define.",
        "{device} and others ({count}) are defined by {paths}: engines refuse a device that two specs define.",
        "Keep the one of the refresh unit: remove the file in /etc/cdi, then 'systemctl restart nvidia-cdi-refresh'.",
        spec_doubled,
    ),
    Check(
        "SOC-H73",
        "CDI spec lacks a GPU",
        ERROR,
        (AFTER,),
        "UUIDs and indices of the GPUs against the device names of the specs.",
        "{gpus} is not in {paths}.",
        "Run 'systemctl restart nvidia-cdi-refresh' (changes of GPUs and of MIG do not trigger it).",
        spec_lacks_gpu,
    ),
    Check(
        "SOC-H74",
        "Left-over OCI hook",
        WARNING,
        (AFTER,),
        "oci-nvidia-hook.json in the folders for OCI hooks.",
        "{hooks} injects GPUs a second time beside CDI.",
        "Remove it: 'rm {remove}'.",
        oci_hook,
    ),
    Check(
        "SOC-H75",
        "Toolkit packages of different versions",
        ERROR,
        (AFTER,),
        "Versions of the four packages.",
        "The container toolkit's packages have different versions: {packages}.",
        "Run playbook provision.yml, which pins all of them to gpu_container_toolkit_version.",
        toolkit_split,
    ),
    Check(
        "SOC-H76",
        "CDI refresh is in an ordering cycle",
        ERROR,
        (AFTER,),
        "After= of nvidia-cdi-refresh.service.",
        "nvidia-cdi-refresh.service is ordered after {target}: units after it that this target wants (Docker,"
        " instances)"
        " may not start at boot.",
        "Set gpu_container_toolkit_version to 1.20.0 or newer; remove drop-ins in"
        " /etc/systemd/system/nvidia-cdi-refresh.service.d that order it so.",
        refresh_cycle,
    ),
    Check(
        "SOC-H77",
        "CDI refresh is off",
        WARNING,
        (AFTER,),
        "State of nvidia-cdi-refresh.path: it does not run, or not after a boot.",
        "nvidia-cdi-refresh.path is {state}: the CDI spec goes stale with the next driver.",
        "Run 'systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service'.",
        refresh_off,
    ),
    Check(
        "SOC-H78",
        "Docker's daemon.json is invalid",
        ERROR,
        BOTH,
        "Parsing /etc/docker/daemon.json.",
        "/etc/docker/daemon.json is no valid JSON object: {complaint}; Docker does not start with it, and nothing can"
        " be"
        " merged into it.",
        "Correct it; 'dockerd --validate --config-file /etc/docker/daemon.json' tests it.",
        daemon_invalid,
        needs_gpu=False,
    ),
    Check(
        "SOC-H79",
        "Docker's default runtime is nvidia",
        WARNING,
        (AFTER,),
        "default-runtime of daemon.json.",
        "Docker's default-runtime is {runtime}: every container starts through NVIDIA's wrapper, which CDI does not"
        " need.",
        "Remove default-runtime from /etc/docker/daemon.json unless other containers rely on it.",
        default_runtime,
    ),
    Check(
        "SOC-H80",
        "no-cgroups is set",
        ERROR,
        (AFTER,),
        "no-cgroups in nvidia-container-runtime's config.toml, with Docker.",
        "no-cgroups is true in {file}, which is for rootless Docker only: with root containers get 'Failed to"
        " initialize"
        " NVML: Unknown Error'.",
        "Run 'nvidia-ctk config --in-place --set nvidia-container-cli.no-cgroups=false'.",
        no_cgroups,
    ),
    Check(
        "SOC-H81",
        "Docker has not read its configuration",
        WARNING,
        (AFTER,),
        "Time of daemon.json against the start of docker.service.",
        "{file} is newer than the running Docker, which has not read all of it.",
        "Restart Docker when its containers may stop: 'systemctl restart docker'.",
        docker_not_restarted,
        needs_gpu=False,
    ),
    Check(
        "SOC-H82",
        "SELinux keeps containers from the GPU",
        WARNING,
        (AFTER,),
        "SELinux enforcing, and the boolean container_use_devices off.",
        "SELinux is enforcing and {boolean} is off: containers with SELinux labels get 'NVML: Insufficient"
        " Permissions'. Instances of socle on GPUs run without such labels and are not affected.",
        "Start other containers with --security-opt label=disable, or run 'setsebool -P {boolean} on'.",
        selinux,
    ),
    Check(
        "SOC-H84",
        "No suitable container engine",
        ERROR,
        (AFTER,),
        "Versions of Podman and Docker against what instances need.",
        "{found}.",
        "{remedy}.",
        engine_unsuitable,
        needs_gpu=False,
    ),
    Check(
        "SOC-H85",
        "nvidia-uvm is not loaded at boot",
        WARNING,
        (AFTER,),
        "modules-load.d, with the driver loaded.",
        "{module} is in no file of /etc/modules-load.d: /dev/nvidia-uvm may be missing for the first container after a"
        " boot.",
        "Run playbook provision.yml, or 'echo {module} > /etc/modules-load.d/nvidia-uvm.conf'.",
        uvm_not_at_boot,
    ),
    Check(
        "SOC-H89",
        "cgroup version 1",
        ERROR,
        BOTH,
        "Podman as the engine, and no unified hierarchy.",
        "This host has cgroup version {found}, but Quadlet units need version 2.",
        "Boot with systemd.unified_cgroup_hierarchy=1, or set container_engine: docker.",
        cgroup_v1,
        needs_gpu=False,
    ),
    Check(
        "SOC-H94",
        "Provisioning would take GPUs from Docker containers",
        ERROR,
        (BEFORE,),
        "Docker containers that run with GPUs by the legacy hook, and a toolkit or an engine that provisioning"
        " would change.",
        "Playbook provision.yml {causes}, which has systemd read its units anew and so takes the GPUs from Docker"
        " containers of the legacy hook ('Failed to initialize NVML: Unknown Error'): {containers}.",
        "{remedy}.",
        reload_ahead,
    ),
    Check(
        "SOC-H97",
        "Docker is off",
        ERROR,
        (AFTER,),
        "State of docker.service, with Docker as the engine.",
        "Docker is the engine, and docker.service is {state}: instances do not run without it.",
        "{remedy}.",
        docker_off,
        needs_gpu=False,
    ),
)
"""Checks of containers, by id."""
