# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is on disk about the generations of an instance, and which of them to go back to, or not to try again.

Private to socle.inference.

`launch.py` describes the layout and makes the changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.backend import check_name
from ansible_collections.socle.inference.plugins.module_utils._engine.documents import (
    PLAN_BYTES,
    STATE_BYTES,
    Damaged,
    read_document,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files
from ansible_collections.socle.inference.plugins.module_utils._engine.plan_form import plan_fault
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError

SCHEMA = "socle.generation/1"

UNIT_SUFFIXES = (".container", ".service")
"""Of the unit files of all engines."""

LAST_NUMBER = 999_999_999
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass
class Generation:
    """One plan as it was applied to the host."""

    number: int
    plan: dict[str, Any]
    unit: str
    state: dict[str, Any]

    @property
    def fingerprint(self) -> str | None:
        return self.plan.get("launch_fingerprint")

    @property
    def applied(self) -> str:
        """prepared, starting or started."""
        return str(self.state.get("applied", "prepared"))

    @property
    def failed(self) -> bool:
        return bool(self.state.get("verdict") == "failed")

    @property
    def restores(self) -> int | None:
        """The generation whose plan and unit this one is again; None for one that a deployment made."""
        number = self.state.get("restores")
        return number if isinstance(number, int) and not isinstance(number, bool) else None

    def describe_failure(self) -> dict[str, Any]:
        """For a result: which generation failed, when and why."""
        return {
            "generation": self.number,
            "reason": self.state.get("reason"),
            "at": self.state.get("verdict_at"),
        }


@dataclass
class History:
    """All that is on disk about one instance."""

    generations: dict[int, Generation] = field(default_factory=dict)
    current: int | None = None
    accepted: int | None = None
    warnings: list[str] = field(default_factory=list)
    highest: int = 0

    def status(self, number: int) -> str:
        """prepared, starting, started, accepted or failed."""
        generation = self.generations[number]
        if generation.failed:
            return "failed"
        return "accepted" if number == self.accepted else generation.applied


def _link(path: Path) -> int | None:
    try:
        target = path.readlink()
    except OSError:
        return None
    return _number(target.name)


def _number(name: str) -> int | None:
    """The number of the generation whose folder is called *name*; digits of other scripts are none to Python's int."""
    return int(name) if _NUMBER.fullmatch(name) else None


def _fault(instance: str, plan: Mapping[str, Any]) -> str | None:
    """What in a plan that was edited or damaged no launch could go by; None where nothing is."""
    if plan.get("instance") != instance:
        return f"its plan.json is of the instance {str(plan.get('instance'))[:80]!r}"
    return plan_fault(plan, "its plan.json")


def read_history(folder: Path, files: Files) -> History:
    """Read what is there; anything that cannot be read is skipped with a warning, never an error."""
    history = History()
    name = folder.name
    try:
        entries = sorted((folder / "generations").iterdir(), key=lambda path: path.name)
    except OSError:
        entries = []
    for entry in entries:
        if entry.name.startswith("."):
            continue  # left by a launch that was killed
        number = _number(entry.name)
        if number is None:
            history.warnings.append(f"{entry} is not a generation of {name}: ignored.")
            continue
        history.highest = max(history.highest, number)
        parts: dict[str, dict[str, Any]] = {}
        fault = None
        for file, limit in (("plan.json", PLAN_BYTES), ("state.json", STATE_BYTES)):
            try:
                parts[file] = read_document(files, entry / file, limit)
            except Damaged as error:
                fault = fault or f"its {file} {error}"
        plan, state = parts.get("plan.json", {}), parts.get("state.json", {})
        unit = None
        try:
            texts = [files.read(entry / f"vllm-{name}{suffix}") for suffix in UNIT_SUFFIXES]
            unit = next((text for text in texts if text is not None), None)
        except OSError as error:
            fault = fault or f"its unit cannot be read: {error.strerror or error}"
        if fault is None and state.get("schema") != SCHEMA:
            fault = "its state.json is of an unknown version"
        if fault is None and unit is None:
            fault = "its unit is missing"
        fault = fault or _fault(name, plan)
        if fault is not None or unit is None:
            history.warnings.append(
                f"Generation {entry} is ignored, since {fault}; put that file right, or remove the folder."
            )
            continue
        history.generations[number] = Generation(number, plan, unit, state)
    for link in ("current", "accepted"):
        number_or_none = _link(folder / link)
        # A link to a generation that somebody removed must not come to mean the next one, which nobody accepted.
        history.highest = max(history.highest, number_or_none or 0)
        if number_or_none in history.generations:
            setattr(history, link, number_or_none)
        elif os.path.lexists(folder / link):
            history.warnings.append(f"{folder / link} points to no readable generation: ignored.")
    return history


def current_plan(instances_dir: Path, instance: str, files: Files) -> dict[str, Any] | None:
    """Plan of an instance's current generation; None where there is none."""
    history = read_history(instances_dir / check_name(instance), files)
    return history.generations[history.current].plan if history.current is not None else None


def failed_try(history: History, fingerprint: str | None, text: str, restores: int | None) -> Generation | None:
    """The generation by which this launch is known to fail: its newest try, also the newest by the same unit.

    For a rollback to generation *restores* only earlier rollbacks to it count, and that generation itself.
    """
    tried = [item for item in history.generations.values() if fingerprint and item.fingerprint == fingerprint]
    if restores is not None:
        tried = [item for item in tried if restores in (item.restores, item.number)]
    newest = max(tried, key=lambda item: item.number, default=None)
    alike = max((item for item in tried if item.unit == text), key=lambda item: item.number, default=None)
    return next((item for item in (newest, alike) if item is not None and item.failed), None)


def overrides_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What of a plan only one run asked for, such as {"flags": {"max-num-seqs": 4}, "image": "x:1"}; {} for none."""

    def by_run(source: Any) -> bool:
        return str((source or {}).get("origin") or "").split(" ", 1)[0] == "variant"

    found: dict[str, Any] = {}
    for key, kind in (("sources", "flags"), ("env_sources", "env")):
        values = {name: source.get("value") for name, source in (plan.get(key) or {}).items() if by_run(source)}
        if values:
            found[kind] = values
    if by_run(plan.get("image_source")):
        found["image"] = plan.get("image")
    return found


def describe_generations(history: History) -> str:
    """All generations in one line, newest first: "3 (failed: it ended), 2 (accepted), 1 (started)"."""

    def words(number: int) -> str:
        generation = history.generations[number]
        text = history.status(number)
        if generation.failed and generation.state.get("reason"):
            text += f": {str(generation.state['reason']).splitlines()[0][:120].rstrip('. ')}"
        elif generation.state.get("accepted_at") and text != "accepted":
            text = "was accepted"
        if generation.restores:
            text += f", generation {generation.restores} anew"
        return f"{number} ({text})"

    return ", ".join(words(number) for number in sorted(history.generations, reverse=True)) or "none"


@dataclass(frozen=True)
class Way:
    """Which generation to go back to; None, with the reason in words that stand as a sentence."""

    target: Generation | None
    reason: str = ""


def last_accepted(history: History) -> Generation | None:
    """The generation that was accepted last, or a later one that is the same launch as one that was.

    A deployment alone accepts nothing: one that goes back from an accepted trial to the launch of before is what its
    people want, and must not give way to the trial.
    """
    accepted = history.generations.get(history.accepted) if history.accepted else None
    if accepted is None:
        return None
    known = {
        each.fingerprint
        for each in history.generations.values()
        if each.fingerprint and each.state.get("accepted_at") and not each.failed
    }
    later = [
        each
        for number, each in history.generations.items()
        if number > accepted.number
        and each.applied == "started"
        and not each.failed
        and each.restores is None
        and each.fingerprint in known
    ]
    return max(later, key=lambda each: each.number, default=accepted)


def _choose(history: History) -> str:
    return "choose one of these with '-e socle_generation=N', or deploy" if history.generations else "deploy it first"


def way_back(instance: str, history: History, number: int | None = None, automatic: bool = False) -> Way:
    """Where a rollback leads: to *number*, or to the accepted generation (`last_accepted`).

    What a person asks for and there is none of is an EngineError. *automatic* is after a failure: then only a
    generation that failed gives way, and where there is nothing to go back to, the reason says so.
    """
    current = history.generations.get(history.current) if history.current else None
    accepted = last_accepted(history)
    if number is not None:
        if number not in history.generations:
            raise EngineError(
                f"Cannot bring back generation {number} of {instance}: it has {describe_generations(history)};"
                f" {_choose(history)}.",
                generations=sorted(history.generations),
            )
        return Way(history.generations[number])
    if not automatic:
        if accepted is None:
            raise EngineError(
                f"Cannot bring back the accepted generation of {instance}: none is accepted, it has"
                f" {describe_generations(history)}; {_choose(history)}.",
                generations=sorted(history.generations),
            )
        return Way(accepted)
    if accepted is None:
        return Way(None, f"No generation of {instance} is accepted that could come back")
    if current is None or current is accepted:
        return Way(accepted)
    if not current.failed and current.restores is None:
        return Way(None, f"Generation {current.number} of {instance} is not known to be wrong, and was left as it is")
    return Way(accepted)


def plan_of_way_back(
    instances_dir: Path, instance: str, files: Files, number: int | None, automatic: bool
) -> dict[str, Any] | None:
    """The plan that a rollback would bring back, as `way_back` chooses; the current one where it brings back none."""
    history = read_history(instances_dir / check_name(instance), files)
    target = way_back(instance, history, number, automatic).target
    return target.plan if target else current_plan(instances_dir, instance, files)
