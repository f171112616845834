# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the GPUs themselves: which they are, their state, links and errors. Private to socle.inference."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._stack.check import (
    AFTER,
    BOTH,
    ERROR,
    WARNING,
    Check,
    Evidence,
    Tree,
    gpus,
    is_too_old,
    name_gpus,
    persistenced_state,
    those,
    tree,
)

XIDS = {
    13: ("a fault inside a kernel", "mostly a bug of the program; if it comes with every program, test the GPU"),
    31: ("an access to memory that is not there", "mostly a bug of the program"),
    43: ("a program that the GPU stopped", "a consequence of the program's own fault"),
    45: ("work that was cleared after another error", "look for the error before it"),
    48: ("a double-bit memory error", "reset the GPU or reboot; replace the GPU if it comes back"),
    63: ("a memory row that is to be remapped", "reset the GPU or reboot when convenient"),
    64: ("a memory row that could not be remapped", "replace the GPU"),
    74: ("an error of NVLink", "reseat bridge or board; see 'nvidia-smi nvlink -e'"),
    79: ("a GPU that fell off the bus", "power the host off and on; check power, cooling and seat of the card"),
    92: ("many single-bit memory errors", "run NVIDIA's field diagnostics"),
    94: ("a memory error that only its program felt", "restart the instance; reset the GPU when convenient"),
    95: ("a memory error that every program felt", "reset the GPU or reboot"),
    119: ("no answer of the GPU's own processor (GSP)", "reboot; take a newer driver"),
    120: ("an error of the GPU's own processor (GSP)", "reboot; take a newer driver"),
}
"""Xid code -> (what it means, what to do); NVIDIA's guide "Xid Errors"."""

GSP_XIDS = (119, 120)
HARDWARE_XIDS = (48, 64, 74, 79, 95)
"""Codes after which the GPU cannot be relied on before a reset, a reboot or a repair."""

HELD_MIB = 256
"""Memory of a process that matters; a display server holds less."""

SMALL_BAR1_MIB = 1024
"""Without resizable BAR (or above-4G decoding) a GPU shows 256 MiB of its memory on the bus."""

SMALL_SHM_MIB = 1024


CONTRADICTION = re.compile(r"\bis of class \S+ \(.*\), which .*, but its hardware\b")
"""How gpu_facts says (class_problem) that the class which the inventory names is not that of the hardware."""


def _told(problem: str) -> dict[str, Any]:
    """A sentence of gpu_facts as what was found, without its end, and the way out."""
    found, semicolon, rest = problem.rpartition("; ")
    found, rest = (found, rest.rstrip(".")) if semicolon else (problem, "correct host_class")
    return {"found": found.rstrip("."), "way": f"{rest[:1].upper()}{rest[1:]}{'' if rest.endswith('?') else '.'}"}


def no_class(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    problem = str(intent.get("class_problem") or "")
    if problem:
        return None if CONTRADICTION.search(problem) else _told(problem)
    if intent.get("class") or facts.get("host_class") or not gpus(facts):
        return None
    first = gpus(facts)[0].get("pci_device_id")
    same = [gpu for gpu in gpus(facts) if gpu.get("pci_device_id") == first]
    way = (
        f'Set host_class, or add a class in profiles/host_classes/NAME.yml of your data with pci_ids: ["{first}"],'
        " after the pattern of one of the same family."
    )
    return {"found": f"No host class has the PCI id {first}, which is that of {name_gpus(same)}", "way": way}


def _contrary(host_class: Any, gpu: Tree, found: str, expected: str) -> Evidence:
    return those(
        [gpu],
        host_class=host_class,
        found=f"The host class is {host_class}, but {name_gpus([gpu])} has {found}, expected {expected}",
        way="Correct host_class (or the host's group), or remove it: the class is then read from the hardware.",
    )


def class_contradiction(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    problem = str(intent.get("class_problem") or "")
    if CONTRADICTION.search(problem):
        return _told(problem)
    wanted = tree(intent, "class")
    if wanted.get("kind") != "gpu":
        return None
    ids = wanted.get("pci_ids") or []
    for gpu in gpus(facts):
        for key, words in (("compute_capability", "compute capability"), ("architecture", "architecture")):
            found = gpu.get(key)
            if found and wanted.get(key) and str(found).split()[0] != str(wanted[key]).split()[0]:
                return _contrary(wanted.get("name"), gpu, f"{words} {found}", wanted[key])
        if ids and gpu.get("architecture") is None and gpu.get("pci_device_id") not in ids:
            return _contrary(wanted.get("name"), gpu, f"PCI id {gpu['pci_device_id']}", ", ".join(ids))
    return None


def no_gpu(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if tree(intent, "class").get("kind") != "gpu" or gpus(facts):
        return None
    return {"host_class": tree(intent, "class").get("name")}


def off_the_bus(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return those(gpu for gpu in gpus(facts) if gpu.get("by_driver") and gpu.get("on_bus") is False)


def off_the_driver(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    driver = tree(facts, "driver")
    talks = driver.get("version") and not driver.get("error")
    if not talks and not any(gpu.get("by_driver") for gpu in gpus(facts)):
        return None
    return those(
        gpu
        for gpu in gpus(facts)
        if gpu.get("on_bus") and gpu.get("by_driver") is False and gpu.get("bound_driver") in ("nvidia", None)
    )


def too_old(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if str(intent.get("image_cuda") or "").partition(".")[0] == "12":
        return None
    return those(gpu for gpu in gpus(facts) if is_too_old(gpu))


def mig(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return those(gpu for gpu in gpus(facts) if "enabled" in (gpu.get("mig"), gpu.get("mig_pending")))


def vgpu(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [gpu for gpu in gpus(facts) if gpu.get("virtualization") in ("vgpu", "host vgpu", "host vsga")]
    return those(found, mode=found[0]["virtualization"]) if found else None


def narrow_link(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    def is_narrow(gpu: Tree) -> bool:
        pcie = tree(gpu, "pcie")
        return bool(pcie.get("width") and pcie.get("width_max") and pcie["width"] < pcie["width_max"])

    found = [gpu for gpu in gpus(facts) if is_narrow(gpu)]
    return those(found, width=found[0]["pcie"]["width"], maximum=found[0]["pcie"]["width_max"]) if found else None


def small_bar(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [gpu for gpu in gpus(facts) if gpu.get("bar1_mib") and gpu["bar1_mib"] <= SMALL_BAR1_MIB]
    return those(found, bar=found[0]["bar1_mib"]) if found else None


def remap_pending(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return those(gpu for gpu in gpus(facts) if gpu.get("remapped_pending"))


def remap_failure(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return those(gpu for gpu in gpus(facts) if gpu.get("remapped_failure"))


def recovery(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [gpu for gpu in gpus(facts) if gpu.get("recovery_action")]
    return those(found, action=found[0]["recovery_action"]) if found else None


def ecc_pending(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [gpu for gpu in gpus(facts) if gpu.get("ecc") and gpu.get("ecc_pending") not in (None, gpu["ecc"])]
    return those(found, now=found[0]["ecc"], then=found[0]["ecc_pending"]) if found else None


def power_limit(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    def is_changed(gpu: Tree) -> bool:
        power = tree(gpu, "power")
        return bool(power.get("limit_w") and power.get("default_w") and abs(power["limit_w"] - power["default_w"]) > 1)

    found = [gpu for gpu in gpus(facts) if is_changed(gpu)]
    if not found:
        return None
    power = found[0]["power"]
    return those(found, limit=f"{power['limit_w']:g}", default=f"{power['default_w']:g}")


def persistence_off(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    if intent.get("driver_persistence") is False:
        return None
    state = persistenced_state(stack)
    if state is not None:
        way = f"nvidia-persistenced, which switches it on, {state[0]}. {state[1]}"
    else:
        way = (
            "Run playbook provision.yml, which has nvidia-persistenced switch it on; by hand 'nvidia-smi -pm 1', which"
            " holds until the next boot."
        )
    return those((gpu for gpu in gpus(facts) if gpu.get("persistence") is False), way=way)


def _xids(facts: Tree, codes: tuple[int, ...]) -> Evidence:
    found = [xid for xid in facts.get("xids") or [] if xid["code"] in codes]
    if not found:
        return None
    distinct = sorted({(xid["code"], str(xid["pci_bus_id"])) for xid in found})
    listed = []
    for code, bus_id in distinct:
        meaning, action = XIDS.get(code, ("see NVIDIA's list of Xid errors", "see there"))
        listed.append(f"Xid {code} of {bus_id} ({meaning}: {action})")
    return {"xids": "; ".join(listed), "codes": [code for code, _bus_id in distinct], "bus_id": distinct[0][1]}


def xid_gsp(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return _xids(facts, GSP_XIDS)


def xid_hardware(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    return _xids(facts, HARDWARE_XIDS)


def xid_other(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    known = (*GSP_XIDS, *HARDWARE_XIDS)
    return _xids(facts, tuple({xid["code"] for xid in facts.get("xids") or []} - set(known)))


def pcie_peers(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    iommu = tree(facts, "iommu")
    translating = bool(iommu.get("active") and iommu.get("passthrough") is False)
    redirects = facts.get("acs_redirects") or []
    linked = any(str(link.get("link")).startswith("NV") for link in facts.get("links") or [])
    if len(gpus(facts)) < 2 or linked or not (translating or redirects):
        return None
    causes = [f"bridges {', '.join(redirects)} redirect peer traffic (ACS)"] if redirects else []
    causes += ["the IOMMU translates addresses (no passthrough)"] if translating else []
    return {"causes": " and ".join(causes), "bridge": redirects[0] if redirects else "BRIDGE"}


def weak_nvlink(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    expected = re.fullmatch(r"NV(\d+)", str(tree(intent, "class").get("nvlink_expected")))
    if expected is None:
        return None
    weak = []
    for link in facts.get("links") or []:
        lanes = re.fullmatch(r"NV(\d+)", str(link["link"]))
        optional = tree(intent, "class").get("link") != "nvlink"
        if (lanes and int(lanes.group(1)) < int(expected.group(1))) or (lanes is None and not optional):
            weak.append(f"{link['a']} and {link['b']} are linked by {link['link']}")
    return {"links": "; ".join(weak), "expected": expected.group(0)} if weak else None


def mixed_models(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    kinds = {gpu.get("pci_device_id"): str(gpu.get("product") or gpu.get("pci_device_id")) for gpu in gpus(facts)}
    return {"models": sorted(kinds.values())} if len(kinds) > 1 else None


def foreign_processes(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = []
    for process in stack.get("gpu_processes") or []:
        memory, owner = process.get("memory_mib"), str(process.get("owner") or "")
        if owner.startswith("vllm-") or (memory is not None and memory < HELD_MIB):
            continue
        size = "an unknown amount" if memory is None else f"{memory} MiB"
        where = f" in {owner}" if owner else ""
        found.append(f"PID {process['pid']} ({process.get('name')}{where}) holds {size} of {process.get('gpu')}")
    return {"processes": "; ".join(found)} if found else None


def small_shm(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    size = stack.get("shm_mib")
    if len(gpus(facts)) < 2 or size is None or size >= SMALL_SHM_MIB:
        return None
    return {"size": size}


def fabric_incomplete(facts: Tree, stack: Tree, intent: Tree) -> Evidence:
    found = [
        gpu
        for gpu in gpus(facts)
        if gpu.get("fabric_state") not in (None, "completed")
        or (gpu.get("fabric_state") == "completed" and gpu.get("fabric_status") not in (None, "success"))
    ]
    if not found:
        return None
    if facts.get("nvswitches") or facts.get("nvlink5"):
        way = (
            "See 'journalctl -b -u nvidia-fabricmanager', and restart it with 'systemctl restart nvidia-fabricmanager'."
        )
    else:
        way = (
            "No NVSwitch is visible here, so the fabric is managed outside this host (its hypervisor or another guest):"
            " have it put right there."
        )
    state = f"{found[0]['fabric_state']}, {found[0].get('fabric_status') or 'no status'}"
    return those(found, state=state, way=way)


CHECKS = (
    Check(
        "SOC-H15",
        "The NVLink fabric is not ready",
        ERROR,
        (AFTER,),
        "Fabric state and status of nvidia-smi, where there is a fabric.",
        "The NVLink fabric of {gpus} has state {state}, expected completed with success: CUDA fails there with error"
        " 802"
        " (system not yet initialized).",
        "{way}",
        fabric_incomplete,
    ),
    Check(
        "SOC-H29",
        "The GPU's own processor failed (Xid 119, 120)",
        ERROR,
        BOTH,
        "Xid lines of the kernel log since boot.",
        "The kernel log since boot has {xids}; nvidia-smi may hang.",
        "Reboot the host, and take a newer driver of the branch: change gpu_driver_version where the inventory has one,"
        " else run playbook provision.yml with gpu_driver_upgrade: true.",
        xid_gsp,
    ),
    Check(
        "SOC-H30",
        "PCIe peers are cut off by ACS or the IOMMU",
        WARNING,
        BOTH,
        "Two or more GPUs without NVLink, and ACS redirection on a bridge or an IOMMU that translates.",
        "GPUs without NVLink cannot reach each other over PCIe, since {causes}: tensor parallelism hangs at the first"
        " all-reduce.",
        "Boot with iommu=pt (or IOMMU off in the firmware) and turn ACS off in the firmware or with 'setpci -s {bridge}"
        " ECAP_ACS+6.w=0000'; else set NCCL_P2P_DISABLE to 1 in env and disable-custom-all-reduce to true in flags of"
        " the"
        " instance.",
        pcie_peers,
    ),
    Check(
        "SOC-H31",
        "/dev/shm of the host is small",
        WARNING,
        BOTH,
        "Two or more GPUs, and less than 1 GiB by the mounts.",
        "/dev/shm of this host has {size} MiB, which is too little for NCCL in anything that shares it (host IPC).",
        "Instances of socle have their own of 16 GiB; for others remount it: 'mount -o remount,size=16G /dev/shm'.",
        small_shm,
    ),
    Check(
        "SOC-H33",
        "GPU memory is held by other processes",
        WARNING,
        BOTH,
        "Processes that nvidia-smi shows, with 256 MiB or more, whose unit or container is not vllm-*.",
        "GPU memory is held by processes that are no instance of socle: {processes}; instances may not get what they"
        " ask"
        " for.",
        "Stop them, or give instances other GPUs (gpus) or less memory (gpu-memory-utilization).",
        foreign_processes,
    ),
    Check(
        "SOC-H41",
        "No host class",
        ERROR,
        BOTH,
        "No host class has the PCI id and none is set, or the class could not be told (class_problem of gpu_facts).",
        "{found}.",
        "{way}",
        no_class,
        needs_gpu=False,
    ),
    Check(
        "SOC-H42",
        "The hardware contradicts the host class",
        ERROR,
        BOTH,
        "PCI id, compute capability or architecture differs from the class's, or gpu_facts says so (class_problem).",
        "{found}.",
        "{way}",
        class_contradiction,
        needs_gpu=False,
    ),
    Check(
        "SOC-H43",
        "GPU fallen off the bus",
        ERROR,
        BOTH,
        "nvidia-smi shows a GPU that PCI does not.",
        "{gpus}: the driver knows it, but it is no longer on the PCI bus.",
        "Power the host off and on; check power, cooling and seat of the card, and 'journalctl -k -g Xid'.",
        off_the_bus,
    ),
    Check(
        "SOC-H44",
        "GPU that the driver does not show",
        ERROR,
        (AFTER,),
        "PCI shows a GPU that nvidia-smi, which works otherwise, does not.",
        "The driver does not show {gpus}, which is on the PCI bus.",
        "See 'journalctl -k -g NVRM' for why it was not initialised; reboot, and power the host off if that does not"
        " help.",
        off_the_driver,
    ),
    Check(
        "SOC-H45",
        "MIG is on",
        ERROR,
        BOTH,
        "MIG mode, current or pending, of nvidia-smi.",
        "MIG is on for {gpus}, but instances use GPUs whole.",
        "Turn it off with 'nvidia-smi -i {bus_id} -mig 0', then reboot or reset the GPU.",
        mig,
    ),
    Check(
        "SOC-H46",
        "vGPU",
        ERROR,
        BOTH,
        "Virtualization mode of nvidia-smi.",
        "{gpus} has virtualization mode {mode}; only whole GPUs are supported, on metal or passed through.",
        "Have the whole GPU passed through to this machine, or use another host.",
        vgpu,
    ),
    Check(
        "SOC-H47",
        "PCIe link is narrower than it can be",
        WARNING,
        BOTH,
        "Link width against its maximum. The generation is not judged: an idle card lowers it.",
        "The PCIe link of {gpus} has width x{width} of x{maximum}.",
        "Reseat the card or use another slot; see 'lspci -vv -s {bus_id}' (LnkSta). A slot with fewer lanes is a"
        " choice of"
        " the board: ignore this check then.",
        narrow_link,
    ),
    Check(
        "SOC-H48",
        "Memory row waits to be remapped",
        WARNING,
        BOTH,
        "Remapped rows (pending) of nvidia-smi.",
        "A faulty memory row of {gpus} waits to be remapped.",
        "Reset the GPU ('nvidia-smi -r -i {bus_id}', no instance running) or reboot when convenient.",
        remap_pending,
    ),
    Check(
        "SOC-H49",
        "Memory row could not be remapped",
        ERROR,
        BOTH,
        "Remapped rows (failure) of nvidia-smi.",
        "A faulty memory row of {gpus} could not be remapped: the GPU has no spare rows left there.",
        "Have the GPU replaced.",
        remap_failure,
    ),
    Check(
        "SOC-H50",
        "GPU asks for recovery",
        ERROR,
        BOTH,
        "Recovery action of nvidia-smi.",
        "{gpus} asks for recovery: {action}.",
        "Do that: 'nvidia-smi -r -i {bus_id}' for a reset (no instance running), else reboot the host.",
        recovery,
    ),
    Check(
        "SOC-H51",
        "GPU errors since boot (Xid)",
        ERROR,
        BOTH,
        "Xid 48, 64, 74, 79 or 95 in the kernel log since boot.",
        "The kernel log since boot has {xids}.",
        "Do what the bracket says; after a reset without reboot, pass this check over with ignore until the next boot.",
        xid_hardware,
    ),
    Check(
        "SOC-H52",
        "Program errors on a GPU since boot (Xid)",
        WARNING,
        BOTH,
        "Other Xid lines of the kernel log since boot.",
        "The kernel log since boot has {xids}.",
        "Look into the journal of the instance of that time: 'journalctl -k -g Xid' gives it.",
        xid_other,
    ),
    Check(
        "SOC-H53",
        "Resizable BAR is off",
        WARNING,
        BOTH,
        "BAR1 of 1 GiB or less.",
        "{gpus} shows only {bar} MiB of its memory on the bus (BAR1): peer access is slow or impossible, and newer"
        " cards"
        " may not start.",
        "Turn on 'Above 4G decoding' and 'Resizable BAR' in the firmware.",
        small_bar,
    ),
    Check(
        "SOC-H54",
        "Persistence mode is off",
        WARNING,
        (AFTER,),
        "Persistence mode of nvidia-smi, unless gpu_driver_persistence is false.",
        "Persistence mode is off for {gpus}: the driver lets go of the GPU when idle, and each start takes longer.",
        "{way}",
        persistence_off,
    ),
    Check(
        "SOC-H55",
        "Power limit is not the default",
        WARNING,
        (AFTER,),
        "Power limit against the default of nvidia-smi.",
        "The power limit of {gpus} is {limit} W, the default is {default} W.",
        "If this is not meant: 'nvidia-smi -i {bus_id} -pl {default}'; it matters when measurements are compared.",
        power_limit,
    ),
    Check(
        "SOC-H56",
        "ECC changes with the next reboot",
        WARNING,
        (AFTER,),
        "ECC mode, current against pending.",
        "ECC of {gpus} is {now} and will be {then} after the next reset: memory size and speed change then.",
        "Reboot now, or take the change back with 'nvidia-smi -e 0|1'.",
        ecc_pending,
    ),
    Check(
        "SOC-H57",
        "GPU is too old",
        ERROR,
        BOTH,
        "PCI id or architecture of Volta or older, unless images are made with CUDA 12.",
        "{gpus} is of generation Volta or older, which images made with CUDA 13 do not support.",
        'Use a host with Turing or newer GPUs; for Volta, images made with CUDA 12 and gpu_driver_cuda: "12".',
        too_old,
    ),
    Check(
        "SOC-H87",
        "GPUs of several kinds",
        WARNING,
        BOTH,
        "More than one PCI id among the GPUs.",
        "This host has GPUs of several kinds ({models}): an instance over both runs at the slower one's pace, if at"
        " all.",
        "Name the GPUs of each instance with gpus.",
        mixed_models,
    ),
    Check(
        "SOC-H88",
        "NVLink is weaker than it should be",
        WARNING,
        (AFTER,),
        "Links of nvidia-smi's topology against the host class.",
        "{links}; this class is expected to have {expected}.",
        "See 'nvidia-smi nvlink -s' for links that are down; reseat bridge or board. In a virtual machine ask its"
        " provider.",
        weak_nvlink,
    ),
    Check(
        "SOC-H92",
        "No GPU where one is expected",
        ERROR,
        BOTH,
        "The host class has GPUs, and PCI shows none of NVIDIA.",
        "The host class is {host_class}, but PCI shows no NVIDIA GPU.",
        "See 'lspci -d 10de:' on the host; power it off and on if a card is missing, or correct host_class.",
        no_gpu,
        needs_gpu=False,
    ),
)
"""Checks of hardware, by id."""
