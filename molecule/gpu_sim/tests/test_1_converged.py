# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What provisioning leaves on hosts of each shape and engine."""

from __future__ import annotations

import pytest

from tests.support import gpu_sim

VERSION = "580.126.09"
TOOLKIT = "1.20.0"
GPUS = {"sim-a100": 2, "sim-a800": 2, "sim-pro6000": 1, "sim-h200": 8}
HOSTS = list(GPUS)


@pytest.mark.parametrize("host", HOSTS)
def test_one_version_of_the_open_driver_runs(host: str) -> None:
    found = gpu_sim.packages(host)
    driver = {name: version for name, (version, _status) in found.items() if version.startswith(("5", "6"))}
    assert set(driver.values()) == {f"{VERSION}-1"}
    assert "nvidia-kernel-open-dkms" in driver and "nvidia-kernel-dkms" not in driver
    assert {status for _version, status in found.values()} == {"hi"}  # held and installed
    assert gpu_sim.on(host, f"cat {gpu_sim.TREE}/sys/module/nvidia/version").strip() == VERSION
    assert "Open Kernel Module" in gpu_sim.on(host, f"cat {gpu_sim.TREE}/proc/driver/nvidia/version")
    assert len(gpu_sim.uuids(gpu_sim.on(host, "nvidia-smi -L"))) == GPUS[host]
    assert gpu_sim.on(host, "systemctl list-units --failed --plain --no-legend") == ""


@pytest.mark.parametrize("host", HOSTS)
def test_apt_would_take_no_other_version(host: str) -> None:
    simulated = gpu_sim.on(host, "apt-get -qq update; apt-get -s dist-upgrade; apt-get -s install nvidia-driver-cuda")
    assert "Inst nvidia" not in simulated and "Inst libnvidia" not in simulated and "Inst libcuda" not in simulated


@pytest.mark.parametrize("host", HOSTS)
def test_the_driver_stays_initialised(host: str) -> None:
    assert gpu_sim.on(host, "systemctl is-active nvidia-persistenced").strip() == "active"
    modes = gpu_sim.on(host, "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader").split()
    assert set(modes) == {"Enabled"}


@pytest.mark.parametrize("host", HOSTS)
def test_fabric_manager_is_only_where_an_nvswitch_is(host: str) -> None:
    found = gpu_sim.packages(host)
    if host != "sim-h200":
        assert not [name for name in found if "fabric" in name or "nscq" in name or "nvsdm" in name or name == "nvlsm"]
        return
    assert found["nvidia-fabricmanager"][0] == f"{VERSION}-1"
    assert gpu_sim.on(host, "systemctl is-enabled nvidia-fabricmanager").strip() == "enabled"
    states = gpu_sim.on(host, "nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv,noheader").splitlines()
    assert states == ["Completed, Success"] * 8


def test_nouveau_gives_its_gpus_away_by_one_reboot() -> None:
    assert gpu_sim.boots("sim-a800") == 1
    assert gpu_sim.on("sim-a800", f"ls {gpu_sim.TREE}/sys/module").split() == ["nvidia", "nvidia_uvm"]
    assert [gpu_sim.boots(host) for host in HOSTS if host != "sim-a800"] == [0, 0, 0]


@pytest.mark.parametrize("host", HOSTS)
def test_the_toolkit_is_of_one_version(host: str) -> None:
    found = gpu_sim.packages(host)
    names = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools")
    assert {found[name][0] for name in (*names, "libnvidia-container1")} == {f"{TOOLKIT}-1"}


@pytest.mark.parametrize("host", HOSTS)
def test_containers_see_the_gpus_of_the_host(host: str) -> None:
    assert [str(path) for path in gpu_sim.specs(host)] == ["/run/cdi/nvidia.yaml"]
    run = gpu_sim.start_container(host, "seen")
    try:
        inside = gpu_sim.uuids(gpu_sim.on(host, f"{run} nvidia-smi -L"))
    finally:
        gpu_sim.stop_container(host, "seen")
    assert inside == gpu_sim.uuids(gpu_sim.on(host, "nvidia-smi -L"))
    assert len(inside) == GPUS[host]


@pytest.mark.parametrize("host", HOSTS)
def test_a_single_gpu_is_given_by_its_uuid(host: str) -> None:
    wanted = gpu_sim.uuids(gpu_sim.on(host, "nvidia-smi -L"))[-1]
    run = (
        f"{gpu_sim.engine(host)} run --rm --network=none --device nvidia.com/gpu={wanted} {gpu_sim.TOOLS} nvidia-smi -L"
    )
    assert gpu_sim.uuids(gpu_sim.on(host, run)) == [wanted]


@pytest.mark.parametrize("host", HOSTS)
def test_systemd_takes_no_device_away(host: str) -> None:
    run = gpu_sim.start_container(host, "kept")
    try:
        look = f"{run} ls -l /dev | grep nvidia; {run} nvidia-smi -L"
        before = gpu_sim.on(host, look)
        assert len(gpu_sim.uuids(before)) == GPUS[host]
        assert gpu_sim.on(host, f"for i in $(seq 20); do systemctl daemon-reload; done; {look}") == before
        # What systemd applies anew at each reload: a device that is missing here would be lost.
        scope = {"podman": "libpod", "docker": "docker"}[gpu_sim.engine(host)]
        identity = gpu_sim.on(host, f"{gpu_sim.engine(host)} inspect -f '{{{{.Id}}}}' kept").strip()
        allowed = gpu_sim.on(host, f"systemctl show {scope}-{identity}.scope --property=DeviceAllow")
        for major, minor in [(195, 255), (238, 0), *((195, gpu) for gpu in range(GPUS[host]))]:
            assert f"/dev/char/{major}:{minor} " in allowed or f"char-{major} " in allowed
    finally:
        gpu_sim.stop_container(host, "kept")


def test_an_engine_that_is_too_old_is_refused_before_anything_changes() -> None:
    before = gpu_sim.fingerprint("sim-deb12")
    run = gpu_sim.provision("sim-deb12")
    assert gpu_sim.refusal(run, "sim-deb12") == (
        "Cannot give GPUs to containers on sim-deb12: found Podman 4.3.1 and Docker 20.10.24, expected Podman 4.6 or "
        "Docker 25 or newer; upgrade the operating system for a newer one, or set container_engine to docker and "
        "container_engine_docker_source to docker for Docker's own packages, and run playbook provision.yml."
    )
    assert gpu_sim.fingerprint("sim-deb12") == before


def test_a_run_without_work_is_short() -> None:
    run = gpu_sim.provision("sim-a100").expect_success()
    assert run.changed == 0
    print(f"provision without work: {run.seconds:.1f} s")
