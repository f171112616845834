# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a watchdog is told: its instance, and how patient it is. Pure; private to socle.inference."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of one instance. The defaults find a frozen engine in at most 40 + 5 + 40 + 5 + 5 s."""

    instance: str
    host: str
    """The host's name in the inventory, which its records carry."""
    state_dir: str = "/var/lib/socle"
    tool_version: str = "0"
    interval_s: int = 5
    """Between two looks at the engine."""
    window_s: int = 60
    """How long nothing may move, while the engine's scheduler can be seen."""
    canary_after_s: int = 40
    """How long nothing may move before a canary token is asked for."""
    canary_patience_s: int = 40
    """How long a canary token may take, while the engine's scheduler can be seen."""
    prefill_floor_tokens_per_s: int = 500
    """No engine is slower than this at reading a prompt. The slowest of the measured deployments reads 3,000 tokens/s
    at 222,000 tokens; a sixth of it leaves room for a slower host and for other requests."""
    restart: bool = True
    restarts_per_hour: int = 3

    def text(self) -> str:
        """As the file that the program reads."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"


def from_mapping(values: Mapping[str, Any]) -> Settings:
    """Settings from a parsed file; raises EngineError for what is missing, unknown or not in range."""
    known = {field.name: field for field in dataclasses.fields(Settings)}
    for key, value in values.items():
        expected = known[key].type if key in known else None
        right = {
            "str": isinstance(value, str) and bool(value),
            "int": isinstance(value, int) and not isinstance(value, bool) and value >= (key != "restarts_per_hour"),
            "bool": isinstance(value, bool),
        }.get(str(expected), False)
        if not right:
            raise EngineError(
                f"The watchdog's setting {key} is {value!r}, expected {_expected(key, expected)}; run deploy.yml again,"
                " which writes the file."
            )
    missing = [name for name in ("instance", "host") if name not in values]
    if missing:
        raise EngineError(f"The watchdog's settings lack {' and '.join(missing)}; run deploy.yml again.")
    return Settings(**values)


def _expected(key: str, kind: Any) -> str:
    if kind is None:
        return "no such setting"
    if kind == "int":
        return "a whole number, 0 or more" if key == "restarts_per_hour" else "a whole number, 1 or more"
    return "true or false" if kind == "bool" else "a text"
