# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A streamed chat answer as a list of stamped chunks. Private to socle.inference.

What counts as a token's arrival: a chunk that carries text (content, reasoning or a tool call), or one at which the
server's own running count (stream_options.continuous_usage_stats) rises. The opening chunk that only names the role,
and the closing chunk that only carries the usage, are neither: counting them is what made published figures wrong.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.errors import StreamFault
from ansible_collections.socle.inference.plugins.module_utils._probe.sse import Event, EventReader
from ansible_collections.socle.inference.plugins.module_utils._probe.strict_json import parse_json

EXCERPT = 500

MOST_TOKENS = 10_000_000
"""Of one request: ten times the longest context of any model. A count beyond it is rubbish, and would fill memory."""


@dataclass(frozen=True)
class Mark:
    """Tokens arrived at *at_ns*; *tokens* is the server's running count, if it sends one."""

    at_ns: int
    tokens: int | None


class Marks(Sequence[Mark]):
    """Marks in 16 bytes each, since a load of hundreds of streams has a million of them."""

    _UNKNOWN = -1

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self.at_ns = array("q")
        self._tokens = array("q")
        for mark in marks:
            self.add(mark.at_ns, mark.tokens)

    def counts(self) -> array[int] | None:
        """The server's running count at each mark; None where it is missing at one of them."""
        return None if self._UNKNOWN in self._tokens else self._tokens

    def add(self, at_ns: int, tokens: int | None) -> None:
        """Note that tokens arrived."""
        self.at_ns.append(at_ns)
        self._tokens.append(self._UNKNOWN if tokens is None else tokens)

    def __len__(self) -> int:
        return len(self.at_ns)

    def __getitem__(self, place: Any) -> Any:
        """One mark, or a list of them for a slice."""
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        tokens = self._tokens[place]
        return Mark(self.at_ns[place], None if tokens == self._UNKNOWN else tokens)


@dataclass(frozen=True)
class Usage:
    """The server's own count for one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None = None


@dataclass
class Trace:
    """One streamed answer. Times are monotonic nanoseconds."""

    sent_ns: int
    marks: Marks = field(default_factory=Marks)
    done_ns: int = 0
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    fingerprint: str | None = None
    chunks: int = 0

    @property
    def text(self) -> str:
        return self.reasoning + self.content


def parse_usage(raw: Any) -> Usage | None:
    """The usage object of an answer; None when it is missing or not three whole numbers that can be."""
    if not isinstance(raw, dict):
        return None
    counts = [raw.get(key) for key in ("prompt_tokens", "completion_tokens", "total_tokens")]
    if not all(map(is_count, counts)):
        return None
    details = raw.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(counts[0], counts[1], counts[2], cached if is_count(cached) else None)  # type: ignore[arg-type]


def is_count(value: Any) -> bool:
    """A whole number of tokens that can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS


class TraceReader:
    """Collects a stream: feed() takes bytes and the time they came; finish() gives the trace or says what broke."""

    def __init__(self, sent_ns: int) -> None:
        self._trace = Trace(sent_ns)
        self._events = EventReader()
        self._counted = 0
        self.ended = False
        """The server said [DONE]."""

    @property
    def marks(self) -> Marks:
        """Those so far."""
        return self._trace.marks

    def feed(self, at_ns: int, chunk: bytes) -> None:
        for event in self._events.feed(chunk):
            if self.ended:
                raise StreamFault("The stream went on after [DONE].", excerpt=event.data[:EXCERPT])
            if event.data == "[DONE]":
                self._trace.done_ns = at_ns
                self.ended = True
            else:
                self._chunk(at_ns, event)

    def finish(self) -> Trace:
        trace = self._trace
        missing = [
            what
            for what, there in (
                ("[DONE]", self.ended),
                ("a finish_reason", trace.finish_reason is not None),
                ("usage (three whole numbers)", trace.usage is not None),
                ("a single token", bool(trace.marks)),
            )
            if not there
        ]
        if missing:
            raise StreamFault(
                f"The stream ended after {trace.chunks} chunks without {', '.join(missing)}; "
                "the engine or something between cut it short.",
                excerpt=trace.text[-EXCERPT:],
            )
        made = trace.usage.completion_tokens if trace.usage else 0
        if self._counted > made:
            raise StreamFault(
                f"The running count of tokens came to {self._counted} and the usage at the end says {made}; expected "
                "no more on the way than at the end. Whatever counts here cannot be measured by its counts.",
                excerpt=trace.text[-EXCERPT:],
            )
        if trace.finish_reason in ("abort", "error"):
            raise StreamFault(
                f"The engine gave up on the request (finish_reason {trace.finish_reason}); it may be shutting down.",
                excerpt=trace.text[-EXCERPT:],
            )
        return trace

    def _chunk(self, at_ns: int, event: Event) -> None:
        try:
            body = parse_json(event.data)
        except ValueError as error:
            raise StreamFault("A chunk of the stream is not JSON.", excerpt=event.data[:EXCERPT]) from error
        if not isinstance(body, dict):
            raise StreamFault("A chunk of the stream is not a JSON object.", excerpt=event.data[:EXCERPT])
        if event.type == "error" or body.get("error") or "error" in (body.get("object"), body.get("type")):
            raise StreamFault(
                f"The engine reported an error inside the stream: {event.data[:200]}", excerpt=event.data[:EXCERPT]
            )
        trace = self._trace
        trace.chunks += 1
        trace.model = body.get("model") or trace.model
        trace.fingerprint = body.get("system_fingerprint") or trace.fingerprint
        usage = parse_usage(body.get("usage"))
        choices = body.get("choices")
        if not choices:
            trace.usage = usage or trace.usage
            return
        choice = choices[0] if isinstance(choices, list) else None
        delta = (choice.get("delta") or {}) if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(delta, dict):
            raise StreamFault("A chunk of the stream has no choice with a delta.", excerpt=event.data[:EXCERPT])
        content = delta.get("content") or ""
        # Newer engines say "reasoning"; "reasoning_content" is what older ones and other servers say.
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        reason = choice.get("finish_reason") or ""
        if not (isinstance(content, str) and isinstance(reasoning, str) and isinstance(reason, str)):
            raise StreamFault(
                "A chunk of the stream has a content, reasoning or finish_reason that is no text.",
                excerpt=event.data[:EXCERPT],
            )
        trace.content += content
        trace.reasoning += reasoning
        trace.finish_reason = reason or trace.finish_reason
        counted = usage.completion_tokens if usage else None
        rose = counted is not None and counted > self._counted
        if counted is not None:
            self._counted = max(self._counted, counted)
        if content or reasoning or delta.get("tool_calls") or rose:
            # A count that falls again would bring the same tokens twice.
            trace.marks.add(at_ns, None if counted is None else self._counted)
