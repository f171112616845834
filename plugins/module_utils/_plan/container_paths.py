# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds files and folders that flags name and that no mount of a plan brings into the container.

Without this they are missed only at the start, after the image was pulled and the model fetched. What an image holds is
not known, so that most of it is a warning; certain is only what lies where no image has anything. Private to
socle.inference.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._plan.finding import ERROR, WARNING, Finding
from ansible_collections.socle.inference.plugins.module_utils._plan.schema import quoted, short

ID = "SOC-F19"

OWN_FOLDER = "/etc/socle"
"""Where plans mount files of socle's own; no image has it."""

CHAT_TEMPLATE = "chat-template"
MEDIA = "allowed-local-media-path"

FILES = (
    CHAT_TEMPLATE,
    "tool-parser-plugin",
    "reasoning-parser-plugin",
    "log-config-file",
    "mm-encoder-fp8-scale-path",
    MEDIA,
)
"""Flags whose value is a file or folder that is there before the engine (vLLM 0.19.1 to 0.33.0)."""

MODELS = ("tokenizer", "hf-config-path", "generation-config", "spec-model")
"""Flags whose value is a folder with files of a model, or the name of one on a hub."""

FILES_OF_JSON = (
    ("structured-outputs-config", "reasoning_parser_plugin"),
    ("logging-config", "pylogging_config_file"),
)
VARIABLES = ("VLLM_LOGGING_CONFIG_PATH", "VLLM_MODEL_REDIRECT_PATH", "VLLM_TUNED_CONFIG_FOLDER")
"""Environment variables alike. Those that name libraries of the image, such as VLLM_NCCL_SO_PATH, are left out."""

_WORDS: Mapping[str, frozenset[str]] = {"generation-config": frozenset({"auto", "vllm"})}
"""What is neither a path nor a name on a hub."""

_WITHOUT_DRAFT = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class"})
"""Methods of speculation whose ``model``, where there is one, names no weights (vLLM 0.32.0, config/speculative.py)."""

_LITERAL = frozenset("{}\n")
"""Characters by which vLLM takes a chat template for the text itself (0.19.1 to 0.33.0, JINJA_CHARS)."""

VLLM_TEMPLATES = frozenset(
    f"template_{name}.jinja"
    for name in ("basic", "blip2", "chatml", "deepseek_ocr", "deepseek_vl2", "kimi_audio", "minicpmv45")
)
"""Chat templates of vLLM's own, which it finds by their names (0.32.0, transformers_utils/chat_templates)."""

_EVIDENCE = "what `vllm serve` opens at its start (0.32.0: entrypoints, config), and the mounts of the plan"


def unmounted_paths(
    flags: Mapping[str, Any], env: Mapping[str, str], mounts: Sequence[Mapping[str, Any]], state_dir: str
) -> list[Finding]:
    """A finding for each path of *flags* and *env* that is in none of the plan's *mounts*, by the order of names.

    *state_dir* is where the host keeps what it mounts from.
    """
    container = _Container(mounts, state_dir, env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"))
    found = []
    for where, value, of_model in sorted(_paths(flags, env), key=lambda path: path[0]):
        finding = container.finding(where, value, of_model)
        if finding is not None:
            found.append(finding)
    return found


def _paths(flags: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    """(flag, key of its JSON or variable; path; whether it may be the name of a model on a hub)"""
    named: list[tuple[str, Any, bool]] = [(name, flags.get(name), False) for name in FILES]
    named += [(name, flags.get(name), True) for name in MODELS]
    named += [(f"{flag}.{key}", _map(flags.get(flag)).get(key), False) for flag, key in FILES_OF_JSON]
    speculation = _map(flags.get("speculative-config"))
    if not {str(speculation.get("method")), str(speculation.get("model"))} & _WITHOUT_DRAFT:
        named.append(("speculative-config.model", speculation.get("model"), True))
    adapters = flags.get("lora-modules")
    for adapter in adapters if isinstance(adapters, list) else [adapters]:
        described = _map(adapter)
        path = described.get("path") if described else str(adapter or "").partition("=")[2]
        named.append(("lora-modules", path, True))
    named += [("default-mm-loras", path, True) for path in _map(flags.get("default-mm-loras")).values()]
    named += [(name, env.get(name), False) for name in VARIABLES]
    for where, value, of_model in named:
        if isinstance(value, str) and value and value not in _WORDS.get(where, ()):
            yield where, value, of_model


def _map(value: Any) -> Mapping[str, Any]:
    """The JSON of a flag, as a map or as its text; empty where it is none."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


class _Container:
    """What a container has of paths, as far as the plan knows."""

    def __init__(self, mounts: Sequence[Mapping[str, Any]], state_dir: str, offline: bool) -> None:
        self._files = {str(mount["target"]) for mount in mounts if mount["kind"] == "chat_template"}
        self._folders = [str(mount["target"]) for mount in mounts if mount["kind"] != "chat_template"]
        self._state_dir = state_dir
        self._offline = offline

    def finding(self, where: str, value: str, of_model: bool) -> Finding | None:
        if where == CHAT_TEMPLATE and (_LITERAL & set(value) or value in VLLM_TEMPLATES):
            return None
        path = posixpath.normpath(value)
        if path in self._files or any(_within(path, folder) for folder in self._folders):
            return None
        if where == MEDIA and any(_within(target, path) for target in (*self._files, *self._folders)):
            # A folder that holds a mount is there.
            return None
        named = f"'{where}' is {quoted(value)}"
        mounted = ", ".join(sorted([*self._files, *self._folders]))
        severity = WARNING
        if not value.startswith("/"):
            if of_model and not value.startswith((".", "~")):
                if not self._offline:
                    return None
                said = (
                    f"{named}, the name of a model on a hub, from which the engine takes nothing (HF_HUB_OFFLINE), so "
                    "that only the image can hold it."
                )
            else:
                own = ", or among vLLM's own templates" if where == CHAT_TEMPLATE else ""
                said = f"{named}, which only the image can hold, in its working folder{own}: the plan mounts {mounted}."
        elif _within(path, self._state_dir):
            severity = ERROR
            said = f"{named}, a path of the host, of which the container has nothing there: the plan mounts {mounted}."
        elif _within(path, OWN_FOLDER):
            severity = ERROR
            said = f"{named}, where the container has only what the plan mounts: {mounted}."
        else:
            said = f"{named}, where the plan mounts nothing, so that only the image can hold it: it mounts {mounted}."
        return Finding(ID, severity, said, self._remedy(where, severity), _EVIDENCE, where)

    def _remedy(self, where: str, severity: str) -> str:
        if where == CHAT_TEMPLATE:
            return "Set chat_template of the instance to the file, which is mounted then, and remove the flag."
        instead = f"Name a file of the model's folder {short(self._folders[0], 200)}" if self._folders else "Remove it"
        if severity == ERROR:
            return f"{instead}, or one that the image holds."
        return f"{instead}, or see that the image holds it."


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
