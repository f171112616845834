# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What CUDA graphs take of a GPU's memory, by the batch sizes that are captured. Private to socle.inference."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

GRAPH_GIB = 0.015
GRAPH_FLOOR_GIB = 0.05
"""For each captured batch size, and at least: 0.75 GiB for 51 sizes on two A800 80GB, 0.05 GiB for 2 sizes on one H200
(both the 27B hybrid under vLLM 0.26.0)."""

LARGEST = 512
_STEPS = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST + 1, 16))
"""Batch sizes that vLLM captures by default, as the configuration in its log lists them."""


def captured_sizes(launch: Launch) -> int:
    """How many batch sizes get a graph: up to the tokens that max-num-seqs sequences bring to a step of decoding."""
    if launch.enforce_eager or launch.cpu:
        return 0
    tokens = (launch.max_num_seqs or LARGEST) * (1 + launch.speculative_tokens)
    return sum(1 for size in _STEPS if size <= tokens)


def graph_bytes(launch: Launch) -> int:
    sizes = captured_sizes(launch)
    return int(max(GRAPH_FLOOR_GIB, sizes * GRAPH_GIB) * GIB) if sizes else 0
