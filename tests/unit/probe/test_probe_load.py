# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads against a server that writes down what really happened, and against ones that misbehave."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import (
    AnswerFault,
    ProbeError,
    StreamFault,
    TransportFault,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.load import (
    Delivery,
    Limits,
    LoadClient,
    LoadReport,
    Order,
    Target,
)

from tests.simulators.engine.paced import MODEL, Script, paced

PATH = "/v1/chat/completions"
BODY = b"""data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}

data: [DONE]

"""
ERROR = b'data: {"error":{"message":"EngineCore encountered an issue"}}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def orders(count: int, tokens: int = 5, apart_s: float = 0) -> list[Order]:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Go on."}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return [Order(number, json.dumps(body).encode(), round(number * apart_s * 1e9)) for number in range(count)]


def schedule(address: tuple[str, int]) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection(*address, timeout=5)
    connection.request("GET", "/schedule")
    found: list[dict[str, Any]] = json.load(connection.getresponse())
    connection.close()
    return sorted(found, key=lambda each: each["received_ns"])


def by_time(report: LoadReport) -> list[Delivery]:
    return sorted(report.deliveries, key=lambda delivery: delivery.sent_ns)


@contextlib.contextmanager
def scripted(*answers: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """A server that gives the n-th connection the n-th answers, one for a request, and closes it then."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve() -> None:
            for given in answers:
                handle = None
                while handle is None and not done.is_set():
                    with contextlib.suppress(TimeoutError):
                        handle, _address = listener.accept()
                if handle is None:
                    return
                with handle:
                    handle.settimeout(5)
                    for answer in given:
                        handle.recv(65536)
                        handle.sendall(answer)
                    if given and given[-1] == b"":
                        done.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            done.set()
            thread.join()


def one(address: tuple[str, int], **limits: float) -> Delivery:
    return LoadClient(Target(address, PATH), 1, Limits(**limits)).run(orders(1)).deliveries[0]


def test_every_token_is_counted_and_stamped_after_it_was_sent() -> None:
    script = Script(ttft_s=0.02, gap_s=0.005, tokens_per_chunk=(1, 4, 2))
    with paced(script) as address:
        report = LoadClient(Target(address, PATH), 8).run(orders(24, tokens=20))
        truth = schedule(address)
    assert [delivery.number for delivery in report.deliveries] == list(range(24))
    assert len(truth) == 24
    for delivery in report.deliveries:
        assert delivery.fault is None and delivery.trace is not None
        assert delivery.trace.usage is not None and delivery.trace.usage.completion_tokens == 20
        assert [mark.tokens for mark in delivery.trace.marks] == [1, 5, 7, 8, 12, 14, 15, 19, 20]
        assert delivery.trace.content == " word" * 20
    first = by_time(report)[0]
    assert first.trace is not None
    for mark, sent_ns in zip(first.trace.marks, truth[0]["sent_ns"], strict=True):
        assert mark.at_ns >= sent_ns - 50_000  # two clocks are read one after the other
    assert report.reads >= report.stamped > 0


def test_no_more_streams_at_once_than_allowed() -> None:
    with paced(Script(ttft_s=0.01, gap_s=0.002)) as address:
        report = LoadClient(Target(address, PATH), 3).run(orders(12))
        truth = schedule(address)
    ends = [(delivery.trace.done_ns, -1) for delivery in report.deliveries if delivery.trace]
    steps = sorted([(delivery.sent_ns, 1) for delivery in report.deliveries] + ends)
    running = most = 0
    for _at, step in steps:
        running += step
        most = max(most, running)
    assert (len(ends), most, len(truth)) == (12, 3, 12)


def test_a_request_is_sent_when_it_is_due_and_never_before() -> None:
    with paced(Script(ttft_s=0.001, gap_s=0.001)) as address:
        report = LoadClient(Target(address, PATH)).run(orders(6, apart_s=0.03))
    for delivery in report.deliveries:
        assert delivery.trace is not None
        assert delivery.due_ns == report.began_ns + delivery.number * 30_000_000
        assert delivery.sent_ns >= delivery.due_ns


def test_what_had_to_wait_for_a_free_stream_is_due_from_then_on() -> None:
    with paced(Script(ttft_s=0.02, gap_s=0.001)) as address:
        report = LoadClient(Target(address, PATH), 1).run(orders(3))
    first, second = by_time(report)[:2]
    assert first.trace is not None
    assert second.due_ns >= first.trace.done_ns


def test_another_status_is_a_fault_with_what_the_engine_said() -> None:
    answer = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 11\r\n\r\n{"too":"far"}'[:-2]
    with scripted([answer]) as address:
        fault = one(address).fault
    assert isinstance(fault, AnswerFault)
    assert fault.fields == {"status": 400, "excerpt": '{"too":"far'}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (HEAD + b"5\r\ndata:\r\n", TransportFault, "in the middle of the answer"),
        (HEAD + b"0\r\n\r\n", StreamFault, "without"),
        (HEAD + b"%x\r\n%s\r\n" % (len(ERROR), ERROR), StreamFault, "error inside the stream"),
        (b"nothing of the kind\r\n\r\n", TransportFault, "status line"),
    ],
)
def test_a_broken_answer_is_a_fault_and_the_next_request_goes_on(answer: bytes, kind: type, words: str) -> None:
    with scripted([answer], [WHOLE]) as address:
        report = LoadClient(Target(address, PATH), 1).run(orders(2))
    first, second = report.deliveries
    assert isinstance(first.fault, kind) and words in first.fault.message
    assert second.fault is None and second.trace is not None


@pytest.mark.parametrize("apart_s", [0, 0.1])
def test_a_connection_that_the_engine_closed_costs_no_request(apart_s: float) -> None:
    """At once, the end of the connection is still on its way when the next request goes out on it."""
    with scripted([WHOLE], [WHOLE], [WHOLE]) as address:
        report = LoadClient(Target(address, PATH), 1).run(orders(3, apart_s=apart_s))
    assert [delivery.fault for delivery in report.deliveries] == [None] * 3


def test_an_engine_that_falls_silent_is_a_fault() -> None:
    with scripted([HEAD, b""]) as address:
        fault = one(address, read_s=0.3).fault
    assert isinstance(fault, TransportFault)
    assert fault.phase == "read" and "nothing came for 0.3 s" in fault.message


def test_an_answer_that_never_ends_is_a_fault() -> None:
    with paced(Script(ttft_s=0.001, gap_s=0.01)) as address:
        client = LoadClient(Target(address, PATH), 1, Limits(whole_s=0.3))
        fault = client.run(orders(1, tokens=1000)).deliveries[0].fault
    assert isinstance(fault, TransportFault)
    assert fault.phase == "deadline"


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    report = LoadClient(Target(address, PATH), 2).run(orders(3))
    for delivery in report.deliveries:
        assert isinstance(delivery.fault, TransportFault)
        assert delivery.fault.phase == "connect" and "refused" in delivery.fault.message


def test_progress_names_what_is_done_and_how_many_tokens_came() -> None:
    told: list[tuple[int, int, int]] = []
    with paced(Script(ttft_s=0.001, gap_s=0.01)) as address:
        client = LoadClient(Target(address, PATH), 4, progress=lambda *figures: told.append(figures))
        client.run(orders(24, tokens=20))
    assert told and all(failed == 0 for _done, failed, _tokens in told)
    assert [tokens == done * 20 for done, _failed, tokens in told] == [True] * len(told)


def test_no_streams_are_no_load() -> None:
    with pytest.raises(ProbeError, match="1 stream or more"):
        LoadClient(Target(("127.0.0.1", 1), PATH), 0)


def test_the_key_goes_along_and_the_host_is_named() -> None:
    asked = Target(("::1", 8000), PATH, (("Authorization", "Bearer abc"),)).request(b"{}")
    assert asked == (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: [::1]:8000\r\nContent-Length: 2\r\n"
        b"Authorization: Bearer abc\r\n\r\n{}"
    )


def test_time_is_not_asked_of_a_clock_that_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the real-time clock between the kernel's stamp and the read gives ages that cannot be."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600_000_000_000)
    with paced(Script(ttft_s=0.001, gap_s=0.001)) as address:
        report = LoadClient(Target(address, PATH), 1).run(orders(1))
    assert report.stamped == 0
    trace = report.deliveries[0].trace
    assert trace is not None
    assert report.began_ns < trace.marks[0].at_ns < report.ended_ns
