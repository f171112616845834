# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads text files that others wrote, of which none may keep a run waiting. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import READ_LIMIT, read_text

LIMIT = READ_LIMIT
"""Bytes of a file that are read; a CDI spec of sixteen GPUs in MIG mode has some 200 KiB."""


def read_regular(path: Path) -> str:
    """The first `LIMIT` bytes of a file, as text; "" where there is none, or a pipe, a device or a folder."""
    return read_text(path)


def obstacle(path: Path) -> str | None:
    """Why a file that a folder lists cannot be read whole: "it is ..."; None where it can."""
    try:
        if path.is_symlink() and not path.exists():
            return "it is a link to nothing"
        if not path.is_file():
            return "it is no regular file"
        return f"it is larger than {LIMIT // 1024**2} MiB" if path.stat().st_size > LIMIT else None
    except OSError as error:
        return f"it is not accessible ({error.strerror})"
