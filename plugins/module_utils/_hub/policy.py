# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How patient a download is. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """How patient the engine is."""

    list_attempts: int = 3
    list_timeout_s: float = 15.0
    failures: int = 8
    """Failures in a row, without progress_bytes between them, that end a download."""
    progress_bytes: int = 8 << 20
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    stall_s: float = 30.0
    slow_bytes_per_s: int = 1024
    slow_window_s: float = 60.0
    hash_tries: int = 3
    connections: int = 4
