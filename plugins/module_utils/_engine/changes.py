# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch changes of the one before it, for a module's result and its diff. Private to socle.inference."""

from __future__ import annotations

from typing import Any


def argv_changes(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, list[str]]:
    """Words of the command line that come or go; a flag is kept together with its value."""

    def flags(plan: dict[str, Any]) -> list[str]:
        grouped: list[str] = []
        for word in plan.get("argv") or []:
            if grouped and not word.startswith("--") and grouped[-1].startswith("--") and " " not in grouped[-1]:
                grouped[-1] += f" {word}"
            else:
                grouped.append(str(word))
        return grouped

    old, new = flags(before or {}), flags(after)
    return {"added": [word for word in new if word not in old], "removed": [word for word in old if word not in new]}


def unit_diff(result: dict[str, Any], before: str, after: str) -> list[dict[str, str]]:
    """For a module's diff: the unit's text, and the command line flag by flag."""
    unit = str(result["unit"])
    diff = [{"before_header": unit, "after_header": unit, "before": before, "after": after}] if before != after else []
    changes = result.get("argv_changes") or {}
    if changes.get("added") or changes.get("removed"):
        flags = {key: "".join(f"{word}\n" for word in changes.get(key) or []) for key in ("removed", "added")}
        diff.append(
            {
                "before_header": "engine arguments",
                "after_header": "engine arguments",
                "before": flags["removed"],
                "after": flags["added"],
            }
        )
    if result.get("action") != "none":
        diff.append({"prepared": f"{result['action']}, generation {result.get('generation') or '(once sealed)'}\n"})
    return diff
