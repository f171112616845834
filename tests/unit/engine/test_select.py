# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container engine runs the instances of a host, and the sentence where none can."""

from __future__ import annotations

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine.select import parse_version, select
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

DEBIAN_12 = {"podman": "4.3.1", "docker": "20.10.24"}
DEBIAN_13 = {"podman": "5.4.2", "docker": "26.1.5"}


@pytest.mark.parametrize(
    ("wanted", "engines", "needs_cdi", "engine"),
    [
        ("auto", DEBIAN_13, True, "podman"),
        ("auto", DEBIAN_13, False, "podman"),
        ("docker", DEBIAN_13, True, "docker"),
        ("podman", DEBIAN_13, True, "podman"),
        ("auto", {"podman": None, "docker": "26.1.5"}, True, "docker"),
        ("auto", {"podman": "4.3.1", "docker": "25.0.0"}, True, "docker"),
        ("auto", {"podman": "4.6.0", "docker": "25.0.0"}, True, "podman"),
        ("auto", DEBIAN_12, False, "docker"),
        ("auto", {"docker": "28.0.0-ce"}, True, "docker"),
        ("auto", {"podman": "4.9.4-rhel", "docker": None}, True, "podman"),
    ],
)
def test_the_engine_that_suits_is_taken(
    wanted: str, engines: dict[str, str | None], needs_cdi: bool, engine: str
) -> None:
    assert select(wanted, engines, needs_cdi) == engine


def test_debian_12_cannot_give_gpus_to_containers_and_the_sentence_says_the_way_out() -> None:
    with pytest.raises(EngineError) as caught:
        select("auto", DEBIAN_12, True, "gpu-7")
    assert caught.value.message.startswith(
        "Cannot give GPUs to containers on gpu-7: found Podman 4.3.1 and Docker 20.10.24, expected Podman 4.6 or Docker"
        " 25 or newer; "
    )
    assert "container_engine_docker_source" in caught.value.message


@pytest.mark.parametrize(
    ("wanted", "engines", "needs_cdi", "sentence"),
    [
        ("auto", {}, False, "found no Podman and no Docker, expected Podman 4.6 or Docker 20.10 or newer; install one"),
        ("podman", {"podman": "4.3.1", "docker": "26.1.5"}, True, "found Podman 4.3.1, expected Podman 4.6 or newer;"),
        ("podman", {"podman": "4.3.1", "docker": "26.1.5"}, True, "set container_engine to auto or docker"),
        ("docker", {"docker": "24.0.9"}, True, "found Docker 24.0.9, expected Docker 25 or newer"),
        ("docker", {"docker": "19.03.15"}, False, "Cannot run containers on this host: found Docker 19.03.15"),
        ("auto", {"podman": "unknown"}, False, "found Podman unknown"),
        ("containerd", DEBIAN_13, False, "expected auto, podman or docker"),
    ],
)
def test_a_host_without_a_suitable_engine_is_refused(
    wanted: str, engines: dict[str, str | None], needs_cdi: bool, sentence: str
) -> None:
    with pytest.raises(EngineError) as caught:
        select(wanted, engines, needs_cdi)
    assert sentence in caught.value.message


def test_versions_of_distributions_are_read() -> None:
    assert parse_version("Docker version 26.1.5+dfsg1, build a72d7cd") == (26, 1, 5)
    assert parse_version("podman version 5.4.2-dev") == (5, 4, 2)
    assert parse_version("20.10") == (20, 10, 0)
    assert parse_version(None) is None
