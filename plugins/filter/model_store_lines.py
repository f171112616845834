# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role model_store shows: what each host lacks, and in the end what was done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.model_cells import age_of, aligned, counted, some_of
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import (
    format_bytes,
    format_duration,
    format_progress,
)

INSPECTIONS = "__model_store_inspections"
ENDS = "__model_store_ends"
REASONS = {
    "write": "the store cannot be written",
    "link": "a link in the store",
    "devices": "several file systems",
    "shared_fs": "a network file system",
    "volatile_fs": "a file system that does not last",
    "clock": "the clock",
    "space": "no space",
    "inodes": "no inodes",
    "together": "no space for all its models",
}
"""What a fault is called in the table; its sentence follows."""
PER_MODEL = ("space", "inodes")
"""Faults that depend on what the model needs."""
SWITCH = "switch (all files are here, only the link changes)"


def precheck(hostvars: Any, hosts: Iterable[str], force: bool = False) -> dict[str, Any]:
    """What every host lacks and has room for: C(lines) of a table with a row for each host and model, and C(faults),
    one sentence each; none where all hosts may begin."""
    rows, faults = [], []
    for host in hosts:
        inspections = _inspections(hostvars, host)
        together = _together(inspections, force)
        # What is wrong with the store is so for all its models.
        sentences = [
            f"{_model_of(seen)}: {fault['message']}" if fault["id"] in PER_MODEL else fault["message"]
            for seen in inspections
            for fault in seen["plan"]["faults"]
        ]
        faults += [f"{host}: {sentence}" for sentence in dict.fromkeys([*sentences, *together])]
        rows += [(host, seen, bool(together)) for seen in inspections]
    writers = _writers(rows)
    adopting = any(seen["plan"]["adoptable"] for _host, seen, _refused in rows)
    head = ["HOST", "MODEL", "LINKED", "STAGED", *(["ADOPTED"] if adopting else []), "TO FETCH", "FREE", "VERDICT"]
    cells = [
        [
            *(host, _model_of(seen), *_sizes(seen["plan"], adopting)),
            _verdict(seen, refused, writers.get((host, seen["content_id"]))),
            _missing(seen["plan"]),
        ]
        for host, seen, refused in rows
    ]
    lines = aligned([[*head, "MISSING"], *cells]) if cells else []
    return {"lines": ["Models", *(f"  {line}" for line in lines)], "faults": faults}


def _together(inspections: Sequence[Mapping[str, Any]], force: bool) -> list[str]:
    """That models fit one by one, but not together."""
    plans = [seen["plan"] for seen in inspections]
    if force or len(plans) < 2 or any(plan["faults"] for plan in plans):
        return []
    need, first = sum(plan["need"] for plan in plans), plans[0]
    if not need or need + first["reserve"] <= first["free"]:
        return []
    return [
        f"{first['store']['folder']} has {format_bytes(first['free'])} free, but its models together need "
        f"{format_bytes(need)} and {format_bytes(first['reserve'])} must stay free: make room, or choose another store"
    ]


def _writers(rows: Iterable[tuple[str, Mapping[str, Any], bool]]) -> dict[tuple[str, str], str]:
    """By host and content, the host that brings it into a store that both have; none where that is the host itself."""
    first: dict[tuple[str, str], str] = {}
    sharing = [
        (host, (seen["store_name"], seen["content_id"]), seen)
        for host, seen, _refused in rows
        if seen.get("store_name")
    ]
    for host, shared, _seen in sorted(sharing, key=lambda found: not found[2].get("job")):
        first.setdefault(shared, host)
    return {(host, shared[1]): first[shared] for host, shared, _seen in sharing if first[shared] != host}


def _sizes(plan: Mapping[str, Any], adopting: bool) -> list[str]:
    to_fetch = max(0, plan["bytes"] - plan["adoptable"] - plan["staged"])
    adopted = [plan["adoptable"]] if adopting else []
    return [format_bytes(size) for size in (plan["reusable"], plan["staged"], *adopted, to_fetch, plan["free"])]


def _missing(plan: Mapping[str, Any]) -> str:
    count = plan["missing_files"]
    # One name: names of shards are long, and the table is to fit a terminal.
    return f"{count}: {plan['missing'][0]}{', ...' if count > 1 else ''}" if count else "-"


def _verdict(seen: Mapping[str, Any], together: bool = False, writer: str | None = None) -> str:
    """What a run does for the model on the host; *writer* is another host that brings it into the same store."""
    plan = seen["plan"]
    faults = dict.fromkeys(fault["id"] for fault in plan["faults"])
    if faults or (together and plan["need"]):
        return "refused: " + ", ".join(REASONS.get(fault, fault) for fault in [*faults] or ["together"])
    if seen.get("job"):
        job = {name: seen["job"].get(name) for name in ("phase", "done", "total", "unit")}
        return f"{'another revision is ' if seen['job'].get('other') else ''}under way: {format_progress(job)}"
    if not seen["work"]:
        return "nothing"
    if writer:
        return f"wait for {writer} (the store is the same)"
    if plan["missing_files"]:
        return "fetch"
    if plan["adoptable"]:
        return "adopt (the files seem to be on the host)"
    if _moves(seen):
        return f"hash {counted(plan['unproven_files'], 'file')}, then {SWITCH}" if plan["unproven_files"] else SWITCH
    if plan["wanted_files"]:
        return "link (the files are here, in other revisions)"
    if plan["unproven_files"] or seen.get("due"):
        return f"hash {counted(plan['unproven_files'], 'file')}" if plan["unproven_files"] else "hash all files"
    steps = []
    if seen["files"].get("owner_changed"):
        steps.append(f"give {counted(seen['files']['owner_changed'], 'file')} to {_owner(seen)}")
    if plan["foreign_files"]:
        steps.append(f"move {_foreign(plan['foreign_files'])} aside")
    return ", ".join(steps) or "put the store in order"


def _owner(seen: Mapping[str, Any]) -> str:
    return str(seen.get("owner") or "their owner")


def _foreign(count: int) -> str:
    return f"{counted(count, 'file')} that {'does' if count == 1 else 'do'} not belong there"


def _moves(result: Mapping[str, Any]) -> bool:
    return bool((result.get("previous") or {}).get("path") != result["path"])


def closing_lines(hostvars: Any, hosts: Iterable[str], check: bool = False, now_s: float | None = None) -> list[str]:
    """One line for each model on each of *hosts*: what the run did for it, or would do with *check*."""
    now_s = time.time() if now_s is None else now_s
    rows = []
    for host in hosts:
        ends = (hostvars[host].get(ENDS) if host in hostvars else None) or {}
        for seen in _inspections(hostvars, host):
            end = ends.get(seen["content_id"]) if seen["work"] else seen
            if check and seen["work"]:
                text = f"check mode, nothing was done: {_verdict(seen)}"
            elif seen["work"] and end and "plan" in end:
                text = "found in the store, where another host with the same one brought it"
            else:
                text = _deed(end, now_s, _owner(seen)) if end else "not brought"
            rows.append([f"{host}:", _model_of(seen), text])
    return aligned(rows) if rows else []


def _deed(result: Mapping[str, Any], now_s: float, owner: str) -> str:
    """What the run that *result* is of did; *owner* is whom it gave files to."""
    done = [*_received(result), *_local(result)]
    if result["files"].get("owner_changed"):
        done.append(f"gave {counted(result['files']['owner_changed'], 'file')} to {owner}")
    if _moves(result) and result["changed"]:
        before = result.get("previous")
        done.append(f"switched from {_short(before)} to {_short(result)}" if before else f"activated {_short(result)}")
    verify = result["verify"]
    if not done and verify["hashed_files"]:
        return f"hashed {counted(verify['hashed_files'], 'file')}: all are as they should be"
    if not done:
        checked = verify["checked"]
        return f"nothing to do: proven {age_of(checked, now_s)}" if checked else "nothing to do: proven file by file"
    return "; ".join(done)


def _received(result: Mapping[str, Any]) -> list[str]:
    sizes = result["bytes"]
    origins = {"wan": "from the hub", "lan": "from neighbours", "disk": "from the folder"}
    parts = [f"{format_bytes(sizes[kind])} {words}" for kind, words in origins.items() if sizes.get(kind)]
    if not parts:
        return []
    rate = f" at {format_bytes(result['mb_s'] * 1e6)}/s" if result.get("mb_s") else ""
    again = f", {format_bytes(sizes['reused_part'])} were here from before" if sizes.get("reused_part") else ""
    spent = format_duration(result["seconds"]) if result["seconds"] >= 1 else "under 1s"
    return [f"fetched {' and '.join(parts)} in {spent}{rate}{again}"]


def _local(result: Mapping[str, Any]) -> list[str]:
    """What came without any connection."""
    sizes, files = result["bytes"], result["files"]
    done = []
    if sizes.get("reused_link"):
        done.append(f"linked {format_bytes(sizes['reused_link'])} from other revisions")
    if sizes.get("adopted"):
        done.append(f"adopted {format_bytes(sizes['adopted'])} that were on the host")
    if sizes.get("reused_part") and not any(sizes.get(kind) for kind in ("wan", "lan", "disk")):
        done.append(f"took {format_bytes(sizes['reused_part'])} that an interrupted run had fetched")
    if files.get("repaired"):
        done.append(f"repaired {counted(files['repaired'], 'file')}")
    if files.get("removed"):
        aside = result.get("moved_aside") or {}
        named = f" ({some_of(aside['files'])}), to {aside['folder']}" if aside.get("files") else ""
        done.append(f"moved {counted(files['removed'], 'file')} aside that did not belong there{named}")
    return done


def _short(state: Mapping[str, Any]) -> str:
    """A revision's short commit, or its name in the store where the hub did not say one."""
    return str(state.get("commit") or state["path"].rpartition("/")[2])[:12]


def without_models(hostvars: Any, hosts: Iterable[str], name: str) -> list[str]:
    """One line that names those of *hosts* whose variable *name* holds no models, and what would; none where all
    have some."""
    idle = [str(host) for host in hosts if not hostvars[host].get(name)]
    if not idle:
        return []
    return [
        f"{', '.join(idle)}: no models are named, so nothing was done there. Name them in model_store_models, or give "
        "the host an instance in vllm_instances."
    ]


def _model_of(seen: Mapping[str, Any]) -> str:
    revision = str(seen["requested"])
    return f"{seen['repo']}@{revision[:12] if len(revision) == 40 else revision}"


def _inspections(hostvars: Any, host: str) -> list[Mapping[str, Any]]:
    registered = (hostvars[host].get(INSPECTIONS) if host in hostvars else None) or {}
    return [seen for seen in registered.get("results", []) if "plan" in seen]


class FilterModule:
    """Filters for what the role model_store shows."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "model_store_precheck": precheck,
            "model_store_closing": closing_lines,
            "model_store_without": without_models,
        }
