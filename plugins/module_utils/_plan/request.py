# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one call of the planner is about. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.socle.inference.plugins.module_utils._plan.held_weights import HeldWeights


@dataclass(frozen=True)
class Template:
    """A chat template as found on the controller."""

    source: str
    sha256: str


SizeFinder = Callable[[str, str], Optional[int]]
"""The bytes of the weights of a repository at a revision; None where nobody knows."""


def _no_size(repo: str, revision: str) -> int | None:
    return None


@dataclass(frozen=True)
class Request:
    """Everything that one call is about: one host with all its instances."""

    host: str
    instances: Any
    facts: Mapping[str, Any] | None = None
    host_class: str | None = None
    group_names: Sequence[str] = ()
    layers: Any = field(default_factory=dict)
    variant: Any = None
    state_dir: str = "/var/lib/socle"
    address: str | None = None
    calibrations: Sequence[Any] = ()
    """Contents of calibrations on record: those of this host first, then the newest first."""
    weights: Mapping[str, HeldWeights] = field(default_factory=dict)
    """What the host told of the weights in its store, by repository."""
    find_size: SizeFinder = _no_size
    """Asked where neither the model file nor the host tells the size."""


TemplateFinder = Callable[[str], Template]
