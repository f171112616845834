# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How vLLM cuts KV memory into blocks: tokens of a block, bytes of a page, groups of layers, blocks of a request.

Hybrid models keep the keys and values of their attention layers and the states of their recurrent layers in one pool
of equal pages, so a page is as large as a state, and the tokens of a block follow from that. Read in
v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, platforms/interface.py and mamba_utils.py of vLLM 0.19.1, 0.23.0,
0.26.0 and 0.32.0. Private to socle.inference.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import (
    DTYPE_BYTES,
    Architecture,
    LinearAttention,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import (
    FP8,
    RETENTION_SINCE,
    WITHOUT_LAYERS,
    Launch,
)

GPU_BLOCK = 16
CPU_BLOCK = 128
"""Tokens that a block of the attention kernels is a multiple of, where block-size is not set."""

NEAR = 1.5
"""When there are fewer layers of one kind than this times the other, groups are as large as the larger kind."""

TOKENS_BY_CONCURRENCY_SINCE = (0, 20)
"""From here on the log's tokens are concurrency x max_model_len; before blocks // groups x block, which tells hybrid
models about a quarter of what fits."""

BLOCK_SIZE_IS_UNIT_SINCE = (0, 20)
"""From some version after 0.19.1 and up to 0.23.0 on, the block of a hybrid model is a multiple of block-size."""

NULL_BLOCK_CHECKED_SINCE = (0, 27)
"""From some version after 0.26.0 and up to 0.32.0 on, the check at the start leaves out the one block that is never
handed out. The first of them is taken, so that nothing is promised that might be refused."""


class Unknown(Exception):
    """Why a layout cannot be told, as the end of a sentence."""


def ceil_div(amount: int, unit: int) -> int:
    return -(-amount // unit)


@dataclass(frozen=True)
class KvLayout:
    """One GPU's share of a KV cache, as vLLM lays it out."""

    block_tokens: int
    page_bytes: int
    """One block of one layer."""
    state_bytes: int
    """What a recurrent layer keeps in a page; the rest of the page is padding. 0 without such layers."""
    layers_per_group: int
    attention_groups: int
    linear_groups: int
    padding_layers: int
    states: int
    """Pages that one running request holds in each group of recurrent layers."""
    mode: str
    """How recurrent states are cached: "align" (a checkpoint at block boundaries), "none", or "" without such layers.
    """

    @property
    def block_bytes(self) -> int:
        """One block of the pool: a page of each layer of a group."""
        return self.page_bytes * self.layers_per_group

    @property
    def groups(self) -> int:
        return self.attention_groups + self.linear_groups

    @property
    def state_blocks(self) -> int:
        """Blocks of a running request that do not grow with its length."""
        return self.linear_groups * self.states

    def blocks_of_request(self, tokens: int) -> int:
        return self.attention_groups * ceil_div(tokens, self.block_tokens) + self.state_blocks

    def longest_request(self, blocks: int) -> int:
        """Tokens of the longest request that *blocks* hold; 0 when they do not even hold its states."""
        return max(0, (blocks - self.state_blocks) // max(1, self.attention_groups)) * self.block_tokens

    def blocks_of_cached(self, tokens: int, chunk: int, launch: Launch) -> int:
        """Blocks that a finished context of *tokens* keeps, so that it can be continued without computing it again.

        In mode "align" a state is kept at the end of each chunk of the prefill up to vLLM 0.28, and from 0.29 on only
        at the latest boundary (read in 0.32.0's documentation of prefix-cache-retention-interval), for which what a
        running request holds is taken.
        """
        attention = self.attention_groups * ceil_div(tokens, self.block_tokens)
        if self.mode != "align":
            return attention + self.state_blocks
        interval = launch.retention_interval
        if launch.version >= RETENTION_SINCE and interval == 0:
            return attention + self.state_blocks
        step = max(chunk, interval) if interval > 0 else chunk
        return attention + self.linear_groups * ceil_div(tokens, max(step, self.block_tokens))


def state_bytes(linear: LinearAttention, launch: Launch, element_bytes: int = 2) -> int:
    """Bytes of one layer's recurrent state on one GPU: the window of the convolution, and the state matrix.

    The window has the dtype of the model, of *element_bytes*, unless a flag says another.
    """
    parts = launch.tensor_parallel
    window = linear.conv_dim // parts * (linear.conv_kernel - 1 + launch.speculative_tokens)
    matrix = linear.value_heads // parts * linear.value_head_dim * linear.key_head_dim
    of_window = DTYPE_BYTES[launch.convolution_dtype] if launch.convolution_dtype else element_bytes
    return window * of_window + matrix * DTYPE_BYTES[launch.state_dtype or linear.state_dtype]


def kv_element_bytes(architecture: Architecture, kv_cache_dtype: str) -> int:
    """Bytes of one element of keys and values; raises Unknown for formats that pack them otherwise."""
    if kv_cache_dtype == "auto":
        return architecture.element_bytes
    if kv_cache_dtype in DTYPE_BYTES:
        return DTYPE_BYTES[kv_cache_dtype]
    if kv_cache_dtype in FP8:
        return 1
    raise Unknown(f"the layout of kv-cache-dtype {kv_cache_dtype} is not known")


def speculation_layers(architecture: Architecture, launch: Launch) -> int:
    """Attention layers that speculation adds to the cache; raises Unknown for drafters of another checkpoint."""
    if not launch.speculative_tokens or launch.speculative_method in WITHOUT_LAYERS:
        return 0
    if launch.mtp:
        return max(1, architecture.mtp_layers)
    raise Unknown(f"the layers that speculation by {launch.speculative_method or 'a draft model'} adds are not known")


def state_mode(launch: Launch) -> str:
    """The mode of the recurrent cache. Gated DeltaNet has no "all": vLLM falls back to "align" with prefix caching."""
    return "align" if launch.prefix_caching else "none"


def kv_layout(architecture: Architecture, launch: Launch) -> KvLayout:
    """The layout of a launch; raises Unknown where it is not known."""
    if launch.pipeline_parallel > 1:
        raise Unknown("pipeline parallelism spreads the layers in a way that is not calculated here")
    smallest = launch.block_size or (CPU_BLOCK if launch.cpu else GPU_BLOCK)
    heads = max(1, architecture.kv_heads // launch.tensor_parallel)
    token = 2 * heads * architecture.head_dim * kv_element_bytes(architecture, launch.kv_cache_dtype)
    attention = architecture.full_attention_layers + speculation_layers(architecture, launch)
    linear = architecture.linear
    if linear is None:
        if architecture.full_attention_layers != architecture.layers:
            raise Unknown("some of its layers are neither full attention nor Gated DeltaNet")
        return KvLayout(smallest, smallest * token, 0, attention, 1, 0, 0, 0, "")
    state = state_bytes(linear, launch, architecture.element_bytes)
    # 0.19.1 rounds to the kernel's 16 tokens whatever block-size says, and then takes the larger of both.
    unit = smallest if launch.version >= BLOCK_SIZE_IS_UNIT_SINCE else GPU_BLOCK
    block = max(smallest, unit * ceil_div(state, unit * token))
    fewer, more = sorted((attention, linear.layers))
    size = more if more < fewer * NEAR else fewer
    attention_groups, linear_groups = ceil_div(attention, size), ceil_div(linear.layers, size)
    mode = state_mode(launch)
    return KvLayout(
        block_tokens=block,
        page_bytes=block * token,
        state_bytes=state,
        layers_per_group=size,
        attention_groups=attention_groups,
        linear_groups=linear_groups,
        padding_layers=(attention_groups + linear_groups) * size - attention - linear.layers,
        states=(2 if mode == "align" else 1) + launch.speculative_tokens,
        mode=mode,
    )
