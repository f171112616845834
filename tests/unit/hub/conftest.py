# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real hub simulator on 127.0.0.1 with a small model, and two ways to run the module: here, and as a process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub import lease
from ansible_collections.socle.inference.plugins.module_utils._hub.modelscope import ModelScopeHub
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Access, Client
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator

PROJECT = Path(__file__).resolve().parents[3]
REPO = "Org/Model"
WEIGHTS = "model-00001-of-00002.safetensors"
MORE_WEIGHTS = "model-00002-of-00002.safetensors"
FAST = Policy(backoff_s=0.01, backoff_max_s=0.02, list_timeout_s=5, stall_s=5, progress_bytes=64 << 10)
DRIVER = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.modules import modelscope_snapshot
with patch_module_args(json.loads(sys.argv[1])):
    modelscope_snapshot.main()
"""


def tensors(name: str, size: int, seed: int = 0) -> bytes:
    """A safetensors file with one tensor of *size* bytes."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(f"{name}{seed}").randbytes(size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model as the hub holds it: two shards with an index, a file in a folder, an empty file."""
    folder = tmp_path / "hub" / REPO
    (folder / "extra").mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["Some"]}')
    (folder / "extra" / "note.txt").write_text("x")
    (folder / "empty").write_text("")
    (folder / WEIGHTS).write_bytes(tensors("a", 900_000))
    (folder / MORE_WEIGHTS).write_bytes(tensors("b", 300_000))
    index = {"weight_map": {"a": WEIGHTS, "b": MORE_WEIGHTS}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubSimulator]:
    with HubSimulator(folder.parents[1]) as simulator:
        yield simulator


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def ensure(hub: HubSimulator, store: Path) -> Callable[..., dict[str, Any]]:
    """Run in process, without long pauses."""

    def run(endpoint: str = hub.url, token: str | None = None, list_cap: int = 3000, **options: Any) -> dict[str, Any]:
        client = ModelScopeHub(Client(endpoint, Access(token, proxy=""), FAST), list_cap)
        injected = {name: options.pop(name) for name in ("origins", "shelf", "facts") if name in options}
        request = Request(**{"repo": REPO, "revision": "master", "store": store, "reserve_bytes": 0, **options})
        return ensure_snapshot(request, client, Progress(), **injected)

    return run


def heed_signals() -> None:
    """A process inherits what is ignored: SIGHUP below nohup, SIGINT in the background of a script."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(hub: HubSimulator, store: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the module as a real process."""
    started: list[subprocess.Popen[str]] = []

    def run(**options: Any) -> subprocess.Popen[str]:
        args = {"repo": REPO, "endpoint": hub.url, "store": str(store), "reserve_gib": 0, "proxy": "", **options}
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
            preexec_fn=heed_signals,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is on NFS, whose server gives no delegations: no lease is to be had (nfs4_setlease() in Linux)."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("30 22 0:5 / / rw,relatime shared:2 - nfs4 nas:/export rw,vers=4.2\n")
    monkeypatch.setattr(lease, "MOUNTINFO", mounts)
    real = fcntl.fcntl

    def refuse(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return int(real(descriptor, command, argument))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
