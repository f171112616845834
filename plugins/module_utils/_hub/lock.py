# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock beside an inventory: which content a name of a revision means for it. Private to socle.inference."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import stat
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import is_commit
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, loads
from ansible_collections.socle.inference.plugins.module_utils._hub.names import REPO, REPO_RULE, REVISION, folder_of
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Hub
from ansible_collections.socle.inference.plugins.module_utils._hub.state_file import MANIFEST_BYTES
from ansible_collections.socle.inference.plugins.module_utils._hub.transport import HubUnreachable

MOVED = ("refuse", "keep", "accept")
MAX_NAME_BYTES = 200
"""Of a lock's name, leaving room for the suffixes of the files that it is written by; file systems end at 255."""
SHOWN_FILES = 3


@dataclass(frozen=True)
class LockRequest:
    """What is wanted. *location* is the lock's file; None where there is no inventory to keep it beside."""

    repo: str
    revision: str
    location: Path | None
    moved: str = "refuse"
    offline: bool = False
    check: bool = False
    host: str = ""
    """Who asks, for the messages of the others."""


def lock_location(inventory_dir: str | None, source: str, repo: str, revision: str) -> Path | None:
    """Where the lock of a revision is; raises HubError for names that cannot be."""
    if not REPO.fullmatch(repo):
        raise HubError(f"repo must be {REPO_RULE}, found {repo[:120]!r}")
    if not REVISION.fullmatch(revision):
        raise HubError(f"revision must be a branch, a tag or a commit, found {revision[:120]!r}")
    return Path(inventory_dir) / ".socle" / "locks" / source / _lock_name(repo, revision) if inventory_dir else None


def _lock_name(repo: str, revision: str) -> str:
    encoded = urllib.parse.quote(revision, safe="")
    name = f"{folder_of(repo)}@{encoded}"
    if len(name) > MAX_NAME_BYTES:
        name = f"{name[: MAX_NAME_BYTES - 17]}-{hashlib.sha256(revision.encode()).hexdigest()[:16]}"
    return f"{name}.json"


def locked_manifest(inventory_dir: str | None, source: str, repo: str, revision: str) -> Manifest | None:
    """What a revision is locked as; None without a lock. Raises SocleError for one that cannot be used."""
    location = lock_location(inventory_dir, source, repo, revision)
    return _read_lock(LockRequest(repo, revision, location))


Held = Callable[[], Optional[Manifest]]


class UnreachableFromHost(HubUnreachable):
    """The hub cannot be reached from one of the hosts; another one may have a way to it."""


class Memo:
    """Remembers for the rest of a run what a hub said, so that many hosts cost one question.

    *folder* lives as long as the run; the hosts' processes share it.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._file = folder / f"model-lock-{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One host at a time."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.with_suffix(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def first(self, event: str, host: str) -> str | None:
        """The host that *event* was told of before; None for the first one, which is *host* then. Under the lock."""
        place = self._file.with_suffix(f".{event}")
        try:
            return place.read_text(encoding="utf-8")
        except FileNotFoundError:
            place.write_text(host, encoding="utf-8")
            return None

    def tell(self, manifest: Manifest) -> None:
        """Take *manifest* for the answer, whatever it was before."""
        with self.locked():
            self.remember(manifest)

    def remember(self, manifest: Manifest) -> None:
        """tell(), for who has the lock already."""
        self._write({"manifest": manifest.dumps()})

    def known(self) -> Manifest | None:
        """What was told or answered before; None where nothing was, or that no hub answers."""
        found = (self._read() or {}).get("manifest")
        return loads(found) if found else None

    def ask(self, question: Callable[[], Manifest], keep_host_failure: bool = True) -> Manifest:
        """The answer to *question*, or to the same one before; raises HubError as it did. That one host does not reach
        the hub is remembered only with *keep_host_failure*."""
        known = self._read()
        if known is None:
            try:
                known = {"manifest": question().dumps()}
            except HubError as error:
                if isinstance(error, UnreachableFromHost) and not keep_host_failure:
                    raise
                unreachable = isinstance(error, HubUnreachable)
                known = {"error": str(error), "unreachable": unreachable, "fields": error.fields}
            self._write(known)
        if "manifest" in known:
            return loads(known["manifest"])
        raise (HubUnreachable if known["unreachable"] else HubError)(known["error"], **known["fields"])

    def _read(self) -> dict[str, Any] | None:
        try:
            known: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return known

    def _write(self, known: dict[str, Any]) -> None:
        staged = self._file.with_suffix(".new")
        staged.write_text(json.dumps(known), encoding="utf-8")
        staged.replace(self._file)


def nothing_held() -> Manifest | None:
    """For who has no store to look into."""
    return None


def ensure_lock(
    request: LockRequest, make_hub: Callable[[], Hub], memo: Memo, held: Held = nothing_held
) -> dict[str, Any]:
    """The content that *request* means, from the lock, the hub or both; returns what the module returns.

    *make_hub* is called only where a hub has to be asked, and *held* only for a full commit that has no lock where no
    hub answers: it returns what the host holds under that commit. Raises SocleError.
    """
    with memo.locked():
        return _ensure(request, make_hub, memo, held)


def _ensure(request: LockRequest, make_hub: Callable[[], Hub], memo: Memo, held: Held) -> dict[str, Any]:
    locked = _read_lock(request) if request.location else None
    if locked and (request.offline or is_commit(request.revision)):
        return _result(request, locked)
    if request.offline:
        kept = memo.known() or _held(request, held)
        if kept:
            # For the hosts that do not hold it, also in check mode, where no lock is written.
            memo.remember(kept)
            return _lock(request, kept, memo)
        raise StoreError(
            f"{request.repo} at {request.revision} has no lock at {request.location}, and the option offline is set: "
            "run this once without it, or bring the lock from where it was run",
            no_lock=True,
        )

    def question() -> Manifest:
        return dataclasses.replace(make_hub().resolve(request.repo, request.revision), requested=request.revision)

    # Where there is a lock to fall back on, one host's long wait for a hub behind no route is enough.
    keep = locked is not None and request.moved != "accept"
    try:
        found = memo.ask(question, keep_host_failure=keep)
    except HubError as error:
        if locked and (isinstance(error, HubUnreachable) or request.moved == "keep"):
            return _result(request, locked, warning=f"{error}; the lock {request.location} is used: {_named(locked)}")
        kept = _held(request, held) if isinstance(error, HubUnreachable) else None
        if kept:
            memo.remember(kept)
            return _lock(
                request,
                kept,
                memo,
                warning=f"{error}; {request.host or 'a host'} holds {_named(kept)}, which is locked",
            )
        raise _with_ways_out(error, request, locked) from error
    return _lock(request, found, memo) if locked is None else _compare(request, locked, found, memo)


def _held(request: LockRequest, held: Held) -> Manifest | None:
    """What the host holds under a full commit: unlike a name, that means one content for ever."""
    found = held() if is_commit(request.revision) else None
    fits = found and (found.repo, found.commit) == (request.repo, request.revision)
    return dataclasses.replace(found, requested=request.revision) if found and fits else None


def _lock(request: LockRequest, found: Manifest, memo: Memo, warning: str | None = None) -> dict[str, Any]:
    """Let *found* be what the revision means, since nothing is locked yet."""
    if request.location and not request.check and not _write_new(request.location, found.dumps()):
        # Somebody else was faster: what they wrote counts.
        locked = _read_lock(request)
        if locked is not None:
            return _compare(request, locked, found, memo)
    changed = request.location is not None and _counts(request, memo)
    return _result(request, found, changed=changed, warning=warning)


def _counts(request: LockRequest, memo: Memo) -> bool:
    """Whether a change is this host's: in a run the next one finds the lock as it should be, in check mode it does
    not."""
    return not request.check or memo.first("changed", request.host) is None


def _compare(request: LockRequest, locked: Manifest, found: Manifest, memo: Memo) -> dict[str, Any]:
    return _result(request, locked) if found.content_id == locked.content_id else _moved(request, locked, found, memo)


def _moved(request: LockRequest, locked: Manifest, found: Manifest, memo: Memo) -> dict[str, Any]:
    changed = _changed_paths(locked, found)
    total = len({file.path for manifest in (locked, found) for file in manifest.files})
    shown = ", ".join(changed[:SHOWN_FILES]) + (", ..." if len(changed) > SHOWN_FILES else "")
    what = (
        f"{request.repo} at {request.revision} has moved: locked is {_named(locked)} of {locked.created}, the hub has "
        f"{_named(found)}; {len(changed)} of {total} files differ ({shown})"
    )
    if locked.commit and locked.commit == found.commit:
        what = (
            f"The hub lists other files for commit {locked.commit} of {request.repo} than the lock {request.location}, "
            f"which a hub never should: {len(changed)} of {total} files differ ({shown})"
        )
    if request.moved == "keep":
        return _result(request, locked, warning=f"{what}; the lock is used", moved=True)
    if request.moved == "accept":
        if request.location and not request.check:
            _keep(request.location, locked)
            _write(request.location, found.dumps())
        return _result(request, found, changed=_counts(request, memo), before=locked, moved=True)
    teller = memo.first("moved", request.host)
    if teller and teller != request.host:
        raise HubError(f"{request.repo} at {request.revision} has moved: the message of {teller} says what to do")
    pin = f", or pin it with revision: {locked.commit}" if locked.commit else ""
    message = (
        f"{what}. Take what the hub has with -e model_store_moved=accept, stay with what is locked with "
        f"-e model_store_moved=keep{pin}"
    )
    raise HubError(
        message,
        locked_commit=locked.commit,
        commit=found.commit,
        locked_content_id=locked.content_id,
        content_id=found.content_id,
        files_changed=len(changed),
    )


def _result(
    request: LockRequest,
    manifest: Manifest,
    changed: bool = False,
    warning: str | None = None,
    before: Manifest | None = None,
    moved: bool = False,
) -> dict[str, Any]:
    return {
        "changed": changed,
        "manifest": json.loads(manifest.dumps()),
        "content_id": manifest.content_id,
        "commit": manifest.commit,
        "lock": str(request.location) if request.location else None,
        "moved": moved,
        "warnings": [warning] if warning else [],
        "diff": {
            "before": (_summary(before) if before else "") if changed else _summary(manifest),
            "after": _summary(manifest),
            "before_header": str(request.location),
            "after_header": str(request.location),
        },
    }


def _named(manifest: Manifest) -> str:
    return f"commit {manifest.commit}" if manifest.commit else f"content {manifest.content_id}"


def _summary(manifest: Manifest) -> str:
    """A manifest for the eyes: one line a file."""
    lines = [f"commit {manifest.commit}", f"content {manifest.content_id}"]
    lines += [f"{file.path} {file.size} {file.sha256[:12]}" for file in manifest.files]
    return "\n".join(lines) + "\n"


def _changed_paths(one: Manifest, other: Manifest) -> list[str]:
    """Paths with other size or content, or on one side only."""
    before, after = ({file.path: (file.size, file.sha256) for file in manifest.files} for manifest in (one, other))
    return sorted(path for path in {**before, **after} if before.get(path) != after.get(path))


def _with_ways_out(error: HubError, request: LockRequest, locked: Manifest | None) -> HubError:
    if isinstance(error, HubUnreachable):
        return HubUnreachable(
            f"{error}, and {request.repo} at {request.revision} has no lock yet: check address, network and proxy "
            "(HTTPS_PROXY, NO_PROXY in the environment, or the option proxy), or bring a lock and set the option "
            "offline",
            **error.fields,
        )
    if locked and error.fields.get("revision_gone"):
        return HubError(
            f"{error}; the lock {request.location} holds {_named(locked)}: to stay with it, use "
            "-e model_store_moved=keep",
            **error.fields,
        )
    return error


def _read_lock(request: LockRequest) -> Manifest | None:
    """The lock's manifest, None without one; raises StoreError for a file that is none."""
    location = request.location
    if location is None:
        return None
    try:
        # A pipe would keep the reader waiting.
        descriptor = os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreError("it is no regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as handle:
                content = handle.read(MANIFEST_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > MANIFEST_BYTES:
            raise StoreError(f"it has more than {MANIFEST_BYTES >> 20} MiB")
        manifest = loads(content.decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"the lock {location} cannot be read ({error.strerror}): correct its permissions") from error
    except (StoreError, ValueError, RecursionError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise StoreError(
            f"the lock {location} is damaged ({reason}): restore it from version control, or remove it to lock what "
            "the hub has now"
        ) from error
    if (manifest.repo, manifest.requested) != (request.repo, request.revision):
        raise StoreError(
            f"the lock {location} is that of {manifest.repo} at {manifest.requested}, not of {request.repo} at "
            f"{request.revision}: remove it, or give it its right name"
        )
    return manifest


def _keep(location: Path, locked: Manifest) -> None:
    """Keep what was locked under the name of its commit, so that going back to it needs no hub."""
    if locked.commit:
        text = dataclasses.replace(locked, requested=locked.commit).dumps()
        _write_new(location.with_name(_lock_name(locked.repo, locked.commit)), text)


def _write_new(location: Path, text: str) -> bool:
    """Write a lock that must not be there yet; False if it is."""
    with _staged(location, text) as staged:
        try:
            os.link(staged, location)
        except OSError:
            # It is there, or the file system has no hard links: then the moment before the next line is the price.
            if location.exists():
                return False
            staged.replace(location)
    return True


def _write(location: Path, text: str) -> None:
    with _staged(location, text) as staged:
        staged.replace(location)


@contextlib.contextmanager
def _staged(location: Path, text: str) -> Iterator[Path]:
    """*text* in a file beside *location*, on disk, and gone afterwards; a failure becomes a StoreError."""
    staged = location.with_name(f".{location.name}.{secrets.token_hex(4)}.new")
    try:
        location.parent.mkdir(parents=True, exist_ok=True)
        try:
            with staged.open("x", encoding="utf-8") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            yield staged
        finally:
            with contextlib.suppress(FileNotFoundError):
                staged.unlink()
    except OSError as error:
        raise StoreError(
            f"the lock {location} cannot be written ({error.strerror}): make its folder writable, or bring a lock that "
            "was made elsewhere"
        ) from error
