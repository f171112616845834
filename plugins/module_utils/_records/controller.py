# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the controller keeps records, and which version of socle writes them. Private to socle.inference."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

STATE_FOLDER = ".socle"

COLLECTION_ROOT = Path(__file__).parents[3]


def records_root(inventory_dir: Any) -> Path | None:
    """The folder of records for a host whose variable inventory_dir is given; None for a host from no file."""
    # Ansible gives a host from "-i host," the text "None".
    if not isinstance(inventory_dir, str) or not Path(inventory_dir).is_absolute():
        return None
    path = Path(inventory_dir)
    if not path.is_dir():
        path = path.parent
    return path / STATE_FOLDER / "records" if path.is_dir() else None


def tool_version(root: Path = COLLECTION_ROOT) -> str:
    """The version of this collection: from the manifest of one that ansible-galaxy installed, from galaxy.yml in a
    checkout, from the metadata of a wheel."""
    try:
        version = json.loads((root / "MANIFEST.json").read_text("utf-8"))["collection_info"]["version"]
        return str(version)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        match = re.search(r"(?m)^version:\s*[\"']?([^\s\"']+)", (root / "galaxy.yml").read_text("utf-8"))
    except OSError:
        match = None
    if match:
        return match.group(1)
    try:
        return metadata.version("socle")
    except metadata.PackageNotFoundError:
        return "unknown"
