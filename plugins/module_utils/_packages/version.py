# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of versions. Private to socle.inference."""

from __future__ import annotations

import re


def version_key(version: str) -> tuple[int, ...]:
    """Sorts versions of drivers, kernels and tools: "580.95.05" before "580.126.09"; what is no number ends it."""
    key = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        key.append(int(digits.group()))
    return tuple(key)
