# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the role model_store on hosts that are folders and addresses of this machine, against a hub simulator."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.socle.inference.plugins.module_utils._hub.hubs import make_hub
from ansible_collections.socle.inference.plugins.module_utils._hub.job_control import JobControl, View, default_base
from ansible_collections.socle.inference.plugins.module_utils._hub.snapshot import Request, ensure_snapshot
from ansible_collections.socle.inference.plugins.module_utils._progress import Progress

from tests.simulators.hub.server import HubSimulator

PROJECT = Path(__file__).resolve().parents[2]
REPO = "Org/Model"
LOCK = "inventory/.socle/locks/modelscope/Org--Model@master.json"
PLAY = """
- name: Bring the models
  hosts: all
  gather_facts: false
  serial: "{{ batch | default('100%') }}"
  roles: [socle.inference.model_store]
  post_tasks:
    - ansible.builtin.copy:
        content: "{{ model_store_result | to_json }}"
        dest: "{{ model_store_path }}.json"
        mode: "0644"
      when: not ansible_check_mode
"""


def ansible_environment(folder: Path) -> dict[str, str]:
    """Of a run that knows nothing of this user's settings, but those in *folder*."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
        # As ansible.cfg of the project has it.
        "ANSIBLE_PIPELINING": "1",
    }


def bring(stores: Iterable[Path], lock: Path, endpoint: str) -> Path:
    """Leave *stores* and *lock* as a sync does, without a run of Ansible; returns the first store's revision."""
    found = []
    for store in stores:
        request = Request(REPO, "master", store, link="Org--Model", reserve_bytes=0)
        hub = make_hub(endpoint=endpoint, proxy="")
        found.append(Path(ensure_snapshot(request, hub, Progress())["path"]))
    lock.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(found[0].parents[1] / "manifest" / f"{found[0].name}.json", lock)
    return found[0]


def locked_commit(lock: Path) -> str:
    """The commit that *lock* names."""
    return str(json.loads(lock.read_text())["source"]["commit"])


@dataclass(frozen=True)
class Site:
    """Hosts gpu1 to gpuN, with stores in *folder*."""

    folder: Path
    hub: HubSimulator

    def run(
        self, *arguments: str, count: int = 1, hosts: dict[str, dict[str, Any]] | None = None, **given: Any
    ) -> subprocess.CompletedProcess[str]:
        """The role on *count* hosts; *hosts* are variables of single ones, *given* those of all."""
        process = self.start(*arguments, count=count, hosts=hosts, **given)
        stdout, stderr = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(
        self, *arguments: str, count: int = 1, hosts: dict[str, dict[str, Any]] | None = None, **given: Any
    ) -> subprocess.Popen[str]:
        """run(), which is not waited for."""
        found = {
            f"gpu{number}": {
                "model_store_path": str(self.folder / f"gpu{number}"),
                "model_store_lan_address": f"127.0.0.{20 + number}",
                **(hosts or {}).get(f"gpu{number}", {}),
            }
            for number in range(1, count + 1)
        }
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "model_store_models": [{"repo": "Org/Model"}],
            "model_store_endpoint": self.hub.url,
            "model_store_proxy": "",
            "model_store_reserve_gib": 0,
            "model_store_force_prechecks": True,
            **given,
        }
        inventory = self.folder / "inventory"
        inventory.mkdir(exist_ok=True)
        (inventory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": found, "vars": common}}))
        (self.folder / "play.yml").write_text(PLAY)
        (self.folder / "ansible.cfg").write_text("[defaults]\n")
        return subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *[str(self.folder / "play.yml"), "-i", str(inventory), *arguments],
            ],
            cwd=self.folder,
            env=ansible_environment(self.folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def bring(self, *names: str) -> str:
        """Leave hosts and lock as a run does that brings what the hub has now; returns its commit."""
        bring((self.folder / name for name in names), self.folder / LOCK, self.hub.url)
        return locked_commit(self.folder / LOCK)

    def job(self, name: str, repo: str = "Org/Model") -> View | None:
        """The job on host *name*."""
        return JobControl(default_base(), str(self.folder / name), "modelscope", repo).look()

    def clean(self) -> None:
        """End what failed runs left serving."""
        repos = [place.relative_to(self.hub.root).as_posix() for place in Path(self.hub.root).glob("*/*")]
        for store, repo in itertools.product((self.folder / f"gpu{number}" for number in range(1, 10)), repos):
            control = JobControl(default_base(), str(store), "modelscope", repo)
            view = control.look()
            if view and not control.stop("cleaning"):
                os.kill(view.status["pid"], signal.SIGKILL)

    def wan_bytes(self) -> int:
        """Bytes of files that left the hub."""
        named = [request for request in self.hub.requests if {"name", "FilePath"} & set(request["params"])]
        return sum(request.get("sent") or 0 for request in named)

    def has_model(self, name: str, folder: Path, link: str = "Org--Model") -> bool:
        """Whether the store of host *name* holds exactly what *folder* holds."""
        return files(folder) == files(self.folder / name / link)


def files(folder: Path) -> dict[Path, bytes]:
    """What is below *folder*."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def size(folder: Path) -> int:
    """Bytes of all files below *folder*."""
    return sum(map(len, files(folder).values()))
