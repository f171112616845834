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
                f"Image {image} is not on this host and pull is 'never'; load it there ('podman load', 'podman pull'),"
                " or allow the pull."
            )
        result["changed"] = True
        if check:
            return {**result, "present": False, "digest": None, "repo_digests": []}
        layers: set[str] = set()
        began = clock()

        def note(line: str) -> None:
            # Without a terminal Podman names each part once, as it begins with it.
            if line.startswith(("Copying blob", "Copying config")):
                layers.add(line.split(" ")[2] if line.count(" ") >= 2 else line)
            progress.update(phase="pulling", detail=f"{image}, {len(layers)} parts begun")

        note("")
        backend.pull(image, note)
        result["seconds"] = round(clock() - began, 1)
        found = backend.image(image)
        if found is None:
            raise EngineError(
                f"Podman pulled {image} without an error and does not have it; look at 'podman images' on the host."
            )
    return {**result, "digest": found.id, "repo_digests": found.repo_digests}
