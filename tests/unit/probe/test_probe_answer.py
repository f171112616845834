# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of HTTP/1.1, whole and cut, right and wrong."""

from __future__ import annotations

import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe.answer import HEAD_BYTES, AnswerReader
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import TransportFault

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;name=value\r\n wor\r\n\r\n0\r\nX-Trailer: 1\r\n\r\n"
)


@pytest.mark.parametrize("size", range(1, len(CHUNKED) + 1))
def test_a_chunked_body_is_the_same_however_it_is_cut(size: int) -> None:
    answer = AnswerReader()
    body = b"".join(answer.feed(CHUNKED[place : place + size]) for place in range(0, len(CHUNKED), size))
    assert (answer.status, body, answer.ended, answer.reusable) == (200, b"hello wor\r\n", True, True)


def test_a_body_of_a_stated_length_ends_with_it() -> None:
    answer = AnswerReader()
    body = answer.feed(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nno")
    assert not answer.ended
    body += answer.feed(b" no")
    assert (answer.status, body, answer.ended, answer.reusable) == (404, b"no no", True, True)


def test_a_body_of_no_length_ends_with_the_connection() -> None:
    answer = AnswerReader()
    assert answer.feed(b"HTTP/1.0 200 OK\r\n\r\nall of it") == b"all of it"
    assert not answer.ended
    answer.close()
    assert answer.ended and not answer.reusable


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
def test_an_answer_without_a_body_ends_with_its_head(head: bytes) -> None:
    answer = AnswerReader()
    assert answer.feed(head) == b""
    assert answer.ended and answer.reusable


def test_a_server_that_closes_is_not_asked_again_on_that_connection() -> None:
    answer = AnswerReader()
    answer.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert answer.ended and not answer.reusable


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "status line"),
        (b"HTTP/1.1 two hundred\r\n\r\n", "status line"),
        (b"X" * (HEAD_BYTES + 1), "head is longer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "content-length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc", "after its end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n", "begin with its size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "begin with its size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 300, "begin with its size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore", "after its end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd0\r\n", "line end"),
    ],
)
def test_what_is_no_http_is_said_to_be_none(data: bytes, words: str) -> None:
    with pytest.raises(TransportFault, match=words) as caught:
        AnswerReader().feed(data)
    assert caught.value.phase == "protocol"


def test_bytes_after_the_end_are_refused_also_when_they_come_later() -> None:
    answer = AnswerReader()
    answer.feed(CHUNKED)
    with pytest.raises(TransportFault, match="after its end"):
        answer.feed(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize("place", [0, 10, len(CHUNKED) - 1])
def test_an_answer_cut_short_is_a_fault(place: int) -> None:
    answer = AnswerReader()
    answer.feed(CHUNKED[:place])
    with pytest.raises(TransportFault) as caught:
        answer.close()
    assert caught.value.phase == "read"
