# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A site of a test's own with one instance on the lab host: deployed, asked from that host, and gone afterwards."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import lab, lab_instance

ASK = """
import json, sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def ask(path, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(sys.argv[1] + path, data, {"Content-Type": "application/json"})
    try:
        with opener.open(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
print(json.dumps([ask(*request) for request in json.load(sys.stdin)]))
"""


def python_on_host(program: str, *arguments: str, given: str = "", timeout_s: float = 600) -> str:
    """What a Python program printed on the lab host, with *given* as its input."""
    words = shlex.join(["python3", "-c", program, *arguments])
    done = subprocess.run(
        [*lab.ssh_command("-o", "ServerAliveInterval=30"), words],
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"a program on {lab.HOST} ended with {done.returncode}: {done.stderr}"
    return done.stdout


@dataclass
class LabSite:
    """One instance without a key, beside whatever else runs on the lab host."""

    name: str
    port: int
    folder: Path
    """Of the inventory, and of its data in ``site_data``."""
    settings: dict[str, Any]
    """Of the instance in vllm_instances."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Of the host."""

    @property
    def inventory(self) -> Path:
        return self.folder / "inventories" / "lab"

    def deploy(self, *arguments: str, **settings: Any) -> lab.Run:
        """Run deploy.yml, with *settings* of the instance that win over those it has."""
        instance = {"port": self.port, **self.settings, **settings}
        host = {**self.variables, "vllm_instances": {self.name: instance}}
        lab.write_inventory(self.inventory, {lab.HOST: host})
        return lab.play("playbooks/deploy.yml", *arguments, inventory=self.inventory)

    def ask(self, requests: list[tuple[str, Any]]) -> list[tuple[int, Any]]:
        """(status, answer) of requests (path, body) to the engine; an answer that is no success is a text."""
        url = f"http://127.0.0.1:{self.port}"
        return [(each[0], each[1]) for each in json.loads(python_on_host(ASK, url, given=json.dumps(requests)))]

    def remove(self, *models: str) -> None:
        """Take away the instance and *models* (repositories), which nobody else has."""
        lab_instance.remove(self.name)
        for repo in models:
            gone = ("-e", "model_store_action=remove", "-e", f"model_store_remove={repo}")
            lab.play("playbooks/models.yml", *gone, inventory=self.inventory).expect_success()
