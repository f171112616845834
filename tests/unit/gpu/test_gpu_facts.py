# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_facts against a captured H200 host and against hosts that lack one thing or another."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._gpu.gather import gather
from ansible_collections.socle.inference.plugins.module_utils._gpu.parse import (
    normalise_bus_id,
    parse_cpuinfo,
    parse_driver_version,
    parse_engine_version,
    parse_os_release,
    parse_smi,
)
from ansible_collections.socle.inference.plugins.modules import gpu_facts

FIXTURES = Path(__file__).parent / "fixtures"
SMI = (FIXTURES / "h200_smi.csv").read_text(encoding="utf-8")
DRIVER = (FIXTURES / "h200_driver_version.txt").read_text(encoding="utf-8")
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n"
H200 = {
    "index": 0,
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "pci_bus_id": "0000:00:06.0",
    "product": "NVIDIA H200",
    "pci_device_id": "10de:2335",
    "memory_mib": 143771,
}


class Host:
    """A tree like a host's /sys and /proc, and answers to commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: dict[str, tuple[int, str]] = {}
        self.write("proc/meminfo", "MemTotal:       131980288 kB\nMemFree: 1 kB\n")
        self.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Xeon\n\nprocessor\t: 1\nmodel name\t: Xeon\n")
        self.write("proc/sys/kernel/osrelease", "6.12.0-1-amd64\n")
        self.write("os-release", 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="13"\n')
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")

    def write(self, relative: str, text: str) -> None:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def pci(self, address: str, vendor: str = "0x10de", device: str = "0x2335", kind: str = "0x030200") -> None:
        for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
            self.write(f"sys/bus/pci/devices/{address}/{name}", value + "\n")

    def facts(self) -> dict[str, Any]:
        return gather(
            lambda command: self.commands.get(command[0]),
            self.root / "sys",
            self.root / "proc",
            self.root / "os-release",
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_captured_h200_host(host: Host) -> None:
    host.pci("0000:00:06.0")
    host.pci("0000:00:00.0", vendor="0x8086", device="0x0d57", kind="0x060000")
    host.write("proc/driver/nvidia/version", DRIVER)
    host.commands = {"nvidia-smi": (0, SMI), "podman": (0, "podman version 5.4.2\n"), "docker": (0, "Docker version 1")}
    assert host.facts() == {
        "schema": "socle.gpu_facts/1",
        "host_class": None,
        "gpus": [H200],
        "driver": {"version": "580.159.04", "error": None},
        "cpu": {"model": "Xeon", "cores": 2},
        "memory_mib": 128887,
        "kernel": "6.12.0-1-amd64",
        "os": {"id": "debian", "version_id": "13"},
        "engine": {"name": "podman", "version": "5.4.2"},
        "cgroup_version": 2,
    }


def test_a_host_without_nvidia_is_of_class_cpu(host: Host) -> None:
    host.pci("0000:00:02.0", vendor="0x8086", kind="0x030000")
    facts = host.facts()
    assert (facts["host_class"], facts["gpus"], facts["driver"]["version"]) == ("cpu", [], None)
    assert facts["engine"] == {"name": None, "version": None}


def test_gpus_are_seen_without_a_driver(host: Host) -> None:
    host.pci("0000:3b:00.0", device="0x20f5")
    host.pci("0000:3b:00.1", device="0x10f7", kind="0x040300")  # the audio function of the same card
    facts = host.facts()
    assert facts["host_class"] is None
    assert [(gpu["pci_device_id"], gpu["index"], gpu["memory_mib"]) for gpu in facts["gpus"]] == [
        ("10de:20f5", None, None)
    ]


def test_a_broken_driver_is_told(host: Host) -> None:
    host.pci("0000:00:06.0")
    host.write("proc/driver/nvidia/version", DRIVER)
    host.commands = {"nvidia-smi": (18, MISMATCH)}
    facts = host.facts()
    assert facts["driver"] == {"version": "580.159.04", "error": MISMATCH.splitlines()[0]}
    assert [gpu["pci_bus_id"] for gpu in facts["gpus"]] == ["0000:00:06.0"]


def test_a_gpu_that_the_driver_lost_comes_last(host: Host) -> None:
    host.pci("0000:00:05.0")
    host.pci("0000:00:06.0")
    host.commands = {"nvidia-smi": (0, SMI)}
    assert host.facts()["driver"] == {"version": "580.159.04", "error": None}
    assert [(gpu["pci_bus_id"], gpu["index"]) for gpu in host.facts()["gpus"]] == [
        ("0000:00:06.0", 0),
        ("0000:00:05.0", None),
    ]


def test_docker_counts_where_podman_is_missing_or_broken(host: Host) -> None:
    host.commands = {"podman": (125, "cannot"), "docker": (0, "Docker version 28.2.2, build e6534b4\n")}
    assert host.facts()["engine"] == {"name": "docker", "version": "28.2.2"}


def test_a_hybrid_cgroup_tree_is_version_1(host: Host) -> None:
    (host.root / "sys/fs/cgroup/cgroup.controllers").unlink()
    host.write("sys/fs/cgroup/unified/cgroup.controllers", "")
    assert host.facts()["cgroup_version"] == 1


def test_an_empty_tree_gives_nulls(tmp_path: Path) -> None:
    facts = gather(lambda command: None, tmp_path, tmp_path, tmp_path / "none")
    assert facts["memory_mib"] is None and facts["kernel"] is None
    assert facts["cpu"] == {"model": None, "cores": None}


@pytest.mark.parametrize(
    ("line", "memory", "product"),
    [
        (SMI, 143771, "NVIDIA H200"),
        ("1, GPU-x, 0000000A:01:00.0, NVIDIA GB10, [N/A], 580.95.05\n", None, "NVIDIA GB10"),
        ("1, GPU-x, 0000000A:01:00.0, [Not Supported], 8, 580.95.05\n", 8, None),
    ],
)
def test_smi_values(line: str, memory: int | None, product: str | None) -> None:
    (found,), driver = parse_smi(line)
    assert (found["memory_mib"], found["product"]) == (memory, product)
    assert driver is not None and driver.startswith("580.")


def test_smi_chatter_is_no_gpu() -> None:
    assert parse_smi("No devices were found\n") == ([], None)
    assert parse_smi(MISMATCH) == ([], None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:00:06.0", "0000:00:06.0"), ("00010000:3B:00.0", "00010000:3b:00.0"), ("0000:3b:00.0", "0000:3b:00.0")],
)
def test_bus_ids_are_spelt_as_by_the_kernel(text: str, expected: str) -> None:
    assert normalise_bus_id(text) == expected


def test_other_formats() -> None:
    proprietary = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024\nGCC version: 12"
    assert parse_driver_version(proprietary) == "535.183.01"
    assert parse_driver_version("") is None
    assert parse_os_release("ID=arch\n# VERSION_ID=1\n") == {"id": "arch", "version_id": None}
    assert parse_cpuinfo("processor : 0\nBogoMIPS : 50\n") == {"model": None, "cores": 1}
    assert parse_engine_version("podman version 4.9.4-rhel\n") == "4.9.4-rhel"


def test_the_module_changes_nothing_and_is_quick(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.pci("0000:00:06.0")
    arguments = {
        "sys_root": str(host.root / "sys"),
        "proc_root": str(host.root / "proc"),
        "os_release": str(host.root / "os-release"),
        "_ansible_check_mode": True,
    }
    started = time.monotonic()
    with patch_module_args(arguments), pytest.raises(SystemExit) as left:
        gpu_facts.main()
    assert left.value.code == 0
    assert time.monotonic() - started < 3  # about 0.1 s; generous for a busy machine
    result = json.loads(capsys.readouterr().out)
    assert result["changed"] is False
    assert result["gpu_facts"]["gpus"][0]["pci_device_id"] == "10de:2335"
