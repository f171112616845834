# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of bringing one model to several hosts, as one host takes part in them. Private to socle.inference."""

from __future__ import annotations

import calendar
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import manifest as manifests
from ansible_collections.socle.inference.plugins.module_utils._hub.ages import is_full_due, parse_age
from ansible_collections.socle.inference.plugins.module_utils._hub.job import hub_of, request_of
from ansible_collections.socle.inference.plugins.module_utils._hub.job_control import JobControl, View, default_base
from ansible_collections.socle.inference.plugins.module_utils._hub.lan import choose_address
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.peer import check_upstream
from ansible_collections.socle.inference.plugins.module_utils._hub.prechecks import (
    RESERVE_BYTES,
    RESERVE_SHARE,
    is_shared,
    reserve_bytes,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.shared import name_local_store, name_store
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

SHOWN = (
    "phase",
    "done",
    "total",
    "unit",
    "file",
    "source",
    "trouble",
    "rate_per_s",
    "left_s",
    "updated",
    "started",
    "joined",
)
NEEDED = ("inspected", "started", "joined")
"""States that must know the manifest."""


def sync(params: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """What the module returns for params["state"]. Raises SocleError."""
    base = Path(params["runtime_dir"]) if params.get("runtime_dir") else default_base()
    try:
        return _sync(params, check, base)
    except OSError as error:
        raise StoreError(
            f"the job for {params['repo']} has its files in {base}, which failed: {error.strerror or error} "
            f"({error.filename or 'no name'}): make room there, or put right what is named, then run again"
        ) from error


def _sync(params: Mapping[str, Any], check: bool, base: Path) -> dict[str, Any]:
    spec = dict(params)
    state = spec["state"]
    age = spec.get("verify_max_age")
    spec["verify_max_age_s"] = parse_age("verify_max_age", age) if age else None
    manifest = _manifest_of(spec) if state in NEEDED else None
    control = JobControl(base, spec["store"], spec["source"], spec["repo"])
    if manifest and state == "inspected":
        return _inspect(spec, manifest, control, check)
    if check:
        return {"changed": False}
    if manifest and state == "started":
        return _start(spec, manifest, control)
    if manifest and state == "joined":
        upstreams = [check_upstream(upstream) for upstream in spec.get("upstreams") or []]
        token = spec.get("relay_token") or ""
        warnings = control.join(upstreams, token, manifest, spec["seed"], spec["allow_multi_wan"])
        return {"changed": False, "warnings": warnings}
    if state == "finished":
        return _finish(control, float(spec["wait_s"]), spec.get("content_id"))
    return {"changed": False, "stopped": control.stop(run_of(spec))}


def run_of(spec: Mapping[str, Any]) -> str:
    """What the run is called in which a job is started, and ended again."""
    return str(spec.get("run") or "")


def _manifest_of(spec: Mapping[str, Any]) -> Manifest:
    if not spec.get("manifest"):
        raise HubError(f"state {spec['state']} needs the manifest, as model_lock returns it")
    manifest = manifests.loads(json.dumps(spec["manifest"]))
    if manifest.repo != spec["repo"]:
        raise HubError(f"the manifest describes {manifest.repo}, but {spec['repo']} is wanted")
    return manifest


def _inspect(spec: dict[str, Any], manifest: Manifest, control: JobControl, check: bool) -> dict[str, Any]:
    """What this host has and lacks, by one look at each file; what is to be hashed is left to the job."""
    found = _look(spec, manifest, probe=not check)
    plan = found["plan"]
    found.pop("diff")
    view = control.look()
    total, wanted_reserve = int(plan["store"]["total"]), reserve_bytes(spec.get("reserve_gib"))
    plan["reserve"] = max(RESERVE_BYTES, int(total * RESERVE_SHARE)) if wanted_reserve is None else wanted_reserve
    running = view is not None and view.running and not view.over
    due = is_due(spec, found["verify"]["checked"], time.time())
    store_name = _name_store(spec, plan, check)
    return {
        **found,
        "store_name": store_name,
        # A look changes nothing; what the run would change is an answer in check mode alone.
        "changed": bool(found["changed"] and check),
        "complete": not plan["wanted_files"],
        "work": bool(found["changed"] or plan["unproven_files"] or due or running),
        "due": due,
        "plan": plan,
        "job": {**_show(view), "other": _is_other(view, manifest)} if view is not None and running else None,
    }


def _is_other(view: View, manifest: Manifest) -> bool:
    """Whether the job brings other content than is wanted, so that the run must not take it for its own."""
    return view.status.get("content_id") not in (None, manifest.content_id)


def _name_store(spec: Mapping[str, Any], plan: dict[str, Any], check: bool) -> str | None:
    """The name of the store, by which hosts that share it are told; None where there is none.

    On a network file system, *plan* gets a fault where the store takes no name: then nobody knows who else writes it.
    """
    if not is_shared(plan["store"]["file_system"]):
        return name_local_store(Path(spec["store"]))
    if not spec.get("allow_shared_fs"):
        return None
    name = name_store(Path(spec["store"]), write=not check)
    if name is None and not check and not plan["faults"]:
        message = (
            f"{spec['store']} is on a network file system and takes no file by which hosts could see that they share "
            "it: make it take hard links, or choose a local store on each host"
        )
        plan["faults"].append({"id": "shared_fs", "message": message})
    return name


def _look(spec: Mapping[str, Any], manifest: Manifest, probe: bool) -> dict[str, Any]:
    """The result of a snapshot in check mode, by one look at each file; with *probe* writing is tried."""
    quick = {
        **spec,
        "verify": "quick" if spec["verify"] == "full" else spec["verify"],
        "verify_max_age_s": None,
        # With a manifest no hub is asked for a look, and neighbours may have what is missing.
        "offline": False,
    }
    request = replace(request_of(quick, manifest), check=True, look_only=True, probe=probe)
    return ensure_snapshot(request, hub_of(quick), Progress())


def _renew(spec: Mapping[str, Any], manifest: Manifest) -> dict[str, Any] | None:
    """The result of a run that finds nothing to do; None where it would do something, or hash."""
    try:
        found = _look(spec, manifest, probe=False)
    except SocleError:
        # A job of its own says so, and may repair it.
        return None
    plan = found.pop("plan")
    proven = not found["changed"] and not plan["unproven_files"]
    return found if proven and not is_due(spec, found["verify"]["checked"], time.time()) else None


def is_due(spec: Mapping[str, Any], checked: str | None, now_s: float) -> bool:
    """Whether everything is to be hashed this time; *checked*: when that was last done (UTC), or None."""
    checked_s = None if checked is None else calendar.timegm(time.strptime(checked, "%Y-%m-%dT%H:%M:%SZ"))
    return is_full_due(spec["verify"] == "full", spec.get("verify_max_age_s"), checked_s, now_s)


def _start(spec: dict[str, Any], manifest: Manifest, control: JobControl) -> dict[str, Any]:
    relay = None
    if spec["relay"]:
        if not spec.get("relay_token"):
            raise HubError("a job with a relay needs relay_token, which the action plugin makes")
        relay = {
            "address": choose_address(spec.get("lan_address"), spec.get("connected_by")),
            "token": spec["relay_token"],
        }
    for name in ("relay_token", "upstreams"):
        spec.pop(name, None)
    view, new = control.start({**spec, "relay": relay}, manifest, run_of(spec), lambda: _renew(spec, manifest))
    return {
        # The model is not changed by a job that only begins; the state finished tells.
        "changed": False,
        "new": new,
        "content_id": manifest.content_id,
        "address": view.status.get("address"),
        "port": view.status.get("port"),
        "job": _show(view),
    }


def _finish(control: JobControl, seconds: float, content_id: str | None) -> dict[str, Any]:
    view = control.wait(seconds)
    found = view.status.get("content_id")
    if content_id and found not in (None, content_id):
        raise HubError(
            f"another run has put a job for other content of {control.repo} ({str(found)[:19]} instead of "
            f"{content_id[:19]}) in the place of the one that was waited for: have both runs use the same lock, then "
            "run again",
            content_id=found,
            expected=content_id,
        )
    if view.result is None:
        return {"changed": False, "finished": False, "job": _show(view)}
    if view.failed:
        raise HubError(str(view.result.get("msg")), **(view.result.get("fields") or {}))
    return {**view.result["result"], "finished": True}


def _show(view: View) -> dict[str, Any]:
    return {name: view.status.get(name) for name in SHOWN}
