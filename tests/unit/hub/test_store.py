# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a store knows without hashing, when it hashes again, and whom it refuses."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import hashing, prechecks, snapshot, store, structure
from ansible_collections.socle.inference.plugins.module_utils._hub.ages import parse_age
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.ledger import load_ledger
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.owner import GONE, own_identity, parse_owner
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import read_state
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import (
    MORE_WEIGHTS,
    WEIGHTS,
    base,
    contents,
    edit_ledger,
    flip_byte,
    overwrite,
    published,
    rot,
)
from tests.unit.hub.conftest import DRIVER

Ensure = Callable[..., dict[str, Any]]
Lock = Callable[[], Manifest]
GIB = 1 << 30
PROJECT = Path(__file__).resolve().parents[3]
SHM = Path("/dev/shm")
NONE = prechecks.Mount("", "", False)
DEAD = "http://127.0.0.1:1"


@pytest.fixture
def lock(hub: HubSimulator) -> Lock:
    """The manifest as the hub has it now."""
    return lambda: make_hub(endpoint=hub.url, proxy="").resolve("Org/Model", "master")


def set_full_check(path: Path, when_s: float | None) -> None:
    """Change what the ledger says about the last full check of every revision in the store *path*."""
    place = base(path) / "ledger.json"
    ledger = json.loads(place.read_text())
    for revision in ledger["revisions"].values():
        revision["full"] = when_s
    place.write_text(json.dumps(ledger))


# A manifest that is given


def test_with_a_manifest_and_a_whole_tree_no_request_is_sent(ensure: Ensure, hub: HubSimulator, lock: Lock) -> None:
    manifest = lock()
    first = ensure(manifest=manifest)
    assert [request for request in hub.requests if request["path"].endswith("/files")][1:] == [], "listed by the lock"
    hub.reset()
    again = ensure(manifest=manifest, endpoint=DEAD)
    assert (again["changed"], again["path"], again["warnings"]) == (False, first["path"], [])
    assert again["verify"]["hashed_files"] == 0
    assert hub.requests == []


def test_with_a_manifest_a_moved_branch_changes_nothing(
    ensure: Ensure, folder: Path, lock: Lock, hub: HubSimulator
) -> None:
    manifest = lock()
    path = ensure(manifest=manifest)["path"]
    overwrite(folder / "config.json", b"{}")
    assert ensure(manifest=manifest)["path"] == path
    assert ensure(offline=True)["path"] == path


def test_a_manifest_of_another_model_is_refused(ensure: Ensure, lock: Lock, store: Path) -> None:
    with pytest.raises(HubError, match="the manifest describes Org/Other, but Org/Model is wanted"):
        ensure(manifest=replace(lock(), repo="Org/Other"))
    assert not store.exists()


def test_a_manifest_with_other_files_for_a_known_commit_is_refused(ensure: Ensure, lock: Lock, store: Path) -> None:
    manifest = lock()
    ensure()
    fewer = replace(manifest, files=manifest.files[1:])
    with pytest.raises(HubError, match="the manifest that was given now lists other files"):
        ensure(manifest=fewer)
    assert set(contents(base(store) / "rev" / manifest.id)) == {file.path for file in manifest.files}


@pytest.mark.parametrize(
    ("hub", "repo"),
    [
        ("/etc", "Org/Model"),
        ("..", "Org/Model"),
        ("", "Org/Model"),
        ("modelscope", "../../x"),
        ("modelscope", "Org/Model/../../x"),
        ("modelscope", "Org"),
        ("modelscope", "Org--Model/x"),
        ("modelscope", "Org-/x"),
    ],
)
def test_a_store_refuses_names_that_would_leave_it_or_name_two_models(tmp_path: Path, hub: str, repo: str) -> None:
    with pytest.raises(StoreError, match=r"the store keeps models of|repo must be organisation/name"):
        store.RepoStore(tmp_path, hub, repo)


def test_a_manifest_from_elsewhere_publishes_nothing_outside_the_store(
    ensure: Ensure, lock: Lock, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="the store keeps models of"):
        ensure(manifest=replace(lock(), hub=str(tmp_path / "outside")))
    assert not (tmp_path / "outside").exists()
    assert not store.exists()


@pytest.mark.parametrize("repo", ["Qwen/Qwen3-8B", "Org/Model--v2", "Org/a-", "O.r_g/a.b"])
def test_a_folder_names_one_repository_alone(tmp_path: Path, repo: str) -> None:
    found = store.RepoStore(tmp_path, "modelscope", repo)
    assert found.base == tmp_path / ".store" / "modelscope" / repo.replace("/", "--")
    again = store.RepoStore.at(tmp_path, "modelscope", found.base.name)
    assert again
    assert again.repo == repo


def test_origins_that_are_given_are_used_instead_of_the_hub(
    ensure: Ensure, folder: Path, hub: HubSimulator, lock: Lock
) -> None:
    manifest = lock()
    hub.reset()
    near = make_hub("directory", path=str(folder))
    result = ensure(manifest=manifest, endpoint=DEAD, origins=lambda given: [near.origin(given)])
    assert contents(Path(result["path"])) == contents(folder)
    assert (result["bytes"]["wan"], result["bytes"]["disk"]) == (0, result["bytes"]["total"])
    assert hub.requests == []


# Whoever serves the files on


def shelf_of(manifest: Manifest) -> Shelf:
    return Shelf({file.path: Growing(file.path, file.size) for file in manifest.files})


def test_a_shelf_has_everything_in_its_last_place(ensure: Ensure, folder: Path, lock: Lock) -> None:
    shelf = shelf_of(lock())
    path = Path(ensure(shelf=shelf)["path"])
    assert {name: file.location for name, file in shelf.files.items()} == {name: path / name for name in shelf.files}
    assert all(file.proven for file in shelf.files.values())


def test_a_complete_host_is_a_source_at_once(ensure: Ensure, lock: Lock) -> None:
    path = Path(ensure()["path"])
    shelf = shelf_of(lock())
    assert not ensure(shelf=shelf)["changed"]
    assert all(file.proven and file.location == path / name for name, file in shelf.files.items())


def test_what_another_revision_holds_is_served_before_the_download_ends(
    ensure: Ensure, hub: HubSimulator, folder: Path, lock: Lock
) -> None:
    ensure()
    flip_byte(folder / MORE_WEIGHTS)
    shelf = shelf_of(lock())
    hub.add_rule(path=rf"^/cdn/.*{MORE_WEIGHTS}", bytes_per_s=300_000, count=-1)
    running = threading.Thread(target=ensure, kwargs={"shelf": shelf})
    running.start()
    try:
        early = shelf.wait(WEIGHTS, 0, None, 20)
        assert early
        assert early.proven
        assert not shelf.files[MORE_WEIGHTS].proven
        assert early.location
        assert early.location.read_bytes() == (folder / WEIGHTS).read_bytes()
    finally:
        running.join(60)


def test_a_file_that_was_renamed_is_served_from_where_it_is(
    ensure: Ensure, hub: HubSimulator, folder: Path, lock: Lock
) -> None:
    old = Path(ensure()["path"])
    (folder / "extra" / "note.txt").rename(folder / "note.txt")
    shelf = shelf_of(lock())
    seen = []
    prove = shelf.prove

    def spy(path: str, location: Path) -> None:
        seen.append((path, location, location.read_bytes()))
        prove(path, location)

    shelf.prove = spy  # type: ignore[method-assign]
    new = Path(ensure(shelf=shelf)["path"])
    assert next((place, content) for path, place, content in seen if path == "note.txt") == (
        old / "extra" / "note.txt",
        b"x",
    )
    assert shelf.files["note.txt"].location == new / "note.txt"


def test_a_full_run_hashes_what_it_links_once(ensure: Ensure, folder: Path) -> None:
    total = ensure()["bytes"]["total"]
    (folder / "more.txt").write_text("more")
    result = ensure(full=True)
    assert result["bytes"]["reused_link"] == total
    assert result["verify"]["hashed_files"] == 6


# When everything was last hashed


def test_a_download_counts_as_a_full_check(ensure: Ensure, folder: Path, store: Path) -> None:
    assert ensure()["verify"]["checked"]
    assert ensure(verify_max_age_s=3600.0)["verify"] == ensure()["verify"] | {"seconds": pytest.approx(0, abs=5)}
    set_full_check(store, time.time() - 10_000)
    overwrite(folder / "config.json", b"{}")
    linked = ensure()
    assert linked["bytes"]["reused_link"] > 0
    assert ensure(verify_max_age_s=9000.0)["verify"]["level"] == "full", "what was linked is as old as its source"


@pytest.mark.parametrize("when", ["old", "unknown", "to come"])
def test_an_old_or_unknown_check_is_renewed(ensure: Ensure, store: Path, when: str) -> None:
    ensure()
    set_full_check(store, {"old": time.time() - 31 * 86400, "unknown": None, "to come": time.time() + 86400}[when])
    assert ensure()["verify"]["level"] == "quick"
    first = ensure(verify_max_age_s=30 * 86400.0)
    assert not first["changed"]
    assert (first["verify"]["level"], first["verify"]["hashed_files"]) == ("full", 6)
    again = ensure(verify_max_age_s=30 * 86400.0)
    assert (again["verify"]["level"], again["verify"]["hashed_files"]) == ("quick", 0)


def test_full_finds_a_flipped_byte_that_no_time_shows_and_fetches_only_that_file(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    path = Path(ensure()["path"])
    rot(store, path / WEIGHTS)
    assert not ensure()["changed"]
    result = ensure(full=True)
    assert (result["files"]["repaired"], result["bytes"]["wan"]) == (1, (folder / WEIGHTS).stat().st_size)
    assert contents(path) == contents(folder)
    assert result["verify"]["level"] == "full"
    assert result["verify"]["mb_s"] > 0


def test_a_check_without_repair_names_the_file_and_is_not_forgotten(ensure: Ensure, folder: Path, store: Path) -> None:
    path = Path(ensure()["path"])
    rot(store, path / WEIGHTS)
    with pytest.raises(StoreError, match=rf"1 missing or damaged files \({WEIGHTS}\)"):
        ensure(offline=True, full=True)
    result = ensure()
    assert result["files"]["repaired"] == 1, "the quick look knows now"
    assert contents(path) == contents(folder)


def test_revisions_share_inodes_and_damage_is_known_for_both(ensure: Ensure, folder: Path, store: Path) -> None:
    config = (folder / "config.json").read_bytes()
    old = Path(ensure()["path"])
    overwrite(folder / "config.json", b"{}")
    new = Path(ensure()["path"])
    assert (old / WEIGHTS).stat().st_ino == (new / WEIGHTS).stat().st_ino
    rot(store, new / WEIGHTS)
    repaired = ensure(full=True)
    assert repaired["bytes"]["wan"] == (folder / WEIGHTS).stat().st_size
    overwrite(folder / "config.json", config)
    back = ensure()
    assert (back["files"]["repaired"], back["bytes"]["wan"]) == (1, 0), "from the other revision, not from the hub"
    assert contents(old) == contents(folder)


def test_damage_that_was_only_found_is_known_for_every_revision_that_shares_it(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    config = (folder / "config.json").read_bytes()
    old = Path(ensure()["path"])
    overwrite(folder / "config.json", b"{}")
    rot(store, Path(ensure()["path"]) / WEIGHTS)
    with pytest.raises(StoreError, match=WEIGHTS):
        ensure(offline=True, full=True)
    overwrite(folder / "config.json", config)
    assert ensure()["files"]["repaired"] == 1, "without hashing everything"
    assert contents(old) == contents(folder)


def test_a_clock_that_went_back_makes_times_worthless(
    ensure: Ensure, hub: HubSimulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure()
    hub.reset()
    monkeypatch.setattr(store, "load_ledger", partial(load_ledger, clock=lambda: time.time() - 3600))
    result = ensure()
    assert (result["changed"], result["verify"]["hashed_files"]) == (False, 6)
    assert all(request["path"].endswith("/files") for request in hub.requests)


def test_another_device_number_costs_hashing_once_and_no_download(ensure: Ensure, store: Path) -> None:
    ensure()
    edit_ledger(store, lambda entry: entry.update(device=entry["device"] + 1))
    assert ensure()["verify"]["hashed_files"] == 6
    assert ensure()["verify"]["hashed_files"] == 0


def test_a_shard_whose_ctime_alone_differs_is_hashed_and_not_fetched(ensure: Ensure, folder: Path, store: Path) -> None:
    path = Path(ensure()["path"])
    (store / "name").hardlink_to(path / WEIGHTS)
    (store / "name").unlink()
    overwrite(folder / "config.json", b"{}")
    result = ensure()
    assert (result["bytes"]["wan"], result["verify"]["hashed_files"]) == (2, 1)
    assert ensure()["verify"]["hashed_files"] == 0


def test_a_shard_whose_ctime_differs_and_whose_bytes_do_too_is_fetched(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    path = Path(ensure()["path"])
    times = (path / WEIGHTS).stat()
    flip_byte(path / WEIGHTS)
    os.utime(path / WEIGHTS, ns=(times.st_atime_ns, times.st_mtime_ns))
    overwrite(folder / "config.json", b"{}")
    result = ensure()
    assert result["bytes"]["wan"] == (folder / WEIGHTS).stat().st_size + 2
    assert contents(Path(result["path"])) == contents(folder)


def test_a_run_that_fails_after_it_linked_leaves_what_it_linked_proven(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    good = (folder / "config.json").read_bytes()
    ensure()
    overwrite(folder / "config.json", b"{")
    for _attempt in range(2):
        with pytest.raises(HubError, match="broken upload"):
            ensure()
    overwrite(folder / "config.json", good)
    assert ensure()["verify"]["hashed_files"] == 0
    overwrite(folder / "config.json", b"{}")
    result = ensure()
    assert (result["bytes"]["wan"], result["verify"]["hashed_files"]) == (2, 0)


def test_structure_is_looked_into_on_demand_and_with_full(ensure: Ensure, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure()
    looked: list[int] = []
    monkeypatch.setattr(snapshot, "check_structure", lambda files, _locate: looked.append(len(files)))
    assert ensure()["verify"]["level"] == "quick"
    assert looked == []
    assert ensure(structure=True)["verify"]["level"] == "structure"
    assert ensure(full=True)["verify"]["level"] == "full"
    assert looked == [6, 6]


def test_a_full_check_fills_no_page_cache(ensure: Ensure, monkeypatch: pytest.MonkeyPatch) -> None:
    total = ensure()["bytes"]["total"]
    dropped = []
    monkeypatch.setattr(hashing, "DROP_BYTES", 1 << 19)
    advise = os.posix_fadvise

    def spy(descriptor: int, offset: int, length: int, advice: int) -> None:
        advise(descriptor, offset, length, advice)
        if advice == os.POSIX_FADV_DONTNEED:
            dropped.append(length)

    monkeypatch.setattr(os, "posix_fadvise", spy)
    ensure(full=True)
    assert sum(dropped) == total


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (4, 2), (8, 4), (128, 4)])
def test_half_of_the_cores_hash(cores: int, workers: int) -> None:
    assert hashing.hash_workers(cores) == workers


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * 86400), ("12h", 43200), ("90m", 5400), ("2w", 14 * 86400)])
def test_ages_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_age("verify_max_age", text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "30 days", "1000000000d"])
def test_ages_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(StoreError, match="verify_max_age must be a number with m, h, d or w"):
        parse_age("verify_max_age", text)


def test_an_unchanged_tree_of_52_gb_is_neither_hashed_nor_asked_for(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse files, with a ledger made for them."""
    files = tuple(
        ModelFile(f"model-{number:05}-of-00018.safetensors", 52_000_000_000 // 18, f"{number:064x}")
        for number in range(1, 19)
    )
    manifest = Manifest("modelscope", "Org/Model", "master", "a" * 40, "given", files, "2026-11-30T00:00:00Z")
    lay_sparse(store, manifest)
    monkeypatch.setattr(hashing, "hash_file", None)
    result = ensure_snapshot(
        Request("Org/Model", "master", store, manifest=manifest), make_hub(endpoint=DEAD, proxy=""), Progress()
    )
    assert (result["changed"], result["files"]["verified"], result["verify"]["hashed_files"]) == (False, 18, 0)


def lay_sparse(root: Path, manifest: Manifest) -> None:
    """A published revision of holes, which the ledger takes for proven."""
    repo = store.RepoStore(root, manifest.hub, manifest.repo)
    repo.prepare()
    folder = repo.revision(manifest.id)
    folder.mkdir()
    ledger = repo.read_ledger()
    for file in manifest.files:
        with (folder / file.path).open("wb") as handle:
            handle.truncate(file.size)
        (folder / file.path).chmod(0o444)
        ledger.note(manifest.id, file, (folder / file.path).stat())
    repo.save_manifest(manifest)
    repo.save_ledger(ledger)
    (root / "Model").symlink_to(folder.relative_to(root))


# What is in the way


def facts(**change: Any) -> Callable[..., prechecks.StoreFacts]:
    """As of the real store, but for *change*."""
    return lambda *args: replace(prechecks.read_facts(*args), **change)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"file_system": "nfs4"}, {"allow_shared_fs": True}, "is a network file system"),
        ({"file_system": "fuse.sshfs"}, {"allow_shared_fs": True}, "is a network file system"),
        ({"file_system": "tmpfs"}, {"allow_volatile_fs": True}, "does not outlive the next start"),
        ({"file_system": "overlay"}, {"force": True}, "does not outlive the next start"),
        ({"clock_s": 86400.0}, {"force": True}, "the clock of the host says 1970-01-02"),
        ({"free": 1000}, {"force": True}, "iB are to be downloaded and "),
        ({"inodes": 3}, {"force": True}, "3 inodes left, but 6 files are to come"),
    ],
)
def test_an_unfit_store_is_refused_before_anything_is_written(
    ensure: Ensure, hub: HubSimulator, store: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        ensure(facts=facts(**change))
    assert [request["path"] for request in hub.requests] == ["/api/v1/models/Org/Model/repo/files"]
    assert not store.exists()
    assert ensure(facts=facts(**change), **options)["changed"]
    assert not ensure(facts=facts(**change))["changed"], "what is there may be used"


def test_a_link_in_the_place_of_the_inner_folder_is_refused_before_anything_is_written(
    ensure: Ensure, folder: Path, store: Path, tmp_path: Path
) -> None:
    """All other actions refuse it: what they free could be somebody else's."""
    ensure()
    (store / ".store").rename(tmp_path / "moved")
    (store / ".store").symlink_to(tmp_path / "moved")
    before = contents(tmp_path / "moved")
    assert not ensure()["changed"], "what is there is used as it is"
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    assert [fault["id"] for fault in ensure(check=True)["plan"]["faults"]] == ["link"]
    with pytest.raises(StoreError, match=r"\.store is a symbolic link, and what it names is no store of socle's"):
        ensure()
    assert contents(tmp_path / "moved") == before


def test_several_faults_are_told_at_once(ensure: Ensure) -> None:
    with pytest.raises(StoreError, match=r"network file system.*inodes left") as caught:
        ensure(facts=facts(file_system="lustre", inodes=3))
    assert caught.value.fields["faults"] == ["shared_fs", "inodes"]


def test_check_mode_tells_the_faults_and_does_not_fail(ensure: Ensure, store: Path) -> None:
    plan = ensure(check=True, facts=facts(file_system="nfs", free=1000))["plan"]
    assert [fault["id"] for fault in plan["faults"]] == ["shared_fs", "space"]
    assert plan["store"]["file_system"] == "nfs"
    assert plan["free"] == 1000
    assert ensure(check=True)["plan"]["faults"] == []
    assert not store.exists()


def test_a_store_that_is_mounted_read_only_is_named(
    ensure: Ensure, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"30 22 8:1 / {store.parent} ro,relatime - ext4 /dev/sda1 ro\n"
    monkeypatch.setattr(prechecks, "_read_mounts", lambda: mounts)
    with pytest.raises(StoreError, match="cannot be written: it is mounted read-only"):
        ensure()
    assert not store.exists()


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def can_mount() -> bool:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return os.geteuid() == 0 and tried.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs root, and a mount namespace of its own")
def test_a_store_that_really_is_read_only_is_named_and_its_models_stay_usable(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path
) -> None:
    commit = ensure()["commit"]

    def run(revision: str) -> dict[str, Any]:
        args = {"repo": "Org/Model", "endpoint": hub.url, "store": str(store), "proxy": "", "revision": revision}
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", READ_ONLY, store, sys.executable, "-c", DRIVER, json.dumps(args)],
            env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
            capture_output=True,
            text=True,
            check=False,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    assert run(commit)["changed"] is False
    overwrite(folder / "config.json", b"{}")
    failed = run("master")
    assert failed["failed"]
    assert f"{store} cannot be written: it is mounted read-only" in failed["msg"]
    assert len(published(store)) == 1


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on a real tmpfs."""
    if not SHM.is_dir() or (prechecks.find_mount(prechecks._read_mounts(), SHM) or NONE).type != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    place = Path(tempfile.mkdtemp(dir=SHM))
    yield place
    shutil.rmtree(place)


def test_a_real_tmpfs_is_refused_and_adopted_from_by_copying(ensure: Ensure, folder: Path, shm: Path) -> None:
    with pytest.raises(StoreError, match=r"tmpfs at .* does not outlive the next start"):
        ensure(store=shm / "store")
    assert list(shm.iterdir()) == []
    shutil.copytree(folder, shm / "cache")
    result = ensure(adopt_from=(shm / "cache",))
    assert result["bytes"]["adopted"] == result["bytes"]["total"]
    assert contents(Path(result["path"])) == contents(folder)
    assert (Path(result["path"]) / WEIGHTS).stat().st_nlink == 1


def test_only_what_is_missing_needs_space(ensure: Ensure, folder: Path) -> None:
    ensure()
    overwrite(folder / "config.json", b"{}")
    assert ensure(facts=facts(free=5000))["changed"], "two bytes, the rest is linked"


def stage_other(path: Path, size: int) -> Path:
    """What an interrupted download of another revision left."""
    job = store.RepoStore(path, "modelscope", "Org/Model").new_job("ba5eba11ba11")
    (job / "tree" / "other.safetensors").write_bytes(bytes(size))
    return job


def test_what_was_received_of_another_revision_is_kept(ensure: Ensure, folder: Path, store: Path) -> None:
    ensure()
    job = stage_other(store, 1000)
    overwrite(folder / "config.json", b"{}")
    result = ensure()
    assert (result["changed"], result["warnings"]) == (True, [])
    assert (job / "tree" / "other.safetensors").stat().st_size == 1000
    assert not ensure()["changed"]
    assert job.is_dir()


def test_what_was_received_of_another_revision_goes_where_space_is_short(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    ensure()
    old, young = stage_other(store, 1 << 20), stage_other(store, 1 << 20)
    for parent, folders, files in os.walk(old):
        for name in (*folders, *files):
            os.utime(Path(parent, name), (time.time() - 3600,) * 2)
    os.utime(old, (time.time() - 3600,) * 2)

    def short(*args: Any) -> prechecks.StoreFacts:
        found: prechecks.StoreFacts = facts(free=10 if old.exists() else 2 << 20)(*args)
        return found

    flip_byte(folder / WEIGHTS)
    assert ensure(facts=short, check=True)["plan"]["faults"] == []
    assert old.exists()
    result = ensure(facts=short)
    assert not old.exists()
    assert young.exists()
    (warning,) = result["warnings"]
    assert "space is short: 0.00 GiB that an interrupted download of another revision" in warning
    assert contents(Path(result["path"])) == contents(folder)
    overwrite(folder / "config.json", b"{}")
    with pytest.raises(StoreError, match="B free, but"):
        ensure(facts=facts(free=10), reserve_bytes=10 << 20)
    assert young.exists(), "what makes no room is kept"


# What is moved aside


@pytest.mark.parametrize(
    "name",
    ["模" * 80, "é" * 120, "a" * 250, b"\xff".decode("utf-8", "surrogateescape") + "b" * 200],
    ids=["CJK", "Latin", "ASCII", "no Unicode"],
)
def test_foreign_files_with_long_names_are_moved_aside(ensure: Ensure, store: Path, name: str) -> None:
    path = Path(ensure()["path"])
    for letter in ("A", "B"):
        (path / letter).mkdir()
        (path / "extra" / f"{letter}{name}").write_text(letter)
    (path / f"C{name}").write_text("C")
    assert ensure()["files"]["removed"] == 5
    rejected = base(store) / "stage" / "rejected"
    assert sorted(place.read_text() for place in rejected.iterdir() if place.is_file()) == ["A", "B", "C"]


def test_what_arrived_wrong_under_a_long_name_is_kept(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path
) -> None:
    name = f"{'型' * 60}/{'模' * 80}.bin"
    (folder / name).parent.mkdir()
    (folder / name).write_bytes(bytes(range(250)))
    hub.add_rule(path="/repo/files", sha256={name: "0" * 64})
    with pytest.raises(HubError, match="what arrived is kept in"):
        ensure()
    (kept,) = (base(store) / "stage" / "rejected").iterdir()
    assert kept.name.endswith("模.bin")


# Who works on it


def test_a_lock_tells_whether_its_holder_lives(ensure: Ensure, store: Path) -> None:
    base(store).mkdir(parents=True)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for pid, state in ((os.getpid(), "it is alive"), (int(ended.stdout), "it is gone")):
        with (base(store) / "lock").open("w") as holder:
            fcntl.flock(holder, fcntl.LOCK_EX)
            holder.write(json.dumps({**own_identity(), "pid": pid}))
            holder.flush()
            with pytest.raises(StoreError, match=rf"process {pid} on .* since .*{state}"):
                ensure(lock_timeout_s=0.0)
    assert parse_owner("nonsense") is None
    assert (parse_owner(json.dumps({**own_identity(), "pid": int(ended.stdout)})) or {})["state"] == GONE


def test_who_only_looks_at_the_lock_keeps_nobody_out(store: Path) -> None:
    """As read_lock() does, for the moment of its look."""
    place = RepoStore(store, "modelscope", "Org/Model")
    place.prepare()
    (place.base / "lock").touch()
    looker = (place.base / "lock").open()
    fcntl.flock(looker, fcntl.LOCK_SH)
    with place.locked(0, Progress(), sleep=lambda _seconds: looker.close()) as waited:
        assert waited


def test_a_folder_in_the_place_of_a_file_of_the_store_costs_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="it is no regular file"):
        read_state(tmp_path, 1024)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_others_look_into_just_now_is_opened_and_anything_else_is_not(tmp_path: Path) -> None:
    """Garbage collection asks by a lease who has a file open; the kernel lets others in once it is given back."""
    place, pipe, link = tmp_path / "file", tmp_path / "pipe", tmp_path / "link"
    place.write_bytes(b"x")
    os.mkfifo(pipe)
    link.symlink_to(place)
    code = (
        "import fcntl, os, signal, sys; d = os.open(sys.argv[1], os.O_RDONLY);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO}); fcntl.fcntl(d, fcntl.F_SETLEASE, fcntl.F_WRLCK);"
        "print('ready', flush=True); signal.sigwait({signal.SIGIO})"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"ready\n"
        os.close(open_regular(place))
    for wrong in (pipe, link, tmp_path):
        with pytest.raises(OSError, match=r"it is no regular file|Too many levels of symbolic links"):
            open_regular(wrong)
        with pytest.raises(OSError, match=r"it is no regular file|Too many levels of symbolic links"):
            hashing.hash_file(wrong)


def test_an_owner_on_another_host_is_not_taken_for_dead() -> None:
    owner = parse_owner(json.dumps({"host": "gpu7", "pid": 4711, "since": "2026-11-30T09:28:44Z"}))
    assert owner
    assert "another host" in owner["state"]


# What weights begin with


@pytest.mark.parametrize(
    ("head", "meaning"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "a Git LFS pointer, not the content"),
        (b"<!doctype html><title>Login", "a web page"),
        (b"<?xml version='1.0'?><Error>", "an XML document, as storage sends errors"),
        (b"\x00" * 64, "zeros"),
        (b"\x93NUMPY\x01\x00", "the bytes 934e554d50590100"),
        (b"", "nothing"),
    ],
)
def test_first_bytes_are_put_in_words(head: bytes, meaning: str) -> None:
    assert structure.describe_head(head) == meaning


@pytest.mark.parametrize(("content", "meaning"), [(b"<html>" + b"x" * 200, "a web page"), (bytes(300), "zeros")])
def test_weights_that_are_none_are_not_activated(
    ensure: Ensure, folder: Path, store: Path, content: bytes, meaning: str
) -> None:
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(HubError, match=rf"{WEIGHTS} has no safetensors header .*it begins with {meaning}"):
        ensure()
    assert published(store) == []


def test_a_pointer_in_the_place_of_weights_is_not_activated(ensure: Ensure, folder: Path, store: Path) -> None:
    (folder / WEIGHTS).write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    )
    with pytest.raises(
        HubError, match=rf"{WEIGHTS} is a Git LFS pointer, not the content: the hub holds a broken upload"
    ):
        ensure()
    assert published(store) == []


# What a folder holds


def test_a_plain_folder_is_imported_under_a_name_of_its_own(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "other"
    request = Request("Org/Model", "mine", root, reserve_bytes=0)
    result = ensure_snapshot(request, make_hub("directory", path=str(folder)), Progress())
    assert contents(Path(result["path"])) == contents(folder)
    assert (root / ".store" / "directory" / "Org--Model" / "rev").is_dir()
    assert (root / "Model").resolve() == Path(result["path"])


def test_a_link_follows_the_model_to_another_source_and_to_no_other_model(
    ensure: Ensure, folder: Path, store: Path, tmp_path: Path
) -> None:
    first = ensure()["path"]
    plain = shutil.copytree(folder, tmp_path / "plain")
    request = Request("Org/Model", "master", store, reserve_bytes=0)
    planned = ensure_snapshot(replace(request, check=True), make_hub("directory", path=str(plain)), Progress())
    assert planned["changed"]
    imported = ensure_snapshot(request, make_hub("directory", path=str(plain)), Progress())["path"]
    assert (store / "Model").resolve() == Path(imported) != Path(first)
    assert ensure()["changed"]
    assert (store / "Model").resolve() == Path(first)
    assert not ensure()["changed"]
    (store / "Model").unlink()
    (store / "Model").symlink_to(".store/modelscope/Org--Other/rev/0123456789ab")
    with pytest.raises(StoreError, match="which is not Org/Model: remove it"):
        ensure()


def test_links_keep_their_history(ensure: Ensure, folder: Path, store: Path) -> None:
    ids: list[str] = []
    for number in range(3):
        overwrite(folder / "config.json", json.dumps({"number": number}).encode())
        ids.insert(0, Path(ensure()["path"]).name)
    assert json.loads((base(store) / "ledger.json").read_text())["links"] == {"Model": ids}
    overwrite(folder / "config.json", json.dumps({"number": 0}).encode())
    ensure()
    order: Sequence[str] = [ids[2], ids[0], ids[1]]
    assert json.loads((base(store) / "ledger.json").read_text())["links"] == {"Model": order}
