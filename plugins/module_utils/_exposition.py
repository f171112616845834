# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Prometheus text format, as far as an engine's /metrics needs it. Private to socle.inference.

Own code, not prometheus_client: waiting for an engine reads the same page on hosts that have no probe environment yet,
the format has been frozen at version 0.0.4 for a decade, and all that is needed is name, labels and value.
Format: https://github.com/prometheus/docs/blob/main/docs/instrumenting/exposition_formats.md
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_SAMPLE = re.compile(
    r"""^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*"""
    r"""(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?\s*"""
    r"""(?P<value>[^\s]+)(?:\s+-?\d+)?\s*$"""
)
_LABEL = re.compile(r"""([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?\s*""")
_ESCAPE = re.compile(r"\\(.)")


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> list[Sample]:
    """All samples. Lines that are none (comments, rubbish) are passed over: a missing name is the caller's finding."""
    samples = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _SAMPLE.match(line.strip())
        if not match:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {
            name: _ESCAPE.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], raw)
            for name, raw in _LABEL.findall(match["labels"] or "")
        }
        samples.append(Sample(match["name"], labels, value))
    return samples


def total(samples: Iterable[Sample], name: str) -> float | None:
    """The sum over all label sets (engines, reasons); None when the metric is absent or no number.

    NaN is unlike itself, so that it would count as movement for ever.
    """
    values = [sample.value for sample in samples if sample.name == name and math.isfinite(sample.value)]
    return sum(values) if values else None


def families(samples: Iterable[Sample]) -> set[str]:
    """The names as a person calls them: without the _bucket, _sum and _count of histograms."""
    names = set()
    for sample in samples:
        names.add(sample.name)
        for suffix in ("_bucket", "_sum", "_count"):
            if sample.name.endswith(suffix):
                names.add(sample.name[: -len(suffix)])
    return names
