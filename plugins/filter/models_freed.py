# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions gc and remove of the playbook models show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub.names import repo_of
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import closest, short
from ansible_collections.socle.inference.plugins.plugin_utils.model_cells import (
    aligned,
    commit_of,
    counted,
    results_of,
    revision_of,
    size_of,
    some_of,
    trouble_of,
)
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import format_bytes

LEFT_OVER = "unfinished download"
MOVED_ASIDE = "foreign file"
REJECTED = "rejected"
"""The folder of what was moved out of revisions, since it did not belong there, or arrived wrong (_hub/store)."""
TRASH = "trash-"
"""What garbage collection and removal call a revision that is on its way out (_hub/store)."""


def model_gc_lines(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str, check: bool) -> list[str]:
    """One table of what was freed, or would be, and what stays, on all hosts, and a line with the total of each host.

    The variable *name* of each host holds model_store_gc's result.
    """
    rows: list[Sequence[str]] = [("HOST", "MODEL", "REVISION", "COMMIT", "SIZE", "VERDICT")]
    totals = []
    gone = "would be freed" if check else "freed"
    for host in map(str, hosts):
        found = hostvars[host].get(name) or {}
        if "freed_bytes" not in found:
            totals.append(f"{host}: {'would free' if check else 'freed'} nothing: {trouble_of(found)}")
            continue
        rows += [_freed_row(host, item, f"{gone}: nothing needs it") for item in found["removed"]]
        rows += _left_over_rows(host, found["stage"], gone)
        for item in found["kept"]:
            row = _freed_row(host, {**item, "bytes": item["size"]}, f"kept: {item['reason']}")
            rows.append(row)
        rows += [(host, repo, "-", "-", "-", "kept: another run works on the model") for repo in found["busy"]]
        totals.append(
            f"{host}: {'would free' if check else 'freed'} {format_bytes(found['freed_bytes'])}: "
            f"{counted(len(found['removed']), 'revision')}, {counted(len(found['stage']), 'left-over')} of downloads; "
            f"{counted(len(found['kept']), 'revision')} kept"
        )
    return [*(aligned(rows) if len(rows) > 1 else ()), *totals]


def _freed_row(host: str, item: Mapping[str, Any], verdict: str) -> Sequence[str]:
    return (host, str(item["repo"]), revision_of(item), commit_of(item), size_of(item["bytes"]), verdict)


def _left_over_rows(host: str, stage: Iterable[Mapping[str, Any]], gone: str) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for item in stage:
        dying = str(item["path"]).rpartition("/")[2].startswith(TRASH)
        kind = _kind_of(item)
        why = "a run died while it was freed" if dying else "nobody went on with it"
        why = "it was moved aside from a revision" if kind == MOVED_ASIDE else why
        rows.append((host, str(item["repo"]), kind, "-", format_bytes(item["bytes"]), f"{gone}: {why}"))
    return rows


def _kind_of(left: Mapping[str, Any]) -> str:
    folder, _slash, name = str(left["path"]).rpartition("/")
    is_foreign = folder.rpartition("/")[2] == REJECTED and name.startswith("extra-")
    return MOVED_ASIDE if is_foreign else LEFT_OVER


def model_remove_lines(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str, check: bool) -> list[str]:
    """One table of what is to go of the models that are to be removed, on all hosts, and what is in the way.

    The variable *name* of each host holds model_store_remove's results in check mode, in a loop over models.
    """
    rows: list[Sequence[str]] = [("HOST", "MODEL", "REVISION", "COMMIT", "SIZE", "VERDICT")]
    gone = "would be removed" if check else "to be removed"
    for host in map(str, hosts):
        for found in results_of(hostvars, host, name):
            repo = str(found["item"])
            if "removed" not in found:
                # The sentence follows below the table, which stays narrow.
                rows.append((host, repo, "-", "-", "-", "refused"))
                continue
            used = {(item["hub"], item.get("id")): item["reason"] for item in found["in_use"]}
            stays = f"kept: {counted(len(used), 'use')} of the model in the way"
            for item in found["removed"]:
                reason = used.get((item["hub"], item["id"]))
                verdict = f"in use: {reason}" if reason else stays if used else gone
                rows.append(_freed_row(host, item, verdict))
            rows += [(host, repo, "-", "-", "-", reason) for (_hub, key), reason in used.items() if key is None]
            for item in found["stage"]:
                size = format_bytes(item["bytes"])
                rows.append((host, repo, _kind_of(item), "-", size, stays if used else gone))
            if not found["removed"] and not found["stage"]:
                verdict = f"{gone}: the link {', '.join(found['links'])}" if found["links"] else "not there"
                rows.append((host, repo, "-", "-", "-", verdict))
    return aligned(rows)


def model_remove_faults(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str) -> list[str]:
    """Why nothing may be removed, a sentence for each host and model; empty where nothing is in the way."""
    faults = []
    for host in map(str, hosts):
        for found in results_of(hostvars, host, name):
            if "removed" not in found:
                faults.append(f"{host}: {found['item']}: {trouble_of(found)}")
            elif found["in_use"]:
                faults.append(
                    f"{host}: {found['item']} is in use: {some_of([item['reason'] for item in found['in_use']])}"
                )
    return faults


def model_remove_unknown(
    hosts: Iterable[str], hostvars: Mapping[str, Any], name: str, locks: str, store: str = ""
) -> list[str]:
    """A sentence for each model that is to be removed and that no host, no inventory and no lock in the folder *locks*
    knows: a slip of the pen. What was known and is gone is none.

    The variable *name* of each host holds model_store_remove's results, *store* model_store_info's, for what was meant.
    """
    hosts = [str(host) for host in hosts]
    looks = [found for host in hosts for found in results_of(hostvars, host, name)]
    # A host that could not be looked at may have it.
    there = {str(look["item"]) for look in looks if not _is_absent(look)}
    known = {repo for host in hosts for repo in _named_on(hostvars[host])} | _locked_in(Path(locks))
    held = {str(model["repo"]) for host in hosts for model in (hostvars[host].get(store) or {}).get("models", ())}
    faults = []
    for repo in dict.fromkeys(str(look["item"]) for look in looks):
        if repo in there | known:
            continue
        near = closest(repo, sorted(known | held))
        hint = f" (did you mean {near}?)" if near else ""
        faults.append(f"{short(repo)} is in no store of these hosts, in no lock and not in the inventory{hint}")
    return faults


def _is_absent(look: Mapping[str, Any]) -> bool:
    return "removed" in look and not (look["removed"] or look["links"] or look["stage"] or look["in_use"])


def _named_on(variables: Mapping[str, Any]) -> set[str]:
    """The models that the inventory names for a host."""
    instances = variables.get("vllm_instances") or {}
    named = [model.get("repo") for model in variables.get("model_store_models") or () if isinstance(model, Mapping)]
    for instance in instances.values() if isinstance(instances, Mapping) else ():
        model = instance.get("model") if isinstance(instance, Mapping) else None
        named.append(model.get("repo") if isinstance(model, Mapping) else model)
    return {str(repo) for repo in named if repo}


def _locked_in(folder: Path) -> set[str]:
    """The models that have locks in *folder*: SOURCE/ORG--NAME@REVISION.json."""
    found = {repo_of(place.name.partition("@")[0]) for place in folder.glob("*/*@*.json")}
    return {repo for repo in found if repo}


def model_removed_lines(
    hosts: Iterable[str], hostvars: Mapping[str, Any], name: str, check: bool, wanted: str = "model_store_models"
) -> list[str]:
    """A line for each host and model with what was removed, or would be. *wanted* is the variable of models that the
    next sync brings again."""
    lines = []
    verb = "would remove" if check else "removed"
    for host in map(str, hosts):
        again = {model["repo"] for model in hostvars[host].get(wanted) or ()}
        for found in results_of(hostvars, host, name):
            if "removed" not in found:
                lines.append(f"{host}: {found['item']}: FAILED: {trouble_of(found)}")
                continue
            foreign = sum(_kind_of(item) == MOVED_ASIDE for item in found["stage"])
            parts = [
                counted(len(found["removed"]), "revision"),
                counted(len(found["links"]), "link"),
                counted(len(found["stage"]) - foreign, LEFT_OVER),
                *([counted(foreign, MOVED_ASIDE)] if foreign else []),
            ]
            what = f"{verb} {', '.join(parts)}, {format_bytes(found['freed_bytes'])}"
            line = f"{host}: {found['item']}: {what if found['changed'] else 'not there, nothing to remove'}"
            lines.append(line + (f"; it is still in {wanted}, so sync brings it" if found["item"] in again else ""))
    return lines


class FilterModule:
    """Filters of the playbook models."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "model_gc_lines": model_gc_lines,
            "model_remove_lines": model_remove_lines,
            "model_remove_faults": model_remove_faults,
            "model_remove_unknown": model_remove_unknown,
            "model_removed_lines": model_removed_lines,
        }
