# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is the engine stuck, or only slow? Pure: the clock comes with each observation. Private to socle.inference.

An engine is stuck when both hold: nothing moved for a window, and one canary token stayed unanswered for its patience.

A canary alone proves nothing: behind a queue, or behind a prompt of 200,000 tokens, it waits as any request does.
Counters that stand still prove nothing either: an engine without requests does nothing. How long both may take depends
on what can be seen. With the scheduler in view every chunk of a prompt shows, so that a window holds a few steps. Out
of view (metrics are off, or /metrics does not answer) a canary gets the time that the longest prompt may take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import (
    ON,
    SERVED,
    STARTING,
    STOPPED,
    Observation,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

HEALTHY, SLOW, SUSPECT, STUCK, SLEEPING = "healthy", "slow", "suspect", "stuck", "sleeping"

UNWATCHED_S = 60
"""After a longer pause of the watchdog itself an answer may be there and not be read yet."""

STEPS = 2
"""Of the largest step, in a window: one may be under way when the window begins."""


@dataclass(frozen=True)
class Patience:
    """Seconds, for one launch of an instance."""

    window_s: float
    canary_s: float
    unseen_s: float
    """For a canary while the scheduler is out of view, and for tokens while only the scheduler moves."""
    start_s: float
    canary_after_s: float


def patience_of(
    settings: Settings, max_model_len: int | None, step_tokens: int | None, start_timeout_s: float
) -> Patience:
    """How patient to be with an engine that reads at most *step_tokens* in a step and *max_model_len* in a prompt."""
    floor = settings.prefill_floor_tokens_per_s
    step_s = STEPS * (step_tokens or 0) / floor
    window_s = max(float(settings.window_s), step_s)
    canary_s = max(float(settings.canary_patience_s), step_s)
    return Patience(
        window_s=window_s,
        canary_s=canary_s,
        unseen_s=max(window_s, canary_s, (max_model_len or 0) / floor),
        start_s=start_timeout_s,
        canary_after_s=float(settings.canary_after_s),
    )


@dataclass(frozen=True)
class Judgement:
    """What an engine is, why, and whether a canary token should be on its way."""

    state: str
    reason: str
    ask: bool = False


class Judge:
    """Remembers what moved when, for one run of an engine after the other."""

    def __init__(self) -> None:
        self._run: str | None = None
        self._at = 0.0
        self._begin(0.0)

    def _begin(self, at: float) -> None:
        self._counted_at = self._moved_at = at
        self._counters: Mapping[str, float] | None = None
        self._scheduler: Mapping[str, float] | None = None
        self._answered_at: float | None = None
        self._served = False

    def __call__(self, seen: Observation, patience: Patience) -> Judgement:
        """The state at the moment of *seen*."""
        paused_s = seen.at - self._at if self._run is not None else 0.0
        self._at = seen.at
        if seen.run != self._run:
            self._run = seen.run
            self._begin(seen.at)
        if seen.unit == STOPPED:
            self._begin(seen.at)
            return Judgement(STOPPED, "its unit does not run")
        if seen.unit == STARTING:
            self._begin(seen.at)
            return Judgement(STARTING, "its unit is coming up")
        if seen.asleep:
            self._counted_at = self._moved_at = seen.at
            return Judgement(SLEEPING, "it was told to sleep or to pause")
        self._note(seen)
        return self._weigh(seen, patience, paused_s)

    def _note(self, seen: Observation) -> None:
        """Move the clocks by what changed since the last look."""
        metrics = seen.metrics
        if metrics.visible == ON:
            if self._counters is not None and metrics.counters != self._counters:
                self._counted_at = self._moved_at = seen.at
                self._served = True
            if self._scheduler is not None and metrics.scheduler != self._scheduler:
                self._moved_at = seen.at
            self._counters, self._scheduler = metrics.counters, metrics.scheduler
            self._served = self._served or bool((metrics.counters or {}).get(SERVED))
        answered = seen.canary.answered_at
        if answered is not None and answered != self._answered_at:
            self._answered_at = answered
            self._counted_at = max(self._counted_at, answered)
            self._moved_at = max(self._moved_at, answered)
            self._served = True

    def _weigh(self, seen: Observation, patience: Patience, paused_s: float) -> Judgement:
        in_view = seen.metrics.visible == ON
        still_s = seen.at - (self._moved_at if in_view else self._counted_at)
        uncounted_s = seen.at - self._counted_at
        since = seen.canary.waiting_since
        waited_s = seen.at - since if since is not None else 0.0
        ask = still_s >= patience.canary_after_s or uncounted_s >= patience.unseen_s
        found = self._found(seen, in_view, still_s, uncounted_s, waited_s)

        if not self._served and seen.run_age_s < patience.start_s:
            return Judgement(STARTING, "it has made no token since its start", ask)
        if seen.canary.refused is not None and since is None:
            return Judgement(SUSPECT if ask else HEALTHY, f"it answers a canary with {seen.canary.refused}", ask)
        if in_view:
            overdue = still_s >= patience.window_s and waited_s >= patience.canary_s
            # Steps without tokens: requests that drive each other out, or a step count that means nothing.
            overdue = overdue or (uncounted_s >= patience.unseen_s and waited_s >= patience.unseen_s)
        else:
            overdue = uncounted_s >= patience.window_s and waited_s >= patience.unseen_s
        if overdue and paused_s > UNWATCHED_S:
            return Judgement(SUSPECT, f"{found}; the watchdog itself was held up for {paused_s:.0f} s", ask)
        if overdue:
            return Judgement(STUCK, found, ask)
        if in_view and still_s < patience.canary_after_s:
            if waited_s >= patience.canary_s:
                return Judgement(SLOW, f"tokens or steps come, a canary waits for {waited_s:.0f} s", ask)
            return Judgement(HEALTHY, "tokens or steps come", ask)
        if since is not None and (in_view or waited_s >= patience.canary_s):
            return Judgement(SUSPECT if in_view else SLOW, found, ask)
        if ask:
            return Judgement(HEALTHY, f"nothing moved for {still_s:.0f} s; a canary token is asked for", ask)
        return Judgement(HEALTHY, "a canary token came")

    @staticmethod
    def _found(seen: Observation, in_view: bool, still_s: float, uncounted_s: float, waited_s: float) -> str:
        canary = f"a canary token did not come in {waited_s:.0f} s"
        if not in_view:
            return f"{canary}, its metrics are {seen.metrics.visible}"
        load = f"{seen.metrics.running} running, {seen.metrics.waiting} waiting"
        if still_s < uncounted_s:
            return f"no token for {uncounted_s:.0f} s and no step for {still_s:.0f} s with {load}, {canary}"
        return f"nothing moved for {still_s:.0f} s with {load}, {canary}"
