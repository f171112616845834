# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table that status prints. Pure; private to socle.inference."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._records.state import live_drift

COLUMNS = (
    ("host", "HOST"),
    ("class", "CLASS"),
    ("instance", "INSTANCE"),
    ("model", "MODEL"),
    ("engine", "ENGINE"),
    ("state", "STATE"),
    ("accepted_at", "ACCEPTED"),
    ("ttft_p50_ms", "TTFT ms"),
    ("decode_p50_tok_per_s", "TOK/S"),
    ("drift", "DRIFT"),
    ("incident_at", "INCIDENT"),
)
WHERE_ANY = ("incident_at",)
"""Columns that are left out where no row has anything in them."""
NUMBERS = ("ttft_p50_ms", "decode_p50_tok_per_s")
KEEP = ("state", "accepted_at", "incident_at", *NUMBERS)
WIDTH = 120
MIN_COLUMN = 6

NOT_SHOWN = ("Cc", "Cs", "Cn", "Cf", "Zl", "Zp")

UNIT_STATES = {"activating": "starting", "failed": "failed", "inactive": "stopped", "deactivating": "stopping"}
DRIFT_WORDS = {"launch_fingerprint": "launch", "environment_fingerprint": "environment", "overrides": "override"}


def rows_of_host(
    host: str,
    *,
    reachable: bool = True,
    declared: Mapping[str, Any] | None = None,
    running: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    host_class: str | None = None,
) -> list[dict[str, Any]]:
    """One row per instance that is declared, on the host, or known by records; one for a host without any.

    *running* is None when the host could not say what runs.
    """
    declared = declared or {}
    known = _mapping(_mapping(state).get("instances"))
    names: list[str | None] = [*sorted({*declared, *(known if running is None else running)})]
    return [
        _row(host, name, reachable, declared, running, _mapping(known.get(name)) if name else {}, host_class)
        for name in names or [None]
    ]


def status_table(rows: Sequence[Mapping[str, Any]], width: int = WIDTH) -> str:
    """The rows as one aligned text of at most *width* columns; what is missing is "-"."""
    columns = [(key, title) for key, title in COLUMNS if key not in WHERE_ANY or any(row.get(key) for row in rows)]
    cells = [[title for _key, title in columns]]
    cells += [[_text(row.get(key)) for key, _title in columns] for row in rows]
    widths = [max(text_width(line[column]) for line in cells) for column in range(len(columns))]
    flexible = [column for column, (key, _title) in enumerate(columns) if key not in KEEP]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(flexible, key=lambda column: widths[column])
        if widths[widest] <= MIN_COLUMN:
            break
        widths[widest] -= 1
    lines = []
    for line in cells:
        parts = []
        for (key, _title), text, size in zip(columns, line, widths):
            fitted = fit(text, size)
            space = " " * (size - text_width(fitted))
            parts.append(space + fitted if key in NUMBERS else fitted + space)
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def text_width(text: str) -> int:
    """The columns that *text* takes on a terminal."""
    return sum(_character_width(character) for character in text)


def fit(text: str, width: int) -> str:
    """*text*, cut to *width* columns with an ellipsis when it is longer."""
    if text_width(text) <= width:
        return text
    kept = ""
    room = width - 1
    for character in text:
        room -= _character_width(character)
        if room < 0:
            break
        kept += character
    return kept + "\u2026"


def _row(
    host: str,
    name: str | None,
    reachable: bool,
    declared: Mapping[str, Any],
    running: Mapping[str, Any] | None,
    known: Mapping[str, Any],
    host_class: str | None,
) -> dict[str, Any]:
    live = _mapping(running.get(name)) if running and name else {}
    plan = _mapping(live.get("plan"))
    environment = _mapping(known.get("environment"))
    wanted = _mapping(declared.get(name)) if name else {}
    model = _mapping(plan.get("model")).get("name") or environment.get("model") or wanted.get("model")
    version = plan.get("vllm_version") or environment.get("vllm_version")
    drift = live_drift(known, live)
    benchmark = _mapping(known.get("benchmark"))
    return {
        "host": host,
        "class": plan.get("host_class") or environment.get("host_class") or host_class,
        "instance": name,
        "model": model,
        "engine": f"vllm {version}" if version else None,
        "state": _state(name, reachable, declared, running, live, known),
        "accepted_at": _minute(known.get("accepted_at")),
        "ttft_p50_ms": figure(benchmark, "ttft_p50_ms", "B1"),
        "decode_p50_tok_per_s": figure(benchmark, "decode_p50_tok_per_s", "B2"),
        "drift": ", ".join(DRIFT_WORDS.get(str(item.get("item")), str(item.get("item"))) for item in drift) or None,
        "incident_at": _minute(_mapping(known.get("incident")).get("at")),
    }


def _minute(moment: Any) -> str | None:
    """The time of a record, to the minute."""
    return f"{moment[:16]}Z" if isinstance(moment, str) and moment else None


def _state(
    name: str | None,
    reachable: bool,
    declared: Mapping[str, Any],
    running: Mapping[str, Any] | None,
    live: Mapping[str, Any],
    known: Mapping[str, Any],
) -> str | None:
    if not reachable:
        return "unreachable"
    if running is None:
        return "unknown"
    if name is None:
        return None
    if name not in running:
        return "absent"
    if name not in declared:
        return "unmanaged"
    unit = live.get("unit_active")
    if live.get("unit_sub") == "auto-restart":
        return "restarting"
    if unit != "active":
        # systemd forgets a failure at the next stop; the generation remembers it.
        return "failed" if live.get("status") == "failed" else UNIT_STATES.get(str(unit), "unknown")
    if any(item["item"] == "running" for item in live_drift(known, live)) or not known.get("accepted"):
        return "unaccepted"
    return "degraded" if known.get("verdict") == "degraded" else "accepted"


def figure(benchmark: Mapping[str, Any], key: str, preferred: str) -> float | None:
    """The value of *key* in the workload *preferred*, or in the first other one that has it."""
    for workload in (preferred, *sorted(benchmark)):
        number = _mapping(benchmark.get(workload)).get(key)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            return float(number)
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}" if abs(value) < 1e6 else f"{value:.2e}"
    return "".join("\ufffd" if unicodedata.category(each) in NOT_SHOWN else each for each in str(value))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
