# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Hugging Face hub and its mirrors, by plain HTTP. Private to socle.inference."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.parse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import (
    ModelFile,
    check_count,
    check_files,
    is_commit,
    shown_names,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Client, Explain, HttpOrigin

NAME = "huggingface"
ENDPOINT = "https://huggingface.co"
SMALL_BYTES = 16 << 20
"""Files in git itself, that have no SHA-256 in the listing; the hub wants larger ones in its large file storage."""
MAX_PAGES = 1000
NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?')


@dataclass(frozen=True)
class _Entry:
    path: Any
    size: Any
    git_id: Any
    sha256: Any
    lfs: bool


class HuggingFaceHub:
    """One hub that speaks Hugging Face's protocol, at one endpoint."""

    name = NAME

    def __init__(self, client: Client) -> None:
        self._client = client
        self.host = client.host
        self.policy = client.policy
        self.sleep = client.sleep

    def resolve(self, repo: str, revision: str) -> Manifest:
        """See origin.Hub. Reads the small files, since the listing has only their git ids."""
        explain = self._explain(repo, revision)
        address = f"/api/models/{_quoted(repo)}/revision/{urllib.parse.quote(revision, safe='')}"
        document = self._client.get_json(address, {"blobs": "true"}, repo, explain)
        commit = document.get("sha") if isinstance(document, Mapping) else None
        siblings = document.get("siblings") if isinstance(document, Mapping) else None
        if not isinstance(commit, str) or not is_commit(commit) or not isinstance(siblings, list):
            raise HubError(
                f"{self.host} answered without sha and siblings to a request for {repo}: this endpoint is no Hugging "
                "Face hub, or its protocol changed"
            )
        if is_commit(revision) and commit != revision:
            raise HubError(f"{self.host} answered with commit {commit} of {repo} when asked for {revision}")
        entries = [_sibling(entry) for entry in siblings]
        # Longer than any listing that is taken is one that the hub cut off, at 50 000 files.
        check_count(len(entries))
        if any(entry.size is None for entry in entries):
            entries = self._tree(repo, commit, explain)
        if not entries:
            raise HubError(f"{repo} at {revision} has no files on {self.host}", revision_gone=True)
        origin = "given" if is_commit(revision) else "hub"
        return Manifest(NAME, repo, revision, commit, origin, self._files(repo, commit, entries), utc_now())

    def origin(self, manifest: Manifest) -> HttpOrigin:
        """See origin.Hub."""
        revision = manifest.commit or manifest.requested
        return HttpOrigin(
            self._client,
            lambda file: _file_address(manifest.repo, revision, file.path),
            ("/api/", f"/{_quoted(manifest.repo)}/"),
        )

    def revision_names(self, repo: str) -> dict[str, list[str]]:
        """The names of branches and tags; empty where the hub does not say."""
        names: dict[str, list[str]] = {"branches": [], "tags": []}
        try:
            document = self._client.get_json(f"/api/models/{_quoted(repo)}/refs", {}, repo)
            for kind in names:
                names[kind] = shown_names(item["name"] for item in document.get(kind) or [])
        except (HubError, KeyError, TypeError, AttributeError):
            # Only decorates an error message.
            return names
        return names

    def _explain(self, repo: str, revision: str) -> Explain:
        def explain(error: urllib.error.HTTPError) -> HubError | None:
            code = error.headers.get("X-Error-Code") if error.headers else None
            if code == "RevisionNotFound":
                names = self.revision_names(repo)
                listed = "; ".join(f"{kind}: {', '.join(found) or 'none'}" for kind, found in names.items())
                return HubError(
                    f"{self.host} has no revision {revision!r} of {repo} ({listed}; or a full commit hash)",
                    revision_gone=True,
                    **names,
                )
            if code == "GatedRepo":
                return HubError(
                    f"{self.host} gives {repo} only to those who accepted its terms: accept them on its page, and "
                    "set the option token to one of that account",
                    status=error.code,
                )
            if code == "RepoNotFound":
                # The hub hides private models from everybody else as if they did not exist.
                hint = (
                    " and the token, which may not be valid for it"
                    if self._client.has_token
                    else "; a private model needs a token (the option token)"
                )
                return HubError(
                    f"{self.host} has no model {repo}: check the spelling (organisation/name){hint}",
                    status=error.code,
                    revision_gone=True,
                )
            return None

        return explain

    def _tree(self, repo: str, commit: str, explain: Explain) -> list[_Entry]:
        """The files page by page, for a hub that gives no sizes with a revision."""
        path = f"/api/models/{_quoted(repo)}/tree/{commit}"
        params = {"recursive": "true"}
        entries: list[_Entry] = []
        for _page in range(MAX_PAGES):
            document, headers = self._client.get_page(path, params, repo, explain)
            if not isinstance(document, list):
                raise HubError(f"{self.host} answered no list to a request for the files of {repo}")
            entries.extend(
                _tree_entry(entry) for entry in document if isinstance(entry, Mapping) and entry.get("type") == "file"
            )
            check_count(len(entries))
            following = NEXT.search(headers.get("Link") or "")
            if not following:
                return entries
            # Of the address of the next page only its query is taken: it may name another host than a mirror.
            params = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(following[1]).query))
        raise HubError(f"{self.host} ended no listing of {repo} within {MAX_PAGES} pages; nothing was downloaded")

    def _files(self, repo: str, commit: str, entries: list[_Entry]) -> tuple[ModelFile, ...]:
        """The files with a SHA-256 each; nothing is read before every path and size is known to be possible."""
        check_files(ModelFile(entry.path, entry.size, entry.sha256 if entry.lfs else "0" * 64) for entry in entries)
        small = [entry for entry in entries if not entry.lfs]
        for entry in small:
            if entry.size > SMALL_BYTES:
                raise HubError(
                    f"{self.host} lists {entry.path} of {repo} with {entry.size} bytes and no SHA-256, so what arrives "
                    "could not be verified; nothing was downloaded"
                )
        with ThreadPoolExecutor(self.policy.connections) as pool:
            hashes = dict(
                zip(
                    (entry.path for entry in small),
                    pool.map(lambda entry: self._hash_small(repo, commit, entry), small),
                )
            )
        return check_files(
            ModelFile(entry.path, entry.size, hashes.get(entry.path, entry.sha256), entry.lfs) for entry in entries
        )

    def _hash_small(self, repo: str, commit: str, entry: _Entry) -> str:
        """SHA-256 of a file, once what arrived is what git calls by its id."""
        found = "nothing"
        for _try in range(self.policy.hash_tries):
            body = self._client.get(_file_address(repo, commit, entry.path), SMALL_BYTES, repo)
            # Git's own name for the content; no protection is built on it.
            blob = hashlib.sha1(b"blob %d\0" % len(body), usedforsecurity=False)
            blob.update(body)
            found = blob.hexdigest()
            if found == entry.git_id and len(body) == entry.size:
                return hashlib.sha256(body).hexdigest()
        raise HubError(
            f"{entry.path} from {self.host} has the wrong content: expected git id {str(entry.git_id)[:12]}, got "
            f"{found[:12]} in {self.policy.hash_tries} tries; nothing was published",
            file=str(entry.path),
        )


def _quoted(repo: str) -> str:
    return urllib.parse.quote(repo)


def _file_address(repo: str, revision: str, path: str) -> str:
    return f"/{_quoted(repo)}/resolve/{urllib.parse.quote(revision, safe='')}/{urllib.parse.quote(path)}"


def _sibling(entry: Any) -> _Entry:
    """One file as it is listed with a revision; a size of None where it was not told."""
    if not isinstance(entry, Mapping):
        return _Entry(None, 0, None, None, False)
    lfs = entry.get("lfs")
    if isinstance(lfs, Mapping):
        return _Entry(entry.get("rfilename"), lfs.get("size", entry.get("size")), None, lfs.get("sha256"), True)
    return _Entry(entry.get("rfilename"), entry.get("size"), entry.get("blobId"), None, False)


def _tree_entry(entry: Mapping[str, Any]) -> _Entry:
    lfs = entry.get("lfs")
    if isinstance(lfs, Mapping):
        return _Entry(entry.get("path"), lfs.get("size", entry.get("size")), None, lfs.get("oid"), True)
    return _Entry(entry.get("path"), entry.get("size", -1), entry.get("oid"), None, False)
