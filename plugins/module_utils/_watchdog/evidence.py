# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept of a stuck engine before it is restarted. Private to socle.inference.

Each part is bounded in size and time, and none of them is needed: what cannot be had says why, and the rest goes on.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._records.schema import scrub
from ansible_collections.socle.inference.plugins.module_utils._watchdog import processes
from ansible_collections.socle.inference.plugins.module_utils._watchdog.commands import Answer, run_bounded
from ansible_collections.socle.inference.plugins.module_utils._watchdog.redaction import redact, redact_all

Run = Callable[..., Answer]

JOURNAL_LINES = 400
LINE = 600
BYTES = {"journal": 160_000, "nvidia_smi": 120_000, "metrics": 60_000, "kernel": 20_000, "python_stacks": 120_000}
"""Of each part, its newest lines. Together they stay below half of what a record may have."""
DUMPS = 10
DUMP_S = 6.0

_KERNEL = re.compile(
    r"NVRM: Xid|NVRM:.*(?:fallen off|GSP|RmInitAdapter)|Out of memory|oom-kill|blocked for more than", re.IGNORECASE
)
_XID = re.compile(r"NVRM: Xid \([^)]*\):? *(\d+)")


def clip(text: str, part: str, secrets: Sequence[str]) -> list[str]:
    """The last lines of *text* that fit the part, without secrets."""
    kept: list[str] = []
    room = BYTES[part]
    # Values first and over the whole: one may reach over the place where a line is cut.
    for line in reversed(str(scrub(text, secrets)).rstrip("\n").split("\n")):
        short = redact(line[: 2 * LINE])[:LINE]
        room -= len(short.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(short)
    return kept[::-1]


def metrics_lines(page: str) -> str:
    """A page of /metrics without its comments and the buckets of histograms."""
    lines = (line for line in page.splitlines() if line and not line.startswith("#"))
    return "\n".join(line for line in lines if "_bucket{" not in line and "_created" not in line)


def container_facts(text: str) -> dict[str, Any]:
    """What an inspection says of the state of a container; its environment and command line are not among it."""
    start = re.search(r"^\[", text, re.MULTILINE)  # warnings may stand before it, and behind it
    try:
        found = json.JSONDecoder().raw_decode(text, start.start() if start else 0)[0][0]
    except (ValueError, IndexError, KeyError, TypeError):
        return {}
    if not isinstance(found, dict):
        return {}
    state = found.get("State") or {}
    health = state.get("Health") or state.get("Healthcheck") or {}
    host = found.get("HostConfig") or {}
    return {
        "image": found.get("Image"),
        "pid": state.get("Pid"),
        "status": state.get("Status"),
        "started": state.get("StartedAt"),
        "out_of_memory": state.get("OOMKilled"),
        "restarts": found.get("RestartCount"),
        "health": health.get("Status"),
        "failing_streak": health.get("FailingStreak"),
        "shm_size_bytes": host.get("ShmSize"),
        "memory_limit_bytes": host.get("Memory"),
        "network": host.get("NetworkMode"),
    }


def likely_causes(parts: Mapping[str, Any]) -> list[str]:
    """What the evidence points to, most certain first; each a sentence with what to do."""
    found = []
    states = [(item.get("name"), item.get("pid"), item.get("state")) for item in parts.get("processes") or []]
    stopped = [f"{name} ({pid})" for name, pid, state in states if state in ("T", "t")]
    if stopped:
        found.append(f"{', '.join(stopped)} was stopped by a signal or a debugger; see who does that on this host.")
    xids = sorted({int(code) for code in _XID.findall("\n".join(parts.get("kernel") or []))})
    if xids:
        codes = ", ".join(map(str, xids))
        found.append(f"The driver reported Xid {codes} within the last hour; look these up, and run check.yml.")
    if any("Out of memory" in line or "oom-kill" in line for line in parts.get("kernel") or []):
        found.append("The kernel killed processes for want of memory within the last hour; give the host more of it.")
    hung = [f"{name} ({pid})" for name, pid, state in states if state == "D"]
    if hung:
        found.append(
            f"{', '.join(hung)} waits in the kernel and cannot be killed; if it stays, the host needs a reboot."
        )
    if (parts.get("unanswered") or {}).get("nvidia_smi"):
        found.append("nvidia-smi did not answer, so the driver hangs; if it stays, the host needs a reboot.")
    if any("shared memory broadcast block" in line for line in parts.get("journal") or []):
        found.append(
            "A worker does not take part in a collective operation: between GPUs without NVLink set NCCL_P2P_DISABLE=1"
            " in env and disable-custom-all-reduce in flags, and look at the IOMMU (check.yml)."
        )
    return found


class Collector:
    """Gathers the evidence about one instance."""

    def __init__(self, run: Run = run_bounded, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic):
        self._run = run
        self._proc = proc
        self._clock = clock

    def collect(
        self,
        *,
        unit: str,
        container: str,
        engine: str,
        metrics: str | None,
        secrets: Iterable[str],
        alive: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """The parts, by name; *alive* is called between them."""
        known = [secret for secret in secrets if secret]
        unanswered: dict[str, str] = {}

        def ask(part: str, argv: Sequence[str], limit_s: float = 10.0) -> str:
            alive()
            answer = self._run(argv, limit_s)
            if answer.fault is not None:
                unanswered[part] = answer.fault
            return answer.output

        began = self._clock()
        table = processes.read_table(self._proc)
        inspected = ask("container", [engine, "container", "inspect", container])
        facts = container_facts(inspected)
        root = facts.get("pid") or self._main_pid(ask("unit", ["systemctl", "show", "--property=MainPID", unit]))
        journal = ask(
            "journal",
            ["journalctl", "--unit", unit, "--boot", "--no-pager", "--quiet", "-o", "short-iso", f"-n{JOURNAL_LINES}"],
        )
        kernel = ask("kernel", ["journalctl", "--dmesg", "--no-pager", "--quiet", "-o", "short-iso", "--since=-1h"])
        smi = self._run(["nvidia-smi", "-q"], 15.0)
        if smi.fault is not None and smi.status is None and "did not end" in smi.fault:
            unanswered["nvidia_smi"] = smi.fault
        alive()
        seconds = self._clock() - began
        after = processes.read_table(self._proc)
        pids = processes.family(after, int(root)) if isinstance(root, int) and root > 1 else []
        described = processes.describe(self._proc, pids, table, after, seconds)
        parts: dict[str, Any] = {
            "processes": redact_all(described, known),
            "container": facts,
            "journal": clip(journal, "journal", known),
            "kernel": clip("\n".join(filter(_KERNEL.search, kernel.splitlines())), "kernel", known),
            "nvidia_smi": clip(smi.output, "nvidia_smi", known) if smi.status == 0 else [],
            "python_stacks": clip(self._python_stacks(described, alive), "python_stacks", known),
            "metrics": clip(metrics_lines(metrics or ""), "metrics", known),
        }
        if metrics is None:
            unanswered["metrics"] = "/metrics did not answer"
        parts["unanswered"] = unanswered
        return parts

    def _python_stacks(self, described: Sequence[Mapping[str, Any]], alive: Callable[[], None]) -> str:
        """Where the Python code of each process is, by py-spy where the host has it."""
        texts = []
        pythons = [item for item in described if "ython" in str(item.get("command")) or "VLLM" in str(item.get("name"))]
        for item in pythons[:DUMPS]:
            alive()
            # Without stopping it: the process may be in a state in which that hangs.
            answer = self._run(["py-spy", "dump", "--nonblocking", "--pid", str(item["pid"])], DUMP_S)
            if answer.status is None and "cannot be run" in (answer.fault or ""):
                return ""
            texts.append(answer.output)
        return "\n".join(texts)

    @staticmethod
    def _main_pid(text: str) -> int | None:
        found = re.search(r"^MainPID=(\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else None
