# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrades: one transaction, at most one reboot, everything at one version afterwards, and no way back in place."""

from __future__ import annotations

import pytest

from tests.support import gpu_sim


def assert_driver(host: str, version: str) -> None:
    found = gpu_sim.packages(host)
    # The package that pins a branch has the version of the branch's newest driver.
    pins = "nvidia-driver-pinning-"
    versions = {name: each for name, (each, _status) in found.items() if not name.startswith(pins)}
    driver = {each for each in versions.values() if each.startswith(("5", "6"))}
    assert driver == {f"{version}-1"}
    assert {status for _version, status in found.values()} == {"hi"}
    assert gpu_sim.on(host, f"cat {gpu_sim.TREE}/sys/module/nvidia/version").strip() == version
    spec = gpu_sim.on(host, "cat /run/cdi/nvidia.yaml")
    assert f"libcuda.so.{version}" in spec
    assert spec.count("libcuda.so.5") == spec.count(f"libcuda.so.{version}")


def test_check_mode_tells_of_the_reboot_and_changes_nothing() -> None:
    host = "sim-a100"
    gpu_sim.start_container(host, "user")
    try:
        before = gpu_sim.fingerprint(host)
        wanted = {"gpu_driver_version": "580.178.04", "gpu_driver_reboot": "force"}
        run = gpu_sim.provision(host, "--check", "--diff", **wanted).expect_success()
        text = " ".join(run.output.split())
        assert "580.126.09" in text and "580.178.04" in text
        assert "reboot would be needed because" in text
        assert gpu_sim.fingerprint(host) == before
    finally:
        gpu_sim.stop_container(host, "user")


def test_an_upgrade_under_a_container_of_somebody_else_is_refused_and_with_force_reboots_once() -> None:
    host = "sim-a100"
    gpu_sim.start_container(host, "user")
    try:
        before, boots = gpu_sim.fingerprint(host), gpu_sim.boots(host)
        sentence = gpu_sim.refusal(gpu_sim.provision(host, gpu_driver_version="580.178.04"), host)
        assert "uses a GPU" in sentence and "gpu_driver_reboot: force" in sentence
        assert gpu_sim.fingerprint(host) == before
        run = gpu_sim.provision(host, gpu_driver_version="580.178.04", gpu_driver_reboot="force").expect_success()
        assert gpu_sim.boots(host) == boots + 1, run.output
        assert_driver(host, "580.178.04")
    finally:
        gpu_sim.stop_container(host, "user")


def test_an_upgrade_of_an_idle_host_needs_no_reboot() -> None:
    host = "sim-a800"
    before = gpu_sim.boots(host)
    run = gpu_sim.provision(host, gpu_driver_version="580.178.04").expect_success()
    assert gpu_sim.boots(host) == before, run.output
    assert_driver(host, "580.178.04")


def test_another_branch_takes_fabric_manager_along() -> None:
    host = "sim-h200"
    before = gpu_sim.boots(host)
    gpu_sim.provision(host, gpu_driver_version="", gpu_driver_branch="595").expect_success()
    assert gpu_sim.boots(host) <= before + 1
    assert_driver(host, "595.91.07")
    assert gpu_sim.packages(host)["nvidia-fabricmanager"][0] == "595.91.07-1"
    assert gpu_sim.on(host, "systemctl is-active nvidia-fabricmanager").strip() == "active"
    states = gpu_sim.on(host, "nvidia-smi --query-gpu=fabric.state --format=csv,noheader").split()
    assert states == ["Completed"] * 8
    assert gpu_sim.provision(host, gpu_driver_version="", gpu_driver_branch="595").expect_success().changed == 0


@pytest.mark.parametrize(
    ("host", "values", "installed"),
    [
        ("sim-a100", {"gpu_driver_version": "580.159.03"}, "580.178.04"),
        ("sim-h200", {"gpu_driver_version": "", "gpu_driver_branch": "580"}, "595.91.07"),
    ],
)
def test_a_downgrade_is_refused(host: str, values: dict[str, str], installed: str) -> None:
    before = gpu_sim.fingerprint(host)
    sentence = gpu_sim.refusal(gpu_sim.provision(host, **values), host)
    assert (
        f"Driver {installed} is installed" in sentence
        and "older" in sentence
        and "gpu_driver_state: absent" in sentence
    )
    assert gpu_sim.fingerprint(host) == before


def test_a_branch_is_not_upgraded_unasked() -> None:
    # The first run only pins the branch instead of the version.
    for changed in (1, 0):
        run = gpu_sim.provision("sim-pro6000", gpu_driver_version="", gpu_driver_branch="580").expect_success()
        assert run.changed == changed
    assert_driver("sim-pro6000", "580.126.09")
