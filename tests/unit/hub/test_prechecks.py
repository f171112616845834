# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is in the way of a download, judged from facts, and the facts of real folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import prechecks
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import (
    GIB,
    Allowed,
    StoreFacts,
    find_mount,
    judge,
    needed_bytes,
    read_facts,
    reserve_bytes,
    try_writing,
)

GOOD = StoreFacts(
    folder="/srv/models",
    free=100 * GIB,
    total=1000 * GIB,
    inodes=1_000_000,
    file_system="ext4",
    mount_point="/srv",
    devices=(7, 7),
    write_fault=None,
    clock_s=1_800_000_000.0,
    newest_s=1_799_000_000.0,
)
MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:5 / /srv rw,relatime shared:2 - nfs4 nas:/export rw,vers=4.2
31 30 8:2 / /srv/models rw,relatime - xfs /dev/sdb1 rw
32 31 0:9 / /srv/models rw,relatime - tmpfs none rw
33 22 8:3 / /with\040blank ro,relatime - ext4 /dev/sdc1 rw
34 22 8:4 / /broken rw,relatime - ext4 /dev/sdd1 ro,errors=remount-ro
nonsense
"""


def ids(facts: StoreFacts, need: int = 50 * GIB, **allowed: Any) -> list[str]:
    return [fault.id for fault in judge(facts, need, 30, Allowed(**allowed))]


def test_a_host_that_is_fit_has_nothing_in_the_way() -> None:
    assert ids(GOOD) == []


@pytest.mark.parametrize(
    ("change", "found", "accepted"),
    [
        ({"free": 60 * GIB}, "space", {"reserve_bytes": 10 * GIB}),
        ({"free": 10 * GIB}, "space", {"force": True}),
        ({"inodes": 80}, "inodes", {"force": True}),
        ({"file_system": "nfs4"}, "shared_fs", {"shared_fs": True}),
        ({"file_system": "lustre"}, "shared_fs", {"shared_fs": True}),
        ({"file_system": "fuse.juicefs"}, "shared_fs", {"shared_fs": True}),
        ({"file_system": "tmpfs"}, "volatile_fs", {"volatile_fs": True}),
        ({"file_system": "overlay"}, "volatile_fs", {"force": True}),
        ({"clock_s": 0.0}, "clock", {"force": True}),
        ({"newest_s": 1_800_200_000.0}, "clock", {"force": True}),
    ],
)
def test_each_fault_is_found_and_can_be_accepted(change: dict[str, Any], found: str, accepted: dict[str, Any]) -> None:
    facts = replace(GOOD, **change)
    assert ids(facts) == [found]
    assert ids(facts, **accepted) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [({"write_fault": "it is mounted read-only"}, "write"), ({"devices": (7, 8)}, "devices")],
)
def test_what_cannot_work_is_not_forced(change: dict[str, Any], found: str) -> None:
    assert ids(replace(GOOD, **change), force=True, shared_fs=True) == [found]


def test_force_does_not_take_a_network_for_a_disk() -> None:
    assert ids(replace(GOOD, file_system="nfs"), force=True) == ["shared_fs"]


@pytest.mark.parametrize("file_system", ["fuse.bindfs", "xfs", "btrfs", "zfs", "fuseblk", ""])
def test_local_file_systems_are_taken(file_system: str) -> None:
    assert ids(replace(GOOD, file_system=file_system)) == []


def test_the_message_about_a_full_disk_names_need_free_file_system_and_what_could_be_freed() -> None:
    facts = replace(GOOD, free=30 * GIB)
    (fault,) = judge(facts, 48 * GIB, 30, Allowed(), reclaimable=52 * GIB)
    assert "/srv/models (ext4 at /srv) has 30.0 GiB free, but 48.0 GiB are to be downloaded" in fault.message
    assert "20.0 GiB must stay free" in fault.message
    assert "could free 52.0 GiB: make room or choose another store" in fault.message
    assert "reserve_gib" not in fault.message, "no reserve is small enough"
    (fault,) = judge(facts, 20 * GIB - 1, 30, Allowed())
    assert fault.message.endswith("make room, choose another store or lower reserve_gib")
    (fault,) = judge(replace(GOOD, free=3 << 20), 20 << 20, 30, Allowed(reserve_bytes=0))
    assert "has 3.0 MiB free, but 20.0 MiB are to be downloaded and 0 B must stay free" in fault.message


def test_nothing_to_download_needs_no_space() -> None:
    assert [fault.id for fault in judge(replace(GOOD, free=0, inodes=0), 0, 0, Allowed())] == []


def test_what_is_staged_or_linked_is_not_needed_again() -> None:
    assert needed_bytes(52, 10, 30) == 12
    assert needed_bytes(10, 10, 10) == 0


@pytest.mark.parametrize(
    ("path", "point", "file_system", "read_only"),
    [
        ("/home", "/", "ext4", False),
        ("/srv/other", "/srv", "nfs4", False),
        ("/srv/models/x", "/srv/models", "tmpfs", False),
        ("/srv/models2", "/srv", "nfs4", False),
        ("/with blank/x", "/with blank", "ext4", True),
        ("/broken", "/broken", "ext4", True),
    ],
)
def test_the_mount_of_a_folder_is_the_innermost_and_latest(
    path: str, point: str, file_system: str, read_only: bool
) -> None:
    assert find_mount(MOUNTS, Path(path)) == prechecks.Mount(point, file_system, read_only)


def test_facts_of_a_real_folder_leave_nothing_behind(tmp_path: Path) -> None:
    store = tmp_path / "a" / "store"
    facts = read_facts(store, (store / "stage", store / "rev"), 0.0, probe=True)
    assert facts.write_fault is None
    assert 0 < facts.free < facts.total
    assert facts.file_system
    assert len(set(facts.devices)) == 1
    assert list(tmp_path.iterdir()) == []
    assert os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize == pytest.approx(facts.free, rel=0.1)


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    facts = read_facts(tmp_path / "store", (tmp_path / "store",), 0.0, probe=True)
    assert facts.write_fault == f"{tmp_path / 'store'} is no folder"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_gives_no_room_is_named(tmp_path: Path, number: int) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    assert try_writing(tmp_path, refuse) == f"{os.strerror(number)} in {tmp_path}"
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_cannot_reserve_is_no_fault(tmp_path: Path) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    assert try_writing(tmp_path, refuse) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    for probe in (False, True):
        assert str(tmp_path) in str(read_facts(tmp_path, (tmp_path,), 0.0, probe).write_fault)


def test_a_plan_counts_as_missing_only_what_is_fetched(ensure: Callable[..., dict[str, Any]], folder: Path) -> None:
    total = ensure()["bytes"]["total"]
    old = (folder / "config.json").stat().st_size
    (folder / "config.json").write_text("{}")
    plan = ensure(check=True)["plan"]
    assert (plan["missing"], plan["missing_files"], plan["bytes"]) == (["config.json"], 1, 2)
    assert (plan["reusable"], plan["wanted_files"], plan["foreign_files"]) == (total - old, 6, 0)
    ensure()
    plan = ensure(check=True, full=True)["plan"]
    assert (plan["missing_files"], plan["wanted_files"], plan["reusable"]) == (0, 0, 0)


def test_a_check_warns_of_folders_to_adopt_from_as_a_run_does(
    ensure: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (warning,) = ensure(check=True, adopt_from=(tmp_path / "none",))["warnings"]
    assert warning == f"{tmp_path / 'none'}, which adopt_from names, is no folder on this host"


@pytest.mark.parametrize("gib", [-1.0, 1e308, float("nan"), float("inf")])
def test_a_reserve_that_is_no_size_is_refused(gib: float) -> None:
    with pytest.raises(StoreError, match="reserve_gib must be a number of GiB"):
        reserve_bytes(gib)


def test_messages_name_options_so_that_they_can_be_told_from_words() -> None:
    full = judge(replace(GOOD, free=GIB), GIB, 1, Allowed())[0].message
    late = judge(replace(GOOD, clock_s=0.0), 0, 0, Allowed())[0].message
    assert "choose another store or lower reserve_gib" in full
    assert "pass over this with the option force" in late
