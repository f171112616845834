# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What sysfs tells before any driver: PCI trees, bridges, IOMMU, NVSwitches, Secure Boot."""

from __future__ import annotations

import pytest
from ansible_collections.socle.inference.plugins.module_utils._gpu import pci
from ansible_collections.socle.inference.plugins.module_utils._gpu.parse import read_secure_boot

from tests.unit.gpu.hosts import PRODUCTS, Host, acs_config

REDIRECT = 0b0011101
"""Source validation, request and completion redirect, upstream forwarding: what Linux sets on every port."""
RESOURCE = """0x00000000b0000000 0x00000000b0ffffff 0x0000000000040200
0x0000380000000000 0x0000381fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000382000000000 0x0000382001ffffff 0x000000000014220c
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:00:06.0", "0000:00:06.0"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("PCI:0000:3b:00", "0000:3b:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("nothing", "nothing"),
    ],
)
def test_bus_ids_are_spelt_as_by_the_kernel(text: str, expected: str) -> None:
    assert pci.normalise_bus_id(text) == expected


def test_everything_that_sysfs_knows_of_a_gpu(host: Host) -> None:
    host.pci(
        "0000:3b:00.0",
        device="0x2bb5",
        driver="vfio-pci",
        subsystem_vendor="0x10de",
        subsystem_device="0x204e",
        numa_node="1",
        current_link_speed="2.5 GT/s PCIe",
        max_link_speed="32.0 GT/s PCIe",
        current_link_width="8",
        max_link_width="16",
        resource=RESOURCE,
    )
    (gpu,) = pci.read_gpus(pci.nvidia_devices(host.root / "sys"))
    expected = {
        **pci.empty_gpu("0000:3b:00.0"),
        "on_bus": True,
        "pci_device_id": "10de:2bb5",
        "pci_subsystem_id": "10de:204e",
        "bound_driver": "vfio-pci",
        "numa_node": 1,
        "bar1_mib": 131072,
        "pcie": {"gen": 1, "gen_max": 5, "width": 8, "width_max": 16},
    }
    assert gpu == expected


def test_what_a_virtual_machine_does_not_know_of_a_link() -> None:
    assert pci.parse_link_speed("Unknown") is None
    assert pci.parse_link_speed("16 GT/s") == 4
    assert (pci.parse_link_width("0"), pci.parse_link_width("255"), pci.parse_link_width("")) == (None, None, None)
    assert pci.parse_bar1_mib("") is None


@pytest.mark.parametrize("device", ["0x1af1", "0x22a3"])
def test_nvswitches(host: Host, device: str) -> None:
    host.gpus(PRODUCTS["h100_sxm"])
    host.pci("0000:c1:00.0", device=device, kind="0x068000")
    facts = host.facts()
    assert facts["nvswitches"] == [{"pci_bus_id": "0000:c1:00.0", "pci_device_id": f"10de:{device[2:]}"}]
    assert len(facts["gpus"]) == 2
    assert facts["nvlink5"] is False


def test_nvlink5_is_known_by_its_bridge(host: Host) -> None:
    host.gpus(PRODUCTS["b200"])
    host.write("sys/class/infiniband/mlx5_0/device/vpd", b"\x82\x10\x00ConnectX-7")
    assert host.facts()["nvlink5"] is False
    host.write("sys/class/infiniband/mlx5_4/device/vpd", b"\x82\x10\x00\x80SMDL\x06SW_MNG\x00")
    assert host.facts()["nvlink5"] is True


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (acs_config(1, 1, REDIRECT), True),
        (acs_config(1, 1, 0b0100), True),
        (acs_config(1, 1, 0b1000), True),
        (acs_config(1, 1, 0b0010001), False),
        (acs_config(1, 1, None), False),
        (acs_config(1, 1, REDIRECT, length=256), None),
        (acs_config(1, 1, REDIRECT, length=64), None),
        (b"", None),
        (b"\xff" * 4096, False),
        # A list of capabilities that bites its own tail.
        (acs_config(1, 1, None)[:0x100] + b"\x01\x00\x02\x10" + bytes(4096 - 0x104), False),
    ],
)
def test_acs_of_one_bridge(config: bytes, expected: bool | None) -> None:
    assert pci.parse_acs_redirect(config) is expected


def bridge(host: Host, address: str, config: bytes) -> None:
    host.pci(address, vendor="0x8086", device="0x347a", kind="0x060400", config=config)


def test_only_bridges_above_gpus_count(host: Host) -> None:
    host.gpus(PRODUCTS["a100_pcie"])  # buses 3b and 4b
    bridge(host, "0000:3a:00.0", acs_config(0x3B, 0x3B, REDIRECT))
    bridge(host, "0000:49:00.0", acs_config(0x4A, 0x4C, 0))
    bridge(host, "0000:4a:00.0", acs_config(0x4B, 0x4B, REDIRECT))
    bridge(host, "0000:00:1c.0", acs_config(0x01, 0x02, REDIRECT))
    bridge(host, "0001:00:00.0", acs_config(0x3B, 0x3B, REDIRECT))
    assert host.facts()["acs_redirects"] == ["0000:3a:00.0", "0000:4a:00.0"]


def test_acs_is_unknown_without_the_right_to_read_it(host: Host) -> None:
    host.gpus(PRODUCTS["a100_pcie"])
    bridge(host, "0000:00:1c.0", acs_config(0x01, 0x02, REDIRECT, length=64))
    assert host.facts()["acs_redirects"] == []
    bridge(host, "0000:3a:00.0", acs_config(0x3B, 0x3B, REDIRECT, length=64))
    assert host.facts()["acs_redirects"] is None


@pytest.mark.parametrize(
    ("unit", "types", "cmdline", "expected"),
    [
        (False, [], "iommu=pt", {"active": False, "passthrough": None}),
        (True, ["identity", "identity"], "ro", {"active": True, "passthrough": True}),
        (True, ["identity", "DMA-FQ"], "iommu=pt", {"active": True, "passthrough": False}),
        (True, [], "ro intel_iommu=on iommu=nobypass,pt", {"active": True, "passthrough": True}),
        (True, [], "ro iommu.passthrough=1", {"active": True, "passthrough": True}),
        (True, [], "ro amd_iommu=pt", {"active": True, "passthrough": None}),
    ],
)
def test_iommu(host: Host, unit: bool, types: list[str], cmdline: str, expected: dict[str, bool | None]) -> None:
    host.gpus(PRODUCTS["rtx_5090"])
    (host.root / "sys/class/iommu").mkdir(parents=True)
    if unit:
        host.write("sys/class/iommu/dmar0/name", "")
    for address, kind in zip(("0000:3b:00.0", "0000:4b:00.0"), types, strict=False):
        host.write(f"sys/bus/pci/devices/{address}/iommu_group/type", f"{kind}\n")
    host.write("proc/cmdline", cmdline)
    assert host.facts()["iommu"] == expected


def test_secure_boot(host: Host) -> None:
    variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    assert read_secure_boot(host.root / "sys") is False
    (host.root / "sys/firmware/efi").mkdir(parents=True)
    assert read_secure_boot(host.root / "sys") is None
    host.write(variable, b"\x06\x00\x00\x00\x01")
    assert read_secure_boot(host.root / "sys") is True
    host.write(variable, b"\x06\x00\x00\x00\x00")
    assert read_secure_boot(host.root / "sys") is False
