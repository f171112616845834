# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it costs to find out that a 52 GB model is unchanged, against the floor of a Python start.

Makes a store of sparse files with a ledger for them, and runs the module modelscope_snapshot on it as Ansible does on a
host: in a process of its own, with the manifest that the controller has locked, and with a hub that counts requests.
Prints seconds (median), requests and peak memory, and the same for a Python that only imports Ansible's module code.

    python benchmarks/model_noop.py [--runs 9] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile  # noqa: E402
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest  # noqa: E402
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore  # noqa: E402

from tests.simulators.hub.server import HubSimulator  # noqa: E402

TOTAL_BYTES = 52_000_000_000
SHARDS = 18
SMALL_FILES = 12
REPO = "Org/Model"
FLOOR = "import ansible.module_utils.basic"
MODULE = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.modules import modelscope_snapshot
with patch_module_args(json.loads(sys.stdin.read())):
    modelscope_snapshot.main()
"""


def make_store(root: Path) -> Manifest:
    """A published revision of holes, which the ledger takes for proven."""
    files = [
        ModelFile(f"model-{number:05}-of-{SHARDS:05}.safetensors", TOTAL_BYTES // SHARDS, f"{number:064x}")
        for number in range(1, SHARDS + 1)
    ]
    files += [ModelFile(f"small-{number}.json", 4096, f"{number:064x}") for number in range(SMALL_FILES)]
    manifest = Manifest("modelscope", REPO, "master", "a" * 40, "given", tuple(files), "2026-11-30T00:00:00Z")
    store = RepoStore(root, manifest.hub, manifest.repo)
    store.prepare()
    folder = store.revision(manifest.id)
    folder.mkdir()
    ledger = store.read_ledger()
    for file in manifest.files:
        with (folder / file.path).open("wb") as handle:
            handle.truncate(file.size)
        (folder / file.path).chmod(0o444)
        ledger.note(manifest.id, file, (folder / file.path).stat())
    ledger.refs["master"] = manifest.id
    ledger.note_link("Model", manifest.id)
    store.save_manifest(manifest)
    store.save_ledger(ledger)
    (root / "Model").symlink_to(folder.relative_to(root))
    return manifest


def run(code: str, stdin: str) -> tuple[float, int, str]:
    """Seconds, peak memory in bytes, and what it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("no pipes")
    process.stdin.write(stdin)
    process.stdin.close()
    written = process.stdout.read()
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        raise RuntimeError(f"the process ended with {process.returncode}: {written}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024, written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="runs of each (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the sparse files go; needs no space")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        root = Path(scratch) / "store"
        (Path(scratch) / "hub").mkdir()
        manifest = make_store(root)
        with HubSimulator(Path(scratch) / "hub") as hub:
            args = {
                "repo": REPO,
                "store": str(root),
                "endpoint": hub.url,
                "manifest": json.loads(manifest.dumps()),
                "proxy": "",
            }
            floor, module = [], []
            for _number in range(options.runs):
                floor.append(run(FLOOR, ""))
                module.append(run(MODULE, json.dumps(args)))
            requests = len(hub.requests)
    results = [json.loads(written) for _seconds, _memory, written in module]
    if any(result["changed"] or result["verify"]["hashed_files"] for result in results):
        raise RuntimeError(f"the tree was not found unchanged: {results[0]}")
    seconds = statistics.median(item[0] for item in module)
    least = statistics.median(item[0] for item in floor)
    print(f"files {len(manifest.files)}, {manifest.total_bytes / 1e9:.1f} GB")
    print(f"module         {seconds:.3f} s, {max(item[1] for item in module) / 1e6:.0f} MB, {requests} requests")
    print(f"Python start   {least:.3f} s, {max(item[1] for item in floor) / 1e6:.0f} MB")
    print(f"of the module's own: the check {statistics.median(item['seconds'] for item in results) * 1000:.1f} ms")
    return 0 if seconds < 1 and requests == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
