# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data handling of the role model_store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.socle.inference.plugins.filter.model_store import (
    missing_models,
    part_in,
    place_of,
    snapshot_paths,
    unique_models,
)
from ansible_collections.socle.inference.plugins.filter.model_store_lines import (
    REASONS,
    closing_lines,
    precheck,
    without_models,
)
from ansible_collections.socle.inference.plugins.filter.models import model_verify_orders

MODEL = {"repo": "a/A", "revision": "master", "content_id": "sha256:1"}
GIB = 1 << 30
NOW = 1_796_040_000.0
"""2026-11-30T12:00:00Z."""


def seen(complete: bool = False, need: int = GIB, faults: tuple[str, ...] = (), **other: Any) -> dict[str, Any]:
    """What model_sync says of MODEL on a host."""
    plan = {
        "bytes": 0 if complete else need,
        "need": 0 if complete else need,
        "free": 10 * GIB,
        "reserve": 5 * GIB,
        "missing": [] if complete else ["config.json", "b", "c", "d"],
        "missing_files": 0 if complete else 4,
        "wanted_files": 0 if complete else 4,
        "foreign_files": 0,
        "unproven_files": 0,
        "reusable": 0,
        "staged": 0,
        "adoptable": 0,
        "faults": [{"id": "space", "message": message} for message in faults],
        "store": {"folder": "/models"},
    }
    found = {"repo": "a/A", "requested": "master", "content_id": "sha256:1", "complete": complete, "work": not complete}
    place = {"path": "/models/.store/x/a--A/rev/1", "commit": "1" * 40}
    whole = {**ended(), "previous": place if complete else None, "job": None, "due": False}
    return {**whole, **found, "plan": plan, **other}


def ended(**other: Any) -> dict[str, Any]:
    """What model_sync returns of the model of seen() in the end, where there was nothing to do."""
    place = {"path": "/models/.store/x/a--A/rev/1", "commit": "1" * 40, "content_id": "sha256:1"}
    sizes = dict.fromkeys(("total", "wan", "lan", "disk", "reused_link", "reused_part", "adopted"), 0)
    files = dict.fromkeys(("total", "fetched", "verified", "repaired", "removed"), 0)
    verify = {"hashed_files": 0, "checked": "2026-11-30T09:00:00Z"}
    base = {"changed": False, "previous": place, "bytes": sizes, "files": files, "verify": verify}
    return {**place, **base, "seconds": 12.0, "mb_s": None, **other}


def planned(seen: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {**seen, "work": True, "plan": {**seen["plan"], **other}}


def verdicts(*found: dict[str, Any]) -> list[str]:
    """The cells of the table, by column, for one host."""
    head, *rows = precheck({"g1": inspected(*found)}, ["g1"])["lines"][1:]
    start, end = head.index("VERDICT"), head.index("MISSING")
    return [row[start:end].strip() for row in rows]


def inspected(*found: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"__model_store_inspections": {"results": list(found)}, **other}


def started(host: str, complete: bool = False, joined: bool = False, **other: Any) -> dict[str, Any]:
    job = {"content_id": "sha256:1", "address": f"10.0.0.{host[-1]}", "port": 1000, "job": {"joined": joined}}
    return inspected(seen(complete), __model_store_started=job, **other)


def test_a_model_of_several_instances_is_brought_once() -> None:
    models = [{"repo": "b/B"}, {"repo": "a/A", "revision": "v1"}, {"repo": "b/B", "revision": "master"}]
    assert unique_models(models) == [{"repo": "b/B", "revision": "master"}, {"repo": "a/A", "revision": "v1"}]


def test_two_revisions_of_a_model_on_one_host_are_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="a/A is wanted at v1 and at v2"):
        unique_models([{"repo": "a/A", "revision": "v1"}, {"repo": "a/A", "revision": "v2"}])


def test_the_result_maps_each_repository_to_its_place() -> None:
    result = {"repo": "a/A", "path": "/p", "content_id": "sha256:0", "commit": None, "changed": True}
    assert snapshot_paths([result, {"skipped": True}]) == {
        "a/A": {"path": "/p", "link": None, "content_id": "sha256:0", "commit": None}
    }


def test_a_revision_that_is_not_named_is_the_hub_s_own() -> None:
    assert unique_models([{"repo": "a/A"}], "huggingface") == [{"repo": "a/A", "revision": "main"}]
    assert unique_models([{"repo": "a/A", "path": "/usb/A"}], "directory")[0]["path"] == "/usb/A"


def test_a_model_may_be_verified_in_another_way_than_the_others_of_its_host() -> None:
    results = [{"item": {"repo": "a/A"}, "wanted": ["x"]}, {"item": {"repo": "b/B"}, "content_id": "sha256:2"}]
    models = unique_models(model_verify_orders([{"repo": "a/A"}, {"repo": "b/B"}], results))
    assert [model["verify"] for model in models] == ["full", "quick"]
    found = seen(item=models[0])
    hostvars = {"g1": inspected(found), "g2": inspected(seen())}
    assert [part_in(hostvars, ["g1", "g2"], MODEL, host, "auto")["verify"] for host in hostvars] == ["full", None]


def test_only_models_with_work_on_any_host_are_brought_and_in_one_order_for_all() -> None:
    other = seen(repo="b/B", content_id="sha256:2")
    hostvars = {"g1": inspected(seen(True)), "g2": inspected(other, seen()), "g3": inspected(seen()), "g4": {}}
    hosts = ["g1", "g2", "g3", "g4"]
    assert missing_models(hostvars, hosts) == [{"repo": "b/B", "revision": "master", "content_id": "sha256:2"}, MODEL]
    assert missing_models({"g1": inspected(seen(True))}, ["g1"]) == []


def test_a_host_without_neighbours_gets_no_relay() -> None:
    hostvars = {"g1": inspected(seen()), "g2": inspected(seen(repo="b/B", content_id="sha256:2"))}
    assert part_in(hostvars, ["g1", "g2"], MODEL, "g1", "auto")["relay"] is False
    assert part_in(hostvars, ["g1", "g2"], MODEL, "g2", "auto")["job"] is False


def test_a_complete_host_takes_part_only_for_the_others() -> None:
    hostvars = {"g1": inspected(seen(True)), "g2": inspected(seen())}
    part = part_in(hostvars, ["g1", "g2"], MODEL, "g1", "auto")
    assert (part["job"], part["relay"], part["helper"]) == (True, True, None)
    assert part_in(hostvars, ["g1", "g2"], MODEL, "g1", "never")["job"] is False
    assert part_in(hostvars, ["g1", "g2"], MODEL, "g2", "never")["relay"] is False


def test_complete_hosts_that_are_to_be_hashed_have_relays_and_each_other() -> None:
    hosts = ["g1", "g2"]
    hostvars = {host: started(host, complete=True) for host in hosts}
    assert part_in(hostvars, hosts, MODEL, "g1", "auto")["relay"] is True
    place = place_of(hostvars, hosts, MODEL, "g1")
    assert ([upstream["name"] for upstream in place["upstreams"]], place["seed"]) == (["g2"], True)
    assert part_in(hostvars, ["g1"], MODEL, "g1", "auto")["relay"] is False


def test_of_hosts_that_share_a_store_the_first_one_writes_it_and_the_others_wait() -> None:
    hosts = ["g1", "g2", "g3"]
    names = {"g1": "one", "g2": "one", "g3": "other"}
    hostvars = {host: inspected(seen(store_name=names[host])) for host in hosts}
    parts = {host: part_in(hostvars, hosts, MODEL, host, "auto") for host in hosts}
    assert [part["job"] for part in parts.values()] == [True, False, True]
    assert [part["writer"] for part in parts.values()] == [None, "g1", None]
    assert {part["lender"] for part in parts.values()} == {"g1"}
    assert part_in(hostvars, ["g1", "g2"], MODEL, "g1", "auto")["relay"] is False, "nobody is there to serve"
    hostvars["g2"] = inspected(seen(store_name="one", job={"joined": True}))
    parts = {host: part_in(hostvars, hosts, MODEL, host, "auto") for host in hosts}
    assert [part["writer"] for part in parts.values()] == ["g2", None, None], "who is under way goes on"


def test_what_a_host_does_not_find_proven_in_a_store_of_another_one_is_no_work() -> None:
    # The ledger names the device, which is another one on each host.
    hostvars = {
        "g1": inspected(seen(True, store_name="one")),
        "g2": inspected(seen(True, store_name="one", work=True)),
    }
    assert missing_models(hostvars, ["g1", "g2"]) == []
    assert missing_models(hostvars, ["g2"]) == [MODEL]


def test_a_helper_that_failed_is_none() -> None:
    for helper in ({}, {"name": "g1", "failed": True}, {"name": "g1", "unreachable": True, "port": None}):
        assert place_of({"g2": started("g2")}, ["g2"], MODEL, "g2", helper) == {"upstreams": [], "seed": True}


def test_the_table_tells_what_is_only_to_be_hashed() -> None:
    assert verdicts(planned(seen(True), unproven_files=4)) == ["hash 4 files"]
    assert verdicts({**seen(True), "work": True, "due": True}) == ["hash all files"]


def test_a_change_of_owner_is_told_with_the_owner() -> None:
    files = {**ended()["files"], "owner_changed": 6}
    found = {**seen(True), "work": True, "owner": "models:video", "files": files}
    assert verdicts(found) == ["give 6 files to models:video"]
    hostvars = {"g1": inspected(found, __model_store_ends={"sha256:1": ended(changed=True, files=files)})}
    assert closing_lines(hostvars, ["g1"], now_s=NOW) == ["g1:  a/A@master  gave 6 files to models:video"]
    assert verdicts(planned(seen(True), foreign_files=1)) == ["move 1 file that does not belong there aside"]


def test_the_table_tells_what_only_changes_the_link_from_what_is_fetched() -> None:
    switch = "switch (all files are here, only the link changes)"
    other = {"path": "/models/.store/x/a--A/rev/0", "commit": "0" * 40}
    ready = {**seen(True, previous=other), "work": True}
    assert verdicts(ready) == [switch]
    linked = planned(seen(), bytes=0, need=0, missing=[], missing_files=0, reusable=GIB)
    found = precheck({"g1": inspected(linked)}, ["g1"])
    assert " ".join(found["lines"][-1].split()) == f"g1 a/A@master 1.0 GiB 0 B 0 B 10.0 GiB {switch} -"
    assert verdicts(planned(ready, unproven_files=1)) == [f"hash 1 file, then {switch}"]
    # The revision is the current one, and lacks files that others have.
    assert verdicts({**linked, "previous": {"path": linked["path"]}}) == [
        "link (the files are here, in other revisions)"
    ]


def test_the_table_tells_a_download_that_runs_already_and_what_it_has() -> None:
    job = {"phase": "downloading", "done": GIB // 2, "total": GIB, "unit": "B", "file": "x", "rate_per_s": 5}
    running = planned(seen(job=job), staged=GIB // 2)
    found = precheck({"g1": inspected(running)}, ["g1"])
    row = " ".join(found["lines"][-1].split())
    assert row.startswith("g1 a/A@master 0 B 512.0 MiB 512.0 MiB 10.0 GiB under way: downloading, 512.0 MiB of 1.0 GiB")
    running["job"]["other"] = True
    assert " another revision is under way: downloading" in precheck({"g1": inspected(running)}, ["g1"])["lines"][-1]


def test_hosts_with_one_store_wait_for_the_first_of_them_or_for_the_one_that_is_under_way() -> None:
    hosts = ["g1", "g2", "g3"]
    hostvars = {host: inspected(seen(store_name="nfs")) for host in hosts}
    hostvars["g3"] = inspected(seen())

    def table() -> list[str]:
        return [" ".join(line.split()) for line in precheck(hostvars, hosts)["lines"][2:]]

    assert [("wait for g1 (the store is the same)" in row, " fetch " in row) for row in table()] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    hostvars["g2"] = inspected(seen(store_name="nfs", job={"phase": "downloading"}))
    assert "wait for g2 (the store is the same)" in table()[0] and "under way: downloading" in table()[1]
    hostvars["g1"]["__model_store_ends"] = {"sha256:1": seen(True, store_name="nfs")}
    assert closing_lines(hostvars, ["g1"], now_s=NOW) == [
        "g1:  a/A@master  found in the store, where another host with the same one brought it"
    ]


def test_the_table_has_a_column_for_what_may_be_adopted_only_where_there_is_some() -> None:
    found = planned(seen(), missing=[], missing_files=0, adoptable=GIB)
    lines = precheck({"g1": inspected(found)}, ["g1"])["lines"]
    assert "ADOPTED" in lines[1] and "adopt (the files seem to be on the host)" in lines[2]
    assert "ADOPTED" not in precheck({"g1": inspected(seen())}, ["g1"])["lines"][1]


def test_in_the_end_each_model_of_each_host_has_a_line_that_says_what_was_done() -> None:
    def lines(end: dict[str, Any] | None, **given: Any) -> str:
        ends = {} if end is None else {"__model_store_ends": {"sha256:1": end}}
        hostvars = {"g1": inspected(seen(**given), **ends)}
        (line,) = closing_lines(hostvars, ["g1"], now_s=NOW)
        return line

    before = {"path": "/models/.store/x/a--A/rev/0", "commit": "0" * 40, "content_id": "sha256:0"}
    sizes = ended()["bytes"]
    fetched = ended(changed=True, previous=None, bytes={**sizes, "wan": GIB, "lan": 3 * GIB}, mb_s=357.9)
    assert lines(fetched) == (
        "g1:  a/A@master  fetched 1.0 GiB from the hub and 3.0 GiB from neighbours in 12s at 341.3 MiB/s; "
        "activated 111111111111"
    )
    linked = ended(changed=True, previous=before, bytes={**sizes, "reused_link": GIB})
    assert lines(linked).endswith("linked 1.0 GiB from other revisions; switched from 000000000000 to 111111111111")
    repaired = ended(changed=True, files={**ended()["files"], "repaired": 1}, bytes={**sizes, "lan": 1024})
    assert lines(repaired).endswith("fetched 1.0 KiB from neighbours in 12s; repaired 1 file")
    aside = {"files": ["notes.txt"], "folder": "/s/stage/rejected"}
    moved = ended(changed=True, files={**ended()["files"], "removed": 1}, moved_aside=aside)
    assert lines(moved).endswith("moved 1 file aside that did not belong there (notes.txt), to /s/stage/rejected")
    hashed = ended(verify={"hashed_files": 4, "checked": "2026-11-30T12:00:00Z"})
    assert lines(hashed).endswith("  hashed 4 files: all are as they should be")
    assert lines(None, complete=True) == "g1:  a/A@master  nothing to do: proven 3 h ago"
    assert lines(None) == "g1:  a/A@master  not brought"


def test_the_last_lines_of_a_check_say_what_a_run_would_do() -> None:
    hostvars = {"g1": inspected(seen()), "gpu2": inspected(seen(True))}
    assert closing_lines(hostvars, ["g1", "gpu2"], check=True, now_s=NOW) == [
        "g1:    a/A@master  check mode, nothing was done: fetch",
        "gpu2:  a/A@master  nothing to do: proven 3 h ago",
    ]


def test_hosts_that_no_models_are_named_for_are_told_the_variables_in_one_line() -> None:
    hostvars: dict[str, Any] = {"g1": {"wanted": []}, "g2": {}, "g3": {"wanted": [{"repo": "a/A"}]}}
    (line,) = without_models(hostvars, hostvars, "wanted")
    assert line.startswith("g1, g2: no models are named") and "model_store_models" in line and "vllm_instances" in line
    assert without_models(hostvars, ["g3"], "wanted") == []


def test_a_host_of_an_earlier_batch_helps_where_no_host_of_this_one_can() -> None:
    result = {"a/A": {"link": "/srv/models/a--A", "content_id": "sha256:1"}}
    hostvars = {"g1": {"model_store_result": result}, "g2": inspected(seen())}
    part = part_in(hostvars, ["g2"], MODEL, "g2", "auto")
    assert (part["helper"], part["helper_store"], part["relay"]) == ("g1", "/srv/models", True)
    hostvars["g2"] = inspected(seen(True))
    assert part_in(hostvars, ["g2"], MODEL, "g2", "auto")["helper"] is None
    helper = {"name": "g1", "address": "10.0.0.1", "port": 7}
    place = place_of({"g2": started("g2")}, ["g2"], MODEL, "g2", helper)
    assert place == {"upstreams": [helper], "seed": False}


def test_each_host_takes_from_the_one_before_it_and_then_from_those_further_up() -> None:
    hosts = ["g1", "g2", "g3"]
    hostvars = {host: started(host) for host in hosts}
    assert place_of(hostvars, hosts, MODEL, "g1") == {"upstreams": [], "seed": True}
    names = [upstream["name"] for upstream in place_of(hostvars, hosts, MODEL, "g3")["upstreams"]]
    assert names == ["g2", "g1"]
    hostvars["g2"]["__model_store_started"] = {"skipped": True}
    assert place_of(hostvars, hosts, MODEL, "g3")["upstreams"] == [{"name": "g1", "address": "10.0.0.1", "port": 1000}]


def test_a_host_that_comes_late_takes_from_those_that_are_under_way() -> None:
    hosts = ["g1", "g2"]
    hostvars = {"g1": started("g1"), "g2": started("g2", joined=True)}
    assert place_of(hostvars, hosts, MODEL, "g1")["upstreams"][0]["name"] == "g2"


def test_neighbours_of_one_rack_are_next_to_each_other() -> None:
    hosts = ["g1", "g2", "g3"]
    hostvars = {host: started(host, model_store_rack=rack) for host, rack in zip(hosts, "aba", strict=True)}
    assert place_of(hostvars, hosts, MODEL, "g3")["upstreams"][0]["name"] == "g1"


def test_the_table_has_a_row_for_each_host_and_model_and_the_sentence_of_each_fault() -> None:
    other = seen(True, repo="b/B", requested="f" * 40)
    refused = seen(faults=("no room",))
    hostvars = {"g1": inspected(seen(True), other), "gpu2": inspected(refused), "g3": inspected(seen())}
    found = precheck(hostvars, ["g1", "gpu2", "g3"])
    _title, _head, *rows = [" ".join(line.split()) for line in found["lines"]]
    assert rows == [
        "g1 a/A@master 0 B 0 B 0 B 10.0 GiB nothing -",
        "g1 b/B@ffffffffffff 0 B 0 B 0 B 10.0 GiB nothing -",
        "gpu2 a/A@master 0 B 0 B 1.0 GiB 10.0 GiB refused: no space 4: config.json, ...",
        "g3 a/A@master 0 B 0 B 1.0 GiB 10.0 GiB fetch 4: config.json, ...",
    ]
    assert found["faults"] == ["gpu2: a/A@master: no room"]


def test_models_that_fit_one_by_one_but_not_together_are_refused() -> None:
    two = [seen(need=3 * GIB), seen(need=3 * GIB, repo="b/B", content_id="sha256:2")]
    assert "together need 6.0 GiB" in precheck({"g1": inspected(*two)}, ["g1"])["faults"][0]
    assert verdicts(*two) == ["refused: no space for all its models"] * 2
    assert precheck({"g1": inspected(*two)}, ["g1"], force=True)["faults"] == []
    assert precheck({"g1": inspected(*two[:1])}, ["g1"])["faults"] == []


def test_every_fault_of_a_store_has_words_for_the_table() -> None:
    sources = Path(__file__).parents[3] / "plugins/module_utils/_hub"
    found = {name for path in sources.glob("*.py") for name in re.findall(r'Fault\(\s*"([a-z_]+)"', path.read_text())}
    assert {"link", "write", "inodes"} <= found
    assert found <= set(REASONS)
