# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_facts as a whole: captured H200 hosts, hosts that lack one thing or another, and what it costs without GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import TIMED_OUT
from ansible_collections.socle.inference.plugins.module_utils._gpu.gather import gather
from ansible_collections.socle.inference.plugins.modules import gpu_facts

from tests.unit.gpu.hosts import (
    DRIVER,
    FIXTURES,
    H200_DRIVER,
    H200_XML,
    HEALTHY,
    JOURNAL,
    KERNEL,
    PRODUCTS,
    SMI_CSV,
    SMI_TOPO,
    SMI_XML,
    Host,
    addresses,
)

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n"
H200 = {
    **HEALTHY,
    "index": 0,
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "product": "NVIDIA H200",
    "pci_bus_id": "0000:00:06.0",
    "pci_device_id": "10de:2335",
    "pci_subsystem_id": "10de:18bf",
    "memory_mib": 143771,
    "architecture": "hopper",
    "compute_capability": "9.0",
    "numa_node": None,
    "pcie": {"gen": 5, "gen_max": 5, "width": 16, "width_max": 16},
    "bar1_mib": 262144,
    "memory": {"reserved_mib": 616, "used_mib": 0, "free_mib": 143156},
    "power": {"limit_w": 700.0, "default_w": 700.0, "min_w": 200.0, "max_w": 700.0},
    "virtualization": "pass-through",
    "gsp_version": "580.159.04",
}


def captured_h200(host: Host) -> None:
    host.pci(
        "0000:00:06.0",
        subsystem_vendor="0x10de",
        subsystem_device="0x18bf",
        driver="nvidia",
        numa_node="-1",
        current_link_speed="32.0 GT/s PCIe",
    )
    host.pci("0000:00:00.0", vendor="0x8086", device="0x0d57", kind="0x060000")
    host.write("proc/driver/nvidia/version", H200_DRIVER)
    host.write("sys/module/nvidia/version", "580.159.04\n")
    host.commands = {
        SMI_XML: (0, H200_XML, ""),
        SMI_CSV: (0, "0, 00000000:00:06.0, 9.0\n", ""),
        JOURNAL: (1, "-- No entries --\n", ""),
        "podman --version": (0, "podman version 5.4.2\n", ""),
        "docker --version": (0, "Docker version 28.2.2, build e6534b4\n", ""),
        "nvidia-ctk --version": (0, "NVIDIA Container Toolkit CLI version 1.20.0\ncommit: abc\n", ""),
    }
    host.module_file(DRIVER, "Dual MIT/GPL")


def test_a_captured_h200_host(host: Host) -> None:
    captured_h200(host)
    assert host.facts() == {
        "schema": "socle.gpu_facts/2",
        "host_class": None,
        "kernel": KERNEL,
        "arch": "x86_64",
        "cgroup_version": 2,
        "cpu": {"model": "Xeon", "cores": 2},
        "memory_mib": 128887,
        "os": {"id": "debian", "version_id": "13", "codename": "trixie", "id_like": []},
        "gpus": [H200],
        "nvswitches": [],
        "nvlink5": False,
        "links": [],
        "driver": {
            "version": DRIVER,
            "flavour": "open",
            "library_version": None,
            "disk_version": DRIVER,
            "disk_flavour": "open",
            "next_kernel": None,
            "next_disk_version": None,
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
        "engines": {"podman": "5.4.2", "docker": "28.2.2"},
        "toolkit": {"version": "1.20.0"},
    }


def test_a_captured_host_of_two_h200(host: Host) -> None:
    folder = FIXTURES / "h200_x2"
    host.captured_pci((folder / "pci.txt").read_text(encoding="utf-8"))
    host.commands = {
        SMI_XML: (0, (folder / "nvidia-smi.xml").read_text(encoding="utf-8"), ""),
        SMI_CSV: (0, "0, 00000000:00:06.0, 9.0\n1, 00000000:00:07.0, 9.0\n", ""),
        SMI_TOPO: (0, (folder / "topo.txt").read_text(encoding="utf-8"), ""),
    }
    facts = host.facts()
    first = {**H200, "fabric_state": "completed", "fabric_status": "success"}
    second = {
        **first,
        "index": 1,
        "uuid": "GPU-00000000-1111-2222-3333-444444444445",
        "pci_bus_id": "0000:00:07.0",
    }
    assert facts["gpus"] == [first, second]
    assert facts["links"] == [{"a": "0000:00:06.0", "b": "0000:00:07.0", "link": "NV18"}]
    assert (facts["nvswitches"], facts["acs_redirects"]) == ([], [])


def test_without_a_device_of_nvidia_only_the_engines_are_asked(host: Host) -> None:
    host.pci("0000:00:02.0", vendor="0x8086", kind="0x030000")
    host.write("boot/vmlinuz-6.12.50", "")
    host.write("lib/modules/6.12.50/modules.dep", "")
    facts = host.facts()
    assert host.calls == ["podman --version", "docker --version"]
    assert (facts["host_class"], facts["gpus"], facts["driver"]["version"]) == ("cpu", [], None)
    assert (facts["engine"], facts["xids"], facts["links"]) == ({"name": None, "version": None}, [], [])
    assert facts["driver"]["next_kernel"] == "6.12.50"


def test_gpus_are_seen_without_a_driver(host: Host) -> None:
    host.pci("0000:3b:00.0", device="0x20f5", driver="nouveau", numa_node="1")
    host.pci("0000:3b:00.1", device="0x10f7", kind="0x040300")  # the audio function of the same card
    host.write("sys/module/nouveau/refcnt", "1\n")
    facts = host.facts()
    assert facts["host_class"] is None
    (gpu,) = facts["gpus"]
    assert (gpu["pci_device_id"], gpu["bound_driver"], gpu["numa_node"]) == ("10de:20f5", "nouveau", 1)
    assert (gpu["on_bus"], gpu["by_driver"], gpu["index"], gpu["memory_mib"]) == (True, False, None, None)
    assert facts["driver"]["nouveau"] is True
    assert facts["driver"]["error"] is None
    assert facts["xids"] is None


def test_a_driver_that_does_not_match_its_libraries_is_told(host: Host) -> None:
    product = PRODUCTS["a100_pcie"]
    host.gpus(product, driver="nvidia")
    host.drive(product)
    host.commands[SMI_XML] = (18, MISMATCH, "")
    host.module_file("580.178.04", "Dual MIT/GPL")
    host.write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.178.04", "")
    host.link("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "libnvidia-ml.so.580.178.04")
    facts = host.facts()
    driver = facts["driver"]
    assert (driver["version"], driver["disk_version"], driver["library_version"]) == (
        DRIVER,
        "580.178.04",
        "580.178.04",
    )
    assert driver["error"] == MISMATCH.splitlines()[0]
    assert [(gpu["pci_bus_id"], gpu["by_driver"]) for gpu in facts["gpus"]] == [(each, False) for each in addresses(2)]
    # One failed call says it all; nothing else is asked of nvidia-smi.
    assert [call for call in host.calls if call.startswith("nvidia-smi")] == [SMI_XML]


def test_a_gpu_that_fell_off_is_on_the_bus_only_and_comes_last(host: Host) -> None:
    product = PRODUCTS["a800_pcie"]
    host.gpus(product, count=3, driver="nvidia")
    host.drive(product, count=2)
    lost = "Unable to determine the device handle for GPU2: 0000:5B:00.0: Unknown Error"
    code, xml, _nothing = host.commands[SMI_XML]
    host.commands[SMI_XML] = (code, f"{lost}\n{xml}", "")
    host.commands[JOURNAL] = (0, "NVRM: Xid (PCI:0000:5b:00): 79, GPU has fallen off the bus.\n", "")
    facts = host.facts()
    assert [(gpu["pci_bus_id"], gpu["index"], gpu["by_driver"]) for gpu in facts["gpus"]] == [
        ("0000:3b:00.0", 0, True),
        ("0000:4b:00.0", 1, True),
        ("0000:5b:00.0", None, False),
    ]
    assert facts["driver"]["error"] == lost
    assert facts["xids"] == [{"pci_bus_id": "0000:5b:00.0", "code": 79, "text": "GPU has fallen off the bus."}]


def test_a_gpu_that_left_the_bus_is_told(host: Host) -> None:
    product = PRODUCTS["a800_pcie"]
    host.gpus(product, count=1)
    host.drive(product, count=2)
    assert [(gpu["on_bus"], gpu["by_driver"]) for gpu in host.facts()["gpus"]] == [(True, True), (False, True)]


def test_a_hung_nvidia_smi_is_asked_once(host: Host) -> None:
    host.gpus(PRODUCTS["rtx_4090"])
    host.drive(PRODUCTS["rtx_4090"])
    host.commands[SMI_XML] = (TIMED_OUT, "", "nvidia-smi did not end within 60 s\n")
    host.commands[JOURNAL] = (0, "NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout after 6s of waiting\n", "")
    facts = host.facts()
    assert facts["driver"]["error"] == "nvidia-smi did not end within 60 s"
    assert [call for call in host.calls if call.startswith("nvidia-smi")] == [SMI_XML]
    assert [xid["code"] for xid in facts["xids"]] == [119]


@pytest.mark.parametrize("hung", [SMI_XML, SMI_CSV])
def test_a_nvidia_smi_that_hangs_after_some_gpus_is_not_asked_for_links(host: Host, hung: str) -> None:
    product = PRODUCTS["a100_sxm4"]
    host.gpus(product, 3)
    host.drive(product, 3)
    text = host.commands[hung][1]
    host.commands[hung] = (
        TIMED_OUT,
        text[: text.rindex("<gpu id")] if hung == SMI_XML else "",
        "nvidia-smi did not end\n",
    )
    facts = host.facts()
    assert [gpu["by_driver"] for gpu in facts["gpus"]] == [True, True, hung == SMI_CSV]
    assert facts["links"] == [] and SMI_TOPO not in host.calls


def test_what_nvidia_smi_leaves_open_is_completed_from_the_bus(host: Host) -> None:
    host.pci("0000:3b:00.0", device="0x2684", current_link_speed="2.5 GT/s PCIe", max_link_width="16")
    link = "pci/pci_gpu_link_info"
    changes = {f"{link}/pcie_gen/current_link_gen": "N/A", f"{link}/link_widths/max_link_width": "N/A"}
    host.drive(PRODUCTS["rtx_4090"], count=1, changes={0: changes})
    assert host.facts()["gpus"][0]["pcie"] == {"gen": 1, "gen_max": 5, "width": 16, "width_max": 16}


@pytest.mark.parametrize(
    ("answers", "engine", "engines"),
    [
        (
            {
                "podman --version": (125, "", "cannot"),
                "docker --version": (0, "Docker version 28.2.2, build e65\n", ""),
            },
            {"name": "docker", "version": "28.2.2"},
            {"podman": None, "docker": "28.2.2"},
        ),
        (
            # Package podman-docker.
            {
                "podman --version": (0, "podman version 4.9.4-rhel\n", ""),
                "docker --version": (0, "podman version 4\n", ""),
            },
            {"name": "podman", "version": "4.9.4-rhel"},
            {"podman": "4.9.4-rhel", "docker": None},
        ),
    ],
)
def test_engines(host: Host, answers: Any, engine: Any, engines: Any) -> None:
    host.commands = answers
    facts = host.facts()
    assert (facts["engine"], facts["engines"]) == (engine, engines)


def test_a_hybrid_cgroup_tree_is_version_1(host: Host) -> None:
    (host.root / "sys/fs/cgroup/cgroup.controllers").unlink()
    host.write("sys/fs/cgroup/unified/cgroup.controllers", "")
    assert host.facts()["cgroup_version"] == 1


def test_an_empty_tree_gives_nulls(tmp_path: Path) -> None:
    facts = gather(lambda argv: None, tmp_path, tmp_path, tmp_path / "none", tmp_path)
    assert facts["memory_mib"] is None and facts["kernel"] is None
    assert facts["cpu"] == {"model": None, "cores": None}


def documented(contains: dict[str, Any]) -> dict[str, Any]:
    return {name: documented(entry["contains"]) if "contains" in entry else None for name, entry in contains.items()}


def shape(value: Any) -> Any:
    if isinstance(value, list):
        return shape(value[0]) if value and isinstance(value[0], dict) else None
    return {name: shape(entry) for name, entry in value.items()} if isinstance(value, dict) else None


def test_the_documentation_names_every_key(host: Host) -> None:
    captured_h200(host)
    host.pci("0000:00:07.0")
    host.pci("0000:c1:00.0", device="0x22a3", kind="0x068000")
    process = "<pid>7</pid><process_name>x</process_name><used_memory>1 MiB</used_memory>"
    two = (FIXTURES / "h200_x2/nvidia-smi.xml").read_text(encoding="utf-8")
    first, _closing, rest = two.partition("</processes>")
    host.commands[SMI_XML] = (0, f"{first}<process_info>{process}</process_info></processes>{rest}", "")
    host.commands[SMI_TOPO] = (0, (FIXTURES / "h200_x2/topo.txt").read_text(encoding="utf-8"), "")
    host.commands[JOURNAL] = (0, "NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus.\n", "")
    assert shape(host.facts()) == documented(yaml.safe_load(gpu_facts.RETURN)["gpu_facts"]["contains"])


def test_the_module_changes_nothing(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.pci("0000:00:06.0")
    arguments = {
        "sys_root": str(host.root / "sys"),
        "proc_root": str(host.root / "proc"),
        "root": str(host.root),
        "os_release": str(host.root / "os-release"),
        "_ansible_check_mode": True,
    }
    with patch_module_args(arguments), pytest.raises(SystemExit) as left:
        gpu_facts.main()
    assert left.value.code == 0
    result = json.loads(capsys.readouterr().out)
    assert result["changed"] is False
    assert result["gpu_facts"]["gpus"][0]["pci_device_id"] == "10de:2335"


def test_a_podman_that_would_wait_for_a_pipe_is_not_asked_and_the_pipe_is_named(
    host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    host.write("bin/podman", "#!/bin/sh\necho podman version 5.4.2\n")
    (host.root / "bin/podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{host.root / 'bin'}:{os.environ['PATH']}")
    drop_in = host.root / "etc/containers/containers.conf.d/50-socle.conf"
    drop_in.parent.mkdir(parents=True)
    arguments = {name: str(host.root / name.partition("_root")[0]) for name in ("sys_root", "proc_root", "os_release")}
    said = []
    for damaged in (False, True):
        assert warned == []
        if damaged:
            os.mkfifo(drop_in)
        with patch_module_args({**arguments, "root": str(host.root)}), pytest.raises(SystemExit):
            gpu_facts.main()
        said.append(json.loads(capsys.readouterr().out))
    assert [one["gpu_facts"]["engines"]["podman"] for one in said] == ["5.4.2", None]
    assert "/etc/containers/containers.conf.d/50-socle.conf is a pipe, not a file" in str(warned)
