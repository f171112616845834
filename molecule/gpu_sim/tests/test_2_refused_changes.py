# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of an installed driver that cannot work: one sentence, and the host stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import gpu_sim

HOST = "sim-a100"


@pytest.fixture
def unchanged() -> Iterator[None]:
    before = gpu_sim.fingerprint(HOST)
    yield
    assert gpu_sim.fingerprint(HOST) == before


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param(
            {"gpu_driver_version": "580.999.01"},
            [
                "Driver 580.999.01 is not in http://sim-repo:8091/",
                "580.178.04",
                "gpu_driver_version",
                "Nothing was changed.",
            ],
            id="a version that does not exist",
        ),
        pytest.param(
            {"gpu_driver_version": "580.178.04", "gpu_driver_repository_url": "http://sim-repo:1/repos"},
            [
                "http://sim-repo:1/repos/debian13/x86_64/",
                "refused",
                "gpu_driver_repository_url",
                "Nothing was changed.",
            ],
            id="a mirror that does not answer",
        ),
        pytest.param(
            {"gpu_driver_version": "580.95.05"},
            [
                "SOC-H20",
                "driver 580.95.05 do not build on kernel 6.12.117",
                "580.126.09 or newer",
                "Nothing was changed.",
            ],
            id="sources that do not fit the kernel",
        ),
        pytest.param(
            {"gpu_container_toolkit_version": "1.19.0"},
            ["SOC-H02", "1.19.0", "multi-user.target", "1.20.0 or newer"],
            id="the toolkit with the ordering cycle",
        ),
        pytest.param(
            {"gpu_container_toolkit_version": "1.18.2"},
            ["older 1.18.2", "gpu_container_toolkit_downgrade", "Nothing was changed."],
            id="an older toolkit",
        ),
        pytest.param(
            {"gpu_container_toolkit_version": "1.21.7"},
            ["1.21.7-1", "offers 1.20.0-1", "Nothing was changed."],
            id="a toolkit that does not exist",
        ),
    ],
)
@pytest.mark.usefixtures("unchanged")
def test_one_sentence_and_no_change(values: dict[str, Any], words: list[str]) -> None:
    sentence = gpu_sim.refusal(gpu_sim.provision(HOST, **values), HOST)
    assert [word for word in words if word not in sentence] == [], sentence


def test_a_hold_of_somebody_else_is_respected() -> None:
    gpu_sim.on(HOST, "apt-get -qqy install nvidia-imex=580.126.09-1 >/dev/null 2>&1; apt-mark hold nvidia-imex")
    try:
        before = gpu_sim.fingerprint(HOST)
        sentence = gpu_sim.refusal(gpu_sim.provision(HOST, gpu_driver_version="580.178.04"), HOST)
        assert "nvidia-imex is held" in sentence and "apt-mark unhold nvidia-imex" in sentence
        assert gpu_sim.fingerprint(HOST) == before
    finally:
        gpu_sim.on(HOST, "apt-mark unhold nvidia-imex; apt-get -qqy purge nvidia-imex >/dev/null 2>&1")
