# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that flag schemas, capacity and rules have to say about one launch, each fault once. Private to socle.inference.

Nothing here changes what is launched: a finding refuses a plan or is shown with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import CPU
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture, architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.capacity import Capacity, plan_capacity
from ansible_collections.socle.inference.plugins.module_utils._plan.container_paths import unmounted_paths
from ansible_collections.socle.inference.plugins.module_utils._plan.data import HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import SEVERITIES, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_check import check_flags, unchecked
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import FlagSchema
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import launch_from
from ansible_collections.socle.inference.plugins.module_utils._plan.measured import choose, gpu_of
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model
from ansible_collections.socle.inference.plugins.module_utils._plan.rule_context import (
    RuleContext,
    number_of,
    worst_path,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import RuleSet, evaluate
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import TensorGroup

IDS = (
    *(f"SOC-F{number:02}" for number in range(1, 20)),
    *(f"SOC-C{number:02}" for number in range(1, 18)),
)
"""Ids of findings that no rule makes."""

UNSOUND = frozenset({"SOC-F03", "SOC-F10", "SOC-F12", "SOC-F14", "SOC-F18"})
"""Findings of values that the engine refuses, from which no figure can be calculated."""

SAID_BETTER: Mapping[str, frozenset[str]] = {
    "SOC-R50": frozenset({"SOC-C05", "SOC-C06"}),
    "SOC-R70": frozenset({"SOC-C12"}),
    "SOC-R71": frozenset({"SOC-C12"}),
    "SOC-C09": frozenset({"SOC-R56", "SOC-R57"}),
}
"""A finding, and those of which one makes it needless, since it tells the same with better figures."""

SAID_BETTER_OF_FLAG: Mapping[str, frozenset[str]] = {
    "SOC-R08": frozenset({"SOC-F07"}),
    "SOC-R30": frozenset({"SOC-F01", "SOC-F08", "SOC-F09"}),
    "SOC-R51": frozenset({"SOC-F01", "SOC-F08", "SOC-F09"}),
    "SOC-R56": frozenset({"SOC-F05", "SOC-F08"}),
    "SOC-R96": frozenset({"SOC-F10", "SOC-F12"}),
    "SOC-F07": frozenset({"SOC-R57"}),
    "SOC-C09": frozenset({"SOC-F05"}),
    "SOC-F19": frozenset({"SOC-F01", "SOC-F03", "SOC-F08", "SOC-F09"}),
}
"""The same where both must be about the same flag, since flag findings have one id for all flags."""

_BRANCH = re.compile(r"[0-9]{1,9}")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")


@dataclass(frozen=True)
class Knowledge:
    """What the checks know beside the plan: the rules, with those that are passed over, and flag schemas by version."""

    rules: RuleSet
    schemas: Mapping[str, FlagSchema]


@dataclass(frozen=True)
class Subject:
    """One launch, as the checks see it."""

    name: str
    model: Model
    host_class: HostClass
    gpus: Sequence[Mapping[str, Any]]
    """Facts of the instance's GPUs, as far as they are known."""
    gpu_count: int
    facts: Mapping[str, Any]
    image: str
    image_cuda: str | None
    vllm_version: str
    flags: Mapping[str, Any]
    """All flags but those that the plan makes up itself."""
    env: Mapping[str, Any]
    max_model_len: int | None
    port: int
    expose: str
    api_key: bool
    shm_size_bytes: int
    effort_aliases: bool
    mounts: Sequence[Mapping[str, Any]]
    """As the plan has them, each with its target and kind."""
    state_dir: str
    calibrations: Sequence[Any] = ()
    weights: Sequence[TensorGroup] = ()
    """The tensors of the model that the host holds; none where it holds none, or nobody asked it."""
    refused: Collection[str] = field(default_factory=frozenset)
    """Flags, and "driver", of which the plan itself has told a fault."""


@dataclass(frozen=True)
class Verdict:
    findings: tuple[Finding, ...] = ()
    """The worst first."""
    capacity: Mapping[str, Any] = field(default_factory=lambda: Capacity().as_plan())
    passed_over: frozenset[str] = frozenset()
    """The ids that had something to say and are passed over, told or not."""


def check(subject: Subject, knowledge: Knowledge) -> Verdict:
    """Everything that is wrong or worth knowing, and what the launch will hold."""
    schema = knowledge.schemas.get(subject.vllm_version)
    findings: list[Finding] = []
    if schema is None:
        findings.append(unchecked(subject.vllm_version, knowledge.schemas))
    else:
        findings += check_flags(subject.flags, subject.env, schema, knowledge.schemas)
    findings += unmounted_paths(subject.flags, subject.env, subject.mounts, subject.state_dir)
    findings = [finding for finding in findings if _flag(finding) not in subject.refused]
    if schema is not None:
        subject = replace(subject, flags=schema.in_own_names(subject.flags))
    context = _context(subject, schema)
    unsound = "tensor-parallel-size" in subject.refused or any(finding.id in UNSOUND for finding in findings)
    capacity = Capacity() if unsound else _capacity(subject, context)
    findings += capacity.findings
    context["capacity"] = capacity.as_plan()
    reasons = knowledge.rules.ignored
    findings = [finding.passed_over(reasons[finding.id]) if finding.id in reasons else finding for finding in findings]
    findings += evaluate(knowledge.rules, context)
    once = _once(findings)
    return Verdict(
        tuple(sorted(once, key=lambda finding: SEVERITIES.index(finding.severity))),
        context["capacity"],
        frozenset(finding.id for finding in findings if finding.id in reasons),
    )


def _flag(finding: Finding) -> str:
    """The flag that a finding is about, whichever way it is written."""
    name = finding.subject.partition(".")[0]
    return name[3:] if name.startswith("no-") else name


def _once(findings: Sequence[Finding]) -> list[Finding]:
    ids = {finding.id for finding in findings}
    of_flags = {(finding.id, _flag(finding)) for finding in findings}

    def needless(finding: Finding) -> bool:
        better = SAID_BETTER_OF_FLAG.get(finding.id, frozenset())
        return bool(SAID_BETTER.get(finding.id, frozenset()) & ids) or any(
            (other, _flag(finding)) in of_flags for other in better
        )

    return [finding for finding in findings if not needless(finding)]


def _capacity(subject: Subject, context: Mapping[str, Any]) -> Capacity:
    if subject.max_model_len is None:
        # The engine takes what fits, which no estimate may refuse.
        return Capacity()
    cpu = subject.host_class.kind == CPU
    gpu = None if cpu else gpu_of(subject.gpus, subject.host_class.name, subject.host_class.memory_mib)
    if not cpu and gpu is None:
        return Capacity()
    model = subject.model
    dimensions: Architecture | None = architecture(model.architecture, model.size_bytes, model.quantization)
    flags = dict(subject.flags)
    if RuleContext(context).value("effective", "prefix_caching") is False:
        # Off by default for hybrid models of older versions, which flags alone do not tell.
        flags.pop("enable-prefix-caching", None)
        flags["no-enable-prefix-caching"] = True
    if not 0 < _number(flags.get("gpu-memory-utilization", 1)) <= 1:
        # The engine refuses it, and no share of memory follows from it.
        return Capacity()
    products = [str(gpu["product"]) for gpu in subject.gpus if gpu.get("product")] or [*subject.host_class.products, ""]
    launch = launch_from(
        flags,
        subject.env,
        subject.vllm_version,
        subject.max_model_len,
        gpu.memory_mib if gpu else None,
        products[0],
        model.name,
    )
    calibration = choose(subject.calibrations, launch, dimensions, gpu.host_class) if dimensions and gpu else None
    return plan_capacity(dimensions, launch, gpu, calibration, subject.weights)


def _number(value: Any) -> float:
    """A flag's number, 0 where it is none."""
    return number_of(value) or 0


def _context(subject: Subject, schema: FlagSchema | None) -> dict[str, Any]:
    """What the rules may ask, but for capacity."""
    defaults = schema.defaults() if schema else {}
    engine = subject.facts.get("engine") or {}
    return {
        "model": _model(subject.model),
        "hardware": _hardware(subject),
        "driver": {} if "driver" in subject.refused else _driver(subject.facts),
        "engine": {
            "name": engine.get("name"),
            "version": engine.get("version"),
            "vllm_version": subject.vllm_version,
            "image": subject.image,
            "image_cuda": subject.image_cuda,
            "injection": "cdi",
        },
        "flags": {**defaults, **subject.flags},
        "env": dict(subject.env),
        "instance": {
            "name": subject.name,
            "port": subject.port,
            "expose": subject.expose,
            "api_key": subject.api_key,
            "network": "host",
            "ipc": "private",
            "shm_size_bytes": subject.shm_size_bytes,
            "effort_aliases": subject.effort_aliases,
        },
        "capacity": None,
    }


def _model(model: Model) -> dict[str, Any]:
    content = model.architecture
    layers, full = content.get("layers"), content.get("full_attention_layers")
    hybrid = bool(content.get("linear_attention")) or (full is not None and layers is not None and full != layers)
    return {
        "name": model.name,
        "architecture": content.get("class"),
        "family": model.family,
        "hybrid": hybrid if hybrid or layers else None,
        "moe": bool(content.get("moe")) if layers else None,
        "vision": "vision" in model.capabilities if model.capabilities else None,
        "mtp_layers": content.get("mtp_layers"),
        "native_context": model.max_position_embeddings,
        "attention_heads": content.get("attention_heads"),
        "kv_heads": content.get("kv_heads"),
        "quantization": model.quantization,
        "trust_remote_code_needed": model.trust_remote_code,
    }


def _hardware(subject: Subject) -> dict[str, Any]:
    host_class = subject.host_class
    if host_class.kind == CPU:
        return {"class": host_class.name, "gpus": 0}
    links = [
        link
        for link in subject.facts.get("links") or []
        if link.get("a") and link.get("b") and _LINK.fullmatch(link.get("link") or "")
    ]
    addresses = [str(gpu["pci_bus_id"]) for gpu in subject.gpus if gpu.get("pci_bus_id")]
    gpu = gpu_of(subject.gpus, host_class.name, host_class.memory_mib)
    on_host = subject.facts.get("gpus")
    return {
        "class": host_class.name,
        "family": host_class.family,
        "architecture": host_class.architecture,
        "compute_capability": float(host_class.compute_capability) if host_class.compute_capability else None,
        "memory_mib": gpu.memory_mib if gpu else None,
        "link": host_class.link,
        "worst_path": worst_path(links, addresses) if len(addresses) == subject.gpu_count else None,
        "fp8": host_class.fp8,
        "fp4": host_class.fp4,
        "peer_to_peer": host_class.peer_to_peer,
        "gpus": subject.gpu_count,
        "gpus_on_host": len(on_host) if on_host else None,
    }


def _driver(facts: Mapping[str, Any]) -> dict[str, Any]:
    driver = facts.get("driver") or {}
    branch = str(driver.get("version") or "").partition(".")[0]
    return {
        "version": driver.get("version"),
        "branch": int(branch) if _BRANCH.fullmatch(branch) else None,
        "flavour": driver.get("flavour"),
        "cuda": driver.get("cuda_version"),
    }
