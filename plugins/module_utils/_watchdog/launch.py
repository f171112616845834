# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a watchdog has to know of the launch that runs, from the plan of its generation. Private to socle.inference."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.unit import START_TIMEOUT_S, probe_address
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

LONGEST_S = 1e9
"""Of a time limit: some 30 years; no number, and one without end, is none."""


@dataclass(frozen=True)
class Launch:
    """One generation of an instance."""

    generation: int | None
    plan: Mapping[str, Any]
    address: str
    port: int
    model: str
    """A name that requests may use."""
    key_required: bool
    max_model_len: int | None
    step_tokens: int | None
    """The most that one step reads of prompts; None where the launch leaves it to vLLM's default, which is small."""
    start_timeout_s: float
    pausable: bool
    """Whether its development endpoints may send it to sleep."""
    engine: str


def read_launch(state_dir: Path, instance: str) -> Launch:
    """The current generation's; raises EngineError where there is none."""
    current = state_dir / "instances" / instance / "current"
    try:
        # A pipe in its place would be waited for until systemd ends the watchdog.
        text = Files().read(current / "plan.json")
        if text is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        plan = json.loads(text)
        generation = current.readlink().name
        return launch_of(plan, int(generation) if generation.isdigit() else None)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise EngineError(
            f"The watchdog cannot read how {instance} was launched from {current / 'plan.json'}"
            f" ({type(error).__name__}: {error}); deploy the instance, or take its watchdog away."
        ) from error


def launch_of(plan: Mapping[str, Any], generation: int | None) -> Launch:
    """What *plan* says."""
    argv = [str(word) for word in plan["argv"]]
    names = plan.get("served_names") or []
    planned = plan.get("max_model_len")
    longest = planned if isinstance(planned, int) and planned > 0 else _number(argv, "--max-model-len")
    whole = "--no-enable-chunked-prefill" in argv
    port = int(plan["port"])
    if not 0 < port < 65536:
        raise ValueError(f"port is {port}")
    start_timeout_s = float(plan.get("start_timeout_s") or START_TIMEOUT_S)
    if not 0 < start_timeout_s < LONGEST_S:
        raise ValueError(f"start_timeout_s is {start_timeout_s}")
    return Launch(
        generation=generation,
        plan=plan,
        address=probe_address(argv).strip("[]"),
        port=port,
        model=str(names[0]) if names else argv[0],
        key_required=bool(plan.get("api_key_required")),
        max_model_len=longest,
        step_tokens=longest if whole else _number(argv, "--max-num-batched-tokens"),
        start_timeout_s=start_timeout_s,
        pausable=str((plan.get("env") or {}).get("VLLM_SERVER_DEV_MODE") or "0") != "0",
        engine=str(plan.get("engine") or "podman"),
    )


def read_key(state_dir: Path, instance: str) -> str | None:
    """The instance's API key, from the file of root's that holds it; None where it has none."""
    try:
        text = Files().read(state_dir / "secrets" / instance / "env") or ""
    except OSError:  # also one that holds no text: an engine that is stuck is restarted without it
        return None
    name, _equals, value = text.rstrip("\n").partition("=")
    return value if name == "VLLM_API_KEY" and value else None


def _number(argv: Sequence[str], flag: str) -> int | None:
    """The last value of *flag*, which wins."""
    found = None
    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == flag:
            text = value if equals else argv[index + 1] if index + 1 < len(argv) else ""
            found = int(text) if text.isdigit() else found
    return found
