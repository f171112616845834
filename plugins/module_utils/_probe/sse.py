# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server-sent events, from bytes as they arrive. Private to socle.inference.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._probe.errors import StreamFault

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Event:
    """One event: its type ("message" unless the server names one) and its data."""

    type: str
    data: str


class EventReader:
    """Turns bytes, cut anywhere (inside a character too), into events. Comments are skipped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._rest = ""
        self._type = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that *chunk* completes."""
        try:
            self._rest += self._decoder.decode(chunk)
        except UnicodeDecodeError as error:
            raise StreamFault(
                f"The stream holds bytes that are not UTF-8 ({error.reason}); expected server-sent events in UTF-8."
            ) from error
        events: list[Event] = []
        start = 0
        for match in _LINE_END.finditer(self._rest):
            if match.group() == "\r" and match.end() == len(self._rest):
                break  # perhaps the first half of \r\n
            event = self._line(self._rest[start : match.start()])
            start = match.end()
            if event:
                events.append(event)
        self._rest = self._rest[start:]
        return events

    def _line(self, line: str) -> Event | None:
        if not line:
            event = Event(self._type or "message", "\n".join(self._data)) if self._data else None
            self._type, self._data = "", []
            return event
        name, _colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        return None
