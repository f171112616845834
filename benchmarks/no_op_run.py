# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long site.yml takes when there is nothing to do, suite smoke included, against the floor of Ansible itself.

The floor is a playbook of as many ping tasks as site.yml ran tasks on the host, so that only what socle does stays.
Usage: python benchmarks/no_op_run.py [INVENTORY] [REPEATS], with the lab up. Target of the product: under 20 s.
"""

from __future__ import annotations

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
TARGET_S = 20


def run(playbook: Path, inventory: str) -> tuple[float, str]:
    """Seconds of the whole command, and what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        [str(PLAYBOOK), str(playbook), "-i", inventory],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "False"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{playbook.name} ended with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
    return time.monotonic() - began, done.stdout


def main() -> None:
    inventory = sys.argv[1] if len(sys.argv) > 1 else "inventories/lab"
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    _warm_up, output = run(ROOT / "site.yml", inventory)
    tasks = max(int(count) for count in re.findall(r"ok=(\d+)", output))
    with tempfile.TemporaryDirectory() as folder:
        floor = Path(folder) / "floor.yml"
        pings = "\n".join(f"    - name: Ping {number}\n      ansible.builtin.ping:" for number in range(tasks))
        floor.write_text(f"- hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n{pings}\n", encoding="utf-8")
        rows = [
            (f"{tasks} pings", [run(floor, inventory)[0] for _repeat in range(repeats)]),
            ("site.yml, nothing to do", [run(ROOT / "site.yml", inventory)[0] for _repeat in range(repeats)]),
        ]
    print(f"{'run':<26}{'n':>3}{'median s':>10}{'min s':>8}{'max s':>8}")
    for name, seconds in rows:
        print(f"{name:<26}{repeats:>3}{statistics.median(seconds):>10.1f}{min(seconds):>8.1f}{max(seconds):>8.1f}")
    ratio = statistics.median(rows[1][1]) / statistics.median(rows[0][1])
    print(f"ratio to the floor {ratio:.2f}; target under {TARGET_S} s")


if __name__ == "__main__":
    main()
