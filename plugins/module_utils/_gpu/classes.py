# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which host class a host is of: by the PCI ids of its GPUs, checked against what the inventory says.

PCI ids are known before there is a driver, and tell form factor and memory of a product apart. What the driver says
later (product, memory, links) only confirms or warns. Runs on the controller. Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.data import GPU_KEYS, HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import known_list, nearest, quoted

CPU = "cpu"
HARDWARE = "hardware"
"""The origin of a class that the inventory does not name."""

MEMORY_TOLERANCE = 0.1
"""Part of a class's memory that a GPU may differ by: ECC takes up to a sixteenth of GDDR memory."""

_NO_CODE = (
    "CUDA 13 images, which vLLM 0.20 and newer come in, have no code for it (they start at compute capability 7.5)"
)
_NO_BFLOAT16 = "Turing has no bfloat16, the number format that models are served in here"

UNSUPPORTED = (
    (0x15F7, 0x15F9, "Tesla P100", _NO_CODE),
    (0x1B38, 0x1B38, "Tesla P40", _NO_CODE),
    (0x1BB3, 0x1BB3, "Tesla P4", _NO_CODE),
    (0x1DB0, 0x1DBE, "Tesla V100", _NO_CODE),
    (0x1EB8, 0x1EB8, "Tesla T4", _NO_BFLOAT16),
)
"""(first device id, last device id, product, why not), for NVIDIA's data-centre GPUs before Ampere, by pci.ids."""


@dataclass(frozen=True)
class Override:
    """A class that the inventory names, and where: "variable host_class" or "group NAME"."""

    name: str
    origin: str


@dataclass(frozen=True)
class ClassResult:
    """The class of a host; *members* are the positions in the facts' gpus that belong to it."""

    name: str
    count: int
    origin: str
    warnings: Sequence[Mapping[str, Any]] = ()
    members: tuple[int, ...] = ()


def warning(identity: str, severity: str, message: str, remedy: str) -> dict[str, Any]:
    """A warning as plans carry it."""
    return {"id": identity, "severity": severity, "message": message, "remedy": remedy}


def find_override(option: Any, group_names: Iterable[str], known: Iterable[str], host: str) -> Override | None:
    """The class that the inventory names: by the variable, else by the one group with the name of a class."""
    names = list(known)
    if option:
        if option not in names:
            raise PlanError(
                f"host_class of {host} is {quoted(option)}, which is no known host class (known: {known_list(names)})"
                f"{nearest(option, names) or '; correct it or add its file.'}"
            )
        return Override(str(option), "variable host_class")
    groups = sorted(set(group_names) & set(names))
    if len(groups) > 1:
        raise PlanError(
            f"{host} is in {len(groups)} groups that name host classes ({', '.join(groups)}), but a host has "
            "one class; keep it in one of them or set host_class."
        )
    return Override(groups[0], f"group {groups[0]}") if groups else None


def unsupported(pci_device_id: str | None) -> tuple[str, str] | None:
    """(product, why it cannot serve) of a GPU that is known and too old, else None."""
    vendor, _colon, device = (pci_device_id or "").partition(":")
    try:
        number = int(device, 16)
    except ValueError:
        return None
    for first, last, product, reason in UNSUPPORTED:
        if vendor == "10de" and first <= number <= last:
            return product, reason
    return None


def resolve_class(
    facts: Mapping[str, Any] | None, classes: Mapping[str, HostClass], override: Override | None, host: str
) -> ClassResult:
    """The class of *host* with everything worth a warning; raises PlanError with the way out where there is none.

    *facts* are a result of gpu_facts, or None when the hardware is not known: then only the inventory can tell.
    """
    if facts is None:
        return _unseen(classes, override, host)
    gpus: list[Mapping[str, Any]] = list(facts.get("gpus") or [])
    chosen = classes[override.name] if override else None
    origin = override.origin if override else HARDWARE
    if chosen is not None and chosen.kind == CPU:
        return ClassResult(chosen.name, 0, origin, _unused(gpus, chosen, host))
    if not gpus:
        if chosen is None:
            return ClassResult(CPU, 0, origin)
        raise PlanError(
            f"{host} is of class {chosen.name} ({origin}), which needs GPUs of family "
            f"{chosen.family}, but its hardware "
            "has no NVIDIA GPU (class cpu); correct its group or host_class, or look for the card with lspci -d 10de:."
        )
    _refuse_virtual(gpus, host)
    by_id = _by_id(classes)
    found, members = (
        _by_override(gpus, by_id, chosen, origin, host) if chosen is not None else _by_hardware(gpus, by_id, host)
    )
    warnings = [
        *_strangers(gpus, members, found, host),
        *_other_variant(gpus, members, found, by_id, host),
        *_other_product(gpus, members, found, classes, host),
        *_other_memory(gpus, members, found, host),
        *_other_link([gpus[position] for position in members], facts.get("links") or [], found, host),
    ]
    return ClassResult(found.name, len(members), origin, warnings, members)


def _unseen(classes: Mapping[str, HostClass], override: Override | None, host: str) -> ClassResult:
    if override is None:
        raise PlanError(
            f"{host} has no host class: it is in no group that names one, and its hardware is not known; put it into "
            f"one of the groups {known_list(classes)}, set host_class, or give facts from gpu_facts."
        )
    unchecked = warning(
        "hardware-unknown",
        "info",
        f"the hardware of {host} is not known, so that class {override.name} was not checked",
        "give facts from gpu_facts",
    )
    return ClassResult(override.name, 0, override.origin, [unchecked])


def _unused(gpus: Sequence[Mapping[str, Any]], chosen: HostClass, host: str) -> list[Mapping[str, Any]]:
    if not gpus:
        return []
    return [
        warning(
            "gpus-unused",
            "warning",
            f"{host} has {len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)}, which class {chosen.name} leaves unused",
            "put the host into the group of its GPU class",
        )
    ]


def _refuse_virtual(gpus: Sequence[Mapping[str, Any]], host: str) -> None:
    virtual = [gpu for gpu in gpus if gpu.get("virtualization") == "vgpu"]
    if virtual:
        raise PlanError(
            f"{host} is a guest with a virtual GPU (vGPU; {_kinds(virtual)}), whose id is that of a "
            "whole one, but which "
            "needs a licensed guest driver and has a part of the memory; give the guest whole GPUs by PCI "
            "pass-through, or set host_class to cpu to leave it unused."
        )


def _by_id(classes: Mapping[str, HostClass]) -> dict[str, list[HostClass]]:
    found: dict[str, list[HostClass]] = {}
    for name in sorted(classes):
        for identity in classes[name].pci_ids:
            found.setdefault(identity, []).append(classes[name])
    return found


def _identity(gpu: Mapping[str, Any]) -> str:
    return str(gpu.get("pci_device_id") or "").lower()


def _kinds(gpus: Iterable[Mapping[str, Any]]) -> str:
    """GPUs for a person: "2 x 10de:20b2 (NVIDIA A100-SXM4-80GB), 1 x 10de:2335"."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        product = gpu.get("product") or (unsupported(_identity(gpu)) or [None])[0]
        kind = (_identity(gpu) or "unknown id") + (f" ({product})" if product else "")
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{counts[kind]} x {kind}" for kind in sorted(counts))


def _by_hardware(
    gpus: Sequence[Mapping[str, Any]], by_id: Mapping[str, Sequence[HostClass]], host: str
) -> tuple[HostClass, tuple[int, ...]]:
    """The one class of all GPUs."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    found: dict[str, HostClass] = {}
    for gpu in gpus:
        candidates = by_id.get(_identity(gpu), [])
        if len(candidates) > 1:
            names = ", ".join(candidate.name for candidate in candidates)
            files = " and ".join(candidate.origin for candidate in candidates)
            raise PlanError(
                f"{host} has {_kinds([gpu])}, whose id is in {len(candidates)} host classes "
                f"({names}); set host_class to "
                f"the one that is meant, or take the id out of one of {files}."
            )
        name = candidates[0].name if candidates else "no class"
        parts.setdefault(name, []).append(gpu)
        if candidates:
            found[name] = candidates[0]
    if not found:
        raise _foreign(gpus, host)
    if len(parts) > 1:
        shown = "; ".join(f"{name}: {_kinds(parts[name])}" for name in sorted(parts))
        raise PlanError(
            f"{host} has GPUs of several kinds ({shown}), but a host has one class; set host_class to one of "
            f"{known_list(found)}, and name GPUs of that class in gpus of each instance."
        )
    return found[next(iter(parts))], tuple(range(len(gpus)))


def _foreign(gpus: Sequence[Mapping[str, Any]], host: str) -> PlanError:
    """What to say of GPUs none of which is in a class."""
    unknown = [gpu for gpu in gpus if unsupported(_identity(gpu)) is None]
    if not unknown:
        reasons = sorted({(unsupported(_identity(gpu)) or ("", ""))[1] for gpu in gpus})
        return PlanError(
            f"{host} has {_kinds(gpus)}, which cannot be used: {'; '.join(reasons)}; set host_class to cpu to leave it "
            "unused, or use another GPU."
        )
    identities = sorted({_identity(gpu) for gpu in unknown if _identity(gpu)})
    if not identities:
        return PlanError(
            f"{host} has {len(unknown)} NVIDIA GPU{'s' * (len(unknown) > 1)} whose PCI id is not in "
            "the facts; gather the "
            "facts again with gpu_facts."
        )
    rest = [key for key in GPU_KEYS if key != "pci_ids"]
    return PlanError(
        f"{host} has {_kinds(unknown)}, which no host class has; add "
        "site_data/profiles/host_classes/NAME.yml with name, "
        f"kind: gpu, pci_ids: {identities}, {', '.join(rest)} (see docs/host-classes.md), or set host_class to cpu to "
        "leave it unused."
    )


def _by_override(
    gpus: Sequence[Mapping[str, Any]],
    by_id: Mapping[str, Sequence[HostClass]],
    chosen: HostClass,
    origin: str,
    host: str,
) -> tuple[HostClass, tuple[int, ...]]:
    """The class that the inventory names, with the GPUs that are of it or, if none is, of its family."""
    members = tuple(position for position, gpu in enumerate(gpus) if _identity(gpu) in chosen.pci_ids)
    families = [{known.family for known in by_id.get(_identity(gpu), [])} for gpu in gpus]
    if not members:
        members = tuple(position for position, names in enumerate(families) if chosen.family in names)
    if members:
        return chosen, members
    hardware = sorted({str(name) for names in families for name in names})
    if not hardware:
        raise _foreign(gpus, host)
    raise PlanError(
        f"{host} is of class {chosen.name} ({origin}), which is family {chosen.family}, but its hardware is of family "
        f"{', '.join(hardware)} ({_kinds(gpus)}); correct its group or host_class."
    )


def _strangers(
    gpus: Sequence[Mapping[str, Any]], members: Sequence[int], found: HostClass, host: str
) -> list[dict[str, Any]]:
    others = [gpu for position, gpu in enumerate(gpus) if position not in members]
    if not others:
        return []
    return [
        warning(
            "gpus-mixed",
            "warning",
            f"{host} also has {_kinds(others)}, which class {found.name} leaves unused",
            "nothing, if that is meant; engines see only the GPUs of their instance",
        )
    ]


def _other_variant(
    gpus: Sequence[Mapping[str, Any]],
    members: Sequence[int],
    found: HostClass,
    by_id: Mapping[str, Sequence[HostClass]],
    host: str,
) -> list[dict[str, Any]]:
    names = {
        known.name
        for position in members
        if _identity(gpus[position]) not in found.pci_ids
        for known in by_id.get(_identity(gpus[position]), [])
        if known.family == found.family
    }
    if not names:
        return []
    return [
        warning(
            "class-variant",
            "warning",
            f"{host} is of class {found.name} by the inventory, but its GPUs are of class {', '.join(sorted(names))}, "
            f"another of family {found.family}",
            f"put the host into the group {sorted(names)[0]}, unless the difference is meant",
        )
    ]


def _other_product(
    gpus: Sequence[Mapping[str, Any]],
    members: Sequence[int],
    found: HostClass,
    classes: Mapping[str, HostClass],
    host: str,
) -> list[dict[str, Any]]:
    """A warning for a product that no class has; a product of another family contradicts the id and is refused."""
    strange = set()
    for position in members:
        product = gpus[position].get("product")
        if not product or product in found.products:
            continue
        owners = [known for known in classes.values() if product in known.products]
        if owners and found.family not in {owner.family for owner in owners}:
            raise PlanError(
                f"{host} has a GPU with the id {_identity(gpus[position])} of class {found.name}, "
                "which the driver calls "
                f"{product}, a product of class {owners[0].name}; gather the facts again, since a GPU may have fallen "
                "off the bus in between."
            )
        if not owners:
            strange.add(str(product))
    if not strange:
        return []
    return [
        warning(
            "product-unknown",
            "info",
            f"the driver of {host} calls a GPU {', '.join(sorted(strange))}, which is not among the products of class "
            f"{found.name} ({', '.join(found.products)})",
            "add the name to products of the class if the card is of that kind",
        )
    ]


def _other_memory(
    gpus: Sequence[Mapping[str, Any]], members: Sequence[int], found: HostClass, host: str
) -> list[dict[str, Any]]:
    expected = found.memory_mib or 0
    sizes = sorted(
        {
            size
            for size in (gpus[position].get("memory_mib") for position in members)
            if size and abs(size - expected) > MEMORY_TOLERANCE * expected
        }
    )
    if not sizes:
        return []
    return [
        warning(
            "memory-differs",
            "warning",
            f"a GPU of {host} has {', '.join(str(size) for size in sizes)} MiB of memory, "
            f"but class {found.name} has {expected} MiB",
            "use a class of this memory, since profiles of this one may not fit",
        )
    ]


def _other_link(
    gpus: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]], found: HostClass, host: str
) -> list[dict[str, Any]]:
    """What the topology of the class's own GPUs says against its link; an unknown topology says nothing."""
    by_pair = {frozenset((str(link.get("a")), str(link.get("b")))): str(link.get("link")) for link in links}
    seen: dict[str, int] = {}
    for one, other in combinations(gpus, 2):
        kind = by_pair.get(frozenset((str(one.get("pci_bus_id")), str(other.get("pci_bus_id")))))
        if kind:
            seen[kind] = seen.get(kind, 0) + 1
    expected = found.nvlink_expected
    wrong = sorted(kind for kind in seen if _contradicts(kind, found))
    if not wrong:
        return []
    shown = ", ".join(f"{kind} ({seen[kind]} pair{'s' * (seen[kind] > 1)})" for kind in wrong)
    wanted = {"nvlink": expected or "NVLink", "pcie": "no NVLink"}.get(str(found.link), f"{expected} or no NVLink")
    return [
        warning(
            "link-differs",
            "warning",
            f"GPUs of {host} are linked by {shown}, but class {found.name} expects {wanted}",
            "compare nvidia-smi topo -m and nvidia-smi nvlink -s with the machine's manual: a link "
            "or bridge may be down "
            "or missing, or a hypervisor may hide it",
        )
    ]


def _contradicts(kind: str, found: HostClass) -> bool:
    by_nvlink = kind.startswith("NV")
    if found.link == "pcie":
        return by_nvlink
    if not by_nvlink:
        return found.link == "nvlink"
    return found.nvlink_expected is not None and kind != found.nvlink_expected
