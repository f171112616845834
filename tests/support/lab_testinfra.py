# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab host for testinfra, whose own ansible:// connection would take the templates of an inventory as they are."""

from __future__ import annotations

import os
from pathlib import Path

import testinfra
import testinfra.host
import yaml

from tests.support import lab


def lab_host(port: int = lab.SSH_PORT) -> testinfra.host.Host:
    """The host behind *port* of this machine, over a connection that this scenario's tests share."""
    folder = lab.cache() / "lab" / "ssh"
    return testinfra.get_host(
        f"ssh://root@127.0.0.1:{port}",
        ssh_identity_file=f"{folder}/id_ed25519",
        ssh_extra_args=f"-o UserKnownHostsFile={folder}/known_hosts",
        controlpath=f"{os.environ['MOLECULE_EPHEMERAL_DIRECTORY']}/%%C",
    )


def api_key_of(scenario: Path, instance: str) -> str:
    """The API key that the first play of a scenario's converge.yml gives *instance*."""
    plays = yaml.safe_load((scenario / "converge.yml").read_text(encoding="utf-8"))
    return str(plays[0]["vars"]["vllm_instances"][instance]["api_key"])
