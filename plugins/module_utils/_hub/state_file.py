# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the small files in which a store keeps what it knows. Private to socle.inference."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST

MANIFEST_BYTES = JSON_MAX_COST // 2
"""A larger one is refused in any case, since its text counts twice (json_stream.json_cost())."""
LEDGER_BYTES = 64 << 20
OWNER_BYTES = 64 << 10


def read_state(place: Path, max_bytes: int) -> str:
    """The text of the regular file *place*. Raises OSError, also for one that is larger or of another kind, and
    UnicodeDecodeError; never waits for somebody who writes into a pipe."""
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # Before fdopen(), which leaves the descriptor of a folder open.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(place))
        with os.fdopen(descriptor, "rb", closefd=False) as handle:
            found = handle.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(found) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 10} KiB", str(place))
    return found.decode("utf-8")
