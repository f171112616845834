# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file from the hub: resumed, hashed while it arrives, proven before it counts. Private to socle.inference."""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Origin
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import (
    NETWORK_ERRORS,
    TRANSIENT,
    reason_of,
    retry_after,
)
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

BUFFER_BYTES = 1 << 20
SLOW_READ_BYTES = 1 << 16
FAST_BYTES_PER_S = 16 << 20
EMPTY_SHA256 = hashlib.sha256().hexdigest()
CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class HashMismatch(HubError):
    """What arrived is not what the listing promised, several times over."""


class Cancelled(Exception):
    """Another file failed; this one stops early."""


class _Interrupted(Exception):
    """This try is over; the next one goes on where it ended."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class _WrongContent(Exception):
    """The storage answers with something else than was listed."""


@dataclass
class Meter:
    """Bytes of all files together, for progress, and the way to stop all threads."""

    progress: Progress
    total: int
    done: int = 0
    received_by: dict[str, int] = field(default_factory=dict)
    """Bytes that came over the network or from another folder, by Origin.kind; what came twice counts twice."""
    sources: set[str] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def received(self) -> int:
        return sum(self.received_by.values())

    def add(self, count: int, path: str, kind: str | None = None) -> None:
        """*count* more bytes are in place (or fewer, when a file starts over); *kind* of the origin they came from."""
        with self._lock:
            self.done += count
            if kind:
                self.received_by[kind] = self.received_by.get(kind, 0) + count
            self.progress.update("downloading", done=self.done, total=self.total, unit="B", detail=path)
        if self.stop.is_set():
            raise Cancelled


class _Part:
    """The file that grows, with the hash of what it holds."""

    def __init__(self, handle: BinaryIO, file: ModelFile, meter: Meter) -> None:
        self._handle = handle
        self._file = file
        self.meter = meter
        self.size = 0
        self.digest = hashlib.sha256()
        self._adopt()

    def _adopt(self) -> None:
        """Hash what an earlier run left here, to go on behind it."""
        if os.fstat(self._handle.fileno()).st_size > self._file.size:
            self.restart()
            return
        while True:
            chunk = self._handle.read(BUFFER_BYTES)
            if not chunk:
                return
            self.digest.update(chunk)
            self.size += len(chunk)
            self.meter.add(len(chunk), self._file.path)

    def append(self, view: memoryview, kind: str) -> None:
        count = len(view)
        self.digest.update(view)
        try:
            while view:
                view = view[self._handle.write(view) :]
        except OSError as error:
            raise StoreError(f"writing {self._file.path} failed: {error.strerror}", file=self._file.path) from error
        self.size += count
        self.meter.add(count, self._file.path, kind)

    def restart(self) -> None:
        self._handle.seek(0)
        self._handle.truncate(0)
        size, self.size = self.size, 0
        self.digest = hashlib.sha256()
        self.meter.add(-size, self._file.path)


def fetch_file(
    origins: Sequence[Origin], file: ModelFile, location: Path, meter: Meter, shelf: Shelf | None = None
) -> None:
    """Bring *file* to *location*, flushed to disk and proven; goes on behind what is there already.

    *origins* in order of preference; *shelf* learns what can be served on. Raises HashMismatch with the wrong content
    left at *location*, or HubError when no origin answers any more.
    """
    hub = origins[0]
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(location, flags, 0o600), "r+b", buffering=0) as handle:
        part = _Part(handle, file, meter)
        failures = mismatches = 0
        mark = part.size
        while True:
            if part.size == file.size:
                if part.digest.hexdigest() == file.sha256:
                    break
                mismatches += 1
                if mismatches >= hub.policy.hash_tries:
                    raise _mismatch(hub, file, part.digest.hexdigest(), mismatches)
                part.restart()
                mark = 0
                if file.size == 0:
                    continue
            try:
                _receive(hub, file, part)
            except _WrongContent as error:
                mismatches += 1
                if mismatches >= hub.policy.hash_tries:
                    raise HashMismatch(
                        f"{file.path} from {hub.host}: {error}; nothing was published",
                        file=file.path,
                        tries=mismatches,
                    ) from error
                part.restart()
                mark = 0
            except _Interrupted as error:
                if part.size - mark >= hub.policy.progress_bytes:
                    failures, mark = 0, part.size
                failures += 1
                if failures >= hub.policy.failures:
                    raise HubError(
                        f"downloading {file.path} from {hub.host} {hub.describe_route()} gave up after "
                        f"{failures} tries without "
                        f"progress (last: {error}); a rerun goes on where it ended",
                        file=file.path,
                        host=hub.host,
                    ) from error
                pause = min(hub.policy.backoff_s * 2 ** (failures - 1), hub.policy.backoff_max_s)
                pause = error.pause_s if error.pause_s is not None else pause * random.uniform(0.5, 1.0)
                _pause(hub, pause, meter)
        os.fchmod(handle.fileno(), 0o444)
        os.fsync(handle.fileno())
    if shelf is not None:
        shelf.prove(file.path, location)


def _pause(hub: Origin, seconds: float, meter: Meter) -> None:
    """Sleep, but notice when another file failed."""
    until = time.monotonic() + seconds
    while seconds > 0:
        if meter.stop.is_set():
            raise Cancelled
        hub.sleep(min(seconds, 0.5))
        seconds = until - time.monotonic()


def _receive(hub: Origin, file: ModelFile, part: _Part) -> None:
    try:
        response = hub.open_file(file, part.size)
    except urllib.error.HTTPError as error:
        error.close()
        _judge_status(hub, file, error, part)
        raise _Interrupted(f"status {error.code}", retry_after(error)) from error
    except NETWORK_ERRORS as error:
        raise _Interrupted(reason_of(error)) from error
    except ValueError as error:
        raise _Interrupted("an address that is not valid") from error
    with response:
        source = urllib.parse.urlsplit(response.geturl() or "").netloc
        part.meter.sources.add(source or hub.host)
        _check_answer(response, file, part)
        _copy(hub, response, file, part)


def _judge_status(hub: Origin, file: ModelFile, error: urllib.error.HTTPError, part: _Part) -> None:
    """Raise for a status that another try cannot change; an expired storage address is asked for again."""
    if error.code == 416:
        part.restart()
    elif hub.is_own(error.geturl()) and error.code not in TRANSIENT:
        hint = "; the token is missing or not valid for it" if error.code in (401, 403) else ""
        raise HubError(
            f"{hub.host} answered {error.code} for {file.path}, which it listed before{hint}; nothing was published",
            file=file.path,
            status=error.code,
        )


def _check_answer(response: Any, file: ModelFile, part: _Part) -> None:
    """Compare what the server announces with what was listed, before a byte is taken."""
    length = response.headers.get("Content-Length")
    if response.status == 206:
        found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
        if not found or int(found[1]) != part.size:
            part.restart()
            raise _Interrupted("the server answered another range than was asked for")
        total: int | None = int(found[2])
    else:
        if part.size:
            part.restart()
        total = int(length) if length and length.isdecimal() else None
    if total is not None and total != file.size:
        raise _WrongContent(f"{file.size} bytes were listed, {total} are offered")


def _copy(hub: Origin, response: Any, file: ModelFile, part: _Part) -> None:
    """Read until the file is complete. Small reads on slow links keep progress and stalls visible."""
    policy = hub.policy
    buffer = memoryview(bytearray(BUFFER_BYTES))
    fast, sample_s, sample_bytes = False, 0.0, 0
    window_start, window_bytes = time.monotonic(), 0
    while part.size < file.size:
        left = file.size - part.size
        started = time.monotonic()
        try:
            if fast:
                count = response.readinto(buffer[: min(left, BUFFER_BYTES)])
                view = buffer[:count]
            else:
                view = memoryview(response.read1(min(left, SLOW_READ_BYTES)))
        except NETWORK_ERRORS as error:
            raise _Interrupted(reason_of(error)) from error
        if not view:
            raise _Interrupted(f"the connection ended {left} bytes early")
        now = time.monotonic()
        sample_s, sample_bytes = sample_s + now - started, sample_bytes + len(view)
        if sample_bytes >= BUFFER_BYTES:
            fast = sample_bytes >= sample_s * FAST_BYTES_PER_S
            sample_s, sample_bytes = 0.0, 0
        window_bytes += len(view)
        part.append(view, hub.kind)
        if now - window_start >= policy.slow_window_s:
            if window_bytes < policy.slow_bytes_per_s * (now - window_start):
                raise _Interrupted(f"stalled at {window_bytes / (now - window_start):.0f} bytes per second")
            window_start, window_bytes = now, 0


def _mismatch(hub: Origin, file: ModelFile, actual: str, tries: int) -> HashMismatch:
    what = "an empty body" if actual == EMPTY_SHA256 else actual[:12]
    return HashMismatch(
        f"{file.path} from {hub.host} has the wrong content: expected SHA-256 {file.sha256[:12]}, got {what} in "
        f"{tries} tries; "
        "nothing was published",
        file=file.path,
        expected_sha256=file.sha256,
        actual_sha256=actual,
        tries=tries,
    )
