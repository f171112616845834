# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rule may ask of a plan: the paths, what kind of value each has, and what the launch amounts to.

A context is a nested mapping with the keys of PATHS before their first dot. ``flags`` and ``env`` hold what the plan
sets (and, for flags, the version's defaults where they are known); everything else holds facts, of which null and what
is left out mean "not known". ``effective`` is worked out here from the others: what holds once a version's own defaults
apply. Private to socle.inference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.flags import parse_size
from ansible_collections.socle.inference.plugins.module_utils._plan.launch_settings import (
    FP8,
    attention_backend,
    batch_sizes,
    version_numbers,
)
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import finite, nearest

TEXT = "text"
NUMBER = "number"
TRUTH = "truth"
VERSION = "version"
LIST = "list"
ANY = "any"
"""Kinds of value. ANY is a flag, whose kind only the engine's version knows."""

PATHS: Mapping[str, str] = {
    "model.name": TEXT,
    "model.architecture": TEXT,
    "model.family": TEXT,
    "model.hybrid": TRUTH,
    "model.moe": TRUTH,
    "model.vision": TRUTH,
    "model.mtp_layers": NUMBER,
    "model.native_context": NUMBER,
    "model.attention_heads": NUMBER,
    "model.kv_heads": NUMBER,
    "model.quantization": TEXT,
    "model.trust_remote_code_needed": TRUTH,
    "hardware.class": TEXT,
    "hardware.family": TEXT,
    "hardware.architecture": TEXT,
    "hardware.compute_capability": NUMBER,
    "hardware.memory_mib": NUMBER,
    "hardware.link": TEXT,
    "hardware.worst_path": TEXT,
    "hardware.fp8": TRUTH,
    "hardware.fp4": TRUTH,
    "hardware.peer_to_peer": TRUTH,
    "hardware.gpus": NUMBER,
    "hardware.gpus_on_host": NUMBER,
    "driver.version": VERSION,
    "driver.branch": NUMBER,
    "driver.flavour": TEXT,
    "driver.cuda": NUMBER,
    "engine.name": TEXT,
    "engine.version": VERSION,
    "engine.vllm_version": VERSION,
    "engine.image": TEXT,
    "engine.image_cuda": NUMBER,
    "engine.injection": TEXT,
    "instance.name": TEXT,
    "instance.port": NUMBER,
    "instance.expose": TEXT,
    "instance.api_key": TRUTH,
    "instance.network": TEXT,
    "instance.ipc": TEXT,
    "instance.shm_size_bytes": NUMBER,
    "instance.effort_aliases": TRUTH,
    "capacity.kv_tokens": NUMBER,
    "capacity.blocks": NUMBER,
    "capacity.block_tokens": NUMBER,
    "capacity.headroom_gib": NUMBER,
    "capacity.weights_gib_per_gpu": NUMBER,
    "capacity.kv_gib_per_gpu": NUMBER,
    "capacity.concurrency_at_full_length": NUMBER,
    "capacity.requests_with_states": NUMBER,
    "capacity.prefill_chunk_tokens": NUMBER,
    "capacity.smallest_cacheable_prefix_tokens": NUMBER,
    "capacity.contexts_with_checkpoints": NUMBER,
    "capacity.longest_context_tokens": NUMBER,
    "capacity.calibrated": TRUTH,
    "effective.prefix_caching": TRUTH,
    "effective.speculation": TEXT,
    "effective.speculative_tokens": NUMBER,
    "effective.kv_cache_dtype": TEXT,
    "effective.kv_fp8": TRUTH,
    "effective.tensor_parallel": NUMBER,
    "effective.world_size": NUMBER,
    "effective.max_model_len": NUMBER,
    "effective.max_num_seqs": NUMBER,
    "effective.max_num_batched_tokens": NUMBER,
    "effective.rope_override": TRUTH,
    "effective.eager": TRUTH,
}
"""Every path but those below ``flags`` (a flag's name, then keys of its JSON) and ``env`` (a variable's name)."""

MAX_PATH = 200
"""Characters of a path; the longest flag of vLLM with its longest keys has fewer."""

OF_PLAN = ("flags", "env")
"""Keys under which a missing name is an answer (it is not set), and not something unknown."""

HYBRID_PREFIX_CACHING_SINCE = "0.28.0"
"""First version that caches prefixes of hybrid models without being asked (vLLM 0.28.0, engine/arg_utils.py)."""

_ALIASES = {"device-memory-utilization": "gpu-memory-utilization"}
_FLAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})(.*)", re.DOTALL)
_WORSE = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Links without NVLink, from one PCIe switch to the other processor, as nvidia-smi topo names them."""


@dataclass(frozen=True)
class Path:
    """One path of a context, checked."""

    text: str
    parts: tuple[str, ...]
    kind: str

    @property
    def of_plan(self) -> bool:
        return self.parts[0] in OF_PLAN


def parse_path(text: Any) -> tuple[Path | None, str]:
    """(path, "") or (None, why it is none, as the end of a sentence)."""
    if not isinstance(text, str):
        return None, "is not a path of words joined by dots; correct it."
    if text in PATHS:
        return Path(text, tuple(text.split(".")), PATHS[text]), ""
    if len(text) > MAX_PATH:
        return None, f"has {len(text):,} characters, more than the {MAX_PATH} of the longest path; correct it."
    parts = tuple(text.split("."))
    if parts[0] == "flags" and len(parts) > 1:
        if not _FLAG.fullmatch(parts[1]):
            return None, "does not name a flag as lower-case words joined by dashes; correct it."
        if parts[1].startswith("no-"):
            return None, f"names a negation; ask for flags.{parts[1][3:]} being false."
        if not all(parts):
            return None, "has an empty part; correct it."
        return Path(text, parts, ANY), ""
    if parts[0] == "env" and len(parts) == 2 and _VARIABLE.fullmatch(parts[1]):
        return Path(text, parts, TEXT), ""
    return None, f"is no path of the context{nearest(text, PATHS) or '; see docs/rules.md for the paths.'}"


def worst_path(links: Iterable[Mapping[str, Any]], addresses: Collection[str]) -> str | None:
    """The worst link between any two of the GPUs at *addresses*, for ``hardware.worst_path``.

    *links* are those of a host's GPU facts, {a, b, link} by PCI address. None for fewer than two GPUs, and where a pair
    is missing, whose link might be the worst.
    """
    wanted = set(addresses)
    found = [link["link"] for link in links if link["a"] in wanted and link["b"] in wanted]
    if len(wanted) < 2 or len(found) < len(wanted) * (len(wanted) - 1) // 2:
        return None

    def badness(link: str) -> tuple[int, int]:
        if link in _WORSE:
            return _WORSE.index(link) + 1, 0
        return 0, -int(link[2:])

    return str(max(found, key=badness))


def version_key(value: Any) -> tuple[tuple[int, ...], int] | None:
    """What versions are ordered by; a candidate (rc, a, b, dev) comes before its release, "+cu129" changes nothing."""
    match = _VERSION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None
    release = [int(part) for part in match.group(1).split(".")]
    while release and release[-1] == 0:
        release.pop()
    early = re.match(r"[._-]?(a|b|rc|dev)\d*", match.group(2)) is not None
    return tuple(release), 0 if early else 1


def number_of(value: Any) -> float | None:
    """A number that is one, or is written as one (8192, '32k', '13.0'); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value if finite(value) else None
    if not isinstance(value, str):
        return None
    size = parse_size(value)
    if size is not None:
        return size
    if len(value) > 32 or not re.fullmatch(r"-?\d+(\.\d+)?", value):
        return None
    return float(value)


class RuleContext:
    """A context in one spelling, with what follows from it."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        self._values: dict[str, Mapping[str, Any]] = {
            key: value if isinstance(value, Mapping) else {} for key, value in context.items()
        }
        self._values["flags"] = _flags(self._values.get("flags", {}))
        self._values["env"] = {
            name: str(value)
            for name, value in self._values.get("env", {}).items()
            if isinstance(value, str) or (isinstance(value, (int, float)) and finite(value))
        }
        self._values["effective"] = _effective(self)

    def get(self, path: Path) -> Any:
        """The value, or None where there is none."""
        return self.value(*path.parts)

    def value(self, *parts: str) -> Any:
        found: Any = self._values
        for part in parts:
            if not isinstance(found, Mapping):
                return None
            found = found.get(part)
        return found


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value == "" or value == [] or value == {}:
            continue
        spelled = str(name).lstrip("-").replace("_", "-")
        if spelled.startswith("no-") and isinstance(value, bool):
            flags[spelled[3:]] = not value
        else:
            flags[_ALIASES.get(spelled, spelled)] = _read_json(value)
    backend = attention_backend(flags)
    if backend is None:
        # By "auto" the engine chooses, as it does without the flag.
        flags.pop("attention-backend", None)
    else:
        flags["attention-backend"] = backend
    return flags


def _read_json(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _effective(context: RuleContext) -> dict[str, Any]:
    method, tokens = _speculation(context)
    kv_dtype = context.value("flags", "kv-cache-dtype")
    kv_dtype = "auto" if kv_dtype is None else str(kv_dtype)
    tensor = _whole(context, "tensor-parallel-size", 1)
    pipeline = _whole(context, "pipeline-parallel-size", 1)
    eager = context.value("flags", "enforce-eager")
    batched, sequences = _batch_sizes(context)
    return {
        "prefix_caching": _prefix_caching(context),
        "speculation": method,
        "speculative_tokens": tokens,
        "kv_cache_dtype": kv_dtype,
        "kv_fp8": kv_dtype in FP8,
        "tensor_parallel": tensor,
        "world_size": tensor * pipeline if tensor and pipeline else None,
        "max_model_len": _max_model_len(context),
        "max_num_seqs": _whole(context, "max-num-seqs", sequences),
        "max_num_batched_tokens": _whole(context, "max-num-batched-tokens", batched),
        "rope_override": rope_override(context.value("flags", "hf-overrides")),
        "eager": eager is True,
    }


def _whole(context: RuleContext, flag: str, default: int | None) -> int | None:
    value = context.value("flags", flag)
    if value is None:
        return default
    number = number_of(value)
    return int(number) if number is not None and number >= 0 else None


def _max_model_len(context: RuleContext) -> Any:
    if context.value("flags", "max-model-len") is None:
        # Scaled positions give the engine another length to start with.
        scaled = rope_override(context.value("flags", "hf-overrides"))
        return context.value("model", "native_context") if scaled is False else None
    return _whole(context, "max-model-len", None)


def _speculation(context: RuleContext) -> tuple[str | None, int | None]:
    """(method, tokens): ("none", 0) without speculation; a model's own name of its MTP method counts as "mtp"."""
    config = context.value("flags", "speculative-config")
    if config is None:
        config = {
            "method": context.value("flags", "spec-method"),
            "num_speculative_tokens": context.value("flags", "spec-tokens"),
        }
        if config["method"] is None and context.value("flags", "spec-model") is None:
            return "none", 0
    if not isinstance(config, Mapping):
        return None, None
    method = config.get("method")
    if not isinstance(method, str):
        method = None
    elif method.endswith("_mtp"):
        method = "mtp"
    tokens = number_of(config.get("num_speculative_tokens"))
    return method, None if tokens is None else int(tokens)


def _prefix_caching(context: RuleContext) -> bool | None:
    given = context.value("flags", "enable-prefix-caching")
    if isinstance(given, bool):
        return given
    hybrid = context.value("model", "hybrid")
    if hybrid is not True:
        return True if hybrid is False else None
    version = version_key(context.value("engine", "vllm_version"))
    since = version_key(HYBRID_PREFIX_CACHING_SINCE)
    return None if version is None or since is None else version >= since


def _batch_sizes(context: RuleContext) -> tuple[int | None, int | None]:
    """(batched tokens, sequences) that an API server takes, by what is known of its GPUs and its version."""
    memory = number_of(context.value("hardware", "memory_mib"))
    family, version = context.value("hardware", "family"), context.value("engine", "vllm_version")
    if memory is None or not isinstance(family, str) or version_key(version) is None:
        return None, None
    length = number_of(_max_model_len(context))
    flags: Mapping[str, Any] = context.value("flags")
    return batch_sizes(flags, memory, "a100" in family, version_numbers(version), int(length) if length else None)


def rope_override(overrides: Any) -> bool | None:
    """Whether hf-overrides scale the positions; None where that cannot be told."""
    if overrides is None:
        return False
    overrides = _read_json(overrides)
    if not isinstance(overrides, Mapping):
        return None
    level = [overrides]
    for _depth in range(8):
        if any(str(key).startswith("rope") for item in level for key in item):
            return True
        level = [value for item in level for value in item.values() if isinstance(value, Mapping)]
    return False
