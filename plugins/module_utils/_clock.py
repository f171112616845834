# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The time of day as results and records write it. Private to socle.inference."""

from __future__ import annotations

import datetime


def utc_now() -> str:
    """Now in UTC, to the second: 2026-11-30T09:28:44Z."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
