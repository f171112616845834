# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine a host gets, and from where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.engine_plan import Request, choose, family, plan

from tests.support.commands import Commands

TRIXIE = {"id": "debian", "codename": "trixie", "id_like": []}
NOTHING: dict[str, str | None] = {"podman": None, "docker": None}
BOOKWORM_OFFERS = {
    "podman": "4.3.1+ds1-8+deb12u1+b3",
    "crun": "1.8.1-1+deb12u1",
    "netavark": "1.4.0-3",
    "aardvark-dns": "1.4.0-3",
    "passt": "0.0~git20230309.7c7625d-1",
    "catatonit": "0.1.7-1+b1",
    "docker.io": "20.10.24+dfsg1-1+deb12u1+b6",
    "iptables": "1.8.9-2",
    "nftables": "1.0.6-2+deb12u2",
}
TRIXIE_OFFERS = {
    **BOOKWORM_OFFERS,
    "podman": "5.4.2+ds1-2+b2",
    "docker.io": "26.1.5+dfsg1-9+b9",
    "docker-cli": "26.1.5+dfsg1-9+b9",
}


def request(wanted: str = "auto", source: str = "distribution", gpus: bool = True, **os: Any) -> Request:
    return Request(wanted, source, gpus, "gpu1", {**TRIXIE, **os})


def offer(commands: Commands, offers: dict[str, str], root: Path) -> None:
    (root / "var/lib/apt/lists").mkdir(parents=True, exist_ok=True)
    (root / "var/lib/apt/lists/deb.debian.org_debian_dists_trixie_InRelease").touch()
    text = "".join(
        f"{name}:\n  Installed: (none)\n  Candidate: {version}\n  Version table:\n     {version} 500\n"
        "        500 http://deb.debian.org/debian Packages\n"
        for name, version in offers.items()
    )
    commands.on("apt-cache", "policy", out=text)


@pytest.mark.parametrize(
    ("wanted", "installed", "offered", "gpus", "expected"),
    [
        # What is there and suits stays, whatever is on offer.
        ("auto", {"podman": "5.4.2", "docker": None}, {}, True, ("podman", "installed")),
        ("auto", {"podman": None, "docker": "28.1.1"}, {"podman": "5.4.2"}, True, ("docker", "installed")),
        ("auto", {"podman": "5.4.2", "docker": "28.1.1"}, {}, True, ("podman", "installed")),
        ("docker", {"podman": "5.4.2", "docker": "28.1.1"}, {}, True, ("docker", "installed")),
        # An old Podman does not push a Docker that suits aside, nor the other way round.
        ("auto", {"podman": "4.3.1", "docker": "28.1.1"}, {}, True, ("docker", "installed")),
        ("auto", {"podman": None, "docker": "20.10.24"}, {"podman": "5.4.2"}, True, ("podman", "distribution")),
        # Bare hosts.
        ("auto", NOTHING, {"podman": "5.4.2", "docker": "26.1.5"}, True, ("podman", "distribution")),
        ("auto", NOTHING, {"podman": "4.9.3", "docker": "24.0.7"}, True, ("podman", "distribution")),
        ("auto", NOTHING, {"podman": "4.3.1", "docker": "26.1.5"}, True, ("docker", "distribution")),
        ("auto", NOTHING, {"podman": "4.3.1", "docker": "20.10.24"}, False, ("docker", "distribution")),
        ("docker", NOTHING, {"podman": "5.4.2", "docker": "26.1.5"}, True, ("docker", "distribution")),
    ],
)
def test_what_suits_is_kept_and_else_podman_comes_first(
    wanted: str,
    installed: dict[str, str | None],
    offered: dict[str, str | None],
    gpus: bool,
    expected: tuple[str, str],
) -> None:
    assert choose(request(wanted, gpus=gpus), installed, offered) == expected


@pytest.mark.parametrize(
    ("wanted", "installed", "offered", "expected"),
    [
        ("docker", NOTHING, {"podman": "5.4.2", "docker": "20.10.24"}, ("docker", "docker")),
        ("auto", NOTHING, {"podman": "4.3.1", "docker": "20.10.24"}, ("docker", "docker")),
        ("auto", NOTHING, {"podman": "5.4.2", "docker": "26.1.5"}, ("podman", "distribution")),
        ("docker", {"podman": None, "docker": "28.1.1"}, {}, ("docker", "installed")),
        ("podman", NOTHING, {"podman": "5.4.2", "docker": "20.10.24"}, ("podman", "distribution")),
    ],
)
def test_dockers_own_repository_is_used_where_it_was_asked_for_and_docker_is_missing(
    wanted: str, installed: dict[str, str | None], offered: dict[str, str | None], expected: tuple[str, str]
) -> None:
    assert choose(request(wanted, source="docker"), installed, offered) == expected


def test_dockers_own_packages_push_nothing_aside() -> None:
    old: dict[str, str | None] = {"podman": None, "docker": "20.10.24"}
    with pytest.raises(
        SocleError, match=r"docker.io, containerd of the distribution is installed.*Nothing was changed"
    ):
        choose(request("docker", source="docker"), old, {}, ["docker.io", "containerd"])


def test_debian_12_with_gpus_ends_with_the_way_out_and_installs_nothing(commands: Commands, tmp_path: Path) -> None:
    offer(commands, BOOKWORM_OFFERS, tmp_path)
    with pytest.raises(SocleError) as caught:
        plan(commands, request(codename="bookworm"), NOTHING, tmp_path)
    assert str(caught.value) == (
        "Cannot give GPUs to containers on gpu1: found Podman 4.3.1 and Docker 20.10.24, expected Podman 4.6 or Docker"
        " 25 or newer; upgrade the operating system for a newer one, or set container_engine to docker and"
        " container_engine_docker_source to docker for Docker's own packages, and run playbook provision.yml."
    )
    programs = {next(word for word in call if word != "env" and "=" not in word) for call in commands.calls}
    assert programs <= {"apt-get", "apt-cache", "dpkg-query"}
    assert commands.ran("install") == 0


def test_debian_12_gets_docker_from_dockers_own_repository_on_request(commands: Commands, tmp_path: Path) -> None:
    offer(commands, BOOKWORM_OFFERS, tmp_path)
    found = plan(commands, request("docker", source="docker", codename="bookworm"), NOTHING, tmp_path)
    assert (found["engine"], found["source"], found["version"]) == ("docker", "docker", None)
    assert found["packages"] == {"docker-ce": "", "docker-ce-cli": "", "containerd.io": ""} and found["fresh"]
    assert found["repository"] == {
        "name": "docker",
        "folder": "linux/debian",
        "key": "linux/debian/gpg",
        "suites": "bookworm",
        "components": "stable",
        "replaces": [],
    }


def test_an_old_docker_of_dockers_own_repository_is_upgraded_from_there(commands: Commands, tmp_path: Path) -> None:
    offer(commands, BOOKWORM_OFFERS, tmp_path)
    found = plan(commands, request("docker", source="docker"), {"podman": None, "docker": "24.0.7"}, tmp_path)
    assert set(found["packages"].values()) == {"newest"} and not found["fresh"]


@pytest.mark.parametrize("check", [False, True])
def test_an_upgrade_of_docker_stops_no_containers_of_others(commands: Commands, tmp_path: Path, check: bool) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    commands.on("systemctl", "show", out="ActiveState=active\n")
    commands.on("docker", "ps", out="database\t\nvllm-llama\tllama\n")
    old = {"podman": None, "docker": "24.0.7"}
    with pytest.raises(SocleError, match=r"upgrade of Docker 24.0.7: .*\(database\).*Nothing was changed"):
        plan(commands, request("docker"), old, tmp_path, check=check)
    asked = replace(request("docker"), restart="always")
    assert "docker.io" in plan(commands, asked, old, tmp_path, check=check)["packages"]
    commands.on("systemctl", "show", out="ActiveState=inactive\n")
    assert "docker.io" in plan(commands, request("docker"), old, tmp_path, check=check)["packages"]


def test_a_bare_debian_13_gets_podman_with_what_its_units_need(commands: Commands, tmp_path: Path) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    found = plan(commands, request(), NOTHING, tmp_path)
    assert (found["engine"], found["source"], found["version"], found["family"]) == (
        "podman",
        "distribution",
        "5.4.2",
        "debian",
    )
    network = {"netavark", "aardvark-dns", "passt", "nftables", "iptables"}
    assert set(found["packages"]) == {"podman", "crun", "catatonit"} | network
    assert found["repository"] is None


def test_docker_of_debian_13_comes_with_its_client_which_is_no_part_of_debian_12s(
    commands: Commands, tmp_path: Path
) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    assert "docker-cli" in plan(commands, request("docker"), NOTHING, tmp_path)["packages"]
    offer(commands, BOOKWORM_OFFERS, tmp_path)
    assert "docker-cli" not in plan(commands, request("docker", gpus=False), NOTHING, tmp_path)["packages"]


def test_an_engine_that_is_too_old_is_upgraded_where_a_newer_one_is_on_offer(
    commands: Commands, tmp_path: Path
) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    found = plan(commands, request(), {"podman": "4.3.1", "docker": None}, tmp_path)
    assert found["version"] == "5.4.2" and found["packages"]["podman"] == TRIXIE_OFFERS["podman"]


def test_an_engine_that_is_there_costs_no_question_to_apt(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/catatonit").touch()
    found = plan(commands, request(), {"podman": "5.4.2", "docker": None}, tmp_path)
    assert found["packages"] == {} and not found["fresh"] and commands.calls == []


def test_a_podman_without_an_init_gets_one_and_no_second_runtime(commands: Commands, tmp_path: Path) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    assert plan(commands, request(), {"podman": "5.4.2", "docker": None}, tmp_path)["packages"] == {"catatonit": ""}


def test_a_plan_names_the_versions_that_would_come(commands: Commands, tmp_path: Path) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    found = plan(commands, request("docker"), NOTHING, tmp_path, check=True)
    assert found["packages"]["docker.io"] == ""
    assert found["offered"] == {name: TRIXIE_OFFERS[name] for name in ("docker.io", "docker-cli", "iptables")}


def test_a_host_without_package_lists_reads_them_and_check_mode_reads_them_aside(
    commands: Commands, tmp_path: Path
) -> None:
    offer(commands, TRIXIE_OFFERS, tmp_path)
    for path in (tmp_path / "var/lib/apt/lists").iterdir():
        path.unlink()
    plan(commands, request(), NOTHING, tmp_path, check=True)
    aside = [call for call in commands.calls if "update" in call]
    assert len(aside) == 1 and any(word.startswith("Dir::State::lists=") for word in aside[0])
    plan(commands, request(), NOTHING, tmp_path)
    real = [call for call in commands.calls if "update" in call][1:]
    assert len(real) == 1 and not any(word.startswith("Dir::") for word in real[0])


def test_lists_that_cannot_be_read_are_a_sentence(commands: Commands, tmp_path: Path) -> None:
    commands.on(
        "apt-get", "update", rc=100, err="E: Failed to fetch http://deb.debian.org/InRelease  Unable to connect\n"
    )
    with pytest.raises(SocleError, match=r"Cannot read the package lists: Failed to fetch .*Unable to connect"):
        plan(commands, request(), NOTHING, tmp_path)


def test_a_distribution_without_engines_is_a_sentence(commands: Commands, tmp_path: Path) -> None:
    offer(commands, {}, tmp_path)
    with pytest.raises(SocleError, match="offer no Podman and no Docker"):
        plan(commands, request(), NOTHING, tmp_path)


def test_the_rpm_familys_podman_brings_its_init_along(commands: Commands, tmp_path: Path) -> None:
    commands.on("dnf", "repoquery", out="\n")
    rocky = request(id="rocky", id_like=["rhel"])
    assert plan(commands, rocky, {"podman": "5.6.0", "docker": None}, tmp_path)["packages"] == {}


def test_the_rpm_family_is_asked_by_dnf(commands: Commands, tmp_path: Path) -> None:
    commands.on("dnf", "repoquery", out="podman 5.6.0\ncatatonit 0.1.7\n")
    found = plan(commands, request(id="rocky", id_like=["rhel", "centos", "fedora"]), NOTHING, tmp_path)
    assert (found["engine"], found["version"], found["family"]) == ("podman", "5.6.0", "redhat")
    assert found["packages"] == {"podman": "", "catatonit": ""}


@pytest.mark.parametrize(
    ("os", "expected"),
    [
        ({"id": "debian", "id_like": []}, "debian"),
        ({"id": "ubuntu", "id_like": ["debian"]}, "debian"),
        ({"id": "linuxmint", "id_like": ["ubuntu", "debian"]}, "debian"),
        ({"id": "rhel", "id_like": ["fedora"]}, "redhat"),
        ({"id": "almalinux", "id_like": ["rhel", "centos", "fedora"]}, "redhat"),
    ],
)
def test_relatives_count_as_their_family(os: dict[str, Any], expected: str) -> None:
    assert family(os) == expected


def test_an_unknown_system_is_a_sentence() -> None:
    with pytest.raises(SocleError, match="Cannot choose packages for arch"):
        family({"id": "arch", "id_like": []})


def test_a_file_with_other_sources_too_is_not_removed(commands: Commands, tmp_path: Path) -> None:
    offer(commands, BOOKWORM_OFFERS, tmp_path)
    folder = tmp_path / "etc/apt/sources.list.d"
    folder.mkdir(parents=True)
    docker = "deb https://download.docker.com/linux/debian bookworm stable\n"
    (folder / "docker.list").write_text(docker)
    asked = request("docker", source="docker", codename="bookworm")
    assert plan(commands, asked, NOTHING, tmp_path)["repository"]["replaces"] == ["/etc/apt/sources.list.d/docker.list"]
    (folder / "mixed.list").write_text(docker + "deb https://me:secret@example.org/x stable main\n")
    with pytest.raises(SocleError, match=r"mixed.list: the file also has https://example.org/x"):
        plan(commands, asked, NOTHING, tmp_path)


@pytest.mark.parametrize(
    ("source", "new", "named"), [("docker", True, True), ("docker", False, False), ("distribution", True, False)]
)
def test_a_new_address_of_dockers_repository_is_work_without_a_package(
    source: str, new: bool, named: bool, commands: Commands, tmp_path: Path
) -> None:
    there = {"podman": None, "docker": "28.1.1"}
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/docker").touch()
    found = plan(commands, request("docker", source), there, tmp_path, moved=lambda _repository: new)
    assert (found["repository"] is not None) is named and found["packages"] == {} and found["source"] == "installed"
