# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One file by one connection: faults of network, storage, content and disk, and what a person is told."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import parts
from ansible_collections.socle.inference.plugins.module_utils._hub.download import Cancelled, HashMismatch
from ansible_collections.socle.inference.plugins.module_utils._hub.job import _Watched
from ansible_collections.socle.inference.plugins.module_utils._hub.journal import journal_of
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import NotYet

from tests.simulators.hub.server import HubSimulator
from tests.unit.hub.downloads import MIB, NAME, QUICK, STORAGE, Bench, Origin, publish

SIZE = 3 * MIB
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return publish(tmp_path / "hub", SIZE)


@pytest.fixture
def bench(tmp_path: Path, data: bytes) -> Iterator[Bench]:
    with HubSimulator(tmp_path / "hub") as hub:
        yield Bench(hub, tmp_path / "part", replace(QUICK, lines=1))


def test_a_healthy_file_takes_one_request_and_leaves_no_journal(bench: Bench, data: bytes) -> None:
    assert bench.fetch() == data
    assert bench.ranges() == [None]
    assert bench.place.stat().st_mode & 0o777 == 0o444
    assert sorted(bench.place.parent.glob("part*")) == [bench.place]
    assert bench.meter.received_by == {"wan": SIZE}
    assert bench.shelf.files[NAME].proven


def test_drops_never_end_it_while_there_is_progress(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, drop_after=200_000, count=-1)
    assert bench.fetch() == data
    assert len(bench.storage()) == SIZE // 200_000 + 1
    assert bench.meter.received == SIZE, "no byte came twice"


def test_drops_without_progress_end_it(bench: Bench) -> None:
    bench.hub.add_rule(path=STORAGE, drop_after=1000, count=-1)
    with pytest.raises(HubError, match=rf"{NAME} from 127.0.0.1:\d+ without a proxy gave up after 8 tries .* a rerun"):
        bench.fetch()
    assert len(bench.storage()) == 8
    bench.hub.reset()
    bench.fetch()
    assert bench.ranges() == ["bytes=8000-"], "the rerun goes on where it ended"


@pytest.mark.parametrize(
    ("route", "option"), [("through the proxy 127.0.0.1:1", "proxy"), ("without a proxy", "endpoint")]
)
def test_a_hub_that_is_not_reached_is_told_meanwhile_and_with_the_option_to_check(
    bench: Bench, route: str, option: str
) -> None:
    class Unreached(Origin):
        def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
            raise urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))

    class Notes:
        def note(self, **fields: Any) -> None:
            noted.append(fields)

    noted: list[dict[str, Any]] = []
    origin = Unreached(bench.hub)
    origin.describe_route = lambda: route
    with pytest.raises(HubError, match=rf"{route} gave up .*: check the option {option}; a rerun"):
        bench.fetch([_Watched(origin, Notes())])
    assert noted[0] == {"trouble": f"retrying, {origin.host} {route}: Connection refused"}


def test_a_flipped_byte_is_fetched_again(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, corrupt_at=1000)
    assert bench.fetch() == data
    assert bench.shelf.files[NAME].generation == 1, "those that were served the wrong bytes are told"


def test_content_that_is_always_wrong_is_fetched_twice_and_kept(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, corrupt_at=1000, count=-1)
    with pytest.raises(HashMismatch, match=r"wrong content: expected SHA-256 \w{12}, got \w{12} in 2 tries") as caught:
        bench.fetch()
    assert len(bench.storage()) == 2
    assert len(bench.place.read_bytes()) == SIZE
    assert caught.value.fields["expected_sha256"] != caught.value.fields["actual_sha256"]


def test_an_empty_body_has_its_own_message(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, empty=True, count=-1)
    host, expected = f"127.0.0.1:{bench.hub.port}", hashlib.sha256(data).hexdigest()[:12]
    wanted = (
        rf"{NAME} from {host}: {SIZE} bytes were listed, the body is empty \(expected SHA-256 {expected}\) in 2 tries"
    )
    with pytest.raises(HashMismatch, match=wanted):
        bench.fetch()


def test_a_short_object_is_named_before_its_bytes_are_taken(bench: Bench) -> None:
    bench.hub.add_rule(path=STORAGE, claim_size=1000, count=-1)
    with pytest.raises(HashMismatch, match=rf"{SIZE} bytes were listed, 1000 are offered"):
        bench.fetch()
    assert bench.meter.received == 0


def test_an_object_that_is_shorter_than_what_is_here_is_named(bench: Bench) -> None:
    bench.hub.add_rule(path=STORAGE, drop_after=2 * MIB)
    bench.hub.add_rule(path=STORAGE, claim_size=MIB, skip=1, count=-1)
    with pytest.raises(HashMismatch, match=rf"{SIZE} bytes were listed, {MIB} are offered"):
        bench.fetch()


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_an_expired_storage_address_is_asked_for_again(bench: Bench, data: bytes, status: int) -> None:
    bench.hub.add_rule(path=STORAGE, status=status, count=3)
    assert bench.fetch() == data
    assert len(bench.storage()) == 4


def test_storage_that_refuses_each_fresh_address_ends_it(bench: Bench) -> None:
    bench.hub.add_rule(path=STORAGE, status=403, count=-1)
    with pytest.raises(HubError, match=rf"127.0.0.1:\d+ answered 403 for {NAME}, also at 3 fresh addresses") as caught:
        bench.fetch()
    assert len(bench.storage()) == 4
    assert "sig=" not in str(caught.value)


def test_a_refusal_of_the_hub_itself_is_final(bench: Bench) -> None:
    origin = Origin(bench.hub)
    bench.hub.add_rule(path="/repo ", status=404, count=-1)
    with pytest.raises(HubError, match=rf"answered 404 for {NAME}, which it listed before"):
        bench.fetch([origin])
    assert bench.storage() == []


def test_a_busy_server_is_given_the_time_it_asks_for(bench: Bench, data: bytes) -> None:
    slept: list[float] = []
    origin = Origin(bench.hub)
    origin.sleep = slept.append
    bench.hub.add_rule(path=STORAGE, status=503, retry_after=1)
    assert bench.fetch([origin]) == data
    assert sum(slept) >= 0.5


def test_a_busy_server_that_asks_for_no_pause_gets_one_nevertheless(bench: Bench, data: bytes) -> None:
    slept: list[float] = []
    origin = Origin(bench.hub, replace(bench.policy, backoff_s=0.02, backoff_max_s=1))
    origin.sleep = slept.append
    bench.hub.add_rule(path=STORAGE, status=429, retry_after=0, count=7)
    assert bench.fetch([origin]) == data
    assert sum(slept) >= 0.02 * (2**7 - 1) / 2, "the pauses double"


def test_silence_is_a_stall_and_the_next_try_goes_on(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, drop_after=MIB)
    bench.hub.add_rule(path=STORAGE, delay_s=3, skip=1)
    assert bench.fetch(stall_s=0.3) == data
    assert bench.ranges() == [None, f"bytes={MIB}-", f"bytes={MIB}-"]


def test_a_server_that_stays_silent_is_named(bench: Bench) -> None:
    bench.hub.add_rule(path=STORAGE, delay_s=1, count=-1)
    with pytest.raises(HubError, match=r"gave up after 3 tries without progress \(last: stalled: nothing came for"):
        bench.fetch(stall_s=0.2, failures=3)


def test_a_trickle_is_a_stall_and_a_person_is_told(bench: Bench, data: bytes) -> None:
    bench.hub.add_rule(path=STORAGE, bytes_per_s=20_000)
    assert bench.fetch(slow_window_s=0.3, slow_bytes_per_s=100_000) == data
    assert len(bench.storage()) == 2
    (note,) = bench.meter.notes
    host = f"127.0.0.1:{bench.hub.port}"
    assert re.fullmatch(
        rf"{NAME} from {host}: stalled at \d+ bytes per second over the last [0-9.]+ s; "
        rf"switched to a new connection to {host}",
        note,
    )


def test_another_file_s_failure_ends_it(bench: Bench) -> None:
    bench.hub.add_rule(path=STORAGE, status=503, count=-1)
    origin = Origin(bench.hub)

    def sleep(_seconds: float) -> None:
        bench.meter.stop.set()

    origin.sleep = sleep
    with pytest.raises(Cancelled):
        bench.fetch([origin])


# Going on


def interrupt(bench: Bench, at: int) -> None:
    """Leave a part file of *at* bytes."""
    bench.hub.add_rule(path=STORAGE, drop_after=at)
    bench.hub.add_rule(path=STORAGE, status=403, skip=1, count=-1)
    with pytest.raises(HubError):
        bench.fetch()
    assert bench.place.stat().st_size == at
    bench.hub.reset()


def test_a_rerun_goes_on_and_says_what_it_hashes(bench: Bench, data: bytes) -> None:
    interrupt(bench, 2 * MIB)
    assert bench.fetch() == data
    assert bench.ranges() == [f"bytes={2 * MIB}-"]
    assert bench.meter.received == MIB
    assert bench.meter.done == SIZE


def test_a_server_that_ignores_ranges_sends_it_all_again(bench: Bench, data: bytes) -> None:
    interrupt(bench, 2 * MIB)
    bench.hub.add_rule(path=STORAGE, ignore_range=True, count=-1)
    assert bench.fetch() == data
    assert len(bench.storage()) == 1, "the answer that came is used"
    assert bench.shelf.files[NAME].generation == 1


def test_what_was_spoilt_meanwhile_is_found_before_the_rest_is_fetched(
    bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MARK_BYTES", 256 << 10)
    interrupt(bench, 2 * MIB)
    with bench.place.open("r+b") as handle:
        handle.seek(600_000)
        handle.write(b"spoilt")
    assert bench.fetch() == data
    assert len(bench.storage()) == 1
    assert bench.meter.received < SIZE - (256 << 10), "what lies before the damage is kept"
    assert bench.meter.done == SIZE


def test_a_part_of_another_file_is_not_trusted(bench: Bench, data: bytes, tmp_path: Path) -> None:
    interrupt(bench, 2 * MIB)
    data = publish(tmp_path / "hub", SIZE, seed=1)
    assert bench.fetch() == data
    assert bench.ranges() == [None]


def test_without_its_journal_a_part_is_hashed_and_not_blamed_on_the_hub(bench: Bench, data: bytes) -> None:
    """What an earlier run left costs one download at most, whatever it is."""
    bench.place.write_bytes(bytes(MIB))
    assert bench.fetch(hash_tries=1) == data
    assert bench.ranges() == [f"bytes={MIB}-", None]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "size": 1e999}', "\x00" * 100])
def test_a_damaged_journal_costs_nothing_but_the_check(bench: Bench, data: bytes, text: str) -> None:
    interrupt(bench, 2 * MIB)
    journal_of(bench.place).write_text(text)
    assert bench.fetch() == data
    assert bench.ranges() == [f"bytes={2 * MIB}-"]


def test_a_server_with_another_file_than_before_starts_it_over(bench: Bench, data: bytes) -> None:
    interrupt(bench, 2 * MIB)
    bench.hub.add_rule(path=STORAGE, headers={"ETag": '"another"'}, count=-1)
    assert bench.fetch() == data
    assert bench.ranges() == [f"bytes={2 * MIB}-", None]


def test_a_server_that_names_it_differently_each_time_still_serves_it(bench: Bench, data: bytes) -> None:
    for number in range(40):
        bench.hub.add_rule(path=STORAGE, drop_after=200_000, headers={"ETag": f'"{number}"'}, skip=number)
    assert bench.fetch() == data
    assert len(bench.storage()) < 30, "its names are no longer believed"


@pytest.mark.parametrize(
    "answer",
    [
        "bytes 0-99/100",
        "bytes 5-1/3145728",
        "bytes 2097152-99999999999999999999/3145728",
        "bytes 2097152-3145728/3145728",
        f"bytes 2097152-3145727/{'9' * 5000}",
        "bytes */3145728",
        "potatoes 2097152-3145727/3145728",
        "",
    ],
)
def test_an_answer_with_another_range_is_not_used(bench: Bench, data: bytes, answer: str) -> None:
    interrupt(bench, 2 * MIB)
    bench.hub.add_rule(path=STORAGE, headers={"Content-Range": answer}, count=-1)
    assert bench.fetch() == data
    assert bench.ranges() == [f"bytes={2 * MIB}-", f"bytes={2 * MIB}-", None], "then it is asked for as a whole"


def test_a_range_that_cannot_be_starts_it_over(bench: Bench, data: bytes) -> None:
    interrupt(bench, 2 * MIB)
    bench.hub.add_rule(path=STORAGE, status=416, headers={"Content-Range": f"bytes */{SIZE}"})
    assert bench.fetch() == data
    assert bench.ranges() == [f"bytes={2 * MIB}-", None]


def test_a_complete_part_is_proven_without_a_request(bench: Bench, data: bytes) -> None:
    bench.place.write_bytes(data)
    requests = len(bench.storage())
    assert bench.fetch() == data
    assert len(bench.storage()) == requests


# The disk


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, rf"{NAME} needs [12].\d MiB more, but the file system of .* is full \(.* free\): make room"),
        (errno.EDQUOT, rf"{NAME} needs [12].\d MiB more, but the quota of .* is full"),
        (
            errno.EROFS,
            rf"{NAME} cannot be written \([12].\d MiB of 3.0 MiB are there\): the file system of .* is read-only",
        ),
        (errno.EIO, rf"{NAME} cannot be written in .*Input/output error \([12].\d MiB of 3.0 MiB are there\)"),
    ],
)
def test_a_disk_that_takes_no_more_is_explained_with_numbers(
    bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    write = os.pwrite

    def full(descriptor: int, view: Any, position: int) -> int:
        if position + len(view) > 2 * MIB:
            if position < 2 * MIB:
                return write(descriptor, view[: 2 * MIB - position], position)
            raise OSError(number, os.strerror(number))
        return write(descriptor, view, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match=sentence):
            bench.fetch()
    assert bench.fetch() == data
    assert bench.meter.received <= MIB + (64 << 10), "what had been written is kept"


def test_a_disk_that_is_full_at_the_last_byte(bench: Bench, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite

    def full(descriptor: int, view: Any, position: int) -> int:
        if position == SIZE - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, view[: SIZE - 1 - position], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match="is full"):
            bench.fetch()
    assert bench.fetch() == data


FULL = """
import sys
from pathlib import Path
from ansible_collections.socle.inference.plugins.module_utils._errors import StoreError
from tests.unit.hub.downloads import Bench

class Hub:
    url = sys.argv[1]

bench = Bench(Hub, Path(sys.argv[2]) / "part")
try:
    bench.fetch(lines=1)
except StoreError as error:
    print(error)
    print(bench.place.stat().st_size)
"""


def test_a_real_file_system_that_is_full_is_explained(bench: Bench, tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}"
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*alone, mount], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a tmpfs in a namespace")
    done = subprocess.run(
        [*alone, f'{mount} && exec "$0" "$@"', sys.executable, "-c", FULL, bench.hub.url, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{PROJECT / 'collections'}:{PROJECT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    sentence, size = done.stdout.splitlines()
    assert re.match(rf"{NAME} needs [12].\d MiB more, but the file system of \S+ is full \(0.0 MiB free\)", sentence)
    assert int(size) > MIB


def test_a_folder_that_cannot_be_written_is_explained(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(parts.os, "open", refuse)
        with pytest.raises(StoreError, match="is read-only"):
            bench.fetch()


# Several origins


@pytest.fixture
def other(tmp_path: Path, data: bytes) -> Iterator[HubSimulator]:
    """A second place with the same files."""
    with HubSimulator(tmp_path / "hub") as hub:
        yield hub


def impatient(hub: HubSimulator, kind: str = "lan") -> Origin:
    return Origin(hub, replace(QUICK, lan_patience_s=0.6), kind)


def test_the_preferred_origin_brings_all_and_is_counted_by_its_kind(
    bench: Bench, other: HubSimulator, data: bytes
) -> None:
    assert bench.fetch([impatient(other), Origin(bench.hub)]) == data
    assert bench.meter.received_by == {"lan": SIZE}
    assert bench.storage() == []
    assert bench.meter.notes == []


def test_a_neighbour_that_comes_back_soon_keeps_its_place(bench: Bench, other: HubSimulator, data: bytes) -> None:
    other.add_rule(path=STORAGE, status=503)
    assert bench.fetch([impatient(other), Origin(bench.hub)]) == data
    assert bench.meter.received_by == {"lan": SIZE}


def test_a_dead_neighbour_is_given_up_for_a_file_and_preferred_again_at_the_next(
    bench: Bench, other: HubSimulator, data: bytes
) -> None:
    other.add_rule(path=STORAGE, drop_after=MIB)
    other.add_rule(path="/repo ", status=503, skip=1, count=-1)
    origins = [impatient(other), Origin(bench.hub)]
    assert bench.fetch(origins) == data
    assert bench.meter.received_by == {"lan": MIB, "wan": 2 * MIB}
    assert f"went on with {bench.hub.url.partition('//')[2]}" in bench.meter.notes[0]
    requests = len(other.requests)
    bench.place.unlink()
    assert bench.fetch_beside(origins) == data
    assert bench.meter.received_by == {"lan": MIB, "wan": 2 * MIB + SIZE}
    asked = [request for request in other.requests[requests:] if request["path"].endswith("/repo")]
    assert len(asked) == 1, "it is asked once, without the long patience"
    other.reset()
    bench.place.unlink()
    assert bench.fetch_beside(origins) == data
    assert bench.meter.received_by == {"lan": MIB + SIZE, "wan": 2 * MIB + SIZE}


def test_a_neighbour_that_trickles_is_left_for_the_hub_and_a_person_is_told(
    bench: Bench, other: HubSimulator, data: bytes
) -> None:
    other.add_rule(path=STORAGE, bytes_per_s=20_000, count=-1)
    slow = Origin(other, replace(QUICK, lan_patience_s=0.1, slow_window_s=0.3, slow_bytes_per_s=100_000), "lan")
    assert bench.fetch([slow, Origin(bench.hub)]) == data
    assert set(bench.meter.received_by) == {"lan", "wan"}
    last = bench.meter.notes[-1]
    assert re.search(rf"{NAME} from 127.0.0.1:{other.port} .*stalled at \d+ bytes per second over the last", last)
    assert last.endswith(f"went on with 127.0.0.1:{bench.hub.port}")


def test_wrong_content_of_one_origin_is_replaced_by_the_next(bench: Bench, other: HubSimulator, data: bytes) -> None:
    other.add_rule(path=STORAGE, corrupt_at=5, count=-1)
    assert bench.fetch([impatient(other), Origin(bench.hub)]) == data
    assert bench.meter.received_by == {"lan": 2 * SIZE, "wan": SIZE}
    assert "served wrong bytes" in bench.meter.notes[0]
    assert bench.shelf.files[NAME].generation == 2


def test_wrong_content_of_all_origins_names_each(bench: Bench, other: HubSimulator) -> None:
    for hub in (other, bench.hub):
        hub.add_rule(path=STORAGE, corrupt_at=5, count=-1)
    with pytest.raises(HashMismatch) as caught:
        bench.fetch([impatient(other), Origin(bench.hub)])
    assert str(other.port) in str(caught.value)
    assert str(bench.hub.port) in str(caught.value)


def test_a_neighbour_alone_gets_the_whole_patience(bench: Bench, other: HubSimulator, data: bytes) -> None:
    other.add_rule(path=STORAGE, status=503, count=7)
    assert bench.fetch([impatient(other)]) == data


class Hesitant(Origin):
    """A neighbour that answers, and has no more; *progress* is what it says of itself, one word a request."""

    def __init__(self, hub: HubSimulator, progress: Iterator[str | None], answers: int | None = None) -> None:
        super().__init__(hub, replace(QUICK, not_yet_s=1.2, stall_s=0.1), "lan")
        self.progress = progress
        self.answers = answers
        self.asked = 0
        self.sleep = lambda _seconds: None

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        self.asked += 1
        if self.answers is not None and self.asked > self.answers:
            return super().open_file(file, offset, end)
        raise NotYet("no more yet", next(self.progress))


def test_a_neighbour_that_never_has_more_is_given_up_after_a_while(
    bench: Bench, other: HubSimulator, data: bytes
) -> None:
    waiting = Hesitant(other, itertools.repeat("same"))
    assert bench.fetch([waiting, Origin(bench.hub)]) == data
    assert bench.meter.received_by == {"wan": SIZE}
    assert f"has had no more of {NAME} for 1.2 s" in bench.meter.notes[0]
    assert "went on with" in bench.meter.notes[0]
    asked = waiting.asked
    bench.place.unlink()
    assert bench.fetch_beside([waiting, Origin(bench.hub)]) == data
    assert waiting.asked - asked < asked, "the next file waits less for it"


def test_a_neighbour_may_take_its_time_as_long_as_it_gets_on_itself(
    bench: Bench, other: HubSimulator, data: bytes
) -> None:
    busy = Hesitant(other, map(str, itertools.count()), answers=4)
    assert bench.fetch([busy, Origin(bench.hub)]) == data
    assert bench.meter.received_by == {"lan": SIZE}


def test_neighbours_are_never_asked_for_ranges(bench: Bench, other: HubSimulator, data: bytes) -> None:
    other.add_rule(path=STORAGE, bytes_per_s=2 * MIB, count=-1)
    assert bench.fetch([impatient(other)]) == data
    assert [request["range"] for request in other.requests if request["path"].startswith("/cdn/")] == [None]
