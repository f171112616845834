# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks decide from plans, facts and records: whether something is due, and what goes into a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.socle.inference.plugins.module_utils._engine.generations import overrides_of
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import quoted, short
from ansible_collections.socle.inference.plugins.module_utils._plan.surroundings import (
    environment_fingerprint,
    host_engine,
)

BENCHMARK_CHOICES = ("missing", "always", "never")


def deploy_recorded(state: Mapping[str, Any], plan: Mapping[str, Any], generation: int) -> bool:
    """Whether the newest record of a deployment is that this *generation*, the launch of the sealed *plan*, came up.

    What one run asked for and the inventory has by now is another deployment, by the same launch.
    """
    known = state["instances"].get(plan["instance"], {})
    wanted = {"fingerprint": plan["launch_fingerprint"], "generation": generation, "deployed": True}
    same = all(known.get(key) == value for key, value in wanted.items())
    return same and (known.get("overrides") or {}) == overrides_of(plan)


def deploy_results(result: Mapping[str, Any], plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The results of a deploy record from what role vllm_service found: how it started, and what the engine offers.

    Of the *plan* comes what only one run asked for.
    """
    launch, ready = result["launch"], result["ready"]
    return {
        "action": launch["action"],
        "restores": launch.get("restores"),
        "overrides": overrides_of(plan or {}),
        "drain": launch.get("drain"),
        "ready_s": ready.get("ready_s"),
        "waited_s": ready.get("waited_s"),
        "milestones": ready.get("milestones") or {},
        "phases": ready.get("phases") or {},
        "engine_version": ready.get("engine_version"),
        "max_model_len": ready.get("max_model_len"),
        "models": ready.get("models"),
        "kv_cache": ready.get("kv_cache"),
        "diagnosis": ready.get("diagnosis"),
        "diagnosed_after_s": ready.get("diagnosed_after_s"),
        "message": ready.get("msg"),
        "excerpt": ready.get("excerpt"),
    }


def facts_environment(facts: Mapping[str, Any], engine: str | None = None) -> dict[str, Any]:
    """What a record says about the host, from gpu_facts; *engine* is the container engine that runs the instance."""
    gpus = facts.get("gpus") or []
    return {
        "driver": (facts.get("driver") or {}).get("version"),
        "gpus": [gpu.get("product") for gpu in gpus],
        "cpu": (facts.get("cpu") or {}).get("model"),
        "cores": (facts.get("cpu") or {}).get("cores"),
        "kernel": facts.get("kernel"),
        "engine": host_engine(facts, engine),
    }


def benchmark_due(state: Mapping[str, Any], running: Mapping[str, Any], choice: str = "missing") -> list[str]:
    """Names of the instances that are to be measured.

    *running* is what vllm_instances_info returned. With *choice* "missing" an instance is due when it runs and its
    present launch was not measured yet, whatever came out; "always" and "never" say so for all of them.
    """
    if choice not in BENCHMARK_CHOICES:
        raise ValueError(f"socle_benchmark is {quoted(choice)}; use one of {', '.join(BENCHMARK_CHOICES)}.")
    names = sorted(name for name, found in running.items() if found.get("plan"))
    if choice == "missing":
        return [name for name in names if _unmeasured(state["instances"].get(name, {}), running[name])]
    return names if choice == "always" else []


def _unmeasured(known: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    # One that does not run would be put on record as measured and failed.
    measured: Mapping[str, str] = known.get("benchmarked") or {}
    return found.get("unit_active") == "active" and found.get("launch_fingerprint") not in measured


def managed_instances(running: Mapping[str, Any], declared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of *running* that *declared* (vllm_instances) names: only of these are key and purpose known."""
    return {name: found for name, found in running.items() if name in (declared or {})}


def unmanaged_instances(running: Mapping[str, Any], declared: Mapping[str, Any] | None) -> list[str]:
    """Names of those of *running* that *declared* does not name, sorted."""
    return sorted(set(running) - set(declared or {}))


def restarted_instance(known: Mapping[str, Any], launch: Mapping[str, Any]) -> dict[str, Any]:
    """An item of vllm_instances_info after its own plan was launched anew and serves, from what it was before.

    *launch* is what vllm_launch returned. Only a start that was not known to fail leaves an acceptance as it was.
    """
    number = launch["generation"]
    same = number == known["generation"] and not launch.get("failed_before")
    status = known["status"] if same else "started"
    return {**known, "generation": number, "status": status, "unit_active": "active", "unit_sub": "running"}


def deploy_line(result: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """One line: what a deployment did, from the fact vllm_service_result."""
    launch, ready = result["launch"], result["ready"]
    action = {"none": "unchanged"}.get(launch["action"], launch["action"].replace("_", " "))
    generation = f", generation {launch['generation']}" if launch.get("generation") else ""
    waited = f", ready after {ready['ready_s']:.0f} s" if ready.get("ready_s") and action != "unchanged" else ""
    reason = f" ({ready['reason']})" if ready.get("reason") else ""
    return f"{plan['instance']}: {action}{generation}{waited}{reason}"


def rollback_story(
    back: Mapping[str, Any],
    instance: str,
    failure: str | None = None,
    automatic: bool = False,
    unproven: bool = False,
) -> dict[str, Any]:
    """What runs after a rollback: {text, failed, reason}; *back* is what vllm_rollback returned, {} where it failed.

    *failure* is why it failed, which is the reason; after an *automatic* one the instance is then stopped, unless it
    serves and is only *unproven*.
    """
    number, restored = back.get("generation"), back.get("restores")
    if failure is not None:
        cause = failure.strip().rstrip(".")
        what = f"generation {restored} of {instance}" if restored else f"an earlier generation of {instance}"
        if automatic:
            left = f"{instance} runs generation {number}, unproven" if unproven else f"{instance} is stopped"
            text = f"Going back to {what} failed too: {cause}. {left}."
        else:
            text = f"{what[0].upper()}{what[1:]} was not brought back: {cause}."
        return {"text": text, "failed": True, "reason": failure}
    if restored is None:
        runs = f"{instance} goes on with generation {number}" if back.get("running") else f"{instance} is stopped"
        return {"text": f"{back.get('reason')}: {runs}.", "failed": False, "reason": None}
    anew = "" if restored == number else f", which is generation {restored} anew"
    if str(back.get("action", "")).startswith("would_"):
        text = f"{instance}: generation {restored} would come back as generation {number}"
    elif back.get("verified"):
        text = f"{instance} runs generation {number}, which is accepted, as before"
    else:
        text = f"{instance} runs generation {number}{anew}, and is accepted by suite smoke"
    return {"text": f"{text}.", "failed": False, "reason": None}


def unknown_instances(names: Any, hostvars: Mapping[str, Any], hosts: Iterable[str]) -> list[str]:
    """Those of *names* that vllm_instances of none of the *hosts* has, sorted."""
    if isinstance(names, str) or not isinstance(names, (list, tuple)):
        return [short(names)]
    known: set[str] = set()
    for host in hosts:
        try:
            declared = hostvars[host].get("vllm_instances")
        except AnsibleError:
            # One host's broken variable is told where that host is worked on.
            continue
        known.update(declared if isinstance(declared, Mapping) else ())
    return sorted(short(name) for name in names if name not in known)


def acceptance_line(acceptance: Mapping[str, Any]) -> str:
    """One line: the verdict and how many checks stand behind it."""
    if acceptance["verdict"] is None:
        return f"suite {acceptance['suite']} would run {len(acceptance['checks'])} checks"
    counts = ", ".join(
        f"{acceptance[name]} {name}" for name in ("passed", "failed", "skipped", "errors") if acceptance[name]
    )
    verdict = {"passed": "accepted", "degraded": "accepted, but degraded", "error": "not judged"}
    return f"{verdict.get(acceptance['verdict'], 'not accepted')} by suite {acceptance['suite']}: {counts}"


GENERATION_FIGURES = (("ttft_ms", "TTFT", "ms"), ("e2e_ms", "whole", "ms"), ("decode_tok_per_s", "", "tok/s"))
PREFIX_FIGURES = (
    ("ttft_ms", "TTFT cold", "ms"),
    ("warm_ttft_ms", "warm", "ms"),
    ("ttft_drop_pct", "saved", "%"),
)
LOAD_FIGURES = (
    ("output_tok_per_s", "", "tok/s"),
    ("goodput_per_s", "goodput", "requests/s"),
    ("ttft_ms", "TTFT", "ms"),
    ("itl_ms", "ITL", "ms"),
    ("e2e_ms", "whole", "ms"),
)
FIGURES = {"prefix": PREFIX_FIGURES, "load": LOAD_FIGURES, "decode": LOAD_FIGURES}

LONG_PROMPT = 1000
"""Tokens from which on the rate of reading a prompt says more than the constant parts of a request."""


def benchmark_lines(benchmark: Mapping[str, Any], where: str) -> list[str]:
    """One line for each workload: medians over the repeats, with their spread; *where* names host and instance."""
    lines = []
    for name, found in sorted(benchmark["workloads"].items()):
        parts = []
        rows = FIGURES.get(str(found.get("kind")), GENERATION_FIGURES)
        if (found.get("prompt_tokens") or 0) >= LONG_PROMPT and "prefill_tok_per_s" in found:
            rows = (*rows, ("prefill_tok_per_s", "prefill", "tok/s"))
        for key, label, unit in rows:
            figures = found.get(key)
            if figures and figures.get("p50") is not None:
                tail = found.get(key.replace("_ms", "_p99_ms")) or {}
                p99 = f"p99 {tail['p50']:.1f}, " if tail.get("p50") is not None and tail is not figures else ""
                # Around nothing a spread in percent has no meaning.
                spread = figures["spread_pct"] if figures["spread_pct"] is not None else 0
                parts.append(f"{label} {figures['p50']:.1f} {unit} ({p99}spread {spread:.0f} %)".strip())
        guessed = found.get("speculation")
        if guessed:
            parts.append(f"{guessed['mean_accepted_length']:.2f} tokens a pass")
        faults = [*(found.get("faults") or []), *(found.get("warnings") or [])]
        lines.append(
            f"{where} {name}: "
            + (", ".join(parts) or str(found.get("status")))
            + "".join(f"; {each}" for each in faults)
        )
    return lines


def acceptance_failure(acceptance: Mapping[str, Any]) -> str:
    """One sentence for each check that did not pass: what was expected, what was found, what to do."""
    lines = [
        f"{check['id']}: expected {check['expected'].rstrip('.')}, found {check['found'].rstrip('.')}."
        + (f" {check['remedy']}" if check.get("remedy") else "")
        for check in acceptance["checks"]
        if check["status"] in ("failed", "error")
    ]
    return "\n".join(lines) or "The probe could not check anything."


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {
            "acceptance_failure": acceptance_failure,
            "acceptance_line": acceptance_line,
            "benchmark_lines": benchmark_lines,
            "deploy_line": deploy_line,
            "benchmark_due": benchmark_due,
            "deploy_recorded": deploy_recorded,
            "deploy_results": deploy_results,
            "environment_fingerprint": environment_fingerprint,
            "facts_environment": facts_environment,
            "managed_instances": managed_instances,
            "restarted_instance": restarted_instance,
            "rollback_story": rollback_story,
            "unknown_instances": unknown_instances,
            "unmanaged_instances": unmanaged_instances,
        }
