# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a flag schema is written as a file: one line for each flag and key, so that versions can be compared by eye.

Private to socle.inference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_LEVELS = {"classes": 3, "registries": 2}
"""Levels of maps of a part that are spread over lines, where it is not one."""


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _spread(value: Any, levels: int, indent: int) -> str:
    if levels == 0 or not value or not isinstance(value, (dict, list)):
        return _line(value)
    pad = " " * (indent + 1)
    if isinstance(value, list):
        return "[\n" + ",\n".join(pad + _line(item) for item in value) + "\n" + " " * indent + "]"
    lines = [f"{pad}{_line(key)}: {_spread(value[key], levels - 1, indent + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


def render(document: Mapping[str, Any]) -> str:
    """The text of a schema's file; the same document gives the same text."""
    parts = [f" {_line(key)}: {_spread(document[key], _LEVELS.get(key, 1), 1)}" for key in sorted(document)]
    return "{\n" + ",\n".join(parts) + "\n}\n"
