# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers of settings, weakest first, merged so that each value keeps its origin. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layer:
    """What one file or one variable says; *origin* is its name for a person."""

    origin: str
    values: Mapping[str, Any]
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """A value that won, who set it, and why."""

    value: Any
    origin: str
    evidence: Mapping[str, Any] | None = None

    def as_source(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "origin": self.origin,
            "evidence": dict(self.evidence) if self.evidence else None,
        }


def opposite(name: str) -> str:
    """The flag that undoes *name*."""
    return name[3:] if name.startswith("no-") else f"no-{name}"


def merge(layers: Iterable[Layer], with_opposites: bool = False) -> dict[str, Setting]:
    """The strongest value of each name, sorted; null removes, and "no-x" replaces a weaker "x" and the other way."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        for name, value in layer.values.items():
            if with_opposites and value is not None:
                merged.pop(opposite(name), None)
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = Setting(value, layer.origin, layer.evidence.get(name))
    return dict(sorted(merged.items()))
