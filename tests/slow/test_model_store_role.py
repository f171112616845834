# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role model_store with hosts of several kinds in one play."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.socle.inference.plugins.module_utils._hub.job_control import View

from tests.simulators.hub.server import HubSimulator
from tests.support.model_netns import make_model
from tests.support.model_site import Site, size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "hub/Org/Model"
    make_model(folder, 1_100_000, 1)
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubSimulator]:
    with HubSimulator(folder.parents[1]) as simulator:
        yield simulator


@pytest.fixture
def site(tmp_path: Path, hub: HubSimulator) -> Iterator[Site]:
    site = Site(tmp_path, hub)
    yield site
    site.clean()


def test_a_host_that_has_taken_a_model_from_a_folder_helps_the_next_batch(
    site: Site, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    models = [{"repo": "Org/Model", "path": str(folder)}]
    given = {"model_store_source": "directory", "model_store_endpoint": None, "model_store_models": models}
    done = site.run("-e", "batch=1", count=2, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.has_model("gpu1", folder) and site.has_model("gpu2", folder)
    assert "ok: [gpu2 -> gpu1]" in done.stdout and "ignored=0" in done.stdout


def test_hosts_with_different_models_share_what_they_have_in_common(
    site: Site, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    other = folder.parents[1] / "Other/Thing"
    shutil.copytree(folder, other)
    (other / "config.json").write_text('{"architectures": ["Other"]}')
    both = [{"repo": "Other/Thing"}, {"repo": "Org/Model"}]
    hosts = {"gpu1": {"model_store_models": both[1:]}, "gpu2": {"model_store_models": both}}
    done = site.run(count=3, hosts=hosts, model_store_models=both[:1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.has_model("gpu1", folder) and site.has_model("gpu2", folder)
    assert site.has_model("gpu2", other, "Other--Thing") and site.has_model("gpu3", other, "Other--Thing")
    assert not (tmp_path / "gpu3/Org--Model").exists()
    assert site.wan_bytes() == size(folder) + size(other)


def test_one_host_after_the_other_still_costs_one_copy(
    site: Site, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    done = site.run(count=3, batch=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(site.has_model(f"gpu{number}", folder) for number in (1, 2, 3))
    assert site.wan_bytes() == size(folder)


def test_a_host_that_has_the_model_serves_a_new_one(
    site: Site, hub: HubSimulator, folder: Path, tmp_path: Path
) -> None:
    assert site.run(count=2, model_store_fanout="auto").returncode == 0
    hub.reset()
    done = site.run(count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.has_model("gpu3", folder)
    assert site.wan_bytes() == 0


def test_without_fanout_every_host_downloads(site: Site, hub: HubSimulator, folder: Path) -> None:
    done = site.run(count=2, model_store_fanout="never")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.wan_bytes() == 2 * size(folder)


def test_progress_of_every_host_is_on_the_terminal_and_no_secret(site: Site, hub: HubSimulator) -> None:
    hub.add_rule(path="cdn/", count=-1, shared_bytes_per_s=60_000)
    done = site.run("-vvv", count=2, model_store_token="hubsecret")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, source in (("gpu1", r"127\.0\.0\.1:\d+"), ("gpu2", r"gpu1 \(127\.0\.0\.21:\d+\)")):
        assert re.search(rf"\[{name}\] Org/Model: downloading, .* of 1\.\d MiB, .*/s, .* from {source}", done.stdout)
        assert re.search(rf"\[{name}\] Org/Model: complete, 1\.\d MiB from", done.stdout)
    assert "hubsecret" not in done.stdout + done.stderr
    assert "relay_token" not in done.stdout


def test_a_failure_ends_with_its_reason(site: Site, hub: HubSimulator) -> None:
    hub.add_rule(path="config.json", count=-1, status=404)
    done = site.run(count=2)
    assert done.returncode != 0
    assert re.search(r"\[gpu1\] Org/Model: .*answered 404 for config.json", done.stdout)


def await_download(site: Site, name: str) -> View:
    """The job on host *name*, once bytes arrived there."""
    for _try in range(1200):
        view = site.job(name)
        if view and (view.status.get("done") or 0) > 0:
            return view
        time.sleep(0.05)
    raise AssertionError(f"{name} never received anything")


def test_a_run_that_is_killed_loses_nothing_and_the_next_one_waits_for_its_jobs(
    site: Site, hub: HubSimulator, folder: Path
) -> None:
    hub.add_rule(path="cdn/", count=-1, shared_bytes_per_s=20_000)
    first = site.start(count=2)
    before = [await_download(site, name).status["pid"] for name in ("gpu1", "gpu2")]
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    done = site.run(count=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.has_model("gpu1", folder) and site.has_model("gpu2", folder)
    assert site.wan_bytes() == size(folder)
    assert "waiting" in done.stdout or "downloading" in done.stdout
    for name, pid in zip(("gpu1", "gpu2"), before, strict=True):
        # The killed run may have neighbours elsewhere: its relay serves them until nobody has asked for 10 minutes.
        view = site.job(name)
        assert view is None or (view.over and view.status["pid"] == pid)


def test_a_host_that_dies_in_the_middle_does_not_stop_the_others(site: Site, hub: HubSimulator, folder: Path) -> None:
    hub.add_rule(path="cdn/", count=-1, shared_bytes_per_s=60_000)
    run = site.start(count=3)
    await_download(site, "gpu3")
    os.kill(await_download(site, "gpu2").status["pid"], signal.SIGKILL)
    stdout, _stderr = run.communicate(timeout=300)
    assert run.returncode != 0
    assert re.search(r"\[gpu2\] Org/Model: the job .* ended without a result .* Run again", stdout)
    assert site.has_model("gpu1", folder) and site.has_model("gpu3", folder)
    assert site.wan_bytes() == size(folder)
    done = site.run(count=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.has_model("gpu2", folder)
    assert site.wan_bytes() == size(folder)


def test_three_names_of_one_machine_and_store_bring_the_model_once(site: Site, hub: HubSimulator, folder: Path) -> None:
    same = {"model_store_path": str(site.folder / "gpu1"), "model_store_lan_address": None}
    done = site.run(count=3, hosts=dict.fromkeys(("gpu1", "gpu2", "gpu3"), same))
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.has_model("gpu1", folder)
    assert site.wan_bytes() == size(folder)
    again = site.run(count=3, hosts=dict.fromkeys(("gpu1", "gpu2", "gpu3"), same))
    assert again.returncode == 0 and "changed=0" in again.stdout and "changed=1" not in again.stdout
