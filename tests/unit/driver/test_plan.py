# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a driver on Debian, from what dpkg and apt say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import (
    LEDGER,
    Plan,
    foresee,
    plan,
    plan_as_is,
    summary,
    verification,
)

from .fake_host import KERNEL, FakeHost, facts

BASE = "https://mirror.example.org/cuda/repos"


@pytest.fixture
def fake(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def planned(fake: FakeHost, told: dict[str, Any] | None = None, **settings: Any) -> Plan:
    wanted = Settings(**{"repository_url": BASE, "architecture": "ampere", **settings})
    return plan(fake.host(), wanted, told or facts())


def loaded(version: str) -> dict[str, Any]:
    return facts(
        driver={
            "version": version,
            "flavour": "open",
            "library_version": version,
            "disk_version": version,
            "disk_flavour": "open",
            "next_disk_version": version,
        }
    )


def own(fake: FakeHost, *names: str) -> None:
    fake.write(LEDGER, json.dumps({"held": list(names)}))


def test_a_bare_host_is_told_what_would_be(fake: FakeHost) -> None:
    found = planned(fake)
    assert found.action == "install" and not found.final and found.refresh
    assert found.install[0] == "nvidia-driver-pinning-580"
    assert "nvidia-kernel-open-dkms=580.*" in found.install and "linux-headers-cloud-amd64" in found.install
    assert "loaded without a reboot" in summary(found)
    assert not fake.said("apt-get")


def test_a_bare_host_with_nouveau_is_told_of_the_reboot(fake: FakeHost) -> None:
    found = planned(fake, facts(driver={"nouveau": True}))
    assert "a reboot would be needed because nouveau is loaded and holds the GPUs" in summary(found)


def test_the_newest_of_the_branch_with_exact_versions(fake: FakeHost) -> None:
    fake.add_source()
    found = planned(fake)
    assert found.final and found.version == "580.178.04"
    assert found.install == [
        "nvidia-driver-pinning-580",
        "nvidia-driver-cuda=580.178.04-1",
        "nvidia-kernel-open-dkms=580.178.04-1",
        "nvidia-persistenced=580.178.04-1",
        "linux-headers-cloud-amd64",
        f"linux-headers-{KERNEL}",
    ]
    assert r"/^([0-9]+:)?580\.178\.04-/" in fake.preferences[-1]


def test_companions_have_the_version_of_the_driver(fake: FakeHost) -> None:
    fake.add_source()
    told = facts(nvswitches=[{"pci_bus_id": "0000:07:00.0", "pci_device_id": "10de:22a3"}])
    found = planned(fake, told, version="580.126.09")
    assert found.pin == "nvidia-driver-pinning-580.126.09"
    for name in ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm"):
        assert f"{name}=580.126.09-1" in found.install


def test_a_companion_that_is_missing_at_this_version(fake: FakeHost) -> None:
    fake.add_source()
    fake.offers["nvidia-fabricmanager"] = ["595.91.07-1"]
    with pytest.raises(DriverError, match=r"has no nvidia-fabricmanager of that version"):
        planned(fake, facts(nvswitches=[{"pci_bus_id": "0000:07:00.0", "pci_device_id": "10de:22a3"}]))


def test_nothing_is_asked_of_apt_when_all_is_there(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True)
    found = planned(fake, loaded("580.126.09"))
    assert not found.changed_needed and not found.refresh and found.version == "580.126.09"
    assert found.reboot["action"] == "none" and found.services == []
    assert not fake.said("apt-get") and not fake.said("apt-cache")


def test_a_lost_hold_is_set_again(fake: FakeHost) -> None:
    fake.install("580.126.09")
    found = planned(fake, loaded("580.126.09"))
    assert found.changed_needed and not found.refresh and found.install == []
    assert "nvidia-driver-cuda" in found.hold and "nvidia-driver-pinning-580" in found.hold
    own(fake, "libcuda1")
    fake.packages["libcuda1"]["held"] = True
    assert planned(fake, loaded("580.126.09"), hold=False).unhold == ["libcuda1"]


def test_an_upgrade_on_request(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True)
    own(fake, *fake.held())
    fake.active = {"vllm-chat.service", "nvidia-dcgm.service", "ssh.service"}
    found = planned(fake, loaded("580.126.09"), upgrade=True)
    assert (found.action, found.version) == ("upgrade", "580.178.04")
    # What was only pulled in has to move along.
    assert "libcuda1=580.178.04-1" in found.install
    assert set(found.unhold) == set(fake.held())
    assert found.services == ["nvidia-dcgm.service", "vllm-chat.service"]
    assert "driver 580.126.09 would become 580.178.04" in summary(found)
    assert planned(fake, loaded("580.126.09"), upgrade=True, services=("vllm-chat.service",)).services == found.services


def test_another_branch_replaces_the_pin(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09")
    found = planned(fake, loaded("580.126.09"), branch="595")
    assert found.version == "595.91.07" and found.remove == ["nvidia-driver-pinning-580"]
    assert found.pin == "nvidia-driver-pinning-595"


def test_another_flavour_replaces_the_module(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.178.04", flavour="proprietary")
    assert not planned(fake, loaded("580.178.04")).install, "what works is not exchanged"
    found = planned(fake, loaded("580.178.04"), flavour="open")
    assert found.action == "switch" and found.remove == ["nvidia-kernel-dkms"]


def test_a_transaction_that_was_cut_short_is_completed(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09")
    fake.packages["nvidia-kernel-open-dkms"]["status"] = "half-configured"
    found = planned(fake)
    assert (found.action, found.version) == ("complete", "580.126.09")
    assert "dpkg did not finish nvidia-kernel-open-dkms" in summary(found)


def test_another_driver_runs_than_the_packages_have(fake: FakeHost) -> None:
    fake.install("580.178.04", held=True)
    fake.active = {"vllm-chat.service"}
    told = loaded("580.178.04")
    told["driver"]["version"] = "580.126.09"
    found = planned(fake, told)
    assert not found.changed_needed and found.reboot["action"] == "load"
    assert found.services == ["vllm-chat.service"]
    assert "module 580.126.09 is loaded and 580.178.04 is installed" in summary(found)


def test_a_hold_of_somebody_else_is_respected(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09")
    fake.packages["libcuda1"]["held"] = True
    with pytest.raises(DriverError, match=r"libcuda1 is held at 580\.126\.09-1, and not by this role.*apt-mark unhold"):
        planned(fake, upgrade=True)
    own(fake, "libcuda1")
    assert planned(fake, upgrade=True).unhold == ["libcuda1"]


@pytest.mark.parametrize("how", ["folder", "pipe"])
def test_a_refusal_over_holds_names_a_note_of_them_that_cannot_be_read(fake: FakeHost, how: str) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True)
    ledger = fake.root / LEDGER
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ledger.mkdir() if how == "folder" else os.mkfifo(ledger)
    named = f"{LEDGER}, which notes socle's own holds, cannot be read .*, so they count as somebody else's: libcuda1, "
    with pytest.raises(DriverError, match=f"^Cannot change the driver: /{named}"):
        planned(fake, upgrade=True)
    with pytest.raises(DriverError, match=f"^Cannot remove the driver: /{named}"):
        planned(fake, state="absent")


def test_a_pin_that_does_not_exist_names_those_that_do(fake: FakeHost) -> None:
    fake.add_source()
    with pytest.raises(DriverError, match=r"580\.1\.1 is not in https.*it has 595\.91\.07, 580\.178\.04, 580\.126\.09"):
        planned(fake, version="580.1.1")
    del fake.offers["nvidia-driver-pinning-580.126.09"]
    with pytest.raises(DriverError, match=r"has no nvidia-driver-pinning-580\.126\.09.*that has a pin: .*580\.178\.04"):
        planned(fake, version="580.126.09")


@pytest.mark.parametrize("installed", ["570.211.01", "595.91.07"])
def test_a_default_changes_nobodys_driver(fake: FakeHost, installed: str) -> None:
    fake.add_source()
    fake.install(installed, pin=installed.partition(".")[0])
    kept = planned(fake, branch="", cuda="12")
    assert kept.version == installed


def test_without_a_driver_and_a_wish_the_default_branch_is_taken(fake: FakeHost) -> None:
    fake.add_source()
    assert planned(fake, branch="").version == "580.178.04"


def test_a_downgrade(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("595.91.07", pin="595")
    with pytest.raises(DriverError, match=r"595\.91\.07 is installed, and 580\.178\.04 is older"):
        planned(fake, loaded("595.91.07"))


def test_what_apt_refuses_is_told_before_anything_changes(fake: FakeHost) -> None:
    fake.add_source()
    fake.failures["-s install"] = (
        "The following packages have unmet dependencies:\n"
        " nvidia-driver-cuda : Depends: libcuda1 (= 580.178.04-1) but 595.91.07-1 is to be installed\n"
    )
    with pytest.raises(DriverError, match=r"apt refuses: nvidia-driver-cuda : Depends: libcuda1 \(= 580\.178\.04-1\)"):
        planned(fake)


def test_a_package_of_somebody_else_that_apt_would_remove(fake: FakeHost) -> None:
    fake.add_source()
    fake.extra_removals = ["xserver-xorg-core"]
    with pytest.raises(DriverError, match=r"apt would remove xserver-xorg-core"):
        planned(fake)


def test_headers_of_the_running_kernel_that_nobody_has(fake: FakeHost) -> None:
    fake.add_source()
    del fake.distribution[f"linux-headers-{KERNEL}"]
    with pytest.raises(DriverError, match=r"headers of the running kernel .* are neither installed nor"):
        planned(fake)
    told = facts(driver={"next_kernel": "6.12.119+deb13-cloud-amd64"})
    assert "no headers of kernel" in summary(planned(fake, told))
    fake.write(f"lib/modules/{KERNEL}/build/Makefile", "")
    assert planned(fake).final


def test_secure_boot(fake: FakeHost) -> None:
    fake.add_source()
    told = facts(secure_boot=True)
    with pytest.raises(DriverError, match="Secure Boot is on"):
        planned(fake, told)
    fake.write("var/lib/dkms/mok.pub", "key")
    with pytest.raises(DriverError, match="Secure Boot is on"):
        planned(fake, told)
    fake.write("enrolled", "")
    assert planned(fake, told).final
    # A driver that is there is not questioned.
    (fake.root / "enrolled").unlink()
    fake.install("580.178.04", held=True)
    assert not planned(fake, told).changed_needed


def test_gpus_that_no_driver_here_can_use(fake: FakeHost) -> None:
    with pytest.raises(DriverError, match=r"vfio-pci"):
        planned(fake, facts(gpu={"bound_driver": "vfio-pci"}))
    with pytest.raises(DriverError, match=r"vGPU.*; have the whole GPU passed through to this machine, or use another"):
        planned(fake, facts(gpu={"virtualization": "vgpu"}))
    assert "no NVIDIA GPU" in summary(planned(fake, facts(gpus=[])))


def test_removal(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True)
    own(fake, *fake.held())
    fake.packages["nvidia-container-toolkit"] = {"version": "1.20.0-1", "status": "installed", "held": True}
    found = planned(fake, loaded("580.126.09"), state="absent")
    assert found.action == "remove" and "nvidia-driver-pinning-580" in found.remove
    assert not any("container" in name or "headers" in name for name in found.remove)
    assert found.repository and "/etc/apt/sources.list.d/socle-nvidia-cuda.sources" in found.repository["files"]


def test_removal_refuses_while_instances_run(fake: FakeHost) -> None:
    fake.install("580.126.09")
    fake.active = {"vllm-chat.service"}
    with pytest.raises(DriverError, match=r"vllm-chat\.service uses it; stop it first, or name the units"):
        planned(fake, loaded("580.126.09"), state="absent")
    for name in ("vllm-chat.service", "vllm-chat"):
        found = planned(fake, loaded("580.126.09"), state="absent", services=(name,))
        assert found.action == "remove" and found.services == ["vllm-chat.service"]
    fake.active = set()
    told = facts(gpu={"processes": [{"pid": 77, "name": "python3", "memory_mib": 9}]})
    with pytest.raises(DriverError, match=r"process 77 \(python3\) uses it"):
        planned(fake, told, state="absent")


def test_removal_of_what_is_not_there(fake: FakeHost) -> None:
    found = planned(fake, state="absent")
    assert found.action == "none" and not found.changed_needed


def test_an_old_index_is_no_error_before_it_was_read_again(fake: FakeHost) -> None:
    fake.add_source()
    wanted = Settings(repository_url=BASE, architecture="ampere", version="580.199.01")
    found = plan_as_is(fake.host(), wanted, facts())
    assert not found.final and found.refresh and found.changed_needed
    assert (found.install, found.remove, found.action) == ([], [], "none"), "nothing is invented"
    with pytest.raises(DriverError) as raised:
        plan(fake.host(), wanted, facts())
    assert found.refused == raised.value.message
    with pytest.raises(DriverError, match="apt-get update") as checked:
        foresee(found)
    assert checked.value.message.startswith(raised.value.message)


@pytest.mark.parametrize("missing", ["driver", "headers"])
def test_an_index_that_was_never_read_speaks_against_nothing(fake: FakeHost, missing: str) -> None:
    fake.add_source()
    if missing == "driver":
        fake.offers = {}
    else:
        fake.distribution = {}
    wanted = Settings(repository_url=BASE, architecture="ampere", version="580.126.09")
    found = plan_as_is(fake.host(), wanted, facts())
    assert not found.refused and not found.final and found.refresh
    assert "nvidia-driver-cuda=580.126.09*" in found.install and "nvidia-persistenced=580.126.09*" in found.install
    (told,) = foresee(found)
    assert "whether it has driver 580.126.09 is not known" in told


def test_a_branch_that_was_never_read_is_not_promised(fake: FakeHost) -> None:
    found = plan_as_is(fake.host(), Settings(repository_url=BASE, architecture="ampere", branch="580"), facts())
    (told,) = foresee(found)
    assert not found.refused and "has a driver of that branch is not known" in told
    fake.add_source()
    assert foresee(plan_as_is(fake.host(), Settings(repository_url=BASE, architecture="ampere"), facts())) == []


def test_what_no_index_can_change_is_no_matter_of_the_index(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("595.91.07", pin="595")
    wanted = Settings(repository_url=BASE, architecture="ampere", version="580.178.04")
    with pytest.raises(DriverError, match="580\\.178\\.04 is older"):
        plan_as_is(fake.host(), wanted, loaded("595.91.07"))


def test_an_upgrade_that_a_pin_forbids_is_told(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True, pin="580.126.09")
    own(fake, *fake.held())
    words = "gpu_driver_upgrade is true, but gpu_driver_version pins 580.126.09: change or empty the pin"
    found = planned(fake, loaded("580.126.09"), version="580.126.09", upgrade=True)
    assert found.warnings == [words] and words in summary(found) and not found.changed_needed
    assert not planned(fake, loaded("580.126.09"), version="580.126.09").warnings
    changed = planned(fake, loaded("580.126.09"), version="580.178.04", upgrade=True)
    assert changed.action == "upgrade" and not changed.warnings


@pytest.mark.parametrize("empty", [False, True])
def test_a_masked_unit_is_named_before_a_package_changes(fake: FakeHost, empty: bool) -> None:
    fake.add_source()
    for name in ("nvidia-persistenced.service", "nvidia-fabricmanager.service"):
        place = fake.root / "etc/systemd/system" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if empty:
            place.touch()
        else:
            place.symlink_to("/dev/null")
    words = r"^Cannot keep the GPUs initialised: nvidia-persistenced\.service is masked.*'systemctl unmask nvidia-pers"
    with pytest.raises(DriverError, match=words):
        planned(fake)
    assert planned(fake, persistence=False).final, "without an NVSwitch nobody needs fabric manager"
    told = facts(nvswitches=[{"pci_bus_id": "0000:07:00.0", "pci_device_id": "10de:22a3"}])
    with pytest.raises(DriverError, match=r"nvidia-fabricmanager\.service is masked.*'systemctl unmask nvidia-fabric"):
        planned(fake, told, persistence=False)


def test_an_override_of_a_unit_is_no_mask(fake: FakeHost) -> None:
    fake.add_source()
    fake.write("etc/systemd/system/nvidia-persistenced.service", "[Service]\n")
    place = fake.root / "etc/systemd/system/nvidia-fabricmanager.service"
    place.symlink_to("/opt/units/nvidia-fabricmanager.service")
    assert planned(fake, facts(nvswitches=[{}])).version


def test_what_comes_along_is_known_by_its_version(fake: FakeHost) -> None:
    fake.add_source()
    fake.extra_installs = {"libcuda1": "580.178.04-1", "gcc": "14-1", "libnvidia-container1": "1.20.0-1"}
    found = planned(fake)
    assert found.expected == {
        "libcuda1": "580.178.04-1",
        "linux-headers-cloud-amd64": "6.12.118-1",
        f"linux-headers-{KERNEL}": "6.12.118-1",
        "nvidia-driver-pinning-580": "580-1",
    }


@pytest.mark.parametrize(
    ("settings", "words", "way"),
    [
        (
            {"version": "580.199.01"},
            "Driver 580.199.01 is not in https://mirror.example.org/",
            "it has 595.91.07, 580.178.04, 580.126.09, 570.211.01; set gpu_driver_version to one of these",
        ),
        (
            {"branch": "999"},
            "No driver of branch 999 is in https://mirror.example.org/",
            "it has 595, 580, 570; set gpu_driver_branch to one of these",
        ),
    ],
)
def test_what_an_index_speaks_against_is_told_without_promises(
    fake: FakeHost, settings: dict[str, str], words: str, way: str
) -> None:
    fake.add_source()
    fake.active = {"vllm-chat.service"}
    wanted = Settings(**{"repository_url": BASE, "architecture": "ampere", **settings})
    told = summary(plan_as_is(fake.host(), wanted, facts()))
    assert f"by the package index as it is now, which a run reads anew first, the run would be refused: {words}" in told
    assert told.endswith(way)
    for promise in ("Nothing was changed", "would be loaded", "would be installed", "would be stopped"):
        assert promise not in told


def test_a_pin_that_changes_alone_is_told_as_such(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True)
    own(fake, *fake.held())
    told = summary(planned(fake, loaded("580.126.09"), version="580.126.09"))
    assert (
        "only the pin of driver 580.126.09 would change: nvidia-driver-pinning-580.126.09 would replace"
        " nvidia-driver-pinning-580, and nothing is reloaded"
    ) in told
    assert "missing" not in told
    del fake.packages["linux-headers-cloud-amd64"]
    assert "parts of driver 580.126.09 are missing" in summary(
        planned(fake, loaded("580.126.09"), version="580.126.09")
    )
    fake.install("580.126.09", held=True, pin=None)
    del fake.packages["nvidia-driver-pinning-580"]
    assert "nvidia-driver-pinning-580 would be added" in summary(planned(fake, loaded("580.126.09")))


def test_a_kernel_that_somebody_holds_is_left_alone(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09")
    fake.packages["linux-headers-cloud-amd64"]["held"] = True
    found = planned(fake, upgrade=True)
    assert found.final and "linux-headers-cloud-amd64" not in found.install


def test_an_upgrade_that_finds_nothing_newer_changes_nothing(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.178.04", held=True)
    own(fake, *fake.held())
    fake.active = {"vllm-chat.service"}
    found = planned(fake, loaded("580.178.04"), upgrade=True)
    assert found.refresh and not found.changed_needed
    assert (found.action, found.install, found.unhold, found.services) == ("none", [], [], [])


def ubuntu(**changes: Any) -> dict[str, Any]:
    os = {"id": "ubuntu", "version_id": "24.04", "codename": "noble", "id_like": ["debian"]}
    return facts(os=os, kernel="6.8.0-90-generic", **changes)


def archive(fake: FakeHost) -> None:
    """Ubuntu's own packages."""
    branch = "580-server"
    names = ["nvidia-utils", "nvidia-headless-no-dkms", "nvidia-compute-utils", "nvidia-dkms"]
    fake.offers = {}
    for name in names:
        end = f"{branch}-open" if "dkms" in name else branch
        fake.distribution[f"{name}-{end}"] = "580.159.03-0ubuntu0.24.04.1"
    fake.distribution["linux-modules-nvidia-580-server-open-generic"] = "6.8.0-90.91"
    fake.distribution["linux-headers-generic"] = fake.distribution["linux-headers-6.8.0-90-generic"] = "6.8.0-90.91"


def test_ubuntu_with_secure_boot_takes_signed_modules(fake: FakeHost) -> None:
    archive(fake)
    found = planned(fake, ubuntu(secure_boot=True), source="distribution")
    assert found.version == "580.159.03" and found.pin is None
    assert "linux-modules-nvidia-580-server-open-generic" in found.install
    assert "nvidia-utils-580-server=580.159.03-0ubuntu0.24.04.1" in found.install
    assert not any("nvidia-dkms" in name or "headers" in name for name in found.install)
    assert "linux-image-generic" in found.hold_also
    with pytest.raises(DriverError, match="gpu_driver_source: distribution"):
        planned(fake, ubuntu(secure_boot=True))


def test_ubuntu_without_secure_boot_builds(fake: FakeHost) -> None:
    archive(fake)
    found = planned(fake, ubuntu(), source="distribution")
    assert "nvidia-dkms-580-server-open=580.159.03-0ubuntu0.24.04.1" in found.install
    assert "linux-headers-generic" in found.install


def busy(fake: FakeHost, told: dict[str, Any], pid: int = 77, unit: str = "train.service") -> dict[str, Any]:
    """The facts with a process on the first GPU."""
    fake.write(f"proc/{pid}/cgroup", f"0::/system.slice/{unit}\n")
    told["gpus"][0]["processes"].append({"pid": pid, "name": "python3", "memory_mib": 9})
    return told


def upgradable(fake: FakeHost) -> dict[str, Any]:
    fake.add_source()
    fake.install("580.126.09")
    fake.active = {"vllm-chat.service"}
    told = loaded("580.126.09")
    told["gpus"][0]["processes"] = []
    return busy(fake, told, 76, "vllm-chat.service")


def test_an_upgrade_does_not_end_what_somebody_else_runs(fake: FakeHost) -> None:
    told = upgradable(fake)
    found = planned(fake, told, upgrade=True)
    assert found.reboot["action"] == "load", "the instance is stopped, so that nothing uses the module"
    told = busy(fake, told)
    for mode in ("auto", "never"):
        with pytest.raises(DriverError, match=r"process 77 \(python3 of train\.service\) uses a GPU.*: force"):
            planned(fake, told, upgrade=True, reboot=mode)
    found = planned(fake, told, upgrade=True, reboot="force")
    assert "a reboot would be needed because module 580.126.09 is loaded" in summary(found)
    assert "process 77" in summary(found)


def test_a_pending_reload_does_not_end_what_somebody_else_runs(fake: FakeHost) -> None:
    fake.install("580.178.04", held=True)
    told = loaded("580.178.04")
    told["driver"]["version"] = "580.126.09"
    told["gpus"][0]["processes"] = []
    assert planned(fake, told).reboot["action"] == "load"
    with pytest.raises(DriverError, match=r"module 580\.126\.09 is loaded and 580\.178\.04 is installed\): process 77"):
        planned(fake, busy(fake, told))
    found = planned(fake, told, reboot="force")
    assert found.reboot["action"] == "reboot" and "in use: process 77" in found.reboot["reason"]


def test_adopting_a_driver_that_runs_stops_nothing(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", pin=None)
    fake.active = {"vllm-chat.service"}
    told = busy(fake, loaded("580.126.09"))
    found = planned(fake, told)
    assert found.action == "complete" and found.install[0] == "nvidia-driver-pinning-580"
    assert found.services == [] and found.reboot["action"] == "none"
    (fake.root / "etc/apt/sources.list.d/socle-nvidia-cuda.sources").unlink()
    found = planned(fake, told)
    assert (found.action, found.version, found.services, found.final) == ("complete", "580.126.09", [], False)
    told["driver"]["version"] = "580.95.05"
    told["gpus"][0]["processes"] = []
    assert planned(fake, told).services == ["vllm-chat.service"], "another module is loaded, and has to go"


def legacy_container(fake: FakeHost) -> None:
    """A container of somebody else that gets its GPUs by the legacy hook."""

    def docker(command: list[str]) -> tuple[int, str, str]:
        if command[1] == "inspect":
            return 0, json.dumps(["/tgi", "runc", [{"Driver": "", "Capabilities": [["gpu"]]}], []]) + "\n", ""
        return 0, "systemd\n" if command[1] == "info" else "c0ffee tgi\n", ""

    fake.write("run/docker.pid", "812")
    fake._docker = docker  # type: ignore[attr-defined]


def test_no_package_takes_the_gpus_from_a_container_of_the_legacy_hook(fake: FakeHost) -> None:
    told = upgradable(fake)
    legacy_container(fake)
    with pytest.raises(DriverError, match=r"Docker containers of the legacy hook, and tgi is running; stop"):
        planned(fake, told, upgrade=True)
    assert planned(fake, told, upgrade=True, reboot="force").action == "upgrade"
    del fake.packages["nvidia-driver-pinning-580"]
    assert planned(fake, told).action == "complete", "the pin is one file of apt"


def test_removal_tells_of_what_is_not_stopped(fake: FakeHost) -> None:
    told = busy(fake, upgradable(fake))
    with pytest.raises(DriverError, match=r"process 77 \(python3 of train\.service\) uses it"):
        planned(fake, told, state="absent", services=("vllm-chat",))


def test_a_driver_of_somebody_else_is_compared_only(fake: FakeHost) -> None:
    fake.install("580.126.09", held=True)

    def verified(told: dict[str, Any], **settings: Any) -> Plan:
        wanted = Settings(**{"repository_url": BASE, "state": "unmanaged", "branch": "", **settings})
        return verification(fake.host(), wanted, told)

    found = verified(loaded("580.126.09"))
    assert found.action == "none" and not found.changed_needed and not found.refresh
    assert found.version == "580.126.09" and found.services == []
    with pytest.raises(DriverError, match="an image with CUDA 13 needs 580"):
        verified(loaded("570.211.01"))
    for settings in ({"branch": "595"}, {"version": "580.178.04"}):
        with pytest.raises(DriverError, match=r"and driver 580\.126\.09 runs, which gpu_driver_state: unmanaged"):
            verified(loaded("580.126.09"), **settings)
    assert fake.calls == []


def test_a_driver_that_somebody_holds_is_kept_without_our_pin(fake: FakeHost) -> None:
    fake.add_source()
    fake.install("580.126.09", held=True, pin=None)
    del fake.packages["linux-headers-cloud-amd64"]
    for settings in ({}, {"version": "580.126.09"}):
        found = planned(fake, loaded("580.126.09"), **settings)
        assert (found.action, found.version, found.changed_needed) == ("none", "580.126.09", False)
        assert "libcuda1 is held, and not by this role" in summary(found)
    with pytest.raises(DriverError, match="gpu_driver_state: unmanaged"):
        planned(fake, loaded("580.126.09"), upgrade=True)


@pytest.mark.parametrize("options", [{"NVreg_Foo; reboot": 1}, {"NVreg_Foo": "1\nx"}, {"NVreg_Foo": "1\0"}])
def test_module_options_that_are_none_are_refused_before_anything_changes(
    fake: FakeHost, options: dict[str, Any]
) -> None:
    fake.add_source()
    with pytest.raises(DriverError, match="gpu_driver_module_options has") as raised:
        planned(fake, module_options=options)
    assert "\n" not in str(raised.value) and not fake.said("apt-get")


@pytest.mark.parametrize(
    "url",
    [
        "https://[::1/repos",
        "https://u:pw@m.example.org/a\nb",
        "https://m.example.org/\0",
        "https://m:x/repos",
        "u:pw@m/repos",
    ],
)
def test_a_repository_address_that_is_none(fake: FakeHost, url: str) -> None:
    with pytest.raises(
        DriverError, match=r"^gpu_driver_repository_url has .*; correct it\. Nothing was changed\.$"
    ) as e:
        planned(fake, repository_url=url)
    assert "pw" not in str(e.value)
    planned(fake, repository_url="https://u:pw@[2001:db8::1]:8443/repos")


MALFORMED = "E: Malformed entry 1 in list file /etc/apt/sources.list.d/mine.list (Component)\n"


def test_a_malformed_source_of_somebody_else_is_named_in_apts_words(fake: FakeHost) -> None:
    fake.add_source()
    fake.failures["apt-cache"] = MALFORMED
    words = r"Cannot ask apt what .*: Malformed entry 1 in list file \S+mine.list \(Component\); repair"
    with pytest.raises(DriverError, match=words):
        planned(fake)
    fake.failures = {"purge": MALFORMED}
    fake.install("580.178.04")
    with pytest.raises(DriverError, match=words):
        planned(fake, state="absent")
