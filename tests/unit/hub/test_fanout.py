# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who takes the files from whom."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub.fanout import Member, Place, arrange


def members(count: int, complete: tuple[int, ...] = ()) -> list[Member]:
    return [Member(f"gpu{number}", number in complete) for number in range(1, count + 1)]


def test_four_hosts_make_one_chain_and_only_the_first_asks_the_hub() -> None:
    assert arrange(members(4)) == {
        "gpu1": Place((), hub=True),
        "gpu2": Place(("gpu1",), hub=False),
        "gpu3": Place(("gpu2", "gpu1"), hub=False),
        "gpu4": Place(("gpu3", "gpu2", "gpu1"), hub=False),
    }


def test_a_single_host_asks_the_hub() -> None:
    assert arrange(members(1)) == {"gpu1": Place((), hub=True)}


def test_complete_hosts_are_sources_and_the_hub_is_not_asked_at_all() -> None:
    places = arrange(members(4, complete=(2,)))
    assert places == {
        "gpu2": Place((), hub=False),
        "gpu1": Place(("gpu2",), hub=False),
        "gpu3": Place(("gpu1", "gpu2"), hub=False),
        "gpu4": Place(("gpu3", "gpu1", "gpu2"), hub=False),
    }


@pytest.mark.parametrize("count", [16, 17, 24, 25, 64])
def test_beyond_16_hosts_chains_of_at_most_8_start_at_the_first_host(count: int) -> None:
    places = arrange(members(count))
    assert [name for name, place in places.items() if place.hub] == ["gpu1"]
    depth = {"gpu1": 1}
    for name, place in places.items():
        if place.upstreams:
            depth[name] = depth[place.upstreams[0]] + 1
            assert place.upstreams[-1] == "gpu1"
    assert len(depth) == count
    assert max(depth.values()) <= (16 if count <= 16 else 9)
    served = [place.upstreams[0] for place in places.values() if place.upstreams]
    assert max(map(served.count, served)) <= (1 if count <= 16 else -(-count // 8))
    assert max(served.count(name) for name in set(served) - {"gpu1"}) == 1


def test_chains_start_at_different_sources() -> None:
    places = arrange(members(22, complete=(1, 2)))
    receivers = [place for name, place in places.items() if name not in ("gpu1", "gpu2")]
    heads = [place.upstreams[0] for place in receivers if place.upstreams[0] in ("gpu1", "gpu2")]
    assert sorted(heads) == ["gpu1", "gpu1", "gpu2"]


def test_a_chain_crosses_between_racks_once() -> None:
    hosts = [Member(f"gpu{number}", rack="ab"[number % 2]) for number in range(6)]
    racks = {member.name: member.rack for member in hosts}
    crossings = [
        name for name, place in arrange(hosts).items() if place.upstreams and racks[place.upstreams[0]] != racks[name]
    ]
    assert len(crossings) == 1


def test_the_source_of_the_own_rack_comes_first() -> None:
    hosts = [Member("s1", True, "a"), Member("s2", True, "b"), Member("r", rack="b")]
    assert arrange(hosts)["r"].upstreams == ("s2", "s1")


@pytest.mark.parametrize(("count", "complete"), [(4, ()), (20, ()), (20, (3, 9)), (5, (5,))])
def test_nobody_can_end_up_taking_from_a_host_that_takes_from_it(count: int, complete: tuple[int, ...]) -> None:
    places = arrange(members(count, complete))
    sources = {f"gpu{number}" for number in complete}
    for one, other in itertools.combinations(places, 2):
        both = one in places[other].upstreams and other in places[one].upstreams
        assert not both or {one, other} <= sources
    # Sources have everything; what they ask each other for is what they find rotten.
    assert all(set(places[name].upstreams) <= sources for name in sources)
    done = sources
    while len(done) < count:
        ready = {name for name, place in places.items() if name not in done and set(place.upstreams) <= done}
        assert ready, "a circle"
        done |= ready


def test_complete_hosts_have_each_other_for_what_they_find_rotten() -> None:
    places = arrange(members(12, complete=tuple(range(1, 13))))
    assert places["gpu1"] == Place(("gpu2", "gpu3", "gpu4", "gpu5"), hub=False)
    assert places["gpu6"].upstreams == ("gpu5", "gpu4", "gpu3", "gpu2", "gpu7", "gpu8", "gpu9", "gpu10")
    assert arrange(members(1, complete=(1,))) == {"gpu1": Place((), hub=False)}
