# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sealing: a plan together with what it will really run, and the fingerprints of both. Private to socle.inference."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import digest, plain
from ansible_collections.socle.inference.plugins.module_utils._plan.draft import SCHEMA
from ansible_collections.socle.inference.plugins.module_utils._plan.facts import check_facts
from ansible_collections.socle.inference.plugins.module_utils._plan.instances import check_gpus
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems, describe, quoted
from ansible_collections.socle.inference.plugins.module_utils._plan.surroundings import (
    environment_fingerprint,
    units_needed,
)
from ansible_collections.socle.inference.plugins.module_utils._units import path_fault

ENGINES = ("podman", "docker")

_DIGEST = r"sha256:[0-9a-f]{64}"

_SEAL = schema.record(
    {
        "plan": schema.map_of(schema.anything()),
        "image_digest": schema.nullable(schema.text(_DIGEST, "'sha256:' and 64 hexadecimal digits")),
        "content_id": schema.nullable(schema.text(_DIGEST, "'sha256:' and 64 hexadecimal digits")),
        "model_path": schema.nullable(schema.text()),
        "chat_template_digest": schema.nullable(schema.text(rf"({_DIGEST})?", "'sha256:' and 64 hexadecimal digits")),
        "chat_template_path": schema.nullable(schema.text()),
        "secrets_hmac": schema.nullable(
            schema.text(r"(hmac-sha256:[0-9a-f]{64})?", "'hmac-sha256:' and 64 hexadecimal digits")
        ),
        "facts": schema.nullable(schema.map_of(schema.anything())),
        "engine": schema.choice(*ENGINES),
        "allow_missing": schema.truth(),
    },
    ["plan"],
)


_MOUNT = {
    "source": schema.nullable(schema.text()),
    "target": schema.text(),
    "read_only": schema.truth(),
    "kind": schema.choice("model", "cache", "chat_template"),
}

_READ: Mapping[str, schema.Check] = {
    "instance": schema.text(),
    "argv": schema.list_of(schema.text(), filled=True),
    "env": schema.map_of(schema.text()),
    "secrets": schema.list_of(schema.map_of(schema.text())),
    "mounts": schema.list_of(schema.record(_MOUNT, _MOUNT), filled=True),
    "gpus": check_gpus,
    "network": schema.text(),
    "port": schema.whole(1, 65535),
    "shm_size_bytes": schema.whole(1),
    "chat_template_digest": schema.nullable(schema.text(_DIGEST, "'sha256:' and 64 hexadecimal digits")),
    "sealed": schema.truth(),
}
"""What sealing reads of a plan."""


def _check_plan(plan: Mapping[str, Any], problems: Problems) -> None:
    for name, check in _READ.items():
        if name in plan:
            check(plan[name], f"seal.plan.{name}", problems)
        else:
            problems.add(f"seal.plan lacks the key {name!r}; give the plan as vllm_plan returned it.")


def launch_fingerprint(plan: Mapping[str, Any], secrets_hmac: str | None) -> str:
    """Everything whose change must restart the engine, and nothing else."""
    return digest(
        {
            "argv": plan["argv"],
            "env": plan["env"],
            "image_digest": plan["image_digest"],
            "content_id": plan["content_id"],
            "chat_template_digest": plan["chat_template_digest"],
            "gpus": sorted(str(gpu) for gpu in plan["gpus"]),
            "secrets_hmac": secrets_hmac or None,
            "mounts": sorted([mount["target"], mount["read_only"]] for mount in plan["mounts"]),
            "network": plan["network"],
            "port": plan["port"],
            "shm_size_bytes": plan["shm_size_bytes"],
        }
    )


def seal(request: Any) -> tuple[dict[str, Any], list[str]]:
    """(sealed plan, what was missing); with allow_missing, as before a first deploy, the plan then stays unsealed."""
    problems = Problems()
    _SEAL(request, "seal", problems)
    problems.raise_if_any()
    plan = copy.deepcopy(plain(request["plan"]))
    if plan.get("schema") != SCHEMA:
        problems.add(
            f"seal.plan must be a plan of schema {SCHEMA}, but its schema is {describe(plan.get('schema'))}; "
            "give one of the plans that vllm_plan returned."
        )
        problems.raise_if_any()
    _check_plan(plan, problems)
    problems.raise_if_any()
    if request.get("facts"):
        check_facts(plain(request["facts"]), "seal.facts")
    for name in ("model_path", "chat_template_path"):
        fault = path_fault(request[name]) if request.get(name) else None
        if fault:
            found = quoted(request[name])
            problems.add(f"seal.{name} is {found}, which a unit cannot mount from: {fault}; correct it.")
    if plan.get("sealed"):
        problems.add(f"seal.plan of {plan.get('instance')} is sealed already; give the plan as vllm_plan returned it.")
    needed = ["image_digest", "content_id", "model_path"]
    if plan.get("secrets"):
        needed.append("secrets_hmac")
    made = plan.get("chat_template_overlay") is not None
    if made:
        needed += ["chat_template_digest", "chat_template_path"]
    missing = [name for name in needed if not request.get(name)]
    if missing and not request.get("allow_missing", False):
        problems.add(
            f"seal of {plan.get('instance')} lacks {', '.join(missing)}; fetch image and model (and write the secret) "
            "first, or set allow_missing in check mode."
        )
    hmac = request.get("secrets_hmac") or None
    if hmac and not plan.get("secrets"):
        problems.add(
            f"seal of {plan.get('instance')} has a secrets_hmac, but the plan has no secrets; "
            "set api_key of the instance or remove the secret."
        )
    planned = plan.get("chat_template_digest")
    template = request.get("chat_template_digest") or planned
    # One that is made of the model's own could not be known before the model was there.
    if template != planned and not made:
        problems.add(
            f"seal of {plan.get('instance')} has the chat template {template}, but the plan was made with {planned}; "
            "plan again."
        )
    problems.raise_if_any()
    plan["image_digest"] = plain(request.get("image_digest"))
    plan["content_id"] = plain(request.get("content_id"))
    for mount in plan["mounts"]:
        if mount["kind"] == "model":
            mount["source"] = plain(request.get("model_path"))
        elif mount["kind"] == "chat_template" and made:
            mount["source"] = plain(request.get("chat_template_path"))
    plan["chat_template_digest"] = plain(template)
    facts = request.get("facts")
    plan["engine"] = str(request.get("engine") or ENGINES[0])
    if facts and plan["gpus"]:
        plan["requires"] = units_needed(facts)
    plan["environment_fingerprint"] = environment_fingerprint(facts, plan["engine"]) if facts else None
    plan["launch_fingerprint"] = None if missing else launch_fingerprint(plan, hmac)
    plan["sealed"] = not missing
    return plan, missing
