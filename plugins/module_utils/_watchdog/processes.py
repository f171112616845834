# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel knows of an engine's processes. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MAX_PROCESSES = 48
MAX_THREADS = 24
MAX_STACK_LINES = 24
CLOCK_TICKS = 100
"""Per second, in /proc; the same on every Linux that an engine runs on."""


def read_table(proc: Path) -> dict[int, dict[str, Any]]:
    """{pid: name, state, parent, cpu_s, threads} of all processes."""
    table: dict[int, dict[str, Any]] = {}
    try:
        entries = [entry for entry in proc.iterdir() if entry.name.isdigit()]
    except OSError:
        return table
    for entry in entries:
        text = _text(entry / "stat")
        name, closed, rest = text.rpartition(")")
        fields = rest.split()
        if not closed or len(fields) < 18:
            continue
        table[int(entry.name)] = {
            "name": name.partition("(")[2],
            "state": fields[0],
            "parent": int(fields[1]),
            "cpu_s": (int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
            "threads": int(fields[17]),
        }
    return table


def family(table: dict[int, dict[str, Any]], root: int) -> list[int]:
    """*root* and all that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for pid, entry in sorted(table.items()):
        children.setdefault(entry["parent"], []).append(pid)
    found: list[int] = []
    todo = [root] if root in table else []
    while todo and len(found) < MAX_PROCESSES:
        pid = todo.pop(0)
        found.append(pid)
        todo += children.get(pid, [])
    return found


def describe(
    proc: Path, pids: list[int], before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]], seconds: float
) -> list[dict[str, Any]]:
    """State, place in the kernel and use of the CPU over *seconds* for each process."""
    described = []
    for pid in pids:
        now, then = after.get(pid), before.get(pid)
        if now is None:
            described.append({"pid": pid, "state": "ended"})
            continue
        used = now["cpu_s"] - then["cpu_s"] if then else None
        folder = proc / str(pid)
        described.append(
            {
                "pid": pid,
                "parent": now["parent"],
                "name": now["name"],
                "command": _text(folder / "cmdline").replace("\0", " ").strip()[:400],
                "state": now["state"],
                "threads": now["threads"],
                "cpu_cores_used": round(used / seconds, 2) if used is not None and seconds > 0 else None,
                "wait_channel": _text(folder / "wchan").strip() or None,
                "kernel_stacks": _stacks(folder),
            }
        )
    return described


def _stacks(folder: Path) -> list[dict[str, Any]]:
    """Each distinct kernel stack of a process, and how many of its threads are there; empty where it is not shown."""
    found: dict[tuple[str, ...], int] = {}
    try:
        threads = sorted((folder / "task").iterdir(), key=lambda entry: int(entry.name))[:MAX_THREADS]
    except (OSError, ValueError):
        return []
    for thread in threads:
        lines = tuple(line.strip() for line in _text(thread / "stack").splitlines()[:MAX_STACK_LINES])
        if lines:
            found[lines] = found.get(lines, 0) + 1
    return [{"threads": count, "frames": list(lines)} for lines, count in found.items()]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            return handle.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""
