# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planning and sealing read of a host's facts, checked first. Private to socle.inference."""

from __future__ import annotations

from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems, describe

_TEXTS = ("uuid", "pci_bus_id", "product", "pci_device_id")


def check_facts(facts: Any, where: str = "facts") -> None:
    """Raises PlanError when *facts* is no result of gpu_facts in what is read of it; more keys are welcome."""
    problems = Problems()
    if not isinstance(facts, dict):
        problems.add(_sentence(where, "a map", facts))
        problems.raise_if_any()
    for name in ("host_class", "kernel"):
        _text(facts.get(name), f"{where}.{name}", problems)
    for name, keys in (("engine", ("name", "version")), ("driver", ("version",)), ("toolkit", ("version",))):
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
    problems.raise_if_any()


def _gpu(gpu: Any, where: str, problems: Problems) -> None:
    if not isinstance(gpu, dict):
        problems.add(_sentence(where, "a map", gpu))
        return
    for name in _TEXTS:
        _text(gpu.get(name), f"{where}.{name}", problems)
    index = gpu.get("index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        problems.add(_sentence(f"{where}.index", "a whole number", index))


def _text(value: Any, where: str, problems: Problems) -> None:
    if value is not None and not isinstance(value, str):
        problems.add(_sentence(where, "a string", value))


def _sentence(where: str, expected: str, found: Any) -> str:
    return f"{where} must be {expected}, but is {describe(found)}; give a result of gpu_facts as it came."
