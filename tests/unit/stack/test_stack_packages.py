# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages, sources and foreign drivers, of hosts of both package families."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import (
    foreign_installs,
    is_installed,
    read_packages,
    read_sources,
    read_version_locks,
    source_kind,
    upstream_version,
)

DPKG = (
    "nvidia-open\t580.159.04-1\thold\tinstalled\n"
    "nvidia-kernel-open-dkms\t580.159.04-1\tinstall\thalf-configured\n"
    "libnvidia-ml1\t580.159.04-1\tinstall\tinstalled\n"
    "libnvidia-ml1\t550.163.01-1\tdeinstall\tconfig-files\n"
    "nvidia-driver\t\tunknown\tnot-installed\n"
    "nvidia-container-toolkit\t\thold\tnot-installed\n"
)
RPM = (
    "nvidia-driver\t3:580.159.04-1.el9\tx86_64\n"
    "kernel-devel\t5.14.0-611.el9\tx86_64\n"
    "kernel-devel\t5.14.0-570.el9\tx86_64\n"
    "podman\t5:5.6.0-1.el9\tx86_64\n"
)


class Host:
    """Files below a root, and answers by the first two words of a command; others are not installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.answers: dict[tuple[str, str], tuple[int, str, str]] = {}
        self.asked: list[list[str]] = []

    def write(self, name: str, text: str = "") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        self.asked.append(list(argv))
        return self.answers.get((argv[0], argv[1]))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_dpkg_tells_version_state_and_hold(host: Host) -> None:
    # 1: some pattern matched nothing.
    host.answers["dpkg-query", "-W"] = (1, DPKG, "no packages found matching crun")
    packages = read_packages(host.run, host.root)
    assert packages == {
        "nvidia-open": {"version": "580.159.04-1", "status": "installed", "held": True},
        "nvidia-kernel-open-dkms": {"version": "580.159.04-1", "status": "half-configured", "held": False},
        "libnvidia-ml1": {"version": "580.159.04-1", "status": "installed", "held": False},
        "nvidia-container-toolkit": {"version": "", "status": "not-installed", "held": True},
    }
    assert len(host.asked) == 1
    assert is_installed(packages, "nvidia-open")
    assert not is_installed(packages, "nvidia-kernel-open-dkms")
    assert not is_installed(packages, "nvidia-container-toolkit")


def test_rpm_tells_the_newest_version_and_the_lock(host: Host) -> None:
    host.answers["rpm", "-qa"] = (0, RPM, "")
    host.write("etc/dnf/plugins/versionlock.list", "# Added by lock command\nnvidia-driver-3:580.159.04-1.el9.*\n")
    assert read_packages(host.run, host.root) == {
        "nvidia-driver": {"version": "3:580.159.04-1.el9", "status": "installed", "held": True},
        "kernel-devel": {"version": "5.14.0-611.el9", "status": "installed", "held": False},
        "podman": {"version": "5:5.6.0-1.el9", "status": "installed", "held": False},
    }


@pytest.mark.parametrize("pattern", ["*nvidia*580*", "nvidia-driver", "nvidia-driver-580.159.04-1.el9.x86_64"])
def test_a_lock_may_be_spelt_in_several_ways(host: Host, pattern: str) -> None:
    host.answers["rpm", "-qa"] = (0, RPM, "")
    host.write("etc/dnf/plugins/versionlock.list", pattern + "\n")
    packages = read_packages(host.run, host.root)
    assert packages["nvidia-driver"]["held"]
    assert not packages["podman"]["held"]


def test_locks_of_dnf_5_count_and_exclusions_do_not(host: Host) -> None:
    host.write("etc/dnf/versionlock.toml", 'version = "1.0"\n[[packages]]\nname = "nvidia-driver"\ncomment = "x"\n')
    host.write("etc/dnf/plugins/versionlock.list", "!podman-0:5.7-1.*\n")
    assert read_version_locks(host.root) == ["nvidia-driver"]


@pytest.mark.parametrize(
    ("release", "database", "family"),
    [
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "", "rpm"),
        ("ID=fedora\n", "Package: dpkg\n", "rpm"),
        ("ID=debian\n", "Package: dpkg\n", "dpkg"),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\n", "", "dpkg"),
        ("ID=unheard-of\n", "Package: dpkg\n", "dpkg"),
    ],
)
def test_the_database_of_the_system_is_asked_and_no_other(host: Host, release: str, database: str, family: str) -> None:
    """On a host that has the tools of both."""
    host.write("etc/os-release", release)
    host.write("var/lib/dpkg/status", database)
    host.answers["dpkg-query", "-W"] = (0, DPKG, "")
    host.answers["rpm", "-qa"] = (0, RPM, "")
    packages = read_packages(host.run, host.root)
    assert ("nvidia-driver" in packages) is (family == "rpm")
    assert ("nvidia-open" in packages) is (family == "dpkg")
    assert len(host.asked) == 1


def test_a_file_of_an_rpm_is_no_foreign_one_because_dpkg_is_there_too(host: Host) -> None:
    host.write("etc/os-release", "ID=fedora\n")
    host.write("usr/lib64/libnvidia-ml.so.580.159.04")
    host.answers["dpkg-query", "-S"] = (1, "", "no path found")
    host.answers["rpm", "-qf"] = (0, "nvidia-libs", "")
    assert foreign_installs(host.run, host.root, {}) == []


def test_a_host_with_neither_package_manager_has_no_packages(host: Host) -> None:
    assert read_packages(host.run, host.root) == {}


def test_sources_of_all_three_forms_are_read_and_disabled_ones_are_not(host: Host) -> None:
    host.write("etc/apt/sources.list", "# deb http://x.example/debian trixie main\n")
    host.write(
        "etc/apt/sources.list.d/cuda-debian13-x86_64.list",
        "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg]"
        " https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/ /\n",
    )
    host.write(
        "etc/apt/sources.list.d/debian.sources",
        "Types: deb deb-src\nURIs: http://deb.debian.org/debian\n http://mirror.example/debian\nSuites: trixie\n"
        "\nEnabled: no\nTypes: deb\nURIs: http://off.example/debian\n",
    )
    host.write(
        "etc/yum.repos.d/cuda-rhel9.repo",
        "[cuda]\nbaseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64\n"
        "[off]\nbaseurl=https://off.example\nenabled=0\n",
    )
    assert [(source["file"], source["uri"], source["kind"]) for source in read_sources(host.root)] == [
        (
            "/etc/apt/sources.list.d/cuda-debian13-x86_64.list",
            "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/",
            "nvidia-cuda",
        ),
        ("/etc/apt/sources.list.d/debian.sources", "http://deb.debian.org/debian", "distribution"),
        ("/etc/apt/sources.list.d/debian.sources", "http://mirror.example/debian", "distribution"),
        (
            "/etc/yum.repos.d/cuda-rhel9.repo",
            "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64",
            "nvidia-cuda",
        ),
    ]


@pytest.mark.parametrize(
    ("file", "uri", "kind"),
    [
        ("x.list", "https://nvidia.github.io/libnvidia-container/stable/deb/amd64", "nvidia-toolkit"),
        ("x.repo", "http://10.0.0.1/libnvidia-container/stable/rpm/x86_64", "nvidia-toolkit"),
        ("nvidia-container-toolkit.sources", "http://mirror.example/nct", "nvidia-toolkit"),
        (
            "libnvidia-container.list",
            "https://nvidia.github.io/libnvidia-container/stable/deb/amd64",
            "nvidia-docker-old",
        ),
        ("x.list", "https://nvidia.github.io/libnvidia-container/stable/ubuntu18.04/amd64", "nvidia-docker-old"),
        ("nvidia-docker.list", "https://nvidia.github.io/nvidia-docker/ubuntu18.04/amd64", "nvidia-docker-old"),
        ("cuda-debian13.sources", "http://mirror.example/nv", "nvidia-cuda"),
        ("x.list", "file:///var/nvidia-driver-local-repo-debian13-580.159.04", "nvidia-local"),
        ("g.list", "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu", "ppa"),
        ("docker.list", "https://download.docker.com/linux/debian", "docker"),
        ("x.list", "https://mirror.example/docker-ce/linux/debian", "docker"),
        ("sources.list", "http://security.debian.org/debian-security", "distribution"),
        ("rocky.repo", "https://mirrors.rockylinux.org/mirrorlist?arch=x86_64", "distribution"),
        ("negativo17.repo", "https://negativo17.org/repos/nvidia/epel-9/x86_64/", "other"),
    ],
)
def test_a_source_is_known_by_address_or_file(file: str, uri: str, kind: str) -> None:
    assert source_kind(f"/etc/apt/sources.list.d/{file}", uri) == kind


def test_a_pipe_among_the_sources_keeps_nothing_waiting(host: Host) -> None:
    folder = host.root / "etc/apt/sources.list.d"
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "a.list")
    os.mkfifo(folder / "b.sources")
    assert read_sources(host.root) == []


def test_an_uninstaller_without_owner_is_a_runfile_install(host: Host) -> None:
    host.write("usr/bin/nvidia-uninstall")
    host.answers["dpkg-query", "-S"] = (1, "", "no path found")
    assert foreign_installs(host.run, host.root, {}) == [
        {"kind": "runfile", "evidence": "/usr/bin/nvidia-uninstall belongs to no package"}
    ]
    host.answers["dpkg-query", "-S"] = (0, "nvidia-installer: /usr/bin/nvidia-uninstall", "")
    assert foreign_installs(host.run, host.root, {}) == []


def test_libraries_that_no_package_brought_are_foreign(host: Host) -> None:
    host.write("usr/lib64/libnvidia-ml.so.580.159.04")
    host.answers["rpm", "-qf"] = (1, "not owned by any package", "")
    assert [found["kind"] for found in foreign_installs(host.run, host.root, {})] == ["unpackaged"]
    host.write("var/log/nvidia-installer.log")
    assert [found["kind"] for found in foreign_installs(host.run, host.root, {})] == ["runfile"]
    packages = {"nvidia-driver-cuda-libs": {"version": "3:580-1", "status": "installed", "held": False}}
    assert foreign_installs(host.run, host.root, packages) == []


def test_the_log_of_a_removed_runfile_install_says_nothing(host: Host) -> None:
    host.write("var/log/nvidia-installer.log")
    assert foreign_installs(host.run, host.root, {}) == []
    assert host.asked == []


def test_upstream_versions_are_bare() -> None:
    assert upstream_version("3:580.159.04-1.el9") == "580.159.04"
    assert upstream_version("580.159.04-0ubuntu0.24.04.1") == "580.159.04"
    assert upstream_version("") == ""
