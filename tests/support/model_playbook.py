# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the playbook models on two hosts that are folders of this machine, against a hub simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.socle.inference.plugins.module_utils._hub.lan import default_address

from tests.simulators.hub.server import HubSimulator
from tests.support.model_site import LOCK, REPO, ansible_environment, bring, locked_commit

ALONE = ("unshare", "--pid", "--fork", "--mount-proc")
"""Garbage collection looks at every process, of which this machine may have some that even root does not see."""


def can_be_alone() -> bool:
    return os.geteuid() == 0 and subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Playbook:
    """The hosts gpu1 and gpu2, with their stores in *folder*."""

    folder: Path
    hub: HubSimulator

    @property
    def lock(self) -> Path:
        return self.folder / LOCK

    @property
    def locked_commit(self) -> str:
        return locked_commit(self.lock)

    def bring(self, *hosts: str) -> Path:
        """Leave hosts and inventory as the action sync does, without a run of Ansible; returns the first's revision."""
        return bring((self.folder / host for host in hosts), self.lock, self.hub.url)

    def __call__(
        self, action: str, *arguments: str, within: tuple[str, ...] = (), **given: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run *action*, with *given* variables."""
        # Both hosts are this machine, and their relays differ by port.
        common_host = {"model_store_lan_address": default_address() or ""}
        hosts = {name: {"model_store_path": str(self.folder / name), **common_host} for name in ("gpu1", "gpu2")}
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "socle_state_dir": str(self.folder / "state"),
            "model_store_models": [{"repo": REPO}],
            "model_store_endpoint": self.hub.url,
            "model_store_proxy": "",
            "model_store_reserve_gib": 0,
            "model_store_force_prechecks": True,
            "model_store_action": action,
            **given,
        }
        inventory = self.folder / "inventory"
        inventory.mkdir(exist_ok=True)
        (inventory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
        (self.folder / "ansible.cfg").write_text("[connection]\npipelining = true\n")
        return subprocess.run(
            [
                *within,
                str(Path(sys.executable).with_name("ansible-playbook")),
                *["socle.inference.models", "-i", str(inventory), *arguments],
            ],
            cwd=self.folder,
            env=ansible_environment(self.folder),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def good(self, action: str, *arguments: str, **options: Any) -> str:
        """The output of a run that must end well."""
        done = self(action, *arguments, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
