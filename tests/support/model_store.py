# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of the store need: to look into one, to spoil it, and to die at each step in turn."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile, check_files
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore

WEIGHTS = "model-00001-of-00002.safetensors"
MORE_WEIGHTS = "model-00002-of-00002.safetensors"


def safetensors(tensors: dict[str, int], dtype: str = "BF16") -> bytes:
    """The beginning of a safetensors file with tensors of so many bytes, which follow it."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, size in tensors.items():
        entries[name] = {"dtype": dtype, "shape": [size], "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def hold(store: Path, repo: str, files: dict[str, bytes], sizes: dict[str, int] | None = None) -> Manifest:
    """Put a model into *store* as a sync leaves it, at branch master. Files of *sizes* go on to that length as holes:
    weights of a real model's size, which take no room. Hashes are those of the name alone, since nobody proves them."""
    lengths = {name: (sizes or {}).get(name, len(content)) for name, content in files.items()}
    commit = hashlib.sha1(repr((repo, sorted(files.items()), lengths)).encode(), usedforsecurity=False).hexdigest()
    listed = [ModelFile(name, size, hashlib.sha256(name.encode()).hexdigest()) for name, size in lengths.items()]
    manifest = Manifest("modelscope", repo, "master", commit, "branch", check_files(listed), "2026-11-30T09:28:44Z")
    place = RepoStore(store, "modelscope", repo)
    place.prepare()
    folder = place.revision(manifest.id)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        os.truncate(folder / name, lengths[name])
    place.save_manifest(manifest)
    ledger = place.read_ledger()
    ledger.refs["master"] = manifest.id
    place.save_ledger(ledger)
    return manifest


class Death(BaseException):
    """Stands for the end of the process: nothing catches it."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def base(store: Path) -> Path:
    return store / ".store" / "modelscope" / "Org--Model"


def published(store: Path) -> list[str]:
    revisions = base(store) / "rev"
    return sorted(entry.name for entry in revisions.iterdir()) if revisions.is_dir() else []


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    overwrite(path, bytes(content))


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=60)
    assert stdout, stderr
    result: dict[str, Any] = json.loads(stdout)
    return result


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Until *condition* is true; a file that goes while it looks is no fault. Fails after *seconds*."""
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(FileNotFoundError):
            if condition():
                return
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.02)


def rot(store: Path, path: Path) -> None:
    """Flip a byte as a bad disk does: the ledger agrees with every number that stat gives."""
    before = path.stat()
    flip_byte(path)
    path.chmod(before.st_mode & 0o7777)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    edit_ledger(store, lambda entry: entry.update(ctime_ns=path.stat().st_ctime_ns), inode=path.stat().st_ino)


def edit_ledger(store: Path, change: Callable[[dict[str, Any]], Any], inode: int | None = None) -> None:
    """Apply *change* to every entry of the ledger, or to those of one inode."""
    ledger = json.loads((base(store) / "ledger.json").read_text())
    for revision in ledger["revisions"].values():
        for entry in revision["files"].values():
            if inode is None or entry["inode"] == inode:
                change(entry)
    (base(store) / "ledger.json").write_text(json.dumps(ledger))


@contextlib.contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, step: int, *calls: tuple[Any, str]) -> Iterator[list[bool]]:
    """Die before the *step*-th of *calls*, an owner and a name each; yields a list that holds True once that was so."""
    died: list[bool] = []
    left = step

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Death
            return original(*args, **options)

        return wrapped

    with monkeypatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, wrap(getattr(owner, name)))
        try:
            yield died
        except Death:
            died.append(True)
