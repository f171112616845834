# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CUDA graphs a launch captures, and what they take of a GPU's memory. Private to socle.inference."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

GRAPH_GIB = 0.0106
"""For each graph where both kinds are captured: on one H200 the 27B hybrid under vLLM 0.26.0 was estimated at 0.72 GiB
for 42 + 26 graphs, 0.23 for 14 + 8, and 0.05 for 2 + 2."""

PIECEWISE_ALONE_GIB = 0.0147
"""For each graph where only pieces are captured, of the same model: 0.75 GiB for 51 of them on each of two A800 (vLLM
0.26.0), 0.22 GiB for 15 with FP8 weights (a public log of a start with 4 speculative tokens and 10 sequences)."""

GRAPH_FLOOR_GIB = 0.05

LARGEST = 512
_STEPS = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST + 1, 16))
"""Batch sizes, in tokens, that vLLM captures by default (config/vllm.py of 0.26.0)."""


def captured_graphs(launch: Launch) -> tuple[int, int]:
    """(graphs of pieces between attention layers, full graphs of a decoding step).

    As vLLM 0.26.0 counts them: sizes up to twice the tokens that max-num-seqs sequences bring to a step of decoding,
    rounded up to whole requests where full graphs are captured; full ones up to those tokens.
    """
    if launch.enforce_eager or launch.cpu:
        return 0, 0
    of_request = 1 + launch.speculative_tokens
    tokens = (launch.max_num_seqs or LARGEST) * of_request
    largest = min(2 * tokens, LARGEST, launch.max_num_batched_tokens or LARGEST)
    sizes = [size for size in _STEPS if size <= largest]
    if not launch.full_graphs:
        return len(sizes), 0
    rounded = {-(-size // of_request) * of_request for size in sizes}
    fitting = [size for size in rounded if size <= sizes[-1]] or [of_request]
    return len(fitting), sum(1 for size in fitting if size <= tokens)


def graph_bytes(launch: Launch) -> int:
    """What the engine will estimate for its graphs."""
    pieces, full = captured_graphs(launch)
    if not pieces:
        return 0
    each = GRAPH_GIB if full else PIECEWISE_ALONE_GIB
    return int(max(GRAPH_FLOOR_GIB, (pieces + full) * each) * GIB)
