# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From instances, data and facts to the plans of a host, without reading a file. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import (
    ClassResult,
    Override,
    find_override,
    resolve_class,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.checks import Knowledge
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue, HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.draft import Draft
from ansible_collections.socle.inference.plugins.module_utils._plan.host_gpus import assign_gpus
from ansible_collections.socle.inference.plugins.module_utils._plan.instances import (
    DEFAULT_PORT,
    check_instances,
    check_layers,
    check_variant,
    withhold_secrets,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request, TemplateFinder
from ansible_collections.socle.inference.plugins.module_utils._plan.rules import idle
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems


@dataclass(frozen=True)
class Resolution:
    """The plans, and the chat templates that must lie on the host before an instance starts."""

    host_class: str | None
    plans: dict[str, dict[str, Any]]
    templates: list[dict[str, Any]]


def resolve(
    request: Request, catalogue: Catalogue, find_template: TemplateFinder, knowledge: Knowledge | None = None
) -> Resolution:
    """Plans of all instances of a host; raises one PlanError that lists everything wrong.

    Without *knowledge* flags are not compared with the engine's, no rule is asked, and no capacity is told.
    """
    problems = Problems()
    raw = withhold_secrets(request.instances)
    if raw is None or raw == {}:
        return Resolution(None, {}, [])
    instances = check_instances(raw, problems)
    layers = check_layers(request.layers, catalogue, problems)
    variant = check_variant(request.variant, problems)
    host_class, found = _host_class(request, catalogue, problems)
    gpus = assign_gpus(instances, host_class, found, request, problems) if found else {}
    _check_ports(instances, problems)
    plans: dict[str, dict[str, Any]] = {}
    templates: list[dict[str, Any]] = []
    passed_over: set[str] = set()
    for name in sorted(instances):
        try:
            own = variant if name in variant.get("instances", [name]) else {}
            draft = Draft(request, catalogue, host_class, layers, own, name, instances[name], gpus.get(name))
            plan = draft.build(find_template, problems, knowledge)
        except PlanError as error:
            problems.take(error)
            continue
        plan["warnings"] = [*(found.warnings if found else []), *plan["warnings"]]
        plans[name] = plain(plan)
        passed_over |= draft.passed_over
        if draft.template:
            templates.append(
                {
                    "instance": name,
                    "source": draft.template.source,
                    "target": draft.template_path(),
                    "sha256": draft.template.sha256,
                }
            )
    problems.raise_if_any()
    unneeded = idle(knowledge.rules.ignored, passed_over, request.host) if knowledge else None
    if unneeded:
        for plan in plans.values():
            plan["findings"].append(unneeded.as_dict())
    return Resolution(host_class.name, plans, templates)


def _host_class(request: Request, catalogue: Catalogue, problems: Problems) -> tuple[HostClass, ClassResult | None]:
    """The class, and how it was found: None where the hardware contradicts it, as *problems* then tell."""
    classes = catalogue.host_classes()
    override: Override | None = None
    try:
        override = find_override(request.host_class, request.group_names, classes, request.host)
        found = resolve_class(request.facts, classes, override, request.host)
        return classes[found.name], found
    except PlanError as error:
        problems.take(error)
    if override is not None:
        try:
            # With the class that was meant, everything else that is wrong can be told in the same run.
            return classes[override.name], None
        except PlanError as error:
            problems.take(error)
    problems.raise_if_any()
    raise AssertionError("a missing class was reported")


def _check_ports(instances: Mapping[str, Mapping[str, Any]], problems: Problems) -> None:
    owners: dict[int, str] = {}
    for name in sorted(instances):
        port = instances[name].get("port", DEFAULT_PORT)
        if port in owners:
            problems.add(
                f"port {port} is used by two instances, {owners[port]} and {name}; give one of them another port."
            )
        owners.setdefault(port, name)
