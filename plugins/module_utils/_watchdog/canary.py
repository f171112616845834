# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One token asked of an engine, while the watchdog goes on looking. Private to socle.inference."""

from __future__ import annotations

import secrets
import threading
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._watchdog.http import Call
from ansible_collections.socle.inference.plugins.module_utils._watchdog.launch import Launch
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import Canary

PATH = "/v1/completions"

ANSWERED_PAUSE_S = 20.0
"""Between an answer that is no token and the next question."""
FAILED_PAUSE_S = 2.0
"""Between two questions to a server that ends connections at once."""


def question(model: str, token: str) -> dict[str, Any]:
    """A request for one token. *token* makes the prompt unlike any other, so that no cached prefix answers it."""
    return {"model": model, "prompt": f"{token} is", "max_tokens": 1, "temperature": 0}


class CanaryAsker:
    """At most one question is on its way, on a thread of its own."""

    def __init__(
        self,
        clock: Callable[[], float],
        call: Callable[[str, int, float], Call] = Call,
        unique: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._clock = clock
        self._call = call
        self._unique = unique
        self._lock = threading.Lock()
        self._state = Canary()
        self._ended_at: float | None = None
        self._under_way: Call | None = None
        self._round = 0

    @property
    def state(self) -> Canary:
        """As of now."""
        with self._lock:
            return self._state

    @property
    def under_way(self) -> bool:
        """Whether a question is with the engine now."""
        with self._lock:
            return self._under_way is not None

    def ask(self, launch: Launch, key: str | None, limit_s: float) -> None:
        """Ask for one token and give it *limit_s*; nothing happens while one is on its way, or was refused just now.

        A question that got no answer is asked again, and counts from when it was asked first.
        """
        now = self._clock()
        with self._lock:
            waits = self._state.waiting_since is not None
            pause_s = FAILED_PAUSE_S if waits else ANSWERED_PAUSE_S if self._state.refused else 0.0
            if self._under_way is not None or (self._ended_at is not None and now - self._ended_at < pause_s):
                return
            self._under_way = call = self._call(launch.address, launch.port, limit_s)
            if not waits:
                self._state = self._state._replace(waiting_since=now)
            this = self._round
        body = question(launch.model, self._unique())
        threading.Thread(target=self._run, args=(call, body, key, this), name="canary", daemon=True).start()

    def forget(self) -> None:
        """Take back what is on its way: the engine moves, or is another one now."""
        with self._lock:
            self._round += 1
            call, self._under_way = self._under_way, None
            self._state = Canary(answered_at=self._state.answered_at)
            self._ended_at = None
        if call is not None:
            call.abandon()

    def _run(self, call: Call, body: dict[str, Any], key: str | None, this: int) -> None:
        fault = None
        try:
            answer = call(PATH, body, key)
        except Exception as error:  # that it could not be asked says nothing of the engine
            answer, fault = None, f"no question, since it cannot be asked ({type(error).__name__}: {error})"
        now = self._clock()
        with self._lock:
            if this != self._round:
                return
            self._under_way, self._ended_at = None, now
            if fault is not None:
                self._state = Canary(answered_at=self._state.answered_at, refused=fault)
                return
            if answer is None:
                return
            if answer[0] == 200:
                self._state = Canary(answered_at=now)
            else:
                self._state = Canary(answered_at=self._state.answered_at, refused=f"HTTP {answer[0]}")
