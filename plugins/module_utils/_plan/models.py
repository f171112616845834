# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model file says: weights at a hub, their architecture and limits, and how they want to be asked.

Private to socle.inference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.architecture import ARCHITECTURE, architecture
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import check_flags
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    Problems,
    known_list,
    nearest,
    quoted,
    short,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.texts import (
    evidence_map,
    name_text,
    served_text,
    version_text,
)

CAPABILITIES = ("chat", "tools", "thinking", "vision", "video")
QUANTIZATIONS = ("none", "fp8", "nvfp4", "mxfp4", "awq", "gptq", "int8")
"""What the weights are stored in, beyond the dtype of the architecture."""

THINKING_OFF = "none"
"""The effort that stands for no thinking at all; vLLM knows it since 0.23.0, and no template needs to."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
"""Levels that clients ask for. vLLM itself takes all but ultra, which can only come by chat_template_kwargs."""


@dataclass(frozen=True)
class Parser:
    """A parser of vLLM that understands the model, and the range of versions in which that is known."""

    name: str
    since: str | None = None
    until: str | None = None

    def fits(self, version: str) -> bool:
        own = _numbers(version)
        return (self.since is None or _numbers(self.since) <= own) and (
            self.until is None or own <= _numbers(self.until)
        )


@dataclass(frozen=True)
class Context:
    """Lengths in tokens.

    *native* is what the model was made for, *limit* what it can take without a changed position encoding, beyond which
    its output is not a number. *extension* says how to go further.
    """

    native: int | None = None
    limit: int | None = None
    extension: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Effort:
    """Levels of thinking that the chat template knows, and sets of aliases for those that clients send besides."""

    levels: tuple[str, ...] = ()
    default: str | None = None
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """Weights at a revision, with their facts. What a file leaves out is not known."""

    origin: str
    name: str
    hub: str
    repo: str
    revision: str
    served_name: str
    flags: Mapping[str, Any]
    evidence: Mapping[str, Any]
    description: str = ""
    family: str | None = None
    size_bytes: int | None = None
    architecture: Mapping[str, Any] = field(default_factory=dict)
    context: Context = field(default_factory=Context)
    reasoning_parsers: tuple[Parser, ...] = ()
    tool_parsers: tuple[Parser, ...] = ()
    sampling: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    template_defaults: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    capabilities: tuple[str, ...] = ()
    quantization: str | None = None
    trust_remote_code: bool | None = None

    @property
    def container_path(self) -> str:
        return "/models/" + self.repo.rsplit("/", 1)[-1]

    @property
    def max_position_embeddings(self) -> int | None:
        """The longest context without a changed position encoding."""
        return self.context.limit or self.architecture.get("max_position_embeddings") or self.context.native

    def reasoning_parser(self, version: str) -> str | None:
        """The preferred reasoning parser in this version of vLLM; None where none is known."""
        return next((parser.name for parser in self.reasoning_parsers if parser.fits(version)), None)

    def tool_parser_names(self, version: str) -> tuple[str, ...]:
        """Tool parsers that understand the model in this version of vLLM, the preferred one first."""
        return tuple(parser.name for parser in self.tool_parsers if parser.fits(version))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]


_PARSERS = schema.list_of(
    schema.record({"name": schema.text(), "since": version_text, "until": version_text}, ["name"]), filled=True
)

_SAMPLING = schema.record(
    {
        "temperature": schema.number(),
        "top_p": schema.number(),
        "top_k": schema.whole(-1),
        "min_p": schema.number(),
        "presence_penalty": schema.number(),
        "frequency_penalty": schema.number(),
        "repetition_penalty": schema.number(),
        "chat_template_kwargs": schema.map_of(schema.anything()),
    }
)

MODEL = schema.record(
    {
        "name": name_text,
        "description": schema.text(),
        "family": schema.text(),
        "hub": schema.choice("modelscope"),
        "repo": schema.text(
            r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", "a repository written as owner/name, of letters, digits and . _ -"
        ),
        "revision": schema.text(
            r"[A-Za-z0-9._/-]+", "a branch, tag or commit, of letters, digits and . _ / -, in quotes if it is a number"
        ),
        "served_name": served_text,
        "size_bytes": schema.size("bytes"),
        "architecture": ARCHITECTURE,
        "context": schema.record(
            {
                "native": schema.whole(1),
                "limit_without_rope_override": schema.whole(1),
                "extension": schema.record(
                    {
                        "method": schema.choice("yarn"),
                        "limit": schema.whole(1),
                        "rope_parameters": schema.map_of(schema.anything()),
                    },
                    ["method"],
                ),
            }
        ),
        "parsers": schema.record({"reasoning": _PARSERS, "tool": _PARSERS}),
        "sampling": schema.map_of(_SAMPLING),
        "template_defaults": schema.map_of(schema.anything()),
        "effort": schema.record(
            {
                "levels": schema.list_of(schema.choice(*EFFORTS), filled=True),
                "default": schema.choice(*EFFORTS),
                "aliases": schema.map_of(schema.map_of(schema.choice(*EFFORTS))),
            },
            ["levels"],
        ),
        "capabilities": schema.list_of(schema.choice(*CAPABILITIES)),
        "quantization": schema.choice(*QUANTIZATIONS),
        "trust_remote_code": schema.truth(),
        "flags": check_flags,
        "evidence": evidence_map,
    },
    ["name", "hub", "repo", "revision"],
)
"""The whole model file; what belongs together is checked by check_model."""


def leaves(content: Any, path: str = "") -> Iterator[str]:
    """Dotted names of the figures in a part of a model file: "architecture.layers". Lists are one figure."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path


def check_model(origin: str, content: Mapping[str, Any]) -> None:
    """Raises PlanError for keys of a sound model file that do not go together."""
    problems = Problems()
    try:
        architecture(content.get("architecture", {}))
    except PlanError as error:
        problems.add(f"{origin}: {error.message}")
    context = content.get("context", {})
    native, limit = context.get("native"), context.get("limit_without_rope_override")
    if native is not None and limit is not None and limit < native:
        problems.add(
            f"{origin}: context.limit_without_rope_override is {limit}, less than context.native, {native}; correct it."
        )
    positions = content.get("architecture", {}).get("max_position_embeddings")
    if positions is not None and limit is not None and positions != limit:
        problems.add(
            f"{origin}: architecture.max_position_embeddings is {positions}, but context.limit_without_rope_override "
            f"is {limit}, which it is by definition; make them agree."
        )
    for kind, parsers in content.get("parsers", {}).items():
        for position, parser in enumerate(parsers):
            since, until = parser.get("since"), parser.get("until")
            if since is not None and until is not None and _numbers(until) < _numbers(since):
                problems.add(
                    f"{origin}: parsers.{kind}[{position}] is known until {until}, before it is known since {since}; "
                    "correct it."
                )
    _check_effort(origin, content.get("effort", {}), problems)
    known = {path for part in content for path in _prefixes(content[part], part)} | set(content.get("flags", {}))
    for key in content.get("evidence", {}):
        if key not in known:
            problems.add(
                f"{origin}: evidence.{short(key)} is about nothing in that file{nearest(key, known) or '; remove it.'}"
            )
    problems.raise_if_any()


def _check_effort(origin: str, effort: Mapping[str, Any], problems: Problems) -> None:
    levels = effort.get("levels", [])
    default = effort.get("default")
    if default is not None and default not in levels:
        problems.add(f"{origin}: effort.default is {quoted(default)}, which is none of effort.levels; correct it.")
    targets = [*levels, THINKING_OFF]
    for name, aliases in effort.get("aliases", {}).items():
        for level, target in aliases.items():
            where = f"{origin}: effort.aliases.{short(name)}.{short(level)}"
            if level not in EFFORTS:
                problems.add(
                    f"{where} is no effort that a client asks for (known: {known_list(EFFORTS)})"
                    f"{nearest(level, EFFORTS) or '; correct it.'}"
                )
            elif level in levels:
                problems.add(f"{where} gives another meaning to a level that the template knows; remove it.")
            if target not in targets:
                problems.add(f"{where} is {quoted(target)}, but must be one of {known_list(targets)}; correct it.")


def _prefixes(content: Any, path: str) -> Iterator[str]:
    """*path* and all dotted names below it, figures and groups alike."""
    yield path
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _prefixes(value, f"{path}.{key}")


def model_from(origin: str, content: Mapping[str, Any]) -> Model:
    """A Model of a checked file."""
    context = content.get("context", {})
    effort = content.get("effort", {})
    parsers = content.get("parsers", {})
    return Model(
        origin,
        content["name"],
        content["hub"],
        content["repo"],
        content["revision"],
        content.get("served_name", content["name"]),
        content.get("flags", {}),
        content.get("evidence", {}),
        content.get("description", ""),
        content.get("family"),
        content.get("size_bytes"),
        content.get("architecture", {}),
        Context(context.get("native"), context.get("limit_without_rope_override"), context.get("extension", {})),
        tuple(Parser(**parser) for parser in parsers.get("reasoning", [])),
        tuple(Parser(**parser) for parser in parsers.get("tool", [])),
        content.get("sampling", {}),
        content.get("template_defaults", {}),
        Effort(tuple(effort.get("levels", [])), effort.get("default"), effort.get("aliases", {})),
        tuple(content.get("capabilities", [])),
        content.get("quantization"),
        content.get("trust_remote_code"),
    )
