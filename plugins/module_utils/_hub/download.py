# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file from its origins: resumed, hashed while it arrives, proven before it counts. Private to socle.inference."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
import urllib.error
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import EMPTY_SHA256, ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.meter import Cancelled, Meter
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Accountable, Back, NotYet, Origin
from ansible_collections.socle.inference.plugins.module_utils._hub.parts import BUFFER_BYTES, Part, Segment
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import (
    NETWORK_ERRORS,
    TRANSIENT,
    reason_of,
    retry_after,
)

__all__ = ["Cancelled", "HashMismatch", "Meter", "fetch_file"]

SLOW_READ_BYTES = 1 << 16
FAST_BYTES_PER_S = 16 << 20
PIECE_S = 8.0
"""Beside others, a connection fetches so much of a file that its request costs little, and not more, so that the start
of the file, which is what neighbours get, grows steadily."""
PIECE_MAX_BYTES = 512 << 20
CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
EXPIRED = frozenset({401, 403, 404, 410})
CROWDED = frozenset({429, 503})
LAN_RETRY_S = 0.5
REFUSED_RETRY_S = 0.25
REFUSALS = (ConnectionRefusedError, ConnectionResetError)
"""What the kernel of a host answers in place of a process that has ended."""
LAST_WAIT_S = 1.0
RESTARTS = 2
"""How often the same host may make a file start over by naming its content differently."""


class HashMismatch(HubError):
    """What arrived is not what the listing promised, several times over."""


class _Interrupted(Exception):
    """This try is over; the next one goes on where it ended."""

    unreached = False
    """There was no connection, so that address and proxy are to be looked at."""

    def __init__(self, reason: str, pause_s: float | None = None, status: int = 0, refused: bool = False) -> None:
        super().__init__(reason)
        self.pause_s = pause_s
        self.status = status
        self.refused = refused
        """The host answered, and the process that served there did not."""


class _WrongContent(Exception):
    """The origin has something else than was listed."""


class _Refused(Exception):
    """The origin does not give the file, and will not."""

    def __init__(self, error: HubError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass
class _Standing:
    """How an origin did for this file."""

    origin: Origin
    failures: int = 0
    renewals: int = 0
    mismatches: int = 0
    restarts: int = 0
    bad_ranges: int = 0
    no_ranges: bool = False
    mark: int = 0
    """Bytes of the file at the last progress."""
    failing_since: float | None = None
    refused_since: float | None = None
    """When it began to refuse connections, without a byte since."""
    refused_at: int = 0
    """Bytes of the file then."""
    waiting_since: float | None = None
    waited_at: tuple[int, str | None] | None = None
    """Bytes of the file, and the progress of the origin itself, when the waiting began."""
    verdict: HubError | None = None
    """Why it is asked no more."""


def fetch_file(
    origins: Sequence[Origin], file: ModelFile, location: Path, meter: Meter, shelf: Shelf | None = None
) -> None:
    """Bring *file* to *location*, flushed to disk and proven; goes on behind what is there already.

    *origins* in order of preference; *shelf* learns what can be served on. Raises HashMismatch with the wrong content
    left at *location*, HubError when no origin answers any more, StoreError when the disk does not take it.
    """

    def report(count: int, kind: str | None = None) -> None:
        meter.add(count, file.path, kind)

    part = Part(location, file, report, shelf)
    try:
        _Fetch(origins, file, part, meter).run()
    finally:
        part.close()
    if shelf is not None:
        shelf.prove(file.path, location)


class _Fetch:
    """The thread that runs it has the first connection; the others come and go."""

    def __init__(self, origins: Sequence[Origin], file: ModelFile, part: Part, meter: Meter) -> None:
        self.file = file
        self.part = part
        self.meter = meter
        self.standings = [_Standing(origin) for origin in origins]
        self.contributors: set[str] = set()
        self.extras: dict[int, threading.Thread] = {}
        self.extras_after = 0.0
        self.extra_failures = 0
        self.extra_fault: BaseException | None = None
        self.closing = False

    def run(self) -> None:
        self.part.check_start()
        for standing in self.standings:
            standing.mark = self.part.received
        try:
            while True:
                standing = self._preferred()
                if self.part.complete:
                    actual = self.part.finish(self._poll)
                    if actual == self.file.sha256:
                        break
                    self._wrong(actual, standing)
                    continue
                self._try(standing)
        finally:
            self._end_extras(LAST_WAIT_S)
        self.part.publish()

    def _preferred(self) -> _Standing:
        """The first origin that was not given up; raises what the last one was given up for."""
        for standing in self.standings:
            if standing.verdict is None:
                return standing
        last = self.standings[-1].verdict or HubError(f"{self.file.path} has no origin")
        if len(self.standings) == 1:
            raise last
        others = "; ".join(str(standing.verdict) for standing in self.standings[:-1])
        raise type(last)(f"{last}; before that: {others}", **last.fields)

    def _try(self, standing: _Standing) -> None:
        began = time.monotonic()
        try:
            with self.meter.receiving(standing.origin.ranges and not standing.no_ranges):
                self._pull(standing)
        except _WrongContent as error:
            host = standing.origin.host
            standing.mismatches += 1
            if host in self.contributors:
                self._restart()
            if standing.mismatches >= standing.origin.policy.hash_tries:
                self._give_up(
                    standing,
                    HashMismatch(
                        f"{self.file.path} from {host}: {error} (expected SHA-256 {self.file.sha256[:12]}) in "
                        f"{standing.mismatches} tries; nothing was published",
                        file=self.file.path,
                        expected_sha256=self.file.sha256,
                        tries=standing.mismatches,
                    ),
                )
        except _Refused as error:
            self._give_up(standing, error.error)
        except Back as error:
            self._take_back(str(error))
        except NotYet as error:
            self._waited(standing, error.progress, began)
        except _Interrupted as error:
            self._interrupted(standing, error)

    # Faults

    def _give_up(self, standing: _Standing, verdict: HubError) -> None:
        self._end_extras()
        standing.verdict = verdict
        following = next((other for other in self.standings if other.verdict is None), None)
        if following is not None:
            self.meter.ailing.add(standing.origin.host)
            self.meter.note(f"{verdict}; went on with {following.origin.host}")

    def _waited(self, standing: _Standing, progress: str | None, began: float) -> None:
        """The origin lives and has no more yet: ask it again, as long as it, or what it waits for, gets on."""
        origin, policy, now = standing.origin, standing.origin.policy, time.monotonic()
        standing.failing_since = standing.refused_since = None
        state = (self.part.received, progress)
        if standing.waiting_since is None or state != standing.waited_at:
            standing.waiting_since, standing.waited_at = now, state
        # One that let another file down already gets less of this.
        bound_s = policy.stall_s if origin.host in self.meter.ailing else policy.not_yet_s
        if now - standing.waiting_since >= bound_s:
            self._give_up(
                standing,
                HubError(
                    f"{origin.host} answers, but has had no more of {self.file.path} for {bound_s:g} s, and nothing "
                    "came for itself either: look at its job there; a rerun goes on where it ended",
                    file=self.file.path,
                    host=origin.host,
                ),
            )
            return
        self._poll()
        # Refused at once, as by one with too many connections.
        if now - began < LAN_RETRY_S:
            self._pause(standing, LAN_RETRY_S)

    def _take_back(self, reason: str) -> None:
        """Ask neighbours that were given up again, but for those that sent what is wrong."""
        for other in self.standings:
            if other.origin.kind == "lan" and other.mismatches < other.origin.policy.hash_tries:
                other.verdict = other.failing_since = other.refused_since = other.waiting_since = None
                other.failures = 0
                self.meter.ailing.discard(other.origin.host)
        self.meter.note(f"{self.file.path}: {reason}")
        self._poll()

    def _interrupted(self, standing: _Standing, error: _Interrupted) -> None:
        """Count the failure, and wait before the next try; or give the origin up."""
        origin, policy = standing.origin, standing.origin.policy
        received = self.part.received
        standing.mark = min(standing.mark, received)
        if received - standing.mark >= policy.progress_bytes:
            standing.failures = standing.renewals = 0
            standing.mark, standing.failing_since = received, None
        standing.failures += 1
        now = time.monotonic()
        if standing.failing_since is None:
            standing.failing_since = now
        alone = all(other.verdict is not None for other in self.standings if other is not standing)
        if origin.kind == "lan" and not alone:
            patient = now - standing.failing_since < policy.lan_patience_s and origin.host not in self.meter.ailing
            # Judged also where patience is over: it keeps the time since the first refusal.
            patient = not self._is_refused(standing, error, now) and patient
            pause: float = REFUSED_RETRY_S if error.refused else LAN_RETRY_S
        else:
            patient = standing.failures < policy.failures
            pause = min(policy.backoff_s * 2 ** (standing.failures - 1), policy.backoff_max_s)
            # What a server asks for is no less than that: with "Retry-After: 0" all tries would be gone at once.
            pause = max(pause * random.uniform(0.5, 1.0), error.pause_s or 0.0)
        if patient:
            self._pause(standing, pause)
            return
        route = origin.describe_route()
        check = ""
        if origin.kind == "wan" and error.unreached:
            check = f": check the option {'proxy' if route.startswith('through') else 'endpoint'}"
        self._give_up(
            standing,
            HubError(
                f"downloading {self.file.path} from {origin.host} {route} gave up after "
                f"{standing.failures} tries without progress (last: {error}){check}; a rerun goes on where it ended",
                file=self.file.path,
                host=origin.host,
            ),
        )

    def _is_refused(self, standing: _Standing, error: _Interrupted, now: float) -> bool:
        """Whether nobody has listened at a neighbour for so long that its process must have ended."""
        if not error.refused:
            standing.refused_since = None
            return False
        if standing.refused_since is None or standing.refused_at != self.part.received:
            standing.refused_since, standing.refused_at = now, self.part.received
        return now - standing.refused_since >= standing.origin.policy.lan_refused_s

    def _wrong(self, actual: str, standing: _Standing) -> None:
        """The file is complete, and not what it should be: start over, unless its origins had their chances."""
        blamed = self.contributors or {standing.origin.host}
        if not self.part.kept:
            for other in self.standings:
                if other.verdict is None and other.origin.host in blamed:
                    other.mismatches += 1
                    if other.mismatches >= other.origin.policy.hash_tries:
                        self._give_up(other, _mismatch(other, self.file, actual))
                        if blamed == {other.origin.host} and isinstance(other.origin, Accountable):
                            other.origin.blame(self.file)
        if all(other.verdict is not None for other in self.standings):
            # What arrived stays for a person to look at.
            self._preferred()
        self._restart()

    def _restart(self) -> None:
        self._end_extras()
        self.part.restart()
        self.contributors.clear()

    def _pause(self, standing: _Standing, seconds: float) -> None:
        """Sleep, but notice when another file failed."""
        until = time.monotonic() + seconds
        while seconds > 0:
            self._poll()
            standing.origin.sleep(min(seconds, 0.5))
            seconds = until - time.monotonic()

    def _poll(self) -> None:
        if self.meter.stop.is_set():
            raise Cancelled

    # Connections

    def _pull(self, standing: _Standing) -> None:
        """Fetch with this thread's connection until the file is complete."""
        step = standing.origin.policy.split_bytes
        while not self.part.complete:
            segment = self.part.claim(self._piece(step), step)
            if segment is None:
                # The other connections have the rest, in shares too small to be worth another request.
                self.part.wait(0.5)
                self._poll()
                self._raise_extra_fault()
                continue
            try:
                self._receive(standing, segment, 0)
            finally:
                self.part.release(segment)

    def _piece(self, step: int) -> int:
        climb = self.meter.climb
        return max(4 * step, min(PIECE_MAX_BYTES, int(climb.line_rate * PIECE_S))) if climb.lines > 1 else 1 << 62

    def _add_extras(self, standing: _Standing) -> None:
        """Open more connections where they pay and have something to fetch."""
        lines = self.meter.climb.lines
        self._raise_extra_fault()
        if lines <= 1 or standing.no_ranges or not standing.origin.ranges or time.monotonic() < self.extras_after:
            return
        missing = [
            number for number in range(1, lines) if number not in self.extras or not self.extras[number].is_alive()
        ]
        if not missing or not self.part.may_share(standing.origin.policy.split_bytes):
            return
        self.part.share()
        for number in missing:
            self.part.join()
            thread = threading.Thread(
                target=self._run_extra, args=(standing, number), name=f"line-{number}", daemon=True
            )
            self.extras[number] = thread
            thread.start()

    def _run_extra(self, standing: _Standing, number: int) -> None:
        policy = standing.origin.policy
        try:
            while number < self.meter.climb.lines and not self.closing:
                segment = self.part.claim(self._piece(policy.split_bytes), policy.split_bytes)
                if segment is None:
                    return
                try:
                    self._receive(standing, segment, number)
                finally:
                    self.part.release(segment)
                self.extra_failures = 0
        except _Interrupted as error:
            pause = min(policy.backoff_s * 2**self.extra_failures, policy.backoff_max_s)
            self.extra_failures += 1
            if error.status in CROWDED:
                self.meter.climb.refuse(time.monotonic())
                pause = max(pause, error.pause_s or 0.0)
            self.extras_after = time.monotonic() + pause
        except (_WrongContent, _Refused):
            # The first connection judges the origin, when it gets there.
            self.extras_after = time.monotonic() + policy.hold_s
        except Cancelled:
            return
        except BaseException as error:
            self.extra_fault = error
        finally:
            self.part.leave()

    def _raise_extra_fault(self) -> None:
        if self.extra_fault is not None:
            raise self.extra_fault

    def _end_extras(self, wait_s: float | None = None) -> None:
        """End all other connections; those that wait for bytes notice when these come, or after the stall time. With
        *wait_s* they are left to themselves after it: what they still get is not written any more."""
        self.closing = True
        for thread in self.extras.values():
            thread.join(wait_s)
        self.extras.clear()
        self.closing = wait_s is not None

    def _receive(self, standing: _Standing, segment: Segment, number: int) -> None:
        """Fetch *segment* by connection *number*; 0 is the first one, which alone may start the file over."""
        origin, position = standing.origin, segment.position
        end = None if segment.end == self.file.size else segment.end
        try:
            response = origin.open_file(self.file, position, end)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._judge_status(standing, error, number) from error
        except NotYet:
            raise
        except NETWORK_ERRORS as error:
            interrupted = _Interrupted(_reason(origin, error), refused=isinstance(error, REFUSALS))
            interrupted.unreached = True
            raise interrupted from error
        except ValueError as error:
            raise _Interrupted("an address that is not valid") from error
        with contextlib.closing(response):
            source = urllib.parse.urlsplit(response.geturl() or "").netloc or origin.host
            self._check_answer(standing, response, segment, source, number)
            self.meter.sources.add(source)
            self.meter.source = source
            self.contributors.add(origin.host)
            self._copy(standing, response, segment, source, number)

    def _judge_status(self, standing: _Standing, error: urllib.error.HTTPError, number: int) -> Exception:
        """What a refusal means: wrong content, the end of this origin, or only of this try."""
        origin, path = standing.origin, self.file.path
        interrupted = _Interrupted(f"status {error.code}", retry_after(error), error.code)
        if number:
            return interrupted
        if error.code == 416:
            total = ((error.headers.get("Content-Range") if error.headers else None) or "").rpartition("/")[2]
            if total.isdecimal() and total != str(self.file.size):
                return _WrongContent(f"{self.file.size} bytes were listed, {total[:20]} are offered")
            self._restart()
            return interrupted
        if origin.is_own(error.geturl()):
            if error.code in TRANSIENT:
                return interrupted
            if origin.kind == "lan" and error.code == 410:
                return _Refused(
                    HubError(
                        f"{origin.host} does not have all of {path}, and there is nothing to wait for there",
                        file=path,
                        status=error.code,
                    )
                )
            hint = "; the token is missing or not valid for it" if error.code in (401, 403) else ""
            return _Refused(
                HubError(
                    f"{origin.host} answered {error.code} for {path}, which it listed before{hint}; nothing was "
                    "published",
                    file=path,
                    status=error.code,
                )
            )
        if error.code in EXPIRED:
            standing.renewals += 1
            if standing.renewals > origin.policy.renewals:
                storage = urllib.parse.urlsplit(error.geturl() or "").netloc or "its storage"
                return _Refused(
                    HubError(
                        f"{storage} answered {error.code} for {path}, also at {origin.policy.renewals} fresh addresses "
                        f"from {origin.host}: check that this host's clock and route to the storage are right; a rerun "
                        "goes on where it ended",
                        file=path,
                        status=error.code,
                    )
                )
        return interrupted

    def _check_answer(self, standing: _Standing, response: Any, segment: Segment, source: str, number: int) -> None:
        """Compare what the server announces with what was listed, before a byte is taken."""
        size, position = self.file.size, segment.position
        length = response.headers.get("Content-Length") or ""
        total: str | None = length if length.isdecimal() else None
        if response.status == 206:
            found = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
            total = found[3] if found and found[3] != "*" else None
            fits = found and int(found[1]) == position <= int(found[2]) and (not total or int(found[2]) < int(total))
            if not fits:
                standing.bad_ranges += 1
                if not number and standing.bad_ranges > 1:
                    standing.no_ranges = True
                    self._restart()
                raise _Interrupted("the server answered another range than was asked for")
        elif response.status != 200:
            raise _Interrupted(f"status {response.status}")
        if total is not None and total != str(size):
            offered = f"{total[:20]} are offered" if int(total[:20]) else "the body is empty"
            raise _WrongContent(f"{size} bytes were listed, {offered}")
        self._check_etag(standing, response, source, number)
        if response.status == 200 and (position or self.part.ranged):
            standing.no_ranges = True
            if number:
                raise _Interrupted("the server ignores ranges")
            self._restart()
            segment.position = segment.written = 0
            segment.end = size

    def _check_etag(self, standing: _Standing, response: Any, source: str, number: int) -> None:
        """The same host that names the content differently than before has another file now."""
        etag, known = response.headers.get("ETag"), self.part.known_etag(source)
        if etag and known and etag != known and self.part.received and standing.restarts < RESTARTS:
            if not number:
                standing.restarts += 1
                self._restart()
            raise _Interrupted("the file on the server is another one than before, by its ETag")
        if etag and etag != known:
            self.part.note_etag(source, etag)

    def _copy(self, standing: _Standing, response: Any, segment: Segment, source: str, number: int) -> None:
        """Read until the segment is complete. Small reads on slow links keep progress and stalls visible."""
        origin, policy = standing.origin, standing.origin.policy
        buffer: memoryview | None = None
        fast, sample_s, sample_bytes = False, 0.0, 0
        started = window_start = time.monotonic()
        window_bytes = 0
        try:
            while segment.left > 0:
                left = segment.left
                try:
                    if fast:
                        buffer = buffer or self.part.buffer()
                        count = response.readinto(buffer[: min(left, BUFFER_BYTES)])
                        view = buffer[:count]
                    else:
                        view = memoryview(response.read1(min(left, SLOW_READ_BYTES)))
                except NotYet:
                    raise
                except NETWORK_ERRORS as error:
                    raise _Interrupted(_reason(origin, error), refused=isinstance(error, REFUSALS)) from error
                if not view:
                    raise _Interrupted(f"the connection ended {left} bytes early")
                now = time.monotonic()
                sample_s, sample_bytes = sample_s + now - started, sample_bytes + len(view)
                window_bytes += len(view)
                if self.part.write(segment, view, origin.kind, buffer if fast else None):
                    buffer = None
                if sample_bytes >= BUFFER_BYTES:
                    fast = sample_bytes >= sample_s * FAST_BYTES_PER_S
                    sample_s, sample_bytes = 0.0, 0
                if now - window_start >= policy.slow_window_s:
                    span_s = now - window_start
                    if window_bytes < policy.slow_bytes_per_s * span_s:
                        reason = f"stalled at {window_bytes / span_s:.0f} bytes per second over the last {span_s:.3g} s"
                        self.meter.note(
                            f"{self.file.path} from {source}: {reason}; switched to a new connection to {origin.host}"
                        )
                        raise _Interrupted(reason)
                    window_start, window_bytes = now, 0
                if not number:
                    self.meter.ailing.discard(origin.host)
                    self._add_extras(standing)
                elif self.closing or number >= self.meter.climb.lines:
                    return
                started = time.monotonic()
        finally:
            self.part.give_back(buffer)


def _reason(origin: Origin, error: BaseException) -> str:
    reason = reason_of(error)
    return f"stalled: nothing came for {origin.policy.stall_s:g} s" if reason == "timed out" else reason


def _mismatch(standing: _Standing, file: ModelFile, actual: str) -> HashMismatch:
    what = "an empty body" if actual == EMPTY_SHA256 else actual[:12]
    host = standing.origin.host
    message = (
        f"{file.path} from {host} has the wrong content: expected SHA-256 {file.sha256[:12]}, got {what} in "
        f"{standing.mismatches} tries; nothing was published"
    )
    if standing.origin.kind == "disk":
        message += ": copy it again, or export again with model_store_export_verify=full"
    if standing.origin.kind == "lan":
        name = host.partition(" ")[0]
        message = (
            f"{host} served wrong bytes of {file.path} in {standing.mismatches} tries (expected SHA-256 "
            f"{file.sha256[:12]}, got {what}), and is not asked for it again in this run: verify it with socle models "
            f"-i INVENTORY --limit {name} -e model_store_action=verify"
        )
    return HashMismatch(
        message,
        file=file.path,
        expected_sha256=file.sha256,
        actual_sha256=actual,
        tries=standing.mismatches,
    )
