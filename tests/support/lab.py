# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab from a test's point of view: run a playbook, look at the host, ask the engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
INVENTORY = PROJECT / "inventories" / "lab"
HOST = "lab-cpu-1"
SSH_PORT = 2201
ENGINE_URL = "http://127.0.0.1:18001"
INSTANCE = "chat"
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)\s+skipped=(\d+)", re.M)
FAILURE = re.compile(r"^(?:fatal|failed): \[([^\] ]+)(?: -> [^\]]+)?\]:?.*? => (\{.*\})$", re.M)
SUMMARY = "One or more items failed"


def cache() -> Path:
    """Where the lab keeps itself, by the same rule as the Makefile and the inventory."""
    home = os.environ.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
    return Path(os.environ.get("SOCLE_CACHE_DIR") or f"{home}/socle")


def environment(**extra: str) -> dict[str, str]:
    """As the Makefile sets it, with results that a test can read."""
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_NOCOLOR": "1",
        # A home of the test's own may make a path too long for a socket.
        "ANSIBLE_SSH_CONTROL_PATH_DIR": os.environ.get("ANSIBLE_SSH_CONTROL_PATH_DIR", f"{Path.home()}/.ansible/cp"),
        **extra,
    }


@dataclass
class Run:
    """A finished ansible-playbook."""

    rc: int
    output: str
    seconds: float
    recap: dict[str, dict[str, int]] = field(init=False)
    failures: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        keys = ("ok", "changed", "unreachable", "failed", "skipped")
        self.recap = {
            found[0]: dict(zip(keys, map(int, found[1:]), strict=True)) for found in RECAP.findall(self.output)
        }
        # The last one is what a person is left with; a rescue may have put Ansible's own words better.
        self.failures = {}
        for host, text in FAILURE.findall(self.output):
            result = json.loads(text)
            if result["msg"] != SUMMARY:
                self.failures[host] = result

    @property
    def changed(self) -> int:
        return sum(host["changed"] for host in self.recap.values())

    def expect_success(self) -> Run:
        assert self.rc == 0, f"ansible-playbook ended with {self.rc}:\n{self.output[-6000:]}"
        return self


def command(playbook: str, *arguments: str, inventory: Path = INVENTORY) -> list[str]:
    """The command line of a playbook of this project."""
    return [str(BIN / "ansible-playbook"), str(PROJECT / playbook), "-i", str(inventory), *arguments]


def play(
    playbook: str, *arguments: str, inventory: Path = INVENTORY, timeout_s: float = 1500, **extra_environment: str
) -> Run:
    """Run a playbook to its end."""
    began = time.monotonic()
    done = subprocess.run(
        command(playbook, *arguments, inventory=inventory),
        cwd=PROJECT,
        env=environment(**extra_environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Run(done.returncode, done.stdout, time.monotonic() - began)


def inventory_host(host: str = HOST, inventory: Path = INVENTORY) -> dict[str, Any]:
    """The host's variables as Ansible sees them."""
    return dict(_inventory("--host", host, inventory=inventory))


def inventory_groups(inventory: Path = INVENTORY) -> dict[str, list[str]]:
    """Members of each group."""
    listed = _inventory("--list", inventory=inventory)
    return {name: group.get("hosts", []) for name, group in listed.items() if name != "_meta"}


def _inventory(*arguments: str, inventory: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(BIN / "ansible-inventory"), "-i", str(inventory), *arguments],
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def ssh_command(*options: str, user: str = "root") -> list[str]:
    """ssh to the lab host with the lab's own key and known hosts."""
    folder = cache() / "lab" / "ssh"
    return [
        *("ssh", "-p", str(SSH_PORT), "-i", f"{folder}/id_ed25519"),
        *("-o", f"UserKnownHostsFile={folder}/known_hosts", "-o", "StrictHostKeyChecking=yes"),
        *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
        *options,
        f"{user}@127.0.0.1",
    ]


def on_host(script: str, check: bool = True, timeout_s: float = 180, input_text: str = "") -> str:
    """Run a shell script on the lab host, as root, with *input_text* as its input; what it printed."""
    done = subprocess.run(
        [*ssh_command(), f"bash -euc {shlex.quote(script)}"],
        input=input_text,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert not check or done.returncode == 0, f"{script!r} on {HOST} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def unit(name: str = INSTANCE) -> dict[str, str]:
    """What systemd says about an instance's unit; a restart changes the invocation and the start."""
    wanted = (
        "ActiveState,InvocationID,ExecMainPID,NRestarts,ActiveEnterTimestampMonotonic,InactiveExitTimestampMonotonic"
    )
    shown = on_host(f"systemctl show vllm-{name}.service --property={wanted}")
    return dict(line.split("=", 1) for line in shown.splitlines())


def generation(name: str = INSTANCE) -> str:
    """The generation whose unit is installed."""
    return on_host(f"basename $(readlink /var/lib/socle/instances/{name}/current)").strip()


def spool(kind: str = "", name: str = INSTANCE) -> list[str]:
    """Names of the records in the host's spool."""
    names = on_host("ls /var/lib/socle/records 2>/dev/null || true").split()
    return sorted(entry for entry in names if f"-{name}-{kind}" in entry)


def collected(kind: str, name: str = INSTANCE, inventory: Path = INVENTORY) -> list[Path]:
    """The records beside the inventory, oldest first."""
    return sorted((inventory / ".socle" / "records" / HOST / name).glob(f"*-{kind}*.json"))


FINGERPRINT = r"""
find /etc/containers/systemd /etc/systemd/system /var/lib/socle /opt/socle \
  \( -path /var/lib/socle/cache -o -name __pycache__ -o -name .lock -o -name lock \) -prune \
  -o -printf '%p %y %m %s %T@ %l\n' 2>/dev/null | sort
systemctl show 'vllm-*.service' --property=Id,ActiveState,InvocationID,NRestarts
podman ps --all --no-trunc --format '{{.ID}} {{.Names}}' | sort
podman secret ls --format '{{.Name}}' | sort
podman images --no-trunc --quiet | sort
"""


def host_fingerprint() -> list[str]:
    """All on the host that this product could change, as lines that can be compared."""
    return on_host(FINGERPRINT).splitlines()


def ask(question: str, url: str = ENGINE_URL, api_key: str | None = None, max_tokens: int = 32) -> str:
    """The engine's answer to a question, from this machine."""
    body = {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as response:
        answer = json.load(response)
    return str(answer["choices"][0]["message"]["content"])


def copy_locks(inventory: Path) -> None:
    """Give an inventory the lab's locks of models, as one has it that was in use before."""
    shutil.copytree(INVENTORY / ".socle" / "locks", inventory / ".socle" / "locks")


def write_inventory(folder: Path, hosts: dict[str, dict[str, Any]], virtual_lab: bool = False) -> Path:
    """An inventory in *folder* whose hosts all lead to the lab host, each with variables of its own."""
    keys = ("ansible_host", "ansible_user", "ansible_python_interpreter", "ansible_ssh_common_args")
    lab = yaml.safe_load((INVENTORY / "group_vars" / "virtual_lab.yml").read_text())
    connection = {key: lab[key] for key in keys}
    connection["ansible_ssh_private_key_file"] = f"{cache()}/lab/ssh/id_ed25519"
    connection["ansible_ssh_common_args"] = connection["ansible_ssh_common_args"].replace(
        "{{ virtual_lab_ssh_directory }}", f"{cache()}/lab/ssh"
    )
    connection["model_store_endpoint"] = lab["model_store_endpoint"]
    connection["model_store_reserve_gib"] = lab["model_store_reserve_gib"]
    connection["model_store_allow_volatile_fs"] = lab["model_store_allow_volatile_fs"]
    connection["socle_benchmark_params"] = lab["socle_benchmark_params"]
    groups = ("cpu", "virtual_lab") if virtual_lab else ("cpu",)
    members = {name: {"ansible_port": SSH_PORT, **variables} for name, variables in hosts.items()}
    content = {
        "all": {
            "vars": connection,
            "hosts": members,
            "children": {group: {"hosts": dict.fromkeys(hosts)} for group in groups},
        }
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump(content))
    (folder / "zz_records.yml").write_text("plugin: socle.inference.records\n")
    return folder
