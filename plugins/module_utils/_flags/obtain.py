# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks an engine image on a host for its flags, once for each image. Private to socle.inference."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining, read_noted
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._flags.document import render
from ansible_collections.socle.inference.plugins.module_utils._plan.flag_schema import parse_schema
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short

_SHOWN_ERROR = 2000
_SHOWN_IMAGE = 200


def obtain_schema(
    backend: Backend,
    image: str,
    *,
    script: str,
    state_dir: Path,
    files: Files,
    container: str,
    timeout_s: float,
    check: bool = False,
) -> dict[str, Any]:
    """The flag schema of an image that is present: from the cache, else from the image, which is then noted.

    *script* is the text of extract.py; another text than last time asks the image again. *container* names the
    container that runs it. With *check* the image is asked too, and nothing is written.
    """
    found = backend.image(image)
    shown = short(image, _SHOWN_IMAGE)
    if found is None:
        raise EngineError(
            f"Image {shown} is not in {backend.label} on this host, so it cannot be asked for its flags; make it"
            " present first (module vllm_image)."
        )
    digest = found.id.partition(":")[2] or found.id
    extractor = "sha256:" + hashlib.sha256(script.encode()).hexdigest()
    cache = state_dir / "cache" / "flags" / f"{digest}.json"
    with explaining(f"read the noted flags of image {shown}", movable=state_dir):
        noted = read_noted(files, cache)
    cached = isinstance(noted, dict) and noted.get("extractor") == extractor and isinstance(noted.get("schema"), dict)
    document = noted["schema"] if cached else _ask(backend, image, found.id, script, container, timeout_s)
    schema = parse_schema(document, f"{cache}" if cached else f"what image {shown} said")
    if not cached and not check:
        with explaining(f"note the flags of image {shown}", movable=state_dir):
            files.write(cache, json.dumps({"extractor": extractor, "schema": document}, sort_keys=True) + "\n")
    return {
        "changed": not cached,
        "image": image,
        "digest": found.id,
        "cached": cached,
        "vllm_version": schema.version,
        "schema": document,
        "document": render(document),
    }


def _ask(backend: Backend, image: str, image_id: str, script: str, container: str, timeout_s: float) -> dict[str, Any]:
    shown = short(image, _SHOWN_IMAGE)
    done = backend.run_program(image_id, ["python3", "-"], name=container, input_text=script, timeout_s=timeout_s)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0:
        reason = lines[-1].strip()[:300] if lines else "no reason given"
        raise EngineError(
            f"Image {shown} could not be asked for its flags: {reason};"
            " expected an image with python3 and vLLM 0.19.1 or newer in it. Without a schema the plan's flags are not"
            " checked.",
            rc=done.returncode,
            stderr=done.stderr[-_SHOWN_ERROR:],
        )
    try:
        document = json.loads(done.stdout)
        document["made_with"]["image"] = image_id
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EngineError(
            f"Image {shown} was asked for its flags and answered something else; see stdout in the result.",
            rc=done.returncode,
            stdout=done.stdout[:_SHOWN_ERROR],
            stderr=done.stderr[-_SHOWN_ERROR:],
        ) from error
    return dict(document)
