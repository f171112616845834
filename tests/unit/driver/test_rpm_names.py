# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which repository, module stream and packages each release of the RHEL family gets."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import rpm_names
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError

from .wishes import wanted

BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
KERNEL_9 = "5.14.0-570.12.1.el9_6.x86_64"
KERNEL_10 = "6.12.0-55.9.1.el10_0.x86_64"
ALL = [(name, version) for name in ("rhel", "rocky", "almalinux", "centos") for version in ("9.6", "10.0")]


def host(name: str, version: str) -> dict[str, Any]:
    like = {"rhel": ["fedora"]}.get(name, ["rhel", "centos", "fedora"])
    return {"id": name, "version_id": version, "codename": None, "id_like": like}


@pytest.mark.parametrize(("name", "version"), ALL)
def test_every_release_has_its_folder_and_its_own_key(name: str, version: str) -> None:
    repository = rpm_names.rpm_repository(host(name, version), "x86_64", BASE + "/")
    folder, key = ("rhel9", "D42D0685.pub") if version == "9.6" else ("rhel10", "CDF6BA43.pub")
    assert repository.url == f"{BASE}/{folder}/x86_64/"
    assert repository.key_urls == (f"{BASE}/{folder}/x86_64/{key}",)


def test_arm_servers_have_a_folder_of_another_name() -> None:
    assert rpm_names.rpm_repository(host("rocky", "10.1"), "aarch64", BASE).url == f"{BASE}/rhel10/sbsa/"


@pytest.mark.parametrize(
    ("name", "version", "arch"),
    [("rhel", "8.10", "x86_64"), ("fedora", "44", "x86_64"), ("rocky", "9.6", "ppc64le"), ("ol", "9.6", "x86_64")],
)
def test_an_unknown_release_is_refused_by_name(name: str, version: str, arch: str) -> None:
    with pytest.raises(DriverError, match=f"runs {name} {version} on {arch}.*releases 9 and 10 of RHEL, Rocky Linux"):
        rpm_names.rpm_repository(host(name, version), arch, BASE)


@pytest.mark.parametrize(("name", "version"), ALL)
def test_the_stream_selects_the_branch_only_where_modules_exist(name: str, version: str) -> None:
    packages = rpm_names.rpm_packages(host(name, version), "x86_64", KERNEL_9, wanted())
    assert packages.driver == ("nvidia-driver-cuda", "kmod-nvidia-open-dkms")
    assert packages.stream == ("580-open" if version == "9.6" else None)
    assert packages.pin is None
    assert (packages.module, packages.dkms) == ("nvidia", "nvidia")


@pytest.mark.parametrize(
    ("changes", "driver", "stream"),
    [
        ({"flavour": "proprietary"}, ("nvidia-driver-cuda", "kmod-nvidia-latest-dkms"), "580-dkms"),
        ({"compute_only": False}, ("nvidia-open",), "580-open"),
        ({"compute_only": False, "flavour": "proprietary"}, ("cuda-drivers",), "580-dkms"),
        ({"branch": "595", "version": "595.91.07"}, ("nvidia-driver-cuda", "kmod-nvidia-open-dkms"), "595-open"),
    ],
)
def test_flavour_and_extent_name_packages_and_stream(
    changes: dict[str, Any], driver: tuple[str, ...], stream: str
) -> None:
    packages = rpm_names.rpm_packages(host("almalinux", "9.6"), "x86_64", KERNEL_9, wanted(**changes))
    assert (packages.driver, packages.stream) == (driver, stream)


@pytest.mark.parametrize(
    ("branch", "arch", "companions", "nvsdm"),
    [
        ("550", "x86_64", ("nvidia-fabric-manager", "libnvidia-nscq-550"), None),
        ("570", "x86_64", ("nvidia-fabric-manager", "libnvidia-nscq-570"), "libnvsdm-570"),
        ("580", "x86_64", ("nvidia-fabricmanager", "libnvidia-nscq"), "libnvsdm"),
        ("595", "aarch64", ("nvidia-fabricmanager", "libnvidia-nscq"), None),
    ],
)
def test_a_switch_brings_the_companions_of_the_branch(
    branch: str, arch: str, companions: tuple[str, ...], nvsdm: str | None
) -> None:
    packages = rpm_names.rpm_packages(host("rhel", "9.6"), arch, KERNEL_9, wanted(branch=branch, nvswitch=True))
    assert packages.companions == companions
    assert [name for name in packages.optional if name.startswith("libnvsdm")] == ([nvsdm] if nvsdm else [])
    assert packages.independent == ()


def test_nvlink_5_also_brings_the_subnet_manager() -> None:
    packages = rpm_names.rpm_packages(host("rhel", "10.0"), "x86_64", KERNEL_10, wanted(nvlink5=True))
    assert packages.companions == ("nvidia-fabricmanager", "libnvidia-nscq")
    assert packages.independent == ("nvlsm", "infiniband-diags")


def test_without_a_switch_no_fabric_manager_is_named() -> None:
    packages = rpm_names.rpm_packages(host("rhel", "10.0"), "x86_64", KERNEL_10, wanted())
    assert packages.companions == packages.independent == ()


@pytest.mark.parametrize(
    ("kernel", "headers"),
    [
        (KERNEL_9, ("kernel-devel-matched",)),
        (KERNEL_10, ("kernel-devel-matched",)),
        ("5.14.0-427.el9.x86_64", ("kernel-devel-matched",)),
        ("6.12.0-55.el10.aarch64+64k", ("kernel-64k-devel-matched",)),
        ("5.14.0-570.12.1.el9_6.x86_64+rt", ("kernel-rt-devel-matched",)),
        ("5.15.0-312.187.5.el9uek.x86_64", ()),
        ("6.18.1-1.el9.elrepo.x86_64", ()),
    ],
)
def test_headers_follow_the_kernel_by_its_metapackage(kernel: str, headers: tuple[str, ...]) -> None:
    assert rpm_names.rpm_headers(kernel) == headers


def test_dkms_comes_from_epel() -> None:
    assert rpm_names.epel_packages(host("rocky", "9.6")) == ("epel-release",)
    assert rpm_names.epel_packages(host("rhel", "10.0")) == (
        "https://dl.fedoraproject.org/pub/epel/epel-release-latest-10.noarch.rpm",
    )
    assert rpm_names.builder_repository(host("almalinux", "10.0"), "x86_64") == "crb"
    assert rpm_names.builder_repository(host("rhel", "10.0"), "aarch64") == "codeready-builder-for-rhel-10-aarch64-rpms"


def test_what_the_distribution_has_not_is_refused_before_anything_is_installed() -> None:
    with pytest.raises(DriverError, match=r"from AlmaLinux: its repositories have no NVIDIA driver; set gpu_driver_s"):
        rpm_names.rpm_packages(host("almalinux", "9.6"), "x86_64", KERNEL_9, wanted(source="distribution"))
    with pytest.raises(DriverError, match=r"mokutil --import .*; or turn Secure Boot off"):
        rpm_names.rpm_packages(host("rocky", "10.0"), "x86_64", KERNEL_10, wanted(signed=True))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("kmod-nvidia-open-dkms", True),
        ("nvidia-driver-cuda-libs", True),
        ("nvidia-kmod-common", True),
        ("nvidia-persistenced", True),
        ("nvidia-fabric-manager", True),
        ("nvidia-fabricmanager", True),
        ("libnvidia-ml", True),
        ("libnvidia-nscq-570", True),
        ("libnvsdm", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("nvidia-gds", False),
        ("cuda-toolkit-13-0", False),
        ("dkms", False),
    ],
)
def test_the_driver_is_told_from_toolkit_and_libraries(name: str, ours: bool) -> None:
    assert rpm_names.is_driver_rpm(name) is ours
