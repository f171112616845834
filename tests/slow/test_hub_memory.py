# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much memory the download of a large model takes: the same, whatever its size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators.hub.server import HubSimulator
from tests.unit.hub.conftest import DRIVER, PROJECT
from tests.unit.hub.downloads import MIB, REPO, STORAGE

LIMIT_KIB = 100 << 10
SIZE = 1 << 30
PEAK = """
import resource, sys
try:
    exec(sys.argv.pop())
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.parametrize("bytes_per_s", [0, 24 * MIB])
def test_a_large_model_takes_little_memory(tmp_path: Path, bytes_per_s: int) -> None:
    """At full speed, and with as many connections as the engine ever takes."""
    folder = tmp_path / "hub" / REPO
    folder.mkdir(parents=True)
    for number in range(2):
        with (folder / f"weights-{number}.bin").open("wb") as handle:
            handle.truncate(SIZE + number)
    with HubSimulator(tmp_path / "hub") as hub:
        if bytes_per_s:
            hub.add_rule(path=STORAGE, bytes_per_s=bytes_per_s, count=-1)
        arguments = {"repo": REPO, "endpoint": hub.url, "store": str(tmp_path / "store"), "proxy": "", "reserve_gib": 0}
        done = subprocess.run(
            [sys.executable, "-c", PEAK, json.dumps({**arguments, "force": True}), DRIVER],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
            check=False,
        )
        assert json.loads(done.stdout).get("changed"), done.stdout + done.stderr
        asked = sum(request["path"].startswith("/cdn/") for request in hub.requests)
    peak = int(done.stderr.split()[-1])
    print(f"{asked} connections, at most {peak / 1024:.0f} MiB")
    assert peak < LIMIT_KIB
    assert asked > 2 or not bytes_per_s
