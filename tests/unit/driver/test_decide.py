# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver fits a host, and what rules one out."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import decide, reboot
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Installed, Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError

NONE = Installed(None, None, None, ())
URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/"


def gpu(**changes: Any) -> dict[str, Any]:
    return {"pci_bus_id": "0000:01:00.0", "pci_device_id": "10de:20b2", "architecture": None, **changes}


def flavour(architecture: str, **settings: Any) -> str:
    return decide.choose_flavour(Settings(**settings), (architecture,), None)[0]


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [
        ("maxwell", "proprietary"),
        ("pascal", "proprietary"),
        ("volta", "proprietary"),
        ("turing", "open"),
        ("ampere", "open"),
        ("ada", "open"),
        ("hopper", "open"),
        ("blackwell", "open"),
    ],
)
def test_flavour_of_each_generation(architecture: str, wanted: str) -> None:
    assert flavour(architecture) == wanted


@pytest.mark.parametrize("architecture", ["turing", "ampere", "ada", "hopper"])
def test_generations_with_a_choice_take_either(architecture: str) -> None:
    assert flavour(architecture, flavour="proprietary") == "proprietary"
    installed = decide.choose_flavour(Settings(), (architecture,), "proprietary")[0]
    assert installed == "proprietary", "a driver that works is not exchanged"
    assert decide.choose_flavour(Settings(branch="615"), (architecture,), "proprietary")[0] == "open"


@pytest.mark.parametrize(
    ("architecture", "settings", "words"),
    [
        ("blackwell", {"flavour": "proprietary"}, "blackwell GPUs run on the open modules only"),
        ("volta", {"flavour": "open"}, "volta GPUs run on the proprietary modules only"),
        ("volta", {"branch": "595"}, "580 is the last branch"),
        ("ampere", {"flavour": "proprietary", "branch": "615"}, "from 615 on NVIDIA packages only the open modules"),
        ("ampere", {"flavour": "proprietary", "version": "615.71.09"}, "from 615 on"),
    ],
)
def test_flavours_that_cannot_work(architecture: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DriverError, match=words):
        flavour(architecture, **settings)


def test_two_generations_that_exclude_each_other() -> None:
    with pytest.raises(DriverError, match="Cannot drive volta and blackwell GPUs in one host"):
        decide.choose_flavour(Settings(), ("volta", "blackwell"), None)


def test_a_gpu_of_an_unknown_id_says_the_id_and_how_to_add_it() -> None:
    with pytest.raises(DriverError, match=r"0000:01:00\.0 has the PCI id 10de:ffff.*pci_ids.*gpu_driver_architecture"):
        decide.generations(Settings(), [gpu(pci_device_id="10de:ffff")])


def test_a_generation_is_that_of_the_driver_or_the_class() -> None:
    assert decide.generations(Settings(), [gpu(architecture="ada lovelace")]) == ("ada",)
    assert decide.generations(Settings(architecture="hopper"), [gpu()]) == ("hopper",)
    with pytest.raises(DriverError, match="is hopper, but the driver says that these GPUs are ampere"):
        decide.generations(Settings(architecture="hopper"), [gpu(architecture="ampere")])
    with pytest.raises(DriverError, match="'fermi', expected one of maxwell"):
        decide.generations(Settings(architecture="fermi"), [gpu()])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"branch": "570"}, "Cannot take driver 570: an image with CUDA 13 needs 580 or newer.*gpu_driver_cuda to 12"),
        ({"version": "550.163.01"}, r"Cannot take driver 550\.163\.01"),
        ({"branch": "515", "cuda": "12"}, "CUDA 12 needs 525"),
        ({"branch": "570", "cuda": "", "minimum": "575.51.03"}, r"the host class needs 575\.51\.03 or newer"),
    ],
)
def test_branches_below_a_floor(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DriverError, match=words):
        decide.check_branch(Settings(**settings))


def test_branches_at_their_floor() -> None:
    decide.check_branch(Settings(branch="580"))
    decide.check_branch(Settings(branch="550", cuda="12", minimum="525"))
    decide.check_branch(Settings(branch="535", cuda=""))


def test_a_version_below_the_floor_within_the_branch() -> None:
    settings = Settings(minimum="580.126.09")
    decide.check_branch(settings)
    with pytest.raises(DriverError, match=r"580\.95\.05: the host class needs 580\.126\.09"):
        decide.check_version(settings, "580.95.05", "open", (6, 1, 100), False)


KERNEL_VERSION = (
    "Linux version 6.1.0-57-cloud-amd64 (debian-kernel@lists.debian.org) #1 SMP Debian 6.1.192-1 (2026-11-02)"
)


@pytest.mark.parametrize(
    ("kernel", "proc_version", "changed"),
    [
        ("6.12.96+deb13-amd64", "", False),
        ("6.12.97+deb13-amd64", "", True),
        ("6.12.118+deb13-cloud-amd64", "", True),
        ("6.1.0-57-cloud-amd64", KERNEL_VERSION, True),
        ("6.1.0-40-cloud-amd64", KERNEL_VERSION.replace("6.1.192", "6.1.153"), False),
        ("6.18.39-amd64", "", False),
        ("6.18.40-amd64", "", True),
        ("6.8.0-90-generic", "Linux version 6.8.0-90-generic #91-Ubuntu SMP", False),
        ("5.15.0-161-generic", "", False),
        ("7.3.4+bpo-cloud-amd64", "", True),
    ],
)
def test_kernels_with_the_changed_function(kernel: str, proc_version: str, changed: bool) -> None:
    assert decide.resize_changed(decide.kernel_release(kernel, proc_version)) is changed


@pytest.mark.parametrize("version", ["580.95.05", "580.119.02", "590.44.01", "570.211.01", "575.64.05"])
def test_open_modules_that_do_not_build(version: str) -> None:
    settings = Settings(cuda="12", version=version)
    with pytest.raises(DriverError, match=r"Cannot build the open modules.*6\.12\.118.*580\.126\.09 or newer"):
        decide.check_version(settings, version, "open", (6, 12, 118), False)
    decide.check_version(settings, version, "open", (6, 12, 90), False)
    decide.check_version(settings, version, "proprietary", (6, 12, 118), False)
    decide.check_version(settings, version, "open", (6, 12, 118), True)


@pytest.mark.parametrize("version", ["580.126.09", "580.178.04", "590.48.01", "595.91.07"])
def test_open_modules_that_build(version: str) -> None:
    decide.check_version(Settings(version=version), version, "open", (6, 12, 118), False)


@pytest.mark.parametrize(
    ("os", "steps"),
    [
        (
            {"id": "ubuntu", "version_id": "24.04"},
            ("shim-signed", "update-secureboot-policy --new-key", "mokutil --import /var/lib/shim-signed/mok/MOK.der"),
        ),
        (
            {"id": "debian", "version_id": "13"},
            ("install dkms and mokutil", "dkms generate_mok", "mokutil --import /var/lib/dkms/mok.pub"),
        ),
        (
            {"id": "debian", "version_id": "12"},
            ("openssl req .* -keyout /var/lib/dkms/mok.key -out /var/lib/dkms/mok.pub", "mokutil --import"),
        ),
        ({"id": "rocky", "version_id": "9.6"}, ("EPEL", "dkms generate_mok", "mokutil --import /var/lib/dkms/mok.pub")),
    ],
)
def test_secure_boot_names_the_steps_that_make_and_enrol_a_key(os: dict[str, str], steps: tuple[str, ...]) -> None:
    with pytest.raises(DriverError, match="Secure Boot is on.*" + ".*".join(steps) + ".*Nothing was changed") as raised:
        decide.check_secure_boot(True, signed=False, enrolled=False, os=os)
    assert ("gpu_driver_source: distribution" in str(raised.value)) is (os["id"] == "ubuntu")


def test_secure_boot_is_no_matter_where_the_kernel_loads_the_modules() -> None:
    for secure_boot, signed, enrolled in [(False, False, False), (None, False, False), (True, True, False)]:
        decide.check_secure_boot(secure_boot, signed, enrolled, {"id": "ubuntu"})
    decide.check_secure_boot(True, signed=False, enrolled=True, os={"id": "debian"})


def package(version: str, status: str = "installed") -> dict[str, Any]:
    return {"version": version, "status": status, "held": False}


def test_the_installed_driver_of_each_source() -> None:
    nvidia = {"nvidia-driver-cuda": package("580.178.04-1"), "nvidia-kernel-open-dkms": package("580.178.04-1")}
    assert decide.installed_driver({"id": "debian"}, nvidia) == Installed("580.178.04", "open", "nvidia", ())
    debian = {"nvidia-smi": package("550.163.01-2"), "nvidia-kernel-dkms": package("550.163.01-2")}
    found = decide.installed_driver({"id": "debian"}, debian)
    assert found == Installed("550.163.01", "proprietary", "distribution", ())
    archive = {
        "nvidia-utils-580-server": package("580.159.03-0ubuntu0.24.04.1"),
        "linux-modules-nvidia-580-server-open-generic": package("6.8.0-90.91"),
    }
    assert decide.installed_driver({"id": "ubuntu"}, archive) == Installed("580.159.03", "open", "distribution", ())
    ubuntu = {"libnvidia-compute": package("595.91.07-1ubuntu1"), "nvidia-dkms-open": package("595.91.07-1ubuntu1")}
    assert decide.installed_driver({"id": "ubuntu"}, ubuntu) == Installed("595.91.07", "open", "nvidia", ())
    toolkit = {"nvidia-container-toolkit": package("1.20.0-1")}
    assert decide.installed_driver({"id": "debian"}, toolkit) == NONE
    gone = {"nvidia-driver-cuda": package("580.178.04-1", "config-files")}
    assert decide.installed_driver({"id": "debian"}, gone) == NONE


def test_a_driver_that_is_not_whole() -> None:
    broken = {
        "nvidia-driver-cuda": package("580.1.2-1"),
        "nvidia-kernel-open-dkms": package("580.1.2-1", "half-configured"),
    }
    assert decide.installed_driver({"id": "debian"}, broken).broken == ("nvidia-kernel-open-dkms",)


def test_a_driver_of_two_sources() -> None:
    mixed = {"nvidia-smi": package("550.163.01-2"), "nvidia-kernel-open-dkms": package("580.178.04-1")}
    with pytest.raises(DriverError, match=r"mixed of two sources: nvidia-kernel-open-dkms 580.*nvidia-smi 550.*absent"):
        decide.installed_driver({"id": "debian"}, mixed)


def source(kind: str, uri: str, file: str = "/etc/apt/sources.list.d/x.list") -> dict[str, str]:
    return {"kind": kind, "uri": uri, "file": file}


@pytest.mark.parametrize(
    ("entry", "settings", "words"),
    [
        (source("ppa", "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"), {}, "a PPA"),
        (source("nvidia-local", "file:/var/nvidia-driver-local-repo"), {}, "a local repository"),
        (source("nvidia-cuda", "https://user:pw@m.example.org/cuda/repos/debian13/x86_64/"), {}, "another repository"),
        (source("nvidia-cuda", URL), {"source": "distribution"}, "while gpu_driver_source is distribution"),
    ],
)
def test_sources_that_do_not_mix(entry: dict[str, str], settings: dict[str, str], words: str) -> None:
    with pytest.raises(DriverError, match=rf"x\.list names .*{words}") as raised:
        decide.check_sources(Settings(**settings), NONE, [entry], [], URL.replace("//", "//me:pw@"))
    assert "pw" not in str(raised.value)


def test_sources_that_do() -> None:
    entries = [
        source("nvidia-cuda", URL.rstrip("/")),
        source("nvidia-cuda", "http://old.example.org/x/", decide.OWN_SOURCE),
        source("ppa", "https://ppa.launchpadcontent.net/deadsnakes/ppa/ubuntu"),
        source("distribution", "http://deb.debian.org/debian"),
    ]
    decide.check_sources(Settings(), Installed("580.1.2", "open", "nvidia", ()), entries, [], URL)


def test_a_driver_of_the_runfile_or_of_the_other_source() -> None:
    with pytest.raises(DriverError, match=r"/usr/bin/nvidia-uninstall belongs to no package.*reboot"):
        evidence = {"kind": "runfile", "evidence": "/usr/bin/nvidia-uninstall belongs to no package"}
        decide.check_sources(Settings(), NONE, [], [evidence], URL)
    with pytest.raises(DriverError, match=r"source is nvidia, but driver 550\.163\.01 of source distribution"):
        decide.check_sources(Settings(), Installed("550.163.01", "open", "distribution", ()), [], [], URL)


def test_downgrades_are_refused() -> None:
    installed = Installed("595.91.07", "open", "nvidia", ())
    with pytest.raises(DriverError, match=r"595\.91\.07 is installed, and 580\.178\.04 is older.*absent"):
        decide.check_direction(Settings(), installed, "580.178.04")
    decide.check_direction(Settings(), installed, "595.91.07")
    decide.check_direction(Settings(), NONE, "580.178.04")
    decide.check_direction(Settings(), Installed("580.95.05", None, None, ()), "580.126.09")


def test_versions_by_pin_and_branch() -> None:
    available = ["570.211.01", "580.95.05", "580.126.09", "595.91.07"]
    assert decide.choose_version(Settings(), NONE, available, "the repository") == "580.126.09"
    assert decide.choose_version(Settings(version="580.95.05"), NONE, available, "it") == "580.95.05"
    with pytest.raises(DriverError, match=r"580\.1\.2 is not in URL; it has 595\.91\.07, 580\.126\.09, 580\.95\.05"):
        decide.choose_version(Settings(version="580.1.2"), NONE, available, "URL")
    with pytest.raises(DriverError, match="No driver of branch 610 is in URL; it has 595"):
        decide.choose_version(Settings(branch="610"), NONE, available, "URL")


def test_what_is_installed_is_kept_until_more_is_asked_for() -> None:
    installed = Installed("580.126.09", "open", "nvidia", ())
    assert decide.keeps(Settings(), installed)
    assert not decide.keeps(Settings(upgrade=True), installed)
    assert not decide.keeps(Settings(version="580.178.04"), installed)
    assert not decide.keeps(Settings(branch="595"), installed)
    assert not decide.keeps(Settings(minimum="580.159.01"), installed)
    assert not decide.keeps(Settings(), NONE)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"branch": "R580"}, "gpu_driver_branch is 'R580'"),
        ({"version": "580"}, "gpu_driver_version is '580'"),
        ({"version": "latest"}, "gpu_driver_version is 'latest'"),
        ({"version": "abc", "branch": "595"}, r"gpu_driver_version is 'abc', expected .* such as 580\.178\.04"),
        ({"version": "580.178.04", "branch": "R580"}, "gpu_driver_branch is 'R580'"),
        ({"cuda": "13.0"}, "gpu_driver_cuda is '13.0'"),
    ],
)
def test_settings_that_are_no_versions(settings: dict[str, str], words: str) -> None:
    with pytest.raises(DriverError, match=words):
        decide.check_settings(Settings(**settings))


def test_a_version_of_another_branch() -> None:
    with pytest.raises(DriverError, match=r"is 580\.178\.04, which is of branch 580, but gpu_driver_branch is 595"):
        decide.check_settings(Settings(version="580.178.04", branch="595"))
    for branch in ("580", ""):
        decide.check_settings(Settings(version="580.178.04", branch=branch))


def test_the_way_out_of_a_downgrade_names_settings_that_agree() -> None:
    installed = Installed("595.91.07", "open", "nvidia", ())
    with pytest.raises(
        DriverError, match=r"gpu_driver_version to 595\.91\.07 or newer \(and gpu_driver_branch to 595\)"
    ):
        decide.check_direction(Settings(branch="580"), installed, "580.178.04")
    with pytest.raises(DriverError, match=r"gpu_driver_version to 595\.91\.07 or newer, or remove"):
        decide.check_direction(Settings(branch="", version="580.178.04"), installed, "580.178.04")


def state(**changes: Any) -> reboot.State:
    default: dict[str, Any] = {
        "kernel": "6.12.118",
        "loaded": "580.126.09",
        "loaded_flavour": "open",
        "disk": "580.126.09",
        "disk_flavour": "open",
        "next_kernel": "6.12.118",
        "next_disk": "580.126.09",
        "nouveau": False,
        "users": {},
    }
    return reboot.State(**{**default, **changes})


@pytest.mark.parametrize(
    ("changes", "action", "words"),
    [
        ({}, "none", "580.126.09 is loaded"),
        ({"loaded": None}, "load", "not loaded"),
        ({"loaded": None, "nouveau": True}, "reboot", "nouveau is loaded and holds the GPUs"),
        ({"disk": "580.178.04"}, "load", "module 580.126.09 is loaded and 580.178.04 is installed"),
        ({"disk": "580.178.04", "users": {"nvidia": 2, "nvidia_uvm": 0}}, "reboot", "in use: nvidia (2)"),
        ({"disk_flavour": "proprietary"}, "load", "the open module is loaded and the proprietary one is installed"),
        ({"users": {"nvidia": 5}}, "none", "loaded"),
        ({"disk": None, "next_kernel": "6.12.119"}, "reboot", "is built for kernel 6.12.119, and 6.12.118 runs"),
        ({"disk": None, "next_disk": None}, "none", "no module is installed"),
    ],
)
def test_what_makes_the_driver_run(changes: dict[str, Any], action: str, words: str) -> None:
    found = reboot.activation(state(**changes))
    assert found.action == action and words in found.reason


def test_options_of_the_loaded_module_count() -> None:
    found = reboot.activation(state(), ["NVreg_EnableStreamMemOPs"])
    assert found.action == "load" and "other values of NVreg_EnableStreamMemOPs" in found.reason
    assert reboot.activation(state(users={"nvidia_uvm": 1}), ["NVreg_X"]).action == "reboot"


def test_what_is_foreseen_before_a_change() -> None:
    assert reboot.prediction(state(loaded=None, nouveau=True), "580.178.04", []).action == "reboot"
    assert reboot.prediction(state(loaded=None), "580.178.04", []).action == "load"
    assert reboot.prediction(state(), "580.178.04", []).action == "load"
    assert "process 7 (python)" in reboot.prediction(state(), "580.178.04", ["process 7 (python)"]).reason
