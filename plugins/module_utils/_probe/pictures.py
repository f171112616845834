# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pictures of which is known what they show, made anew each time. Private to socle.inference."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

Colour = tuple[int, int, int]

COLOURS: dict[str, Colour] = {
    "red": (220, 20, 20),
    "green": (20, 160, 40),
    "blue": (30, 60, 220),
    "yellow": (250, 220, 20),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
}

SIDE = 224
"""Pixels; a multiple of the patches of today's models (14, 16, 28, 32), so that nothing is scaled."""

_SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""Of each digit, as on a display: a on top, b and c on the right, d below, e and f on the left, g in the middle."""

_WIDE, _HIGH, _THICK = 40, 80, 10
_BARS = {
    "a": (0, 0, _WIDE, _THICK),
    "b": (_WIDE - _THICK, 0, _THICK, _HIGH // 2),
    "c": (_WIDE - _THICK, _HIGH // 2, _THICK, _HIGH // 2),
    "d": (0, _HIGH - _THICK, _WIDE, _THICK),
    "e": (0, _HIGH // 2, _THICK, _HIGH // 2),
    "f": (0, 0, _THICK, _HIGH // 2),
    "g": (0, (_HIGH - _THICK) // 2, _WIDE, _THICK),
}
"""x, y, width and height in pixels."""


def plain(colour: str, side: int = SIDE) -> bytes:
    """A square of one colour, as PNG."""
    return png([bytes(COLOURS[colour]) * side] * side)


def number(digits: str) -> bytes:
    """Up to three digits, black on white, as PNG."""
    rows = [bytearray(COLOURS["white"]) * SIDE for _row in range(SIDE)]
    gap = _WIDE // 2
    left = (SIDE - len(digits) * _WIDE - (len(digits) - 1) * gap) // 2
    for place, digit in enumerate(digits):
        for segment in _SEGMENTS[int(digit)]:
            x, y, width, height = _BARS[segment]
            x, y = x + left + place * (_WIDE + gap), y + (SIDE - _HIGH) // 2
            for row in rows[y : y + height]:
                row[3 * x : 3 * (x + width)] = bytes(COLOURS["black"]) * width
    return png([bytes(row) for row in rows])


def png(rows: Sequence[bytes]) -> bytes:
    """Rows of three bytes a pixel, in eight bits a channel without a filter; https://www.w3.org/TR/png-3/"""
    head = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    data = b"".join(b"\0" + row for row in rows)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(data)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
