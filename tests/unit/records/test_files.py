# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import stat
import threading
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import RecordError
from ansible_collections.socle.inference.plugins.module_utils._records.controller import records_root, tool_version
from ansible_collections.socle.inference.plugins.module_utils._records.files import (
    check_spooled,
    digests_below,
    read_spool,
    read_tree,
    summarise,
    write_collected,
    write_once,
)
from ansible_collections.socle.inference.plugins.module_utils._records.schema import MAX_BYTES, Invalid, spool_name

from .conftest import ROOT, make
from .hostile import plant


def spool(folder: Path, *records: tuple[dict[str, object], str]) -> list[str]:
    names = []
    for record, text in records:
        names.append(spool_name(record, text))
        write_once(folder, names[-1], text)
    return names


def test_a_record_is_written_once_and_for_the_group(tmp_path: Path) -> None:
    record, text = make()
    path, new = write_collected(tmp_path / "r", "gpu1", record, text)
    assert new and path == tmp_path / "r/gpu1/chat/20261130T090000Z-acceptance.json"
    assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert write_collected(tmp_path / "r", "gpu1", record, text) == (path, False)
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no staged file is left"


def test_another_record_of_the_same_second_gets_a_suffix(tmp_path: Path) -> None:
    first, _new = write_collected(tmp_path, "gpu1", *make())
    other = make(results={"x": 1})
    second, new = write_collected(tmp_path, "gpu1", *other)
    assert new and second != first and second.name.startswith("20261130T090000Z-acceptance-")
    assert write_collected(tmp_path, "gpu1", *other) == (second, False)
    tree, skipped = read_tree(tmp_path, ["gpu1"])
    assert len(tree["gpu1"]["chat"]) == 2 and not skipped


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(RecordError, match="never replaced"):
        write_once(tmp_path, "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_many_writers_of_one_name_leave_one_whole_file(tmp_path: Path) -> None:
    _record, text = make(results={"x": "y" * 100_000})
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(write_once(tmp_path, "a.json", text))) for _thread in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]
    assert [each.read_text() for each in tmp_path.iterdir()] == [text]


def test_records_are_not_written_through_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "r"
    root.mkdir()
    (root / "gpu1").symlink_to(outside)
    with pytest.raises(RecordError, match="link"):
        write_collected(root, "gpu1", *make())
    (root / "gpu2").mkdir()
    (root / "gpu2/chat").symlink_to(outside)
    with pytest.raises(RecordError, match="link"):
        write_collected(root, "gpu2", *make())
    assert not list(outside.iterdir())


def test_a_link_to_nothing_above_the_records_is_named(tmp_path: Path) -> None:
    (tmp_path / ".socle").symlink_to(tmp_path / "gone")
    with pytest.raises(RecordError, match=r"\.socle' is a link to nothing; make the folder") as caught:
        write_collected(tmp_path / ".socle/records", "gpu1", *make())
    assert "\n" not in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="could not be written: "):
        write_collected(tmp_path / "file/records", "gpu1", *make())


def test_a_thousand_hostile_files_are_counted_and_nothing_else(tmp_path: Path) -> None:
    path, _new = write_collected(tmp_path, "gpu1", *make())
    planted = plant(tmp_path, 1000)
    before = time.monotonic()
    tree, skipped = read_tree(tmp_path, ["gpu1", "gpu2", "..", "", "a/b"])
    assert time.monotonic() - before < 10
    assert list(tree) == ["gpu1"] and list(tree["gpu1"]) == ["chat"] and len(tree["gpu1"]["chat"]) == 1
    assert sum(skipped.values()) == planted
    assert {
        "not JSON",
        "too large",
        "nested too deeply",
        "not a readable file",
        "with a number that is not finite",
        "with a key given twice",
        "of another schema version",
        "in the wrong place",
        "with a name that is not a record's",
        "with wrong fields",
    } <= set(skipped)
    summary = summarise(skipped, str(tmp_path))
    assert summary and summary.count("\n") == 0 and f"Skipped {planted} of" in summary and len(summary) < 1000
    assert path.exists()


def test_linked_folders_are_not_read(tmp_path: Path) -> None:
    write_collected(tmp_path / "elsewhere", "gpu1", *make())
    root = tmp_path / "r"
    (root / "gpu2").mkdir(parents=True)
    (root / "gpu1").symlink_to(tmp_path / "elsewhere/gpu1")
    (root / "gpu2/chat").symlink_to(tmp_path / "elsewhere/gpu1/chat")
    tree, skipped = read_tree(root, ["gpu1", "gpu2"])
    assert tree == {} and skipped == {"outside of the folders of host and instance": 2}
    assert digests_below(root, "gpu1") == []


def test_newest_bounds_the_files_of_each_kind(tmp_path: Path) -> None:
    for minute in range(10):
        write_collected(tmp_path, "gpu1", *make("acceptance", minute))
    write_collected(tmp_path, "gpu1", *make("deploy", 0))
    tree, _skipped = read_tree(tmp_path, ["gpu1"], newest=3)
    kinds = [(record["kind"], record["finished"][14:16]) for record in tree["gpu1"]["chat"]]
    assert kinds == [("acceptance", "09"), ("acceptance", "08"), ("acceptance", "07"), ("deploy", "00")]


def test_a_record_from_a_clock_that_is_ahead_does_not_hide_the_others(tmp_path: Path) -> None:
    now = datetime(2026, 11, 30, 10, tzinfo=UTC)
    write_collected(tmp_path, "gpu1", *make(minute=1))
    write_collected(tmp_path, "gpu1", *make(minute=2, finished="2026-12-01T10:00:00Z"))
    for finished in ("2026-12-01T10:00:01Z", "2126-11-30T09:00:00Z"):
        write_collected(tmp_path, "gpu1", *make("deploy", finished=finished, results={"state": "absent"}))
    tree, skipped = read_tree(tmp_path, ["gpu1"], newest=2, now=now)
    assert [record["finished"] for record in tree["gpu1"]["chat"]] == ["2026-12-01T10:00:00Z", "2026-11-30T09:01:00Z"]
    assert skipped == {"from a clock that is more than a day ahead": 2}
    warning = summarise(skipped, "here")
    assert warning == "Skipped 2 of the entries in here: 2 from a clock that is more than a day ahead."


def test_collecting_goes_on_until_all_is_there_and_then_asks_once(tmp_path: Path) -> None:
    folder, root = tmp_path / "spool", tmp_path / "r"
    spool(folder, *(make(minute=minute) for minute in range(7)))
    after: str | None = ""
    pages = 0
    while after is not None:
        page = read_spool(folder, "gpu1", digests_below(root, "gpu1"), after, max_files=3)
        for name, text in page.records:
            write_collected(root, "gpu1", check_spooled(name, text, "gpu1"), text)
        after = page.after
        pages += 1
    assert pages == 3
    assert len(read_tree(root, ["gpu1"])[0]["gpu1"]["chat"]) == 7
    assert read_spool(folder, "gpu1", digests_below(root, "gpu1")) == ([], None, {})


def test_a_page_of_the_spool_is_bounded_in_bytes(tmp_path: Path) -> None:
    spool(tmp_path, *(make(minute=minute, results={"x": "y" * (MAX_BYTES // 2)}) for minute in range(4)))
    page = read_spool(tmp_path, "gpu1", [], max_bytes=MAX_BYTES)
    assert 1 <= len(page.records) <= 3 and page.after == page.records[-1][0]


def test_no_spool_is_no_record(tmp_path: Path) -> None:
    assert read_spool(tmp_path / "none", "gpu1", []) == ([], None, {})


def test_the_spool_gives_only_its_own_hosts_records(tmp_path: Path) -> None:
    record, text = make()
    spool(tmp_path, make(host="gpu9"), (record, text))
    name = spool_name(record, text)
    (tmp_path / name.replace(name[-17:], "0" * 12 + ".json")).write_text(text)
    (tmp_path / name.replace("acceptance", "deploy")).write_text(text)
    (tmp_path / name.replace("-chat-", "-chat\n-")).write_text(text)
    (tmp_path / "notes.txt").write_text("x")
    os.mkfifo(tmp_path / name.replace("T09", "T08"))
    (tmp_path / name.replace("T09", "T07")).symlink_to("/etc/passwd")
    page = read_spool(tmp_path, "gpu1", [])
    assert page.records == [(name, text)]
    assert page.skipped == {
        "of another host": 1,
        "whose content does not match the name": 3,
        "with a name that is not a record's": 1,
        "not a readable file": 2,
    }


@pytest.mark.parametrize("instance", ["../../gpu2", "..", "/etc"])
def test_a_hostile_instance_stays_in_the_folder_of_its_host(tmp_path: Path, instance: str) -> None:
    record, text = make(instance=instance)
    checked = check_spooled(spool_name(record, text), text, "gpu1")
    path, _new = write_collected(tmp_path / "r", "gpu1", checked, text)
    assert path.resolve().is_relative_to((tmp_path / "r/gpu1").resolve())
    assert path.parent.parent == tmp_path / "r/gpu1"


def test_a_record_of_another_host_is_refused_by_the_controller() -> None:
    record, text = make(host="gpu2")
    with pytest.raises(Invalid) as caught:
        check_spooled(spool_name(record, text), text, "gpu1")
    assert caught.value.kind == "of another host"


def test_the_folder_of_records_is_beside_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").touch()
    expected = tmp_path / ".socle/records"
    assert records_root(str(tmp_path)) == expected
    assert records_root(str(tmp_path / "hosts.yml")) == expected
    for none in (None, "", "None", "relative", str(tmp_path / "no/such")):
        assert records_root(none) is None


def test_the_version_is_that_of_the_manifest_or_galaxy_yml(tmp_path: Path) -> None:
    assert f"\nversion: {tool_version()}\n" in (ROOT / "galaxy.yml").read_text()
    # A wheel has neither: its own metadata tell.
    assert tool_version(tmp_path) == metadata.version("socle")
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"collection_info": {"version": "9.8.7"}}))
    assert tool_version(tmp_path) == "9.8.7"
