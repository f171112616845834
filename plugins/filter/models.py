# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions list and verify of the playbook models look for and show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.model_cells import (
    age_of,
    aligned,
    commit_of,
    results_of,
    revision_of,
    size_of,
    some_of,
    trouble_of,
)
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import format_bytes, format_duration


def model_table(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str, now_s: float | None = None) -> list[str]:
    """Lines of one table of all revisions on all hosts, from the variable *name* with model_store_info's result.

    *now_s* is the time that ages count from, in seconds since the epoch; by default that of the controller's clock.
    """
    heads = ("HOST", "MODEL", "REVISION", "COMMIT", "STATE", "SIZE", "PROVEN", "USED BY")
    rows: list[Sequence[str]] = [heads]
    now_s = time.time() if now_s is None else now_s
    for host in hosts:
        found = hostvars[host].get(name) or {}
        if "models" not in found:
            rows.append((str(host), "-", "-", "-", trouble_of(found), "-", "-", "-"))
            continue
        own: list[Sequence[str]] = []
        for model in found["models"]:
            own += [_row(str(host), model, revision, now_s) for revision in model["revisions"]]
            there = {revision["id"] for revision in model["revisions"]}
            own += [
                _staged_row(str(host), model, download)
                for download in model.get("downloads", ())
                if download["id"] not in there
            ]
        rows += own or [(str(host), "-", "-", "-", "empty", "-", "-", "-")]
    return aligned(rows)


def _row(host: str, model: Mapping[str, Any], revision: Mapping[str, Any], now_s: float) -> Sequence[str]:
    state = "current" if revision["current_of"] else "previous" if revision["previous_of"] else "complete"
    used = sorted({_user_of(place) for place in revision["used_by"]})
    return (
        host,
        str(model["repo"]),
        revision_of(revision),
        commit_of(revision),
        state + _locked(model),
        size_of(revision["bytes"]),
        age_of(revision["verified"], now_s),
        ", ".join(used) or "-",
    )


def _staged_row(host: str, model: Mapping[str, Any], download: Mapping[str, Any]) -> Sequence[str]:
    total, received = download["bytes"], download["received"]
    state = f"staged {int(100 * received / total)} %" if total else f"staged {format_bytes(received)}"
    cells = (revision_of(download), commit_of(download), state + _locked(model), size_of(total))
    return (host, str(model["repo"]), *cells, "-", "-")


def _locked(model: Mapping[str, Any]) -> str:
    return "" if model.get("lock") is None else ", locked by a run"


def _user_of(place: str) -> str:
    """The instance that a unit or a file of a generation belongs to."""
    parts = place.split("/")
    if "instances" in parts:
        return parts[parts.index("instances") + 1]
    return parts[-1].rpartition(".")[0].removeprefix("vllm-")


def model_verify_lines(results: Iterable[Mapping[str, Any]], host: str, level: str, repair: str = "") -> list[str]:
    """One line for each model that was verified on *host*: level, files, rate, result. *repair*: such as "would be"."""
    lines = []
    for result in results:
        model = f"{result['item']['repo']}@{result['item']['revision']}"
        if _failed(result):
            wanted = result.get("wanted") or []
            verdict = f"DAMAGED: {some_of(wanted)}" if wanted else f"FAILED: {result.get('msg')}"
            if result.get("extra") and not wanted:
                verdict = f"FOREIGN: {some_of(result['extra'])}"
            if repair and (wanted or result.get("extra")):
                verdict += f", {repair} repaired"
            if _absent(result):
                verdict = "not in the store"
            if "holds" in result["item"]:
                verdict = _other(result["item"]) + (f", {repair} brought" if repair else "")
            lines.append(f"{host}: {model}: {level}, {verdict}")
            continue
        verify = result["verify"]
        rate = f", {verify['mb_s']:.0f} MB/s" if verify.get("mb_s") else ""
        took = format_duration(float(verify["seconds"]))
        found = f"{result['files']['total']} files{rate}, {took}, whole{_elsewhere(result)}"
        lines.append(f"{host}: {model}: {verify['level']}, {found}")
    return lines


def model_verify_wrong(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str) -> list[str]:
    """Those of *hosts* on which a model is damaged, missing, or another one than is locked. The variable *name* of each
    host holds modelscope_snapshot's results in a loop over models."""
    return [str(host) for host in hosts if any(_failed(result) for result in results_of(hostvars, str(host), name))]


def model_verify_orders(
    models: Iterable[Mapping[str, Any]], results: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """*models* as a repair is to verify them: in full what was found to be wrong on the host, by modelscope_snapshot's
    *results* in a loop over their places; what was found to be whole just now is not read again."""
    wrong = {str(result["item"]["repo"]) for result in results if _failed(result)}
    return [{**model, "verify": "full" if str(model["repo"]) in wrong else "quick"} for model in models]


def model_verify_failure(results: Iterable[Mapping[str, Any]], host: str) -> str:
    """What is wrong on *host*, and how to repair it, in one text; empty where all models are whole."""
    failed = [result for result in results if _failed(result)]
    if not failed:
        return ""
    damaged = [result for result in failed if result.get("wanted") or result.get("extra")]
    texts = [f"{result['item']['repo']} at {result['item']['revision']}: {_damage(result)}" for result in damaged]
    moved = [result["item"] for result in failed if "holds" in result["item"]]
    behind = [f"{item['repo']} at {item['revision']}: {_other(item)}" for item in moved]
    absent = [result for result in failed if _absent(result)]
    others = [f"{result['item']['repo']} at {result['item']['revision']} is not in the store" for result in absent] + (
        ["bring what is missing with -e model_store_action=sync"] if absent else []
    )
    others += [
        str(result.get("msg"))
        for result in failed
        if result not in [*damaged, *absent] and "holds" not in result["item"]
    ]
    cure = ["repair with -e model_store_action=verify -e model_store_repair=true"] if damaged else []
    sync = ["bring what is locked with -e model_store_action=sync"] if moved else []
    return f"{host}: " + "; ".join([*texts, *cure, *behind, *sync, *others])


def _damage(result: Mapping[str, Any]) -> str:
    kinds = {"damaged or missing": result.get("wanted"), "not part of it": result.get("extra")}
    return ", ".join(f"{kind}: {some_of(paths)}" for kind, paths in kinds.items() if paths)


def _failed(result: Mapping[str, Any]) -> bool:
    """The mark itself is taken away, so that all models of a host are looked at."""
    return "content_id" not in result


def _absent(result: Mapping[str, Any]) -> bool:
    """Whether the store holds nothing of the model, by where model_places() found it; that is no damage."""
    damaged = result.get("wanted") or result.get("extra")
    return _failed(result) and not damaged and not {"holds", "manifest", "wanted"} & {*result["item"]}


def _other(item: Mapping[str, Any]) -> str:
    return f"holds {item['holds']}, locked is {item['locked']}"


def _elsewhere(result: Mapping[str, Any]) -> str:
    """That the link of a model names another revision than the one that was verified."""
    previous = result.get("previous")
    if not previous or previous["path"] == result.get("path"):
        return ""
    return f"; its link names another revision, {previous['commit'] or previous['content_id'] or previous['path']}"


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
            "model_verify_orders": model_verify_orders,
            "model_verify_wrong": model_verify_wrong,
        }
