# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file by several connections: when they are opened, when not, and what is left when something fails."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import parts
from ansible_collections.socle.inference.plugins.module_utils._hub.aside import Aside
from ansible_collections.socle.inference.plugins.module_utils._hub.climb import Climb
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.journal import (
    add_span,
    gaps,
    held_spans,
    journal_of,
    move_part,
)
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.parts import Part
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy

from tests.simulators.hub.server import HubSimulator
from tests.unit.hub.downloads import MIB, NAME, QUICK, STORAGE, Bench, publish

SIZE = 12 * MIB
PROJECT = Path(__file__).resolve().parents[3]
EAGER = replace(QUICK, measure_s=0.1, hold_s=0.2)
DRIVER = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.unit.hub.downloads import Bench, Origin, QUICK, manifest, NAME
from ansible_collections.socle.inference.plugins.module_utils._hub import parts
from ansible_collections.socle.inference.plugins.module_utils._hub.climb import Climb
from ansible_collections.socle.inference.plugins.module_utils._hub.download import fetch_file
from ansible_collections.socle.inference.plugins.module_utils._hub.meter import Meter
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

class Hub:
    url = sys.argv[1]

parts.JOURNAL_BYTES = 1 << 20
policy = replace(QUICK, measure_s=0.1, hold_s=0.2)
file = next(file for file in manifest(Hub).files if file.path == NAME)
fetch_file([Origin(Hub, policy)], file, Path(sys.argv[2]), Meter(Progress(), 0, climb=Climb(policy)))
"""


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return publish(tmp_path / "hub", SIZE)


@pytest.fixture
def bench(tmp_path: Path, data: bytes) -> Iterator[Bench]:
    with HubSimulator(tmp_path / "hub") as hub:
        yield Bench(hub, tmp_path / "part", EAGER)


# When they pay


def test_limited_connections_are_joined_by_more(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=3 * MIB, count=-1)
    assert bench.fetch() == data
    starts = {int(asked.partition("=")[2].partition("-")[0]) for asked in bench.ranges() if asked}
    assert len(starts) >= 3
    assert bench.meter.received == SIZE, "no byte was written twice"
    assert bench.meter.climb.lines > 1
    assert bench.shelf.files[NAME].generation == 0
    assert sorted(bench.place.parent.glob("part*")) == [bench.place]


def test_a_connection_that_brings_enough_stays_alone(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=12 * MIB, count=-1)
    assert bench.fetch(line_bytes_per_s=64 << 10) == data
    assert bench.ranges() == [None]


def test_a_server_that_wants_fewer_connections_gets_fewer(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=4 * MIB, max_connections=2, count=-1)
    began = time.monotonic()
    assert bench.fetch() == data
    lasted_s = time.monotonic() - began
    assert bench.meter.climb.lines <= 2
    refused = [request for request in bench.storage() if "sent" not in request]
    assert 1 <= len(refused) <= 2 + lasted_s / EAGER.hold_s, "it is not asked again and again"


@pytest.mark.parametrize("fault", [{"ignore_range": True}, {"headers": {"Content-Range": "bytes 0-1/2"}}])
def test_a_server_without_ranges_keeps_its_one_connection(bench: Bench, data: bytes, fault: dict[str, Any]) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=6 * MIB, count=-1)
    bench.hub.add_rule(path=STORAGE, skip=1, count=-1, **fault)
    assert bench.fetch(hold_s=60) == data


def test_connections_that_end_all_the_time_do_no_harm(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=4 * MIB, drop_after=700_000, count=-1)
    assert bench.fetch() == data
    assert bench.meter.received == SIZE


def test_a_connection_that_hangs_loses_its_share(bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "IDLE_S", 0.3)
    bench.hub.add_rule(path=STORAGE, bytes_per_s=3 * MIB, count=-1)
    bench.hub.add_rule(path=STORAGE, delay_s=20, skip=1)
    assert bench.fetch(stall_s=60) == data
    assert "sent" not in bench.storage()[1], "nobody waited for it"


def test_wrong_bytes_in_one_range_start_the_file_over(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=4 * MIB, count=-1)
    bench.hub.add_rule(path=STORAGE, corrupt_at=SIZE - 5, count=1, skip=1)
    bench.hub.add_rule(path=STORAGE, corrupt_at=10, count=1)
    assert bench.fetch() == data
    assert bench.shelf.files[NAME].generation == 1


def test_neighbours_get_only_the_start_that_is_there(bench: Bench, data: bytes) -> None:
    """What the shelf promises is on disk at that moment, also while ranges arrive out of order."""
    wrong = []

    class Watched(Shelf):
        def advance(self, path: str, location: Path, prefix: int) -> None:
            before = self.files[path].prefix
            super().advance(path, location, prefix)
            with location.open("rb") as handle:
                handle.seek(max(0, prefix - 1000))
                if prefix < before or handle.read(1000)[: min(prefix, 1000)] != data[max(0, prefix - 1000) : prefix]:
                    wrong.append(prefix)

    bench.hub.add_rule(path=STORAGE, bytes_per_s=4 * MIB, count=-1)
    bench.watch = lambda size: Watched({NAME: Growing(NAME, size)})
    assert bench.fetch() == data
    assert len(bench.storage()) > 1
    assert wrong == []


# How many: the rule alone


def climb(rates: list[float], files: int = 1, **policy: Any) -> list[int]:
    """The connections per file after each second, where n connections in all bring rates[n] (or the last)."""
    rule = Climb(Policy(measure_s=1, hold_s=10, **policy))
    received, seen = 0.0, []
    for second in range(40):
        rule.tick(float(second), int(received), files)
        received += rates[min(rule.lines * files, len(rates) - 1)]
        seen.append(rule.lines)
    return seen


def test_the_total_rises_with_each_connection_up_to_eight() -> None:
    assert climb([0, 10e6, 20e6, 30e6, 40e6, 50e6, 60e6, 70e6, 80e6])[-1] == 8


def test_all_files_together_stay_below_the_limit() -> None:
    assert climb([number * 10e6 for number in range(100)], files=4)[-1] == 4


def test_a_total_that_does_not_rise_takes_the_step_back_and_waits() -> None:
    seen = climb([0, 50e6, 52e6, 52e6])
    assert seen[:6].count(2) == 2, "one window to settle, one to judge"
    assert seen.count(2) <= 8, "tried again only now and then"
    assert seen[-1] in (1, 2)


def test_a_step_that_pays_is_kept_when_the_next_does_not() -> None:
    seen = climb([0, 20e6, 40e6, 41e6, 42e6])
    assert sorted(set(seen)) == [1, 2, 4]
    assert seen.count(2) > seen.count(4)


def test_a_fast_connection_is_left_alone() -> None:
    assert set(climb([0, 200e6, 400e6])) == {1}


def test_a_refused_connection_is_not_tried_again() -> None:
    rule = Climb(Policy(measure_s=1, hold_s=1))
    received = 0
    for second in range(60):
        rule.tick(float(second), received, 1)
        if rule.lines > 2:
            rule.refuse(float(second))
        received += rule.lines * 10**7
    assert rule.lines == 2


# What a kill leaves


def kill_in_the_middle(bench: Bench, at: int) -> int:
    """Kill a process that downloads by ranges once *at* bytes are there; returns how many it had been sent."""
    bench.hub.add_rule(path=STORAGE, bytes_per_s=3 * MIB, count=-1)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, bench.hub.url, str(bench.place)],
        env={**os.environ, "PYTHONPATH": f"{PROJECT / 'collections'}:{PROJECT}"},
    )
    try:
        for _try in range(600):
            if len(bench.storage()) > 2 and sum(request.get("sent", 0) for request in bench.storage()) > at:
                break
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    sent = sum(request.get("sent", 0) for request in bench.storage())
    bench.hub.reset()
    return sent


def held(bench: Bench) -> int:
    file = ModelFile(NAME, SIZE, hashlib.sha256((bench.hub.root / "Org/Model" / NAME).read_bytes()).hexdigest())
    return sum(end - start for start, end in held_spans(bench.place, file))


def test_killed_between_ranges_the_rest_is_fetched_and_little_twice(
    bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = kill_in_the_middle(bench, 7 * MIB)
    kept = held(bench)
    assert 0 < kept < SIZE
    assert bench.place.stat().st_size == SIZE, "it is preallocated, its length says nothing"
    assert sent - kept <= 4 * MIB
    assert bench.fetch() == data
    assert bench.meter.received == SIZE - kept
    assert not journal_of(bench.place).exists()


def test_after_a_kill_a_server_that_ignores_ranges_sends_it_all(bench: Bench, data: bytes) -> None:
    kill_in_the_middle(bench, 7 * MIB)
    bench.hub.add_rule(path=STORAGE, ignore_range=True, count=-1)
    assert bench.fetch() == data
    assert len(bench.storage()) == 1


def test_after_a_kill_a_lost_journal_costs_a_download_and_nobody_is_blamed(bench: Bench, data: bytes) -> None:
    kill_in_the_middle(bench, 7 * MIB)
    journal_of(bench.place).unlink()
    assert bench.fetch(hash_tries=1) == data


def test_a_moved_part_keeps_its_journal(bench: Bench, data: bytes, tmp_path: Path) -> None:
    kill_in_the_middle(bench, 7 * MIB)
    kept = held(bench)
    (tmp_path / "job").mkdir()
    move_part(bench.place, tmp_path / "job" / "other")
    assert not journal_of(bench.place).exists()
    bench.place = tmp_path / "job" / "other"
    assert held(bench) == kept
    assert bench.fetch() == data
    assert bench.meter.received == SIZE - kept


@pytest.mark.parametrize("spans", [[[5, 1]], [[0, 10], [5, 20]], [[-1, 5]], [[0, "x"]], [[0, 10**30]], 7, [[1]]])
def test_a_journal_with_impossible_ranges_is_no_journal(tmp_path: Path, spans: Any) -> None:
    file = ModelFile(NAME, SIZE, "0" * 64)
    (tmp_path / "part").write_bytes(bytes(100))
    document = {"schema": 1, "size": SIZE, "sha256": "0" * 64, "spans": spans, "etags": {}, "marks": []}
    journal_of(tmp_path / "part").write_text(json.dumps(document))
    assert held_spans(tmp_path / "part", file) == [(0, 100)], "the length says what is there, at most"


def test_no_room_for_the_whole_file_is_noticed_when_it_is_allocated(
    bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: int) -> None:
        raise OSError(28, "No space left on device")

    bench.hub.add_rule(path=STORAGE, bytes_per_s=3 * MIB, count=-1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreError, match="is full"):
            bench.fetch()
    bench.hub.reset()
    assert bench.fetch() == data
    assert bench.meter.received < SIZE


def test_a_file_system_that_cannot_allocate_gets_a_sparse_file(
    bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_args: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    bench.hub.add_rule(path=STORAGE, bytes_per_s=3 * MIB, count=-1)
    assert bench.fetch() == data
    assert len(bench.storage()) > 1


def test_a_fault_of_the_disk_under_another_connection_ends_the_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def full(descriptor: int, view: Any, position: int) -> int:
        if position > SIZE // 2:
            raise OSError(28, "No space left on device")
        return write(descriptor, view, position)

    monkeypatch.setattr(os, "pwrite", full)
    bench.hub.add_rule(path=STORAGE, bytes_per_s=3 * MIB, count=-1)
    with pytest.raises(StoreError, match=f"{NAME} needs .* is full"):
        bench.fetch()


# Hashing beside


def test_what_is_absorbed_beside_stays_in_order_and_buffers_come_back() -> None:
    seen: list[int] = []
    aside = Aside(lambda view: seen.append(view[0]), 4)
    for number in range(20):
        buffer = aside.take()
        buffer[0] = number
        aside.put(buffer[:2], buffer)
    aside.end()
    assert seen == list(range(20))


def test_a_fault_beside_is_kept_and_nobody_waits_for_ever() -> None:
    def fail(_view: memoryview) -> None:
        raise StoreError("no")

    aside = Aside(fail, 4)
    for _number in range(20):
        buffer = aside.take()
        aside.put(buffer, buffer)
    aside.end()
    assert isinstance(aside.fault, StoreError)


# Shares


def test_spans_and_gaps_complement_each_other() -> None:
    spans = add_span(add_span([(0, 10), (20, 30)], 8, 15), 15, 20)
    assert spans == [(0, 30)]
    assert gaps([(5, 10), (20, 30)], 40) == [(0, 5), (10, 20), (30, 40)]
    assert gaps([], 0) == []
    assert gaps([(0, 50)], 40) == []


def shared_part(tmp_path: Path, size: int) -> Part:
    return Part(tmp_path / "part", ModelFile(NAME, size, "0" * 64), lambda count, kind=None: None)


def test_shares_come_from_the_front_and_then_from_the_largest(tmp_path: Path) -> None:
    part = shared_part(tmp_path, 1000)
    first = part.claim(1 << 62, 10)
    assert first and (first.position, first.end) == (0, 1000)
    assert part.claim(100, 10) is None, "alone, the first connection has all"
    part.share()
    second = part.claim(100, 10)
    assert second and (first.end, second.position, second.end) == (100, 100, 200)
    third = part.claim(700, 10)
    assert third and (third.position, third.end) == (200, 900)
    fourth = part.claim(95, 10)
    assert fourth and (fourth.position, fourth.end) == (900, 1000), "a rest that is too small goes along"
    fifth = part.claim(500, 10)
    assert fifth and (third.end, fifth.position, fifth.end) == (550, 550, 900), "half of the largest"
    part.release(fifth)
    again = part.claim(1 << 62, 10)
    assert again and (again.position, again.end) == (550, 900)
    part.close()


def test_nothing_is_shared_below_two_steps(tmp_path: Path) -> None:
    part = shared_part(tmp_path, 19)
    assert part.claim(1 << 62, 10)
    assert not part.may_share(10)
    part.share()
    assert part.claim(5, 10) is None
    part.close()


def test_what_another_connection_took_over_is_left_to_it(tmp_path: Path) -> None:
    counts: list[int] = []

    def report(count: int, kind: str | None = None) -> None:
        counts.append(count)

    part = Part(tmp_path / "part", ModelFile(NAME, 1000, "0" * 64), report)
    first = part.claim(1 << 62, 10)
    part.share()
    second = part.claim(100, 10)
    assert first and second
    part.write(second, memoryview(b"2" * 100), "wan")
    part.write(first, memoryview(b"1" * 150), "wan")
    part.close()
    assert (tmp_path / "part").read_bytes()[:200] == b"1" * 100 + b"2" * 100
    assert counts == [100, 100]
