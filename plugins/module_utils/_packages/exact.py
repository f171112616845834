# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules for exact packages have in common: options and outcome. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ARGUMENTS: dict[str, dict[str, Any]] = {
    "packages": {"type": "dict", "required": True},
    "hold": {"type": "bool"},
    "downgrade": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "subject": {"type": "str", "default": ""},
}
"""The argument spec of the options that fragment exact_packages documents."""


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: bool = False
    actions: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    def as_result(self, diff: bool, subject: str = "") -> dict[str, Any]:
        """For a module's result, with *diff* one line for each package, below what the packages are of."""
        result: dict[str, Any] = {"changed": self.changed, "actions": self.actions}
        if diff:
            header = f"{subject} packages" if subject else "packages"
            result["diff"] = {
                "before_header": header,
                "after_header": header,
                "before": _lines(self.before),
                "after": _lines(self.after),
            }
        return result


def _lines(states: dict[str, str]) -> str:
    return "".join(f"{name} {state}\n" for name, state in sorted(states.items()))
