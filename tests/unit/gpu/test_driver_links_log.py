# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of the driver in each of its places, links between GPUs, the kernel's log, and commands that hang."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._gpu import driver, kernel_log, parse, topology
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import TIMED_OUT, run_limited

from tests.unit.gpu.hosts import DRIVER, FIXTURES, H200_DRIVER, JOURNAL, KERNEL, PRODUCTS, Host, topo

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024\nGCC version: 12\n"
NEXT = "6.12.63+deb13-amd64"


def test_version_and_flavour_of_the_loaded_module() -> None:
    assert (driver.parse_version(H200_DRIVER), driver.parse_flavour(H200_DRIVER)) == (DRIVER, "open")
    assert (driver.parse_version(PROPRIETARY), driver.parse_flavour(PROPRIETARY)) == ("535.183.01", "proprietary")
    assert (driver.parse_version(""), driver.parse_flavour("")) == (None, None)


@pytest.mark.parametrize("name", ["nvidia", "nvidia_current", "nvidia_tesla_535"])
def test_the_loaded_module_by_all_its_names(host: Host, name: str) -> None:
    host.write("sys/module/nvidia_uvm/refcnt", "0")
    host.write("sys/module/nvidia_wmi_ec_backlight/version", "1.0\n")
    assert driver.read_loaded_version(host.root / "sys") is None
    host.write(f"sys/module/{name}/version", "550.163.01\n")
    assert driver.read_loaded_version(host.root / "sys") == "550.163.01"


def test_a_module_for_this_kernel_and_for_the_next(host: Host) -> None:
    host.gpus(PRODUCTS["l40s"])
    for kernel in (KERNEL, NEXT):
        host.write(f"boot/vmlinuz-{kernel}", "")
        host.write(f"lib/modules/{kernel}/modules.dep", "")
    host.module_file(DRIVER, "Dual MIT/GPL")
    found = host.facts()["driver"]
    assert (found["version"], found["disk_version"], found["disk_flavour"]) == (None, DRIVER, "open")
    assert (found["next_kernel"], found["next_disk_version"]) == (NEXT, None)
    host.module_file("580.178.04", "NVIDIA", kernel=NEXT)
    assert host.facts()["driver"]["next_disk_version"] == "580.178.04"


def test_the_module_of_debians_packages(host: Host) -> None:
    host.gpus(PRODUCTS["l40s"])
    host.module_file("550.163.01", "NVIDIA", name="nvidia-current")
    host.write("sys/module/nvidia_current/version", "550.163.01\n")
    found = host.facts()["driver"]
    assert (found["disk_version"], found["disk_flavour"], found["version"]) == (
        "550.163.01",
        "proprietary",
        "550.163.01",
    )
    # /proc/driver/nvidia/version is not there, and what is loaded is what is on disk.
    assert found["flavour"] == "proprietary"


def test_kernels_are_ordered_by_number() -> None:
    ordered = [
        "6.1.0-57-cloud-amd64",
        "6.8.0-9-generic",
        "6.8.0-100-generic",
        "6.12-rc1-amd64",
        "6.12~rc2-amd64",
        "6.12-amd64",
        "6.12.9-amd64",
        "6.12.48+deb13-amd64",
        "6.12.48+deb13-cloud-amd64",
        "6.12.63+deb13-amd64",
    ]
    shuffled = list(ordered)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled, key=driver.kernel_key) == ordered


@pytest.mark.parametrize(
    ("files", "running", "expected"),
    [
        ([], KERNEL, None),
        (["boot/vmlinuz-6.1", "lib/modules/6.1/kernel/x", "lib/modules/6.2/modules.dep"], "6.1", "6.1"),
        # A kernel that was removed leaves a folder of DKMS modules behind.
        (["boot/vmlinuz-6.1", "lib/modules/6.1/x", "lib/modules/6.2/updates/dkms/nvidia.ko"], "6.1", "6.1"),
        (["lib/modules/6.1/vmlinuz", "lib/modules/6.2/vmlinuz"], "6.1", "6.2"),
        # A container or a netbooted host has no images; the lists of modules must do.
        (["lib/modules/6.1/modules.dep", "lib/modules/6.2/modules.dep"], "6.1", "6.2"),
    ],
)
def test_the_kernel_that_boots_next(host: Host, files: list[str], running: str, expected: str | None) -> None:
    for name in files:
        host.write(name, "")
    assert driver.newest_kernel(host.root, running) == expected


def test_user_space_through_debians_alternatives(host: Host) -> None:
    folder = "usr/lib/x86_64-linux-gnu"
    assert driver.read_library_version(host.root) is None
    host.link(f"{folder}/libnvidia-ml.so.1", "/etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu")
    host.link("etc/alternatives/nvidia--libnvidia-ml.so.1-x86_64-linux-gnu", f"/{folder}/nvidia/libnvidia-ml.so.1")
    host.link(f"{folder}/nvidia/libnvidia-ml.so.1", "/etc/alternatives/nvidia-libnvidia-ml.so.1")
    host.link("etc/alternatives/nvidia-libnvidia-ml.so.1", f"/{folder}/nvidia/current/libnvidia-ml.so.1")
    host.link(f"{folder}/nvidia/current/libnvidia-ml.so.1", "libnvidia-ml.so.550.163.01")
    assert driver.read_library_version(host.root) is None  # dangles
    host.write(f"{folder}/nvidia/current/libnvidia-ml.so.550.163.01", "")
    assert driver.read_library_version(host.root) == "550.163.01"
    real = driver.resolve_in(host.root, host.root / folder / "libnvidia-ml.so.1")
    assert real == host.root / folder / "nvidia/current/libnvidia-ml.so.550.163.01"


def test_user_space_by_libcuda_alone_and_links_that_run_in_a_circle(host: Host) -> None:
    host.link("usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.2")
    host.link("usr/lib64/libnvidia-ml.so.2", "libnvidia-ml.so.1")
    host.write("usr/lib64/libcuda.so.580.159.04", "")
    host.link("usr/lib64/libcuda.so.1", "libcuda.so.580.159.04")
    assert driver.read_library_version(host.root) == DRIVER


def test_links_of_a_captured_host_of_one_gpu_are_none() -> None:
    captured = (FIXTURES / "h200/topo.txt").read_text(encoding="utf-8")
    assert topology.parse(captured, {0: "0000:00:06.0"}) == []


def test_links_between_eight_gpus_with_nics_between() -> None:
    buses = {number: f"0000:{number:02x}:00.0" for number in range(8)}
    links = topology.parse(topo("NV12", count=8, nics=4), buses)
    assert len(links) == 28
    assert {link["link"] for link in links} == {"NV12"}
    assert links[0] == {"a": "0000:00:00.0", "b": "0000:01:00.0", "link": "NV12"}


def test_a_header_that_is_underlined_to_its_end() -> None:
    text = "\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
    assert topology.parse(text, {0: "a", 1: "b"}) == [{"a": "a", "b": "b", "link": "PHB"}]


def test_a_gpu_without_an_index_has_no_links() -> None:
    assert topology.parse(topo("PHB", count=3), {0: "a", 2: "c"}) == [{"a": "a", "b": "c", "link": "PHB"}]


def test_links_differ_by_pair() -> None:
    text = "\tGPU0\tGPU1\tmlx5_0\tGPU2\tCPU Affinity\n" + "\n".join(
        [
            "GPU0\t X \tPIX\tNODE\tSYS\t0-15",
            "GPU1\tPIX\t X \tNODE\tN/A\t0-15",
            "mlx5_0\tNODE\tNODE\t X \tSYS",
            "GPU2\tSYS\tN/A\tSYS\t X \t16-31",
        ]
    )
    assert topology.parse(text, {0: "a", 1: "b", 2: "c"}) == [
        {"a": "a", "b": "b", "link": "PIX"},
        {"a": "a", "b": "c", "link": "SYS"},
    ]
    assert topology.parse("Failed to run topology matrix", {0: "a", 1: "b"}) == []


LOG = """NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build
NVRM: Xid (PCI:0000:3b:00): 13, pid=4242, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0)
[  123.456] NVRM: Xid (PCI:0000:4b:00 GPU-I:05): 94, pid=7, Contained: SM (0x1)
NVRM: Xid (0000:03:00): 31, Ch 00000018
NVRM: GPU at PCI:0000:3b:00: GPU-00000000-1111-2222-3333-444444444444
"""


def test_xids_in_all_spellings() -> None:
    assert kernel_log.parse(LOG) == [
        {
            "pci_bus_id": "0000:3b:00.0",
            "code": 13,
            "text": "pid=4242, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0)",
        },
        {"pci_bus_id": "0000:4b:00.0", "code": 94, "text": "pid=7, Contained: SM (0x1)"},
        {"pci_bus_id": "0000:03:00.0", "code": 31, "text": "Ch 00000018"},
    ]


def test_a_storm_of_xids_does_not_hide_another() -> None:
    storm = "NVRM: Xid (PCI:0000:3b:00): 79, first\n" + "".join(
        f"NVRM: Xid (PCI:0000:3b:00): 31, number {number}\n" for number in range(5000)
    )
    found = kernel_log.parse(storm)
    assert [each["code"] for each in found] == [79] + [31] * kernel_log.KEPT
    assert found[-1]["text"] == "number 4999"


@pytest.mark.parametrize(
    ("journal", "dmesg", "expected"),
    [
        ((0, "NVRM: Xid (PCI:0000:3b:00): 79, x\n", ""), None, [79]),
        # As grep does, it ends with 1 when nothing matches.
        ((1, "-- No entries --\n", ""), (0, "NVRM: Xid (PCI:0000:3b:00): 8, x\n", ""), []),
        ((1, "", "No journal files were opened due to insufficient permissions.\n"), (0, "", ""), []),
        ((1, "", "Compiled without pattern matching support\n"), (0, "NVRM: Xid (PCI:0000:3b:00): 48, x\n", ""), [48]),
        ((TIMED_OUT, "", "did not end"), (1, "", "dmesg: read kernel buffer failed: Operation not permitted\n"), None),
        (None, None, None),
    ],
)
def test_where_xids_are_looked_for(
    host: Host, journal: tuple[int, str, str] | None, dmesg: tuple[int, str, str] | None, expected: list[int] | None
) -> None:
    host.commands = {name: answer for name, answer in ((JOURNAL, journal), ("dmesg", dmesg)) if answer}
    found = kernel_log.read(host.run)
    assert (None if found is None else [each["code"] for each in found]) == expected


def state(pid: int) -> str:
    """The state of a process as the kernel tells it; "X" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_a_command_that_hangs_is_given_up_with_all_that_it_started(tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    # The child keeps the output open, as a stuck driver would.
    script.write_text(
        f"#!{sys.executable}\n"
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    script.chmod(0o755)
    code, stdout, stderr = run_limited([str(script)], 2.0)
    assert (code, stderr.splitlines()[0]) == (TIMED_OUT, "nvidia-smi did not end within 2 s")
    patience = iter(range(100))
    while state(int(stdout)) not in "XZ" and next(patience, None) is not None:
        time.sleep(0.05)
    assert state(int(stdout)) in "XZ"


def test_commands_answer_in_english_and_failures_are_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    code, stdout, _stderr = run_limited([sys.executable, "-c", "import os; print(os.environ['LC_ALL'])"], 60)
    assert (code, stdout) == (0, "C.UTF-8\n")
    assert run_limited([sys.executable, "-c", "raise SystemExit(3)"], 60)[0] == 3
    assert run_limited(["/nowhere/modinfo"], 60) == (
        127,
        "",
        "/nowhere/modinfo cannot be run: No such file or directory",
    )


def test_texts_of_a_host() -> None:
    assert parse.parse_os_release("ID=arch\n# VERSION_ID=1\n") == {
        "id": "arch",
        "version_id": None,
        "codename": None,
        "id_like": [],
    }
    assert parse.parse_os_release('ID="rocky"\nID_LIKE="rhel centos fedora"\n')["id_like"] == [
        "rhel",
        "centos",
        "fedora",
    ]
    assert parse.parse_cpuinfo("processor : 0\nBogoMIPS : 50\n") == {"model": None, "cores": 1}
    assert parse.parse_hypervisor("flags\t\t: fpu sse4_2 hypervisor lahf_lm\n")
    assert parse.parse_hypervisor("flags\t\t: fpu hypervisor\n")
    assert not parse.parse_hypervisor("flags\t\t: fpu sse4_2\nbugs : hypervisor\n")
    assert parse.parse_engine_version("podman", "podman version 4.9.4-rhel\n") == "4.9.4-rhel"
    assert parse.parse_toolkit_version("NVIDIA Container Toolkit CLI version 1.19.1\ncommit: 1\n") == "1.19.1"
