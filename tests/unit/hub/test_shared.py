# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hosts that have mounted one store know that it is the same."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub import shared, sync
from ansible_collections.socle.inference.plugins.module_utils._hub.shared import name_store

from tests.simulators.hub.server import HubSimulator
from tests.support.model_fleet import FleetHost, resolve
from tests.unit.hub.conftest import REPO


def test_all_who_name_a_store_at_once_get_one_name(tmp_path: Path) -> None:
    found: list[str | None] = []
    threads = [threading.Thread(target=lambda: found.append(name_store(tmp_path, True))) for _number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and found[0]
    assert [entry.name for entry in (tmp_path / ".store").iterdir()] == ["name"]
    assert name_store(tmp_path / "other", True) != found[0]


def test_a_name_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure would leave an empty one, and no host replaces what another one may have written."""
    steps = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: steps.append("flushed"))
    link = os.link
    monkeypatch.setattr(os, "link", lambda *places: (steps.append("linked"), link(*places)))
    assert name_store(tmp_path / "store", True)
    assert steps == ["flushed", "linked"]


def test_a_look_gives_no_name_and_reads_one(tmp_path: Path) -> None:
    assert name_store(tmp_path / "store", False) is None
    assert list(tmp_path.iterdir()) == []
    name = name_store(tmp_path / "store", True)
    assert name_store(tmp_path / "store", False) == name


def test_a_store_that_takes_no_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: HubSimulator
) -> None:
    host = FleetHost("gpu1", "127.0.0.11", tmp_path / "gpu1", hub.url, resolve(hub.url, REPO))
    monkeypatch.setattr(sync, "is_shared", lambda _type: True)

    def link(_source: Any, _target: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        found = host.call("inspected", allow_shared_fs=True)
    assert found["store_name"] is None
    (fault,) = found["plan"]["faults"]
    assert fault["id"] == "shared_fs" and "choose a local store on each host" in fault["message"]
    found = host.call("inspected", allow_shared_fs=True)
    assert shared.STORE_NAME.fullmatch(found["store_name"]) and found["plan"]["faults"] == []


def test_two_names_of_one_machine_have_one_store_and_two_folders_of_it_have_two(
    tmp_path: Path, hub: HubSimulator
) -> None:
    manifest = resolve(hub.url, REPO)
    (tmp_path / "disk").mkdir()
    (tmp_path / "other way").symlink_to(tmp_path / "disk")
    places = ["disk", "other way", "elsewhere"]
    hosts = [
        FleetHost(f"gpu{number}", "127.0.0.11", tmp_path / place, hub.url, manifest)
        for number, place in enumerate(places)
    ]
    names = [host.call("inspected")["store_name"] for host in hosts]
    assert names[0] and names[0] == names[1] != names[2]
    assert not any(host.store.exists() for host in hosts), "a look makes nothing"
