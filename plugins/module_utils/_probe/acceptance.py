# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a suite of checks and says what came out. Private to socle.inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._probe.checks import CHECKS
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import EngineFault, ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome, Planned
from ansible_collections.socle.inference.plugins.module_utils._probe.trace import MOST_TOKENS, is_count

AT_ONCE = 3
"""Checks in flight: enough to overlap waiting, few enough for an engine that serves two sequences."""


@dataclass(frozen=True)
class Wanted:
    """One line of a suite."""

    id: str
    params: dict[str, Any]
    on_failure: str = "failed"


def parse_checks(entries: Sequence[Any]) -> list[Wanted]:
    """Each line is an id, or a map of id, params and on_failure. What is not known is refused, never skipped."""
    wanted: list[Wanted] = []
    for entry in entries:
        line = {"id": entry} if isinstance(entry, str) else entry
        if not isinstance(line, dict) or not isinstance(line.get("id"), str):
            raise ProbeError(f"A suite's check must be an id or a map with an id; found {entry!r}.")
        check_id = line["id"]
        if check_id not in CHECKS:
            raise ProbeError(f"The suite names the check {check_id!r}, which does not exist; there are {_known()}.")
        params = line.get("params") or {}
        if not isinstance(params, dict):
            raise ProbeError(f"params of the check {check_id!r} must be a map; found {params!r}.")
        unknown = sorted(
            {str(key) for key in set(line) - {"id", "params", "on_failure"}}
            | {str(key) for key in set(params) - set(CHECKS[check_id].params)}
        )
        if unknown:
            raise ProbeError(
                f"The check {check_id!r} does not know {', '.join(unknown)}; "
                f"it takes {', '.join(CHECKS[check_id].params) or 'no parameters'}."
            )
        for name, value in params.items():
            wants = _unfit(name, CHECKS[check_id].params[name], value)
            if wants:
                raise ProbeError(f"{name} of the check {check_id!r} must be {wants}; found {value!r:.80}.")
        on_failure = line.get("on_failure") or "failed"
        if on_failure not in ("failed", "degraded"):
            raise ProbeError(f"on_failure of the check {check_id!r} must be failed or degraded; found {on_failure!r}.")
        if check_id in [check.id for check in wanted]:
            raise ProbeError(f"The suite names the check {check_id!r} twice.")
        wanted.append(Wanted(check_id, {**CHECKS[check_id].params, **params}, on_failure))
    if not wanted:
        raise ProbeError(f"The suite has no checks, so it would prove nothing; there are {_known()}.")
    return wanted


MAY_BE_ZERO = ("seed", "margin", "most_corrupted", "most_lost", "prefix_words", "evict_most_tokens")
MOST = {"at_once": 1024, "conversations": 100_000, "load_requests": 100_000}
"""Where more would be refused by the host, or never end."""


def _unfit(name: str, default: Any, value: Any) -> str | None:
    """What *value* must be in place of *default*; None where it is. A check that asks for nothing would always pass."""
    if isinstance(default, list):
        kinds = {_unfit(name, default[0], each) for each in value} if isinstance(value, list) and value else {"it"}
        return f"a list, each of it {_unfit(name, default[0], None)}" if kinds != {None} else None
    if isinstance(default, str):
        return None if isinstance(value, str) and value.strip() else "a text"
    if isinstance(default, float):
        share = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
        return None if share else "a number above 0, up to 1"
    if isinstance(default, int):
        least, most = 0 if name in MAY_BE_ZERO else 1, MOST.get(name, MOST_TOKENS)
        whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return None if whole else f"a whole number from {least} to {most}"
    # The one that has no default: the result of another arm.
    known = {"corrupted": 0, "conversations": 1}
    right = isinstance(value, dict) and all(
        is_count(value.get(key)) and value[key] >= least for key, least in known.items()
    )
    return None if right or value is None else "null or a map of corrupted and conversations"


def _known() -> str:
    return ", ".join(sorted(CHECKS))


def refuse_wrong_key(client: EngineClient, planned: Planned) -> None:
    """End before the first check when the caller's key is not the instance's: that says nothing about the instance."""
    if not planned.api_key_required:
        return
    try:
        status = client.get("/v1/models").status
    except (EngineFault, ProbeError):
        # It does not answer at all: for the checks to tell.
        return
    if status in (401, 403):
        raise ProbeError(
            f"{planned.served_names[0]} was asked with the API key that this inventory gives it and refused it "
            f"(status {status}); set api_key of the instance in vllm_instances to the key it was deployed with, "
            f"or deploy again."
        )


def run_suite(
    suite: str,
    wanted: Sequence[Wanted],
    context: Context,
    report: Callable[[int, int, str], None] = lambda done, total, detail: None,
    clock: Callable[[], int] = time.monotonic_ns,
) -> dict[str, Any]:
    """All checks, those of one stage side by side, results in the suite's order. *report* gets done, total, last id."""
    results: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        for stage in sorted({CHECKS[check.id].stage for check in wanted}):
            members = [check for check in wanted if CHECKS[check.id].stage == stage]
            try:
                for result in pool.map(lambda check: _run_check(check, context, clock), members):
                    results[result["id"]] = result
                    report(len(results), len(wanted), result["id"])
            except KeyboardInterrupt:
                # Leaving waits for the checks under way, of which some ask for hours.
                context.client.give_up()
                raise
    checks = [results[check.id] for check in wanted]
    degrading = {check.id for check in wanted if check.on_failure == "degraded"}
    return {
        "suite": suite,
        "verdict": verdict(checks, degrading),
        "passed": _count(checks, "passed"),
        "failed": _count(checks, "failed"),
        "skipped": _count(checks, "skipped"),
        "errors": _count(checks, "error"),
        "checks": checks,
    }


def preview(suite: str, wanted: Sequence[Wanted]) -> dict[str, Any]:
    """What check mode shows: the checks that would run, and no verdict."""
    checks: list[dict[str, Any]] = [
        {
            "id": check.id,
            "status": "would_run",
            "expected": CHECKS[check.id].question,
            "found": None,
            "remedy": None,
            "evidence": [],
            "figures": {},
            "duration_ms": None,
        }
        for check in wanted
    ]
    return {"suite": suite, "verdict": None, "passed": 0, "failed": 0, "skipped": 0, "errors": 0, "checks": checks}


def verdict(checks: Sequence[dict[str, Any]], degrading: set[str]) -> str:
    """A wrong engine is wrong, whatever else broke; a broken probe, or no check that passed, proves nothing."""
    failed = {check["id"] for check in checks if check["status"] == "failed"}
    if failed - degrading:
        return "failed"
    if _count(checks, "error") or not (_count(checks, "passed") or failed):
        return "error"
    return "degraded" if failed else "passed"


def _count(checks: Sequence[dict[str, Any]], status: str) -> int:
    return sum(check["status"] == status for check in checks)


def _run_check(check: Wanted, context: Context, clock: Callable[[], int]) -> dict[str, Any]:
    started = clock()
    try:
        outcome = CHECKS[check.id].run(context, check.params)
    except EngineFault as fault:
        outcome = Outcome(
            "failed",
            expected=CHECKS[check.id].question,
            found=fault.message,
            remedy="Look at the unit's log for the time of this check.",
            evidence=[fault.fields],
        )
    except ProbeError as error:
        outcome = Outcome(
            "error",
            expected=CHECKS[check.id].question,
            found=error.message,
            remedy="The probe could not ask; that says nothing about the engine. Do what is said above, and repeat it.",
            evidence=[error.fields],
        )
    except Exception as error:
        # The probe's own fault, or an answer that it did not foresee: never the engine's failure, never silence.
        outcome = Outcome(
            "error",
            expected=CHECKS[check.id].question,
            found=f"{type(error).__name__}: {error}",
            remedy="This is the probe's own fault: repeat it, and report it if it stays.",
            evidence=[getattr(error, "fields", {})],
        )
    result: dict[str, Any] = context.client.redact_all(
        {
            "id": check.id,
            "status": outcome.status,
            "expected": outcome.expected,
            "found": outcome.found,
            "remedy": None if outcome.status in ("passed", "skipped") else outcome.remedy,
            "evidence": outcome.evidence,
            "figures": outcome.figures,
            "duration_ms": round((clock() - started) / 1e6, 1),
        }
    )
    return result
