# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON as clients in other languages read it. Private to socle.inference."""

from __future__ import annotations

import json
from typing import Any


def _refuse(word: str) -> None:
    """NaN and the infinities, which Python's reader takes and JSON does not know."""
    raise ValueError(word)


# One for all, since json.loads() makes a new one for each text that it is to read in another way than its own.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_json(text: str) -> Any:
    """Errors: ValueError for whatever is not JSON, and for what is nested deeper than anybody reads."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
