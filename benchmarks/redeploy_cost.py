# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a redeployment costs beyond the engine's own start, against the floor of Ansible itself.

Usage: python benchmarks/redeploy_cost.py [--inventory inventories/lab] [--host lab-cpu-1] [--instance chat]. It
restarts that instance once for each repeat. The engine's start is the time from the start of its
unit to its line "Application startup complete" in the journal, and is taken from the record that each run leaves. The
floor is a playbook of as many ping tasks as redeploy.yml ran tasks on the host. Target: under 8 s beyond the start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import describe_machine
from no_op_run import ROOT, run, tasks_of, write_floor

TARGET_S = 8.0


@dataclass(frozen=True)
class Redeployment:
    """Seconds of one, and of its parts."""

    whole: float
    start: float
    """Of the engine, from its unit's start to its own line that it is up."""
    end: float
    """Of the engine before it, from the request to end to its end, requests included."""
    proof: float
    """From the engine's line to an active unit: the first token, and the health check."""

    @property
    def beyond(self) -> float:
        """All but the engine's start."""
        return self.whole - self.start


def newest_record(folder: Path, known: set[str]) -> dict[str, Any]:
    """The results of the deployment that is on record now and was not before."""
    found = [path for path in folder.glob("*-deploy*.json") if path.name not in known]
    if len(found) != 1:
        sys.exit(f"Expected one new record of a deployment in {folder}, found {len(found)}.")
    results = json.loads(found[0].read_text(encoding="utf-8"))["results"]
    return dict(results)


def redeploy(inventory: str, host: str, instance: str) -> tuple[Redeployment, str]:
    """One redeployment, and what it printed."""
    folder = ROOT / inventory / ".socle" / "records" / host / instance
    known = {path.name for path in folder.glob("*-deploy*.json")}
    chosen = json.dumps({"socle_instances": [instance]})
    seconds, output = run(ROOT / "playbooks/redeploy.yml", inventory, host, "-e", chosen)
    results = newest_record(folder, known)
    up_s = float(results["milestones"]["server"]["at_s"])
    drain = results.get("drain") or {}
    end_s = sum(float(drain.get(key) or 0.0) for key in ("waited_s", "stop_s", "memory_s"))
    return Redeployment(seconds, up_s, end_s, max(0.0, float(results["ready_s"]) - up_s)), output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", default="inventories/lab")
    parser.add_argument("--host", default="lab-cpu-1")
    parser.add_argument("--instance", default="chat")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    done, floor = [], []
    with tempfile.TemporaryDirectory() as folder:
        # In turn, so that other work on the machine meets both alike.
        for _repeat in range(asked.repeats):
            one, output = redeploy(asked.inventory, asked.host, asked.instance)
            tasks = tasks_of(output)
            done.append(one)
            floor.append(run(write_floor(folder, tasks), asked.inventory, asked.host)[0])
    rows = {
        "redeploy.yml": [each.whole for each in done],
        "  the engine's start": [each.start for each in done],
        "  beyond it": [each.beyond for each in done],
        "    the engine before it ends": [each.end for each in done],
        "    first token, health check": [each.proof for each in done],
        "    playbook and acceptance": [each.beyond - each.end - each.proof for each in done],
        f"{tasks} pings (floor)": floor,
    }
    print(f"{'run':<34}{'n':>3}{'median s':>10}{'min s':>8}{'max s':>8}")
    for name, seconds in rows.items():
        print(f"{name:<34}{len(seconds):>3}{statistics.median(seconds):>10.1f}{min(seconds):>8.1f}{max(seconds):>8.1f}")
    print(f"target under {TARGET_S:.0f} s beyond the engine's start; {describe_machine(5)}")


if __name__ == "__main__":
    main()
