# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data handling of the role model_store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

DEFAULT_REVISION = "master"


def unique_models(models: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Each repository once, in order; two revisions of one repository on one host are an error."""
    revisions: dict[str, str] = {}
    for model in models:
        repo, revision = str(model["repo"]), str(model.get("revision") or DEFAULT_REVISION)
        if revisions.setdefault(repo, revision) != revision:
            raise AnsibleFilterError(
                f"{repo} is wanted at {revisions[repo]} and at {revision} on one host: "
                "give its instances the same revision"
            )
    return [{"repo": repo, "revision": revision} for repo, revision in revisions.items()]


def snapshot_paths(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Repository -> path, content id and commit, from the results of modelscope_snapshot in a loop."""
    return {
        str(result["repo"]): {name: result[name] for name in ("path", "content_id", "commit")}
        for result in results
        if "content_id" in result
    }


class FilterModule:
    """Filters of the role model_store."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"model_store_unique": unique_models, "model_store_result": snapshot_paths}
