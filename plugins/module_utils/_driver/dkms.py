# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What DKMS says of the driver's modules, and why a build failed. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import BUILDS_FROM

TREE = "var/lib/dkms"

REMEDIES = (
    (
        r"pci_resize_resource",
        f"this kernel needs the open modules of {BUILDS_FROM} or newer: set gpu_driver_branch or gpu_driver_version to"
        " such a driver (gpu_driver_source: nvidia has it)",
    ),
    (r"No space left on device", "make room on /var and /tmp"),
    (
        r"\bcc\b.*not found|gcc.*not found|Unable to find the kernel source|kernel headers",
        "install the kernel's headers",
    ),
    (r"Killed|cannot allocate memory", "give the host more memory for the build"),
)
OTHER_REMEDY = "take a newer driver, or an older kernel that this driver builds for"


@dataclass(frozen=True)
class Entry:
    """One line of `dkms status`; *kernel* is "" for what is only added."""

    name: str
    version: str
    kernel: str
    state: str


def parse_status(text: str) -> list[Entry]:
    """Of DKMS 3 ("nvidia/580.178.04, 6.12.118, x86_64: installed") and 2 ("nvidia, 580.178.04, ...")."""
    entries = []
    for line in text.splitlines():
        match = re.match(r"(nvidia[\w.-]*)(?:/|, )([\d.]+)(?:, ([^,:]+), [^:]+)?: (\w+)", line.strip())
        if match:
            entries.append(Entry(match.group(1), match.group(2), match.group(3) or "", match.group(4)))
    return entries


def read_status(run: Run) -> list[Entry]:
    """[] where DKMS is not installed."""
    answer = run(["dkms", "status"])
    return parse_status(answer[1]) if answer else []


def is_built(entries: Sequence[Entry], version: str, kernel: str) -> bool:
    """Whether the module of *version* is installed for *kernel*."""
    return any(entry.version == version and entry.kernel == kernel and entry.state == "installed" for entry in entries)


def read_log(root: Path, version: str) -> str:
    """The newest log of a build of *version*; "" where there is none."""
    paths = sorted((root / TREE).glob(f"nvidia*/{version}/**/make.log"), key=lambda path: path.stat().st_mtime)
    return paths[-1].read_text(encoding="utf-8", errors="replace") if paths else ""


def first_error(log: str) -> str | None:
    """The compiler's first complaint: "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"."""
    lines = log.splitlines()
    for line in lines:
        if re.search(r"(^|[\s:])(fatal )?error:", line, re.IGNORECASE):
            return re.sub(r"^\S*/(?=[^/\s]+:\d+:)", "", line.strip()).replace("\u2018", "'").replace("\u2019", "'")
    for line in lines:
        if re.search(r"No space left on device|not found|Killed|\*\*\* .*Error", line):
            return line.strip()
    return None


def excerpt(log: str, lines: int = 12) -> str:
    """The lines around the first complaint."""
    every = log.splitlines()
    wanted = first_error(log)
    if wanted is None:
        return "\n".join(every[-lines:])
    tail = wanted.split("error:")[0]
    position = next((number for number, line in enumerate(every) if tail in line and "error:" in line), len(every))
    return "\n".join(line[:300] for line in every[max(0, position - 2) : position + lines - 2])


def remedy(log_line: str) -> str:
    """What to do about a failed build."""
    return next((what for pattern, what in REMEDIES if re.search(pattern, log_line)), OTHER_REMEDY)


def complaint(version: str, kernel: str, log: str) -> str:
    """One sentence without its full stop: what failed, the first error, what to do."""
    error = first_error(log)
    if error is None:
        return (
            f"DKMS has no module {version} for kernel {kernel}, and no build log names an error; see whether"
            f" 'dkms autoinstall -k {kernel}' finds that kernel's headers"
        )
    return f"DKMS could not build module {version} for kernel {kernel}: {error}; {remedy(error)}"
