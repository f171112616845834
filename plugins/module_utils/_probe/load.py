# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends many streamed requests at set times, and stamps what comes back. Private to socle.inference.

One loop over epoll reads what the kernel has and does nothing else until it has read all of it: the parsing waits. Each
read is stamped by the kernel itself where it can (SO_TIMESTAMPNS: the time at which the last packet of the read came
in), so that a stamp is right even where the loop was late; how late it was is on record, too. Bytes that came in
one read share its stamp. Over TLS the stamp is that of the read.

No proxy is followed, and no name is looked up once the load has begun.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ansible_collections.socle.inference.plugins.module_utils._probe.answer import AnswerReader
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import (
    AnswerFault,
    EngineFault,
    ProbeError,
    TransportFault,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.sse import refuse_other_content
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Trace, TraceReader

SO_TIMESTAMPNS = 35
"""Of asm-generic/socket.h; Python has no name for it. Its message is a struct timespec of CLOCK_REALTIME."""

READ_BYTES = 64 * 1024
"""Python makes a buffer of that size for each read; one of 128 KiB and more is mapped and unmapped each time."""

ANCILLARY_BYTES = 64
_TIMESPEC = struct.Struct("qq")

SLICE_NS = 500_000
"""How long parsing goes on before the loop looks at the sockets again: a fortieth of the gap at 50 tokens/s."""

GATHER_NS = 1_000_000
GATHER_STREAMS = 16
"""From so many streams on the loop looks at the sockets no more often than once in that time, and finds several of them
ready. The stamps are the kernel's, so that only the number of calls changes."""

BACKLOG_BYTES = 32 * 1024 * 1024
"""Of what is read and not parsed. Beyond it parsing goes before reading, and the loop is late by that."""

SPARE_FILES = 64
"""What the process has open beside the streams."""

PROGRESS_NS = 500_000_000
EXCERPT = 2000


@dataclass(frozen=True)
class Order:
    """One request: when it is due, in nanoseconds after the load began, and its body."""

    number: int
    body: bytes
    due_ns: int = 0


@dataclass(frozen=True)
class Target:
    """Where the requests go. *address* is what a name was resolved to."""

    address: tuple[str, int]
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, body: bytes) -> bytes:
        """The bytes of one POST."""
        host, port = self.address
        named = f"[{host}]" if ":" in host else host
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {named}:{port}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True)
class Limits:
    """Seconds. *read_s* is the longest time without a byte."""

    connect_s: float = 5.0
    read_s: float = 60.0
    whole_s: float = 600.0


@dataclass
class Delivery:
    """What became of one order. Either a trace or a fault."""

    number: int
    due_ns: int
    """Monotonic: when it should have been sent, by its order and the limit on streams."""
    sent_ns: int
    trace: Trace | None = None
    fault: EngineFault | None = None
    shared: int = 0
    """Reads that brought several chunks with tokens, which share one stamp."""


@dataclass
class LoadReport:
    """All deliveries, in the order of their numbers, and how well the client kept up."""

    deliveries: list[Delivery] = field(default_factory=list)
    began_ns: int = 0
    ended_ns: int = 0
    cpu_ns: int = 0
    """Processor time of the client over that time."""
    reads: int = 0
    stamped: int = 0
    """Reads whose stamp is the kernel's."""
    lags_ns: array[int] = field(default_factory=lambda: array("q"))
    """For each read: how long after the kernel had the bytes the loop took them."""
    interrupted: bool = False


class _Stream:
    """A connection and the request on it."""

    def __init__(self, handle: socket.socket) -> None:
        self.handle = handle
        self.order: Order | None = None
        self.pending = b""
        self.used = False
        """It has had an answer before, so that the other end may have closed it meanwhile."""
        self.connected = False
        self.refused = 0
        """Why it cannot be connected; 0 where it may be."""
        self.delivery = Delivery(0, 0, 0)
        self.answer = AnswerReader()
        self.reader = TraceReader(0)
        self.errors = bytearray()
        self.read_ns = 0


class LoadClient:
    """Runs orders against one target, at most *streams* at a time (None: as they are due)."""

    def __init__(
        self,
        target: Target,
        streams: int | None = None,
        limits: Limits | None = None,
        progress: Callable[[int, int, int], None] = lambda done, failed, tokens: None,
    ) -> None:
        if streams is not None and streams < 1:
            raise ProbeError(f"A load needs 1 stream or more; found {streams}.")
        self._target = target
        self._most = streams
        self._limits = limits or Limits()
        self._progress = progress
        self._poll = select.epoll()
        self._streams: dict[int, _Stream] = {}
        self._idle: list[_Stream] = []
        self._inbox: deque[tuple[_Stream, Order, int, bytes]] = deque()
        self._inbox_bytes = 0
        self._report = LoadReport()
        self._active = 0
        self._failed = 0
        self._tokens = 0

    def run(self, orders: Iterable[Order], begin_ns: int = 0) -> LoadReport:
        """Send all orders, which come in the order of their due times, and wait for what comes back.

        With *begin_ns* (monotonic) the load begins then, not at once, so that several clients begin together; one
        that comes too late for it sends late.
        """
        report = self._report
        waiting = deque(orders)
        cpu = time.process_time_ns()
        report.began_ns = began = begin_ns or time.monotonic_ns()
        freed = told = checked = looked = began
        try:
            allow_files(self._most or len(waiting))
            self._connect_ahead(len(waiting))
            while waiting or self._active or self._inbox:
                now = time.monotonic_ns()
                while waiting and began + waiting[0].due_ns <= now and self._has_room():
                    order = waiting.popleft()
                    self._start(order, max(began + order.due_ns, freed if self._most else 0))
                    now = time.monotonic_ns()
                self._gather(looked, waiting, began, now)
                events = self._poll.poll(self._patience(waiting, began, now))
                looked = time.monotonic_ns()
                for number, mask in events:
                    self._serve(number, mask)
                active = self._active
                self._parse()
                if self._active < active:
                    freed = time.monotonic_ns()
                now = time.monotonic_ns()
                if now - checked > PROGRESS_NS / 5:
                    checked = now
                    self._expire(now)
                if now - told > PROGRESS_NS:
                    told = now
                    self._progress(len(report.deliveries), self._failed, self._tokens)
        except KeyboardInterrupt:
            report.interrupted = True
        finally:
            report.ended_ns = time.monotonic_ns()
            report.cpu_ns = time.process_time_ns() - cpu
            for stream in list(self._streams.values()):
                self._drop(stream)
            self._poll.close()
        report.deliveries.sort(key=lambda delivery: delivery.number)
        return report

    def _has_room(self) -> bool:
        return self._most is None or self._active < self._most

    def _patience(self, waiting: deque[Order], began: int, now: int) -> float:
        """Seconds to wait for the sockets: none while there is something to parse, else until an order is due."""
        if self._inbox:
            return 0
        longest = PROGRESS_NS / 5 / 1e9
        if waiting and self._has_room():
            return min(max((began + waiting[0].due_ns - now) / 1e9, 0), longest)
        return longest

    def _gather(self, looked: int, waiting: deque[Order], began: int, now: int) -> None:
        """Leave the sockets alone for a moment, where that costs no stamp and nothing is to be done meanwhile."""
        report = self._report
        if self._active < GATHER_STREAMS or self._inbox or report.stamped < report.reads:
            return
        until = looked + GATHER_NS
        if waiting and self._has_room():
            until = min(until, began + waiting[0].due_ns)
        if until > now:
            time.sleep((until - now) / 1e9)

    def _connect_ahead(self, orders: int) -> None:
        """Open what a closed load needs before its first request, so that no answer waits for a handshake."""
        for _number in range(min(self._most or 0, orders)):
            self._idle.append(self._connect())

    def _connect(self) -> _Stream:
        family = socket.AF_INET6 if ":" in self._target.address[0] else socket.AF_INET
        try:
            handle = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise ProbeError(
                f"Stream {len(self._streams) + 1} of a load could not be opened ({error.strerror}); ask for fewer "
                "streams at once, or raise the limit of open files of the user who probes."
            ) from error
        handle.setblocking(False)
        handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Where the kernel refuses, the stamp is that of the read, and `stamped` tells.
        with contextlib.suppress(OSError):
            handle.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        stream = _Stream(handle)
        self._streams[handle.fileno()] = stream
        # The kernel may refuse at once, such as without a free port, and then SO_ERROR is empty.
        refused = handle.connect_ex(self._target.address)
        stream.refused = refused if refused != errno.EINPROGRESS else 0
        stream.read_ns = time.monotonic_ns()
        self._poll.register(handle.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return stream

    def _start(self, order: Order, due_ns: int) -> None:
        stream = self._idle.pop() if self._idle else self._connect()
        stream.order = order
        stream.pending = self._target.request(order.body)
        stream.answer = AnswerReader()
        stream.errors = bytearray()
        stream.delivery = Delivery(order.number, due_ns, 0)
        self._active += 1
        if stream.connected:
            self._send(stream)

    def _send(self, stream: _Stream) -> None:
        """As much of the request as the kernel takes; the clock of the answer runs from the first byte."""
        if not stream.delivery.sent_ns:
            stream.delivery.sent_ns = stream.read_ns = time.monotonic_ns()
            stream.reader = TraceReader(stream.delivery.sent_ns)
        try:
            sent = stream.handle.send(stream.pending)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lost(stream, error.strerror or type(error).__name__, "write")
            return
        stream.pending = stream.pending[sent:]
        wanted = select.EPOLLIN | (select.EPOLLOUT if stream.pending else 0)
        self._poll.modify(stream.handle.fileno(), wanted)

    def _serve(self, number: int, mask: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if not stream.connected:
            error = stream.refused or stream.handle.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._lost(stream, os.strerror(error), "connect")
                return
            stream.connected = True
            if stream.order is None:
                self._poll.modify(number, select.EPOLLIN)
                return
        if mask & select.EPOLLOUT and stream.pending:
            self._send(stream)
            if self._streams.get(number) is not stream:
                return
        if mask & ~select.EPOLLOUT:
            self._read(stream)

    def _read(self, stream: _Stream) -> None:
        try:
            data, ancillary, _flags, _address = stream.handle.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(stream, error.strerror or type(error).__name__, "read")
            return
        now = time.monotonic_ns()
        if stream.order is None:
            # Whatever comes without a request ends the connection's use.
            self._idle.remove(stream)
            self._drop(stream)
            return
        lag = _age_ns(ancillary)
        report = self._report
        report.reads += 1
        # A clock that was set meanwhile gives an age that cannot be.
        if lag is not None and 0 <= lag <= now - stream.delivery.sent_ns:
            report.stamped += 1
            report.lags_ns.append(lag)
            now -= lag
        stream.read_ns = now
        self._inbox.append((stream, stream.order, now, data))
        self._inbox_bytes += len(data)

    def _parse(self) -> None:
        """What was read, for a while; all of it where too much has come together."""
        until = time.monotonic_ns() + SLICE_NS
        inbox = self._inbox
        while inbox:
            stream, order, at_ns, data = inbox.popleft()
            self._inbox_bytes -= len(data)
            # An order that ended meanwhile, by a fault, wants no more of it.
            if stream.order is order:
                self._take(stream, at_ns, data)
            if time.monotonic_ns() > until and self._inbox_bytes < BACKLOG_BYTES:
                return

    def _take(self, stream: _Stream, at_ns: int, data: bytes) -> None:
        answer = stream.answer
        try:
            if data:
                began = bool(answer.status)
                body = answer.feed(data)
                if answer.status == 200:
                    if not began:
                        refuse_other_content(answer.headers, body[:EXCERPT].decode("utf-8", "replace"))
                    before = len(stream.reader.marks)
                    stream.reader.feed(at_ns, body)
                    brought = len(stream.reader.marks) - before
                    stream.delivery.shared += brought > 1
                elif len(stream.errors) < EXCERPT:
                    stream.errors += body
            else:
                answer.close()
            if answer.ended:
                self._finish(stream)
        except EngineFault as fault:
            if stream.used and not stream.answer.begun:
                self._again(stream)
            else:
                self._fail(stream, fault)

    def _again(self, stream: _Stream) -> None:
        """Send on a fresh connection what went out on one that the other end had closed as idle."""
        order, due_ns = stream.order, stream.delivery.due_ns
        self._active -= 1
        stream.order = None
        self._drop(stream)
        if order is not None:
            self._idle.append(self._connect())
            self._start(order, due_ns)

    def _finish(self, stream: _Stream) -> None:
        status = stream.answer.status
        if status != 200:
            raise AnswerFault(
                f"A streamed POST {self._target.path} was answered with status {status}; expected 200.",
                status=status,
                excerpt=stream.errors.decode("utf-8", "replace")[:EXCERPT],
            )
        trace = stream.reader.finish()
        stream.delivery.trace = trace
        self._tokens += trace.usage.completion_tokens if trace.usage else 0
        self._end(stream)
        if stream.answer.reusable:
            stream.used = True
            self._idle.append(stream)
        else:
            self._drop(stream)

    def _end(self, stream: _Stream) -> None:
        self._report.deliveries.append(stream.delivery)
        stream.order = None
        stream.pending = b""
        self._active -= 1

    def _fail(self, stream: _Stream, fault: EngineFault) -> None:
        stream.delivery.fault = fault
        self._failed += 1
        self._end(stream)
        self._drop(stream)

    def _lost(self, stream: _Stream, said: str, phase: str) -> None:
        """The connection broke."""
        if stream.order is None:
            self._idle.remove(stream)
            self._drop(stream)
            return
        if stream.used and not stream.answer.begun and phase in ("read", "write"):
            self._again(stream)
            return
        host, port = self._target.address
        self._fail(
            stream,
            TransportFault(
                f"POST {self._target.path} to {host}:{port} failed in phase {phase}: {said}; "
                "expected the engine to answer. Look at the unit's log.",
                phase=phase,
            ),
        )

    def _expire(self, now: int) -> None:
        limits = self._limits
        for stream in list(self._streams.values()):
            if stream.order is None:
                continue
            silent = (now - stream.read_ns) / 1e9
            phase, most = ("read", limits.read_s) if stream.connected else ("connect", limits.connect_s)
            if silent > most:
                self._lost(stream, f"nothing came for {most:g} s", phase)
            elif stream.delivery.sent_ns and (now - stream.delivery.sent_ns) / 1e9 > limits.whole_s:
                self._lost(stream, f"the answer was not over after {limits.whole_s:g} s", "deadline")

    def _drop(self, stream: _Stream) -> None:
        if self._streams.pop(stream.handle.fileno(), None) is not None:
            self._poll.unregister(stream.handle.fileno())
        stream.handle.close()


def allow_files(streams: int) -> None:
    """Raise the limit of open files as far as so many streams need and the hard limit lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _age_ns(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """How long ago the kernel got the last packet of a read; None where it does not say."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            age: int = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
            return age
    return None
