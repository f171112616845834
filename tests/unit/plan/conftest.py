# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small catalogue of data, as documents in memory, and one way to plan with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.checks import IDS, Knowledge
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import FOLDER, read_schemas
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request, Template
from ansible_collections.socle.inference.plugins.module_utils._plan.resolve import Resolution, resolve
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import load_rules
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import COLLECTION, DataPath


def gpu_class(name: str, family: str, pci_id: str, product: str, **changes: Any) -> dict[str, Any]:
    """A class file of kind gpu; by default one of Ampere by PCIe."""
    return {
        "name": name,
        "kind": "gpu",
        "family": family,
        "architecture": "ampere",
        "compute_capability": "8.0",
        "pci_ids": [f"10de:{pci_id}"],
        "products": [product],
        "memory_mib": 81920,
        "link": "nvlink_optional",
        "nvlink_expected": "NV8",
        "fp8": False,
        "fp4": False,
        "driver": {"flavour": "open", "minimum": "525"},
        **changes,
    }


PROFILE = {
    "image": "registry.example/vllm:v0.26.0",
    "vllm_version": "0.26.0",
    "flags": {"max-model-len": 4096, "enable-prefix-caching": True},
    "env": {"VLLM_SKIP_P2P_CHECK": "1"},
    "shm_size_bytes": 1024**3,
    "start_timeout_s": 900,
    "slo": {"ttft_p50_ms": 1000},
    "evidence": {"max-model-len": {"source": "measured"}},
}

DOCUMENTS: dict[str, dict[str, Any]] = {
    "profiles": {"engine": {"cache_root": "/root/.cache/vllm", "env": {"HF_HUB_OFFLINE": "1"}}},
    "profiles/host_classes": {
        "cpu": {"name": "cpu", "kind": "cpu"},
        "a800_pcie_80g": gpu_class(
            "a800_pcie_80g", "a800", "20f5", "NVIDIA A800 80GB PCIe", flags={"attention-backend": "FLASHINFER"}
        ),
        "h200_sxm_141g": gpu_class("h200_sxm_141g", "h200", "2335", "NVIDIA H200", memory_mib=143771, link="nvlink"),
    },
    "profiles/models": {
        "small-chat": {
            "name": "small-chat",
            "hub": "modelscope",
            "repo": "org/Small-Chat",
            "revision": "master",
            "architecture": {"max_position_embeddings": 8192},
            "flags": {"reasoning-parser": "qwen3"},
        }
    },
    "profiles/serving": {
        "small-chat--cpu": {
            "model": "small-chat",
            "host_class": "cpu",
            "gpus_per_instance": 0,
            "recommended": "default",
            "profiles": {
                "default": PROFILE,
                "safe": {**PROFILE, "flags": {"no-enable-prefix-caching": True}, "evidence": {}},
            },
        },
        "small-chat--a800_pcie_80g": {
            "model": "small-chat",
            "host_class": "a800_pcie_80g",
            "gpus_per_instance": 2,
            "recommended": "default",
            "profiles": {"default": {**PROFILE, "flags": {**PROFILE["flags"], "tensor-parallel-size": 2}}},
        },
    },
}


class MemoryReader:
    """Documents by folder and name."""

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        self.documents = documents

    def names(self, folder: str) -> list[str]:
        return sorted(self.documents.get(folder, {}))

    def read(self, folder: str, name: str) -> tuple[str, Any]:
        return f"{folder}/{name}.yml", self.documents[folder][name]

    def made(self, folder: str, name: str, make: Any) -> Any:
        return make(*self.read(folder, name))


def gpu(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-0000000{index}-aaaa",
        "pci_bus_id": f"0000:0{index}:00.0",
        "product": "NVIDIA A800 80GB PCIe",
        "pci_device_id": "10de:20f5",
        "memory_mib": 81920,
        "on_bus": True,
        "by_driver": True,
        "mig": "disabled",
        "virtualization": "none",
    }


CPU_FACTS = {
    "schema": "socle.gpu_facts/2",
    "host_class": "cpu",
    "gpus": [],
    "links": [],
    "driver": {"version": None},
    "kernel": "6.12.0",
    "engine": {"name": "podman", "version": "5.4.2"},
}
GPU_FACTS = {
    **CPU_FACTS,
    "host_class": None,
    "gpus": [gpu(index) for index in range(4)],
    "driver": {"version": "580.159.03"},
}


@pytest.fixture
def documents() -> dict[str, dict[str, Any]]:
    """The catalogue, to be changed by a test."""
    return copy.deepcopy(DOCUMENTS)


@pytest.fixture
def facts() -> dict[str, dict[str, Any]]:
    return copy.deepcopy({"cpu": CPU_FACTS, "gpu": GPU_FACTS})


def knowledge(**ignored: str) -> Knowledge:
    """The shipped rules and flag schemas, with ids (written with an underscore) that are passed over for a reason."""
    reasons = {name.replace("_", "-"): reason for name, reason in ignored.items()}
    return Knowledge(load_rules(DataPath([]), reasons, IDS), read_schemas([COLLECTION / FOLDER]))


@pytest.fixture
def plan_all(documents: dict[str, dict[str, Any]]) -> Any:
    """Plans instances of a host; by default one of class cpu with fitting facts, and without *knowledge*."""

    def call(instances: Any, **changes: Any) -> Resolution:
        known = changes.pop("knowledge", None)
        settings: dict[str, Any] = {"facts": CPU_FACTS, "host_class": "cpu", "host": "gpu1", **changes}
        return resolve(
            Request(instances=instances, **settings),
            Catalogue(MemoryReader(documents)),
            lambda name: Template(f"/controller/{name}", "ab" * 32),
            known,
        )

    return call


@pytest.fixture
def plan_one(plan_all: Any) -> Any:
    """The plan of one instance "chat" with these keys."""

    def call(instance: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
        return plan_all({"chat": {"model": "small-chat", **(instance or {})}}, **changes).plans["chat"]

    return call


@pytest.fixture
def errors_of(plan_all: Any) -> Any:
    """The sentences with which planning is refused."""

    def call(instances: Any, **changes: Any) -> list[str]:
        with pytest.raises(PlanError) as refused:
            plan_all(instances, **changes)
        return refused.value.fields["errors"]

    return call
