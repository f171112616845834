# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says, in the XML of 2023 (DTD v12) and since (v13). Private to socle.inference."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ansible_collections.socle.inference.plugins.module_utils._commands import Answer, Run
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import (
    TIMED_OUT,
)
from ansible_collections.socle.inference.plugins.module_utils._gpu.pci import empty_gpu, normalise_bus_id

XML = ("nvidia-smi", "-q", "-x")
QUERY = ("index", "pci.bus_id")
OPTIONAL_QUERY = ("compute_cap",)
"""Not in the XML. One field that nvidia-smi does not know (compute_cap before 510) makes the whole call fail."""

UNKNOWN = re.compile(
    r"\[?(|N/A|Not Supported|Not Available|Unknown|Unknown Error|ERR!|GPU is lost|GPU requires reset|"
    r"Insufficient Permissions|Requested functionality has been deprecated|Not Found)\]?",
    re.IGNORECASE,
)
"""What nvidia-smi writes instead of a value: bare in XML, in brackets in CSV."""

LOST = "GPU is lost"
RESET = "GPU requires reset"

_SWITCH = {"enabled": "enabled", "disabled": "disabled"}
_YES_NO = {"yes": True, "no": False}


class SmiReport(NamedTuple):
    """What nvidia-smi says: GPUs in its order, versions, and complaints as one text."""

    gpus: list[dict[str, Any]]
    driver_version: str | None
    cuda_version: str | None
    error: str | None


def sparing(run: Run) -> Run:
    """*run*, but for nvidia-smi after a call of it that hung: each further one would hang as long."""
    hung = False

    def ask(argv: Sequence[str]) -> Answer | None:
        nonlocal hung
        if argv[0] != XML[0]:
            return run(argv)
        answer = None if hung else run(argv)
        hung = hung or (answer is not None and answer[0] == TIMED_OUT)
        return answer

    return ask


def read(run: Run) -> SmiReport:
    """Asks nvidia-smi, at most three times; after a call that hangs it is not asked again."""
    answer = run(XML)
    if answer is None:
        return SmiReport([], None, None, None)
    code, stdout, stderr = answer
    report = parse_xml(stdout)
    if code != 0:
        spoken = (report.error or stderr.strip() or f"nvidia-smi ended with {code}").splitlines()
        if code == TIMED_OUT:
            return report._replace(error=stderr.splitlines()[0])
        report = report._replace(error=spoken[0])
    if not report.gpus:
        return report
    numbers = _ask_csv(run)
    for gpu in report.gpus:
        index, capability = numbers.get(gpu["pci_bus_id"], (gpu["index"], None))
        gpu.update(index=index if gpu["by_driver"] else None, compute_capability=capability)
    return report


def _ask_csv(run: Run) -> dict[str, tuple[int | None, str | None]]:
    for fields in (QUERY + OPTIONAL_QUERY, QUERY):
        answer = run(("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"))
        if answer is None or answer[0] == TIMED_OUT:
            return {}
        found = parse_csv(answer[1])
        if found:
            return found
    return {}


def parse_csv(output: str) -> dict[str, tuple[int | None, str | None]]:
    """{PCI address: (index, compute capability)} of lines "0, 00000000:00:06.0, 9.0"; other lines are passed over."""
    found: dict[str, tuple[int | None, str | None]] = {}
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) < 2 or not row[0].strip().isdigit() or ":" not in row[1]:
            continue
        capability = row[2].strip() if len(row) > 2 else ""
        found[normalise_bus_id(row[1])] = (
            int(row[0]),
            capability if re.fullmatch(r"\d+\.\d+", capability) else None,
        )
    return found


def parse_xml(output: str) -> SmiReport:
    """What "nvidia-smi -q -x" printed. Lines around the document are complaints; of a torn one what is whole counts."""
    head, opening, rest = output.partition("<nvidia_smi_log")
    body, closing, tail = rest.partition("</nvidia_smi_log>")
    lines = [line.strip() for line in f"{head}\n{tail}".splitlines()]
    complaints = [line for line in lines if line and not line.startswith(("<?xml", "<!DOCTYPE"))]
    gpus: list[dict[str, Any]] = []
    versions: dict[str, str | None] = {"driver_version": None, "cuda_version": None}
    if opening:
        parser: Any = ElementTree.XMLPullParser(events=("end",))
        try:
            # Without its DOCTYPE the document can declare no entity.
            parser.feed(_readable(opening + body + closing))
            for _event, element in parser.read_events():
                if element.tag in versions:
                    versions[element.tag] = _text(element.text)
                elif element.tag == "gpu":
                    gpu, complaint = _gpu(element, len(gpus))
                    gpus.append(gpu)
                    complaints += [complaint] if complaint else []
        except ElementTree.ParseError as error:
            complaints.append(f"nvidia-smi printed XML that cannot be read ({error})")
        else:
            if not closing:
                complaints.append("nvidia-smi printed XML that ends early")
    return SmiReport(gpus, versions["driver_version"], versions["cuda_version"], "\n".join(complaints) or None)


def _readable(document: str) -> str:
    """*document* without characters that XML forbids, and with the names of processes escaped where they are not."""
    document = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", document)
    return re.sub(r"(?<=<process_name>)(.*?)(?=</process_name>)", lambda match: _escape(match.group(1)), document)


def _escape(text: str) -> str:
    # xml.sax.saxutils would do, but it imports urllib and http, which costs 30 ms.
    text = re.sub(r"&(?!(amp|lt|gt|quot|apos|#\w+);)", "&amp;", text)
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _gpu(element: ElementTree.Element, position: int) -> tuple[dict[str, Any], str | None]:
    """(GPU, what is wrong with it)."""
    address = element.findtext("pci/pci_bus_id") or element.get("id") or ""
    gpu = empty_gpu(normalise_bus_id(address) if ":" in address else None)

    def text(path: str) -> str | None:
        return _text(element.findtext(path))

    def lower(path: str) -> str | None:
        found = text(path)
        return found.lower() if found else None

    def number(path: str) -> float | None:
        match = re.match(r"\d+(\.\d+)?", element.findtext(path, "").strip())
        return float(match.group(0)) if match else None

    def whole(path: str) -> int | None:
        found = number(path)
        return None if found is None else int(found)

    def switch(path: str) -> str | None:
        return _SWITCH.get(element.findtext(path, "").strip().lower())

    def yes(path: str) -> bool | None:
        return _YES_NO.get(element.findtext(path, "").strip().lower())

    words = {(each.text or "").strip().strip("[]") for each in element.iter()}
    persistence = switch("persistence_mode")
    link = "pci/pci_gpu_link_info"
    gpu.update(
        index=position,
        uuid=text("uuid"),
        product=text("product_name"),
        pci_device_id=_pci_id(element.findtext("pci/pci_device_id")),
        pci_subsystem_id=_pci_id(element.findtext("pci/pci_sub_system_id")),
        memory_mib=whole("fb_memory_usage/total"),
        architecture=lower("product_architecture"),
        pcie={
            "gen": whole(f"{link}/pcie_gen/current_link_gen"),
            "gen_max": whole(f"{link}/pcie_gen/max_link_gen"),
            "width": whole(f"{link}/link_widths/current_link_width"),
            "width_max": whole(f"{link}/link_widths/max_link_width"),
        },
        bar1_mib=whole("bar1_memory_usage/total"),
        memory={f"{name}_mib": whole(f"fb_memory_usage/{name}") for name in ("reserved", "used", "free")},
        mig=switch("mig_mode/current_mig"),
        mig_pending=switch("mig_mode/pending_mig"),
        ecc=switch("ecc_mode/current_ecc"),
        ecc_pending=switch("ecc_mode/pending_ecc"),
        remapped_pending=yes("remapped_rows/remapped_row_pending"),
        remapped_failure=yes("remapped_rows/remapped_row_failure"),
        recovery_action=_recovery(element, words),
        power={
            "limit_w": number("gpu_power_readings/current_power_limit"),
            "default_w": number("gpu_power_readings/default_power_limit"),
            "min_w": number("gpu_power_readings/min_power_limit"),
            "max_w": number("gpu_power_readings/max_power_limit"),
        },
        persistence=None if persistence is None else persistence == "enabled",
        virtualization=lower("gpu_virtualization_mode/virtualization_mode"),
        fabric_state=lower("fabric/state"),
        fabric_status=lower("fabric/status"),
        gsp_version=text("gsp_firmware_version"),
        processes=[
            {
                "pid": int(each.findtext("pid", "").strip()),
                "name": _text(each.findtext("process_name")),
                "memory_mib": _whole(each.findtext("used_memory", "")),
            }
            for each in element.iterfind("processes/process_info")
            if each.findtext("pid", "").strip().isdigit()
        ],
    )
    gpu["by_driver"] = gpu["uuid"] is not None and LOST not in words
    if LOST in words or RESET in words:
        return gpu, f"GPU {gpu['pci_bus_id']}: {LOST if LOST in words else RESET}"
    if gpu["uuid"] is None:
        return gpu, f"GPU {gpu['pci_bus_id']}: {element.findtext('uuid', '').strip() or 'no UUID'}"
    return gpu, None


def _recovery(element: ElementTree.Element, words: set[str]) -> str | None:
    """What the driver asks for, such as "reset" or "drain and reset"; v12 says it by two questions."""
    action = _text(element.findtext("gpu_recovery_action"))
    if action:
        return None if action.lower() == "none" else action.lower()
    if RESET in words or element.findtext("gpu_reset_status/reset_required", "").strip().lower() == "yes":
        return "reset"
    if element.findtext("gpu_reset_status/drain_and_reset_recommended", "").strip().lower() == "yes":
        return "drain and reset"
    return None


def _text(value: str | None) -> str | None:
    value = (value or "").strip()
    return None if UNKNOWN.fullmatch(value) else value


def _whole(value: str) -> int | None:
    match = re.match(r"\d+", value.strip())
    return int(match.group(0)) if match else None


def _pci_id(value: str | None) -> str | None:
    """ "233510DE", device then vendor, as "10de:2335"."""
    match = re.fullmatch(r"(?:0x)?([0-9a-f]{4})([0-9a-f]{4})", (value or "").strip().lower())
    return f"{match.group(2)}:{match.group(1)}" if match else None
