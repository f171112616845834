# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real background jobs on addresses of the loopback network, each with a store of its own, and a hub that counts."""

from __future__ import annotations

import collections
import dataclasses
import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._errors import HubError, StoreError
from ansible_collections.socle.inference.plugins.module_utils._hub import job, job_control, prechecks
from ansible_collections.socle.inference.plugins.module_utils._hub.growing import Growing, Shelf
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.lan import choose_address
from ansible_collections.socle.inference.plugins.module_utils._hub.relay import Relay
from ansible_collections.socle.inference.plugins.module_utils._hub.store import RepoStore
from ansible_collections.socle.inference.plugins.module_utils._hub.sync import sync
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator
from tests.support.model_fleet import TOKEN, FleetHost, await_that, begin, resolve
from tests.support.model_store import base, rot
from tests.unit.hub.conftest import PROJECT, REPO, WEIGHTS, tensors

Fleet = Callable[[int], list[FleetHost]]
SLOW = {"path": "cdn/", "count": -1, "shared_bytes_per_s": 400_000}


@pytest.fixture
def fleet(hub: HubSimulator, tmp_path: Path) -> Iterator[Fleet]:
    made: list[FleetHost] = []

    def make(count: int) -> list[FleetHost]:
        manifest = resolve(hub.url, REPO)
        hub.reset()
        for number in range(1, count + 1):
            name = f"gpu{number}"
            made.append(FleetHost(name, f"127.0.0.{10 + number}", tmp_path / name, hub.url, manifest))
        return made[-count:]

    yield make
    for host in made:
        view = host.control.look()
        if view and view.running:
            host.kill()


def wan_bytes(hub: HubSimulator) -> dict[str, int]:
    """Bytes of each file that left the hub."""
    sent: collections.Counter[str] = collections.Counter()
    for request in hub.requests:
        name = request["params"].get("name") or request["params"].get("FilePath")
        if name and request.get("sent"):
            sent[str(name)] += request["sent"]
    return dict(sent)


def one_copy(folder: Path) -> dict[str, int]:
    return {path: len(content) for path, content in model(folder).items() if content}


def contents(host: FleetHost) -> dict[str, bytes]:
    tree = host.store / "Model"
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def model(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def finish(hosts: list[FleetHost]) -> list[dict[str, Any]]:
    results = [host.call("finished") for host in hosts]
    assert all(result["finished"] for result in results)
    return results


def test_a_chain_of_four_makes_exactly_one_copy_over_the_wan(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(4)
    hub.add_rule(**SLOW)
    begin(hosts)
    results = finish(hosts)
    assert [contents(host) for host in hosts] == [model(folder)] * 4
    assert wan_bytes(hub) == one_copy(folder)
    total = hosts[0].manifest.total_bytes
    assert [(result["bytes"]["wan"], result["bytes"]["lan"]) for result in results] == [(total, 0)] + [(0, total)] * 3
    assert [source.partition(" ")[0] for result in results[1:] for source in result["sources"]] == [
        "gpu1",
        "gpu2",
        "gpu3",
    ]
    for host in hosts:
        assert host.call("stopped") == {"changed": False, "stopped": True}
        assert host.control.look() is None or not host.job().running


def test_the_neighbour_receives_while_the_first_host_still_downloads(hub: HubSimulator, fleet: Fleet) -> None:
    hosts = fleet(2)
    hub.add_rule(**SLOW)
    begin(hosts)
    await_that("received early", lambda: (hosts[1].job().status.get("done") or 0) > 0)
    assert not hosts[0].job().over
    finish(hosts)


def test_a_hub_that_pauses_makes_nobody_else_ask_it(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(2)
    # Longer than the patience with a neighbour that fails, and than a relay keeps a request.
    hub.add_rule(path=f"cdn/.*{WEIGHTS}", delay_s=7)
    begin(hosts)
    results = finish(hosts)
    assert contents(hosts[1]) == model(folder)
    assert (results[1]["bytes"]["wan"], results[1]["warnings"]) == (0, [])
    assert wan_bytes(hub) == one_copy(folder)


def test_a_killed_host_in_the_middle_does_not_stop_the_others(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(4)
    hub.add_rule(**SLOW)
    begin(hosts)
    await_that("under way", lambda: (hosts[3].job().status.get("done") or 0) > 0)
    hosts[1].kill()
    results = finish([hosts[0], *hosts[2:]])
    assert [contents(host) for host in (hosts[0], *hosts[2:])] == [model(folder)] * 3
    assert wan_bytes(hub) == one_copy(folder)
    assert any(source.startswith("gpu1 ") for source in results[1]["sources"])


def test_when_the_first_host_dies_the_second_takes_the_download_over(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    hosts = fleet(3)
    hub.add_rule(**SLOW)
    begin(hosts)
    await_that("under way", lambda: (hosts[2].job().status.get("done") or 0) > 0)
    hosts[0].kill()
    results = finish(hosts[1:])
    assert [contents(host) for host in hosts[1:]] == [model(folder)] * 2
    assert results[0]["bytes"]["wan"] > 0
    assert results[1]["bytes"]["wan"] == 0
    with pytest.raises(HubError, match=r"ended without a result .* Run again: it goes on"):
        hosts[0].call("finished")


def test_a_dead_host_that_comes_back_takes_the_model_from_the_others(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    hosts = fleet(3)
    hub.add_rule(**SLOW)
    begin(hosts)
    await_that("under way", lambda: (hosts[1].job().status.get("done") or 0) > 0)
    hosts[1].kill()
    finish([hosts[0], hosts[2]])
    hub.reset()
    begin(hosts, relay_token="of another run")
    (result,) = finish([hosts[1]])
    assert contents(hosts[1]) == model(folder)
    assert result["bytes"]["wan"] == 0
    assert wan_bytes(hub) == {}


def test_complete_hosts_are_sources_and_the_hub_is_not_asked(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(3)
    begin(hosts[1:2])
    finish(hosts[1:2])
    hosts[1].call("stopped")
    hub.reset()
    begin(hosts)
    results = finish(hosts)
    assert [contents(host) for host in hosts] == [model(folder)] * 3
    assert hub.requests == []
    assert [result["bytes"]["wan"] for result in results] == [0, 0, 0]


def test_files_of_another_revision_are_served_before_they_are_linked(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    hosts = fleet(2)
    begin(hosts[:1])
    finish(hosts[:1])
    hosts[0].call("stopped")
    (folder / "config.json").write_text('{"architectures": ["Newer"]}')
    hosts = [host.with_model(resolve(hub.url, REPO)) for host in hosts]
    hub.reset()
    begin(hosts)
    results = finish(hosts)
    assert wan_bytes(hub) == {"config.json": 28}
    assert results[0]["bytes"]["reused_link"] == hosts[0].manifest.total_bytes - 28
    assert contents(hosts[1]) == model(folder)


@pytest.fixture
def liar(fleet: Fleet) -> Iterator[tuple[list[FleetHost], dict[str, Any]]]:
    """Two hosts, and a neighbour that serves other bytes of the right length."""
    hosts = fleet(2)
    places = {}
    for file in hosts[0].manifest.files:
        place = hosts[0].folder / "wrong" / file.sha256
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"!" * file.size)
        places[file.path] = Growing(file.path, file.size, place, file.size, 0, True)
    relay = Relay(Shelf(places), "127.0.0.99", [TOKEN])
    yield hosts, {"name": "liar", "address": relay.address, "port": relay.port}
    relay.close()


def test_a_neighbour_that_serves_wrong_bytes_is_named_and_another_is_asked(
    liar: tuple[list[FleetHost], dict[str, Any]], folder: Path
) -> None:
    (good, host), wrong = liar
    begin([good])
    finish([good])
    host.call("started")
    host.call("joined", upstreams=[wrong, good.upstream()])
    result = host.call("finished")
    assert contents(host) == model(folder)
    assert result["bytes"]["wan"] == 0
    assert any(
        re.search(r"liar \(127.0.0.99:\d+\) served wrong bytes of .*--limit liar ", text) for text in result["warnings"]
    )


def test_a_rerun_joins_the_running_job(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(2)
    hub.add_rule(**SLOW)
    begin(hosts)
    before = [host.job().status["pid"] for host in hosts]
    found = hosts[1].call("inspected")
    assert found["work"] and found["job"]["joined"]
    assert hosts[1].call("started")["new"] is False
    begin(hosts, relay_token="of another run")
    assert [host.job().status["pid"] for host in hosts] == before
    finish(hosts)
    assert wan_bytes(hub) == one_copy(folder)


def test_a_job_that_hashes_everything_does_for_a_run_that_only_looks_into_files(fleet: Fleet) -> None:
    (host,) = fleet(1)
    host.call("started", verify="full")
    assert host.call("started", run="other", verify="structure")["new"] is False


@pytest.mark.parametrize(
    ("asked", "named"),
    [({"verify": "full"}, "verify full"), ({"owner": "65534"}, "owner 65534"), ({"verify_max_age": "1d"}, "86400")],
)
def test_a_run_that_asks_for_more_than_the_job_of_another_does_says_so(
    fleet: Fleet, asked: dict[str, Any], named: str
) -> None:
    """The job of the other run would end well, and this run would report what nobody did."""
    (host,) = fleet(1)
    host.call("started")
    with pytest.raises(StoreError, match=f"job of another run .* without .*{named}.*: run again when it is over"):
        host.call("started", run="other", **asked)
    host.call("joined", seed=True)
    finish([host])
    host.call("stopped")
    host.call("started", verify="full", owner="0")
    assert not host.call("started", run="other", owner="0", verify_max_age="1d")["new"], "that is done as well"


def test_a_job_of_a_run_on_one_host_serves_the_hosts_of_a_run_that_joins_it(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    first, second = fleet(2)
    hub.add_rule(**SLOW)
    first.call("started", relay=False, relay_token=None, lan_address=None, run="alone")
    first.call("joined", seed=True, relay_token=None)
    joined = first.call("started")
    assert not joined["new"] and joined["port"]
    second.call("started")
    second.call("joined", upstreams=[first.upstream()])
    assert first.call("joined", seed=True)["warnings"] == []
    assert [result["bytes"]["lan"] > 0 for result in finish([first, second])] == [False, True]
    assert contents(second) == model(folder)
    assert wan_bytes(hub) == one_copy(folder)
    assert first.call("stopped", run="alone")["stopped"] is False
    assert first.call("stopped")["stopped"] is True


def test_an_address_that_a_running_job_cannot_serve_on_is_named(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    hub.add_rule(**SLOW)
    host.call("started", relay=False, relay_token=None, run="alone")
    host.call("joined", seed=True, relay_token=None)
    with pytest.raises(HubError, match=r"cannot be served on 192\.0\.2\.1"):
        host.call("started", lan_address="192.0.2.1")
    finish([host])


def test_offline_a_model_comes_from_a_neighbour_and_never_from_the_hub(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    first, second = fleet(2)
    begin([first])
    finish([first])
    hub.reset()
    begin([first, second], offline=True, run="offline", gone_s=1)
    finish([first, second])
    assert contents(second) == model(folder)
    (second.store / "Model" / WEIGHTS).unlink()
    (first.store / "Model" / WEIGHTS).unlink()
    second.call("started", offline=True, run="again", gone_s=1)
    second.call("joined", upstreams=[first.upstream()], gone_s=1)
    with pytest.raises(HubError, match="the option offline is set, so that no hub is asked"):
        second.call("finished")
    assert hub.requests == []


def test_offline_what_no_neighbour_has_is_missing(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    assert host.call("inspected", offline=True)["work"]
    host.call("started", offline=True)
    host.call("joined", seed=True)
    with pytest.raises(HubError, match=r"6 missing .* the option offline is set"):
        host.call("finished")
    assert hub.requests == []


def test_a_job_that_ends_before_it_is_joined_has_done_its_work(fleet: Fleet, folder: Path) -> None:
    (host,) = fleet(1)
    host.call("started", relay=False, relay_token=None, run="alone")
    assert not host.call("started", relay=False, relay_token=None)["new"]
    host.call("joined", seed=True, relay_token=None)
    await_that("over", lambda: not host.job().running)
    assert host.call("joined", seed=True, relay_token=None)["warnings"] == []
    assert host.call("stopped", run="alone")["stopped"] is False, "the other run has not read its result yet"
    assert finish([host])[0]["changed"]
    assert host.call("stopped")["stopped"] is True
    assert host.control.look() is None


@pytest.mark.parametrize("name", ["status", "result", "users"])
@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        "[1]",
        "{}",
        '{"failed": false, "result": 5}',
        '{"failed": true, "msg": ["a"], "fields": [1]}',
        '{"failed": true, "msg": "m", "fields": {"message": 1}}',
    ],
    ids=["nested", "list", "empty", "no result", "no message", "fields"],
)
def test_damaged_files_of_a_job_are_as_good_as_none(fleet: Fleet, name: str, content: str) -> None:
    (host,) = fleet(1)
    folder = host.control.folder
    folder.path.mkdir(parents=True, mode=0o700)
    host.runtime.chmod(0o700)
    getattr(folder, name).write_text(content)
    with pytest.raises(HubError, match=r"ended without a result .* Run again"):
        host.call("finished")
    assert host.call("started")["new"]
    host.call("joined", seed=True)
    finish([host])


@pytest.mark.parametrize("name", ["status", "result", "users", "lock", "log"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file_of_a_job(fleet: Fleet, name: str) -> None:
    (host,) = fleet(1)
    folder = host.control.folder
    folder.path.mkdir(parents=True, mode=0o700)
    host.runtime.chmod(0o700)
    os.mkfifo(getattr(folder, name))
    with pytest.raises(HubError, match=r"ended without a result .* Run again"):
        host.call("finished")
    assert host.call("stopped")["stopped"]


def test_of_a_long_log_of_a_job_the_end_is_told(fleet: Fleet) -> None:
    (host,) = fleet(1)
    host.control.folder.path.mkdir(parents=True, mode=0o700)
    with host.control.folder.log.open("wb") as log:
        log.truncate(1 << 40)
        log.seek(0, os.SEEK_END)
        log.write(b"x" * 10_000 + b"\nNo more memory\n")
    with pytest.raises(HubError, match=r"It said: .*No more memory\. Run again") as caught:
        host.call("finished")
    assert len(str(caught.value)) < 1000


def test_the_job_goes_on_when_the_process_that_started_it_ends(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    (host,) = fleet(1)
    hub.add_rule(**SLOW)
    program = (
        "import json, sys; from ansible_collections.socle.inference.plugins.module_utils._hub.sync import sync; "
        "[sync(params, False) for params in json.loads(sys.stdin.read())]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps([host.params("started"), host.params("joined", seed=True)]),
        env={**os.environ, "PYTHONPATH": str(PROJECT / "collections")},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status = host.job().status
    assert os.getsid(status["pid"]) not in (os.getsid(0), 0)
    assert host.job().running and not host.job().over
    finish([host])
    assert contents(host) == model(folder)


def test_a_job_that_serves_nobody_ends_by_itself(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    begin([host], idle_s=0.5)
    finish([host])
    await_that("over", lambda: not host.job().running)
    assert sorted(path.name for path in host.control.folder.path.iterdir()) == [
        *("lock", "log", "result.json", "status.json", "users.json"),
    ]


def test_a_job_without_a_relay_listens_nowhere_and_ends_with_its_download(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    assert host.call("started", relay=False, relay_token=None, lan_address=None)["port"] is None
    host.call("joined", seed=True, relay_token=None)
    finish([host])
    await_that("over", lambda: not host.job().running)


def test_a_job_for_another_content_is_named(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    (host,) = fleet(1)
    hub.add_rule(**SLOW)
    begin([host])
    shutil.copytree(folder, folder.with_name("Model@next"))
    (folder.with_name("Model@next") / "config.json").write_text("{}")
    other = host.with_model(resolve(hub.url, REPO, "next"))
    assert (host.call("inspected")["job"]["other"], other.call("inspected")["job"]["other"]) == (False, True)
    with pytest.raises(StoreError, match=r"brings Org/Model at master with other content .* end it with: kill \d+"):
        other.call("started")
    with pytest.raises(StoreError, match="other content"):
        other.call("joined", seed=True)
    finish([host])


def test_a_job_that_is_over_does_not_answer_for_a_later_run(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    (host,) = fleet(1)
    begin([host])
    assert finish([host])[0]["changed"]
    before = host.job().status["pid"]
    begin([host], relay_token="of another run")
    result = finish([host])[0]
    assert (result["changed"], result["bytes"]["wan"]) == (False, 0), "the result of the run before"
    assert host.job().status["pid"] == before, "its neighbours may still take from its relay"
    (host.store / "Model" / WEIGHTS).unlink()
    begin([host])
    result = finish([host])[0]
    assert result["changed"] and contents(host) == model(folder)
    begin([host], verify="full")
    result = finish([host])[0]
    assert (result["changed"], result["verify"]["level"]) == (False, "full")
    assert result["verify"]["hashed_files"] == len(host.manifest.files)


def test_the_result_of_another_run_s_job_is_not_taken_for_the_own(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    (host,) = fleet(1)
    begin([host], relay=False, run="first")
    await_that("over", lambda: not host.job().running and host.job().over)
    (folder / "config.json").write_text('{"architectures": ["Other"]}')
    other = host.with_model(resolve(hub.url, REPO))
    begin([other], relay=False, run="second")
    with pytest.raises(HubError, match="another run has put a job for other content of Org/Model "):
        host.call("finished", content_id=host.manifest.content_id, run="first")
    assert other.call("finished", content_id=other.manifest.content_id, run="second")["finished"]


def test_a_full_disk_for_the_files_of_jobs_is_named_and_keeps_no_half_of_a_secret(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host,) = fleet(1)

    def fill(document: Any, handle: Any, **_options: Any) -> None:
        handle.write(str(document)[:100])
        handle.flush()
        if "hubsecret" in str(document):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(job.json, "dump", fill)
    place = host.control.folder.spec
    with pytest.raises(StoreError, match=rf"failed: No space left on device \({place}\): make room there"):
        host.call("started", token="hubsecret")
    assert not [path for path in host.runtime.rglob("*") if path.name.startswith((".spec", "spec"))]
    monkeypatch.undo()
    begin([host])
    assert host.call("finished")["finished"]


def test_a_file_in_the_place_of_the_files_of_a_job_is_replaced(fleet: Fleet) -> None:
    (host,) = fleet(1)
    host.runtime.mkdir(parents=True, mode=0o700)
    host.control.folder.path.write_text("x")
    begin([host])
    assert host.call("finished")["finished"]


def test_a_relay_of_another_content_is_not_in_the_way_once_it_only_serves(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    (host,) = fleet(1)
    begin([host])
    finish([host])
    (folder / "config.json").write_text("{}")
    newer = host.with_model(resolve(hub.url, REPO))
    begin([newer])
    finish([newer])
    assert contents(newer) == model(folder)


def test_what_the_ledger_does_not_prove_is_hashed_by_the_job_and_once(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    begin([host])
    finish([host])
    host.call("stopped")
    hub.reset()
    (base(host.store) / "ledger.json").unlink()
    for _time in range(2):
        found = host.call("inspected")
        plan = found["plan"]
        assert (found["complete"], found["work"], found["verify"]["hashed_files"]) == (True, True, 0)
        assert (plan["unproven_files"], plan["need"]) == (len(host.manifest.files), 0)
    assert not sync(host.params("inspected"), check=True)["changed"]
    begin([host])
    result = finish([host])[0]
    assert (result["changed"], result["verify"]["hashed_files"]) == (False, len(host.manifest.files))
    found = host.call("inspected")
    assert (found["complete"], found["work"], found["plan"]["unproven_files"]) == (True, False, 0)
    assert hub.requests == []


def test_a_look_in_check_mode_writes_nothing_into_the_store(fleet: Fleet, monkeypatch: Any) -> None:
    (host,) = fleet(1)
    host.store.mkdir(parents=True)
    probed: list[Path] = []
    monkeypatch.setattr(prechecks, "try_writing", probed.append)
    sync(host.params("inspected"), check=True)
    assert probed == []
    sync(host.params("inspected"), check=False)
    assert probed


def test_a_rotten_file_comes_from_a_neighbour(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(3)
    begin(hosts)
    finish(hosts)
    for host in hosts:
        host.call("stopped")
    hub.reset()
    rot(hosts[0].store, hosts[0].store / "Model" / WEIGHTS)
    rot(hosts[2].store, hosts[2].store / "Model" / WEIGHTS)
    begin(hosts, verify="full")
    results = finish(hosts)
    assert [contents(host) for host in hosts] == [model(folder)] * 3
    assert hub.requests == []
    assert [result["bytes"]["lan"] > 0 for result in results] == [True, False, True]


def test_hosts_that_all_find_the_same_file_rotten_get_it_from_the_hub_once(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    hosts = fleet(3)
    begin(hosts)
    finish(hosts)
    for host in hosts:
        host.call("stopped")
        rot(host.store, host.store / "Model" / WEIGHTS)
    hub.reset()
    begin(hosts, verify="full")
    finish(hosts)
    assert [contents(host) for host in hosts] == [model(folder)] * 3
    assert wan_bytes(hub) == {WEIGHTS: (folder / WEIGHTS).stat().st_size}


def test_hosts_that_all_find_the_same_file_rotten_and_reach_no_hub_say_so(hub: HubSimulator, fleet: Fleet) -> None:
    hosts = fleet(2)
    begin(hosts)
    finish(hosts)
    for host in hosts:
        host.call("stopped")
        rot(host.store, host.store / "Model" / WEIGHTS)
    hub.add_rule(path=WEIGHTS, count=-1, status=404)
    begin(hosts, verify="full")
    for host in hosts:
        with pytest.raises(HubError, match=f"404 for {WEIGHTS}.*does not have all of {WEIGHTS}"):
            host.call("finished")


def test_a_neighbour_whose_file_is_rotten_is_named_and_hashes_it_in_its_next_run(
    hub: HubSimulator, fleet: Fleet, folder: Path
) -> None:
    bad, host = fleet(2)
    begin([bad])
    finish([bad])
    bad.call("stopped")
    rot(bad.store, bad.store / "Model" / WEIGHTS)
    assert bad.call("inspected")["plan"]["unproven_files"] == 0, "a quick look does not see it"
    begin([bad, host])
    result = finish([bad, host])[1]
    assert contents(host) == model(folder)
    (warning,) = [text for text in result["warnings"] if WEIGHTS in text]
    assert re.match(rf"gpu1 \(127.0.0.11:\d+\) served wrong bytes of {WEIGHTS} .*--limit gpu1 ", warning)
    for one in (bad, host):
        one.call("stopped")
    found = bad.call("inspected")
    assert (found["plan"]["unproven_files"], found["work"]) == (1, True)
    assert host.call("inspected")["plan"]["unproven_files"] == 0
    hub.reset()
    begin([bad, host])
    results = finish([bad, host])
    assert contents(bad) == model(folder)
    assert results[0]["bytes"]["lan"] == (folder / WEIGHTS).stat().st_size
    assert hub.requests == []


def test_a_folder_that_only_one_host_has_serves_the_others(fleet: Fleet, folder: Path, tmp_path: Path) -> None:
    manifest = make_hub("directory", path=str(folder)).resolve(REPO, "master")
    hosts = [dataclasses.replace(host, manifest=manifest, source="directory") for host in fleet(2)]
    for host, path in zip(hosts, (folder, tmp_path / "not mounted"), strict=True):
        host.call("started", path=str(path))
    hosts[0].call("joined", seed=True)
    hosts[1].call("joined", upstreams=[hosts[0].upstream()])
    results = finish(hosts)
    assert [result["bytes"]["lan"] for result in results] == [0, manifest.total_bytes]
    for host in hosts:
        host.call("stopped")


def test_a_job_waits_for_the_lock_as_long_as_it_is_told(fleet: Fleet) -> None:
    (host,) = fleet(1)
    store = RepoStore(host.store, "modelscope", REPO)
    store.prepare()
    with store.locked(0, Progress()):
        begin([host], lock_timeout=0)
        with pytest.raises(HubError, match="another run holds the lock"):
            host.call("finished")


def test_a_failed_job_gives_its_reason_and_a_rerun_starts_anew(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    (host,) = fleet(1)
    hub.add_rule(path=WEIGHTS, count=-1, status=404)
    begin([host])
    with pytest.raises(HubError, match=f"404 for {WEIGHTS}"):
        host.call("finished")
    assert host.job().running, "it serves what it has to the others"
    hub.reset()
    begin([host])
    finish([host])
    assert contents(host) == model(folder)


def test_an_upstream_that_cannot_be_reached_is_named_and_passed_over(hub: HubSimulator, fleet: Fleet) -> None:
    hosts = fleet(2)
    for host in hosts:
        host.call("started")
    hosts[0].call("joined", seed=True)
    gone = {"name": "gpu9", "address": "127.0.0.99", "port": 9}
    warnings = hosts[1].call("joined", upstreams=[gone, hosts[0].upstream()])["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "gpu9 (127.0.0.99:9) cannot be reached (Connection refused): it takes Org/Model from gpu1"
    )
    assert finish(hosts)[1]["bytes"]["wan"] == 0


def test_without_any_upstream_the_wan_is_used_again_only_if_that_is_allowed(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    gone = [{"name": "gpu9", "address": "127.0.0.99", "port": 9}]
    host.call("started")
    with pytest.raises(HubError, match=r"none of .*gpu9 \(127.0.0.99:9\) .* set lan_address .* allow_multi_wan"):
        host.call("joined", upstreams=gone)
    assert hub.requests == []
    host.call("started")
    warnings = host.call("joined", upstreams=gone, allow_multi_wan=True)["warnings"]
    assert "it asks the hub itself" in warnings[0]
    assert finish([host])[0]["bytes"]["wan"] == host.manifest.total_bytes


def test_a_wrong_relay_token_reaches_nobody(fleet: Fleet) -> None:
    hosts = fleet(2)
    for host in hosts:
        host.call("started")
    with pytest.raises(HubError, match="status 401"):
        hosts[1].call("joined", upstreams=[hosts[0].upstream()], relay_token="wrong")


def test_secrets_are_in_no_file_no_argument_and_no_result(hub: HubSimulator, fleet: Fleet, monkeypatch: Any) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:proxysecret@127.0.0.1:9")
    (host,) = fleet(1)
    hub.add_rule(**SLOW)
    seen = [host.call("started", token="hubsecret", relay_token="relaysecret")]
    seen.append(host.call("joined", seed=True, token="hubsecret", relay_token="relaysecret"))
    seen.append(host.call("started", token="hubsecret", relay_token="relaysecret2"))
    folder = host.control.folder.path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    texts = [path.read_text(errors="replace") for path in folder.iterdir() if path.suffix != ".zip"]
    pid = host.job().status["pid"]
    texts.append(Path(f"/proc/{pid}/cmdline").read_text())
    seen.append(finish([host])[0])
    texts += [json.dumps(seen), (folder / "result.json").read_text()]
    for secret in ("hubsecret", "relaysecret", "proxysecret"):
        assert not [text for text in texts if secret in text]
    assert any("hubsecret" in str(request["headers"]) for request in hub.requests)


def test_what_a_job_is_told_is_not_lost_when_it_is_told_while_the_job_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "token"
    job.write_private(place, "first")
    look = job.read_json

    def look_and_be_overtaken(where: Path) -> Any:
        found = look(where)
        job.write_private(place, "second")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job, "read_json", look_and_be_overtaken)
        assert job.take_json(place) == "first"
    assert job.take_json(place) == "second"
    assert job.take_json(place) is None
    assert list(tmp_path.iterdir()) == []


def test_status_says_how_far_it_is(hub: HubSimulator, fleet: Fleet) -> None:
    hosts = fleet(2)
    hub.add_rule(**SLOW)
    begin(hosts)
    await_that("a rate", lambda: bool(hosts[1].job().status.get("rate_per_s")))
    answer = hosts[1].call("finished", wait_s=0)
    assert not answer["finished"]
    shown = answer["job"]
    assert (shown["phase"], shown["unit"]) == ("downloading", "B")
    assert 0 < shown["done"] < shown["total"] == hosts[1].manifest.total_bytes
    assert shown["left_s"] > 0 and shown["source"].startswith("gpu1 (127.0.0.11:") and shown["file"]
    finish(hosts)


def test_inspection_names_what_is_missing_and_changes_nothing(fleet: Fleet) -> None:
    (host,) = fleet(1)
    found = host.call("inspected")
    assert (found["complete"], found["work"], found["changed"], found["job"]) == (False, True, False, None)
    plan = found["plan"]
    assert plan["bytes"] == plan["need"] == host.manifest.total_bytes
    assert plan["missing_files"] == len(host.manifest.files) and plan["free"] > 0 and plan["reserve"] == 0
    assert not host.folder.exists()


def test_inspection_of_a_complete_host_asks_for_no_work(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    begin([host])
    result = finish([host])[0]
    host.call("stopped")
    hub.reset()
    found = host.call("inspected")
    assert (found["complete"], found["work"], found["path"]) == (True, False, result["path"])
    assert host.call("inspected", verify="full")["work"]
    assert not host.call("inspected", verify_max_age="1d")["work"]
    assert host.call("inspected", verify_max_age="0m")["work"]
    assert hub.requests == []


def test_a_folder_of_jobs_that_somebody_else_made_is_refused(fleet: Fleet) -> None:
    (host,) = fleet(1)
    host.runtime.mkdir(parents=True, mode=0o777)
    host.runtime.chmod(0o777)
    with pytest.raises(StoreError, match="not this user's alone"):
        host.call("started")


def test_a_job_that_cannot_start_says_what_python_said(fleet: Fleet, monkeypatch: Any) -> None:
    (host,) = fleet(1)
    monkeypatch.setattr(job_control, "BOOT", "import no_such_module")
    with pytest.raises(HubError, match=r"ended without a result .*No module named 'no_such_module'"):
        host.call("started")
    assert not (host.control.folder.path / "spec.json").exists()


def test_with_systemd_the_job_is_a_transient_unit_of_a_name_that_says_what_it_is(
    hub: HubSimulator, fleet: Fleet, folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    (host,) = fleet(1)
    seen = tmp_path / "argv"
    program = tmp_path / "bin" / "systemd-run"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}\nwhile [ "$1" != -- ]; do shift; done; shift\nsetsid env -i "$@" &\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(job_control, "_has_systemd", lambda: True)
    # A unit has none of the environment of the task, whose proxies are to be used all the same.
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", hub.url)
    begin([host], token="hubsecret", endpoint="http://models.example", proxy=None)
    finish([host])
    assert contents(host) == model(folder)
    argv = seen.read_text()
    unit = host.job().status["systemd_unit"]
    assert re.fullmatch(rf"socle-models-{host.control.id}-[0-9a-f]{{8}}\.service", unit)
    assert f"--unit={unit}\n" in argv and "--collect\n" in argv
    assert "hubsecret" not in argv and TOKEN not in argv
    host.call("stopped")
    hub.reset()
    host.call("started", endpoint=hub.url, verify="full")
    assert host.job().status["systemd_unit"] not in (unit, None), "systemd may still have the unit of the job before"
    (folder / "config.json").write_text("{}")
    with pytest.raises(StoreError, match=f"systemctl stop {host.job().status['systemd_unit']}"):
        host.with_model(resolve(hub.url, REPO)).call("started")


def test_two_runs_at_once_start_one_job(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    hub.add_rule(**SLOW)
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(host.call("started"))) for _number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["new"] for answer in answers) == [False, False, True]
    assert len({answer["port"] for answer in answers}) == 1


def test_a_running_download_is_not_stopped(hub: HubSimulator, fleet: Fleet) -> None:
    (host,) = fleet(1)
    hub.add_rule(**SLOW)
    begin([host])
    assert host.call("stopped")["stopped"] is False
    finish([host])
    assert host.call("stopped")["stopped"] is True


def test_a_relay_stays_until_the_last_run_that_uses_it_ends_it(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    hosts = fleet(2)
    begin(hosts[:1])
    finish(hosts[:1])
    # A run with --limit, or of another controller, on that host alone.
    begin(hosts[:1], run="other", relay_token="of another run")
    finish(hosts[:1])
    assert hosts[0].call("stopped", run="other") == {"changed": False, "stopped": False}
    hub.reset()
    hosts[1].call("started")
    hosts[1].call("joined", upstreams=[hosts[0].upstream()])
    finish(hosts[1:])
    assert contents(hosts[1]) == model(folder)
    assert hub.requests == []
    assert hosts[0].call("stopped")["stopped"] is True
    assert hosts[0].control.look() is None


def test_a_job_that_waits_for_its_run_is_not_ended_by_another_one(fleet: Fleet) -> None:
    (host,) = fleet(1)
    host.call("started")
    host.call("started", run="other", relay_token="of another run")
    assert host.call("stopped", run="other")["stopped"] is False
    host.call("joined", seed=True)
    finish([host])


def test_a_relay_that_neighbours_of_another_run_take_from_is_not_replaced(fleet: Fleet, folder: Path) -> None:
    hosts = fleet(2)
    begin(hosts)
    finish(hosts)
    await_that("seen in use", lambda: bool(hosts[0].job().status.get("in_use")))
    with pytest.raises(
        StoreError, match=r"other hosts take Org/Model from this host in another run, .* wait until"
    ) as busy:
        hosts[0].call("started", run="other", verify="full")
    assert busy.value.fields["serving"], "the controller asks again for a while"
    assert not hosts[0].call("started", run="other")["new"], "with nothing to do it is shared"
    for run in ("first", "other"):
        hosts[0].call("stopped", run=run)
    assert hosts[0].call("started", run="other", verify="full")["new"]


@pytest.mark.parametrize(
    ("wanted", "connected_by", "own", "default", "chosen"),
    [
        ("10.0.0.5", "10.0.0.6", True, "10.0.0.7", "10.0.0.5"),
        (None, "10.0.0.6", True, "10.0.0.7", "10.0.0.6"),
        (None, "10.0.0.6", False, "10.0.0.7", "10.0.0.7"),
        (None, "127.0.0.1", True, "10.0.0.7", "10.0.0.7"),
        (None, "gpu1.example", True, "10.0.0.7", "10.0.0.7"),
        (None, "2001:db8::6", True, None, "2001:db8::6"),
    ],
)
def test_the_address_for_neighbours(
    wanted: str | None, connected_by: str | None, own: bool, default: str | None, chosen: str
) -> None:
    assert choose_address(wanted, connected_by, lambda _address: own, lambda: default) == chosen


def test_without_a_route_the_address_must_be_given() -> None:
    with pytest.raises(HubError, match="set model_store_lan_address"):
        choose_address(None, "gpu1", lambda _address: False, lambda: None)


@pytest.mark.parametrize("address", ["::ffff:0.0.0.0", "::ffff:224.0.0.1", "::", "0.0.0.0", "ff02::1"])
def test_nobody_serves_on_an_address_of_all_or_of_many_however_it_is_written(address: str) -> None:
    with pytest.raises(HubError, match="must be one address of the host"):
        choose_address(address, None)


@pytest.mark.parametrize("public", ["8.8.8.8", "2606:4700::1111"])
def test_a_public_address_is_served_on_only_when_asked_for(public: str) -> None:
    for connected_by in ("gpu1.example", public):
        with pytest.raises(HubError, match=f"{public}, which is a public address .*set model_store_lan_address"):
            choose_address(None, connected_by, lambda _address: True, lambda: public)
    assert choose_address(None, public, lambda _address: True, lambda: "10.0.0.7") == "10.0.0.7"
    assert choose_address(public, None, lambda _address: True, lambda: None) == public


def test_a_big_file_is_passed_on_with_several_at_once(hub: HubSimulator, fleet: Fleet, folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(tensors("a", 20_000_000))
    hosts = fleet(3)
    begin(hosts)
    finish(hosts)
    assert [contents(host) for host in hosts] == [model(folder)] * 3
    assert wan_bytes(hub) == one_copy(folder)
