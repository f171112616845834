# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is left of a GPU's memory for the KV cache: the budget less weights, activations, other allocations and graphs.

vLLM 0.19.1 to 0.26.0 compute it so (v1/worker/gpu_worker.py): ceil(total x gpu-memory-utilization) - weights - peak of
activations - non-torch memory - estimate of CUDA graphs. Weights follow from the checkpoint. The engine itself measures
the rest at each start: before the first start only similar starts tell it, and after it a calibration does. Private to
socle.inference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._plan.activations import activation_bytes
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.calibration import Calibration
from ansible_collections.socle.inference.plugins.module_utils._plan.cuda_graphs import graph_bytes
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch
from ansible_collections.socle.inference.plugins.module_utils._plan.weights import UNCERTAINTY_BYTES, Weights

MIB = 1024**2

LARGE_MIB = 64 * 1024
RESERVED_LARGE_MIB = 800
RESERVED_SMALL_MIB = 490
"""Memory that the driver keeps, where memory.reserved of nvidia-smi is not at hand. Seen: 616 MiB of an H200 (driver
580.159.04: 143,771 MiB, of which CUDA shows 139.80 GiB); 79.22 GiB shown of 81,920 MiB (vllm-project/vllm#10511), so
799; 31.37 GiB of an RTX 5090's 32,607 MiB (vllm-project/vllm#14452), so 484."""

NON_TORCH_GIB = 0.25
"""0.25 GiB on one H200 (vLLM 0.26.0); 0.13 are left over in the figures of two A800 80GB."""

LARGEST_ERROR_GIB = 0.9
UNCALIBRATED_GIB = 2.0
"""How far the estimate was off at most in the five starts that it can be compared with (27B hybrid under vLLM 0.26.0,
four on one H200, one on two A800), and the bound that is taken for all others, more than twice that."""

CALIBRATED_GIB = 1.0
"""The same after a start on that host class that differs in utilisation, length and sequences alone."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as the planner sees it; all GPUs of an instance are alike."""

    memory_mib: int
    """memory.total of nvidia-smi, or memory_mib of the host class."""
    reserved_mib: int | None = None
    """memory.reserved of nvidia-smi."""
    free_mib: int | None = None
    """What was free when somebody looked, if that was with no engine of ours on it."""
    host_class: str = ""

    @property
    def total_bytes(self) -> int:
        """What CUDA shows, which gpu-memory-utilization is a fraction of; never nothing, whatever facts say."""
        reserved = self.reserved_mib
        if reserved is None:
            reserved = RESERVED_LARGE_MIB if self.memory_mib >= LARGE_MIB else RESERVED_SMALL_MIB
        return max(1, self.memory_mib - reserved) * MIB


@dataclass(frozen=True)
class Memory:
    """One GPU's memory, divided. All in bytes."""

    total: int
    requested: int
    weights: int
    weights_source: str
    weights_shrink: bool
    """See Weights.shrinks."""
    activation: int
    non_torch: int
    graphs: int
    """Estimate of what CUDA graphs take, counted or not."""
    kv: int
    """What is left for the KV cache; negative when there is not enough."""
    uncertainty: int
    calibrated: bool
    headroom: int
    """What the engine leaves alone: total less budget, and less graphs where they are not part of it."""

    @property
    def beside_kv(self) -> int:
        return self.requested - self.kv


def requested_bytes(total: int, utilization: float) -> int:
    return math.ceil(total * utilization)


def divide(
    architecture: Architecture,
    launch: Launch,
    gpu: Gpu,
    weights: Weights | None,
    calibration: Calibration | None,
) -> Memory | None:
    """One GPU's memory under a launch; None when the weights are not known and no start told them.

    *calibration* must be one that fits (Calibration.fits); it replaces the estimates of all that is not KV cache.
    """
    activation, graphs = activation_bytes(architecture, launch), graph_bytes(launch)
    non_torch = int(NON_TORCH_GIB * GIB)
    total = gpu.total_bytes
    uncertainty = int(UNCALIBRATED_GIB * GIB)
    if calibration is not None:
        total = calibration.total_bytes if gpu.reserved_mib is None else total
        weights = calibration.weights(weights, launch)
        activation, non_torch, graphs = calibration.reserve(architecture, launch)
        uncertainty = int((UNCALIBRATED_GIB if calibration.differences(launch) else CALIBRATED_GIB) * GIB)
        if weights is not None and weights.shrinks:
            uncertainty += weights.uncertainty_bytes
    elif weights is not None:
        uncertainty += weights.uncertainty_bytes - UNCERTAINTY_BYTES["boot"]
    if weights is None:
        return None
    requested = requested_bytes(total, launch.gpu_memory_utilization)
    counted = graphs if launch.graphs_counted else 0
    left = requested - weights.bytes_per_gpu - activation - non_torch - counted
    explicit = launch.kv_cache_memory_bytes
    outside = total - requested
    if explicit is not None:
        outside = total - weights.bytes_per_gpu - activation - non_torch - counted - explicit
    return Memory(
        total=total,
        requested=requested,
        weights=weights.bytes_per_gpu,
        weights_source=weights.source,
        weights_shrink=weights.shrinks,
        activation=activation,
        non_torch=non_torch,
        graphs=graphs,
        kv=left if explicit is None else explicit,
        uncertainty=uncertainty if explicit is None else 0,
        calibrated=calibration is not None,
        headroom=outside - (graphs - counted),
    )
