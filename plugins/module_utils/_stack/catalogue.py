# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks of a host, what they find, and how findings are shown. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._stack import (
    checks_containers,
    checks_driver,
    checks_hardware,
    checks_inventory,
    checks_notes,
)
from ansible_collections.socle.inference.plugins.module_utils._stack.check import BOTH, ERROR, Check, in_order, say
from ansible_collections.socle.inference.plugins.module_utils._stack.gather import gather_stack

FACTS_SCHEMA = "socle.gpu_facts/2"


class CheckError(SocleError):
    """A host cannot be checked with what was given."""


CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (
            *checks_hardware.CHECKS,
            *checks_driver.CHECKS,
            *checks_containers.CHECKS,
            *checks_inventory.CHECKS,
            *checks_notes.CHECKS,
        ),
        key=lambda check: in_order(check.id),
    )
)
"""By id. An id is never used again for something else."""

PREVENTED = {
    "SOC-H23": (
        "The vendor's repository is broken or out of reach",
        "Not seen before it is asked, which is before anything is installed. The message names address, package and"
        " what the repository has, and the variable that takes a mirror.",
    ),
    "SOC-H32": (
        "The engine dies with status 0 and stays down",
        "Units of role vllm_service have Restart=always.",
    ),
    "SOC-H34": (
        "A container cannot be restarted, its first process is a zombie",
        "Units of role vllm_service run an init in the container (RunInit=true, --init).",
    ),
    "SOC-H35": (
        "systemd kills the unit after 90 s while the model loads",
        "Units of role vllm_service have TimeoutStartSec=1800, or start_timeout_s of the serving profile.",
    ),
    "SOC-H37": (
        "Podman's health stays 'starting' for want of systemd timers",
        "Readiness is asked from outside as well (module vllm_ready), which does not need them.",
    ),
    "SOC-H39": (
        "Lines removed from a unit survive 'podman quadlet install --replace' (CVE-2026-19730)",
        "Unit files are written whole and renamed into place; that command is never used.",
    ),
    "SOC-H40": (
        "'name already in use' after a crash or a power loss",
        "Quadlet runs podman with --replace; Docker units remove a left-over container before they start.",
    ),
}
"""id -> (failure, what prevents or names it): known failures that cannot be seen beforehand."""


OF_CDI = (
    *("SOC-H03", "SOC-H04", "SOC-H05", "SOC-H06", "SOC-H07", "SOC-H08"),
    *("SOC-H71", "SOC-H72", "SOC-H73", "SOC-H76", "SOC-H77"),
)
NEEDLESS = {
    "driver": frozenset(
        {*(check.id for check in checks_driver.CHECKS), "SOC-H10", "SOC-H27", "SOC-H54", "SOC-H85", *OF_CDI}
    ),
    "toolkit": frozenset({"SOC-H02", "SOC-H09", "SOC-H11", "SOC-H66", "SOC-H75", "SOC-H80", *OF_CDI}),
}
"""What is asked to be absent -> the checks that have no object then."""


def stages_of(stage: str) -> tuple[str, ...]:
    """The stages that an option value stands for."""
    return BOTH if stage == "all" else (stage,)


def due_checks(
    with_gpu: bool,
    stage: str,
    ignore: Collection[str] = (),
    *,
    upkeep: bool = True,
    absent: Collection[str] = (),
) -> list[Check]:
    """Checks of a stage ("before", "after", "all") that are not ignored; without a GPU only those that need none.

    Without *upkeep* somebody else takes care of the driver, by whatever means. *absent* names what is asked not to be
    there, keys of `NEEDLESS`.
    """
    wanted = set(stages_of(stage))
    left_out = {*ignore, *(name for key in absent for name in NEEDLESS[key])}
    return [
        check
        for check in CHECKS
        if wanted & set(check.stages)
        and check.id not in left_out
        and (with_gpu or not check.needs_gpu)
        and (upkeep or not check.of_upkeep)
    ]


def without_passwords(value: Any) -> Any:
    """A nested value whose texts hold no password of an address: findings and stack are shown and kept."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, Mapping):
        return {key: without_passwords(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_passwords(item) for item in value]
    return value


def find(
    checks: Sequence[Check], facts: Mapping[str, Any], stack: Mapping[str, Any], intent: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Findings, errors first: [{"id", "severity", "title", "message", "remedy", "evidence"}].

    *intent* has the options of host_checks, and "stage": before the roles ran, a driver or toolkit that is there says
    nothing about the one that comes.
    """
    findings = []
    for check in checks:
        evidence = check.detect(facts, stack, intent)
        if evidence is None:
            continue
        evidence = without_passwords(evidence)
        message, remedy = say(check.sentence, evidence), say(check.remedy, evidence)
        findings.append(
            {
                "id": check.id,
                "severity": check.severity,
                "title": check.title,
                # Names of programs stay as they are at the beginning of a sentence.
                "message": message[:1].upper() + message[1:] if message.startswith(("the ", "each ")) else message,
                "remedy": remedy,
                "evidence": evidence,
            }
        )
    return sorted(findings, key=lambda finding: (finding["severity"] != ERROR, in_order(finding["id"])))


def _check_input(facts: Mapping[str, Any], ignore: Collection[str]) -> None:
    schema = facts.get("schema")
    if schema != FACTS_SCHEMA:
        raise CheckError(
            f"Cannot check this host: facts are of schema {schema!r}, expected {FACTS_SCHEMA!r}; give what gpu_facts"
            " returned as gpu_facts."
        )
    unknown = sorted(set(ignore) - {check.id for check in CHECKS})
    if unknown:
        raise CheckError(
            f"Cannot ignore {', '.join(unknown)}: there is no such check; docs/host-checks.md lists them all."
        )


def check_host(
    run: Run,
    root: Path,
    sys_root: Path,
    proc_root: Path,
    facts: Mapping[str, Any],
    intent: Mapping[str, Any],
    stage: str,
    ignore: Collection[str],
) -> dict[str, Any]:
    """{"findings", "checked", "stack"} of a host; raises CheckError for facts or ids that cannot be used."""
    _check_input(facts, ignore)
    stack = gather_stack(run, root, sys_root, proc_root, facts)
    upkeep = intent.get("driver_state") != "unmanaged"
    absent = [key for key in NEEDLESS if intent.get(f"{key}_state") == "absent"]
    checks = due_checks(bool(facts.get("gpus")), stage, ignore, upkeep=upkeep, absent=absent)
    return {
        "findings": find(checks, facts, stack, {**intent, "stage": stage}),
        "checked": [check.id for check in checks],
        "stack": without_passwords(stack),
    }


def _errors(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in findings if one["severity"] == ERROR]


def failure_message(findings: Sequence[Mapping[str, Any]]) -> str | None:
    """One line for each error; None without errors."""
    lines = [f"{one['id']}: {one['message']} {one['remedy']}" for one in _errors(findings)]
    return "\n".join(lines) if lines else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def host_findings_failure(findings: Sequence[Mapping[str, Any]], host: str) -> str:
    """The message to fail a host with whose findings were shown by `host_findings_lines`; "" without errors.

    A single error is said whole. Several are named only, since a reader has just passed them.
    """
    errors = _errors(findings)
    if not errors:
        return ""
    start = f"{host} is not fit to serve ({_count(len(errors), 'error')}): "
    if len(errors) == 1:
        return f"{start}{failure_message(errors)}"
    named = ", ".join(f"{one['id']} ({one['title']})" for one in errors)
    return f"{start}{named}; see above what was found and what to do."


def host_findings_lines(findings: Sequence[Mapping[str, Any]], host: str = "") -> list[str]:
    """Findings as lines for a terminal: id, severity and title, then sentence and remedy indented.

    With *host* a line before them names it and counts them.
    """
    lines = []
    if host and findings:
        errors = sum(one["severity"] == ERROR for one in findings)
        lines.append(f"{host}: {_count(errors, 'error')}, {_count(len(findings) - errors, 'warning')}")
    for one in findings:
        lines += [f"{one['id']}  {one['severity']:<7}  {one['title']}", f"  {one['message']}", f"  {one['remedy']}"]
    return lines
