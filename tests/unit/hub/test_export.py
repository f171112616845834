# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model travels on a disk: out of one store, proven, and into another one."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import export, gc
from ansible_collections.socle.inference.plugins.module_utils._hub.export import Order, export_snapshot, lay_out
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import WEIGHTS, base, contents, dying, flip_byte, overwrite, published, rot

Ensure = Callable[..., dict[str, Any]]
PROJECT = Path(__file__).resolve().parents[3]
REPO = "Org/Model"
VOLUME = 400_000


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def send(store: Path, disk: Path, **options: Any) -> dict[str, Any]:
    return export_snapshot(Order(store, "modelscope", REPO, disk, **options), Progress())


def receive(store: Path, disk: Path, revision: str = "master", **options: Any) -> dict[str, Any]:
    request = Request(REPO, revision, store, reserve_bytes=0, **options)
    return ensure_snapshot(request, make_hub("directory", path=str(disk)), Progress())


@pytest.mark.parametrize("volume_bytes", [None, VOLUME])
def test_a_model_arrives_as_it_left(
    ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path, volume_bytes: int | None
) -> None:
    first = ensure()
    sent = send(store, disk, volume_bytes=volume_bytes)
    assert sent["changed"]
    assert sent["bytes"] == {"total": first["bytes"]["total"], "copied": first["bytes"]["total"], "kept": 0}
    assert len(sent["volumes"]) == (0 if volume_bytes is None else 4)
    for name in sent["volumes"]:
        assert sum(map(len, contents(disk / name).values())) <= VOLUME
    other = tmp_path / "other"
    result = receive(other, disk)
    assert result["changed"]
    assert (result["commit"], result["content_id"]) == (first["commit"], first["content_id"])
    assert contents(Path(result["path"])) == contents(folder)
    assert result["bytes"]["disk"] == result["bytes"]["total"]
    assert not receive(other, disk)["changed"]


def test_what_was_imported_is_what_the_hub_has(
    ensure: Ensure, hub: HubSimulator, store: Path, disk: Path, tmp_path: Path
) -> None:
    ensure()
    send(store, disk)
    receive(tmp_path / "other", disk)
    hub.reset()
    result = ensure(store=tmp_path / "other")
    assert not result["changed"]
    assert [request["path"] for request in hub.requests] == ["/api/v1/models/Org/Model/repo/files"]


def test_a_tag_is_exported_under_its_name(ensure: Ensure, store: Path, disk: Path, tmp_path: Path) -> None:
    ensure()
    commit = ensure(revision="v1")["commit"]
    assert send(store, disk, revision="v1")["requested"] == "v1"
    assert receive(tmp_path / "other", disk, "v1")["commit"] == commit


def test_a_second_export_writes_nothing(ensure: Ensure, store: Path, disk: Path) -> None:
    ensure()
    send(store, disk, volume_bytes=VOLUME)
    before = {path: path.stat().st_mtime_ns for path in disk.rglob("*")}
    assert not send(store, disk, volume_bytes=VOLUME)["changed"]
    assert not send(store, disk, volume_bytes=VOLUME, full=True)["changed"]
    assert {path: path.stat().st_mtime_ns for path in disk.rglob("*")} == before


@pytest.mark.parametrize("volume_bytes", [None, VOLUME])
def test_a_damaged_copy_is_replaced_when_all_is_read(
    ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path, volume_bytes: int | None
) -> None:
    ensure()
    send(store, disk, volume_bytes=volume_bytes)
    spoilt = next(path for path in sorted(disk.rglob(f"{WEIGHTS}*")))
    flip_byte(spoilt)
    result = send(store, disk, volume_bytes=volume_bytes, full=True)
    assert (result["read_back"], result["rewritten"]) == (True, 1)
    assert result["changed"]
    assert result["bytes"]["copied"] == spoilt.stat().st_size
    assert contents(Path(receive(tmp_path / "other", disk)["path"])) == contents(folder)


def test_check_mode_writes_nothing(ensure: Ensure, store: Path, disk: Path) -> None:
    ensure()
    assert send(store, disk, check=True)["changed"]
    assert not disk.exists()


@pytest.mark.parametrize("volume_bytes", [None, VOLUME])
def test_dead_at_any_step_nothing_wrong_can_be_imported_and_a_rerun_ends_it(
    ensure: Ensure,
    folder: Path,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    volume_bytes: int | None,
) -> None:
    ensure()
    calls = ((Path, "mkdir"), (Path, "replace"), (os, "fsync"))
    # The steps of one file are those of the next.
    for step in range(0, 200, 1 if volume_bytes is None else 4):
        disk = tmp_path / f"disk{step}"
        with dying(monkeypatch, step, *calls) as died:
            send(store, disk, volume_bytes=volume_bytes)
        if (disk / "manifest.json").exists():
            assert contents(Path(receive(tmp_path / f"store{step}", disk)["path"])) == contents(folder)
        send(store, disk, volume_bytes=volume_bytes)
        assert not list(disk.rglob("*.partial"))
        assert contents(Path(receive(tmp_path / f"other{step}", disk)["path"])) == contents(folder)
        if not died:
            break
    assert not died
    assert step > 10


def test_killed_in_the_middle_a_rerun_goes_on(
    ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path
) -> None:
    total = ensure()["bytes"]["total"]
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from ansible_collections.socle.inference.plugins.module_utils._hub import export\n"
        "from ansible_collections.socle.inference.plugins.module_utils._progress import Progress\n"
        "sync = os.fsync; calls = []\n"
        "def die(descriptor):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 8: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    sync(descriptor)\n"
        "os.fsync = die\n"
        "order = export.Order(Path(sys.argv[1]), 'modelscope', 'Org/Model', Path(sys.argv[2]))\n"
        "export.export_snapshot(order, Progress())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(disk)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (disk / "manifest.json").exists()
    result = send(store, disk)
    assert 0 < result["bytes"]["kept"] < total
    assert contents(Path(receive(tmp_path / "other", disk)["path"])) == contents(folder)


def test_a_damaged_store_is_not_exported(ensure: Ensure, store: Path, disk: Path) -> None:
    path = Path(ensure()["path"])
    rot(store, path / WEIGHTS)
    with pytest.raises(StoreError, match=rf"{WEIGHTS} is damaged .*repair it"):
        send(store, disk)
    assert not (disk / "manifest.json").exists()
    assert not list(disk.rglob(f"{WEIGHTS}*"))


@pytest.mark.parametrize("what", ["a pipe", "nothing"])
def test_what_cannot_be_read_of_a_store_is_named_and_not_waited_for(
    ensure: Ensure, store: Path, disk: Path, what: str
) -> None:
    path = Path(ensure()["path"]) / WEIGHTS
    path.unlink()
    if what == "a pipe":
        os.mkfifo(path)
    reason = "it is no regular file" if what == "a pipe" else "No such file or directory"
    with pytest.raises(StoreError, match=rf"{path} cannot be read: {reason}; repair it with action verify"):
        send(store, disk)
    assert not (disk / "manifest.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "v9"}, "Org/Model at v9 is not in the store"),
        ({"link": "none"}, "the current revision of Org/Model is not in the store"),
        ({"volume_bytes": 1000}, "are too small for Org/Model"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    ensure: Ensure, store: Path, disk: Path, options: dict[str, Any], message: str
) -> None:
    ensure()
    with pytest.raises(StoreError, match=message):
        send(store, disk, **options)
    assert not disk.exists()


def test_places_that_cannot_be_exported_to_are_refused(ensure: Ensure, store: Path, tmp_path: Path) -> None:
    ensure()
    with pytest.raises(StoreError, match="path must be absolute"):
        send(store, Path("disk"))
    with pytest.raises(StoreError, match="lies in the store itself"):
        send(store, store / ".store" / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is no folder"):
        send(store, tmp_path / "file")
    with pytest.raises(StoreError, match="repo must be"):
        export_snapshot(Order(store, "modelscope", "../../x", tmp_path / "out"), Progress())


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (None, VOLUME, r"holds files/config.json of an export with other volumes than this one \(4 volumes\)"),
        (VOLUME, None, r"holds volume-001 of an export with other volumes than this one \(no volumes\)"),
        (VOLUME, 2 * VOLUME, r"holds volume-003 of an export with other volumes than this one \(2 volumes\)"),
        (10 * VOLUME, VOLUME, r"holds volume-001/files/.* of an export with other volumes than this one \(4 volumes\)"),
    ],
)
def test_a_folder_is_not_filled_a_second_time_in_another_way(
    ensure: Ensure, store: Path, disk: Path, first: int | None, second: int | None, message: str
) -> None:
    ensure()
    send(store, disk, volume_bytes=first)
    before = sorted(disk.rglob("*"))
    with pytest.raises(StoreError, match=message):
        send(store, disk, volume_bytes=second)
    assert sorted(disk.rglob("*")) == before


@pytest.mark.parametrize("name", ["config.json.partial", "config.json", "../manifest.json.partial", "../manifest.json"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_nothing_is_written_through_what_others_left_on_the_medium(
    ensure: Ensure, store: Path, disk: Path, tmp_path: Path, name: str, kind: str
) -> None:
    ensure()
    victim = tmp_path / "victim"
    if kind != "dangling link":
        victim.write_text("precious")
    (disk / "files").mkdir(parents=True)
    place = disk / "files" / name
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(victim)
    with pytest.raises(StoreError, match="is no regular file, and an export follows no link"):
        send(store, disk)
    assert victim.read_text() == "precious" if victim.exists() else kind == "dangling link"


def test_a_manifest_without_end_on_the_medium_fills_no_memory(ensure: Ensure, store: Path, disk: Path) -> None:
    ensure()
    disk.mkdir()
    with (disk / "manifest.json").open("wb") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(StoreError, match=r"manifest\.json cannot be read or is damaged: remove it"):
        send(store, disk)


def test_no_folder_of_the_medium_leads_elsewhere(ensure: Ensure, store: Path, disk: Path, tmp_path: Path) -> None:
    ensure()
    outside = tmp_path / "outside"
    outside.mkdir()
    disk.mkdir()
    (disk / "files").symlink_to(outside)
    with pytest.raises(StoreError, match="files is no folder, and an export follows no link"):
        send(store, disk)
    assert list(outside.iterdir()) == []


def test_the_folder_of_an_export_is_no_link(ensure: Ensure, store: Path, tmp_path: Path) -> None:
    ensure()
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="is a link"):
        send(store, tmp_path / "link")
    assert not list((tmp_path / "outside").iterdir())


def test_one_folder_holds_one_revision(ensure: Ensure, folder: Path, store: Path, disk: Path) -> None:
    ensure()
    send(store, disk)
    overwrite(folder / "config.json", b"{}")
    ensure()
    before = contents(disk)
    with pytest.raises(StoreError, match=r"holds manifest.json of something else.*choose an empty folder"):
        send(store, disk)
    assert contents(disk) == before


def test_a_disk_without_room_is_noticed_before_the_first_byte(
    ensure: Ensure, store: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure()
    monkeypatch.setattr(export, "SPARE_BYTES", 1 << 60)
    with pytest.raises(StoreError, match=r"GiB free, but 0.00 GiB of Org/Model are to be written"):
        send(store, disk)
    assert not disk.exists()


def test_a_file_system_without_large_files_is_explained(
    ensure: Ensure, store: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure()

    def refuse(*_: Any) -> None:
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(export._Export, "_write_file", refuse)
    with pytest.raises(StoreError, match="export in volumes"):
        send(store, disk)


def test_garbage_collection_spares_what_is_being_exported(
    ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ensure()
    for number in range(2):
        overwrite(folder / "config.json", json.dumps({"number": number}).encode())
        ensure()
    code = (
        "import sys; from pathlib import Path\n"
        "from ansible_collections.socle.inference.plugins.module_utils._hub import export\n"
        "from ansible_collections.socle.inference.plugins.module_utils._progress import Progress\n"
        "def wait(*_): print('ready', flush=True); sys.stdin.read(); sys.exit(0)\n"
        "export._Export._write_file = wait\n"
        "export.export_snapshot(export.Order(Path(sys.argv[1]), 'modelscope', 'Org/Model', Path(sys.argv[2]),"
        " sys.argv[3]), Progress())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(store), str(disk), old["commit"]],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        rules = gc.Rules(state_dir=tmp_path, system=tmp_path, proc=tmp_path / "proc")
        assert gc.collect(store, rules, Progress())["removed"] == []
    finally:
        process.communicate(b"")
    assert Path(old["path"]).name in published(store)


def test_volumes_that_are_side_by_side_are_imported_without_the_top(
    ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path
) -> None:
    ensure()
    volumes = send(store, disk, volume_bytes=VOLUME)["volumes"]
    (tmp_path / "media").mkdir()
    for name in reversed(volumes):
        shutil.copytree(disk / name, tmp_path / "media" / name)
    assert contents(Path(receive(tmp_path / "other", tmp_path / "media")["path"])) == contents(folder)


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_bad_volume_publishes_nothing(ensure: Ensure, store: Path, disk: Path, tmp_path: Path, damage: str) -> None:
    ensure()
    volumes = send(store, disk, volume_bytes=VOLUME)["volumes"]
    piece = next(path for path in sorted((disk / volumes[1]).rglob("*")) if path.is_file() and WEIGHTS in path.name)
    if damage == "missing":
        shutil.rmtree(disk / volumes[1])
    elif damage == "truncated":
        os.truncate(piece, piece.stat().st_size - 1)
    else:
        flip_byte(piece)
    other = tmp_path / "other"
    with pytest.raises(SocleError, match=WEIGHTS):
        receive(other, disk)
    assert published(other) == []
    assert not (other / "Model").is_symlink()


@pytest.mark.parametrize(
    "path", ["../evil", "/etc/evil", "a/../../evil", "a\\b", "a\nb", ".", "x" * 300, "a/./b", "a//b"]
)
def test_a_hostile_manifest_is_refused(ensure: Ensure, store: Path, disk: Path, tmp_path: Path, path: str) -> None:
    ensure()
    send(store, disk)
    document = json.loads((disk / "manifest.json").read_text())
    document["files"][0]["path"] = path
    (disk / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(SocleError):
        receive(tmp_path / "other", disk)
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "evil").exists()


def test_a_file_of_the_export_that_is_a_link_elsewhere_is_proven_like_any_other(
    ensure: Ensure, store: Path, disk: Path, tmp_path: Path
) -> None:
    ensure()
    send(store, disk)
    (tmp_path / "secret").write_text("not the model")
    place = disk / "files" / "config.json"
    place.unlink()
    place.symlink_to(tmp_path / "secret")
    with pytest.raises(SocleError, match=r"config\.json"):
        receive(tmp_path / "other", disk)
    assert published(tmp_path / "other") == []
    assert not any(b"not the model" in content for content in contents(tmp_path / "other").values())


def test_a_tar_of_an_export_is_imported(ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path) -> None:
    ensure()
    send(store, disk)
    archive = tmp_path / "model.tar"
    with tarfile.open(archive, "w") as handle:
        handle.add(disk, "Model")
    assert contents(Path(receive(tmp_path / "other", archive)["path"])) == contents(folder)


def test_hostile_members_of_a_tar_never_get_out(
    ensure: Ensure, folder: Path, store: Path, disk: Path, tmp_path: Path
) -> None:
    ensure()
    send(store, disk)
    archive = tmp_path / "model.tar"
    with tarfile.open(archive, "w") as handle:
        for name, kind, target in (
            ("../evil", tarfile.REGTYPE, ""),
            ("/etc/socle-evil", tarfile.REGTYPE, ""),
            ("files/config.json", tarfile.SYMTYPE, "/etc/passwd"),
            ("files/extra", tarfile.SYMTYPE, "/etc"),
            ("files/device", tarfile.CHRTYPE, ""),
            ("files/hard", tarfile.LNKTYPE, "/etc/passwd"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            handle.addfile(member, io.BytesIO())
        handle.add(disk, ".")
    before = set(tmp_path.iterdir()) | {tmp_path / "other"}
    assert contents(Path(receive(tmp_path / "other", archive)["path"])) == contents(folder)
    assert set(tmp_path.iterdir()) == before
    assert not Path("/etc/socle-evil").exists()


def test_large_files_are_cut_and_small_ones_are_not(ensure: Ensure, store: Path) -> None:
    found = ensure()
    manifest = RepoStore(store, "modelscope", REPO).read_manifest(Path(found["path"]).name)
    assert manifest
    pieces, volumes = lay_out(manifest, VOLUME)
    assert volumes == [f"volume-00{number}" for number in range(1, 5)]
    for file in manifest.files:
        own = [piece for piece in pieces if piece.file == file]
        assert sum(piece.size for piece in own) == file.size
        assert [piece.offset for piece in own] == [sum(p.size for p in own[:number]) for number in range(len(own))]
        assert (len(own) > 1) == (file.path == WEIGHTS)
    assert base(store).is_dir()
