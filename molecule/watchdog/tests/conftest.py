# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab host for testinfra. Its own ansible:// connection would take the templates of inventories/lab as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import testinfra
import testinfra.host
import yaml

from tests.support import lab

SCENARIO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def host() -> testinfra.host.Host:
    folder = lab.cache() / "lab" / "ssh"
    return testinfra.get_host(
        f"ssh://root@127.0.0.1:{lab.SSH_PORT}",
        ssh_identity_file=f"{folder}/id_ed25519",
        ssh_extra_args=f"-o UserKnownHostsFile={folder}/known_hosts",
        controlpath=f"{os.environ['MOLECULE_EPHEMERAL_DIRECTORY']}/%%C",
    )


@pytest.fixture(scope="session")
def api_key() -> str:
    plays = yaml.safe_load((SCENARIO / "converge.yml").read_text())
    return str(plays[0]["vars"]["vllm_instances"]["watched"]["api_key"])
