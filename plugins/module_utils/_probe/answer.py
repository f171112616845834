# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The answer to one HTTP/1.1 request, from bytes as they arrive. Private to socle.inference.

Format: RFC 9112, sections 4 to 7. Bodies are chunked, of a stated length, or end with the connection. A library would
do (httpx brings h11), at about ten times the time for each chunk: with hundreds of streams the client would be what is
measured.
"""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._probe.errors import TransportFault

HEAD_BYTES = 64 * 1024
"""More than any server sends for headers (h11 allows 16 KiB, nginx 32 KiB)."""

CHUNK_LINE_BYTES = 256
"""A chunk's size in hexadecimal digits, and what extensions it may have."""

LENGTH_DIGITS = 18
"""Of the length of a body or of a chunk: nobody has more bytes than that."""

_LINE_END = b"\r\n"
_HEAD_END = b"\r\n\r\n"


class AnswerReader:
    """feed() takes bytes, cut anywhere, and gives those of the body; close() is the end of the connection."""

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is there."""
        self.headers: dict[str, str] = {}
        """By lower-case name; the last one counts where a server repeats one."""
        self.ended = False
        """The whole body is there."""
        self.begun = False
        """A byte of it is there."""
        self._rest = b""
        self._chunked = False
        self._left: int | None = None
        """Bytes of the body, or of the chunk under way, that are still to come; None: until the connection ends."""
        self._closing = False
        """The line end after a chunk is still to come."""
        self._trailer = False

    @property
    def reusable(self) -> bool:
        """The connection can take another request: the answer ended by its own rules and nobody said close."""
        return self.ended and self._left is not None and "close" not in self.headers.get("connection", "").lower()

    def feed(self, data: bytes) -> bytes:
        """Errors: TransportFault where it is no HTTP/1.1, or where bytes follow the answer's end."""
        if self.ended:
            raise _broken("bytes came after its end", data)
        self.begun = self.begun or bool(data)
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if not self.status:
            data = self._head(data)
            if not self.status:
                return b""
        if self._chunked:
            return self._chunks(data)
        if self._left is None:
            return data
        if len(data) > self._left:
            raise _broken(f"{len(data) - self._left} bytes came after its end", data)
        self._left -= len(data)
        self.ended = self._left == 0
        return data

    def close(self) -> None:
        """The connection has ended. Errors: TransportFault where the answer had not."""
        if self.ended:
            return
        if self.status and self._left is None and not self._chunked:
            self.ended = True
            return
        if not self.status and not b"HTTP/1.".startswith(self._rest[:7]):
            raise _broken("what came before the connection ended is no HTTP, but perhaps TLS", self._rest)
        raise TransportFault(
            "The connection ended in the middle of the answer; the engine or something between cut it short."
            if self.status
            else "The connection ended before an answer; the engine or something between closed it.",
            phase="read",
        )

    def _head(self, data: bytes) -> bytes:
        """Take the head off *data*; interim answers (100 to 199) are passed over."""
        while True:
            end = data.find(_HEAD_END)
            if end < 0:
                if len(data) > HEAD_BYTES:
                    raise _broken(f"its head is longer than {HEAD_BYTES} bytes", data)
                self._rest = data
                return b""
            head, data = data[:end].decode("latin-1"), data[end + len(_HEAD_END) :]
            first, _end, lines = head.partition("\r\n")
            version, _space, said = first.partition(" ")
            code = said[:3]
            if not version.startswith("HTTP/1.") or not code.isdecimal():
                raise _broken("it does not begin with a status line", first.encode())
            if code.startswith("1"):
                continue
            self.status = int(code)
            break
        for line in lines.split("\r\n") if lines else ():
            name, _colon, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._body()
        return data

    def _body(self) -> None:
        """How the body ends, by the head."""
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self._chunked:
            self._left = 0
        elif self.status in (204, 304):
            self._left, self.ended = 0, True
        elif length is not None:
            # int() refuses more than 4300 digits.
            if not length.isdecimal() or len(length) > LENGTH_DIGITS:
                raise _broken("its content-length is no number that can be", length[:200].encode())
            self._left = int(length)
            self.ended = self._left == 0

    def _chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        place, size = 0, len(data)
        while place < size:
            if self._left:
                taken = data[place : place + self._left]
                body.append(taken)
                self._left -= len(taken)
                place += len(taken)
                self._closing = not self._left
                continue
            end = data.find(_LINE_END, place)
            if end < 0:
                if size - place > CHUNK_LINE_BYTES:
                    raise _broken("a chunk does not begin with its size", data[place:])
                self._rest = data[place:]
                break
            line = data[place:end]
            place = end + 2
            if self._closing:
                if line:
                    raise _broken("a chunk is longer than it says, no line end follows it", line)
                self._closing = False
                continue
            if self._trailer:
                # Trailers are of no use to anybody here; an empty line ends them and the answer.
                if not line:
                    self.ended = True
                    if place < size:
                        raise _broken(f"{size - place} bytes came after its end", data[place:])
                continue
            digits = line.partition(b";")[0].strip()
            # int() would take a sign, an underscore and 0x as well.
            if not digits.isalnum() or len(digits) > LENGTH_DIGITS:
                raise _broken("a chunk does not begin with its size", line)
            try:
                self._left = int(digits, 16)
            except ValueError:
                raise _broken("a chunk does not begin with its size", line) from None
            self._trailer = not self._left
        return body[0] if len(body) == 1 else b"".join(body)


def _broken(what: str, seen: bytes) -> TransportFault:
    return TransportFault(
        f"The engine's answer is not HTTP/1.1 as it should be: {what}.",
        phase="protocol",
        excerpt=seen[:200].decode("latin-1"),
    )
