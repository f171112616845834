# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The immutable description of a snapshot. Pure. Private to socle.inference."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST, json_cost
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile, check_files, is_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.names import REPO, REVISION, SOURCES

SCHEMA = 1
ID_DIGITS = 12
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
"""As _clock.utc_now() writes it."""
WORD = re.compile(r"[a-z][a-z-]{0,31}")


def content_id(files: Iterable[ModelFile]) -> str:
    """SHA-256 over the sorted lines "sha256 size path": equal for equal bytes, wherever they come from."""
    lines = sorted(f"{file.sha256} {file.size} {file.path}\n".encode() for file in files)
    return "sha256:" + hashlib.sha256(b"".join(lines)).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """Which files, with which content, make up a revision of a model."""

    hub: str
    repo: str
    requested: str
    commit: str | None
    commit_from: str
    files: tuple[ModelFile, ...]
    created: str

    @property
    def content_id(self) -> str:
        return content_id(self.files)

    @property
    def id(self) -> str:
        """Names the snapshot in the store."""
        return (self.commit or self.content_id.split(":", 1)[1])[:ID_DIGITS]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def dumps(self) -> str:
        """The text of the manifest's file."""
        document = {
            "schema": SCHEMA,
            "source": {
                "hub": self.hub,
                "repo": self.repo,
                "requested": self.requested,
                "commit": self.commit,
                "commit_from": self.commit_from,
            },
            "content_id": self.content_id,
            "created": self.created,
            "totals": {"files": len(self.files), "bytes": self.total_bytes},
            "files": [
                {"path": file.path, "size": file.size, "sha256": file.sha256, "lfs": file.lfs} for file in self.files
            ],
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def loads(text: str) -> Manifest:
    """A manifest from its text, validated like a listing; raises StoreError."""
    if json_cost(text.encode("utf-8", "replace")) > JSON_MAX_COST:
        raise StoreError(f"a manifest is damaged: with {len(text)} characters it is larger than that of any model")
    try:
        document: Any = json.loads(text)
        if document["schema"] != SCHEMA:
            raise StoreError(f"a manifest has schema {document['schema']!r}, expected {SCHEMA}")
        source = document["source"]
        files = check_files(
            ModelFile(entry["path"], entry["size"], entry["sha256"], bool(entry["lfs"])) for entry in document["files"]
        )
        manifest = Manifest(
            hub=source["hub"],
            repo=source["repo"],
            requested=source["requested"],
            commit=source["commit"],
            commit_from=source["commit_from"],
            files=files,
            created=document["created"],
        )
        _check_names(manifest)
        if manifest.content_id != document["content_id"]:
            raise StoreError("a manifest does not match its own content id")
    except RecursionError as error:
        raise StoreError("a manifest is damaged: it is nested too deeply") from error
    except (ValueError, KeyError, TypeError, AttributeError, HubError) as error:
        raise StoreError(f"a manifest is damaged: {error}") from error
    return manifest


def _check_names(manifest: Manifest) -> None:
    """Raise StoreError for a name that no path may hold: a manifest travels on disks and in repositories."""
    if manifest.hub not in SOURCES:
        raise StoreError(f"a manifest names the hub {_shown(manifest.hub)}, expected one of {', '.join(SOURCES)}")
    if not isinstance(manifest.repo, str) or not REPO.fullmatch(manifest.repo):
        raise StoreError(f"a manifest names the repository {_shown(manifest.repo)}, expected organisation/name")
    if not isinstance(manifest.requested, str) or not REVISION.fullmatch(manifest.requested):
        raise StoreError(f"a manifest names the revision {_shown(manifest.requested)}, which is none")
    if manifest.commit is not None and not is_commit(manifest.commit):
        raise StoreError("a manifest names a commit that is no commit")
    for name, value, form in (("commit_from", manifest.commit_from, WORD), ("created", manifest.created, TIME)):
        # Both are shown, and written into locks: no text that moves a cursor, fills them or cannot be encoded.
        if not isinstance(value, str) or not form.fullmatch(value):
            expected = "a time such as 2026-11-30T09:28:44Z" if form is TIME else "a word in small letters"
            raise StoreError(f"a manifest has {name} {_shown(value)}, expected {expected}")


def _shown(value: Any) -> str:
    return ascii(value)[:120]
