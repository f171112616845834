# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook models as people run it: two hosts with a store each, and a hub."""

from __future__ import annotations

import calendar
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.filter.model_store_variables import variable_faults
from ansible_collections.socle.inference.plugins.filter.models import (
    model_places,
    model_table,
    model_verify_failure,
    model_verify_lines,
)
from ansible_collections.socle.inference.plugins.filter.models_freed import (
    model_gc_lines,
    model_remove_faults,
    model_remove_lines,
    model_remove_unknown,
    model_removed_lines,
)
from ansible_collections.socle.inference.plugins.filter.models_travel import (
    model_export_lines,
    model_import_faults,
    model_import_lines,
    model_imported_lines,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub

from tests.simulators.hub.server import HubSimulator
from tests.support.model_playbook import ALONE, Playbook, can_be_alone
from tests.support.model_site import PROJECT
from tests.support.model_store import WEIGHTS, contents, flip_byte, overwrite


@pytest.fixture
def models(tmp_path: Path, hub: HubSimulator) -> Playbook:
    return Playbook(tmp_path, hub)


def test_models_are_listed_verified_and_repaired(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    current = models.bring("gpu1", "gpu2")
    hub.reset()
    listed = models.good("list")
    assert re.search(r"(?m)^HOST +MODEL +REVISION +COMMIT +STATE +SIZE +PROVEN +USED BY$", listed)
    row = rf"(?m)^gpu[12]  Org/Model  master    {current.name}  current  1\.1 MiB  \d+ s ago  -$"
    assert len(re.findall(row, listed)) == 2
    flip_byte(current / WEIGHTS)
    spoilt = (current / WEIGHTS).read_bytes()
    done = models("verify")
    assert done.returncode != 0
    assert f"gpu1: Org/Model@master: full, DAMAGED: {WEIGHTS}\n" in done.stdout
    assert "repair with -e model_store_action=verify -e model_store_repair=true" in done.stdout
    assert re.search(r"gpu2: Org/Model@master: full, 6 files, \d+ MB/s, \d+s, whole", done.stdout)
    planned = models.good("verify", "--check", model_store_repair=True)
    assert f"gpu1: Org/Model@master: full, DAMAGED: {WEIGHTS}, would be repaired" in planned
    assert re.search(r"gpu1 .*changed=1", planned)
    assert re.search(r"gpu2 .*changed=0", planned)
    assert (current / WEIGHTS).read_bytes() == spoilt
    assert hub.requests == []
    repaired = models.good("verify", model_store_repair=True)
    assert f"gpu1: Org/Model@master: full, DAMAGED: {WEIGHTS}, to be repaired" in repaired
    assert re.search(r"gpu1: +Org/Model@master .*repaired 1 file", repaired)
    assert contents(current) == contents(folder)


def test_verify_goes_by_the_lock_and_leaves_links_alone(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    models.bring("gpu1", "gpu2")
    first = models.locked_commit
    overwrite(folder / "config.json", b'{"other": 1}')
    models.bring("gpu1")
    second = models.locked_commit
    hub.reset()
    done = models("verify")
    assert done.returncode != 0
    assert re.search(r"gpu1: Org/Model@master: full, 6 files.*whole\n", done.stdout)
    assert f"gpu2: Org/Model@master: full, holds {first}, locked is {second}\n" in done.stdout
    assert "bring what is locked with -e model_store_action=sync" in done.stdout
    before = (tmp_path / "gpu1/Org--Model").readlink()
    pinned = {
        "model_store_models": [{"repo": "Org/Model", "revision": first}],
        "model_store_reserve_gib": 10**9,
        "model_store_force_prechecks": False,
        "model_store_verify": "quick",
    }
    shown = models.good("verify", "--limit", "gpu1", "--check", **pinned)
    assert re.search(rf"gpu1: Org/Model@{first}: quick, 6 files.*whole; its link names another revision, ", shown)
    assert "changed=0" in shown
    assert (tmp_path / "gpu1/Org--Model").readlink() == before
    assert hub.requests == []


def test_slips_in_variables_end_a_run_with_one_sentence_each_before_anything(
    models: Playbook, hub: HubSimulator
) -> None:
    slips = {
        "model_store_acton": ("list", "model_store_acton is no variable of socle (did you mean model_store_action?)"),
        "model_store_moved": ("acept", "expected one of refuse, keep, accept (did you mean accept?)"),
        "model_store_action": ("lst", "expected one of sync, verify, list, gc, remove, export, import (did you"),
        "model_store_models": (["Acme/Small"], "model_store_models has the string Acme/Small as entry 1, expected"),
    }
    done = models("sync", **{name: value for name, (value, _told) in slips.items()})
    assert done.returncode != 0
    (failure,) = (line for line in done.stdout.splitlines() if line.startswith("fatal:"))
    for _value, told in slips.values():
        assert failure.count(told) == 1
    assert failure.count("Nothing was changed") == 1
    assert len(done.stdout.splitlines()) < 20 and hub.requests == []


@pytest.mark.parametrize(
    ("models_given", "told"),
    [
        ({"repo": "a/A"}, "is a dictionary, "),
        ("a/A", "is a string, "),
        ([{"revision": "v1"}], "has {revision} as entry 1, which names no repo, "),
        ([{"repo": "a/A"}, {"repo": "b/B", "revison": "v1"}], "has b/B as entry 2, and a model has no revison, only "),
        ([{"repo": "a/A", "revision": ["v1"]}], "has a/A as entry 1, whose revision is a list, "),
    ],
)
def test_models_in_another_form_are_told_with_the_right_one(models_given: Any, told: str) -> None:
    hostvars = {"gpu1": {"model_store_models": models_given}, "gpu2": {"model_store_models": [{"repo": "a/A"}]}}
    (fault,) = variable_faults(hostvars, hostvars)
    assert fault.startswith(f"gpu1: model_store_models {told}")
    assert fault.endswith("expected a list such as [{repo: ORGANISATION/NAME, revision: master}]")


def test_fewer_revisions_than_the_current_one_are_told_before_any_action() -> None:
    told = "model_store_keep is 0, expected 1 or more, since the current revision stays"
    for keep, faults in ((0, [told]), ("0", [told]), (1, []), ("2", [])):
        assert variable_faults({"gpu1": {"model_store_keep": keep}}, ["gpu1"]) == faults
    # What is no number is told by its type.
    assert variable_faults({"gpu1": {"model_store_keep": "--5"}}, ["gpu1"]) == [
        'model_store_keep is "--5", expected a whole number'
    ]
    (fault,) = variable_faults({"gpu1": {"model_store_keep": "all"}}, ["gpu1"])
    assert fault.startswith('model_store_keep is "all", expected ')


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "Org--Small",
            "names Org--Small, expected ORGANISATION/NAME, of which all revisions go (did you mean Org/Small?)",
        ),
        (
            ["a/A", "Org/Small@master"],
            "names Org/Small@master, expected ORGANISATION/NAME, of which all revisions go (did",
        ),
        ("small", "names small, expected ORGANISATION/NAME, of which all revisions go"),
        ([{"repo": "a/A"}], "holds a dictionary, expected ORGANISATION/NAME, or a list of such names"),
    ],
)
def test_models_to_remove_are_told_by_the_name_of_the_variable(given: Any, told: str) -> None:
    (fault,) = variable_faults({"gpu1": {"model_store_remove": given}}, ["gpu1"])
    assert fault.startswith(f"model_store_remove {told}")
    assert variable_faults({"gpu1": {"model_store_remove": ["a/A", "b/B--c"]}}, ["gpu1"]) == []


def test_relative_paths_are_told_by_the_name_of_the_variable() -> None:
    given = {"model_store_path": "models", "model_store_adopt_from": ["/data", "cache"]}
    assert variable_faults({"gpu1": given}, ["gpu1"]) == [
        "model_store_path has the relative path models, expected an absolute one",
        "model_store_adopt_from has the relative path cache, expected an absolute one",
    ]
    assert variable_faults({"gpu1": {"model_store_adopt_from": ["~/.cache", "$HOME/x"]}}, ["gpu1"]) == []


def test_what_role_and_playbook_have_is_no_fault() -> None:
    defaults = yaml.safe_load((PROJECT / "roles/model_store/defaults/main.yml").read_text())
    allowed = {"model_store_result": {}, "__model_store_part": {}, "model_store_remove": "a/A", "other": 1}
    assert variable_faults({"gpu1": {**defaults, **allowed}}, ["gpu1"], [*defaults, "__model_store_locks"]) == []
    assert variable_faults({"gpu1": {}}, ["gpu1"], ["model_store_pth"]) == [
        "model_store_pth is no variable of socle (did you mean model_store_path?)"
    ]


@pytest.mark.skipif(not can_be_alone(), reason="needs root, and a process namespace of its own")
def test_old_revisions_are_shown_in_check_mode_and_then_freed(models: Playbook, folder: Path, tmp_path: Path) -> None:
    names = []
    for number in range(3):
        overwrite(folder / "config.json", json.dumps({"number": number}).encode())
        names.append(models.bring("gpu1", "gpu2").name)
    planned = models.good("gc", "--check", within=ALONE)
    assert re.search(r"(?m)^HOST +MODEL +REVISION +COMMIT +SIZE +VERDICT$", planned)
    for host in ("gpu1", "gpu2"):
        assert re.search(
            rf"(?m)^{host}  Org/Model  by commit +{names[0]} +4\.0 KiB +would be freed: nothing needs", planned
        )
        kept = rf"(?m)^{host}  Org/Model  by commit +{names[1]} +1\.1 MiB +kept: it is a previous one of Org--Model$"
        assert re.search(kept, planned)
        total = f"{host}: would free 4.0 KiB: 1 revision, 0 left-overs of downloads; 2 revisions kept"
        assert planned.count(total) == 1
    revisions = tmp_path / "gpu1/.store/modelscope/Org--Model/rev"
    assert len(list(revisions.iterdir())) == 3
    assert "gpu2: freed 4.0 KiB: 1 revision" in models.good("gc", within=ALONE)
    assert len(list(revisions.iterdir())) == 2


@pytest.mark.skipif(not can_be_alone(), reason="needs root, and a process namespace of its own")
def test_a_model_is_removed_unless_a_host_uses_it(models: Playbook, tmp_path: Path) -> None:
    current = models.bring("gpu1", "gpu2")
    generation = tmp_path / "state/instances/chat/generations/1"
    generation.mkdir(parents=True)
    (generation / "plan.json").write_text(str(current))
    accepted = tmp_path / "state/instances/chat/accepted"
    accepted.symlink_to("generations/1")
    given = {"within": ALONE, "model_store_remove": "Org/Model"}
    refused = models("remove", "--check", **given)
    assert refused.returncode != 0
    assert f"in use: {generation.parents[1].resolve()}/generations/1/plan.json names it" in refused.stdout
    assert "Nothing was removed on any host" in refused.stdout
    assert current.is_dir()
    accepted.unlink()
    removed = models.good("remove", **given)
    assert "gpu1: Org/Model: removed 1 revision, 1 link, 0 unfinished downloads, 1." in removed
    assert "MiB; it is still in model_store_models, so sync brings it" in removed
    for host in ("gpu1", "gpu2"):
        assert not os.path.lexists(tmp_path / host / "Org--Model")
        assert list((tmp_path / host / ".store/modelscope/Org--Model/rev").iterdir()) == []
    assert models.lock.is_file(), "what the revision is, stays known"


def test_a_site_without_a_hub_imports_on_one_host_and_serves_the_other(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    models.bring("gpu1")
    disk = tmp_path / "disk"
    export = {"model_store_export_path": str(disk)}
    exported = models.good("export", "--limit", "gpu1", **export)
    assert f"gpu1: Org/Model@master: exported 6 files, 1.1 MiB at {disk}/Org--Model: 1.1 MiB written" in exported
    subprocess.run(["tar", "-cf", disk / "Org--Model.tar", "-C", disk, "Org--Model"], check=True)
    shutil.rmtree(disk / "Org--Model")
    shutil.rmtree(tmp_path / "gpu1")
    shutil.rmtree(tmp_path / "inventory")
    hub.reset()
    near = {"gpu1": str(disk), "gpu2": str(tmp_path / "no disk")}
    given = {
        "model_store_import_path": "{{ " + str(near) + "[inventory_hostname] }}",
        "model_store_endpoint": "http://127.0.0.1:1",
    }
    planned = models.good("import", "--check", **given)
    row = r"(?m)^{}  Org/Model  master +[0-9a-f]{{12}}  {}  +1\.1 MiB  1\.1 MiB  \S+ \wiB +would be imported$"
    assert re.search(row.format("gpu1", f"{disk}/Org--Model.tar"), planned)
    assert re.search(row.format("gpu2", "host gpu1"), planned)
    assert not (tmp_path / "gpu1").exists()
    done = models.good("import", **given)
    assert "gpu1: Org/Model@master: imported 6 files: 1.1 MiB read, now current" in done
    assert re.search(r"gpu2: +Org/Model@master .*1\.1 MiB from neighbours", done)
    assert hub.requests == []
    for name in ("gpu1", "gpu2"):
        assert contents(tmp_path / name / "Org--Model") == contents(folder)
    assert (tmp_path / "inventory/.socle/locks/modelscope/Org--Model@master.json").is_file()


def test_a_disk_that_turns_out_damaged_ends_an_import_on_all_hosts_without_a_hub(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    manifest = make_hub(endpoint=hub.url, proxy="").resolve("Org/Model", "master")
    for disk in ("bad", "good"):
        shutil.copytree(folder, tmp_path / disk / "Org--Model/files")
        (tmp_path / disk / "Org--Model/manifest.json").write_text(manifest.dumps())
    flip_byte(tmp_path / "bad/Org--Model/files" / WEIGHTS)
    hub.reset()
    near = {"gpu1": str(tmp_path / "bad"), "gpu2": str(tmp_path / "no disk")}
    done = models("import", model_store_import_path="{{ " + str(near) + "[inventory_hostname] }}")
    assert done.returncode != 0
    assert WEIGHTS in done.stdout and "export again with model_store_export_verify=full" in done.stdout
    assert not (tmp_path / "gpu1/Org--Model").exists() and not (tmp_path / "gpu2").exists()
    near["gpu2"] = str(tmp_path / "good")
    near["gpu1"] = str(tmp_path / "no disk")
    models.good("import", model_store_import_path="{{ " + str(near) + "[inventory_hostname] }}")
    assert contents(tmp_path / "gpu1/Org--Model") == contents(folder)
    assert hub.requests == []


def test_a_model_that_is_not_there_is_called_so() -> None:
    result = {"item": {"repo": "Org/Model", "revision": "master", "source": "modelscope"}, "msg": "offline is set"}
    assert model_verify_failure([result], "gpu1") == (
        "gpu1: Org/Model at master is not in the store; bring what is missing with -e model_store_action=sync"
    )
    assert model_verify_lines([result], "gpu1", "full") == ["gpu1: Org/Model@master: full, not in the store"]


def test_a_foreign_file_is_no_damage_of_the_model() -> None:
    item = {"repo": "Org/Model", "revision": "master", "manifest": "/store/x.json"}
    foreign = {"item": item, "msg": "offline is set", "wanted": [], "extra": ["notes.txt"]}
    assert model_verify_lines([foreign], "gpu1", "full") == ["gpu1: Org/Model@master: full, FOREIGN: notes.txt"]
    assert model_verify_failure([{**foreign, "wanted": [WEIGHTS]}], "gpu1") == (
        f"gpu1: Org/Model at master: damaged or missing: {WEIGHTS}, not part of it: notes.txt; repair with "
        "-e model_store_action=verify -e model_store_repair=true"
    )


def test_an_import_says_what_is_in_the_way_before_it_changes_anything(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = models("import", model_store_import_path=str(disk))
    assert done.returncode != 0
    assert f"No host of this play has Org/Model in {disk}" in done.stdout
    (disk / "Org--Model.tar").touch()
    done = models("import", model_store_import_path=str(disk / "Org--Model.tar"))
    assert done.returncode != 0
    assert "such as Org--Model or Org--Model.tar: correct model_store_import_path" in " ".join(done.stdout.split())
    assert "Module failed" not in done.stdout
    (disk / "Org--Model.tar").unlink()
    manifest = make_hub(endpoint=hub.url, proxy="").resolve("Org/Model", "master")
    shutil.copytree(folder, disk / "Org--Model/volume-001/files")
    (disk / "Org--Model/manifest.json").write_text(manifest.dumps())
    (disk / "Org--Model/volume-001/files" / WEIGHTS).unlink()
    given = {"model_store_import_path": str(disk), "model_store_endpoint": "http://127.0.0.1:1"}
    refused = models("import", "--check", **given)
    assert refused.returncode != 0
    assert re.search(rf"(?m)^gpu1  Org/Model  master +- +{disk}/Org--Model +- +- +- +refused$", refused.stdout)
    assert re.search(
        rf"gpu2: Org/Model@master: {WEIGHTS} with \d+ bytes is not in .* is every volume there", refused.stdout
    )
    assert not (tmp_path / "gpu1").exists()
    assert not (tmp_path / "inventory/.socle").exists()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("export", "model_store_export_path must be the absolute path"),
        ("import", "model_store_import_path must be the absolute path"),
        ("remove", "model_store_remove must name the model"),
    ],
)
def test_what_is_not_said_is_asked_for(models: Playbook, action: str, message: str) -> None:
    done = models(action)
    assert done.returncode != 0
    assert message in " ".join(done.stdout.split())


def test_a_table_has_a_row_for_every_revision_and_for_hosts_in_trouble() -> None:
    revision = {
        "id": "0123456789ab",
        "commit": "0123456789abcdef",
        "requested": "master",
        "names": ["master", "v2"],
        "bytes": 52_000_000_000,
        "current_of": ["Model"],
        "previous_of": [],
        "verified": "2026-11-30T09:28:44Z",
        "used_by": [
            "/var/lib/socle/instances/chat/generations/1/plan.json",
            "/etc/containers/systemd/vllm-chat.container",
        ],
    }
    old = {**revision, "id": "ba9876543210", "commit": None, "current_of": [], "verified": None, "used_by": []}
    pinned = {**old, "commit": "f" * 40, "requested": "f" * 40, "names": [], "previous_of": ["Model"]}
    download = {"id": "c0ffee", "requested": "v3", "commit": "c0ffee", "bytes": 1000, "received": 428}
    model = {"repo": "Org/Model", "lock": None, "revisions": [revision, old, pinned], "downloads": [download]}
    found = {
        "gpu1": {"found": {"models": [model]}},
        "gpu2": {"found": {"unreachable": True}},
        "gpu3": {"found": {"models": []}},
        "gpu4": {"found": {"msg": "no", "failed": True}},
    }
    lines = model_table(found, found, "found", calendar.timegm((2026, 12, 2, 10, 0, 0)))
    assert [re.split(r" {2,}", line) for line in lines[1:]] == [
        ["gpu1", "Org/Model", "master, v2", "0123456789ab", "current", "48.4 GiB", "2 d ago", "chat"],
        ["gpu1", "Org/Model", "master, v2", "content ba9876543210", "complete", "48.4 GiB", "never", "-"],
        ["gpu1", "Org/Model", "by commit", "f" * 12, "previous", "48.4 GiB", "never", "-"],
        ["gpu1", "Org/Model", "v3", "c0ffee", "staged 42 %", "1000 B", "-", "-"],
        ["gpu2", "-", "-", "-", "unreachable", "-", "-", "-"],
        ["gpu3", "-", "-", "-", "empty", "-", "-", "-"],
        ["gpu4", "-", "-", "-", "no", "-", "-", "-"],
    ]


def test_a_model_is_found_by_its_link() -> None:
    def revision(name: str, current: bool, commit: str | None = None) -> dict[str, Any]:
        current_of = ["Org--Model"] if current else []
        path = f"/s/.store/x/Org--Model/rev/{name}"
        return {"path": path, "content_id": "c", "commit": commit, "requested": name, "names": [name]} | {
            "current_of": current_of
        }

    def find(revisions: list[dict[str, Any]], hub: str = "huggingface") -> dict[str, Any]:
        found = {"models": [{"hub": hub, "links": ["Org--Model"], "revisions": revisions}]}
        (place,) = model_places([{"repo": "Org/Model", "revision": "master"}], found, "modelscope")
        return {name: place.get(name) for name in ("source", "revision", "manifest")}

    manifest = "/s/.store/x/Org--Model/manifest/{}.json"
    named = find([revision("main", True), revision("master", False)])
    assert named == {"source": "huggingface", "revision": "master", "manifest": manifest.format("master")}
    other = find([revision("main", True, "f" * 40)])
    assert other == {"source": "huggingface", "revision": "f" * 40, "manifest": manifest.format("main")}
    missing = {"source": "modelscope", "revision": "master", "manifest": None}
    assert find([revision("v1", True)], "modelscope") == missing
    assert find([]) == missing


def test_a_locked_model_is_found_by_its_content() -> None:
    def find(*contents: str | None) -> dict[str, Any]:
        revisions = [
            {"path": "/s/rev/x", "content_id": content, "commit": None, "current_of": ["Org--Model"] if content else []}
            for content in contents
        ]
        holder = {"hub": "modelscope", "repo": "Org/Model", "links": ["Org--Model"], "revisions": revisions}
        item = {"repo": "Org/Model", "revision": "master"}
        lock = {"item": item, "manifest": {"source": {"hub": "modelscope"}}, "content_id": "new", "commit": None}
        (place,) = model_places([item], {"models": [holder] if contents else []}, "modelscope", [lock])
        return {name: place[name] for name in ("wanted", "holds", "locked") if name in place}

    wanted = {"wanted": {"source": {"hub": "modelscope"}}}
    assert find("old", "new") == wanted
    assert find("old") == {"holds": "old", "locked": "new"}
    assert find(None) == wanted, "its manifest is lost"
    assert find() == {}, "it was never brought"


def test_what_stays_is_explained_and_a_host_in_trouble_has_a_line() -> None:
    item = {"repo": "Org/Model", "id": "0123456789ab", "commit": None, "requested": "v1", "names": [], "size": 2048}
    kept = [{**item, "reason": "process 7 (vllm) has it open"}]
    stage = [{"repo": "Org/Model", "path": "/s/stage/1-abc", "bytes": 1024}]
    result = {"removed": [], "stage": stage, "kept": kept, "freed_bytes": 1024, "busy": ["Org/Other"]}
    found = {"gpu1": {"freed": result}, "gpu2": {"freed": {"failed": True, "msg": "run as root"}}}
    lines = model_gc_lines(found, found, "freed", False)
    assert [re.split(r" {2,}", line) for line in lines[1:4]] == [
        ["gpu1", "Org/Model", "unfinished download", "-", "1.0 KiB", "freed: nobody went on with it"],
        ["gpu1", "Org/Model", "v1", "content 0123456789ab", "2.0 KiB", "kept: process 7 (vllm) has it open"],
        ["gpu1", "Org/Other", "-", "-", "-", "kept: another run works on the model"],
    ]
    assert lines[4:] == [
        "gpu1: freed 1.0 KiB: 0 revisions, 1 left-over of downloads; 1 revision kept",
        "gpu2: freed nothing: run as root",
    ]


def test_an_export_in_check_mode_says_what_it_would_write() -> None:
    result = {"repo": "Org/Model", "requested": "master", "changed": True, "path": "/mnt/usb/Org--Model", "files": 6}
    result |= {"volumes": ["volume-001", "volume-002"], "bytes": {"total": 2048, "copied": 0, "kept": 0}}
    (line,) = model_export_lines([result, {"skipped": True}], "gpu1", True)
    assert line == "gpu1: Org/Model@master: would export 6 files, 2 volumes, 2.0 KiB at /mnt/usb/Org--Model"


def test_what_is_to_be_removed_is_a_table_of_its_own() -> None:
    item = {"hub": "modelscope", "repo": "Org/Model", "commit": None, "requested": "v1", "names": [], "bytes": 2048}
    free, used = {**item, "id": "0123456789ab"}, {**item, "id": "ba9876543210"}
    empty = {"removed": [], "stage": [], "links": [], "in_use": [], "freed_bytes": 0, "changed": False}
    gone = {"removed": [free], "links": ["Org--Model"], "freed_bytes": 2048, "changed": True}
    whole = {**empty, **gone, "item": "Org/Model"}
    busy = {**whole, "removed": [free, used], "in_use": [{**used, "reason": "U names it"}]}
    found = {
        "gpu1": {"look": {"results": [whole]}},
        "gpu2": {"look": {"results": [busy]}},
        "gpu3": {"look": {"results": [{**empty, "item": "Org/Model"}]}},
        "gpu4": {"look": {"results": [{"item": "Org/Model", "failed": True, "msg": "run as root"}]}},
    }
    assert [re.split(r" {2,}", line)[-1] for line in model_remove_lines(found, found, "look", True)] == [
        "VERDICT",
        "would be removed",
        "kept: 1 use of the model in the way",
        "in use: U names it",
        "not there",
        "refused",
    ]
    assert model_remove_faults(found, found, "look") == [
        "gpu2: Org/Model is in use: U names it",
        "gpu4: Org/Model: run as root",
    ]
    assert model_removed_lines(["gpu1", "gpu3"], found, "look", True) == [
        "gpu1: Org/Model: would remove 1 revision, 1 link, 0 unfinished downloads, 2.0 KiB",
        "gpu3: Org/Model: not there, nothing to remove",
    ]


def test_a_file_that_was_moved_aside_is_no_unfinished_download() -> None:
    aside = {"repo": "Org/Model", "path": "/s/.store/x/Org--Model/stage/rejected/extra-job-0-notes.txt", "bytes": 1024}
    look = {"removed": [], "stage": [aside], "links": [], "in_use": [], "freed_bytes": 1024, "changed": True}
    found = {"gpu1": {"look": {"results": [{**look, "item": "Org/Model"}]}}}
    row = model_remove_lines(found, found, "look", False)[1]
    assert "foreign file" in row and "unfinished" not in row
    (line,) = model_removed_lines(found, found, "look", False)
    assert line == "gpu1: Org/Model: removed 0 revisions, 0 links, 0 unfinished downloads, 1 foreign file, 1.0 KiB"
    found = {"gpu1": {"look": {"removed": [], "stage": [aside], "kept": [], "freed_bytes": 1024, "busy": []}}}
    assert "foreign file" in model_gc_lines(found, found, "look", False)[1]


def test_a_model_that_nothing_knows_is_a_slip_and_one_that_was_known_is_not(tmp_path: Path) -> None:
    empty = {"removed": [], "stage": [], "links": [], "in_use": [], "freed_bytes": 0, "changed": False}

    def look(repo: str, **other: Any) -> dict[str, Any]:
        return {"look": {"results": [{**empty, "item": repo}]}, "store": {"models": [{"repo": "Acme/Large"}]}, **other}

    def unknown(**hosts: dict[str, Any]) -> list[str]:
        return model_remove_unknown(hosts, hosts, "look", str(tmp_path), "store")

    told = "Acme/Lagre is in no store of these hosts, in no lock and not in the inventory (did you mean Acme/Large?)"
    assert unknown(gpu1=look("Acme/Lagre"), gpu2=look("Acme/Lagre")) == [told]
    assert unknown(gpu1=look("Zzz/Zzz"))[0].endswith("not in the inventory")
    assert unknown(gpu1=look("a/A"), gpu2=look("a/A", model_store_models=[{"repo": "a/A"}])) == []
    assert unknown(gpu1=look("a/A", vllm_instances={"chat": {"model": {"repo": "a/A"}}})) == []
    assert unknown(gpu1=look("a/A"), gpu2={"look": {"results": [{"item": "a/A", "msg": "run as root"}]}}) == []
    assert unknown(gpu1={"look": {"results": [{**empty, "item": "a/A", "links": ["a--A"]}]}}) == []
    (tmp_path / "modelscope").mkdir()
    (tmp_path / "modelscope/a--A@master.json").touch()
    assert unknown(gpu1=look("a/A")) == []


@pytest.mark.skipif(not can_be_alone(), reason="needs root, and a process namespace of its own")
def test_a_slip_in_what_is_to_be_removed_fails_with_the_nearest_model(models: Playbook) -> None:
    current = models.bring("gpu1")
    refused = models("remove", within=ALONE, model_store_remove="Org/Modle")
    assert refused.returncode != 0
    assert "not in the inventory (did you mean Org/Model?). Nothing was removed on any host" in refused.stdout
    assert current.is_dir()


def test_a_host_that_is_to_take_a_model_from_another_one_has_a_row_also_where_that_one_is_refused() -> None:
    model = {"repo": "Org/Model", "revision": "master"}
    offer = {"item": {"item": [model, ""], "stat": {"path": "/mnt/usb/Org--Model"}}, "msg": "damaged"}
    found = {
        "gpu1": {"socle_models": [model], "socle_offered": {"results": [offer]}},
        "gpu2": {"socle_models": [model], "socle_offered": {"results": []}},
    }
    rows = [line.split() for line in model_import_lines(found, found, False)[1:]]
    assert [(row[0], row[1]) for row in rows] == [("gpu1", "Org/Model"), ("gpu2", "Org/Model")]
    assert rows[0][-1] == "refused" and rows[1][-6:] == ["waits:", "no", "host", "can", "give", "it"]


def test_exports_and_imports_that_did_nothing_have_a_line_too() -> None:
    sent = {"repo": "Org/Model", "requested": "master", "changed": False, "path": "/mnt/usb/Org--Model", "files": 6}
    sent |= {"volumes": [], "bytes": {"total": 2048, "copied": 0, "kept": 2048}}
    (line,) = model_export_lines([sent], "gpu1", False)
    assert line == (
        "gpu1: Org/Model@master: was there already, nothing written: 6 files, 2.0 KiB at /mnt/usb/Org--Model"
    )
    (line,) = model_export_lines([{**sent, "read_back": True}], "gpu1", False)
    assert line.endswith("2.0 KiB at /mnt/usb/Org--Model; read back: right")
    again = {**sent, "changed": True, "bytes": {"total": 2048, "copied": 1024, "kept": 1024}}
    (line,) = model_export_lines([{**again, "read_back": True, "rewritten": 1}], "gpu1", False)
    assert line.endswith("1.0 KiB written, 1.0 KiB were there; 1 file was damaged: written again; read back: right")
    taken = {**sent, "files": {"total": 6}, "bytes": {"total": 2048, "disk": 0}}
    (line,) = model_imported_lines([taken], "gpu1")
    assert line == "gpu1: Org/Model@master: was complete already, nothing imported: 6 files, 2.0 KiB"


def test_an_import_is_told_by_what_a_host_lacks() -> None:
    model = {"repo": "Org/Model", "revision": "master"}
    plan = {"bytes": 2048, "free": 1024, "missing_files": 2, "faults": []}
    look = {"item": {**model, "path": "/mnt/usb/Org--Model", "from": "gpu1"}, "plan": plan, "bytes": {"total": 2048}}
    look |= {"commit": None, "content_id": "sha256:0123456789abcdef", "path": "/s/rev/1", "previous": None}
    # A look in a run without check mode never counts as a change.
    look["changed"] = False
    whole = {**look, "plan": {**plan, "bytes": 0, "missing_files": 0}}
    full = {**look, "plan": {**plan, "faults": [{"id": "space", "message": "/s has 0.00 GiB free"}]}}
    looks = {
        "gpu1": look,
        "gpu2": whole,
        "gpu3": {**whole, "previous": {"path": "/s/rev/1"}},
        "gpu4": full,
    }
    found = {host: {"socle_looked": {"results": [seen]}} for host, seen in looks.items()}
    rows = [re.split(r" {2,}", line) for line in model_import_lines(found, found, False)[1:]]
    assert [row[-1] for row in rows] == ["to be imported", "to be made current", "is there", "refused"]
    assert rows[0][3:-1] == ["content 0123456789ab", "/mnt/usb/Org--Model", "2.0 KiB", "2.0 KiB", "1.0 KiB"]
    assert model_import_faults(found, found) == ["gpu4: Org/Model@master: /s has 0.00 GiB free"]
