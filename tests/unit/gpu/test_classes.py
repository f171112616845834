# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The class of a host: found by PCI ids, confirmed by the driver, and never against the hardware."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import (
    ClassResult,
    Override,
    find_override,
    resolve_class,
    unsupported,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.data import GPU_KEYS, Catalogue, HostClass
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath

CLASSES = dict(Catalogue(DataPath([])).host_classes())
GPU_CLASSES = {name: known for name, known in CLASSES.items() if known.kind == "gpu"}

A100 = "10de:20b2"
A100_40G = "10de:20b0"
H200 = "10de:2335"
RTX_4090 = "10de:2684"
UNKNOWN = "10de:beef"


def bare(*ids: str) -> dict[str, Any]:
    """Facts of a host without a driver: PCI ids and nothing else."""
    return {
        "gpus": [
            {
                "index": None,
                "uuid": None,
                "product": None,
                "pci_device_id": pci_id,
                "pci_bus_id": f"0000:{number:02x}:00.0",
            }
            for number, pci_id in enumerate(ids, start=1)
        ],
        "links": [],
    }


def driven(name: str, count: int = 2, link: str | None = None, **changes: Any) -> dict[str, Any]:
    """Facts of a host with a driver whose GPUs are just as the class says, but for *changes* in the first."""
    known = CLASSES[name]
    gpus: list[dict[str, Any]] = [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "product": known.products[0],
            "pci_device_id": known.pci_ids[0],
            "pci_bus_id": f"0000:{index:02x}:00.0",
            "memory_mib": known.memory_mib,
            "virtualization": "none",
        }
        for index in range(count)
    ]
    gpus[0].update(changes)
    links = [
        {"a": one["pci_bus_id"], "b": other["pci_bus_id"], "link": link}
        for one, other in combinations(gpus, 2)
        if link is not None
    ]
    return {"gpus": gpus, "links": links}


def named(name: str) -> Override:
    return Override(name, f"group {name}")


def found(facts: Any, override: Override | None = None, classes: Any = None) -> ClassResult:
    return resolve_class(facts, classes or CLASSES, override, "gpu1")


def refusal(facts: Any, override: Override | None = None, classes: Any = None) -> str:
    with pytest.raises(PlanError) as refused:
        found(facts, override, classes)
    assert refused.value.message.startswith("gpu1 ") and refused.value.message.endswith(".")
    return refused.value.message


def warned(result: ClassResult) -> list[str]:
    return [warning["id"] for warning in result.warnings]


@pytest.mark.parametrize("name", sorted(GPU_CLASSES))
def test_every_id_of_a_class_finds_it_without_a_driver(name: str) -> None:
    for pci_id in GPU_CLASSES[name].pci_ids:
        result = found(bare(pci_id, pci_id))
        assert (result.name, result.count, result.origin, result.members) == (name, 2, "hardware", (0, 1))
        assert warned(result) == []


@pytest.mark.parametrize("name", sorted(GPU_CLASSES))
def test_a_driver_that_says_the_same_changes_nothing(name: str) -> None:
    link = GPU_CLASSES[name].nvlink_expected or "SYS"
    assert (found(driven(name, link=link)).name, warned(found(driven(name, link=link)))) == (name, [])


@pytest.mark.parametrize(
    ("pci_id", "name"),
    [
        ("10de:20b2", "a100_sxm4_80g"),
        ("10de:20b5", "a100_pcie_80g"),
        ("10de:20f1", "a100_pcie_40g"),
        ("10de:20f5", "a800_pcie_80g"),
        ("10de:20f3", "a800_sxm4_80g"),
        ("10de:2331", "h100_pcie_80g"),
        ("10de:2321", "h100_nvl_94g"),
        ("10de:233b", "h200_nvl_141g"),
        ("10de:2BB4", "rtx_pro_6000"),
    ],
)
def test_variants_of_a_product_differ_by_id(pci_id: str, name: str) -> None:
    assert found(bare(pci_id)).name == name


def test_no_gpu_means_cpu() -> None:
    result = found({"gpus": []})
    assert (result.name, result.count, result.origin, warned(result)) == ("cpu", 0, "hardware", [])


@pytest.mark.parametrize("override", ["a100_sxm4_80g", "a100_sxm4_40g", "cpu"])
def test_an_override_that_the_hardware_allows_wins(override: str) -> None:
    result = found(driven("a100_sxm4_80g", link="NV12"), named(override))
    assert (result.name, result.origin) == (override, f"group {override}")
    expected = {"a100_sxm4_80g": [], "a100_sxm4_40g": ["class-variant", "memory-differs"], "cpu": ["gpus-unused"]}
    assert warned(result) == expected[override]
    assert result.count == (0 if override == "cpu" else 2)


def test_an_override_against_the_family_names_both() -> None:
    message = refusal(driven("h200_sxm_141g"), named("a100_sxm4_80g"))
    for part in ("a100_sxm4_80g (group a100_sxm4_80g)", "family a100", "family h200", "2 x 10de:2335 (NVIDIA H200)"):
        assert part in message


def test_a_gpu_class_without_a_gpu_is_refused() -> None:
    message = refusal({"gpus": []}, named("a100_sxm4_80g"))
    assert "family a100" in message and "no NVIDIA GPU" in message and "class cpu" in message


def test_mixed_gpus_are_refused_with_the_way_out() -> None:
    message = refusal(bare(A100, A100, H200, UNKNOWN))
    for part in ("a100_sxm4_80g: 2 x 10de:20b2", "h200_sxm_141g: 1 x 10de:2335", "no class: 1 x 10de:beef"):
        assert part in message
    assert "set host_class to one of a100_sxm4_80g, h200_sxm_141g" in message and "gpus of each instance" in message


def test_two_classes_of_one_family_are_mixed_too() -> None:
    assert "several kinds" in refusal(bare(A100, A100_40G))


def test_of_mixed_gpus_an_override_chooses_one_family() -> None:
    result = found(bare(A100, H200, UNKNOWN, "10de:1eb8", H200), named("h200_sxm_141g"))
    assert (result.count, result.members, warned(result)) == (2, (1, 4), ["gpus-mixed"])
    assert "1 x 10de:1eb8 (Tesla T4), 1 x 10de:20b2, 1 x 10de:beef" in result.warnings[0]["message"]


@pytest.mark.parametrize("override", [None, "h200_sxm_141g"])
def test_an_unknown_id_is_told_with_the_file_to_write(override: str | None) -> None:
    facts = driven("h200_sxm_141g", count=1, pci_device_id=UNKNOWN, product="NVIDIA Z1")
    message = refusal(facts, named(override) if override else None)
    assert "1 x 10de:beef (NVIDIA Z1)" in message
    assert "site_data/profiles/host_classes/NAME.yml" in message and "pci_ids: ['10de:beef']" in message
    assert [key for key in GPU_KEYS if key not in message] == []


def test_a_gpu_without_an_id_is_told() -> None:
    assert "PCI id is not in the facts" in refusal(driven("h200_sxm_141g", count=1, pci_device_id=None))


@pytest.mark.parametrize(
    ("pci_id", "product", "reason"),
    [
        ("10de:1db0", "V100", "CUDA 13 images"),
        ("10de:1dbe", "V100", "CUDA 13 images"),
        ("10de:15f8", "P100", "CUDA 13 images"),
        ("10de:1eb8", "T4", "bfloat16"),
    ],
)
def test_a_gpu_that_is_too_old_is_refused_with_the_reason(pci_id: str, product: str, reason: str) -> None:
    message = refusal(bare(pci_id))
    assert pci_id in message and product in message and reason in message and "host_class to cpu" in message


@pytest.mark.parametrize("pci_id", ["10de:1daf", "10de:1dbf", "1002:1db1", "10de:", "10de:zz", "", None, A100])
def test_what_is_not_on_the_list_is_not_called_too_old(pci_id: str | None) -> None:
    assert unsupported(pci_id) is None


def test_a_class_of_one_s_own_makes_an_old_gpu_usable() -> None:
    own = HostClass("own.yml", "t4", "gpu", {}, {}, {}, family="t4", pci_ids=("10de:1eb8",), link="pcie")
    assert found(bare("10de:1eb8"), classes={**CLASSES, "t4": own}).name == "t4"


def test_an_id_in_two_classes_needs_an_override() -> None:
    own = HostClass("own.yml", "own", "gpu", {}, {}, {}, family="a100", pci_ids=(A100,), link="nvlink")
    classes = {**CLASSES, "own": own}
    message = refusal(bare(A100), classes=classes)
    assert "2 host classes (a100_sxm4_80g, own)" in message and "own.yml" in message
    assert found(bare(A100), named("own"), classes).name == "own"


@pytest.mark.parametrize("override", [None, "a100_sxm4_80g"])
def test_a_vgpu_guest_is_refused(override: str | None) -> None:
    facts = driven("a100_sxm4_80g", virtualization="vgpu", product="GRID A100X-40C")
    message = refusal(facts, named(override) if override else None)
    assert "vGPU" in message and "GRID A100X-40C" in message and "pass-through" in message
    assert found(facts, named("cpu")).name == "cpu"


@pytest.mark.parametrize("mode", ["none", "pass-through", None])
def test_a_whole_gpu_in_a_guest_is_welcome(mode: str | None) -> None:
    assert warned(found(driven("a100_sxm4_80g", virtualization=mode))) == []


def test_a_product_of_another_family_contradicts_the_id() -> None:
    message = refusal(driven("a100_sxm4_80g", product="NVIDIA H200"))
    assert "10de:20b2" in message and "NVIDIA H200" in message and "h200_sxm_141g" in message


def test_a_product_that_no_class_has_is_a_warning() -> None:
    result = found(driven("a100_sxm4_80g", product="NVIDIA A100-SXM4-80GB Special"))
    assert warned(result) == ["product-unknown"] and "Special" in result.warnings[0]["message"]


@pytest.mark.parametrize(("memory", "expected"), [(49140, ["memory-differs"]), (23028, []), (None, [])])
def test_memory_that_differs_is_a_warning_but_not_for_ecc(memory: int | None, expected: list[str]) -> None:
    result = found(driven("rtx_4090_24g", memory_mib=memory))
    assert warned(result) == expected
    assert not expected or ("49140 MiB" in result.warnings[0]["message"] and "24564" in result.warnings[0]["message"])


@pytest.mark.parametrize(
    ("name", "link", "expected"),
    [
        ("a100_sxm4_80g", "NV12", None),
        ("a100_sxm4_80g", "PHB", "NV12"),
        ("a100_sxm4_80g", "NV4", "NV12"),
        ("a800_pcie_80g", "NV8", None),
        ("a800_pcie_80g", "SYS", None),
        ("a800_pcie_80g", "NV4", "NV8 or no NVLink"),
        ("h200_nvl_141g", "NV6", None),
        ("rtx_4090_24g", "PIX", None),
        ("rtx_4090_24g", "NV4", "no NVLink"),
        ("a100_sxm4_80g", None, None),
    ],
)
def test_links_against_the_class_are_a_warning(name: str, link: str | None, expected: str | None) -> None:
    result = found(driven(name, link=link))
    assert warned(result) == (["link-differs"] if expected else [])
    if expected:
        assert (
            f"{link} (1 pair)" in result.warnings[0]["message"]
            and f"expects {expected}" in result.warnings[0]["message"]
        )


def test_links_of_other_gpus_do_not_count() -> None:
    facts = driven("a100_sxm4_80g", count=3, link="NV12")
    facts["gpus"][2].update(pci_device_id=RTX_4090, product="NVIDIA GeForce RTX 4090", memory_mib=24564)
    for link in facts["links"][1:]:
        link["link"] = "SYS"
    assert warned(found(facts, named("a100_sxm4_80g"))) == ["gpus-mixed"]


def test_without_facts_only_the_inventory_can_tell() -> None:
    result = found(None, named("a100_sxm4_80g"))
    assert (result.name, result.count, warned(result)) == ("a100_sxm4_80g", 0, ["hardware-unknown"])
    assert "no host class" in refusal(None)


def test_the_variable_comes_before_the_group() -> None:
    assert find_override("cpu", ["a100_sxm4_80g"], CLASSES, "gpu1") == Override("cpu", "variable host_class")
    assert find_override(None, ["all", "cpu"], CLASSES, "gpu1") == Override("cpu", "group cpu")
    assert find_override("", ["all"], CLASSES, "gpu1") is None


@pytest.mark.parametrize(
    ("option", "groups", "parts"),
    [
        ("a100_sxm4_80", [], ["'a100_sxm4_80'", "did you mean"]),
        (["cpu"], [], ["no known host class"]),
        (None, ["cpu", "l40s_48g"], ["2 groups", "cpu, l40s_48g"]),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused(option: Any, groups: list[str], parts: list[str]) -> None:
    with pytest.raises(PlanError) as refused:
        find_override(option, groups, CLASSES, "gpu1")
    assert [part for part in parts if part not in refused.value.message] == []
