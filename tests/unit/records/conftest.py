# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records as the tests build them, and Ansible's commands run for real in a temporary inventory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._records.schema import Record, build

ROOT = Path(__file__).parents[3]

HOSTS = """
all:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    socle_state_dir: "{{ inventory_dir | dirname }}/state/{{ inventory_hostname }}"
  hosts:
    gpu1:
    gpu2:
"""

FP1 = "sha256:" + "1" * 64
FP2 = "sha256:" + "2" * 64
ENV1 = "sha256:" + "a" * 64
ENV2 = "sha256:" + "b" * 64

MakeRecord = Callable[..., tuple[Record, str]]
Ansible = Callable[..., "subprocess.CompletedProcess[str]"]


def make(kind: str = "acceptance", minute: int = 0, **given: Any) -> tuple[Record, str]:
    """A valid record that finished at *minute* past nine."""
    values: dict[str, Any] = {
        "kind": kind,
        "host": "gpu1",
        "instance": "chat",
        "started": "2026-11-30T09:00:00Z",
        "finished": f"2026-11-30T09:{minute:02d}:00Z",
        "verdict": "passed",
        "tool_version": "0.1.0",
        "launch_fingerprint": FP1,
        "environment_fingerprint": ENV1,
    }
    return build(**(values | given))


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """An inventory folder with two local hosts and the records plugin."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "hosts.yml").write_text(HOSTS)
    (folder / "zz_records.yml").write_text("plugin: socle.inference.records\n")
    return folder


@pytest.fixture
def ansible(tmp_path: Path) -> Ansible:
    """Runs one of Ansible's commands with the collection of this checkout."""

    config = tmp_path / "ansible.cfg"
    config.write_text("[defaults]\n")

    def run(command: str, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_NOCOLOR": "1",
        }
        done = subprocess.run(
            [str(Path(sys.executable).with_name(command)), *map(str, arguments)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    return run
