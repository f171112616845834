# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planning and sealing read of a host's facts, checked first. Private to socle.inference."""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems, describe, usable

SCHEMA = "socle.gpu_facts/2"
OLDER = ("socle.gpu_facts/1",)

_TEXTS = ("uuid", "pci_bus_id", "product", "pci_device_id", "mig", "virtualization")
_WHOLE = {"index": 0, "memory_mib": 1}
"""Whole numbers, and the least of each."""
_MEMORY = ("reserved_mib", "free_mib")
_TRUTHS = ("on_bus", "by_driver")
_LINK = ("a", "b", "link")


def check_schema(facts: Any) -> None:
    """Raises PlanError when *facts* are not of the version that is read here."""
    found = facts.get("schema") if isinstance(facts, dict) else None
    if found == SCHEMA:
        return
    if found in OLDER:
        raise PlanError(
            f"facts are of schema {found}, as an older version gathered them, but {SCHEMA} is needed; "
            "gather them again with gpu_facts."
        )
    what = f"have as schema {describe(found)}" if isinstance(facts, dict) else f"are {describe(facts)}"
    raise PlanError(
        f"facts (the file of gpu_facts_file, where that is set) must be a result of gpu_facts (schema {SCHEMA}), but "
        f"{what}; gather them with gpu_facts."
    )


def check_facts(facts: Any, where: str = "facts") -> None:
    """Raises PlanError when *facts* is no result of gpu_facts in what is read of it; more keys are welcome."""
    problems = Problems()
    if not isinstance(facts, dict):
        problems.add(_sentence(where, "a map", facts))
        problems.raise_if_any()
    for name in ("host_class", "kernel"):
        _text(facts.get(name), f"{where}.{name}", problems)
    for name, keys in (
        ("engine", ("name", "version")),
        ("driver", ("version", "flavour", "error")),
        ("toolkit", ("version",)),
    ):
        part = facts.get(name)
        if part is None:
            continue
        if not isinstance(part, dict):
            problems.add(_sentence(f"{where}.{name}", "a map", part))
            continue
        for key in keys:
            _text(part.get(key), f"{where}.{name}.{key}", problems)
    gpus = facts.get("gpus")
    if gpus is not None and not isinstance(gpus, list):
        problems.add(_sentence(f"{where}.gpus", "a list of maps", gpus))
    elif gpus:
        for position, gpu in enumerate(gpus):
            _gpu(gpu, f"{where}.gpus[{position}]", problems)
    links = facts.get("links")
    if links is not None and not isinstance(links, list):
        problems.add(_sentence(f"{where}.links", "a list of maps", links))
    for position, link in enumerate(links if isinstance(links, list) else []):
        if not isinstance(link, dict):
            problems.add(_sentence(f"{where}.links[{position}]", "a map", link))
            continue
        for key in _LINK:
            _text(link.get(key), f"{where}.links[{position}].{key}", problems)
    problems.raise_if_any()


def _gpu(gpu: Any, where: str, problems: Problems) -> None:
    if not isinstance(gpu, dict):
        problems.add(_sentence(where, "a map", gpu))
        return
    for name in _TEXTS:
        _text(gpu.get(name), f"{where}.{name}", problems)
    for name, least in _WHOLE.items():
        value = gpu.get(name)
        if value is not None and not _is_whole(value, least):
            problems.add(_sentence(f"{where}.{name}", f"a whole number of at least {least}", value))
    memory = gpu.get("memory")
    if memory is not None and not isinstance(memory, dict):
        problems.add(_sentence(f"{where}.memory", "a map", memory))
    else:
        for name in _MEMORY:
            value = (memory or {}).get(name)
            if value is not None and not _is_whole(value, 0):
                problems.add(_sentence(f"{where}.memory.{name}", "a whole number of at least 0", value))
    for name in _TRUTHS:
        value = gpu.get(name)
        if value is not None and not isinstance(value, bool):
            problems.add(_sentence(f"{where}.{name}", "true or false", value))


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and usable(value) and value >= least


def _text(value: Any, where: str, problems: Problems) -> None:
    if value is not None and not isinstance(value, str):
        problems.add(_sentence(where, "a string", value))


def _sentence(where: str, expected: str, found: Any) -> str:
    return f"{where} must be {expected}, but is {describe(found)}; give a result of gpu_facts as it came."
