# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file that grows by one or more connections, and is hashed from its start while it does. Private to socle.inference.

With one connection the file just gets longer, and its length says what it holds. With more it is preallocated, and its
journal says which ranges it holds. Marks in the journal find what another process or a power failure spoilt before the
rest is fetched. The last word has the hash of the whole file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.aside import Aside
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.journal import (
    Journal,
    add_span,
    forget_journal,
    gaps,
    held_spans,
    read_journal,
    write_journal,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import GIB

BUFFER_BYTES = 1 << 20
JOURNAL_BYTES = 4 << 20
"""Out of order, so much may be written before the journal says so; a kill may cost that and what is on its way."""
MARK_BYTES = 64 << 20
MARKS = 256
IDLE_S = 5.0
"""A connection that brought nothing for so long may lose what it has not fetched yet to another one."""


class Report(Protocol):
    def __call__(self, count: int, kind: str | None = None) -> None:
        """*count* more bytes are in place, or fewer; *kind* of the origin, None for what was there before."""


@dataclass
class Segment:
    """What one connection fetches: [position, end) is still to come, [written, position) is being written."""

    position: int
    end: int
    written: int = -1
    moved: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.written = self.position

    @property
    def left(self) -> int:
        return self.end - self.position


class Part:
    """The part file of *file* at *location*. Opened by one thread, written by several, closed by the last of them."""

    def __init__(self, location: Path, file: ModelFile, report: Report, shelf: Shelf | None = None) -> None:
        self.location = location
        self.file = file
        self.ranged = False
        self.kept = 0
        """Bytes of an earlier run that are still part of this file."""
        self._report = report
        self._shelf = shelf
        self._changed = threading.Condition()
        self._users = 1
        self._closing = False
        self._segments: list[Segment] = []
        self._unnoted = 0
        self._fault: BaseException | None = None
        self._follower: threading.Thread | None = None
        self._aside: Aside | None = None
        self._digest = hashlib.sha256()
        self._hashed = 0
        self._journal = read_journal(location) or Journal(file.size, file.sha256)
        self._spans = held_spans(location, file)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(location, flags, 0o600)
        except OSError as error:
            raise self._explain(error) from error
        try:
            self._open()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _open(self) -> None:
        self._mark_step = max(MARK_BYTES, self.file.size // MARKS)
        if not self._spans:
            self._journal = Journal(self.file.size, self.file.sha256)
        prefix = self.prefix
        if self._spans == add_span([], 0, prefix):
            with self._explained():
                os.ftruncate(self._descriptor, prefix)
            if self._journal.spans is not None:
                self._journal.spans = None
                self._save()
        else:
            self.ranged = True
            self._allocate()
        self.kept = sum(end - start for start, end in self._spans)

    # What it holds

    @property
    def prefix(self) -> int:
        """The first so many bytes are there."""
        return self._spans[0][1] if self._spans and self._spans[0][0] == 0 else 0

    @property
    def received(self) -> int:
        return sum(end - start for start, end in self._spans)

    @property
    def complete(self) -> bool:
        return self.prefix == self.file.size

    def check_start(self) -> None:
        """Hash what an earlier run left at the start, and drop what is not what it was then."""
        after = sum(end - start for start, end in self._spans) - self.prefix
        if after:
            self._report(after)
        good = (0, hashlib.sha256())
        marks = dict(self._journal.marks)
        for offset in self._hash_up_to(self.prefix, marks, self._report):
            if self._digest.hexdigest() != marks[offset]:
                self._report(good[0] - offset)
                self._cut(good[0])
                self._digest, self._hashed = good[1].copy(), good[0]
                break
            good = (offset, self._digest.copy())
        sound = [(offset, mark) for offset, mark in self._journal.marks if offset <= self._hashed]
        if sound != self._journal.marks:
            self._journal.marks = sound
            self._save()
        self.kept = self.received
        if self.ranged:
            self._follow()
        self._advance()

    def _cut(self, start: int) -> None:
        """Forget the first range from *start* on."""
        self._spans = add_span([(0, start), *self._spans[1:]], 0, 0)
        if not self.ranged:
            with self._explained():
                os.ftruncate(self._descriptor, start)

    def _hash_up_to(self, end: int, stops: Iterable[int], report: Report | None = None) -> Iterator[int]:
        """Hash on to *end*; yields at each offset of *stops* on the way."""
        ahead = sorted(offset for offset in stops if self._hashed < offset <= end)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while self._hashed < end and not self._closing:
            limit = min(ahead[0] if ahead else end, end)
            with self._explained("read"):
                count = os.preadv(self._descriptor, [buffer[: min(BUFFER_BYTES, limit - self._hashed)]], self._hashed)
            if not count:
                raise StoreError(f"{self.location} was cut by somebody else while it was filled: run again")
            self._digest.update(buffer[:count])
            self._hashed += count
            if report:
                report(count)
            if ahead and self._hashed == ahead[0]:
                yield ahead.pop(0)

    # Origins

    def known_etag(self, host: str) -> str | None:
        """The ETag that *host* gave for what is here."""
        return self._journal.etags.get(host)

    def note_etag(self, host: str, etag: str | None) -> None:
        """*host* names the content so; None forgets it."""
        with self._changed:
            if etag:
                self._journal.etags[host] = etag[:200]
            else:
                self._journal.etags.pop(host, None)

    # One or several connections

    def claim(self, piece: int, step: int) -> Segment | None:
        """What a connection should fetch next: all that is left, or with several of them at most *piece* bytes, the
        first of what nobody fetches, else a part of the largest that somebody does. None where less than two *step*
        bytes could be shared out."""
        with self._changed:
            if not self.ranged:
                if self._segments or self.complete:
                    return None
                segment = Segment(self.prefix, self.file.size)
            else:
                found = self._next(piece, step)
                if found is None:
                    return None
                segment = found
            self._segments.append(segment)
            return segment

    def _next(self, piece: int, step: int) -> Segment | None:
        taken = [(segment.written, max(segment.position, segment.end)) for segment in self._segments]
        free = gaps([*self._spans, *taken], self.file.size)
        if free:
            start, end = free[0]
            return Segment(start, end if end - start < piece + step else start + piece)
        now = time.monotonic()
        for other in self._segments:
            if other.left and now - other.moved > IDLE_S:
                start, end, other.end = other.position, other.end, other.position
                return Segment(start, end)
        largest = max(self._segments, key=lambda segment: segment.left, default=None)
        if largest is None or largest.left < 2 * step:
            return None
        end, largest.end = largest.end, largest.position + min(largest.left // 2, piece)
        return Segment(largest.end, end if end - largest.end < piece + step else largest.end + piece)

    def may_share(self, step: int) -> bool:
        """Whether another connection would find something to fetch."""
        with self._changed:
            left = self.file.size - self.received
            return left >= 2 * step and any(segment.left >= 2 * step for segment in self._segments)

    def share(self) -> None:
        """Get ready for several connections. Only the thread of the one connection that there is may call this."""
        if self.ranged:
            return
        self._absorb_rest()
        with self._changed:
            self._journal.spans = list(self._spans)
            self._save()
            self._allocate()
            self.ranged = True
            self._follow()

    def release(self, segment: Segment) -> None:
        """The connection is done with it, complete or not."""
        with self._changed:
            self._segments.remove(segment)
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until another connection ends, or for *seconds*."""
        with self._changed:
            self._check_fault()
            if not self.complete:
                self._changed.wait(seconds)

    def buffer(self) -> memoryview:
        """A buffer of BUFFER_BYTES to receive into; write() or give_back() takes it again."""
        if self.ranged:
            return memoryview(bytearray(BUFFER_BYTES))
        if self._aside is None:
            self._aside = Aside(self._absorb, BUFFER_BYTES)
        return self._aside.take()

    def give_back(self, buffer: memoryview | None) -> None:
        """A buffer that is not needed any more."""
        if buffer is not None and self._aside is not None:
            self._aside.give_back(buffer)

    def write(self, segment: Segment, view: memoryview, kind: str, buffer: memoryview | None = None) -> bool:
        """Put what a connection got where it belongs; what others have taken over since is left out. Returns whether
        *buffer*, which *view* is a part of, was taken: it is still hashed."""
        taken = False
        if not self.ranged:
            taken = self._append(segment, view, buffer)
        else:
            with self._changed:
                view = view[: max(0, segment.left)]
                if self._closing or not view:
                    return False
                start, segment.position = segment.position, segment.position + len(view)
            self._put(view, start)
            with self._changed:
                self._check_fault()
                segment.written, segment.moved = segment.position, time.monotonic()
                self._spans = add_span(self._spans, start, segment.written)
                self._unnoted += len(view)
                if self._unnoted >= JOURNAL_BYTES:
                    self._save()
                self._advance()
                self._changed.notify_all()
        self._report(len(view), kind)
        return taken

    def _append(self, segment: Segment, view: memoryview, buffer: memoryview | None) -> bool:
        start, end = segment.position, segment.position + len(view)
        self._put(view, start)
        segment.position = segment.written = end
        first, self._spans = not self._spans, [(0, end)]
        if first:
            with self._changed:
                self._save()
        if self._aside is None:
            self._absorb(view)
        else:
            self._aside.put(view, buffer)
            if self._aside.fault is not None:
                raise self._aside.fault
        self._advance()
        return self._aside is not None and buffer is not None

    def _absorb(self, view: memoryview) -> None:
        """Hash what follows on what was hashed before."""
        self._digest.update(view)
        start, self._hashed = self._hashed, self._hashed + len(view)
        if self._hashed // self._mark_step != start // self._mark_step:
            with self._changed:
                self._mark()

    def _absorb_rest(self) -> None:
        if self._aside is not None:
            self._aside.end()
            aside, self._aside = self._aside, None
            if aside.fault is not None:
                raise aside.fault

    def _put(self, view: memoryview, position: int) -> None:
        with self._explained():
            while view:
                written = os.pwrite(self._descriptor, view, position)
                view, position = view[written:], position + written

    def _mark(self) -> None:
        if self._hashed > (self._journal.marks[-1][0] if self._journal.marks else 0):
            self._journal.marks.append((self._hashed, self._digest.hexdigest()))
        self._save()

    def _save(self) -> None:
        if self._journal.spans is not None:
            self._journal.spans = list(self._spans)
        with self._explained():
            write_journal(self.location, self._journal)
        self._unnoted = 0

    def _allocate(self) -> None:
        length = os.fstat(self._descriptor).st_size
        missing = self.file.size - length
        if missing <= 0:
            return
        try:
            os.posix_fallocate(self._descriptor, length, missing)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise self._explain(error) from error
            with self._explained():
                os.ftruncate(self._descriptor, self.file.size)

    def _advance(self) -> None:
        if self._shelf is not None:
            self._shelf.advance(self.file.path, self.location, self.prefix)

    # The follower: hashes what was written out of order as it joins the start

    def _follow(self) -> None:
        self._follower = threading.Thread(target=self._run_follower, name="hash", daemon=True)
        self._users += 1
        self._follower.start()

    def _run_follower(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self.prefix > self._hashed or self.complete)
                    end = self.prefix
                if self._closing or (self._hashed == end == self.file.size):
                    return
                stops = range(self._mark_step, end + 1, self._mark_step)
                for _offset in self._hash_up_to(end, stops):
                    with self._changed:
                        self._mark()
        except BaseException as error:
            self._fault = error
        finally:
            with self._changed:
                self._changed.notify_all()
            self.leave()

    def _check_fault(self) -> None:
        if self._fault is not None:
            raise self._fault

    def finish(self, poll: Callable[[], None]) -> str:
        """The SHA-256 of the complete file; *poll* is called while it is waited for, and may raise."""
        self._absorb_rest()
        while self._follower is not None and self._follower.is_alive():
            self._follower.join(0.5)
            poll()
        self._check_fault()
        return self._digest.hexdigest()

    def restart(self) -> None:
        """Nothing here is of use. All other connections have ended."""
        self._absorb_rest()
        if self._shelf is not None and self._spans:
            self._shelf.restart(self.file.path)
        if self._follower is not None:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._follower.join()
            self._follower, self._closing = None, False
        lost, self._spans, self.kept = self.received, [], 0
        self.ranged, self._digest, self._hashed, self._unnoted = False, hashlib.sha256(), 0, 0
        self._journal = Journal(self.file.size, self.file.sha256)
        with self._explained():
            os.ftruncate(self._descriptor, 0)
        forget_journal(self.location)
        self._report(-lost)

    # The end

    def publish(self) -> None:
        """The file is proven: flush it to disk, read-only."""
        with self._explained():
            os.fchmod(self._descriptor, 0o444)
            os.fsync(self._descriptor)
        forget_journal(self.location)

    def join(self) -> None:
        """Another thread writes: its descriptor stays open until that thread leaves."""
        with self._changed:
            self._users += 1

    def leave(self) -> None:
        """One thread less; the last one closes the file."""
        with self._changed:
            self._users -= 1
            if not self._users:
                os.close(self._descriptor)

    def close(self) -> None:
        """End the follower, note what is there, and leave."""
        with contextlib.suppress(StoreError):
            self._absorb_rest()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if self.ranged and self._unnoted and not self.complete:
                with contextlib.suppress(StoreError):
                    self._save()
        self.leave()

    # Faults of the disk

    @contextlib.contextmanager
    def _explained(self, verb: str = "written") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(error, verb) from error

    def _explain(self, error: OSError, verb: str = "written") -> StoreError:
        path, folder = self.file.path, self.location.parent
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            left = self.file.size - self.received
            what = "the quota" if error.errno == errno.EDQUOT else "the file system"
            return StoreError(
                f"{path} needs {_amount(left)} more, but {what} of {folder} is full ({_amount(_free(folder))} free): "
                "make room and run again, what arrived is kept",
                file=path,
                need_bytes=left,
                free_bytes=_free(folder),
            )
        if error.errno == errno.EROFS:
            return StoreError(
                f"{path} cannot be {verb} ({_amount(self.received)} of {_amount(self.file.size)} are there): the file "
                f"system of {folder} is read-only; look for disk faults in the kernel's log, make it writable and run "
                "again",
                file=path,
            )
        return StoreError(
            f"{path} cannot be {verb} in {folder}: {error.strerror or error} "
            f"({_amount(self.received)} of {_amount(self.file.size)} are there)",
            file=path,
        )


def _free(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _amount(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"
