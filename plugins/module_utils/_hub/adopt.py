# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes over files that a host holds already, whatever put them there. Private to socle.inference.

Files are found by size and proven by hash, so names and layouts do not matter: caches of hub clients, old or new, with
links to blobs or without, and folders made by hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.hashing import BUFFER_BYTES, hash_file, hash_workers
from ansible_collections.socle.inference.plugins.module_utils._hub.lease import (
    MODE,
    OTHERS_WRITE,
    change_still,
    is_written,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.store import content_state, make_folder
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

Candidates = dict[int, list[Path]]
"""Real files by size, each inode once."""

Hashes = dict[Path, "tuple[tuple[int, int, int, int], str]"]
"""What candidates were found to hold, with their content_state() then: others may write to them meanwhile."""


@dataclass
class Adopted:
    """What was taken over: the states of files that are still elsewhere too, and paths whose candidates were wrong."""

    linked: dict[str, os.stat_result] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    wrong: dict[str, Path] = field(default_factory=dict)

    def __contains__(self, path: str) -> bool:
        return path in self.linked or path in self.copied


def find_candidates(
    folders: Iterable[Path], wanted: Iterable[ModelFile], store: Path, warnings: list[str]
) -> Candidates:
    """Files in *folders* and below with the size of something *wanted*; links to files are followed, to folders not."""
    sizes = {file.size for file in wanted if file.size}
    own = (store / ".store").resolve()
    found: Candidates = {}
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        if not folder.is_absolute():
            raise StoreError(f"adopt_from must hold absolute paths, found {str(folder)!r}")
        try:
            if not folder.is_dir():
                warnings.append(f"{folder}, which adopt_from names, is no folder on this host")
                continue
        except OSError as error:
            warnings.append(f"{folder}, which adopt_from names, cannot be looked at: {error.strerror}")
            continue
        for parent, _folders, names in os.walk(folder.resolve()):
            for name in names:
                with contextlib.suppress(OSError, RuntimeError):
                    place = Path(parent, name).resolve(strict=True)
                    status = place.stat()
                    key = (status.st_dev, status.st_ino)
                    fits = stat.S_ISREG(status.st_mode) and status.st_size in sizes and own not in place.parents
                    if fits and key not in seen:
                        seen.add(key)
                        found.setdefault(status.st_size, []).append(place)
    return found


def likely_files(files: Iterable[ModelFile], candidates: Candidates) -> list[ModelFile]:
    """Those of *files* that *candidates* may hold: of each size no more different ones than there are candidates."""
    held: dict[int, set[str]] = {}
    likely = []
    for file in files:
        contents = held.setdefault(file.size, set())
        if file.sha256 in contents or len(contents) < len(candidates.get(file.size, ())):
            contents.add(file.sha256)
            likely.append(file)
    return likely


def linkable_bytes(files: Sequence[ModelFile], candidates: Candidates, store: Path) -> int:
    """What of *files* takes no room, if their candidates hold what is wanted; the others are copied."""
    linkable: Candidates = {}
    for size in {file.size for file in files}:
        for place in candidates.get(size, ()):
            with contextlib.suppress(OSError):
                if may_link(place, store):
                    linkable.setdefault(size, []).append(place)
    return sum(file.size for file in likely_files(files, linkable))


def adopt_files(
    wanted: Iterable[ModelFile],
    candidates: Candidates,
    tree: Path,
    part: Callable[[ModelFile], Path],
    progress: Progress,
) -> Adopted:
    """Bring those of *wanted* that a candidate holds into *tree*: by a hard link, or by a copy.

    A linked file becomes read-only where it was found too, since it is the same file.
    """
    files = [file for file in wanted if file.size in candidates]
    total, done = sum(file.size for file in files), 0
    hashes: Hashes = {}
    result = Adopted()

    def adopt_one(file: ModelFile) -> tuple[os.stat_result | None, bool, Path | None]:
        return _adopt_one(file, candidates[file.size], tree / file.path, part(file), hashes)

    if not files:
        return result
    with ThreadPoolExecutor(hash_workers()) as pool:
        for file, (linked, copied, wrong) in zip(files, pool.map(adopt_one, files)):
            done += file.size
            progress.update("adopting", done=done, total=total, unit="B", detail=file.path)
            if linked:
                result.linked[file.path] = linked
            elif copied:
                result.copied.append(file.path)
            elif wrong:
                result.wrong[file.path] = wrong
    return result


def _adopt_one(
    file: ModelFile, candidates: list[Path], target: Path, part: Path, hashes: Hashes
) -> tuple[os.stat_result | None, bool, Path | None]:
    name = file.path.rsplit("/", 1)[-1]
    wrong = None
    make_folder(target.parent)
    # The one with the right name first: it is likely the right one, and saves hashing the others.
    for place in sorted(candidates, key=lambda candidate: (candidate.name != name, str(candidate))):
        with contextlib.suppress(OSError):
            if _may_hold(file, place, hashes):
                status = _link(file, place, target, hashes)
                if status:
                    return status, False, None
                if _may_hold(file, place, hashes) and _copy(file, place, target, part, hashes):
                    return None, True, None
            if place.name == name:
                wrong = place
    return None, False, wrong


def _may_hold(file: ModelFile, place: Path, hashes: Hashes) -> bool:
    """Whether *place* was found to hold *file*, or what it holds now is not known."""
    known = hashes.get(place)
    return known is None or known[1] == file.sha256 or known[0] != content_state(place.lstat())


def _link(file: ModelFile, place: Path, target: Path, hashes: Hashes) -> os.stat_result | None:
    """Hard-link *place* once its hash is right; None where it is not, or where a link will not do."""
    before = place.lstat()
    if not may_link(place, target.parent) or is_written(place):
        return None
    known = hashes.get(place)
    if known is None or known[0] != content_state(before):
        known = hashes[place] = (content_state(before), hash_file(place))
    if known[1] != file.sha256:
        return None

    def link(descriptor: int) -> None:
        os.link(place, target, follow_symlinks=False)
        os.fchmod(descriptor, MODE)

    try:
        states = change_still(place, lambda status: content_state(status) == content_state(before), link)
    except OSError:
        # Too many links, or a kernel that does not let this user link what is somebody else's.
        return None
    if states is None:
        return None
    if content_state(target.lstat()) != content_state(states[1]):
        target.unlink()
        return None
    return states[1]


def may_link(place: Path, folder: Path) -> bool:
    """Whether *place* is on the file system of *folder*, and nobody but root and this user can change it, or put
    another file there meanwhile.

    A file that somebody else owns stays theirs to write: an engine would load what they put there later.
    """
    own = (0, os.geteuid())
    status = place.lstat()
    if status.st_dev != folder.stat().st_dev or status.st_uid not in own or status.st_mode & OTHERS_WRITE:
        return False
    for parent in place.parents:
        status = parent.stat()
        open_to_others = status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in own or open_to_others:
            return False
    return True


def _copy(file: ModelFile, place: Path, target: Path, part: Path, hashes: Hashes) -> bool:
    """Copy *place*, hashing what is written; False where it is something else. Its folder may be somebody else's, who
    puts there what they like meanwhile: a link, a pipe, a file without end."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BUFFER_BYTES))
    left = file.size
    staged = part.with_name(part.name + ".copy")
    found = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(found, "rb", buffering=0) as source:
            status = os.fstat(found)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                return False
            with os.fdopen(os.open(staged, flags, 0o600), "wb") as copy:
                while left:
                    count = source.readinto(buffer[: min(left, BUFFER_BYTES)])
                    if not count:
                        return False
                    digest.update(buffer[:count])
                    copy.write(buffer[:count])
                    left -= count
                copy.flush()
                os.fchmod(copy.fileno(), MODE)
                os.fsync(copy.fileno())
        # The next file of this size need not try it again.
        hashes[place] = (content_state(status), digest.hexdigest())
        if digest.hexdigest() != file.sha256:
            return False
        staged.replace(target)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            staged.unlink()
