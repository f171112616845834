# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The peak of a GPU's working memory, by the two steps that vLLM profiles: a full prefill, and sampling for everyone.

Private to socle.inference.
"""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import Architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

REFERENCE_TOKENS = 8192
REFERENCE_HIDDEN = 5120
WHOLE_GIB = 2.00
SHARED_GIB = 0.84
"""Peak of a prefill of 8,192 tokens at hidden size 5,120: what does not depend on the tokens, and what grows with them
and is divided by tensor parallelism. An RTX 5090 with the 27B hybrid: 2.84 GiB at 8,192 batched tokens, 2.42 at 4,096,
2.32 at 3,072, 2.21 at 2,048 (vllm-project/vllm#52872). One H200: 2.93 and, with the vision tower, 1.92 GiB at 8,192;
each of two A800: 2.31 (all vLLM 0.26.0). That both parts grow with the hidden size is an assumption."""

FLOOR_GIB = 0.3

EAGER_HYBRID_FACTOR = 17.3
"""What grows with the tokens, without compilation: the same model needed 20.46 GiB beside weights and KV cache on an
H200 at 10,240 batched tokens (vLLM 0.26.0, enforce-eager). One measurement."""

SAMPLING_COPIES = 3.5
"""Copies of the logits (sequences x vocabulary, 4 bytes each) that sampling holds at its peak, on every GPU: as
computed, as float32, masked, and as probabilities. Read in vLLM 0.26.0 (v1/sample), not measured; it decides only where
max-num-seqs is several hundred, as it is by default on large GPUs."""


def activation_bytes(architecture: Architecture, launch: Launch) -> int:
    return int(max(FLOOR_GIB * GIB, _prefill(architecture, launch), _sampling(architecture, launch)))


def _prefill(architecture: Architecture, launch: Launch) -> float:
    tokens = (launch.max_num_batched_tokens or REFERENCE_TOKENS) / REFERENCE_TOKENS
    growing = SHARED_GIB * tokens / launch.tensor_parallel
    if launch.enforce_eager and architecture.hybrid:
        growing *= EAGER_HYBRID_FACTOR
    return (WHOLE_GIB + growing) * (architecture.hidden_size or REFERENCE_HIDDEN) / REFERENCE_HIDDEN * GIB


def _sampling(architecture: Architecture, launch: Launch) -> float:
    return SAMPLING_COPIES * (launch.max_num_seqs or 0) * (architecture.vocab_size or 0) * 4
