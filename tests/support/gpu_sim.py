# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated GPU hosts of molecule/gpu_sim from a test's point of view."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support import lab

INVENTORY = lab.PROJECT / "molecule" / "gpu_sim" / "inventory"
TREE = "/srv/socle-sim"
TOOLS = "localhost/simulator/tools:1"
"""An image with a shell, which any host can load from the package server."""

FINGERPRINT = r"""
find /etc /opt /usr/bin /usr/sbin /usr/local /usr/src /usr/lib/modules /usr/lib/systemd /usr/share/keyrings \
  /var/lib/dkms /var/lib/socle -xdev -name __pycache__ -prune -o -type d -printf '%p %m\n' \
  -o -printf '%p %y %m %s %T@ %l\n' 2>/dev/null | sort
dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n'
apt-mark showhold
systemctl list-unit-files --no-legend
cat /srv/socle-sim/state/boots 2>/dev/null || true
"""


def variables(host: str) -> dict[str, Any]:
    found = yaml.safe_load((INVENTORY / "host_vars" / f"{host}.yml").read_text())
    assert isinstance(found, dict)
    return found


def engine(host: str) -> str:
    """The engine that the inventory asks for, or Podman."""
    return str(variables(host).get("container_engine", "podman"))


def on(host: str, script: str, check: bool = True) -> str:
    """Run a shell script on a simulated host, as root; what it printed."""
    folder = lab.cache() / "lab" / "ssh"
    done = subprocess.run(
        [
            *("ssh", "-p", str(variables(host)["ansible_port"]), "-i", f"{folder}/id_ed25519"),
            *("-o", f"UserKnownHostsFile={folder}/known_hosts", "-o", "StrictHostKeyChecking=yes"),
            *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "root@127.0.0.1"),
            f"bash -euc {shlex.quote(script)}",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not check or done.returncode == 0, f"{script!r} on {host} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def provision(host: str, *options: str, **values: Any) -> lab.Run:
    """Run playbook provision.yml on one host, with variables that win."""
    extra = json.dumps({"socle_hosts": host, **values})
    # Molecule forces colours, which nobody can read here.
    plain = {"ANSIBLE_FORCE_COLOR": "0"}
    return lab.play("playbooks/provision.yml", *options, "--extra-vars", extra, inventory=INVENTORY, **plain)


def refusal(run: lab.Run, host: str) -> str:
    """The sentence that ended a run on *host*."""
    assert run.rc != 0, f"nothing was refused:\n{run.output[-4000:]}"
    assert host in run.failures, run.output[-4000:]
    return " ".join(str(run.failures[host]["msg"]).split())


def fingerprint(host: str) -> list[str]:
    """All on the host that an installation could change, as lines that can be compared."""
    return on(host, FINGERPRINT).splitlines()


def boots(host: str) -> int:
    """How often the host was rebooted."""
    return int(on(host, f"cat {TREE}/state/boots 2>/dev/null | wc -l"))


def uuids(text: str) -> list[str]:
    """The UUIDs in what `nvidia-smi -L` printed."""
    return [line.split("(UUID: ")[1].rstrip(")") for line in text.splitlines() if "(UUID: " in line]


def start_container(host: str, name: str) -> str:
    """Start a container with all GPUs that lives until it is removed; the command that runs in it, to be completed."""
    tool = engine(host)
    on(
        host,
        f"{tool} rm -f {name} >/dev/null 2>&1 || true\n"
        f"{tool} image inspect {TOOLS} >/dev/null 2>&1 || "
        f"curl -fsS --noproxy '*' http://sim-repo:8091/images/tools.tar | {tool} load -q\n"
        f"{tool} run -d --name {name} --network=none --device nvidia.com/gpu=all {TOOLS} sleep 100000",
    )
    return f"{tool} exec {name}"


def stop_container(host: str, name: str) -> None:
    on(host, f"{engine(host)} rm -f {name} >/dev/null 2>&1 || true")


def packages(host: str) -> dict[str, tuple[str, str]]:
    """Installed packages of the vendor: name -> (version, dpkg's status letters)."""
    listed = on(host, r"dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n'")
    rows = [line.split() for line in listed.splitlines()]
    marks = ("nvidia", "libnvidia", "libcuda", "libnvsdm", "cuda", "nvlsm")
    return {name: (version, status) for name, version, status in rows if name.startswith(marks)}


def specs(host: str) -> list[Path]:
    """The CDI specifications on the host; /var/run is /run."""
    return [Path(line) for line in on(host, "ls /etc/cdi/* /run/cdi/* 2>/dev/null || true").splitlines()]
