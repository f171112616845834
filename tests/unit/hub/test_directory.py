# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Folders, exports in volumes and archives in the place of a hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable

from tests.simulators.hub.server import HubSimulator
from tests.unit.hub.conftest import PROJECT

REPO = "Org/Model"
WEIGHTS = "model-00001-of-00002.safetensors"


def resolve(path: Path, revision: str = "master") -> Manifest:
    return make_hub("directory", path=str(path)).resolve(REPO, revision)


def read(path: Path, manifest: Manifest, name: str, offset: int = 0, end: int | None = None) -> bytes:
    file = next(file for file in manifest.files if file.path == name)
    origin = make_hub("directory", path=str(path)).origin(manifest)
    found = b""
    with origin.open_file(file, offset, end) as response:
        assert response.geturl() is None
        assert response.headers.get("content-length") == str((file.size if end is None else end) - offset)
        while True:
            chunk = response.read1(1000) if len(found) < 3000 else response.read1(1 << 20)
            if not chunk:
                return found
            found += chunk


@pytest.fixture
def manifest(hub: HubSimulator) -> Manifest:
    return make_hub(endpoint=hub.url, proxy="").resolve(REPO, "master")


@pytest.fixture
def export(folder: Path, manifest: Manifest, tmp_path: Path) -> Path:
    """As an export writes it."""
    target = tmp_path / "export"
    shutil.copytree(folder, target / "files")
    (target / "manifest.json").write_text(manifest.dumps())
    return target


def check(path: Path, manifest: Manifest, folder: Path) -> None:
    for file in manifest.files:
        assert read(path, manifest, file.path) == (folder / file.path).read_bytes()
    content = (folder / WEIGHTS).read_bytes()
    assert read(path, manifest, WEIGHTS, 299_990) == content[299_990:]
    assert read(path, manifest, WEIGHTS, 299_990, 600_010) == content[299_990:600_010]


def test_a_plain_folder_is_hashed(folder: Path, manifest: Manifest) -> None:
    for name in (".git/config", ".cache/huggingface/x", "._____temp/x", ".msc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("no content of the model")
    found = resolve(folder)
    assert found.content_id == manifest.content_id
    assert (found.hub, found.commit) == ("directory", None)
    check(folder, found, folder)


def test_a_manifest_of_the_model_itself_is_content(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schemaVersion": 2}')
    assert "manifest.json" in [file.path for file in resolve(folder).files]


def test_a_cache_of_links_is_followed(folder: Path, manifest: Manifest, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Org--Model" / "snapshots" / "abc"
    (snapshot.parents[1] / "blobs").mkdir(parents=True)
    for number, file in enumerate(manifest.files):
        blob = snapshot.parents[1] / "blobs" / str(number)
        blob.write_bytes((folder / file.path).read_bytes())
        (snapshot / file.path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file.path).symlink_to(os.path.relpath(blob, (snapshot / file.path).parent))
    found = resolve(snapshot)
    assert found.content_id == manifest.content_id
    check(snapshot, found, folder)


def test_links_to_somewhere_else_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("shadow")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(HubError, match=r"'config.json', which is no file, or a link .*to somewhere else"):
        resolve(folder)


@pytest.mark.parametrize("name", ["", "files", "volume-001", "volume-001/files"])
@pytest.mark.parametrize("whole", [True, False], ids=["export", "plain"])
def test_no_folder_that_files_are_looked_for_in_is_a_link(export: Path, tmp_path: Path, name: str, whole: bool) -> None:
    """A disk that was filled elsewhere must not publish what only root may read here."""
    private, disk = tmp_path / "private", tmp_path / "disk"
    private.mkdir()
    (private / "id_ed25519").write_text("a key")
    if name:
        shutil.copytree(export, disk) if whole else disk.mkdir()
        shutil.rmtree(disk / name, ignore_errors=True)
        (disk / name).parent.mkdir(exist_ok=True)
    (disk / name).symlink_to(private)
    with pytest.raises(HubError, match="is a link"):
        resolve(disk)


def test_an_archive_that_is_a_link_is_refused(export: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "there.tar", "w") as archive:
        archive.add(export, arcname="Org--Model")
    (tmp_path / "Org--Model.tar").symlink_to(tmp_path / "there.tar")
    with pytest.raises(HubError, match=r"Org--Model.tar is a link"):
        resolve(tmp_path / "Org--Model.tar")


@pytest.mark.parametrize("kind", ["pipe", "link to a folder", "dangling link"])
def test_what_is_no_file_is_refused(folder: Path, kind: str) -> None:
    odd = folder / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(folder / ("extra" if kind == "link to a folder" else "nothing"))
    with pytest.raises(HubError, match="'odd', which is no file"):
        resolve(folder)


def test_names_that_a_snapshot_cannot_hold_are_refused(folder: Path) -> None:
    (folder / "Config.json").write_text("{}")
    with pytest.raises(HubError, match="collides"):
        resolve(folder)


@pytest.mark.parametrize("kind", ["interrupted", "in volumes", "without a manifest", "damaged", "copied"])
def test_an_export_without_its_manifest_is_no_plain_folder(export: Path, kind: str) -> None:
    if kind == "interrupted":
        (export / "manifest.json").rename(export / "manifest.json.partial")
    elif kind == "damaged":
        os.truncate(export / "manifest.json", 100)
    else:
        (export / "manifest.json").unlink()
    if kind == "copied":
        (export / ".DS_Store").write_bytes(b"x")
    if kind == "in volumes":
        (export / "volume-001").mkdir()
        (export / "files").rename(export / "volume-001" / "files")
    state = "damaged: remove it there, then" if kind == "damaged" else "missing:"
    with pytest.raises(HubError, match=rf"{export} is an export whose manifest.json.* is {state} run the export again"):
        resolve(export)


def test_a_model_may_have_a_folder_called_like_that_of_an_export(folder: Path) -> None:
    (folder / "files").mkdir()
    (folder / "files" / "more.json").write_text("{}")
    assert "files/more.json" in [file.path for file in resolve(folder).files]


def test_an_export_brings_its_commit_along(export: Path, manifest: Manifest, folder: Path) -> None:
    assert resolve(export) == manifest
    assert resolve(export, str(manifest.commit)) == manifest
    check(export, manifest, folder)


def test_volumes_hold_files_and_pieces(export: Path, manifest: Manifest, folder: Path) -> None:
    volumes = [export / f"volume-00{number}" for number in (1, 2, 3)]
    for volume in volumes:
        (volume / "files").mkdir(parents=True)
        (volume / "manifest.json").write_text(manifest.dumps())
    content = (export / "files" / WEIGHTS).read_bytes()
    (export / "files" / WEIGHTS).unlink()
    for number in range(3):
        piece = volumes[number] / "files" / f"{WEIGHTS}.00{number + 1}"
        piece.write_bytes(content[number * 300_000 :] if number == 2 else content[number * 300_000 :][:300_000])
    (export / "files" / "config.json").rename(volumes[2] / "files" / "config.json")
    check(export, resolve(export), folder)
    (volumes[1] / "files" / f"{WEIGHTS}.002").unlink()
    with pytest.raises(HubError, match=rf"{WEIGHTS} with \d+ bytes is not in .*more than 1 pieces: is every volume"):
        read(export, manifest, WEIGHTS)


@pytest.mark.parametrize("top", ["", "./", "some/where/"])
def test_an_archive_is_read_in_place(export: Path, manifest: Manifest, folder: Path, tmp_path: Path, top: str) -> None:
    archive = tmp_path / "model.tar"
    with tarfile.open(archive, "w") as target:
        for path in sorted(export.rglob("*")):
            target.add(path, f"{top}{path.relative_to(export)}", recursive=False)
    before = set(tmp_path.rglob("*"))
    assert resolve(archive) == manifest
    check(archive, manifest, folder)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("mode", "without", "message"),
    [("w:gz", "", "without compression"), ("w", "manifest.json", "archive without the manifest.json")],
)
def test_archives_that_cannot_be_used_are_named(
    export: Path, tmp_path: Path, mode: Any, without: str, message: str
) -> None:
    with tarfile.open(tmp_path / "model.tar", mode) as target:
        for path in export.rglob("*"):
            if path.is_file() and path.name != without:
                target.add(path, path.relative_to(export))
    with pytest.raises(HubError, match=message):
        resolve(tmp_path / "model.tar")


def test_an_archive_of_volumes_is_refused_by_name(export: Path, tmp_path: Path) -> None:
    (export / "volume-001").mkdir()
    (export / "files").rename(export / "volume-001" / "files")
    with tarfile.open(tmp_path / "model.tar", "w") as target:
        target.add(export, "Org--Model")
    with pytest.raises(HubError, match=r"model.tar holds an export in volumes.* unpack it, and give the folder"):
        resolve(tmp_path / "model.tar")


@pytest.mark.parametrize(
    ("change", "revision", "message"),
    [
        ({"source": {"repo": "Org/Other"}}, "master", "holds Org/Other, but Org/Model is wanted"),
        ({}, "v9", "holds Org/Model at master, commit .*, but v9 is wanted"),
        ({"content_id": "sha256:" + "0" * 64}, "master", "cannot be imported: .*own content id.*export it again"),
    ],
)
def test_an_export_of_something_else_is_refused(
    export: Path, change: dict[str, Any], revision: str, message: str
) -> None:
    document = json.loads((export / "manifest.json").read_text())
    document["source"].update(change.pop("source", {}))
    (export / "manifest.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(HubError, match=message):
        resolve(export, revision)


def test_a_file_that_is_missing_or_cut_is_named_at_once(export: Path, manifest: Manifest) -> None:
    (export / "files" / WEIGHTS).write_bytes(b"short")
    with pytest.raises(HubError, match=rf"{WEIGHTS} with \d+ bytes is not in {export}: is every volume there"):
        read(export, manifest, WEIGHTS)


def test_a_folder_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(HubUnreachable, match=r"cannot be read .No such file or directory.: is its disk mounted"):
        resolve(tmp_path / "usb")


def test_a_plain_folder_proves_no_commit(folder: Path) -> None:
    with pytest.raises(HubError, match="cannot be known whether it holds commit"):
        resolve(folder, "a" * 40)


def test_what_is_missing_in_an_export_is_said_before_anything_is_read(
    export: Path, manifest: Manifest, tmp_path: Path
) -> None:
    assert resolve(export).content_id == manifest.content_id
    (export / "files" / WEIGHTS).unlink()
    with pytest.raises(HubError, match=rf"{WEIGHTS} with \d+ bytes is not in .*: is every volume there"):
        resolve(export)
    (export / "files/config.json").write_text("cut")
    expected = rf"2 of 6 files \(config\.json, {WEIGHTS}\) are not in {export} with the sizes .*: is every volume there"
    with pytest.raises(HubError, match=expected):
        resolve(export)


def hostile_archive(place: Path, kind: str) -> Path:
    """Some KB on disk that would make a trusting reader take a GiB, or read for ever."""
    size = 1 << 30
    member = tarfile.TarInfo("x")
    with place.open("wb") as handle:
        if kind in ("longname", "notes"):
            member.type = tarfile.GNUTYPE_LONGNAME if kind == "longname" else tarfile.XHDTYPE
            member.size = size
            handle.write(member.tobuf(tarfile.GNU_FORMAT))
        else:
            notes = {
                "sparse": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
                "backwards": {"size": "-1536"},
            }[kind]
            member.pax_headers = notes
            handle.write(member.tobuf(tarfile.PAX_FORMAT))
        handle.truncate(handle.tell() + size)
    return place


@pytest.mark.parametrize("kind", ["longname", "notes", "sparse", "backwards"])
def test_a_small_archive_takes_little_memory(tmp_path: Path, kind: str) -> None:
    place = hostile_archive(tmp_path / "model.tar", kind)
    reader = (
        "import resource, sys; from pathlib import Path\n"
        "from ansible_collections.socle.inference.plugins.module_utils._errors import HubError\n"
        "from ansible_collections.socle.inference.plugins.module_utils._hub.directory import DirectoryHub\n"
        "resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))\n"
        "try: DirectoryHub(sys.argv[1]).resolve('Org/Model', 'master')\n"
        "except HubError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", reader, str(place)],
        env={"PYTHONPATH": str(PROJECT / "collections")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(place) in done.stdout


def test_an_archive_that_was_cut_off_is_refused(export: Path, manifest: Manifest, tmp_path: Path) -> None:
    archive = tmp_path / "model.tar"
    with tarfile.open(archive, "w") as handle:
        handle.add(export / "manifest.json", "manifest.json")
        for file in sorted(manifest.files, key=lambda file: file.size):
            handle.add(export / "files" / file.path, f"files/{file.path}")
    assert resolve(archive).content_id == manifest.content_id
    with archive.open("r+b") as handle:
        handle.truncate(archive.stat().st_size - 200_000)
    with pytest.raises(HubError, match="no tar archive that can be read in place"):
        resolve(archive)


def test_a_manifest_without_the_hash_of_a_file_is_refused_with_the_way_out(export: Path) -> None:
    document = json.loads((export / "manifest.json").read_text())
    del document["files"][0]["sha256"]
    (export / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(HubError, match=r"cannot be imported: .*sha256.*; export it again"):
        resolve(export)
