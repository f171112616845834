# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long ago something may be, as people write it. Private to socle.inference."""

from __future__ import annotations

import re

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
AGE = re.compile(r"(\d{1,6})([mhdw])")


def parse_age(option: str, text: str) -> float:
    """The seconds that *text*, such as 30d, means; raises StoreError for what is no age."""
    match = AGE.fullmatch(text.strip())
    if not match:
        raise StoreError(f"{option} must be a number with m, h, d or w, such as 30d, found {text[:40]!r}")
    return int(match[1]) * UNITS_S[match[2]]


def is_full_due(full: bool, max_age_s: float | None, checked_s: float | None, now_s: float) -> bool:
    """Whether every file is to be hashed: it was asked for, or was last done longer ago than *max_age_s*, or never.

    *checked_s* and *now_s* count from the epoch.
    """
    if full or max_age_s is None:
        return full
    return checked_s is None or now_s - checked_s > max_age_s
