# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people write in vllm_instances and the flag variables, checked first. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan import schema
from ansible_collections.socle.inference.plugins.module_utils._plan.data import Catalogue
from ansible_collections.socle.inference.plugins.module_utils._plan.flags import check_env, check_flags
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import Problems, describe, nearest, quoted
from ansible_collections.socle.inference.plugins.module_utils._plan.texts import image_text, served_text, slo_map

DEFAULT_PORT = 8000

LAYER_VARIABLES = {
    "class": "vllm_flags_class",
    "promoted": "vllm_flags_promoted",
    "group": "vllm_flags_group",
    "host": "vllm_flags_host",
}

_INSTANCE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_GPU_UUID = re.compile(r"GPU-[0-9a-fA-F-]{1,64}")


def check_gpus(value: Any, where: str, problems: Problems) -> None:
    """GPUs as an instance or a plan names them."""
    if not isinstance(value, list):
        problems.add(
            f"{where} must be a list of GPU indices or UUIDs, but is {describe(value)}; write for example [0, 1]."
        )
        return
    for position, item in enumerate(value):
        index = isinstance(item, int) and not isinstance(item, bool) and item >= 0 and schema.usable(item)
        if not index and not (isinstance(item, str) and _GPU_UUID.fullmatch(item)):
            problems.add(
                f"{where}[{position}] must be a GPU index (0, 1, ...) or a UUID (GPU-...), "
                f"but is {describe(item)}; correct it."
            )


def _check_aliases_choice(value: Any, where: str, problems: Problems) -> None:
    """The name of a set of the model's effort aliases, or false for none, also where the profile has one."""
    if value is not False and not (isinstance(value, str) and value):
        problems.add(
            f"{where} must be the name of a set of effort aliases of the model, or false for none, "
            f"but is {describe(value)}; correct it."
        )


_INSTANCE = schema.record(
    {
        "model": schema.text(),
        "gpus": check_gpus,
        "port": schema.whole(1, 65535),
        "profile": schema.text(),
        "served_names": schema.list_of(served_text, filled=True),
        "flags": check_flags,
        "env": check_env,
        "image": image_text,
        "api_key": schema.secret(),
        "expose": schema.choice("loopback", "address", "all"),
        "chat_template": schema.text(r"[^\0\r\n]+", "a file name of one line"),
        "effort_aliases": _check_aliases_choice,
        "drain_s": schema.whole(0, 3600),
        "slo": slo_map,
    },
    ["model"],
)

_VARIANT = schema.record(
    {
        "name": schema.text(),
        "instances": schema.list_of(schema.text()),
        "flags": check_flags,
        "env": check_env,
        "image": image_text,
        "profile": schema.text(),
    }
)

_PROMOTED = schema.record(
    {
        "flags": check_flags,
        "env": check_env,
        "image": image_text,
        "evidence": schema.map_of(schema.anything()),
    }
)


def withhold_secrets(instances: Any) -> Any:
    """A copy of *instances* in which each API key is replaced by a word that says only whether there is one.

    Done first of all, so that no later step can repeat a key in a plan or a message.
    """
    if not isinstance(instances, dict):
        return instances
    copied: dict[Any, Any] = {}
    for name, instance in instances.items():
        copied[name] = instance
        if isinstance(instance, dict) and "api_key" in instance:
            problems = Problems()
            schema.secret()(instance["api_key"], "", problems)
            # A bad key stays recognisable as bad without its content.
            marker: Any = False if problems.sentences else (None if instance["api_key"] is None else "withheld")
            copied[name] = {**instance, "api_key": marker}
    return copied


def check_instances(instances: Any, problems: Problems) -> dict[str, dict[str, Any]]:
    """The instances that are well formed; everything wrong with the others goes to *problems*."""
    if not isinstance(instances, dict):
        problems.add(f"vllm_instances must be a map of instance names, but is {describe(instances)}; correct it.")
        return {}
    sound: dict[str, dict[str, Any]] = {}
    for name, instance in instances.items():
        if not isinstance(name, str) or not _INSTANCE_NAME.fullmatch(name):
            problems.add(
                f"vllm_instances has the name {quoted(name)}, but a name has 1 to 42 lower-case letters, digits and "
                "inner dashes, since units and folders are called by it; rename it."
            )
            continue
        before = len(problems.sentences)
        _INSTANCE(instance, f"vllm_instances.{name}", problems)
        if len(problems.sentences) == before:
            sound[name] = instance
    return sound


def check_layers(layers: Any, catalogue: Catalogue, problems: Problems) -> dict[str, dict[str, Any]]:
    """The four flag variables, empty where not given; everything wrong goes to *problems*."""
    result: dict[str, dict[str, Any]] = {key: {} for key in LAYER_VARIABLES}
    if not isinstance(layers, dict):
        problems.add(f"layers must be a map, but is {describe(layers)}; correct it.")
        return result
    for key, value in layers.items():
        if key not in LAYER_VARIABLES:
            hint = nearest(key, LAYER_VARIABLES) or "; remove it."
            problems.add(
                f"layers has the unknown key {quoted(key)} (known: {schema.known_list(LAYER_VARIABLES)}){hint}"
            )
            continue
        if value is None:
            continue
        before = len(problems.sentences)
        if key == "promoted":
            _check_promoted(value, catalogue, problems)
        else:
            check_flags(value, LAYER_VARIABLES[key], problems)
        if len(problems.sentences) == before:
            result[key] = value
    return result


def _check_promoted(value: Any, catalogue: Catalogue, problems: Problems) -> None:
    schema.map_of(_PROMOTED)(value, "vllm_flags_promoted", problems)
    if not isinstance(value, dict):
        return
    for key in value:
        serving, slash, profile = str(key).partition("/")
        known = catalogue.serving_names()
        if not slash or not profile or serving not in known:
            problems.add(
                f"vllm_flags_promoted has the key {quoted(key)}, which must be '<model>--<host class>/<profile>' of a "
                f"known serving file (known: {schema.known_list(known)}){nearest(serving, known) or '; correct it.'}"
            )


def check_variant(variant: Any, problems: Problems) -> Mapping[str, Any]:
    if variant is None:
        return {}
    before = len(problems.sentences)
    _VARIANT(variant, "variant", problems)
    return variant if len(problems.sentences) == before else {}
