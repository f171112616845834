# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages and sources the toolkit brings, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.toolkit_plan import PACKAGES, plan

URL = "https://nvidia.github.io/libnvidia-container"
DEBIAN = {"id": "debian", "id_like": []}


def packages(version: str = "1.20.0-1", held: bool = True, names: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    return {name: {"version": version, "status": "installed", "held": held} for name in names}


def test_a_bare_host_gets_all_four_at_one_version(tmp_path: Path) -> None:
    found = plan({}, DEBIAN, "1.20.0", root=tmp_path)
    assert found["due"] and found["packages"] == dict.fromkeys(PACKAGES, "1.20.0-1") and len(PACKAGES) == 4
    assert found["repository"] == {
        "name": "nvidia-container-toolkit",
        "folder": "stable/deb/$(ARCH)",
        "key": "gpgkey",
    }


@pytest.mark.parametrize(
    ("there", "due"),
    [
        (packages(), False),
        (packages(held=False), True),
        (packages("1.18.2-1"), True),
        (packages(names=PACKAGES[:3]), True),
        ({**packages(), PACKAGES[0]: {"version": "1.20.0-1", "status": "half-configured", "held": True}}, True),
    ],
)
def test_work_is_due_where_a_package_differs(there: dict[str, Any], due: bool, tmp_path: Path) -> None:
    assert plan(there, DEBIAN, "1.20.0", own_holds=PACKAGES, root=tmp_path)["due"] is due


@pytest.mark.parametrize(
    ("there", "version", "due"),
    [
        (packages(), "1.20.0-1", False),
        (packages("1.20.1-1"), "1.20.1-1", False),
        (packages("1.18.2-1"), "1.18.2-1", False),
        (packages("1.18.2-2"), "1.18.2-2", False),
        # What must not stay, and what is not there.
        (packages("1.19.0-1"), "1.20.0-1", True),
        (packages("1.17.8-1"), "1.20.0-1", True),
        (packages("1.18.0~rc.1-1"), "1.20.0-1", True),
        ({}, "1.20.0-1", True),
        # Four of one version, and none of them older than before.
        ({**packages("1.18.2-1"), PACKAGES[3]: packages("1.21.0-1")[PACKAGES[3]]}, "1.21.0-1", True),
    ],
)
def test_an_installed_toolkit_is_kept_where_no_version_is_named(
    there: dict[str, Any], version: str, due: bool, tmp_path: Path
) -> None:
    found = plan(there, DEBIAN, "", own_holds=PACKAGES, root=tmp_path)
    assert found["packages"] == dict.fromkeys(PACKAGES, version) and found["due"] is due
    assert found["version"] == version.partition("-")[0]


def test_a_newer_toolkit_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"Will not replace libnvidia-container-tools 1.20.0 by the older 1.18.2"):
        plan(packages(), DEBIAN, "1.18.2", root=tmp_path)
    assert plan(packages(), DEBIAN, "1.18.2", downgrade=True, own_holds=PACKAGES, root=tmp_path)["due"]


def test_a_toolkit_that_somebody_else_holds_is_left_alone_or_refused(tmp_path: Path) -> None:
    for there, version in ((packages("1.17.8-1"), ""), (packages("1.18.2-1"), "1.20.0")):
        with pytest.raises(ToolkitError, match=r"install NVIDIA's container toolkit 1.20.0: .*held, and not by socle"):
            plan(there, DEBIAN, version, root=tmp_path)
    with pytest.raises(ToolkitError, match=r"Cannot remove .* are held, and not by socle"):
        plan(packages(), DEBIAN, "", remove=True, root=tmp_path)
    for removal in (False, True):
        with pytest.raises(ToolkitError, match=r"^Cannot [^:]*: the note is lost: "):
            plan(packages("1.17.8-1"), DEBIAN, "", remove=removal, lost_holds="the note is lost: ", root=tmp_path)
    assert not plan(packages("1.18.2-1"), DEBIAN, "", root=tmp_path)["due"]
    assert plan(packages("1.18.2-1"), DEBIAN, "1.20.0", own_holds=PACKAGES, root=tmp_path)["due"]


def test_a_refused_version_is_refused_before_anything(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="ordering cycle"):
        plan({}, DEBIAN, "1.19.0", root=tmp_path)


def test_a_removal_refuses_no_version(tmp_path: Path) -> None:
    there = packages("1.19.0-1")
    assert plan(there, DEBIAN, "1.19.0", remove=True, own_holds=PACKAGES, root=tmp_path)["due"]
    assert not plan({}, DEBIAN, "1.19.0", remove=True, root=tmp_path)["due"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nvidia-docker.list", "deb https://nvidia.github.io/nvidia-docker/debian11/$(ARCH) /"),
        ("libnvidia-container.list", "deb https://nvidia.github.io/libnvidia-container/stable/debian11/$(ARCH) /"),
        ("nvidia-container-runtime.list", "deb https://nvidia.github.io/nvidia-container-runtime/debian11/$(ARCH) /"),
        ("nvidia-container-toolkit.list", f"deb [signed-by=/x.gpg] {URL}/stable/deb/$(ARCH) /"),
    ],
)
def test_older_definitions_of_the_repository_go(name: str, line: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (folder / name).write_text(line + "\n")
    found = plan(packages(), DEBIAN, "1.20.0", root=tmp_path)
    assert found["due"] and found["replaces"] == [f"/etc/apt/sources.list.d/{name}"]


def test_our_own_definition_and_the_drivers_repository_stay(tmp_path: Path) -> None:
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    (folder / "nvidia-container-toolkit.sources").write_text(f"Types: deb\nURIs: {URL}/stable/deb/amd64\nSuites: /\n")
    cuda = "deb https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/ /\n"
    (folder / "cuda-debian13-x86_64.list").write_text(cuda)
    found = plan(packages(), DEBIAN, "1.20.0", root=tmp_path)
    assert not found["due"] and found["replaces"] == []


def test_the_rpm_family_gets_the_repositorys_rpm_half(tmp_path: Path) -> None:
    found = plan({}, {"id": "rocky", "id_like": ["rhel"]}, "1.20.0", root=tmp_path)
    assert found["family"] == "redhat"
    assert found["repository"]["folder"] == "stable/rpm/$basearch"


def test_a_new_address_of_the_repository_is_work_without_a_package(tmp_path: Path) -> None:
    there = packages("1.18.2-1")
    assert plan(there, DEBIAN, "", root=tmp_path)["expect"] == {}
    found = plan(there, DEBIAN, "", moved=lambda _repository: True, root=tmp_path)
    # The new mirror need not have the version that is installed.
    assert found["due"] and found["expect"] == {}
    assert plan({}, DEBIAN, "", root=tmp_path)["expect"] == dict.fromkeys(PACKAGES, "1.20.0-1")
