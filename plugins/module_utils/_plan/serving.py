# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serving files: the profiles of a model on a host class, each whole, with what it takes from another by ``extends``.

Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import check_env, check_flags
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    Problems,
    known_list,
    nearest,
    quoted,
    short,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.texts import (
    NAME,
    class_text,
    evidence_map,
    image_text,
    name_text,
    slo_map,
    version_text,
)

REQUIRED = ("image", "vllm_version", "shm_size_bytes", "start_timeout_s")
"""What a profile must have, of its own or from the one that it extends."""

SINGLE = (*REQUIRED, "cuda", "effort_aliases")
MAPS = ("flags", "env", "slo")
"""What a profile takes from the one that it extends: a single value where it has none, and a map key by key.

Description, document, changes and measured figures are of one profile alone.
"""


@dataclass(frozen=True)
class Profile:
    origin: str
    name: str
    image: str
    vllm_version: str
    flags: Mapping[str, Any]
    env: Mapping[str, Any]
    slo: Mapping[str, Any]
    evidence: Mapping[str, Any]
    shm_size_bytes: int
    start_timeout_s: int
    cuda: str | None = None
    description: str = ""
    document: str | None = None
    """The description of a real deployment that the profile reproduces, with the name of the variant there."""
    changes: tuple[Mapping[str, Any], ...] = ()
    """Where the profile departs from its document, and why."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """Figures that somebody measured with these settings, by name, each with its source."""
    effort_aliases: str | None = None
    """Name of the model's set of effort aliases that the chat template is to understand besides its own levels."""


@dataclass(frozen=True)
class Serving:
    origin: str
    gpus_per_instance: int
    recommended: str
    profiles: Mapping[str, Profile]


_CHANGE = schema.record(
    {
        "option": schema.text(r"\S+", "an option as the document writes it, without its value"),
        "document": schema.text(),
        "planned": schema.text(),
        "reason": schema.text(),
        "source": schema.text(),
    },
    ["option", "reason", "source"],
)

_PROFILE = schema.record(
    {
        "extends": schema.text(),
        "description": schema.text(),
        "document": schema.text(),
        "changes": schema.list_of(_CHANGE),
        "measured": schema.map_of(
            schema.record({"value": schema.number(), "source": schema.text()}, ["value", "source"]),
            r"[a-z][a-z0-9_]*",
            "lower-case words joined by underscores",
        ),
        "effort_aliases": schema.text(),
        "image": image_text,
        "vllm_version": version_text,
        "flags": check_flags,
        "env": check_env,
        "slo": slo_map,
        "evidence": evidence_map,
        "shm_size_bytes": schema.size("bytes"),
        "start_timeout_s": schema.whole(1),
        "cuda": schema.text(r"1[23]\.\d{1,3}", "the image's CUDA, 12 or 13, in quotes, such as '13.0'"),
    }
)

SERVING_FILE = schema.record(
    {
        "model": name_text,
        "host_class": class_text,
        "gpus_per_instance": schema.whole(0),
        "recommended": schema.text(),
        "changes": schema.list_of(_CHANGE),
        "evidence": evidence_map,
        "profiles": schema.map_of(_PROFILE, NAME, "a name of lower-case letters, digits, dots and dashes"),
    },
    ["model", "host_class", "gpus_per_instance", "recommended", "profiles"],
)


def serving_from(origin: str, content: Mapping[str, Any], name: str, models: Callable[[str], Model]) -> Serving:
    """The profiles of a file that SERVING_FILE found sound; *name* is what it is called. Raises PlanError."""
    problems = Problems()
    written = content["profiles"]
    if f"{content['model']}--{content['host_class']}" != name:
        problems.add(
            f"{origin} is for {quoted(content['model'])} on {quoted(content['host_class'])}, but its file is called "
            f"{quoted(name)}; make them agree."
        )
    if content["recommended"] not in written:
        problems.add(
            f"{origin}: recommended is {quoted(content['recommended'])}, which is none of its profiles "
            f"({known_list(written)}){nearest(content['recommended'], written) or '; correct it.'}"
        )
    whole: dict[str, dict[str, Any]] = {}
    unused = set(content.get("evidence", {}))
    for profile in written:
        where = f"{origin}: profiles.{short(profile)}"
        try:
            settings = _extended(where, profile, written)
        except PlanError as error:
            problems.take(error)
            continue
        whole[profile] = settings
        missing = [key for key in REQUIRED if key not in settings]
        if missing:
            problems.add(f"{where} lacks {', '.join(missing)}; add what is missing, or extend a profile that has it.")
        about = {*SINGLE, *(key for part in MAPS for key in settings.get(part, {}))}
        for key in written[profile].get("evidence", {}):
            if key not in about:
                problems.add(
                    f"{where}.evidence.{short(key)} is about nothing in that profile"
                    f"{nearest(key, about) or '; remove it.'}"
                )
        unused -= about
        if settings.get("changes") and not settings.get("document"):
            problems.add(f"{where} has changes, but names no document that they depart from; set document.")
        _check_aliases(where, settings.get("effort_aliases"), models, content["model"], problems)
    for key in sorted(unused):
        problems.add(f"{origin}: evidence.{short(key)} is about nothing in any of its profiles; remove it.")
    problems.raise_if_any()
    profiles = {profile: _profile(origin, profile, settings, content) for profile, settings in whole.items()}
    return Serving(origin, content["gpus_per_instance"], content["recommended"], profiles)


def _extended(where: str, profile: str, written: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The settings of a profile, with those that it takes from others; its own count. Raises PlanError."""
    line = [profile]
    while "extends" in written[line[-1]]:
        base = written[line[-1]]["extends"]
        if base not in written:
            others = [name for name in written if name != line[-1]]
            raise PlanError(
                f"{where}.extends is {quoted(base)}, which is none of the profiles of the file "
                f"({known_list(others)}){nearest(base, others) or '; correct it.'}"
            )
        if base in line:
            raise PlanError(
                f"{where} extends itself ({' -> '.join(map(short, [*line, base]))}); let one of them stand alone."
            )
        line.append(base)
    settings: dict[str, Any] = {}
    for name in reversed(line):
        settings = _over(settings, written[name])
    return settings


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    settings = {**{key: base[key] for key in SINGLE if key in base}, **own}
    for part in MAPS:
        settings[part] = {**base.get(part, {}), **own.get(part, {})}
    # What was a reason for the other's value is none for another value.
    changed = {key for part in MAPS for key in own.get(part, {})} | {key for key in SINGLE if key in own}
    kept = {key: value for key, value in base.get("evidence", {}).items() if key not in changed}
    settings["evidence"] = {**kept, **own.get("evidence", {})}
    return settings


def _check_aliases(
    where: str, wanted: str | None, models: Callable[[str], Model], name: str, problems: Problems
) -> None:
    """A profile may ask only for a set of effort aliases that its model has."""
    if wanted is None:
        return
    try:
        model = models(name)
    except PlanError as error:
        problems.take(error)
        return
    known = model.effort.aliases
    if wanted not in known:
        problems.add(
            f"{where}.effort_aliases is {quoted(wanted)}, which {model.origin} does not have "
            f"(it has: {known_list(known)}){nearest(wanted, known) or '; correct it.'}"
        )


def _profile(origin: str, name: str, settings: Mapping[str, Any], content: Mapping[str, Any]) -> Profile:
    return Profile(
        f"{origin} ({short(name)})",
        name,
        settings["image"],
        settings["vllm_version"],
        settings["flags"],
        settings["env"],
        settings["slo"],
        # What several profiles choose alike is explained once; more of it than a profile has does no harm.
        {**content.get("evidence", {}), **settings["evidence"]},
        settings["shm_size_bytes"],
        settings["start_timeout_s"],
        settings.get("cuda"),
        settings.get("description", ""),
        settings.get("document"),
        (*content.get("changes", []), *settings.get("changes", [])) if settings.get("document") else (),
        settings.get("measured", {}),
        settings.get("effort_aliases"),
    )
