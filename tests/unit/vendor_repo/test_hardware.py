# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated hardware behaves like a kernel with NVIDIA's modules, as far as the product can tell."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._gpu import pci, smi, topology

from tests.simulators import vendor_repo
from tests.simulators.vendor_repo import catalogue

SOURCE = Path(vendor_repo.__file__).parent
KERNEL = "6.12.117+deb13-amd64"
SHAPES = sorted(path.stem for path in (SOURCE / "shapes").glob("*.json"))


class Machine:
    """A simulated host below a folder, without device nodes of the real /dev."""

    def __init__(self, folder: Path, shape: str) -> None:
        self.base, self.root = folder / "sim", folder / "root"
        (self.root / "lib/modules" / KERNEL / "build").mkdir(parents=True)
        (self.root / "boot").mkdir()
        (self.root / f"boot/vmlinuz-{KERNEL}").touch()
        self.dev = folder / "dev"
        self.call("install", KERNEL, str(SOURCE / "shapes" / f"{shape}.json"))

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "SOCLE_SIM": str(self.base),
            "SOCLE_SIM_ROOT": str(self.root),
            "SOCLE_SIM_DEV": str(self.dev),
        }
        environment.pop("INVOCATION_ID", None)
        command = [sys.executable, str(SOURCE / "host/hardware.py"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def install(self, version: str, flavour: str = "open") -> subprocess.CompletedProcess[str]:
        source = self.root / f"usr/src/nvidia-{version}"
        source.mkdir(parents=True, exist_ok=True)
        (source / "flavour").write_text(flavour)
        return self.call("dkms-postinst", "nvidia", version)

    def smi(self, version: str, *words: str) -> subprocess.CompletedProcess[str]:
        script = self.base / f"nvidia-smi-{version}"
        script.write_text(
            catalogue.text("nvidia-smi", VERSION=version, CUDA="13.0").replace("/dev/nvidia", f"{self.dev}/nvidia")
        )
        environment = {"PATH": "/usr/bin:/bin", "SOCLE_SIM": str(self.base)}
        return subprocess.run(["sh", str(script), *words], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bus_shows_the_shape(tmp_path: Path, shape: str) -> None:
    machine = Machine(tmp_path, shape)
    devices = pci.nvidia_devices(machine.base / "sys")
    gpus = pci.read_gpus(devices)
    expected = {"a100_sxm4_80g_x2": "10de:20b2", "a800_pcie_80g_x2": "10de:20f5", "h200_sxm_x8": "10de:2335"}
    assert {gpu["pci_device_id"] for gpu in gpus} == {expected.get(shape, "10de:2bb1")}
    assert len(pci.read_nvswitches(devices)) == (4 if shape == "h200_sxm_x8" else 0)
    assert {gpu["bound_driver"] for gpu in gpus} == {"nouveau" if shape == "a800_pcie_80g_x2" else None}


def loaded(tmp_path: Path, shape: str = "a100_sxm4_80g_x2", version: str = "580.126.09") -> Machine:
    machine = Machine(tmp_path, shape)
    assert machine.install(version).returncode == 0
    done = machine.call("modprobe", "nvidia-uvm")
    assert done.returncode == 0, done.stderr
    return machine


needs_nodes = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes are made by root alone")


@needs_nodes
def test_the_product_reads_what_nvidia_smi_prints(tmp_path: Path) -> None:
    machine = loaded(tmp_path, "h200_sxm_x8")
    report = smi.parse_xml(machine.smi("580.126.09", "-q", "-x").stdout)
    assert (report.driver_version, report.error, len(report.gpus)) == ("580.126.09", None, 8)
    assert {gpu["fabric_state"] for gpu in report.gpus} == {"in progress"}
    assert {gpu["memory_mib"] for gpu in report.gpus} == {143771}
    addresses = {place: gpu["pci_bus_id"] for place, gpu in enumerate(report.gpus)}
    links = topology.parse(machine.smi("580.126.09", "topo", "-m").stdout, addresses)
    assert len(links) == 28 and {link["link"] for link in links} == {"NV18"}
    found = smi.parse_csv(
        machine.smi("580.126.09", "--query-gpu=index,pci.bus_id,compute_cap", "--format=csv,noheader,nounits").stdout
    )
    assert set(found.values()) == {(place, "9.0") for place in range(8)}
    refused = machine.smi("580.126.09", "--query-gpu=index,bogus", "--format=csv")
    assert refused.returncode == 2 and "not a valid field" in refused.stdout


@needs_nodes
def test_only_gpus_with_a_node_are_shown(tmp_path: Path) -> None:
    machine = loaded(tmp_path)
    assert stat.S_ISCHR((machine.dev / "nvidia1").stat().st_mode)
    (machine.dev / "nvidia0").unlink()
    listed = machine.smi("580.126.09", "-L").stdout.splitlines()
    assert len(listed) == 1 and listed[0].startswith("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-")


@needs_nodes
def test_versions_that_differ_and_no_module(tmp_path: Path) -> None:
    machine = loaded(tmp_path)
    mismatch = machine.smi("580.178.04")
    assert mismatch.returncode == 18
    assert mismatch.stdout.splitlines()[1] == "NVML library version: 580.178"
    assert machine.call("modprobe", "-r", "nvidia-uvm").returncode == 0
    absent = machine.smi("580.126.09")
    assert absent.returncode == 9 and "couldn't communicate with the NVIDIA driver" in absent.stdout


@needs_nodes
def test_modules_in_use_stay(tmp_path: Path) -> None:
    machine = loaded(tmp_path)
    refused = machine.call("rmmod", "nvidia")
    assert refused.returncode == 1 and "in use by: nvidia_uvm" in refused.stderr
    (machine.base / "state/containers/c1").touch()
    assert "is in use" in machine.call("rmmod", "nvidia_uvm").stderr
    assert (machine.base / "sys/module/nvidia_uvm/refcnt").read_text() == "1\n"
    (machine.base / "state/containers/c1").unlink()
    assert machine.call("rmmod", "nvidia_uvm", "nvidia").returncode == 0


def test_old_sources_do_not_build_on_a_new_kernel(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "a100_sxm4_80g_x2")
    done = machine.install("570.211.01")
    assert done.returncode == 10 and "Bad return status for module build on kernel" in done.stderr
    log = machine.root / "var/lib/dkms/nvidia/570.211.01/build/make.log"
    assert "error: too few arguments to function 'pci_resize_resource'" in log.read_text()
    assert machine.call("dkms", "status").stdout == "nvidia/570.211.01: added\n"
    assert machine.call("modprobe", "nvidia").returncode == 1


@needs_nodes
def test_the_proprietary_module_does_not_bind_blackwell(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "rtx_pro_6000_x1")
    machine.install("580.126.09", flavour="proprietary")
    assert machine.call("modprobe", "nvidia").returncode == 0
    assert machine.smi("580.126.09", "-L").stdout == "No devices were found\n"


def test_secure_boot_refuses_a_key_that_is_not_enrolled(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "a100_sxm4_80g_x2")
    machine.install("580.126.09")
    assert machine.call("mokutil", "--sb-state").returncode != 0
    variable = machine.base / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    variable.parent.mkdir(parents=True)
    variable.write_bytes(b"\6\0\0\0\1")
    assert machine.call("mokutil", "--sb-state").stdout == "SecureBoot enabled\n"
    assert "Key was rejected by service" in machine.call("modprobe", "nvidia").stderr


def test_nouveau_keeps_its_gpus_until_it_is_blacklisted_and_the_host_boots(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "a800_pcie_80g_x2")
    machine.install("580.126.09")
    assert "No such device" in machine.call("modprobe", "nvidia").stderr
    (machine.root / "etc/modprobe.d").mkdir(parents=True)
    (machine.root / "etc/modprobe.d/b.conf").write_text("blacklist nouveau\n")
    assert (machine.base / "sys/module/nouveau").is_dir()
    machine.call("boot")
    assert not (machine.base / "sys/module/nouveau").exists()
