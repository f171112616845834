# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exact packages by apt, tried before anything is changed. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Completed, Runner
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import apt
from ansible_collections.socle.inference.plugins.module_utils._packages.dpkg import Installed, read_installed
from ansible_collections.socle.inference.plugins.module_utils._packages.exact import Outcome
from ansible_collections.socle.inference.plugins.module_utils._packages.holds import RENOTE, SPARED, Holds, refusal

NEWEST = "newest"
"""In place of a version: the candidate, also where an older one is installed."""


@dataclass(frozen=True)
class Wanted:
    """Packages and how they shall be."""

    packages: Mapping[str, str]
    """Version by name, or NEWEST; "" takes any version that is installed, else the candidate."""
    hold: bool | None = None
    """Whether upgrades by others leave the packages alone; None leaves that as it is."""
    downgrade: bool = False
    source_pending: bool = False
    """Check mode alone: the packages' source was tried, and is not written yet."""
    offered: Mapping[str, str] = field(default_factory=dict)
    """Check mode alone: candidates that the planner read, where apt itself has no lists."""


def _apt_get(run: Runner, arguments: Sequence[str]) -> Completed[str]:
    return run([*apt.QUIET, "apt-get", *apt.OPTIONS, *arguments], timeout_s=apt.INSTALL_S)


def _mark(run: Runner, mark: str, names: Sequence[str]) -> None:
    if names:
        done = run([*apt.QUIET, "apt-mark", mark, *names])
        if done.returncode != 0:
            raise PackageError(f"Cannot {mark} {', '.join(names)}: {apt.why(done)}; run 'apt-mark {mark}' by hand.")


def _describe(found: Mapping[str, Installed], names: Sequence[str]) -> dict[str, str]:
    states = {}
    for name in names:
        package = found.get(name)
        if package is None or not package.present:
            states[name] = "absent"
        else:
            broken = "" if package.whole else f" ({package.status})"
            states[name] = f"{package.version}{broken}{', held' if package.held else ''}"
    return states


def install(run: Runner, wanted: Wanted, holds: Holds, *, check: bool = False, root: Path = Path("/")) -> Outcome:
    """Bring packages to their versions in one transaction.

    It is simulated first, then downloaded, and only then installed: a conflict or a broken download changes nothing.
    Refuses what would remove other packages, or change one that somebody else holds. Raises PackageError in one
    sentence.
    """
    names = list(wanted.packages)
    found = read_installed(run, names)
    moving = [name for name, version in wanted.packages.items() if version == NEWEST]
    candidates = apt.read_policy(run, moving) if moving else {}
    due = {
        name: version
        for name, asked in wanted.packages.items()
        for version in [(candidates[name].candidate or "") if name in candidates else asked]
        if name not in found or not found[name].whole or (version and found[name].version != version)
    }
    outcome = Outcome(before=_describe(found, names))
    own = holds.own()
    held = [name for name in names if name in found and found[name].held]
    coming = dict(wanted.offered)
    if due:
        specs = [f"{name}={version}" if version else name for name, version in due.items()]
        # To finish a package that dpkg left half done is no change of it.
        changing = {name for name in held if name in due and due[name] not in ("", found[name].version)}
        _respect(f"install {', '.join(specs)}", changing - own, holds)
        arguments = ["install", "--no-install-recommends", "--no-remove"]
        if set(held) & set(due):
            arguments.append("--allow-change-held-packages")
        if wanted.downgrade:
            arguments.append("--allow-downgrades")
        for step, extra in (("install", ["-s"]), ("download", ["--download-only"]), ("install", [])):
            # Without lists, as images come, or without their source, apt knows no package to simulate with.
            if check and (extra != ["-s"] or wanted.source_pending or not apt.has_lists(root)):
                break
            done = _apt_get(run, [*extra, *arguments, *specs])
            # Lists that are some weeks old name files that the mirror no longer has.
            if done.returncode != 0 and step == "download" and apt.update(run) is None:
                done = _apt_get(run, [*extra, *arguments, *specs])
            if done.returncode != 0:
                if not extra:
                    _mark(run, "hold", _released(run, held))
                raise PackageError(
                    _refusal(step, specs, done, changed=not extra), rc=done.returncode, stderr=done.stderr
                )
            if extra == ["-s"]:
                _check_others(run, specs, done.stdout, holds)
                simulated = apt.parse_simulation(done.stdout).installs
                coming |= {name: then for name, (_now, then) in simulated.items()}
        outcome.changed = True
        outcome.actions.append(f"install {', '.join(specs)}")
    _settle(run, wanted, holds, outcome, _Now(found if check or not due else read_installed(run, names), held, check))
    outcome.after = (
        dict(outcome.before)
        if not outcome.changed
        else _after(run, wanted, found, {name: version or coming.get(name, "") for name, version in due.items()}, check)
    )
    return outcome


@dataclass(frozen=True)
class _Now:
    found: Mapping[str, Installed]
    held: Sequence[str]
    """What was held before: apt takes the hold away from a held package that it changes."""
    check: bool


def _respect(attempt: str, others: set[str], holds: Holds) -> None:
    if others:
        raise PackageError(refusal(attempt, others, "debian", lost=holds.lost()))


def _check_others(run: Runner, specs: Sequence[str], simulated: str, holds: Holds) -> None:
    """Refuse where the transaction would also change what somebody else holds; apt was allowed to change any hold."""
    simulation = apt.parse_simulation(simulated)
    touched = sorted({*simulation.installs, *simulation.removals})
    found = read_installed(run, touched) if touched else {}
    held = {name for name, package in found.items() if package.held}
    _respect(f"install {', '.join(specs)}", held - holds.own(), holds)


def _released(run: Runner, held: Sequence[str]) -> list[str]:
    now = read_installed(run, held) if held else {}
    return [name for name in held if name in now and now[name].present and not now[name].held]


def _settle(run: Runner, wanted: Wanted, holds: Holds, outcome: Outcome, now: _Now) -> None:
    """Holds as they shall be; only our own are ever released."""
    names = list(wanted.packages)
    if wanted.hold is False:
        mark, marked = "unhold", [name for name in names if name in now.held and name in holds.own()]
    else:
        kept = names if wanted.hold else now.held
        mark, marked = "hold", [name for name in kept if not (name in now.found and now.found[name].held)]
    if marked:
        outcome.changed = True
        outcome.actions.append(f"{mark} {', '.join(marked)}")
    if now.check or not marked:
        return
    if mark == "hold" and wanted.hold:
        holds.add(marked)
    _mark(run, mark, marked)
    if mark == "unhold":
        holds.drop(marked)


def _after(
    run: Runner, wanted: Wanted, found: Mapping[str, Installed], due: Mapping[str, str], check: bool
) -> dict[str, str]:
    names = list(wanted.packages)
    if not check:
        return _describe(read_installed(run, names), names)
    states = {}
    for name in names:
        held = wanted.hold if wanted.hold is not None else name in found and found[name].held
        version = (due[name] or "the version on offer") if name in due else found[name].version
        states[name] = f"{version}{', held' if held else ''}"
    return states


def _refusal(step: str, specs: Sequence[str], done: Completed[str], *, changed: bool) -> str:
    reason = apt.why(done)
    unmet = apt.unmet_dependency(done.stdout)
    if unmet:
        reason = f"{reason} ({unmet})"
    if changed:
        rest = "look at 'dpkg --audit' on the host, put it right ('apt-get -f install'), and repeat the run"
    elif "remove" in reason.lower():
        rest = f"remove what is in the way by hand, and repeat the run. {SPARED}"
    elif "lock" in reason.lower():
        rest = f"wait until the other package manager ends, and repeat the run. {SPARED}"
    else:
        rest = f"put the host's package sources right, and repeat the run. {SPARED}"
    return f"Cannot {step} {', '.join(specs)}: {reason}; {rest}."


def remove(run: Runner, names: Sequence[str], holds: Holds, *, check: bool = False) -> Outcome:
    """Take packages away with their configuration files and our holds.

    Refuses what somebody else holds, and where other packages would go too.
    """
    found = read_installed(run, names)
    there = [name for name in names if name in found and found[name].status != "not-installed"]
    own = holds.own()
    held = [name for name in names if name in found and found[name].held and name in own]
    outcome = Outcome(before=_describe(found, names))
    if not there and not held:
        outcome.after = dict(outcome.before)
        # What an interrupted removal left: a later hold of the user would be taken for ours.
        if holds.is_damaged() or own & set(names):
            outcome.changed, outcome.actions = True, [RENOTE]
            if not check:
                holds.drop(names)
        return outcome
    _respect(f"remove {', '.join(there)}", {name for name in there if found[name].held} - own, holds)
    outcome.changed = True
    outcome.after = dict.fromkeys(names, "absent")
    outcome.actions = [f"remove {', '.join(there)}"] if there else []
    if there:
        done = _apt_get(run, ["-s", "purge", "--allow-change-held-packages", *there])
        if done.returncode != 0:
            refused = _refusal("remove", there, done, changed=False)
            raise PackageError(refused, rc=done.returncode, stderr=done.stderr)
        going = set(apt.parse_simulation(done.stdout).removals) - set(names)
        if going:
            raise PackageError(
                f"Will not remove {', '.join(there)}: that would also remove {', '.join(sorted(going))}; remove these"
                f" by hand if they are not needed, and repeat the run. {SPARED}."
            )
    if check:
        return outcome
    _mark(run, "unhold", held)
    if there:
        done = _apt_get(run, ["purge", *there])
        if done.returncode != 0:
            _mark(run, "hold", _released(run, held))
            raise PackageError(_refusal("remove", there, done, changed=True), rc=done.returncode, stderr=done.stderr)
    holds.drop(names)
    return outcome
