# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small server that speaks the protocols of ModelScope and Hugging Face, with faults on demand. See README.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

BRANCH = "master"
HF_BRANCH = "main"
TAG = "v1"
LFS_BYTES = 1 << 20
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".model")
CHUNK = 1 << 18
HF_PAGE = 1000
NAME = r"[A-Za-z0-9_.-]+"
REPO = rf"(?P<repo>{NAME}/{NAME})"
MODEL_URL = re.compile(rf"^/api/v1/models/{REPO}(?P<call>/revisions|/repo/files|/repo)?$")
HF_URL = re.compile(rf"^/api/models/{REPO}/(?P<call>refs|revision|tree)(?:/(?P<revision>[^/]+))?$")
RESOLVE_URL = re.compile(rf"^/{REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)$")
RESOLVE_CACHE_URL = re.compile(rf"^/api/resolve-cache/models/{REPO}/(?P<revision>[^/]+)/(?P<path>.+)$")
CDN_URL = re.compile(r"^/cdn/(?P<sha256>[0-9a-f]{64})$")
FAULTS = frozenset(
    (
        "path",
        "count",
        "skip",
        "status",
        "retry_after",
        "headers",
        "html",
        "empty",
        "drop_after",
        "corrupt_at",
        "claim_size",
        "ignore_range",
        "delay_s",
        "bytes_per_s",
        "shared_bytes_per_s",
        "max_connections",
        "redirect_host",
        "resolve_cache",
        "sha256",
        "nosha",
        "no_etag",
        "no_blobs",
        "files",
        "siblings",
    )
)
SLOW = ("drop_after", "corrupt_at", "bytes_per_s", "shared_bytes_per_s")
"""Faults that need the bytes in our hands; without them the kernel sends the file."""


@dataclass(frozen=True)
class Blob:
    """One file of a repository."""

    path: str
    source: Path
    size: int
    sha256: str
    modified: int

    @property
    def lfs(self) -> bool:
        return self.size > LFS_BYTES or self.path.endswith(LFS_SUFFIXES)

    @property
    def git_id(self) -> str:
        """What git calls the content; for a pointer's place a stand-in that has the form."""
        if self.lfs:
            return hashlib.sha1(self.sha256.encode()).hexdigest()
        return hashlib.sha1(b"blob %d\0" % self.size + self.source.read_bytes()).hexdigest()


class Repositories:
    """The folder tree `<org>/<name>[@<label>]/`, with hashes remembered as long as a file's stat stays the same."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hashes: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self._by_hash: dict[str, Path] = {}
        self._moved: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def refs(self, repo: str) -> dict[str, dict[str, str]]:
        """Branches and tags of *repo* with the label of their folder; "" is the folder without one."""
        beside = self._root.joinpath(repo).parent.glob(f"{repo.split('/')[1]}@*")
        labels = sorted(entry.name.partition("@")[2] for entry in beside if entry.is_dir())
        found = {"branches": {BRANCH: "", **{label: label for label in labels}}, "tags": {TAG: ""}}
        for kind in found.values():
            for name in kind:
                kind[name] = self._moved.get((repo, name), kind[name])
        return found

    def move(self, repo: str, name: str, to: str) -> None:
        """Let the branch or tag *name* mean what the branch, tag or label *to* (or "") means now."""
        refs = self.refs(repo)
        known = {**refs["tags"], **refs["branches"]}
        if name not in known or not (to == "" or to in known):
            raise ValueError(f"{repo} has no {name!r} or no {to!r}")
        self._moved[repo, name] = known.get(to, "")

    def find(self, repo: str, revision: str) -> tuple[str, list[Blob]] | None:
        """Commit and files of a revision by name or commit, or None."""
        refs = self.refs(repo)
        known = {**refs["tags"], **refs["branches"]}
        labels = [known[revision]] if revision in known else sorted(set(known.values()))
        for label in labels:
            blobs = self.blobs(f"{repo}@{label}" if label else repo)
            if blobs is not None:
                commit = commit_of(blobs)
                if revision in known or revision == commit:
                    return commit, blobs
        return None

    def blobs(self, repo: str) -> list[Blob] | None:
        """The files of the folder *repo*, or None where there is no such folder."""
        folder = self._root / repo
        if ".." in repo.split("/") or not folder.is_dir():
            return None
        given = self._root / f"{repo}.hashes.json"
        hashes = json.loads(given.read_bytes()) if given.is_file() else {}
        found = []
        for parent, directories, names in os.walk(folder):
            directories[:] = sorted(name for name in directories if name != ".git")
            for name in names:
                source = Path(parent, name)
                if source.is_file():
                    path = source.relative_to(folder).as_posix()
                    found.append(self._blob(source, path, hashes.get(path)))
        return sorted(found, key=lambda blob: blob.path)

    def by_hash(self, sha256: str) -> Path | None:
        """A file with that content, if one was listed or asked for before."""
        return self._by_hash.get(sha256)

    def _blob(self, source: Path, path: str, sha256: str | None) -> Blob:
        with self._lock:
            status = source.stat()
            identity = (status.st_size, status.st_mtime_ns, status.st_ino)
            known = (identity, sha256) if sha256 else self._hashes.get(source)
            if known is None or known[0] != identity:
                with source.open("rb") as handle:
                    known = (identity, hashlib.file_digest(handle, "sha256").hexdigest())
                self._hashes[source] = known
            self._by_hash[known[1]] = source
            return Blob(path, source, status.st_size, known[1], int(status.st_mtime))


def commit_of(blobs: list[Blob]) -> str:
    """40 hex digits that depend on the content alone."""
    lines = "".join(f"{blob.sha256} {blob.size} {blob.path}\n" for blob in blobs)
    return hashlib.sha256(lines.encode()).hexdigest()[:40]


class _Bucket:
    """A rate that all connections share."""

    def __init__(self, bytes_per_s: float) -> None:
        self.rate = bytes_per_s
        self._next = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until *count* more bytes may go."""
        with self._lock:
            now = time.monotonic()
            self._next = max(self._next, now) + count / self.rate
            pause = self._next - now
        time.sleep(pause)


@dataclass
class HubSimulator:
    """The server; as a context manager it runs in a thread."""

    root: Path
    bind: str = "127.0.0.1"
    port: int = 0
    log: Path | None = None
    cdn_host: str | None = None
    """Host name in redirects to /cdn; default: what the client called this server."""
    list_cap: int = 3000
    certificate: Path | None = None
    """PEM file with a certificate and its key: then it speaks HTTPS."""
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repositories = Repositories(Path(self.root))
        self._rules: list[dict[str, Any]] = []
        self._tokens: dict[str, str] = {}
        self._active: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._server = _Server((self.bind, self.port), _Handler)
        self._server.hub = self
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            # The handshake belongs to the connection's own thread, not to the one that accepts.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.bind}:{self.port}"

    def __enter__(self) -> HubSimulator:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._thread:
            self._thread.join(timeout=5)

    def serve(self) -> None:
        """Serve in this thread until close() is called from another one."""
        try:
            self._server.serve_forever(0.2)
        finally:
            self._server.server_close()

    def close(self) -> None:
        """End serve()."""
        self._server.shutdown()

    def add_rule(self, **rule: Any) -> None:
        """One fault; README.md names the fields."""
        if unknown := set(rule) - FAULTS:
            raise ValueError(f"unknown fields in a fault rule: {sorted(unknown)}")
        re.compile(rule.get("path", ""))
        if rule.get("shared_bytes_per_s"):
            rule["shared_bytes_per_s"] = _Bucket(rule["shared_bytes_per_s"])
        with self._lock:
            self._rules.append({"count": 1, "skip": 0, **rule})

    def move(self, repo: str, name: str, to: str) -> None:
        """Move a branch or tag to where the branch, tag or label *to* is; "" is the folder without a label."""
        self.repositories.move(repo, name, to)

    def protect(self, repo: str, token: str) -> None:
        """Answer requests for *repo* only with this token from now on."""
        self._tokens[repo] = token

    def may(self, repo: str, authorization: str | None) -> bool:
        """Whether somebody with this header may see *repo*."""
        return repo not in self._tokens or authorization == f"Bearer {self._tokens[repo]}"

    @contextmanager
    def connection(self, limit: int | None) -> Iterator[bool]:
        """One connection more; False where that is more than *limit*."""
        with self._lock:
            free = limit is None or self._active[limit] < limit
            if free and limit is not None:
                self._active[limit] += 1
        try:
            yield free
        finally:
            if free and limit is not None:
                with self._lock:
                    self._active[limit] -= 1

    def reset(self) -> None:
        """Forget the rules and the requests so far; branches and tokens stay."""
        with self._lock:
            self._rules.clear()
            self.requests.clear()

    def note(self, entry: dict[str, Any]) -> None:
        """Remember a request, and write it to the log."""
        with self._lock:
            self.requests.append(entry)
            if self.log:
                with self.log.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps(entry) + "\n")

    def note_sent(self, entry: dict[str, Any]) -> None:
        """Write to <log>.sent how many bytes of a file left."""
        if self.log and entry.get("sent"):
            with self._lock, Path(f"{self.log}.sent").open("a", encoding="utf-8") as handle:
                handle.write(f"{entry['sent']}\n")

    def faults(self, subject: str) -> dict[str, Any]:
        """The union of the rules that match *subject* now."""
        union: dict[str, Any] = {}
        with self._lock:
            for rule in self._rules:
                if rule["count"] == 0 or not re.search(rule.get("path", ""), subject):
                    continue
                if rule["skip"] > 0:
                    rule["skip"] -= 1
                    continue
                rule["count"] -= rule["count"] > 0
                union.update({name: value for name, value in rule.items() if name not in ("path", "count", "skip")})
        return union


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    hub: HubSimulator

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server
    _entry: dict[str, Any]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub = self.server.hub
        if self.path != "/_ctl":
            self._json(404, {"Code": 404, "Success": False, "Message": "not found"})
            return
        try:
            order = json.loads(body or b"{}")
            if order.get("reset"):
                hub.reset()
            for rule in order.get("rules", []):
                hub.add_rule(**rule)
            for move in order.get("move", []):
                hub.move(move["repo"], move["name"], move["to"])
            for repo, token in order.get("protect", {}).items():
                hub.protect(repo, token)
        except (ValueError, TypeError, AttributeError, KeyError, re.error) as error:
            self._json(400, {"Success": False, "Message": str(error)})
            return
        self._json(200, {"Success": True, "Requests": len(hub.requests)})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        params = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        path = unquote(url.path)
        hub = self.server.hub
        self._entry = {
            "method": self.command,
            "path": path,
            "params": params,
            "range": self.headers.get("Range"),
            "headers": dict(self.headers),
        }
        hub.note(self._entry)
        name = params.get("FilePath") or params.get("name")
        faults = hub.faults(f"{path} {name}" if name else path)
        try:
            with hub.connection(faults.get("max_connections")) as free:
                if not free:
                    faults = {"status": 429, **faults}
                self._route(path, params, faults)
        finally:
            hub.note_sent(self._entry)

    def _route(self, path: str, params: dict[str, str], faults: dict[str, Any]) -> None:
        hub = self.server.hub
        if faults.get("delay_s"):
            time.sleep(faults["delay_s"])
        if faults.get("status"):
            extra = {"Retry-After": str(faults["retry_after"])} if "retry_after" in faults else {}
            extra.update(faults.get("headers", {}))
            self._json(faults["status"], {"Code": faults["status"], "Success": False, "Message": "a fault"}, extra)
        elif faults.get("html") or faults.get("empty"):
            self._send(b"" if faults.get("empty") else b"<html>Please log in</html>", "text/html")
        elif path == "/api/v1/repos/internalAccelerationInfo":
            self._answer({"InternalRegionQueryAddress": ""})
        elif model := MODEL_URL.match(path):
            self._model(model["repo"], model["call"], params, faults)
        elif model := HF_URL.match(path):
            self._hf(model["repo"], model["call"], model["revision"], params, faults)
        elif model := RESOLVE_URL.match(path) or RESOLVE_CACHE_URL.match(path):
            self._resolve(model["repo"], model["revision"], model["path"], path.startswith("/api/"), faults)
        elif blob := CDN_URL.match(path):
            source = hub.repositories.by_hash(blob["sha256"])
            if source is None or not source.is_file():
                self._json(404, {"Code": 404, "Success": False, "Message": "no such blob"})
            else:
                self._body(source, blob["sha256"], faults)
        else:
            self._json(404, {"Code": 404, "Success": False, "Message": "not found"})

    def _model(self, repo: str, call: str | None, params: dict[str, str], faults: dict[str, Any]) -> None:
        hub = self.server.hub
        blobs = hub.repositories.blobs(repo)
        if blobs is None:
            self._json(404, {"Code": 10010205001, "Success": False, "Message": f"Model {repo} not exists"})
            return
        if not hub.may(repo, self.headers.get("Authorization")):
            self._json(403, {"Code": 10010205005, "Success": False, "Message": "no permission"})
            return
        found = hub.repositories.find(repo, params.get("Revision") or BRANCH)
        if call is None:
            self._answer(
                {
                    "Name": repo.split("/")[1],
                    "Path": repo.split("/")[0],
                    "Revision": BRANCH,
                    "StorageSize": sum(blob.size for blob in blobs),
                }
            )
        elif call == "/revisions":
            created = max((blob.modified for blob in blobs), default=0)
            names = {
                kind.capitalize(): [{"Revision": name, "CreatedAt": created} for name in refs]
                for kind, refs in hub.repositories.refs(repo).items()
            }
            self._answer({"RevisionMap": names})
        elif call == "/repo/files":
            if found is None or faults.get("files", ()) is None:
                self._answer({"Files": None, "LatestCommitter": None})
                return
            commit, blobs = found
            files = self._listing(blobs, commit, params, faults)
            self._answer({"Files": files, "LatestCommitter": {"Id": "", "ShortId": commit[:8]}})
        else:
            blob = next((blob for blob in found[1] if blob.path == params.get("FilePath")), None) if found else None
            if blob is None:
                self._json(404, {"Code": 404, "Success": False, "Message": "file not found"})
            elif blob.lfs:
                self._redirect(blob, faults)
            else:
                self._body(blob.source, blob.sha256, faults)

    def _hf(self, repo: str, call: str, revision: str | None, params: dict[str, str], faults: dict[str, Any]) -> None:
        """Hugging Face's interface: names of revisions, and the files of one in either of its two forms."""
        repositories = self.server.hub.repositories
        if self._hf_hidden(repo):
            return
        if call == "refs":
            branches, tags = (
                [
                    {"name": _hf_name(name), "ref": f"refs/{kind}/{name}", "targetCommit": self._commit_of(repo, name)}
                    for name in repositories.refs(repo)[kind]
                ]
                for kind in ("branches", "tags")
            )
            self._json(200, {"branches": branches, "converts": [], "tags": tags})
            return
        found = repositories.find(repo, BRANCH if revision == HF_BRANCH else str(revision))
        if found is None:
            self._json(404, {"error": f"Invalid rev id: {revision}"}, {"X-Error-Code": "RevisionNotFound"})
            return
        commit, blobs = found
        if call == "revision":
            siblings = faults.get("siblings") or [
                _sibling(blob, faults, "blobs" in params and not faults.get("no_blobs")) for blob in blobs
            ]
            self._json(200, {"id": repo, "sha": commit, "private": False, "gated": False, "siblings": siblings})
            return
        entries = [_tree_entry(blob, faults) for blob in blobs]
        start = int(params.get("cursor", 0))
        links = {}
        if start + HF_PAGE < len(entries):
            following = f"{self._base()}/api/models/{repo}/tree/{revision}?recursive=true&cursor={start + HF_PAGE}"
            links = {"Link": f'<{following}>; rel="next"'}
        self._json(200, entries[start : start + HF_PAGE], links)

    def _commit_of(self, repo: str, name: str) -> str | None:
        found = self.server.hub.repositories.find(repo, name)
        return found[0] if found else None

    def _hf_hidden(self, repo: str) -> bool:
        """As there: without a token nobody learns whether a repository exists."""
        hub = self.server.hub
        authorization = self.headers.get("Authorization")
        exists = hub.repositories.blobs(repo) is not None
        if exists and hub.may(repo, authorization):
            return False
        status = 404 if authorization and not exists else 401
        self._json(status, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        return True

    def _resolve(self, repo: str, revision: str, path: str, cached: bool, faults: dict[str, Any]) -> None:
        if self._hf_hidden(repo):
            return
        found = self.server.hub.repositories.find(repo, BRANCH if revision == HF_BRANCH else revision)
        blob = next((blob for blob in found[1] if blob.path == path), None) if found else None
        if found is None or blob is None:
            code = "RevisionNotFound" if found is None else "EntryNotFound"
            self._json(404, {"error": "not found"}, {"X-Error-Code": code})
        elif blob.lfs:
            self._redirect(blob, faults)
        elif faults.get("resolve_cache") and not cached:
            self.send_response(307)
            self.send_header("Location", f"/api/resolve-cache/models/{repo}/{found[0]}/{quote(path)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._body(blob.source, blob.git_id, faults)

    def _listing(
        self, blobs: list[Blob], commit: str, params: dict[str, str], faults: dict[str, Any]
    ) -> list[dict[str, Any]]:
        if "files" in faults:
            return list(faults["files"])
        root = params.get("Root", "").strip("/")
        recursive = params.get("Recursive", "").lower() == "true"
        entries: dict[str, dict[str, Any]] = {}
        for blob in blobs:
            for path in _with_parents(blob.path):
                inside = path[len(root) + 1 :] if root and path.startswith(root + "/") else path
                if path in entries or (root and inside == path) or (not recursive and "/" in inside):
                    continue
                is_file = path == blob.path
                entries[path] = {
                    "Name": path.rsplit("/", 1)[-1],
                    "Path": path,
                    "Type": "blob" if is_file else "tree",
                    "Mode": "33188" if is_file else "16384",
                    "Size": blob.size if is_file else 0,
                    "Sha256": _listed_hash(blob, faults) if is_file else "",
                    "IsLFS": is_file and blob.lfs,
                    "Revision": commit,
                    "CommitMessage": "content",
                    "CommittedDate": blob.modified,
                    "CommitterName": "simulator",
                    "InCheck": False,
                }
        return list(entries.values())[: self.server.hub.list_cap]

    def _base(self, host: str | None = None) -> str:
        """What the client called this server, or this server by another name."""
        hub = self.server.hub
        scheme = "https" if hub.certificate else "http"
        return f"{scheme}://{host}:{hub.port}" if host else f"{scheme}://{self.headers.get('Host', hub.bind)}"

    def _redirect(self, blob: Blob, faults: dict[str, Any]) -> None:
        base = self._base(faults.get("redirect_host") or self.server.hub.cdn_host)
        self.send_response(302)
        self.send_header("Location", f"{base}/cdn/{blob.sha256}?name={quote(blob.path, safe='')}&sig=0123456789")
        if not faults.get("no_etag"):
            self.send_header("X-Linked-ETag", f'"{blob.sha256}"')
        self.send_header("X-Linked-Size", str(blob.size))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self, source: Path, etag: str, faults: dict[str, Any]) -> None:
        size = source.stat().st_size
        if "claim_size" in faults:
            size = min(size, faults["claim_size"])
        first, last, partial = 0, size - 1, False
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and not faults.get("ignore_range"):
            first, last, partial = int(asked[1]), min(int(asked[2] or size - 1), size - 1), True
            if first >= size:
                self._json(416, {"Success": False, "Message": "range"}, {"Content-Range": f"bytes */{size}"})
                return
        headers = {"Content-Length": str(last - first + 1), "Accept-Ranges": "bytes", "ETag": f'"{etag}"'}
        if len(etag) == 64 and not faults.get("no_etag"):
            headers["X-Linked-ETag"] = f'"{etag}"'
        if partial:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self.send_response(206 if partial else 200)
        for name, value in {**headers, **faults.get("headers", {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or last < first:
            return
        if not any(name in faults for name in SLOW):
            with source.open("rb") as handle:
                try:
                    self.connection.sendfile(handle, first, last - first + 1)
                finally:
                    # It moves the file's position even when the client leaves.
                    self._entry["sent"] = handle.tell() - first
            return
        shared = faults.get("shared_bytes_per_s")
        sent = 0
        for chunk in _chunks(source, first, last, faults):
            self._entry["sent"] = sent
            if "drop_after" in faults and sent + len(chunk) > faults["drop_after"]:
                self.wfile.write(chunk[: faults["drop_after"] - sent])
                self.wfile.flush()
                self._entry["sent"] = faults["drop_after"]
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if shared:
                shared.take(len(chunk))
            self.wfile.write(chunk)
            sent += len(chunk)
            if faults.get("bytes_per_s"):
                time.sleep(len(chunk) / faults["bytes_per_s"])
        self._entry["sent"] = sent

    def _answer(self, data: dict[str, Any]) -> None:
        self._json(200, {"Code": 200, "Success": True, "Message": "success", "RequestId": "0", "Data": data})

    def _json(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(document).encode(), "application/json", status, headers)

    def _send(self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _hf_name(name: str) -> str:
    return HF_BRANCH if name == BRANCH else name


def _listed_hash(blob: Blob, faults: dict[str, Any]) -> str:
    """The hash as a listing gives it: right, wrong, or none at all."""
    without = faults.get("nosha", ())
    if without is True or blob.path in (without or ()):
        return ""
    return str(faults.get("sha256", {}).get(blob.path, blob.sha256))


def _sibling(blob: Blob, faults: dict[str, Any], detailed: bool) -> dict[str, Any]:
    """One file as Hugging Face lists it with a revision."""
    if not detailed:
        return {"rfilename": blob.path}
    entry: dict[str, Any] = {"rfilename": blob.path, "size": blob.size, "blobId": blob.git_id}
    if blob.lfs:
        entry["lfs"] = {"sha256": _listed_hash(blob, faults), "size": blob.size, "pointerSize": 134}
    return entry


def _tree_entry(blob: Blob, faults: dict[str, Any]) -> dict[str, Any]:
    """One file as Hugging Face lists it in a tree."""
    entry: dict[str, Any] = {"type": "file", "oid": blob.git_id, "size": blob.size, "path": blob.path}
    if blob.lfs:
        entry["lfs"] = {"oid": _listed_hash(blob, faults), "size": blob.size, "pointerSize": 134}
    return entry


def _with_parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth])


def _chunks(source: Path, first: int, last: int, faults: dict[str, Any]) -> Iterator[bytes]:
    shared = faults.get("shared_bytes_per_s")
    rate = faults.get("bytes_per_s") or (shared.rate if shared else 0)
    step = min(CHUNK, max(1, int(rate / 20))) if rate else CHUNK
    with source.open("rb") as handle:
        handle.seek(first)
        position = first
        while position <= last:
            chunk = handle.read(min(step, last + 1 - position))
            if not chunk:
                return
            corrupt = faults.get("corrupt_at", -1) - position
            if 0 <= corrupt < len(chunk):
                chunk = chunk[:corrupt] + bytes([chunk[corrupt] ^ 0xFF]) + chunk[corrupt + 1 :]
            position += len(chunk)
            yield chunk


def main() -> int:
    parser = argparse.ArgumentParser(description="Serves a folder of models as ModelScope and Hugging Face do.")
    parser.add_argument("--root", type=Path, required=True, help="folder that holds <org>/<name>/")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default: %(default)s)")
    parser.add_argument("--port-file", type=Path, help="where to write the port once it listens")
    parser.add_argument("--log", type=Path, help="where to append one JSON line per request")
    parser.add_argument("--certificate", type=Path, help="PEM file with certificate and key, to speak HTTPS")
    options = parser.parse_args()
    if not options.root.is_dir():
        parser.error(f"--root {options.root} is not a folder")
    hub = HubSimulator(options.root.resolve(), options.bind, options.port, options.log, certificate=options.certificate)

    def stop(*_: object) -> None:
        threading.Thread(target=hub.close, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if options.port_file:
        staged = options.port_file.with_name(options.port_file.name + ".new")
        staged.write_text(f"{hub.port}\n", encoding="ascii")
        staged.replace(options.port_file)
    print(f"listening on {hub.url}", flush=True)
    hub.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
