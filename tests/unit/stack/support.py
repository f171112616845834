# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as facts, stack and intent, with nothing wrong with them until a test changes them."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.gpu.hosts import HEALTHY

DRIVER = "580.159.04"
KERNEL = "6.12.118+deb13-cloud-amd64"
UUIDS = ("GPU-00000000-1111-2222-3333-444444444440", "GPU-00000000-1111-2222-3333-444444444441")
FABRIC_MANAGER = "nvidia-fabricmanager.service"

A100_CLASS: dict[str, Any] = {
    "name": "a100_sxm4_80g",
    "kind": "gpu",
    "family": "a100",
    "architecture": "ampere",
    "compute_capability": "8.0",
    "pci_ids": ["10de:20b2"],
    "products": ["NVIDIA A100-SXM4-80GB"],
    "link": "nvlink",
    "nvlink_expected": "NV12",
    "nvswitch": "possible",
    "driver": {"flavour": "open", "minimum": "525"},
    "env": {},
}


def package(version: str = f"{DRIVER}-1", status: str = "installed", held: bool = True) -> dict[str, Any]:
    return {"version": version, "status": status, "held": held}


def unit(active: str = "active", enabled: str = "enabled", **more: Any) -> dict[str, Any]:
    return {
        "present": True,
        "enabled": enabled,
        "active": active,
        "result": "success",
        "condition": True,
        "after": ["basic.target"],
        "active_since_us": 1,
        **more,
    }


def no_unit() -> dict[str, Any]:
    return {**unit("inactive"), "present": False, "enabled": None, "active_since_us": None}


def spec(path: str = "/var/run/cdi/nvidia.yaml", **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "mode": "0644",
        "version": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": ["0", "1", *UUIDS, "all"],
        "driver_versions": [DRIVER],
        "error": None,
        **more,
    }


def gpu(index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        **HEALTHY,
        "index": index,
        "uuid": UUIDS[index],
        "product": "NVIDIA A100-SXM4-80GB",
        "pci_bus_id": f"0000:0{index + 1}:00.0",
        "pci_device_id": "10de:20b2",
        "pci_subsystem_id": "10de:1463",
        "memory_mib": 81920,
        "architecture": "ampere",
        "compute_capability": "8.0",
        "numa_node": 0,
        "pcie": {"gen": 1, "gen_max": 4, "width": 16, "width_max": 16},
        "bar1_mib": 131072,
        "memory": {"reserved_mib": 600, "used_mib": 0, "free_mib": 81320},
        "power": {"limit_w": 400.0, "default_w": 400.0, "min_w": 100.0, "max_w": 400.0},
        "virtualization": "none",
        "gsp_version": DRIVER,
        **more,
    }


class Host:
    """A Debian 13 host with two A100-SXM4-80GB, driver 580, Podman 5.4.2 and toolkit 1.20.0, and nothing wrong."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {
            "schema": "socle.gpu_facts/2",
            "host_class": "a100_sxm4_80g",
            "kernel": KERNEL,
            "arch": "x86_64",
            "cgroup_version": 2,
            "cpu": {"model": "EPYC", "cores": 64},
            "memory_mib": 515000,
            "os": {"id": "debian", "version_id": "13", "codename": "trixie", "id_like": []},
            "gpus": [gpu(0), gpu(1)],
            "nvswitches": [],
            "nvlink5": False,
            "links": [{"a": "0000:01:00.0", "b": "0000:02:00.0", "link": "NV12"}],
            "driver": {
                "version": DRIVER,
                "flavour": "open",
                "library_version": DRIVER,
                "disk_version": DRIVER,
                "disk_flavour": "open",
                "next_kernel": KERNEL,
                "next_disk_version": DRIVER,
                "cuda_version": "13.0",
                "error": None,
                "nouveau": False,
            },
            "secure_boot": False,
            "iommu": {"active": False, "passthrough": None},
            "acs_redirects": [],
            "hypervisor": False,
            "xids": [],
            "engine": {"name": "podman", "version": "5.4.2"},
            "engines": {"podman": "5.4.2", "docker": None},
            "toolkit": {"version": "1.20.0"},
        }
        self.stack: dict[str, Any] = {
            "schema": "socle.host_stack/1",
            "packages": {
                "nvidia-driver-cuda": package(),
                "nvidia-kernel-open-dkms": package(),
                "libnvidia-ml1": package(),
                "nvidia-container-toolkit": package("1.20.0-1"),
                "nvidia-container-toolkit-base": package("1.20.0-1"),
                "libnvidia-container-tools": package("1.20.0-1"),
                "libnvidia-container1": package("1.20.0-1"),
                "dkms": package("3.2.2-1", held=False),
                "linux-headers-cloud-amd64": package("6.12.118-1", held=False),
                "podman": package("5.4.2+ds1-2", held=False),
            },
            "sources": [
                {
                    "file": "/etc/apt/sources.list.d/debian.sources",
                    "uri": "http://deb.debian.org/debian",
                    "kind": "distribution",
                },
                {
                    "file": "/etc/apt/sources.list.d/cuda.sources",
                    "uri": "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/",
                    "kind": "nvidia-cuda",
                },
                {
                    "file": "/etc/apt/sources.list.d/nvidia-container-toolkit.sources",
                    "uri": "https://nvidia.github.io/libnvidia-container/stable/deb/amd64",
                    "kind": "nvidia-toolkit",
                },
            ],
            "foreign": [],
            "dkms": [{"module": "nvidia", "version": DRIVER, "kernel": KERNEL, "state": "installed", "error": None}],
            "units": {
                "nvidia-persistenced.service": unit(),
                FABRIC_MANAGER: no_unit(),
                "nvidia-cdi-refresh.service": unit("inactive"),
                "nvidia-cdi-refresh.path": unit(),
                "docker.service": no_unit(),
                "unattended-upgrades.service": no_unit(),
            },
            "cdi": {"specs": [spec()], "environment": {}, "spec_dirs": ["/etc/cdi", "/var/run/cdi"]},
            "oci_hooks": [],
            "docker": {"daemon": {}, "error": None, "changed_since_start": False},
            "nvidia_runtime": {"no_cgroups": False, "mode": "auto"},
            "device_nodes": [
                {"path": path, "mode": "0666"}
                for path in ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
            ],
            "modules": ["nvidia", "nvidia_uvm"],
            "modules_load": ["nvidia_uvm"],
            "signing_key": {"path": None, "enrolled": None},
            "unattended": {"enabled": False, "blacklist": []},
            "selinux": {"mode": None, "container_use_devices": None},
            "reboot": {"required": False, "packages": []},
            "kernel_release": [6, 12, 118],
            "shm_mib": 257500,
            "reload_victims": [],
            "left_stopped": [],
            "damaged_notes": [],
            "damaged_keys": [],
            "gpu_processes": [],
        }
        self.intent: dict[str, Any] = {
            "driver_branch": "580",
            "driver_version": "",
            "driver_source": "nvidia",
            "driver_flavour": "auto",
            "engine": "podman",
            "toolkit_version": "1.20.0",
            "class": copy.deepcopy(A100_CLASS),
            "image_cuda": "13.0",
        }

    @property
    def gpu(self) -> dict[str, Any]:
        first: dict[str, Any] = self.facts["gpus"][0]
        return first

    @property
    def driver(self) -> dict[str, Any]:
        driver: dict[str, Any] = self.facts["driver"]
        return driver

    @property
    def packages(self) -> dict[str, Any]:
        packages: dict[str, Any] = self.stack["packages"]
        return packages

    @property
    def units(self) -> dict[str, Any]:
        units: dict[str, Any] = self.stack["units"]
        return units

    def gpus(self, **changes: Any) -> None:
        """Change all GPUs alike."""
        for one in self.facts["gpus"]:
            one.update(changes)

    def set_driver(self, version: str | None) -> None:
        """The same driver loaded, on disk and in the libraries."""
        for key in ("version", "library_version", "disk_version", "next_disk_version"):
            self.driver[key] = version

    def use_docker(self, version: str, **daemon: Any) -> None:
        self.facts["engine"] = {"name": "docker", "version": version}
        self.facts["engines"] = {"podman": None, "docker": version}
        self.intent["engine"] = "docker"
        self.stack["docker"]["daemon"] = daemon
        self.units["docker.service"] = unit()

    def use_podman(self, version: str) -> None:
        self.facts["engine"] = {"name": "podman", "version": version}
        self.facts["engines"] = {"podman": version, "docker": None}

    def nvswitch(self, active: str = "active") -> None:
        """An HGX board with its fabric manager."""
        self.facts["nvswitches"] = [{"pci_bus_id": "0000:80:00.0", "pci_device_id": "10de:1af1"}] * 6
        self.units[FABRIC_MANAGER] = unit(active)
        self.packages["nvidia-fabricmanager"] = package()

    def source(self, uri: str, kind: str, file: str = "/etc/apt/sources.list.d/more.list") -> None:
        self.stack["sources"].append({"file": file, "uri": uri, "kind": kind})


def cpu_host() -> Host:
    """A host without NVIDIA GPUs, with Podman."""
    host = Host()
    host.facts.update(host_class="cpu", gpus=[], links=[], toolkit={"version": None})
    host.driver.update({key: None for key in host.driver if key != "nouveau"})
    host.intent["class"] = {"name": "cpu", "kind": "cpu"}
    return host
