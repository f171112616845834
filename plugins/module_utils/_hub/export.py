# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A revision of the store as a folder that travels, such as on a disk. Private to socle.inference.

<path>/manifest.json            written last: the export is complete
<path>/files/...                the files as they are
<path>/volume-001/manifest.json, volume-001/files/...   with volumes, each small enough for its medium; a file that is
                                larger than a volume lies in numbered pieces (name.001, ...) in several of them
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import check_root
from ansible_collections.socle.inference.plugins.module_utils._hub.directory import FILES, MANIFEST, PARTIAL, PIECE
from ansible_collections.socle.inference.plugins.module_utils._hub.hashing import BUFFER_BYTES, hash_file
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, loads
from ansible_collections.socle.inference.plugins.module_utils._hub.names import REPO, REPO_RULE, REVISION
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import GIB, existing
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import MANIFEST_BYTES, read_state
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore, sync_folder
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

VOLUME = "volume-{number:03d}"
FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_VOLUMES = 999
MIN_ROOM_BYTES = 64 << 10
SPARE_BYTES = 64 << 20
"""For folders and tables of the medium's file system."""


@dataclass(frozen=True)
class Order:
    """What is to be exported, and whereto."""

    store: Path
    hub: str
    repo: str
    path: Path
    revision: str | None = None
    """None means what *link* names."""
    link: str | None = None
    volume_bytes: int | None = None
    full: bool = False
    """Read everything back from the medium."""
    check: bool = False


@dataclass(frozen=True)
class Piece:
    """*size* bytes of *file* from *offset* on, which go to *target* below the folder of the export."""

    file: ModelFile
    offset: int
    size: int
    target: str


def lay_out(manifest: Manifest, volume_bytes: int | None) -> tuple[list[Piece], list[str]]:
    """Where everything goes, and the names of the volumes. A file is only cut where it is larger than a volume.

    Raises StoreError where that cannot be.
    """
    if volume_bytes is None:
        return [Piece(file, 0, file.size, f"{FILES}/{file.path}") for file in manifest.files], []
    room = volume_bytes - len(manifest.dumps().encode())
    if room < MIN_ROOM_BYTES:
        raise StoreError(f"volumes of {volume_bytes} bytes are too small for {manifest.repo}: choose larger ones")
    paths = {file.path for file in manifest.files}
    pieces: list[Piece] = []
    number, left = 1, room
    for file in manifest.files:
        if file.size <= room:
            if file.size > left:
                number, left = number + 1, room
            pieces.append(Piece(file, 0, file.size, _in_volume(number, file.path)))
            left -= file.size
            continue
        offset, part = 0, 1
        while offset < file.size:
            if not left:
                number, left = number + 1, room
            name = PIECE.format(path=file.path, number=part)
            if name in paths:
                raise StoreError(f"{file.path} cannot be cut, since a file {name} exists too: choose larger volumes")
            size = min(left, file.size - offset)
            pieces.append(Piece(file, offset, size, _in_volume(number, name)))
            offset, left, part = offset + size, left - size, part + 1
    if number > MAX_VOLUMES:
        raise StoreError(f"{manifest.repo} would need {number} volumes of {volume_bytes} bytes: choose larger ones")
    return pieces, [VOLUME.format(number=count) for count in range(1, number + 1)]


def _in_volume(number: int, name: str) -> str:
    return f"{VOLUME.format(number=number)}/{FILES}/{name}"


def export_snapshot(order: Order, progress: Progress) -> dict[str, Any]:
    """Bring a revision into a folder, proven while it is read; returns what model_export returns. Raises StoreError.

    Goes on where an earlier run ended; what that run left counts once it was hashed.
    """
    started = time.monotonic()
    store, manifest = _find(order)
    pieces, volumes = lay_out(manifest, order.volume_bytes)
    _check_target(order, manifest, pieces, volumes)
    done = _is_complete(order, manifest, pieces, volumes)
    result: dict[str, Any] = {
        "changed": not done,
        "path": str(order.path),
        "repo": manifest.repo,
        "requested": manifest.requested,
        "commit": manifest.commit,
        "content_id": manifest.content_id,
        "volumes": volumes,
        "files": len(manifest.files),
        "bytes": {"total": manifest.total_bytes, "copied": 0, "kept": manifest.total_bytes if done else 0},
        "read_back": order.full and not order.check,
        "rewritten": 0,
    }
    if (not done or order.full) and not order.check:
        _check_room(order, manifest, pieces)
        with _explained(order):
            export = _Export(store, manifest, order, progress)
            copied = export.write(pieces, volumes)
        result["bytes"].update(copied=copied, kept=manifest.total_bytes - copied)
        result["rewritten"] = len(export.damaged)
        result["changed"] = not done or copied > 0
    seconds = time.monotonic() - started
    copied = result["bytes"]["copied"]
    return {**result, "seconds": round(seconds, 3), "mb_s": round(copied / 1e6 / seconds, 1) if copied else None}


def _find(order: Order) -> tuple[RepoStore, Manifest]:
    check_root(order.store)
    if not REPO.fullmatch(order.repo):
        raise StoreError(f"repo must be {REPO_RULE}, found {order.repo[:120]!r}")
    if order.revision is not None and not REVISION.fullmatch(order.revision):
        raise StoreError(f"revision must be a branch, a tag or a commit, found {order.revision[:120]!r}")
    store = RepoStore(order.store, order.hub, order.repo)
    if order.revision:
        manifest = store.known(order.revision, store.read_ledger())
        what = f"{order.repo} at {order.revision}"
    else:
        snapshot = store.read_link(order.link or order.repo.rsplit("/", 1)[-1])
        manifest = store.read_manifest(snapshot) if snapshot else None
        what = f"the current revision of {order.repo}"
    if manifest is None or not store.revision(manifest.id).is_dir():
        raise StoreError(f"{what} is not in the store {order.store}: sync it first, or correct repo and revision")
    return store, replace(manifest, requested=order.revision or manifest.requested)


def _check_target(order: Order, manifest: Manifest, pieces: list[Piece], volumes: list[str]) -> None:
    path = order.path
    if not path.is_absolute():
        raise StoreError(f"path must be absolute, found {str(path)!r}")
    inner = (order.store / ".store").resolve()
    if inner == path.resolve() or inner in path.resolve().parents:
        raise StoreError(f"path {path} lies in the store itself: choose a folder outside")
    if path.is_symlink():
        raise StoreError(
            f"path {path} is a link, and an export follows none: remove it, or give the folder that it leads to"
        )
    if path.exists() and not path.is_dir():
        raise StoreError(f"path {path} exists and is no folder")
    _check_layout(path, manifest, pieces, volumes)
    _check_medium(path, pieces, volumes)
    for name in (MANIFEST, MANIFEST + PARTIAL):
        if (path / name).exists():
            found = _read_manifest(path / name)
            if found is None:
                raise StoreError(f"{path / name} cannot be read or is damaged: remove it, then run the export again")
            if found.content_id != manifest.content_id:
                raise StoreError(
                    f"{path} holds {name} of something else than {manifest.repo} at {manifest.requested}: choose an "
                    "empty folder"
                )


def _check_layout(path: Path, manifest: Manifest, pieces: list[Piece], volumes: list[str]) -> None:
    """Refuse a folder that holds files of the model in other places: all of it would be there twice."""
    targets = {piece.target for piece in pieces}
    for top in [path, *sorted(path.glob("volume-[0-9][0-9][0-9]"))]:
        if top is not path and top.name not in volumes:
            other = top.name
        else:
            inner = (top / FILES).relative_to(path)
            there = (f"{inner}/{file.path}" for file in manifest.files)
            other = next((name for name in there if name not in targets and (path / name).is_file()), "")
        if other:
            layout = f"{len(volumes)} volumes" if volumes else "no volumes"
            raise StoreError(
                f"{path} holds {other} of an export with other volumes than this one ({layout}), which would store the "
                "model once more: give the same volume_gib as before, remove what is there, or choose an empty folder"
            )


def _check_medium(path: Path, pieces: list[Piece], volumes: list[str]) -> None:
    """Refuse a medium on which a link or a pipe stands where the export would write: others may have filled it."""
    targets = [piece.target for piece in pieces] + [MANIFEST, *(f"{volume}/{MANIFEST}" for volume in volumes)]
    folders = {parent.as_posix() for target in targets for parent in PurePosixPath(target).parents}
    expected = dict.fromkeys(folders - {"."}, stat.S_IFDIR)
    expected.update((name, stat.S_IFREG) for target in targets for name in (target, target + PARTIAL))
    for name, kind in sorted(expected.items()):
        try:
            found = stat.S_IFMT((path / name).lstat().st_mode)
        except OSError:
            continue
        if found != kind:
            raise StoreError(
                f"{path / name} is no {'folder' if kind == stat.S_IFDIR else 'regular file'}, and an export follows no "
                "link and writes into no device: remove it, or choose an empty folder"
            )


def _read_manifest(place: Path) -> Manifest | None:
    try:
        return loads(read_state(place, MANIFEST_BYTES))
    except (OSError, UnicodeDecodeError, StoreError):
        return None


def _is_complete(order: Order, manifest: Manifest, pieces: list[Piece], volumes: list[str]) -> bool:
    """By names and sizes; a manifest in its place says that all was proven once."""
    found = _read_manifest(order.path / MANIFEST)
    return (
        found is not None
        and found.content_id == manifest.content_id
        and all((order.path / volume / MANIFEST).is_file() for volume in volumes)
        and all(_size(order.path / piece.target) == piece.size for piece in pieces)
    )


def _size(place: Path) -> int:
    try:
        return place.lstat().st_size
    except OSError:
        return -1


def _check_room(order: Order, manifest: Manifest, pieces: list[Piece]) -> None:
    need = sum(piece.size for piece in pieces if _size(order.path / piece.target) != piece.size)
    found = os.statvfs(existing(order.path))
    free = found.f_bavail * found.f_frsize
    if need and free < need + SPARE_BYTES:
        raise StoreError(
            f"{order.path} has {free / GIB:.2f} GiB free, but {need / GIB:.2f} GiB of {manifest.repo} are to be "
            "written: make room or choose another folder; nothing was written",
            need_bytes=need,
            free_bytes=free,
        )


@contextlib.contextmanager
def _explained(order: Order) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "what was written is kept, a rerun goes on"
        if error.errno == errno.EFBIG:
            hint = (
                "the file system takes no file of that size: remove what was written, and export in volumes "
                "(volume_gib: 3 suits FAT)"
            )
        elif error.errno in (errno.EINVAL, errno.EILSEQ):
            hint = "the file system takes no such name, choose one of Linux or exFAT"
        raise StoreError(
            f"exporting to {order.path} failed: {error.strerror or error} ({error.filename or order.path}); {hint}"
        ) from error


class _Export:
    def __init__(self, store: RepoStore, manifest: Manifest, order: Order, progress: Progress) -> None:
        self.folder = store.revision(manifest.id)
        self.manifest = manifest
        self.order = order
        self.progress = progress
        self.done = 0
        self.copied = 0
        self.damaged: set[str] = set()
        """Files of the right size that were there and something else."""

    def write(self, pieces: list[Piece], volumes: list[str]) -> int:
        """Everything; returns the bytes that were written."""
        path = self.order.path
        path.mkdir(parents=True, exist_ok=True)
        if not (path / MANIFEST).exists():
            _write(path / (MANIFEST + PARTIAL), self.manifest.dumps())
        # While it is open, no garbage collection takes the revision for unused.
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for file, own in itertools.groupby(pieces, key=lambda piece: piece.file):
                self._write_file(file, list(own))
        finally:
            os.close(descriptor)
        for volume in volumes:
            found = _read_manifest(path / volume / MANIFEST)
            if found and found.content_id == self.manifest.content_id:
                continue
            _write(path / volume / (MANIFEST + PARTIAL), self.manifest.dumps())
            (path / volume / (MANIFEST + PARTIAL)).replace(path / volume / MANIFEST)
            sync_folder(path / volume)
        if (path / (MANIFEST + PARTIAL)).exists():
            (path / (MANIFEST + PARTIAL)).replace(path / MANIFEST)
        sync_folder(path)
        return self.copied

    def _write_file(self, file: ModelFile, pieces: list[Piece]) -> None:
        digest = hashlib.sha256()
        staged: list[tuple[Path, Path]] = []
        with os.fdopen(self._open_source(file), "rb", buffering=0) as source:
            for piece in pieces:
                target = self.order.path / piece.target
                target.parent.mkdir(parents=True, exist_ok=True)
                there = hash_file(target) if _size(target) == piece.size else None
                if there is not None:
                    own = hashlib.sha256()
                    self._copy(source, piece, None, digest, own)
                    if own.hexdigest() == there:
                        continue
                    self.damaged.add(file.path)
                    # Not what it has to be; the digest of the whole file has these bytes already.
                    source.seek(piece.offset)
                    self.done -= piece.size
                place = target.with_name(target.name + PARTIAL)
                with os.fdopen(os.open(place, FRESH, 0o644), "wb", buffering=0) as copy:
                    self._copy(source, piece, copy, hashlib.sha256() if there is not None else digest)
                    os.fsync(copy.fileno())
                    os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                staged.append((place, target))
                self.copied += piece.size
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if digest.hexdigest() != file.sha256:
            for place, _target in staged:
                place.unlink()
            raise StoreError(
                f"{self.folder / file.path} is damaged (SHA-256 {digest.hexdigest()[:12]}, expected "
                f"{file.sha256[:12]}): repair it with action verify and model_store_repair of the playbook models, "
                "then export again",
                file=file.path,
            )
        for place, target in staged:
            place.replace(target)
            sync_folder(target.parent)
        if self.order.full and staged:
            self._read_back(file, pieces)

    def _open_source(self, file: ModelFile) -> int:
        place = self.folder / file.path
        try:
            return open_regular(place)
        except OSError as error:
            raise StoreError(
                f"{place} cannot be read: {error.strerror}; repair it with action verify and model_store_repair of the "
                "playbook models, then export again",
                file=file.path,
            ) from error

    def _read_back(self, file: ModelFile, pieces: list[Piece]) -> None:
        digest = hashlib.sha256()
        for piece in pieces:
            with (self.order.path / piece.target).open("rb", buffering=0) as handle:
                self._copy(handle, replace(piece, offset=0), None, digest)
                self.done -= piece.size
        if digest.hexdigest() != file.sha256:
            raise StoreError(
                f"{file.path} reads back from {self.order.path} as something else than was written: use another medium",
                file=file.path,
            )

    def _copy(self, source: BinaryIO, piece: Piece, copy: BinaryIO | None, *digests: Any) -> None:
        """Read the piece, hash it, and write it to *copy*."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        source.seek(piece.offset)
        left = piece.size
        while left:
            count = source.readinto(buffer[: min(left, BUFFER_BYTES)])  # type: ignore[attr-defined]
            if not count:
                raise StoreError(f"{piece.file.path} was cut while it was read: verify the store, then export again")
            view = buffer[:count]
            for digest in digests:
                digest.update(view)
            while copy and view:
                view = view[copy.write(view) :]
            left -= count
            self.done += count
            self.progress.update("exporting", self.done, self.manifest.total_bytes, "B", piece.file.path)


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(place, FRESH, 0o644), "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
