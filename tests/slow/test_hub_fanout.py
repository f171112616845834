# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A chain of four hosts behind shaped links: as fast as the slowest link allows, whoever of them is killed.

SOCLE_FANOUT_SEED repeats what an earlier run printed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.support import model_netns

REASON = model_netns.missing()
SEED = int(os.environ.get("SOCLE_FANOUT_SEED") or random.randrange(1_000_000))
MBIT = 1_000_000 / 8
WAN, LAN = 50 * MBIT, 200 * MBIT
SIZE = 200_000_000
SHORT = 100_000_000
"""Of which seconds of waiting are a large part."""

pytestmark = pytest.mark.skipif(REASON is not None, reason=f"cannot make the network: {REASON}")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[model_netns.Bed]:
    folder = tmp_path_factory.mktemp("fanout")
    model_netns.make_model(folder / "hub/Org/Model", SIZE, 1)
    model_netns.make_model(folder / "hub/Org/Short", SHORT, 2)
    with model_netns.Bed(folder, 4, WAN, LAN) as bed:
        bed.serve(folder / "hub")
        yield bed


def test_the_wan_is_used_once_and_is_the_only_limit(bed: model_netns.Bed) -> None:
    bed.set_rates(WAN, LAN)
    outcome = bed.bring(bed.hosts("Org/Model"), SIZE / WAN)
    assert outcome.received == 1
    assert outcome.sent < 1.02
    assert outcome.ratio <= 1.1


def test_the_lan_is_used_as_if_there_were_one_receiver(bed: model_netns.Bed) -> None:
    slow = LAN / 2
    bed.set_rates(4 * slow, slow)
    outcome = bed.bring(bed.hosts("Org/Model"), SIZE / slow)
    assert outcome.received == 1
    assert outcome.ratio <= 1.2


@pytest.mark.parametrize("victim", ["gpu1", "gpu2", "gpu3", "gpu4"])
def test_whoever_is_killed_the_others_go_on(bed: model_netns.Bed, victim: str) -> None:
    bed.set_rates(WAN, LAN)
    moment = random.Random(f"{SEED}{victim}").uniform(0.05, 0.9)
    print(f"SOCLE_FANOUT_SEED={SEED}: {victim} killed at {moment:.0%}")
    outcome = bed.bring(bed.hosts("Org/Model"), SIZE / WAN, victim=victim, kill_at=moment)
    assert outcome.ratio <= 1.3
    assert len(outcome.seconds) == 3


def test_one_host_takes_a_short_download_over_in_time(bed: model_netns.Bed) -> None:
    bed.set_rates(WAN, LAN)
    outcome = bed.bring(bed.hosts("Org/Short"), SHORT / WAN, victim="gpu1", kill_at=0.5)
    assert outcome.ratio <= 1.3
    # What the killed host had received and not handed on, and what was under way to it.
    assert outcome.sent < 1.1
