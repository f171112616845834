# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who sets the flags, variables and image of an instance, weakest first. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.data import Engine, HostClass
from ansible_collections.socle.inference.plugins.module_utils._plan.layers import Layer, Setting, merge
from ansible_collections.socle.inference.plugins.module_utils._plan.models import Model
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import short
from ansible_collections.socle.inference.plugins.module_utils._plan.serving import Profile


@dataclass(frozen=True)
class Sources:
    """Everything that has a say in one instance."""

    where: str
    """The instance as a person finds it: "vllm_instances.chat"."""
    instance: Mapping[str, Any]
    model: Model
    host_class: HostClass
    profile: Profile
    engine: Engine
    layers: Mapping[str, Mapping[str, Any]]
    """What vllm_flags_class, _promoted, _group and _host hold, by the last word of their names."""
    variant: Mapping[str, Any]

    @property
    def profile_key(self) -> str:
        """What the profile is called in vllm_flags_promoted."""
        return f"{self.model.name}--{self.host_class.name}/{self.profile.name}"

    def flags(self) -> list[Layer]:
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

    def env(self) -> list[Layer]:
        return [
            Layer(self.engine.origin, self.engine.env, self.engine.evidence),
            Layer(self.host_class.origin, self.host_class.env, self.host_class.evidence),
            Layer(self.profile.origin, self.profile.env, self.profile.evidence),
            self._promoted_layer("env"),
            Layer(f"{self.where}.env", self.instance.get("env", {})),
            Layer(self._variant_origin(), self.variant.get("env", {})),
        ]

    def image(self) -> Setting:
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
        return f"variant {short(self.variant['name'])}" if self.variant.get("name") else "variant"
