# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A neighbour's relay as a place that files come from. Private to socle.inference."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import NotYet
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.relay import (
    PROGRESS_HEADER,
    RANK_HEADER,
    REPORT,
    STATE_HEADER,
    WAITING,
)

CONNECT_S = 3.0
READ_S = 15.0
"""Longer than a relay is ever silent (relay.Limits.hold_s)."""


@dataclass(frozen=True)
class Upstream:
    """Where a neighbour serves."""

    name: str
    """The host's name in the inventory."""
    address: str
    port: int

    def describe(self) -> str:
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.name} ({shown}:{self.port})"


class Peer:
    """An Origin: the relay of one neighbour. No proxy is ever used, whatever the environment says."""

    kind = "lan"
    ranges = False

    def __init__(
        self,
        upstream: Upstream,
        token: str,
        policy: Policy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rank: str | None = None,
    ) -> None:
        """*rank*: where this host's own relay is, for one that has the model already but for what is damaged, so that
        it and another one that lacks the same do not wait for each other (see relay)."""
        self.upstream = upstream
        self.host = upstream.describe()
        self.policy = replace(policy or Policy(), stall_s=READ_S)
        self.sleep = sleep
        self._headers = {"Authorization": f"Bearer {token}", **({RANK_HEADER: rank} if rank else {})}
        self._tags: dict[str, str] = {}
        self._lock = threading.Lock()

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        """The answer of the relay; its bytes are sent while they arrive there.

        A file that started over at the neighbour since its bytes were taken is sent from its start, with status 200.
        """
        headers = dict(self._headers)
        if offset or end is not None:
            headers["Range"] = f"bytes={offset}-{'' if end is None else end - 1}"
        with self._lock:
            tag = self._tags.get(file.path)
        if offset and tag:
            headers["If-Range"] = tag
        response = self._request("GET", file.path, headers)
        if response.status >= 400:
            response.close()
            if response.headers.get(STATE_HEADER) == WAITING:
                progress = response.headers.get(PROGRESS_HEADER)
                raise NotYet(f"{self.host} has no more of {file.path} yet", progress)
            raise urllib.error.HTTPError(self._url(file.path), response.status, response.reason, response.headers, None)
        with self._lock:
            self._tags[file.path] = response.headers.get("ETag") or ""
        return _Answer(response, self.host)

    def is_own(self, url: str | None) -> bool:
        """Every refusal is final: a relay redirects nowhere."""
        return True

    def describe_route(self) -> str:
        return "over the LAN"

    def reach(self, file: ModelFile) -> str | None:
        """Why the relay cannot be used, or None; asks for nothing but the head of *file*."""
        try:
            response = self._request("HEAD", file.path, self._headers)
        except (OSError, http.client.HTTPException) as error:
            return str(getattr(error, "strerror", None) or error or type(error).__name__)
        response.close()
        # One that is busy is there.
        reached = response.status == 200 or response.headers.get(STATE_HEADER) == WAITING
        return None if reached else f"status {response.status}"

    def is_heard(self, file: ModelFile) -> bool | None:
        """Whether the relay answers anything; None where its host does, and nothing listens there any more."""
        for _try in range(2):
            try:
                self._request("HEAD", file.path, self._headers).close()
            except ConnectionRefusedError:
                return None
            except ConnectionResetError:
                # What a process that just ends does to those who were about to be served: the next one is refused.
                continue
            except (OSError, http.client.HTTPException):
                return False
            return True
        return False

    def blame(self, file: ModelFile) -> None:
        """See origin.Accountable: the host there hashes the file in its next run."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._request(REPORT, file.path, self._headers).close()

    def _url(self, path: str) -> str:
        return "/" + urllib.parse.quote(path)

    def _request(self, method: str, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.upstream.address, self.upstream.port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(READ_S)
            connection.request(method, self._url(path), headers=headers)
            # It takes the socket over, since a relay keeps no connection open.
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise


class _Answer:
    """A response whose early end means that the relay waits for more itself, once it has sent something."""

    def __init__(self, response: http.client.HTTPResponse, host: str) -> None:
        self._response = response
        self._host = host
        self._left = int(response.headers.get("Content-Length") or 0)
        self._received = False
        self.status = response.status
        self.headers = response.headers

    def geturl(self) -> str:
        """Nothing: the host is described by the origin."""
        return ""

    def read1(self, count: int = -1) -> bytes:
        data = self._response.read1(count)
        self._count(len(data), count)
        return data

    def readinto(self, buffer: Any) -> int:
        count = self._response.readinto(buffer)
        self._count(count, len(buffer))
        return count

    def close(self) -> None:
        self._response.close()

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _count(self, count: int, asked: int) -> None:
        self._left -= count
        if count:
            self._received = True
        elif asked and self._left > 0 and self._received:
            raise NotYet(f"{self._host} has no more yet")


def check_upstream(document: Any) -> Upstream:
    """An Upstream from a task's argument; raises HubError for what is none."""
    try:
        upstream = Upstream(str(document["name"]), str(document["address"]), int(document["port"]))
    except (TypeError, KeyError, ValueError):
        upstream = Upstream("", "", 0)
    if not upstream.name or not upstream.address or not 0 < upstream.port < 65536:
        raise HubError(f"an upstream needs name, address and port, found {str(document)[:200]}")
    return upstream
