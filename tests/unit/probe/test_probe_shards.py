# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loads over several processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from array import array
from collections.abc import Iterator

import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe import shards
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError, TransportFault
from ansible_collections.socle.inference.plugins.module_utils._probe.load import LoadClient, LoadReport, Target
from ansible_collections.socle.inference.plugins.module_utils._probe.shards import kept_up, run_load

from tests.simulators.engine.paced import Script, paced
from tests.unit.probe.test_probe_load import PATH, orders


def test_every_order_is_run_once_whatever_the_number_of_processes() -> None:
    told: list[tuple[int, int, int]] = []
    with paced(Script(ttft_s=0.01, gap_s=0.02)) as address:
        reports = run_load(
            Target(address, PATH), orders(15, tokens=30), 5, 3, progress=lambda *figures: told.append(figures)
        )
    assert [len(report.deliveries) for report in reports] == [5, 5, 5]
    deliveries = [delivery for report in reports for delivery in report.deliveries]
    assert sorted(delivery.number for delivery in deliveries) == list(range(15))
    assert all(delivery.trace and len(delivery.trace.marks) == 30 for delivery in deliveries)
    assert told and told[-1][0] <= 15
    assert len({report.began_ns for report in reports}) == 1


@pytest.mark.parametrize(("count", "streams", "processes"), [(2, 8, 4), (8, 2, 4), (1, None, 4)])
def test_no_process_without_an_order_and_a_stream(count: int, streams: int | None, processes: int) -> None:
    with paced(Script(ttft_s=0.001, gap_s=0.001)) as address:
        reports = run_load(Target(address, PATH), orders(count), streams, processes)
    assert len(reports) == min(count, streams or processes, processes)
    assert sum(len(report.deliveries) for report in reports) == count


def test_faults_come_over_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    reports = run_load(Target(address, PATH), orders(4), 4, 2)
    faults = [delivery.fault for report in reports for delivery in report.deliveries]
    assert [type(fault) for fault in faults] == [TransportFault] * 4
    assert {fault.phase for fault in faults if isinstance(fault, TransportFault)} == {"connect"}
    again = pickle.loads(pickle.dumps(ProbeError("It broke.", counts=[1])))
    assert (again.message, again.fields) == ("It broke.", {"counts": [1]})


def test_a_process_that_is_killed_is_told_and_the_others_end() -> None:
    with paced(Script(ttft_s=0.001, gap_s=0.05)) as address:
        servers = multiprocessing.active_children()

        def kill() -> None:
            worker = next(child for child in multiprocessing.active_children() if child not in servers)
            os.kill(worker.pid or 0, signal.SIGKILL)

        timer = threading.Timer(0.5, kill)
        timer.start()
        with pytest.raises(ProbeError, match="ended without a report"):
            run_load(Target(address, PATH), orders(4, tokens=200), 4, 2)
        timer.join()
    assert not multiprocessing.active_children()


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """What a shell starts in the background ignores SIGINT, and so would the processes of the load."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("whole_group", [True, False])
def test_an_interrupted_load_hands_over_what_it_has(whole_group: bool) -> None:
    with paced(Script(ttft_s=0.001, gap_s=0.01)) as address:
        servers = multiprocessing.active_children()

        def interrupt() -> None:
            # As the terminal does, which tells every process of the group, or a person, who tells one.
            for child in multiprocessing.active_children() if whole_group else ():
                if child not in servers:
                    os.kill(child.pid or 0, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.8, interrupt)
        timer.start()
        reports = run_load(Target(address, PATH), orders(200, tokens=5), 2, 2)
        timer.join()
    assert [report.interrupted for report in reports] == [True, True]
    assert 0 < sum(len(report.deliveries) for report in reports) < 200
    assert set(multiprocessing.active_children()) <= set(servers)


def test_a_client_that_computes_most_of_the_time_or_reads_late_did_not_keep_up() -> None:
    def report(cpu_ns: int, late: int) -> LoadReport:
        lags = array("q", [1000] * (1000 - late) + [shards.LATE_NS * 2] * late)
        return LoadReport(began_ns=0, ended_ns=100, cpu_ns=cpu_ns, lags_ns=lags)

    assert kept_up([report(60, 10), report(0, 0)])
    assert not kept_up([report(10, 0), report(80, 0)])
    assert not kept_up([report(10, 11)])


def test_a_load_begins_when_it_is_told_to() -> None:
    with paced(Script(ttft_s=0.001, gap_s=0.001)) as address:
        begin_ns = time.monotonic_ns() + 200_000_000
        report = LoadClient(Target(address, PATH), 1).run(orders(1), begin_ns)
    assert report.deliveries[0].sent_ns >= report.began_ns == begin_ns
