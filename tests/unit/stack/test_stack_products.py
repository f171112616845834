# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks over facts as gpu_facts gathers them: its words and values are those that the checks expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._stack.catalogue import due_checks, find

from tests.unit.gpu.hosts import PRODUCTS
from tests.unit.gpu.hosts import Host as Tree

from .support import Host, spec

ROOT = Path(__file__).parents[3]


def host_class(device: str) -> dict[str, Any]:
    for path in sorted((ROOT / "profiles/host_classes").glob("*.yml")):
        known: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        if f"10de:{device.lower()}" in (known.get("pci_ids") or []):
            return known
    raise AssertionError(f"no host class has {device}")


def found(facts: dict[str, Any], known: dict[str, Any], stage: str) -> list[str]:
    """Ids over *facts*, whose hardware is put into a healthy host."""
    host = Host()
    hardware = {key: facts[key] for key in ("gpus", "links", "nvswitches", "nvlink5", "xids", "iommu", "acs_redirects")}
    host.facts.update(hardware, host_class=known["name"])
    host.intent["class"] = known
    names = [name for gpu in facts["gpus"] for name in (str(gpu["index"]), gpu["uuid"])]
    host.stack["cdi"]["specs"] = [spec(devices=[*names, "all"])]
    return [one["id"] for one in find(due_checks(True, stage), host.facts, host.stack, host.intent)]


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_a_host_with_two_sound_gpus_has_no_errors_of_hardware(tmp_path: Path, name: str) -> None:
    product, tree = PRODUCTS[name], Tree(tmp_path)
    tree.gpus(product, driver="nvidia")
    tree.drive(product)
    ids = found(tree.facts(), host_class(product.device), "all")
    # The NVLink 5 board lacks its management here, rightly.
    assert ids == (["SOC-H18"] if name == "b200" else [])


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_a_bare_host_has_no_findings_before_its_driver(tmp_path: Path, name: str) -> None:
    product, tree = PRODUCTS[name], Tree(tmp_path)
    tree.gpus(product)
    assert found(tree.facts(), host_class(product.device), "before") == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("mig_mode/current_mig", "Enabled", "SOC-H45"),
        ("gpu_virtualization_mode/virtualization_mode", "VGPU", "SOC-H46"),
        ("pci/pci_gpu_link_info/link_widths/current_link_width", "4x", "SOC-H47"),
        ("remapped_rows/remapped_row_pending", "Yes", "SOC-H48"),
        ("remapped_rows/remapped_row_failure", "Yes", "SOC-H49"),
        ("gpu_recovery_action", "Reset", "SOC-H50"),
        ("bar1_memory_usage/total", "256 MiB", "SOC-H53"),
        ("persistence_mode", "Disabled", "SOC-H54"),
        ("gpu_power_readings/current_power_limit", "500.00 W", "SOC-H55"),
        ("ecc_mode/pending_ecc", "Disabled", "SOC-H56"),
        ("fabric/state", "In Progress", "SOC-H15"),
    ],
)
def test_what_nvidia_smi_writes_is_what_the_check_reads(tmp_path: Path, path: str, text: str, expected: str) -> None:
    product, tree = PRODUCTS["h100_sxm"], Tree(tmp_path)
    tree.gpus(product, driver="nvidia")
    tree.drive(product, changes={0: {path: text}})
    assert found(tree.facts(), host_class(product.device), "all") == [expected]


def test_a_gpu_that_only_pci_shows_is_found(tmp_path: Path) -> None:
    product, tree = PRODUCTS["a100_sxm4"], Tree(tmp_path)
    tree.gpus(product, driver="nvidia")
    tree.drive(product, count=1)
    assert found(tree.facts(), host_class(product.device), "all") == ["SOC-H44"]
