# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON files that a launch wrote and that somebody may have edited or damaged since. Private to socle.inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

PLAN_BYTES = 4 << 20
"""Of a plan, which has some ten KiB; json needs up to 30 times as much memory to read it."""

STATE_BYTES = 1 << 20
"""Of what is noted of a generation: some words, and why it failed."""

MAX_DEPTH = 50
"""Levels of maps and lists; a plan has about six. Whoever writes a result again fails at some hundred."""


class Damaged(ValueError):
    """A file holds no document; the message goes on after the file's name."""


def read_document(files: Files, path: Path, limit: int) -> dict[str, Any]:
    """The map that *path* holds, which can be written as JSON again. Raises Damaged, also where it cannot be read."""
    try:
        text = files.read(path, limit)
    except OSError as error:
        raise Damaged(f"cannot be read: {error.strerror or error}") from error
    if text is None:
        raise Damaged("is missing")
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise Damaged(f"is nested more than {MAX_DEPTH} levels deep") from error
    except ValueError as error:
        raise Damaged(f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Damaged("is no map")
    if _is_deep(found):
        raise Damaged(f"is nested more than {MAX_DEPTH} levels deep")
    try:
        # Neither could be written into a file or a result.
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise Damaged("holds half a character, or a number without end") from error
    return found


def _is_deep(content: Any) -> bool:
    level = [content]
    for _depth in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def document_text(value: dict[str, Any], limit: int, what: str) -> str:
    """*value* as the text of its file; EngineError where it would be refused when it is read again."""
    try:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        size = len(text.encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise EngineError(
            f"Cannot keep {what}: it holds what no file of JSON can, such as half a character or a number without end"
            f" ({type(error).__name__}); correct flags, env and descriptions of the instance."
        ) from error
    if _is_deep(value):
        raise EngineError(
            f"Cannot keep {what}: it is nested more than {MAX_DEPTH} levels deep; correct flags and descriptions of the"
            " instance."
        )
    if size > limit:
        raise EngineError(
            f"Cannot keep {what}: it has {size >> 10} KiB, and no more than {limit >> 10} KiB are read of one; shorten"
            " flags, env and descriptions of the instance."
        )
    return text
