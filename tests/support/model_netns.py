# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hub and hosts in network namespaces on one bridge, with links of a given rate in both directions. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import loads

from tests.support.model_fleet import FleetHost, place_all

ROOT = Path(__file__).resolve().parents[2]
BRIDGE = "socle-fan"
HUB = "hub"
NETWORK = "10.231.77"
PORT = 8080
SHARDS = 8
WAN_QUEUE, LAN_QUEUE = "20ms", "5ms"
"""How long a byte may wait where a link is full. A port of a switch holds some 100 KB, 5 ms at 500 Mbit/s. With four
times as much the windows of TCP grow so slowly that the hosts behind the first one leave their links idle."""
CALLS = """
import json, sys
from ansible_collections.socle.inference.plugins.module_utils._hub.sync import sync
print(json.dumps([sync(params, False) for params in json.load(sys.stdin)], default=str))
"""
RESOLVE = """
import sys
sys.path.insert(0, sys.argv[3])
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import loads

from tests.support.model_fleet import resolve
print(resolve(sys.argv[1], sys.argv[2]).dumps())
"""


def missing() -> str | None:
    """Why this machine cannot have the namespaces, or None."""
    for name in ("ip", "tc", "bridge"):
        if shutil.which(name) is None:
            return f"{name} (iproute2) is not installed"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    done = subprocess.run(["ip", "netns", "add", f"{BRIDGE}-try"], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", f"{BRIDGE}-try"], capture_output=True, check=False)
    return done.stderr.strip() or None if done.returncode else None


def make_model(folder: Path, size: int, seed: int) -> None:
    """A model of about *size* bytes in SHARDS safetensors files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["Some"], "seed": seed}))
    names = [f"model-{number:05d}-of-{SHARDS:05d}.safetensors" for number in range(1, SHARDS + 1)]
    for number, name in enumerate(names):
        count = size // SHARDS
        header = json.dumps({f"t{number}": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
        with (folder / name).open("wb") as handle:
            handle.write(struct.pack("<Q", len(header)) + header + random.Random(seed * 100 + number).randbytes(count))
    index = {"weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@dataclass(frozen=True)
class Outcome:
    """How a model came to the hosts."""

    seconds: dict[str, float]
    """By host that finished, since the first one began."""
    received: float
    """Bytes that these hosts took from the hub, over the size of the model."""
    sent: float
    """The same by the hub's log: with what a killed host took, and what was under way on connections that were cut."""
    limit_s: float
    killed: str | None = None

    @property
    def ratio(self) -> float:
        """The slowest host over the physical limit: size over the rate of the bottleneck."""
        return max(self.seconds.values()) / self.limit_s


class Bed:
    """The network, the hub's process and the hosts."""

    def __init__(self, folder: Path, count: int, wan_bytes_per_s: float, lan_bytes_per_s: float) -> None:
        self.folder = folder
        self.names = [f"gpu{number}" for number in range(1, count + 1)]
        self.wan = wan_bytes_per_s
        self.lan = lan_bytes_per_s
        self.endpoint = f"http://{NETWORK}.10:{PORT}"
        self.log = folder / "hub.log"
        self.server: subprocess.Popen[bytes] | None = None
        self.runs = 0

    # The network

    def __enter__(self) -> Bed:
        try:
            self._clean()
            _ip("link", "add", BRIDGE, "type", "bridge")
            _ip("link", "set", BRIDGE, "up")
            for number, name in enumerate([HUB, *self.names]):
                self._attach(name, f"{NETWORK}.{10 + number}")
            self.set_rates(self.wan, self.lan)
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        if self.server:
            self.server.kill()
            self.server.wait()
        self._clean()

    def _clean(self) -> None:
        """Remove what this or an interrupted run made, by name; the processes in there first."""
        for name in [HUB, *self.names]:
            found = subprocess.run(["ip", "netns", "pids", _space(name)], capture_output=True, text=True, check=False)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            subprocess.run(["ip", "netns", "delete", _space(name)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "delete", _port(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)

    def _attach(self, name: str, address: str) -> None:
        _ip("netns", "add", _space(name))
        _ip("link", "add", _port(name), "type", "veth", "peer", "name", "eth0", "netns", _space(name))
        _ip("link", "set", _port(name), "master", BRIDGE, "up")
        _ip("-n", _space(name), "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", _space(name), "link", "set", "eth0", "up")
        _ip("-n", _space(name), "link", "set", "lo", "up")
        if name == HUB:
            # What the hub sent is what left it: little of it waits in its memory.
            sysctl = ["ip", "netns", "exec", _space(name), "sysctl", "-qw", "net.ipv4.tcp_wmem=4096 65536 524288"]
            subprocess.run(sysctl, check=True)

    def set_rates(self, wan_bytes_per_s: float, lan_bytes_per_s: float) -> None:
        """Shape every link at both of its ends."""
        self.wan, self.lan = wan_bytes_per_s, lan_bytes_per_s
        for name in [HUB, *self.names]:
            rate, queue = (self.wan, WAN_QUEUE) if name == HUB else (self.lan, LAN_QUEUE)
            shape = ["root", "tbf", "rate", f"{int(rate * 8)}bit", "burst", "128kb", "latency", queue]
            subprocess.run(["tc", "qdisc", "replace", "dev", _port(name), *shape], check=True)
            subprocess.run(["tc", "-n", _space(name), "qdisc", "replace", "dev", "eth0", *shape], check=True)

    # Hub and hosts

    def serve(self, root: Path) -> None:
        """Start the hub."""
        self.server = subprocess.Popen(
            [
                *("ip", "netns", "exec", _space(HUB), sys.executable, str(ROOT / "tests/simulators/hub/server.py")),
                *("--root", str(root), "--bind", f"{NETWORK}.10", "--port", str(PORT), "--log", str(self.log)),
            ],
            stdout=subprocess.DEVNULL,
        )

    def resolve(self, repo: str) -> FleetHost:
        """The first host, with the manifest as the hub tells it."""
        for _try in range(100):
            done = self._python(self.names[0], RESOLVE, [self.endpoint, repo, str(ROOT)], "", check=False)
            if done.returncode == 0:
                break
            time.sleep(0.2)
        else:
            raise AssertionError(f"the hub does not answer: {done.stderr[-500:]}")
        return FleetHost(self.names[0], f"{NETWORK}.11", self.folder / "none", self.endpoint, loads(done.stdout))

    def hosts(self, repo: str) -> list[FleetHost]:
        """All hosts, with empty stores."""
        first = self.resolve(repo)
        self.runs += 1
        return [
            FleetHost(
                name, f"{NETWORK}.{11 + number}", self.folder / f"run{self.runs}" / name, self.endpoint, first.manifest
            )
            for number, name in enumerate(self.names)
        ]

    def bring(
        self,
        hosts: Sequence[FleetHost],
        limit_s: float,
        star: bool = False,
        victim: str | None = None,
        kill_at: float = 0.5,
    ) -> Outcome:
        """Bring the model to *hosts*; *star*: each from the hub. *victim* is killed at *kill_at* of the limit."""
        before = self._sent()
        _each(hosts, lambda host: self.call(host, "started", relay=not star))
        places: dict[str, list[dict[str, Any]]] = {host.name: [] for host in hosts} if star else place_all(hosts)
        for host in hosts:
            host.tell(places[host.name])
        if victim:
            time.sleep(kill_at * limit_s)
            next(host for host in hosts if host.name == victim).kill()
        left = [host for host in hosts if host.name != victim]
        results = _each(left, lambda host: self.call(host, "finished", wait_s=limit_s * 10 + 60))
        ends = {host.name: host.job().folder.result.stat().st_mtime for host in left}
        began = min(ends[host.name] - results[host.name]["seconds"] for host in left)
        seconds = {name: end - began for name, end in ends.items()}
        total = hosts[0].manifest.total_bytes
        received = sum(result["bytes"]["wan"] for result in results.values()) / total
        sent = (self._sent() - before) / total
        _each(left, lambda host: self.call(host, "stopped"))
        shutil.rmtree(hosts[0].folder.parent)
        return Outcome(seconds, received, sent, limit_s, victim)

    def call(self, host: FleetHost, state: str, **options: Any) -> dict[str, Any]:
        """What the module does in the host's namespace."""
        done = self._python(host.name, CALLS, [], json.dumps([host.params(state, **options)]))
        answer: dict[str, Any] = json.loads(done.stdout)[0]
        return answer

    def _python(
        self, name: str, program: str, arguments: Sequence[str], given: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["ip", "netns", "exec", _space(name), sys.executable, "-c", program, *arguments],
            input=given,
            env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{name}: {done.stderr[-1500:]}")
        return done

    def _sent(self) -> int:
        """Bytes of files that left the hub so far, by its own log."""
        place = Path(f"{self.log}.sent")
        return sum(map(int, place.read_text(encoding="ascii").split())) if place.exists() else 0


def _each(hosts: Sequence[FleetHost], work: Any) -> dict[str, Any]:
    """*work* on all hosts at once."""
    answers: dict[str, Any] = {}
    faults: list[BaseException] = []

    def run(host: FleetHost) -> None:
        try:
            answers[host.name] = work(host)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=run, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return answers


def _space(name: str) -> str:
    return f"{BRIDGE}-{name}"


def _port(name: str) -> str:
    return f"sfan-{name}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
