# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the driver: version, flavour, packages, kernel module, fabric manager. Private to socle.inference."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._driver.decide import (
    BUILDS_FROM,
    BUILDS_NOT,
    CUDA_MINIMUM,
    FIRST_OPEN_ONLY_BRANCH,
    UNFINISHED,
    builds,
    installed_version,
    key_steps,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    branch_of,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.names import headers, is_driver_package
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import holdable
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_names import locked_with_driver
from ansible_collections.socle.inference.plugins.module_utils._packages.version import version_key
from ansible_collections.socle.inference.plugins.module_utils._stack.check import (
    AFTER,
    BEFORE,
    BOTH,
    ERROR,
    WARNING,
    Check,
    Evidence,
    Tree,
    asked_driver,
    driver_to_be,
    flavour_to_be,
    gpus,
    has_nvswitch,
    is_consumer,
    name_gpus,
    needs_open,
    persistenced_state,
    those,
    tree,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import upstream_version

FOREIGN_RPM_SOURCES = {
    "negativo17.org": None,
    "rpmfusion": re.compile(r"akmod-nvidia\S*|xorg-x11-drv-nvidia\S*"),
    "elrepo": re.compile(r"kmod-nvidia(-\d+xx)?|nvidia-x11-drv\S*"),
}
"""Third-party repositories with other builds of the driver -> names of their packages, which alone show that one came
from there; None where the names are NVIDIA's own, so that the repository itself is in the way."""

RPM_HEADERS = ("kernel-devel-matched", "kernel-devel")

FABRIC_PACKAGES = re.compile(r"nvidia-fabric-?manager(-\d+)?|libnvidia-nscq(-\d+)?|libnvsdm(-\d+)?")
"""Companions that must have the driver's version to the patch level; not their development packages."""


def _driver_packages(stack: Tree) -> dict[str, Tree]:
    return {
        name: package
        for name, package in tree(stack, "packages").items()
        if is_driver_package(name) and package.get("status") not in ("not-installed", "config-files")
    }


def _is_installed(stack: Tree, name: str) -> bool:
    return bool(tree(stack, "packages", name).get("status") == "installed")


def _loaded(facts: Tree) -> str | None:
    version = tree(facts, "driver").get("version")
    return str(version) if version else None


def _cuda_floor(facts: Tree, intent: Tree) -> tuple[str, str, str] | None:
    """(CUDA of the image, driver it needs, driver to be), when the latter is below."""
    cuda, to_be = str(intent.get("image_cuda") or ""), driver_to_be(facts, intent)
    minimum = CUDA_MINIMUM.get(cuda.partition(".")[0])
    if minimum is None or to_be is None or to_be[1] >= version_key(minimum):
        return None
    return cuda, minimum, to_be[0]


def _compatibility_is_on(intent: Tree) -> bool:
    env = {**tree(intent, "class", "env"), **tree(intent, "env")}
    return str(env.get("VLLM_ENABLE_CUDA_COMPATIBILITY", "")).lower() in ("1", "true", "yes")


def compatibility_needless(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    cuda, to_be = str(intent.get("image_cuda") or ""), driver_to_be(facts, intent)
    minimum = CUDA_MINIMUM.get(cuda.partition(".")[0])
    if not _compatibility_is_on(intent) or minimum is None or to_be is None or to_be[1] < version_key(minimum):
        return None
    return {"cuda": cuda, "driver": to_be[0]}


def old_for_consumer(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    below = _cuda_floor(facts, intent)
    if below is None:
        return None
    cards = [gpu for gpu in gpus(facts) if is_consumer(gpu)]
    return those(cards, cuda=below[0], minimum=below[1], driver=below[2])


def old_for_image(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    below = _cuda_floor(facts, intent)
    if below is None or all(is_consumer(gpu) for gpu in gpus(facts)):
        return None
    return {"cuda": below[0], "minimum": below[1], "driver": below[2]}


def old_for_cuda_13(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    to_be = driver_to_be(facts, intent)
    if intent.get("image_cuda") or to_be is None or to_be[1] >= version_key(CUDA_MINIMUM["13"]):
        return None
    return {"driver": to_be[0], "minimum": CUDA_MINIMUM["13"]}


def below_class(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    minimum, to_be = tree(intent, "class", "driver").get("minimum"), driver_to_be(facts, intent)
    if not minimum or to_be is None or to_be[1] >= version_key(str(minimum)):
        return None
    return {"driver": to_be[0], "minimum": minimum, "host_class": tree(intent, "class").get("name")}


def proprietary_for_blackwell(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if flavour_to_be(facts, intent) != "proprietary":
        return None
    return those(gpu for gpu in gpus(facts) if needs_open(gpu))


def proprietary_not_packaged(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    version, branch = asked_driver(intent)
    branch = branch_of(version) or branch
    if intent.get("driver_flavour") != "proprietary" or not branch or int(branch) < FIRST_OPEN_ONLY_BRANCH:
        return None
    return {"branch": branch, "first": FIRST_OPEN_ONLY_BRANCH}


def does_not_build(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    to_be, kernel = driver_to_be(facts, intent), tuple(stack.get("kernel_release") or ())
    driver = tree(facts, "driver")
    if to_be is None or not kernel or driver.get("disk_version") == to_be[0]:
        return None
    if any(name.startswith("linux-modules-nvidia") for name in tree(stack, "packages")):
        return None
    version = to_be[0] if " " not in to_be[0] else ".".join(map(str, to_be[1]))
    if builds(version, flavour_to_be(facts, intent), kernel):
        return None
    return {"driver": to_be[0], "kernel": ".".join(map(str, kernel)), "from": BUILDS_FROM, "not": sorted(BUILDS_NOT)}


def dkms_not_installed(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    kernel = facts.get("kernel")
    modules = stack.get("dkms") or []
    if not modules or any(module["kernel"] == kernel and module["state"] == "installed" for module in modules):
        return None
    worst = next((module for module in modules if module.get("error")), modules[0])
    module = f"{worst['module']}/{worst['version']}"
    error = worst.get("error") or "its make.log has no line with 'error:'"
    log = f"/var/lib/dkms/{module}/build/make.log"
    return {"module": module, "state": worst["state"], "kernel": kernel, "error": error, "log": log}


def _brings_driver(source: Tree, stack: Tree) -> bool:
    """Whether a third-party repository has given this host a driver, or would mix its own into NVIDIA's."""
    for name, packages in FOREIGN_RPM_SOURCES.items():
        if name in source["uri"]:
            return packages is None or any(packages.fullmatch(found) for found in tree(stack, "packages"))
    return False


def mixed_sources(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    sources = stack.get("sources") or []

    def of(kind: str) -> list[Tree]:
        return [source for source in sources if source["kind"] == kind]

    other: list[Any] = [source for source in of("ppa") if "graphics-drivers" in source["uri"]]
    other += [source for source in of("other") if _brings_driver(source, stack)]
    folders = {match.group(1) for source in of("nvidia-cuda") if (match := re.search(r"/repos/([^/]+)", source["uri"]))}
    if of("nvidia-cuda"):
        other += of("nvidia-local")
    if len(folders) > 1:
        other += of("nvidia-cuda")
    if intent.get("driver_source") == "distribution":
        other += of("nvidia-cuda")
    if not other:
        return None
    listed = [f"{source['uri']} ({source['file']})" for source in other]
    return {"sources": listed, "wanted": intent.get("driver_source") or "nvidia", "file": other[0]["file"]}


def foreign_driver(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = stack.get("foreign") or []
    if not found:
        return None
    if found[0]["kind"] == "runfile":
        way = "Remove it with 'nvidia-uninstall', reboot, then repeat the run."
    else:
        way = "Remove these files by what put them there (an image of a cloud, a vendor's script), then repeat the run."
    return {"evidence": found[0]["evidence"], "way": way}


def library_mismatch(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    loaded, library = _loaded(facts), tree(facts, "driver").get("library_version")
    return {"loaded": loaded, "library": library} if loaded and library and loaded != library else None


def no_driver(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    driver = tree(facts, "driver")
    there = _loaded(facts) or driver.get("library_version") or driver.get("disk_version") or _driver_packages(stack)
    if there or not gpus(facts):
        return None
    return {"gpus": name_gpus(gpus(facts))}


def module_not_loaded(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    driver = tree(facts, "driver")
    if _loaded(facts) or not (driver.get("library_version") or driver.get("disk_version") or _driver_packages(stack)):
        return None
    kernel = facts.get("kernel")
    if driver.get("disk_version"):
        found = f"its module {driver['disk_version']} is there for kernel {kernel}, but not loaded"
        way = "Load it with 'modprobe nvidia' and see 'journalctl -k -g NVRM' for why it was refused."
    else:
        found = f"there is no module for the running kernel {kernel}"
        way = (
            f"Install the headers of this kernel and build it with 'dkms autoinstall -k {kernel}', or reboot into the"
            " kernel that has one."
        )
    return {"found": found, "way": way}


def smi_fails(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    error = tree(facts, "driver").get("error")
    if not error or not _loaded(facts) or library_mismatch(facts, stack, intent):
        return None
    return {"error": error}


def secure_boot_refuses(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    key = tree(stack, "signing_key")
    if not facts.get("secure_boot") or _loaded(facts) or key.get("enrolled"):
        return None
    if any(name.startswith("linux-modules-nvidia") for name in tree(stack, "packages")):
        return None
    ubuntu = tree(facts, "os").get("id") == "ubuntu"
    if ubuntu and intent.get("driver_source") == "distribution":
        return None
    path = key.get("path")
    if path:
        found = f"signs with {path}, which is not enrolled"
        way = f'enrol it with "mokutil --import {path}", reboot, confirm it at the console, and repeat the run'
    else:
        found, way = "has no key yet that the firmware knows", key_steps(tree(facts, "os"))
    instead = ", or take Ubuntu's signed modules with gpu_driver_source: distribution" if ubuntu else ""
    way = f"{way[0].upper()}{way[1:]}; or turn Secure Boot off in the firmware{instead}."
    return {"found": found, "way": way}


def persistenced_down(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    state = persistenced_state(stack)
    if intent.get("driver_persistence") is False or state is None:
        return None
    return {"state": state[0], "way": state[1]}


def _reserved(facts: Tree) -> list[Tree]:
    return [gpu for gpu in gpus(facts) if gpu.get("bound_driver") not in (None, "nvidia", "nouveau")]


def other_driver(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = _reserved(facts)
    return those(found, driver=found[0]["bound_driver"]) if found and len(found) == len(gpus(facts)) else None


def other_driver_for_some(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = _reserved(facts)
    if not found or len(found) == len(gpus(facts)):
        return None
    return those(found, driver=found[0]["bound_driver"], left=len(gpus(facts)) - len(found), total=len(gpus(facts)))


def nouveau(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return those(gpu for gpu in gpus(facts) if gpu.get("bound_driver") == "nouveau")


def not_as_intended(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    loaded, (version, branch) = _loaded(facts), asked_driver(intent)
    if loaded is None:
        return None
    wanted = version or branch
    disk = tree(facts, "driver").get("disk_version")
    # What is on disk already is waited for by SOC-H62.
    for found in (loaded, disk):
        if found and (found == version if version else not branch or branch_of(found) == branch):
            return None
    way = "Run playbook provision.yml, or correct gpu_driver_version and gpu_driver_branch."
    if intent.get("driver_state") == "unmanaged":
        way = (
            f"Install {wanted} by the means that the driver came with, or correct gpu_driver_version and"
            " gpu_driver_branch."
        )
    elif _is_older(wanted, str(disk or loaded)):
        way = (
            f"A downgrade in place is refused: set gpu_driver_version to {disk or loaded} and leave gpu_driver_branch"
            " empty to keep it, or remove the driver first with gpu_driver_state: absent."
        )
    return {"loaded": loaded, "wanted": wanted, "way": way}


def _is_older(wanted: str, there: str) -> bool:
    """Whether a version or branch is older than the version that is there."""
    return version_key(wanted) < version_key(there if "." in wanted else branch_of(there))


def next_kernel_without(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    driver, kernel = tree(facts, "driver"), facts.get("kernel")
    upcoming = driver.get("next_kernel")
    if not upcoming or upcoming == kernel or driver.get("next_disk_version"):
        return None
    if not (driver.get("disk_version") or _loaded(facts)):
        return None
    return {"next": upcoming, "kernel": kernel}


def reboot_pending(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    loaded, disk = _loaded(facts), tree(facts, "driver").get("disk_version")
    return {"loaded": loaded, "disk": disk} if loaded and disk and loaded != disk else None


def packages_unfinished(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [
        f"{name} ({package['status']})"
        for name, package in tree(stack, "packages").items()
        if package["status"] in UNFINISHED and ("nvidia" in name or is_driver_package(name) or name == "dkms")
    ]
    return {"packages": sorted(found)} if found else None


def not_held(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if intent.get("driver_hold") is False:
        return None
    packages = tree(stack, "packages")
    if tree(facts, "os").get("id") in ("debian", "ubuntu"):
        ours = [name for name in holdable(packages, installed_version(packages) or "", ()) if is_driver_package(name)]
        tool = "apt-mark hold"
    else:
        ours = locked_with_driver(name for name in packages if _is_installed(stack, name))
        tool = "dnf versionlock add"
    loose = [name for name in ours if not packages[name]["held"]]
    if not loose:
        return None
    more = [f"and {len(loose) - 6} more"] if len(loose) > 6 else []
    are = "is" if len(loose) == 1 else "are"
    return {"packages": [*loose[:6], *more], "loose": len(loose), "are": are, "count": len(ours), "tool": tool}


def _covers(pattern: str, name: str) -> bool:
    """unattended-upgrades takes patterns as regular expressions from the beginning of a name."""
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False


def unattended(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    settings = tree(stack, "unattended")
    packages = _driver_packages(stack)
    loose = sorted(name for name, package in packages.items() if not package["held"])
    if not settings.get("enabled") or not _is_installed(stack, "unattended-upgrades") or not loose:
        return None
    if any(_covers(pattern, loose[0]) for pattern in settings.get("blacklist") or []):
        return None
    return {"package": loose[0]}


def no_headers(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    system, kernel = tree(facts, "os"), str(facts.get("kernel") or "")
    if not stack.get("dkms"):
        return None
    if system.get("id") in ("debian", "ubuntu"):
        wanted = headers(system, kernel)
    else:
        wanted = RPM_HEADERS if tree(stack, "packages").get("kernel-core") else ()
    if not wanted or any(_is_installed(stack, name) for name in wanted):
        return None
    return {"wanted": wanted[0]}


def reboot_required(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    reboot = tree(stack, "reboot")
    if not reboot.get("required"):
        return None
    return {"why": ", ".join(reboot.get("packages") or []) or "reasons that were not noted"}


def _fabric_unit(stack: Tree) -> Tree:
    return tree(stack, "units", "nvidia-fabricmanager.service")


def fabric_manager_needless(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    unit = _fabric_unit(stack)
    if has_nvswitch(facts) or not unit.get("present"):
        return None
    if unit.get("enabled") != "enabled" and unit.get("active") not in ("active", "activating", "failed"):
        return None
    return {"state": f"{unit.get('enabled')}, {unit.get('active')}"}


def fabric_manager_down(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    unit = _fabric_unit(stack)
    if not has_nvswitch(facts) or unit.get("active") == "active":
        return None
    switches = len(facts.get("nvswitches") or [])
    found = f"{switches} NVSwitches" if switches else "NVLink 5 management"
    state = f"is {unit.get('active')}" if unit.get("present") else "is not installed"
    return {"found": found, "state": state}


def fabric_version(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    driver = tree(facts, "driver").get("disk_version") or _loaded(facts)
    if not driver:
        return None
    wrong = [
        f"{name} {upstream_version(package['version'])}"
        for name, package in sorted(tree(stack, "packages").items())
        if FABRIC_PACKAGES.fullmatch(name)
        and package["status"] == "installed"
        and upstream_version(package["version"]) != driver
    ]
    return {"packages": wrong, "driver": driver} if wrong else None


def nvlink5_incomplete(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    # Without the modules of its bridge NVLink 5 cannot even be seen.
    board = any(needs_open(gpu) for gpu in gpus(facts)) and tree(intent, "class").get("nvswitch") == "possible"
    if not facts.get("nvlink5") and not board:
        return None
    missing = [name for name in ("mlx5_ib", "ib_umad") if name not in (stack.get("modules") or [])]
    lacking = [f"module {name} is not loaded" for name in missing]
    if facts.get("nvlink5") and not _is_installed(stack, "nvlsm"):
        lacking.append("package nvlsm is not installed")
    return {"lacking": " and ".join(lacking)} if lacking else None


CHECKS = (
    Check(
        "SOC-H12",
        "CUDA compatibility is on without need",
        WARNING,
        BOTH,
        "VLLM_ENABLE_CUDA_COMPATIBILITY in env, and a driver that runs the image's CUDA by itself.",
        "VLLM_ENABLE_CUDA_COMPATIBILITY is on, but driver {driver} runs CUDA {cuda} by itself: the older library of the"
        " image may then win, with CUDA error 803 (unsupported display driver / cuda driver combination).",
        "Remove VLLM_ENABLE_CUDA_COMPATIBILITY from env.",
        compatibility_needless,
    ),
    Check(
        "SOC-H13",
        "Driver too old for the image on a GeForce or RTX card",
        ERROR,
        BOTH,
        "Driver against the minimum of the image's CUDA.",
        "Driver {driver} cannot run CUDA {cuda} on {gpus}: expected {minimum} or newer, and such cards have no forward"
        " compatibility (CUDA error 804).",
        "Set gpu_driver_branch to {minimum} or newer and run playbook provision.yml, or take an image made with CUDA"
        " 12.",
        old_for_consumer,
    ),
    Check(
        "SOC-H14",
        "Driver too old for the image",
        ERROR,
        BOTH,
        "Driver against the minimum of the image's CUDA; with CDI nobody else checks this.",
        "Driver {driver} cannot run CUDA {cuda} of the image: expected {minimum} or newer.",
        "Set gpu_driver_branch to {minimum} or newer and run playbook provision.yml, or take an image made with CUDA 12"
        " (tags that end with -cu129).",
        old_for_image,
    ),
    Check(
        "SOC-H16",
        "Fabric manager without an NVSwitch",
        WARNING,
        (AFTER,),
        "Unit nvidia-fabricmanager enabled, running or failed, and no NVSwitch nor NVLink 5 management.",
        "nvidia-fabricmanager is {state}, but this host has no NVSwitch: it fails with NV_WARN_NOTHING_TO_DO.",
        "Turn it off: 'systemctl disable --now nvidia-fabricmanager', and remove its package.",
        fabric_manager_needless,
    ),
    Check(
        "SOC-H17",
        "Fabric manager of another version than the driver",
        ERROR,
        (AFTER,),
        "Versions of fabric manager, NSCQ and NVSDM packages against the driver's.",
        "{packages} is installed, but the driver is {driver}: they must have the same version (driver interface version"
        " does not match).",
        "Run playbook provision.yml, which installs and holds them together; by hand install version {driver} of them.",
        fabric_version,
    ),
    Check(
        "SOC-H18",
        "NVLink 5 without its management",
        ERROR,
        (AFTER,),
        "NVLink 5 board, and mlx5_ib, ib_umad or nvlsm missing.",
        "This is an NVLink 5 board, but {lacking}: the fabric stays down, with CUDA error 802.",
        "Install nvlsm and infiniband-diags, load mlx5_ib and ib_umad (Ubuntu cloud kernels have them in"
        " linux-modules-extra), and put both names into /etc/modules-load.d/.",
        nvlink5_incomplete,
    ),
    Check(
        "SOC-H19",
        "Proprietary modules for Blackwell",
        ERROR,
        BOTH,
        "Flavour asked for, else loaded or on disk, and PCI ids from Blackwell on.",
        "{gpus} needs the open kernel modules, but the proprietary ones are asked for or installed: nvidia-smi says 'No"
        " devices were found' then.",
        "Set gpu_driver_flavour: auto and run playbook provision.yml.",
        proprietary_for_blackwell,
    ),
    Check(
        "SOC-H20",
        "Driver does not build on this kernel",
        ERROR,
        BOTH,
        "Kernel with the four-argument pci_resize_resource (6.12.97, 6.18.40, Debian 6.1.190 or newer), open modules,"
        " and a"
        " driver without the fix.",
        "The open modules of driver {driver} do not build on kernel {kernel} (too few arguments to function"
        " 'pci_resize_resource'): expected {from} or newer, and not {not}.",
        "Set gpu_driver_version to {from} or newer, or gpu_driver_branch to 580 or newer.",
        does_not_build,
    ),
    Check(
        "SOC-H21",
        "DKMS did not install the module",
        ERROR,
        (AFTER,),
        "State in 'dkms status' for the running kernel; first error line of make.log.",
        "DKMS has {module} as '{state}', expected 'installed' for kernel {kernel}; first error: {error}.",
        "Read {log}; a newer driver (gpu_driver_version) or the headers of this kernel solve most of these, then run"
        " playbook provision.yml again.",
        dkms_not_installed,
    ),
    Check(
        "SOC-H22",
        "Driver packages from several sources",
        ERROR,
        (BEFORE,),
        "Package sources: PPA, local repository, a second CUDA repository, negativo17; RPM Fusion and ELRepo with a"
        " driver package of theirs.",
        "The driver is to come from source '{wanted}', but this host also has {sources}: mixed packages end in 'held"
        " broken packages'.",
        "Remove the file {file} and packages that came from there, or set gpu_driver_source to what is meant.",
        mixed_sources,
        of_upkeep=True,
    ),
    Check(
        "SOC-H24",
        "Driver and library do not match",
        ERROR,
        (AFTER,),
        "Version of the loaded module against that of libcuda and libnvidia-ml.",
        "Module {loaded} is loaded, but the libraries are of {library}: the next container that starts fails with"
        " 'Driver/library version mismatch', running ones go on.",
        "Reboot, or run playbook provision.yml, which reloads the modules; gpu_driver_hold: true keeps it from"
        " happening"
        " again.",
        library_mismatch,
    ),
    Check(
        "SOC-H25",
        "Driver is installed, but not running",
        ERROR,
        (AFTER,),
        "Driver packages or libraries, and no loaded module.",
        "A driver is installed, but {found}: nvidia-smi cannot communicate with it.",
        "{way}",
        module_not_loaded,
    ),
    Check(
        "SOC-H26",
        "Secure Boot would refuse the module",
        ERROR,
        BOTH,
        "Secure Boot on, and the key of DKMS not enrolled (mokutil --test-key), and no modules signed by the"
        " distribution.",
        "Secure Boot is on and DKMS {found}: the kernel would refuse the module ('Key was rejected by service').",
        "{way}",
        secure_boot_refuses,
    ),
    Check(
        "SOC-H28",
        "nvidia-persistenced does not run",
        WARNING,
        (AFTER,),
        "State of the unit (masked, disabled, stopped, failed), unless gpu_driver_persistence is false.",
        "nvidia-persistenced {state}: the driver lets go of the GPUs when nothing uses them.",
        "{way}",
        persistenced_down,
    ),
    Check(
        "SOC-H58",
        "Driver below the class's minimum",
        ERROR,
        BOTH,
        "Driver against driver.minimum of the host class.",
        "Driver {driver} is below what host class {host_class} needs: expected {minimum} or newer.",
        "Set gpu_driver_branch to {minimum} or newer and run playbook provision.yml.",
        below_class,
    ),
    Check(
        "SOC-H59",
        "Driver too old for CUDA 13",
        WARNING,
        BOTH,
        "Driver below 580 while the image's CUDA is not known.",
        "Driver {driver} runs no image made with CUDA 13, which vLLM's images are from 0.20 on: expected {minimum} or"
        " newer.",
        "Set gpu_driver_branch to {minimum} or newer, or take images made with CUDA 12 (tags that end with -cu129).",
        old_for_cuda_13,
    ),
    Check(
        "SOC-H60",
        "Another driver than asked for",
        ERROR,
        (AFTER,),
        "Loaded and installed version against gpu_driver_version or gpu_driver_branch.",
        "Driver {loaded} is loaded, expected {wanted}.",
        "{way}",
        not_as_intended,
    ),
    Check(
        "SOC-H61",
        "No module for the next kernel",
        ERROR,
        (AFTER,),
        "Newest installed kernel, and no module file for it.",
        "The next boot takes kernel {next}, which has no NVIDIA module; running is {kernel}.",
        "Install the headers of {next} and run 'dkms autoinstall -k {next}' before any reboot.",
        next_kernel_without,
    ),
    Check(
        "SOC-H62",
        "Reboot is pending for the driver",
        WARNING,
        (AFTER,),
        "Version of the loaded module against that of the module file.",
        "Module {loaded} is loaded and {disk} is installed: the new one runs after a reboot.",
        "Reboot when convenient, or run playbook provision.yml with gpu_driver_reboot: auto.",
        reboot_pending,
    ),
    Check(
        "SOC-H63",
        "nouveau owns the GPU",
        ERROR,
        (AFTER,),
        "Kernel driver that PCI shows for the GPU.",
        "nouveau drives {gpus}, expected nvidia.",
        "Run playbook provision.yml, which keeps nouveau from loading, and reboot.",
        nouveau,
    ),
    Check(
        "SOC-H64",
        "Another kernel driver owns the GPUs",
        ERROR,
        BOTH,
        "Kernel driver that PCI shows for each GPU: all have another one.",
        "{driver} drives {gpus}, expected nvidia: it is reserved, mostly for a virtual machine.",
        "Give it back (vfio-pci.ids= of the kernel command line, /etc/modprobe.d, the virtual machine's"
        " configuration) and"
        " reboot.",
        other_driver,
    ),
    Check(
        "SOC-H65",
        "Driver without a package",
        ERROR,
        BOTH,
        "nvidia-uninstall or nvidia-installer that no package owns, their log, libraries that no package owns.",
        "This host has a driver that no package manager knows: {evidence}.",
        "{way}",
        foreign_driver,
        of_upkeep=True,
    ),
    Check(
        "SOC-H67",
        "Driver packages are half installed",
        ERROR,
        (AFTER,),
        "Package states half-installed, half-configured or unpacked.",
        "Packages are not wholly installed: {packages}.",
        "See why with 'dpkg --configure -a' (mostly a DKMS build that failed, SOC-H21), then repeat the run.",
        packages_unfinished,
    ),
    Check(
        "SOC-H68",
        "Driver packages are not held",
        WARNING,
        (AFTER,),
        "Driver packages that provision.yml holds or locks, and that are not, unless gpu_driver_hold is false.",
        "{loose} of {count} driver packages {are} not held: {packages}; an upgrade of the system changes the driver"
        " under running instances.",
        "Run playbook provision.yml, which holds them again; by hand '{tool}' with their names.",
        not_held,
        of_upkeep=True,
    ),
    Check(
        "SOC-H69",
        "Unattended upgrades may change the driver",
        WARNING,
        (AFTER,),
        "unattended-upgrades is on, some driver packages are not held and no pattern of its blacklist covers them.",
        "unattended-upgrades is on and may replace {package} and others overnight, as not all driver packages are"
        " held.",
        'Run playbook provision.yml with gpu_driver_hold: true, or add "nvidia-" and "libnvidia-" to'
        " Unattended-Upgrade::Package-Blacklist.",
        unattended,
        of_upkeep=True,
    ),
    Check(
        "SOC-H70",
        "Fabric manager does not run",
        ERROR,
        (AFTER,),
        "NVSwitch on the bus (or NVLink 5 management), and the unit is not active.",
        "This host has {found}, but nvidia-fabricmanager {state}: CUDA fails with error 802 (system not yet"
        " initialized).",
        "Run playbook provision.yml; then see 'journalctl -b -u nvidia-fabricmanager'.",
        fabric_manager_down,
    ),
    Check(
        "SOC-H83",
        "Headers of coming kernels are not installed",
        WARNING,
        (AFTER,),
        "DKMS modules, and no header metapackage of the running kernel's flavour.",
        "{wanted} is not installed: DKMS cannot build the module for the next kernel, and the GPUs are gone after that"
        " reboot.",
        "Install {wanted} (playbook provision.yml does).",
        no_headers,
        of_upkeep=True,
    ),
    Check(
        "SOC-H86",
        "The system waits for a reboot",
        WARNING,
        (BEFORE,),
        "/run/reboot-required.",
        "This host waits for a reboot, for {why}.",
        "Reboot it before the driver is changed, so that the module is built and tried on the kernel that stays.",
        reboot_required,
    ),
    Check(
        "SOC-H90",
        "nvidia-smi fails",
        ERROR,
        (AFTER,),
        "nvidia-smi's return code, with the module loaded and no mismatch of versions.",
        "nvidia-smi fails though the driver is loaded: {error}.",
        "See 'journalctl -k -g NVRM' for the cause, and reboot.",
        smi_fails,
    ),
    Check(
        "SOC-H91",
        "Proprietary modules are no longer packaged",
        ERROR,
        BOTH,
        "gpu_driver_flavour is proprietary with branch 615 or newer.",
        "gpu_driver_flavour is proprietary, but NVIDIA's packages of branch {branch} have only the open modules (from"
        " {first} on).",
        "Set gpu_driver_flavour: auto, or gpu_driver_branch to an older one.",
        proprietary_not_packaged,
    ),
    Check(
        "SOC-H93",
        "No driver",
        ERROR,
        (AFTER,),
        "No module, no library and no package of the driver.",
        "There is no NVIDIA driver for {gpus}.",
        "Run playbook provision.yml.",
        no_driver,
    ),
    Check(
        "SOC-H95",
        "Another kernel driver owns some of the GPUs",
        WARNING,
        BOTH,
        "Kernel driver that PCI shows for each GPU: some have another one.",
        "{driver} drives {gpus}, mostly for a virtual machine; instances get the other GPUs ({left} of {total}).",
        "If this is not meant, give it back (vfio-pci.ids= of the kernel command line, /etc/modprobe.d, the virtual"
        " machine's configuration) and reboot.",
        other_driver_for_some,
    ),
)
"""Checks of the driver, by id."""
