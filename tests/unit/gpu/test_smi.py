# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi's XML and CSV: 13 products, both forms of the XML, GPUs that are ill, and output that is torn."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._gpu import smi
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import TIMED_OUT

from tests.unit.gpu.hosts import DRIVER, PRODUCTS, SMI_XML, Host, add_process, addresses, smi_csv, smi_xml, uuid

A100 = PRODUCTS["a100_sxm4"]


def one(changes: dict[str, str], product: Any = A100) -> tuple[dict[str, Any], str | None]:
    """The GPU with these texts changed, and the complaint."""
    report = smi.parse_xml(smi_xml(product, 1, {0: changes}))
    (gpu,) = report.gpus
    return gpu, report.error


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_product_is_the_same_by_driver_and_by_bus(host: Host, name: str) -> None:
    product = PRODUCTS[name]
    host.gpus(product, driver="nvidia")
    before = host.facts()["gpus"]
    host.drive(product)
    facts = host.facts()
    for number, (gpu, bare) in enumerate(zip(facts["gpus"], before, strict=True)):
        assert (gpu["pci_bus_id"], gpu["pci_device_id"]) == (bare["pci_bus_id"], bare["pci_device_id"])
        assert gpu["pci_device_id"] == f"10de:{product.device.lower()}"
        assert (gpu["index"], gpu["uuid"], gpu["product"]) == (number, uuid(number), product.name)
        assert (gpu["architecture"], gpu["compute_capability"]) == (product.architecture.lower(), product.capability)
        assert (gpu["memory_mib"], gpu["power"]["default_w"]) == (product.memory_mib, float(product.power_w))
        assert gpu["mig"] == (None if product.mig == "N/A" else "disabled")
        assert gpu["ecc"] == {"N/A": None, "Enabled": "enabled", "Disabled": "disabled"}[product.ecc]
        assert gpu["fabric_state"] == (None if product.fabric == "N/A" else "completed")
        assert (gpu["virtualization"], gpu["recovery_action"], gpu["by_driver"]) == ("none", None, True)
    first, second = addresses(2)
    assert facts["links"] == [{"a": first, "b": second, "link": product.link}]
    assert (facts["driver"]["version"], facts["driver"]["error"]) == (DRIVER, None)


def test_mig_is_of_the_gpu_and_not_of_its_parts() -> None:
    gpu, error = one({"mig_mode/current_mig": "Enabled", "mig_mode/pending_mig": "Disabled", "remapped_rows": "N/A"})
    assert (gpu["mig"], gpu["mig_pending"], gpu["remapped_pending"]) == ("enabled", "disabled", None)
    part = "<mig_device><fb_memory_usage><total>19968 MiB</total></fb_memory_usage></mig_device>"
    xml = smi_xml(A100, 1).replace("\t\t\tNone\n", part)
    assert part in xml
    assert smi.parse_xml(xml).gpus[0]["memory_mib"] == 81920
    assert error is None


@pytest.mark.parametrize(
    ("product", "changes", "action"),
    [
        ("h100_sxm", {"gpu_recovery_action": "None"}, None),
        ("h100_sxm", {"gpu_recovery_action": "Drain and Reset"}, "drain and reset"),
        ("a100_sxm4", {"gpu_reset_status/reset_required": "Yes"}, "reset"),
        ("a100_sxm4", {"gpu_reset_status/drain_and_reset_recommended": "Yes"}, "drain and reset"),
        ("a100_sxm4", {"performance_state": "GPU requires reset"}, "reset"),
    ],
)
def test_what_the_driver_asks_for_in_both_forms(product: str, changes: dict[str, str], action: str | None) -> None:
    assert one(changes, PRODUCTS[product])[0]["recovery_action"] == action


def test_rows_of_memory_that_wait_or_failed() -> None:
    gpu, _error = one({"remapped_rows/remapped_row_pending": "Yes", "remapped_rows/remapped_row_failure": "Yes"})
    assert (gpu["remapped_pending"], gpu["remapped_failure"]) == (True, True)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"uuid": "GPU is lost", "fb_memory_usage/total": "GPU is lost"}, "GPU 0000:3b:00.0: GPU is lost"),
        ({"performance_state": "[GPU is lost]"}, "GPU 0000:3b:00.0: GPU is lost"),
        ({"uuid": "Unknown Error", "product_name": "[Unknown Error]"}, "GPU 0000:3b:00.0: Unknown Error"),
    ],
)
def test_a_gpu_that_the_driver_lost_is_not_counted_as_its_own(
    host: Host, changes: dict[str, str], complaint: str
) -> None:
    host.gpus(A100)
    host.drive(A100, changes={0: changes})
    facts = host.facts()
    lost, well = facts["gpus"]
    assert (lost["by_driver"], lost["index"], lost["on_bus"]) == (False, None, True)
    assert (well["by_driver"], well["index"]) == (True, 1)
    assert facts["driver"]["error"] == complaint
    assert facts["links"] == []


def test_a_gpu_that_needs_a_reset_stays_known() -> None:
    gpu, error = one({"performance_state": "GPU requires reset"})
    assert (gpu["by_driver"], gpu["memory_mib"]) == (True, 81920)
    assert error == "GPU 0000:3b:00.0: GPU requires reset"


def test_single_unknown_values_are_null_and_no_complaint() -> None:
    gpu, error = one(
        {
            "gpu_power_readings/current_power_limit": "Requested functionality has been deprecated",
            "persistence_mode": "N/A",
            "ecc_mode/current_ecc": "Unknown Error",
            "gsp_firmware_version": "N/A",
            "bar1_memory_usage/total": "Insufficient Permissions",
            "pci/pci_gpu_link_info/link_widths/current_link_width": "4x",
        }
    )
    assert gpu["power"]["limit_w"] is None
    assert (gpu["persistence"], gpu["ecc"], gpu["gsp_version"], gpu["bar1_mib"]) == (None, None, None, None)
    assert gpu["pcie"]["width"] == 4
    assert error is None


def test_processes_and_their_odd_names() -> None:
    xml = add_process(
        smi_xml(A100),
        "<pid>4242</pid><type>C</type><process_name>python3 -c 'a<b & c &amp; d' \x07</process_name>"
        "<used_memory>1024 MiB</used_memory>",
    )
    report = smi.parse_xml(
        add_process(xml, "<pid>7</pid><process_name>N/A</process_name><used_memory>N/A</used_memory>")
    )
    assert report.error is None
    assert report.gpus[1]["processes"] == [
        {"pid": 4242, "name": "python3 -c 'a<b & c & d'", "memory_mib": 1024},
        {"pid": 7, "name": None, "memory_mib": None},
    ]


def test_of_torn_xml_the_whole_gpus_count() -> None:
    xml = smi_xml(A100)
    report = smi.parse_xml(xml[: xml.rindex("<fb_memory_usage>")])
    assert [gpu["uuid"] for gpu in report.gpus] == [uuid(0)]
    assert report.error == "nvidia-smi printed XML that ends early"
    broken = smi.parse_xml(xml.replace("<product_name>", "<product name>"))
    assert broken.gpus == []
    assert broken.error is not None and broken.error.startswith("nvidia-smi printed XML that cannot be read")


def test_entities_are_not_expanded() -> None:
    xml = smi_xml(A100, 1, {0: {"product_name": "PLACE"}}).replace("PLACE", "&a;")
    bomb = xml.replace('SYSTEM "nvsmi_device_v12.dtd"', '[<!ENTITY a "expanded">]')
    report = smi.parse_xml(bomb)
    assert report.error is not None
    assert "expanded" not in str(report)


def test_chatter_is_a_complaint() -> None:
    assert smi.parse_xml("No devices were found\n") == smi.SmiReport([], None, None, "No devices were found")


def test_the_index_is_that_of_the_csv(host: Host) -> None:
    host.drive(A100)
    first, second = addresses(2)
    host.commands["nvidia-smi --query-gpu=index,pci.bus_id,compute_cap "] = (
        0,
        f"1, 0000{first}, 8.0\n0, 0000{second}, [N/A]\n",
        "",
    )
    report = smi.read(host.run)
    assert [(gpu["index"], gpu["compute_capability"]) for gpu in report.gpus] == [(1, "8.0"), (0, None)]


def test_a_field_that_an_old_nvidia_smi_does_not_know_costs_only_itself(host: Host) -> None:
    host.drive(A100)
    host.commands["nvidia-smi --query-gpu=index,pci.bus_id,compute_cap "] = (
        2,
        'Field "compute_cap" is not a valid field to query.\n',
        "",
    )
    host.commands["nvidia-smi --query-gpu=index,pci.bus_id "] = (0, "5, 00000000:3B:00.0\n", "")
    gpus = smi.read(host.run).gpus
    # The second GPU is not in the CSV at all; its place in the XML counts.
    assert [(gpu["index"], gpu["compute_capability"]) for gpu in gpus] == [(5, None), (1, None)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            (9, "NVIDIA-SMI has failed because it couldn't communicate\nMake sure\n", ""),
            "NVIDIA-SMI has failed because it couldn't communicate",
        ),
        ((12, "", "libnvidia-ml.so not found\n"), "libnvidia-ml.so not found"),
        ((139, "", ""), "nvidia-smi ended with 139"),
        ((TIMED_OUT, "half", "nvidia-smi did not end within 60 s\nhalf"), "nvidia-smi did not end within 60 s"),
    ],
)
def test_complaints(host: Host, answer: tuple[int, str, str], error: str) -> None:
    host.commands = {SMI_XML: answer}
    assert smi.read(host.run) == smi.SmiReport([], None, None, error)


def test_no_nvidia_smi_is_no_complaint() -> None:
    assert smi.read(lambda argv: None) == smi.SmiReport([], None, None, None)


def test_csv_chatter_is_no_gpu() -> None:
    assert smi.parse_csv("No devices were found\n") == {}
    assert smi.parse_csv(smi_csv(A100, 1)) == {"0000:3b:00.0": (0, "8.0")}
