# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What playbook check.yml puts on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.socle.inference.plugins.module_utils._stack.catalogue import CHECKS

from tests.support.playbook import play
from tests.unit.gpu.hosts import Host

ROOT = Path(__file__).parents[3]
OTHERS = [check.id for check in CHECKS if check.id not in ("SOC-H41", "SOC-H64", "SOC-H92")]
"""Checks that would judge the software of the machine that runs this test."""


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one run, since each costs seconds: host "taken" has one error, "unknown" has two."""
    folder = tmp_path_factory.mktemp("check")
    hosts = {}
    for name, device in {"cpu": None, "taken": "0x20b2", "unknown": "0x9999"}.items():
        host = Host(folder / name)
        if device:
            host.pci("0000:01:00.0", device=device, driver="vfio-pci")
        hosts[name] = {"socle_sys_root": str(host.root / "sys"), "socle_proc_root": str(host.root / "proc")}
    (folder / "ansible.cfg").touch()
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts}}), encoding="utf-8")
    options = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "host_checks_ignore": OTHERS,
    }
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            ROOT / "playbooks/check.yml",
            *("-i", inventory, "-e", yaml.safe_dump(options, default_flow_style=True, width=10**6)),
        ],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_NOCOLOR": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stdout


def test_each_host_with_findings_has_a_screen_of_its_own(screen: str) -> None:
    blocks = screen.split("\n\n")
    # Hosts come in the order in which they answered.
    heads = {block.splitlines()[0] for block in blocks if " errors, " in block or " error, " in block}
    assert heads == {"taken: 1 error, 0 warnings", "unknown: 2 errors, 0 warnings"}
    lines = next(block for block in blocks if block.startswith("unknown: ")).splitlines()
    assert [line[:15] for line in lines if line.startswith("SOC-")] == ["SOC-H41  error ", "SOC-H64  error "]
    assert "\ncpu: 2 checks, nothing found\n" in screen


def test_the_failure_says_one_error_whole_and_only_names_several(screen: str) -> None:
    lines = [line for line in screen.splitlines() if line.startswith("fatal: ")]
    taken, unknown = sorted(lines)
    assert "taken is not fit to serve (1 error): SOC-H64: vfio-pci drives the GPU at 0000:01:00.0" in taken
    assert "unknown is not fit to serve (2 errors): SOC-H41 (No host class), SOC-H64 (Another kernel" in unknown
    assert "vfio-pci drives" not in unknown


def test_provisioning_ends_with_one_line_for_a_host(tmp_path: Path) -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/provision.yml").read_text(encoding="utf-8"))[0]["tasks"]
    named = {task["name"]: task for task in tasks}
    assert [task["name"] for task in tasks][-2:] == ["Say what was done", "Fail with what is still wrong"]
    facts = {"engines": {"podman": None, "docker": None}, "driver": {"version": "580.126.09", "flavour": "open"}}
    given = {
        "socle_facts": {"gpu_facts": {**facts, "toolkit": {"version": None}}},
        "socle_checked": {"findings": [], "checked": []},
        "gpu_driver_result": {"version": "580.178.04", "flavour": "open", "reboot": True, "changed": True},
        "container_engine_result": {"engine": "podman", "version": "5.4.2", "changed": True},
    }
    kept = named["Keep what was there, for the line at the end"]
    shown = [kept, {**named["Say what was done"], "register": "told"}]
    playbook = tmp_path / "play.yml"
    playbook.write_text(
        yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "vars": given, "tasks": shown}]), encoding="utf-8"
    )
    (tmp_path / "ansible.cfg").touch()
    done, results = play(tmp_path, str(playbook), "--check")
    assert done.returncode == 0, done.stdout
    assert results[-1]["hosts"]["localhost"]["lines"] == [
        "localhost would be: driver 580.126.09 -> 580.178.04 (open), podman none -> 5.4.2, with a reboot"
    ]
