# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a file system refuses, does not know, or cannot give back any more."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import hashing, lease, store, structure
from ansible_collections.socle.inference.plugins.module_utils._hub.owner import parse_owner
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore

from tests.support.model_store import WEIGHTS, base, contents, finish

Ensure = Callable[..., dict[str, Any]]


def unreadable(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Reading the first shard fails with *number*, as from a bad disk; nothing tells the name."""
    original = hashing.hash_file

    def read(location: Path, *arguments: Any) -> str:
        if location.name == WEIGHTS:
            raise OSError(number, os.strerror(number))
        return original(location, *arguments)

    monkeypatch.setattr(hashing, "hash_file", read)


def test_a_file_that_the_disk_cannot_read_is_damaged_and_only_that_one_is_fetched(
    ensure: Ensure, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure()
    unreadable(monkeypatch, errno.EIO)
    with pytest.raises(StoreError, match=rf"1 missing or damaged files \({WEIGHTS}\)"):
        ensure(offline=True, activate=False, full=True)
    result = ensure(full=True)
    assert any(f"{WEIGHTS} cannot be read any more (Input/output error)" in line for line in result["warnings"])
    assert result["files"]["repaired"] == 1 and result["bytes"]["wan"] == (folder / WEIGHTS).stat().st_size
    monkeypatch.undo()
    assert not ensure(full=True)["changed"] and contents(Path(result["path"])) == contents(folder)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_verified_is_named(ensure: Ensure, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    ensure()
    unreadable(monkeypatch, number)
    with pytest.raises(StoreError, match=rf"/{WEIGHTS} cannot be verified: {os.strerror(number)}"):
        ensure(full=True)


def test_a_file_that_cannot_be_looked_into_is_named(ensure: Ensure, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(ensure()["path"])

    def fail(*_arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path / WEIGHTS))

    monkeypatch.setattr(structure, "_read_header", fail)
    for options in ({"structure": True}, {"offline": True, "activate": False}):
        with pytest.raises(StoreError, match=rf"/{WEIGHTS} cannot be read: Input/output error; nothing was published"):
            ensure(**options)


def test_file_systems_that_flush_no_folders_and_take_no_advice_will_do(
    ensure: Ensure, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.fsync

    def flush(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        original(descriptor)

    def refuse(*_arguments: Any) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    result = ensure()
    assert contents(Path(result["path"])) == contents(folder)
    assert ensure(full=True)["verify"]["hashed_files"] == 6


@pytest.mark.usefixtures("on_nfs")
def test_a_server_that_makes_root_somebody_else_keeps_models_all_the_same(
    ensure: Ensure, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """root_squash of exports(5): what root writes belongs to nobody."""
    for module in (lease, store):
        monkeypatch.setattr(module, "is_own", lambda _status: False)
    path = Path(ensure(allow_shared_fs=True)["path"])
    assert contents(path) == contents(folder)
    (path / WEIGHTS).unlink()
    assert ensure(allow_shared_fs=True)["files"]["fetched"] == 1
    assert contents(path) == contents(folder)
    assert not ensure(allow_shared_fs=True)["changed"]


def test_a_disk_that_cannot_flush_a_folder_ends_the_run(ensure: Ensure, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        ensure()


def test_foreign_files_with_names_that_are_no_text_are_shown_and_moved_away(
    ensure: Ensure, start: Callable[..., Any], store: Path
) -> None:
    path = Path(ensure()["path"])
    (path / os.fsdecode(b"\xff\n")).touch()
    result = finish(start(offline=True))
    assert result["failed"] and r"1 foreign ones (\udcff?)" in result["msg"]
    json.dumps(result, ensure_ascii=False).encode()
    cleared = ensure()
    assert cleared["files"]["removed"] == 1 == len(cleared["moved_aside"]["files"])
    assert cleared["moved_aside"]["folder"] == str(base(store) / "stage" / "rejected")
    assert len(list((base(store) / "stage" / "rejected").iterdir())) == 1


def test_a_link_that_cannot_be_read_is_not_taken_for_something_else(
    ensure: Ensure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure()

    def fail(_path: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "Model")

    monkeypatch.setattr(Path, "readlink", fail)
    with pytest.raises(StoreError, match="Model cannot be read: Stale file handle"):
        ensure()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"host": "h", "pid": 1e999, "since": "s"}',
        '{"host": "h", "pid": 0, "since": "s"}',
        f'{{"host": "h", "pid": {"1" * 400}, "since": "s"}}',
        "1" * 5000,
    ],
)
def test_owners_that_are_none_are_passed_over(tmp_path: Path, text: str) -> None:
    assert parse_owner(text) is None
    store = RepoStore(tmp_path, "modelscope", "Org/Model")
    store.prepare()
    job = store.new_job("0" * 12)
    (job / "owner.json").write_text(text)
    assert store.leftovers("1" * 12) == [job]
