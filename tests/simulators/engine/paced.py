# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of token streams on a script, which writes down when it really handed each chunk to the kernel.

One loop over epoll in a process of its own, so that hundreds of streams at 50 tokens/s keep their times. What a client
says of its run is held against what is written down here (GET /schedule), on the same clock (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import multiprocessing
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

MODEL = "paced"
PROMPT_TOKENS = 7
WORD = " word"

SO_TIMESTAMPNS = 35
"""Of asm-generic/socket.h: each read says when the kernel got its last packet (struct timespec, CLOCK_REALTIME)."""


@dataclass(frozen=True)
class Script:
    """When tokens come, the same for every request."""

    ttft_s: float = 0.1
    gap_s: float = 0.02
    """Between two chunks."""
    tokens_per_chunk: tuple[int, ...] = (1,)
    """Over and over: (1,) is plain decoding, (1, 4, 2) are steps of speculative decoding."""
    stepped: bool = False
    """Chunks of all streams leave at the same moments, as from the steps of an engine; else each on its own."""


@dataclass
class Sent:
    """What really happened with one request. Monotonic nanoseconds."""

    name: str
    """The client's x-request-id."""
    received_ns: int
    """When the kernel had the last packet of the request."""
    sent_ns: list[int] = field(default_factory=list)
    """Before the chunk was handed to the kernel, for each chunk with tokens."""
    tokens: list[int] = field(default_factory=list)
    """How many each brought."""


class _Connection:
    def __init__(self, handle: socket.socket) -> None:
        self.handle = handle
        self.buffer = b""
        self.request = Sent("", 0)
        self.asked = 0
        self.made = 0
        self.running = False
        self.usage = False
        self.chat = True


class PacedServer:
    """Serves until the process ends."""

    def __init__(self, script: Script, listener: socket.socket) -> None:
        self._script = script
        self._listener = listener
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._due: list[tuple[int, int, _Connection]] = []
        self._order = 0
        self._sent: list[Sent] = []

    def serve(self) -> None:
        self._listener.setblocking(False)
        # What it accepts has it, too.
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._poll.register(self._listener.fileno(), select.EPOLLIN)
        while True:
            now = time.monotonic_ns()
            while self._due and self._due[0][0] <= now:
                due, _order, connection = heapq.heappop(self._due)
                self._chunk(due, connection)
                now = time.monotonic_ns()
            patience = (self._due[0][0] - now) / 1e9 if self._due else 1.0
            # epoll counts in milliseconds: the rest of one is spent looking.
            for number, _mask in self._poll.poll(max(patience - 0.001, 0)):
                if number == self._listener.fileno():
                    self._accept()
                else:
                    self._read(self._connections[number])

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                handle, _address = self._listener.accept()
                handle.setblocking(False)
                handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections[handle.fileno()] = _Connection(handle)
                self._poll.register(handle.fileno(), select.EPOLLIN)

    def _read(self, connection: _Connection) -> None:
        try:
            data, ancillary, _flags, _address = connection.handle.recvmsg(1 << 20, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._close(connection)
            return
        now = time.monotonic_ns() - _age_ns(ancillary)
        connection.buffer += data
        head, end, body = connection.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _colon, value in (line.partition(":") for line in lines[1:])}
        if len(body) < int(headers.get("content-length", 0)):
            return
        connection.buffer = b""
        method, path, _version = lines[0].split(" ")
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            connection.chat = path == "/v1/chat/completions"
            self._begin(connection, json.loads(body), Sent(headers.get("x-request-id", ""), now))
        elif path == "/schedule":
            self._answer(connection, [asdict(each) for each in self._sent])
            self._sent = []
        elif path == "/v1/models":
            self._answer(connection, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self._answer(connection, {})

    def _answer(self, connection: _Connection, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.handle.setblocking(True)
        connection.handle.sendall(head.encode() + data)
        connection.handle.setblocking(False)

    def _begin(self, connection: _Connection, body: dict[str, Any], sent: Sent) -> None:
        options = body.get("stream_options") or {}
        connection.request = sent
        connection.asked = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        connection.made = 0
        connection.running = bool(options.get("continuous_usage_stats"))
        connection.usage = bool(options.get("include_usage"))
        self._sent.append(sent)
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        # Only chats are opened by a chunk without a token.
        opening = self._event(connection, {"role": "assistant", "content": ""}, None, 0) if connection.chat else b""
        self._write(connection, head + opening)
        due = sent.received_ns + round(self._script.ttft_s * 1e9)
        if self._script.stepped:
            gap = round(self._script.gap_s * 1e9)
            due += -due % gap
        self._schedule(due, connection)

    def _schedule(self, due: int, connection: _Connection) -> None:
        self._order += 1
        heapq.heappush(self._due, (due, self._order, connection))

    def _chunk(self, due: int, connection: _Connection) -> None:
        pattern = self._script.tokens_per_chunk
        sent = connection.request
        brought = min(pattern[len(sent.sent_ns) % len(pattern)], connection.asked - connection.made)
        connection.made += brought
        last = connection.made >= connection.asked
        text = WORD * brought
        event = self._event(connection, {"content": text}, "length" if last else None, connection.made)
        sent.tokens.append(brought)
        sent.sent_ns.append(time.monotonic_ns())
        if not self._write(connection, event):
            return
        if not last:
            self._schedule(due + round(self._script.gap_s * 1e9), connection)
            return
        closing = b""
        if connection.usage:
            usage = _usage(connection.made)
            closing += _frame({"id": "cmpl", "model": MODEL, "choices": [], "usage": usage})
        self._write(connection, closing + _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _event(self, connection: _Connection, delta: dict[str, str], reason: str | None, made: int) -> bytes:
        if connection.chat:
            choice: dict[str, Any] = {"delta": delta, "token_ids": None}
        else:
            choice = {"text": delta["content"], "stop_reason": None}
        chunk: dict[str, Any] = {
            "id": "chatcmpl-paced",
            "object": "chat.completion.chunk" if connection.chat else "text_completion",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "logprobs": None, "finish_reason": reason, **choice}],
        }
        if connection.running:
            chunk["usage"] = _usage(made)
        return _frame(chunk)

    def _write(self, connection: _Connection, data: bytes) -> bool:
        try:
            sent = connection.handle.send(data)
        except OSError:
            sent = 0
        if sent < len(data):
            # The client went away, or does not read what it asked for.
            self._close(connection)
            return False
        return True

    def _close(self, connection: _Connection) -> None:
        number = connection.handle.fileno()
        if self._connections.pop(number, None) is not None:
            self._poll.unregister(number)
        connection.handle.close()
        self._due = [entry for entry in self._due if entry[2] is not connection]
        heapq.heapify(self._due)


def _age_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """How long ago the kernel got the last packet of a read."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack_from("qq", data)
            return time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
    return 0


def _usage(made: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + made, "completion_tokens": made}


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _frame(body: dict[str, Any]) -> bytes:
    return _piece(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _serve(script: Script, listener: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    PacedServer(script, listener).serve()


@contextlib.contextmanager
def paced(script: Script) -> Iterator[tuple[str, int]]:
    """A server in a process of its own, on 127.0.0.1, until the block ends: its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(script, listener), daemon=True)
        process.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            process.terminate()
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulators.engine.paced", description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ttft-ms", type=float, default=100)
    parser.add_argument("--gap-ms", type=float, default=20)
    parser.add_argument("--tokens-per-chunk", type=int, nargs="+", default=[1])
    parser.add_argument("--stepped", action="store_true", help="chunks of all streams leave at the same moments")
    asked = parser.parse_args()
    script = Script(asked.ttft_ms / 1000, asked.gap_ms / 1000, tuple(asked.tokens_per_chunk), asked.stepped)
    with (
        socket.create_server(("127.0.0.1", asked.port), backlog=1024) as listener,
        contextlib.suppress(KeyboardInterrupt),
    ):
        PacedServer(script, listener).serve()


if __name__ == "__main__":
    main()
