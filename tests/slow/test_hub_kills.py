# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's download is killed at random moments, and run again: no wrong file, little fetched twice, the right end.

SOCLE_HUB_KILLS is the number of kills (default 50) and SOCLE_HUB_KILLS_SEED repeats what an earlier run printed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.journal import held_spans
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.store import part_of

from tests.simulators.hub.server import HubSimulator
from tests.unit.hub.conftest import DRIVER, PROJECT
from tests.unit.hub.downloads import MIB, REPO, STORAGE, manifest, publish

KILLS = int(os.environ.get("SOCLE_HUB_KILLS", "50"))
SEED = int(os.environ.get("SOCLE_HUB_KILLS_SEED") or random.randrange(1_000_000))
LONGEST_S = 9.0
"""More than it takes until a file has several connections."""
RATE = 2 * MIB
TWICE = 8 * MIB


class Model:
    """A model on the hub, and what became of it in the store."""

    def __init__(self, root: Path, seed: int) -> None:
        shutil.rmtree(root / REPO, ignore_errors=True)
        self.contents = {
            f"weights-{number}.bin": publish(root, 40 * MIB, f"weights-{number}.bin", seed * 10 + number)
            for number in range(3)
        }
        self.contents["config.json"] = b"{}"
        (root / REPO / "config.json").write_bytes(b"{}")

    def wrong_files(self, store: Path) -> list[Path]:
        """Files under a final name, or proven ones before they are published, that are not what the hub has."""
        base = store / ".store" / "modelscope" / REPO.replace("/", "--")
        wrong = []
        for folder in [*base.glob("rev/*"), *base.glob("stage/*/tree")]:
            for place in folder.rglob("*"):
                if place.is_file() and place.read_bytes() != self.contents[place.relative_to(folder).as_posix()]:
                    wrong.append(place)
        return wrong

    def held(self, file: ModelFile, store: Path) -> int:
        """How much of *file* a next run does not have to fetch."""
        base = store / ".store" / "modelscope" / REPO.replace("/", "--")
        whole = [*base.glob(f"rev/*/{file.path}"), *base.glob(f"stage/*/tree/{file.path}")]
        if whole:
            return file.size
        parts = [part_of(job, file) for job in base.glob("stage/*")]
        return max((sum(end - start for start, end in held_spans(part, file)) for part in parts), default=0)


def sent(hub: HubSimulator) -> Counter[str]:
    """Bytes that the storage has sent so far, by path."""
    count: Counter[str] = Counter()
    for request in list(hub.requests):
        if request["path"].startswith("/cdn/"):
            count[request["params"]["name"]] += request.get("sent", 0)
    return count


def test_killed_at_any_moment_nothing_is_wrong_and_little_comes_twice(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    store = tmp_path / "store"
    model = Model(tmp_path / "hub", 0)
    kills = ends = ranged = 0
    most = 0
    with HubSimulator(tmp_path / "hub") as hub:
        hub.add_rule(path=STORAGE, bytes_per_s=RATE, count=-1)
        files = manifest(hub).files
        before: Counter[str] = Counter()
        while kills < KILLS or ends == 0:
            arguments = {"repo": REPO, "endpoint": hub.url, "store": str(store), "proxy": "", "reserve_gib": 0}
            process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, json.dumps({**arguments, "force": True})],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
            )
            try:
                output, errors = process.communicate(timeout=chance.uniform(0.3, LONGEST_S) if kills < KILLS else 600)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                kills += 1
                # The storage notices that nobody reads any more.
                time.sleep(0.3)
            else:
                result = json.loads(output)
                # Unchanged where the kill before came after the last step.
                assert process.returncode == 0, (result, errors)
                assert {path: (Path(result["path"]) / path).read_bytes() for path in model.contents} == model.contents
                ends += 1
            assert model.wrong_files(store) == [], f"seed {SEED}, kill {kills}"
            now = sent(hub)
            for file in files:
                twice = now[file.path] - model.held(file, store) - before[file.path]
                most = max(most, twice)
                assert twice <= TWICE, f"{file.path}: {twice} bytes to be fetched twice, seed {SEED}, kill {kills}"
                before[file.path] = now[file.path] - model.held(file, store)
            ranged += any('"spans": [' in place.read_text() for place in store.rglob("part/*.json"))
            if process.returncode == 0:
                shutil.rmtree(store)
                model = Model(tmp_path / "hub", ends)
                hub.requests.clear()
                before.clear()
                files = manifest(hub).files
    print(f"{kills} kills, {ranged} of them between ranges, {ends} downloads ended, at most {most} bytes twice")
    assert ranged > 0, "no kill met a file with several connections: the test proves too little"
