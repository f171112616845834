# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From instances, data and facts to plans. Nothing here reads a file or a host. Private to socle.inference."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import (
    CPU,
    ClassResult,
    Override,
    find_override,
    resolve_class,
)
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import warning as _warning
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.canonical import plain
from ansible_collections.socle.inference.plugins.module_utils._plan.checks import Knowledge, Subject, Verdict, check
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue, Engine, HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.effort import FLAG, MAP_FLAG, effort_map, means
from ansible_collections.socle.inference.plugins.module_utils._plan.finding import (
    ERROR,
    IGNORED_VARIABLE,
    WARNING,
    Finding,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import parse_size, render_env, render_flag
from ansible_collections.socle.inference.plugins.module_utils._plan.instances import (
    DEFAULT_PORT,
    check_instances,
    check_layers,
    check_variant,
    withhold_secrets,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.layers import Layer, Setting, merge
from ansible_collections.socle.inference.plugins.module_utils._plan.measured import gpu_as_plan
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems, known_list, nearest
from ansible_collections.socle.inference.plugins.module_utils._plan.serving import Profile

SCHEMA = "socle.plan/1"
CHAT_TEMPLATE_TARGET = "/etc/socle/chat_template.jinja"
API_KEY_TARGET = "VLLM_API_KEY"
ANY_ADDRESS = "0.0.0.0"
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)(?![^+.-])")
"""How a tag or version begins that names a release of vLLM, such as v0.26.0-cu129."""
OWN_FLAGS = ("host", "port", "served-model-name")
"""Flags that the plan makes of other keys of an instance."""

FRONT_FLAGS = ("host", "port", "served-model-name", "max-model-len")
"""These come first, in this order; the rest follows by name."""


def _release(text: str) -> str | None:
    """The three numbers of a release that *text*, a version or the tag of an image, begins with, if it does."""
    found = _RELEASE.match(text)
    return found.group(1) if found else None


@dataclass(frozen=True)
class Template:
    """A chat template as found on the controller."""

    source: str
    sha256: str


@dataclass(frozen=True)
class Request:
    """Everything that one call is about: one host with all its instances."""

    host: str
    instances: Any
    facts: Mapping[str, Any] | None = None
    host_class: str | None = None
    group_names: Sequence[str] = ()
    layers: Any = field(default_factory=dict)
    variant: Any = None
    state_dir: str = "/var/lib/socle"
    address: str | None = None
    calibrations: Sequence[Any] = ()
    """Contents of calibrations on record: those of this host first, then the newest first."""


@dataclass(frozen=True)
class Resolution:
    """The plans, and the chat templates that must lie on the host before an instance starts."""

    host_class: str | None
    plans: dict[str, dict[str, Any]]
    templates: list[dict[str, Any]]


TemplateFinder = Callable[[str], Template]


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
    gpus = _assign_gpus(instances, host_class, found, request, problems) if found else {}
    _check_ports(instances, problems)
    plans: dict[str, dict[str, Any]] = {}
    templates: list[dict[str, Any]] = []
    for name in sorted(instances):
        try:
            own = variant if name in variant.get("instances", [name]) else {}
            draft = _Draft(request, catalogue, host_class, layers, own, name, instances[name], gpus.get(name))
            plan = draft.build(find_template, problems, knowledge)
        except PlanError as error:
            problems.take(error)
            continue
        plan["warnings"] = [*(found.warnings if found else []), *plan["warnings"]]
        plans[name] = plain(plan)
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


def _shown(gpu: Mapping[str, Any]) -> bool:
    """Whether the driver shows a GPU; facts written by hand may say so by its index alone."""
    by_driver = gpu.get("by_driver")
    return gpu.get("index") is not None if by_driver is None else bool(by_driver)


def _places(gpus: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(gpu.get("pci_bus_id")) for gpu in gpus)


class _HostGpus:
    """The GPUs of a host as an instance may name them, with a sentence for each that it cannot have."""

    def __init__(self, host_class: HostClass, found: ClassResult, request: Request) -> None:
        facts = request.facts or {}
        gpus: list[Mapping[str, Any]] = list(facts.get("gpus") or [])
        own = [gpus[position] for position in found.members]
        self.host = request.host
        self.host_class = host_class
        self.driver: Mapping[str, Any] = facts.get("driver") or {}
        self.shown = [gpu for gpu in own if _shown(gpu)]
        self.lost = [gpu for gpu in own if not _shown(gpu)]
        self.foreign = [gpu for position, gpu in enumerate(gpus) if position not in found.members and _shown(gpu)]

    @property
    def indices(self) -> list[int]:
        return [gpu["index"] for gpu in self.shown if gpu.get("index") is not None]

    def find(self, name: Any) -> Mapping[str, Any] | None:
        return _named(self.shown, name)

    def without_driver(self) -> str:
        """Why none of the GPUs can be used yet."""
        if self.driver.get("nouveau"):
            reason = "nouveau is loaded instead of NVIDIA's driver"
        elif not self.driver.get("version"):
            reason = "no NVIDIA driver is loaded"
        elif self.host_class.architecture == "blackwell" and self.driver.get("flavour") == "proprietary":
            reason = "the proprietary kernel modules are loaded, and Blackwell needs the open ones"
        else:
            reason = str(self.driver.get("error") or f"driver {self.driver['version']} is loaded")
        return (
            f"no GPU of {self.host} is shown by its driver, though PCI shows {_places(self.lost)} ({reason}); "
            "run provision.yml, and look into the kernel's log for NVRM if that does not help."
        )

    def all_but_lost(self, where: str) -> str:
        return (
            f"{where} is not set, which means all {len(self.shown) + len(self.lost)} GPUs of {self.host}, but the "
            f"driver does not show the one at {_places(self.lost)}, so that it has fallen off the bus; reboot the host "
            "and look into the kernel's log for Xid 79, or name the other GPUs in gpus."
        )

    def missing(self, where: str, name: Any) -> str:
        known = ", ".join(str(index) for index in self.indices) or "none"
        foreign = _named(self.foreign, name)
        if foreign is not None:
            return (
                f"{where} names GPU {name} of {self.host} ({foreign.get('product') or foreign.get('pci_device_id')}), "
                f"which is not of class {self.host_class.name} (those are {known}); name GPUs of the class."
            )
        lost = f", and has lost the one at {_places(self.lost)}" if self.lost else ""
        return (
            f"{where} names GPU {name}, which {self.host} does not have (its driver shows {known}{lost}); correct it."
        )


def _named(gpus: Sequence[Mapping[str, Any]], name: Any) -> Mapping[str, Any] | None:
    key = "uuid" if isinstance(name, str) else "index"
    return next((gpu for gpu in gpus if gpu.get(key) is not None and gpu[key] == name), None)


def _assign_gpus(
    instances: Mapping[str, Mapping[str, Any]],
    host_class: HostClass,
    found: ClassResult,
    request: Request,
    problems: Problems,
) -> dict[str, list[Any]]:
    """GPUs of each instance as written, or all of the host's."""
    assigned: dict[str, list[Any]] = {}
    owners: dict[Any, str] = {}
    shared: dict[tuple[str, str], list[str]] = {}
    gpus = _HostGpus(host_class, found, request)
    for name in sorted(instances):
        wanted = instances[name].get("gpus")
        where = f"vllm_instances.{name}.gpus"
        if host_class.kind == CPU:
            if wanted:
                problems.add(
                    f"{where} names GPUs, but {request.host} is of class {host_class.name}, which has none; "
                    "leave gpus out or correct the class."
                )
            assigned[name] = []
            continue
        if request.facts is None:
            if wanted is None:
                problems.add(
                    f"{where} is not set and the hardware of {request.host} is not known; set it or give facts."
                )
        elif not gpus.shown:
            problems.add(gpus.without_driver())
            continue
        elif wanted is None and gpus.lost:
            problems.add(gpus.all_but_lost(where))
            continue
        elif wanted is not None and not wanted:
            problems.add(
                f"{where} is empty, but class {host_class.name} needs GPUs; name them or leave gpus out for all."
            )
        wanted = gpus.indices if wanted is None else wanted
        for gpu in wanted:
            known = gpus.find(gpu)
            if known is None and request.facts is not None:
                problems.add(gpus.missing(where, gpu))
                continue
            if known is not None and known.get("mig") == "enabled":
                problems.add(
                    f"{where} has GPU {gpu} of {request.host}, which is split by MIG, but an instance needs the whole "
                    f"GPU; turn MIG off with nvidia-smi -i {gpu} -mig 0 while nothing uses it, or give other GPUs."
                )
            identity = known["index"] if known is not None and known.get("index") is not None else gpu
            if owners.get(identity) == name:
                problems.add(f"{where} names GPU {gpu} twice; name it once.")
            elif identity in owners:
                shared.setdefault((owners[identity], name), []).append(str(gpu))
            owners.setdefault(identity, name)
        assigned[name] = list(wanted)
    for pair, both in shared.items():
        everything = [name for name in pair if instances[name].get("gpus") is None]
        problems.add(
            f"GPU{'s' * (len(both) > 1)} {', '.join(both)} of {request.host} {'are' if len(both) > 1 else 'is'} "
            f"used by two instances, {' and '.join(pair)}"
            + (f" ({' and '.join(everything)} without gpus, which means all of the host's)" if everything else "")
            + "; give each its own GPUs in gpus."
        )
    return assigned


def _older(version: str, floor: str) -> bool:
    """Whether a driver version is before another: "580.95.05" before "580.126.09"."""

    def parts(text: str) -> list[int]:
        return [int(part) for part in text.split(".") if part.isdigit()]

    return parts(version) < parts(floor)


def _check_ports(instances: Mapping[str, Mapping[str, Any]], problems: Problems) -> None:
    owners: dict[int, str] = {}
    for name in sorted(instances):
        port = instances[name].get("port", DEFAULT_PORT)
        if port in owners:
            problems.add(
                f"port {port} is used by two instances, {owners[port]} and {name}; give one of them another port."
            )
        owners.setdefault(port, name)


def _continued(remedy: str) -> str:
    """A remedy without its stop, to go on within a sentence; a word in capitals stays as it is."""
    text = remedy.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _as_warning(finding: Finding) -> dict[str, Any]:
    return _warning(finding.id, WARNING, finding.sentence.rstrip("."), _continued(finding.remedy))


class _Draft:
    """One instance on its way to a plan."""

    def __init__(
        self,
        request: Request,
        catalogue: Catalogue,
        host_class: HostClass,
        layers: Mapping[str, Mapping[str, Any]],
        variant: Mapping[str, Any],
        name: str,
        instance: Mapping[str, Any],
        gpus: list[Any] | None,
    ) -> None:
        self.request = request
        self.name = name
        self.where = f"vllm_instances.{name}"
        self.instance = instance
        self.host_class = host_class
        self.layers = layers
        self.variant = variant
        self.gpus = gpus
        self.template: Template | None = None
        self.refused: set[str] = set()
        """Flags, and "driver", of which a fault is told here already."""
        self.overlay: dict[str, Any] | None = None
        self.model = self._find_model(catalogue)
        self.profile, self.gpus_per_instance = self._find_profile(catalogue)
        self.engine: Engine = catalogue.engine()
        self.profile_key = f"{self.model.name}--{host_class.name}/{self.profile.name}"

    def _find_model(self, catalogue: Catalogue) -> Model:
        known = catalogue.model_names()
        name = self.instance["model"]
        if name not in known:
            raise PlanError(
                f"{self.where}.model is {name!r}, which is no known model (known: {known_list(known)})"
                f"{nearest(name, known) or '; correct it or add profiles/models/<name>.yml to a data folder.'}"
            )
        return catalogue.model(name)

    def _find_profile(self, catalogue: Catalogue) -> tuple[Profile, int]:
        wanted = f"{self.model.name}--{self.host_class.name}"
        known = catalogue.serving_names()
        if wanted not in known:
            prefix = f"{self.model.name}--"
            others = [name[len(prefix) :] for name in known if name.startswith(prefix)]
            raise PlanError(
                f"{self.where}: there is no serving profile of {self.model.name} for host class {self.host_class.name} "
                f"(it has profiles for: {known_list(others)}); add profiles/serving/{wanted}.yml to a data folder."
            )
        serving = catalogue.serving(self.model.name, self.host_class.name)
        chosen = self.variant.get("profile") or self.instance.get("profile") or serving.recommended
        if chosen not in serving.profiles:
            raise PlanError(
                f"{self.where}.profile is {chosen!r}, which {serving.origin} does not have "
                f"(it has: {known_list(serving.profiles)})"
                f"{nearest(chosen, serving.profiles) or '; choose one of them or leave profile out.'}"
            )
        return serving.profiles[chosen], serving.gpus_per_instance

    def template_path(self) -> str:
        """Where the chat template lies on the host: named by its content, so that it never changes under an engine."""
        if self.template is None:
            raise AssertionError("template_path() is for instances with a chat template")
        return f"{self.request.state_dir}/chat_templates/{self.template.sha256[:12]}.jinja"

    def build(
        self, find_template: TemplateFinder, problems: Problems, knowledge: Knowledge | None = None
    ) -> dict[str, Any]:
        flags = merge(self._flag_layers(), with_opposites=True)
        env = merge(self._env_layers())
        image = self._image()
        warnings: list[dict[str, Any]] = []
        self._check_gpu_count(flags, warnings, problems)
        self._check_driver(problems)
        max_model_len = self._max_model_len(flags, problems)
        served = list(self.instance.get("served_names") or [self.model.served_name])
        flags.update(self._own_flags(served, problems))
        if self.instance.get("chat_template"):
            self.template = find_template(self.instance["chat_template"])
            flags["chat-template"] = Setting(CHAT_TEMPLATE_TARGET, f"{self.where}.chat_template")
        env["VLLM_CACHE_ROOT"] = Setting(
            self.engine.cache_root, self.engine.origin, self.engine.evidence.get("cache_root")
        )
        api_key = bool(self.instance.get("api_key"))
        expose = self.instance.get("expose", "loopback")
        if expose != "loopback" and api_key:
            warnings.append(
                _warning(
                    "open-paths",
                    "warning",
                    f"{self.name} listens beyond the loopback address, and vLLM asks for its API key below /v1 only: "
                    "/invocations, /tokenize, /metrics and others answer without it",
                    "put a proxy in front that passes /v1 alone, or keep the port within a trusted network",
                )
            )
        if image.value != self.profile.image:
            warnings.append(
                _warning(
                    "image-override",
                    "info",
                    f"{image.origin} replaces the profile's image {self.profile.image} by {image.value}, while the "
                    f"flags were chosen for vLLM {self.profile.vllm_version}",
                    "give it a profile of its own in your data once it is accepted and measured",
                )
            )
        named = _release(image.value.partition("@")[0].rpartition(":")[2])
        if named is not None and named != _release(self.profile.vllm_version):
            warnings.append(
                _warning(
                    "image-version",
                    "warning",
                    f"image {image.value} is named after vLLM {named}, but vllm_version of profile {self.profile.name} "
                    f"is {self.profile.vllm_version}, by which flags and rules were judged and the acceptance decides",
                    "plan with a profile that has image and vllm_version of one release",
                )
            )
        aliases = self._effort_aliases(flags, warnings, problems)
        verdict = Verdict()
        if knowledge is not None:
            verdict = check(self._subject(flags, env, image, max_model_len, bool(aliases)), knowledge)
            for finding in verdict.findings:
                if finding.severity == ERROR:
                    problems.add(self._refusal(finding, flags, env))
                elif finding.severity == WARNING:
                    warnings.append(_as_warning(finding))
        names = [name for name in FRONT_FLAGS if name in flags]
        names += [name for name in sorted(flags) if name not in FRONT_FLAGS]
        argv = [self.model.container_path]
        for name in names:
            argv += render_flag(name, flags[name].value)
        return {
            "schema": SCHEMA,
            "host": self.request.host,
            "instance": self.name,
            "host_class": self.host_class.name,
            "profile": self.profile.name,
            "model": {
                "name": self.model.name,
                "hub": self.model.hub,
                "repo": self.model.repo,
                "revision": self.model.revision,
                "container_path": self.model.container_path,
                # What a start on record is compared with, by whom its figures become a calibration.
                "architecture": dict(self.model.architecture),
                "size_bytes": self.model.size_bytes,
                "quantization": self.model.quantization,
            },
            "image": image.value,
            "vllm_version": self.profile.vllm_version,
            "argv": argv,
            "env": {name: render_env(env[name].value) for name in sorted(env)},
            "secrets": [{"name": "api_key", "target": API_KEY_TARGET}] if api_key else [],
            "mounts": self._mounts(image),
            "gpus": list(self.gpus or []),
            "gpu": self._gpu(),
            "port": self.instance.get("port", DEFAULT_PORT),
            "expose": expose,
            "network": "host",
            "shm_size_bytes": self.profile.shm_size_bytes,
            "start_timeout_s": self.profile.start_timeout_s,
            "served_names": served,
            "max_model_len": max_model_len,
            "api_key_required": api_key,
            "slo": {**self.profile.slo, **self.instance.get("slo", {})},
            "document": self.profile.document,
            "changes": [dict(change) for change in self.profile.changes],
            "effort_aliases": aliases,
            "chat_template_overlay": self.overlay,
            "capacity": dict(verdict.capacity),
            "findings": [finding.as_dict() for finding in verdict.findings],
            "warnings": warnings,
            "sources": {name: flags[name].as_source() for name in names},
            "env_sources": {name: env[name].as_source() for name in sorted(env)},
            "image_source": image.as_source(),
            "chat_template_digest": f"sha256:{self.template.sha256}" if self.template else None,
            "sealed": False,
        }

    def _own_gpus(self) -> list[Mapping[str, Any]]:
        """Facts of the instance's GPUs, as far as there are any."""
        return [
            gpu
            for gpu in (self.request.facts or {}).get("gpus") or []
            if any(gpu.get(key) is not None and gpu[key] in (self.gpus or []) for key in ("index", "uuid"))
        ]

    def _gpu(self) -> dict[str, Any] | None:
        if self.host_class.kind == CPU:
            return None
        return gpu_as_plan(self._own_gpus(), self.host_class.name, self.host_class.memory_mib)

    def _subject(
        self,
        flags: Mapping[str, Setting],
        env: Mapping[str, Setting],
        image: Setting,
        max_model_len: int | None,
        effort_aliases: bool,
    ) -> Subject:
        """The launch as checks see it. What an image that replaces the profile's is built with is not known."""
        return Subject(
            name=self.name,
            model=self.model,
            host_class=self.host_class,
            gpus=self._own_gpus(),
            gpu_count=len(self.gpus or []),
            facts=self.request.facts or {},
            image=image.value,
            image_cuda=self.profile.cuda if image.value == self.profile.image else None,
            vllm_version=self.profile.vllm_version,
            flags={name: setting.value for name, setting in flags.items() if name not in OWN_FLAGS},
            env={name: render_env(setting.value) for name, setting in env.items()},
            max_model_len=max_model_len,
            port=self.instance.get("port", DEFAULT_PORT),
            expose=self.instance.get("expose", "loopback"),
            api_key=bool(self.instance.get("api_key")),
            shm_size_bytes=self.profile.shm_size_bytes,
            effort_aliases=effort_aliases,
            calibrations=self.request.calibrations,
            refused=self.refused,
        )

    def _refusal(self, finding: Finding, flags: Mapping[str, Setting], env: Mapping[str, Setting]) -> str:
        """One sentence: which instance, who set it, what is wrong, what to do, and how to look it up."""
        name = finding.subject.partition(".")[0]
        setting = flags.get(name) or flags.get(f"no-{name}") or env.get(name)
        where = (
            self.where
            if setting is None or setting.origin.startswith(self.where)
            else f"{self.where} ({name} by {setting.origin})"
        )
        return (
            f"{where}: {finding.sentence.rstrip('.')}; {_continued(finding.remedy)} "
            f"({finding.id}, which {IGNORED_VARIABLE} passes over with a reason)."
        )

    def _flag_layers(self) -> list[Layer]:
        return [
            Layer(self.model.origin, self.model.flags, self.model.evidence),
            Layer(self.host_class.origin, self.host_class.flags, self.host_class.evidence),
            Layer(self.profile.origin, self.profile.flags, self.profile.evidence),
            Layer("vllm_flags_class", self.layers["class"]),
            self._promoted_layer("flags"),
            Layer("vllm_flags_group", self.layers["group"]),
            Layer("vllm_flags_host", self.layers["host"]),
            self._drain_layer(),
            Layer(f"{self.where}.flags", self.instance.get("flags", {})),
            Layer(self._variant_origin(), self.variant.get("flags", {})),
        ]

    def _drain_layer(self) -> Layer:
        drain_s = self.instance.get("drain_s")
        return Layer(f"{self.where}.drain_s", {} if drain_s is None else {"shutdown-timeout": drain_s})

    def _env_layers(self) -> list[Layer]:
        return [
            Layer(self.engine.origin, self.engine.env, self.engine.evidence),
            Layer(self.host_class.origin, self.host_class.env, self.host_class.evidence),
            Layer(self.profile.origin, self.profile.env, self.profile.evidence),
            self._promoted_layer("env"),
            Layer(f"{self.where}.env", self.instance.get("env", {})),
            Layer(self._variant_origin(), self.variant.get("env", {})),
        ]

    def _image(self) -> Setting:
        promoted = self._promoted()
        layers = [
            Layer(self.profile.origin, {"image": self.profile.image}, self.profile.evidence),
            Layer(
                self._promoted_origin(),
                {"image": promoted["image"]} if promoted.get("image") else {},
                self._promoted_evidence(["image"]),
            ),
            Layer(self.where, {"image": self.instance["image"]} if self.instance.get("image") else {}),
            Layer(self._variant_origin(), {"image": self.variant["image"]} if self.variant.get("image") else {}),
        ]
        return merge(layers)["image"]

    def _promoted(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.layers["promoted"].get(self.profile_key) or {}
        return found

    def _promoted_layer(self, kind: str) -> Layer:
        values = self._promoted().get(kind, {})
        return Layer(self._promoted_origin(), values, self._promoted_evidence(values))

    def _promoted_origin(self) -> str:
        return f"vllm_flags_promoted[{self.profile_key}]"

    def _promoted_evidence(self, names: Any) -> dict[str, Any]:
        """A promotion rests on one experiment: its evidence is that of each of its values."""
        evidence = dict(self._promoted().get("evidence") or {})
        return dict.fromkeys(names, evidence) if evidence else {}

    def _variant_origin(self) -> str:
        return f"variant {self.variant['name']}" if self.variant.get("name") else "variant"

    def _effort_aliases(
        self, flags: dict[str, Setting], warnings: list[dict[str, Any]], problems: Problems
    ) -> dict[str, str] | None:
        """Levels of effort that clients send besides those that the model knows, by what they mean.

        Sets what makes the engine know them, unless the user brings a chat template, which then has to.
        """
        name: Any = self.profile.effort_aliases
        origin, evidence = self.profile.origin, self.profile.evidence.get("effort_aliases")
        if "effort_aliases" in self.instance:
            name, origin, evidence = self.instance["effort_aliases"], f"{self.where}.effort_aliases", None
        if not name:
            return None
        known = self.model.effort.aliases
        if name not in known:
            problems.add(
                f"{origin} is {name!r}, which {self.model.origin} does not have (it has: {known_list(known)})"
                f"{nearest(name, known) or '; correct it, or set it to false.'}"
            )
            return None
        aliases = dict(known[name])
        by = means(self.profile.vllm_version, own_template="chat-template" in flags)
        if by == FLAG:
            flags.setdefault(MAP_FLAG, Setting(effort_map(aliases), origin, evidence))
            if "ultra" in aliases:
                warnings.append(
                    _warning(
                        "effort-aliases",
                        "info",
                        f"effort ultra stays unknown to {self.name}: {MAP_FLAG} maps only what vLLM takes itself",
                        "let clients send max, or set chat_template of the instance to a template that knows ultra",
                    )
                )
        elif by:
            flags["chat-template"] = Setting(CHAT_TEMPLATE_TARGET, origin, evidence)
            self.overlay = {"levels": list(self.model.effort.levels), "aliases": aliases}
        return aliases

    def _own_flags(self, served: list[str], problems: Problems) -> dict[str, Setting]:
        expose = self.instance.get("expose", "loopback")
        host = {"loopback": "127.0.0.1", "all": ANY_ADDRESS}.get(expose) or self._address(problems)
        return {
            "host": Setting(host, f"{self.where}.expose" if "expose" in self.instance else "default (loopback)"),
            "port": Setting(
                self.instance.get("port", DEFAULT_PORT),
                f"{self.where}.port" if "port" in self.instance else f"default ({DEFAULT_PORT})",
            ),
            "served-model-name": Setting(
                served, f"{self.where}.served_names" if self.instance.get("served_names") else self.model.origin
            ),
        }

    def _address(self, problems: Problems) -> str:
        address = self.request.address or ""
        try:
            ipaddress.ip_address(address)
        except ValueError:
            problems.add(
                f"{self.where}.expose is 'address', which needs the IP address to listen on, but the host's address is "
                f"{schema.describe(self.request.address)}; set address (by default ansible_host) to an IP address."
            )
        return address

    def _max_model_len(self, flags: Mapping[str, Setting], problems: Problems) -> int | None:
        setting = flags.get("max-model-len")
        if setting is None:
            return self.model.max_position_embeddings
        length = parse_size(setting.value)
        if not length and setting.value not in ("auto", -1):
            self.refused.add("max-model-len")
            problems.add(
                f"{setting.origin}: max-model-len must be a number of tokens such as 4096, '32k' (32,000) or '32K' "
                f"(32,768), or auto, but is {schema.describe(setting.value)}; correct it."
            )
        return length or None

    def _check_gpu_count(
        self, flags: Mapping[str, Setting], warnings: list[dict[str, Any]], problems: Problems
    ) -> None:
        if self.gpus is None or self.host_class.kind == "cpu":
            return
        needed = 1
        for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
            value = flags[name].value if name in flags else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                self.refused.update((name, "tensor-parallel-size"))
                problems.add(
                    f"{flags[name].origin}: {name} must be a whole number of at least 1, "
                    f"but is {schema.describe(value)}; correct it."
                )
                return
            needed *= value
        if needed != len(self.gpus):
            problems.add(
                f"{self.where} has {len(self.gpus)} GPUs, but its flags spread the model over {needed} "
                f"(tensor x pipeline x data parallel size); name {needed} GPUs in gpus or set tensor-parallel-size."
            )
        elif self.gpus_per_instance != len(self.gpus):
            warnings.append(
                _warning(
                    "gpu-count",
                    "warning",
                    f"profile {self.profile_key} was chosen for {self.gpus_per_instance} GPUs per instance, "
                    f"and {self.name} has {len(self.gpus)}",
                    "measure it, or use a profile for this number of GPUs",
                )
            )

    def _check_driver(self, problems: Problems) -> None:
        """Refuses a driver that is too old for the GPUs; whether it suits the image's CUDA is left to rules."""
        version = ((self.request.facts or {}).get("driver") or {}).get("version")
        minimum = self.host_class.driver.get("minimum")
        if self.host_class.kind != CPU and version and minimum and _older(version, minimum):
            self.refused.add("driver")
            problems.add(
                f"{self.request.host} has NVIDIA driver {version}, but GPUs of class {self.host_class.name} need "
                f"{minimum} or newer; update it with provision.yml."
            )

    def _mounts(self, image: Setting) -> list[dict[str, Any]]:
        identity = "\n".join([image.value, self.profile.vllm_version, self.model.repo, self.host_class.name])
        cache = hashlib.sha256(identity.encode()).hexdigest()[:12]
        mounts: list[dict[str, Any]] = [
            {"source": None, "target": self.model.container_path, "read_only": True, "kind": "model"},
            {
                "source": f"{self.request.state_dir}/cache/{cache}",
                "target": self.engine.cache_root,
                "read_only": False,
                "kind": "cache",
            },
        ]
        if self.template or self.overlay:
            mounts.append(
                {
                    # One that is made of the model's own is known once the model is on the host.
                    "source": self.template_path() if self.template else None,
                    "target": CHAT_TEMPLATE_TARGET,
                    "read_only": True,
                    "kind": "chat_template",
                }
            )
        return mounts
