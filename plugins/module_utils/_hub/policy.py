# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How patient a download is, and how many connections it may take. Private to socle.inference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """How patient the engine is, and how many connections it may take."""

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
    hash_tries: int = 2
    """Downloads with a wrong hash that one origin may cause for one file."""
    renewals: int = 3
    """Fresh storage addresses in a row that are asked for when storage refuses."""
    lan_patience_s: float = 5.0
    """How long a neighbour may fail before the next origin is used."""
    lan_refused_s: float = 1.0
    """The same where its host answers and says that nobody listens, which a relay that is only slow never says."""
    not_yet_s: float = 600.0
    """How long a neighbour that answers may have no more of a file, while nothing comes for itself either."""
    connections: int = 4
    """Files at once."""
    lines: int = 8
    """Connections into one file, where more of them bring more."""
    lines_total: int = 16
    """Connections into all files together."""
    line_bytes_per_s: int = 50 << 20
    """A connection that brings this much is not what limits the download."""
    rise: float = 1.1
    """More connections must bring this much more in total."""
    measure_s: float = 1.0
    """One measurement of the total."""
    hold_s: float = 30.0
    """Pause after a trial of more connections that did not pay."""
    split_bytes: int = 8 << 20
    """A connection gets at least this much of a file."""
