# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of lab hosts: what is built for them, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.filter.lab import lab_hosts
from ansible_collections.socle.inference.plugins.module_utils._lab import hosts, images
from ansible_collections.socle.inference.plugins.module_utils._lab.lab import Lab, Settings
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    for name in ("lock.txt", "convert.py"):
        (tmp_path / name).write_text(name)
    settings = Settings(
        directory=tmp_path / "lab",
        hosts=[],
        engine_image="image",
        engine_lock=tmp_path / "lock.txt",
        converter=tmp_path / "convert.py",
        hub_source=tmp_path,
        pip=[],
        torch_index="",
        mirror="",
        subnet="",
        owner=(0, 0),
    )
    return Lab(settings, Progress(None))


def host(kind: str) -> hosts.Host:
    return hosts.Host(f"h-{kind}", ((2201, 22),), kind)


def test_bare_hosts_alone_need_neither_engine_nor_model_nor_hub(lab: Lab) -> None:
    parsed = [host("bare"), host("bare-bookworm")]
    assert [step.name for step in lab.missing_steps(parsed)] == ["bare host image", "bare-bookworm host image"]
    assert list(lab.wanted_containers(parsed)) == ["socle-lab-h-bare", "socle-lab-h-bare-bookworm"]


def test_an_engine_host_needs_all_of_it_and_no_bare_image(lab: Lab) -> None:
    parsed = [host("engine")]
    assert [step.name for step in lab.missing_steps(parsed)] == ["host image", "wheels", "engine image", "model"]
    assert list(lab.wanted_containers(parsed)) == ["socle-lab-hub", "socle-lab-h-engine"]


def test_an_image_that_is_there_is_not_built_again(lab: Lab) -> None:
    marker = images.host_marker(lab.directory, "", "bare")
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert lab.missing_steps([host("bare")]) == []


def test_each_kind_has_an_image_of_its_own(lab: Lab) -> None:
    assert len({lab.host_image(kind) for kind in images.KINDS}) == 3


def test_the_inventory_names_the_kind() -> None:
    hostvars = {"a": {"virtual_lab_publish": [1]}, "b": {"virtual_lab_kind": "bare"}}
    assert lab_hosts(["a", "b"], hostvars) == [
        {"name": "a", "publish": [1], "kind": "engine"},
        {"name": "b", "publish": [], "kind": "bare"},
    ]
