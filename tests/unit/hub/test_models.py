# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook models as people run it: two hosts with a store each, and a hub."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.socle.inference.plugins.filter.models import (
    model_gc_lines,
    model_places,
    model_table,
    model_verify_lines,
)

from tests.simulators.hub.server import HubSimulator
from tests.support.model_store import WEIGHTS, contents, flip_byte, overwrite

PROJECT = Path(__file__).resolve().parents[3]
Run = Callable[..., subprocess.CompletedProcess[str]]


ALONE = ("unshare", "--pid", "--fork", "--mount-proc")
"""Garbage collection looks at every process, of which this machine may have some that even root does not see."""


def can_be_alone() -> bool:
    return os.geteuid() == 0 and subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def models(tmp_path: Path, hub: HubSimulator) -> Run:
    """Runs the playbook on gpu1 and gpu2."""
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")

    def run(
        action: str, *arguments: str, within: tuple[str, ...] = (), **given: Any
    ) -> subprocess.CompletedProcess[str]:
        hosts = {
            f"gpu{number}": {
                "model_store_path": str(tmp_path / f"gpu{number}"),
                "model_store_lan_address": f"127.0.0.{30 + number}",
            }
            for number in (1, 2)
        }
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "socle_state_dir": str(tmp_path / "state"),
            "model_store_models": [{"repo": "Org/Model"}],
            "model_store_endpoint": hub.url,
            "model_store_proxy": "",
            "model_store_reserve_gib": 0,
            "model_store_force_prechecks": True,
            "model_store_action": action,
            **given,
        }
        (tmp_path / "inventory").mkdir(exist_ok=True)
        inventory = {"all": {"hosts": hosts, "vars": common}}
        (tmp_path / "inventory/hosts.yml").write_text(yaml.safe_dump(inventory))
        return subprocess.run(
            [
                *within,
                str(Path(sys.executable).with_name("ansible-playbook")),
                *["socle.inference.models", "-i", str(tmp_path / "inventory"), *arguments],
            ],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
                "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_models_are_brought_listed_verified_and_repaired(
    models: Run, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    good(models("sync"))
    current = (tmp_path / "gpu1" / "Org--Model").resolve()
    assert contents(current) == contents(folder)
    listed = good(models("list"))
    assert len(re.findall(rf"(?m)^gpu[12]  Org/Model  {current.name}  \S+  1\.1 MiB  current +20\d\d-", listed)) == 2
    hub.reset()
    flip_byte(current / WEIGHTS)
    done = models("verify")
    assert done.returncode != 0
    assert f"gpu1: Org/Model@master: full, DAMAGED: {WEIGHTS}" in done.stdout
    assert "repair with -e model_store_action=verify -e model_store_repair=true" in done.stdout
    assert re.search(r"gpu2: Org/Model@master: full, 6 files, \d+ MB/s, \d+s, whole", done.stdout)
    assert hub.requests == []
    good(models("verify", model_store_repair=True))
    assert contents(current) == contents(folder)


@pytest.mark.parametrize("arguments", [(), ("--check",)])
def test_verify_leaves_the_link_alone_and_asks_nothing_of_the_file_system(
    models: Run, hub: HubSimulator, folder: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    good(models("sync", "--limit", "gpu1"))
    lock = tmp_path / "inventory/.socle/locks/modelscope/Org--Model@master.json"
    first = json.loads(lock.read_text())["source"]["commit"]
    overwrite(folder / "config.json", b'{"other": 1}')
    good(models("sync", "--limit", "gpu1", model_store_moved="accept"))
    before = (tmp_path / "gpu1/Org--Model").readlink()
    pinned = {
        "model_store_models": [{"repo": "Org/Model", "revision": first}],
        "model_store_reserve_gib": 10**9,
        "model_store_force_prechecks": False,
    }
    done = good(models("verify", "--limit", "gpu1", *arguments, **pinned))
    assert re.search(rf"gpu1: Org/Model@{first}: full, 6 files.*whole; its link names another revision, ", done)
    assert "changed=0" in done
    assert (tmp_path / "gpu1/Org--Model").readlink() == before
    flip_byte(tmp_path / "gpu1" / before / WEIGHTS)
    damaged = models("verify", "--limit", "gpu1", *arguments)
    assert damaged.returncode != 0
    assert f"gpu1: Org/Model@master: full, DAMAGED: {WEIGHTS}" in damaged.stdout


def test_verify_compares_with_the_lock(models: Run, hub: HubSimulator, folder: Path, tmp_path: Path) -> None:
    good(models("sync"))
    lock = tmp_path / "inventory/.socle/locks/modelscope/Org--Model@master.json"
    first = json.loads(lock.read_text())["source"]["commit"]
    overwrite(folder / "config.json", b'{"other": 1}')
    good(models("sync", "--limit", "gpu1", model_store_moved="accept"))
    second = json.loads(lock.read_text())["source"]["commit"]
    hub.reset()
    done = models("verify")
    assert done.returncode != 0
    assert re.search(r"gpu1: Org/Model@master: full, 6 files.*whole\n", done.stdout)
    assert f"gpu2: Org/Model@master: full, holds {first}, locked is {second}\n" in done.stdout
    assert "bring what is locked with -e model_store_action=sync" in done.stdout
    assert hub.requests == []


def test_a_repair_in_check_mode_tells_what_it_would_repair(models: Run, folder: Path, tmp_path: Path) -> None:
    good(models("sync"))
    current = (tmp_path / "gpu1" / "Org--Model").resolve()
    flip_byte(current / WEIGHTS)
    spoilt = (current / WEIGHTS).read_bytes()
    done = good(models("verify", "--check", model_store_repair=True))
    assert f"gpu1: Org/Model@master: full, DAMAGED: {WEIGHTS}, would be repaired" in done
    assert re.search(r"gpu1 .*changed=1", done)
    assert re.search(r"gpu2 .*changed=0", done)
    assert (current / WEIGHTS).read_bytes() == spoilt


@pytest.mark.skipif(not can_be_alone(), reason="needs root, and a process namespace of its own")
def test_old_revisions_are_shown_in_check_mode_and_then_freed(
    models: Run, ensure: Callable[..., dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    for number in range(3):
        overwrite(folder / "config.json", json.dumps({"number": number}).encode())
        for host in ("gpu1", "gpu2"):
            ensure(store=tmp_path / host, link="Org--Model")
    planned = good(models("gc", "--check", within=ALONE))
    assert re.search(
        r"gpu1: would free 4\.0 KiB: 1 old revisions, 0 left-overs of downloads; 2 revisions stay", planned
    )
    revisions = tmp_path / "gpu1/.store/modelscope/Org--Model/rev"
    assert len(list(revisions.iterdir())) == 3
    freed = good(models("gc", within=ALONE))
    assert "gpu2: freed 4.0 KiB" in freed
    assert "stays: it is a previous one of Org--Model" in freed
    assert len(list(revisions.iterdir())) == 2


def test_a_site_without_a_hub_imports_on_one_host_and_serves_the_other(
    models: Run,
    ensure: Callable[..., dict[str, Any]],
    hub: HubSimulator,
    folder: Path,
    tmp_path: Path,
) -> None:
    ensure(store=tmp_path / "gpu1", link="Org--Model")
    disk = tmp_path / "disk"
    good(models("export", "--limit", "gpu1", model_store_export_path=str(disk)))
    subprocess.run(["tar", "-cf", disk / "Org--Model.tar", "-C", disk, "Org--Model"], check=True)
    shutil.rmtree(disk / "Org--Model")
    shutil.rmtree(tmp_path / "gpu1")
    hub.reset()
    near = {"gpu1": str(disk), "gpu2": str(tmp_path / "no disk")}
    path = "{{ " + str(near) + "[inventory_hostname] }}"
    good(models("import", model_store_import_path=path, model_store_endpoint="http://127.0.0.1:1"))
    assert hub.requests == []
    for name in ("gpu1", "gpu2"):
        assert contents(tmp_path / name / "Org--Model") == contents(folder)
    assert (tmp_path / "inventory/.socle/locks/modelscope/Org--Model@master.json").is_file()


def test_an_import_of_other_content_than_is_locked_publishes_nothing_unless_it_is_accepted(
    models: Run, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    good(models("sync", "--limit", "gpu1"))
    place = tmp_path / "inventory/.socle/locks/modelscope/Org--Model@master.json"
    before, locked = (tmp_path / "gpu1/Org--Model").readlink(), place.read_bytes()
    shutil.copytree(folder, tmp_path / "disk/Org--Model")
    overwrite(tmp_path / "disk/Org--Model/config.json", b'{"other": 1}')
    hub.reset()
    given = {"model_store_import_path": str(tmp_path / "disk"), "model_store_endpoint": "http://127.0.0.1:1"}
    refused = models("import", **given)
    assert refused.returncode != 0
    assert "Org/Model at master has moved" in refused.stdout
    assert "model_store_moved=accept" in refused.stdout
    assert (tmp_path / "gpu1/Org--Model").readlink() == before
    assert not (tmp_path / "gpu1/.store/directory").exists()
    assert not (tmp_path / "gpu2").exists()
    assert place.read_bytes() == locked
    good(models("import", "--check", model_store_moved="accept", **given))
    assert place.read_bytes() == locked
    # A plain folder takes the place of what came from a hub, and the hub's that of the folder.
    good(models("import", model_store_moved="accept", **given))
    assert place.read_bytes() != locked
    assert not (tmp_path / "inventory/.socle/locks/directory").exists()
    for name in ("gpu1", "gpu2"):
        assert contents(tmp_path / name / "Org--Model") == contents(tmp_path / "disk/Org--Model")
    assert hub.requests == []
    verified = good(models("verify", **given))
    assert re.search(r"gpu2: Org/Model@master: full, 6 files.*whole", verified)
    good(models("export", "--limit", "gpu1", model_store_export_path=str(tmp_path / "out"), **given))
    assert (tmp_path / "out/Org--Model/manifest.json").is_file()
    good(models("sync", model_store_moved="accept"))
    assert contents(tmp_path / "gpu2/Org--Model") == contents(folder)


def test_another_source_takes_the_place_of_the_first_one(
    models: Run, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    good(models("sync", "--limit", "gpu1"))
    other = {"model_store_source": "huggingface"}
    hub.reset()
    verified = good(models("verify", "--limit", "gpu1", **other))
    assert re.search(r"gpu1: Org/Model@[0-9a-f]{40}: full, 6 files.*whole", verified)
    good(models("export", "--limit", "gpu1", model_store_export_path=str(tmp_path / "out"), **other))
    assert (tmp_path / "out/Org--Model/manifest.json").is_file()
    assert hub.requests == []
    good(models("sync", "--limit", "gpu1", **other))
    assert ".store/huggingface/" in str((tmp_path / "gpu1/Org--Model").readlink())
    assert contents(tmp_path / "gpu1/Org--Model") == contents(folder)


def test_an_import_that_no_host_can_begin_is_refused(models: Run, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    done = models("import", model_store_import_path=str(tmp_path / "disk"))
    assert done.returncode != 0
    assert f"No host of this play has Org/Model in {tmp_path / 'disk'}" in done.stdout
    assert not (tmp_path / "gpu1").exists()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("destroy", "model_store_action is destroy, but must be sync, verify, list, gc, export or import"),
        ("export", "model_store_export_path must be the absolute path"),
        ("import", "model_store_import_path must be the absolute path"),
    ],
)
def test_what_is_not_said_is_asked_for(models: Run, action: str, message: str) -> None:
    done = models(action)
    assert done.returncode != 0
    assert message in " ".join(done.stdout.split())


def test_a_table_has_a_row_for_every_revision_and_for_hosts_in_trouble() -> None:
    revision = {
        "id": "0123456789ab",
        "commit": "0123456789abcdef",
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
    found = {
        "gpu1": {"found": {"models": [{"repo": "Org/Model", "lock": None, "revisions": [revision, old]}]}},
        "gpu2": {"found": {"unreachable": True}},
        "gpu3": {"found": {"models": []}},
        "gpu4": {"found": {"msg": "no", "failed": True}},
    }
    lines = model_table(found, found, "found")
    assert [line.split() for line in lines[1:]] == [
        ["gpu1", "Org/Model", "0123456789ab", "0123456789ab", "48.4", "GiB", "current", "2026-11-30T09:28", "chat"],
        ["gpu1", "Org/Model", "ba9876543210", "-", "48.4", "GiB", "old", "-", "-"],
        ["gpu2", "-", "-", "-", "-", "unreachable", "-", "-"],
        ["gpu3", "-", "-", "-", "-", "empty", "-", "-"],
        ["gpu4", "-", "-", "-", "-", "no", "-", "-"],
    ]


def test_a_model_that_was_never_brought_is_said_in_its_own_words() -> None:
    item = {"repo": "Org/Model", "revision": "master"}
    result = {"item": item, "failed": True, "msg": "Org/Model at master is not in the store"}
    (line,) = model_verify_lines([result], "gpu1", "full")
    assert line == "gpu1: Org/Model@master: full, FAILED: Org/Model at master is not in the store"


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


def test_what_stays_is_explained() -> None:
    kept = [{"repo": "Org/Model", "id": "0123456789ab", "reason": "process 7 (vllm) has it open"}]
    lines = model_gc_lines({"removed": [], "stage": [], "kept": kept, "freed_bytes": 0}, "gpu1", False)
    assert lines[-1] == "  Org/Model 0123456789ab stays: process 7 (vllm) has it open"
