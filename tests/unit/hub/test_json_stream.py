# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON read piece by piece is what the json module reads at once."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub import json_stream
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import TooMuch, read_events

VALUES: tuple[Any, ...] = (
    0,
    -1,
    12345678901234567890,
    1.5e300,
    -0.25,
    True,
    False,
    None,
    "",
    "text",
    'quote " backslash \\ \n \x7f',
    "é中\U0001f600",
    float("inf"),
)
BROKEN = (
    "",
    " ",
    "{",
    "[1,",
    "[1 2]",
    "[1,]",
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    "{1:2}",
    "[}",
    "]",
    "1 2",
    "{}{}",
    "01",
    "1.",
    "-",
    "1e",
    "+1",
    "tru",
    "truee",
    "'a'",
    '"a',
    '"\\x"',
    '"\\u12"',
    '"line\nbreak"',
    "[1]x",
    ",",
    ":",
    "\x00",
)


def rebuild(data: bytes) -> Any:
    """The document that the events are of."""
    stack: list[Any] = [[]]
    keys: list[str] = []

    def put(value: Any) -> None:
        if isinstance(stack[-1], list):
            stack[-1].append(value)
        else:
            stack[-1][keys.pop()] = value

    for kind, text in read_events(io.BytesIO(data), len(data)):
        if kind in ("{", "["):
            value: Any = {} if kind == "{" else []
            put(value)
            stack.append(value)
        elif kind in ("}", "]"):
            stack.pop()
        elif kind == "key":
            keys.append(text)
        else:
            put(text if kind == "text" else json.loads(text))
    return stack[0][0]


def invent(chance: random.Random, depth: int = 0) -> Any:
    if depth > 4 or chance.random() < 0.3:
        return chance.choice(VALUES)
    values = [invent(chance, depth + 1) for _number in range(chance.randrange(5))]
    if chance.random() < 0.5:
        return values
    return {f"{chance.choice(('k', 'é', 'a b'))}{number}": value for number, value in enumerate(values)}


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_it_reads_what_the_json_module_reads(monkeypatch: pytest.MonkeyPatch, piece: int, encoding: str) -> None:
    monkeypatch.setattr(json_stream, "PIECE", max(piece, 4))
    monkeypatch.setattr(json_stream, "MARGIN", 64)
    chance = random.Random(piece)
    for number in range(150):
        document = invent(chance)
        text = json.dumps(document, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 2, 90)))
        assert rebuild(text.encode(encoding)) == document, number


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("piece", [4, 1 << 16])
def test_what_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, piece: int) -> None:
    monkeypatch.setattr(json_stream, "PIECE", piece)
    with pytest.raises(ValueError):
        json.loads(text)
    with pytest.raises(ValueError, match="at or after character"):
        rebuild(text.encode())
    with pytest.raises(ValueError, match="at or after character"):
        rebuild(b"[" + text.encode() + b'" ' * 100)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="decode"):
        rebuild(b'["\xff\xfe\xff"]')


def test_what_no_model_needs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooMuch, match="nested too deeply"):
        rebuild(b"[" * 100_000)
    with pytest.raises(TooMuch, match="a text longer than 4 MiB"):
        rebuild(b'["' + b"a" * (9 << 20) + b'"]')
    with pytest.raises(TooMuch, match="a text longer than 4 MiB"):
        rebuild(b"[" + b"1" * (9 << 20) + b"]")
    monkeypatch.setattr(json_stream, "TOKENS_MAX", 100)
    with pytest.raises(TooMuch, match="more than 100 values"):
        rebuild(b"[" + b"1," * 100 + b"1]")
