# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the weights of a model in the store are made of, and what becomes of files that nobody should trust."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.weight_headers import (
    BOUNDS,
    Bounds,
    describe_weights,
    weight_files,
)

from tests.support.model_store import hold, safetensors

REPO = "org/Small"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def held(files: dict[str, bytes], store: Path, **sizes: int) -> Path:
    """The folder of a model with *files*; WEIGHTS ends after *weights* bytes."""
    manifest = hold(store, REPO, files, {WEIGHTS: sizes["weights"]} if sizes else None)
    return RepoStore(store, "modelscope", REPO).revision(manifest.id)


def described(store: Path, bounds: Bounds = BOUNDS, **model: Any) -> dict[str, Any]:
    return describe_weights(store, "modelscope", [{"repo": REPO, "revision": "master", **model}], bounds)[REPO]


def whole(tensors: dict[str, int]) -> bytes:
    return safetensors(tensors) + bytes(sum(tensors.values()))


def test_tensors_come_back_as_a_few_sums(store: Path) -> None:
    layers = {
        f"model.layers.{number}.{name}.weight": size
        for number in range(30)
        for name, size in (("self_attn.k_proj", 40), ("mlp.up_proj", 400), ("input_layernorm", 4))
    }
    manifest = hold(store, REPO, {WEIGHTS: whole({**layers, "lm_head.weight": 1000}), "config.json": b"{}"})
    found = described(store)
    assert (found["content_id"], found["files"], found["tensors"], found["fault"]) == (manifest.content_id, 1, 91, None)
    assert found["bytes"] == 30 * 444 + 1000
    plain = {"mtp": False, "float32": False}
    assert found["groups"] == [
        {"part": "kv", "replicated": False, "bytes": 1200, "tensors": 30, **plain},
        {"part": "lm_head", "replicated": False, "bytes": 1000, "tensors": 1, **plain},
        {"part": "text", "replicated": False, "bytes": 12000, "tensors": 30, **plain},
        {"part": "text", "replicated": True, "bytes": 120, "tensors": 30, **plain},
    ]


def test_layers_beyond_those_of_the_model_are_told_apart(store: Path) -> None:
    hold(store, REPO, {WEIGHTS: whole({"model.layers.0.a": 8, "model.layers.1.a": 16})})
    assert [each["mtp"] for each in described(store, layers=1)["groups"]] == [False, True]
    assert [each["mtp"] for each in described(store)["groups"]] == [False]


def test_the_files_are_those_that_an_engine_loads(store: Path) -> None:
    """By the index; without one, neither what lies in folders nor the same weights in another format."""
    files = {
        "model-00001-of-00002.safetensors": whole({"a": 1}),
        "model-00002-of-00002.safetensors": whole({"b": 2}),
        "mtp.safetensors": whole({"mtp.c": 4}),
        "consolidated.safetensors": whole({"a": 1, "b": 2}),
        "original/model.safetensors": whole({"a": 1, "b": 2}),
    }
    hold(store, REPO, files)
    assert (described(store)["files"], described(store)["bytes"]) == (3, 7)
    named = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    hold(store, REPO, {**files, INDEX: json.dumps({"weight_map": named}).encode()})
    assert described(store)["bytes"] == 3
    assert [file.path for file in weight_files([ModelFile("consolidated.safetensors", 1, "")])] == [
        "consolidated.safetensors"
    ]


def test_what_the_store_does_not_hold_is_left_out(store: Path) -> None:
    wanted = [{"repo": REPO, "revision": "master"}]
    assert describe_weights(store, "modelscope", wanted) == {}
    folder = held({WEIGHTS: whole({"a": 1})}, store)
    assert describe_weights(store, "huggingface", wanted) == {}
    assert describe_weights(store, "modelscope", [{"repo": REPO, "revision": "v2"}]) == {}
    # A download that was cut off has a manifest and no folder yet.
    folder.rename(folder.with_name("gone"))
    assert describe_weights(store, "modelscope", wanted) == {}


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])


def replaced(content: bytes) -> Callable[[Path], None]:
    """Another content of the same length."""

    def act(folder: Path) -> None:
        place = folder / WEIGHTS
        size = place.stat().st_size
        place.write_bytes(content)
        os.truncate(place, size)

    return act


def linked(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "elsewhere")
    (folder / WEIGHTS).symlink_to("elsewhere")


def piped(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (cut, r"has 4\d+ bytes, expected 4\d+$"),
        (lambda folder: (folder / WEIGHTS).unlink(), r"cannot be read \(No such file"),
        (linked, r"cannot be read \(Too many levels"),
        (piped, r"cannot be read \(it is no regular file\)$"),
        (replaced(b"\xff" * 64), r"should begin with a safetensors header of \d+ bytes"),
        (replaced((10**6).to_bytes(8, "little")), r"header of 1000000 bytes, but \d+ are there$"),
        (replaced(header(b"[" * 300)), r"cannot be read \("),
        (replaced(header(b"[]")), r"cannot be read \("),
        (replaced(header(b'{"a": {"data_offsets": [0, "\x1b[2J"]}}')), r"cannot be read \("),
        (replaced(header(b'{"a": {"data_offsets": [0, "\\u001b[2J"]}}')), r"are 0 and '\\x1b\[2J'\)$"),
        (replaced(header(b'{"a": {"data_offsets": [0, 99999]}}')), r"tensors of more than the \d+ bytes behind"),
        (replaced(header(b'{"a": {"data_offsets": [8, 0]}}')), r"data_offsets are 8 and 0"),
    ],
)
def test_a_file_that_is_no_model_s_is_one_sentence(act: Callable[[Path], object], said: str, store: Path) -> None:
    folder = held({WEIGHTS: whole({"a": 300})}, store)
    act(folder)
    found = described(store)
    assert (found["groups"], found["bytes"], found["tensors"]) == ([], 0, 0)
    assert found["fault"].startswith(f"{folder}/{WEIGHTS} ") and re.search(said, found["fault"])
    assert found["fault"].isprintable() and len(found["fault"]) < 400


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"files": 1}, "has 2 files of weights, more than 1"),
        ({"headers_bytes": 200}, "brings the headers of its model to more than any model has"),
        ({"memory_bytes": 100}, "would take more than 0 MiB of memory"),
        ({"tensors": 3}, "has more than 3 tensors"),
    ],
)
def test_no_more_is_read_than_a_model_needs(bounds: dict[str, int], said: str, store: Path) -> None:
    hold(store, REPO, {"a.safetensors": whole({"a": 1, "b": 1}), "b.safetensors": whole({"c": 1, "d": 1})})
    assert described(store)["tensors"] == 4
    assert said in described(store, Bounds(**bounds))["fault"]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (b'{"weight_map": {"a": "../../secret.safetensors"}}', "names 1 files, of which the model has 0"),
        (b'{"weight_map": {"a": {"b": 1}}}', "is no index of weights"),
        (b'{"weight_map": [', "is no index of weights"),
        (b"[" * 5000, "is no index of weights"),
    ],
)
def test_an_index_chooses_among_the_files_of_the_model_alone(index: bytes, said: str, store: Path) -> None:
    hold(store, REPO, {"a.safetensors": whole({"a": 1}), "b.safetensors": whole({"b": 1}), INDEX: index})
    assert said in described(store)["fault"]


def test_only_the_header_of_a_large_file_is_read(store: Path) -> None:
    """A hole of 60 GiB, which nothing could read through within a test."""
    size = 60 << 30
    content = safetensors({"a": size})
    held({WEIGHTS: content}, store, weights=len(content) + size)
    assert described(store)["bytes"] == size


def test_a_model_without_safetensors_is_a_fault_of_its_own(store: Path) -> None:
    hold(store, REPO, {"pytorch_model.bin": b"x"})
    assert described(store)["fault"] == f"{REPO} has no file whose name ends in .safetensors"


def test_what_is_wrong_with_the_store_itself_is_left_to_those_who_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".store").symlink_to(tmp_path)
    assert describe_weights(tmp_path, "modelscope", [{"repo": REPO, "revision": "master"}]) == {}

    def refuse(place: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    monkeypatch.setattr(Path, "is_symlink", refuse)
    assert describe_weights(tmp_path, "modelscope", [{"repo": REPO, "revision": "master"}]) == {}


def test_a_revision_that_cannot_be_looked_at_is_a_fault_of_its_model(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held({WEIGHTS: safetensors({"a": 8})}, store)

    def refuse(self: RepoStore, snapshot: str) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied", snapshot)

    monkeypatch.setattr(RepoStore, "revision", refuse)
    assert "cannot be read (Permission denied)" in described(store)["fault"]


def test_a_source_that_there_is_not_is_a_fault_of_its_models(store: Path) -> None:
    held({WEIGHTS: safetensors({"a": 8})}, store)
    found = describe_weights(store, "hf", [{"repo": REPO, "revision": "master"}])
    assert found[REPO]["fault"] == "the store keeps models of modelscope, huggingface, directory, and none of 'hf'"
