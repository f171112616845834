# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host of the RHEL family needs for its driver, and that all of it comes or nothing does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import rpm_names
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import Settings
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError
from ansible_collections.socle.inference.plugins.module_utils._driver.plan import LEDGER, Host, summary
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_plan import (
    RpmPlan,
    newest,
    rpm_plan,
    rpm_source,
)
from ansible_collections.socle.inference.plugins.module_utils._driver.rpm_transaction import RpmTransaction
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError, SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf import Rpm
from ansible_collections.socle.inference.plugins.module_utils._packages.dnf_source import render
from ansible_collections.socle.inference.plugins.module_utils._packages.source import ARMOUR

from tests.unit.driver.rpm_host import KERNEL, PARTS, URL, Interrupted, RpmHost, facts, rpm

BASE = "https://mirror.example/repos"


@pytest.fixture
def host(tmp_path: Path) -> RpmHost:
    return RpmHost(tmp_path)


def plan(host: RpmHost, given: dict[str, Any] | None = None, **settings: Any) -> RpmPlan:
    found = rpm_plan(host.host(), Settings(repository_url=BASE, **settings), given or facts())
    assert isinstance(found, RpmPlan)
    return found


def carry_out(host: RpmHost, found: RpmPlan, hold: bool = True, check: bool = False) -> dict[str, Any]:
    return RpmTransaction(host.host(), found.as_dict(), KERNEL, hold, Files()).carry_out(check)


def settled(host: RpmHost, version: str = "580.159.03") -> None:
    """A host on which the role has installed this version."""
    carry_out(host, plan(host, version=version))


def test_the_newest_of_a_branch_is_found_by_number() -> None:
    found = [rpm("nvidia-driver-cuda", version) for version in ("580.95.05", "580.159.03", "580.178.04", "595.91.07")]
    best = newest(found, "nvidia-driver-cuda", "580")
    assert best is not None
    assert best.version == "580.178.04"
    exact = newest(found, "nvidia-driver-cuda", "580", "580.159.03")
    assert exact is not None
    assert exact.version == "580.159.03"
    assert newest(found, "nvidia-driver-cuda", "580", "580.1") is None
    assert newest(found, "nvidia-driver-cuda", "610") is None


def test_a_bare_host_gets_the_newest_of_the_branch(host: RpmHost) -> None:
    found = plan(host)
    assert (found.action, found.version, found.stream) == ("install", "580.178.04", "580-open")
    assert found.packages["nvidia-driver-cuda"] == found.packages["kmod-nvidia-open-dkms"] == "3:580.178.04-1.el9"
    assert found.packages[f"kernel-devel-uname-r = {KERNEL}"] == ""
    assert "nvidia-fabricmanager" not in found.packages
    assert found.repository is not None
    assert found.repository["missing"]


def test_dkms_is_taken_from_epel_only_where_no_repository_has_it(host: RpmHost) -> None:
    assert plan(host).prepare == {}
    host.offered = [package for package in host.offered if package.name != "dkms"]
    found = plan(host)
    assert found.prepare == {"epel-release": ""}
    assert found.enable == []


def test_release_10_also_needs_the_builder_repository(host: RpmHost) -> None:
    host.offered = [package for package in host.offered if package.name != "dkms"]
    (host.root / "etc/yum.repos.d/rocky.repo").write_text("[crb]\nname=CRB\nenabled=0\n")
    ten = facts(os={"id": "rocky", "version_id": "10.0", "codename": None, "id_like": ["rhel"]})
    found = plan(host, ten)
    assert found.enable == ["crb"]
    assert found.stream is None


def test_a_switch_brings_fabric_manager_at_the_same_version(host: RpmHost) -> None:
    found = plan(host, facts(nvswitches=[{"pci_bus_id": "0000:05:00.0", "pci_device_id": "10de:1af1"}]))
    assert found.packages["nvidia-fabricmanager"] == "580.178.04-1"


def test_an_installed_version_is_kept_until_an_upgrade_is_asked_for(host: RpmHost) -> None:
    settled(host)
    assert plan(host).changed_needed is False
    found = plan(host, upgrade=True)
    assert (found.action, found.version) == ("upgrade", "580.178.04")


def test_a_downgrade_is_refused(host: RpmHost) -> None:
    settled(host, "580.178.04")
    with pytest.raises(DriverError, match=r"Driver 580\.178\.04 is installed, and 580\.159\.03 is older"):
        plan(host, version="580.159.03")


def test_a_version_that_is_not_there_is_named_with_those_that_are(host: RpmHost) -> None:
    with pytest.raises(DriverError, match=r"580\.99\.9 is not in .*595\.91\.07, 580\.178\.04, 580\.159\.03"):
        plan(host, version="580.99.9")


def test_a_mirror_that_lacks_a_part_is_refused(host: RpmHost) -> None:
    host.offered = [package for package in host.offered if package.name != "nvidia-fabricmanager"]
    switch = facts(nvswitches=[{"pci_bus_id": "0000:05:00.0", "pci_device_id": "10de:1af1"}])
    with pytest.raises(DriverError, match="has no nvidia-fabricmanager of that version"):
        plan(host, switch)


def test_an_unreachable_mirror_is_named(host: RpmHost) -> None:
    host.refusal = "Error: Failed to download metadata for repo 'socle-probe': Cannot download repomd.xml"
    with pytest.raises(PackageError, match=r"https://mirror\.example/repos/rhel9/x86_64/ .*did not answer"):
        plan(host)


@pytest.mark.parametrize(
    "name",
    [
        "akmod-nvidia",
        "xorg-x11-drv-nvidia-cuda",
        "kmod-nvidia",
        "kmod-nvidia-470xx",
        "nvidia-x11-drv",
        "kmod-nvidia-5.14.0-570.12.1.el9_6.x86_64",
        "kmod-nvidia-470xx-5.14.0-570.12.1.el9_6.x86_64",
    ],
)
def test_a_driver_of_rpm_fusion_or_elrepo_is_refused(host: RpmHost, name: str) -> None:
    host.install(rpm(name, "580.159.03"))
    with pytest.raises(DriverError, match=rf"another packager \({name} 3:580\.159\.03-1\.el9\)"):
        plan(host)


PRECOMPILED = [
    ("kmod-nvidia-open", "open"),
    ("kmod-nvidia-580.159.03-5.14.0-570.12.1", "proprietary"),
    ("kmod-nvidia-580.159.03-6.12.0-55.9.1", "proprietary"),
]


def precompiled(host: RpmHost, name: str) -> None:
    """AlmaLinux's packages, or a stream of NVIDIA without DKMS."""
    host.install(*(rpm(part, "580.159.03") for part in (*PARTS, name)))
    host.enable("580")


@pytest.mark.parametrize(("name", "flavour"), PRECOMPILED)
def test_precompiled_modules_are_kept(host: RpmHost, name: str, flavour: str) -> None:
    precompiled(host, name)
    found = plan(host, facts(secure_boot=True))
    assert (found.action, found.version, found.flavour) == ("none", "580.159.03", flavour)
    assert "nvidia-driver-cuda" in found.hold
    assert name not in found.hold, "the modules for the next kernel come by it"
    carry_out(host, found)
    assert "nvidia-driver-cuda-3:580.159.03" in host.locks and name not in host.locks
    assert plan(host, facts(secure_boot=True)).changed_needed is False
    assert host.stream == "580"


@pytest.mark.parametrize(("name", "flavour"), PRECOMPILED)
def test_precompiled_modules_are_not_exchanged_in_passing(host: RpmHost, name: str, flavour: str) -> None:
    precompiled(host, name)
    with pytest.raises(
        DriverError, match=rf"{name} 3:580\S+ has precompiled modules.*gpu_driver_version: 580\.159\.03"
    ):
        plan(host, upgrade=True)
    with pytest.raises(DriverError, match="precompiled modules"):
        plan(host, flavour="proprietary" if flavour == "open" else "open")


def test_precompiled_modules_get_their_companions(host: RpmHost) -> None:
    precompiled(host, "kmod-nvidia-open")
    host.offered = [package for package in host.offered if package.name != "dkms"]
    found = plan(host, facts(nvswitches=[{"pci_bus_id": "0000:05:00.0", "pci_device_id": "10de:1af1"}]))
    assert found.action == "complete"
    assert found.packages["nvidia-fabricmanager"] == "580.159.03-1"
    assert not [name for name in found.packages if "kmod" in name or "devel" in name]
    assert found.prepare == {}
    assert found.stream is None


def test_another_file_of_nvidias_repository_is_used_as_it_is(host: RpmHost) -> None:
    file = host.root / "etc/yum.repos.d/cuda-rhel9.repo"
    file.write_text(f"[cuda-rhel9-x86_64]\nbaseurl={BASE}/rhel9/x86_64\nenabled=1\n")
    found = plan(host)
    assert found.repository is not None
    assert found.repository["missing"] is False
    file.write_text("[cuda-rhel9-x86_64]\nbaseurl=https://other.example/cuda/repos/rhel9/x86_64\nenabled=1\n")
    with pytest.raises(DriverError, match=r"names https://other\.example/cuda/repos/rhel9/x86_64, another repository"):
        plan(host)


def test_secure_boot_is_decided_before_anything_is_installed(host: RpmHost) -> None:
    with pytest.raises(DriverError, match="Secure Boot is on"):
        plan(host, facts(secure_boot=True))


def test_installing_enables_the_stream_locks_and_notes_the_locks(host: RpmHost) -> None:
    result = carry_out(host, plan(host, version="580.159.03"))
    assert result["changed"] is True
    assert host.stream == "580-open"
    assert host.installed["nvidia-driver-cuda"].version == "580.159.03"
    assert "libnvidia-ml-3:580.159.03-1.el9.*\n" in host.locks
    assert "kmod-nvidia-open-dkms" in json.loads((host.root / LEDGER).read_text())["held"]
    assert plan(host, version="580.159.03").changed_needed is False


def test_locks_are_noted_before_they_are_written(host: RpmHost) -> None:
    """Else a run that ends in between leaves locks that a later upgrade takes for somebody else's."""

    found = plan(host).as_dict()
    with pytest.raises(KeyboardInterrupt):
        RpmTransaction(host.host(), found, KERNEL, True, Interrupted("versionlock.list")).carry_out(False)
    assert "kmod-nvidia-open-dkms" in json.loads((host.root / LEDGER).read_text())["held"]


def test_check_mode_changes_nothing(host: RpmHost) -> None:
    result = carry_out(host, plan(host), check=True)
    assert result["changed"] is True
    assert "nvidia-driver-cuda 3:580.178.04-1.el9 (held)" in result["diff"]["after"]
    assert host.installed == {}
    assert host.locks == ""
    assert host.stream is None


def test_another_branch_moves_locks_and_stream(host: RpmHost) -> None:
    settled(host)
    carry_out(host, plan(host, branch="595"))
    assert host.stream == "595-open"
    assert "595.91.07" in host.locks
    assert "580." not in host.locks


def test_another_flavour_takes_the_place_of_the_first(host: RpmHost) -> None:
    settled(host, "580.178.04")
    found = plan(host, flavour="proprietary")
    assert (found.action, found.remove, found.stream) == ("switch", ["kmod-nvidia-open-dkms"], "580-dkms")
    host.removes = ["kmod-nvidia-open-dkms"]
    carry_out(host, found)
    assert "kmod-nvidia-open-dkms" not in host.installed
    assert "kmod-nvidia-open-dkms" not in host.locks
    assert "kmod-nvidia-latest-dkms-3:580.178.04-1.el9.*" in host.locks


def test_a_lock_of_somebody_else_is_in_the_way(host: RpmHost) -> None:
    settled(host)
    (host.root / LEDGER).unlink()
    with pytest.raises(DriverError, match="and not by this role; release with 'dnf versionlock delete"):
        plan(host, upgrade=True)
    (host.root / LEDGER).mkdir()
    with pytest.raises(DriverError, match=f"^Cannot change the driver: /{LEDGER}, which notes .*it is a folder"):
        plan(host, upgrade=True)


def test_the_entry_that_locks_is_named_and_not_the_packages_that_it_matches(host: RpmHost) -> None:
    settled(host)
    (host.root / LEDGER).unlink()
    host.lock_list.write_text("bash-0:5.1.8-9.el9.*\n*nvidia*\n")
    for settings in ({"upgrade": True}, {"state": "absent"}):
        with pytest.raises(DriverError, match=r"""release with 'dnf versionlock delete "\*nvidia\*"' and repeat"""):
            plan(host, **settings)


def running(version: str) -> dict[str, Any]:
    """Facts of a host that runs this version."""
    told = facts()
    told["driver"].update(version=version, disk_version=version, flavour="open", disk_flavour="open")
    return told


def test_a_driver_that_somebody_locks_is_kept_without_headers_for_kernels_to_come(host: RpmHost) -> None:
    settled(host)
    (host.root / LEDGER).unlink()
    del host.installed["kernel-devel-matched"]
    found = plan(host, running("580.159.03"))
    assert (found.action, found.version, found.changed_needed) == ("none", "580.159.03", False)


def test_another_stream_alone_stops_nothing_that_runs(host: RpmHost) -> None:
    settled(host)
    host.enable("580-dkms")
    host.active = ["vllm-chat.service"]
    found = plan(host, running("580.159.03"))
    assert (found.action, found.stream, found.services) == ("complete", "580-open", [])
    assert found.reboot["action"] == "none"
    assert plan(host, running("580.95.05")).services == ["vllm-chat.service"]


def test_locks_that_went_missing_come_back_and_are_lifted_on_request(host: RpmHost) -> None:
    settled(host)
    host.lock_list.write_text("bash-0:5.1.8-9.el9.*\n")
    found = plan(host)
    assert found.changed_needed
    carry_out(host, found)
    assert "nvidia-driver-cuda-3:580.159.03" in host.locks
    carry_out(host, plan(host, hold=False), hold=False)
    assert host.locks == "bash-0:5.1.8-9.el9.*\n"


@pytest.mark.parametrize("late", [False, True])
def test_a_transaction_that_dnf_refuses_leaves_stream_locks_and_packages(host: RpmHost, late: bool) -> None:
    settled(host)
    before = (dict(host.installed), host.locks, host.stream)
    found = plan(host, branch="595")
    if late:
        host.fails_late = True
    else:
        host.refusal = (
            "Error: \n Problem: nothing provides dkms needed by kmod-nvidia-open-dkms-3:595.91.07-1.el9.x86_64\n"
        )
    with pytest.raises(PackageError) as caught:
        carry_out(host, found)
    assert caught.value.message.startswith("Cannot install ")
    assert (dict(host.installed), host.locks, host.stream) == before


def test_a_first_install_that_fails_leaves_no_stream_behind(host: RpmHost) -> None:
    host.fails_late = True
    with pytest.raises(PackageError, match="Transaction failed"):
        carry_out(host, plan(host))
    assert host.stream is None
    assert host.locks == ""


def test_what_would_be_removed_for_it_is_refused(host: RpmHost) -> None:
    host.removes = ["cockpit"]
    with pytest.raises(PackageError, match="that would remove cockpit"):
        carry_out(host, plan(host))
    assert host.installed == {}


def test_a_module_that_dkms_could_not_build_is_told_and_taken_back(host: RpmHost) -> None:
    """The packages' script hides the failure, and DNF ends well."""
    log = Path(__file__).parent / "fixtures" / "make_open_550.163.01_on_6.12.118.log"
    build = host.root / "var/lib/dkms/nvidia/580.178.04/build"
    build.mkdir(parents=True)
    (build / "make.log").write_text(log.read_text(encoding="utf-8"), encoding="utf-8")
    host.dkms, host.builds = "nvidia/580.178.04: added\n", False
    with pytest.raises(DriverError) as caught:
        carry_out(host, plan(host))
    assert "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'" in caught.value.message
    assert "what was installed was removed again" in caught.value.message
    assert not [name for name in host.installed if "nvidia" in name]
    assert "nvidia" not in host.locks


def test_removal_takes_packages_and_locks(host: RpmHost) -> None:
    settled(host)
    found = plan(host, state="absent")
    assert found.action == "remove"
    carry_out(host, found)
    assert not [name for name in host.installed if "nvidia" in name]
    assert "kernel-devel-matched" in host.installed
    assert host.locks == ""
    assert host.stream is None
    assert plan(host, state="absent").action == "none"


RHEL = {"id": "rhel", "version_id": "10.0", "codename": None, "id_like": ["fedora"]}


def without_dkms(host: RpmHost) -> None:
    """dkms is in no enabled repository, and the builder repository is off."""
    host.offered = [package for package in host.offered if package.name != "dkms"]
    name = "codeready-builder-for-rhel-10-x86_64-rpms"
    (host.root / "etc/yum.repos.d/rocky.repo").write_text(
        f"[{name}]\nname={name}\nenabled=0\n[crb]\nname=CRB\nenabled=0\n"
    )


def test_rhel_itself_gets_epel_by_its_address(host: RpmHost) -> None:
    without_dkms(host)
    found = plan(host, facts(os=RHEL))
    carry_out(host, found)
    address = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-10.noarch.rpm"
    assert ["dnf", "--assumeyes", "install", address] in host.calls
    assert "epel-release" in host.installed
    assert host.installed["nvidia-driver-cuda"].version == "580.178.04"


@pytest.mark.parametrize("os", [RHEL, {"id": "rocky", "version_id": "10.0", "codename": None, "id_like": ["rhel"]}])
def test_a_refusal_takes_back_what_made_the_transaction_possible(host: RpmHost, os: dict[str, Any]) -> None:
    without_dkms(host)
    (host.root / "etc/dnf/plugins/versionlock.conf").unlink()
    host.offered.append(Rpm("python3-dnf-plugin-versionlock", "0", "4", "1", "noarch", "baseos"))
    repositories = (host.root / "etc/yum.repos.d/rocky.repo").read_text()
    found = plan(host, facts(os=os))
    assert found.repository is not None and found.enable
    for path in (found.repository["source"], found.repository["key"]):
        place = host.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("written between the plan and the transaction\n")
    host.removes = ["cockpit"]
    with pytest.raises(SocleError, match=r"that would remove cockpit.*These packages are as they were\.$"):
        carry_out(host, found)
    assert host.installed == {}
    assert [path.name for path in (host.root / "etc/yum.repos.d").iterdir()] == ["rocky.repo"]
    assert list((host.root / "etc/pki/rpm-gpg").iterdir()) == []
    assert (host.root / "etc/yum.repos.d/rocky.repo").read_text() == repositories


def test_a_refusal_names_what_it_cannot_take_back(host: RpmHost) -> None:
    file = host.root / "etc/yum.repos.d/socle-nvidia-cuda.repo"
    file.write_text("[socle-nvidia-cuda]\nbaseurl=https://former.example/\nenabled=0\n")
    found = plan(host)
    host.removes = ["cockpit"]
    with pytest.raises(
        DriverError, match=r"No package of the driver was changed, but /etc/yum.repos.d/socle-nv\S+ stays"
    ):
        carry_out(host, found)
    assert file.exists()


def kernel(host: RpmHost, name: str) -> None:
    """An installed kernel."""
    folder = host.root / "lib/modules" / name
    folder.mkdir(parents=True)
    (folder / "vmlinuz").touch()


NEXT = "5.14.0-611.5.1.el9_7.x86_64"


def test_headers_come_for_the_kernel_that_boots_next_and_bring_no_other(host: RpmHost) -> None:
    newer = Rpm("kernel-devel-matched", "0", "5.14.0", "611.5.1.el9_7", "x86_64", "baseos")
    host.offered.append(newer)
    found = plan(host)
    assert found.packages["kernel-devel-matched"] == "5.14.0-570.12.1.el9_6"
    assert found.kernels == [KERNEL]
    told = facts(driver={**facts()["driver"], "next_kernel": NEXT})
    found = plan(host, told)
    assert found.packages["kernel-devel-matched"] == "5.14.0-611.5.1.el9_7"
    assert found.kernels == [KERNEL, NEXT]


def test_a_kernel_that_comes_with_its_headers_is_told(host: RpmHost) -> None:
    host.offered = [package for package in host.offered if package.name != "kernel-devel-matched"]
    host.offered.append(Rpm("kernel-devel-matched", "0", "5.14.0", "611.5.1.el9_7", "x86_64", "baseos"))
    found = plan(host)
    assert found.kernels == [KERNEL, NEXT]
    assert "kernel 5.14.0-611.5.1.el9_7 would be installed with its headers" in summary(found)


def test_the_modules_are_built_for_the_kernel_that_boots_next(host: RpmHost) -> None:
    kernel(host, KERNEL)
    kernel(host, NEXT)
    host.dkms = f"nvidia/580.178.04, {KERNEL}, x86_64: installed\n"
    carry_out(host, plan(host))
    assert f"nvidia/580.178.04, {NEXT}, x86_64: installed" in host.dkms


def test_a_next_kernel_without_modules_is_no_success(host: RpmHost) -> None:
    kernel(host, KERNEL)
    kernel(host, NEXT)
    host.dkms, host.builds = f"nvidia/580.178.04, {KERNEL}, x86_64: installed\n", False
    with pytest.raises(
        DriverError, match=rf"no module 580\.178\.04 for kernel {NEXT}.*removed again, but .*stay"
    ) as told:
        carry_out(host, plan(host))
    for left in ("kernel-devel-matched", "/etc/yum.repos.d/socle-nvidia-cuda.repo"):
        assert left in told.value.message
    assert not [name for name in host.installed if "nvidia" in name]
    assert host.stream is None


def test_a_build_that_fails_after_another_stream_puts_the_stream_back(host: RpmHost) -> None:
    settled(host)
    host.dkms, host.builds = "nvidia/595.91.07: added\n", False
    with pytest.raises(DriverError, match="the driver is as before the run"):
        carry_out(host, plan(host, branch="595"))
    assert host.stream == "580-open"
    assert host.installed["nvidia-driver-cuda"].version == "580.159.03"


def test_removal_lifts_every_lock_of_ours(host: RpmHost) -> None:
    settled(host)
    ledger = host.root / LEDGER
    ledger.write_text(json.dumps({"held": [*json.loads(ledger.read_text())["held"], "kernel-core"]}))
    host.lock_list.write_text(host.locks + "kernel-core-0:5.14.0-570.12.1.el9_6.*\nbash-0:5.1.8-9.el9.*\n")
    carry_out(host, plan(host, state="absent"))
    assert host.locks == "bash-0:5.1.8-9.el9.*\n"
    assert not ledger.exists()


def test_locks_of_a_driver_that_was_removed_by_hand_are_lifted(host: RpmHost) -> None:
    settled(host)
    host.installed = {}
    found = plan(host, state="absent")
    assert found.changed_needed and "nvidia-driver-cuda" in found.unhold
    carry_out(host, found)
    assert host.locks == ""
    assert plan(host, state="absent").changed_needed is False


def test_a_plan_holds_no_password_of_a_mirror(host: RpmHost) -> None:
    secret = BASE.replace("//", "//me:s%40cret@")
    found = rpm_plan(host.host(), Settings(repository_url=secret), facts())
    shown = json.dumps(found.as_dict())
    assert "cret" not in shown
    assert found.repository is not None
    assert (found.repository["folder"], found.repository["key_file"]) == ("rhel9/x86_64/", "D42D0685.pub")


def test_a_mirror_that_does_not_answer_is_named_without_its_password(host: RpmHost) -> None:
    secret = BASE.replace("//", "//me:s%40cret@")
    host.refusal = "Error: Failed to download metadata for repo 'socle-probe': Cannot download repomd.xml"
    with pytest.raises(SocleError, match=r"mirror\.example/repos/rhel9/x86_64/ .*did not answer") as raised:
        rpm_plan(host.host(), Settings(repository_url=secret), facts())
    assert "cret" not in str(raised.value)
    words = [word for call in host.calls for word in call]
    assert "repoquery" in words and not [word for word in words if "cret" in word], "everybody sees a command"


def test_a_new_address_is_noticed_although_no_package_changes(host: RpmHost) -> None:
    settled(host)
    file = host.root / "etc/yum.repos.d/socle-nvidia-cuda.repo"
    written = render(rpm_source(rpm_names.rpm_repository(facts()["os"], facts()["arch"], BASE)))
    key = host.root / "etc/pki/rpm-gpg/RPM-GPG-KEY-socle-nvidia-cuda"
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_text(ARMOUR)
    for text, moved in ((written, False), (written.replace(URL, "https://former.example/"), True), ("", False)):
        file.write_text(text)
        found = plan(host)
        assert found.repository is not None and found.repository["moved"] is moved
        assert not found.changed_needed and found.action == "none"
    file.write_text(written)
    key.write_text("<html>")
    found = plan(host)
    assert found.action == "none" and found.repository is not None and found.repository["moved"]
    # One that somebody else wrote by the same name.
    file.write_text("[socle-nvidia-cuda]\nbaseurl=https://former.example/\n")
    found = plan(host)
    assert found.repository is not None and found.repository["moved"] is False


def ledger(host: RpmHost) -> list[str]:
    path = host.root / LEDGER
    return json.loads(path.read_text())["held"] if path.exists() else []


DAMAGED = ("[[", "[" * 200_000, "[]", '{"held": [1]}')


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("hold", [True, False])
def test_a_damaged_ledger_takes_no_lock_for_ours_and_is_rewritten(host: RpmHost, text: str, hold: bool) -> None:
    settled(host)
    locks = host.locks
    (host.root / LEDGER).write_text(text)
    found = plan(host, hold=hold)
    assert found.changed_needed and "is damaged and would be rewritten" in found.reasons[-1]
    carry_out(host, found, hold)
    assert host.locks == locks and ledger(host) == [] and not (host.root / LEDGER).exists()
    assert not plan(host, hold=hold).changed_needed


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_ledger_goes_with_a_driver_that_is_gone(host: RpmHost, text: str) -> None:
    (host.root / LEDGER).parent.mkdir(parents=True)
    (host.root / LEDGER).write_text(text)
    found = plan(host, state="absent")
    assert found.changed_needed
    carry_out(host, found)
    assert not (host.root / LEDGER).exists()
    assert not plan(host, state="absent").changed_needed


def test_a_lock_of_somebody_else_is_never_noted_as_ours(host: RpmHost) -> None:
    host.driver("580.159.03")
    host.lock_list.write_text("libnvidia-ml-3:580.159.03-1.el9.*\n")
    carry_out(host, plan(host))
    assert "nvidia-driver-cuda" in ledger(host) and "libnvidia-ml" not in ledger(host)
    assert not plan(host).changed_needed
    carry_out(host, plan(host, hold=False), hold=False)
    assert host.locks == "libnvidia-ml-3:580.159.03-1.el9.*\n"


def test_locks_of_packages_that_went_by_hand_are_lifted_and_forgotten(host: RpmHost) -> None:
    settled(host)
    del host.installed["nvidia-modprobe"]
    found = plan(host)
    assert found.changed_needed
    carry_out(host, found)
    assert "nvidia-modprobe" not in host.locks and "nvidia-modprobe" not in ledger(host)
    assert not plan(host).changed_needed


def test_a_note_of_locks_that_were_given_up_does_not_stay(host: RpmHost) -> None:
    settled(host)
    noted = (host.root / LEDGER).read_text()
    carry_out(host, plan(host, hold=False), hold=False)
    (host.root / LEDGER).write_text(noted)
    carry_out(host, plan(host, hold=False), hold=False)
    assert not (host.root / LEDGER).exists()
    assert not plan(host, hold=False).changed_needed


@pytest.mark.parametrize("name", ["versionlock.list", "gpu_driver.json"])
def test_a_removal_that_was_interrupted_leaves_nothing_after_the_next_run(host: RpmHost, name: str) -> None:
    settled(host)
    found = plan(host, state="absent").as_dict()
    with pytest.raises(KeyboardInterrupt):
        RpmTransaction(host.host(), found, KERNEL, True, Interrupted(name)).carry_out(False)
    assert not any("nvidia" in package for package in host.installed) and ledger(host)
    again = plan(host, state="absent")
    assert again.changed_needed and again.unhold
    carry_out(host, again)
    assert host.locks == "" and not (host.root / LEDGER).exists()
    assert not plan(host, state="absent").changed_needed


def test_locks_that_are_no_longer_ours_are_lifted_by_the_next_run_where_one_ends_in_between(host: RpmHost) -> None:
    settled(host)
    del host.installed["nvidia-modprobe"]
    with pytest.raises(KeyboardInterrupt):
        RpmTransaction(host.host(), plan(host).as_dict(), KERNEL, True, Interrupted("versionlock.list")).carry_out(
            False
        )
    carry_out(host, plan(host))
    assert "nvidia-modprobe" not in host.locks


def test_the_switch_manager_of_nvlink5_is_no_reason_for_a_change_in_every_run(host: RpmHost) -> None:
    host.offered += [Rpm(name, "0", "2025.10", "1", "x86_64", "cuda") for name in ("nvlsm", "infiniband-diags")]
    given = facts(nvlink5=True)
    carry_out(host, plan(host, given))
    assert "nvlsm" in host.installed
    assert not plan(host, given).changed_needed


def test_a_step_that_dnf_refuses_shows_no_password_of_a_mirror(host: RpmHost) -> None:
    without_dkms(host)
    said = "Error: Failed to retrieve https://user:geheim@mirror.example/epel.rpm\n"
    found, answer = plan(host, facts(os=RHEL)).as_dict(), host.run

    def run(argv: Sequence[str]) -> tuple[int, str, str] | None:
        return (1, "", said) if "config-manager" in argv else answer(argv)

    reached = Host(run, host.root, host.root / "proc", lambda _text: "")
    with pytest.raises(DriverError, match=r"//mirror\.example/epel\.rpm") as caught:
        RpmTransaction(reached, found, KERNEL, True, Files()).carry_out(False)
    assert "geheim" not in f"{caught.value} {caught.value.fields}"


def test_a_repository_file_that_is_none_is_passed_over(host: RpmHost) -> None:
    without_dkms(host)
    (host.root / "etc/yum.repos.d/away.repo").symlink_to("nowhere")
    (host.root / "etc/yum.repos.d/folder.repo").mkdir()
    assert plan(host, facts(os=RHEL)).enable


def test_a_list_of_locks_that_is_no_text_is_one_sentence_before_anything_changes(host: RpmHost) -> None:
    host.lock_list.write_bytes(b"bash-\xff\n")
    with pytest.raises(SocleError, match=r"^Cannot read DNF's version locks: .*versionlock\.list"):
        carry_out(host, plan(host))
    assert host.installed == {} and host.lock_list.read_bytes() == b"bash-\xff\n"


def test_a_stream_that_was_left_enabled_without_a_driver_goes(host: RpmHost) -> None:
    host.enable("580-open")
    found = plan(host, state="absent")
    assert "stream 580-open of the module nvidia-driver would no longer be enabled" in summary(found)
    carry_out(host, found, check=True)
    assert host.stream == "580-open"
    carry_out(host, found)
    assert host.stream is None
    assert not plan(host, state="absent").changed_needed


def test_an_upgrade_that_a_pin_forbids_is_told(host: RpmHost) -> None:
    settled(host)
    found = plan(host, version="580.159.03", upgrade=True)
    assert found.warnings == [
        "gpu_driver_upgrade is true, but gpu_driver_version pins 580.159.03: change or empty the pin"
    ]
    assert found.warnings[0] in summary(found) and not found.changed_needed


def test_a_masked_unit_is_named_before_a_package_changes(host: RpmHost) -> None:
    place = host.root / "etc/systemd/system/nvidia-persistenced.service"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to("/dev/null")
    with pytest.raises(DriverError, match="systemctl unmask nvidia-persistenced"):
        plan(host)


def test_the_diff_has_versions_and_locks(host: RpmHost) -> None:
    after = carry_out(host, plan(host), check=True)["diff"]["after"]
    assert "nvidia-driver-cuda 3:580.178.04-1.el9 (held)\n" in after
    assert not any("if the repository has it" in line for line in after.splitlines())
