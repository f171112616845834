# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What answers badly is never taken for an answer, by neither client, and ends with a sentence."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe import sse
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient, Timeouts
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import (
    EngineFault,
    ProbeError,
    StreamFault,
    TransportFault,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.load import Limits, LoadClient, Order
from ansible_collections.socle.inference.plugins.module_utils._probe.sse import EventReader

PATH = "/v1/chat/completions"
KEY = "sk-socle-0123456789abcdef"
SSE = b"Content-Type: text/event-stream\r\n"
TOKEN = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "delta": {"content": "y"}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}

Answer = Callable[[socket.socket], None]


def frame(*bodies: Any, end: str = "\n") -> bytes:
    return "".join(f"data: {body if isinstance(body, str) else json.dumps(body)}{end}{end}" for body in bodies).encode()


GOOD = frame(TOKEN, LAST, USAGE, "[DONE]")


def usage(**changes: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {**USAGE["usage"], **changes}}  # type: ignore[dict-item]


def counted(count: Any, body: dict[str, Any] | None = None) -> dict[str, Any]:
    return {**(body or TOKEN), "usage": {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": 1}}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


@contextlib.contextmanager
def badly(answer: Answer) -> Iterator[tuple[str, int]]:
    """A server that does *answer* on each connection, once it has seen a request."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        listener.settimeout(0.05)

        def one(handle: socket.socket) -> None:
            with handle, contextlib.suppress(OSError):
                handle.settimeout(3)
                seen = b""
                # All of it: what is left unread when a connection is closed resets it.
                while b"\r\n\r\n" not in seen or (seen.startswith(b"POST") and not seen.endswith(b"}")):
                    part = handle.recv(65536)
                    seen += part
                    if not part:
                        return
                answer(handle)

        def serve() -> None:
            threads = []
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    handle, _address = listener.accept()
                    threads.append(threading.Thread(target=one, args=(handle,)))
                    threads[-1].start()
            for thread in threads:
                thread.join()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            done.set()
            thread.join()


def sent(body: bytes, head: bytes = SSE, status: str = "200 OK") -> Answer:
    data = f"HTTP/1.1 {status}\r\n".encode() + head + b"Connection: close\r\n\r\n" + body
    return lambda handle: handle.sendall(data)


def reset(body: bytes) -> Answer:
    def answer(handle: socket.socket) -> None:
        sent(body)(handle)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return answer


def drip(handle: socket.socket) -> None:
    """A byte now and then, for ever."""
    sent(b"")(handle)
    for _time in range(200):
        handle.sendall(b":")
        time.sleep(0.02)


def by_each(address: tuple[str, int], whole_s: float = 5.0, read_s: float = 2.0) -> list[EngineFault]:
    """What both clients say of it; None is an answer that was taken."""
    with EngineClient(f"http://{address[0]}:{address[1]}", KEY, Timeouts(read_s=read_s, whole_s=whole_s)) as client:
        try:
            client.stream_chat({"model": "m"})
            faults: list[Any] = [None]
        except EngineFault as fault:
            faults = [fault]
        target = client.target(PATH)
        report = LoadClient(target, 1, Limits(2.0, read_s, whole_s)).run([Order(0, b"{}")])
        return [*faults, report.deliveries[0].fault]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_is_read_however_it_is_cut(end: str, size: int) -> None:
    text = f": comment{end}event: token{end}id: 7{end}data: Z\u00fcrich{end}data:  two{end}{end}data{end}{end}:{end}"
    reader, events = EventReader(), []
    data = text.encode()
    for place in range(0, len(data), size):
        events += reader.feed(data[place : place + size])
    assert [(event.type, event.data) for event in events] == [("token", "Z\u00fcrich\n two"), ("message", "")]


@pytest.mark.parametrize("part", [b"x" * 4096, b"data: x\n" * 512, b"data:\n" * 512])
def test_an_event_that_never_ends_is_given_up_soon(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_CHARACTERS", 1_000_000)
    reader = EventReader()
    with pytest.raises(StreamFault, match="without the end of an event"):
        for _time in range(2000):
            reader.feed(part)


def test_a_long_line_costs_no_more_for_each_part_the_longer_it_is() -> None:
    reader = EventReader()
    began = time.process_time()
    reader.feed(b"data: ")
    for _part in range(8000):
        reader.feed(b"x" * 1000)
    assert len(reader.feed(b"\n\n")[0].data) == 8_000_000
    assert time.process_time() - began < 5


BAD: dict[str, tuple[Answer, str]] = {
    "page": (sent(b"<html>Welcome</html>", b"Content-Type: text/html; charset=utf-8\r\n"), "text/html"),
    "whole": (sent(b'{"choices": []}', b"Content-Type: application/json\r\n"), "application/json"),
    "gzip": (sent(gzip.compress(GOOD), SSE + b"Content-Encoding: gzip\r\n"), "coding gzip"),
    "redirect": (sent(b"", b"Location: http://127.0.0.1:1/\r\n", "302 Found"), "status 302"),
    "busy": (sent(b"{}", b"Retry-After: 1\r\n", "429 Too Many Requests"), "status 429"),
    "length too long": (sent(GOOD, SSE + b"Content-Length: 9999\r\n"), ""),
    "length of many digits": (sent(GOOD, SSE + b"Content-Length: " + b"9" * 5000 + b"\r\n"), ""),
    "chunk broken": (sent(b"5\r\ndata:\r\nzz\r\n", SSE + b"Transfer-Encoding: chunked\r\n"), ""),
    "chunk cut": (sent(b"fff\r\ndata:", SSE + b"Transfer-Encoding: chunked\r\n"), ""),
    "huge head": (sent(GOOD, SSE + b"X-Fill: " + b"x" * 200_000 + b"\r\n"), ""),
    "reset at once": (reset(b""), ""),
    "reset after a token": (reset(frame(TOKEN)), ""),
    "no http": (lambda handle: handle.sendall(b"\x15\x03\x01\x00\x02\x02\x50"), ""),
    "no answer": (lambda handle: time.sleep(1.5), "nothing came|timed out"),
    "cut before done": (sent(frame(TOKEN, LAST, USAGE)), r"without \[DONE\]"),
    "done without its end": (sent(frame(TOKEN, LAST, USAGE) + b"data: [DONE]\n"), r"without \[DONE\]"),
    "data after done": (sent(GOOD + frame(TOKEN)), r"after \[DONE\]"),
    "error inside": (sent(frame(TOKEN, {"error": {"message": "boom"}}, "[DONE]")), "error inside the stream"),
    "error by type": (sent(frame({"type": "error", "message": "boom"}, "[DONE]")), "error inside the stream"),
    "aborted": (sent(frame(TOKEN, {"choices": [{"delta": {}, "finish_reason": "abort"}]}, USAGE, "[DONE]")), "abort"),
    "only the role": (sent(frame(delta(role="assistant"), USAGE, "[DONE]")), "a single token"),
    "no usage": (sent(frame(TOKEN, LAST, "[DONE]")), "without usage"),
    "usage null": (sent(frame(TOKEN, LAST, {"choices": [], "usage": None}, "[DONE]")), "without usage"),
    "usage of words": (sent(frame(TOKEN, LAST, usage(completion_tokens="2"), "[DONE]")), "without usage"),
    "usage below 0": (sent(frame(TOKEN, LAST, usage(prompt_tokens=-5), "[DONE]")), "without usage"),
    "usage too large": (sent(frame(TOKEN, LAST, usage(completion_tokens=10**30), "[DONE]")), "without usage"),
    "count too large": (sent(frame(counted(9_000_000), LAST, USAGE, "[DONE]")), "running count"),
    "usage is NaN": (sent(frame(TOKEN, LAST, '{"choices": [], "usage": NaN}', "[DONE]")), "not JSON"),
    "nested": (sent(frame(TOKEN, "[" * 100_000, "[DONE]")), "not JSON"),
    "choices is a map": (sent(frame({"choices": {"a": 1}}, "[DONE]")), "no choice with a delta"),
    "choice is null": (sent(frame({"choices": [None]}, "[DONE]")), "no choice with a delta"),
    "delta is a list": (sent(frame({"choices": [{"delta": [1]}]}, "[DONE]")), "no choice with a delta"),
    "content is a number": (sent(frame(delta(content=5), "[DONE]")), "no text"),
    "not UTF-8": (sent(b"data: \xff\xfe\n\n"), "not UTF-8"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_answers_badly_is_a_fault_by_both_clients(what: str) -> None:
    answer, words = BAD[what]
    with badly(answer) as address:
        faults = by_each(address, read_s=1.0)
    for fault in faults:
        assert isinstance(fault, EngineFault), what
        assert re.search(words, fault.message), fault.message


def test_what_is_odd_but_allowed_is_an_answer() -> None:
    odd = frame(
        delta(role="assistant", content=None, reasoning=None, tool_calls=None),
        {"choices": []},
        {"choices": None, "usage": None},
        TOKEN,
        LAST,
        USAGE,
        "[DONE]",
        end="\r",
    )
    with badly(sent(b": ping\n\n" + odd + b"\n")) as address:
        assert by_each(address) == [None, None]


def test_a_drip_ends_at_the_deadline_whole_or_streamed() -> None:
    with (
        badly(drip) as address,
        EngineClient(f"http://{address[0]}:{address[1]}", timeouts=Timeouts(whole_s=0.3)) as client,
    ):
        began = time.monotonic()
        with pytest.raises(TransportFault, match=r"GET /metrics was not over after 0\.3 s"):
            client.get("/metrics")
        with pytest.raises(TransportFault, match=r"not over after 0\.3 s"):
            client.stream("/v1/messages", {})
        assert time.monotonic() - began < 2


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.socle.inference.plugins.module_utils._probe.client.MOST_BYTES", 100_000)
    with (
        badly(sent(b"x" * 300_000)) as address,
        EngineClient(f"http://{address[0]}:{address[1]}") as client,
        pytest.raises(EngineFault, match="more than 100000 bytes"),
    ):
        client.get("/metrics")


def test_a_server_that_dies_fails_each_stream_of_a_load_once() -> None:
    with badly(reset(frame(TOKEN) * 3)) as address, EngineClient(f"http://{address[0]}:{address[1]}") as client:
        report = LoadClient(client.target(PATH), 64).run([Order(number, b"{}") for number in range(64)])
    assert [delivery.number for delivery in report.deliveries] == list(range(64))
    assert all(delivery.fault and not delivery.trace for delivery in report.deliveries)


@pytest.mark.parametrize("key", ["sk-a\nX-Evil: 1", "sk-\u00fc", " sk-a", "sk-\x00"])
def test_a_key_that_no_header_takes_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ProbeError, match="no HTTP header can carry") as caught:
        EngineClient("http://127.0.0.1:1", key)
    assert key.strip() not in str(caught.value) and "Evil" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://[::1", "http://host:port", "http://host:99999", "http://a\nb"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ProbeError, match="Correct base_url"):
        EngineClient(address)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_patience_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(ProbeError, match="read_timeout_s"):
        EngineClient("http://127.0.0.1:1", timeouts=Timeouts(read_s=seconds))


def test_a_key_is_masked_also_where_an_excerpt_cut_it() -> None:
    with EngineClient("http://127.0.0.1:1", KEY) as client:
        for cut in range(8, len(KEY) + 1):
            assert KEY[:8] not in client.redact(f"Wrong key {KEY[:cut]}")
        for cut in range(len(KEY) - 7):
            assert KEY[-8:] not in client.redact(f"{KEY[cut:]} is wrong")
        assert client.redact_all({KEY: [KEY, 5]}) == {"********": ["********", 5]}
    with EngineClient("http://127.0.0.1:1", 'a"b\\c') as client:
        assert client.redact(json.dumps({"key": 'a"b\\c'})) == '{"key": "********"}'
