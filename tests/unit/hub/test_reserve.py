# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a host that takes from neighbours may ask the hub: against neighbours that answer, are dead, or are silent."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import urllib.error
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub.climb import Climb
from ansible_collections.socle.inference.plugins.module_utils._hub.download import Meter, fetch_file
from ansible_collections.socle.inference.plugins.module_utils._hub.listing import ModelFile
from ansible_collections.socle.inference.plugins.module_utils._hub.origin import Back, NotYet
from ansible_collections.socle.inference.plugins.module_utils._hub.policy import Policy
from ansible_collections.socle.inference.plugins.module_utils._hub.reserve import ASK_S, GONE_S, Reserve
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

CONTENT = b"weights" * 100
FILE = ModelFile("model.safetensors", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
POLICY = Policy(backoff_s=0.01, backoff_max_s=0.01, lan_patience_s=0.01)
REFUSED, SILENT = ConnectionRefusedError(111, "Connection refused"), TimeoutError("timed out")
ENDED = urllib.error.HTTPError("/", 410, "Gone", Message(), None)


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Answer(io.BytesIO):
    """A response with all of the file from *offset* on."""

    def __init__(self, offset: int) -> None:
        super().__init__(CONTENT[offset:])
        self.status = 206 if offset else 200
        self.headers = Message()
        if offset:
            self.headers["Content-Range"] = f"bytes {offset}-{len(CONTENT) - 1}/{len(CONTENT)}"

    def geturl(self) -> str:
        return ""


class Fake:
    """An origin, or a peer, that does what *fault* says, or serves; *files* are those that it was asked for."""

    ranges = False

    def __init__(self, host: str, kind: str, clock: Clock, fault: Exception | None = None) -> None:
        self.host = host
        self.kind = kind
        self.policy = POLICY
        self.sleep = clock.sleep if kind == "wan" else time.sleep
        self.fault = fault
        self.asked = 0

    def open_file(self, file: ModelFile, offset: int, end: int | None = None) -> Any:
        self.asked += 1
        if self.fault:
            raise self.fault
        return Answer(offset)

    def is_own(self, url: str | None) -> bool:
        return True

    def describe_route(self) -> str:
        return "over the LAN"

    def is_heard(self, file: ModelFile) -> bool | None:
        if self.fault is REFUSED:
            return None
        return self.fault is not SILENT


class Bed:
    """A hub, neighbours with the given faults, and the reserve between them."""

    def __init__(self, *faults: Exception | None) -> None:
        self.clock = Clock()
        self.hub = Fake("hub", "wan", self.clock)
        self.peers = [Fake(f"gpu{number}", "lan", self.clock, fault) for number, fault in enumerate(faults, 1)]
        self.reserve = Reserve(self.hub, self.peers, clock=self.clock)  # type: ignore[arg-type]

    def turn_to_the_hub(self) -> None:
        """What a download does: ask each upstream in vain, then the reserve."""
        for upstream in self.reserve.upstreams:
            with pytest.raises(OSError):
                upstream.open_file(FILE, 0)
        self.reserve.open_file(FILE, 0)


def test_the_hub_is_asked_at_once_when_nothing_listens_at_any_upstream() -> None:
    bed = Bed(REFUSED, REFUSED)
    bed.turn_to_the_hub()
    assert (bed.hub.asked, bed.clock.now) == (1, 1000.0)


def test_silent_upstreams_are_waited_for_and_count_as_gone_after_two_minutes() -> None:
    bed = Bed(SILENT, REFUSED)
    with pytest.raises(NotYet, match="gpu1 is silent"):
        bed.turn_to_the_hub()
    while bed.clock.now < 1000 + GONE_S:
        assert bed.hub.asked == 0
        with pytest.raises(NotYet):
            bed.reserve.open_file(FILE, 0)
    bed.reserve.open_file(FILE, 0)
    assert bed.hub.asked == 1
    other = ModelFile("other", 1, FILE.sha256)
    bed.reserve.open_file(other, 0)
    assert bed.hub.asked == 2, "the next file need not wait again"


def test_an_upstream_that_answers_again_is_preferred() -> None:
    bed = Bed(SILENT)
    with pytest.raises(NotYet):
        bed.turn_to_the_hub()
    bed.peers[0].fault = None
    bed.clock.now += ASK_S
    with pytest.raises(Back, match="gpu1 answers again"):
        bed.reserve.open_file(FILE, 0)
    assert bed.hub.asked == 0


def test_an_upstream_that_refuses_a_file_is_not_waited_for() -> None:
    bed = Bed(ENDED)
    bed.turn_to_the_hub()
    assert (bed.hub.asked, bed.clock.now) == (1, 1000.0)


def test_a_short_break_of_the_network_costs_nothing_over_the_wan(tmp_path: Path) -> None:
    bed = Bed(SILENT, SILENT)

    def mend(seconds: float) -> None:
        bed.clock.now += seconds
        # The engine has a clock of its own.
        time.sleep(seconds / 20)
        if bed.clock.now > 1000 + 5 * ASK_S:
            bed.peers[1].fault = None

    bed.reserve.sleep = mend
    meter = Meter(Progress(), FILE.size, climb=Climb(POLICY))
    fetch_file([*bed.reserve.upstreams, bed.reserve], FILE, tmp_path / "part", meter)
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert bed.hub.asked == 0
    assert (meter.received_by.get("lan"), meter.received_by.get("wan", 0)) == (FILE.size, 0)
    assert any("gpu2 answers again" in note for note in meter.notes)


@pytest.mark.parametrize("fault", [REFUSED, ConnectionResetError(104, "Connection reset by peer")])
def test_who_refuses_is_given_up_after_a_few_tries_and_not_by_the_patience_with_a_silent_one(
    fault: Exception, tmp_path: Path
) -> None:
    bed = Bed(fault)
    bed.peers[0].policy = replace(POLICY, lan_patience_s=30, lan_refused_s=0.5)
    bed.peers[0].is_heard = lambda _file: None  # type: ignore[method-assign]
    bed.reserve = Reserve(bed.hub, bed.peers, clock=bed.clock)  # type: ignore[arg-type]
    fetch_file([*bed.reserve.upstreams, bed.reserve], FILE, tmp_path / "part", Meter(Progress(), FILE.size))
    assert (tmp_path / "part").read_bytes() == CONTENT
    assert (bed.hub.asked, 2 <= bed.peers[0].asked <= 3) == (1, True)


def test_a_silent_one_is_not_given_up_by_the_patience_with_one_that_refuses(tmp_path: Path) -> None:
    bed = Bed(SILENT)
    bed.peers[0].policy = replace(POLICY, lan_patience_s=1.2, lan_refused_s=0)
    bed.peers[0].is_heard = lambda _file: None  # type: ignore[method-assign]
    bed.reserve = Reserve(bed.hub, bed.peers, clock=bed.clock)  # type: ignore[arg-type]
    fetch_file([*bed.reserve.upstreams, bed.reserve], FILE, tmp_path / "part", Meter(Progress(), FILE.size))
    assert bed.peers[0].asked >= 2


def test_files_that_come_at_once_share_the_wait() -> None:
    bed = Bed(SILENT)
    with pytest.raises(NotYet):
        bed.turn_to_the_hub()
    bed.clock.now += GONE_S
    threads = [
        threading.Thread(target=bed.reserve.open_file, args=(ModelFile(f"{number}", 1, FILE.sha256), 0))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bed.hub.asked == 4
