# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans as a person reads them, and the lists that playbooks take from them. Private to socle.inference."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import MAP_FLAG
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import NOTE
from ansible_collections.socle.inference.plugins.module_utils._plan.models import THINKING_OFF

UNKNOWN_CAPACITY = "SOC-C11"
QUIET = "info"
"""The severity of what a plan itself has to say that is no warning."""

WEIGHTS_BY: Mapping[str, str] = {
    "boot": "as a start logged",
    "headers": "by their headers",
    "architecture": "by dimensions",
    "measured": "by the model file",
    "size": "by their size",
}
"""How the weights of a capacity are known (weights.Weights), for a person."""

WIDTH = 100
"""Columns of a table where nobody knows how wide the terminal is."""


def _value(value: Any) -> str:
    if value is True:
        return ""
    if isinstance(value, list):
        return " ".join(_value(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return str(value)


def _reason(source: Mapping[str, Any]) -> str:
    evidence = source.get("evidence") or {}
    text = evidence.get("source") or (json.dumps(evidence, sort_keys=True) if evidence else "")
    return f"{source['origin']}: {text}" if text else str(source["origin"])


def _rows(rows: Sequence[tuple[str, str, str]], width: int) -> list[str]:
    """Columns of name, value and note; a note that is too long for its line stands below it."""
    names = min(max((len(row[0]) for row in rows), default=0), 36)
    values = min(max((len(row[1]) for row in rows), default=0), 36)
    lines = []
    for name, value, note in rows:
        aligned = f"    {name:<{names}}  {value:<{values}}  {note}".rstrip()
        closer = f"    {name:<{names}}  {value}  {note}".rstrip()
        fitting = [line for line in (aligned, closer) if len(line) <= width]
        if fitting:
            lines.append(fitting[0])
        else:
            lines += [f"    {name:<{names}}  {value}".rstrip(), *_wrapped(note, width, " " * 8)]
    return lines


def _wrapped(text: str, width: int, first: str, indent: int = 8) -> list[str]:
    """*text* after *first*, in lines of *width*; a word that is longer, such as a path, stays whole to be copied.

    Not by textwrap, which takes a fifth of the time of a plan.
    """
    words = text.split()
    lines = [first + words[0]] if words else []
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * indent + word)
    return lines


def plan_table(plan: Mapping[str, Any], notes: bool = False, width: int = WIDTH) -> list[str]:
    """Lines for a terminal: what runs, each flag with its value, origin and evidence, and what to look at.

    What is only a note, a finding or a word of the plan itself, is counted, or shown with *notes*. Text is broken at
    *width* columns, commands and values are not.
    """
    model = plan["model"]
    image = plan.get("image_source") or {"origin": ""}
    lines = [
        f"{plan['host']} {plan['instance']}: {model['name']} on {plan['host_class']}, profile {plan['profile']}, "
        f"vLLM {plan['vllm_version']}",
        f"  model   {model['hub']}:{model['repo']}@{model['revision']} -> {model['container_path']}",
        *_image(plan["image"], f"({_reason(image)})" if image["origin"] else "", width),
        *_wrapped(
            f"{', '.join(plan['served_names'])} on port {plan['port']} ({plan['expose']}), "
            f"{'API key required' if plan['api_key_required'] else 'no API key'}, "
            f"context {plan['max_model_len'] or 'set by the engine'}",
            width,
            "  serves  ",
            10,
        ),
        f"  gpus    {', '.join(str(gpu) for gpu in plan['gpus']) or 'none'}",
        *_effort(plan),
        f"  limits  shared memory {plan['shm_size_bytes'] // 1024**2} MiB, start within {plan['start_timeout_s']} s",
        "  flags",
        *_rows(
            [
                (f"--{name}", _value(source["value"]), _reason(source))
                for name, source in sorted(plan["sources"].items(), key=lambda item: _position(plan["argv"], item[0]))
            ],
            width,
        ),
        "  environment",
        *_rows(
            [
                (name, value, _reason(plan["env_sources"][name]) if name in plan.get("env_sources", {}) else "")
                for name, value in plan["env"].items()
            ],
            width,
        ),
        *[f"    {secret['target']}  (secret {secret['name']})" for secret in plan["secrets"]],
        "  mounts",
        *_rows(
            [
                (
                    mount["target"],
                    "read only" if mount["read_only"] else "writable",
                    mount["source"] or "known once fetched",
                )
                for mount in plan["mounts"]
            ],
            width,
        ),
    ]
    findings = plan.get("findings") or []
    lines += _capacity(plan.get("capacity") or {}, plan["max_model_len"], findings, width)
    lines += ["  command", *_command(plan["argv"])]
    if plan.get("changes"):
        lines.append(f"  changed from {plan['document']}")
        for change in plan["changes"]:
            lines += _change(change, width)
    for name in ("launch_fingerprint", "environment_fingerprint"):
        if plan.get(name):
            lines.append(f"  {name}  {plan[name]}")
    loud = [warning for warning in plan["warnings"] if warning["severity"] != QUIET]
    if loud:
        lines.append("  warnings")
        for warning in loud:
            lines += _wrapped(f"{warning['severity']} {_told(warning)}", width, " " * 4)
    quiet = [
        *(_told(warning) for warning in plan["warnings"] if warning["severity"] == QUIET),
        *(f"{note['id']}: {note['sentence']} {note['remedy']}" for note in findings if note["severity"] == NOTE),
    ]
    return lines + _notes(quiet, notes, width)


def _told(warning: Mapping[str, Any]) -> str:
    return f"{warning['id']}: {warning['message']}; {warning['remedy']}"


def plan_tables(plans: Mapping[str, Mapping[str, Any]], notes: bool = False, width: int = WIDTH) -> str:
    """The tables of all plans of a host, one after the other, as one text."""
    return "\n\n".join("\n".join(plan_table(plans[name], notes, width)) for name in sorted(plans))


def _effort(plan: Mapping[str, Any]) -> list[str]:
    """What levels of effort become that clients may send besides the model's own, and by what means, in one line."""
    aliases = plan.get("effort_aliases")
    if not aliases:
        return []
    if plan.get("chat_template_overlay"):
        means = "by a chat template made of the model's own"
    elif MAP_FLAG in plan["sources"]:
        means = f"by --{MAP_FLAG}"
        # The flag takes fewer levels than a template, and vLLM itself turns thinking off.
        turned = plan["sources"][MAP_FLAG]["value"]
        if isinstance(turned, Mapping):
            kept = {alias: level for alias, level in aliases.items() if alias in turned or level == THINKING_OFF}
            aliases = {**kept, **turned}
    else:
        means = "where the instance's own chat template knows them"
    levels: dict[str, list[str]] = {}
    for alias, level in aliases.items():
        levels.setdefault("off" if level == THINKING_OFF else level, []).append(alias)
    shown = "; ".join(f"{', '.join(names)} -> {level}" for level, names in levels.items())
    return [f"  effort  {shown} ({means})"]


def _image(reference: str, reason: str, width: int) -> list[str]:
    line = f"  image   {reference}  {reason}".rstrip()
    return [line] if len(line) <= width else [f"  image   {reference}", *_wrapped(reason, width, " " * 10, 10)]


def _capacity(
    capacity: Mapping[str, Any], max_model_len: int | None, findings: Sequence[Mapping[str, Any]], width: int
) -> list[str]:
    """What the launch will hold, in a line of GiB and one of tokens, or why that is not known."""
    doubt = capacity.get("uncertainty_gib")
    known = WEIGHTS_BY.get(str(capacity.get("weights_source")))
    sizes = [
        text.format(capacity[key])
        for key, text in (
            ("weights_gib_per_gpu", "weights {:.2f} GiB" + (f" ({known})" if known else "")),
            ("kv_gib_per_gpu", "KV cache {:.2f} GiB" + (f" (give or take {doubt:.2f})" if doubt else "")),
            ("headroom_gib", "headroom {:.2f} GiB"),
        )
        if capacity.get(key) is not None
    ]
    held = [
        text.format(capacity[key])
        for key, text in (
            ("kv_tokens", "{:,} tokens"),
            ("concurrency_at_full_length", f"{{:.2f}} requests of {max_model_len or 0:,} at once"),
            ("smallest_cacheable_prefix_tokens", "prefixes from {:,} tokens on are cached"),
        )
        if capacity.get(key) is not None
    ]
    if not sizes and not held:
        unknown = [f"{told['sentence']} {told['remedy']}" for told in findings if told["id"] == UNKNOWN_CAPACITY]
        return [line for sentence in unknown for line in _wrapped(sentence, width, "  capacity  ")]
    calibrated = ["measured on this host class"] if capacity.get("calibrated") else []
    rows = [", ".join([*sizes, *calibrated]), ", ".join(held)]
    return ["  capacity", *[line for row in rows for line in _wrapped(row, width, " " * 4)]]


def _notes(found: Sequence[str], shown: bool, width: int) -> list[str]:
    if not found:
        return []
    if not shown:
        return [f"  notes   {len(found)}, shown with -e socle_notes=true or -v"]
    return ["  notes", *[line for note in found for line in _wrapped(note, width, " " * 4)]]


def _command(argv: Sequence[str]) -> list[str]:
    """The engine's words as one command for a shell, an option with its values on each line."""
    rows: list[list[str]] = [["vllm", "serve"]]
    for word in argv:
        if word.startswith("--"):
            rows.append([])
        rows[-1].append(shlex.quote(word))
    return [
        f"    {'  ' if number else ''}{' '.join(row)}" + " \\" * (row is not rows[-1])
        for number, row in enumerate(rows)
    ]


def _change(change: Mapping[str, Any], width: int) -> list[str]:
    """What the document says, what is planned instead, and why."""
    was = f"{change['option']} {change['document']}" if change.get("document") else change["option"]
    reason = _wrapped(f"{change['reason']} ({change['source']})", width, " " * 8)
    return [f"    {was} -> {change.get('planned') or 'left out'}", *reason]


def _position(argv: Sequence[str], name: str) -> tuple[int, str]:
    option = f"--{name}"
    for position, word in enumerate(argv):
        if word == option or word.startswith(option + "="):
            return position, name
    return len(argv), name


def _each(plans: Any) -> Iterable[Mapping[str, Any]]:
    """Plans by name, or a list of such maps (one for each host)."""
    for group in plans if isinstance(plans, list) else [plans]:
        yield from group.values()


def plan_models(plans: Any) -> list[dict[str, str]]:
    """Each model once, as role model_store takes it: what the store must hold."""
    found = {(str(plan["model"]["repo"]), str(plan["model"]["revision"])) for plan in _each(plans)}
    return [{"repo": repo, "revision": revision} for repo, revision in sorted(found)]


def plan_images(plans: Any) -> list[str]:
    """Each image once, sorted."""
    return sorted({str(plan["image"]) for plan in _each(plans)})


def plan_url(plan: Mapping[str, Any], location: str = "host", address: str | None = None) -> str:
    """The base URL: as the instance's own host reaches it, or for *location* "controller" at the host's *address*."""
    bound = str(plan["sources"]["host"]["value"])
    if location == "controller" and bound in ("127.0.0.1", "::1"):
        raise PlanError(
            f"{plan['instance']} listens on the loopback address of its host only, and the probe was asked to run on "
            f"the controller (probe_location); set probe_location to host, or expose of the instance to address."
        )
    if bound == "0.0.0.0":
        bound = str(address) if location == "controller" and address else "127.0.0.1"
    if ":" in bound:
        bound = f"[{bound}]"
    return f"http://{bound}:{plan['port']}"
