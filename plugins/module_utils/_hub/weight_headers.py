# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the weights of models in a store are made of, by the headers of their files; only looks. Private to
socle.inference.

Whoever filled the store proved its files; here nothing is hashed, and nobody is trusted: sizes, counts and memory have
bounds, and what is wrong with a model becomes one sentence about it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import PlanError, SocleError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.catalog import check_root
from ansible_collections.socle.inference.plugins.module_utils._hub.json_stream import json_cost
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.tree import open_regular
from ansible_collections.socle.inference.plugins.module_utils._plan.tensors import (
    HEADER_LENGTH_BYTES,
    HEADER_LIMIT_BYTES,
    Tensor,
    TensorGroup,
    group,
    header_bytes,
    parse_header,
)

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
OTHER_FORMAT = "consolidated"
"""How the files begin that hold the same weights once more, by names that another engine knows."""


@dataclass(frozen=True)
class Bounds:
    """How much of a model is read at most."""

    files: int = 2_000
    """The largest models have some hundreds."""
    headers_bytes: int = 256_000_000
    """Of all files together; the largest models have 20 MB. Each file has at most what the format allows."""
    memory_bytes: int = 256 << 20
    """For one header or index, once it is parsed."""
    tensors: int = 1_000_000
    """The largest models have 150 000."""


BOUNDS = Bounds()


def describe_weights(
    root: Path, source: str, models: Iterable[Mapping[str, Any]], bounds: Bounds = BOUNDS
) -> dict[str, dict[str, Any]]:
    """What model_weights_info returns as weights: by repository, without those that the store does not hold.

    Each of *models* has repo, revision and, where it is known, layers. What is wrong with the store itself is told by
    those who are to change it.
    """
    try:
        if check_root(root) is None:
            return {}
    except (SocleError, OSError):
        return {}
    found = {}
    for model in models:
        described = _of_model(root, source, model, bounds)
        if described is not None:
            found[model["repo"]] = described
    return found


def _of_model(root: Path, source: str, model: Mapping[str, Any], bounds: Bounds) -> dict[str, Any] | None:
    """What the store says of one model; None where it does not hold it."""
    try:
        store = RepoStore(root, source, model["repo"])
        manifest = store.known(model["revision"], store.read_ledger())
        # Without its folder it is a download that was cut off.
        if manifest is None or not store.revision(manifest.id).is_dir():
            return None
    except SocleError as error:
        return _described(None, (), error.message)
    except OSError as error:
        return _described(None, (), f"{error.filename or root} cannot be read ({error.strerror})")
    return _of_snapshot(store.revision(manifest.id), manifest, model.get("layers"), bounds)


def _of_snapshot(folder: Path, manifest: Manifest, layers: int | None, bounds: Bounds) -> dict[str, Any]:
    try:
        return _described(manifest, group(_tensors(folder, manifest, bounds), layers))
    except OSError as error:
        return _described(manifest, (), f"{error.filename or folder} cannot be read ({error.strerror})")
    except SocleError as error:
        return _described(manifest, (), error.message)


def _described(manifest: Manifest | None, groups: tuple[TensorGroup, ...], fault: str | None = None) -> dict[str, Any]:
    return {
        "content_id": manifest.content_id if manifest else None,
        "files": len(weight_files(manifest.files)) if manifest else 0,
        "tensors": sum(each.count for each in groups),
        "bytes": sum(each.size_bytes for each in groups),
        "groups": [each.as_dict() for each in groups],
        "fault": fault,
    }


def weight_files(files: Iterable[ModelFile]) -> list[ModelFile]:
    """Those of a model's files that an engine loads weights from, as far as their names tell."""
    found = [file for file in files if file.path.endswith(SUFFIX) and "/" not in file.path]
    return [file for file in found if not file.path.startswith(OTHER_FORMAT)] or found


def _tensors(folder: Path, manifest: Manifest, bounds: Bounds) -> Iterator[Tensor]:
    """All tensors that an engine loads, file by file; raises PlanError or StoreError, and OSError with its file."""
    files = _loaded(folder, manifest, bounds)
    if not files:
        raise StoreError(f"{manifest.repo} has no file whose name ends in {SUFFIX}")
    if len(files) > bounds.files:
        raise StoreError(f"{manifest.repo} has {len(files)} files of weights, more than {bounds.files}")
    count, left = 0, bounds.headers_bytes
    for file in files:
        header = _read_header(folder, file, left)
        left -= len(header)
        _check_cost(header[HEADER_LENGTH_BYTES:], folder / file.path, bounds)
        here = parse_header(header, str(folder / file.path))
        data = file.size - len(header)
        if sum(tensor.size_bytes for tensor in here) > data:
            raise PlanError(f"{folder / file.path} has tensors of more than the {data} bytes behind its header")
        count += len(here)
        if count > bounds.tensors:
            raise StoreError(f"{manifest.repo} has more than {bounds.tensors} tensors, which no model has")
        yield from here


def _loaded(folder: Path, manifest: Manifest, bounds: Bounds) -> list[ModelFile]:
    """The files of weights, of which an index chooses where there is one, as the engine does it."""
    files = weight_files(manifest.files)
    index = next((file for file in manifest.files if file.path == INDEX), None)
    if index is None or len(files) == 1:
        return files
    if index.size > HEADER_LIMIT_BYTES:
        raise StoreError(f"{folder / INDEX} has {index.size} bytes, more than any index of weights")
    body = _read(folder, index, index.size)
    _check_cost(body, folder / INDEX, bounds)
    try:
        named = set(json.loads(body)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{folder / INDEX} is no index of weights ({str(error)[:120]})") from error
    chosen = [file for file in manifest.files if file.path in named]
    if len(chosen) != len(named):
        raise StoreError(f"{folder / INDEX} names {len(named)} files, of which the model has {len(chosen)}")
    return chosen


def _check_cost(body: bytes, place: Path, bounds: Bounds) -> None:
    if json_cost(body) > bounds.memory_bytes:
        raise StoreError(
            f"{place} describes its tensors in {len(body)} bytes, which would take more than "
            f"{bounds.memory_bytes >> 20} MiB of memory"
        )


def _read_header(folder: Path, file: ModelFile, left: int) -> bytes:
    """The header with its length in front; what is cut off or none is left to parse_header()."""
    beginning = _read(folder, file, HEADER_LENGTH_BYTES)
    wanted = header_bytes(beginning)
    if len(beginning) < HEADER_LENGTH_BYTES or wanted > HEADER_LENGTH_BYTES + HEADER_LIMIT_BYTES:
        return beginning
    if wanted > left:
        raise StoreError(f"{folder / file.path} brings the headers of its model to more than any model has")
    return _read(folder, file, wanted)


def _read(folder: Path, file: ModelFile, length: int) -> bytes:
    """The first *length* bytes of a regular file of the size that its manifest says; never waits for a pipe."""
    place = folder / file.path
    descriptor = open_regular(place)
    try:
        status = os.fstat(descriptor)
        if status.st_size != file.size:
            raise StoreError(f"{place} has {status.st_size} bytes, expected {file.size}")
        with os.fdopen(descriptor, "rb", closefd=False) as handle:
            return handle.read(length)
    finally:
        os.close(descriptor)
