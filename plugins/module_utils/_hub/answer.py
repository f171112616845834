# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run on a snapshot tells whoever started it. Private to socle.inference."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.adopt import Adopted
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import utc
from ansible_collections.socle.inference.plugins.module_utils._hub.download import Meter
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.store import Inspection, RepoStore

SHOWN_FILES = 100
"""Names of files in an answer at most."""


@dataclass
class Done:
    """What a run did."""

    meter: Meter
    linked: dict[str, os.stat_result] = field(default_factory=dict)
    adopted: Adopted = field(default_factory=Adopted)
    reused_part: int = 0
    repaired: bool = False
    owner_changed: int = 0


@dataclass(frozen=True)
class Outcome:
    """A run as it ended."""

    manifest: Manifest
    inspection: Inspection
    store: RepoStore
    link: Path
    requested: str
    previous: str | None
    """The snapshot that the link named before."""
    changed: bool
    applied: bool
    """Something was changed, and not only planned."""
    level: str
    """How closely what was there already was looked at, if not all of it was hashed."""
    verify_s: float
    checked_s: float | None
    """When all of the snapshot had been hashed, in seconds since the epoch."""
    seconds: float
    warnings: Sequence[str]
    done: Done
    strangers: int = 0
    """Files that a run would give to another owner."""


def build_answer(outcome: Outcome) -> dict[str, Any]:
    """What the module returns, but for the plan."""
    manifest, inspection, done = outcome.manifest, outcome.inspection, outcome.done
    sizes = {file.path: file.size for file in manifest.files}
    received, received_by = done.meter.received, done.meter.received_by
    adopted = [*done.adopted.linked, *done.adopted.copied]
    fetched = len(inspection.wanted) - len(done.linked) - len(adopted)
    before = outcome.store.read_manifest(outcome.previous) if outcome.previous else None
    previous = _state(outcome.store, outcome.previous, before) if outcome.previous else None
    after = _state(outcome.store, manifest.id, manifest)
    hashed_bytes, seconds = inspection.hashed_bytes, outcome.seconds
    return {
        "changed": outcome.changed,
        **after,
        "link": str(outcome.link),
        "repo": manifest.repo,
        "requested": outcome.requested,
        "previous": previous,
        "bytes": {
            "total": manifest.total_bytes,
            "wan": received_by.get("wan", 0),
            "lan": received_by.get("lan", 0),
            "disk": received_by.get("disk", 0),
            "reused_link": sum(sizes[path] for path in done.linked),
            "reused_part": done.reused_part,
            "adopted": sum(sizes[path] for path in adopted),
        },
        "files": {
            "total": len(manifest.files),
            "fetched": fetched if outcome.applied else 0,
            "verified": len(inspection.intact),
            "repaired": len(inspection.wanted) if outcome.applied and done.repaired else 0,
            "removed": len(inspection.extra) if outcome.applied else 0,
            "owner_changed": done.owner_changed or outcome.strangers,
        },
        "moved_aside": {
            "files": [shown_path(path) for path in inspection.extra[:SHOWN_FILES]] if outcome.applied else [],
            "folder": str(outcome.store.rejected),
        },
        "verify": {
            "level": "full" if inspection.full else outcome.level,
            "seconds": round(outcome.verify_s, 4),
            "hashed_files": inspection.hashed_files,
            "mb_s": round(hashed_bytes / 1e6 / outcome.verify_s, 1) if hashed_bytes else None,
            "checked": utc(outcome.checked_s),
        },
        "seconds": round(seconds, 3),
        "mb_s": round(received / 1e6 / seconds, 1) if received and seconds else None,
        "sources": sorted(done.meter.sources),
        "warnings": [*outcome.warnings, *done.meter.notes],
        "diff": {
            "before": {name: previous[name] if previous else None for name in ("commit", "content_id")},
            "after": {name: after[name] for name in ("commit", "content_id")},
        },
    }


def shown_path(path: str) -> str:
    """A path as a text; a name of a foreign file may be no UTF-8, and hold line breaks."""
    return path.encode("utf-8", "backslashreplace").decode().translate(dict.fromkeys((*range(32), 127), "?"))


def _state(store: RepoStore, snapshot: str, manifest: Manifest | None) -> dict[str, Any]:
    return {
        "path": str(store.revision(snapshot)),
        "commit": manifest.commit if manifest else None,
        "content_id": manifest.content_id if manifest else None,
    }
