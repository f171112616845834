# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What caches that outlive the engine save at a restart, on the lab's engine with compilation on.

Usage: python benchmarks/restart_speed.py [--repeats 2]. An instance of its own is deployed beside the lab's and goes
with it. Each repeat starts it with empty compile caches and with those of the start before, and with its weights out
of the page cache and in it. Then the weights are read here: from the disk, and after what a launch does while the
engine of another model ends (it asks the kernel to read them). Weights leave the page cache file by file
(POSIX_FADV_DONTNEED), so that other work on the machine keeps its own; a disk with a cache of its own is not cold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]

from ansible_collections.socle.inference.plugins.module_utils._engine.warm import Warmer, weights  # noqa: E402
from machine import describe_machine  # noqa: E402

from tests.support import lab, lab_instance  # noqa: E402

NAME, PORT = "speed", 8005
SETTINGS = {
    # The lab's profile switches compilation off.
    "flags": {"enforce-eager": None},
}

STARTS = ("empty caches, weights from the disk", "kept caches, weights from the disk", "kept caches, weights in memory")
PIECE_BYTES = 8 * 1024**2
ROOM_BYTES = 64 * 1024**3


def end(number: int, _frame: object) -> None:
    """Leave by way of what cleans up, also when it is asked to end from outside."""
    sys.exit(128 + number)


def forget(caches: bool, pages: bool) -> None:
    """Empty the compile caches of the lab host, or take the weights of its models out of its page cache."""
    if caches:
        lab.on_host(
            f"systemctl stop vllm-{NAME}.service 2>/dev/null || true; find /var/lib/socle/cache -mindepth 2 -delete"
        )
    if pages:
        evict = "-exec dd if={} iflag=nocache count=0 status=none ';'"
        lab.on_host(f"find /var/lib/socle/models -type f -name '*.safetensors' {evict}")


def start(playbook: str, inventory: Path) -> dict[str, Any]:
    """Start the instance anew by a playbook; what its start is on record with."""
    lab.play(playbook, inventory=inventory).expect_success()
    record = json.loads(lab.collected("deploy", NAME, inventory)[-1].read_text(encoding="utf-8"))
    return dict(record["results"])


def figures(results: dict[str, Any]) -> dict[str, float]:
    """Seconds of a start: all of it, and of what caches can shorten."""
    milestones = results["milestones"]
    compiled = milestones.get("compile") or {}
    initialised = milestones.get("engine_ready") or {}
    return {
        "start": float(milestones["server"]["at_s"]),
        "compile": float(compiled.get("took_s") or initialised.get("compilation_s") or initialised.get("took_s") or 0),
        "weights": float((milestones.get("weights_read") or {}).get("took_s") or 0),
    }


def lab_weights() -> list[Path]:
    """Those of the model that the lab made last, on this machine: `lab/models/RECIPE/ORG/NAME`."""
    folders = {path.parent for path in (lab.cache() / "lab" / "models").glob("*/*/*/*.safetensors")}
    if not folders:
        sys.exit(f"Expected a model with weights in {lab.cache() / 'lab' / 'models'}: run `make lab` first.")
    return weights(max(folders, key=lambda folder: folder.stat().st_mtime), ROOM_BYTES)


def read_seconds(files: list[Path]) -> float:
    """How long it takes to read the files once."""
    began = time.monotonic()
    for path in files:
        with path.open("rb", buffering=0) as handle:
            while handle.read(PIECE_BYTES):
                pass
    return time.monotonic() - began


def drop(files: list[Path]) -> None:
    """Take the files out of the page cache of this machine."""
    for path in files:
        with path.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_ahead(files: list[Path], ahead_s: float) -> float:
    """The same after the kernel had *ahead_s* to read them, as while another engine ends."""
    warmer = Warmer(files)
    warmer.start()
    time.sleep(ahead_s)
    warmer.end()
    return read_seconds(files)


def show(rows: dict[str, list[dict[str, float]]]) -> None:
    """The table of starts: medians in seconds."""
    print(f"{'start with':<40}{'n':>3}{'start s':>9}{'min':>7}{'max':>7}{'compile s':>11}{'weights s':>11}")
    for name, found in rows.items():
        column = {key: [each[key] for each in found] for key in ("start", "compile", "weights")}
        starts = column["start"]
        print(
            f"{name:<40}{len(found):>3}{statistics.median(starts):>9.1f}{min(starts):>7.1f}{max(starts):>7.1f}"
            f"{statistics.median(column['compile']):>11.1f}{statistics.median(column['weights']):>11.2f}"
        )
    first, last = (statistics.median(each["start"] for each in rows[name]) for name in (STARTS[0], STARTS[-1]))
    print(f"kept caches save {first - last:.1f} of {first:.1f} s ({100 * (first - last) / first:.0f} %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    # Asked for before ten minutes of starts.
    files = lab_weights()
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as folder:
        inventory = lab_instance.inventory_of(Path(folder) / "inventory", NAME, PORT, **SETTINGS)
        try:
            for repeat in range(asked.repeats):
                for name, caches, pages in zip(STARTS, (True, False, False), (True, True, False), strict=True):
                    forget(caches, pages)
                    playbook = "playbooks/redeploy.yml" if repeat or not caches else "playbooks/deploy.yml"
                    rows[name].append(figures(start(playbook, inventory)))
        finally:
            lab_instance.remove(NAME)
    show(rows)

    size = sum(path.stat().st_size for path in files)
    drop(files)
    cold = read_seconds(files)
    drop(files)
    warm = read_ahead(files, cold)
    print(
        f"{size / 1e6:.0f} MB of weights: {cold:.2f} s from the disk, {warm:.2f} s after {cold:.2f} s of reading ahead"
    )
    print(describe_machine(5))


if __name__ == "__main__":
    main()
