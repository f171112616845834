# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model that is removed goes as a whole, and only where nothing of it is in use."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import gc
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import describe_store
from ansible_collections.socle.inference.plugins.module_utils._hub.gc import Rules
from ansible_collections.socle.inference.plugins.module_utils._hub.job import hold_lock
from ansible_collections.socle.inference.plugins.module_utils._hub.job_control import JobControl
from ansible_collections.socle.inference.plugins.module_utils._hub.removal import remove_model
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.support.model_store import base, contents, dying, overwrite, published

Ensure = Callable[..., dict[str, Any]]
REPO = "Org/Model"


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    """No process and no unit of this machine is looked at, unless a test puts it there."""
    (tmp_path / "proc").mkdir()
    return Rules(state_dir=tmp_path / "state", system=tmp_path / "system", proc=tmp_path / "proc")


@pytest.fixture
def revisions(ensure: Ensure, folder: Path) -> list[Path]:
    """Two revisions, the older first, with the link Model."""
    found = []
    for number in range(2):
        overwrite(folder / "config.json", json.dumps({"number": number}).encode())
        found.append(Path(ensure()["path"]))
    return found


def kept(store: Path) -> dict[str, bytes]:
    """All files but the lock, which says who took it last, and when."""
    return {path: content for path, content in contents(store).items() if not path.endswith("/lock")}


def remove(store: Path, rules: Rules, **change: Any) -> dict[str, Any]:
    return remove_model(store, REPO, replace(rules, **change), Progress())


def test_link_revisions_and_unfinished_downloads_go_and_check_mode_says_so_before(
    revisions: list[Path], store: Path, rules: Rules
) -> None:
    (store / "other").mkdir()
    job = base(store) / "stage" / "1-abc"
    job.mkdir(parents=True)
    (job / "part").write_bytes(b"x" * 100_000)
    planned = remove(store, rules, check=True)
    assert (store / "Model").resolve() == revisions[-1]
    done = remove(store, rules)
    assert {name: done[name] for name in ("freed_bytes", "links")} == {
        "freed_bytes": planned["freed_bytes"],
        "links": ["Model"],
    }
    assert done["freed_bytes"] > 1_300_000
    assert [item["id"] for item in done["removed"]] == [path.name for path in reversed(revisions)]
    assert [item["path"] for item in done["stage"]] == [str(job)]
    assert not os.path.lexists(store / "Model")
    assert published(store) == []
    assert list((base(store) / "stage").iterdir()) == list((base(store) / "manifest").iterdir()) == []
    assert (store / "other").is_dir()
    assert not remove(store, rules)["changed"]
    assert describe_store(store, rules.state_dir)["models"][0]["revisions"] == []


def test_it_can_be_brought_again(
    revisions: list[Path], ensure: Ensure, folder: Path, store: Path, rules: Rules
) -> None:
    remove(store, rules)
    again = ensure()
    assert again["changed"]
    assert contents(Path(again["path"])) == contents(folder)


def test_a_store_or_a_model_that_is_not_there_is_no_change(store: Path, rules: Rules, revisions: list[Path]) -> None:
    assert not remove(store / "none", rules)["changed"]
    assert not remove_model(store, "Org/Other", rules, Progress())["changed"]
    assert len(published(store)) == 2


@pytest.mark.parametrize(
    "place", ["system/etc/containers/systemd/vllm-chat.container", "state/instances/chat/generations/2/plan.json"]
)
def test_what_a_unit_or_a_live_generation_names_is_refused(
    revisions: list[Path], store: Path, rules: Rules, tmp_path: Path, place: str
) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(f"Volume={revisions[0]}:/models/m:ro\n")
    if place.startswith("state"):
        (tmp_path / "state/instances/chat/accepted").symlink_to("generations/2")
    before = kept(store)
    with pytest.raises(StoreError, match=r"Org/Model is in use, so nothing of it was removed .*names it"):
        remove(store, rules)
    assert kept(store) == before
    (planned,) = remove(store, rules, check=True)["in_use"]
    assert planned["id"] == revisions[0].name
    assert planned["reason"].endswith("names it")


def test_a_generation_that_is_neither_current_nor_accepted_is_no_obstacle(
    revisions: list[Path], store: Path, rules: Rules, tmp_path: Path
) -> None:
    for number in (1, 2):
        generation = tmp_path / f"state/instances/chat/generations/{number}"
        generation.mkdir(parents=True)
        (generation / "plan.json").write_text(str(revisions[0]) if number == 1 else "{}")
    for name in ("current", "accepted"):
        (tmp_path / f"state/instances/chat/{name}").symlink_to("generations/2")
    remove(store, rules)
    assert published(store) == []


def test_an_open_file_and_a_mount_are_refused(revisions: list[Path], store: Path, rules: Rules) -> None:
    with (revisions[0] / "config.json").open("rb"):
        assert remove(store, rules, check=True)["in_use"][0]["reason"] == "somebody has config.json open"
        with pytest.raises(StoreError, match=r"somebody has config\.json open"):
            remove(store, rules)
    process = rules.proc / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "ns").mkdir()
    (process / "ns/mnt").symlink_to("mnt:[1]")
    (process / "maps").write_text("")
    (process / "comm").write_text("vllm\n")
    (process / "mountinfo").write_text(f"99 98 8:1 {revisions[1]} /models/m ro,relatime - ext4 /dev/sda1 rw\n")
    with pytest.raises(StoreError, match=r"process 4711 \(vllm\) has it mounted at /models/m"):
        remove(store, rules)
    assert len(published(store)) == 2
    assert (store / "Model").resolve() == revisions[1]


def test_what_a_dead_run_took_out_of_sight_and_somebody_has_open_is_refused(
    revisions: list[Path], store: Path, rules: Rules
) -> None:
    trash = base(store) / "stage" / f"trash-{revisions[0].name}-01234567"
    revisions[0].rename(trash)
    with (trash / "config.json").open("rb"):
        (found,) = remove(store, rules, check=True)["in_use"]
        # Not as a revision, which may have come anew and be unused.
        assert "id" not in found
        assert found["reason"] == f"{revisions[0].name}, which was to be freed: somebody has config.json open"
        with pytest.raises(StoreError, match=r"nothing of it was removed \(.*somebody has config\.json open"):
            remove(store, rules)
    assert (trash / "config.json").is_file() and revisions[1].is_dir()
    assert remove(store, rules)["changed"] and not trash.exists()


def test_what_goes_while_a_check_looks_is_passed_over(
    revisions: list[Path], store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download writes its notes anew all the time."""
    note = base(store) / "stage" / "1-ab" / "part" / "x.json.new"
    note.parent.mkdir(parents=True)
    note.write_text("{}")
    real = Path.lstat

    def late(place: Path) -> os.stat_result:
        if place == note:
            place.unlink(missing_ok=True)
        return real(place)

    monkeypatch.setattr(Path, "lstat", late)
    assert len(remove(store, rules, check=True)["removed"]) == 2


def test_a_model_that_is_being_downloaded_is_refused(revisions: list[Path], store: Path, rules: Rules) -> None:
    with (base(store) / "lock").open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert "another run works on it: process" in remove(store, rules, check=True)["in_use"][0]["reason"]
        with pytest.raises(StoreError, match="another run works on it"):
            remove(store, rules)
    assert len(published(store)) == 2


@pytest.mark.parametrize("written", ["{}/store", "{}/store/", "{}//store/.", "{}/other"])
def test_a_job_that_waits_to_begin_is_in_the_way(
    revisions: list[Path], store: Path, rules: Rules, tmp_path: Path, written: str
) -> None:
    (tmp_path / "other").symlink_to(store)
    folder = JobControl(tmp_path / "jobs", written.format(tmp_path), "modelscope", REPO).folder
    folder.path.mkdir(parents=True)
    lock = hold_lock(folder)
    assert lock is not None
    (found,) = remove(store, rules, jobs=tmp_path / "jobs", check=True)["in_use"]
    assert "a download of it is about to begin" in found["reason"]
    with pytest.raises(StoreError, match="a download of it is about to begin"):
        remove(store, rules, jobs=tmp_path / "jobs")
    assert len(published(store)) == 2
    os.close(lock)
    assert remove(store, rules, jobs=tmp_path / "jobs")["changed"]


def test_a_full_disk_is_no_obstacle(
    revisions: list[Path], store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: RepoStore, place: Path, _text: str, _folder: Path) -> None:
        raise OSError(28, "No space left on device", str(place))

    monkeypatch.setattr(RepoStore, "_write", refuse)
    assert remove(store, rules)["changed"] and published(store) == []


def test_what_is_opened_in_the_last_moment_brings_everything_back(
    revisions: list[Path], store: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept(store)
    monkeypatch.setattr(gc, "find_holders", lambda _claims, _proc: {revisions[0].name: "process 1 (late) has it open"})
    with pytest.raises(StoreError, match=r"process 1 \(late\) has it open"):
        remove(store, rules)
    assert kept(store) == before
    assert (store / "Model").resolve() == revisions[1]


def test_all_sources_of_a_model_go_and_another_model_with_files_of_its_own_stays(
    revisions: list[Path], ensure: Ensure, folder: Path, store: Path, rules: Rules
) -> None:
    shutil.copytree(folder, folder.with_name("Other"))
    kept = Path(ensure(repo="Org/Other")["path"])
    shutil.copytree(base(store), store / ".store/huggingface/Org--Model")
    assert len(remove(store, rules)["removed"]) == 4
    assert contents(kept) == contents(folder)
    assert (store / "Other").resolve() == kept


def test_dead_at_any_step_it_is_there_or_a_rerun_ends_it(
    revisions: list[Path], store: Path, rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ((Path, "rename"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree"))
    for step in range(50):
        copy = tmp_path / f"copy{step}"
        shutil.copytree(store, copy, symlinks=True)
        with dying(monkeypatch, step, *calls) as died:
            remove(copy, rules)
        remove(copy, rules)
        assert not os.path.lexists(copy / "Model")
        assert published(copy) == list((base(copy) / "stage").iterdir()) == []
        if not died:
            break
    assert not died
    assert step > 4


def test_a_name_that_is_none_is_refused_with_the_reason(store: Path, rules: Rules) -> None:
    with pytest.raises(StoreError, match=r"ORGANISATION--NAME and two models must not share one, found 'a--b/c'"):
        remove_model(store, "a--b/c", rules, Progress())
