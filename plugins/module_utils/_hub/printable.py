# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes texts of what a module returns. Pure. Private to socle.inference."""

from __future__ import annotations

from typing import Any


def printable(value: Any) -> Any:
    """*value* with the bytes of names that are no UTF-8 spelled out (\\udcff), in texts, lists and mappings.

    Ansible takes no answer that holds such a name as Python writes it, though links, folders and files of others may
    be called so.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {printable(name): printable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(inner) for inner in value]
    return value
