# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a model comes from a hub, with its hashes, against curl without any and the hub's official client.

All of them fetch the same model from the hub simulator over loopback to --folder (a tmpfs by default), in turns. Each
is a whole process, with its start. Only the ratios of one run mean something, and those of the best time of each, since
what else the machine does only adds: one stream of the engine, hashed, is to reach 0.8 of curl and to be faster than
the official client, and both are to leave the same bytes. The official client (modelscope-hub) is installed with pip
into an environment of its own below ~/.cache/socle/bench.

With --line-mb the server limits each connection, as storage on the other side of the world does: then it shows what
several connections into one file bring, for example with `--gib 0.5 --shards 1 --line-mb 20 --repeats 1`.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENT = Path("~/.cache/socle/bench/modelscope-hub").expanduser()
REPO = "Org/Model"
TARGET = 0.8
BLOCK = 1 << 24
ENGINE = """
import sys
from pathlib import Path
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress
hub = make_hub(endpoint=sys.argv[1], proxy="", policy=Policy(connections=int(sys.argv[3])))
request = Request("Org/Model", "master", Path(sys.argv[2]), reserve_bytes=0, force=True)
ensure_snapshot(request, hub, Progress())
"""


def write_model(folder: Path, total: int, shards: int) -> list[str]:
    """A model of *total* bytes in *shards*, with a few small files; returns the paths."""
    folder.mkdir(parents=True)
    block = random.Random(0).randbytes(BLOCK)
    (folder / "config.json").write_text("{}")
    (folder / "notes").mkdir()
    (folder / "notes" / "one").write_text("1")
    for number in range(shards):
        with (folder / f"weights-{number}.bin").open("wb") as handle:
            for position in range(0, total // shards, BLOCK):
                handle.write(number.to_bytes(8, "big") + position.to_bytes(8, "big") + block[16:])
    return sorted(place.relative_to(folder).as_posix() for place in folder.rglob("*") if place.is_file())


def official_client() -> Path | None:
    """The official client's command, installed where it is missing; None where it cannot be had."""
    command = CLIENT / "bin" / "modelscope"
    if not command.exists():
        CLIENT.parent.mkdir(parents=True, exist_ok=True)
        steps = ([sys.executable, "-m", "venv", CLIENT], [CLIENT / "bin/pip", "install", "-q", "modelscope-hub"])
        for step in steps:
            if subprocess.run(step, check=False).returncode != 0:
                shutil.rmtree(CLIENT, ignore_errors=True)
                return None
    return command


def timed(command: list[str | Path], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command that must end well."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with status {done.returncode}: {done.stderr.decode(errors='replace')[-1500:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def differences(left: Path, right: Path) -> list[str]:
    """Paths that are not the same bytes in both folders, or only in one."""
    paths = {
        place.relative_to(folder).as_posix()
        for folder in (left, right)
        for place in folder.rglob("*")
        if place.is_file()
    }
    _same, differing, missing = filecmp.cmpfiles(left, right, sorted(paths), shallow=False)
    return differing + missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where source and copies go")
    parser.add_argument("--gib", type=float, default=2.0, help="size of the model (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--line-mb", type=float, default=0, help="MB/s that the server gives each connection")
    asked = parser.parse_args()
    client = official_client()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        paths = write_model(folder / "hub" / REPO, int(asked.gib * (1 << 30)), asked.shards)
        simulator = [sys.executable, ROOT / "tests/simulators/hub/server.py"]
        server = subprocess.Popen(
            [*simulator, "--root", folder / "hub", "--port-file", folder / "port"], stdout=subprocess.DEVNULL
        )
        try:
            url = wait_for_port(folder / "port", server)
            if asked.line_mb:
                limit(url, asked.line_mb)
            compare(folder, paths, url, client, asked.repeats)
        finally:
            server.terminate()
            server.wait()


def wait_for_port(place: Path, server: subprocess.Popen[bytes]) -> str:
    """The simulator's address, once it listens."""
    for _try in range(300):
        if place.exists():
            return f"http://127.0.0.1:{place.read_text().strip()}"
        if server.poll() is not None:
            break
        time.sleep(0.1)
    sys.exit("the hub simulator does not start")


def limit(url: str, line_mb: float) -> None:
    """Let the simulator give each connection to its storage so much."""
    rule = {"path": "^/cdn/", "bytes_per_s": line_mb * 1e6, "count": -1}
    request = urllib.request.Request(f"{url}/_ctl", json.dumps({"rules": [rule]}).encode())
    urllib.request.urlopen(request, timeout=10).close()


def compare(folder: Path, paths: list[str], url: str, client: Path | None, repeats: int) -> None:
    source, target = folder / "hub" / REPO, folder / "copy"
    environment = {
        "PYTHONPATH": str(ROOT / "collections"),
        "MODELSCOPE_ENDPOINT": url,
        "MODELSCOPE_CACHE": str(folder / "cache"),
        "MODELSCOPE_HOME": str(folder / "home"),
        "NO_PROXY": "127.0.0.1",
    }

    def curl() -> list[str | Path]:
        command: list[str | Path] = ["curl", "-sSfL", "--create-dirs"]
        for path in paths:
            query = urllib.parse.urlencode({"Revision": "master", "FilePath": path})
            command += ["-o", target / path, f"{url}/api/v1/models/{REPO}/repo?{query}"]
        return command

    def engine(files: int) -> Callable[[], list[str | Path]]:
        return lambda: [sys.executable, "-c", ENGINE, url, target, str(files)]

    def official(workers: int) -> Callable[[], list[str | Path]]:
        options = ["--local-dir", target, "--max-workers", str(workers)]
        return lambda: [client or "", "download", REPO, *options]

    rows: dict[str, Callable[[], list[str | Path]]] = {
        "curl, no hash": curl,
        "engine, 1 file at a time": engine(1),
        "engine, 4 files at once": engine(4),
    }
    if client:
        rows["official client, 1 worker"] = official(1)
        rows["official client, 4 workers"] = official(4)
    # The simulator hashes its files when they are asked for first.
    timed(["curl", "-sSf", "-o", "/dev/null", f"{url}/api/v1/models/{REPO}/repo/files?Recursive=True"], {})
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    wrong: dict[str, list[str]] = {}
    for _repeat in range(repeats):
        for name, command in rows.items():
            seconds[name].append(timed(command(), environment))
            copy = (target / "Model").resolve() if name.startswith("engine") else target
            wrong[name] = differences(source, copy)
            for place in (target, folder / "cache", folder / "home"):
                shutil.rmtree(place, ignore_errors=True)
    total = sum((source / path).stat().st_size for path in paths)
    best = {name: min(wall for wall, _cpu in runs) for name, runs in seconds.items()}
    floor = best["curl, no hash"]
    print(f"{len(paths)} files, {total / 1e9:.2f} GB, {repeats} times each, to {folder.parent}")
    print(f"{'client':<28}{'median s':>10}{'best s':>8}{'MB/s':>8}{'x curl':>8}{'CPU s':>8}  tree")
    for name, runs in seconds.items():
        median = statistics.median(wall for wall, _cpu in runs)
        cpu = statistics.median(cpu for _wall, cpu in runs)
        tree = "same bytes" if not wrong[name] else f"differs: {', '.join(wrong[name][:3])}"
        rates = f"{total / 1e6 / best[name]:>8.0f}{floor / best[name]:>8.2f}"
        print(f"{name:<28}{median:>10.2f}{best[name]:>8.2f}{rates}{cpu:>8.1f}  {tree}")
    ratio = floor / best["engine, 1 file at a time"]
    print(f"one stream with hash: {ratio:.2f} x curl; target at least {TARGET}")
    if client:
        for workers, mine in (("1 worker", "1 file at a time"), ("4 workers", "4 files at once")):
            other = best[f"official client, {workers}"] / best[f"engine, {mine}"]
            print(f"engine, {mine}: {other:.2f} x the official client, {workers}; target over 1")
    else:
        print("official client: pip could not install modelscope-hub here, so there is no comparison with it")


if __name__ == "__main__":
    main()
