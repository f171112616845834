# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a model takes to several hosts, against the physical limit and against each host asking the hub itself.

Usage: python benchmarks/model_fanout.py [--wan-mbit 50] [--lan-mbit 500] [--megabytes 200] [--lan-megabytes 1000]
[--lan-only] [--victim gpu1 [--kill-at 0.5]].
Needs root: a hub and the hosts are network namespaces on one bridge, with every link shaped at both ends. The limit is
the size of the model over the rate of the bottleneck. Targets: at most 1.1 times the limit where the WAN is the
bottleneck, 1.2 times where the LAN is, 1.3 times when any host is killed at a random point, and exactly one copy over
the WAN without a kill ("sent" also counts what was under way on connections that were cut).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from machine import describe_machine  # noqa: E402

from tests.support import model_netns  # noqa: E402

SHM = Path("/dev/shm")
MBIT = 1_000_000 / 8
WAN_TARGET, LAN_TARGET, KILL_TARGET = 1.1, 1.2, 1.3
STAR_SHARE = 4
"""The star takes as many times longer as there are hosts: it gets a model of this share of the size."""


def show(what: str, outcome: model_netns.Outcome, target: float | None) -> bool:
    """One row; whether the target was met."""
    exact = outcome.killed is not None or (outcome.received == 1 and outcome.sent < 1.02)
    met = target is None or (outcome.ratio <= target and exact)
    slowest = max(outcome.seconds.values())
    aim = "" if target is None else f"<= {target:g}  {'met' if met else 'MISSED'}"
    print(
        f"{what:<34} {outcome.limit_s:7.1f} {slowest:7.1f} {outcome.ratio:7.2f} "
        f"{outcome.received:9.4f} {outcome.sent:7.3f}  {aim}",
        flush=True,
    )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wan-mbit", type=float, default=50)
    parser.add_argument("--lan-mbit", type=float, default=500)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--lan-megabytes", type=int, default=1000, help="size where the LAN is the bottleneck")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--lan-only", action="store_true", help="measure nothing but where the LAN is the bottleneck")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--victim", help="measure nothing but what it costs when this host is killed")
    parser.add_argument("--kill-at", type=float, default=0.5, help="with --victim: when, as a share of the limit")
    asked = parser.parse_args()
    reason = model_netns.missing()
    if reason:
        sys.exit(f"This benchmark cannot run here: {reason}.")
    chance = random.Random(asked.seed)
    wan, lan = asked.wan_mbit * MBIT, asked.lan_mbit * MBIT
    print(f"{asked.hosts} hosts, WAN {asked.wan_mbit:g} Mbit/s, LAN {asked.lan_mbit:g} Mbit/s, seed {asked.seed}")
    print(f"{'':<34} {'limit s':>7} {'took s':>7} {'ratio':>7} {'WAN taken':>9} {'sent':>7}  target")
    with (
        # In memory where that can be: the network is what is measured.
        tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder,
        model_netns.Bed(Path(folder), asked.hosts, wan, lan) as bed,
    ):
        size, more = asked.megabytes * 1_000_000, asked.lan_megabytes * 1_000_000
        model_netns.make_model(Path(folder, "hub/Org/Model"), size, 1)
        if asked.victim:
            bed.serve(Path(folder, "hub"))
            outcome = bed.bring(bed.hosts("Org/Model"), size / wan, victim=asked.victim, kill_at=asked.kill_at)
            sys.exit(not show(f"WAN-bound, {asked.victim} killed at {asked.kill_at:.0%}", outcome, KILL_TARGET))
        model_netns.make_model(Path(folder, "hub/Org/Small"), size // STAR_SHARE, 2)
        model_netns.make_model(Path(folder, "hub/Org/Large"), more, 3)
        bed.serve(Path(folder, "hub"))
        met = []
        if not asked.lan_only:
            met.append(show("WAN-bound, chain", bed.bring(bed.hosts("Org/Model"), size / wan), WAN_TARGET))
            star = bed.hosts("Org/Small")
            show("WAN-bound, each from the hub", bed.bring(star, star[0].manifest.total_bytes / wan, star=True), None)
            for name in bed.names:
                when = chance.uniform(0.05, 0.9)
                outcome = bed.bring(bed.hosts("Org/Model"), size / wan, victim=name, kill_at=when)
                met.append(show(f"WAN-bound, {name} killed at {when:.0%}", outcome, KILL_TARGET))
        # The hub's link no longer is the bottleneck: then every host's own is.
        bed.set_rates(4 * lan, lan)
        met.append(show("LAN-bound, chain", bed.bring(bed.hosts("Org/Large"), more / lan), LAN_TARGET))
        bed.set_rates(lan, lan)
        star = bed.hosts("Org/Model")
        show("LAN-bound, star", bed.bring(star, star[0].manifest.total_bytes / lan, star=True), None)
    print(describe_machine(1))
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
