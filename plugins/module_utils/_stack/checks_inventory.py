# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of what the inventory says of a host. Private to socle.inference."""

from __future__ import annotations

from ansible_collections.socle.inference.plugins.module_utils._stack.check import (
    BEFORE,
    WARNING,
    Check,
    Evidence,
    Tree,
)


def unknown_variables(_facts: Tree, _stack: Tree, intent: Tree) -> Evidence:
    names = [
        f"{one['name']} (did you mean {one['nearest']}?)" if one.get("nearest") else str(one["name"])
        for one in intent.get("unknown_variables") or []
    ]
    return {"variables": names} if names else None


CHECKS = (
    Check(
        "SOC-H96",
        "Variables that no role has",
        WARNING,
        (BEFORE,),
        "Variables of the host that begin with the name of a role and are in no argument specification.",
        "The inventory sets {variables}, which no role of socle reads.",
        "Correct the name, or remove it; what was meant has its default until then.",
        unknown_variables,
        needs_gpu=False,
    ),
)
"""Checks of the inventory, by id."""
