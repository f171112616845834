# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How sure a share is that was counted, and whether two differ. Private to socle.inference."""

from __future__ import annotations

import math

Z95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


def wilson(count: int, total: int) -> tuple[float, float]:
    """Bounds of the true share with 95 % confidence, after *count* of *total*.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927). Right for few
    and for no events, where the plain normal interval has no width.
    """
    if total < 1 or not 0 <= count <= total:
        raise ValueError(f"a share needs 0 <= count <= total and a total above 0; found {count} of {total}")
    share, z2 = count / total, Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    # At the ends the bounds are exact; floating point may miss them by a hair.
    return (0.0 if count == 0 else max(middle - half, 0.0)), (1.0 if count == total else min(middle + half, 1.0))


def more_often(count: int, total: int, other_count: int, other_total: int) -> float:
    """The chance to see *count* of *total* or more, were it no more frequent than *other_count* of *other_total*.

    One-sided exact test of R. A. Fisher (1922): all events are dealt to both groups at random.
    """
    if not (0 <= count <= total and 0 <= other_count <= other_total):
        raise ValueError(
            f"counts must lie within their totals; found {count} of {total}, {other_count} of {other_total}"
        )
    events, everything = count + other_count, total + other_total
    ways = math.comb(everything, events)
    most = min(events, total)
    found = sum(math.comb(total, here) * math.comb(other_total, events - here) for here in range(count, most + 1))
    return found / ways
