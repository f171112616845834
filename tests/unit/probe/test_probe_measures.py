# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures from synthetic stamps, and the readers that feed them."""

from __future__ import annotations

import random

import pytest
from ansible_collections.socle.inference.plugins.module_utils import _exposition as exposition
from ansible_collections.socle.inference.plugins.module_utils._probe import measures, prompts
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError, StreamFault
from ansible_collections.socle.inference.plugins.module_utils._probe.prompts import messages_of_length
from ansible_collections.socle.inference.plugins.module_utils._probe.sse import Event, EventReader
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Mark, Marks, Trace, TraceReader, Usage

MS = 1_000_000


def trace(stamps_ms: list[float], tokens: int, counts: list[int] | None = None) -> Trace:
    marks = [Mark(int(at * MS), counts[place] if counts else None) for place, at in enumerate(stamps_ms)]
    return Trace(0, Marks(marks), done_ns=10_000 * MS, usage=Usage(10, tokens, 10 + tokens))


def test_plain_answer() -> None:
    run = measures.run_measures(trace([100, 120, 140, 160, 180], 5, [1, 2, 3, 4, 5]))
    assert (run["ttft_ms"], run["e2e_ms"], run["tpot_ms"]) == (100, 180, 20)
    assert run["decode_tok_per_s"] == 50
    assert (run["itl_p50_ms"], run["chunk_gap_p50_ms"]) == (20, 20)


def test_the_end_of_the_stream_does_not_extend_latency() -> None:
    assert measures.run_measures(trace([100, 200], 2))["e2e_ms"] == 200


def test_speculation_is_measured_per_token_not_per_chunk() -> None:
    run = measures.run_measures(trace([100, 160, 220], 9, [3, 6, 9]))
    assert (run["itl_p50_ms"], run["chunk_gap_p50_ms"]) == (20, 60)
    assert run["decode_tok_per_s"] == 50  # (9 - 3) tokens in 120 ms, not (9 - 1)


def test_without_running_count_there_is_no_itl() -> None:
    run = measures.run_measures(trace([100, 160], 4))
    assert run["itl_p50_ms"] is None
    assert run["chunk_gap_p50_ms"] == 60
    assert run["decode_tok_per_s"] == 50


@pytest.mark.parametrize(("stamps", "tokens"), [([100], 1), ([100], 5), ([100, 100], 5)])
def test_no_rate_over_no_time(stamps: list[float], tokens: int) -> None:
    assert measures.run_measures(trace(stamps, tokens))["decode_tok_per_s"] is None


def test_merged_chunks_are_told() -> None:
    assert measures.near_zero_gap_share(trace([100, 100.1, 120, 120.1, 140], 5)) == 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (0, None, None, None, None, None)),
        ([None, None], (0, None, None, None, None, None)),
        ([7.0], (1, 7, 7, 7, 7, 0)),
        ([10.0, 12.0, 11.0], (3, 10, 11, 11.9, 12, 18.2)),
        ([1.0, None, 3.0], (2, 1, 2, 2.9, 3, 100)),
        ([0.0, 0.0], (2, 0, 0, 0, 0, None)),
    ],
)
def test_summary(values: list[float | None], expected: tuple[float | None, ...]) -> None:
    found = measures.summary(values)
    assert tuple(found[key] for key in ("n", "min", "p50", "p95", "max", "spread_pct")) == expected


@pytest.mark.parametrize("center", [50.0, 2000.0])
def test_the_noise_floor_is_what_two_series_differ_by_in_one_of_twenty_cases(center: float) -> None:
    chance = random.Random(6)

    def median_of_series() -> float:
        return measures.percentile([chance.gauss(center, center / 50) for _run in range(25)], 0.5)

    differences = [abs(median_of_series() - median_of_series()) / center * 100 for _pair in range(2000)]
    floors = [
        measures.noise_pct([chance.gauss(center, center / 50) for _run in range(25)]) or 0 for _each in range(500)
    ]
    beyond = sum(each > measures.percentile(floors, 0.5) for each in differences) / len(differences)
    assert 0.03 < beyond < 0.07


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.0, 0.0, 0.0]])
def test_too_few_values_have_no_noise_floor(values: list[float]) -> None:
    assert measures.noise_pct(values) is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_survive_any_cut(size: int) -> None:
    stream = ': hello\r\n\r\ndata: {"a": "日本🚂"}\n\nevent: error\rdata: one\rdata: two\r\rid: 3\n\ndata\n\n'.encode()
    reader = EventReader()
    events = [event for start in range(0, len(stream), size) for event in reader.feed(stream[start : start + size])]
    assert events == [Event("message", '{"a": "日本🚂"}'), Event("error", "one\ntwo"), Event("message", "")]


def test_bytes_that_are_not_utf8_are_a_fault() -> None:
    with pytest.raises(StreamFault, match="UTF-8"):
        EventReader().feed(b"data: \xff\n\n")


CHUNK = 'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}\n\n'
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (CHUNK + USAGE, r"\[DONE\]"),
        (CHUNK + DONE, "usage"),
        (USAGE + DONE, "finish_reason, a single token"),
        (CHUNK + 'data: {"error": {"message": "dead"}}\n\n' + USAGE + DONE, "error inside"),
        (CHUNK + "event: error\ndata: {}\n\n" + USAGE + DONE, "error inside"),
        (CHUNK + "data: nonsense\n\n" + USAGE + DONE, "not JSON"),
        (CHUNK + USAGE + DONE + CHUNK, "after"),
        (CHUNK.replace("stop", "abort") + USAGE + DONE, "gave up"),
    ],
)
def test_broken_streams(stream: str, words: str) -> None:
    reader = TraceReader(0)
    with pytest.raises(StreamFault, match=words):
        reader.feed(1, stream.encode())
        reader.finish()


def test_role_and_usage_chunks_are_no_tokens() -> None:
    reader = TraceReader(0)
    reader.feed(1, b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
    reader.feed(5, CHUNK.encode())
    reader.feed(9, USAGE.encode() + DONE.encode())
    found = reader.finish()
    assert [mark.at_ns for mark in found.marks] == [5]
    assert found.done_ns == 9


def test_reasoning_counts_as_text() -> None:
    reader = TraceReader(0)
    reader.feed(5, CHUNK.replace("content", "reasoning").encode() + USAGE.encode() + DONE.encode())
    assert reader.finish().text == "a"


def test_exposition() -> None:
    text = """# HELP x y
# TYPE x counter
vllm:hits_total{engine="0",name="a \\"b\\" } c"} 3.0
vllm:hits_total{engine="1"} 1e1 1700000000
vllm:ttft_seconds_bucket{le="+Inf"} 4
vllm:ttft_seconds_sum 0.5
rubbish
"""
    samples = exposition.parse(text)
    assert samples[0].labels == {"engine": "0", "name": 'a "b" } c'}
    assert exposition.total(samples, "vllm:hits_total") == 13
    assert exposition.total(samples, "absent") is None
    assert "vllm:ttft_seconds" in exposition.families(samples)


@pytest.mark.parametrize("per_word", [1, 2])
def test_prompts_of_an_exact_length(per_word: int) -> None:
    def count(messages: list[dict[str, str]]) -> int:
        return 7 + per_word * len(messages[0]["content"].split())

    messages = messages_of_length("a b c", "0123", 207, count)
    assert count(messages) == 207
    assert messages[0]["content"].startswith("[0123]")


def test_a_prompt_cannot_be_shorter_than_its_question() -> None:
    with pytest.raises(ProbeError, match="alone take 50"):
        messages_of_length("question", "0123", 10, lambda messages: 50)


def test_a_length_that_no_prompt_has_is_not_looked_for_forever() -> None:
    asked = 0

    def count(messages: list[dict[str, str]]) -> int:
        nonlocal asked
        asked += 1
        return 2 * len(messages[0]["content"].split())

    with pytest.raises(ProbeError, match=r"in \d+ attempts; the counts were .* slightly different length"):
        messages_of_length("q", "0", 101, count)
    assert asked <= prompts.ATTEMPTS + len(prompts.FILLERS)


@pytest.mark.parametrize("tokens", [60, 511, 512, 513, 4000])
@pytest.mark.parametrize("filler", ["a", "1", "!", "x"])
def test_words_of_several_tokens_still_make_any_length(tokens: int, filler: str) -> None:
    """A small vocabulary: words take one to three tokens, and only one kind of filler takes one."""

    def count(messages: list[dict[str, str]]) -> int:
        words = messages[0]["content"].replace("!", " !").split()
        return 30 + sum(1 if word == filler else 1 + len(word) % 3 for word in words)

    messages = messages_of_length("question", "0123", tokens, count)
    assert count(messages) == tokens
