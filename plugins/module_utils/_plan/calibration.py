# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one start of an engine taught about its host class: its log and metrics become a record of kind calibration.

Pure: the log is lines, the metrics are text. Lines were seen in vLLM 0.26.0 (H200) and read in the sources of 0.19.1,
0.23.0 and 0.32.0. Private to socle.inference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.activations import activation_bytes
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.cuda_graphs import graph_bytes
from ansible_collections.socle.inference.plugins.module_utils._plan.kv_layout import KvLayout, Unknown, kv_layout
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch
from ansible_collections.socle.inference.plugins.module_utils._plan.weights import (
    UNCERTAINTY_BYTES,
    Weights,
    as_loaded,
)

KIND = "calibration"
SCHEMA = "socle.calibration/1"

ROUNDING = 0.005
"""The log rounds GiB to two digits: what it calls 45.99 lies this far on either side."""

_WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB|model weights take ([\d.]+) ?GiB")
_KV = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
_TOTAL = re.compile(r"Free memory on device[^(]*\(([\d.]+)/([\d.]+) GiB\) on startup")
_DESIRED = re.compile(r"Desired GPU memory utilization is \(([\d.]+), ([\d.]+) GiB\)")
_USAGE = re.compile(
    r"Actual usage is ([\d.]+) GiB for weights?, ([\d.]+) GiB for peak activation, ([\d.]+) GiB for non-torch memory"
)
_GRAPHS = re.compile(r"Estimated CUDA graph memory: ([\d.]+) GiB")
_TOKENS = re.compile(r"[GC]PU KV cache size: ([\d,]+) tokens")
_BLOCK = re.compile(r"Setting attention block size to (\d+) tokens")

_SAME = ("tensor_parallel", "pipeline_parallel", "enforce_eager", "language_model_only", "cpu")
"""Settings in which a start must be like the planned one, or it says nothing about it."""

_WEIGHED = ("mtp", "dtype", "quantization")
"""Settings by which the weights of a model differ; a record of a start that had none of them leaves them out."""

_CLOSE = ("vllm_version", "max_num_batched_tokens", "kv_cache_dtype", "speculative_method", "speculative_tokens")
"""Settings in which it should be; what differs is told."""


_SCALED = ("max_model_len", "gpu_memory_utilization", "max_num_seqs", "graphs_counted", "full_graphs")
"""Settings whose effect is computed."""


@dataclass(frozen=True)
class Boot:
    """The figures of one start's log, each None where the log does not have it. Several ranks: the worst of each."""

    weights_gib: float | None = None
    kv_gib: float | None = None
    total_gib: float | None = None
    requested_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    graphs_gib: float | None = None
    kv_tokens: int | None = None
    block_tokens: int | None = None
    blocks: int | None = None
    """num_gpu_blocks of vllm:cache_config_info."""


def read_boot(lines: Iterable[str], metrics: str = "") -> Boot:
    """The figures of a start. Lines that say nothing of memory are passed over."""
    found: dict[str, list[float]] = {}

    def add(name: str, value: str | None) -> None:
        if value:
            found.setdefault(name, []).append(float(value.replace(",", "")))

    for line in lines:
        for pattern, names in (
            (_WEIGHTS, ("weights", "weights")),
            (_KV, ("kv",)),
            (_TOTAL, ("free", "total")),
            (_DESIRED, ("utilization", "requested")),
            (_USAGE, ("", "activation", "non_torch")),
            (_GRAPHS, ("graphs",)),
            (_TOKENS, ("tokens",)),
            (_BLOCK, ("block",)),
        ):
            match = pattern.search(line)
            if match:
                for name, value in zip(names, match.groups()):
                    if name:
                        add(name, value)
    tokens, block = _least(found, "tokens"), _least(found, "block")
    return Boot(
        weights_gib=_most(found, "weights"),
        kv_gib=_least(found, "kv"),
        total_gib=_least(found, "total"),
        requested_gib=_least(found, "requested"),
        activation_gib=_most(found, "activation"),
        non_torch_gib=_most(found, "non_torch"),
        graphs_gib=_most(found, "graphs"),
        kv_tokens=None if tokens is None else int(tokens),
        block_tokens=None if block is None else int(block),
        blocks=_blocks(metrics),
    )


def _least(found: Mapping[str, list[float]], name: str) -> float | None:
    return min(found[name]) if name in found else None


def _most(found: Mapping[str, list[float]], name: str) -> float | None:
    return max(found[name]) if name in found else None


def _blocks(metrics: str) -> int | None:
    counts = [
        int(sample.labels["num_gpu_blocks"])
        for sample in exposition.parse(metrics)
        if sample.name == "vllm:cache_config_info" and sample.labels.get("num_gpu_blocks", "").isdigit()
    ]
    return min(counts) if counts else None


def kv_bytes_range(gib: float | None, blocks: int | None, layout: KvLayout) -> tuple[int, int]:
    """The least and most bytes of KV cache that agree with what the log rounds to *gib*, and with *blocks*.

    A log alone leaves up to one block open; the number of blocks narrows that. Raises PlanError when they contradict.
    """
    least, most = 0, 2**63
    if gib is not None:
        least, most = math.ceil((gib - ROUNDING) * GIB), math.floor((gib + ROUNDING) * GIB)
    if blocks is not None:
        least, most = max(least, blocks * layout.block_bytes), min(most, (blocks + 1) * layout.block_bytes - 1)
    if least > most:
        raise PlanError(
            f"the log tells {gib} GiB for the KV cache and the metrics {blocks} blocks, which at {layout.block_bytes} "
            "bytes a block contradict each other; take log and metrics of the same start, and the flags it had."
        )
    return least, most


@dataclass(frozen=True)
class Calibration:
    """What a start taught, in bytes per GPU."""

    host_class: str
    model: str
    layers: int
    hidden_size: int | None
    launch: Mapping[str, Any]
    """The settings of that start that matter here, by the names of Launch."""
    total_bytes: int
    weights_bytes: int
    other_bytes: int
    """All of the budget that was neither weights nor KV cache: activations, non-torch memory, counted graphs."""
    graphs_bytes: int
    """The engine's own estimate of its graphs, in other_bytes or not."""
    activation_bytes: int | None = None
    content_id: str = ""

    def differences(self, launch: Launch) -> list[str]:
        """Settings of _CLOSE in which the start was different, so that its figures are scaled or assumed."""
        return [name for name in _CLOSE if self.launch.get(name) != getattr(launch, name)]

    def fits(self, launch: Launch, architecture: Architecture, host_class: str) -> bool:
        """Whether that start says anything about this launch: another checkpoint of the same dimensions does."""
        return (
            self.host_class == host_class
            and self.hidden_size == architecture.hidden_size
            and self.layers == architecture.layers
            and all(self.launch.get(name) == getattr(launch, name) for name in _SAME)
        )

    def weights(self, computed: Weights | None, launch: Launch) -> Weights | None:
        """Those of the start where this launch loads the same ones, else what was computed."""
        own = Weights(self.weights_bytes, "boot", UNCERTAINTY_BYTES["boot"])
        if self.model != launch.model:
            return computed
        differing = [name for name in _WEIGHED if (self.launch.get(name) or None) != (getattr(launch, name) or None)]
        if not differing:
            return own
        # The one layer for speculation is little, other formats are not.
        return own if differing == ["mtp"] and computed is None else computed

    def reserve(self, architecture: Architecture, launch: Launch) -> tuple[int, int, int]:
        """(activations, non-torch memory, graphs) of a launch.

        What the engine measured is kept, and changed by what the estimates of both launches differ in.
        """
        known = {name: value for name, value in self.launch.items() if name not in _WEIGHED and value is not None}
        before = Launch(**{"full_graphs": launch.full_graphs, **known})
        graphs_before = graph_bytes(before)
        # A record may not tell the graphs, which are then among the rest.
        measured_graphs = self.graphs_bytes or (min(graphs_before, self.other_bytes) if before.graphs_counted else 0)
        measured = self.other_bytes - (measured_graphs if before.graphs_counted else 0)
        activation = min(measured, measured if self.activation_bytes is None else self.activation_bytes)
        other = measured - activation
        activation += activation_bytes(architecture, launch) - activation_bytes(architecture, before)
        graphs = max(0, measured_graphs + graph_bytes(launch) - graphs_before)
        return max(0, activation), other, graphs

    def as_record(self) -> dict[str, Any]:
        """The content of a record of kind calibration."""
        return {
            "schema": SCHEMA,
            "host_class": self.host_class,
            "model": self.model,
            "layers": self.layers,
            "hidden_size": self.hidden_size,
            "content_id": self.content_id,
            "launch": dict(self.launch),
            "total_bytes": self.total_bytes,
            "weights_bytes": self.weights_bytes,
            "other_bytes": self.other_bytes,
            "graphs_bytes": self.graphs_bytes,
            "activation_bytes": self.activation_bytes,
        }


def calibration_from(record: Mapping[str, Any]) -> Calibration:
    """From the content of a record; raises PlanError for what is none."""
    if record.get("schema") != SCHEMA:
        raise PlanError(
            f"a calibration must be of schema {SCHEMA}, but is of {record.get('schema')}; start the engine again."
        )
    return Calibration(**{name: value for name, value in record.items() if name != "schema"})


def calibrate(
    boot: Boot,
    architecture: Architecture,
    launch: Launch,
    host_class: str,
    total_bytes: int | None = None,
    content_id: str = "",
) -> Calibration:
    """What a start of *launch* taught. *total_bytes* stands in for a log that does not tell the GPU's memory.

    Raises PlanError, naming what is missing, for the log of a start that did not get as far as its KV cache.
    """
    weights, kv = boot.weights_gib, boot.kv_gib
    if boot.total_gib is not None:
        total_bytes = int(boot.total_gib * GIB)
    missing = [
        name
        for name, value in (
            ("'Model loading took ... GiB'", weights),
            ("'Available KV cache memory: ... GiB'", kv),
            ("'Free memory on device (.../... GiB)'", total_bytes),
        )
        if value is None
    ]
    if weights is None or kv is None or total_bytes is None:
        raise PlanError(
            f"the log of {launch.model} on {host_class} lacks {', '.join(missing)}, without which nothing can be "
            "calibrated; give the whole log of a start that became ready."
        )
    kv_bytes = int(kv * GIB)
    if boot.blocks is not None:
        try:
            least, most = kv_bytes_range(kv, boot.blocks, kv_layout(as_loaded(architecture, launch), launch))
            kv_bytes = min(max(kv_bytes, least), most)
        except Unknown:
            pass
    requested = boot.requested_gib
    requested_bytes = int(total_bytes * launch.gpu_memory_utilization) if requested is None else int(requested * GIB)
    graphs = int((boot.graphs_gib or 0.0) * GIB)
    activation = None if boot.activation_gib is None else int(boot.activation_gib * GIB)
    return Calibration(
        host_class=host_class,
        model=launch.model,
        layers=architecture.layers,
        hidden_size=architecture.hidden_size,
        launch={name: getattr(launch, name) for name in (*_WEIGHED, *_SAME, *_CLOSE, *_SCALED)},
        total_bytes=total_bytes,
        weights_bytes=int(weights * GIB),
        other_bytes=requested_bytes - int(weights * GIB) - kv_bytes,
        graphs_bytes=graphs,
        activation_bytes=activation,
        content_id=content_id,
    )
