# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub says about a revision: parsed, refused where untrustworthy. Pure. Private to socle.inference."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError

LIST_CAP = 3000
"""The hub silently ends a listing here."""

MAX_FILES = 30_000
"""The largest models have some hundreds; more would take more memory than a download may."""
KEPT = ("Type", "Path", "Name", "Size", "Sha256", "IsLFS", "Revision")
"""What is used of an entry."""

MAX_BYTES = 1 << 53
"""8 PiB, of all files together: no model has that, and no sum of sizes leaves what a float counts exactly."""
MAX_COMPONENT_BYTES = 255
MAX_PATH_BYTES = 1024
EMPTY_SHA256 = hashlib.sha256().hexdigest()
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class ModelFile:
    """One file of a snapshot."""

    path: str
    size: int
    sha256: str
    lfs: bool = False


@dataclass(frozen=True)
class Page:
    """One answer to a listing request; no entries at all means that the hub does not know the revision."""

    entries: tuple[Mapping[str, Any], ...]
    short_id: str | None


def is_commit(revision: str) -> bool:
    """Whether *revision* is a full commit hash."""
    return COMMIT.fullmatch(revision) is not None


def parse_page(document: Any) -> Page:
    """The hub's answer to repo/files as entries; raises HubError for something else."""
    data = document.get("Data") if isinstance(document, Mapping) else None
    if not isinstance(data, Mapping) or "Files" not in data:
        raise HubError(
            "the hub's answer has no Data.Files: this endpoint is no ModelScope hub, or its protocol changed"
        )
    files = data["Files"] or []
    if not isinstance(files, list) or not all(isinstance(entry, Mapping) for entry in files):
        raise HubError("the hub's Data.Files is not a list of files: its protocol changed")
    committer = data.get("LatestCommitter")
    short_id = committer.get("ShortId") if isinstance(committer, Mapping) else None
    entries = tuple({name: entry[name] for name in KEPT if name in entry} for entry in files)
    return Page(entries, short_id if isinstance(short_id, str) and short_id else None)


def entry_path(entry: Mapping[str, Any]) -> Any:
    """The path of an entry, as the hub wrote it."""
    return entry.get("Path") or entry.get("Name")


def has_hash(entry: Mapping[str, Any]) -> bool:
    """Whether an entry says what its content is."""
    sha256 = entry.get("Sha256")
    return isinstance(sha256, str) and SHA256.fullmatch(sha256.lower()) is not None


def path_fault(path: Any) -> str | None:
    """Why *path* must not be used under a folder of ours, or None."""
    if not isinstance(path, str) or not path:
        return "is empty"
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if path.startswith("/"):
        return "is absolute"
    if "\\" in path:
        return "holds a backslash"
    if any(unicodedata.category(character) == "Cc" for character in path):
        return "holds a control character"
    parts = path.split("/")
    if ".." in parts or "." in parts or "" in parts:
        return "leaves its folder or is not in its shortest form"
    if any(len(part.encode("utf-8")) > MAX_COMPONENT_BYTES for part in parts):
        return f"has a component longer than {MAX_COMPONENT_BYTES} bytes"
    return None


def check_files(files: Iterable[ModelFile]) -> tuple[ModelFile, ...]:
    """The files sorted by path; raises HubError for any that a snapshot cannot hold."""
    found = sorted(files, key=lambda file: str(file.path))
    check_count(len(found))
    seen: dict[str, str] = {}
    folders: set[str] = set()
    total = 0
    for file in found:
        fault = path_fault(file.path)
        if fault:
            raise _refused(file.path, fault)
        if not isinstance(file.size, int) or isinstance(file.size, bool) or file.size < 0:
            raise _refused(file.path, f"has the impossible size {file.size!r}"[:60])
        total += file.size
        if total > MAX_BYTES:
            raise _refused(file.path, f"brings the model to more than {MAX_BYTES >> 50} PiB, as no model has")
        if not isinstance(file.sha256, str) or not SHA256.fullmatch(file.sha256):
            raise _refused(file.path, "has no SHA-256, so what arrives could not be verified")
        folded = unicodedata.normalize("NFC", file.path).casefold()
        if folded in seen:
            raise _refused(file.path, f"collides with {seen[folded]!r}")
        seen[folded] = file.path
        parts = folded.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for folder in sorted(folders & set(seen)):
        raise _refused(seen[folder], "is a file and a folder at once")
    return tuple(found)


def shown_names(names: Iterable[Any]) -> list[str]:
    """The first of a hub's branches or tags, as a message may show them: another text could move the cursor."""
    return [name[:100] for name in names if isinstance(name, str) and name.isprintable()][:50]


def check_count(count: int) -> None:
    """Raise HubError for more files and folders than a model has."""
    if count > MAX_FILES:
        raise HubError(f"the listing is refused: it has more than {MAX_FILES} files, as no model does")


def parse_files(entries: Iterable[Mapping[str, Any]]) -> tuple[ModelFile, ...]:
    """The files among *entries*, validated."""
    files = []
    for entry in entries:
        if entry.get("Type") == "tree":
            continue
        sha256 = entry.get("Sha256")
        files.append(
            ModelFile(
                path=entry_path(entry),
                size=entry.get("Size", -1),
                sha256=sha256.lower() if isinstance(sha256, str) else "",
                lfs=bool(entry.get("IsLFS")),
            )
        )
    return check_files(files)


def head_commit(entries: Iterable[Mapping[str, Any]], short_id: str | None) -> str | None:
    """The full hash of the head commit, found among the files' own commits by its first digits.

    None where the head changed no file that still exists: then only the content identifies the snapshot.
    """
    if not short_id or len(short_id) < 7:
        return None
    revisions = {str(entry.get("Revision", "")).lower() for entry in entries}
    matching = [revision for revision in revisions if is_commit(revision) and revision.startswith(short_id.lower())]
    return matching[0] if len(matching) == 1 else None


def _refused(path: Any, fault: str) -> HubError:
    shown = str(path)[:1024].encode("utf-8", "backslashreplace").decode("utf-8")
    return HubError(f"the listing is refused: path {str(path)[:120]!r} {fault}; nothing was downloaded", path=shown)
