# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has already is taken over, whatever put it there."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import adopt
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import MORE_WEIGHTS, WEIGHTS, contents, flip_byte

Ensure = Callable[..., dict[str, Any]]


def put_old_modelscope_cache(folder: Path, cache: Path) -> Path:
    shutil.copytree(folder, cache / "models" / "Org" / "Mod___el")
    (cache / "models" / "Org" / "Mod___el" / ".msc").write_bytes(b"index")
    (cache / "models" / "._____temp").mkdir()
    return cache


def put_new_modelscope_cache(folder: Path, cache: Path) -> Path:
    shutil.copytree(folder, cache / "models" / "Org--Model" / "snapshots" / "master")
    return cache


def put_hugging_face_cache(folder: Path, cache: Path) -> Path:
    """Only the folder of the snapshot is named; its links leave it."""
    home = cache / "hub" / "models--Org--Model"
    (home / "blobs").mkdir(parents=True)
    snapshot = home / "snapshots" / "0123456789"
    for path, content in contents(folder).items():
        blob = home / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(os.path.relpath(blob, (snapshot / path).parent))
    return snapshot


def put_hand_made_folder(folder: Path, cache: Path) -> Path:
    """Other names, other depth."""
    cache.mkdir()
    for number, content in enumerate(contents(folder).values()):
        (cache / f"part {number}").write_bytes(content)
    return cache


@pytest.mark.parametrize(
    "put", [put_old_modelscope_cache, put_new_modelscope_cache, put_hugging_face_cache, put_hand_made_folder]
)
def test_a_model_that_is_there_is_not_downloaded(
    ensure: Ensure, hub: HubSimulator, folder: Path, tmp_path: Path, put: Callable[[Path, Path], Path]
) -> None:
    place = put(folder, tmp_path / "cache")
    before = contents(place)
    result = ensure(adopt_from=(place,))
    assert contents(Path(result["path"])) == contents(folder)
    assert not any(path.is_symlink() for path in Path(result["path"]).rglob("*"))
    assert (result["bytes"]["wan"], result["bytes"]["adopted"]) == (0, result["bytes"]["total"])
    assert [request["path"] for request in hub.requests if WEIGHTS in str(request)] == []
    assert contents(place) == before
    assert (Path(result["path"]) / WEIGHTS).stat().st_nlink == 2, "a link, not a second copy"
    again = ensure(full=True)
    assert not again["changed"]
    assert ensure()["verify"]["hashed_files"] == 0


def test_a_file_with_wrong_bytes_is_downloaded_and_named(ensure: Ensure, folder: Path, tmp_path: Path) -> None:
    place = put_new_modelscope_cache(folder, tmp_path / "cache")
    spoilt = place / "models" / "Org--Model" / "snapshots" / "master" / WEIGHTS
    flip_byte(spoilt)
    result = ensure(adopt_from=(place,))
    assert contents(Path(result["path"])) == contents(folder)
    assert result["bytes"]["wan"] == (folder / WEIGHTS).stat().st_size
    assert result["bytes"]["adopted"] == result["bytes"]["total"] - result["bytes"]["wan"]
    assert any(str(spoilt) in warning and "another content" in warning for warning in result["warnings"])


def test_check_mode_says_what_may_be_adopted_and_touches_nothing(
    ensure: Ensure, folder: Path, store: Path, tmp_path: Path
) -> None:
    place = put_new_modelscope_cache(folder, tmp_path / "cache")
    result = ensure(adopt_from=(place,), check=True)
    assert result["plan"]["adoptable"] == result["bytes"]["total"]
    assert not store.exists()
    assert (place / "models/Org--Model/snapshots/master" / WEIGHTS).stat().st_nlink == 1


def test_one_candidate_makes_room_for_one_file_only(ensure: Ensure, folder: Path, tmp_path: Path) -> None:
    for name in "abc":
        (folder / f"{name}.bin").write_bytes(name.encode() * 5000)
    (folder / "same.bin").write_bytes(b"a" * 5000)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "one").write_bytes(b"a" * 5000)
    result = ensure(adopt_from=(cache,), check=True)
    plan, total = result["plan"], result["bytes"]["total"]
    assert (plan["adoptable"], plan["need"]) == (10_000, total - 10_000), "a file of the same content takes no room"
    (cache / "two").write_bytes(b"b" * 5000)
    (cache / "two").chmod(0o666)
    plan = ensure(adopt_from=(cache,), check=True)["plan"]
    assert (plan["adoptable"], plan["need"]) == (15_000, total - 10_000), "a copy takes room, whichever file it is"


def test_what_somebody_writes_to_is_copied_and_not_linked(
    ensure: Ensure, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    place = put_new_modelscope_cache(folder, tmp_path / "cache")
    source = place / "models/Org--Model/snapshots/master" / WEIGHTS
    with source.open("r+b"):
        result = ensure(adopt_from=(place,))
    adopted = Path(result["path"]) / WEIGHTS
    assert adopted.stat().st_ino != source.stat().st_ino
    assert result["bytes"]["adopted"] == result["bytes"]["total"]
    flip_byte(source)
    assert contents(Path(result["path"])) == contents(folder)


@pytest.mark.parametrize("how", ["owner", "group", "others", "folder", "folder owner"])
def test_what_somebody_else_could_rewrite_is_copied_and_not_linked(
    ensure: Ensure, folder: Path, tmp_path: Path, how: str
) -> None:
    if "owner" in how and os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    place = put_new_modelscope_cache(folder, tmp_path / "cache")
    source = place / "models/Org--Model/snapshots/master" / WEIGHTS
    if how in ("owner", "folder owner"):
        os.chown(source if how == "owner" else place / "models", 4711, 4711)
    elif how == "folder":
        (place / "models").chmod(0o777)
    else:
        source.chmod(0o664 if how == "group" else 0o646)
    plan = ensure(adopt_from=(place,), check=True)["plan"]
    total = sum(map(len, contents(folder).values()))
    assert plan["adoptable"] == total
    assert plan["need"] == (total if "folder" in how else source.stat().st_size), "a copy takes room"
    result = ensure(adopt_from=(place,))
    adopted = Path(result["path"]) / WEIGHTS
    assert adopted.stat().st_ino != source.stat().st_ino
    assert (adopted.stat().st_uid, adopted.stat().st_mode & 0o777) == (os.geteuid(), 0o444)
    assert (result["bytes"]["adopted"], result["bytes"]["wan"]) == (result["bytes"]["total"], 0)


def test_another_file_system_is_copied_from(
    ensure: Ensure, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = put_hugging_face_cache(folder, tmp_path / "cache")
    monkeypatch.setattr(adopt, "_link", lambda *_: None)
    result = ensure(adopt_from=(place,))
    assert result["bytes"]["adopted"] == result["bytes"]["total"]
    assert (Path(result["path"]) / WEIGHTS).stat().st_nlink == 1
    assert (Path(result["path"]) / WEIGHTS).stat().st_mode & 0o777 == 0o444
    assert contents(Path(result["path"])) == contents(folder)


def test_wrong_bytes_are_not_copied_either(
    ensure: Ensure, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = put_hand_made_folder(folder, tmp_path / "cache")
    for path in place.iterdir():
        if path.stat().st_size > 100_000:
            flip_byte(path)
    monkeypatch.setattr(adopt, "_link", lambda *_: None)
    result = ensure(adopt_from=(place,))
    assert contents(Path(result["path"])) == contents(folder)
    assert result["bytes"]["wan"] >= sum((folder / name).stat().st_size for name in (WEIGHTS, MORE_WEIGHTS))


@pytest.mark.usefixtures("on_nfs")
def test_on_a_network_file_system_files_are_linked_as_the_plan_says(
    ensure: Ensure, folder: Path, tmp_path: Path
) -> None:
    place = put_new_modelscope_cache(folder, tmp_path / "cache")
    assert ensure(adopt_from=(place,), check=True)["plan"]["need"] == 0
    result = ensure(adopt_from=(place,))
    assert (Path(result["path"]) / WEIGHTS).stat().st_nlink == 2, "a copy takes room that nobody asked for"


def test_what_somebody_begins_to_write_to_in_the_last_moment_is_copied(
    ensure: Ensure, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = put_new_modelscope_cache(folder, tmp_path / "cache")
    source = place / "models/Org--Model/snapshots/master" / WEIGHTS
    opened = []
    real = adopt.change_still

    def late(location: Path, *arguments: Any) -> Any:
        if location == source:
            opened.append(location.open("r+b"))
        return real(location, *arguments)

    monkeypatch.setattr(adopt, "change_still", late)
    result = ensure(adopt_from=(place,))
    opened.pop().close()
    assert (Path(result["path"]) / WEIGHTS).stat().st_ino != source.stat().st_ino
    assert contents(Path(result["path"])) == contents(folder)


@pytest.mark.parametrize("what", ["a link", "a pipe", "a longer file"])
def test_what_was_put_in_the_place_of_a_file_meanwhile_is_not_copied(folder: Path, tmp_path: Path, what: str) -> None:
    content = (folder / WEIGHTS).read_bytes()
    file = ModelFile(WEIGHTS, len(content), hashlib.sha256(content).hexdigest())
    place = tmp_path / "cache"
    if what == "a link":
        place.symlink_to(folder / WEIGHTS)
    elif what == "a pipe":
        os.mkfifo(place)
    else:
        place.write_bytes(content + bytes(1))
    place.parent.chmod(0o777)
    tree = tmp_path / "tree"
    adopted = adopt.adopt_files([file], {file.size: [place]}, tree, lambda _file: tmp_path / "part", Progress())
    assert WEIGHTS not in adopted and not (tree / WEIGHTS).exists()
    assert not list(tmp_path.glob("*.copy"))


def test_of_many_files_of_one_size_each_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the blobs of Hugging Face's client on another file system, which are called by their hashes."""
    contents_of = [bytes([number]) * 4096 for number in range(8)]
    files = [ModelFile(f"{n}.bin", 4096, hashlib.sha256(content).hexdigest()) for n, content in enumerate(contents_of)]
    places = [tmp_path / f"blob-{8 - number}" for number in range(8)]
    for place, content in zip(places, contents_of, strict=True):
        place.write_bytes(content)
    monkeypatch.setattr(adopt, "_link", lambda *_: None)
    monkeypatch.setattr(adopt, "hash_workers", lambda: 1)
    copies = []
    real = adopt._copy

    def count(file: ModelFile, place: Path, *more: Any) -> bool:
        copies.append(place)
        return real(file, place, *more)

    monkeypatch.setattr(adopt, "_copy", count)
    adopted = adopt.adopt_files(
        files, {4096: places}, tmp_path / "tree", lambda file: tmp_path / f"part {file.path}", Progress()
    )
    assert sorted(adopted.copied) == [file.path for file in files]
    assert len(copies) <= 2 * len(files), "once to learn what it is, once to take it"


def test_a_hash_counts_no_longer_once_the_file_was_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files with one size, the second is what the candidate held when it was hashed for the first."""
    first, second, other = (bytes([number]) * 4096 for number in range(3))
    files = [ModelFile(str(n), 4096, hashlib.sha256(text).hexdigest()) for n, text in enumerate((first, second))]
    place = tmp_path / "candidate"
    place.write_bytes(second)
    monkeypatch.setattr(adopt, "hash_workers", lambda: 1)
    real = adopt.hash_file

    def write_later(location: Path) -> str:
        found = real(location)
        place.write_bytes(other)
        return found

    monkeypatch.setattr(adopt, "hash_file", write_later)
    adopted = adopt.adopt_files(
        files, {4096: [place]}, tmp_path / "tree", lambda file: tmp_path / f"part {file.path}", Progress()
    )
    assert (adopted.linked, adopted.copied) == ({}, [])
    assert not any(path.is_file() for path in (tmp_path / "tree").rglob("*"))


def test_a_folder_that_is_missing_is_said_and_no_error(ensure: Ensure, tmp_path: Path) -> None:
    result = ensure(adopt_from=(tmp_path / "none",))
    assert result["changed"]
    assert str(tmp_path / "none") in result["warnings"][0]


def test_a_folder_that_cannot_be_looked_at_is_said_and_no_error(ensure: Ensure, tmp_path: Path) -> None:
    place = tmp_path / ("x" * 300)
    result = ensure(adopt_from=(place,))
    assert result["changed"]
    assert result["warnings"][0] == f"{place}, which adopt_from names, cannot be looked at: File name too long"


def test_a_relative_folder_is_refused(ensure: Ensure, store: Path) -> None:
    with pytest.raises(StoreError, match="adopt_from must hold absolute paths"):
        ensure(adopt_from=(Path("cache"),))
    assert not store.exists()


def test_a_damaged_file_is_repaired_from_what_the_host_has(
    ensure: Ensure, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    place = put_hand_made_folder(folder, tmp_path / "cache")
    path = Path(ensure()["path"])
    flip_byte(path / WEIGHTS)
    hub.reset()
    result = ensure(adopt_from=(place,))
    assert (result["files"]["repaired"], result["bytes"]["wan"]) == (1, 0)
    assert contents(path) == contents(folder)
