# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu_facts costs on this machine, against the floor of starting Python and the commands that it runs.

Usage: python benchmarks/gpu_facts_cost.py [REPEATS]. Target of the product on a host without GPUs: under 0.3 s.
Ansible's own transfer of the module is not in it; see no_op_run.py for that.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET_S = 0.3
GATHER = """
import shutil
from pathlib import Path
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import run_limited
from ansible_collections.socle.inference.plugins.module_utils._gpu.gather import gather
run = lambda argv: run_limited([shutil.which(argv[0]), *argv[1:]], 60) if shutil.which(argv[0]) else None
facts = gather(run, Path("/sys"), Path("/proc"), Path("/etc/os-release"))
print(len(facts["gpus"]))
"""


def measure(argv: list[str], repeats: int) -> tuple[list[float], str]:
    """Seconds of each run, and what the last one printed."""
    seconds = []
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    for _repeat in range(repeats):
        began = time.monotonic()
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        seconds.append(time.monotonic() - began)
    return seconds, done.stdout.strip()


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows = {"python starts": [sys.executable, "-c", "pass"]}
    rows |= {f"{name} --version": [name, "--version"] for name in ("podman", "docker") if shutil.which(name)}
    rows["gpu_facts"] = [sys.executable, "-c", GATHER]
    print(f"{'run':<20}{'n':>4}{'median ms':>11}{'min ms':>9}{'max ms':>9}")
    for name, argv in rows.items():
        seconds, printed = measure(argv, repeats)
        figures = [1000 * each for each in (statistics.median(seconds), min(seconds), max(seconds))]
        print(f"{name:<20}{repeats:>4}{figures[0]:>11.0f}{figures[1]:>9.0f}{figures[2]:>9.0f}")
    print(f"{printed} NVIDIA GPUs here; target without any: under {1000 * TARGET_S:.0f} ms")


if __name__ == "__main__":
    main()
