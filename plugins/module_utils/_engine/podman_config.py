# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What in Podman's configuration keeps every Podman waiting, "--version" too. Private to socle.inference."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import irregular

PLACES = ("usr/share/containers", "etc/containers")
"""Where containers.conf and registries.conf lie, and folders of drop-ins beside them (containers.conf(5))."""
NAMES = ("containers.conf", "registries.conf")


def fault(root: Path = Path("/")) -> str | None:
    """The first file that is none, as "/etc/containers/containers.conf is a pipe, not a file"; None where all are."""
    for place in PLACES:
        for name in NAMES:
            main = root / place / name
            for path in (main, *sorted(main.with_name(f"{name}.d").glob("*.conf"))):
                found = irregular(path)
                if found:
                    return f"/{path.relative_to(root)} {found.partition(' ')[2]}"
    return None
