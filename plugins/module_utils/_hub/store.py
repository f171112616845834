# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model store on disk: layout, lock, ledger, verification, publication. Private to socle.inference.

    <store>/
      <link> -> .store/<hub>/<org>--<name>/rev/<id>     relative symlink, flipped by rename
      .store/<hub>/<org>--<name>/
         rev/<id>/            real files, published by one rename
         manifest/<id>.json   immutable
         ledger.json          which inodes were proven, and what a name resolved to; only a cache
         stage/<job>/         a download in progress: part/ (growing), tree/ (proven)
         stage/rejected/      what arrived with the wrong hash, and what did not belong into a snapshot
         lock                 flock; says who holds it

Whatever the moment a process dies, rev/<id> is either absent or complete; the next run under the lock clears the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile, is_commit, path_fault
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, loads
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

GIB = 1 << 30
RESERVE_BYTES = 5 * GIB
RESERVE_SHARE = 0.02
SPARE_INODES = 64
STALE_STAGE_S = 7 * 86400
LOCK_POLL_S = 0.25
HASH_BUFFER = 1 << 20
LEDGER_SCHEMA = 1
SNAPSHOT = re.compile(r"[0-9a-f]{12}")
IDENTITY = ("size", "mtime_ns", "ctime_ns", "inode", "device")


@dataclass(frozen=True)
class Space:
    """What a file system has left."""

    free: int
    total: int
    inodes: int | None


def read_space(folder: Path) -> Space:
    """The space under *folder*, or under the nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = os.statvfs(folder)
    inodes = found.f_favail if found.f_files else None
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, inodes)


def reserve_bytes(gib: float | None) -> int | None:
    """The reserve that a person asked for, in bytes; raises StoreError for what is no size."""
    if gib is None:
        return None
    if not math.isfinite(gib) or gib < 0:
        raise StoreError(f"reserve_gib must be a number of GiB, 0 or more, found {gib}")
    return int(gib * GIB)


def check_space(space: Space, need: int, files: int, reserve: int | None, folder: Path) -> None:
    """Raise StoreError unless *need* bytes fit and the reserve stays free."""
    kept = max(RESERVE_BYTES, int(space.total * RESERVE_SHARE)) if reserve is None else reserve
    if need and space.free < need + kept:
        raise StoreError(
            f"{folder} has {space.free / GIB:.2f} GiB free, but {need / GIB:.2f} GiB are to be downloaded and "
            f"{kept / GIB:.2f} GiB must "
            "stay free: make room, choose another store or lower reserve_gib; nothing was downloaded",
            need_bytes=need,
            free_bytes=space.free,
            reserve_bytes=kept,
        )
    if space.inodes is not None and space.inodes < files + SPARE_INODES:
        raise StoreError(f"{folder} has {space.inodes} inodes left, but {files} files are to be downloaded: make room")


def hash_file(location: Path) -> str:
    """The SHA-256 of a regular file; a symbolic link is not followed."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(HASH_BUFFER))
    descriptor = os.open(location, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as handle:
        while True:
            count = handle.readinto(buffer)
            if not count:
                return digest.hexdigest()
            digest.update(buffer[:count])


def _identity(status: os.stat_result) -> dict[str, int]:
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
        "device": status.st_dev,
    }


@dataclass
class Ledger:
    """What is known without hashing again. Losing it costs time, never correctness."""

    revisions: dict[str, dict[str, Any]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def files(self, snapshot: str) -> dict[str, Any]:
        """The entries of a snapshot, by path; changes are kept."""
        files: dict[str, Any] = self.revisions.setdefault(snapshot, {"files": {}, "full": None})["files"]
        return files

    def proves(self, snapshot: str, file: ModelFile, status: os.stat_result) -> bool:
        """Whether the inode is the one that was found to hold *file*, untouched since."""
        entry = self.revisions.get(snapshot, {}).get("files", {}).get(file.path)
        return bool(entry == {**_identity(status), "sha256": file.sha256}) and status.st_size == file.size

    def note(self, snapshot: str, file: ModelFile, status: os.stat_result) -> None:
        """Remember that this inode holds *file*."""
        self.files(snapshot)[file.path] = {**_identity(status), "sha256": file.sha256}

    def forget(self, status: os.stat_result) -> None:
        """Remember no longer what this inode holds, under any of its names."""
        for revision in self.revisions.values():
            for path, entry in list(revision["files"].items()):
                if (entry.get("inode"), entry.get("device")) == (status.st_ino, status.st_dev):
                    del revision["files"][path]

    def dumps(self) -> str:
        return json.dumps({"schema": LEDGER_SCHEMA, "revisions": self.revisions, "refs": self.refs}) + "\n"


def load_ledger(text: str) -> Ledger:
    """The ledger from its text; an empty one where it is damaged, since everything can be proven again."""
    try:
        document = json.loads(text)
        if document["schema"] != LEDGER_SCHEMA:
            return Ledger()
        revisions, refs = document["revisions"], document["refs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Ledger()
    found = Ledger()
    for name, value in revisions.items() if isinstance(revisions, dict) else ():
        files = value.get("files") if isinstance(value, dict) else None
        if SNAPSHOT.fullmatch(name) and isinstance(files, dict):
            found.files(name).update((path, entry) for path, entry in files.items() if _is_entry(path, entry))
    for name, value in refs.items() if isinstance(refs, dict) else ():
        if isinstance(value, str) and SNAPSHOT.fullmatch(value):
            found.refs[name] = value
    return found


def _is_entry(path: str, entry: Any) -> bool:
    return (
        path_fault(path) is None
        and isinstance(entry, dict)
        and set(entry) == {*IDENTITY, "sha256"}
        and all(isinstance(entry[name], int) and not isinstance(entry[name], bool) for name in IDENTITY)
        and isinstance(entry["sha256"], str)
    )


@dataclass(frozen=True)
class Source:
    """A file of another snapshot that was found to hold what is wanted."""

    snapshot: str
    file: ModelFile
    location: Path


@dataclass
class Inspection:
    """What is in a published snapshot, compared with its manifest."""

    intact: dict[str, os.stat_result] = field(default_factory=dict)
    wanted: list[ModelFile] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    hashed_files: int = 0
    hashed_bytes: int = 0
    renewed: bool = False
    """The ledger knows less than this inspection found."""

    @property
    def whole(self) -> bool:
        return not self.wanted and not self.extra


class RepoStore:
    """The part of the store that belongs to one repository."""

    def __init__(self, root: Path, hub: str, repo: str) -> None:
        self.root = root
        self.hub = hub
        self.repo = repo
        self.base = root / ".store" / hub / repo.replace("/", "--")
        self.stage = self.base / "stage"
        self.rejected = self.stage / "rejected"

    def revision(self, snapshot: str) -> Path:
        return self.base / "rev" / snapshot

    # What is known

    def read_manifest(self, snapshot: str) -> Manifest | None:
        """The manifest of a snapshot, or None where there is no usable one of this repository."""
        try:
            manifest = loads((self.base / "manifest" / f"{snapshot}.json").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, StoreError):
            return None
        return manifest if (manifest.hub, manifest.repo, manifest.id) == (self.hub, self.repo, snapshot) else None

    def read_ledger(self) -> Ledger:
        try:
            return load_ledger((self.base / "ledger.json").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return Ledger()

    def known(self, revision: str, ledger: Ledger) -> Manifest | None:
        """What *revision* meant when it was last seen here."""
        if is_commit(revision):
            manifest = self.read_manifest(revision[:12])
            return manifest if manifest and manifest.commit == revision else None
        if revision in ledger.refs:
            return self.read_manifest(ledger.refs[revision])
        try:
            names = [entry.name[:-5] for entry in os.scandir(self.base / "manifest") if entry.name.endswith(".json")]
        except OSError:
            return None
        manifests = [manifest for manifest in map(self.read_manifest, names) if manifest]
        return max(
            (manifest for manifest in manifests if manifest.requested == revision),
            key=lambda manifest: manifest.created,
            default=None,
        )

    def inspect(self, manifest: Manifest, ledger: Ledger, full: bool, progress: Progress) -> Inspection:
        """Compare rev/<id> with *manifest*: by the ledger, and by hashing where that says nothing (or *full*)."""
        folder = self.revision(manifest.id)
        found = Inspection()
        files = {file.path: file for file in manifest.files}
        folders = {parent.as_posix() for path in files for parent in Path(path).parents}
        to_hash: list[tuple[ModelFile, os.stat_result]] = []
        seen: set[str] = set()
        for path, status in _walk(folder, folders, found.extra):
            file = files.get(path)
            if file is None:
                found.extra.append(path)
                continue
            seen.add(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                found.damaged.append(path)
            elif ledger.proves(manifest.id, file, status) and not full:
                found.intact[path] = status
            else:
                to_hash.append((file, status))
        total, done = sum(file.size for file, _status in to_hash), 0
        if to_hash:
            with ThreadPoolExecutor(_hash_workers()) as pool:
                hashes = pool.map(lambda item: hash_file(folder / item[0].path), to_hash)
                for (file, status), sha256 in zip(to_hash, hashes):
                    done += file.size
                    progress.update("verifying", done=done, total=total, unit="B", detail=file.path)
                    if sha256 == file.sha256:
                        found.renewed = found.renewed or not ledger.proves(manifest.id, file, status)
                        found.intact[file.path] = status
                    else:
                        found.damaged.append(file.path)
        found.hashed_files, found.hashed_bytes = len(to_hash), total
        found.damaged.sort()
        found.wanted = [file for file in manifest.files if file.path not in found.intact]
        return found

    def reusable(
        self, wanted: Iterable[ModelFile], ledger: Ledger, snapshot: str, full: bool, progress: Progress
    ) -> dict[str, Source]:
        """For paths of *wanted*: a proven file with the same content in another snapshot, to be hard-linked.

        With *full*, each of them is hashed as well, and the ledger forgets those that turn out to be rotten.
        """
        by_content: dict[tuple[str, int], tuple[str, str]] = {}
        for name, revision in ledger.revisions.items():
            if name != snapshot:
                for path, entry in revision["files"].items():
                    by_content[(entry.get("sha256"), entry.get("size"))] = (name, path)
        found: dict[str, Source] = {}
        for file in wanted:
            name, path = by_content.get((file.sha256, file.size), ("", ""))
            source = self.revision(name) / path
            with contextlib.suppress(OSError):
                same = ModelFile(path, file.size, file.sha256)
                status = source.lstat()
                if name and stat.S_ISREG(status.st_mode) and ledger.proves(name, same, status):
                    found[file.path] = Source(name, same, source)
        if full and found:
            sound = self._hash_sources({source.location: source for source in found.values()}, ledger, progress)
            found = {path: source for path, source in found.items() if source.location in sound}
        return found

    def _hash_sources(self, sources: dict[Path, Source], ledger: Ledger, progress: Progress) -> set[Path]:
        def rotten(location: Path) -> os.stat_result | None:
            status = location.lstat()
            return None if hash_file(location) == sources[location].file.sha256 else status

        sound = set()
        total, done = sum(source.file.size for source in sources.values()), 0
        with ThreadPoolExecutor(_hash_workers()) as pool:
            for location, status in zip(sources, pool.map(rotten, sources)):
                done += sources[location].file.size
                progress.update("verifying", done=done, total=total, unit="B", detail=sources[location].file.path)
                if status is None:
                    sound.add(location)
                else:
                    ledger.forget(status)
        return sound

    # The link

    def read_link(self, link: str) -> str | None:
        """The snapshot that <store>/<link> names; None without a link. Raises StoreError for what is not ours."""
        place = self.root / link
        try:
            target = str(place.readlink())
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except OSError as error:
            raise StoreError(
                f"{place} exists and is no link of this store: move it away or choose another name with the option link"
            ) from error
        prefix = f".store/{self.hub}/{self.base.name}/rev/"
        if not target.startswith(prefix):
            raise StoreError(
                f"{place} points to {target}, which is not {self.repo}: choose another name with the option link",
                target=target,
            )
        return target[len(prefix) :]

    def flip_link(self, link: str, snapshot: str, job: Path) -> None:
        """Let <store>/<link> name *snapshot*, in one step."""
        staged = job / "link"
        staged.symlink_to(f".store/{self.hub}/{self.base.name}/rev/{snapshot}")
        staged.replace(self.root / link)
        sync_folder(self.root)

    # Changes; all of them under the lock

    def prepare(self) -> None:
        """Make the folders."""
        for folder in (self.root, self.base / "rev", self.base / "manifest", self.stage):
            make_folder(folder)

    @contextlib.contextmanager
    def locked(
        self, timeout_s: float, progress: Progress, sleep: Callable[[float], None] = time.sleep
    ) -> Iterator[bool]:
        """Hold the repository's lock; yields whether it had to be waited for. Raises StoreError after *timeout_s*."""
        descriptor = os.open(self.base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            started = time.monotonic()
            waited = False
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    owner = os.pread(descriptor, 1024, 0).decode("utf-8", "replace")
                    spent = time.monotonic() - started
                    if spent >= timeout_s:
                        raise self._lock_error(owner, timeout_s) from None
                    waited = True
                    progress.update("waiting for another run", int(spent), int(timeout_s), "s", _describe_owner(owner))
                    sleep(min(LOCK_POLL_S, max(0.01, timeout_s - spent)))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_owner()).encode(), 0)
            yield waited
        finally:
            # Closing gives the lock back; so does the end of the process, however it comes.
            os.close(descriptor)

    def _lock_error(self, owner: str, timeout_s: float) -> StoreError:
        return StoreError(
            f"another run holds the lock of {self.repo} since before {timeout_s:g} s: {_describe_owner(owner)}; "
            "wait for it, end it, or raise lock_timeout",
            lock=str(self.base / "lock"),
        )

    def jobs(self) -> list[Path]:
        """Stage folders; under the lock, all but one's own belong to processes that are gone."""
        try:
            return sorted(Path(entry.path) for entry in os.scandir(self.stage) if entry.path != str(self.rejected))
        except OSError:
            return []

    def leftovers(self, snapshot: str) -> list[Path]:
        """Stage folders for *snapshot*, or of no use to anyone any more."""
        found = []
        for job in self.jobs():
            try:
                target = json.loads((job / "owner.json").read_text(encoding="utf-8"))["snapshot"]
                age = time.time() - (job / "owner.json").stat().st_mtime
            except (OSError, ValueError, KeyError, TypeError):
                target, age = snapshot, 0.0
            if target == snapshot or age > STALE_STAGE_S:
                found.append(job)
        return found

    def outdated(self) -> list[Path]:
        """Foreign files that were moved aside so long ago that nobody will ask for them."""
        found = []
        for place in self.rejected.glob("extra-*"):
            with contextlib.suppress(OSError):
                if time.time() - place.lstat().st_mtime > STALE_STAGE_S:
                    found.append(place)
        return found

    def new_job(self, snapshot: str) -> Path:
        """An own stage folder."""
        job = self.stage / f"{os.getpid()}-{secrets.token_hex(4)}"
        for folder in (job, job / "part", job / "tree"):
            make_folder(folder)
        (job / "owner.json").write_text(json.dumps({**_owner(), "snapshot": snapshot}), encoding="utf-8")
        return job

    def adopt(self, wanted: Iterable[ModelFile], job: Path) -> int:
        """Move what dead runs had received of *wanted* into *job*; returns its bytes. It is hashed again before use."""
        adopted = 0
        dead = [other for other in self.jobs() if other != job]
        for file in wanted:
            for other in dead:
                place = part_of(job, file)
                for candidate in (other / "tree" / file.path, part_of(other, file)):
                    with contextlib.suppress(OSError):
                        status = candidate.lstat()
                        fits = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size <= file.size
                        if fits and (not place.exists() or place.stat().st_size < status.st_size):
                            candidate.replace(place)
                            place.chmod(0o600)
            with contextlib.suppress(OSError):
                adopted += part_of(job, file).stat().st_size
        return adopted

    def reject(self, job: Path, file: ModelFile, snapshot: str) -> Path:
        """Keep what arrived wrong, once per file, for a person to look at."""
        make_folder(self.rejected)
        place = self.rejected / f"{snapshot}-{file.path.replace('/', '%')[-150:]}"
        part_of(job, file).replace(place)
        return place

    def forget_rejected(self, snapshot: str) -> None:
        """The snapshot is in place: what arrived wrong before is of no interest any more."""
        for place in self.rejected.glob(f"{snapshot}-*"):
            place.unlink()

    def link_file(self, source: Source, target: Path, ledger: Ledger) -> os.stat_result | None:
        """Hard-link *source*; None where that is not possible, or where it changed since it was proven.

        The link changes the inode's ctime; the ledger learns that, for all its names.
        """
        make_folder(target.parent)
        try:
            before = source.location.lstat()
            if not stat.S_ISREG(before.st_mode) or not ledger.proves(source.snapshot, source.file, before):
                return None
            os.link(source.location, target, follow_symlinks=False)
        except OSError:
            return None
        after = target.lstat()
        if _content_state(before) != _content_state(after):
            target.unlink()
            return None
        _renew_ctime(ledger, after)
        return after

    def publish(
        self,
        manifest: Manifest,
        job: Path,
        extra: Iterable[str],
        ledger: Ledger,
        linked: Mapping[str, os.stat_result],
    ) -> None:
        """Put the proven files of *job* in place: the folder by one rename, or file by file into one that exists.

        *linked* are the states of the files that other snapshots can reach too: they must not have changed since.
        """
        tree, folder = job / "tree", self.revision(manifest.id)
        fresh = dict(_walk(tree, None, []))
        for path, status in linked.items():
            if path not in fresh or _content_state(fresh[path]) != _content_state(status):
                raise StoreError(
                    f"{path}, which {manifest.id} shares with another revision, was changed by somebody else "
                    "before it was published: run again"
                )
        sync_tree(tree)
        self.save_manifest(manifest, job)
        for number, path in enumerate(sorted(extra)):
            make_folder(self.rejected)
            # From now on its age counts.
            os.utime(folder / path, follow_symlinks=False)
            (folder / path).rename(self.rejected / f"extra-{job.name}-{number}-{path.replace('/', '%')[-100:]}")
        if folder.exists():
            for path in fresh:
                make_folder((folder / path).parent)
                (tree / path).replace(folder / path)
            sync_tree(folder)
        else:
            tree.rename(folder)
        sync_folder(folder.parent)
        for file in manifest.files:
            status = (folder / file.path).lstat()
            expected = fresh.get(file.path)
            if expected and _content_state(expected) != _content_state(status):
                raise StoreError(f"{folder / file.path} was changed by somebody else while it was published: run again")
            if expected:
                ledger.note(manifest.id, file, status)
                _renew_ctime(ledger, status)

    def save_ledger(self, ledger: Ledger, job: Path | None = None) -> None:
        ledger.revisions = {name: value for name, value in ledger.revisions.items() if self.revision(name).is_dir()}
        self._write(self.base / "ledger.json", ledger.dumps(), job or self.base)

    def save_manifest(self, manifest: Manifest, job: Path | None = None) -> None:
        """Write the manifest, unless there is a usable one: that is never changed."""
        if self.read_manifest(manifest.id) is None:
            self._write(self.base / "manifest" / f"{manifest.id}.json", manifest.dumps(), job or self.base)

    def _write(self, place: Path, text: str, folder: Path) -> None:
        staged = folder / f".{place.name}.new"
        with staged.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fchmod(handle.fileno(), 0o644)
            os.fsync(handle.fileno())
        staged.replace(place)
        sync_folder(place.parent)


def part_of(job: Path, file: ModelFile) -> Path:
    """Where *file* grows: named by content and path, so that a later run can go on with it."""
    return job / "part" / f"{file.sha256}-{hashlib.sha256(file.path.encode()).hexdigest()[:12]}"


def make_folder(folder: Path) -> None:
    """Like mkdir -p with mode 0755 for what is new, whatever the umask."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for place in reversed(missing):
        with contextlib.suppress(FileExistsError):
            place.mkdir()
            place.chmod(0o755)


def remove_job(job: Path) -> None:
    """Remove a stage folder, or what was moved aside."""
    if job.is_dir() and not job.is_symlink():
        shutil.rmtree(job)
    else:
        job.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush the names in *folder* and below; the files themselves were flushed when they were complete."""
    for parent, _folders, _files in os.walk(folder):
        sync_folder(Path(parent))


def _walk(folder: Path, expected: set[str] | None, extra: list[str]) -> list[tuple[str, os.stat_result]]:
    """All below *folder* that is no folder; links are not followed. Unexpected folders end up in *extra*, whole."""
    found: list[tuple[str, os.stat_result]] = []
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            entries = list(os.scandir(folder / inside))
        except FileNotFoundError:
            continue
        for entry in entries:
            path = f"{inside}/{entry.name}" if inside else entry.name
            if not entry.is_dir(follow_symlinks=False):
                found.append((path, entry.stat(follow_symlinks=False)))
            elif expected is None or path in expected:
                pending.append(path)
            else:
                extra.append(path)
    return found


def _hash_workers() -> int:
    """Half of the cores: an engine may be serving on this host."""
    return min(4, max(1, (os.cpu_count() or 2) // 2))


def _content_state(status: os.stat_result) -> tuple[int, int, int, int]:
    """What stays as it is when an unchanged file gets another name; its ctime does not."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _renew_ctime(ledger: Ledger, status: os.stat_result) -> None:
    for revision in ledger.revisions.values():
        for entry in revision["files"].values():
            if {**entry, **_identity(status)} == {**entry, "ctime_ns": status.st_ctime_ns}:
                entry["ctime_ns"] = status.st_ctime_ns


def _owner() -> dict[str, Any]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = None
    return {"host": socket.gethostname(), "pid": os.getpid(), "boot_id": boot, "since": utc_now()}


def _describe_owner(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "a process that has just started"
