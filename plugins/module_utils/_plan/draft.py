# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One instance on its way to a plan: its launch, what is wrong with it, and where each value comes from.

Private to socle.inference.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import CPU
from ansible_collections.socle.inference.plugins.module_utils._gpu.classes import warning as _warning
from ansible_collections.socle.inference.plugins.module_utils._plan import schema
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
from ansible_collections.socle.inference.plugins.module_utils._plan.held_weights import HeldWeights
from ansible_collections.socle.inference.plugins.module_utils._plan.instances import DEFAULT_PORT
from ansible_collections.socle.inference.plugins.module_utils._plan.layers import Setting, merge
from ansible_collections.socle.inference.plugins.module_utils._plan.measured import gpu_as_plan
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model
from ansible_collections.socle.inference.plugins.module_utils._plan.request import Request, Template, TemplateFinder
from ansible_collections.socle.inference.plugins.module_utils._plan.rule_context import rope_override
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import (
    Problems,
    known_list,
    nearest,
    quoted,
    short,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.serving import Profile
from ansible_collections.socle.inference.plugins.module_utils._plan.sources import Sources

SCHEMA = "socle.plan/1"
CHAT_TEMPLATE_TARGET = "/etc/socle/chat_template.jinja"
API_KEY_TARGET = "VLLM_API_KEY"
ANY_ADDRESS = "0.0.0.0"
_NUMBER = re.compile(r"[0-9]{1,9}")
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)(?![^+.-])")

IMAGE_SHOWN = 200
"""Characters of an image reference within a sentence, which is longer than other names and copied whole."""

OWN_FLAGS = ("host", "port", "served-model-name")
"""Flags that the plan makes of other keys of an instance."""

FRONT_FLAGS = ("host", "port", "served-model-name", "max-model-len")
"""These come first, in this order; the rest follows by name."""


def _release(text: str) -> str | None:
    """The three numbers of a release that *text*, a version or the tag of an image, begins with, if it does."""
    found = _RELEASE.match(text)
    return found.group(1) if found else None


def _older(version: str, floor: str) -> bool:
    """Whether a driver version is before another: "580.95.05" before "580.126.09"."""

    def parts(text: str) -> list[int]:
        return [int(part) for part in text.split(".") if _NUMBER.fullmatch(part)]

    return parts(version) < parts(floor)


def _continued(remedy: str) -> str:
    """A remedy without its stop, to go on within a sentence; a word in capitals stays as it is."""
    text = remedy.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _as_warning(finding: Finding) -> dict[str, Any]:
    return _warning(finding.id, WARNING, finding.sentence.rstrip("."), _continued(finding.remedy))


class Draft:
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
        self.variant = variant
        self.gpus = gpus
        self.template: Template | None = None
        self.refused: set[str] = set()
        """Flags, and "driver", of which a fault is told here already."""
        self.overlay: dict[str, Any] | None = None
        self.passed_over: frozenset[str] = frozenset()
        """Ids of what the checks found and were told to pass over."""
        self.model = self._find_model(catalogue)
        self.held = request.weights.get(self.model.repo, HeldWeights())
        self.profile, self.gpus_per_instance = self._find_profile(catalogue)
        self.engine: Engine = catalogue.engine()
        self.sources = Sources(self.where, instance, self.model, host_class, self.profile, self.engine, layers, variant)

    def _find_model(self, catalogue: Catalogue) -> Model:
        known = catalogue.model_names()
        name = self.instance["model"]
        if name not in known:
            raise PlanError(
                f"{self.where}.model is {quoted(name)}, which is no known model (known: {known_list(known)})"
                f"{nearest(name, known) or '; correct it or add profiles/models/<name>.yml to a data folder.'}"
            )
        model = catalogue.model(name)
        if model.size_bytes is None:
            return replace(model, size_bytes=self.request.find_size(model.repo, model.revision))
        return model

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
                f"{self.where}.profile is {quoted(chosen)}, which {serving.origin} does not have "
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
        flags = merge(self.sources.flags(), with_opposites=True)
        env = merge(self.sources.env())
        image = self.sources.image()
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
                    f"{image.origin} replaces the profile's image {short(self.profile.image, IMAGE_SHOWN)} by "
                    f"{short(image.value, IMAGE_SHOWN)}, while the flags were chosen for vLLM "
                    f"{self.profile.vllm_version}",
                    "give it a profile of its own in your data once it is accepted and measured",
                )
            )
        named = _release(image.value.partition("@")[0].rpartition(":")[2])
        if named is not None and named != _release(self.profile.vllm_version):
            warnings.append(
                _warning(
                    "image-version",
                    "warning",
                    f"image {short(image.value, IMAGE_SHOWN)} is named after vLLM {named}, but vllm_version of profile "
                    f"{self.profile.name} is {self.profile.vllm_version}, by which flags and rules were judged and the "
                    "acceptance decides",
                    "plan with a profile that has image and vllm_version of one release",
                )
            )
        if self.held.fault:
            warnings.append(
                _warning(
                    "weights-unread",
                    "warning",
                    f"what the weights of {self.model.repo} take is told by its model file, since the headers of its "
                    f"files on {self.request.host} cannot be used: {self.held.fault}",
                    "look what is wrong with models.yml -e model_store_action=verify",
                )
            )
        aliases = self._effort_aliases(flags, warnings, problems)
        verdict = Verdict()
        if knowledge is not None:
            verdict = check(self._subject(flags, env, image, max_model_len, bool(aliases)), knowledge)
            self.passed_over = verdict.passed_over
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
            mounts=self._mounts(image),
            state_dir=self.request.state_dir,
            calibrations=self.request.calibrations,
            weights=self.held.groups,
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
            f"({finding.id}, which {IGNORED_VARIABLE} can pass over with a reason)."
        )

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
                f"{origin} is {quoted(name)}, which {self.model.origin} does not have (it has: {known_list(known)})"
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
                f"{schema.describe(self.request.address)}; set ansible_host (or the option address) to an IP address."
            )
        return address

    def _max_model_len(self, flags: Mapping[str, Setting], problems: Problems) -> int | None:
        setting = flags.get("max-model-len")
        if setting is None:
            overrides = flags.get("hf-overrides")
            scaled = rope_override(overrides.value) if overrides else False
            # The engine takes what the scaled positions come to.
            return self.model.max_position_embeddings if scaled is False else None
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
                    f"profile {self.sources.profile_key} was chosen for {self.gpus_per_instance} GPUs per instance, "
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
                f"{self.request.host} has NVIDIA driver {short(version)}, but GPUs of class {self.host_class.name} "
                f"need {minimum} or newer; update it with provision.yml."
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
