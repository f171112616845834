# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a playbook takes when there is nothing to do, against the floor of Ansible itself.

The floor is a playbook of as many ping tasks as it ran tasks on the host, so that only what socle does stays. With the
lab up, site.yml, suite smoke included, is to take under 20 s; with the hosts of Molecule's scenario gpu_sim up,
`--inventory molecule/gpu_sim/inventory --playbook playbooks/provision.yml --limit sim-a100` is to take under 12 s.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
TARGETS_S = {"site.yml": 20, "provision.yml": 12}


def run(playbook: Path, inventory: str, limit: str, *arguments: str) -> tuple[float, str]:
    """Seconds of the whole command, and what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        [str(PLAYBOOK), str(playbook), "-i", inventory, "--limit", limit, *arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "False"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{playbook.name} ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
    return time.monotonic() - began, done.stdout


def tasks_of(output: str) -> int:
    """How many tasks a run did on the host that did most."""
    return max(int(count) for count in re.findall(r"ok=(\d+)", output))


def write_floor(folder: str, tasks: int) -> Path:
    """A playbook of as many pings."""
    floor = Path(folder) / "floor.yml"
    pings = "\n".join(f"    - name: Ping {number}\n      ansible.builtin.ping:" for number in range(tasks))
    floor.write_text(f"- hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n{pings}\n", encoding="utf-8")
    return floor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inventory", default="inventories/lab")
    parser.add_argument("--playbook", default="site.yml")
    parser.add_argument("--limit", default="all")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    playbook, repeats = ROOT / asked.playbook, asked.repeats
    _warm_up, output = run(playbook, asked.inventory, asked.limit)
    tasks = tasks_of(output)
    with tempfile.TemporaryDirectory() as folder:
        floor = write_floor(folder, tasks)
        rows = [
            (label, [run(what, asked.inventory, asked.limit)[0] for _repeat in range(repeats)])
            for label, what in ((f"{tasks} pings", floor), (f"{playbook.name}, nothing to do", playbook))
        ]
    print(f"{'run':<30}{'n':>3}{'median s':>10}{'min s':>8}{'max s':>8}")
    for name, seconds in rows:
        print(f"{name:<30}{repeats:>3}{statistics.median(seconds):>10.1f}{min(seconds):>8.1f}{max(seconds):>8.1f}")
    ratio = statistics.median(rows[1][1]) / statistics.median(rows[0][1])
    target = f"; target under {TARGETS_S[playbook.name]} s" if playbook.name in TARGETS_S else ""
    print(f"ratio to the floor {ratio:.2f}{target}")


if __name__ == "__main__":
    main()
