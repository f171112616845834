# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of records: written once, read without trust. Private to socle.inference."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from ansible_collections.socle.inference.plugins.module_utils._errors import RecordError
from ansible_collections.socle.inference.plugins.module_utils._records.schema import (
    KINDS,
    MAX_BYTES,
    Invalid,
    Record,
    collected_name,
    digest_of,
    parse,
    parse_spool_name,
    path_component,
)

MODE = 0o640

FROM_THE_FUTURE = "from a clock that is more than a day ahead"

_COLLECTED_NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-({'|'.join(KINDS)})(-[0-9a-f]{{12}})?\.json")

Skipped = Counter[str]
"""How many files were passed over, by the kind of fault."""


def is_from_the_future(record: Record, now: datetime) -> bool:
    """Whether *record* claims to have finished more than a day after *now*; it would hide all that comes until then."""
    limit = (now + timedelta(days=1)).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return bool(record["finished"][:19] > limit)


class Page(NamedTuple):
    """Some records of a spool, oldest first: [(name, text)], where to go on (None at the end), what was skipped."""

    records: list[tuple[str, str]]
    after: str | None
    skipped: Skipped


def read_text(path: Path) -> str:
    """The text of a regular file of bounded size; never follows a link or waits for a pipe. Raises Invalid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid("not a readable file", str(error)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Invalid("not a readable file", "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as handle:
            content = handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise Invalid("not a readable file", str(error)) from error
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise Invalid("too large", f"more than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid("not JSON", "not UTF-8") from error


def write_once(folder: Path, name: str, text: str) -> bool:
    """Write *text* as *folder*/*name* atomically; False when it is there already. A file is never replaced.

    Raises RecordError when something else has the name.
    """
    target = folder / name
    staged = folder / f".{secrets.token_hex(8)}.part"
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise RecordError(f"Records are not written to {str(folder)!r}: it is a link, expected a folder.")
        try:
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as handle:
                os.fchmod(descriptor, MODE)
                handle.write(text)
                handle.flush()
                os.fsync(descriptor)
            try:
                # A link, unlike a rename, never replaces what another writer put there meanwhile.
                os.link(staged, target)
            except FileExistsError as error:
                if _has_text(target, text):
                    return False
                raise RecordError(
                    f"The record {str(target)!r} exists with other content; records are never replaced.",
                    path=str(target),
                ) from error
            _sync_folder(folder)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        for above in (folder, *folder.parents):
            if above.is_symlink() and not above.exists():
                raise RecordError(
                    f"The record {str(target)!r} could not be written: {str(above)!r} is a link to nothing; "
                    f"make the folder that it names, or remove the link.",
                    path=str(target),
                ) from error
        raise RecordError(f"The record {str(target)!r} could not be written: {error}.", path=str(target)) from error
    return True


def write_collected(root: Path, host: str, record: Record, text: str) -> tuple[Path, bool]:
    """Write a record below *root* for the host that the inventory calls *host*; returns the path and whether it is new.

    A second record of the same second and kind gets its hash as a suffix.
    """
    above = root / path_component(host)
    if above.is_symlink():
        raise RecordError(f"Records are not written to {str(above)!r}: it is a link, expected a folder.")
    folder = above / path_component(record["instance"])
    name = collected_name(record)
    if os.path.lexists(folder / name) and not _has_text(folder / name, text):
        name = f"{name[: -len('.json')]}-{digest_of(text)}.json"
    return folder / name, write_once(folder, name, text)


def read_spool(
    folder: Path, host: str, have: Iterable[str], after: str = "", max_bytes: int = 4 * MAX_BYTES, max_files: int = 500
) -> Page:
    """The records in a host's spool whose hash is not in *have*, in order of name, from behind *after*.

    At most *max_files* files are opened and about *max_bytes* returned; the page says where the next one starts.
    """
    known = set(have)
    skipped: Skipped = Counter()
    found: list[tuple[str, str]] = []
    opened = size = 0
    last = after
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except FileNotFoundError:
        return Page([], None, skipped)
    except OSError as error:
        raise RecordError(f"The spool {str(folder)!r} could not be listed: {error}.") from error
    for name in names:
        parts = parse_spool_name(name)
        if parts is None:
            if not after and not name.startswith("."):
                skipped["with a name that is not a record's"] += 1
            continue
        if name <= after or parts.digest in known:
            continue
        if opened >= max_files or size >= max_bytes:
            return Page(found, last, skipped)
        opened += 1
        last = name
        try:
            text = read_text(folder / name)
            check_spooled(name, text, host)
        except Invalid as error:
            skipped[error.kind] += 1
            continue
        size += len(text.encode("utf-8"))
        found.append((name, text))
    return Page(found, None, skipped)


def check_spooled(name: str, text: str, host: str) -> Record:
    """The record in *text* if it is one of *host*, and *name* its name; raises Invalid."""
    parts = parse_spool_name(name)
    try:
        digest = digest_of(text)
    except UnicodeEncodeError as error:
        raise Invalid("not JSON", "not UTF-8") from error
    if parts is None or parts.digest != digest:
        raise Invalid("whose content does not match the name", f"the content's hash is {digest}")
    record = parse(text)
    if record["host"] != host:
        raise Invalid("of another host", f"host is {record['host']!r}, expected {host!r}")
    try:
        encoded = path_component(record["instance"])
    except RecordError as error:
        raise Invalid("with wrong fields", error.message) from error
    if parts.instance != encoded or parts.kind != record["kind"]:
        raise Invalid("whose content does not match the name", "instance or kind differs")
    return record


def read_tree(
    root: Path, hosts: Iterable[str], newest: int | None = None, now: datetime | None = None
) -> tuple[dict[str, dict[str, list[Record]]], Skipped]:
    """{host: {instance: [records, newest first]}} below *root* for the hosts named, and what was skipped.

    With *newest*, that many of each kind are read for every instance. *now* is the time by which records are from the
    future, by default that of this machine.
    """
    skipped: Skipped = Counter()
    now = now or datetime.now(timezone.utc)
    wanted: dict[str, str] = {}
    for host in hosts:
        try:
            wanted[path_component(host)] = host
        except RecordError:
            continue
    tree: dict[str, dict[str, list[Record]]] = {}
    for folder in _folders(root, skipped):
        if folder.name not in wanted:
            # A host that left the inventory keeps its records; that is no news either.
            continue
        host = wanted[folder.name]
        for below in _folders(folder, skipped):
            records = _read_folder(below, host, newest, now, skipped)
            if records:
                tree.setdefault(host, {})[records[0]["instance"]] = records
    return tree, skipped


def digests_below(root: Path, host: str) -> list[str]:
    """The hashes of all records that *root* has for *host*, whatever their state."""
    found: list[str] = []
    folder = root / path_component(host)
    if folder.is_symlink():
        return found
    for path in sorted(folder.glob("*/*.json")):
        try:
            found.append(digest_of(read_text(path)))
        except Invalid:
            continue
    return found


def summarise(skipped: Mapping[str, int], where: str) -> str | None:
    """One sentence with a count per kind; None when nothing was skipped."""
    total = sum(skipped.values())
    if not total:
        return None
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(skipped.items()))
    return f"Skipped {total} of the entries in {where}: {kinds}."


def _folders(root: Path, skipped: Skipped) -> Iterator[Path]:
    try:
        with os.scandir(root) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    except OSError:
        skipped["not a readable file"] += 1
        return
    for entry in listed:
        if entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)
        else:
            skipped["outside of the folders of host and instance"] += 1


def _read_folder(folder: Path, host: str, newest: int | None, now: datetime, skipped: Skipped) -> list[Record]:
    try:
        with os.scandir(folder) as entries:
            names = sorted((entry.name for entry in entries), reverse=True)
    except OSError:
        skipped["not a readable file"] += 1
        return []
    records: list[tuple[str, str, Record]] = []
    taken: Counter[str] = Counter()
    for name in names:
        match = _COLLECTED_NAME.fullmatch(name)
        if match is None:
            # A writer that was killed leaves its staged file behind: no news for anybody.
            if not (name.startswith(".") and name.endswith(".part")):
                skipped["with a name that is not a record's"] += 1
            continue
        kind = match.group(1)
        if newest is not None and taken[kind] >= newest:
            continue
        try:
            record = parse(read_text(folder / name))
            if record["host"] != host or path_component(record["instance"]) != folder.name or record["kind"] != kind:
                raise Invalid("in the wrong place", "host, instance or kind differ from the path")
            if is_from_the_future(record, now):
                raise Invalid(FROM_THE_FUTURE, f"finished is {record['finished']}")
        except RecordError:
            skipped["in the wrong place"] += 1
        except Invalid as error:
            skipped[error.kind] += 1
        else:
            taken[kind] += 1
            records.append((record["finished"], name, record))
    records.sort(key=lambda item: item[:2], reverse=True)
    return [record for _finished, _name, record in records]


def _has_text(path: Path, text: str) -> bool:
    try:
        return read_text(path) == text
    except Invalid:
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
