# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of a host each instance has, and why it cannot have others. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import CPU, ClassResult
from ansible_collections.socle.inference.plugins.module_utils._plan.data import HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems


def _shown(gpu: Mapping[str, Any]) -> bool:
    """Whether the driver shows a GPU; facts written by hand may say so by its index alone."""
    by_driver = gpu.get("by_driver")
    return gpu.get("index") is not None if by_driver is None else bool(by_driver)


def _places(gpus: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(gpu.get("pci_bus_id")) for gpu in gpus)


class _HostGpus:
    """The GPUs of a host as an instance may name them, with a sentence for each that it cannot have."""

    def __init__(self, host_class: HostClass, found: ClassResult, request: Request) -> None:
        facts = request.facts or {}
        gpus: list[Mapping[str, Any]] = list(facts.get("gpus") or [])
        own = [gpus[position] for position in found.members]
        self.host = request.host
        self.host_class = host_class
        self.driver: Mapping[str, Any] = facts.get("driver") or {}
        self.shown = [gpu for gpu in own if _shown(gpu)]
        self.lost = [gpu for gpu in own if not _shown(gpu)]
        self.foreign = [gpu for position, gpu in enumerate(gpus) if position not in found.members and _shown(gpu)]

    @property
    def indices(self) -> list[int]:
        return [gpu["index"] for gpu in self.shown if gpu.get("index") is not None]

    def find(self, name: Any) -> Mapping[str, Any] | None:
        return _named(self.shown, name)

    def without_driver(self) -> str:
        """Why none of the GPUs can be used yet."""
        if self.driver.get("nouveau"):
            reason = "nouveau is loaded instead of NVIDIA's driver"
        elif not self.driver.get("version"):
            reason = "no NVIDIA driver is loaded"
        elif self.host_class.architecture == "blackwell" and self.driver.get("flavour") == "proprietary":
            reason = "the proprietary kernel modules are loaded, and Blackwell needs the open ones"
        else:
            reason = str(self.driver.get("error") or f"driver {self.driver['version']} is loaded")
        return (
            f"no GPU of {self.host} is shown by its driver, though PCI shows {_places(self.lost)} ({reason}); "
            "run provision.yml, and look into the kernel's log for NVRM if that does not help."
        )

    def all_but_lost(self, where: str) -> str:
        return (
            f"{where} is not set, which means all {len(self.shown) + len(self.lost)} GPUs of {self.host}, but the "
            f"driver does not show the one at {_places(self.lost)}, so that it has fallen off the bus; reboot the host "
            "and look into the kernel's log for Xid 79, or name the other GPUs in gpus."
        )

    def missing(self, where: str, name: Any) -> str:
        known = ", ".join(str(index) for index in self.indices) or "none"
        foreign = _named(self.foreign, name)
        if foreign is not None:
            return (
                f"{where} names GPU {name} of {self.host} ({foreign.get('product') or foreign.get('pci_device_id')}), "
                f"which is not of class {self.host_class.name} (those are {known}); name GPUs of the class."
            )
        lost = f", and has lost the one at {_places(self.lost)}" if self.lost else ""
        return (
            f"{where} names GPU {name}, which {self.host} does not have (its driver shows {known}{lost}); correct it."
        )


def _named(gpus: Sequence[Mapping[str, Any]], name: Any) -> Mapping[str, Any] | None:
    key = "uuid" if isinstance(name, str) else "index"
    return next((gpu for gpu in gpus if gpu.get(key) is not None and gpu[key] == name), None)


def assign_gpus(
    instances: Mapping[str, Mapping[str, Any]],
    host_class: HostClass,
    found: ClassResult,
    request: Request,
    problems: Problems,
) -> dict[str, list[Any]]:
    """GPUs of each instance as written, or all of the host's."""
    assigned: dict[str, list[Any]] = {}
    owners: dict[Any, str] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    gpus = _HostGpus(host_class, found, request)
    for name in sorted(instances):
        wanted = instances[name].get("gpus")
        where = f"vllm_instances.{name}.gpus"
        if host_class.kind == CPU:
            if wanted:
                problems.add(
                    f"{where} names GPUs, but {request.host} is of class {host_class.name}, which has none; "
                    "leave gpus out or correct the class."
                )
            assigned[name] = []
            continue
        if request.facts is None:
            if wanted is None:
                problems.add(
                    f"{where} is not set and the hardware of {request.host} is not known; set it or give facts."
                )
        elif not gpus.shown:
            problems.add(gpus.without_driver())
            continue
        elif wanted is None and gpus.lost:
            problems.add(gpus.all_but_lost(where))
            continue
        elif wanted is not None and not wanted:
            problems.add(
                f"{where} is empty, but class {host_class.name} needs GPUs; name them or leave gpus out for all."
            )
        wanted = gpus.indices if wanted is None else wanted
        for gpu in wanted:
            known = gpus.find(gpu)
            if known is None and request.facts is not None:
                problems.add(gpus.missing(where, gpu))
                continue
            if known is not None and known.get("mig") == "enabled":
                problems.add(
                    f"{where} has GPU {gpu} of {request.host}, which is split by MIG, but an instance needs the whole "
                    f"GPU; turn MIG off with nvidia-smi -i {gpu} -mig 0 while nothing uses it, or give other GPUs."
                )
            identity = known["index"] if known is not None and known.get("index") is not None else gpu
            if owners.get(identity) == name:
                problems.add(f"{where} names GPU {gpu} twice; name it once.")
            elif identity in owners:
                shared.setdefault((owners[identity], name), []).append(str(gpu))
            owners.setdefault(identity, name)
        assigned[name] = list(wanted)
    for pair, both in shared.items():
        everything = [name for name in pair if instances[name].get("gpus") is None]
        problems.add(
            f"GPU{'s' * (len(both) > 1)} {', '.join(both)} of {request.host} {'are' if len(both) > 1 else 'is'} "
            f"used by two instances, {' and '.join(pair)}"
            + (f" ({' and '.join(everything)} without gpus, which means all of the host's)" if everything else "")
            + "; give each its own GPUs in gpus."
        )
    return assigned
