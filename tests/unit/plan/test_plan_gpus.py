# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan refuses, or warns of, by the GPUs and the driver of the host."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.conftest import knowledge

CHAT = {"model": "small-chat"}
PAIR = {**CHAT, "gpus": [0, 1]}
H200 = {"pci_device_id": "10de:2335", "product": "NVIDIA H200", "memory_mib": 143771}


@pytest.fixture
def gpu_facts(facts: Any) -> Any:
    """Facts of a host with four A800, to be changed by a test."""
    return facts["gpu"]


@pytest.fixture
def on_gpus(plan_all: Any, gpu_facts: Any) -> Any:
    """Plans instances on that host, whose class the inventory does not name."""

    def call(instances: Any, **changes: Any) -> Any:
        return plan_all(instances, **{"facts": gpu_facts, "host_class": None, **changes})

    return call


@pytest.fixture
def refused(errors_of: Any, gpu_facts: Any) -> Any:
    """The one sentence with which such a plan is refused."""

    def call(instances: Any, **changes: Any) -> str:
        errors = errors_of(instances, **{"facts": gpu_facts, "host_class": None, **changes})
        assert len(errors) == 1
        return errors[0]

    return call


def fall_off(gpu: dict[str, Any]) -> None:
    gpu.update(index=None, uuid=None, product=None, memory_mib=None, by_driver=False)


def test_the_hardware_names_the_class(on_gpus: Any) -> None:
    result = on_gpus({"a": PAIR})
    assert (result.host_class, result.plans["a"]["warnings"]) == ("a800_pcie_80g", [])


def test_what_the_class_was_when_facts_were_gathered_does_not_count(on_gpus: Any, gpu_facts: Any) -> None:
    gpu_facts["host_class"] = "cpu"
    assert on_gpus({"a": PAIR}).host_class == "a800_pcie_80g"


def test_an_unknown_gpu_is_refused_with_the_file_to_write(refused: Any, gpu_facts: Any) -> None:
    for gpu in gpu_facts["gpus"]:
        gpu["pci_device_id"] = "10de:beef"
    message = refused({"a": PAIR})
    assert "10de:beef" in message and "site_data/profiles/host_classes/NAME.yml" in message


def test_an_override_against_the_family_is_refused_with_all_else(errors_of: Any, gpu_facts: Any) -> None:
    errors = errors_of({"a": PAIR}, facts=gpu_facts, host_class="h200_sxm_141g")
    assert len(errors) == 2
    assert "family h200" in errors[0] and "family a800" in errors[0]
    assert "no serving profile of small-chat for host class h200_sxm_141g" in errors[1]


def test_warnings_of_the_class_reach_the_plan(on_gpus: Any, gpu_facts: Any) -> None:
    gpu_facts["links"] = [{"a": "0000:00:00.0", "b": "0000:01:00.0", "link": "NV4"}]
    assert [warning["id"] for warning in on_gpus({"a": PAIR}).plans["a"]["warnings"]] == ["link-differs"]


def test_all_gpus_means_those_of_the_class(on_gpus: Any, refused: Any, gpu_facts: Any) -> None:
    for gpu in gpu_facts["gpus"][2:]:
        gpu.update(H200)
    assert "several kinds" in refused({"a": CHAT})
    plan = on_gpus({"a": CHAT}, host_class="a800_pcie_80g").plans["a"]
    assert plan["gpus"] == [0, 1]
    assert [warning["id"] for warning in plan["warnings"]] == ["gpus-mixed"]
    message = refused({"a": {**CHAT, "gpus": [1, 2]}}, host_class="a800_pcie_80g")
    assert "GPU 2 of gpu1 (NVIDIA H200)" in message and "those are 0, 1" in message


@pytest.mark.parametrize("gpus", [None, [0, 1], ["GPU-00000000-aaaa", 1]])
def test_a_gpu_split_by_mig_is_refused_where_a_whole_one_is_meant(refused: Any, gpu_facts: Any, gpus: Any) -> None:
    gpu_facts["gpus"] = gpu_facts["gpus"][:2]
    gpu_facts["gpus"][0]["mig"] = "enabled"
    message = refused({"a": {**CHAT, **({"gpus": gpus} if gpus else {})}})
    assert "a.gpus has GPU" in message and "MIG" in message and "-mig 0" in message


def test_a_gpu_split_by_mig_that_nobody_asks_for_is_fine(on_gpus: Any, gpu_facts: Any) -> None:
    gpu_facts["gpus"][3]["mig"] = "enabled"
    assert on_gpus({"a": PAIR}).plans["a"]["gpus"] == [0, 1]


def test_a_vgpu_guest_is_refused(refused: Any, gpu_facts: Any) -> None:
    gpu_facts["gpus"][0]["virtualization"] = "vgpu"
    assert "vGPU" in refused({"a": PAIR})


def test_a_gpu_that_fell_off_is_not_left_out_in_silence(on_gpus: Any, refused: Any, gpu_facts: Any) -> None:
    fall_off(gpu_facts["gpus"][2])
    message = refused({"a": CHAT})
    assert "all 4 GPUs" in message and "0000:02:00.0" in message and "Xid 79" in message
    message = refused({"a": {**CHAT, "gpus": [0, 2]}})
    assert "GPU 2, which gpu1 does not have" in message and "0, 1, 3, and has lost the one at 0000:02:00.0" in message
    assert on_gpus({"a": {**CHAT, "gpus": [0, 3]}}).plans["a"]["gpus"] == [0, 3]


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"version": None}, "no NVIDIA driver is loaded"),
        ({"version": None, "nouveau": True}, "nouveau"),
        ({"version": "580.159.03", "error": "Failed to initialize NVML"}, "Failed to initialize NVML"),
        ({"version": "580.159.03"}, "driver 580.159.03 is loaded"),
    ],
)
@pytest.mark.parametrize("instance", [CHAT, PAIR])
def test_gpus_without_a_driver_are_refused_with_the_reason(
    refused: Any, gpu_facts: Any, driver: dict[str, Any], reason: str, instance: dict[str, Any]
) -> None:
    for gpu in gpu_facts["gpus"]:
        fall_off(gpu)
    gpu_facts["driver"] = driver
    message = refused({"a": instance})
    assert reason in message and "provision.yml" in message and "0000:00:00.0, 0000:01:00.0" in message


def test_blackwell_under_the_proprietary_modules_is_named(refused: Any, gpu_facts: Any, documents: Any) -> None:
    documents["profiles/host_classes"]["a800_pcie_80g"]["architecture"] = "blackwell"
    for gpu in gpu_facts["gpus"]:
        fall_off(gpu)
    gpu_facts["driver"] = {"version": "580.159.03", "flavour": "proprietary", "error": "No devices were found"}
    assert "Blackwell needs the open ones" in refused({"a": PAIR})


def test_facts_written_by_hand_need_no_more_than_an_index(on_gpus: Any, gpu_facts: Any) -> None:
    for gpu in gpu_facts["gpus"]:
        for key in ("by_driver", "on_bus", "mig", "virtualization", "uuid"):
            del gpu[key]
    del gpu_facts["links"], gpu_facts["driver"]
    assert on_gpus({"a": PAIR}).plans["a"]["gpus"] == [0, 1]


@pytest.fixture
def cuda(documents: Any) -> Any:
    """Says of the profile's image what CUDA it is built with."""

    def call(version: str, **changes: Any) -> None:
        profile = documents["profiles/serving"]["small-chat--a800_pcie_80g"]["profiles"]["default"]
        profile.update(cuda=version, **changes)

    return call


@pytest.mark.parametrize(
    ("version", "driver", "env", "told"),
    [
        ("13.0", "580.65.06", {}, []),
        ("13.0", "595.45.04", {}, []),
        ("13.0", None, {}, []),
        ("12.9", "525.60.13", {}, []),
        ("13.0", "575.57.08", {}, ["CUDA 13", "driver 580 or newer", "the host has 575.57.08", "-cu129", "SOC-R59"]),
        ("13.0", "575.57.08", {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, []),
        ("13.0", "575.57.08", {"VLLM_ENABLE_CUDA_COMPATIBILITY": "0"}, ["driver 580 or newer"]),
    ],
)
def test_the_image_s_cuda_is_compared_with_the_driver(
    on_gpus: Any, refused: Any, gpu_facts: Any, cuda: Any, version: str, driver: Any, env: Any, told: list[str]
) -> None:
    cuda(version)
    gpu_facts["driver"]["version"] = driver
    instances = {"a": {**PAIR, "env": env}}
    if told:
        message = refused(instances, knowledge=knowledge())
        assert [part for part in told if part not in message] == []
    else:
        assert on_gpus(instances, knowledge=knowledge()).plans["a"]["sealed"] is False


@pytest.mark.parametrize(
    ("version", "driver", "env", "warned"),
    [
        ("13.0", "575.57.08", {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, ["SOC-R95"]),
        ("12.9", "575.57.08", {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, []),
        ("13.0", "580.65.06", {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, ["SOC-R61"]),
        ("13.0", "580.65.06", {}, []),
    ],
)
def test_a_driver_that_the_image_bridges_is_warned_of(
    on_gpus: Any, gpu_facts: Any, cuda: Any, version: str, driver: str, env: Any, warned: list[str]
) -> None:
    cuda(version)
    gpu_facts["driver"]["version"] = driver
    plan = on_gpus({"a": {**PAIR, "env": env}}, knowledge=knowledge()).plans["a"]
    found = [warning for warning in plan["warnings"] if "VLLM_ENABLE_CUDA_COMPATIBILITY" in warning["message"]]
    assert [warning["id"] for warning in found] == warned
    assert all(driver in warning["message"] for warning in found)


def test_a_driver_older_than_the_class_needs_is_refused_once(refused: Any, gpu_facts: Any, cuda: Any) -> None:
    cuda("13.0")
    gpu_facts["driver"]["version"] = "470.57.02"
    message = refused({"a": PAIR, "b": {**CHAT, "gpus": [2, 3], "port": 8001}}, knowledge=knowledge())
    assert "driver 470.57.02" in message and "class a800_pcie_80g need 525 or newer" in message


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (
            {},
            {},
            "GPUs 0, 1, 2, 3 of gpu1 are used by two instances, a and b (a and b without gpus, which means all of",
        ),
        (
            {"gpus": [1, 2]},
            {},
            "GPUs 1, 2 of gpu1 are used by two instances, a and b (b without gpus, which means all of",
        ),
        ({"gpus": [0, 1]}, {"gpus": [1, 2]}, "GPU 1 of gpu1 is used by two instances, a and b; give each its own GPUs"),
    ],
)
def test_gpus_that_two_instances_share_are_told_at_once(
    errors_of: Any, gpu_facts: Any, a: Any, b: Any, told: str
) -> None:
    instances = {"a": {**CHAT, **a, "port": 1}, "b": {**CHAT, **b, "port": 2}}
    (sentence,) = [error for error in errors_of(instances, facts=gpu_facts, host_class=None) if "used by" in error]
    assert sentence.startswith(told)


def test_versions_are_compared_as_numbers(on_gpus: Any, refused: Any, gpu_facts: Any, documents: Any) -> None:
    documents["profiles/host_classes"]["a800_pcie_80g"]["driver"]["minimum"] = "580.126.09"
    gpu_facts["driver"]["version"] = "580.95.05"
    assert "580.126.09 or newer" in refused({"a": PAIR})
    gpu_facts["driver"]["version"] = "580.126.10"
    assert on_gpus({"a": PAIR}).plans["a"]["warnings"] == []


def test_nothing_is_known_of_an_image_that_replaces_the_profile_s(on_gpus: Any, gpu_facts: Any, cuda: Any) -> None:
    cuda("13.0")
    gpu_facts["driver"]["version"] = "570.86.15"
    instances = {"a": {**PAIR, "image": "registry.example/vllm:v0.26.0-cu129"}}
    plan = on_gpus(instances, knowledge=knowledge()).plans["a"]
    assert plan["warnings"][0]["id"] == "image-override"
