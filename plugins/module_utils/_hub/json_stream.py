# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON that somebody else wrote, weighed before it is parsed, or read piece by piece. Private to socle.inference.

The json module needs up to 80 bytes of memory for each byte of a document made of many small objects. Here only the
piece at hand and the depth are kept, and what no model needs is refused before it takes long.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import BinaryIO

PIECE = 1 << 16
TEXT_MAX = 4 << 20
"""Characters of one text, such as a chat template."""
DEPTH_MAX = 500
TOKENS_MAX = 5_000_000
"""Texts, numbers, words and signs; 150 000 tensors, the most that a model has so far, take 3.6 million."""
JSON_MAX_COST = 56 << 20
"""Bytes of memory that a document may take when it is parsed at once; the listing of 30 000 files stays below."""
MARGIN = 64
"""A number or a word that ends so many characters before the end of a piece does not go on in the next one."""

_TOKEN = re.compile(
    r"[ \t\n\r]*(?:([\[\]{},:])|(\")"
    r"|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity)|)"
)
_CLOSES = {"}": "{", "]": "["}


def json_cost(body: bytes) -> int:
    """Bytes of memory that json.loads() takes for *body*, at most: its text, the texts in it, and the objects.

    One character beyond the first 65 536 makes four bytes of each in its text. The sizes are those of CPython.
    """
    text = len(body) * (1 if body.isascii() and b"\\u" not in body else 4)
    return 2 * text + 240 * body.count(b"{") + 90 * body.count(b"[") + 90 * body.count(b",") + 60 * body.count(b":")


class TooMuch(ValueError):
    """No document of a model is like this; the message goes on after "it"."""


class _Tokens:
    """The tokens of the next *length* bytes of *handle*, and ("", "") at their end."""

    def __init__(self, handle: BinaryIO, length: int) -> None:
        self._handle = handle
        self._left = length
        self._ended = False
        self._text, self._at = "", 0
        self._passed = 0
        """Characters before _text."""
        first = handle.read(min(length, PIECE))
        self._left -= len(first)
        self._decoder = codecs.getincrementaldecoder(json.detect_encoding(first))("surrogatepass")
        self._add(first)

    def _add(self, piece: bytes) -> None:
        self._ended = not piece or not self._left
        self._passed += self._at
        self._text, self._at = self._text[self._at :] + self._decoder.decode(piece, self._ended), 0

    def _refill(self) -> None:
        """Drop what was read, and read on: as much again as a token has so far, so that a long one costs no more."""
        if len(self._text) - self._at > TEXT_MAX:
            raise TooMuch(f"holds a text longer than {TEXT_MAX >> 20} MiB")
        piece = self._handle.read(min(self._left, max(PIECE, len(self._text) - self._at)))
        self._left -= len(piece)
        self._add(piece)

    def next(self) -> tuple[str, str]:
        while True:
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                raise self.fault("something unexpected")
            end = match.end()
            if match.lastindex == 1:
                self._at = end
                return match[1], ""
            if match.lastindex == 2:
                self._at = end - 1
                return "text", self._scan_text()
            if self._ended or end + MARGIN <= len(self._text):
                if match.lastindex is None and end < len(self._text):
                    raise self.fault("something unexpected")
                self._at = end
                return ("word", match[3]) if match.lastindex else ("", "")
            if match.lastindex is None:
                self._at = end
            self._refill()

    def _scan_text(self) -> str:
        while True:
            try:
                text, self._at = scanstring(self._text, self._at + 1, True)
                return str(text)
            except json.JSONDecodeError as error:
                # At the end of a piece, a text without its end or with half an escape may be a good one.
                if self._ended or (not error.msg.startswith("Unterminated") and error.pos + MARGIN < len(self._text)):
                    raise self.fault(error.msg) from error
            self._refill()

    def fault(self, what: str) -> ValueError:
        return ValueError(f"{what} at or after character {self._passed + self._at}")


def read_events(handle: BinaryIO, length: int) -> Iterator[tuple[str, str]]:
    """What a JSON document in the next *length* bytes of *handle* is made of, in order.

    One of "{", "}", "[" and "]" with an empty text, "key", "text", or "word" (a number as it is written, true, false or
    null). As the json module does, it takes NaN and Infinity. Raises ValueError for what is no JSON, TooMuch for more
    than a document of a model holds.
    """
    tokens = _Tokens(handle, length)
    open_brackets: list[str] = []
    # What may come: a value, a key, a colon, or what follows a value; an end of an object or a list that is empty.
    expected, may_end = "value", False
    for _number in range(TOKENS_MAX):
        kind, text = tokens.next()
        if expected == "value" and kind in ("text", "word", "{", "["):
            yield kind, text
            if kind in ("text", "word"):
                expected, may_end = "next", False
                continue
            if len(open_brackets) == DEPTH_MAX:
                raise TooMuch("is nested too deeply")
            open_brackets.append(kind)
            expected, may_end = "key" if kind == "{" else "value", True
        elif expected == "key" and kind == "text":
            yield "key", text
            expected, may_end = "colon", False
        elif expected == "colon" and kind == ":":
            expected = "value"
        elif expected == "next" and kind == "," and open_brackets:
            expected = "key" if open_brackets[-1] == "{" else "value"
        elif (expected == "next" or may_end) and open_brackets and _CLOSES.get(kind) == open_brackets[-1]:
            open_brackets.pop()
            yield kind, ""
            expected, may_end = "next", False
        elif expected == "next" and not kind and not open_brackets:
            return
        else:
            raise tokens.fault("something unexpected" if kind else "an early end")
    raise TooMuch(f"holds more than {TOKENS_MAX} values and signs")
