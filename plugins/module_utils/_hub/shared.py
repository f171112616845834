# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The name of a store that several hosts may have, to be known for the same by. Private to socle.inference.

Two names of an inventory may be one machine, whose kernel and folders tell that. What a host calls a network file
system proves nothing: two names of a server may be one, and one tag of virtiofs may be two. So the first host that
looks writes a random name into the store, and the others find it there.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import existing
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import OWNER_BYTES, read_state
from ansible_collections.socle.inference.plugins.module_utils._hub.store import make_folder

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another one on each machine, and after each start of it (random(4)); containers have that of their machine."""
STORE_NAME = re.compile(r"[0-9a-f]{32}")


def name_store(root: Path, write: bool) -> str | None:
    """The name of the store at *root*; None where it has none yet, and must not get one or does not take one."""
    place = root / ".store" / "name"
    known = _read(place)
    if known or not write:
        return known
    staged = place.with_name(f".name.{secrets.token_hex(6)}")
    try:
        make_folder(place.parent)
        with staged.open("x", encoding="ascii") as handle:
            handle.write(secrets.token_hex(16))
            handle.flush()
            os.fchmod(handle.fileno(), 0o644)
            # Else a power failure leaves a name that is none, which no host replaces.
            os.fsync(handle.fileno())
        # Unlike a rename, it does not replace what another host wrote meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(staged, place)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            staged.unlink()
    return _read(place)


def name_local_store(root: Path) -> str | None:
    """The name of a store on a disk of this machine: the same for all names of the machine in an inventory."""
    there = existing(root)
    try:
        boot, found = BOOT_ID.read_text(encoding="ascii").strip(), there.stat()
    except OSError:
        return None
    # Below what exists, names alone tell: links come later, if at all.
    return f"{boot} {found.st_dev}:{found.st_ino} {root.relative_to(there).as_posix()}"


def _read(place: Path) -> str | None:
    try:
        found = read_state(place, OWNER_BYTES)
    except (OSError, UnicodeDecodeError):
        return None
    return found if STORE_NAME.fullmatch(found) else None
