# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removal, and what is refused on the bare host that it leaves: one sentence, nothing half-installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import gpu_sim

HOST = "sim-pro6000"
GPU = f"{gpu_sim.TREE}/sys/bus/pci/devices/0000:01:00.0"
SECURE_BOOT = f"{gpu_sim.TREE}/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
PPA = "/etc/apt/sources.list.d/graphics-drivers-ubuntu-ppa-noble.list"


def test_removal_leaves_nothing_behind() -> None:
    run = gpu_sim.provision(HOST, gpu_driver_state="absent", gpu_container_toolkit_state="absent")
    run.expect_success()
    assert gpu_sim.packages(HOST) == {}
    assert gpu_sim.on(HOST, "apt-mark showhold") == ""
    assert gpu_sim.specs(HOST) == []
    assert "nvidia" not in gpu_sim.on(HOST, f"ls {gpu_sim.TREE}/sys/module")
    left = gpu_sim.on(HOST, "grep -rlis nvidia /etc --include='*' || true").split()
    own = "/etc/systemd/system/nvidia-cdi-refresh.path.d/simulated-kernel.conf"
    assert [path for path in left if (path != own and "/apt/sources" in path) or "socle" in path] == []
    again = gpu_sim.provision(HOST, gpu_driver_state="absent", gpu_container_toolkit_state="absent").expect_success()
    assert again.changed == 0


@pytest.mark.parametrize(
    ("before", "after", "values", "words"),
    [
        pytest.param(
            "true",
            "true",
            {"gpu_driver_repository_url": "http://sim-repo:1/repos"},
            ["http://sim-repo:1/repos/debian13/x86_64/", "refused", "gpu_driver_repository_url"],
            id="a mirror that does not answer",
        ),
        pytest.param(
            "true",
            "true",
            {"gpu_driver_version": "580.999.01"},
            ["Driver 580.999.01 is not in", "580.178.04", "gpu_driver_version"],
            id="a version that does not exist",
        ),
        pytest.param(
            f"echo 'deb https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu noble main' >{PPA}",
            f"rm {PPA}",
            {},
            ["SOC-H22", PPA],
            id="mixed repositories",
        ),
        pytest.param(
            f"mkdir -p $(dirname {SECURE_BOOT}); printf '\\006\\000\\000\\000\\001' >{SECURE_BOOT}",
            f"rm {SECURE_BOOT}",
            {},
            ["SOC-H26", "Secure Boot"],
            id="Secure Boot without an enrolled key",
        ),
        pytest.param(
            f"echo 0x9999 >{GPU}/device",
            f"echo 0x2bb1 >{GPU}/device",
            {},
            ["10de:9999", "profiles/host_classes"],
            id="a GPU of an unknown id",
        ),
        pytest.param(
            "printf '#!/bin/sh\\n' >/usr/bin/nvidia-uninstall; chmod +x /usr/bin/nvidia-uninstall",
            "rm /usr/bin/nvidia-uninstall",
            {},
            ["/usr/bin/nvidia-uninstall"],
            id="a driver without packages",
        ),
        pytest.param(
            "true",
            "true",
            {"gpu_driver_flavour": "proprietary"},
            ["proprietary", "open"],
            id="modules that do not bind this generation",
        ),
    ],
)
def test_one_sentence_and_no_change(before: str, after: str, values: dict[str, Any], words: list[str]) -> None:
    gpu_sim.on(HOST, before)
    try:
        found = gpu_sim.fingerprint(HOST)
        sentence = gpu_sim.refusal(gpu_sim.provision(HOST, **values), HOST)
        assert gpu_sim.fingerprint(HOST) == found
    finally:
        gpu_sim.on(HOST, after)
    assert [word for word in words if word not in sentence] == [], sentence


def test_the_bare_host_can_be_provisioned_again() -> None:
    gpu_sim.provision(HOST, gpu_driver_version="580.178.04").expect_success()
    assert len(gpu_sim.uuids(gpu_sim.on(HOST, "nvidia-smi -L"))) == 1
