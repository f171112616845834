# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a start that became ready to the calibration in its record, and from records to the one that a plan uses.

Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture, architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.calibration import (
    SCHEMA,
    Boot,
    Calibration,
    calibrate,
    calibration_from,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.gpu_memory import Gpu
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import Launch, launch_from
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems

_TEXT = schema.nullable(schema.text())

_CONTENT = schema.record(
    {
        "schema": schema.choice(SCHEMA),
        "host_class": schema.text(),
        "model": schema.text(),
        "layers": schema.whole(1),
        "hidden_size": schema.nullable(schema.whole(1)),
        "content_id": schema.text(),
        "launch": schema.record(
            {
                "mtp": schema.truth(),
                "dtype": _TEXT,
                "quantization": _TEXT,
                "tensor_parallel": schema.whole(1),
                "pipeline_parallel": schema.whole(1),
                "enforce_eager": schema.truth(),
                "language_model_only": schema.truth(),
                "cpu": schema.truth(),
                "vllm_version": schema.text(),
                "max_num_batched_tokens": schema.nullable(schema.whole(1)),
                "kv_cache_dtype": schema.text(),
                "speculative_method": _TEXT,
                "speculative_tokens": schema.whole(0),
                "max_model_len": schema.whole(1),
                "gpu_memory_utilization": schema.number(),
                "max_num_seqs": schema.nullable(schema.whole(1)),
                "graphs_counted": schema.truth(),
                "full_graphs": schema.truth(),
            },
            ["vllm_version", "max_model_len", "tensor_parallel"],
        ),
        "total_bytes": schema.whole(1),
        "weights_bytes": schema.whole(0),
        "other_bytes": schema.whole(),
        "graphs_bytes": schema.whole(0),
        "activation_bytes": schema.nullable(schema.whole(0)),
    },
    [
        "schema",
        "host_class",
        "model",
        "layers",
        "hidden_size",
        "launch",
        "total_bytes",
        "weights_bytes",
        "other_bytes",
        "graphs_bytes",
    ],
)
"""The content of a record of kind calibration, which is read without trust."""


def is_calibration(content: Any) -> bool:
    problems = Problems()
    _CONTENT(content, "calibration", problems)
    return not problems.sentences


def choose(contents: Iterable[Any], launch: Launch, wanted: Architecture, host_class: str) -> Calibration | None:
    """The first of *contents* (own host first, then newest first) that says something about *launch*.

    One that differs in nothing that matters goes before those that differ. What is no calibration is passed over.
    """
    fitting = [
        found
        for found in (calibration_from(content) for content in contents if is_calibration(content))
        if found.fits(launch, wanted, host_class)
    ]
    same_model = [found for found in fitting if found.model == launch.model]
    for candidates in (same_model, fitting):
        for found in candidates:
            if not found.differences(launch):
                return found
        if candidates:
            return candidates[0]
    return None


def gpu_of(gpus: Iterable[Mapping[str, Any]], host_class: str, memory_mib: int | None = None) -> Gpu | None:
    """The scarcest of an instance's GPUs by their facts; *memory_mib* is that of the class, where facts do not tell.

    Free memory counts only where what holds the rest is surely no engine: one of ours gives it back when the new one
    starts, and in a list of processes it may be called python.
    """
    known = list(gpus)
    sizes = [gpu["memory_mib"] for gpu in known if gpu.get("memory_mib")] or ([memory_mib] if memory_mib else [])
    if not sizes:
        return None
    details = [gpu.get("memory") or {} for gpu in known]
    reserved = [detail["reserved_mib"] for detail in details if isinstance(detail.get("reserved_mib"), int)]
    free = [
        detail["free_mib"]
        for gpu, detail in zip(known, details)
        if isinstance(detail.get("free_mib"), int) and _foreign(gpu.get("processes"))
    ]
    return Gpu(min(sizes), max(reserved) if reserved else None, min(free) if free else None, host_class)


def _foreign(processes: Any) -> bool:
    """Whether there are processes, and none that may be an engine of ours."""
    if not isinstance(processes, list) or not processes:
        return False
    names = [str(each.get("name") or "vllm").lower() for each in processes if isinstance(each, dict)]
    return bool(names) and not any("vllm" in name or "python" in name for name in names)


def gpu_as_plan(gpus: Iterable[Mapping[str, Any]], host_class: str, memory_mib: int | None) -> dict[str, Any] | None:
    """The key ``gpu`` of a plan: what a record of its start needs to know of the GPUs; None without any."""
    known = list(gpus)
    found = gpu_of(known, host_class, memory_mib)
    if found is None:
        return None
    product = next((gpu["product"] for gpu in known if gpu.get("product")), None)
    return {"product": product, "memory_mib": found.memory_mib, "reserved_mib": found.reserved_mib}


def calibration_of(results: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a start taught, as the content of a record; None where it told too little, or ran on a processor.

    *results* are those of the record of a deployment that became ready, *plan* is what was started.
    """
    milestones = results.get("milestones") or {}
    weights = (milestones.get("weights") or {}).get("gib")
    kv = (milestones.get("kv_memory") or {}).get("gib")
    gpu, model = plan.get("gpu"), plan.get("model") or {}
    length = results.get("max_model_len") or plan.get("max_model_len")
    dimensions = architecture(model.get("architecture") or {}, model.get("size_bytes"), model.get("quantization"))
    if not gpu or dimensions is None or not length:
        return None
    if not isinstance(weights, (int, float)) or not isinstance(kv, (int, float)):
        return None
    flags = {name: source["value"] for name, source in plan["sources"].items()}
    launch = launch_from(
        flags, plan["env"], plan["vllm_version"], length, gpu["memory_mib"], gpu["product"] or "", model["name"]
    )
    if launch.kv_cache_memory_bytes is not None or launch.uncounted:
        # The log then tells what was asked for, and nothing of what else the memory holds, or something is elsewhere.
        return None
    total = Gpu(gpu["memory_mib"], gpu["reserved_mib"]).total_bytes
    boot = Boot(weights_gib=weights, kv_gib=kv, blocks=(results.get("kv_cache") or {}).get("num_gpu_blocks"))
    try:
        found = calibrate(boot, dimensions, launch, plan["host_class"], total, plan.get("content_id") or "")
    except PlanError:
        # Log and metrics contradict each other, which is no reason to fail a deployment.
        return None
    content = found.as_record()
    return content if is_calibration(content) else None
