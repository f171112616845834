# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook models where content or source change, which takes many runs; the rest is in the unit tests."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.hub.server import HubSimulator
from tests.support.model_netns import make_model
from tests.support.model_playbook import Playbook
from tests.support.model_store import contents, overwrite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "hub/Org/Model"
    make_model(folder, 1_100_000, 1)
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubSimulator]:
    with HubSimulator(folder.parents[1]) as simulator:
        yield simulator


@pytest.fixture
def models(tmp_path: Path, hub: HubSimulator) -> Playbook:
    return Playbook(tmp_path, hub)


def test_an_import_of_other_content_than_is_locked_publishes_nothing_unless_it_is_accepted(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    models.bring("gpu1")
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
    assert "Nothing was imported on any host" in refused.stdout
    assert (tmp_path / "gpu1/Org--Model").readlink() == before
    assert not (tmp_path / "gpu1/.store/directory").exists()
    assert not (tmp_path / "gpu2").exists()
    planned = models.good("import", "--check", model_store_moved="accept", **given)
    assert planned.count("would be imported") == 2
    assert place.read_bytes() == locked
    # A plain folder takes the place of what came from a hub, and the hub's that of the folder.
    models.good("import", model_store_moved="accept", **given)
    assert place.read_bytes() != locked
    assert not (tmp_path / "inventory/.socle/locks/directory").exists()
    for name in ("gpu1", "gpu2"):
        assert contents(tmp_path / name / "Org--Model") == contents(tmp_path / "disk/Org--Model")
    assert hub.requests == []
    verified = models.good("verify", "--limit", "gpu1", **given)
    assert re.search(r"gpu1: Org/Model@master: full, \d+ files.*whole", verified)
    models.good("sync", "--limit", "gpu1", model_store_moved="accept")
    assert contents(tmp_path / "gpu1/Org--Model") == contents(folder)


def test_another_source_takes_the_place_of_the_first_one(
    models: Playbook, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    models.bring("gpu1")
    other = {"model_store_source": "huggingface"}
    hub.reset()
    models.good("export", "--limit", "gpu1", model_store_export_path=str(tmp_path / "out"), **other)
    assert (tmp_path / "out/Org--Model/manifest.json").is_file()
    assert hub.requests == []
    models.good("sync", "--limit", "gpu1", **other)
    assert ".store/huggingface/" in str((tmp_path / "gpu1/Org--Model").readlink())
    assert contents(tmp_path / "gpu1/Org--Model") == contents(folder)
