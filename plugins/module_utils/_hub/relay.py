# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves the files of one snapshot to the neighbours, also while they still grow. Private to socle.inference.

A small HTTP/1.1 server on one address of the host: GET and HEAD of the paths of the manifest, a bearer token, one
range, one request per connection. The entity tag names the generation of a file: after a restart of the file, a request
with If-Range gets it from its start. A request for more than there is waits Limits.hold_s and is then told so (503,
"waiting"), so that a neighbour can tell a slow source from a dead one; 410 says that nothing more will come.

Hosts that have the model ask each other for what they find damaged, and must not wait for each other where all of them
find the same. So each names its own relay with a request (RANK_HEADER), and of two that lack a file the one with the
greater name waits for the other one, which is told at once that there is nothing to wait for. REPORT says that what was
served of a complete file has the wrong hash.
"""

from __future__ import annotations

import collections
import contextlib
import hmac
import ipaddress
import os
import re
import resource
import secrets
import socket
import stat
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf

STATE_HEADER = "X-Socle-State"
PROGRESS_HEADER = "X-Socle-Progress"
RANK_HEADER = "X-Socle-Rank"
REPORT = "REPORT"
WAITING = "waiting"
ENDED = "ended"
STAR_HOSTS = 64
"""Hosts that take from one where their own neighbours cannot be reached; more of them wait for each other."""
OWN_FILES = 256
"""Of the process besides: its own download, and connections that have shown no token yet."""
SEND_BYTES = 4 << 20
"""Between two looks at the generation; what is sent of a file that starts over is at most this."""
RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")
REASONS = {
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    410: "Gone",
    416: "Range Not Satisfiable",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Limits:
    """What a relay puts up with."""

    connections: int = 256
    """At once, of neighbours; see star_connections()."""
    strangers: int = 128
    """Connections at once that have shown no token yet."""
    strangers_per_address: int = 16
    header_s: float = 5.0
    """For the whole request: a client that sends one byte at a time is cut off as well."""
    header_bytes: int = 8192
    hold_s: float = 5.0
    """For a file to grow, before the client is told to ask again."""
    send_s: float = 30.0
    """For a client that takes nothing."""


class _Refused(Exception):
    """The request gets a short answer with this status."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class _Wanted:
    """A request that may be answered."""

    method: str
    path: str
    headers: dict[str, str]


class Relay:
    """The server; close() ends it with all its connections."""

    def __init__(
        self,
        shelf: Shelf,
        address: str,
        tokens: Iterable[str],
        limits: Limits | None = None,
        doubt: Callable[[str], None] = lambda _path: None,
    ) -> None:
        """*doubt* is told the path of each complete file that a neighbour found to be something else."""
        self._shelf = shelf
        self._doubt = doubt
        self._limits = limits or Limits()
        self._tokens = [token.encode() for token in tokens]
        self._nonce = secrets.token_hex(6)
        self._slots = threading.BoundedSemaphore(self._limits.connections)
        self._strangers: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._used = self._made = time.monotonic()
        self._closed = False
        self._listener = _listen(address)
        self.address, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def admit(self, token: str) -> None:
        """Accept *token* as well: of a later run that joins this one."""
        with self._lock:
            if token.encode() not in self._tokens:
                self._tokens.append(token.encode())

    @property
    def rank(self) -> str:
        """What decides who waits for whom, of two that lack the same file."""
        return f"{self.address} {self.port}"

    def idle_s(self) -> float:
        """Seconds since a neighbour was last served, or since the start where none was yet."""
        return time.monotonic() - self._used

    def in_use(self, within_s: float) -> bool:
        """Whether a neighbour was served in the last *within_s* seconds."""
        return self._used > self._made and self.idle_s() < within_s

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = list(self._open)
        # A plain close would leave accept() waiting.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, client = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                # Out of descriptors, or a client that was gone at once.
                time.sleep(0.1)
                continue
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                full = self._strangers[client[0]] >= self._limits.strangers_per_address
                full = full or sum(self._strangers.values()) >= self._limits.strangers
                if not full:
                    self._strangers[client[0]] += 1
                    self._open.add(connection)
            if full:
                self._turn_away(connection)
                continue
            try:
                threading.Thread(target=self._serve, args=(connection, client[0]), name="relay", daemon=True).start()
            except RuntimeError:
                # The host lets this process have no more of them just now; neighbours come again.
                self._forget_stranger(client[0])
                with self._lock:
                    self._open.discard(connection)
                self._turn_away(connection)

    def _turn_away(self, connection: socket.socket) -> None:
        """Tell a client to come again, without waiting for its request."""
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.sendall(_head(503, {STATE_HEADER: WAITING, "Content-Length": "0"}))
            connection.shutdown(socket.SHUT_WR)
            # What was read is not answered by a reset, which may overtake the answer.
            connection.recv(self._limits.header_bytes)

    def _serve(self, connection: socket.socket, address: str) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                try:
                    try:
                        wanted = _read_request(connection, self._limits)
                        self._check_token(wanted)
                    finally:
                        self._forget_stranger(address)
                    self._answer(connection, wanted)
                except _Refused as refused:
                    connection.settimeout(self._limits.header_s)
                    connection.sendall(_head(refused.status, {**refused.headers, "Content-Length": "0"}))
        finally:
            with self._lock:
                self._open.discard(connection)

    def _forget_stranger(self, address: str) -> None:
        with self._lock:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]

    def _check_token(self, wanted: _Wanted) -> None:
        kind, _blank, token = wanted.headers.get("authorization", "").partition(" ")
        given = token.encode("latin-1", "replace")
        with self._lock:
            known = [hmac.compare_digest(given, token) for token in self._tokens]
        if kind != "Bearer" or not any(known):
            raise _Refused(401)
        self._used = time.monotonic()

    def _answer(self, connection: socket.socket, wanted: _Wanted) -> None:
        if wanted.method not in ("GET", "HEAD", REPORT):
            raise _Refused(405, Allow="GET, HEAD")
        # Looked up, never joined to a folder: what the manifest does not name does not exist.
        known = self._shelf.files.get(wanted.path)
        if known is None:
            raise _Refused(404)
        if wanted.method == REPORT:
            # What is not proven here was never called right; it starts over by itself.
            if known.proven:
                self._doubt(known.path)
            raise _Refused(204)
        if wanted.method == "HEAD":
            offset, end, partial = self._read_range(wanted, known)
            connection.sendall(_head(206 if partial else 200, self._describe(known, offset, end, partial)))
            return
        if not self._slots.acquire(timeout=self._limits.hold_s):
            raise self._waiting()
        try:
            self._send_file(connection, wanted, known)
        finally:
            self._slots.release()

    def _send_file(self, connection: socket.socket, wanted: _Wanted, known: Growing) -> None:
        generation = known.generation
        offset, end, partial = self._read_range(wanted, known)
        file, descriptor = self._open_file(known, offset, wanted.headers.get(RANK_HEADER.lower()))
        try:
            if file.generation != generation and partial and "if-range" in wanted.headers:
                # It started over just now: asked again, it is sent from its start.
                raise self._waiting()
            headers = self._describe(file, offset, end, partial)
            _limit_sending(connection, self._limits.send_s)
            connection.sendall(_head(206 if partial else 200, headers))
            self._send(connection, descriptor, file, offset, end)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _waiting(self) -> _Refused:
        return _Refused(503, **{STATE_HEADER: WAITING, PROGRESS_HEADER: self._shelf.progress()})

    def _read_range(self, wanted: _Wanted, file: Growing) -> tuple[int, int, bool]:
        """First byte, end, and whether that is less than was asked of the whole file."""
        asked = wanted.headers.get("range")
        stale = wanted.headers.get("if-range", self._tag(file)) != self._tag(file)
        if asked is None or stale:
            return 0, file.size, False
        found = RANGE.fullmatch(asked)
        if not found:
            raise _Refused(400)
        first, end = int(found[1]), int(found[2]) + 1 if found[2] else file.size
        if first >= file.size or end <= first:
            raise _Refused(416, Content_Range=f"bytes */{file.size}")
        return first, min(end, file.size), True

    def _tag(self, file: Growing) -> str:
        return f'"{self._nonce}-{file.generation}"'

    def _describe(self, file: Growing, offset: int, end: int, partial: bool) -> dict[str, str]:
        headers = {
            "Content-Length": str(end - offset),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            "ETag": self._tag(file),
        }
        if partial:
            headers["Content-Range"] = f"bytes {offset}-{end - 1}/{file.size}"
        return headers

    def _open_file(self, known: Growing, offset: int, rank: str | None) -> tuple[Growing, int | None]:
        """The file once it holds more than *offset* bytes, opened; an empty one needs no descriptor."""
        until = time.monotonic() + self._limits.hold_s
        while True:
            if known.size == 0:
                return known, None
            if rank is not None and rank < self.rank and self._shelf.lacks(known.path):
                raise _Refused(410, **{STATE_HEADER: ENDED})
            file = self._shelf.wait(known.path, offset, None, max(0.0, until - time.monotonic()))
            if file is not None and file.location is not None:
                with contextlib.suppress(OSError):
                    descriptor = os.open(file.location, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        return file, descriptor
                    os.close(descriptor)
            elif self._shelf.closed:
                raise _Refused(410, **{STATE_HEADER: ENDED})
            if time.monotonic() >= until or self._closed:
                # What is complete and cannot be opened was removed, or is damaged: it will not come back by waiting.
                if file is not None and file.proven:
                    raise _Refused(410, **{STATE_HEADER: ENDED})
                raise self._waiting()
            # It is just being moved to its final place.
            time.sleep(0.05)

    def _send(self, connection: socket.socket, descriptor: int | None, file: Growing, offset: int, end: int) -> None:
        """Send what there is, and what comes; ends early where the file starts over, or stays as it is too long."""
        while offset < end and descriptor is not None and not self._closed:
            grown = self._shelf.wait(file.path, offset, file.generation, self._limits.hold_s)
            if grown is None:
                return
            upto = min(grown.prefix, end, offset + SEND_BYTES)
            count = os.sendfile(connection.fileno(), descriptor, offset, upto - offset)
            if count == 0:
                return
            offset += count
            self._used = time.monotonic()


def star_connections(per_neighbour: int) -> int:
    """How many connections a host serves at once that STAR_HOSTS others all take from, as far as the process may open
    so many files: each takes a socket and a file."""
    wanted = STAR_HOSTS * per_neighbour
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * wanted + OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted = min(wanted, max(per_neighbour, (soft - OWN_FILES) // 2))
    return wanted


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that a connection to *text* reaches: ::ffff:10.0.0.1 is 10.0.0.1 of IPv4; ValueError for none."""
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def check_address(address: str) -> None:
    """Raise HubError unless *address* is one address, for neighbours to connect to."""
    try:
        parsed = parse_address(address)
    except ValueError:
        raise HubError(f"lan_address must be an IP address of the host, found {address[:100]!r}") from None
    if parsed.is_unspecified or parsed.is_multicast:
        raise HubError(
            f"lan_address must be one address of the host, found {address}: a model is never served on all of them"
        )


def _listen(address: str) -> socket.socket:
    check_address(address)
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise HubError(
            f"the models cannot be served on {address} ({error.strerror}): set lan_address to an address of the host "
            "that its neighbours reach"
        ) from error
    return listener


def _limit_sending(connection: socket.socket, seconds: float) -> None:
    """sendfile() needs a blocking socket; the kernel's own limit ends it where nothing is taken."""
    connection.settimeout(None)
    connection.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    )


def _read_request(connection: socket.socket, limits: Limits) -> _Wanted:
    until = time.monotonic() + limits.header_s
    received = b""
    while b"\r\n\r\n" not in received:
        left = until - time.monotonic()
        if left <= 0:
            raise _Refused(408)
        if len(received) > limits.header_bytes:
            raise _Refused(431)
        connection.settimeout(left)
        try:
            chunk = connection.recv(4096)
        except socket.timeout:
            raise _Refused(408) from None
        if not chunk:
            raise _Refused(400)
        received += chunk
    lines = received.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        raise _Refused(400)
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise _Refused(400)
        headers[name.lower()] = value.strip()
    return _Wanted(parts[0], urllib.parse.unquote(parts[1][1:], errors="replace"), headers)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join([*lines, "Connection: close", "", ""])).encode("latin-1")
