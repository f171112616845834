# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stuck, or only slow? Seconds are the engine's; no test waits."""

from __future__ import annotations

import pytest
from ansible_collections.socle.inference.plugins.module_utils._watchdog.judge import patience_of
from ansible_collections.socle.inference.plugins.module_utils._watchdog.observation import (
    OFF,
    SILENT,
    STARTING,
    STOPPED,
)
from ansible_collections.socle.inference.plugins.module_utils._watchdog.settings import Settings

from tests.unit.watchdog.conftest import Watched

FOUND_S = 120.0
"""Within which a frozen core has to be found, by the time that evidence needs less."""


@pytest.mark.parametrize("idle_before_s", [0, 5, 17, 38, 200])
def test_an_idle_engine_that_freezes_is_found(watched: Watched, idle_before_s: int) -> None:
    watched.watch(idle_before_s)
    watched.engine.freeze()
    assert watched.until("stuck", FOUND_S) < FOUND_S - 15


@pytest.mark.parametrize("busy_before_s", [30, 47])
def test_a_busy_engine_that_freezes_is_found(watched: Watched, busy_before_s: int) -> None:
    engine = watched.engine
    engine.tokens_per_s, engine.running, engine.waiting, engine.canary_s = 900.0, 32, 200, None
    watched.watch(busy_before_s)
    engine.freeze()
    assert watched.until("stuck", FOUND_S) < FOUND_S - 15
    assert "32 running, 200 waiting" in watched.look().reason


def test_ten_minutes_of_saturation_are_not_stuck(watched: Watched) -> None:
    engine = watched.engine
    # Every token counts, and no canary ever gets its turn.
    engine.tokens_per_s, engine.running, engine.waiting, engine.canary_s = 40.0, 256, 5000, None
    watched.watch(600)
    assert set(watched.states) == {"healthy"}
    assert engine.questions == 0


def test_the_slowest_tokens_are_progress(watched: Watched) -> None:
    watched.engine.tokens_per_s, watched.engine.canary_s = 1 / 30, None
    watched.watch(1200)
    assert "stuck" not in watched.states


def test_a_long_prompt_that_is_read_is_progress(watched: Watched) -> None:
    engine = watched.engine
    # 200,000 tokens at 600 tokens/s: token counters move at the end alone, each chunk shows in the cache's use.
    engine.running, engine.chunks_per_s, engine.canary_s = 1, 600 / 8192, None
    watched.watch(200_000 / 600)
    assert "stuck" not in watched.states
    engine.tokens += 200_000
    assert watched.watch(5).state == "healthy"


def test_steps_that_never_make_a_token_end_as_stuck(watched: Watched) -> None:
    engine = watched.engine
    engine.running, engine.waiting, engine.chunks_per_s, engine.canary_s = 4, 9, 1.0, None
    longest_s = 262144 / 500
    assert longest_s < watched.until("stuck", 3 * longest_s)


def test_a_step_as_large_as_the_prompt_gets_its_time(watched: Watched) -> None:
    engine = watched.engine
    watched.step_tokens = 100_000
    engine.running, engine.canary_s = 1, None
    watched.watch(100_000 / 600)
    assert "stuck" not in watched.states


@pytest.mark.parametrize("visible", [OFF, SILENT])
def test_out_of_view_the_longest_prompt_gets_its_time(watched: Watched, visible: str) -> None:
    engine = watched.engine
    watched.watch(60)
    engine.visible, engine.canary_s = visible, None
    watched.watch(262144 / 500)
    assert "stuck" not in watched.states
    assert watched.until("stuck", 120.0) <= 120
    assert f"metrics are {visible}" in watched.look().reason


def test_without_metrics_a_canary_that_comes_is_enough(watched: Watched) -> None:
    watched.engine.visible, watched.engine.canary_s = OFF, 30.0
    watched.watch(3600)
    assert set(watched.states) == {"healthy"}
    assert watched.engine.questions >= 30


def test_an_engine_that_sleeps_is_left_alone_and_not_asked(watched: Watched) -> None:
    watched.watch(10)
    watched.engine.asleep, watched.engine.canary_s = True, None
    watched.watch(3600)
    assert watched.states[-1] == "sleeping" and "stuck" not in watched.states
    assert watched.engine.questions == 0
    watched.engine.asleep = False
    assert watched.look().state == "healthy"


def test_a_unit_that_comes_up_or_does_not_run_is_left_to_others(watched: Watched) -> None:
    watched.engine.freeze()
    for unit in (STARTING, STOPPED):
        watched.engine.unit = unit
        watched.watch(3000)
        assert watched.states[-1] == unit
    assert "stuck" not in watched.states and watched.engine.questions == 0


def test_until_its_first_token_an_engine_is_starting(watched: Watched) -> None:
    engine = watched.engine
    engine.started_at, engine.tokens, engine.canary_s = engine.now, 0.0, None
    watched.watch(1790)
    assert set(watched.states) == {"starting"}
    assert watched.until("stuck", 120.0) <= 120


def test_an_engine_that_served_before_the_watchdog_came_is_watched(watched: Watched) -> None:
    watched.engine.started_at = watched.engine.now - 60
    watched.engine.freeze()
    assert watched.until("stuck", FOUND_S) < FOUND_S


def test_a_restart_begins_the_count_anew(watched: Watched) -> None:
    watched.engine.freeze()
    watched.watch(85)
    watched.engine.run = "run2"
    assert watched.look().state != "stuck"


@pytest.mark.parametrize("words", ["HTTP 401", "HTTP 500"])
def test_an_answer_that_is_no_token_restarts_nothing(watched: Watched, words: str) -> None:
    watched.engine.refuses = words
    watched.watch(1200)
    assert "stuck" not in watched.states
    assert words in watched.look().reason


def test_a_canary_behind_a_queue_is_slow_not_stuck(watched: Watched) -> None:
    engine = watched.engine
    engine.running, engine.canary_s = 8, None
    watched.watch(50)
    engine.tokens_per_s = 20.0
    assert watched.watch(40).state == "slow"
    assert "stuck" not in watched.states


def test_a_watchdog_that_was_held_up_looks_again_before_it_judges(watched: Watched) -> None:
    watched.engine.freeze()
    watched.watch(50)
    watched.engine.pass_time(300)
    held_up = watched.look()
    assert (held_up.state, "held up for 300 s" in held_up.reason) == ("suspect", True)


def test_counters_that_stand_still_are_not_enough(watched: Watched) -> None:
    # Idle, and each canary takes 35 s: nothing moves for 75 s at a time.
    watched.engine.canary_s = 35.0
    watched.watch(900)
    assert "stuck" not in watched.states and watched.states[-1] in ("healthy", "suspect")


def test_patience_follows_the_launch() -> None:
    settings = Settings("chat", "gpu1")
    small = patience_of(settings, 4096, 2048, 300)
    assert (small.window_s, small.canary_s, small.unseen_s) == (60, 40, 60)
    large = patience_of(settings, 262144, 32768, 1800)
    assert large.window_s == large.canary_s == pytest.approx(2 * 32768 / 500)
    assert large.unseen_s == pytest.approx(262144 / 500)
    assert patience_of(settings, None, None, 300).unseen_s == 60
