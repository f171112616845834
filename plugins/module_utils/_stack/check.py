# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check of a host is, and the questions that several checks ask. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.socle.inference.plugins.module_utils._driver.decide import (
    OPEN_ONLY,
    PROPRIETARY_ONLY,
    is_branch,
    is_version,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    branch_of,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.select import ENGINES, select
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._packages.version import version_key

BEFORE = "before"
AFTER = "after"
BOTH = (BEFORE, AFTER)
ERROR = "error"
WARNING = "warning"

Tree = Mapping[str, Any]
Evidence = Optional[dict[str, Any]]
Detect = Callable[[Tree, Tree, Tree], Evidence]
"""(facts of gpu_facts, stack of `gather_stack`, intent) -> what was found, or None. Keys may be missing anywhere."""

NEWEST = 9999
"""Stands for the patch level of a branch whose newest driver is to be installed."""

OLDEST_SUPPORTED_ID = 0x1E00
FIRST_BLACKWELL_ID = 0x2900
"""PCI device ids of Turing begin at 1e00 and of Blackwell at 2900 (NVIDIA open-gpu-kernel-modules, table of GPUs)."""


@dataclass(frozen=True)
class Check:
    """One thing that can be wrong with a host."""

    id: str
    title: str
    severity: str
    stages: tuple[str, ...]
    detection: str
    """In words, for the documentation."""
    sentence: str
    """What was found and what is expected; {names} are keys of the evidence."""
    remedy: str
    detect: Detect
    needs_gpu: bool = True
    of_upkeep: bool = False
    """About how the driver came here and is kept; passed over where somebody else takes care of it."""


def in_order(check: str) -> tuple[int, str]:
    """What ids are sorted by: SOC-H99 comes before SOC-H100."""
    return len(check), check


def say(template: str, evidence: Mapping[str, Any]) -> str:
    """A template with the evidence filled in; lists are joined."""
    words = {
        key: ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        for key, value in evidence.items()
    }
    return template.format_map(words)


def tree(data: Tree, *keys: str) -> Tree:
    """A nested mapping, {} where it is missing or null."""
    for key in keys:
        data = data.get(key) or {}
    return data


def gpus(facts: Tree) -> list[Tree]:
    return facts.get("gpus") or []


def label(gpu: Tree) -> str:
    """How a message names a GPU: "GPU 0 (NVIDIA H200, 0000:00:06.0)"."""
    name = gpu.get("product") or gpu.get("pci_device_id")
    if gpu.get("index") is None:
        return f"the GPU at {gpu.get('pci_bus_id')} ({name})"
    return f"GPU {gpu['index']} ({name}, {gpu.get('pci_bus_id')})"


def name_gpus(concerned: Sequence[Tree]) -> str:
    """One GPU by its label, several as "each of 2 GPUs (0, 1; NVIDIA H200)": both take a verb in the singular."""
    if len(concerned) == 1:
        return label(concerned[0])
    by_index = all(gpu.get("index") is not None for gpu in concerned)
    places = ", ".join(str(gpu["index"] if by_index else gpu.get("pci_bus_id")) for gpu in concerned)
    kinds = ", ".join(sorted({str(gpu.get("product") or gpu.get("pci_device_id")) for gpu in concerned}))
    return f"each of {len(concerned)} GPUs ({places}; {kinds})"


def those(concerned: Iterable[Tree], **more: Any) -> Evidence:
    """Evidence that names GPUs and the first one's address for commands; None for no GPU."""
    listed = list(concerned)
    if not listed:
        return None
    return {"gpus": name_gpus(listed), "bus_id": listed[0].get("pci_bus_id"), **more}


PERSISTENCED = "nvidia-persistenced"


def persistenced_state(stack: Tree) -> tuple[str, str] | None:
    """(why nvidia-persistenced does not run, as a clause; what to do), or None where it runs or is not there."""
    unit = tree(stack, "units", f"{PERSISTENCED}.service")
    enabled, active = str(unit.get("enabled") or ""), unit.get("active")
    if not unit.get("present") or active == "active":
        return None
    if unit.get("masked") or enabled.startswith("masked"):
        return (
            "is masked, so that nothing can start it",
            f"Run 'systemctl unmask {PERSISTENCED}', then playbook provision.yml, or set gpu_driver_persistence to"
            " false.",
        )
    provision = "or run playbook provision.yml, which does it and makes it wait for the devices"
    if active == "failed":
        return (
            f"failed (result {unit.get('result')})",
            f"See 'journalctl -b -u {PERSISTENCED}' for why, then start it with 'systemctl restart {PERSISTENCED}'.",
        )
    if active not in (None, "inactive"):
        return f"is {active}", f"See 'systemctl status {PERSISTENCED}'."
    if enabled == "disabled":
        return (
            "is disabled, so that a boot does not start it, and does not run",
            f"Run 'systemctl enable --now {PERSISTENCED}', {provision}.",
        )
    start = f"Start it with 'systemctl start {PERSISTENCED}', {provision}."
    if unit.get("condition") is False:
        return "did not start, since its condition was not met", start
    return "is stopped", start


def device_id(gpu: Tree) -> int | None:
    """0x20b2 of "10de:20b2"."""
    text = str(gpu.get("pci_device_id") or "").rpartition(":")[2]
    try:
        return int(text, 16)
    except ValueError:
        return None


def needs_open(gpu: Tree) -> bool:
    """Blackwell or newer, which only the open modules drive; known before the driver by the id."""
    number = device_id(gpu)
    return gpu.get("architecture") in OPEN_ONLY or (number is not None and number >= FIRST_BLACKWELL_ID)


def is_too_old(gpu: Tree) -> bool:
    """Volta or older."""
    number = device_id(gpu)
    return gpu.get("architecture") in PROPRIETARY_ONLY or (number is not None and number < OLDEST_SUPPORTED_ID)


def is_consumer(gpu: Tree) -> bool:
    """GeForce and RTX cards, for which CUDA has no forward compatibility."""
    product = str(gpu.get("product") or "")
    return any(word in product for word in ("GeForce", "RTX", "Quadro", "TITAN"))


def asked_driver(intent: Tree) -> tuple[str, str]:
    """(exact version, branch) that are asked for, "" for none and for what cannot be one: the role refuses that."""
    version, branch = (str(intent.get(key) or "") for key in ("driver_version", "driver_branch"))
    return version if is_version(version) else "", branch if is_branch(branch) else ""


def driver_to_be(facts: Tree, intent: Tree) -> tuple[str, tuple[int, ...]] | None:
    """(its version in words, its sort key) of the driver that this host has after provisioning; None if unknown.

    An exact version is taken as asked for; of a branch, an installed driver stays, and else the newest comes.
    """
    loaded, (version, branch) = tree(facts, "driver").get("version"), asked_driver(intent)
    if version:
        return version, version_key(version)
    if not branch and is_before(intent):
        return None
    if loaded and (not branch or branch_of(loaded) == branch):
        return str(loaded), version_key(loaded)
    if branch:
        return f"{branch} (the newest of the branch)", (*version_key(branch), NEWEST, NEWEST)
    return None


def is_before(intent: Tree) -> bool:
    """Whether roles are still to run, so that what is there now may be replaced."""
    return intent.get("stage") == BEFORE


def flavour_to_be(facts: Tree, intent: Tree) -> str:
    """ "open" or "proprietary": as asked for, else as it is, else what fits the GPUs."""
    driver = tree(facts, "driver")
    asked = intent.get("driver_flavour")
    if asked in ("open", "proprietary"):
        return str(asked)
    found = driver.get("flavour") or driver.get("disk_flavour")
    if found and not is_before(intent):
        return str(found)
    return "proprietary" if any(is_too_old(gpu) for gpu in gpus(facts)) else "open"


def engine_of(facts: Tree, intent: Tree) -> str | None:
    """The container engine that runs the instances: as asked for, else the one that suits, else any that is there."""
    asked = intent.get("engine")
    if asked in ENGINES:
        return str(asked)
    engines = {name: tree(facts, "engines").get(name) for name in ENGINES}
    try:
        return select("auto", engines, needs_cdi=bool(gpus(facts)))
    except EngineError:
        return tree(facts, "engine").get("name")


def engine_version(facts: Tree, engine: str) -> tuple[int, ...] | None:
    """Its sort key, None when it is not installed."""
    version = tree(facts, "engines").get(engine)
    return version_key(str(version)) if version else None


def has_nvswitch(facts: Tree) -> bool:
    """NVSwitches on the bus, or the management of NVLink 5, which has none there."""
    return bool(facts.get("nvswitches") or facts.get("nvlink5"))
