# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which repository and packages each release of Debian and Ubuntu gets."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._driver import names
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError, upstream

from .wishes import wanted

BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
KERNELS = {
    ("debian", "12"): "6.1.0-57-cloud-amd64",
    ("debian", "13"): "6.12.118+deb13-amd64",
    ("ubuntu", "22.04"): "5.15.0-161-generic",
    ("ubuntu", "24.04"): "6.8.0-90-generic",
    ("ubuntu", "26.04"): "7.0.0-12-generic",
}
UBUNTUS = [release for release in KERNELS if release[0] == "ubuntu"]
DEBIANS = [release for release in KERNELS if release[0] == "debian"]


def host(release: tuple[str, str]) -> dict[str, Any]:
    return {"id": release[0], "version_id": release[1], "codename": None, "id_like": []}


def packages(release: tuple[str, str], arch: str = "x86_64", **changes: Any) -> Any:
    return names.deb_packages(host(release), arch, KERNELS[release], wanted(**changes))


@pytest.mark.parametrize(
    ("release", "folder"),
    list(zip(KERNELS, ("debian12", "debian13", "ubuntu2204", "ubuntu2404", "ubuntu2604"), strict=True)),
)
def test_repository_of_each_release(release: tuple[str, str], folder: str) -> None:
    assert names.deb_repository(host(release), "x86_64", BASE + "/").url == f"{BASE}/{folder}/x86_64/"
    arm = names.deb_repository(host(release), "aarch64", BASE)
    assert arm.url == f"{BASE}/{folder}/sbsa/"
    assert arm.key_urls[0] == f"{arm.url}cuda-archive-keyring.gpg"


@pytest.mark.parametrize("release", [("debian", "11"), ("ubuntu", "25.10"), ("fedora", "42")])
def test_a_release_without_repository_is_named_with_those_that_have_one(release: tuple[str, str]) -> None:
    with pytest.raises(DriverError, match=rf"runs {release[0]} {release[1]} on x86_64.*Debian 13.*Ubuntu 26\.04"):
        names.deb_repository(host(release), "x86_64", BASE)


@pytest.mark.parametrize("release", DEBIANS)
@pytest.mark.parametrize(
    ("flavour", "module"), [("open", "nvidia-kernel-open-dkms"), ("proprietary", "nvidia-kernel-dkms")]
)
@pytest.mark.parametrize("branch", ["570", "580", "590", "615"])
def test_debian_from_nvidia(release: tuple[str, str], flavour: str, module: str, branch: str) -> None:
    found = packages(release, flavour=flavour, branch=branch)
    assert found.driver == ("nvidia-driver-cuda", module)
    assert found.pin == f"nvidia-driver-pinning-{branch}"


@pytest.mark.parametrize("release", UBUNTUS)
@pytest.mark.parametrize(
    ("branch", "flavour", "driver"),
    [
        (
            "570",
            "open",
            ("libnvidia-compute-570", "nvidia-dkms-570-open", "nvidia-utils-570", "nvidia-compute-utils-570"),
        ),
        (
            "580",
            "proprietary",
            ("libnvidia-compute-580", "nvidia-dkms-580", "nvidia-utils-580", "nvidia-compute-utils-580"),
        ),
        ("590", "open", ("libnvidia-compute", "nvidia-dkms-open", "nvidia-utils", "nvidia-compute-utils")),
        ("595", "proprietary", ("libnvidia-compute", "nvidia-dkms", "nvidia-utils", "nvidia-compute-utils")),
    ],
)
def test_ubuntu_from_nvidia(release: tuple[str, str], branch: str, flavour: str, driver: tuple[str, ...]) -> None:
    assert packages(release, branch=branch, flavour=flavour).driver == driver


@pytest.mark.parametrize(
    ("release", "branch", "flavour", "name"),
    [
        (("debian", "13"), "580", "open", "nvidia-open"),
        (("debian", "13"), "580", "proprietary", "cuda-drivers"),
        (("ubuntu", "24.04"), "580", "open", "nvidia-driver-580-open"),
        (("ubuntu", "24.04"), "580", "proprietary", "nvidia-driver-580"),
        (("ubuntu", "24.04"), "595", "open", "nvidia-open"),
    ],
)
def test_the_whole_driver_is_one_package(release: tuple[str, str], branch: str, flavour: str, name: str) -> None:
    assert packages(release, branch=branch, flavour=flavour, compute_only=False).driver == (name,)


@pytest.mark.parametrize("release", KERNELS)
def test_an_exact_version_has_an_exact_pin(release: tuple[str, str]) -> None:
    assert packages(release, version="580.178.04").pin == "nvidia-driver-pinning-580.178.04"


@pytest.mark.parametrize("release", KERNELS)
@pytest.mark.parametrize(
    ("branch", "companions", "optional"),
    [
        ("550", ("nvidia-fabricmanager-550", "libnvidia-nscq-550"), None),
        ("570", ("nvidia-fabricmanager-570", "libnvidia-nscq-570"), "libnvsdm-570"),
        ("580", ("nvidia-fabricmanager", "libnvidia-nscq"), "libnvsdm"),
        ("595", ("nvidia-fabricmanager", "libnvidia-nscq"), "libnvsdm"),
    ],
)
def test_companions_only_where_an_nvswitch_is(
    release: tuple[str, str], branch: str, companions: tuple[str, ...], optional: str | None
) -> None:
    without = packages(release, branch=branch)
    assert without.companions == () and not any("nvsdm" in name for name in without.optional)
    found = packages(release, branch=branch, nvswitch=True)
    assert found.companions == companions
    assert [name for name in found.optional if "nvsdm" in name] == ([optional] if optional else [])
    assert not set(found.independent) & {"nvlsm", "infiniband-diags"}
    assert not any("nvsdm" in name for name in packages(release, "aarch64", branch=branch, nvswitch=True).optional)


@pytest.mark.parametrize("release", KERNELS)
def test_nvlink5_has_its_subnet_manager(release: tuple[str, str]) -> None:
    found = packages(release, nvlink5=True)
    assert {"nvlsm", "infiniband-diags"} <= set(found.independent)
    assert "nvidia-fabricmanager" in found.companions


def test_debians_own_driver() -> None:
    found = packages(("debian", "13"), source="distribution", flavour="proprietary", branch="550")
    assert found.driver == ("nvidia-smi", "nvidia-kernel-dkms", "libcuda1")
    assert found.pin is None and "nvidia-persistenced" in found.independent
    found = packages(("debian", "13"), source="distribution", branch="550")
    assert "nvidia-open-kernel-dkms" in found.driver


def test_debian_has_no_fabric_manager() -> None:
    with pytest.raises(DriverError, match=r"no fabric manager.*gpu_driver_source to nvidia"):
        packages(("debian", "13"), source="distribution", nvswitch=True)


@pytest.mark.parametrize("release", UBUNTUS)
def test_ubuntus_own_driver(release: tuple[str, str]) -> None:
    found = packages(release, source="distribution")
    assert "nvidia-dkms-580-server-open" in found.driver and "nvidia-utils-580-server" in found.driver
    assert found.pin is None and found.headers == ("linux-headers-generic",)
    assert packages(release, source="distribution", nvswitch=True).companions == (
        "nvidia-fabricmanager-580",
        "libnvidia-nscq-580",
    )


@pytest.mark.parametrize("release", UBUNTUS)
def test_ubuntus_signed_modules_move_with_their_kernel(release: tuple[str, str]) -> None:
    found = packages(release, source="distribution", signed=True)
    assert "linux-modules-nvidia-580-server-open-generic" in found.independent
    assert not any("dkms" in name for name in (*found.driver, *found.independent) if "no-dkms" not in name)
    assert found.dkms is None and "linux-image-generic" in found.hold_also
    proprietary = packages(release, source="distribution", signed=True, flavour="proprietary")
    assert "linux-modules-nvidia-580-server-generic" in proprietary.independent


@pytest.mark.parametrize(
    ("release", "kernel", "name"),
    [
        (("debian", "12"), "6.1.0-57-cloud-amd64", "linux-headers-cloud-amd64"),
        (("debian", "12"), "6.1.0-57-amd64", "linux-headers-amd64"),
        (("debian", "12"), "6.1.0-57-rt-amd64", "linux-headers-rt-amd64"),
        (("debian", "13"), "6.12.118+deb13-cloud-arm64", "linux-headers-cloud-arm64"),
        (("debian", "13"), "6.12.118+deb13-arm64-16k", "linux-headers-arm64-16k"),
        (("debian", "13"), "7.3.4+bpo-cloud-amd64", "linux-headers-cloud-amd64"),
        (("debian", "13"), "6.12.1-custom", None),
        (("ubuntu", "22.04"), "5.15.0-161-generic", "linux-headers-generic"),
        (("ubuntu", "22.04"), "6.8.0-90-generic", "linux-headers-generic-hwe-22.04"),
        (("ubuntu", "24.04"), "6.8.0-90-generic", "linux-headers-generic"),
        (("ubuntu", "24.04"), "6.14.0-37-generic", "linux-headers-generic-hwe-24.04"),
        (("ubuntu", "24.04"), "6.14.0-1018-aws", "linux-headers-aws"),
        (("ubuntu", "24.04"), "6.8.0-1044-nvidia", "linux-headers-nvidia"),
        (("ubuntu", "24.04"), "6.8.0-90-lowlatency", "linux-headers-lowlatency"),
        (("ubuntu", "24.04"), "6.18.3", None),
    ],
)
def test_headers_by_the_running_kernel(release: tuple[str, str], kernel: str, name: str | None) -> None:
    assert names.headers(host(release), kernel) == ((name,) if name else ())


OF_THE_DRIVER = """
nvidia-driver-cuda nvidia-driver nvidia-driver-libs nvidia-driver-bin nvidia-driver-full nvidia-driver-assistant
nvidia-driver-pinning-580 nvidia-driver-pinning-580.178.04 nvidia-open nvidia-open-580 nvidia-driver-580
nvidia-driver-580-open nvidia-driver-580-server-open nvidia-kernel-open-dkms nvidia-kernel-dkms nvidia-kernel-support
nvidia-kernel-common nvidia-open-kernel-dkms nvidia-open-kernel-support nvidia-kernel-source nvidia-smi nvidia-modprobe
nvidia-persistenced nvidia-settings nvidia-xconfig nvidia-alternative nvidia-legacy-check nvidia-support
nvidia-installer-cleanup nvidia-suspend-common nvidia-cuda-mps nvidia-libopencl1 nvidia-vdpau-driver nvidia-opencl-icd
nvidia-opencl-common nvidia-egl-common nvidia-egl-icd nvidia-vulkan-icd nvidia-vulkan-common nvidia-tesla-470-driver
nvidia-fabricmanager nvidia-fabricmanager-570 nvidia-imex nvidia-imex-570 nvlsm firmware-nvidia-gsp cuda-drivers
cuda-drivers-580 cuda-drivers-fabricmanager-570 nvidia-utils nvidia-utils-580 nvidia-utils-580-server
nvidia-compute-utils-580 nvidia-kernel-source-580-open nvidia-kernel-source-580-server-open
nvidia-kernel-common-580-server nvidia-dkms nvidia-dkms-open nvidia-dkms-580-open nvidia-dkms-580-server-open
nvidia-headless-no-dkms-580-server-open nvidia-headless-580 nvidia-firmware-580-580.178.04
nvidia-firmware-580-server-580.159.03 xserver-xorg-video-nvidia xserver-xorg-video-nvidia-580
linux-modules-nvidia-580-server-open-generic linux-objects-nvidia-580-6.8.0-90-generic
linux-signatures-nvidia-6.8.0-90-generic libcuda1 libcuda1-i386 libcudadebugger1 libnvcuvid1 libnvoptix1 libnvsdm
libnvsdm-570 libxnvctrl0 libnvidia-compute libnvidia-compute-580 libnvidia-compute-580-server libnvidia-cfg1
libnvidia-cfg1-580 libnvidia-common-580 libnvidia-decode-580 libnvidia-encode1 libnvidia-extra-580 libnvidia-fbc1
libnvidia-fbc1-580 libnvidia-gl-580 libnvidia-glcore libnvidia-eglcore libnvidia-glvkspirv libnvidia-gpucomp
libnvidia-gpucomp-580 libnvidia-ml1 libnvidia-ngx1 libnvidia-nscq libnvidia-nscq-570 libnvidia-nvvm4 libnvidia-nvvm70
libnvidia-opencl1 libnvidia-opticalflow1 libnvidia-pkcs11-openssl3 libnvidia-present libnvidia-ptxjitcompiler1
libnvidia-rtcore libnvidia-sandboxutils libnvidia-allocator1 libnvidia-api1 libnvidia-vksc-core libegl-nvidia0
libgles-nvidia2 libgl1-nvidia-glvnd-glx libglx-nvidia0
"""
OF_OTHERS = """
nvidia-container-toolkit nvidia-container-toolkit-base nvidia-container-runtime nvidia-docker2 libnvidia-container1
libnvidia-container-tools nvidia-ctk cuda-toolkit-13-0 cuda-compat-13-0 cuda-nvml-dev-13-0 nvidia-cuda-toolkit
nvidia-cuda-dev nvidia-cuda-toolkit-gcc nvidia-cuda-gdb nvidia-cudnn nvidia-fs nvidia-fs-dkms nvidia-gds nvidia-gds-13-0
nvidia-profiler nvidia-visual-profiler nvidia-nsight nvidia-nsight-systems nvidia-opencl-dev nvidia-vaapi-driver
nvidia-prime nvidia-texture-tools nvidia-peer-memory-dkms nvidia-mlnx-ofed nvidia-dcgm nvidia-kernel-module-helper
libnvidia-ml-dev libxnvctrl-dev libnvidia-egl-wayland1 libnvidia-egl-wayland-dev libnvidia-egl-gbm1
linux-headers-amd64 linux-image-nvidia linux-nvidia dkms datacenter-gpu-manager nvtop
"""


@pytest.mark.parametrize("name", OF_THE_DRIVER.split())
def test_packages_of_the_driver(name: str) -> None:
    assert names.is_driver_package(name)


@pytest.mark.parametrize("name", OF_OTHERS.split())
def test_packages_of_others(name: str) -> None:
    assert not names.is_driver_package(name)


@pytest.mark.parametrize(
    "version", ["580.178.04", "580.178.04-1", "580.178.04-0ubuntu0.24.04.1", "3:580.178.04-1.el9", "580.178.04~rc1-1"]
)
def test_version_of_a_driver_in_that_of_a_package(version: str) -> None:
    assert upstream(version) == "580.178.04"
