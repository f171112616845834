# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ModelScope hub: two endpoints of its interface are all that a download needs. Private to socle.inference."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import (
    EMPTY_SHA256,
    LIST_CAP,
    Page,
    check_count,
    entry_path,
    has_hash,
    head_commit,
    is_commit,
    parse_files,
    parse_page,
    path_fault,
    shown_names,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import Client, HttpOrigin

NAME = "modelscope"
ENDPOINT = "https://www.modelscope.cn"
TOKEN_COOKIE = "m_session_id"


class ModelScopeHub:
    """One ModelScope hub at one endpoint."""

    name = NAME

    def __init__(self, client: Client, list_cap: int = LIST_CAP) -> None:
        self._client = client
        self._list_cap = list_cap
        self.host = client.host
        self.policy = client.policy
        self.sleep = client.sleep

    def resolve(self, repo: str, revision: str) -> Manifest:
        """See origin.Hub."""
        page = self.list_entries(repo, revision)
        if not page.entries:
            names = self.revision_names(repo)
            if revision in names["branches"] + names["tags"]:
                raise HubError(f"{repo} at {revision} has no files on {self.host}", revision_gone=True)
            listed = "; ".join(f"{kind}: {', '.join(found) or 'none'}" for kind, found in names.items())
            raise HubError(
                f"{self.host} has no revision {revision!r} of {repo} ({listed}; or a full commit hash)",
                revision_gone=True,
                **names,
            )
        if is_commit(revision):
            commit: str | None = revision
            origin = "given"
        else:
            commit = head_commit(page.entries, page.short_id)
            origin = "shortid-match" if commit else "none"
        files = parse_files(self._with_hashes(repo, commit or revision, page.entries))
        if not files:
            raise HubError(f"{repo} at {revision} has no files on {self.host}", revision_gone=True)
        return Manifest(NAME, repo, revision, commit, origin, files, utc_now())

    def origin(self, manifest: Manifest) -> HttpOrigin:
        """See origin.Hub."""
        revision = manifest.commit or manifest.requested
        return HttpOrigin(self._client, lambda file: _file_address(manifest.repo, revision, file.path), ("/api/",))

    def list_entries(self, repo: str, revision: str) -> Page:
        """Everything that *revision* holds; walks folder by folder where one listing would be cut off."""
        page = self._page(repo, revision, {"Recursive": "True"})
        if len(page.entries) < self._list_cap:
            return page
        entries: list[Mapping[str, Any]] = []
        folders: list[str] = [""]
        known = set(folders)
        while folders:
            folder = folders.pop()
            part = self._page(
                repo, revision, {"Recursive": "False", "Root": folder} if folder else {"Recursive": "False"}
            )
            if len(part.entries) >= self._list_cap:
                raise HubError(
                    f"{self.host} ends a listing at {self._list_cap} entries, and folder {folder or '/'!r} of "
                    f"{repo} has at least "
                    "as many: it cannot be listed completely; nothing was downloaded"
                )
            if part.short_id != page.short_id:
                raise HubError(f"{repo} at {revision} moved while {self.host} listed it: run this again")
            entries.extend(part.entries)
            check_count(len(entries))
            for entry in part.entries:
                path = entry_path(entry)
                if entry.get("Type") == "tree" and not path_fault(path) and path not in known:
                    known.add(path)
                    folders.append(path)
        return Page(tuple(entries), page.short_id)

    def revision_names(self, repo: str) -> dict[str, list[str]]:
        """The names of branches and tags; empty where the hub does not say."""
        names: dict[str, list[str]] = {"branches": [], "tags": []}
        try:
            document = self._client.get_json(f"/api/v1/models/{urllib.parse.quote(repo)}/revisions", {}, repo)
            revisions = document["Data"]["RevisionMap"]
            for kind in names:
                names[kind] = shown_names(item["Revision"] for item in revisions.get(kind.capitalize()) or [])
        except (HubError, KeyError, TypeError, AttributeError):
            # Only decorates an error message.
            return names
        return names

    def _with_hashes(
        self, repo: str, revision: str, entries: tuple[Mapping[str, Any], ...]
    ) -> tuple[Mapping[str, Any], ...]:
        """*entries*, with the hashes that the listing lacks asked for file by file."""
        if any(path_fault(entry_path(entry)) for entry in entries):
            return entries
        lacking = [entry for entry in entries if entry.get("Type") != "tree" and not has_hash(entry)]

        def ask(entry: Mapping[str, Any]) -> str | None:
            if entry.get("Size") == 0:
                # No range of an empty file can be asked for.
                return EMPTY_SHA256
            return self._client.linked_hash(_file_address(repo, revision, entry_path(entry)), repo)

        with ThreadPoolExecutor(self.policy.connections) as pool:
            found = dict(zip((entry_path(entry) for entry in lacking), pool.map(ask, lacking)))
        return tuple(
            {**entry, "Sha256": found[path]} if (path := entry_path(entry)) in found else entry for entry in entries
        )

    def _page(self, repo: str, revision: str, params: dict[str, str]) -> Page:
        return parse_page(
            self._client.get_json(
                f"/api/v1/models/{urllib.parse.quote(repo)}/repo/files", {"Revision": revision, **params}, repo
            )
        )


def _file_address(repo: str, revision: str, path: str) -> str:
    query = urllib.parse.urlencode({"Revision": revision, "FilePath": path})
    return f"/api/v1/models/{urllib.parse.quote(repo)}/repo?{query}"
