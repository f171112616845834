# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data files (host classes, models, serving profiles, engine defaults), checked when read.

Reading is injected: a Reader lists and reads documents by folder and name. Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import check_env, check_flags
from ansible_collections.socle.inference.plugins.module_utils._plan.models import MODEL, Model, check_model, model_from
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    Check,
    Problems,
    nearest,
    quoted,
    short,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.serving import SERVING_FILE, Serving, serving_from
from ansible_collections.socle.inference.plugins.module_utils._plan.texts import class_text, evidence_map

CLASSES = "profiles/host_classes"
MODELS = "profiles/models"
SERVING = "profiles/serving"
ENGINE = "profiles"

GPU_KEYS = (
    "family",
    "architecture",
    "compute_capability",
    "pci_ids",
    "products",
    "memory_mib",
    "link",
    "fp8",
    "fp4",
    "driver",
)
"""What a class of kind gpu must say; the rest of its keys has defaults."""

LINKS = ("nvlink", "nvlink_optional", "pcie")
"""How the GPUs of a class reach each other: always by NVLink, by NVLink where there are bridges, never by NVLink."""


Made = TypeVar("Made")


class Reader(Protocol):
    """Where data files come from."""

    def names(self, folder: str) -> list[str]:
        """Names of the documents in *folder*, without their suffix, sorted."""

    def read(self, folder: str, name: str) -> tuple[str, Any]:
        """(file name for a person, content) of one document that names() lists; raises PlanError if it is no YAML."""

    def made(self, folder: str, name: str, make: Callable[[str, Any], Made]) -> Made:
        """What *make* makes of both; what it made before may come again, so that nobody may change it."""


@dataclass(frozen=True)
class HostClass:
    """A kind of host. What follows ``evidence`` is of kind gpu alone, and empty for a processor."""

    origin: str
    name: str
    kind: str
    flags: Mapping[str, Any]
    env: Mapping[str, Any]
    evidence: Mapping[str, Any]
    description: str = ""
    family: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    pci_ids: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    memory_mib: int | None = None
    link: str | None = None
    nvlink_expected: str | None = None
    nvswitch: str = "never"
    fp8: bool = False
    fp4: bool = False
    peer_to_peer: bool = True
    power_default_w: float | None = None
    driver: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    origin: str
    cache_root: str
    env: Mapping[str, Any]
    evidence: Mapping[str, Any]


_CLASS = schema.record(
    {
        "name": class_text,
        "description": schema.text(),
        "kind": schema.choice("cpu", "gpu"),
        "family": class_text,
        "architecture": schema.text(r"[a-z]+( [a-z]+)*", "the architecture in lower case, such as 'hopper'"),
        "compute_capability": schema.text(r"\d{1,2}\.\d", "a compute capability in quotes, such as '9.0'"),
        "pci_ids": schema.list_of(
            schema.text(r"10de:[0-9a-f]{4}", "a PCI id in lower case and quotes, such as '10de:2335'"), filled=True
        ),
        "products": schema.list_of(schema.text(r"\S(.*\S)?", "a product as nvidia-smi names it"), filled=True),
        "memory_mib": schema.size("MiB"),
        "link": schema.choice(*LINKS),
        "nvlink_expected": schema.nullable(schema.text(r"NV[1-9]\d?", "a link such as 'NV12'")),
        "nvswitch": schema.choice("possible", "never"),
        "fp8": schema.truth(),
        "fp4": schema.truth(),
        "peer_to_peer": schema.truth(),
        "power_default_w": schema.nullable(schema.number()),
        "driver": schema.record(
            {
                "flavour": schema.choice("open", "proprietary"),
                "minimum": schema.text(r"\d{3}(\.\d{1,9}){0,4}", "a driver version in quotes, such as '580'"),
            },
            ["flavour", "minimum"],
        ),
        "flags": check_flags,
        "env": check_env,
        "evidence": evidence_map,
    },
    ["name", "kind"],
)

_OF_EVERY_KIND = frozenset({"name", "description", "kind", "flags", "env", "evidence"})


def _check_kind(origin: str, content: Mapping[str, Any]) -> None:
    """Raises PlanError for keys of a sound class file that do not go together."""
    problems = Problems()
    own = [key for key in content if key not in _OF_EVERY_KIND]
    if content["kind"] == "gpu":
        missing = [key for key in GPU_KEYS if key not in content]
        if missing:
            problems.add(f"{origin} is of kind gpu and lacks {', '.join(missing)}; add what is missing.")
    elif own:
        problems.add(f"{origin} is of kind {content['kind']} and has {', '.join(own)}, as only GPUs do; remove them.")
    if content.get("link") == "pcie" and content.get("nvlink_expected"):
        problems.add(
            f"{origin}: nvlink_expected is {quoted(content['nvlink_expected'])}, but link is pcie; "
            "make it nvlink_optional, or nvlink_expected null."
        )
    known = {*content, *content.get("flags", {}), *content.get("env", {})}
    for key in content.get("evidence", {}):
        if key not in known:
            problems.add(
                f"{origin}: evidence.{short(key)} is about nothing in that class{nearest(key, known) or '; remove it.'}"
            )
    problems.raise_if_any()


_ENGINE = schema.record(
    {
        "cache_root": schema.text(
            r"/[A-Za-z0-9._/-]+", "an absolute path of letters, digits and . _ / -, without spaces"
        ),
        "env": check_env,
        "evidence": evidence_map,
    },
    ["cache_root", "env"],
)


class _Classes(Mapping[str, HostClass]):
    """The classes of a catalogue, read on demand."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._names = catalogue.class_names()

    def __getitem__(self, name: str) -> HostClass:
        if name not in self._names:
            raise KeyError(name)
        return self._catalogue.host_class(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _sound(check: Check, origin: str, content: Any) -> dict[str, Any]:
    """The content of a document; raises PlanError, with the file in each sentence, for what *check* finds wrong."""
    problems = Problems()
    check(content, f"{origin}:", problems)
    prefix = f"{origin}:."
    problems.sentences = [
        f"{origin}: {sentence[len(prefix) :]}" if sentence.startswith(prefix) else sentence
        for sentence in problems.sentences
    ]
    problems.raise_if_any()
    found: dict[str, Any] = content
    return found


def _class_from(origin: str, content: Any) -> HostClass:
    content = _sound(_CLASS, origin, content)
    _check_kind(origin, content)
    return HostClass(
        origin,
        content["name"],
        content["kind"],
        content.get("flags", {}),
        content.get("env", {}),
        content.get("evidence", {}),
        content.get("description", ""),
        content.get("family"),
        content.get("architecture"),
        content.get("compute_capability"),
        tuple(content.get("pci_ids", [])),
        tuple(content.get("products", [])),
        content.get("memory_mib"),
        content.get("link"),
        content.get("nvlink_expected"),
        content.get("nvswitch", "never"),
        content.get("fp8", False),
        content.get("fp4", False),
        content.get("peer_to_peer", True),
        content.get("power_default_w"),
        content.get("driver", {}),
    )


def _model_from(origin: str, content: Any) -> Model:
    content = _sound(MODEL, origin, content)
    check_model(origin, content)
    return model_from(origin, content)


def _serving_content(origin: str, content: Any) -> tuple[str, dict[str, Any]]:
    return origin, _sound(SERVING_FILE, origin, content)


def _engine_from(origin: str, content: Any) -> Engine:
    content = _sound(_ENGINE, origin, content)
    return Engine(origin, content["cache_root"], content["env"], content.get("evidence", {}))


class Catalogue:
    """The data as typed objects; each document is read and checked once, when it is first asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._names: dict[str, list[str]] = {}
        self._made: dict[tuple[str, str], Any] = {}

    def class_names(self) -> list[str]:
        return self._names_in(CLASSES)

    def model_names(self) -> list[str]:
        return self._names_in(MODELS)

    def serving_names(self) -> list[str]:
        return self._names_in(SERVING)

    def host_class(self, name: str) -> HostClass:
        found: HostClass = self._document(CLASSES, name, _class_from)
        _check_name(found, name)
        return found

    def host_classes(self) -> Mapping[str, HostClass]:
        """All classes by name; each file is read when its class is asked for, so that names alone cost nothing."""
        return _Classes(self)

    def model(self, name: str) -> Model:
        found: Model = self._document(MODELS, name, _model_from)
        _check_name(found, name)
        return found

    def serving(self, model: str, host_class: str) -> Serving:
        name = f"{model}--{host_class}"
        origin, content = self._document(SERVING, name, _serving_content)
        return serving_from(origin, content, name, self.model)

    def engine(self) -> Engine:
        found: Engine = self._document(ENGINE, "engine", _engine_from)
        return found

    def read_all(self) -> None:
        """Read and check everything; raises PlanError for the first file that is wrong."""
        self.engine()
        for name in self.class_names():
            self.host_class(name)
        for name in self.model_names():
            self.model(name)
        for name in self.serving_names():
            self.serving(*name.split("--", 1))

    def _names_in(self, folder: str) -> list[str]:
        if folder not in self._names:
            self._names[folder] = self._reader.names(folder)
        return self._names[folder]

    def _document(self, folder: str, name: str, make: Callable[[str, Any], Any]) -> Any:
        key = (folder, name)
        if key not in self._made:
            if name not in self._names_in(folder):
                raise PlanError(f"{folder}/{name}.yml was looked for in the data folders and not found; add it.")
            self._made[key] = self._reader.made(folder, name, make)
        return self._made[key]


def _check_name(found: HostClass | Model, name: str) -> None:
    if found.name != name:
        raise PlanError(
            f"{found.origin}: name is {quoted(found.name)}, but the file is called {quoted(name)}; make them agree."
        )
