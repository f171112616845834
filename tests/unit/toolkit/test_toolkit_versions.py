# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which versions are refused, and what engines read of CDI."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import (
    cdi_limit,
    check_toolkit_version,
    engine_version,
    needs_plain_gids,
    plain,
)

from tests.support.commands import Commands


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.19.0", "ordering cycle"),
        ("1.17.7", "lose their CUDA compatibility libraries"),
        ("1.17.8", "no nvidia-cdi-refresh unit"),
        ("1.14.6", "no nvidia-cdi-refresh unit"),
        ("latest", "expected three numbers"),
        ("1.20", "expected three numbers"),
        ("", "expected three numbers"),
    ],
)
def test_versions_that_break_hosts_are_refused_with_the_reason(version: str, reason: str) -> None:
    with pytest.raises(ToolkitError, match=reason):
        check_toolkit_version(version)


@pytest.mark.parametrize("version", ["1.18.0", "1.18.2", "1.19.1", "1.20.0", "1.21.3"])
def test_other_versions_are_taken(version: str) -> None:
    assert check_toolkit_version(version) == tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    ("engine", "version", "limit"),
    [
        ("podman", "3.4.4", (0, 0, 0)),
        ("podman", "4.3.1", (0, 5, 0)),
        ("podman", "4.6.2", (0, 5, 0)),
        ("podman", "4.9.3", (0, 6, 0)),
        ("podman", "5.0.3", (0, 6, 0)),
        ("podman", "5.1.0", (0, 7, 0)),
        ("podman", "5.4.2", (0, 8, 0)),
        ("podman", "5.8.2", None),
        ("docker", "20.10.24", (0, 0, 0)),
        ("docker", "25.0.5", (0, 6, 0)),
        ("docker", "26.1.5", None),
        ("docker", "", None),
    ],
)
def test_how_new_a_description_an_engine_reads(engine: str, version: str, limit: tuple[int, int, int] | None) -> None:
    assert cdi_limit(engine, version) == limit


@pytest.mark.parametrize(
    ("engine", "version", "toolkit", "needed"),
    [
        ("podman", "4.9.3", "1.20.0", True),
        ("podman", "4.9.3", "1.18.2", False),
        ("podman", "5.0.9", "1.19.1", True),
        ("podman", "5.1.0", "1.20.0", False),
        ("docker", "25.0.5", "1.20.0", True),
        ("docker", "26.0.2", "1.20.0", True),
        ("docker", "26.1.0", "1.20.0", False),
        ("docker", "", "1.20.0", False),
    ],
)
def test_only_engines_that_reject_additional_gids_get_the_flag(
    engine: str, version: str, toolkit: str, needed: bool
) -> None:
    assert needs_plain_gids(engine, version, toolkit) is needed


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("4.3.1+ds1-8+deb12u1+b3", "4.3.1"),
        ("20.10.24+dfsg1-1+deb12u1+b6", "20.10.24"),
        ("5:28.1.1-1~debian.12~bookworm", "28.1.1"),
        ("", ""),
    ],
)
def test_package_versions_are_shown_as_the_engines_spell_them(version: str, upstream: str) -> None:
    assert plain(version) == upstream


def test_docker_is_what_its_daemon_says_and_not_a_client_of_that_name(commands: Commands) -> None:
    commands.on("/usr/sbin/dockerd", "--version", out="Docker version 26.1.5+dfsg1, build 411e817\n")
    commands.on("/usr/bin/docker", "--version", out="podman version 5.4.2\n")
    assert engine_version(commands, "docker", {"docker": "/usr/bin/docker"}.get) is None
    assert engine_version(commands, "docker", {"dockerd": "/usr/sbin/dockerd"}.get) == "26.1.5"
    commands.on("/usr/bin/podman", "--version", out="podman version 5.4.2\n")
    assert engine_version(commands, "podman", {"podman": "/usr/bin/podman"}.get) == "5.4.2"


@pytest.mark.parametrize("file", ["containers.conf.d/50-socle.conf", "registries.conf"])
def test_a_podman_that_would_wait_for_a_pipe_is_not_asked(commands: Commands, tmp_path: Path, file: str) -> None:
    pipe = tmp_path / "etc/containers" / file
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    programs = {"podman": "/usr/bin/podman", "dockerd": "/usr/sbin/dockerd"}.get
    with pytest.raises(ToolkitError, match=f"Cannot use Podman: /etc/containers/{file} is a pipe, not a file, which"):
        engine_version(commands, "podman", programs, tmp_path)
    assert not commands.calls
    engine_version(commands, "docker", programs, tmp_path)
    assert commands.calls == [["/usr/sbin/dockerd", "--version"]]
