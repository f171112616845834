# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server-sent events, from bytes as they arrive. Private to socle.inference.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._probe.errors import AnswerFault, StreamFault

_PLAIN = b"data: "
_LINE_END = re.compile(r"\r\n|\n|\r")


EVENT_CHARACTERS = 16 * 1024 * 1024
"""Of one event, at most. The longest is the whole answer that closes a stream of the Responses API."""


def refuse_other_content(headers: Mapping[str, str], excerpt: str = "") -> None:
    """What the head of an answer with status 200 says; *headers* by lower-case name. One that says nothing may pass.

    Errors: AnswerFault for a body that is no stream of events, such as the page of a proxy.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    coding = headers.get("content-encoding", "").strip().lower()
    if kind and kind != "text/event-stream":
        raise AnswerFault(
            f"A streamed request was answered with status 200 and {kind[:80]}; expected text/event-stream. Look at "
            "what answers on this port: the engine or something before it does not stream.",
            excerpt=excerpt,
        )
    if coding not in ("", "identity"):
        raise AnswerFault(
            f"A streamed request was answered in the coding {coding[:80]}, although it asked for none "
            "(Accept-Encoding: identity); expected text as it is. Look at what sits between probe and engine.",
        )


@dataclass(frozen=True)
class Event:
    """One event: its type ("message" unless the server names one) and its data."""

    type: str
    data: str


class EventReader:
    """Turns bytes, cut anywhere (inside a character too), into events. Comments are skipped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._parts: list[str] = []
        """Of a line that has not ended: looking for its end once in each part keeps a long line cheap."""
        self._return = ""
        """A carriage return at the end, which may be the first half of a line end."""
        self._type = ""
        self._data: list[str] = []
        self._held = self._unended = 0
        """Characters of the event under way: of its whole lines, and of the one that has not ended."""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that *chunk* completes."""
        plain = chunk.startswith(_PLAIN) and chunk.endswith(b"\n\n") and chunk.find(b"\n") == len(chunk) - 2
        if plain and b"\r" not in chunk and self._idle():
            # One whole event of one line, as engines write them; what is said below holds, at a third of the time.
            with contextlib.suppress(UnicodeDecodeError):
                return [Event("message", chunk[len(_PLAIN) : -2].decode("utf-8"))]
        try:
            text = self._return + self._decoder.decode(chunk)
        except UnicodeDecodeError as error:
            raise StreamFault(
                f"The stream holds bytes that are not UTF-8 ({error.reason}); expected server-sent events in UTF-8."
            ) from error
        self._return = "\r" if text.endswith("\r") else ""
        text = text[:-1] if self._return else text
        events: list[Event] = []
        start = 0
        for match in _LINE_END.finditer(text):
            line = text[start : match.start()]
            if self._parts:
                line = "".join([*self._parts, line])
                self._parts, self._unended = [], 0
            start = match.end()
            event = self._line(line)
            if event:
                events.append(event)
        if start < len(text):
            self._parts.append(text[start:])
            self._unended += len(text) - start
        if self._held + self._unended > EVENT_CHARACTERS:
            raise StreamFault(
                f"The stream sent more than {EVENT_CHARACTERS} characters without the end of an event; expected "
                "server-sent events, each closed by an empty line. Look at what sits between probe and engine."
            )
        return events

    def _idle(self) -> bool:
        """Nothing is left of what came before."""
        return not (self._parts or self._return or self._data or self._type or self._decoder.getstate()[0])

    def _line(self, line: str) -> Event | None:
        if not line:
            event = Event(self._type or "message", "\n".join(self._data)) if self._data else None
            self._type, self._data, self._held = "", [], 0
            return event
        name, _colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            self._data.append(value)
            self._held += len(line) + 1
        elif name == "event":
            self._type = value
        return None
