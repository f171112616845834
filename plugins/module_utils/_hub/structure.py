# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the files of a model fit together, before an engine sees them. Private to socle.inference.

Hashes prove that the files are those of the hub; this finds what is wrong on the hub itself: pointers in place of
weights, truncated uploads, an index that names a shard which is not there, a shard that no index names.
"""

from __future__ import annotations

import json
import posixpath
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"
LFS_POINTER_MAX = 1024
HEADS = (
    (LFS_POINTER, "a Git LFS pointer, not the content"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"<?xml", "an XML document, as storage sends errors"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"PK\x03\x04", "a zip archive"),
    (b"GGUF", "a GGUF file"),
    (b"{", "a JSON document"),
    (b"\0" * 16, "zeros"),
)
"""What files that should be weights were found to begin with."""
HEADER_MAX = 100_000_000
"""What the safetensors library itself takes."""
JSON_MAX = 64 << 20
"""The largest index of a model so far has 13 MB."""
HEAD_BYTES = 64
INDEX_SUFFIX = ".safetensors.index.json"
SHARD = re.compile(r"(?P<prefix>.+)-\d+-of-\d+\.safetensors")
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def check_structure(files: Iterable[ModelFile], locate: Callable[[str], Path]) -> None:
    """Raise HubError for the first file that no engine could load; *locate* gives the place of a path."""
    paths = {file.path: file for file in files}
    for path, file in sorted(paths.items()):
        if file.size <= LFS_POINTER_MAX and _head(locate(path), len(LFS_POINTER)) == LFS_POINTER:
            raise _broken(path, f"is {describe_head(LFS_POINTER)}")
        if path in CONFIGS:
            _parse_json(path, locate(path))
    weights = sorted(path for path in paths if path.endswith(".safetensors"))
    # Before the headers, so that of these one at a time is in memory.
    named = {
        path: _read_index(path, _parse_json(path, locate(path)), weights)
        for path in sorted(paths)
        if path.endswith(INDEX_SUFFIX)
    }
    for path in weights:
        held = read_tensor_names(path, locate(path), paths[path].size)
        for index, shards in named.items():
            for tensor in sorted(shards.get(path, set()) - held):
                raise _broken(index, f"says that {tensor!r} is in {path!r}, which does not hold it")
    _check_unnamed(named, weights)


def read_tensor_names(path: str, location: Path, size: int) -> set[str]:
    """The tensors that a safetensors file holds; raises HubError where header and length do not agree."""
    with location.open("rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 2 <= length <= min(HEADER_MAX, size - 8):
            raise _broken(
                path,
                f"has no safetensors header (header length {length}, file {size} bytes): it begins with "
                f"{describe_head(_head(location, HEAD_BYTES))}",
            )
        text = handle.read(length)
    try:
        # Of each tensor only its place is kept: a header may be large.
        header = json.loads(text, object_pairs_hook=_places)
        if not isinstance(header, dict):
            raise TypeError("it is no object")
        names = {name for name in header if name != "__metadata__"}
        spans = [(int(first), int(last)) for first, last in (header[name] for name in names)]
        sound = all(0 <= first <= last for first, last in spans)
        end = max((last for _first, last in spans), default=0)
    except (ValueError, TypeError, KeyError) as error:
        raise _broken(path, f"has a safetensors header that does not parse ({error})") from error
    except RecursionError as error:
        raise _broken(path, "has a safetensors header that is nested too deeply") from error
    if not sound or 8 + length + end != size:
        raise _broken(path, f"is {size} bytes long, but its header describes {8 + length + end}")
    return names


def describe_head(head: bytes) -> str:
    """What the first bytes of a file are, in words, else as digits."""
    for start, meaning in HEADS:
        if head.lower().startswith(start.lower()):
            return meaning
    return f"the bytes {head[:8].hex()}" if head else "nothing"


def _places(pairs: list[tuple[str, Any]]) -> Any:
    """A tensor's description as its first and last byte; anything else as it is."""
    found = dict(pairs)
    return found["data_offsets"] if isinstance(found.get("data_offsets"), list) else found


def _read_index(path: str, index: Any, weights: Iterable[str]) -> dict[str, set[str]]:
    """The tensors that an index says to be in each of the files that it names."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise _broken(path, "has no weight_map")
    found: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        found.setdefault(posixpath.join(posixpath.dirname(path), str(name)), set()).add(tensor)
    for shard in sorted(set(found) - set(weights)):
        raise _broken(path, f"names the file {shard!r}, which is not part of the revision")
    return found


def _check_unnamed(named: Mapping[str, Iterable[str]], weights: Iterable[str]) -> None:
    """Refuse a shard beside an index of shards with the same beginning, if no index beside it names it.

    Other weights may lie beside them, such as one file with all of them for another engine.
    """
    known = {shard for shards in named.values() for shard in shards}
    begun = {path[: -len(INDEX_SUFFIX)]: path for path in named}
    for path, shards in named.items():
        begun.update({match["prefix"]: path for match in map(SHARD.fullmatch, shards) if match})
    for path in sorted(set(weights) - known):
        match = SHARD.fullmatch(path)
        if match and match["prefix"] in begun:
            raise _broken(path, f"is a shard that {begun[match['prefix']]} does not name")


def _parse_json(path: str, location: Path) -> Any:
    with location.open("rb") as handle:
        raw = handle.read(JSON_MAX + 1)
    if len(raw) > JSON_MAX:
        raise _broken(path, f"is larger than {JSON_MAX >> 20} MiB, which no configuration is")
    try:
        text = raw.decode(json.detect_encoding(raw))
        # It may be large, and is wanted once.
        del raw
        return json.loads(text)
    except ValueError as error:
        raise _broken(path, f"is no valid JSON ({error})") from error
    except RecursionError as error:
        raise _broken(path, "is nested too deeply") from error


def _head(location: Path, count: int) -> bytes:
    with location.open("rb") as handle:
        return handle.read(count)


def _broken(path: str, fault: str) -> HubError:
    return HubError(
        f"{path} {fault}: the hub holds a broken upload; nothing was activated, choose another revision", file=path
    )
