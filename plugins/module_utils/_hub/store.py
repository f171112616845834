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
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.hashing import hash_files
from ansible_collections.socle.inference.plugins.module_utils._hub.journal import forget_journal, held_spans, move_part
from ansible_collections.socle.inference.plugins.module_utils._hub.lease import (
    change_still,
    is_own,
    is_written,
    wait_for_tick,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.ledger import Ledger, identity, load_ledger
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile, is_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, loads
from ansible_collections.socle.inference.plugins.module_utils._hub.names import (
    REPO,
    REPO_RULE,
    SOURCES,
    folder_of,
    repo_of,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.owner import (
    describe_owner,
    own_identity,
    parse_owner,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import (
    LEDGER_BYTES,
    MANIFEST_BYTES,
    OWNER_BYTES,
    read_state,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import files_below
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

STALE_STAGE_S = 7 * 86400
LOCK_POLL_S = 0.25
LOOK_S = 0.1
"""Who only looks whether the lock is held (read_lock()) has it for a moment, which is no other run."""
TRASH = "trash-"
FLAT_TAIL_BYTES = 100


@dataclass(frozen=True)
class Source:
    """A file of another snapshot that holds what is wanted, or did when it was last looked at."""

    snapshot: str
    file: ModelFile
    location: Path
    proven: bool
    """Its times say that nobody touched it since."""


@dataclass
class Inspection:
    """What is in a published snapshot, compared with its manifest."""

    intact: dict[str, os.stat_result] = field(default_factory=dict)
    wanted: list[ModelFile] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    """There with the right size, and not hashed, since only a look was wanted."""
    unreadable: list[str] = field(default_factory=list)
    """Damaged, since the disk cannot read them any more."""
    written: list[str] = field(default_factory=list)
    """Damaged, since somebody has them open for writing."""
    rotten: list[tuple[int, int]] = field(default_factory=list)
    """Inode and device of what was hashed and found to be something else."""
    hashed_files: int = 0
    hashed_bytes: int = 0
    renewed: bool = False
    """The ledger knows less than this inspection found."""
    full: bool = False
    full_s: float | None = None
    """When all that is there was hashed, in seconds since the epoch."""

    def take_over(self, earlier: Inspection) -> None:
        """Count what an earlier look hashed, which this one did not have to."""
        self.hashed_files += earlier.hashed_files
        self.hashed_bytes += earlier.hashed_bytes
        self.full = self.full or earlier.full
        self.full_s = self.full_s or earlier.full_s

    @property
    def whole(self) -> bool:
        return not self.wanted and not self.extra


class LockHeld(StoreError):
    """Another run holds the lock of a repository."""


class RepoStore:
    """The part of the store that belongs to one repository. Raises StoreError for names that would leave the store."""

    def __init__(self, root: Path, hub: str, repo: str) -> None:
        if hub not in SOURCES:
            raise StoreError(f"the store keeps models of {', '.join(SOURCES)}, and none of {hub[:120]!r}")
        if not REPO.fullmatch(repo):
            raise StoreError(f"repo must be {REPO_RULE}, found {repo[:120]!r}")
        self.root = root
        self.hub = hub
        self.repo = repo
        self.base = root / ".store" / hub / folder_of(repo)
        self.stage = self.base / "stage"
        self.rejected = self.stage / "rejected"

    @classmethod
    def at(cls, root: Path, hub: str, folder: str) -> RepoStore | None:
        """The repository in <root>/.store/<hub>/<folder>; None where that is no folder of a repository."""
        repo = repo_of(folder)
        return cls(root, hub, repo) if repo and hub in SOURCES else None

    def revision(self, snapshot: str) -> Path:
        return self.base / "rev" / snapshot

    # What is known

    def read_manifest(self, snapshot: str) -> Manifest | None:
        """The manifest of a snapshot, or None where there is no usable one of this repository."""
        try:
            manifest = loads(read_state(self.base / "manifest" / f"{snapshot}.json", MANIFEST_BYTES))
        except (OSError, UnicodeDecodeError, StoreError):
            return None
        return manifest if (manifest.hub, manifest.repo, manifest.id) == (self.hub, self.repo, snapshot) else None

    def read_ledger(self, warnings: list[str] | None = None) -> Ledger:
        """What is known; nothing where the ledger is damaged, which *warnings* are told once."""
        place = self.base / "ledger.json"
        try:
            found = load_ledger(read_state(place, LEDGER_BYTES))
        except FileNotFoundError:
            found = Ledger()
        except (OSError, UnicodeDecodeError):
            found = Ledger(damaged=True)
        if found.damaged and warnings is not None:
            warning = f"{place} is damaged and counts as empty: what it proved is hashed again"
            warnings += [warning] if warning not in warnings else []
        return found

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

    def inspect(
        self, manifest: Manifest, ledger: Ledger, full: bool, progress: Progress, by_hash: bool = True
    ) -> Inspection:
        """Compare rev/<id> with *manifest*: by the ledger, and by hashing where that says nothing (or *full*).

        Without *by_hash* nothing is read: what the ledger does not prove is named as unproven.
        """
        folder = self.revision(manifest.id)
        found = Inspection()
        files = {file.path: file for file in manifest.files}
        folders = {parent.as_posix() for path in files for parent in Path(path).parents}
        to_hash: list[tuple[ModelFile, os.stat_result]] = []
        seen: set[str] = set()
        for path, status in _list_tree(folder, folders, found.extra):
            file = files.get(path)
            if file is None:
                found.extra.append(path)
                continue
            seen.add(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                found.damaged.append(path)
            elif ledger.proves(manifest.id, file, status) and not full:
                found.intact[path] = status
            elif not by_hash:
                found.unproven.append(path)
            else:
                to_hash.append((file, status))
        total = sum(file.size for file, _status in to_hash)
        _wait_for_ticks(status for _file, status in to_hash)
        hashes = hash_files([folder / file.path for file, _status in to_hash], total, progress, unreadable="")
        for (file, status), sha256 in zip(to_hash, hashes):
            if sha256 == file.sha256 and is_written(folder / file.path):
                # It may hold something else as soon as this is said.
                found.damaged.append(file.path)
                found.written.append(file.path)
                found.rotten.append((status.st_ino, status.st_dev))
            elif sha256 == file.sha256:
                found.renewed = found.renewed or not ledger.proves(manifest.id, file, status)
                found.intact[file.path] = status
            else:
                found.damaged.append(file.path)
                if not sha256:
                    found.unreadable.append(file.path)
                found.rotten.append((status.st_ino, status.st_dev))
        found.hashed_files, found.hashed_bytes = len(to_hash), total
        found.damaged.sort()
        there = {*found.intact, *found.unproven}
        found.wanted = [file for file in manifest.files if file.path not in there]
        return found

    def reusable(self, wanted: Iterable[ModelFile], ledger: Ledger, snapshot: str) -> dict[str, Source]:
        """For paths of *wanted*: a file with the same content in another snapshot, to be hard-linked.

        One whose times prove nothing, since it got or lost a name, is taken as well, where there is no other.
        """
        by_content: dict[tuple[str, int], list[tuple[str, str]]] = {}
        for name, revision in ledger.revisions.items():
            if name != snapshot:
                for path, entry in revision["files"].items():
                    by_content.setdefault((entry["sha256"], entry["size"]), []).append((name, path))
        found: dict[str, Source] = {}
        for file in wanted:
            for name, path in by_content.get((file.sha256, file.size), ()):
                same, place = ModelFile(path, file.size, file.sha256), self.revision(name) / path
                with contextlib.suppress(OSError):
                    status = place.lstat()
                    proven = ledger.proves(name, same, status)
                    better = file.path not in found or (proven and not found[file.path].proven)
                    if stat.S_ISREG(status.st_mode) and better and ledger.knows(name, same, status, whenever=True):
                        found[file.path] = Source(name, same, place, proven)
        return found

    def sound_sources(
        self, found: Mapping[str, Source], ledger: Ledger, full: bool, progress: Progress
    ) -> tuple[dict[str, Source], dict[Path, int]]:
        """Those of *found* that hold what they should, and the size of each that was hashed for it: all of them with
        *full*, else those that are not proven. The ledger learns what came out."""
        sources = {source.location: source for source in found.values() if full or not source.proven}
        states = {location: location.lstat() for location in sources}
        _wait_for_ticks(states.values())
        sizes = {location: source.file.size for location, source in sources.items()}
        rotten = set()
        for location, sha256 in zip(sources, hash_files(list(sources), sum(sizes.values()), progress, unreadable="")):
            source, status = sources[location], states[location]
            if sha256 == source.file.sha256:
                ledger.note(source.snapshot, source.file, status)
                ledger.note_hash(sha256, status)
            else:
                rotten.add(location)
                ledger.forget(status.st_ino, status.st_dev)
        return {path: source for path, source in found.items() if source.location not in rotten}, sizes

    # The link

    def read_link(self, link: str) -> str | None:
        """The snapshot that <store>/<link> names; None without a link, or where it names a revision that the same
        repository has from another hub, which may be replaced. Raises StoreError for what is not ours."""
        place = self.root / link
        try:
            target = str(place.readlink())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise StoreError(f"{place} exists and is no link of this store: move it away") from error
        inner, hub, folder, *rest = [*target.split("/"), "", "", ""]
        if inner != ".store" or folder != self.base.name or rest[0] != "rev":
            raise StoreError(
                f"{place} points to {target}, which is not {self.repo}: remove it, unless something else uses it",
                target=target,
            )
        return rest[1] if hub == self.hub else None

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
        """Hold the repository's lock; yields whether it had to be waited for. Raises LockHeld after *timeout_s*."""
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
                    if spent >= max(timeout_s, LOOK_S):
                        raise self._lock_error(owner, timeout_s) from None
                    waited = True
                    progress.update("waiting for another run", int(spent), int(timeout_s), "s", describe_owner(owner))
                    sleep(min(LOCK_POLL_S, max(0.01, timeout_s - spent)))
            os.ftruncate(descriptor, 0)
            # On a full disk the lock holds all the same, without a name.
            with contextlib.suppress(OSError):
                os.pwrite(descriptor, json.dumps(own_identity()).encode(), 0)
            yield waited
        finally:
            # Closing gives the lock back; so does the end of the process, however it comes.
            os.close(descriptor)

    def read_lock(self) -> dict[str, Any] | None:
        """Who holds the lock: host, pid, since, state (empty where that is not known yet); None when it is free."""
        try:
            descriptor = os.open(self.base / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return parse_owner(os.pread(descriptor, 1024, 0).decode("utf-8", "replace")) or {}
        except OSError:
            # A file system without locks, where nobody can hold one.
            return None
        finally:
            os.close(descriptor)
        return None

    def _lock_error(self, owner: str, timeout_s: float) -> LockHeld:
        return LockHeld(
            f"another run holds the lock of {self.repo} since before {timeout_s:g} s: {describe_owner(owner)}; "
            "wait for it, end it, or raise lock_timeout",
            lock=str(self.base / "lock"),
        )

    def jobs(self) -> list[Path]:
        """Stage folders; under the lock, all but one's own belong to processes that are gone. What garbage collection
        took out of sight is its own to end."""
        try:
            places = [Path(entry.path) for entry in os.scandir(self.stage) if not entry.name.startswith(TRASH)]
            return sorted(place for place in places if place != self.rejected)
        except OSError:
            return []

    def stage_entries(self) -> list[Path]:
        """All that is not published: downloads that were cut off, what arrived wrong, what was moved aside."""
        found = self._moved_aside()
        with contextlib.suppress(OSError):
            found += [Path(entry.path) for entry in os.scandir(self.stage)]
        return sorted(place for place in found if place != self.rejected or place.is_symlink())

    def _moved_aside(self) -> list[Path]:
        """What is in the folder of what was rejected; what a link in its place leads to is somebody else's."""
        try:
            return [] if self.rejected.is_symlink() else [Path(entry.path) for entry in os.scandir(self.rejected)]
        except OSError:
            return []

    def _make_rejected(self) -> None:
        if self.rejected.is_symlink():
            self.rejected.unlink()
        make_folder(self.rejected)

    def leftovers(self, snapshot: str) -> list[Path]:
        """Stage folders for *snapshot*, or of no use to anyone any more."""
        found = []
        for job in self.jobs():
            try:
                target = json.loads(read_state(job / "owner.json", OWNER_BYTES))["snapshot"]
                age = time.time() - (job / "owner.json").stat().st_mtime
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                target, age = snapshot, 0.0
            if target == snapshot or age > STALE_STAGE_S:
                found.append(job)
        return found

    def outdated(self) -> list[Path]:
        """Foreign files that were moved aside so long ago that nobody will ask for them."""
        found = []
        for place in self._moved_aside():
            with contextlib.suppress(OSError):
                if place.name.startswith("extra-") and time.time() - place.lstat().st_mtime > STALE_STAGE_S:
                    found.append(place)
        return found

    def new_job(self, snapshot: str, about: Mapping[str, Any] | None = None) -> Path:
        """An own stage folder. *about* says more of the snapshot, for whoever lists what is under way."""
        job = self.stage / f"{os.getpid()}-{secrets.token_hex(4)}"
        for folder in (job, job / "part", job / "tree"):
            make_folder(folder)
        (job / "owner.json").write_text(
            json.dumps({**own_identity(), **(about or {}), "snapshot": snapshot}), encoding="utf-8"
        )
        return job

    def adopt(self, wanted: Iterable[ModelFile], job: Path) -> int:
        """Move what dead runs had received of *wanted* into *job*; returns its bytes. It is hashed again before use."""
        adopted = 0
        dead = [other for other in self.jobs() if other != job]
        for file in wanted:
            place = part_of(job, file)
            for candidate, held in _received(dead, file):
                with contextlib.suppress(OSError):
                    if candidate.lstat().st_nlink == 1 and held > _held(place, file) and _take_back(candidate):
                        if candidate.parent.name == "part":
                            move_part(candidate, place)
                        else:
                            forget_journal(place)
                            candidate.replace(place)
            adopted += _held(place, file)
        return adopted

    def staged_bytes(self, wanted: Iterable[ModelFile]) -> tuple[int, int]:
        """What dead runs had received of *wanted*: bytes, and the room on disk that these have already."""
        jobs = self.jobs()
        held_bytes = room = 0
        for file in wanted:
            best = max(_received(jobs, file), key=lambda found: found[1], default=None)
            if best:
                with contextlib.suppress(OSError):
                    room += min(file.size, best[0].lstat().st_blocks * 512)
                    held_bytes += best[1]
        return held_bytes, room

    def reject(self, job: Path, file: ModelFile, snapshot: str) -> Path:
        """Keep what arrived wrong, once per file, for a person to look at."""
        self._make_rejected()
        place = self.rejected / f"{snapshot}-{_flat_name(file.path)}"
        part_of(job, file).replace(place)
        forget_journal(part_of(job, file))
        return place

    def forget_rejected(self, snapshot: str) -> None:
        """The snapshot is in place: what arrived wrong before is of no interest any more."""
        for place in self._moved_aside():
            if place.name.startswith(f"{snapshot}-"):
                place.unlink()

    def link_file(self, source: Source, target: Path, ledger: Ledger) -> os.stat_result | None:
        """Hard-link *source*; None where that is not possible, where it changed since it was proven, or where somebody
        could write to it just now.

        The link changes the inode's ctime; the ledger learns that, for all its names.
        """
        make_folder(target.parent)
        try:
            states = change_still(
                source.location,
                lambda status: ledger.knows(source.snapshot, source.file, status),
                lambda _descriptor: os.link(source.location, target, follow_symlinks=False),
            )
        except OSError:
            return None
        if states is None:
            return None
        if identity(target.lstat()) != identity(states[1]):
            target.unlink()
            return None
        ledger.renew_ctime(*states)
        return states[1]

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
        fresh = dict(_list_tree(tree, None, []))
        hashes = {file.path: file.sha256 for file in manifest.files}
        for path, status in linked.items():
            if path not in fresh or not _is_as_linked(fresh[path], status, hashes[path], ledger):
                raise self._changed_while_linked(manifest, path)
        sync_tree(tree)
        self.save_manifest(manifest, job)
        for number, path in enumerate(sorted(extra)):
            self._make_rejected()
            # From now on its age counts.
            os.utime(folder / path, follow_symlinks=False)
            (folder / path).rename(self.rejected / f"extra-{job.name}-{number}-{_flat_name(path)}")
        if folder.exists():
            for path in fresh:
                make_folder((folder / path).parent)
                if path in linked and not is_own(fresh[path]):
                    states = change_still(
                        tree / path,
                        partial(ledger.holds, sha256=hashes[path]),
                        partial(_rename, tree / path, folder / path),
                    )
                    if states is None:
                        raise self._changed_while_linked(manifest, path)
                    ledger.renew_ctime(*states)
                    fresh[path] = states[1]
                else:
                    (tree / path).replace(folder / path)
            sync_tree(folder)
        else:
            tree.rename(folder)
        sync_folder(folder.parent)
        for file in manifest.files:
            status = (folder / file.path).lstat()
            expected = fresh.get(file.path)
            # What came just now is whose the file system says, as where an NFS server makes root somebody else.
            open_to_others = file.path in linked and not (is_own(status) or ledger.holds(status, file.sha256))
            if expected and (content_state(expected) != content_state(status) or open_to_others):
                raise StoreError(f"{folder / file.path} was changed by somebody else while it was published: run again")
            if expected:
                ledger.renew_ctime(expected, status)
                ledger.note(manifest.id, file, status)

    def _changed_while_linked(self, manifest: Manifest, path: str) -> StoreError:
        return StoreError(
            f"{path}, which {manifest.id} shares with another revision, was changed by somebody else "
            "before it was published: run again"
        )

    def remove(self, places: Iterable[Path], ledger: Ledger) -> None:
        """Remove stage folders and what was moved aside. Files in them that revisions hold too lose a name, which
        changes their ctime; *ledger* learns that."""
        for place in places:
            for file in _linked_files(place):
                states = None
                with contextlib.suppress(OSError):
                    states = change_still(file, ledger.holds, partial(_unlink, file))
                if states:
                    ledger.renew_ctime(*states)
            with contextlib.suppress(FileNotFoundError):
                remove_job(place)

    def save_ledger(self, ledger: Ledger, job: Path | None = None) -> None:
        ledger.revisions = {name: value for name, value in ledger.revisions.items() if self.revision(name).is_dir()}
        ledger.links = {
            link: [snapshot for snapshot in history if self.revision(snapshot).is_dir()]
            for link, history in ledger.links.items()
        }
        self._write(self.base / "ledger.json", ledger.dumps(), job or self.base)
        ledger.damaged = False

    def save_manifest(self, manifest: Manifest, job: Path | None = None) -> None:
        """Write the manifest, unless there is a usable one: that is never changed."""
        if self.read_manifest(manifest.id) is None:
            self._write(self.base / "manifest" / f"{manifest.id}.json", manifest.dumps(), job or self.base)

    def _write(self, place: Path, text: str, folder: Path) -> None:
        staged = folder / f".{place.name}.new"
        try:
            with staged.open("w", encoding="utf-8") as handle:
                handle.write(text)
                handle.flush()
                os.fchmod(handle.fileno(), 0o644)
                os.fsync(handle.fileno())
            staged.replace(place)
        except OSError as error:
            with contextlib.suppress(OSError):
                staged.unlink()
            # Writing tells no name.
            raise OSError(error.errno, error.strerror, str(place)) from error
        sync_folder(place.parent)


def part_of(job: Path, file: ModelFile) -> Path:
    """Where *file* grows: named by content and path, so that a later run can go on with it."""
    return job / "part" / f"{file.sha256}-{hashlib.sha256(file.path.encode()).hexdigest()[:12]}"


def _flat_name(path: str) -> str:
    """*path* as one name that no other path has, short enough for a file system, and told by its end."""
    raw = os.fsencode(path)
    tail = raw.replace(b"/", b"%")[-FLAT_TAIL_BYTES:].decode("utf-8", "ignore")
    return f"{hashlib.sha256(raw).hexdigest()[:12]}-{tail}"


def _held(location: Path, file: ModelFile) -> int:
    """How much of *file* the part at *location* holds."""
    return sum(end - start for start, end in held_spans(location, file))


def _received(jobs: Iterable[Path], file: ModelFile) -> list[tuple[Path, int]]:
    """Where *jobs* have something of *file*, and how many bytes."""
    found = []
    for job in jobs:
        whole, part = job / "tree" / file.path, part_of(job, file)
        with contextlib.suppress(OSError):
            status = whole.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size == file.size:
                found.append((whole, file.size))
        with contextlib.suppress(OSError):
            if stat.S_ISREG(part.lstat().st_mode):
                found.append((part, _held(part, file)))
    return found


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


def _linked_files(place: Path) -> Iterator[Path]:
    """The regular files in *place* and below, or *place*, that have other names."""
    for file, status in files_below(place):
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            yield file


def _unlink(place: Path, _descriptor: int) -> None:
    place.unlink()


def _rename(place: Path, target: Path, _descriptor: int) -> None:
    place.replace(target)


def _take_back(place: Path) -> bool:
    """Make a file that a dead run left this user's alone, before it is hashed; False where somebody writes to it."""

    def take(descriptor: int) -> None:
        os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, 0o600)

    return change_still(place, lambda _status: True, take) is not None


def _is_as_linked(found: os.stat_result, linked: os.stat_result, sha256: str, ledger: Ledger) -> bool:
    """Whether a file is as it was when it was linked; one that others may write to, by the time of its last change."""
    if content_state(found) != content_state(linked):
        return False
    return is_own(found) or ledger.holds(found, sha256)


def _wait_for_ticks(states: Iterable[os.stat_result]) -> None:
    """So that whoever writes to these files while they are hashed gives them another time."""
    latest = max(states, key=lambda status: status.st_ctime_ns, default=None)
    if latest is not None:
        wait_for_tick(latest)


def sync_folder(folder: Path) -> None:
    """Flush a folder's names to disk, where the file system can do that for a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems and those of user space say so.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush the names in *folder* and below; the files themselves were flushed when they were complete."""
    for parent, _folders, _files in os.walk(folder):
        sync_folder(Path(parent))


def _list_tree(folder: Path, expected: set[str] | None, extra: list[str]) -> list[tuple[str, os.stat_result]]:
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


def content_state(status: os.stat_result) -> tuple[int, int, int, int]:
    """What stays as it is when an unchanged file gets another name; its ctime does not."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
