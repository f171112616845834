# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder, an export or a tar archive of one in the place of a hub. Private to socle.inference."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import stat
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.socle.inference.plugins.module_utils._clock import utc_now
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.hashing import hash_files
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import JSON_MAX_COST, json_cost
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import (
    MAX_FILES,
    ModelFile,
    check_files,
    is_commit,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, loads
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

NAME = "directory"
MANIFEST = "manifest.json"
MANIFEST_MAX_BYTES = 8 << 20
HEADER_MAX_BYTES = 64 << 10
"""Of what stands before one member of an archive, such as a name too long for its header."""
HEADERS_MAX_BYTES = 64 << 20
LONG_HEADERS = frozenset(
    (
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    )
)
SPARSE = "files with holes (tar --sparse)"
FILES = "files"
VOLUMES = "volume-*"
PARTIAL = ".partial"
"""At the end of the name of what is still being written."""
PIECE = "{path}.{number:03d}"
"""A file that is larger than a volume lies in several of them, as numbered pieces that begin with 001."""
NOT_CONTENT = frozenset({".git", ".cache", "._____temp", ".msc", ".mdl", ".mv"})
"""What git and the hubs' own clients keep in the top of a folder beside a model's files."""
SHOWN_FILES = 3


@dataclass(frozen=True)
class Piece:
    """*size* bytes of a file on disk, from *offset* on."""

    location: Path
    offset: int
    size: int


class _Place(Protocol):
    """Where files lie by their paths."""

    def read_manifest(self) -> str | None:
        """The text of an export's manifest; None where there is none."""

    def find(self, file: ModelFile) -> list[Piece]:
        """The pieces of *file* in order, whose sizes add up to its own; raises HubError."""


class DirectoryHub:
    """What lies at *path*: an export (a folder or a tar archive, with its manifest), or a plain folder of files."""

    name = NAME

    def __init__(self, path: str, policy: Policy | None = None, progress: Progress | None = None) -> None:
        if not Path(path).is_absolute():
            raise HubError(f"path must be the absolute path of a folder or a tar archive, found {path!r}")
        self._path = Path(path)
        self._progress = progress or Progress()
        self.host = path
        self.policy = policy or Policy()
        self.sleep: Callable[[float], None] = time.sleep

    def resolve(self, repo: str, revision: str) -> Manifest:
        """See origin.Hub. A plain folder is hashed; of an export, each file has to be there with its size."""
        with self._readable():
            place = self._place()
            text = place.read_manifest()
            if text is None:
                _refuse_unfinished(self._path)
                return self._hash_folder(repo, revision)
        try:
            manifest = loads(text)
        except StoreError as error:
            raise HubError(f"{self._path} cannot be imported: {error}; export it again") from error
        if manifest.repo != repo:
            raise HubError(f"{self._path} holds {manifest.repo}, but {repo} is wanted: correct path or repo")
        if revision not in (manifest.requested, manifest.commit):
            known = f", commit {manifest.commit}" if manifest.commit not in (None, manifest.requested) else ""
            raise HubError(
                f"{self._path} holds {repo} at {manifest.requested}{known}, but {revision} is wanted: correct path or "
                "revision"
            )
        with self._readable():
            self._check_complete(place, manifest)
        return manifest

    def _check_complete(self, place: _Place, manifest: Manifest) -> None:
        """Raise HubError for all that is missing: before a lock says what is imported, and before the first byte."""
        missing: list[HubError] = []
        for file in manifest.files:
            try:
                place.find(file)
            except HubError as error:
                missing.append(error)
        if len(missing) > 1:
            paths = [str(error.fields["file"]) for error in missing]
            shown = ", ".join(paths[:SHOWN_FILES]) + (", ..." if len(paths) > SHOWN_FILES else "")
            raise HubError(
                f"{len(missing)} of {len(manifest.files)} files ({shown}) are not in {self._path} with the sizes that "
                f"its {MANIFEST} names: is every volume there, and was the export complete? If not, export it again",
                files=paths,
            )
        if missing:
            raise missing[0]

    def origin(self, manifest: Manifest) -> DirectoryOrigin:
        """See origin.Hub."""
        with self._readable():
            return DirectoryOrigin(self._place(), str(self._path), self.policy)

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HubUnreachable(
                f"path {self._path} cannot be read ({error.strerror or error}): is its disk mounted?",
                host=self.host,
            ) from error

    def _place(self) -> _Place:
        _refuse_link(self._path)
        mode = self._path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _Folder(self._path)
        if stat.S_ISREG(mode):
            return _Archive(self._path)
        raise HubError(f"path {self._path} is neither a folder nor a file")

    def _hash_folder(self, repo: str, revision: str) -> Manifest:
        if is_commit(revision):
            raise HubError(
                f"{self._path} has no {MANIFEST}, so it cannot be known whether it holds commit {revision} of {repo}: "
                "give a branch or a name of your own as revision"
            )
        found = _walk(self._path)
        locations = list(found.values())
        sizes = [location.stat().st_size for location in locations]
        # Names are judged before hours are spent on hashing what has to be refused.
        check_files(ModelFile(path, size, "0" * 64) for path, size in zip(found, sizes))
        hashes = hash_files(locations, sum(sizes), self._progress, "hashing")
        files = check_files(ModelFile(*file) for file in zip(found, sizes, hashes))
        if not files:
            raise HubError(f"{self._path} holds no files")
        return Manifest(NAME, repo, revision, None, "none", files, utc_now())


class DirectoryOrigin:
    """The files of one manifest in a folder or an archive."""

    kind = "disk"
    ranges = False

    def __init__(self, place: _Place, host: str, policy: Policy) -> None:
        self._place = place
        self.host = host
        self.policy = policy
        self.sleep: Callable[[float], None] = time.sleep

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        """See origin.Origin; raises HubError for a file that is not here, which no further attempt changes."""
        return _Response(self._place.find(file), offset, file.size if end is None else end, file.size)

    def is_own(self, url: str | None) -> bool:
        """See origin.Origin."""
        return True

    def describe_route(self) -> str:
        """See origin.Origin."""
        return "on this host"


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path
        tops = [path, *sorted(entry for entry in path.glob(VOLUMES) if entry.is_dir())]
        self._roots = [folder for top in tops for folder in (top / FILES, top) if folder.is_dir()]
        for root in self._roots:
            _refuse_link(root)

    def read_manifest(self) -> str | None:
        for root in self._roots:
            location = root / MANIFEST
            if location.is_file():
                with location.open("rb") as handle:
                    text = _decoded(handle.read(MANIFEST_MAX_BYTES))
                if _is_export(text):
                    return text
        return None

    def find(self, file: ModelFile) -> list[Piece]:
        for root in self._roots:
            location = root / file.path
            if location.is_file():
                size = location.stat().st_size
                if size == file.size:
                    return [Piece(location, 0, size)]
        pieces: list[Piece] = []
        total = 0
        while total < file.size:
            name = PIECE.format(path=file.path, number=len(pieces) + 1)
            location = next((root / name for root in self._roots if (root / name).is_file()), self._path)
            size = location.stat().st_size
            if location == self._path or size == 0 or total + size > file.size:
                break
            pieces.append(Piece(location, 0, size))
            total += size
        if total != file.size:
            missing = f", nor in more than {len(pieces)} pieces" if pieces else ""
            raise _not_here(self._path, file, missing)
        return pieces


class _Header(tarfile.TarInfo):
    """A header of an archive, weighed before tarfile reads what belongs to it: that has no limits of its own."""

    def _proc_member(self, *arguments: Any) -> Any:
        """What reads on after this header in an archive, the one argument; tarfile means it to be overridden."""
        (archive,) = arguments
        fault = "" if self.size >= 0 else "a size below zero"
        if self.type in LONG_HEADERS:
            archive.header_bytes += self.size
            if self.size > HEADER_MAX_BYTES or archive.header_bytes > HEADERS_MAX_BYTES:
                fault = "longer names or notes than any model"
            elif not fault:
                begin = archive.fileobj.tell()
                fault = SPARSE if b"GNU.sparse." in archive.fileobj.read(self.size) else ""
                archive.fileobj.seek(begin)
        elif self.type == tarfile.GNUTYPE_SPARSE:
            fault = SPARSE
        if fault:
            raise HubError(
                f"{archive.name} cannot be imported, since it has {fault}: make it with tar -cf from an export"
            )
        return super()._proc_member(*arguments)  # type: ignore[misc]


class _Tar(tarfile.TarFile):
    tarinfo = _Header
    header_bytes = 0


def _counted(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(archive):
        if count >= 2 * MAX_FILES:
            raise HubError(f"{path} cannot be imported: it holds more than {2 * MAX_FILES} files and folders")
        yield member


class _Archive:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with _Tar.open(path, "r:") as archive:
                self._members = {
                    posixpath.normpath(member.name): (member.offset_data, member.size)
                    for member in _counted(archive, path)
                    if member.isreg()
                }
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise HubError(
                f"{path} is no folder and no tar archive that can be read in place ({error}): give a whole one, "
                "without compression"
            ) from error
        manifests = [name for name in self._members if posixpath.basename(name) == MANIFEST]
        self._manifest = min(manifests, key=lambda name: (name.count("/"), name), default=None)
        self._root = posixpath.dirname(self._manifest) if self._manifest else ""

    def read_manifest(self) -> str:
        if self._manifest:
            offset, size = self._members[self._manifest]
            with self._path.open("rb") as handle:
                handle.seek(offset)
                text = _decoded(handle.read(min(size, MANIFEST_MAX_BYTES)))
            if _is_export(text):
                self._refuse_volumes()
                return text
        raise HubError(
            f"{self._path} is an archive without the {MANIFEST} of an export: unpack it, and give the folder"
        )

    def _refuse_volumes(self) -> None:
        top = posixpath.join(self._root, VOLUMES.rstrip("*"))
        if any(name.startswith(top) and f"/{FILES}/" in name for name in self._members):
            raise HubError(
                f"{self._path} holds an export in volumes, which are read from folders only: unpack it, and give the "
                "folder"
            )

    def find(self, file: ModelFile) -> list[Piece]:
        for root in (posixpath.join(self._root, FILES), self._root):
            offset, size = self._members.get(posixpath.join(root, file.path), (0, -1))
            if size == file.size:
                return [Piece(self._path, offset, size)]
        raise _not_here(self._path, file)


class _Response:
    """Bytes of a file from its pieces, with the face of an HTTP response."""

    def __init__(self, pieces: list[Piece], offset: int, end: int, size: int) -> None:
        self.status = 206 if offset or end < size else 200
        self.headers = Message()
        self.headers["Content-Length"] = str(end - offset)
        if self.status == 206:
            self.headers["Content-Range"] = f"bytes {offset}-{end - 1}/{size}"
        self._left = end - offset
        self._pieces = list(pieces)
        while self._pieces and offset >= self._pieces[0].size:
            offset -= self._pieces.pop(0).size
        self._handle: Any = None
        self._piece_left = 0
        self._skip = offset

    def __enter__(self) -> _Response:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._handle:
            self._handle.close()
            self._handle = None

    def geturl(self) -> str | None:
        return None

    def readinto(self, buffer: memoryview) -> int:
        if not self._left:
            return 0
        if not self._piece_left:
            self._open_next()
        count: int = self._handle.readinto(buffer[: min(len(buffer), self._left, self._piece_left)])
        self._left -= count
        self._piece_left -= count
        return count

    def read1(self, size: int) -> bytes:
        buffer = memoryview(bytearray(size))
        return bytes(buffer[: self.readinto(buffer)])

    def _open_next(self) -> None:
        self.close()
        piece = self._pieces.pop(0)
        self._handle = piece.location.open("rb", buffering=0)
        self._handle.seek(piece.offset + self._skip)
        self._piece_left = piece.size - self._skip
        self._skip = 0


def _walk(top: Path) -> dict[str, Path]:
    """The files of a model in *top* by path, links to files resolved; raises HubError for what a model cannot hold."""
    # The cache of Hugging Face's client: its snapshots are links to blobs beside them.
    inside = [top.parent.parent.resolve() / "blobs"] if top.parent.name == "snapshots" else []
    inside.append(top.resolve())
    found: dict[str, Path] = {}
    for parent, folders, names in os.walk(top, onerror=_raise):
        here = Path(parent)
        if here == top:
            folders[:] = [name for name in folders if name not in NOT_CONTENT]
            names = [name for name in names if name not in NOT_CONTENT]
        for name in sorted(folders + names):
            location = here / name
            path = location.relative_to(top).as_posix()
            if name in folders and not location.is_symlink():
                continue
            real = location.resolve()
            if not real.is_file() or not any(folder in real.parents for folder in inside):
                raise HubError(
                    f"{top} holds {path!r}, which is no file, or a link to a folder or to somewhere else: remove it, "
                    "or put the file in its place"
                )
            found[path] = real
    return found


def _refuse_unfinished(top: Path) -> None:
    """Raise HubError for an export whose manifest is missing or damaged: as a plain folder, it would be published as a
    model whose files lie one folder deeper than an engine looks for them."""
    entries = [entry for entry in top.iterdir() if entry.name not in NOT_CONTENT]
    begun = any(entry.is_dir() and (entry.name == FILES or entry.match(VOLUMES)) for entry in entries)
    # A system that copies leaves files of its own, whose names begin with a dot.
    files = {entry.name for entry in entries if not entry.is_dir() and not entry.name.startswith(".")}
    if MANIFEST + PARTIAL in files or (begun and files <= {MANIFEST}):
        found = "damaged: remove it there, then" if MANIFEST in files else "missing:"
        raise HubError(
            f"{top} is an export whose {MANIFEST}, which is written last, is {found} run the export again, which goes "
            "on where it ended, or copy the folder again"
        )


def _refuse_link(place: Path) -> None:
    """Raise HubError for a link: a disk that others filled could lead to what only this user may read."""
    if place.is_symlink():
        raise HubError(
            f"{place} is a link, and an import follows none, since it could publish files from elsewhere on this host: "
            "put the folder or the archive itself in its place"
        )


def _raise(error: OSError) -> None:
    raise error


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _is_export(text: str) -> bool:
    """Whether a file of that name is ours, rather than one of the model's own."""
    if json_cost(text.encode()) > JSON_MAX_COST:
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "schema" in document and "content_id" in document


def _not_here(path: Path, file: ModelFile, more: str = "") -> HubError:
    return HubError(
        f"{file.path} with {file.size} bytes is not in {path}{more}: is every volume there, and was the export "
        "complete? If not, export it again",
        file=file.path,
    )
