# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who takes the files from whom, so that one copy crosses the WAN whatever the number of hosts. Pure.

Private to socle.inference. Up to ONE_CHAIN receivers make one chain: each serves on what arrives while it arrives, so
that the last one ends hardly later than the first. More make chains of CHAIN, all of which start at the first host;
that costs its network card one copy per chain, but a long chain of growing files costs latency and luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ONE_CHAIN = 16
CHAIN = 8
SIBLINGS = 4
"""Other sources that a source may ask for what turns out to be rotten; of each side, in the order of the racks."""


@dataclass(frozen=True)
class Member:
    """A host that takes part."""

    name: str
    complete: bool = False
    """It holds all files: a source, which needs nothing."""
    rack: str = ""


@dataclass(frozen=True)
class Place:
    """Where a host is in the fan-out."""

    upstreams: tuple[str, ...]
    """In order of preference; empty for the host that asks the hub. Those of sources are other sources."""
    hub: bool
    """The hub is its first origin: it makes the one copy over the WAN."""


def arrange(members: Sequence[Member]) -> dict[str, Place]:
    """The place of every host, in the order of the inventory, racks kept together.

    No receiver has an upstream that may, by whatever fallbacks, take from it: upstreams come earlier in the chain, are
    the first host of all, or are complete. Sources may ask each other: what one finds rotten the others have, and where
    all of them miss the same file, the one that waits without progress gives up and asks the hub.
    """
    sources = [member for member in members if member.complete]
    places = _arrange_sources(by_rack(sources))
    receivers = by_rack(member for member in members if not member.complete)
    for number, chain in enumerate(split_chains(receivers)):
        for position, member in enumerate(chain):
            before = [other.name for other in reversed(chain[:position])]
            ready = [source.name for source in _nearest(sources, member.rack, number)]
            seed = [receivers[0].name] if number and not sources else []
            upstreams = (*before, *ready, *seed)
            places[member.name] = Place(upstreams, hub=not upstreams)
    return places


def _arrange_sources(sources: Sequence[Member]) -> dict[str, Place]:
    names = [source.name for source in sources]
    return {
        name: Place((*reversed(names[max(0, at - SIBLINGS) : at]), *names[at + 1 : at + 1 + SIBLINGS]), hub=False)
        for at, name in enumerate(names)
    }


def by_rack(members: Iterable[Member]) -> list[Member]:
    """Hosts of one rack next to each other, so that a chain crosses between racks as seldom as can be."""
    racks: dict[str, list[Member]] = {}
    for member in members:
        racks.setdefault(member.rack, []).append(member)
    return [member for rack in racks.values() for member in rack]


def split_chains(receivers: Sequence[Member]) -> list[Sequence[Member]]:
    """One chain, or several of nearly the same length."""
    if len(receivers) <= ONE_CHAIN:
        return [receivers] if receivers else []
    count = -(-len(receivers) // CHAIN)
    bounds = [len(receivers) * number // count for number in range(count + 1)]
    return [receivers[first:last] for first, last in zip(bounds, bounds[1:])]


def _nearest(sources: Sequence[Member], rack: str, number: int) -> list[Member]:
    """The sources, those of the same rack first; each chain starts with another one."""
    turned = [*sources[number % len(sources) :], *sources[: number % len(sources)]] if sources else []
    return sorted(turned, key=lambda source: source.rack != rack)
