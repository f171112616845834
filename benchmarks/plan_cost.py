# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planning a large inventory costs on the controller, as plan.yml does it without asking hosts.

Usage: python benchmarks/plan_cost.py [REPEATS]. The inventory holds hosts like the A800 one of inventories/example, of
eight GPUs. Target of the product: under 10 s for 200 instances.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FACTS = ROOT / "inventories/example/.facts/a800-1.json"
TARGET_S = 10.0
SHAPES = ((1, 1), (50, 4), (100, 2), (200, 1))
"""(hosts, instances on each)."""


def inventory(hosts: int, instances: int) -> dict[str, object]:
    """One group, with two GPUs for each instance."""
    declared = {
        f"agents-{number}": {"model": "qwen3.8-27b", "gpus": [2 * number, 2 * number + 1], "port": 8003 + number}
        for number in range(instances)
    }
    variables = {"gpu_facts_file": str(FACTS), "vllm_instances": declared}
    names: dict[str, dict[str, object]] = {f"gpu-{number:03}": {} for number in range(hosts)}
    return {"all": {"vars": variables, "children": {"a800_pcie_80g": {"hosts": names}}}}


def spent() -> float:
    """Seconds of processor time of all children so far, which a busy machine changes less than the clock."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(hosts: int, instances: int, repeats: int) -> tuple[list[float], float]:
    """Seconds of each run of the playbook, and of processor time on average."""
    seconds = []
    before = spent()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hosts.json"
        path.write_text(json.dumps(inventory(hosts, instances)), encoding="utf-8")
        for _repeat in range(repeats):
            began = time.monotonic()
            done = subprocess.run(
                [Path(sys.executable).with_name("ansible-playbook"), "playbooks/plan.yml", "-i", path],
                cwd=ROOT,
                env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
                capture_output=True,
                text=True,
                check=True,
            )
            seconds.append(time.monotonic() - began)
            planned = done.stdout.count("  command\n")
            if planned != hosts * instances:
                raise SystemExit(f"{planned} plans were shown, and {hosts * instances} were expected")
    return seconds, (spent() - before) / repeats


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{'hosts':>6}{'instances':>11}{'n':>4}{'median s':>10}{'min s':>8}{'max s':>8}{'processor s':>13}")
    for hosts, instances in SHAPES:
        seconds, processor = measure(hosts, instances, repeats)
        figures = (statistics.median(seconds), min(seconds), max(seconds))
        row = "".join(
            f"{figure:>{width}.1f}" for figure, width in zip((*figures, processor), (10, 8, 8, 13), strict=True)
        )
        print(f"{hosts:>6}{hosts * instances:>11}{repeats:>4}{row}", flush=True)
    print(f"target for 200 instances: under {TARGET_S:.0f} s")


if __name__ == "__main__":
    main()
