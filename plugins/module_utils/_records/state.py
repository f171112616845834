# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's records say about its instances: the variable socle_state. Pure; private to socle.inference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._records.schema import Record

GOOD = ("passed", "degraded")


def host_state(records: Mapping[str, list[Record]]) -> dict[str, Any]:
    """socle_state of one host from {instance: [records, newest first]}."""
    instances = {}
    for name, found in sorted(records.items()):
        state = instance_state(found)
        if state is not None:
            instances[name] = state
    return {"instances": instances}


def instance_state(records: list[Record]) -> dict[str, Any] | None:
    """The state of one instance from its records, newest first; None when it was removed from the host.

    Accepted means: the newest acceptance of the launch that was deployed last is good.
    """
    deploy = _first(records, "deploy")
    if deploy is not None and deploy["results"].get("state") == "absent":
        return None
    fingerprint = deploy["launch_fingerprint"] if deploy else None
    # An acceptance that ended in the probe's own fault says nothing about the instance.
    proven = [record for record in records if record["verdict"] != "error"]
    acceptance = _first(proven, "acceptance", fingerprint) if fingerprint else None
    accepted = acceptance is not None and acceptance["verdict"] in GOOD
    # An instance that was never deployed by a record, or has no acceptance yet, still shows what is known.
    shown = acceptance or (_first(records, "acceptance") if fingerprint is None else None)
    latest = records[0] if records else None
    source = deploy or latest
    return {
        "accepted": accepted,
        "accepted_at": acceptance["finished"] if accepted and acceptance else None,
        "verdict": shown["verdict"] if shown else None,
        "fingerprint": fingerprint,
        "generation": deploy["generation"] if deploy else None,
        "deployed": deploy["verdict"] in GOOD if deploy else None,
        "overrides": _overrides(deploy),
        "acceptance": acceptance_summary(shown["results"]) if shown else None,
        "benchmark": _benchmarks(records, fingerprint),
        "benchmarked": _benchmarked(records),
        "capacity": _capacity(deploy),
        "environment": dict(source["environment"]) if source else {},
        "incident": _incident(_first(records, "incident", fingerprint)),
        "drift": [
            *_drift(records, fingerprint, acceptance if accepted else None),
            *({"item": "overrides", "expected": None, "found": words} for words in _override_words(deploy)),
        ],
    }


def calibrations_of(records: Mapping[str, list[Record]]) -> list[dict[str, Any]]:
    """What starts on a host taught about its memory, newest first, from {instance: [records, newest first]}."""
    found = [
        (record["finished"], record["results"]["calibration"])
        for own in records.values()
        for record in own
        if record["kind"] == "deploy" and isinstance(record["results"].get("calibration"), dict)
    ]
    return [content for _finished, content in sorted(found, key=lambda entry: str(entry[0]), reverse=True)]


def distinct_calibrations(found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first of each kind of start, so that a large inventory carries only what differs."""
    kept: dict[str, dict[str, Any]] = {}
    for content in found:
        launch = content.get("launch")
        parts = launch if isinstance(launch, dict) else {}
        names = ("tensor_parallel", "vllm_version", "kv_cache_dtype", "max_num_batched_tokens", "speculative_tokens")
        key = [content.get("host_class"), content.get("model"), *(parts.get(name) for name in names)]
        kept.setdefault(repr(key), dict(content))
    return list(kept.values())


def groups_of(state: Mapping[str, Any]) -> list[str]:
    """The groups that a host with *state* is in: accepted only when all of its instances are."""
    instances = list(state["instances"].values())
    if not instances:
        return []
    groups = ["accepted" if all(instance["accepted"] for instance in instances) else "unaccepted"]
    if any(instance["drift"] for instance in instances):
        groups.append("drifted")
    return groups


def acceptance_summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """{passed, failed, skipped, failed_checks}: counts from the results, or counted over their checks."""
    checks = results.get("checks")
    checks = [check for check in checks if isinstance(check, Mapping)] if isinstance(checks, list) else None
    summary: dict[str, Any] = {}
    for status in ("passed", "failed", "skipped"):
        count = results.get(status)
        if isinstance(count, int) and not isinstance(count, bool):
            summary[status] = count
        else:
            summary[status] = None if checks is None else sum(check.get("status") == status for check in checks)
    bad = ("failed", "error")
    summary["failed_checks"] = [str(check.get("id")) for check in checks or [] if check.get("status") in bad]
    return summary


def live_drift(state: Mapping[str, Any] | None, running: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The drift that the records know, and that of what runs now against the launch that was deployed last."""
    drift = [dict(item) for item in (state or {}).get("drift") or [] if isinstance(item, Mapping)]
    expected = (state or {}).get("fingerprint")
    found = (running or {}).get("launch_fingerprint")
    if expected and found and expected != found:
        drift.append({"item": "running", "expected": expected, "found": found})
    return drift


def _first(records: list[Record], kind: str, fingerprint: str | None = None) -> Record | None:
    for record in records:
        if record["kind"] == kind and (fingerprint is None or record["launch_fingerprint"] == fingerprint):
            return record
    return None


def _incident(record: Record | None) -> dict[str, Any] | None:
    """The newest incident of the launch that was deployed last, without its evidence, which stays in the record."""
    if record is None:
        return None
    results = record["results"]
    kept = {key: results.get(key) for key in ("action", "reason", "likely_causes")}
    return {"at": record["finished"], "generation": record["generation"], **kept}


def _benchmarks(records: list[Record], fingerprint: str | None) -> dict[str, Any]:
    """{workload: figures} of the current launch, each from the newest record that has it."""
    found: dict[str, Any] = {}
    for record in records:
        if record["kind"] != "benchmark" or record["verdict"] not in GOOD:
            continue
        if fingerprint is not None and record["launch_fingerprint"] != fingerprint:
            continue
        workloads = record["results"].get("workloads")
        if isinstance(workloads, dict):
            for name, figures in workloads.items():
                if isinstance(figures, dict):
                    # The single runs are evidence and stay in the record.
                    found.setdefault(name, {key: value for key, value in figures.items() if key != "runs"})
    return found


def _benchmarked(records: list[Record]) -> dict[str, str]:
    """{launch fingerprint: when it was measured last}, whatever came out; the probe's own fault measured nothing."""
    found: dict[str, str] = {}
    for record in records:
        if record["kind"] == "benchmark" and record["verdict"] != "error" and record["launch_fingerprint"]:
            found.setdefault(record["launch_fingerprint"], record["finished"])
    return found


def _capacity(deploy: Record | None) -> dict[str, Any] | None:
    """What was predicted, with what was measured at the deployment on top."""
    if deploy is None:
        return None
    capacity = dict(deploy.get("capacity") or {})
    for key in ("capacity", "kv_cache"):
        measured = deploy["results"].get(key)
        if isinstance(measured, dict):
            capacity.update({name: value for name, value in measured.items() if value is not None})
    return capacity or None


def _overrides(deploy: Record | None) -> dict[str, Any]:
    """What of the launch only the run asked for that made it: {flags, env, image}."""
    found = deploy["results"].get("overrides") if deploy else None
    return dict(found) if isinstance(found, dict) else {}


def _override_words(deploy: Record | None) -> list[str]:
    """One text for all of it, such as "flags max-num-seqs, image"; none where there is nothing."""
    words = []
    for kind, value in sorted(_overrides(deploy).items()):
        words.append(f"{kind} {', '.join(sorted(map(str, value)))}" if isinstance(value, dict) else str(kind))
    return ["; ".join(words)] if words else []


def _drift(records: list[Record], fingerprint: str | None, accepted: Record | None) -> list[dict[str, Any]]:
    drift = []
    if accepted is None:
        for record in records:
            if record["kind"] == "acceptance" and record["verdict"] in GOOD:
                if fingerprint and record["launch_fingerprint"] not in (None, fingerprint):
                    expected = record["launch_fingerprint"]
                    drift.append({"item": "launch_fingerprint", "expected": expected, "found": fingerprint})
                break
        return drift
    expected = accepted["environment_fingerprint"]
    newest = next((record["environment_fingerprint"] for record in records if record["environment_fingerprint"]), None)
    if expected and newest and newest != expected:
        drift.append({"item": "environment_fingerprint", "expected": expected, "found": newest})
    return drift
