# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the files of a model fit together, before an engine sees them. Private to socle.inference.

Hashes prove that the files are those of the hub; this finds what is wrong on the hub itself: pointers in place of
weights, truncated uploads, an index that names a shard which is not there.
"""

from __future__ import annotations

import json
import posixpath
import struct
from collections.abc import Callable, Iterable
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
HEAD_BYTES = 64
INDEX_SUFFIX = ".safetensors.index.json"
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def check_structure(files: Iterable[ModelFile], locate: Callable[[str], Path]) -> None:
    """Raise HubError for the first file that no engine could load; *locate* gives the place of a path."""
    paths = {file.path: file for file in files}
    headers: dict[str, set[str]] = {}
    for path, file in sorted(paths.items()):
        if file.size <= LFS_POINTER_MAX and _head(locate(path), len(LFS_POINTER)) == LFS_POINTER:
            raise _broken(path, f"is {describe_head(LFS_POINTER)}")
        if path.endswith(".safetensors"):
            headers[path] = read_tensor_names(path, locate(path), file.size)
        elif path in CONFIGS:
            _parse_json(path, locate(path))
    for path in sorted(paths):
        if path.endswith(INDEX_SUFFIX):
            _check_index(path, _parse_json(path, locate(path)), headers)


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
        raw = handle.read(length)
    try:
        header = json.loads(raw)
        names = {name for name in header if name != "__metadata__"}
        spans = [header[name]["data_offsets"] for name in names]
        sound = all(isinstance(first, int) and 0 <= first <= last for first, last in spans)
        end = max((last for _first, last in spans), default=0)
    except (ValueError, TypeError, KeyError) as error:
        raise _broken(path, f"has a safetensors header that does not parse ({error})") from error
    if not sound or 8 + length + end != size:
        raise _broken(path, f"is {size} bytes long, but its header describes {8 + length + end}")
    return names


def describe_head(head: bytes) -> str:
    """What the first bytes of a file are, in words, else as digits."""
    for start, meaning in HEADS:
        if head.lower().startswith(start.lower()):
            return meaning
    return f"the bytes {head[:8].hex()}" if head else "nothing"


def _check_index(path: str, index: Any, headers: dict[str, set[str]]) -> None:
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise _broken(path, "has no weight_map")
    for tensor, name in sorted(weight_map.items()):
        shard = posixpath.join(posixpath.dirname(path), str(name))
        if shard not in headers:
            raise _broken(path, f"names the file {name!r}, which is not part of the revision")
        if tensor not in headers[shard]:
            raise _broken(path, f"says that {tensor!r} is in {name!r}, which does not hold it")


def _parse_json(path: str, location: Path) -> Any:
    try:
        return json.loads(location.read_bytes())
    except ValueError as error:
        raise _broken(path, f"is no valid JSON ({error})") from error


def _head(location: Path, count: int) -> bytes:
    with location.open("rb") as handle:
        return handle.read(count)


def _broken(path: str, fault: str) -> HubError:
    return HubError(
        f"{path} {fault}: the hub holds a broken upload; nothing was activated, choose another revision", file=path
    )
