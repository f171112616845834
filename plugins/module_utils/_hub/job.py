# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The background process that brings one model and serves it on meanwhile. Private to socle.inference.

It outlives the connection that started it. All talk with it is by small files in a folder that only its user can read:

    spec.json       in   what to bring, and the secrets for it; removed as soon as it is read
    upstreams.json  in   where to take it from; the download begins; removed as soon as it is read
    token           in   another token for the relay, and the address to open one at where there is none yet; removed as
                         soon as it is read
    stop            in   end, unless a download is under way
    status.json     out  once a second
    result.json     out  how the download ended
    users.json      which runs use the job or have its result still to read; job_control keeps it
    lock            held as long as the process lives
    log             what Python itself says when all else fails
    payload.zip     this code; removed at the end
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import manifest as manifests
from ansible_collections.socle.inference.plugins.module_utils._hub.directory import NAME as DIRECTORY
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Accountable, Hub, NotYet, Origin
from ansible_collections.socle.inference.plugins.module_utils._hub.peer import Peer, check_upstream
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import reserve_bytes
from ansible_collections.socle.inference.plugins.module_utils._hub.relay import Limits, Relay, star_connections
from ansible_collections.socle.inference.plugins.module_utils._hub.reserve import GONE_S, Reserve
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import NETWORK_ERRORS, reason_of
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

STATUS_S = 1.0
POLL_S = 0.1
JOIN_S = 600.0
"""How long a job waits to be told its upstreams: the run that started it is gone after that."""
IDLE_S = 600.0
"""How long a relay serves after its own download and the last request."""
IN_USE_S = 30.0
"""A neighbour that takes from a relay asks again long before that."""
FORGET_S = 2.0
"""How long the store may be locked by another run before what neighbours report is not noted."""
RATE_WINDOW_S = 10.0
LOCK_TIMEOUT_S = 600.0
"""How long a job waits for another run that holds the repository's lock, unless the spec says otherwise."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True)
class Folder:
    """The files of one job."""

    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def upstreams(self) -> Path:
        return self.path / "upstreams.json"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def stop(self) -> Path:
        return self.path / "stop"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def users(self) -> Path:
        return self.path / "users.json"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def payload(self) -> Path:
        return self.path / "payload.zip"


def write_private(place: Path, document: Any) -> None:
    """Write *document* as JSON that only this user can read, in one step."""
    staged = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(staged, flags, 0o600), "w", encoding="utf-8") as handle:
            json.dump(document, handle, default=str)
        staged.replace(place)
    except OSError as error:
        # Half of a secret is none of anybody's business either. Writing tells no name.
        with contextlib.suppress(OSError):
            staged.unlink()
        raise OSError(error.errno, error.strerror, str(place)) from error


def read_json(place: Path) -> Any:
    """What write_private() wrote, or None where there is nothing, or nothing usable."""
    try:
        with os.fdopen(open_regular(place), encoding="utf-8") as handle:
            return json.load(handle)
    except (OSError, ValueError, RecursionError):
        return None


def take_json(place: Path) -> Any:
    """read_json(), and the file is gone: it held a secret. One that is written meanwhile is left for the next time."""
    taken = place.with_name(f".{place.name}.taken")
    try:
        place.replace(taken)
    except FileNotFoundError:
        return None
    document = read_json(taken)
    taken.unlink()
    return document


def policy_of(spec: dict[str, Any]) -> Policy:
    """How the hub and the neighbours are asked."""
    policy = Policy()
    if spec.get("relay"):
        # Neighbours get a file's start only: one that arrives in pieces, out of order, would keep them waiting.
        policy = replace(policy, lines=1)
    return replace(policy, connections=spec["connections"]) if spec.get("connections") else policy


def demand_of(spec: dict[str, Any]) -> dict[str, Any]:
    """What a run wants of a job beyond the content, for a later run that asks whether the job does what it wants."""
    return {name: spec.get(name) for name in ("verify", "verify_max_age_s", "owner", "group", "link")}


def hub_of(spec: dict[str, Any]) -> Hub:
    """The hub that a spec names."""
    return make_hub(
        source=spec["source"],
        endpoint=spec.get("endpoint"),
        token=spec.get("token"),
        proxy=spec.get("proxy"),
        ca_file=spec.get("ca_file"),
        path=spec.get("path"),
        policy=policy_of(spec),
    )


def request_of(spec: dict[str, Any], manifest: Manifest) -> Request:
    """What a spec asks for."""
    return Request(
        repo=spec["repo"],
        revision=spec["revision"],
        store=Path(spec["store"]),
        link=spec.get("link"),
        full=spec.get("verify") == "full",
        structure=spec.get("verify") == "structure",
        verify_max_age_s=spec.get("verify_max_age_s"),
        reserve_bytes=reserve_bytes(spec.get("reserve_gib")),
        lock_timeout_s=LOCK_TIMEOUT_S if spec.get("lock_timeout") is None else float(spec["lock_timeout"]),
        manifest=manifest,
        adopt_from=tuple(Path(folder) for folder in spec.get("adopt_from") or ()),
        allow_shared_fs=bool(spec.get("allow_shared_fs")),
        allow_volatile_fs=bool(spec.get("allow_volatile_fs")),
        force=bool(spec.get("force_prechecks")),
        owner=spec.get("owner"),
        group=spec.get("group"),
        offline=bool(spec.get("offline")),
    )


class Status(Progress):
    """What the job does now: kept in memory by whoever works, written to status.json by tick()."""

    def __init__(self, folder: Folder, fixed: dict[str, Any]) -> None:
        super().__init__()
        self._folder = folder
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {**fixed, "pid": os.getpid(), "started": utc_now(), "joined": False}
        self._seen: collections.deque[tuple[float, int]] = collections.deque()

    def update(
        self,
        phase: str,
        done: int | None = None,
        total: int | None = None,
        unit: str | None = None,
        detail: str | None = None,
    ) -> None:
        with self._lock:
            if phase != self.phase:
                self.phase = phase
                self._seen.clear()
            self._state.update(phase=phase, done=done, total=total, unit=unit, file=detail)

    def note(self, **fields: Any) -> None:
        """Say more about the job."""
        with self._lock:
            self._state.update(fields)

    def tick(self) -> None:
        """Write the file; rate and time left are those of the last RATE_WINDOW_S."""
        with self._lock:
            now, done, total = time.monotonic(), self._state.get("done"), self._state.get("total")
            rate = left = None
            if done is not None:
                self._seen.append((now, done))
                while len(self._seen) > 2 and now - self._seen[0][0] > RATE_WINDOW_S:
                    self._seen.popleft()
                first, span_s = self._seen[0][1], now - self._seen[0][0]
                if span_s > 0 and done >= first:
                    rate = (done - first) / span_s
                if rate and total is not None:
                    left = round((total - done) / rate, 1)
            document = {**self._state, "rate_per_s": rate and round(rate), "left_s": left, "updated": utc_now()}
            write_private(self._folder.status, document)


class _Watched:
    """An origin whose use is told to the status."""

    def __init__(self, origin: Origin, status: Status) -> None:
        self._origin = origin
        self._status = status
        self.host = origin.host
        self.kind = origin.kind
        self.ranges = origin.ranges
        self.policy = origin.policy
        self.sleep = origin.sleep

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        try:
            response = self._origin.open_file(file, offset, end)
        except NETWORK_ERRORS as error:
            # That it is not yet the hub's turn is no trouble, and neighbours have words of their own.
            if self.kind == "wan" and not isinstance(error, NotYet):
                route = self._origin.describe_route()
                self._status.note(trouble=f"retrying, {self.host} {route}: {reason_of(error)}")
            raise
        self._status.note(source=self.host, trouble=None)
        return response

    def blame(self, file: ModelFile) -> None:
        if isinstance(self._origin, Accountable):
            self._origin.blame(file)

    def is_own(self, url: str | None) -> bool:
        return self._origin.is_own(url)

    def describe_route(self) -> str:
        return self._origin.describe_route()


class _Late:
    """The origin of a hub, made when it is first asked: who finds everything at neighbours needs no folder here."""

    def __init__(self, hub: Hub, manifest: Manifest) -> None:
        self._hub = hub
        self._manifest = manifest
        self._lock = threading.Lock()
        self._made: Origin | None = None
        self.host = hub.host
        self.kind = "disk" if hub.name == DIRECTORY else "wan"
        self.ranges = hub.name != DIRECTORY
        self.policy = hub.policy
        self.sleep = hub.sleep

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        return self._origin().open_file(file, offset, end)

    def is_own(self, url: str | None) -> bool:
        return self._origin().is_own(url)

    def describe_route(self) -> str:
        return self._origin().describe_route()

    def _origin(self) -> Origin:
        with self._lock:
            self._made = self._made or self._hub.origin(self._manifest)
            return self._made


class _NoHub(_Late):
    """In the place of a hub that is not to be asked."""

    def _origin(self) -> Origin:
        raise HubError(
            f"no host that this one takes {self._manifest.repo} from gives what is missing here, and the option "
            "offline is set, so that no hub is asked: bring the model to one of the hosts first"
        )


class Job:
    """One model, from the spec to the end of serving it."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.manifest = manifests.loads(json.dumps(spec["manifest"]))
        self.shelf = Shelf({file.path: Growing(file.path, file.size) for file in self.manifest.files})
        self.status = Status(
            folder,
            {
                "repo": self.manifest.repo,
                "revision": spec["revision"],
                "commit": self.manifest.commit,
                "content_id": self.manifest.content_id,
                "total": self.manifest.total_bytes,
                "address": None,
                "port": None,
                "systemd_unit": spec.get("systemd_unit"),
                "demand": demand_of(spec),
            },
        )
        self.relay: Relay | None = None
        self._hearing = threading.Lock()
        self.doubted: set[str] = set()
        """Files that are served here and that a neighbour found to be something else."""
        self.idle_s = float(spec.get("idle_s") or IDLE_S)

    def run(self) -> None:
        """Everything; the result is written however it ends."""
        self.status.update("starting")
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(over,), name="status", daemon=True)
        try:
            result = self._bring(keeper)
            if result is None:
                return
            write_private(self.folder.result, {"failed": False, "result": result})
        except SocleError as error:
            self._fail(str(error), error.fields)
        except Exception as error:
            traceback.print_exc()
            self._fail(f"the job for {self.manifest.repo} broke: {type(error).__name__}: {error}", {})
        try:
            self._serve()
        finally:
            over.set()
            if keeper.is_alive():
                keeper.join()
            if self.relay:
                self.relay.close()

    def _bring(self, keeper: threading.Thread) -> dict[str, Any] | None:
        """The result of the snapshot, or None where the job was stopped before it began."""
        hub = hub_of(self.spec)
        serve = self.spec.get("relay")
        if serve:
            self._open_relay(serve)
        self.status.update("waiting to begin")
        self.status.tick()
        keeper.start()
        order = self._await_order()
        if order is None:
            return None
        origins = self._origins(hub, order)
        self.status.note(joined=True)
        self.status.tick()
        request = request_of(self.spec, self.manifest)
        if order["upstreams"]:
            # Neighbours are no hub: what they have is in place here, too, once it came.
            request = replace(request, offline=False)
        return ensure_snapshot(request, hub, self.status, origins=lambda _manifest: origins, shelf=self.shelf)

    def _open_relay(self, serve: dict[str, Any]) -> None:
        limits = Limits(connections=star_connections(policy_of(self.spec).connections))
        self.relay = Relay(self.shelf, serve["address"], [serve["token"]], limits, self.doubted.add)
        self.status.note(address=self.relay.address, port=self.relay.port)

    def _hear(self) -> None:
        """Let the neighbours of another run that joined this job take from it, too."""
        serve = take_json(self.folder.token)
        if not isinstance(serve, dict):
            return
        try:
            if self.relay:
                self.relay.admit(serve["token"])
            else:
                self._open_relay(serve)
        except HubError as error:
            self.status.note(relay_fault=str(error))

    def _origins(self, hub: Hub, order: dict[str, Any]) -> Sequence[Origin]:
        policy = policy_of(self.spec)
        rank = self.relay.rank if self.relay and order.get("source") else None
        peers = [Peer(check_upstream(upstream), order["token"], policy, rank=rank) for upstream in order["upstreams"]]
        last = (_NoHub if self.spec.get("offline") else _Late)(hub, self.manifest)
        found: list[Origin] = [*peers, last]
        if peers and not order.get("hub"):
            reserve = Reserve(last, peers, float(self.spec.get("gone_s") or GONE_S))
            found = [*reserve.upstreams, reserve]
        return [_Watched(origin, self.status) for origin in found]

    def _await_order(self) -> dict[str, Any] | None:
        until = time.monotonic() + JOIN_S
        while time.monotonic() < until:
            if self.folder.stop.exists():
                return None
            order = take_json(self.folder.upstreams)
            if order is not None:
                return dict(order)
            time.sleep(POLL_S)
        raise HubError(
            f"the job for {self.manifest.repo} was never told where to take it from, since the run that started it "
            "ended: run again"
        )

    def _fail(self, message: str, fields: dict[str, Any]) -> None:
        self.shelf.close()
        write_private(self.folder.result, {"failed": True, "msg": message, "fields": fields})

    def _serve(self) -> None:
        """Until nobody needs it any more."""
        if self.relay is None:
            # The keeper may be about to open one, for a run that joined in the last second.
            with self._hearing:
                self._hear()
        if self.relay is None:
            return
        self.status.note(done=None, file=None, source=None)
        self.status.update("serving")
        began = time.monotonic()
        idle = False
        while not idle and not self.folder.stop.exists():
            time.sleep(POLL_S)
            self._forget_doubted()
            idle = min(time.monotonic() - began, self.relay.idle_s()) >= self.idle_s

    def _forget_doubted(self) -> None:
        """Let the next run hash the files that neighbours found to be something else."""
        doubted = {self.doubted.pop() for _number in range(len(self.doubted))}
        if not doubted:
            return
        store = RepoStore(Path(self.spec["store"]), self.manifest.hub, self.manifest.repo)
        try:
            with store.locked(FORGET_S, Progress()):
                ledger = store.read_ledger()
                files = ledger.files(self.manifest.id)
                for entry in [files[path] for path in doubted if path in files]:
                    ledger.forget(entry["inode"], entry["device"])
                store.save_ledger(ledger)
        except (OSError, StoreError) as error:
            names = ", ".join(sorted(doubted))
            sys.stderr.write(f"what neighbours found wrong could not be noted ({error}): {names}\n")

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(STATUS_S):
            with self._hearing:
                self._hear()
            if self.relay:
                self.status.note(in_use=self.relay.in_use(IN_USE_S))
            # A full disk below /run must not end a download.
            with contextlib.suppress(OSError):
                self.status.tick()


def hold_lock(folder: Folder) -> int | None:
    """The descriptor that keeps the job's lock; None where another job has it."""
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    for _try in range(50):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            # Perhaps only somebody who looks whether it is held.
            time.sleep(POLL_S)
    os.close(descriptor)
    return None


def is_locked(folder: Folder) -> bool:
    """Whether the job in *folder* lives."""
    try:
        descriptor = open_regular(folder.lock)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def main(path: str, detach: bool = False) -> None:
    """The job in *path*; with *detach* it leaves its parent and its session."""
    if detach:
        if os.fork():
            os._exit(0)
        os.setsid()
    folder = Folder(Path(path))
    lock = hold_lock(folder)
    if lock is None:
        raise StoreError(f"another process holds the lock in {path}")
    try:
        spec = take_json(folder.spec)
        if spec is None:
            return
        use_environment(spec.get("environment") or {})
        Job(folder, spec).run()
    finally:
        for place in (folder.payload, folder.upstreams, folder.token):
            with contextlib.suppress(OSError):
                place.unlink()
        os.close(lock)


def use_environment(given: dict[str, str]) -> None:
    """Follow the proxies of the task rather than those of whoever started this process."""
    for name in list(os.environ):
        if name.lower() in PROXY_VARIABLES:
            del os.environ[name]
    os.environ.update(given)
