# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a part file besides its bytes: the ranges that it holds, and hashes of its start. Private to
socle.inference.

The journal `<part>.json` lies beside the part file. It says at most parts.JOURNAL_BYTES less than was written, so that
a kill loses little.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular

JOURNAL_SCHEMA = 1
JOURNAL_MAX_BYTES = 1 << 20

Spans = list[tuple[int, int]]
"""Sorted ranges [start, end) in bytes that neither touch nor overlap."""


def add_span(spans: Iterable[tuple[int, int]], start: int, end: int) -> Spans:
    """*spans* and [start, end), merged."""
    merged: Spans = []
    for first, last in sorted([*spans, (start, end)]):
        if first >= last:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def gaps(spans: Iterable[tuple[int, int]], size: int) -> Spans:
    """What *spans* leave out of [0, size)."""
    found, position = [], 0
    for start, end in add_span(spans, size, size):
        if start > position:
            found.append((position, min(start, size)))
        position = max(position, end)
    if position < size:
        found.append((position, size))
    return found


@dataclass
class Journal:
    """What is known of a part file besides its bytes. *spans* is None where its length says what it holds."""

    size: int
    sha256: str
    spans: Spans | None = None
    etags: dict[str, str] = field(default_factory=dict)
    """The ETag that each origin gave, by host."""
    marks: list[tuple[int, str]] = field(default_factory=list)
    """SHA-256 of the first so many bytes, by offset."""

    def dumps(self) -> str:
        return json.dumps(
            {
                "schema": JOURNAL_SCHEMA,
                "size": self.size,
                "sha256": self.sha256,
                "spans": self.spans,
                "etags": self.etags,
                "marks": self.marks,
            }
        )


def load_journal(text: str) -> Journal:
    """A journal from its text; raises ValueError for what is none."""
    try:
        document: Any = json.loads(text)
        if document["schema"] != JOURNAL_SCHEMA:
            raise ValueError("another schema")
        spans = document["spans"]
        if spans is not None:
            spans = [(_count(start), _count(end)) for start, end in spans]
            if spans != add_span(spans, 0, 0):
                raise ValueError("spans that are not in order")
        marks = [(_count(offset), str(digest)) for offset, digest in document["marks"]]
        etags = {str(host): str(tag) for host, tag in document["etags"].items()}
        return Journal(_count(document["size"]), str(document["sha256"]), spans, etags, sorted(marks))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count of bytes")
    return value


def journal_of(location: Path) -> Path:
    """Where the journal of the part file at *location* is."""
    return location.with_name(location.name + ".json")


def read_journal(location: Path) -> Journal | None:
    """The journal of the part file at *location*; None where there is none that can be used."""
    try:
        with os.fdopen(open_regular(journal_of(location)), "rb") as handle:
            return load_journal(handle.read(JOURNAL_MAX_BYTES).decode("utf-8"))
    except (OSError, ValueError):
        return None


def held_spans(location: Path, file: ModelFile) -> Spans:
    """What a later run may go on from of the part file at *location*; nothing where it was meant for another file."""
    try:
        length = os.lstat(location).st_size
    except OSError:
        return []
    journal = read_journal(location)
    if length > file.size or (journal and (journal.size, journal.sha256) != (file.size, file.sha256)):
        return []
    if journal is None or journal.spans is None:
        return add_span([], 0, length)
    return add_span([(start, min(end, length)) for start, end in journal.spans], 0, 0)


def move_part(source: Path, target: Path) -> None:
    """Give a part file another place, with its journal: a death in between leaves it usable at one of the two."""
    with contextlib.suppress(FileNotFoundError):
        journal_of(target).unlink()
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(journal_of(source), journal_of(target), follow_symlinks=False)
    source.replace(target)
    forget_journal(source)


def forget_journal(location: Path) -> None:
    """The part file at *location* is complete, or gone."""
    for place in (journal_of(location), staged_journal(location)):
        with contextlib.suppress(FileNotFoundError):
            place.unlink()


def staged_journal(location: Path) -> Path:
    """Where the journal of the part file at *location* is written before it takes the place of the last one."""
    return location.with_name(location.name + ".json.new")


def write_journal(location: Path, journal: Journal) -> None:
    """Replace the journal of the part file at *location*. Not flushed to disk: after a power failure marks and the hash
    find what is missing."""
    staged = staged_journal(location)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(staged, flags, 0o600), "w", encoding="utf-8") as handle:
        handle.write(journal.dumps())
    staged.replace(journal_of(location))
