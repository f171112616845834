# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import RecordError
from ansible_collections.socle.inference.plugins.module_utils._records.schema import (
    MAX_BYTES,
    Invalid,
    collected_name,
    parse,
    parse_spool_name,
    path_component,
    serialise,
    spool_name,
)

from .conftest import ENV1, FP1, make


def test_a_record_reads_back_as_it_was_built() -> None:
    record, text = make(results={"ttft_p50_ms": 12.5, "missing": None, "name": "\u6a21\u578b"})
    assert parse(text) == record
    assert record["results"] == {"ttft_p50_ms": 12.5, "missing": None, "name": "\u6a21\u578b"}
    assert record["schema"] == "socle.record/1"
    assert record["tool"] == {"name": "socle", "version": "0.1.0"}


def test_fingerprints_capacity_and_surroundings_come_from_the_plan() -> None:
    plan = {
        "launch_fingerprint": FP1,
        "environment_fingerprint": ENV1,
        "host_class": "cpu",
        "vllm_version": "0.11.0",
        "model": {"name": "qwen3-0.6b", "repo": "Qwen/Qwen3-0.6B", "revision": "abc"},
        "capacity": {"kv_tokens": 1000},
        "argv": ["/models/x"],
    }
    record, _text = make(
        launch_fingerprint=None,
        environment_fingerprint=None,
        plan=plan,
        environment={"driver": "570", "host_class": "x"},
    )
    assert (record["launch_fingerprint"], record["environment_fingerprint"]) == (FP1, ENV1)
    assert record["capacity"] == {"kv_tokens": 1000}
    assert record["environment"]["model_revision"] == "abc"
    assert record["environment"]["driver"] == "570"
    assert record["environment"]["host_class"] == "x", "what is given wins over the plan"
    assert record["environment"]["image_digest"] is None, "missing is null"


def test_names_order_by_time_and_carry_a_hash() -> None:
    record, text = make(minute=7, instance="a-b")
    name = spool_name(record, text)
    assert re.fullmatch(r"20261130T090700Z-a-b-acceptance-[0-9a-f]{12}\.json", name)
    parts = parse_spool_name(name)
    assert parts and (parts.instance, parts.kind) == ("a-b", "acceptance")
    assert collected_name(record) == "20261130T090700Z-acceptance.json"


@pytest.mark.parametrize(
    "name", ["..", ".", ".socle", "a/b", "../../etc", "a\nb", "\u4e3b\u673a", "a%2Fb", "a b", "-rf"]
)
def test_no_name_leaves_its_folder(name: str) -> None:
    component = path_component(name)
    assert "/" not in component and not component.startswith(".") and component.isascii() and component.isprintable()
    assert os.path.normpath(f"/root/{component}") == f"/root/{component}"


def test_different_names_are_different_folders() -> None:
    names = ["a/b", "a%2Fb", "a%252Fb", ".a", "%2Ea", "a", "A"]
    assert len({path_component(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", "x" * 201, "\ud800", None, 3])
def test_impossible_names_are_refused(name: Any) -> None:
    with pytest.raises(RecordError):
        path_component(name)


def test_secrets_never_get_in() -> None:
    secret = "s3cr/t+key"
    record, text = make(
        results={"log": [f"Authorization: Bearer {secret}"], secret: 1, "url": "?k=s3cr%2Ft%2Bkey"},
        method={"deep": {"er": secret}},
        environment={"env": secret},
        plan={"capacity": {"note": secret}},
        secrets=[secret, ""],
    )
    assert "s3cr" not in text
    assert record["results"]["log"] == ["Authorization: Bearer ***"]
    assert record["method"] == {"deep": {"er": "***"}}


def changed(**fields: Any) -> str:
    record, _text = make()
    return json.dumps(record | fields)


NESTED = "[" * 60 + "]" * 60

FAULTS = {
    "empty": ("", "not JSON"),
    "not json": ("{", "not JSON"),
    "nan": (changed(results={"x": float("nan")}), "with a number that is not finite"),
    "infinity": (changed(results={"x": float("-inf")}), "with a number that is not finite"),
    "overflow": (changed(results={"x": 77}).replace("77", "1e999"), "with a number that is not finite"),
    "huge number": (changed(results={"x": 77}).replace("77", "7" * 5000), "not a record"),
    "duplicate key": (changed(results={"x": 77}).replace('"x": 77', '"x": 1, "x": 2'), "with a key given twice"),
    "nested": (changed(results={"x": 77}).replace("77", NESTED), "nested too deeply"),
    "nested beyond the parser": ("[" * 200_000, "nested too deeply"),
    "too large": (changed(results={"x": "y" * MAX_BYTES}), "too large"),
    "too large in bytes": (
        changed(results={"x": 77}).replace("77", '"' + "\u6a21" * (MAX_BYTES // 2) + '"'),
        "too large",
    ),
    "half a surrogate pair": (changed(results={"x": "\ud800"}), "not JSON"),
    "a list": ("[]", "not a record"),
    "no schema": ("{}", "not a record"),
    "schema of a wrong type": (changed(schema=["socle.record/1"]), "not a record"),
    "next version": (changed(schema="socle.record/2"), "of another schema version"),
    "kind": (changed(kind="rumour"), "with wrong fields"),
    "kind of a wrong type": (changed(kind=["acceptance"]), "with wrong fields"),
    "verdict": (changed(verdict=True), "with wrong fields"),
    "host": (changed(host=None), "with wrong fields"),
    "instance with a newline": (changed(instance="a\nb"), "with wrong fields"),
    "time": (changed(finished="2026-13-30T09:00:00Z"), "with wrong fields"),
    "time with a path": (changed(finished="2026-11-30T09:00:00Z/../x"), "with wrong fields"),
    "fingerprint": (changed(launch_fingerprint="sha256:XYZ"), "with wrong fields"),
    "generation": (changed(generation=True), "with wrong fields"),
    "results": (changed(results=[]), "with wrong fields"),
    "environment": (changed(environment="x"), "with wrong fields"),
}


@pytest.mark.parametrize(("text", "kind"), FAULTS.values(), ids=FAULTS)
def test_what_is_not_a_record_is_named_by_its_fault(text: str, kind: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(text)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "given",
    [
        {"verdict": "fine"},
        {"finished": "yesterday"},
        {"results": {"x": float("nan")}},
        {"results": {"x": object()}},
        {"instance": ""},
        {"instance": "\u6a21" * 100},
        {"results": {"x": "y" * MAX_BYTES}},
    ],
)
def test_a_record_that_no_reader_would_take_is_not_built(given: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        make(**given)


def test_unknown_fields_of_this_version_are_kept() -> None:
    record, _text = make()
    assert parse(serialise(record | {"later": {"x": 1}}))["later"] == {"x": 1}
