# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Activations and CUDA graphs as engines on several GPUs logged them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.socle.inference.plugins.module_utils._plan.activations import activation_bytes
from ansible_collections.socle.inference.plugins.module_utils._plan.cuda_graphs import captured_graphs, graph_bytes
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import GIB, Launch

from .models import H200_EAGER, H200_MTP2, H200_VISION_70, H200_VISION_90, S3, hybrid


@pytest.mark.parametrize(
    ("sequences", "tokens", "pieces", "full"),
    [
        pytest.param(2, 2, 2, 2, id="H200"),
        pytest.param(256, 0, 51, 35, id="log of 0.19 without speculation"),
        pytest.param(128, 0, 35, 19, id="128 sequences"),
        pytest.param(32, 0, 11, 7, id="32 sequences"),
        pytest.param(96, 3, 49, 41, id="three tokens, 96 sequences"),
        pytest.param(8, 6, 15, 8, id="six tokens, 8 sequences"),
        pytest.param(4, 5, 7, 4, id="five tokens, 4 sequences"),
        pytest.param(48, 3, 41, 25, id="three tokens, 48 sequences"),
    ],
)
def test_graphs_are_counted_as_logs_count_them(sequences: int, tokens: int, pieces: int, full: int) -> None:
    """'Profiling CUDA graph memory: PIECEWISE=2 (largest=6), FULL=2 (largest=6)' and others like it."""
    launch = Launch("0.26.0", 4096, max_num_seqs=sequences, speculative_tokens=tokens)
    assert captured_graphs(launch) == (pieces, full)


@pytest.mark.parametrize(("sequences", "tokens", "pieces"), [(256, 3, 51), (10, 4, 15), (4, 3, 7), (2, 3, 5)])
def test_where_only_pieces_are_captured_no_size_is_rounded(sequences: int, tokens: int, pieces: int) -> None:
    """'PIECEWISE=15 (largest=96)' of FLASHINFER with four speculative tokens and ten sequences."""
    launch = Launch("0.26.0", 4096, max_num_seqs=sequences, speculative_tokens=tokens, full_graphs=False)
    assert captured_graphs(launch) == (pieces, 0)


def test_nothing_is_captured_without_compilation_or_a_gpu() -> None:
    for launch in (replace(S3, enforce_eager=True), replace(S3, cpu=True)):
        assert (captured_graphs(launch), graph_bytes(launch)) == ((0, 0), 0)


@pytest.mark.parametrize(
    ("launch", "gib"),
    [
        (H200_VISION_90, 0.72),
        (H200_VISION_70, 0.23),
        (H200_MTP2, 0.05),
        (S3, 0.75),
        (replace(S3, max_num_seqs=10, speculative_tokens=4), 0.22),
    ],
)
def test_graphs_take_what_five_starts_logged(launch: Launch, gib: float) -> None:
    assert graph_bytes(launch) / GIB == pytest.approx(gib, abs=0.006)


@pytest.mark.parametrize(("batched", "gib"), [(8192, 2.84), (4096, 2.42), (3072, 2.32), (2048, 2.21)])
def test_activations_grow_with_the_tokens_from_a_constant_on(batched: int, gib: float) -> None:
    """Four starts of the 27B hybrid on one RTX 5090 that differ in max-num-batched-tokens alone."""
    launch = replace(H200_MTP2, max_num_batched_tokens=batched)
    assert activation_bytes(hybrid(), launch) / GIB == pytest.approx(gib, abs=0.01)


def test_two_gpus_and_an_eager_start_are_near_what_was_logged() -> None:
    assert activation_bytes(hybrid(), S3) / GIB == pytest.approx(2.31, abs=0.12)
    assert activation_bytes(hybrid(), H200_EAGER) / GIB == pytest.approx(20.46 - 0.25, abs=0.1)


def test_sampling_for_very_many_decides_where_it_takes_more_than_a_prefill() -> None:
    some, many = (activation_bytes(hybrid(), replace(S3, max_num_seqs=count)) for count in (512, 1024))
    assert some == activation_bytes(hybrid(), S3)
    assert many == pytest.approx(3.5 * 1024 * 248320 * 4)
