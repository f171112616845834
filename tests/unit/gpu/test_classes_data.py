# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host classes that are shipped, each against the others and against what the documentation says of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath

CLASSES = dict(Catalogue(DataPath([])).host_classes())
GPU = [known for known in CLASSES.values() if known.kind == "gpu"]
DOCUMENT = (Path(__file__).parents[3] / "docs/host-classes.md").read_text(encoding="utf-8")


def test_the_promised_classes_are_there() -> None:
    assert set(CLASSES) == {
        *("cpu", "a100_sxm4_40g", "a100_sxm4_80g", "a100_pcie_40g", "a100_pcie_80g", "a800_pcie_80g", "a800_sxm4_80g"),
        *("h100_sxm5_80g", "h100_pcie_80g", "h100_nvl_94g", "h200_sxm_141g", "h200_nvl_141g", "h20_sxm_96g"),
        *("b200_sxm_180g", "l40s_48g", "rtx_4090_24g", "rtx_5090_32g", "rtx_pro_6000"),
    }


def test_no_id_and_no_product_is_in_two_classes() -> None:
    ids = Counter(pci_id for known in GPU for pci_id in known.pci_ids)
    products = Counter(product for known in GPU for product in known.products)
    assert [name for name, count in (ids + products).items() if count > 1] == []


@pytest.mark.parametrize("known", GPU, ids=lambda known: known.name)
def test_figures_carry_their_evidence(known) -> None:
    needed = {"pci_ids", "memory_mib", "fp8", "driver", "power_default_w", *known.flags, *known.env}
    if known.link != "pcie":
        needed.add("nvlink_expected")
    if known.nvswitch == "possible":
        needed.add("nvswitch")
    assert needed - set(known.evidence) == set()


@pytest.mark.parametrize("known", GPU, ids=lambda known: known.name)
def test_a_class_agrees_with_its_generation(known) -> None:
    generations = {
        "ampere": ({"8.0", "8.6"}, False, False, "525"),
        "ada lovelace": ({"8.9"}, True, False, "525"),
        "hopper": ({"9.0"}, True, False, "525"),
        "blackwell": ({"10.0", "12.0"}, True, True, "570"),
    }
    capabilities, fp8, fp4, minimum = generations[known.architecture]
    assert known.compute_capability in capabilities
    assert (known.fp8, known.fp4, known.driver["minimum"]) == (fp8, fp4, minimum)
    assert known.driver["flavour"] == "open"
    assert (known.nvswitch == "possible") == (known.link == "nvlink")


def test_only_cards_without_peer_to_peer_are_forced_off_custom_all_reduce() -> None:
    forced = {known.name for known in GPU if known.flags.get("disable-custom-all-reduce")}
    assert forced == {known.name for known in GPU if not known.peer_to_peer} == {"rtx_4090_24g", "rtx_5090_32g"}


@pytest.mark.parametrize("known", GPU, ids=lambda known: known.name)
def test_the_document_has_the_class_as_it_is(known) -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| `{known.name}` |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == ", ".join(f"`{pci_id.removeprefix('10de:')}`" for pci_id in known.pci_ids)
    assert cells[3:5] == [known.compute_capability, f"{known.memory_mib:,}"]
    assert cells[6:8] == ["yes" if value else "no" for value in (known.fp8, known.fp4)]
