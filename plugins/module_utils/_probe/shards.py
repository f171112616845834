# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shares a load out over processes, where one cannot keep up with the engine. Private to socle.inference."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError
from ansible_collections.socle.inference.plugins.module_utils._probe.errors import ProbeError
from ansible_collections.socle.inference.plugins.module_utils._probe.load import (
    Limits,
    LoadClient,
    LoadReport,
    Order,
    Target,
)

Progress = Callable[[int, int, int], None]

START_NS = 100_000_000
"""After which all processes begin together: they are forked and have connected by then."""

PATIENCE_S = 10.0
"""How long a process has to hand over what it has, once it was interrupted."""

BUSY = 0.7
"""The part of its time that a process may compute: beyond it a moment of other work makes it late."""

LATE_NS = 10_000_000
"""How late it may read, for 99 of 100 reads. Beyond it chunks begin to share a stamp at 50 tokens/s and more."""


def run_load(
    target: Target,
    orders: Sequence[Order],
    streams: int | None = None,
    processes: int = 1,
    limits: Limits | None = None,
    progress: Progress = lambda done, failed, tokens: None,
) -> list[LoadReport]:
    """One report for each process. The orders are dealt out one by one, and so are the streams.

    Errors: ProbeError where a process ended without a report, or was refused memory.
    """
    shares = max(min(processes, len(orders), streams or processes), 1)
    if shares == 1:
        return [LoadClient(target, streams, limits, progress).run(orders)]
    fork = multiprocessing.get_context("fork")
    begin_ns = time.monotonic_ns() + START_NS
    workers: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for share in range(shares):
            ours, theirs = fork.Pipe(duplex=False)
            part = None if streams is None else streams // shares + (share < streams % shares)
            worker: BaseProcess = fork.Process(
                target=_work, args=(theirs, target, orders[share::shares], part, limits, begin_ns), daemon=True
            )
            try:
                worker.start()
            except OSError as error:
                raise ProbeError(
                    f"Process {share + 1} of {shares} of the load could not be started ({error.strerror}); "
                    "ask for fewer streams, or run the probe where more memory is free."
                ) from error
            theirs.close()
            workers.append(worker)
            pipes.append(ours)
        return _reports(workers, pipes, progress)
    finally:
        for worker in workers:
            # What was to be told is told.
            worker.kill()
            worker.join()
        for pipe in pipes:
            pipe.close()


def kept_up(reports: Sequence[LoadReport]) -> bool:
    """Whether no process of the client was so busy, or so late, that it may have measured itself."""
    for report in reports:
        if report.cpu_ns > BUSY * max(report.ended_ns - report.began_ns, 1):
            return False
        late = sum(lag > LATE_NS for lag in report.lags_ns)
        if late > len(report.lags_ns) / 100:
            return False
    return True


def _work(
    pipe: Connection,
    target: Target,
    orders: Sequence[Order],
    streams: int | None,
    limits: Limits | None,
    begin_ns: int,
) -> None:
    """In a process of its own: run the share, and tell."""
    parent = os.getppid()

    def tell(done: int, failed: int, tokens: int) -> None:
        if os.getppid() != parent:
            # Nobody is there any more who would want to know.
            os._exit(1)
        pipe.send((done, failed, tokens))

    # The terminal interrupts every process of its group, and a person by the number only the first one. So that each
    # is interrupted once and none while it hands over, only the first one heeds it, and tells the others by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    told: LoadReport | SocleError
    try:
        told = LoadClient(target, streams, limits, tell).run(orders, begin_ns)
    except SocleError as error:
        told = error
    except KeyboardInterrupt:
        told = LoadReport(interrupted=True)
    except Exception as error:
        told = ProbeError(
            f"A process of the load broke ({type(error).__name__}: {error}), which is the probe's own fault; repeat "
            "it, and report it if it stays."
        )
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(told)
    pipe.close()


def _interrupt(_number: int, _frame: object) -> None:
    """Once: what follows is handed over undisturbed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _reports(workers: Sequence[BaseProcess], pipes: Sequence[Connection], progress: Progress) -> list[LoadReport]:
    """Wait for what all processes tell; an interrupt is passed on to them, so that they hand over what they have."""
    told: dict[int, tuple[int, int, int]] = {}
    reports: dict[int, LoadReport] = {}
    until: float | None = None
    while len(reports) < len(pipes):
        try:
            if until is not None and time.monotonic() > until:
                raise ProbeError("A process of the load did not end after it was interrupted.")
            open_pipes = [pipe for place, pipe in enumerate(pipes) if place not in reports]
            for pipe in wait(open_pipes, timeout=1.0):
                place = pipes.index(pipe)
                try:
                    heard = pipes[place].recv()
                except EOFError:
                    raise ProbeError(
                        f"Process {place + 1} of {len(pipes)} of the load ended without a report; "
                        "it was killed, most likely for memory."
                    ) from None
                if isinstance(heard, SocleError):
                    raise heard
                if isinstance(heard, LoadReport):
                    reports[place] = heard
                else:
                    told[place] = heard
                    done, failed, tokens = (sum(column) for column in zip(*told.values()))
                    progress(done, failed, tokens)
        except KeyboardInterrupt:
            until = until or time.monotonic() + PATIENCE_S
            for worker in workers:
                worker.terminate()
    return [reports[place] for place in range(len(pipes))]
