# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Without a group virtual_lab, site.yml changes nothing on the controller but the records beside the inventory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Line
from tests.support import lab

PROGRAMS = (
    *("podman", "docker", "runc", "conmon", "mmdebstrap", "iptables", "nsenter", "unshare", "ssh-keygen"),
    *("apt", "apt-get", "dpkg", "pip", "pip3", "sudo", "systemctl"),
)
"""What building a lab, or installing anything, would call."""


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Stand-ins for PROGRAMS in a folder bin/; the file gets a line for each call."""
    calls = tmp_path / "calls"
    calls.touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\nexit 1\n')
        program.chmod(0o755)
    return calls


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_socket()}


def _processes(home: Path) -> set[str]:
    """Processes outside containers that a run with this home folder left, so that nobody waits for them."""
    found = set()
    mark = f"HOME={home}".encode()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            own = mark in (status.parent / "environ").read_bytes().split(b"\0")
            if own and fields["PPid"] == "1" and len(fields["NSpid"].split()) == 1:
                found.add(f"{status.parent.name} {fields['Name']}")
        except (OSError, KeyError):
            continue
    return found


@pytest.mark.parametrize("mode", ["run", "check"])
def test_an_ordinary_host_leaves_the_controller_alone(mode: str, recorded: Path, tmp_path: Path, line: Line) -> None:
    host = yaml.safe_load((lab.INVENTORY / "host_vars" / f"{lab.HOST}.yml").read_text())
    variables = {"vllm_instances": host["vllm_instances"]}
    inventory = lab.write_inventory(tmp_path / "inventories" / "ordinary", {lab.HOST: variables})
    lab.copy_locks(inventory)
    home = tmp_path / "home"
    home.mkdir()
    before = _tree(home)

    run = lab.play(
        "site.yml",
        *(["--check"] if mode == "check" else []),
        inventory=inventory,
        HOME=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        SOCLE_CACHE_DIR=str(home / "socle"),
        PATH=f"{recorded.parent}/bin:{lab.BIN}:{os.environ['PATH']}",
    ).expect_success()

    assert run.recap.keys() == {lab.HOST}
    assert run.changed == 0
    assert recorded.read_text() == ""
    assert lab.HOST in lab.inventory_groups(inventory).get("accepted", []) or mode == "check"
    # Ansible's own folder and nothing else: no cache, no key, no image.
    assert {path for path in _tree(home) - before if not path.startswith(".ansible")} == set()
    # Ansible leaves a connection to the host open for a while.
    assert {name for name in _processes(home) if not name.endswith(" ssh")} == set()
    beside = _tree(tmp_path / "inventories")
    kept = ("ordinary/.socle/records/", "ordinary/.socle/locks/")
    assert all(path.startswith(kept) for path in beside if path.count("/") > 2)


def test_the_group_makes_the_difference(tmp_path: Path) -> None:
    """The same inventory with the group: check mode says that it would build."""
    host = {"virtual_lab_publish": [{"host_port": 2299, "port": 22}], "virtual_lab_directory": f"{tmp_path}/lab"}
    inventory = lab.write_inventory(tmp_path / "inventories" / "lab", {lab.HOST: host}, virtual_lab=True)
    run = lab.play("playbooks/lab.yml", "--check", inventory=inventory).expect_success()
    assert run.changed == 1
    assert f"create socle-lab-{lab.HOST}" in run.output or "engine image" in run.output
    assert not (tmp_path / "lab").exists()
