# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Listings that must not be believed, and what identifies a snapshot."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import (
    ModelFile,
    head_commit,
    parse_files,
    parse_page,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest, content_id, loads
from ansible_collections.socle.inference.plugins.module_utils._hub.structure import JSON_MAX, check_structure

from tests.simulators.hub.server import HubSimulator

SHA = "ab" * 32
WHEN = "2026-11-30T09:28:44Z"


def blob(path: Any, size: Any = 1, sha256: Any = SHA) -> dict[str, Any]:
    return {"Path": path, "Type": "blob", "Size": size, "Sha256": sha256}


HOSTILE: dict[str, tuple[list[dict[str, Any]], str]] = {
    "parent": ([blob("../evil.json")], "leaves its folder"),
    "parent inside": ([blob("a/../../evil")], "leaves its folder"),
    "dot": ([blob("./a")], "leaves its folder"),
    "empty component": ([blob("a//b")], "leaves its folder"),
    "trailing slash": ([blob("a/")], "leaves its folder"),
    "absolute": ([blob("/etc/cron.d/evil")], "absolute"),
    "backslash": ([blob("..\\evil")], "backslash"),
    "NUL": ([blob("a\0b")], "control character"),
    "newline": ([blob("a\nb")], "control character"),
    "surrogate": ([blob("a\ud800")], "Unicode"),
    "no path": ([{"Type": "blob", "Size": 1, "Sha256": SHA}], "is empty"),
    "path is a number": ([blob(7)], "is empty"),
    "long component": ([blob("é" * 128)], "255 bytes"),
    "long path": ([blob("/".join(["abcdefgh"] * 200))], "1024 bytes"),
    "no sha256": ([blob("a", sha256=None)], "no SHA-256"),
    "empty sha256": ([blob("a", sha256="")], "no SHA-256"),
    "short sha256": ([blob("a", sha256="ab")], "no SHA-256"),
    "negative size": ([blob("a", size=-1)], "impossible size"),
    "size is text": ([blob("a", size="1")], "impossible size"),
    "size is true": ([blob("a", size=True)], "impossible size"),
    "size of 321 digits": ([blob("a", size=10**320)], "more than 8 PiB"),
    "sizes that add up": ([blob("a", size=1 << 52), blob("b", size=1 << 52), blob("c")], "'c' brings the model to"),
    "no size": ([{"Path": "a", "Sha256": SHA}], "impossible size"),
    "duplicate": ([blob("a"), blob("a")], "collides"),
    "case": ([blob("Config.json"), blob("config.json")], "collides"),
    "composed": ([blob("caf\u00e9"), blob("cafe\u0301")], "collides"),
    "file and folder": ([blob("a"), blob("a/b")], "a file and a folder"),
}


@pytest.mark.parametrize(("entries", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_listings_are_refused(entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(HubError, match=message):
        parse_files(entries)


def test_a_hostile_listing_over_the_wire_writes_nothing(
    ensure: Callable[..., dict[str, Any]], hub: HubSimulator, store: Path
) -> None:
    hub.add_rule(path="/repo/files", files=[blob("config.json"), blob("../evil.json")])
    with pytest.raises(HubError, match="nothing was downloaded"):
        ensure()
    assert not store.exists()
    assert len(hub.requests) == 1


@pytest.mark.parametrize("document", [None, [], {}, {"Data": None}, {"Data": {}}, {"Data": {"Files": 3}}])
def test_an_answer_that_is_no_listing_is_refused(document: Any) -> None:
    with pytest.raises(HubError):
        parse_page(document)


def test_no_files_are_an_unknown_revision_not_an_empty_model() -> None:
    assert parse_page({"Data": {"Files": None, "LatestCommitter": None}}).entries == ()


def test_folders_are_no_files() -> None:
    assert [file.path for file in parse_files([{"Path": "a", "Type": "tree"}, blob("a/b")])] == ["a/b"]


@pytest.mark.parametrize(
    ("revisions", "short_id", "commit"),
    [
        (["a" * 40, "b" * 40], "b" * 8, "b" * 40),
        (["a" * 40, "B" * 40], "b" * 8, "b" * 40),
        (["a" * 40], "b" * 8, None),
        (["a" * 40], None, None),
        (["a" * 40], "a", None),
        (["a" * 40, "a" * 39 + "b"], "a" * 8, None),
    ],
)
def test_the_head_commit_is_found_by_its_first_digits(
    revisions: list[str], short_id: str | None, commit: str | None
) -> None:
    assert head_commit([{"Revision": revision} for revision in revisions], short_id) == commit


def test_content_alone_makes_the_content_id() -> None:
    files = (ModelFile("b", 1, SHA), ModelFile("a", 2, "cd" * 32))
    # printf '%s %s %s\n' <sha256> <size> <path> | LC_ALL=C sort | sha256sum
    assert content_id(files) == "sha256:094dd2f38144493b5a792081cdd48cd217bc1f316cb7dbf293d6a3efc6cd59c3"
    assert content_id(reversed(files)) == content_id(files)
    assert content_id([*files, ModelFile("c", 0, SHA)]) != content_id(files)


def test_a_manifest_survives_its_file_and_changes_to_it_do_not() -> None:
    files = (ModelFile("a", 2, "cd" * 32, True), ModelFile("b", 1, SHA))
    manifest = Manifest("modelscope", "Org/Model", "master", "a" * 40, "given", files, "2026-11-30T09:28:44Z")
    assert loads(manifest.dumps()) == manifest
    for wrong in ("", "[]", "{}", manifest.dumps().replace('"size": 2', '"size": 3'), manifest.dumps()[:-20]):
        with pytest.raises(StoreError):
            loads(wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hub", "/etc"),
        ("hub", "../.."),
        ("hub", "elsewhere"),
        ("hub", ["modelscope"]),
        ("repo", "../../etc/cron.d"),
        ("repo", "/etc/cron.d"),
        ("repo", "Org/Model/.."),
        ("repo", "Org--Model/x"),
        ("repo", "Org"),
        ("repo", None),
        ("requested", "a b"),
        ("requested", ""),
        ("requested", 7),
        ("commit", "abc"),
        ("commit", 7),
        ("commit_from", None),
        ("created", 7),
        ("created", {}),
        ("commit_from", "\udfff"),
        ("created", "\ud800"),
        ("created", "\x1b[2J"),
        ("created", "2026-11-30T09:28:44Z\n"),
        ("created", "x" * 3_000_000),
    ],
)
def test_a_manifest_with_names_that_no_path_may_hold_is_refused(name: str, value: Any) -> None:
    manifest = Manifest("modelscope", "Org/Model", "master", None, "none", (ModelFile("a", 1, SHA),), WHEN)
    document = json.loads(manifest.dumps())
    place = document if name == "created" else document["source"]
    assert name in place
    place[name] = value
    with pytest.raises(StoreError, match=r"a manifest (names|has|is damaged)") as refused:
        loads(json.dumps(document))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


def test_a_manifest_nested_too_deeply_is_refused() -> None:
    with pytest.raises(StoreError, match="nested too deeply"):
        loads("[" * 100_000 + "]" * 100_000)


def test_a_manifest_that_would_take_much_memory_is_not_parsed(tmp_path: Path) -> None:
    text = '{"schema": 1, "files": [' + "{}," * 400_000 + "{}]}"
    (tmp_path / "manifest.json").write_bytes(text.encode() + b" " * (64 << 20))

    def refuse() -> None:
        with pytest.raises(StoreError, match="larger than that of any model"):
            loads(text)
        # No export of ours, so a file of the model.
        found = make_hub("directory", path=str(tmp_path)).resolve("Org/Model", "master")
        assert [file.path for file in found.files] == ["manifest.json"]

    assert peak_bytes(refuse) < 24 << 20


def tensor_file(header: Any, data: int, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data)


GOOD = {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}, "__metadata__": {"format": "pt"}}
STRUCTURES: dict[str, tuple[dict[str, bytes], str | None]] = {
    "good": ({"m.safetensors": tensor_file(GOOD, 4), "config.json": b"{}"}, None),
    "good index": (
        {"m.safetensors": tensor_file(GOOD, 4), "m.safetensors.index.json": b'{"weight_map": {"w": "m.safetensors"}}'},
        None,
    ),
    "truncated": ({"m.safetensors": tensor_file(GOOD, 3)}, "its header describes"),
    "longer": ({"m.safetensors": tensor_file(GOOD, 5)}, "its header describes"),
    "tiny": ({"m.safetensors": b"abc"}, "no safetensors header"),
    "huge header": ({"m.safetensors": tensor_file(GOOD, 4, 1 << 60)}, "no safetensors header"),
    "no JSON": ({"m.safetensors": tensor_file(b"{{{{", 4)}, "does not parse"),
    "header is a list": ({"m.safetensors": tensor_file(b"[1, 2]", 4)}, "does not parse"),
    "negative offsets": (
        {"m.safetensors": tensor_file({"w": {"data_offsets": [-4, 4]}}, 4)},
        "its header describes",
    ),
    "offsets are text": ({"m.safetensors": tensor_file({"w": {"data_offsets": ["a", "b"]}}, 4)}, "does not parse"),
    "no offsets": ({"m.safetensors": tensor_file({"w": {"a": 1, "b": 2}}, 4)}, "does not parse"),
    "pointer": (
        {"m.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"},
        "Git LFS pointer",
    ),
    "missing shard": (
        {"m.safetensors.index.json": b'{"weight_map": {"w": "n.safetensors"}}'},
        "not part of the revision",
    ),
    "tensor elsewhere": (
        {"m.safetensors": tensor_file(GOOD, 4), "m.safetensors.index.json": b'{"weight_map": {"v": "m.safetensors"}}'},
        "does not hold it",
    ),
    "shard that the index does not name": (
        {
            "m-00001-of-00002.safetensors": tensor_file(GOOD, 4),
            "m-00002-of-00002.safetensors": tensor_file({"v": {"data_offsets": [0, 4]}}, 4),
            "m.safetensors.index.json": b'{"weight_map": {"w": "m-00001-of-00002.safetensors"}}',
        },
        "m-00002-of-00002.safetensors is a shard that m.safetensors.index.json does not name",
    ),
    "shard of another split": (
        {
            "m-00001-of-00001.safetensors": tensor_file(GOOD, 4),
            "m-00001-of-00002.safetensors": tensor_file(GOOD, 4),
            "m.safetensors.index.json": b'{"weight_map": {"w": "m-00001-of-00001.safetensors"}}',
        },
        "does not name",
    ),
    "one file with everything beside shards": (
        {
            "consolidated.safetensors": tensor_file(GOOD, 4),
            "m-00001-of-00001.safetensors": tensor_file(GOOD, 4),
            "m.safetensors.index.json": b'{"weight_map": {"w": "m-00001-of-00001.safetensors"}}',
        },
        None,
    ),
    "several indexes": (
        {
            "a/m-00001-of-00001.safetensors": tensor_file(GOOD, 4),
            "consolidated-00001-of-00001.safetensors": tensor_file(GOOD, 4),
            "m-00001-of-00002.safetensors": tensor_file(GOOD, 4),
            "m-00002-of-00002.safetensors": tensor_file(GOOD, 4),
            "m-more.safetensors.index.json": b'{"weight_map": {"w": "m-00002-of-00002.safetensors"}}',
            "m.safetensors.index.json": b'{"weight_map": {"w": "m-00001-of-00002.safetensors"}}',
        },
        None,
    ),
    "deep header": ({"m.safetensors": tensor_file(b"[" * 100_000, 4)}, "nested too deeply|does not parse"),
    "deep config": ({"config.json": b"[" * 100_000 + b"]" * 100_000}, "config.json is nested too deeply"),
    "deep index": (
        {"m.safetensors.index.json": b'{"a":' * 100_000 + b"1" + b"}" * 100_000},
        "m.safetensors.index.json is nested too deeply",
    ),
    "large config": ({"config.json": bytes(JSON_MAX + 1)}, "is larger than 64 MiB"),
    "broken config": ({"config.json": b"{"}, "no valid JSON"),
}


@pytest.mark.parametrize(("files", "message"), STRUCTURES.values(), ids=STRUCTURES)
def test_files_that_no_engine_could_load_are_found(
    tmp_path: Path, files: dict[str, bytes], message: str | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    listed = [ModelFile(name, len(content), SHA) for name, content in files.items()]
    if message is None:
        check_structure(listed, lambda path: tmp_path / path)
    else:
        with pytest.raises(HubError, match=message):
            check_structure(listed, lambda path: tmp_path / path)


def test_a_large_header_takes_little_memory(tmp_path: Path) -> None:
    """10 000 tensors; parsed at once, they would take seven times the size of the header."""
    header = {
        f"model.layers.{number}.mlp.experts.gate_proj.weight_scale_inv": {
            "dtype": "F8_E4M3",
            "shape": [7168, 2048],
            "data_offsets": [0, 4],
        }
        for number in range(10_000)
    }
    (tmp_path / "m.safetensors").write_bytes(tensor_file(header, 4))
    size = (tmp_path / "m.safetensors").stat().st_size
    del header
    assert peak_bytes(lambda: check_structure([ModelFile("m.safetensors", size, SHA)], tmp_path.joinpath)) < size


HOSTILE_JSON = {
    "header of lists": ("m.safetensors", tensor_file(b'{"__metadata__":[' + b"[]," * 60_000 + b"[]]}", 0)),
    "config of objects": ("config.json", b"[" + b"{}," * 60_000 + b"{}]"),
    "index of small texts": (
        "m.safetensors.index.json",
        b'{"a":{' + b'"":"",' * 60_000 + b'"":""},"weight_map":{' + b'"a":"m",' * 10 + b'"a":"m"}}',
    ),
}


@pytest.mark.parametrize(("name", "content"), HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_many_small_values_take_little_memory(tmp_path: Path, name: str, content: bytes) -> None:
    """They would take 60 times the size of the document as objects."""
    (tmp_path / name).write_bytes(content)

    def check() -> None:
        with contextlib.suppress(HubError):
            check_structure([ModelFile(name, len(content), SHA)], tmp_path.joinpath)

    assert peak_bytes(check) < 1 << 20


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that *work* takes at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_tensor_that_the_index_names_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(tensor_file(GOOD, 4))
    (tmp_path / "m.safetensors.index.json").write_text(
        '{"weight_map": {"w": "m.safetensors", "layer.7": "m.safetensors"}}'
    )
    listed = [ModelFile(path.name, path.stat().st_size, SHA) for path in tmp_path.iterdir()]
    with pytest.raises(HubError, match=r"says that 'layer.7' is in 'm.safetensors', which does not hold it"):
        check_structure(listed, tmp_path.joinpath)


@pytest.mark.parametrize("value", ["1", "null", "[]", '{"a": "m.safetensors"}'])
def test_an_index_that_names_no_file_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "m.safetensors.index.json").write_text(f'{{"weight_map": {{"w": {value}}}}}')
    with pytest.raises(HubError, match="names no file for 'w'"):
        check_structure([ModelFile("m.safetensors.index.json", 9999, SHA)], tmp_path.joinpath)
