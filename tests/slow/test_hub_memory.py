# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much memory the download of a model takes: the same, whatever its size, and whatever it is made of."""

from __future__ import annotations

import json
import os
import struct
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
import sys
try:
    exec(sys.argv.pop())
finally:
    # What getrusage() tells begins with the peak of the process that started this one.
    print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


def bring(hub: HubSimulator, store: Path) -> subprocess.CompletedProcess[str]:
    arguments = {"repo": REPO, "endpoint": hub.url, "store": str(store), "proxy": "", "reserve_gib": 0, "force": True}
    return subprocess.run(
        [sys.executable, "-c", PEAK, json.dumps(arguments), DRIVER],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
        check=False,
    )


def peak_kib(done: subprocess.CompletedProcess[str]) -> int:
    return int(done.stderr.split()[-1])


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
        done = bring(hub, tmp_path / "store")
        assert json.loads(done.stdout).get("changed"), done.stdout + done.stderr
        asked = sum(request["path"].startswith("/cdn/") for request in hub.requests)
    peak = peak_kib(done)
    print(f"{asked} connections, at most {peak / 1024:.0f} MiB")
    assert peak < LIMIT_KIB
    assert asked > 2 or not bytes_per_s


@pytest.mark.parametrize("kind", ["objects", "tensors"])
def test_a_header_of_very_many_small_values_takes_little_memory(tmp_path: Path, kind: str) -> None:
    """As large as the safetensors library takes one; as objects it would take some GB."""
    folder = tmp_path / "hub" / REPO
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as handle:
        handle.seek(8)
        if kind == "objects":
            handle.write(b'{"__metadata__":{"a":[')
            for _number in range(30):
                handle.write(b"{}," * 1_000_000)
            handle.write(b"{}]}}")
        else:
            handle.write(b"{")
            for number in range(2_900_000):
                handle.write(b'"%x":{"data_offsets":[0,0]},' % number)
            handle.write(b'"":{"data_offsets":[0,0]}}')
        length = handle.tell() - 8
        handle.seek(0)
        handle.write(struct.pack("<Q", length))
    with HubSimulator(tmp_path / "hub") as hub:
        done = bring(hub, tmp_path / "store")
    assert "has a safetensors header that holds more than" in json.loads(done.stdout)["msg"]
    print(f"{length} bytes, at most {peak_kib(done) / 1024:.0f} MiB")
    assert peak_kib(done) < LIMIT_KIB
