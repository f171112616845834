# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What garbage collection frees, and what it never touches, in real stores."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import catalog, gc, holders
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import describe_store
from ansible_collections.socle.inference.plugins.module_utils._hub.gc import Rules, collect
from ansible_collections.socle.inference.plugins.module_utils._hub.parts import Journal
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.support.model_store import MORE_WEIGHTS, WEIGHTS, base, contents, dying, overwrite, published

Ensure = Callable[..., dict[str, Any]]
Publish = Callable[[int], list[Path]]
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    """No process and no unit of this machine is looked at, unless a test puts it there."""
    (tmp_path / "proc").mkdir()
    return Rules(state_dir=tmp_path / "state", system=tmp_path / "system", proc=tmp_path / "proc")


@pytest.fixture
def publish(ensure: Ensure, folder: Path) -> Publish:
    """Publish so many revisions, which differ in one shard; returns their folders, the oldest first."""

    def run(count: int) -> list[Path]:
        found = []
        for number in range(count):
            overwrite(folder / "config.json", json.dumps({"number": number}).encode())
            found.append(Path(ensure()["path"]))
        return found

    return run


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[str, Path], subprocess.Popen[bytes]]]:
    """A process that keeps a file open, or mapped; it is the only one that is looked at, so that root is not needed."""
    started = []

    def run(how: str, path: Path) -> subprocess.Popen[bytes]:
        text = {
            "open": "import sys; handle = open(sys.argv[1], 'rb')",
            "mapped": "import mmap, os, sys; d = os.open(sys.argv[1], os.O_RDONLY);"
            "m = mmap.mmap(d, 0, prot=mmap.PROT_READ); os.closerange(3, 99)",
            "cwd": "import os, sys; os.chdir(sys.argv[1])",
        }[how]
        code = f"{text}\nprint('ready', flush=True)\nsys.stdin.read()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        (tmp_path / "proc" / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        return process

    yield run
    for process in started:
        process.communicate(b"")


def run(store: Path, rules: Rules, **change: Any) -> dict[str, Any]:
    return collect(store, replace(rules, **change), Progress())


def reasons(result: dict[str, Any]) -> dict[str, str]:
    return {item["id"]: item["reason"] for item in result["kept"]}


def test_current_and_previous_stay_and_older_ones_go(publish: Publish, store: Path, rules: Rules) -> None:
    old, previous, current = publish(3)
    alone = (old / "config.json").stat().st_blocks * 512
    planned = run(store, rules, check=True)
    assert published(store) == sorted(path.name for path in (old, previous, current))
    result = run(store, rules)
    assert published(store) == sorted([previous.name, current.name])
    assert [item["id"] for item in result["removed"]] == [old.name]
    assert result["freed_bytes"] == planned["freed_bytes"] == alone, "shards that others share are not freed"
    assert reasons(result) == {
        current.name: "it is the current one of Model",
        previous.name: "it is a previous one of Model",
    }
    assert not (base(store) / "manifest" / f"{old.name}.json").exists()
    assert list((base(store) / "stage").iterdir()) == []
    assert not run(store, rules)["changed"]


def test_what_is_left_is_whole_and_needs_no_hashing(
    publish: Publish, ensure: Ensure, folder: Path, store: Path, rules: Rules
) -> None:
    current = publish(3)[-1]
    run(store, rules)
    assert contents(current) == contents(folder)
    again = ensure()
    assert (again["changed"], again["verify"]["hashed_files"]) == (False, 0)


def test_shards_that_a_freed_revision_shared_are_linked_and_not_fetched_again(
    publish: Publish, ensure: Ensure, folder: Path, store: Path, rules: Rules
) -> None:
    publish(3)
    assert len(run(store, rules)["removed"]) == 1
    overwrite(folder / "config.json", b"{}")
    result = ensure()
    assert (result["bytes"]["wan"], result["verify"]["hashed_files"]) == (2, 0)


def test_shards_that_a_stale_download_shared_stay_proven(
    publish: Publish, ensure: Ensure, store: Path, rules: Rules
) -> None:
    (only,) = publish(1)
    job = base(store) / "stage" / "old"
    job.mkdir()
    (job / "owner.json").write_text('{"snapshot": "ba5eba11ba11"}')
    (job / WEIGHTS).hardlink_to(only / WEIGHTS)
    assert ensure(full=True)["verify"]["hashed_files"] == 6
    assert [Path(item["path"]).name for item in run(store, rules, stage_age_s=-1.0)["stage"]] == ["old"]
    assert ensure()["verify"]["hashed_files"] == 0


def test_going_back_makes_the_other_one_the_previous(
    publish: Publish, ensure: Ensure, folder: Path, store: Path, rules: Rules
) -> None:
    first, second, third = publish(3)
    overwrite(folder / "config.json", json.dumps({"number": 0}).encode())
    assert Path(ensure()["path"]) == first
    run(store, rules)
    assert published(store) == sorted([first.name, third.name])
    assert second.name not in published(store)


@pytest.mark.parametrize("form", ["absolute", "roundabout"])
def test_a_link_that_a_person_made_keeps_a_revision(publish: Publish, store: Path, rules: Rules, form: str) -> None:
    old = publish(3)[0]
    target = str(old) if form == "absolute" else f"./.store/../{old.relative_to(store)}/"
    (store / "mine").symlink_to(target)
    result = run(store, rules)
    assert result["removed"] == []
    assert reasons(result)[old.name] == "it is the current one of mine"


def test_a_link_by_where_the_store_really_is_keeps_a_revision(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path
) -> None:
    old = publish(3)[0]
    (tmp_path / "other").symlink_to(store)
    (store / "mine").symlink_to(old.resolve())
    assert reasons(run(tmp_path / "other", rules))[old.name] == "it is the current one of mine"
    assert old.is_dir()


def test_a_link_that_goes_meanwhile_leaves_the_others_as_they_are(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another model is removed just now; what looks unlinked is freed once it is old."""
    (only,) = publish(1)
    os.utime(only, (time.time() - 8 * 86400,) * 2)
    (store / "A").symlink_to(".store/modelscope/Org--A/rev/0123456789ab")
    real = Path.readlink

    def late(place: Path) -> Path:
        if place.name == "A":
            place.unlink(missing_ok=True)
        return real(place)

    monkeypatch.setattr(Path, "readlink", late)
    assert reasons(run(store, rules)) == {only.name: "it is the current one of Model"}
    assert published(store) == [only.name]


def test_more_can_be_kept_and_never_fewer_than_the_current_one(publish: Publish, store: Path, rules: Rules) -> None:
    revisions = publish(4)
    run(store, rules, keep=3)
    assert published(store) == sorted(path.name for path in revisions[1:])
    run(store, rules, keep=1)
    assert published(store) == [revisions[-1].name]
    with pytest.raises(StoreError, match="keep must be 1 or more"):
        run(store, rules, keep=0)


def test_a_store_without_a_history_keeps_the_latest_other_one(publish: Publish, store: Path, rules: Rules) -> None:
    revisions = publish(3)
    for number, path in enumerate(revisions):
        os.utime(path, (number, number))
    ledger = json.loads((base(store) / "ledger.json").read_text())
    del ledger["links"]
    (base(store) / "ledger.json").write_text(json.dumps(ledger))
    run(store, rules)
    assert published(store) == sorted(path.name for path in revisions[1:])


@pytest.mark.parametrize(("how", "word"), [("open", "open"), ("mapped", "mapped"), ("cwd", "works in it")])
def test_what_a_process_holds_stays(
    publish: Publish, store: Path, rules: Rules, hold: Callable[..., subprocess.Popen[bytes]], how: str, word: str
) -> None:
    old = publish(3)[0]
    process = hold(how, old if how == "cwd" else old / "config.json")
    result = run(store, rules)
    assert old.name in published(store)
    assert f"process {process.pid}" in reasons(result)[old.name]
    assert word in reasons(result)[old.name]
    process.communicate(b"")
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]


def test_what_the_current_revision_shares_does_not_keep_the_old_one(
    publish: Publish, store: Path, rules: Rules, hold: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """The engine that serves the current one has shards mapped that the old one has too."""
    old, _previous, current = publish(3)
    assert (old / WEIGHTS).stat().st_ino == (current / WEIGHTS).stat().st_ino
    hold("mapped", current / WEIGHTS)
    hold("open", current / WEIGHTS)
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]
    assert (current / WEIGHTS).stat().st_size > 900_000


def test_a_shared_shard_that_is_open_by_its_old_path_keeps_the_old_one(
    publish: Publish, store: Path, rules: Rules, hold: Callable[..., subprocess.Popen[bytes]]
) -> None:
    old = publish(3)[0]
    process = hold("mapped", old / WEIGHTS)
    assert f"process {process.pid}" in reasons(run(store, rules))[old.name]


def test_a_process_that_cannot_be_seen_keeps_what_it_has_open(publish: Publish, store: Path, rules: Rules) -> None:
    old = publish(3)[0]
    with (old / "config.json").open("rb"):
        result = run(store, rules)
    assert reasons(result)[old.name] == "somebody has config.json open"
    assert old.name in published(store)
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]


@pytest.mark.usefixtures("on_nfs")
def test_on_a_network_file_system_what_nobody_needs_is_freed(publish: Publish, store: Path, rules: Rules) -> None:
    """Its server gives no leases, which says nothing of who has a file open."""
    old = publish(3)[0]
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]


def test_what_is_opened_in_the_last_moment_comes_back(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish(3)[0]
    looked = []

    def late(claims: holders.Claims, _proc: Path) -> dict[str, str]:
        looked.append(claims)
        return {old.name: "process 1 (late) has it open"} if len(looked) == 2 else {}

    monkeypatch.setattr(gc, "find_holders", late)
    before = contents(old)
    result = run(store, rules)
    assert result["removed"] == []
    assert contents(old) == before
    assert (base(store) / "manifest" / f"{old.name}.json").is_file()


def test_a_process_that_ended_and_was_not_waited_for_is_no_obstacle(
    publish: Publish, store: Path, rules: Rules
) -> None:
    old = publish(3)[0]
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    (rules.proc / str(ended.pid)).symlink_to(f"/proc/{ended.pid}")
    try:
        run(store, rules)
    finally:
        ended.wait()
    assert not old.exists()


def test_an_error_after_the_rename_brings_everything_back(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: contents(path) for path in publish(4)}
    looked = []

    def fail(claims: holders.Claims, _proc: Path) -> dict[str, str]:
        looked.append(claims)
        if len(looked) == 2:
            raise StoreError("what process 1 holds open cannot be seen by this user")
        return {}

    monkeypatch.setattr(gc, "find_holders", fail)
    with pytest.raises(StoreError, match="cannot be seen"):
        run(store, rules)
    assert {name: contents(base(store) / "rev" / name) for name in published(store)} == before
    assert list((base(store) / "stage").iterdir()) == []


def test_what_a_dead_run_took_out_of_sight_is_looked_at_again(
    publish: Publish, store: Path, rules: Rules, hold: Callable[..., subprocess.Popen[bytes]]
) -> None:
    old = publish(3)[0]
    before = contents(old)
    trash = base(store) / "stage" / f"trash-{old.name}-01234567"
    old.rename(trash)
    process = hold("mapped", trash / WEIGHTS)
    result = run(store, rules)
    assert result["stage"] == []
    assert f"process {process.pid}" in result["warnings"][0]
    assert contents(old) == before
    process.communicate(b"")
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]


def test_half_removed_trash_that_is_held_stays_trash(
    publish: Publish, store: Path, rules: Rules, hold: Callable[..., subprocess.Popen[bytes]]
) -> None:
    old = publish(3)[0]
    trash = base(store) / "stage" / f"trash-{old.name}-01234567"
    old.rename(trash)
    (base(store) / "manifest" / f"{old.name}.json").unlink()
    (trash / MORE_WEIGHTS).unlink()
    process = hold("open", trash / "config.json")
    assert run(store, rules)["stage"] == []
    assert (trash / "config.json").is_file()
    assert old.name not in published(store)
    process.communicate(b"")
    assert [item["path"] for item in run(store, rules)["stage"]] == [str(trash)]


def test_a_mount_in_a_container_keeps_the_revision(publish: Publish, store: Path, rules: Rules) -> None:
    old = publish(3)[0]
    process = rules.proc / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "ns").mkdir()
    (process / "ns" / "mnt").symlink_to("mnt:[1]")
    (process / "maps").write_text("")
    (process / "comm").write_text("vllm\n")
    (process / "mountinfo").write_text(f"99 98 8:1 {old} /models/m ro,relatime - ext4 /dev/sda1 rw\n")
    result = run(store, rules)
    assert reasons(result)[old.name] == "process 4711 (vllm) has it mounted at /models/m"
    (process / "mountinfo").write_text(f"99 98 8:1 {old}0/x /models/m ro,relatime - ext4 /dev/sda1 rw\n")
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]


@pytest.mark.parametrize(
    "place",
    [
        "system/etc/containers/systemd/vllm-chat.container",
        "system/etc/systemd/system/vllm-chat.service",
        "state/instances/chat/generations/1/plan.json",
        "state/instances/chat/generations/2/vllm-chat.container",
    ],
)
def test_what_a_unit_or_a_generation_names_stays(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path, place: str
) -> None:
    old = publish(3)[0]
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(f"Volume={old}:/models/m:ro\n")
    result = run(store, rules)
    assert result["removed"] == []
    assert reasons(result)[old.name] == f"{tmp_path / place} names it"
    assert describe_store(store, tmp_path / "state")["models"][0]["revisions"][-1]["used_by"] == (
        [str(tmp_path / place)] if place.startswith("state") else []
    )


def test_nothing_outside_the_inner_folder_is_touched(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path
) -> None:
    publish(3)
    (store / "mine").mkdir()
    (store / "mine" / "weights.bin").write_text("x")
    (store / "elsewhere").symlink_to(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0123456789ab").mkdir()
    (tmp_path / "outside" / "0123456789ab" / "precious").write_text("x")
    (base(store) / "rev" / "0123456789ab").symlink_to(tmp_path / "outside" / "0123456789ab")
    (base(store) / "rev" / "not-a-revision").mkdir()
    (base(store).parent / "Other--Model").symlink_to(tmp_path / "outside")
    result = run(store, rules)
    assert len(result["removed"]) == 1
    assert (store / "mine" / "weights.bin").read_text() == "x"
    assert (tmp_path / "outside" / "0123456789ab" / "precious").read_text() == "x"
    assert (base(store) / "rev" / "not-a-revision").is_dir()
    assert any("symbolic link" in warning for warning in result["warnings"])


def test_a_folder_of_no_model_is_left_alone(publish: Publish, store: Path, rules: Rules) -> None:
    publish(1)
    foreign = base(store).parent / "lost+found"
    foreign.mkdir()
    result = run(store, rules)
    assert any("is no folder of a model" in warning for warning in result["warnings"])
    assert list(foreign.iterdir()) == []


def test_links_in_a_revision_are_removed_and_not_followed(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path
) -> None:
    old = publish(3)[0]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (old / "folder").symlink_to(tmp_path / "precious")
    (base(store) / "stage" / "trash-link").symlink_to(tmp_path / "precious")
    assert len(run(store, rules)["removed"]) == 1
    assert (tmp_path / "precious" / "file").read_text() == "x"


def test_a_link_that_was_moved_aside_is_removed_and_not_followed(
    ensure: Ensure, folder: Path, store: Path, rules: Rules, tmp_path: Path
) -> None:
    """The store knows files that it adopted, so it could take the ones where they came from for its own."""
    cache = tmp_path / "cache"
    shutil.copytree(folder, cache)
    path = Path(ensure(adopt_from=(cache,))["path"])
    (path / "mine").symlink_to(cache)
    assert ensure()["files"]["removed"] == 1
    (stage,) = describe_store(store, rules.state_dir)["models"][0]["stage"]
    result = run(store, rules, stage_age_s=-1.0)
    assert contents(cache) == contents(folder)
    assert [item["path"] for item in result["stage"]] == [stage["path"]]
    assert result["freed_bytes"] == stage["bytes"] < 10_000, "what lies elsewhere counts for nothing"


def test_a_link_in_the_place_of_what_was_rejected_is_not_followed(
    ensure: Ensure, store: Path, rules: Rules, tmp_path: Path
) -> None:
    path = Path(ensure()["path"])
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in (f"{path.name}-precious", "extra-precious"):
        (outside / name).write_text("x")
        os.utime(outside / name, (0, 0))
    before = contents(outside)
    rejected = base(store) / "stage" / "rejected"
    rejected.symlink_to(outside)
    assert [item["path"] for item in run(store, rules, stage_age_s=-1.0)["stage"]] == [str(rejected)]
    rejected.symlink_to(outside)
    (path / "foreign").write_text("x")
    ensure()
    assert contents(outside) == before
    assert len(list(rejected.iterdir())) == 1 and not rejected.is_symlink()


@pytest.mark.parametrize("part", ["inner", "rev", "stage"])
def test_a_store_made_of_links_is_left_alone(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path, part: str
) -> None:
    publish(3)
    place = {"inner": store / ".store", "rev": base(store) / "rev", "stage": base(store) / "stage"}[part]
    place.rename(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    before = contents(tmp_path / "moved")
    if part == "inner":
        with pytest.raises(StoreError, match="is a symbolic link"):
            run(store, rules)
    else:
        result = run(store, rules)
        assert (result["removed"], result["stage"]) == ([], [])
        assert "symbolic link" in result["warnings"][0]
    assert contents(tmp_path / "moved") == before


def test_a_model_that_is_being_downloaded_is_left_alone(publish: Publish, store: Path, rules: Rules) -> None:
    publish(3)
    with (base(store) / "lock").open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        result = run(store, rules)
        assert describe_store(store, rules.state_dir)["models"][0]["lock"]["pid"] == os.getpid()
    assert (result["removed"], result["busy"]) == ([], ["Org/Model"])
    assert len(published(store)) == 3
    assert describe_store(store, rules.state_dir)["models"][0]["lock"] is None


def test_what_keeps_it_from_looking_is_told_though_another_run_begins_then(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(3)

    def fail(*_arguments: Any) -> None:
        raise StoreError("what process 1 holds open cannot be seen")

    monkeypatch.setattr(gc, "find_holders", fail)
    monkeypatch.setattr(RepoStore, "read_lock", lambda _self: {"pid": 1})
    with pytest.raises(StoreError, match="cannot be seen"):
        run(store, rules)


def test_a_model_without_a_link_is_kept_for_a_week(publish: Publish, store: Path, rules: Rules) -> None:
    (only,) = publish(1)
    (store / "Model").unlink()
    assert "no link names the model" in reasons(run(store, rules))[only.name]
    os.utime(only, (time.time() - 8 * 86400,) * 2)
    result = run(store, rules)
    assert published(store) == []
    assert result["freed_bytes"] > 1_200_000


def test_downloads_that_nobody_goes_on_with_go_after_a_week(publish: Publish, store: Path, rules: Rules) -> None:
    publish(1)
    for name in ("young", "old"):
        job = base(store) / "stage" / name
        (job / "part").mkdir(parents=True)
        (job / "part" / "x").write_bytes(b"x" * 100_000)
    for place in (job / "part" / "x", job / "part", job):
        os.utime(place, (time.time() - 8 * 86400,) * 2)
    result = run(store, rules)
    assert [Path(item["path"]).name for item in result["stage"]] == ["old"]
    assert result["freed_bytes"] >= 100_000
    assert [place.name for place in (base(store) / "stage").iterdir()] == ["young"]


def test_a_user_who_cannot_see_all_processes_frees_nothing(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(3)
    (rules.proc / "1" / "fd").mkdir(parents=True)

    def refuse(folder: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(holders, "_entries", refuse)
    for uid, advice in (
        (1000, "run as root"),
        (0, "run this on the host itself, or in a container with CAP_SYS_PTRACE"),
    ):
        monkeypatch.setattr(holders.os, "geteuid", lambda uid=uid: uid)
        with pytest.raises(StoreError, match=rf"process 1 holds open cannot be seen.*{advice}.*nothing was touched"):
            run(store, rules)
    assert len(published(store)) == 3


def test_a_disk_without_room_for_the_ledger_is_freed_all_the_same(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(3)
    left: list[list[str]] = []

    def refuse(_self: RepoStore, place: Path, _text: str, _folder: Path) -> None:
        left.append(published(store))
        raise OSError(28, "No space left on device", str(place))

    monkeypatch.setattr(RepoStore, "_write", refuse)
    result = run(store, rules)
    assert len(result["removed"]) == 1 and [len(names) for names in left] == [2], "freed first"
    assert not list((base(store) / "stage").iterdir())
    assert any("ledger.json cannot be written: No space left on device" in text for text in result["warnings"])
    monkeypatch.undo()
    assert not run(store, rules)["changed"]


def test_a_fault_of_the_disk_names_the_file(publish: Publish, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(1)
    repo = RepoStore(store, "modelscope", "Org/Model")

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        repo.save_ledger(repo.read_ledger())
    assert caught.value.filename == str(base(store) / "ledger.json")
    assert not list(base(store).glob(".*.new"))


def test_a_name_stands_at_the_one_that_it_meant_last(
    publish: Publish, ensure: Ensure, store: Path, rules: Rules
) -> None:
    old, new = publish(2)
    commit = json.loads((base(store) / "manifest" / f"{old.name}.json").read_text())["source"]["commit"]
    ensure(revision=commit)
    found = {item["id"]: item for item in describe_store(store, rules.state_dir)["models"][0]["revisions"]}
    assert (found[new.name]["requested"], found[new.name]["names"]) == ("master", ["master"])
    assert (found[old.name]["requested"], found[old.name]["names"]) == (commit, [])
    kept = {item["id"]: item["requested"] for item in run(store, rules)["kept"]}
    assert kept == {old.name: commit, new.name: "master"}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"snapshot": 5}', '{"snapshot": "a", "total_bytes": 1' + "0" * 400 + "}"]
)
def test_a_damaged_note_of_a_download_stops_nothing(publish: Publish, store: Path, rules: Rules, text: str) -> None:
    publish(1)
    job = base(store) / "stage" / "1-a"
    job.mkdir()
    (job / "owner.json").write_text(text)
    (model,) = describe_store(store, rules.state_dir)["models"]
    assert all(download["bytes"] is None for download in model["downloads"])


@pytest.mark.parametrize("name", ["ledger.json", "manifest", "stage/1-a/owner.json", "lock"])
def test_a_pipe_or_a_huge_file_in_place_of_a_note_is_not_waited_for(
    publish: Publish, ensure: Ensure, store: Path, rules: Rules, name: str
) -> None:
    (revision,) = publish(1)
    place = base(store) / (f"manifest/{revision.name}.json" if name == "manifest" else name)
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    describe_store(store, rules.state_dir)
    if name != "lock":
        assert contents(Path(ensure()["path"])) == contents(revision)
    if name == "ledger.json":
        with place.open("wb") as handle:
            handle.truncate(1 << 30)
        assert ensure()["verify"]["hashed_files"]


def test_dead_at_any_step_what_is_needed_is_whole_and_a_rerun_ends_it(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ((Path, "rename"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree"), (os, "rmdir"), (os, "unlink"))
    kept = {path.name: contents(path) for path in publish(3)[1:]}
    for step in range(200):
        copy = tmp_path / f"copy{step}"
        shutil.copytree(store, copy, symlinks=True)
        with dying(monkeypatch, step, *calls) as died:
            run(copy, rules)
        assert {name: contents(base(copy) / "rev" / name) for name in kept} == kept
        run(copy, rules)
        assert published(copy) == sorted(kept)
        assert [path.name for path in (base(copy) / "stage").iterdir()] == []
        assert {path.stem for path in (base(copy) / "manifest").iterdir()} == set(kept)
        if not died:
            break
    assert not died
    assert step > 5


def test_killed_in_the_middle_a_rerun_ends_it(publish: Publish, store: Path, rules: Rules) -> None:
    old, previous, current = publish(3)
    code = (
        "import os, shutil, signal, sys; from pathlib import Path\n"
        "from ansible_collections.socle.inference.plugins.module_utils._hub import gc\n"
        "from ansible_collections.socle.inference.plugins.module_utils._progress import Progress\n"
        "shutil.rmtree = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "place = Path(sys.argv[2])\n"
        "gc.collect(Path(sys.argv[1]), gc.Rules(state_dir=place, system=place, proc=place), Progress())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(rules.proc)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert published(store) == sorted([previous.name, current.name])
    trash = next((base(store) / "stage").glob(f"trash-{old.name}-*"))
    result = run(store, rules)
    assert [item["path"] for item in result["stage"]] == [str(trash)]
    assert list((base(store) / "stage").iterdir()) == []


def test_the_message_about_a_full_disk_says_what_could_be_freed(
    publish: Publish, ensure: Ensure, folder: Path, monkeypatch: pytest.MonkeyPatch, rules: Rules
) -> None:
    monkeypatch.setattr(gc, "Rules", lambda **options: replace(rules, **options))
    publish(3)
    overwrite(folder / "config.json", b"{}")
    with pytest.raises(StoreError, match=r"garbage collection .* could free [0-9.]+ [KM]?i?B: make room") as caught:
        ensure(reserve_bytes=1 << 50)
    assert caught.value.fields["faults"] == ["space"]


def test_what_a_store_holds_is_listed(publish: Publish, ensure: Ensure, store: Path, rules: Rules) -> None:
    old, previous, current = publish(3)
    ensure(revision="v1")
    (model,) = describe_store(store, rules.state_dir)["models"]
    assert (model["hub"], model["repo"], model["links"], model["lock"]) == ("modelscope", "Org/Model", ["Model"], None)
    found = {revision["id"]: revision for revision in model["revisions"]}
    assert found[current.name]["current_of"] == ["Model"]
    assert found[previous.name]["previous_of"] == ["Model"]
    assert found[old.name]["current_of"] == found[old.name]["previous_of"] == []
    assert found[current.name]["names"] == ["master", "v1"]
    assert found[current.name]["bytes"] == sum(map(len, contents(current).values()))
    assert found[current.name]["verified"]
    assert describe_store(store / "none", rules.state_dir)["models"] == []


def test_a_download_that_was_cut_off_is_listed_with_how_far_it_is(
    ensure: Ensure, folder: Path, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dying(monkeypatch, 0, (RepoStore, "publish")) as died:
        ensure()
    assert died
    (found,) = describe_store(store, rules.state_dir)["models"][0]["downloads"]
    total = sum(map(len, contents(folder).values()))
    assert (found["requested"], found["bytes"], found["received"]) == ("master", total, total)
    assert found["commit"].startswith(found["id"])
    tree = next((base(store) / "stage").glob("*/tree"))
    (tree / WEIGHTS).unlink()
    part = tree.with_name("part") / "0123"
    part.write_bytes(b"x" * 1000)
    size = (folder / WEIGHTS).stat().st_size
    (found,) = describe_store(store, rules.state_dir)["models"][0]["downloads"]
    assert found["received"] == total - size + 1000
    journal = Journal(size, "0" * 64, [(0, 100), (200, 250)])
    part.with_name("0123.json").write_text(journal.dumps())
    (found,) = describe_store(store, rules.state_dir)["models"][0]["downloads"]
    assert found["received"] == total - size + 150, "what is between the spans is not there yet"
    ensure()
    assert describe_store(store, rules.state_dir)["models"][0]["downloads"] == []


def test_what_goes_while_the_store_is_listed_is_passed_over(
    publish: Publish, store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, current = publish(2)
    job = base(store) / "stage" / "1-ab"
    job.mkdir()
    size, read = catalog.tree_bytes, RepoStore.read_manifest

    def end_download(place: Path) -> int:
        shutil.rmtree(job)
        return size(place)

    def free(self: RepoStore, snapshot: str) -> Any:
        shutil.rmtree(old, ignore_errors=True)
        return read(self, snapshot)

    monkeypatch.setattr(catalog, "tree_bytes", end_download)
    monkeypatch.setattr(RepoStore, "read_manifest", free)
    (found,) = describe_store(store, rules.state_dir)["models"]
    assert ([item["id"] for item in found["revisions"]], found["stage"]) == ([current.name], [])


def test_a_generation_that_goes_meanwhile_is_no_obstacle(
    publish: Publish, store: Path, rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish(3)[0]
    plan = tmp_path / "state/instances/chat/generations/1/plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text(str(old))
    real = Path.is_file

    def late(place: Path) -> bool:
        found = real(place)
        if place == plan:
            place.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", late)
    assert [item["id"] for item in run(store, rules)["removed"]] == [old.name]
