# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A bare lab host of a test's own, with simulated hardware in front of its real packages."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import lab

SIMULATOR = lab.PROJECT / "tests" / "simulators" / "vendor_repo"
HARDWARE = "/usr/local/lib/socle-sim"
PLAYBOOK = """\
- hosts: all
  gather_facts: false
  vars:
    ansible_host_key_checking: true
  tasks:
    - name: Read the facts
      socle.inference.gpu_facts:
        sys_root: "{{ socle_sys_root }}"
        proc_root: "{{ socle_proc_root }}"
      register: socle_facts

    - name: Bring the host to its driver
      ansible.builtin.include_role:
        name: socle.inference.gpu_driver
      vars:
        gpu_driver_facts: "{{ socle_facts.gpu_facts }}"
"""

# The role virtual_lab removes all hosts of the lab.
REMOVE = f"""\
- hosts: virtual_lab
  gather_facts: false
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
  tasks:
    - name: Remove the host
      socle.inference.virtual_lab:
        state: absent
        directory: {lab.cache()}/lab
        hosts:
          - name: "{{{{ inventory_hostname }}}}"
            publish:
              - {{host_port: "{{{{ port }}}}", port: 22}}
        engine_lock: {lab.PROJECT}/roles/virtual_lab/files/engine-requirements.txt
        converter: {lab.PROJECT}/roles/virtual_lab/files/convert_model.py
        hub_source: {lab.PROJECT}/tests/simulators/hub
"""


@dataclass
class BareHost:
    """One lab host of kind bare, the only member of an inventory of its own."""

    name: str
    port: int
    folder: Path
    """Of inventory and playbooks."""

    def __post_init__(self) -> None:
        group = yaml.safe_load((lab.INVENTORY / "group_vars" / "virtual_lab.yml").read_text())
        variables = {key: value for key, value in group.items() if key.startswith(("ansible_", "virtual_lab_"))}
        variables |= {
            "ansible_port": self.port,
            "virtual_lab_kind": "bare",
            "virtual_lab_publish": [{"host_port": self.port, "port": 22}],
            "socle_sys_root": "/srv/socle-sim/sys",
            "socle_proc_root": "/srv/socle-sim/proc",
        }
        if os.environ.get("SOCLE_LAB_SUBNET"):
            variables["virtual_lab_subnet"] = os.environ["SOCLE_LAB_SUBNET"]
        hosts = {"all": {"children": {"virtual_lab": {"hosts": {self.name: variables}}}}}
        self.inventory = self.folder / "inventory"
        self.inventory.mkdir(parents=True)
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))

    def create(self) -> None:
        """Build the host anew."""
        self.remove()
        lab.play("playbooks/lab.yml", inventory=self.inventory).expect_success()

    def remove(self) -> None:
        """Take this host away, and no other of the lab."""
        lab.play(
            str(self._write("remove.yml", REMOVE)), "-e", f"port={self.port}", inventory=self.inventory
        ).expect_success()

    def _write(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path

    def play(self, content: str, *arguments: str, timeout_s: float = 3600, **variables: Any) -> lab.Run:
        """Run a playbook with arguments and extra variables."""
        path = self._write("play.yml", content)
        return lab.play(
            str(path), *arguments, "-e", json.dumps(variables), inventory=self.inventory, timeout_s=timeout_s
        )

    def driver(self, *arguments: str, **variables: Any) -> lab.Run:
        """Run role gpu_driver with the facts of the simulated hardware."""
        return self.play(PLAYBOOK, *arguments, **variables)

    def sh(self, script: str, check: bool = True, timeout_s: float = 900, stdin: bytes = b"") -> str:
        """Run a shell script on the host, as root; what it printed."""
        folder = lab.cache() / "lab" / "ssh"
        command = [
            *(
                "ssh",
                "-p",
                str(self.port),
                "-i",
                f"{folder}/id_ed25519",
                "-o",
                f"UserKnownHostsFile={folder}/known_hosts",
            ),
            *("-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "root@127.0.0.1"),
            f"bash -euc {shlex.quote(script)}",
        ]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s, check=False)
        assert not check or done.returncode == 0, f"{script!r} ended with {done.returncode}: {done.stderr.decode()}"
        return done.stdout.decode()

    def send(self, local: Path, remote: str) -> None:
        """Copy a file or a folder."""
        packed = subprocess.run(
            ["tar", "-C", str(local.parent), "--exclude=__pycache__", "-cf", "-", local.name],
            capture_output=True,
            check=True,
        ).stdout
        self.sh(f"mkdir -p {remote} && tar -C {remote} -xf -", stdin=packed)

    def plug_in(self, shape: str, kernel: str, **changes: Any) -> None:
        """Put the GPUs of a shape of the simulator on the bus, with *kernel* running and nothing loaded."""
        machine = json.loads((SIMULATOR / "shapes" / f"{shape}.json").read_text()) | changes
        self.send(SIMULATOR / "host", "/tmp")
        self.sh(f"mkdir -p {HARDWARE} && cp /tmp/host/* {HARDWARE}/ && chmod 0755 {HARDWARE}/hardware.py")
        self.sh(f"cat >{HARDWARE}/shape.json", stdin=json.dumps(machine).encode())
        self.sh(f"{HARDWARE}/hardware.py install {kernel} {HARDWARE}/shape.json")


def require_lab() -> None:
    """Skip where the lab cannot run, with the reason."""
    if os.geteuid() != 0:
        pytest.skip("the lab's hosts need root")
    for program in ("podman", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"the lab's hosts need {program}")
