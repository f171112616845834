# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a model belong to whom the site wants, from the first moment and again after somebody changed that."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import lease, ownership
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.job import request_of
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.ownership import Ownership, find_ownership
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import WEIGHTS, Death, base, contents, published, rot
from tests.unit.hub.conftest import FAST

Ensure = Callable[..., dict[str, Any]]
UID, GID = 45_001, 45_002
OWNED = {"owner": str(UID), "group": str(GID)}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give files to others")


def owners(folder: Path) -> set[tuple[int, int]]:
    return {(path.stat().st_uid, path.stat().st_gid) for path in folder.rglob("*") if path.is_file()}


@needs_root
def test_files_are_published_with_their_owner_and_all_else_stays_roots(ensure: Ensure, store: Path) -> None:
    result = ensure(**OWNED)
    path = Path(result["path"])
    assert owners(path) == {(UID, GID)}
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()} == {0o444}
    base = path.parents[1]
    rest = [path, path / "extra", path.parent, store, base / "ledger.json", *(base / "manifest").iterdir()]
    assert {place.stat().st_uid for place in rest} == {0}
    again = ensure(**OWNED)
    assert not again["changed"] and again["verify"]["hashed_files"] == 0
    assert not ensure()["changed"], "without the option, the owner is nobody's business"


@needs_root
def test_a_later_run_gives_files_to_the_owner_without_reading_them(ensure: Ensure) -> None:
    path = Path(ensure()["path"])
    planned = ensure(**OWNED, check=True)
    assert planned["changed"] and planned["files"]["owner_changed"] == 6
    assert not planned["plan"]["missing"] and owners(path) == {(0, 0)}
    result = ensure(**OWNED)
    assert result["changed"] and result["files"]["owner_changed"] == 6
    assert (result["files"]["fetched"], result["bytes"]["wan"], result["verify"]["hashed_files"]) == (0, 0, 0)
    assert owners(path) == {(UID, GID)}
    os.chown(path / "config.json", 0, 0)
    result = ensure(owner=str(UID))
    assert result["changed"] and result["files"]["owner_changed"] == 1
    assert (path / "config.json").stat().st_uid == UID and (path / "config.json").stat().st_gid == 0
    assert not ensure(owner=str(UID))["changed"]


@needs_root
def test_offline_the_owner_is_put_right_as_well(ensure: Ensure) -> None:
    path = Path(ensure()["path"])
    assert ensure(**OWNED, offline=True)["changed"]
    assert owners(path) == {(UID, GID)}
    assert not ensure(offline=True, activate=False, owner="nobody-of-that-name")["changed"], "only looked at"


@needs_root
def test_revisions_that_share_files_stay_proven(ensure: Ensure, folder: Path, store: Path) -> None:
    first = Path(ensure()["path"])
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    result = ensure(**OWNED)
    second = Path(result["path"])
    assert first != second and result["bytes"]["reused_link"] > 0
    assert owners(second) == {(UID, GID)}
    assert (first / "config.json").stat().st_uid == 0, "only what the revision has itself"
    assert (first / "empty").stat().st_uid == UID, "a shared file is one file"
    ledger = RepoStore(store, "modelscope", "Org/Model").read_ledger()
    for revision in (first, second):
        for path, entry in ledger.files(revision.name).items():
            assert entry["ctime_ns"] == (revision / path).stat().st_ctime_ns, (revision, path)


@needs_root
def test_a_damaged_file_is_repaired_with_its_owner(ensure: Ensure, store: Path) -> None:
    path = Path(ensure(**OWNED)["path"])
    good = contents(path)
    rot(store, path / "config.json")
    result = ensure(**OWNED, full=True)
    assert result["files"]["repaired"] == 1 and contents(path) == good
    assert owners(path) == {(UID, GID)}


@needs_root
def test_a_run_that_dies_between_owner_and_publication_costs_no_trust(
    ensure: Ensure, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(ensure()["path"])
    (folder / "config.json").write_text('{"architectures": ["Other"]}')

    def die(*_arguments: Any) -> None:
        raise Death

    monkeypatch.setattr(RepoStore, "publish", die)
    with pytest.raises(Death):
        ensure(**OWNED)
    monkeypatch.undo()
    result = ensure(**OWNED)
    assert owners(Path(result["path"])) == {(UID, GID)} and first.exists()
    assert result["verify"]["hashed_files"] == 0


def test_an_owner_that_the_host_does_not_know_is_refused_before_the_first_byte(ensure: Ensure, store: Path) -> None:
    with pytest.raises(StoreError, match=r"the option owner is 'no-such-user', and this host has no such user"):
        ensure(owner="no-such-user")
    with pytest.raises(StoreError, match=r"the option group is 'no-such-group', and this host has no such group"):
        ensure(group="no-such-group", check=True)
    with pytest.raises(StoreError, match="a number up to"):
        ensure(owner=str((1 << 32) - 1))
    assert not store.exists()


def test_a_job_of_a_fleet_is_told_the_owner(store: Path) -> None:
    manifest = Manifest("modelscope", "Org/Model", "master", None, "none", (ModelFile("a", 1, "0" * 64),), "2026-11-30")
    spec = {"repo": "Org/Model", "revision": "master", "store": str(store), **OWNED}
    request = request_of(spec, manifest)
    assert (request.owner, request.group) == (str(UID), str(GID))


def test_names_and_numbers_are_taken() -> None:
    assert find_ownership(None, None) == Ownership() == find_ownership("", "")
    assert find_ownership("root" if os.geteuid() == 0 else str(os.geteuid()), None).uid == os.geteuid()
    assert find_ownership(None, str(os.getegid())) == Ownership(None, os.getegid())


def test_another_user_than_root_gives_files_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(ownership.os, "getegid", lambda: 1000)
    monkeypatch.setattr(ownership.os, "getgroups", lambda: [1000, 27])
    assert find_ownership("1000", "27") == Ownership(1000, 27)
    for owner, group in (("0", None), ("1000", "0")):
        with pytest.raises(StoreError, match=r"which root alone may set, and this is user 1000: run as root"):
            find_ownership(owner, group)


def test_a_file_system_without_owners_is_named_and_nothing_is_published(
    ensure: Ensure, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(ownership.os, "fchown", refuse)
    monkeypatch.setattr(Ownership, "fits", lambda _self, _status: False)
    with pytest.raises(StoreError, match=r"cannot be given to 45001:45002: Invalid argument; set the option owner"):
        ensure(**({"owner": str(UID), "group": str(GID)} if os.geteuid() == 0 else {}))
    assert published(store) == [] and not (store / "Model").exists()


class Owner:
    """Somebody who may write to the files of a model, holds one open for writing, and puts its times back."""

    def __init__(self, place: Path) -> None:
        self.before = place.stat()
        self.descriptor = os.open(place, os.O_RDWR)

    def write(self) -> None:
        os.pwrite(self.descriptor, b"other", self.before.st_size - 5)
        os.utime(self.descriptor, ns=(self.before.st_atime_ns, self.before.st_mtime_ns))


@needs_root
def test_until_a_file_is_published_it_is_roots(hub: HubSimulator, store: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Watch(Progress):
        def update(self, phase: str, *args: Any, **values: Any) -> None:
            if phase in ("checking structure", "publishing"):
                seen.extend(
                    (file.stat().st_uid, stat.S_IMODE(file.stat().st_mode))
                    for file in (base(store) / "stage").glob("*/tree/**/*")
                    if file.is_file()
                )

    request = Request(repo="Org/Model", revision="master", store=store, reserve_bytes=0, **OWNED)
    result = ensure_snapshot(request, make_hub(endpoint=hub.url, proxy="", policy=FAST), Watch())
    assert set(seen) == {(0, 0o444)} and len(seen) == 12
    assert owners(Path(result["path"])) == {(UID, GID)}


@needs_root
@pytest.mark.parametrize("is_open", [False, True])
def test_what_a_dead_run_left_is_taken_back_or_left_out(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    def die(*_arguments: Any) -> None:
        raise Death

    monkeypatch.setattr(RepoStore, "publish", die)
    with pytest.raises(Death):
        ensure()
    monkeypatch.undo()
    left = next((base(store) / "stage").glob(f"*/tree/{WEIGHTS}"))
    os.chown(left, UID, GID)
    inode = left.stat().st_ino
    owner = Owner(left) if is_open else None
    seen: list[int] = []

    class Watch(Progress):
        def update(self, phase: str, *args: Any, **values: Any) -> None:
            for file in base(store).glob("stage/*/*/*") if phase == "downloading" else ():
                # Files that are complete move meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    status = file.stat()
                    if status.st_ino == inode:
                        seen.append(status.st_uid)
            if owner and phase == "publishing":
                owner.write()

    request = Request(repo="Org/Model", revision="master", store=store, reserve_bytes=0, **OWNED)
    path = Path(ensure_snapshot(request, make_hub(endpoint=hub.url, proxy="", policy=FAST), Watch())["path"])
    assert contents(path) == contents(folder) and owners(path) == {(UID, GID)}
    assert ((path / WEIGHTS).stat().st_ino == inode) is not is_open
    assert is_open or UID not in seen


@needs_root
def test_a_shared_file_that_its_owner_has_open_is_fetched_and_not_linked(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    first = Path(ensure(**OWNED)["path"])
    owner = Owner(first / WEIGHTS)
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    result = ensure(**OWNED)
    owner.write()
    assert result["bytes"]["wan"] > (folder / WEIGHTS).stat().st_size
    assert contents(Path(result["path"])) == contents(folder) and not ensure(**OWNED)["changed"]


@needs_root
def test_what_the_owner_wrote_is_found_though_another_revision_got_or_lost_the_file(
    ensure: Ensure, folder: Path, store: Path
) -> None:
    """The ledger learns the time of a change of its own alone."""
    first = Path(ensure(**OWNED)["path"])
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    second = Path(ensure(**OWNED)["path"])
    place = base(store) / "stage" / "left"
    place.mkdir()
    os.link(first / WEIGHTS, place / "file")
    Owner(first / WEIGHTS).write()
    repo = RepoStore(store, "modelscope", "Org/Model")
    ledger = repo.read_ledger()
    repo.remove([place], ledger)
    repo.save_ledger(ledger)
    result = ensure(**OWNED)
    assert result["changed"] and contents(second) == contents(folder)


@needs_root
def test_a_file_that_its_old_owner_has_open_is_replaced_when_root_takes_it(ensure: Ensure, folder: Path) -> None:
    path = Path(ensure(**OWNED)["path"])
    owner = Owner(path / WEIGHTS)
    result = ensure(owner="root", group="root")
    owner.write()
    assert result["files"]["repaired"] == 1 and owners(path) == {(0, 0)}
    assert any("is open for writing by somebody else" in warning for warning in result["warnings"])
    assert contents(path) == contents(folder) and not ensure()["changed"]


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o400, 0o4555])
def test_a_file_that_is_not_read_only_is_put_right(ensure: Ensure, mode: int) -> None:
    path = Path(ensure()["path"])
    (path / "config.json").chmod(mode)
    assert ensure(check=True)["changed"]
    (warning,) = ensure(offline=True, activate=False)["warnings"]
    assert "has files that are not read-only (config.json): a repair puts that right" in warning
    result = ensure()
    assert result["changed"] and result["files"]["owner_changed"] == 1 and result["bytes"]["wan"] == 0
    assert stat.S_IMODE((path / "config.json").stat().st_mode) == 0o444
    again = ensure()
    assert not again["changed"] and again["verify"]["hashed_files"] == 0


@needs_root
def test_a_file_system_without_leases_takes_no_other_owner_and_works_without(
    ensure: Ensure, hub: HubSimulator, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_take_lease", lambda _descriptor, _place: lease.UNKNOWN)
    with pytest.raises(StoreError, match=r"the option owner is 45001:45002, and the file system of .* has no leases"):
        ensure(**OWNED)
    assert published(store) == [] and not any("/cdn/" in request["path"] for request in hub.requests)
    ensure()
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    assert ensure()["bytes"]["reused_link"] > 0


def test_a_time_is_let_pass_before_others_may_write_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one step of the clock, what they write would have the time that was noted."""
    place = tmp_path / "file"
    place.touch()
    status = place.stat()
    now = status.st_ctime_ns
    told = [now - 4_000_000, now, now + 4_000_000, now + 8_000_000]
    monkeypatch.setattr(lease, "_coarse_ns", lambda: told.pop(0))
    lease.wait_for_tick(status)
    assert told == [now + 8_000_000]
    told[:] = [now - 10**12, now]
    lease.wait_for_tick(status)
    assert told == [now], "a file system with another clock is not waited for"
