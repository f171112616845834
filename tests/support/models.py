# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts and the hub of molecule/models from a test's point of view."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections import Counter
from typing import Any

import yaml

from tests.support import lab

INVENTORY = lab.PROJECT / "molecule" / "models" / "inventory"
HUB = "models-hub"
HOSTS = ("model-1", "model-2", "model-3")
STORE = "/var/lib/socle/models"
MODELS = "/srv/models/Org"
LOG = "/srv/hub.log"


def ssh(host: str, script: str) -> list[str]:
    """The command line that runs a shell script on a host, as root."""
    port = yaml.safe_load((INVENTORY / "host_vars" / f"{host}.yml").read_text())["ansible_port"]
    folder = lab.cache() / "lab" / "ssh"
    return [
        *("ssh", "-p", str(port), "-i", f"{folder}/id_ed25519", "-o", f"UserKnownHostsFile={folder}/known_hosts"),
        *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=10", "root@127.0.0.1", f"bash -euc {shlex.quote(script)}"),
    ]


def on(host: str, script: str, check: bool = True) -> str:
    """What a shell script printed on a host."""
    done = subprocess.run(ssh(host, script), capture_output=True, text=True, timeout=120, check=False)
    assert not check or done.returncode == 0, f"{script!r} on {host} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def models(action: str = "sync", *options: str, **values: Any) -> lab.Run:
    """Run playbook models.yml, with variables that win."""
    extra = json.dumps({"socle_hosts": "models", "model_store_action": action, **values})
    # Molecule forces colours, which nobody can read here.
    plain = {"ANSIBLE_FORCE_COLOR": "0"}
    return lab.play("playbooks/models.yml", *options, "--extra-vars", extra, inventory=INVENTORY, **plain)


def kill_during(host: str, condition: str, *options: str) -> None:
    """Start models.yml, and kill it and its connections as soon as *condition*, a shell script, holds on *host*."""
    run = subprocess.Popen(
        lab.command("playbooks/models.yml", "-e", "socle_hosts=models", *options, inventory=INVENTORY),
        cwd=lab.PROJECT,
        env=lab.environment(ANSIBLE_FORCE_COLOR="0"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _try in range(120):
            if subprocess.run(ssh(host, condition), capture_output=True, timeout=60, check=False).returncode == 0:
                return
            assert run.poll() is None, "the run ended before it could be killed"
            time.sleep(0.5)
        raise AssertionError(f"{condition!r} never held on {host}")
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(timeout=30)


def hub_control(**orders: Any) -> None:
    """Give the hub orders: rules, reset."""
    body = shlex.quote(json.dumps(orders))
    on(HUB, f"python3 - {body} <<'E'\nimport sys, urllib.request\n{_POST}\nE")


_POST = """
request = urllib.request.Request("http://127.0.0.1:8090/_ctl", data=sys.argv[1].encode(), method="POST")
urllib.request.urlopen(request, timeout=10).read()
"""


def forget_requests() -> None:
    """Begin to count anew."""
    on(HUB, f": >{LOG}; : >{LOG}.sent")


def requests() -> list[dict[str, Any]]:
    """What the hub was asked since."""
    return [json.loads(line) for line in on(HUB, f"cat {LOG}").splitlines()]


def bytes_sent() -> int:
    """The bytes of files that the hub sent since."""
    return sum(int(line) for line in on(HUB, f"cat {LOG}.sent").splitlines())


def size_of(model: str) -> int:
    """Bytes of all files of a model as the hub has it."""
    return int(on(HUB, f"find {MODELS}/{model} -type f -printf '%s\\n' | awk '{{n += $1}} END {{print n}}'"))


def current(host: str, model: str) -> str:
    """The revision that the link of a model names."""
    return on(host, f"readlink {STORE}/Org--{model}").strip().rpartition("/")[2]


def content(host: str, model: str) -> Counter[str]:
    """Hash and name of each file of the current revision."""
    return Counter(on(host, f"cd {STORE}/Org--{model}/ && find . -type f | sort | xargs sha256sum").splitlines())


def original(model: str) -> Counter[str]:
    """The same of the model as the hub has it."""
    return Counter(on(HUB, f"cd {MODELS}/{model} && find . -type f | sort | xargs sha256sum").splitlines())
