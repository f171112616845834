# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making an image present. Private to socle.inference."""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import Backend
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress


def ensure_image(
    backend: Backend, image: str, *, pull: str, progress: Progress, clock: Callable[[], float], check: bool = False
) -> dict[str, Any]:
    """The image's identity, after a pull where that is needed and allowed."""
    found = backend.image(image)
    result: dict[str, Any] = {"changed": False, "image": image, "present": True, "seconds": None}
    if found is None:
        if pull == "never":
            raise EngineError(
                f"Image {image} is not in {backend.label} on this host and pull is 'never'; load it there"
                f" ('{backend.name} load', '{backend.name} pull'), or allow the pull."
            )
        result["changed"] = True
        if check:
            return {**result, "present": False, "digest": None, "repo_digests": []}
        began = clock()
        progress.update(phase="pulling", detail=image)
        backend.pull(image, lambda done: progress.update(phase="pulling", detail=f"{image}, {done}"))
        result["seconds"] = round(clock() - began, 1)
        found = backend.image(image)
        if found is None:
            raise EngineError(
                f"{backend.label} pulled {image} without an error and does not have it; look at '{backend.name} images'"
                " on the host."
            )
    return {**result, "digest": found.id, "repo_digests": found.repo_digests}
