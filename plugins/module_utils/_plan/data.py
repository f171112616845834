# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data files (host classes, models, serving profiles, engine defaults), checked when read.

Reading is injected: a Reader lists and reads documents by folder and name. Private to socle.inference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import check_env, check_flags
from ansible_collections.socle.inference.plugins.module_utils._plan.models import MODEL, Model, check_model, model_from
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Check, Problems, nearest
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


class Reader(Protocol):
    """Where data files come from."""

    def names(self, folder: str) -> list[str]:
        """Names of the documents in *folder*, without their suffix, sorted."""

    def read(self, folder: str, name: str) -> tuple[str, Any]:
        """(file name for a person, content) of one document that names() lists; raises PlanError if it is no YAML."""


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
        "memory_mib": schema.whole(1),
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
                "minimum": schema.text(r"\d{3}(\.\d+)*", "a driver version in quotes, such as '580'"),
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
            f"{origin}: nvlink_expected is {content['nvlink_expected']!r}, but link is pcie; "
            "make it nvlink_optional, or nvlink_expected null."
        )
    known = {*content, *content.get("flags", {}), *content.get("env", {})}
    for key in content.get("evidence", {}):
        if key not in known:
            problems.add(
                f"{origin}: evidence.{key} is about nothing in that class{nearest(key, known) or '; remove it.'}"
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


class Catalogue:
    """The data as typed objects; each document is read and checked once, when it is first asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._documents: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}

    def class_names(self) -> list[str]:
        return self._reader.names(CLASSES)

    def model_names(self) -> list[str]:
        return self._reader.names(MODELS)

    def serving_names(self) -> list[str]:
        return self._reader.names(SERVING)

    def host_class(self, name: str) -> HostClass:
        origin, content = self._document(CLASSES, name, _CLASS, content_name=name)
        _check_kind(origin, content)
        return HostClass(
            origin,
            name,
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

    def host_classes(self) -> Mapping[str, HostClass]:
        """All classes by name; each file is read when its class is asked for, so that names alone cost nothing."""
        return _Classes(self)

    def model(self, name: str) -> Model:
        origin, content = self._document(MODELS, name, MODEL, content_name=name)
        check_model(origin, content)
        return model_from(origin, content)

    def serving(self, model: str, host_class: str) -> Serving:
        name = f"{model}--{host_class}"
        origin, content = self._document(SERVING, name, SERVING_FILE)
        return serving_from(origin, content, name, self.model)

    def engine(self) -> Engine:
        origin, content = self._document(ENGINE, "engine", _ENGINE)
        return Engine(origin, content["cache_root"], content["env"], content.get("evidence", {}))

    def _document(
        self, folder: str, name: str, check: Check, content_name: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        key = (folder, name)
        if key not in self._documents:
            if name not in self._reader.names(folder):
                raise PlanError(f"{folder}/{name}.yml was looked for in the data folders and not found; add it.")
            origin, content = self._reader.read(folder, name)
            problems = Problems()
            check(content, f"{origin}:", problems)
            prefix = f"{origin}:."
            problems.sentences = [
                f"{origin}: {sentence[len(prefix) :]}" if sentence.startswith(prefix) else sentence
                for sentence in problems.sentences
            ]
            problems.raise_if_any()
            if content_name is not None and content["name"] != content_name:
                raise PlanError(
                    f"{origin}: name is {content['name']!r}, but the file is called {content_name!r}; make them agree."
                )
            self._documents[key] = (origin, content)
        return self._documents[key]
