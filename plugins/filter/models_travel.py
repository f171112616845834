# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions export and import of the playbook models decide and show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.plugin_utils.model_cells import (
    aligned,
    commit_of,
    counted,
    results_of,
    trouble_of,
)
from ansible_collections.socle.inference.plugins.plugin_utils.progress_action import format_bytes

MODELS = "socle_models"
OFFERED = "socle_offered"
COMPARED = "socle_compared"
LOOKED = "socle_looked"
"""What the tasks of the playbook set and register."""


def model_export_lines(results: Iterable[Mapping[str, Any]], host: str, check: bool) -> list[str]:
    """A line for each model that was exported on *host*, from model_export's results in a loop over models."""
    lines = []
    for result in results:
        if "bytes" not in result:
            continue
        size = result["bytes"]
        volumes = f", {counted(len(result['volumes']), 'volume')}" if result["volumes"] else ""
        what = f"{result['files']} files{volumes}, {format_bytes(size['total'])} at {result['path']}"
        if not result["changed"]:
            done = f"was there already, nothing written: {what}"
        elif check:
            done = f"would export {what}"
        else:
            kept = f", {format_bytes(size['kept'])} were there" if size["kept"] else ""
            done = f"exported {what}: {format_bytes(size['copied'])} written{kept}"
        if result.get("rewritten"):
            verb = "was" if result["rewritten"] == 1 else "were"
            done += f"; {counted(result['rewritten'], 'file')} {verb} damaged: written again"
        if result.get("read_back"):
            done += "; read back: right"
        lines.append(f"{host}: {result['repo']}@{result['requested']}: {done}")
    return lines


def model_import_missing(hosts: Iterable[str], hostvars: Mapping[str, Any], name: str) -> list[str]:
    """Models that some of *hosts* want and none of them can import, by the looks in their variable *name*."""
    wanted: dict[str, bool] = {}
    for host in hosts:
        for look in (hostvars[host].get(name) or {}).get("results", []):
            repo = str(look["item"][0]["repo"])
            wanted[repo] = wanted.get(repo, False) or bool(look.get("stat", {}).get("exists"))
    return [repo for repo, found in wanted.items() if not found]


def model_import_orders(
    models: Iterable[Mapping[str, Any]], host: str, hosts: Iterable[str], hostvars: Mapping[str, Any], name: str
) -> list[dict[str, Any]]:
    """What *host* imports: of *models* those that it, or else one of *hosts*, offers, each with C(manifest), the place
    C(path) on this host (null where it has none) and the host C(from).

    The variable *name* of each host holds model_directory_info's results in a loop over models.
    """
    orders = []
    for model in models:
        offers = {str(other): _offer_of(hostvars, str(other), model, name) for other in (host, *hosts)}
        source = next((other for other, offer in offers.items() if offer and "manifest" in offer), None)
        # A folder of its own that is damaged is to be seen to, not to be passed over.
        if source is None or (source != host and offers[host]):
            continue
        offer = offers[source] or {}
        path = offer["path"] if source == host else None
        orders.append({**model, "manifest": offer["manifest"], "path": path, "from": source})
    return orders


def _offer_of(hostvars: Mapping[str, Any], host: str, model: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """What the folder of *model* on *host* came to; None where it has none."""
    for result in results_of(hostvars, host, name):
        wanted = result["item"]["item"][0]
        if (wanted["repo"], wanted["revision"]) == (model["repo"], model["revision"]):
            return result
    return None


def model_import_lines(hosts: Iterable[str], hostvars: Mapping[str, Any], check: bool) -> list[str]:
    """One table of what is imported from where on all hosts, how much that is, and whether it fits."""
    rows: list[Sequence[str]] = [("HOST", "MODEL", "REVISION", "COMMIT", "FROM", "SIZE", "TO COME", "FREE", "VERDICT")]
    ahead = "would be" if check else "to be"
    for host in map(str, hosts):
        refused = {(repo, revision) for repo, revision, _fault in _faults_of(hostvars, host)}
        told = set(refused)
        for look in results_of(hostvars, host, LOOKED):
            order = look["item"]
            if "plan" not in look:
                continue
            plan = look["plan"]
            key = (order["repo"], order["revision"])
            # Whether the look counts as a change depends on check mode, so that it cannot tell.
            if key in refused:
                verdict = "refused"
            elif plan["missing_files"]:
                verdict = f"{ahead} imported"
            else:
                is_current = bool(look["previous"]) and look["previous"]["path"] == look["path"]
                verdict = "is there" if is_current else f"{ahead} made current"
            source = order["path"] or f"host {order['from']}"
            sizes = (look["bytes"]["total"], plan["bytes"], plan["free"])
            cells = (str(order["revision"]), _commit_of_look(look), source, *map(format_bytes, sizes), verdict)
            rows.append((host, str(order["repo"]), *cells))
            refused.discard(key)
            told.add(key)
        for repo, revision in sorted(refused):
            rows.append((host, repo, revision, "-", _place_of(hostvars, host, repo), "-", "-", "-", "refused"))
        for model in hostvars[host].get(MODELS) or ():
            if (model["repo"], model["revision"]) not in told:
                cells = (str(model["revision"]), "-", "another host", "-", "-", "-", "waits: no host can give it")
                rows.append((host, str(model["repo"]), *cells))
    return aligned(rows)


def _commit_of_look(look: Mapping[str, Any]) -> str:
    return commit_of({"commit": look["commit"], "id": str(look["content_id"]).rpartition(":")[2][:12]})


def _place_of(hostvars: Mapping[str, Any], host: str, repo: str) -> str:
    for result in results_of(hostvars, host, OFFERED):
        if result["item"]["item"][0]["repo"] == repo:
            return str(result["item"]["stat"]["path"])
    return "-"


def model_import_faults(hosts: Iterable[str], hostvars: Mapping[str, Any]) -> list[str]:
    """Why nothing may be imported, a sentence for each host and model; empty where nothing is in the way."""
    faults = []
    for host in map(str, hosts):
        for repo, revision, fault in _faults_of(hostvars, host):
            faults.append(f"{host}: {repo}@{revision}: {fault}")
    return faults


def _faults_of(hostvars: Mapping[str, Any], host: str) -> list[tuple[str, str, str]]:
    """Repository, revision and fault: of the folder, of the comparison with the lock, of the store."""
    found = []
    for result in results_of(hostvars, host, OFFERED):
        model = result["item"]["item"][0]
        if "manifest" not in result:
            found.append((str(model["repo"]), str(model["revision"]), trouble_of(result)))
    for result in results_of(hostvars, host, COMPARED):
        model = result["item"]["item"]["item"][0]
        if "manifest" not in result:
            found.append((str(model["repo"]), str(model["revision"]), trouble_of(result)))
    for result in results_of(hostvars, host, LOOKED):
        model = result["item"]
        faults = [fault["message"] for fault in result["plan"]["faults"]] if "plan" in result else [trouble_of(result)]
        found += [(str(model["repo"]), str(model["revision"]), str(fault)) for fault in faults]
    return found


def model_imported_lines(results: Iterable[Mapping[str, Any]], host: str) -> list[str]:
    """A line for each model that *host* imported, from modelscope_snapshot's results in a loop over models."""
    return [f"{host}: {result['repo']}@{result['requested']}: {_imported(result)}" for result in results]


def _imported(result: Mapping[str, Any]) -> str:
    files = counted(result["files"]["total"], "file")
    if not result["changed"]:
        return f"was complete already, nothing imported: {files}, {format_bytes(result['bytes']['total'])}"
    there = result["bytes"]["total"] - result["bytes"]["disk"]
    rest = f", {format_bytes(there)} were there" if there else ""
    return f"imported {files}: {format_bytes(result['bytes']['disk'])} read{rest}, now current"


class FilterModule:
    """Filters of the playbook models."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "model_export_lines": model_export_lines,
            "model_import_missing": model_import_missing,
            "model_import_orders": model_import_orders,
            "model_import_lines": model_import_lines,
            "model_import_faults": model_import_faults,
            "model_imported_lines": model_imported_lines,
        }
