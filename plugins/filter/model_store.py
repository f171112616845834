# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data handling of the role model_store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.socle.inference.plugins.module_utils._hub.fanout import Member, Place, arrange
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import DEFAULT_REVISION
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short

INSPECTIONS = "__model_store_inspections"
STARTED = "__model_store_started"
RESULT = "model_store_result"
RACK = "model_store_rack"


def unique_models(models: Iterable[Mapping[str, Any]], source: str = "modelscope") -> list[dict[str, str]]:
    """Each repository once, in order; two revisions of one repository on one host are an error."""
    found: dict[str, dict[str, str]] = {}
    for model in models:
        repo = str(model["repo"])
        revision = str(model.get("revision") or DEFAULT_REVISION.get(source, DEFAULT_REVISION["modelscope"]))
        known = found.setdefault(repo, {"repo": repo, "revision": revision})
        if known["revision"] != revision:
            raise AnsibleFilterError(
                f"{short(repo)} is wanted at {short(known['revision'])} and at {short(revision)} on one host: "
                "give its instances the same revision"
            )
        known.update({name: str(model[name]) for name in ("path", "verify") if model.get(name)})
    return list(found.values())


def snapshot_paths(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Repository -> path, link, content id and commit, from the results of model_sync or modelscope_snapshot."""
    return {
        str(result["repo"]): {name: result.get(name) for name in ("path", "link", "content_id", "commit")}
        for result in results
        if "content_id" in result
    }


def missing_models(hostvars: Any, hosts: Iterable[str]) -> list[dict[str, Any]]:
    """The models that any of *hosts* has work to do for, each once by its content; the same for all hosts."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    hosts = list(hosts)
    for host in hosts:
        for seen in _inspections(hostvars, host):
            if seen["work"] and not (seen.get("store_name") and _writer(hostvars, hosts, seen, host)):
                key = (str(seen["repo"]), str(seen["content_id"]))
                found.setdefault(key, {"repo": key[0], "revision": seen["requested"], "content_id": key[1]})
    return list(found.values())


def part_in(hostvars: Any, hosts: Sequence[str], model: Mapping[str, Any], name: str, fanout: str) -> dict[str, Any]:
    """What host *name* does for *model*: nothing, or a job, with a relay where others could use it.

    C(helper) is a host of an earlier batch that has the model, where no host of this one has; C(lender) is a host that
    knows its manifest; C(writer) is the host that writes the store that *name* shares with it, if another one does;
    C(verify) is the level that *name* gives the model itself, if it does.
    """
    wanting = {host: seen for host in hosts if (seen := _seen(hostvars, host, model))}
    taking = {host: seen for host, seen in wanting.items() if _writer(hostvars, hosts, model, host) is None}
    lacking = [host for host, seen in taking.items() if not seen["complete"]]
    helper = None
    if fanout == "auto" and lacking and len(lacking) == len(taking):
        helper = next((host for host in _others(hostvars, hosts) if _has(hostvars, host, model)), None)
    # Also where all are complete: what a host finds rotten when it hashes, its neighbours have.
    shared = fanout == "auto" and (len(taking) > 1 or helper is not None)
    mine = taking.get(name)
    return {
        "job": mine is not None and bool(mine["work"] or shared),
        "relay": shared,
        "verify": ((mine or {}).get("item") or {}).get("verify"),
        "lender": next(iter(taking), None),
        "writer": _writer(hostvars, hosts, model, name),
        "helper": helper,
        "helper_store": _folder_of(hostvars, helper, model) if helper else None,
    }


def place_of(
    hostvars: Any, hosts: Sequence[str], model: Mapping[str, Any], name: str, helper: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Where host *name* takes *model* from: C(upstreams) for model_sync, and whether it may ask the hub (C(seed)).

    *helper*: name, address and port of a relay outside of *hosts*.
    """
    started = {host: found for host in hosts if (found := _started(hostvars, host, model))}
    members = [
        Member(
            host,
            complete=bool((_seen(hostvars, host, model) or {}).get("complete")),
            rack=str(_var(hostvars, host, RACK) or ""),
        )
        for host in started
    ]
    # Who is under way already comes first: a host that joins later must not download again what is on the LAN.
    members.sort(key=lambda member: not (started[member.name].get("job") or {}).get("joined"))
    relays = {
        host: {"name": host, "address": found["address"], "port": found["port"]} for host, found in started.items()
    }
    if helper and helper.get("port"):
        relays[str(helper["name"])] = {name: helper[name] for name in ("name", "address", "port")}
        members.append(Member(str(helper["name"]), complete=True))
    place = arrange(members).get(name, Place((), True))
    upstreams = [relays[host] for host in place.upstreams if relays[host]["port"]]
    complete = any(member.complete for member in members if member.name == name)
    # A complete host lacks little, if anything: it need not wait for neighbours that are gone.
    return {"upstreams": upstreams, "seed": complete or not upstreams}


def _var(hostvars: Any, host: str, name: str) -> Any:
    """A variable of another host, or None."""
    return hostvars[host].get(name) if host in hostvars else None


def _inspections(hostvars: Any, host: str) -> list[Mapping[str, Any]]:
    registered = _var(hostvars, host, INSPECTIONS) or {}
    return [seen for seen in registered.get("results", []) if "plan" in seen]


def _matches(found: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    return bool(found.get("content_id") == model["content_id"])


def _seen(hostvars: Any, host: str, model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for seen in _inspections(hostvars, host):
        if _matches(seen, model) and seen["repo"] == model["repo"]:
            return seen
    return None


def _writer(hostvars: Any, hosts: Sequence[str], model: Mapping[str, Any], name: str) -> str | None:
    """The host that writes *model* into the store that *name* shares with it; None where that is *name* itself.

    One whose job runs already, else the first one in the order of the inventory.
    """
    shared = (_seen(hostvars, name, model) or {}).get("store_name")
    if not shared:
        return None
    sharing = [host for host in hosts if (_seen(hostvars, host, model) or {}).get("store_name") == shared]
    running = [host for host in sharing if (_seen(hostvars, host, model) or {}).get("job")]
    writer = str((running or sharing)[0])
    return None if writer == name else writer


def _started(hostvars: Any, host: str, model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    started = _var(hostvars, host, STARTED) or {}
    return started if _matches(started, model) else None


def _others(hostvars: Any, hosts: Sequence[str]) -> list[str]:
    return [str(host) for host in hostvars if host not in hosts]


def _has(hostvars: Any, host: str, model: Mapping[str, Any]) -> bool:
    """Whether an earlier batch of this run brought *model* to *host*."""
    return _matches((_var(hostvars, host, RESULT) or {}).get(model["repo"]) or {}, model)


def _folder_of(hostvars: Any, host: str, model: Mapping[str, Any]) -> str:
    """The store of *host*, by the link that names the model there."""
    return str(_var(hostvars, host, RESULT)[model["repo"]]["link"]).rpartition("/")[0]


class FilterModule:
    """Filters of the role model_store."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "model_store_unique": unique_models,
            "model_store_result": snapshot_paths,
            "model_store_missing": missing_models,
            "model_store_part": part_in,
            "model_store_place": place_of,
        }
