# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words and columns that the tables of models share."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import format_bytes

SHOWN = 3
UNITS_S = {"d": 86400.0, "h": 3600.0, "min": 60.0}


def trouble_of(found: Mapping[str, Any]) -> str:
    return "unreachable" if found.get("unreachable") else str(found.get("msg") or "not looked at")


def revision_of(revision: Mapping[str, Any]) -> str:
    """The branches and tags that mean it, or the one that it was asked for by."""
    names = revision.get("names") or [revision.get("requested") or "-"]
    # A commit stands in a column of its own.
    return ", ".join("by commit" if name == revision["commit"] else str(name) for name in names)


def commit_of(revision: Mapping[str, Any]) -> str:
    """The short commit; where the hub did not say one, the short content."""
    return str(revision["commit"])[:12] if revision["commit"] else f"content {revision['id']}"


def size_of(count: float | None) -> str:
    return "-" if count is None else format_bytes(count)


def age_of(moment: str | None, now_s: float) -> str:
    """How long ago *moment* (UTC, such as 2026-11-30T09:28:44Z) was, in its largest unit."""
    if not moment:
        return "never"
    age_s = max(0.0, now_s - calendar.timegm(time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ")))
    for unit, unit_s in UNITS_S.items():
        if age_s >= unit_s:
            return f"{int(age_s / unit_s)} {unit} ago"
    return f"{int(age_s)} s ago"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def some_of(paths: Sequence[str]) -> str:
    return ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")


def results_of(hostvars: Mapping[str, Any], host: str, name: str) -> list[Mapping[str, Any]]:
    registered = hostvars[host].get(name) or {}
    return list(registered.get("results", ()))
