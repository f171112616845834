# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One line that says what provisioning did to a host. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._stack.check import ERROR, Tree, tree

UNKNOWN = "the newest on offer"
"""In place of a version that only the run itself will find out."""

DONE = {"start": "started", "restart": "restarted", "reload": "reloaded"}
"""What dockerd got, in words."""


def news(findings: Sequence[Tree], known: Sequence[Tree]) -> list[Tree]:
    """Findings that a reader has not just seen, and all errors."""
    seen = {_shown(one) for one in known}
    return [one for one in findings if one["severity"] == ERROR or _shown(one) not in seen]


def _shown(finding: Tree) -> tuple[Any, ...]:
    return tuple(finding[key] for key in ("id", "severity", "message", "remedy"))


def standing(checked: Tree, known: Sequence[Tree]) -> list[Tree]:
    """All findings that hold at the end: the last ones, and earlier ones of checks that were not made again."""
    again = set(checked.get("checked") or [])
    return [*(checked.get("findings") or []), *(one for one in known if one["id"] not in again)]


def provision_line(
    after: Tree, host: str, before: Tree, done: Mapping[str, Tree], checked: Tree, check: bool = False
) -> str:
    """What a run of provision.yml did to *host*, or in check mode would do, and what is there where it did nothing.

    *after* and *before*["facts"] are facts of gpu_facts, *before*["findings"] those of stage "before"; *checked* is the
    last result of host_checks. *done* has the results of the roles by "driver", "engine" and "toolkit"; {} for a role
    that did not run, and "state" where its software was to be absent.
    """
    facts = before["facts"]
    parts = [
        _driver(facts, after, done["driver"], check),
        _engine(facts, done["engine"]),
        _toolkit(facts, done["toolkit"]),
    ]
    said = ", ".join(part for part in parts if part)
    reboot = bool(done["driver"].get("reboot"))
    changed = reboot or " -> " in said or any(one.get("changed") for one in done.values())
    if not changed:
        said += ", nothing would change" if check else ", nothing changed"
    elif reboot:
        said += ", with a reboot" if check else ", rebooted"
    counts = _counts(standing(checked, before["findings"]))
    return f"{host}{' would be' if check and changed else ''}: {said}{f'; {counts}' if counts else ''}"


def _counts(findings: Sequence[Tree]) -> str:
    errors = sum(one["severity"] == ERROR for one in findings)
    numbers = ((errors, "error"), (len(findings) - errors, "warning"))
    return ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in numbers if number)


def _move(name: str, old: Any, new: Any, result: Tree, more: Sequence[str] = ()) -> str:
    """One of the three parts; *more* is said of it in brackets."""
    notes = list(more)
    if new == old and result.get("changed") and result.get("state") != "absent" and " -> " not in "".join(more):
        notes.append("settings changed")
    versions = f"{old or 'none'}" if new == old else f"{old or 'none'} -> {new or 'none'}"
    return f"{name} {versions} ({'; '.join(notes)})" if notes else f"{name} {versions}"


def _driver(before: Tree, after: Tree, result: Tree, check: bool) -> str:
    if not result:
        return ""
    was, now = tree(before, "driver"), tree(after, "driver")
    old = was.get("version") or was.get("disk_version")
    old_flavour = was.get("flavour") or was.get("disk_flavour")
    if check:
        removed = result.get("state") == "absent"
        new = None if removed else (result.get("version") or (UNKNOWN if result.get("changed") else old))
        flavour = None if removed else (result.get("flavour") or old_flavour)
    else:
        new = now.get("version") or now.get("disk_version")
        flavour = now.get("flavour") or now.get("disk_flavour")
    switched = old_flavour and flavour and flavour != old_flavour
    notes = [f"{old_flavour} -> {flavour}" if switched else flavour] if flavour else []
    return _move("driver", old, new, result, notes)


def _engine(before: Tree, result: Tree) -> str:
    if not result:
        return ""
    name = str(result.get("engine"))
    # A client of that name alone has a version too, and runs nothing.
    old = None if result.get("fresh") else tree(before, "engines").get(name)
    new = result.get("version") or UNKNOWN
    # Whatever a new engine went through, it is new.
    did = [DONE[result["action"]]] if old and result.get("action") in DONE else []
    if old and result.get("enabled"):
        did.append("enabled")
    return _move(name, old, new, {} if did else result, [", ".join(did)] if did else [])


def _toolkit(before: Tree, result: Tree) -> str:
    if not result:
        return ""
    new = None if result.get("state") == "absent" else result.get("version")
    return _move("toolkit", tree(before, "toolkit").get("version"), new, result)
