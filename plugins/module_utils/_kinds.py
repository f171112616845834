# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a value is, in words, where it must not be shown. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kind_of(value: Any) -> str:
    """ "a string", "a number", "a list" and so on."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, (int, float)):
        return "a number"
    return "a dictionary" if isinstance(value, Mapping) else "a list"
