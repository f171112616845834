# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several hosts that bring one model together: on this machine, each with a store, an address and a job of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._hub import fanout
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.job import write_private
from ansible_collections.socle.inference.plugins.module_utils._hub.job_control import JobControl, View
from ansible_collections.socle.inference.plugins.module_utils._hub.manifest import Manifest
from ansible_collections.socle.inference.plugins.module_utils._hub.sync import sync

TOKEN = "0123456789abcdef"
DEFAULTS = {
    "revision": "master",
    "token": None,
    "proxy": "",
    "link": None,
    "verify": "quick",
    "verify_max_age": None,
    "reserve_gib": 0,
    "adopt_from": [],
    "force_prechecks": True,
    "relay": True,
    "relay_token": TOKEN,
    "run": "first",
    "upstreams": [],
    "seed": False,
    "allow_multi_wan": False,
    "wait_s": 60,
}


def resolve(endpoint: str, repo: str, revision: str = "master") -> Manifest:
    """The manifest that the controller would have locked."""
    return make_hub("modelscope", endpoint, proxy="").resolve(repo, revision)


@dataclass(frozen=True)
class FleetHost:
    """One host."""

    name: str
    address: str
    folder: Path
    endpoint: str
    manifest: Manifest
    source: str = "modelscope"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def runtime(self) -> Path:
        return self.folder / "run"

    @property
    def control(self) -> JobControl:
        return JobControl(self.runtime, str(self.store), self.source, self.manifest.repo)

    def params(self, state: str, **options: Any) -> dict[str, Any]:
        """The arguments of the module."""
        given = {
            "state": state,
            "repo": self.manifest.repo,
            "source": self.source,
            "manifest": json.loads(self.manifest.dumps()),
            "endpoint": self.endpoint,
            "store": str(self.store),
            "runtime_dir": str(self.runtime),
            "lan_address": self.address,
        }
        return {**DEFAULTS, **given, **options}

    def call(self, state: str, **options: Any) -> dict[str, Any]:
        """What the module would do on the host."""
        return sync(self.params(state, **options), check=False)

    def job(self) -> View:
        view = self.control.look()
        if view is None:
            raise AssertionError(f"{self.name} has no job")
        return view

    def kill(self) -> None:
        """As if the host had lost its power."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.job().status["pid"], signal.SIGKILL)

    def tell(self, upstreams: list[dict[str, Any]]) -> None:
        """What the state joined does, without the time that starting a process takes."""
        write_private(self.control.folder.upstreams, {"upstreams": upstreams, "token": TOKEN})

    def with_model(self, manifest: Manifest) -> FleetHost:
        return dataclasses.replace(self, manifest=manifest)

    def upstream(self) -> dict[str, Any]:
        status = self.job().status
        return {"name": self.name, "address": status["address"], "port": status["port"]}


def place_all(hosts: Iterable[FleetHost], complete: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """The upstreams of hosts whose jobs are started; those that are *complete* serve the others."""
    by_name = {host.name: host for host in hosts}
    places = fanout.arrange([fanout.Member(name, name in complete) for name in by_name])
    return {name: [by_name[other].upstream() for other in place.upstreams] for name, place in places.items()}


def begin(hosts: Iterable[FleetHost], **options: Any) -> dict[str, dict[str, Any]]:
    """Start the jobs of all *hosts*, and join them as the role does; what each was told."""
    hosts = list(hosts)
    for host in hosts:
        host.call("started", **options)
    complete = [host.name for host in hosts if host.call("inspected")["complete"]]
    places = place_all(hosts, complete)
    seeds = {host.name for host in hosts if host.name in complete or not places[host.name]}
    return {
        host.name: host.call("joined", upstreams=places[host.name], seed=host.name in seeds, **options)
        for host in hosts
    }


def await_that(what: str, done: Callable[[], bool], tries: int = 1200) -> None:
    """Poll until *done*; AssertionError after a minute."""
    for _try in range(tries):
        if done():
            return
        time.sleep(0.05)
    raise AssertionError(f"never {what}")
