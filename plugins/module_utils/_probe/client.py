# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP client of the probes. Private to socle.inference.

It never follows a proxy (trust_env=False): a proxy between probe and engine would be measured, and would see the key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import socket
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.socle.inference.plugins.module_utils._probe.errors import (
    AnswerFault,
    ProbeError,
    TransportFault,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.load import Limits, Target
from ansible_collections.socle.inference.plugins.module_utils._probe.sse import (
    Event,
    EventReader,
    refuse_other_content,
)
from ansible_collections.socle.inference.plugins.module_utils._probe.strict_json import parse_json
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import Trace, TraceReader

try:
    import httpx

    HTTPX_IMPORT_ERROR = None
    HTTPX_VERSION: str | None = httpx.__version__
except ImportError:
    HTTPX_IMPORT_ERROR = traceback.format_exc()
    HTTPX_VERSION = None

REQUEST_EXCERPT = 500
ANSWER_EXCERPT = 2000
REDACTED = "********"

MOST_BYTES = 64 * 1024 * 1024
"""Of an answer that is not streamed. The metrics of a busy engine are a megabyte."""

KEY_PART = 8
"""Characters of a key that are as secret as all of it: excerpts cut it anywhere."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds for each phase, and for a whole answer."""

    connect_s: float = 5.0
    read_s: float = 60.0
    write_s: float = 10.0
    pool_s: float = 30.0
    whole_s: float = 600.0


@dataclass(frozen=True)
class Exchange:
    """A request and its answer, ready to be shown: the key never appears."""

    method: str
    path: str
    key: str
    """Which key went along: none, configured, other."""
    sent: str
    status: int
    text: str
    elapsed_ms: float

    def json(self) -> dict[str, Any]:
        try:
            body = parse_json(self.text)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise AnswerFault(
                f"{self.method} {self.path} answered {self.status} with something that is not a JSON object.",
                evidence=self.evidence(),
            )
        return body

    def evidence(self) -> dict[str, Any]:
        return {
            "request": {
                "method": self.method,
                "path": self.path,
                "key": self.key,
                "body": self.sent[:REQUEST_EXCERPT] or None,
            },
            "response": {"status": self.status, "excerpt": self.text[:ANSWER_EXCERPT]},
        }


def phase_of(error: Exception) -> str:
    """The phase of an HTTP exchange in which *error* (an httpx.RequestError) came up."""
    phases: tuple[tuple[str, tuple[type[Exception], ...]], ...] = (
        ("connect", (httpx.ConnectError, httpx.ConnectTimeout)),
        ("write", (httpx.WriteError, httpx.WriteTimeout)),
        ("read", (httpx.ReadError, httpx.ReadTimeout)),
        ("pool", (httpx.PoolTimeout,)),
        ("close", (httpx.CloseError,)),
        ("protocol", (httpx.RemoteProtocolError, httpx.DecodingError)),
        ("redirect", (httpx.TooManyRedirects,)),
    )
    return next((phase for phase, kinds in phases if isinstance(error, kinds)), "request")


def _fault(error: Exception, method: str, url: str) -> Exception:
    phase = phase_of(error)
    said = str(error) or type(error).__name__
    if phase in ("pool", "request"):
        return ProbeError(f"{method} {url} could not be sent ({phase}: {said}).", phase=phase)
    slow = isinstance(error, httpx.TimeoutException)
    return TransportFault(
        f"{method} {url} {'timed out' if slow else 'failed'} in phase {phase}: {said}; expected the engine to answer. "
        "Look at the unit's log.",
        phase=phase,
    )


class EngineClient:
    """Talks to one engine. *transport* is for tests; *clock* gives monotonic nanoseconds."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        transport: Any = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if api_key and not (api_key.isascii() and api_key.isprintable() and api_key == api_key.strip()):
            raise ProbeError(
                "The API key holds characters that no HTTP header can carry; expected ASCII without control characters "
                "and without spaces around it. Correct api_key of the instance in vllm_instances."
            )
        timeouts = timeouts or Timeouts()
        if not all(0 < seconds < math.inf for seconds in dataclasses.astuple(timeouts)):
            raise ProbeError(
                f"The probe was to wait {', '.join(f'{each:g}' for each in dataclasses.astuple(timeouts))} s for "
                "connecting, reading, writing, a free connection and the whole; expected numbers above 0. Correct "
                "read_timeout_s or run_timeout_s."
            )
        root = base_url.rstrip("/")
        self.base_url = root[: -len("/v1")] if root.endswith("/v1") else root
        self._key = api_key or None
        self._timeouts = timeouts
        self._clock = clock
        self._given_up = False
        try:
            # Both look at it in their own way, and urlsplit() at the port only when it is asked for.
            address: Any = httpx.URL(self.base_url)
            _port = urlsplit(self.base_url).port
        except (httpx.InvalidURL, ValueError) as error:
            raise ProbeError(
                f"The address {self.base_url!r} is none that can be asked ({error}); expected one such as "
                "http://127.0.0.1:8000. Correct base_url."
            ) from error
        self._http = httpx.Client(
            base_url=address,
            timeout=httpx.Timeout(
                connect=self._timeouts.connect_s,
                read=self._timeouts.read_s,
                write=self._timeouts.write_s,
                pool=self._timeouts.pool_s,
            ),
            headers={"Accept-Encoding": "identity", "User-Agent": "socle-probe"},
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._http.close()

    def give_up(self) -> None:
        """For another thread: what is under way ends at its next byte, and nothing is sent any more."""
        self._given_up = True

    def _go_on(self) -> None:
        if self._given_up:
            raise ProbeError("The probe was interrupted.")

    def redact(self, text: str) -> str:
        """*text* without the key, also where an excerpt cut it, or JSON wrote it in its way."""
        if not self._key:
            return text
        for key in (self._key, json.dumps(self._key)[1:-1]):
            text = _without(key, text)
        return text

    def redact_all(self, value: Any) -> Any:
        """*value* with the key removed from every string in it."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, dict):
            return {self.redact_all(name): self.redact_all(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.redact_all(item) for item in value]
        return value

    def get(self, path: str, **options: Any) -> Exchange:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Exchange:
        return self.request("POST", path, content=json.dumps(body, ensure_ascii=False), **options)

    def request(
        self, method: str, path: str, content: str = "", with_key: bool = True, other_key: str | None = None
    ) -> Exchange:
        """One exchange, whatever its status. *content* goes out as it is, so that broken bodies can be sent too."""
        self._go_on()
        key = other_key or (self._key if with_key else None)
        started = self._clock()
        try:
            with self._http.stream(
                method, path, content=content.encode() if content else None, headers=_headers(key, bool(content))
            ) as answer:
                text = self._text(answer, f"{method} {path}", started)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _fault(error, method, self.base_url + path) from error
        return Exchange(
            method=method,
            path=path,
            key="other" if other_key else "configured" if key else "none",
            sent=self.redact(content[: 2 * REQUEST_EXCERPT]),
            status=answer.status_code,
            text=text,
            elapsed_ms=round((self._clock() - started) / 1e6, 3),
        )

    @property
    def limits(self) -> Limits:
        """The same patience, for loads."""
        return Limits(self._timeouts.connect_s, self._timeouts.read_s, self._timeouts.whole_s)

    def target(self, path: str) -> Target:
        """Where a load sends its requests, its name looked up. Errors: ProbeError for what is not plain HTTP."""
        url = urlsplit(self.base_url)
        if url.scheme != "http" or not url.hostname:
            raise ProbeError(
                f"A load was to be sent to {self.base_url}; it goes over plain HTTP, since only there the kernel can "
                "stamp what arrives. Give the address of the engine itself, or run workloads of kind generation."
            )
        try:
            found = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
        except OSError as error:
            raise TransportFault(
                f"The name {url.hostname} was looked up for a load and not found ({error.strerror or error}); "
                "expected the engine's address.",
                phase="connect",
            ) from error
        headers = {**_headers(self._key, True), "Accept-Encoding": "identity", "User-Agent": "socle-probe"}
        address = found[0][4]
        return Target((str(address[0]), int(address[1])), url.path.rstrip("/") + path, tuple(headers.items()))

    def stream_chat(self, body: dict[str, Any]) -> Trace:
        """A streamed chat answer with the server's usage, every chunk stamped when its bytes arrived."""
        body = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, **body}
        began, chunks = self._stream("/v1/chat/completions", body)
        reader = TraceReader(began)
        with contextlib.closing(chunks):
            for at_ns, chunk in chunks:
                reader.feed(at_ns, chunk)
        return reader.finish()

    def stream(self, path: str, body: dict[str, Any]) -> list[Event]:
        """All events of a streamed answer of any API, in their order."""
        _began, chunks = self._stream(path, body)
        reader, events = EventReader(), []
        with contextlib.closing(chunks):
            for _at_ns, chunk in chunks:
                events += reader.feed(chunk)
        return events

    def _stream(self, path: str, body: dict[str, Any]) -> tuple[int, Generator[tuple[int, bytes], None, None]]:
        """When the request is sent, and the bytes of the answer, each with the time at which they arrived."""
        content = json.dumps({**body, "stream": True}, ensure_ascii=False).encode()
        began = self._clock()
        return began, self._chunks(path, content, began)

    def _chunks(self, path: str, content: bytes, began: int) -> Generator[tuple[int, bytes], None, None]:
        self._go_on()
        what = f"A streamed POST {path}"
        try:
            with self._http.stream("POST", path, content=content, headers=_headers(self._key, True)) as answer:
                if answer.status_code != 200:
                    raise AnswerFault(
                        f"{what} was answered with status {answer.status_code}; expected 200.",
                        status=answer.status_code,
                        excerpt=self._text(answer, what, began)[:ANSWER_EXCERPT],
                    )
                refuse_other_content(answer.headers)
                for chunk in answer.iter_raw():
                    now = self._clock()
                    yield now, chunk
                    self._expire(what, began, now)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _fault(error, "POST", self.base_url + path) from error

    def _text(self, answer: Any, what: str, began: int) -> str:
        """A whole body, without the key: no longer than it may be, and none that drips for ever."""
        parts, size = [], 0
        for chunk in answer.iter_bytes():
            parts.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                raise AnswerFault(
                    f"{what} was answered with more than {MOST_BYTES} bytes; expected a few. Look at what answers on "
                    "this port.",
                    excerpt=self.redact(parts[0].decode("utf-8", "replace")[:ANSWER_EXCERPT]),
                )
            self._expire(what, began, self._clock())
        return self.redact(b"".join(parts).decode("utf-8", "replace"))

    def _expire(self, what: str, began: int, now: int) -> None:
        self._go_on()
        if now - began > self._timeouts.whole_s * 1e9:
            raise TransportFault(
                f"{what} was not over after {self._timeouts.whole_s:g} s; expected an end by then. Look at the unit's "
                "log, and at what else the engine has to do.",
                phase="deadline",
            )


def _without(key: str, text: str) -> str:
    text = text.replace(key, REDACTED)
    if len(key) <= KEY_PART:
        return text
    # An excerpt that ends within it, or begins within it, whether it is all of the text or quoted inside it.
    place = text.find(key[:KEY_PART])
    while place >= 0:
        alike = KEY_PART
        while text[place : place + alike + 1] == key[: alike + 1] and alike < len(key):
            alike += 1
        text = text[:place] + REDACTED + text[place + alike :]
        place = text.find(key[:KEY_PART], place + len(REDACTED))
    ending = next((key[cut:] for cut in range(1, len(key) - KEY_PART + 1) if text.startswith(key[cut:])), "")
    return REDACTED + text[len(ending) :] if ending else text


def _headers(key: str | None, has_body: bool) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} if has_body else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers
