# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the small files in which a store keeps what it knows. Private to socle.inference."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular

MANIFEST_BYTES = JSON_MAX_COST // 2
"""A larger one is refused in any case, since its text counts twice (json_stream.json_cost())."""
LEDGER_BYTES = 64 << 20
OWNER_BYTES = 64 << 10


def read_state(place: Path, max_bytes: int) -> str:
    """The text of the regular file *place*. Raises OSError, also for one that is larger or of another kind, and
    UnicodeDecodeError; never waits for somebody who writes into a pipe."""
    with os.fdopen(open_regular(place), "rb") as handle:
        found = handle.read(max_bytes + 1)
    if len(found) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 10} KiB", str(place))
    return found.decode("utf-8")
