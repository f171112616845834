# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small server that speaks the ModelScope hub protocol, with faults on demand. See README.md in this folder."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

BRANCH = "master"
TAG = "v1"
LFS_BYTES = 1 << 20
LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".model")
CHUNK = 1 << 18
NAME = r"[A-Za-z0-9_.-]+"
MODEL_URL = re.compile(rf"^/api/v1/models/(?P<repo>{NAME}/{NAME})(?P<call>/revisions|/repo/files|/repo)?$")
CDN_URL = re.compile(r"^/cdn/(?P<sha256>[0-9a-f]{64})$")
FAULTS = frozenset(
    (
        "path",
        "count",
        "skip",
        "status",
        "retry_after",
        "drop_after",
        "corrupt_at",
        "ignore_range",
        "delay_s",
        "bytes_per_s",
        "sha256",
        "files",
    )
)


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


class Repositories:
    """The folder tree `<org>/<name>/`, with hashes remembered as long as a file's stat stays the same."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._hashes: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self._by_hash: dict[str, Path] = {}
        self._lock = threading.Lock()

    def blobs(self, repo: str) -> list[Blob] | None:
        """The files of *repo*, or None where there is no such folder."""
        folder = self._root / repo
        if ".." in repo.split("/") or not folder.is_dir():
            return None
        found = []
        for parent, directories, names in os.walk(folder):
            directories[:] = sorted(name for name in directories if name != ".git")
            for name in names:
                source = Path(parent, name)
                if source.is_file():
                    found.append(self._blob(source, source.relative_to(folder).as_posix()))
        return sorted(found, key=lambda blob: blob.path)

    def by_hash(self, sha256: str) -> Path | None:
        """A file with that content, if one was listed or asked for before."""
        return self._by_hash.get(sha256)

    def _blob(self, source: Path, path: str) -> Blob:
        with self._lock:
            status = source.stat()
            identity = (status.st_size, status.st_mtime_ns, status.st_ino)
            known = self._hashes.get(source)
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
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repositories = Repositories(Path(self.root))
        self._rules: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._server = _Server((self.bind, self.port), _Handler)
        self._server.hub = self
        self.port = self._server.server_address[1]
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{self.bind}:{self.port}"

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
        with self._lock:
            self._rules.append({"count": 1, "skip": 0, **rule})

    def reset(self) -> None:
        """Forget the rules and the requests so far."""
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
        except (ValueError, TypeError, AttributeError, re.error) as error:
            self._json(400, {"Success": False, "Message": str(error)})
            return
        self._json(200, {"Success": True, "Requests": len(hub.requests)})

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        params = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        path = unquote(url.path)
        hub = self.server.hub
        hub.note({"path": path, "params": params, "range": self.headers.get("Range"), "headers": dict(self.headers)})
        name = params.get("FilePath") or params.get("name")
        faults = hub.faults(f"{path} {name}" if name else path)
        if faults.get("delay_s"):
            time.sleep(faults["delay_s"])
        if faults.get("status"):
            extra = {"Retry-After": str(faults["retry_after"])} if "retry_after" in faults else {}
            self._json(faults["status"], {"Code": faults["status"], "Success": False, "Message": "a fault"}, extra)
            return
        if path == "/api/v1/repos/internalAccelerationInfo":
            self._answer({"InternalRegionQueryAddress": ""})
        elif model := MODEL_URL.match(path):
            self._model(model["repo"], model["call"], params, faults)
        elif blob := CDN_URL.match(path):
            source = hub.repositories.by_hash(blob["sha256"])
            if source is None or not source.is_file():
                self._json(404, {"Code": 404, "Success": False, "Message": "no such blob"})
            else:
                self._body(source, blob["sha256"], faults)
        else:
            self._json(404, {"Code": 404, "Success": False, "Message": "not found"})

    def _model(self, repo: str, call: str | None, params: dict[str, str], faults: dict[str, Any]) -> None:
        blobs = self.server.hub.repositories.blobs(repo)
        if blobs is None:
            self._json(404, {"Code": 10010205001, "Success": False, "Message": f"Model {repo} not exists"})
            return
        commit = commit_of(blobs)
        revision = params.get("Revision") or BRANCH
        known = revision in (BRANCH, TAG, commit)
        created = max((blob.modified for blob in blobs), default=0)
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
            branches = [{"Revision": BRANCH, "CreatedAt": created}]
            self._answer({"RevisionMap": {"Branches": branches, "Tags": [{"Revision": TAG, "CreatedAt": created}]}})
        elif call == "/repo/files":
            if not known:
                self._answer({"Files": None, "LatestCommitter": None})
                return
            files = self._listing(blobs, commit, params, faults)
            self._answer({"Files": files, "LatestCommitter": {"Id": "", "ShortId": commit[:8]}})
        else:
            blob = next((blob for blob in blobs if blob.path == params.get("FilePath")), None)
            if blob is None or not known:
                self._json(404, {"Code": 404, "Success": False, "Message": "file not found"})
            elif blob.lfs:
                self._redirect(blob)
            else:
                self._body(blob.source, blob.sha256, faults)

    def _listing(
        self, blobs: list[Blob], commit: str, params: dict[str, str], faults: dict[str, Any]
    ) -> list[dict[str, Any]]:
        if "files" in faults:
            return list(faults["files"])
        wrong = faults.get("sha256", {})
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
                    "Sha256": wrong.get(path, blob.sha256) if is_file else "",
                    "IsLFS": is_file and blob.lfs,
                    "Revision": commit,
                    "CommitMessage": "content",
                    "CommittedDate": blob.modified,
                    "CommitterName": "simulator",
                    "InCheck": False,
                }
        return list(entries.values())[: self.server.hub.list_cap]

    def _redirect(self, blob: Blob) -> None:
        hub = self.server.hub
        host = f"{hub.cdn_host}:{hub.port}" if hub.cdn_host else self.headers.get("Host", f"{hub.bind}:{hub.port}")
        self.send_response(302)
        self.send_header("Location", f"http://{host}/cdn/{blob.sha256}?name={quote(blob.path, safe='')}&sig=0123456789")
        self.send_header("X-Linked-ETag", f'"{blob.sha256}"')
        self.send_header("X-Linked-Size", str(blob.size))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _body(self, source: Path, sha256: str, faults: dict[str, Any]) -> None:
        size = source.stat().st_size
        first, last, partial = 0, size - 1, False
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and not faults.get("ignore_range"):
            first, last, partial = int(asked[1]), min(int(asked[2] or size - 1), size - 1), True
            if first >= size:
                self._json(416, {"Success": False, "Message": "range"}, {"Content-Range": f"bytes */{size}"})
                return
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{sha256}"')
        self.send_header("X-Linked-ETag", f'"{sha256}"')
        if partial:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        sent = 0
        for chunk in _chunks(source, first, last, faults):
            if "drop_after" in faults and sent + len(chunk) > faults["drop_after"]:
                self.wfile.write(chunk[: faults["drop_after"] - sent])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.wfile.write(chunk)
            sent += len(chunk)
            if faults.get("bytes_per_s"):
                time.sleep(len(chunk) / faults["bytes_per_s"])

    def _answer(self, data: dict[str, Any]) -> None:
        self._json(200, {"Code": 200, "Success": True, "Message": "success", "RequestId": "0", "Data": data})

    def _json(self, status: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _with_parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        yield "/".join(parts[:depth])


def _chunks(source: Path, first: int, last: int, faults: dict[str, Any]) -> Iterator[bytes]:
    step = min(CHUNK, max(1, int(faults["bytes_per_s"] / 20))) if faults.get("bytes_per_s") else CHUNK
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
    parser = argparse.ArgumentParser(description="Serves a folder of models by the ModelScope hub protocol.")
    parser.add_argument("--root", type=Path, required=True, help="folder that holds <org>/<name>/")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one (default: %(default)s)")
    parser.add_argument("--port-file", type=Path, help="where to write the port once it listens")
    parser.add_argument("--log", type=Path, help="where to append one JSON line per request")
    options = parser.parse_args()
    if not options.root.is_dir():
        parser.error(f"--root {options.root} is not a folder")
    hub = HubSimulator(options.root.resolve(), options.bind, options.port, options.log)

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
