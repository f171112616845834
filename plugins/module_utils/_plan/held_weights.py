# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host told of the weights in its store, and whether it has to be asked again. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import GROUPS, TensorGroup, groups_from

_HELD = schema.map_of(
    schema.record(
        {
            "content_id": schema.nullable(schema.text()),
            "files": schema.whole(0),
            "tensors": schema.whole(0),
            "bytes": schema.whole(0),
            "groups": GROUPS,
            "fault": schema.nullable(schema.text()),
        },
        ["groups"],
    )
)


@dataclass(frozen=True)
class HeldWeights:
    """The weights of one model in the store of a host."""

    groups: tuple[TensorGroup, ...] = ()
    """Empty where their headers cannot be read."""
    fault: str | None = None
    """Why not, as one sentence without a remedy."""


def held_weights(content: Any) -> dict[str, HeldWeights]:
    """By repository, from what model_weights_info returned as weights; raises PlanError for what is none of it."""
    problems = Problems()
    _HELD(content, "weights", problems)
    problems.raise_if_any()
    return {repo: HeldWeights(groups_from(each["groups"]), each.get("fault")) for repo, each in content.items()}


def weights_due(stored: Mapping[str, Any], found: Any) -> bool:
    """Whether the store has content whose headers were not read, or could not be before the store was looked after.

    *stored* is what role model_store left, *found* what model_weights_info returned before, both by repository.
    """
    known = found if isinstance(found, Mapping) else {}
    return any(
        (known.get(repo) or {}).get("content_id") != entry["content_id"] or known[repo].get("fault")
        for repo, entry in stored.items()
        if entry.get("content_id")
    )
