# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What acceptance says of the GPUs: who is on them, what is left of them, and what the driver complained of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._probe.checks import CHECKS
from ansible_collections.socle.inference.plugins.module_utils._probe.client import EngineClient
from ansible_collections.socle.inference.plugins.module_utils._probe.host_gpus import HostGpus
from ansible_collections.socle.inference.plugins.module_utils._probe.judge import Context, Outcome, Planned, Promised

UNIT = "vllm-chat.service"
XID = "NVRM: Xid (PCI:0000:{bus}:00): 31, pid=42, name=VLLM::Worker, MMU Fault\n"


class Host:
    """Three GPUs, of which the instance has 0 and 1; process 42 is the engine's, 77 somebody's."""

    def __init__(self, proc: Path) -> None:
        self.free = {"0": 5500, "1": 5480, "2": 81000}
        self.on = {"GPU-a": [42], "GPU-b": [42]}
        self.log: tuple[int, str, str] = (1, "", "")
        self.asked: list[Sequence[str]] = []
        for pid, unit in ((42, UNIT), (77, "train.service")):
            (proc / str(pid)).mkdir(parents=True)
            (proc / str(pid) / "cgroup").write_text(f"0::/system.slice/{unit}\n")

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str] | None:
        self.asked.append(argv)
        if argv[0] == "journalctl":
            return self.log
        if argv[0] != "nvidia-smi":
            return None
        if "--query-compute-apps" in argv[1]:
            lines = [f"{uuid}, {pid}, python3, 70000" for uuid, pids in self.on.items() for pid in pids]
        else:
            lines = [
                f"{index}, GPU-{letter}, 00000000:{bus}:00.0, {self.free[index]}"
                for index, letter, bus in (("0", "a", "3B"), ("1", "b", "5E"), ("2", "c", "86"))
                if index in self.free
            ]
        return 0, "\n".join(lines), ""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def judged(host: Host | None, tmp_path: Path, change: Any = None, **promised: Any) -> Outcome:
    wanted = {"gpus": [0, 1], "unit": UNIT, "headroom_gib": 6.0, "since": "2026-12-01T10:00:00Z", **promised}
    gpus = HostGpus(host, tmp_path) if host else None
    if host and change:
        change(host)
    with EngineClient("http://127.0.0.1:1") as client:
        context = Context(client, Planned(["m"], promised=Promised(**wanted)), host=gpus)
        return CHECKS["gpu"].run(context, CHECKS["gpu"].params)


def test_an_engine_on_its_gpus_passes_with_the_figures(host: Host, tmp_path: Path) -> None:
    found = judged(host, tmp_path)
    assert (found.status, found.found) == ("passed", "GPU 0 has 5500 MiB free; GPU 1 has 5480 MiB free")
    assert found.figures == {"free_mib_0": 5500, "grown_mib_0": 0, "free_mib_1": 5480, "grown_mib_1": 0}
    assert tuple(host.asked[-1][-2:]) == ("--since", "2026-12-01 10:00:00 UTC")


def less_free(host: Host) -> None:
    host.free["1"] -= 600


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda host: host.on.update({"GPU-c": [42]}), "it runs on GPU 2 as well, which is not planned"),
        (lambda host: host.on.pop("GPU-b"), f"no process of {UNIT} is on GPU 1"),
        (lambda host: host.free.pop("1"), "of the planned GPUs 0, 1 the driver shows 1 (it has 0, 2)"),
        (
            lambda host: (host.free.update({"0": 2000}), host.on["GPU-a"].append(77)),
            "GPU 0 has 2000 MiB free, 5120 expected; beside it are process 77 (python3 of train.service, 68.4 GiB)",
        ),
        (less_free, "GPU 1 has 600 MiB less free than before the checks"),
        (
            lambda host: setattr(host, "log", (0, XID.format(bus="5e"), "")),
            "the driver reported Xid 31 of 0000:5e:00.0 since the launch",
        ),
    ],
)
def test_what_is_wrong_with_the_gpus_is_told(host: Host, tmp_path: Path, change: Any, words: str) -> None:
    found = judged(host, tmp_path, change)
    assert (found.status, words in found.found) == ("failed", True), found.found


def test_an_xid_of_another_gpu_is_none_of_this_instance(host: Host, tmp_path: Path) -> None:
    assert judged(host, tmp_path, lambda it: setattr(it, "log", (0, XID.format(bus="86"), ""))).status == "passed"


def test_gpus_may_be_named_by_uuid(host: Host, tmp_path: Path) -> None:
    assert judged(host, tmp_path, gpus=["GPU-a", "GPU-b"]).status == "passed"


def test_a_log_that_cannot_be_read_is_said_to_be_unread(host: Host, tmp_path: Path) -> None:
    found = judged(host, tmp_path, lambda it: setattr(it, "log", (1, "", "No journal files were opened")))
    assert (found.status, "Xids are not known" in found.found) == ("passed", True)


@pytest.mark.parametrize(
    ("promised", "with_host", "words"),
    [({"gpus": []}, True, "names no GPUs"), ({}, False, "does not run on the host")],
)
def test_where_nothing_can_be_asked_it_is_skipped(
    host: Host, tmp_path: Path, promised: dict[str, Any], with_host: bool, words: str
) -> None:
    found = judged(host if with_host else None, tmp_path, **promised)
    assert (found.status, words in found.found) == ("skipped", True)
