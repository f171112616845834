# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook models shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import format_bytes, format_duration

HEADS = ("HOST", "MODEL", "ID", "COMMIT", "SIZE", "STATE", "VERIFIED", "USED BY")
SHOWN = 3


def model_table(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str) -> list[str]:
    """Lines of one table of all revisions on all hosts, from the variable *name* with model_store_info's result."""
    rows: list[Sequence[str]] = [HEADS]
    for host in hosts:
        found = hostvars[host].get(name) or {}
        if found.get("unreachable") or "models" not in found:
            fault = "unreachable" if found.get("unreachable") else str(found.get("msg") or "not looked at")
            rows.append((str(host), "-", "-", "-", "-", fault, "-", "-"))
            continue
        own = [_row(str(host), model, revision) for model in found["models"] for revision in model["revisions"]]
        rows += own or [(str(host), "-", "-", "-", "-", "empty", "-", "-")]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(host: str, model: Mapping[str, Any], revision: Mapping[str, Any]) -> Sequence[str]:
    state = "current" if revision["current_of"] else "previous" if revision["previous_of"] else "old"
    if model.get("lock") is not None:
        state += ", locked"
    used = sorted({_user_of(place) for place in revision["used_by"]})
    return (
        host,
        str(model["repo"]),
        str(revision["id"]),
        str(revision["commit"] or "-")[:12],
        "-" if revision["bytes"] is None else format_bytes(revision["bytes"]),
        state,
        str(revision["verified"] or "-")[:16],
        ", ".join(used) or "-",
    )


def _user_of(place: str) -> str:
    """The instance that a unit or a file of a generation belongs to."""
    parts = place.split("/")
    if "instances" in parts:
        return parts[parts.index("instances") + 1]
    return parts[-1].rpartition(".")[0].removeprefix("vllm-")


def model_verify_lines(results: Iterable[Mapping[str, Any]], host: str, level: str, repair: bool = False) -> list[str]:
    """One line for each model that was verified on *host*: level, files, rate, result. *repair*: it would follow."""
    lines = []
    for result in results:
        model = f"{result['item']['repo']}@{result['item']['revision']}"
        if _failed(result):
            wanted = result.get("wanted") or []
            verdict = f"DAMAGED: {_some(wanted)}" if wanted else f"FAILED: {result.get('msg')}"
            if repair and (wanted or result.get("extra")):
                verdict += ", would be repaired"
            if "holds" in result["item"]:
                verdict = _other(result["item"]) + (", would be brought" if repair else "")
            lines.append(f"{host}: {model}: {level}, {verdict}")
            continue
        verify = result["verify"]
        rate = f", {verify['mb_s']:.0f} MB/s" if verify.get("mb_s") else ""
        took = format_duration(float(verify["seconds"]))
        found = f"{result['files']['total']} files{rate}, {took}, whole{_elsewhere(result)}"
        lines.append(f"{host}: {model}: {verify['level']}, {found}")
    return lines


def model_verify_failure(results: Iterable[Mapping[str, Any]], host: str) -> str:
    """What is wrong on *host*, and how to repair it, in one text; empty where all models are whole."""
    failed = [result for result in results if _failed(result)]
    if not failed:
        return ""
    damaged = [result for result in failed if result.get("wanted") or result.get("extra")]
    texts = [
        f"{result['item']['repo']} at {result['item']['revision']}: "
        f"{_some([*(result.get('wanted') or []), *(result.get('extra') or [])])}"
        for result in damaged
    ]
    moved = [result["item"] for result in failed if "holds" in result["item"]]
    behind = [f"{item['repo']} at {item['revision']}: {_other(item)}" for item in moved]
    others = [str(result.get("msg")) for result in failed if result not in damaged and "holds" not in result["item"]]
    cure = ["repair with -e model_store_action=verify -e model_store_repair=true"] if damaged else []
    sync = ["bring what is locked with -e model_store_action=sync"] if moved else []
    return f"{host}: " + "; ".join([*texts, *cure, *behind, *sync, *others])


def _failed(result: Mapping[str, Any]) -> bool:
    """The mark itself is taken away, so that all models of a host are looked at."""
    return "content_id" not in result


def _other(item: Mapping[str, Any]) -> str:
    return f"holds {item['holds']}, locked is {item['locked']}"


def _elsewhere(result: Mapping[str, Any]) -> str:
    """That the link of a model names another revision than the one that was verified."""
    previous = result.get("previous")
    if not previous or previous["path"] == result.get("path"):
        return ""
    return f"; its link names another revision, {previous['commit'] or previous['content_id'] or previous['path']}"


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")


def model_gc_lines(result: Mapping[str, Any], host: str, check: bool) -> list[str]:
    """What was freed on *host*, or would be."""
    verb = "would free" if check else "freed"
    old, stage = result["removed"], result["stage"]
    lines = [
        f"{host}: {verb} {format_bytes(result['freed_bytes'])}: {len(old)} old revisions, {len(stage)} left-overs of "
        f"downloads; {len(result['kept'])} revisions stay"
    ]
    lines += [f"  {item['repo']} {item['id']}: {format_bytes(item['bytes'])}" for item in old]
    lines += [f"  {item['path']}: {format_bytes(item['bytes'])}" for item in stage]
    lines += [f"  {item['repo']} {item['id']} stays: {item['reason']}" for item in result["kept"]]
    return lines


def model_import_missing(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str) -> list[str]:
    """Models that some of *hosts* want and none of them can import, by the looks in their variable *name*."""
    wanted: dict[str, bool] = {}
    for host in hosts:
        for look in (hostvars[host].get(name) or {}).get("results", []):
            repo = str(look["item"][0]["repo"])
            wanted[repo] = wanted.get(repo, False) or bool(look.get("stat", {}).get("exists"))
    return [repo for repo, found in wanted.items() if not found]


def model_places(
    models: Iterable[Mapping[str, Any]],
    found: Mapping[str, Any],
    source: str,
    locks: Iterable[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """*models* by where the store has them: each with its source, the revision to ask for there and, where it has one,
    the place of its manifest. *found* is model_store_info's result; *source* that of a model that no link names.

    A model with a lock among *locks* (model_lock's results in a loop over models) is looked for by its content; where
    the store has another one alone, ``holds`` and ``locked`` name both.
    """
    locked = {(lock["item"]["repo"], lock["item"]["revision"]): lock for lock in locks if "manifest" in lock}
    places = []
    for model in models:
        lock = locked.get((model["repo"], model["revision"]))
        places.append(_place_of_lock(model, found, lock) if lock else _place(model, found, source))
    return places


def _place_of_lock(model: Mapping[str, Any], found: Mapping[str, Any], lock: Mapping[str, Any]) -> dict[str, Any]:
    link = str(model["repo"]).replace("/", "--")
    hub = str(lock["manifest"]["source"]["hub"])
    own = [
        (holder["hub"], revision)
        for holder in found.get("models", [])
        if link in holder["links"] or (holder["repo"], holder["hub"]) == (model["repo"], hub)
        for revision in holder["revisions"]
    ]
    same = [(name, revision) for name, revision in own if revision["content_id"] == lock["content_id"]]
    for name, revision in sorted(same, key=lambda place: (link not in place[1]["current_of"], place[0] != hub)):
        if name != hub:
            return _placed(model, name, str(model["revision"]), revision)
        break
    if not own:
        return {**model, "source": hub}
    first = min((revision for _hub, revision in own), key=lambda revision: link not in revision["current_of"])
    if same or not first["content_id"]:
        # Where the store lost a manifest, the files may be there all the same.
        return {**model, "source": hub, "wanted": lock["manifest"]}
    return {**model, "source": hub, "holds": _name_of(first), "locked": _name_of(lock)}


def _name_of(revision: Mapping[str, Any]) -> str:
    return str(revision["commit"] or revision["content_id"])


def _place(model: Mapping[str, Any], found: Mapping[str, Any], source: str) -> dict[str, Any]:
    link = str(model["repo"]).replace("/", "--")
    for holder in found.get("models", []):
        if link not in holder["links"]:
            continue
        for revision in sorted(holder["revisions"], key=lambda revision: link not in revision["current_of"]):
            if revision["content_id"] and model["revision"] in _names_of(revision):
                return _placed(model, holder["hub"], str(model["revision"]), revision)
        if holder["hub"] == source:
            # It is to be another revision, which is not there yet.
            break
        # The source in the inventory is another one than that of what is there: so are the names of its revisions.
        for revision in holder["revisions"]:
            if revision["content_id"] and link in revision["current_of"]:
                return _placed(model, holder["hub"], str(revision["commit"] or revision["requested"]), revision)
    return {**model, "source": source}


def _names_of(revision: Mapping[str, Any]) -> list[str | None]:
    return [*revision["names"], revision["commit"], *([] if revision["names"] else [revision["requested"]])]


def _placed(model: Mapping[str, Any], hub: str, name: str, revision: Mapping[str, Any]) -> dict[str, Any]:
    folder, _slash, snapshot = str(revision["path"]).rpartition("/")
    manifest = f"{folder.rpartition('/')[0]}/manifest/{snapshot}.json"
    return {**model, "revision": name, "source": hub, "manifest": manifest}


class FilterModule:
    """Filters of the playbook models."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "model_places": model_places,
            "model_table": model_table,
            "model_verify_lines": model_verify_lines,
            "model_verify_failure": model_verify_failure,
            "model_gc_lines": model_gc_lines,
            "model_import_missing": model_import_missing,
        }
