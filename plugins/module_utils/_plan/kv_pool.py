# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a KV cache of so many bytes holds under one layout, in the arithmetic of vLLM. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._plan.kv_layout import (
    NULL_BLOCK_CHECKED_SINCE,
    KvLayout,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import Launch

NULL_BLOCKS = 1
"""The block that pads block tables and is never handed out."""


@dataclass(frozen=True)
class KvPool:
    """The blocks that *kv_bytes* make, on each GPU alike."""

    layout: KvLayout
    launch: Launch
    kv_bytes: int

    @property
    def blocks(self) -> int:
        """What vllm:cache_config_info calls num_gpu_blocks."""
        if self.launch.num_gpu_blocks_override is not None:
            return self.launch.num_gpu_blocks_override
        return max(0, self.kv_bytes) // self.layout.block_bytes

    @property
    def checked_blocks(self) -> int:
        """Those that one request must fit into, or the engine refuses to start."""
        reserved = NULL_BLOCKS if self.launch.version >= NULL_BLOCK_CHECKED_SINCE else 0
        return max(0, self.blocks - reserved)

    @property
    def blocks_needed(self) -> int:
        """The least number of blocks with which the engine starts."""
        needed = self.layout.blocks_of_request(self.launch.max_model_len)
        return needed + self.blocks - self.checked_blocks if self.blocks else needed

    @property
    def concurrency(self) -> float:
        """Requests of max_model_len that fit side by side."""
        return self.blocks / self.layout.blocks_of_request(self.launch.max_model_len)

    @property
    def tokens(self) -> int:
        return int(self.concurrency * self.launch.max_model_len)

    @property
    def longest_context(self) -> int:
        return min(self.layout.longest_request(self.checked_blocks), self.launch.max_model_len)

    @property
    def requests_with_states(self) -> int | None:
        """Requests that run side by side, each with its states and one block of attention."""
        if not self.layout.linear_groups:
            return None
        each = self.layout.state_blocks + self.layout.attention_groups
        return max(0, self.blocks - NULL_BLOCKS) // each

    @property
    def chunk(self) -> int | None:
        """Tokens of a prefill step: in mode "align" each ends on a block's boundary."""
        budget = self.launch.max_num_batched_tokens
        if budget is None or self.layout.mode != "align":
            return budget
        return budget // self.layout.block_tokens * self.layout.block_tokens

    @property
    def smallest_cacheable_prefix(self) -> int | None:
        """A shorter prefix never comes from the cache: one whole block, and one more that speculation drops."""
        if not self.launch.prefix_caching:
            return None
        return self.layout.block_tokens * (2 if self.launch.drops_last_block else 1)

    @property
    def contexts_with_checkpoints(self) -> int | None:
        if not self.launch.prefix_caching:
            return None
        chunk = self.chunk or self.layout.block_tokens
        each = self.layout.blocks_of_cached(self.launch.max_model_len, chunk, self.launch)
        return max(0, self.blocks - NULL_BLOCKS) // each
