# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the files of a model fit together, before an engine sees them. Private to socle.inference.

Hashes prove that the files are those of the hub; this finds what is wrong on the hub itself: pointers in place of
weights, truncated uploads, an index that names a shard which is not there, a shard that no index names.
"""

from __future__ import annotations

import os
import posixpath
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import HubError
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import TooMuch, read_events
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
TENSORS_MAX = 1_000_000
"""The largest models have 150 000."""
HEAD_BYTES = 64
METADATA = "__metadata__"
WEIGHT_MAP = "weight_map"
OFFSET = re.compile(r"-?[0-9]{1,18}")
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
            for _event in _read_json(path, locate(path)):
                pass
    weights = sorted(path for path in paths if path.endswith(".safetensors"))
    named: dict[str, dict[str, array[int]]] = {}
    room = TENSORS_MAX
    for path in sorted(paths):
        if path.endswith(INDEX_SUFFIX):
            named[path] = _read_index(path, locate(path), weights, room)
            room -= sum(map(len, named[path].values()))
    for path in weights:
        held = read_tensors(path, locate(path), paths[path].size)
        for index, shards in named.items():
            strange = set(shards.get(path, ())) - held
            if strange:
                tensor = next(name for name, _shard in _read_weight_map(index, locate(index)) if hash(name) in strange)
                raise _broken(index, f"says that {tensor[:200]!r} is in {path!r}, which does not hold it")
    _check_unnamed(named, weights)


def read_tensors(path: str, location: Path, size: int) -> set[int]:
    """The hashes of the names of the tensors that a safetensors file holds, which take less memory than the names;
    raises HubError where header and length do not agree."""
    with location.open("rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
        if not 2 <= length <= min(HEADER_MAX, size - 8):
            raise _broken(
                path,
                f"has no safetensors header (header length {length}, file {size} bytes): it begins with "
                f"{describe_head(_head(location, HEAD_BYTES))}",
            )
        names: set[int] = set()
        end, sound = 0, True
        try:
            for name, first, last in _read_header(read_events(handle, length)):
                names.add(hash(name))
                end, sound = max(end, last), sound and 0 <= first <= last
        except TooMuch as error:
            raise _broken(path, f"has a safetensors header that {error}") from error
        except ValueError as error:
            raise _broken(path, f"has a safetensors header that does not parse ({error})") from error
    if not sound or 8 + length + end != size:
        raise _broken(path, f"is {size} bytes long, but its header describes {8 + length + end}")
    return names


def _read_header(events: Iterator[tuple[str, str]]) -> Iterator[tuple[str, int, int]]:
    """Name, first and last byte of each tensor; raises ValueError for a header that does not say them."""
    depth, name, key = 0, "", ""
    offsets: list[int] = []
    for kind, text in events:
        if depth < 2 and kind not in ("key", "{", "}") and name != METADATA:
            raise ValueError(f"{name[:200]!r} is no tensor" if depth else "it is no object")
        if kind in ("{", "["):
            depth += 1
            if depth == 2:
                key, offsets = "", []
        elif kind in ("}", "]"):
            depth -= 1
            if depth == 1 and name != METADATA:
                if len(offsets) != 2:
                    raise ValueError(f"{name[:200]!r} has no data_offsets of two numbers")
                yield name, offsets[0], offsets[1]
        elif kind == "key" and depth == 1:
            name = text
        elif kind == "key" and depth == 2:
            key = text
        elif key == "data_offsets" and name != METADATA:
            if depth != 3 or kind != "word" or not OFFSET.fullmatch(text) or len(offsets) == 2:
                raise ValueError(f"{name[:200]!r} has no data_offsets of two numbers")
            offsets.append(int(text))


def describe_head(head: bytes) -> str:
    """What the first bytes of a file are, in words, else as digits."""
    for start, meaning in HEADS:
        if head.lower().startswith(start.lower()):
            return meaning
    return f"the bytes {head[:8].hex()}" if head else "nothing"


def _read_index(path: str, location: Path, weights: Sequence[str], room: int) -> dict[str, array[int]]:
    """The hashes of the names of the tensors, at most *room*, that an index says to be in each file that it names."""
    found: dict[str, array[int]] = {}
    known, folder = set(weights), posixpath.dirname(path)
    for tensor, name in _read_weight_map(path, location):
        shard = posixpath.join(folder, name)
        if shard not in known:
            raise _broken(path, f"names the file {shard[:1024]!r}, which is not part of the revision")
        found.setdefault(shard, array("q")).append(hash(tensor))
        room -= 1
        if room < 0:
            raise _broken(path, f"brings the tensors that are named to more than {TENSORS_MAX}, which no model has")
    return found


def _read_weight_map(path: str, location: Path) -> Iterator[tuple[str, str]]:
    """Tensor and file of each entry of an index."""
    depth, top, tensor = 0, "", ""
    inside = found = False
    for kind, text in _read_json(path, location):
        if kind in ("{", "["):
            depth += 1
            if depth == 2 and kind == "{" and top == WEIGHT_MAP:
                inside = found = True
        elif kind in ("}", "]"):
            depth -= 1
            inside = inside and depth > 1
        elif kind == "key" and depth == 1:
            top = text
        elif kind == "key" and depth == 2:
            tensor = text
        elif inside and depth == 2 and kind == "text":
            yield tensor, text
            continue
        if inside and (depth > 2 or kind == "word"):
            raise _broken(path, f"names no file for {tensor[:200]!r}")
    if not found:
        raise _broken(path, f"has no {WEIGHT_MAP}")


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


def _read_json(path: str, location: Path) -> Iterator[tuple[str, str]]:
    """The events of a JSON file; raises HubError where it is none."""
    with location.open("rb") as handle:
        length = os.fstat(handle.fileno()).st_size
        if length > JSON_MAX:
            raise _broken(path, f"is larger than {JSON_MAX >> 20} MiB, which no configuration is")
        try:
            yield from read_events(handle, length)
        except TooMuch as error:
            raise _broken(path, str(error)) from error
        except ValueError as error:
            raise _broken(path, f"is no valid JSON ({error})") from error


def _head(location: Path, count: int) -> bytes:
    with location.open("rb") as handle:
        return handle.read(count)


def _broken(path: str, fault: str) -> HubError:
    return HubError(
        f"{path} {fault}: the hub holds a broken upload; nothing was activated, choose another revision", file=path
    )
