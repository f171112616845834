# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hub as the reserve of a host that takes from neighbours. Private to socle.inference.

One copy crosses the WAN, so the hub belongs to the first host of the chain. Another one asks it only when no upstream
can bring the file any more, and there are two ways to know that:

- Nothing listens at an upstream's port any more (connection refused): its host lives and its job does not, so the next
  one takes the download over at once. A relay that is merely busy or slow never refuses.
- An upstream is silent (a timeout, no route, a connection cut off): that is a host without power, but also a network
  that is broken for a moment, for all hosts at once; if each of them turned to the hub, the WAN would carry a copy for
  each. So an upstream counts as gone only after GONE_S of silence; until then all of them are asked again.

An upstream that answers, and refuses a file or sends a wrong one, is no reason to wait either: it will not change.
"""

from __future__ import annotations

import threading
import time
import urllib.error
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Back, NotYet, Origin
from ansible_collections.socle.inference.plugins.module_utils._hub.peer import Peer
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import NETWORK_ERRORS

GONE_S = 120.0
ASK_S = 2.0
"""Between two questions to all upstreams."""


class Reserve:
    """An Origin: the hub, once no upstream is left. It comes after *upstreams*, which take the place of *peers*."""

    def __init__(
        self,
        hub: Origin,
        peers: Sequence[Peer],
        gone_s: float = GONE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = hub.host
        self.kind = hub.kind
        self.ranges = hub.ranges
        self.policy = hub.policy
        self.sleep = hub.sleep
        self.upstreams: list[Origin] = [_Upstream(peer, self) for peer in peers]
        self._hub = hub
        self._peers = peers
        self._gone_s = gone_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._asked_at: float | None = None
        self._answers: list[bool | None] = []
        self._silent_since: dict[str, float] = {}
        self._lost: set[tuple[str, str]] = set()
        """Upstream and path of tries that the network ended; what an upstream refused is not asked for again."""
        self._granted: set[str] = set()

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        """The hub's answer; raises Back where an upstream is there again, NotYet where one may come back."""
        # Once granted it stays so for the file: its other connections have no upstream to go back to.
        if file.path not in self._granted:
            self._judge(file)
        return self._hub.open_file(file, offset, end)

    def is_own(self, url: str | None) -> bool:
        return self._hub.is_own(url)

    def describe_route(self) -> str:
        return self._hub.describe_route()

    def note(self, host: str, path: str, lost: bool) -> None:
        """How asking *host* for *path* went: lost on the way, or answered."""
        with self._lock:
            if lost:
                self._lost.add((host, path))
                self._silent_since.setdefault(host, self._clock())
            else:
                self._lost.discard((host, path))
                self._silent_since.pop(host, None)

    def _judge(self, file: ModelFile) -> None:
        answers = self._ask(file)
        now, waited = self._clock(), []
        with self._lock:
            for peer, heard in zip(self._peers, answers):
                if heard and (peer.host, file.path) in self._lost:
                    raise Back(f"{peer.host} answers again")
                if heard is False:
                    since = self._silent_since.setdefault(peer.host, now)
                    if now - since < self._gone_s:
                        waited.append(f"{peer.host} is silent for {now - since:.0f} s")
            if not waited:
                self._granted.add(file.path)
                return
        self.sleep(ASK_S)
        raise NotYet("; ".join(waited), str(now))

    def _ask(self, file: ModelFile) -> list[bool | None]:
        """Peer.is_heard() of each upstream; threads with other files use the same answers."""
        with self._asking:
            if self._asked_at is None or self._clock() - self._asked_at >= ASK_S:
                with ThreadPoolExecutor(min(16, len(self._peers))) as pool:
                    self._answers = list(pool.map(lambda peer: peer.is_heard(file), self._peers))
                self._asked_at = self._clock()
                with self._lock:
                    for peer, heard in zip(self._peers, self._answers):
                        if heard is not False:
                            self._silent_since.pop(peer.host, None)
            return self._answers


class _Upstream:
    """A Peer that tells the reserve how it does."""

    def __init__(self, peer: Peer, reserve: Reserve) -> None:
        self._peer = peer
        self._reserve = reserve
        self.host = peer.host
        self.kind = peer.kind
        self.ranges = peer.ranges
        self.policy = peer.policy
        self.sleep = peer.sleep

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        lost = False
        try:
            return self._peer.open_file(file, offset, end)
        except (NotYet, urllib.error.HTTPError):
            raise
        except NETWORK_ERRORS:
            lost = True
            raise
        finally:
            self._reserve.note(self.host, file.path, lost)

    def blame(self, file: ModelFile) -> None:
        self._peer.blame(file)

    def is_own(self, url: str | None) -> bool:
        return self._peer.is_own(url)

    def describe_route(self) -> str:
        return self._peer.describe_route()
