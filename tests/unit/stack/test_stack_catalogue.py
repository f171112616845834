# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every check of the catalogue: a host on which it fires, and one close to it on which it does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import Override, resolve_class
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._stack.catalogue import (
    CHECKS,
    PREVENTED,
    due_checks,
    failure_message,
    find,
    host_findings_failure,
    host_findings_lines,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.check import in_order
from ansible_collections.socle.inference.plugins.module_utils._stack.checks_hardware import XIDS
from ansible_collections.socle.inference.plugins.plugin_utils.data_path import DataPath

from .support import DRIVER, FABRIC_MANAGER, KERNEL, Host, cpu_host, gpu, no_unit, package, spec, unit

ROOT = Path(__file__).parents[3]
BY_ID = {check.id: check for check in CHECKS}

Change = Callable[[Host], Any]

RTX = {"product": "NVIDIA GeForce RTX 5090", "pci_device_id": "10de:2b85", "architecture": "blackwell"}
BARE = {"architecture": None, "compute_capability": None, "product": None, "by_driver": False, "index": None}
CDI_REFRESH = "nvidia-cdi-refresh.service"
CDI_PATH = "nvidia-cdi-refresh.path"


def xid(code: int) -> Change:
    return lambda host: host.facts["xids"].append(
        {"pci_bus_id": "0000:01:00.0", "code": code, "text": f"NVRM: Xid (PCI:0000:01:00): {code}"}
    )


def process(**more: Any) -> Change:
    held = {"pid": 4711, "name": "python3", "memory_mib": 9000, "gpu": "0000:01:00.0", "owner": "session-4.scope"}
    return lambda host: host.stack["gpu_processes"].append({**held, **more})


def wants(**intent: Any) -> Change:
    return lambda host: host.intent.update(intent)


def specs(*found: dict[str, Any]) -> Change:
    return lambda host: host.stack["cdi"].update(specs=list(found))


def both(*changes: Change) -> Change:
    return lambda host: [change(host) for change in changes]


def b200(host: Host) -> None:
    host.gpus(product="NVIDIA B200", pci_device_id="10de:2901", architecture="blackwell", compute_capability="10.0")
    host.intent["class"].update(
        architecture="blackwell", compute_capability="10.0", pci_ids=["10de:2901"], nvlink_expected=None
    )
    host.nvswitch()
    host.facts.update(nvlink5=True, nvswitches=[])
    host.packages["nvlsm"] = package("2025.10-1")
    host.stack["modules"] += ["mlx5_core", "mlx5_ib", "ib_umad"]


CASES: dict[str, tuple[Change, str, Change]] = {
    # id: (makes it fire, words of the sentence or remedy, comes close and does not)
    "SOC-H01": (
        lambda h: (
            h.use_docker("28.3.0", runtimes={"nvidia": {}}),
            h.stack["nvidia_runtime"].update(mode="legacy"),
        ),
        "daemon-reload",
        lambda h: (
            h.use_docker("28.3.0", runtimes={"nvidia": {}}, **{"exec-opts": ["native.cgroupdriver=cgroupfs"]}),
            h.stack["nvidia_runtime"].update(mode="legacy"),
        ),
    ),
    "SOC-H02": (wants(toolkit_version="1.19.0"), "gpu_container_toolkit_version", wants(toolkit_version="1.19.1")),
    "SOC-H03": (
        lambda h: h.units[CDI_REFRESH].update(active="failed", result="exit-code"),
        "result exit-code",
        lambda h: h.units[CDI_REFRESH].update(active="activating"),
    ),
    "SOC-H04": (specs(spec(mode="0600")), "mode 0600", specs(spec(mode="0444"))),
    "SOC-H05": (
        lambda h: h.use_podman("4.9.3"),
        "Podman 4.9.3 reads up to 0.6.0",
        both(lambda h: h.use_podman("4.9.3"), specs(spec(version="0.5.0"))),
    ),
    "SOC-H06": (
        specs(spec("/etc/cdi/nvidia.yaml", driver_versions=["570.133.20"])),
        "Remove /etc/cdi/nvidia.yaml",
        specs(spec("/etc/cdi/nvidia.yaml", driver_versions=[])),
    ),
    "SOC-H07": (
        lambda h: h.stack["cdi"].update(spec_dirs=None),
        "looks only into /etc/cdi",
        lambda h: h.stack["cdi"].update(spec_dirs=["/run/cdi"]),
    ),
    "SOC-H08": (
        lambda h: h.use_docker("26.1.5"),
        '"features": {"cdi": true}',
        lambda h: h.use_docker("26.1.5", features={"cdi": True}),
    ),
    "SOC-H09": (
        lambda h: h.facts["toolkit"].update(version=None),
        "gpu_container_toolkit_state",
        lambda h: h.facts["toolkit"].update(version="1.18.1"),
    ),
    "SOC-H10": (
        lambda h: h.stack["device_nodes"][0].update(mode="0660"),
        "/dev/nvidia0 (0660)",
        lambda h: h.stack["device_nodes"].append({"path": "/dev/nvidia-modeset", "mode": "0600"}),
    ),
    "SOC-H11": (wants(toolkit_version="1.17.7"), "1.17.7", wants(toolkit_version="1.17.8")),
    "SOC-H12": (wants(env={"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}), "803", wants(env={"OTHER": "1"})),
    "SOC-H13": (
        lambda h: (h.gpus(**RTX), h.set_driver("575.64.05"), h.intent.update(driver_branch="575")),
        "804",
        lambda h: (h.gpus(**RTX), h.set_driver("575.64.05"), h.intent.update(driver_branch="580")),
    ),
    "SOC-H14": (
        lambda h: (h.set_driver("570.211.01"), h.intent.update(driver_branch="570")),
        "-cu129",
        lambda h: (h.set_driver("570.211.01"), h.intent.update(driver_branch="570", image_cuda="12.9")),
    ),
    "SOC-H15": (
        lambda h: (h.nvswitch(), h.gpus(fabric_state="in progress", fabric_status="n/a")),
        "802",
        lambda h: (h.nvswitch(), h.gpus(fabric_state="completed", fabric_status="success")),
    ),
    "SOC-H16": (
        lambda h: h.units.update({FABRIC_MANAGER: unit("failed")}),
        "NV_WARN_NOTHING_TO_DO",
        lambda h: h.units.update({FABRIC_MANAGER: unit("inactive", "disabled")}),
    ),
    "SOC-H17": (
        lambda h: (h.nvswitch(), h.packages.update({"nvidia-fabricmanager": package("580.126.09-1")})),
        "nvidia-fabricmanager 580.126.09",
        lambda h: (h.nvswitch(), h.packages.update({"nvidia-fabricmanager-dev": package("580.126.09-1")})),
    ),
    "SOC-H18": (
        lambda h: (b200(h), h.packages.pop("nvlsm")),
        "nvlsm is not installed",
        b200,
    ),
    "SOC-H19": (
        lambda h: (b200(h), h.driver.update(flavour="proprietary"), h.intent.update(driver_flavour="proprietary")),
        "gpu_driver_flavour: auto",
        wants(driver_flavour="proprietary"),
    ),
    "SOC-H20": (
        lambda h: (h.set_driver(None), h.intent.update(driver_version="580.95.05")),
        "6.12.118",
        lambda h: (
            h.set_driver(None),
            h.intent.update(driver_version="580.95.05"),
            h.stack.update(kernel_release=[6, 12, 96]),
        ),
    ),
    "SOC-H21": (
        lambda h: h.stack["dkms"][0].update(
            kernel=None, state="added", error="nv-pci.c:237:5: error: too few arguments to function"
        ),
        "nv-pci.c:237:5: error: too few arguments",
        lambda h: h.stack["dkms"].append(
            {"module": "nvidia", "version": "570.1", "kernel": None, "state": "added", "error": None}
        ),
    ),
    "SOC-H22": (
        lambda h: h.source("https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu", "ppa"),
        "graphics-drivers",
        lambda h: h.source("https://ppa.launchpadcontent.net/deadsnakes/ppa/ubuntu", "ppa"),
    ),
    "SOC-H24": (
        lambda h: h.driver.update(library_version="580.178.04"),
        "580.178.04",
        lambda h: h.driver.update(library_version=None),
    ),
    "SOC-H25": (
        lambda h: h.driver.update(version=None, disk_version=None),
        f"dkms autoinstall -k {KERNEL}",
        lambda h: (h.set_driver(None), h.stack.update(packages={})),
    ),
    "SOC-H26": (
        lambda h: (
            h.set_driver(None),
            h.facts.update(secure_boot=True),
            h.stack.update(signing_key={"path": "/var/lib/dkms/mok.pub", "enrolled": False}),
        ),
        "mokutil --import /var/lib/dkms/mok.pub",
        lambda h: (
            h.set_driver(None),
            h.facts.update(secure_boot=True),
            h.stack.update(signing_key={"path": "/var/lib/dkms/mok.pub", "enrolled": True}),
        ),
    ),
    "SOC-H27": (
        lambda h: h.stack.update(device_nodes=[{"path": "/dev/nvidiactl", "mode": "0666"}]),
        "/dev/nvidia-uvm is missing",
        lambda h: (h.driver.update(version=None), h.stack.update(device_nodes=[])),
    ),
    "SOC-H28": (
        lambda h: h.units["nvidia-persistenced.service"].update(active="inactive", condition=False),
        "nvidia-persistenced did not start, since its condition was not met",
        lambda h: (
            h.units["nvidia-persistenced.service"].update(active="inactive", condition=False),
            h.intent.update(driver_persistence=False),
        ),
    ),
    "SOC-H29": (xid(119), "change gpu_driver_version where the inventory has one, else run", xid(31)),
    "SOC-H30": (
        lambda h: h.facts.update(
            links=[{"a": "0000:01:00.0", "b": "0000:02:00.0", "link": "PHB"}], acs_redirects=["0000:00:01.1"]
        ),
        "setpci -s 0000:00:01.1",
        lambda h: h.facts.update(acs_redirects=["0000:00:01.1"]),
    ),
    "SOC-H31": (
        lambda h: h.stack.update(shm_mib=64),
        "64 MiB",
        lambda h: (h.stack.update(shm_mib=64), h.facts.update(gpus=h.facts["gpus"][:1])),
    ),
    "SOC-H33": (process(), "PID 4711 (python3 in session-4.scope) holds 9000 MiB", process(owner="vllm-chat.service")),
    "SOC-H36": (lambda h: h.use_podman("5.7.1"), "27771", lambda h: h.use_podman("5.7.0")),
    "SOC-H38": (
        lambda h: h.use_docker("29.1.0"),
        '"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1048576, "Soft": 1048576}}',
        lambda h: h.use_docker("29.1.0", **{"default-ulimits": {"nofile": {"Hard": 1048576}}}),
    ),
    "SOC-H41": (
        lambda h: (h.gpus(pci_device_id="10de:3fff", **BARE), h.facts.update(host_class=None), h.intent.pop("class")),
        'pci_ids: ["10de:3fff"]',
        lambda h: (h.gpus(pci_device_id="10de:3fff", **BARE), h.facts.update(host_class=None)),
    ),
    "SOC-H42": (
        lambda h: h.gpus(pci_device_id="10de:2335", **BARE),
        "a100_sxm4_80g",
        lambda h: h.gpus(pci_device_id="10de:20b2", **BARE),
    ),
    "SOC-H43": (lambda h: h.gpu.update(on_bus=False), "GPU 0", lambda h: h.gpu.update(on_bus=None)),
    "SOC-H44": (
        lambda h: h.gpu.update(by_driver=False),
        "0000:01:00.0",
        lambda h: (h.gpus(by_driver=False), h.set_driver(None)),
    ),
    "SOC-H45": (
        lambda h: h.gpu.update(mig="disabled", mig_pending="enabled"),
        "nvidia-smi -i 0000:01:00.0 -mig 0",
        lambda h: h.gpu.update(mig=None, mig_pending=None),
    ),
    "SOC-H46": (
        lambda h: h.gpus(virtualization="vgpu"),
        "mode vgpu",
        lambda h: h.gpus(virtualization="pass-through"),
    ),
    "SOC-H47": (
        lambda h: h.gpu.update(pcie={"gen": 4, "gen_max": 4, "width": 8, "width_max": 16}),
        "x8 of x16",
        lambda h: h.gpu.update(pcie={"gen": 1, "gen_max": 5, "width": 16, "width_max": 16}),
    ),
    "SOC-H48": (
        lambda h: h.gpu.update(remapped_pending=True),
        "remapped",
        lambda h: h.gpu.update(remapped_pending=None),
    ),
    "SOC-H49": (
        lambda h: h.gpu.update(remapped_failure=True),
        "replaced",
        lambda h: h.gpu.update(remapped_failure=None),
    ),
    "SOC-H50": (
        lambda h: h.gpu.update(recovery_action="reset"),
        "recovery: reset",
        lambda h: h.gpu.update(recovery_action=None),
    ),
    "SOC-H51": (xid(79), "Xid 79 of 0000:01:00.0 (a GPU that fell off the bus: power the host off and on", xid(43)),
    "SOC-H52": (xid(31), "Xid 31", xid(48)),
    "SOC-H53": (lambda h: h.gpu.update(bar1_mib=256), "256 MiB", lambda h: h.gpu.update(bar1_mib=65536)),
    "SOC-H54": (
        lambda h: h.gpus(persistence=False),
        "which has nvidia-persistenced switch it on",
        lambda h: (h.gpus(persistence=False), h.intent.update(driver_persistence=False)),
    ),
    "SOC-H55": (
        lambda h: h.gpu["power"].update(limit_w=300.0),
        "300 W, the default is 400 W",
        lambda h: h.gpu["power"].update(limit_w=None),
    ),
    "SOC-H56": (
        lambda h: h.gpu.update(ecc_pending="disabled"),
        "will be disabled",
        lambda h: h.gpu.update(ecc="disabled", ecc_pending="disabled"),
    ),
    "SOC-H57": (
        lambda h: h.gpus(pci_device_id="10de:1db6", **BARE),
        "Volta",
        lambda h: h.gpus(pci_device_id="10de:1eb8", **BARE),
    ),
    "SOC-H58": (
        lambda h: h.intent["class"]["driver"].update(minimum="590"),
        "gpu_driver_branch to 590",
        lambda h: h.intent["class"]["driver"].update(minimum="580"),
    ),
    "SOC-H59": (
        lambda h: (h.set_driver("570.211.01"), h.intent.update(driver_branch=None, image_cuda=None)),
        "570.211.01",
        lambda h: h.intent.update(driver_branch=None, image_cuda=None),
    ),
    "SOC-H60": (wants(driver_version="580.178.04"), "expected 580.178.04", wants(driver_version=DRIVER)),
    "SOC-H61": (
        lambda h: h.driver.update(next_kernel="6.12.120+deb13-cloud-amd64", next_disk_version=None),
        "dkms autoinstall -k 6.12.120+deb13-cloud-amd64",
        lambda h: h.driver.update(next_kernel="6.12.120+deb13-cloud-amd64", next_disk_version=DRIVER),
    ),
    "SOC-H62": (
        lambda h: h.driver.update(disk_version="580.178.04", library_version=None),
        "580.178.04 is installed",
        lambda h: h.driver.update(disk_version=None),
    ),
    "SOC-H63": (
        lambda h: h.gpus(bound_driver="nouveau"),
        "nouveau drives",
        lambda h: h.gpus(bound_driver=None),
    ),
    "SOC-H64": (
        lambda h: h.gpus(bound_driver="vfio-pci"),
        "vfio-pci drives",
        lambda h: h.gpu.update(bound_driver="vfio-pci"),
    ),
    "SOC-H65": (
        lambda h: h.stack["foreign"].append({"kind": "runfile", "evidence": "/usr/bin/nvidia-uninstall"}),
        "nvidia-uninstall",
        lambda h: h.stack.pop("foreign"),
    ),
    "SOC-H66": (
        lambda h: h.source("https://x.example/", "nvidia-docker-old", "/etc/apt/sources.list.d/nvidia-docker.list"),
        "rm /etc/apt/sources.list.d/nvidia-docker.list",
        lambda h: (h.stack["sources"].pop(), h.source("https://x.example/", "nvidia-docker-old")),
    ),
    "SOC-H67": (
        lambda h: h.packages.update({"nvidia-kernel-open-dkms": package(status="half-configured")}),
        "nvidia-kernel-open-dkms (half-configured)",
        lambda h: h.packages.update({"nvidia-old": package(status="config-files")}),
    ),
    "SOC-H68": (
        lambda h: [one.update(held=False) for one in h.packages.values()],
        "3 of 3 driver packages are not held: libnvidia-ml1, nvidia-driver-cuda, nvidia-kernel-open-dkms; an upgrade",
        lambda h: h.packages.update(libcuda1=package("570.211.01-1", held=False)),
    ),
    "SOC-H69": (
        lambda h: (
            h.packages.update({"unattended-upgrades": package("2.12")}),
            h.packages["libnvidia-ml1"].update(held=False),
            h.stack.update(unattended={"enabled": True, "blacklist": ["linux-image"]}),
        ),
        "Unattended-Upgrade::Package-Blacklist",
        lambda h: (
            h.packages.update({"unattended-upgrades": package("2.12")}),
            h.packages["libnvidia-ml1"].update(held=False),
            h.stack.update(unattended={"enabled": True, "blacklist": ["+", "^libnvidia-"]}),
        ),
    ),
    "SOC-H70": (
        lambda h: h.nvswitch("failed"),
        "6 NVSwitches",
        lambda h: h.nvswitch("active"),
    ),
    "SOC-H71": (
        specs(spec(error="it has no cdiVersion")),
        "/var/run/cdi/nvidia.yaml cannot be used, as it has no cdiVersion",
        both(specs(), lambda h: h.driver.update(version=None)),
    ),
    "SOC-H72": (
        specs(spec(), spec("/etc/cdi/nvidia.yaml")),
        "/var/run/cdi/nvidia.yaml, /etc/cdi/nvidia.yaml",
        specs(spec(), spec("/etc/cdi/mig.yaml", devices=["0:1"])),
    ),
    "SOC-H73": (specs(spec(devices=["0", "all"])), "GPU 1", specs(spec(devices=["0", "1"]))),
    "SOC-H74": (
        lambda h: h.stack["oci_hooks"].append("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json"),
        "rm /usr/share/containers",
        lambda h: h.stack.pop("oci_hooks"),
    ),
    "SOC-H75": (
        lambda h: h.packages.update({"libnvidia-container1": package("1.18.1-1")}),
        "libnvidia-container1 1.18.1",
        lambda h: [h.packages.pop(name) for name in ("libnvidia-container1", "libnvidia-container-tools")],
    ),
    "SOC-H76": (
        lambda h: h.units[CDI_REFRESH]["after"].append("multi-user.target"),
        "multi-user.target",
        lambda h: h.units[CDI_REFRESH]["after"].append("sysinit.target"),
    ),
    "SOC-H77": (
        lambda h: h.units.update({CDI_PATH: unit("inactive", "disabled")}),
        "disabled, inactive",
        lambda h: h.units.update({CDI_PATH: no_unit()}),
    ),
    "SOC-H78": (
        lambda h: h.stack["docker"].update(error="Expecting value: line 1 column 2 (char 1)"),
        "Expecting value",
        lambda h: h.stack["docker"].update(daemon={"debug": True}),
    ),
    "SOC-H79": (
        lambda h: h.use_docker("28.3.0", **{"default-runtime": "nvidia"}),
        "default-runtime",
        lambda h: h.use_docker("28.3.0", **{"default-runtime": "runc"}),
    ),
    "SOC-H80": (
        lambda h: (h.use_docker("28.3.0"), h.stack["nvidia_runtime"].update(no_cgroups=True)),
        "no-cgroups=false",
        lambda h: h.stack["nvidia_runtime"].update(no_cgroups=True),
    ),
    "SOC-H81": (
        lambda h: h.stack["docker"].update(changed_since_start=True),
        "systemctl restart docker",
        lambda h: h.stack["docker"].update(changed_since_start=False),
    ),
    "SOC-H82": (
        lambda h: h.stack.update(selinux={"mode": "enforcing", "container_use_devices": False}),
        "Start other containers with --security-opt label=disable, or run 'setsebool -P container_use_devices on'",
        lambda h: h.stack.update(selinux={"mode": "enforcing", "container_use_devices": True}),
    ),
    "SOC-H83": (
        lambda h: h.packages.pop("linux-headers-cloud-amd64"),
        "linux-headers-cloud-amd64 is not installed",
        lambda h: (h.packages.pop("linux-headers-cloud-amd64"), h.stack.update(dkms=[])),
    ),
    "SOC-H84": (
        lambda h: (h.use_podman("4.3.1"), h.intent.update(engine="auto")),
        "found Podman 4.3.1 and no Docker, expected Podman 4.6 or Docker 25 or newer",
        lambda h: (h.use_podman("4.9.3"), h.intent.update(engine="auto")),
    ),
    "SOC-H85": (
        lambda h: h.stack.update(modules_load=[]),
        "/etc/modules-load.d",
        lambda h: h.stack.update(modules_load=["nvidia_current_nvidia_uvm"]),
    ),
    "SOC-H86": (
        lambda h: h.stack.update(reboot={"required": True, "packages": ["linux-image-amd64"]}),
        "for linux-image-amd64",
        lambda h: h.stack.pop("reboot"),
    ),
    "SOC-H87": (
        lambda h: h.gpu.update(product="NVIDIA A100-SXM4-40GB", pci_device_id="10de:20b0"),
        "NVIDIA A100-SXM4-40GB, NVIDIA A100-SXM4-80GB",
        lambda h: h.gpu.update(product=None),
    ),
    "SOC-H88": (
        lambda h: h.facts["links"][0].update(link="NV8"),
        "linked by NV8",
        lambda h: (h.facts["links"][0].update(link="PHB"), h.intent["class"].update(link="nvlink_optional")),
    ),
    "SOC-H89": (
        lambda h: h.facts.update(cgroup_version=1),
        "container_engine: docker",
        lambda h: (h.facts.update(cgroup_version=1), h.use_docker("28.3.0")),
    ),
    "SOC-H90": (
        lambda h: h.driver.update(error="Unable to determine the device handle"),
        "Unable to determine the device handle",
        lambda h: h.driver.update(error="Driver/library version mismatch", library_version="580.178.04"),
    ),
    "SOC-H91": (
        wants(driver_flavour="proprietary", driver_branch="615"),
        "branch 615",
        wants(driver_flavour="proprietary", driver_branch="610"),
    ),
    "SOC-H93": (
        lambda h: (h.set_driver(None), h.stack.update(packages={})),
        "There is no NVIDIA driver for each of 2 GPUs",
        lambda h: h.driver.update(version=None),
    ),
    "SOC-H94": (
        lambda h: (
            h.use_docker("28.3.0"),
            h.stack.update(reload_victims=["trainer"]),
            h.facts.update(toolkit={"version": "1.17.8"}),
        ),
        "replaces container toolkit 1.17.8 by 1.20.0",
        lambda h: (h.use_docker("28.3.0"), h.facts.update(toolkit={"version": "1.17.8"})),
    ),
    "SOC-H95": (
        lambda h: h.gpu.update(bound_driver="vfio-pci"),
        "instances get the other GPUs (1 of 2)",
        lambda h: h.gpu.update(bound_driver="nouveau"),
    ),
    "SOC-H96": (
        wants(unknown_variables=[{"name": "gpu_driver_brnach", "nearest": "gpu_driver_branch"}, {"name": "probe_x"}]),
        "gpu_driver_brnach (did you mean gpu_driver_branch?), probe_x, which no role",
        wants(unknown_variables=[]),
    ),
    "SOC-H97": (
        lambda h: (h.use_docker("28.3.0"), h.units.update({"docker.service": unit("inactive", "disabled")})),
        "docker.service is inactive and not enabled, so that it does not start at boot: instances do not run without"
        " it. Run 'systemctl enable --now docker.service'",
        lambda h: h.units.update({"docker.service": unit("inactive", "disabled")}),
    ),
    "SOC-H98": (
        lambda h: h.stack.update(left_stopped=["vllm-chat.service", "vllm-code.service"]),
        "vllm-chat.service, vllm-code.service do not run: a change",
        lambda h: h.stack.update(left_stopped=[]),
    ),
    "SOC-H99": (
        lambda h: h.stack.update(
            damaged_notes=[{"path": "/var/lib/socle/package_holds.json", "why": "it is no regular file"}]
        ),
        "/var/lib/socle/package_holds.json (it is no regular file) does not say",
        lambda h: h.stack.update(damaged_notes=[]),
    ),
    "SOC-H100": (
        lambda h: h.stack.update(
            damaged_keys=[
                {
                    "file": "/etc/apt/sources.list.d/nvidia-container-toolkit.sources",
                    "key": "/etc/apt/keyrings/nvidia-container-toolkit.asc",
                }
            ]
        ),
        "/etc/apt/keyrings/nvidia-container-toolkit.asc is no signing key: the package manager takes nothing from"
        " /etc/apt/sources.list.d/nvidia-container-toolkit.sources",
        lambda h: h.stack.update(damaged_keys=[]),
    ),
    "SOC-H92": (
        lambda h: h.facts.update(gpus=[]),
        "lspci -d 10de:",
        lambda h: (h.facts.update(gpus=[]), h.intent.update({"class": {"name": "cpu", "kind": "cpu"}})),
    ),
}


def findings(host: Host, *ids: str) -> list[dict[str, Any]]:
    return find([BY_ID[name] for name in ids] or CHECKS, host.facts, host.stack, host.intent)


def test_every_check_has_a_host_on_which_it_fires_and_one_on_which_it_does_not() -> None:
    assert set(CASES) == set(BY_ID)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_check_fires_and_says_so(name: str) -> None:
    host = Host()
    CASES[name][0](host)
    found = findings(host, name)
    assert [one["id"] for one in found] == [name]
    text = f"{found[0]['message']} {found[0]['remedy']}"
    assert CASES[name][1] in text
    assert re.search(r"None|\{[a-z_]+\}|\.\.$|\bin in\b", text) is None
    assert found[0]["message"].endswith(".")
    assert found[0]["remedy"].endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_check_stays_quiet_where_it_should(name: str) -> None:
    host = Host()
    CASES[name][2](host)
    assert findings(host, name) == []


@pytest.mark.parametrize("host", [Host(), cpu_host()], ids=["gpu", "cpu"])
def test_a_healthy_host_has_no_findings(host: Host) -> None:
    assert find(due_checks(bool(host.facts["gpus"]), "all"), host.facts, host.stack, host.intent) == []


def test_a_healthy_host_with_docker_and_nvswitches_has_no_findings() -> None:
    host = Host()
    host.use_docker("29.3.0", features={"cdi": True}, **{"default-ulimits": {"nofile": {"Hard": 1048576}}})
    host.nvswitch()
    assert findings(host) == []


def test_a_bare_host_passes_everything_that_is_asked_before_the_driver() -> None:
    host = Host()
    host.gpus(
        **BARE,
        uuid=None,
        bound_driver=None,
        mig=None,
        mig_pending=None,
        persistence=None,
        power={"limit_w": None, "default_w": None},
        pcie={"width": 16, "width_max": 16},
    )
    host.set_driver(None)
    host.driver.update(flavour=None, disk_flavour=None, cuda_version=None)
    host.facts.update(links=[], engine={"name": None, "version": None}, engines={"podman": None, "docker": None})
    host.facts["toolkit"] = {"version": None}
    host.stack.update(packages={}, dkms=[], device_nodes=[], modules=[], modules_load=[])
    host.stack["cdi"] = {"specs": [], "environment": {}, "spec_dirs": None}
    assert find(due_checks(True, "before"), host.facts, host.stack, host.intent) == []


def test_checks_bear_with_facts_stack_and_intent_that_say_nothing() -> None:
    assert [one["id"] for one in find(CHECKS, {}, {}, {})] == ["SOC-H84"]
    for one in find(CHECKS, {"gpus": [{"pci_bus_id": "0000:01:00.0"}], "driver": {"version": "580.1"}}, {}, {}):
        assert one["message"]


def test_checks_have_distinct_ids_and_known_words() -> None:
    assert len(BY_ID) == len(CHECKS)
    for check in CHECKS:
        assert re.fullmatch(r"SOC-H\d{2,3}", check.id)
        assert check.severity in ("error", "warning")
        assert check.stages
        assert set(check.stages) <= {"before", "after"}
    assert not set(BY_ID) & set(PREVENTED)


def test_each_of_the_forty_known_failures_is_seen_or_prevented() -> None:
    assert {f"SOC-H{number:02}" for number in range(1, 41)} <= set(BY_ID) | set(PREVENTED)


def test_nothing_that_provisioning_puts_right_stops_it() -> None:
    """Findings about what the roles install must not be errors before they ran."""
    host = Host()
    host.set_driver(None)
    host.gpus(bound_driver="nouveau", by_driver=False)
    host.facts["toolkit"] = {"version": None}
    host.stack["dkms"] = [{"module": "nvidia", "version": "1", "kernel": None, "state": "added", "error": None}]
    host.stack["cdi"]["specs"] = []
    host.nvswitch("failed")
    assert find(due_checks(True, "before"), host.facts, host.stack, host.intent) == []


def test_what_is_there_before_the_roles_says_nothing_about_what_comes() -> None:
    host = Host()
    host.set_driver("470.256.02")
    host.gpus(**RTX)
    host.driver.update(flavour="proprietary")
    host.facts["toolkit"] = {"version": "1.19.0"}
    host.intent.update(driver_branch=None, driver_flavour=None, toolkit_version=None, stage="before")
    ids = ("SOC-H02", "SOC-H13", "SOC-H19", "SOC-H20", "SOC-H58")
    assert findings(host, *ids) == []
    host.intent["stage"] = "after"
    assert [one["id"] for one in findings(host, *ids)] == ["SOC-H02", "SOC-H13", "SOC-H19", "SOC-H58"]


def test_the_engine_that_suits_is_the_one_that_is_judged() -> None:
    host = Host()
    host.use_docker("26.1.5")
    host.facts["engines"]["podman"] = "4.3.1"
    host.facts["engine"] = {"name": "podman", "version": "4.3.1"}
    host.intent["engine"] = "auto"
    assert [one["id"] for one in findings(host)] == ["SOC-H08"]


def test_stage_and_ignore_choose_the_checks() -> None:
    before = {check.id for check in due_checks(True, "before")}
    after = {check.id for check in due_checks(True, "after")}
    assert "SOC-H86" in before - after
    assert "SOC-H71" in after - before
    assert {check.id for check in due_checks(True, "all")} == before | after == set(BY_ID)
    assert "SOC-H71" not in {check.id for check in due_checks(True, "all", ["SOC-H71"])}
    without = {check.id for check in due_checks(False, "all")}
    assert "SOC-H71" not in without
    assert {"SOC-H78", "SOC-H92"} <= without


def test_errors_come_first_and_each_takes_one_line_of_the_failure() -> None:
    host = Host()
    host.gpu.update(remapped_pending=True, remapped_failure=True)
    host.driver.update(library_version="580.178.04")
    found = findings(host)
    assert [one["severity"] for one in found] == ["error", "error", "warning"]
    lines = str(failure_message(found)).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["SOC-H24", "SOC-H49"]
    assert lines[1] == f"SOC-H49: {found[1]['message']} {found[1]['remedy']}"
    assert failure_message(found[2:]) is None


def test_a_host_fails_with_the_whole_sentence_or_with_the_names_of_several() -> None:
    """Its findings were shown before: a page of them is not repeated."""
    host = Host()
    host.gpu.update(remapped_pending=True, remapped_failure=True)
    found = findings(host)
    assert host_findings_failure(found, "h1") == (
        f"h1 is not fit to serve (1 error): SOC-H49: {found[0]['message']} {found[0]['remedy']}"
    )
    assert host_findings_failure(found[1:], "h1") == ""
    host.driver.update(library_version="580.178.04")
    assert host_findings_failure(findings(host), "h1") == (
        "h1 is not fit to serve (2 errors): SOC-H24 (Driver and library do not match), SOC-H49 (Memory row could not be"
        " remapped); see above what was found and what to do."
    )


def test_lines_for_a_terminal_give_id_severity_title_sentence_and_remedy() -> None:
    host = Host()
    host.gpu.update(remapped_failure=True)
    assert host_findings_lines(findings(host)) == [
        "SOC-H49  error    Memory row could not be remapped",
        "  A faulty memory row of GPU 0 (NVIDIA A100-SXM4-80GB, 0000:01:00.0) could not be remapped: the GPU has no"
        " spare"
        " rows left there.",
        "  Have the GPU replaced.",
    ]
    assert host_findings_lines(findings(host), "h1")[0] == "h1: 1 error, 0 warnings"
    assert host_findings_lines([], "h1") == []


@pytest.mark.parametrize("code", sorted(XIDS))
def test_every_known_xid_is_told_with_what_to_do(code: int) -> None:
    host = Host()
    xid(code)(host)
    found = findings(host)
    assert len(found) == 1
    assert f"Xid {code} " in found[0]["message"]
    assert XIDS[code][1] in found[0]["message"]


def test_several_gpus_are_named_together() -> None:
    host = Host()
    host.gpus(virtualization="vgpu")
    assert findings(host, "SOC-H46")[0]["message"].startswith("Each of 2 GPUs (0, 1; NVIDIA A100-SXM4-80GB) has ")
    host.gpus(**BARE)
    assert findings(host, "SOC-H46")[0]["message"].startswith("Each of 2 GPUs (0000:01:00.0, 0000:02:00.0; 10de:20b2) ")


def test_an_unknown_xid_is_told_too() -> None:
    host = Host()
    xid(154)(host)
    assert [one["id"] for one in findings(host)] == ["SOC-H52"]


def test_a_fallen_gpu_is_found_though_the_other_one_works() -> None:
    host = Host()
    host.facts["gpus"][1].update(BARE)
    assert "SOC-H44" in [one["id"] for one in findings(host)]
    host.facts["gpus"] = [gpu(0), gpu(1, on_bus=False)]
    assert [one["id"] for one in findings(host)] == ["SOC-H43"]


@pytest.mark.parametrize(
    ("kernel", "driver", "fires"),
    [
        ([6, 12, 97], "580.119.02", True),
        ([6, 12, 97], "580.126.09", False),
        ([6, 12, 97], "590.44.01", True),
        ([6, 12, 97], "590.48.01", False),
        ([6, 1, 190], "575.64.05", True),
        ([6, 1, 189], "575.64.05", False),
        ([6, 8, 0], "575.64.05", False),
    ],
)
def test_drivers_that_do_not_build_are_known_by_kernel(kernel: list[int], driver: str, fires: bool) -> None:
    host = Host()
    host.set_driver(None)
    host.stack["kernel_release"] = kernel
    host.intent["driver_version"] = driver
    assert bool(findings(host, "SOC-H20")) is fires


def test_a_branch_is_judged_by_its_newest_driver_and_an_installed_one_by_itself() -> None:
    host = Host()
    host.set_driver(None)
    assert findings(host, "SOC-H20", "SOC-H14") == []
    host.intent["driver_branch"] = "570"
    assert [one["id"] for one in findings(host, "SOC-H20", "SOC-H14")] == ["SOC-H14", "SOC-H20"]


@pytest.mark.parametrize("stage", ["before", "after"])
@pytest.mark.parametrize("asked", [{"driver_version": "abc"}, {"driver_version": "580"}, {"driver_branch": "R470"}])
def test_what_is_no_version_is_left_to_the_role(stage: str, asked: dict[str, str]) -> None:
    host = Host()
    host.intent.update({"image_cuda": None, "stage": stage, "driver_branch": "", **asked})
    assert findings(host) == []


def test_what_the_class_could_not_be_told_for_is_said_in_its_own_words() -> None:
    host = Host()
    host.intent["class_problem"] = "h1 has GPUs of several kinds (vGPU; x), but a host has one class; set host_class."
    assert [(one["message"], one["remedy"]) for one in findings(host, "SOC-H41")] == [
        ("h1 has GPUs of several kinds (vGPU; x), but a host has one class.", "Set host_class.")
    ]


def test_a_name_that_is_nearly_right_ends_with_one_mark() -> None:
    host = Host()
    host.intent["class_problem"] = (
        "host_class of h1 is 'rtx_pro_600', which is no known host class (known: cpu, rtx_pro_6000); did you mean"
        " 'rtx_pro_6000'?"
    )
    assert findings(host, "SOC-H41")[0]["remedy"] == "Did you mean 'rtx_pro_6000'?"


@pytest.mark.parametrize("gpus", [[], [gpu(0, pci_device_id="10de:2335", product="NVIDIA H200")]])
def test_a_class_of_the_inventory_that_the_hardware_is_not_of_is_a_contradiction(gpus: list[dict[str, Any]]) -> None:
    classes = Catalogue(DataPath([])).host_classes()
    host = Host()
    host.facts.update(gpus=gpus, host_class=None)
    with pytest.raises(PlanError) as told:
        resolve_class(host.facts, classes, Override("a100_sxm4_80g", "group a100_sxm4_80g"), "h1")
    del host.intent["class"]
    host.intent["class_problem"] = str(told.value)
    found = find(due_checks(bool(gpus), "before"), host.facts, host.stack, host.intent)
    assert [(one["id"], one["title"]) for one in found] == [("SOC-H42", "The hardware contradicts the host class")]
    assert "h1 is of class a100_sxm4_80g" in found[0]["message"]
    assert found[0]["remedy"].startswith("Correct its group or host_class")


@pytest.mark.parametrize(
    ("intent", "remedy"),
    [
        ({"driver_version": "580.95.05"}, f"refused: set gpu_driver_version to {DRIVER} and leave"),
        ({"driver_branch": "570"}, f"refused: set gpu_driver_version to {DRIVER} and leave"),
        ({"driver_version": "580.178.04"}, "Run playbook provision.yml, or"),
        ({"driver_branch": "595"}, "Run playbook provision.yml, or"),
        ({"driver_branch": "595", "driver_state": "unmanaged"}, "Install 595 by the means that the driver came with"),
    ],
)
def test_a_driver_that_is_newer_than_asked_for_needs_another_way(intent: dict[str, str], remedy: str) -> None:
    host = Host()
    host.intent.update(intent)
    assert remedy in findings(host, "SOC-H60")[0]["remedy"]


def test_mixed_sources_are_known_in_all_their_forms() -> None:
    local = ("file:///var/nvidia-driver-local-repo-debian13-580.159.04", "nvidia-local")
    second = ("https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/", "nvidia-cuda")
    third = ("https://negativo17.org/repos/nvidia/epel-9/x86_64/", "other")
    for uri, kind in (local, second, third):
        host = Host()
        host.source(uri, kind)
        assert findings(host, "SOC-H22")[0]["evidence"]["sources"]
    host = Host()
    host.source("http://mirror.example/cuda/repos/debian13/x86_64/", "nvidia-cuda")
    assert findings(host, "SOC-H22") == []
    host.intent["driver_source"] = "distribution"
    assert findings(host, "SOC-H22")


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("https://mirrors.rpmfusion.org/metalink?repo=nonfree-el-9&arch=x86_64", "akmod-nvidia"),
        ("https://mirrors.rpmfusion.org/metalink?repo=nonfree-el-9&arch=x86_64", "xorg-x11-drv-nvidia-cuda"),
        ("http://mirrors.elrepo.org/mirrors-elrepo.el9", "kmod-nvidia"),
        ("http://mirrors.elrepo.org/mirrors-elrepo.el9", "kmod-nvidia-470xx"),
        ("http://mirrors.elrepo.org/mirrors-elrepo.el9", "nvidia-x11-drv-libs"),
    ],
)
def test_a_third_party_repository_is_in_the_way_with_a_driver_of_it_only(uri: str, name: str) -> None:
    """Many hosts have these repositories for other things, such as ffmpeg or a network driver."""
    host = Host()
    host.source(uri, "other", "/etc/yum.repos.d/third.repo")
    host.packages["kmod-nvidia-580.159.04-5.14.0-611"] = package()
    assert findings(host, "SOC-H22") == []
    host.packages[name] = package()
    assert [one["severity"] for one in findings(host, "SOC-H22")] == ["error"]


def test_the_legacy_hook_is_judged_by_what_is_installed_also_before_provisioning() -> None:
    host = Host()
    host.use_docker("28.3.0", runtimes={"nvidia": {}})
    host.facts["toolkit"] = {"version": "1.17.8"}
    host.intent["stage"] = "before"
    for asked in ("1.20.0", None):
        host.intent["toolkit_version"] = asked
        assert "toolkit 1.17.8, auto" in findings(host, "SOC-H01")[0]["message"]
    host.facts["toolkit"] = {"version": "1.18.2"}
    assert findings(host, "SOC-H01") == []


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda h: h.facts.update(toolkit={"version": None}), "installs the container toolkit"),
        (wants(toolkit_version="1.20.1"), "replaces container toolkit 1.20.0 by 1.20.1"),
        (
            both(wants(toolkit_version=""), lambda h: h.facts.update(toolkit={"version": "1.16.2"})),
            "replaces container toolkit 1.16.2,",
        ),
        (lambda h: h.use_docker("20.10.24"), "installs a container engine"),
        (wants(toolkit_state="absent"), "removes container toolkit 1.20.0,"),
    ],
)
def test_containers_keep_their_gpus_when_provisioning_would_reload_systemd(change: Change, cause: str) -> None:
    host = Host()
    host.use_docker("28.3.0")
    host.stack["reload_victims"] = ["trainer", "notebook"]
    host.intent["stage"] = "before"
    # A host on which nothing is to change is not refused for them.
    assert [(one["id"], one["severity"]) for one in findings(host, "SOC-H01", "SOC-H94")] == [("SOC-H01", "warning")]
    change(host)
    found = findings(host, "SOC-H01", "SOC-H94")
    assert [(one["id"], one["severity"]) for one in found] == [("SOC-H94", "error")]
    assert f"{cause}" in found[0]["message"]
    assert found[0]["message"].endswith("trainer, notebook.")
    host.intent["stage"] = "after"
    assert [one["id"] for one in findings(host, "SOC-H01")] == ["SOC-H01"]


def test_who_removes_the_toolkit_is_not_told_that_it_will_be_installed_or_used() -> None:
    host = Host()
    host.use_docker("28.3.0")
    host.stack["reload_victims"] = ["trainer"]
    host.intent.update(stage="before", toolkit_state="absent")
    (found,) = findings(host, "SOC-H94")
    assert "nvidia.com/gpu" not in found["remedy"] and "leave gpu_container_toolkit_state at present" in found["remedy"]
    host.facts["toolkit"] = {"version": None}
    assert findings(host, "SOC-H94") == []


@pytest.mark.parametrize(
    ("os", "words"),
    [
        ({"id": "debian", "version_id": "13"}, ['"dkms generate_mok"', '"mokutil --import /var/lib/dkms/mok.pub"']),
        ({"id": "debian", "version_id": "12"}, ["openssl req ", '"mokutil --import /var/lib/dkms/mok.pub"']),
        (
            {"id": "ubuntu", "version_id": "24.04"},
            [
                "update-secureboot-policy --new-key",
                "/var/lib/shim-signed/mok/MOK.der",
                "gpu_driver_source: distribution",
            ],
        ),
        ({"id": "rocky", "version_id": "9.6"}, ['"dkms generate_mok"', "EPEL"]),
    ],
)
def test_a_host_without_a_signing_key_is_told_how_to_make_one(os: dict[str, str], words: list[str]) -> None:
    host = Host()
    host.set_driver(None)
    host.facts.update(secure_boot=True, os=os)
    host.stack["signing_key"] = {"path": None, "enrolled": False}
    remedy = findings(host, "SOC-H26")[0]["remedy"]
    assert remedy.startswith("Install dkms")
    assert all(word in remedy for word in [*words, "repeat the run", "turn Secure Boot off"])


def in_the_document(template: str) -> str:
    """Placeholders are words in capitals there."""
    text = re.sub(r"(?<!\{)\{(\w+)\}(?!\})", lambda match: match.group(1).upper(), template)
    return text.replace("{{", "{").replace("}}", "}").replace("|", "\\|").replace("*", "\\*")


def test_the_document_has_every_check_in_its_own_words() -> None:
    text = (ROOT / "docs/host-checks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (SOC-H\d{2,3}) \|", text, re.MULTILINE)) == set(BY_ID) | set(PREVENTED)
    for check in CHECKS:
        row = re.search(rf"^\| {check.id} \|.*$", text, re.MULTILINE)
        assert row is not None
        stages = " and ".join(check.stages)
        assert f"| {check.title} | {check.severity} | {stages} | {check.detection} |" in row.group(0)
        for template in (check.sentence, check.remedy):
            # What is a placeholder alone is described instead.
            assert re.fullmatch(r"\{\w+\}\.?", template) or in_the_document(template) in row.group(0)


def test_the_document_names_the_checks_of_hosts_without_gpus() -> None:
    text = (ROOT / "docs/host-checks.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("- A host without an NVIDIA GPU"))
    assert re.findall(r"SOC-H\d{2,3}", line) == [check.id for check in due_checks(False, "all")]


def test_the_document_names_the_checks_of_the_upkeep_of_the_driver() -> None:
    text = (ROOT / "docs/host-checks.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "unmanaged" in line)
    left_out = set(due_checks(True, "all")) - set(due_checks(True, "all", upkeep=False))
    assert re.findall(r"SOC-H\d{2,3}", line) == sorted((check.id for check in left_out), key=in_order)


@pytest.mark.parametrize(
    ("key", "variable"), [("driver", "gpu_driver_state"), ("toolkit", "gpu_container_toolkit_state")]
)
def test_the_document_names_the_checks_of_what_is_asked_to_be_absent(key: str, variable: str) -> None:
    text = (ROOT / "docs/host-checks.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"- With `{variable}: absent`"))
    left_out = {check.id for check in due_checks(True, "all")}
    left_out -= {check.id for check in due_checks(True, "all", absent=[key])}
    if key == "driver":
        left_out -= set(
            re.findall(r"^\| (SOC-H\d{2,3}) \|", text.partition("## Driver")[2].partition("\n## ")[0], re.MULTILINE)
        )
    assert re.findall(r"SOC-H\d{2,3}", line) == sorted(left_out, key=in_order)


@pytest.mark.parametrize(
    ("active", "enabled", "words"),
    [
        ("active", "disabled", "docker.service is not enabled"),
        ("inactive", "enabled", "docker.service is inactive: "),
        ("failed", "enabled", "See 'journalctl -b -u docker'. Run 'systemctl enable --now docker.service'"),
        ("inactive", "masked", "is inactive and masked: .* Run 'systemctl unmask docker.socket docker.service', then"),
        ("active", "masked-runtime", "docker.service is masked: "),
    ],
)
def test_a_docker_that_is_off_or_stays_off_at_boot_is_an_error(active: str, enabled: str, words: str) -> None:
    for host in (Host(), cpu_host()):
        host.use_docker("28.3.0")
        host.units["docker.service"] = unit(active, enabled)
        (found,) = findings(host, "SOC-H97")
        assert found["severity"] == "error" and re.search(words, f"{found['message']} {found['remedy']}")


@pytest.mark.parametrize(
    ("active", "enabled"), [("active", "enabled"), ("activating", "enabled"), ("active", "static")]
)
def test_a_docker_that_runs_or_comes_up_is_right(active: str, enabled: str) -> None:
    host = Host()
    host.use_docker("28.3.0")
    host.units["docker.service"] = unit(active, enabled)
    assert findings(host, "SOC-H97") == []


def test_a_cdi_refresh_that_runs_but_not_after_a_boot_is_told() -> None:
    host = Host()
    host.units[CDI_PATH] = unit("active", "disabled")
    (found,) = findings(host, "SOC-H77")
    assert "disabled, active" in found["message"]


def told(host: Host, check: str) -> str:
    """Sentence and remedy of a finding, "" where there is none."""
    found = find([BY_ID[check]], host.facts, host.stack, host.intent)
    return f"{found[0]['message']} {found[0]['remedy']}" if found else ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"masked": True, "enabled": "masked"},
            "is masked, .* Run 'systemctl unmask nvidia-persistenced', then playbook",
        ),
        ({"enabled": "masked-runtime"}, "is masked, .* Run 'systemctl unmask nvidia-persistenced'"),
        ({"enabled": "disabled"}, "is disabled, .* Run 'systemctl enable --now nvidia-persistenced'"),
        ({"enabled": "static"}, "is stopped: .* Start it with 'systemctl start nvidia-persistenced'"),
        (
            {"active": "failed", "result": "exit-code"},
            r"failed \(result exit-code\): .* See 'journalctl -b -u nvidia-pers",
        ),
    ],
)
def test_a_persistence_daemon_that_is_away_is_told_as_what_it_is(changes: dict[str, Any], words: str) -> None:
    host = Host()
    host.units["nvidia-persistenced.service"].update(active="inactive")
    host.units["nvidia-persistenced.service"].update(changes)
    host.gpus(persistence=False)
    away, off = told(host, "SOC-H28"), told(host, "SOC-H54")
    assert re.search(f"^nvidia-persistenced {words}", away), away
    assert away.rpartition(": the driver lets go of the GPUs when nothing uses them. ")[2] in off
    assert "result is success" not in away and "gpu_driver_persistence: true" not in off


def test_holds_that_are_lost_in_part_are_told() -> None:
    host = Host()
    host.packages["libnvidia-ml1"].update(held=False)
    assert told(host, "SOC-H68").startswith("1 of 3 driver packages is not held: libnvidia-ml1; an upgrade of the")
    host.packages["nvidia-driver-pinning-580"] = package("580-1", held=False)
    assert "2 of 4 driver packages are not held" in told(host, "SOC-H68")
    assert "'apt-mark hold'" in told(host, "SOC-H68")
    host.intent.update(driver_hold=False)
    assert not told(host, "SOC-H68")


def test_locks_that_are_lost_in_part_are_told() -> None:
    host = Host()
    host.facts["os"] = {"id": "rocky", "version_id": "9.6", "codename": None, "id_like": ["rhel"]}
    version = f"3:{DRIVER}-1.el9"
    host.stack["packages"] = {
        "kmod-nvidia-open-dkms": package(version),
        "nvidia-driver-cuda": package(version, held=False),
        "libnvidia-ml": package(version),
        "dkms": package("3.2-1", held=False),
    }
    assert "1 of 3 driver packages is not held: nvidia-driver-cuda" in told(host, "SOC-H68")
    assert "'dnf versionlock add'" in told(host, "SOC-H68")
    host.stack["packages"] = {
        "kmod-nvidia-open": package(version, held=False),
        "nvidia-driver-cuda": package(version),
    }
    assert not told(host, "SOC-H68"), "modules that go on with their kernels are not locked"
