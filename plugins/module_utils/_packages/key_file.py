# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host's file is the signing key that a package source needs. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._packages.source import KEY_BYTES, is_key


def holds_key(path: Path) -> bool:
    """Whether there is an OpenPGP public key, by its beginning; an empty file, a login page or a folder is none."""
    try:
        # Opening a pipe waits for a writer.
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return is_key(stream.read(KEY_BYTES))
    except OSError:
        return False
