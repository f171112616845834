# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chat template that a model came with, read from its folder, and those that were made from it, kept beside the
state of the host. Private to socle.inference.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, NotText, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._plan.template_overlay import (
    MARK,
    MAX_BYTES,
    digest,
    file_name,
)

FILE = "chat_template.jinja"
OTHERS = "additional_chat_templates"
IN_JSON = ("chat_template.json", "tokenizer_config.json")
"""Older places, in the order in which transformers prefers them."""

FOLDER = "chat_templates"
"""Below the state folder of the host."""

UNUSED_S = 24 * 3600
"""What no generation has for so long is none that a run has made and is about to launch."""

_NAME = re.compile(r"[0-9a-f]{12}\.jinja")

INSTEAD = "set chat_template of the instance to a template of yours, or effort_aliases of the instance to false"


@dataclass(frozen=True)
class Own:
    """The model's own template, and the file of its folder that has it."""

    text: str
    source: str


def own_template(model: Path, files: Files) -> Own:
    """The one template that transformers would use for this model, with tools and without.

    Raises EngineError where there is none, or where there are several: an engine is given one template only.
    """
    with explaining("read the model's own chat template", model):
        if not model.is_dir():
            raise EngineError(
                f"The model's own chat template was looked for in {model}, which is no folder; deploy again."
            )
        if (model / OTHERS).is_dir() and any((model / OTHERS).iterdir()):
            raise EngineError(
                f"The model in {model} has several chat templates (folder {OTHERS}), of which only one could be given"
                f" to the engine; {INSTEAD}."
            )
        text = files.read(model / FILE)
        if text is not None:
            return Own(_bounded(text, model / FILE), FILE)
        for name in IN_JSON:
            raw = files.read(model / name)
            found = None if raw is None else _from_json(raw, model / name)
            if found is not None:
                return Own(_bounded(found, model / name), name)
    raise EngineError(
        f"The model in {model} has no chat template of its own (looked for in {FILE}, {', '.join(IN_JSON)}); {INSTEAD}."
    )


def _from_json(raw: str, path: Path) -> str | None:
    try:
        content: Any = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EngineError(
            f"The model's own chat template was looked for in {path}, which is no JSON ({error}); verify the model."
        ) from error
    value = content.get("chat_template") if isinstance(content, dict) else None
    if isinstance(value, list):
        named = [item for item in value if isinstance(item, dict) and isinstance(item.get("template"), str)]
        if len(named) != 1 or len(named) != len(value):
            raise EngineError(
                f"The model has {len(value)} chat templates in {path}, of which only one could be given to the engine;"
                f" {INSTEAD}."
            )
        value = named[0]["template"]
    return value if isinstance(value, str) else None


def _bounded(text: str, path: Path) -> str:
    size = len(text.encode())
    if size > MAX_BYTES:
        raise EngineError(
            f"The model's own chat template in {path} has {size} bytes, more than the {MAX_BYTES} of any template"
            f" known; {INSTEAD}."
        )
    return text


def keep(
    state_dir: Path, text: str, files: Files, check: bool = False, now: Callable[[], float] = time.time
) -> dict[str, Any]:
    """{changed, path, digest, before, removed}: *text* as a file of the host, named by its content.

    *before* is what was there, "" for nothing. The engine reads it as whoever it runs as, so that everyone may.
    *removed* are paths of templates that were made earlier and that no generation has; those of a site's own stay.
    """
    mark = digest(text)
    path = state_dir / FOLDER / file_name(mark)
    with explaining("keep a chat template", path):
        before = files.read(path)
        wrong = before is not None and path.stat().st_mode & 0o777 != 0o644
        changed = before != text or wrong
        if changed and not check:
            files.ensure_folder(path.parent)
            files.write(path, text, mode=0o644)
    with explaining("remove chat templates that no generation has", state_dir / FOLDER):
        unused = _unused(state_dir, files, now())
        if path in unused:
            unused.remove(path)
            if not check:
                # As if it were new, so that nobody removes it before the launch.
                os.utime(path, (now(), now()))
        for old in unused if not check else ():
            files.remove(old)
    return {
        "changed": changed or bool(unused),
        "path": str(path),
        "digest": mark,
        "before": before or "",
        "removed": [str(old) for old in unused],
    }


def _unused(state_dir: Path, files: Files, now: float) -> list[Path]:
    """Templates made from a model's own that no plan on the host names, and that are older than a run takes."""
    made = []
    for path in sorted((state_dir / FOLDER).glob("*.jinja")):
        if _NAME.fullmatch(path.name) and path.is_file() and now - path.stat().st_mtime > UNUSED_S:
            with contextlib.suppress(NotText):
                if (files.read(path) or "").startswith(MARK):
                    made.append(path)
    if not made:
        return []
    try:
        plans = [files.read(plan) or "" for plan in (state_dir / "instances").glob("*/generations/*/plan.json")]
    except OSError:
        return []  # it may name any of them
    return [path for path in made if not any(path.name in plan for plan in plans)]
