# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's running parts: hosts with systemd and SSH, and the model hub. Private to socle.inference."""

from __future__ import annotations

import dataclasses
import re
import socket
import time
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._errors import LabError
from ansible_collections.socle.inference.plugins.module_utils._lab.images import ENGINE_HOST, KINDS, content_key
from ansible_collections.socle.inference.plugins.module_utils._lab.machine import Machine
from ansible_collections.socle.inference.plugins.module_utils._lab.podman import Argument, LabPodman, run_program

NETWORK = "socle-lab"
HUB = "socle-lab-hub"
HUB_ALIAS = "lab-hub"
HUB_PORT = 8090
BOOT_TIMEOUT_S = 180
"""Alone a host boots in 3 s; on a machine that still writes back the images that it has just built, in minutes."""
OWN_BOOT_ID = (
    "cat /proc/sys/kernel/random/uuid >/run/boot_id; mount --bind /run/boot_id /proc/sys/kernel/random/boot_id; "
    "exec /sbin/init"
)
"""Start of a host that can be rebooted: who asks the kernel for the boot must see that it is another one."""
HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclasses.dataclass(frozen=True)
class Host:
    """One lab host; *publish* maps ports of 127.0.0.1 on this machine to ports of the host."""

    name: str
    publish: tuple[tuple[int, int], ...]
    kind: str = ENGINE_HOST

    @property
    def container(self) -> str:
        return f"{NETWORK}-{self.name}"

    @property
    def ssh_port(self) -> int:
        """Port of 127.0.0.1 that leads to SSH; parse_hosts() refuses a host without one."""
        return {inner: outer for outer, inner in self.publish}[22]


def parse_hosts(hosts: list[dict[str, Any]]) -> list[Host]:
    """Validate the hosts that the inventory asks for: names, an SSH port each, no port twice."""
    parsed = []
    taken: dict[int, str] = {}
    for entry in hosts:
        name = entry["name"]
        if not HOST_NAME.fullmatch(name):
            raise LabError(
                f"Lab host {name!r} cannot be built, since its name is not a host name; "
                f"use lower-case letters, digits and dashes."
            )
        publish = tuple((int(item["host_port"]), int(item["port"])) for item in entry["publish"])
        host = Host(name, publish, entry.get("kind") or ENGINE_HOST)
        if host.kind not in KINDS:
            raise LabError(
                f"Lab host {name} is of kind {host.kind!r}, which the lab cannot build; "
                f"set its virtual_lab_kind to one of {', '.join(KINDS)}."
            )
        if all(inner != 22 for _outer, inner in publish):
            raise LabError(
                f"Lab host {name} publishes no SSH port, so that Ansible could not reach it; "
                f"add {{host_port: <free port>, port: 22}} to its virtual_lab_publish."
            )
        for outer, _inner in publish:
            if not 0 < outer < 65536:
                raise LabError(f"Lab host {name} publishes port {outer}, which is not a port; use 1 to 65535.")
            if outer in taken:
                raise LabError(
                    f"Lab hosts {taken[outer]} and {name} both publish port {outer} of this machine; "
                    f"give one of them another port."
                )
            taken[outer] = name
        parsed.append(host)
    return parsed


def run_arguments(host: Host, machine: Machine, image: str, engine_store: Path) -> list[Argument]:
    """`podman run` of a host: real systemd, nested containers; with the engine image read-only, or bare."""
    if machine.privileged:
        rights = ["--privileged"]
    else:
        # What a nested Podman needs. CAP_SYS_RESOURCE would have to be ours to give.
        rights = ["--cap-add=all", *([] if machine.sys_resource else ["--cap-drop=SYS_RESOURCE"])]
        rights += [f"--security-opt={option}" for option in ("seccomp=unconfined", "apparmor=unconfined", "unmask=all")]
        rights += ["--device=/dev/fuse", "--device=/dev/net/tun"]
    ports = [f"--publish=127.0.0.1:{outer}:{inner}" for outer, inner in host.publish]
    init = ["/sbin/init"]
    if host.kind == ENGINE_HOST:
        own = [f"--volume={engine_store}:/srv/engine-store:ro"]
    else:
        # Docker's layers too must lie on a real file system. A reboot ends the container, and Podman starts it again.
        own = [f"--volume={docker_volume(host.container)}:/var/lib/docker", "--restart=always"]
        init = ["/bin/sh", "-c", OWN_BOOT_ID]
    return [
        "run",
        "--detach",
        f"--name={host.container}",
        f"--hostname={host.name}",
        f"--network={NETWORK}",
        f"--network-alias={host.name}",
        *ports,
        *rights,
        "--cgroupns=private",
        "--systemd=always",
        "--stop-timeout=30",
        f"--volume={host.container}:/var/lib/containers",
        *own,
        image,
        *init,
    ]


def docker_volume(container: str) -> str:
    """The volume of a bare host's Docker."""
    return f"{container}-docker"


def hub_arguments(image: str, source: Path, models: Path) -> list[Argument]:
    """`podman run` of the hub: the simulator over the lab's model directory."""
    return [
        "run",
        "--detach",
        f"--name={HUB}",
        f"--network={NETWORK}",
        f"--network-alias={HUB_ALIAS}",
        "--stop-timeout=2",
        f"--volume={source}:/srv/hub:ro",
        f"--volume={models}:/srv/models:ro",
        image,
        "python3",
        "/srv/hub/server.py",
        "--root=/srv/models",
        "--bind=0.0.0.0",
        f"--port={HUB_PORT}",
    ]


def arguments_key(arguments: list[Argument]) -> str:
    return content_key(*(str(word) for word in arguments))


@dataclasses.dataclass(frozen=True)
class Action:
    """What has to happen to one container: nothing, start, create, or recreate."""

    container: str
    kind: str
    arguments: tuple[Argument, ...] = ()


def plan_containers(wanted: dict[str, list[Argument]], found: dict[str, dict[str, Any]]) -> list[Action]:
    """Compare *wanted* (`podman run` arguments by container name) with what `podman ps` *found*; hub and hosts alike.

    A container that was made by other arguments is recreated: image, ports and mounts cannot change under it.
    """
    actions = []
    for name, arguments in wanted.items():
        entry = found.get(name)
        key = arguments_key(arguments)
        if entry is None:
            kind = "create"
        elif (entry.get("Labels") or {}).get("socle.key") != key:
            kind = "recreate"
        elif entry.get("State") != "running":
            kind = "start"
        else:
            kind = "none"
        labelled = [arguments[0], f"--label=socle.key={key}", *arguments[1:]]
        actions.append(Action(name, kind, tuple(labelled)))
    return actions


def apply_action(podman: LabPodman, action: Action) -> None:
    """Bring one container to the wanted state."""
    if action.kind == "recreate":
        remove_container(podman, action.container)
    if action.kind in ("create", "recreate"):
        podman.run(*action.arguments, doing=f"starting {action.container}", tied=False)
    elif action.kind == "start":
        podman.run("start", action.container, doing=f"starting {action.container} again", tied=False)


def remove_container(podman: LabPodman, container: str) -> None:
    """Remove a container and its volumes; none is no error."""
    podman.run("rm", "--force", "--time=5", "--ignore", container, doing=f"removing {container}")
    for volume in (container, docker_volume(container)):
        podman.run("volume", "rm", "--force", volume, doing=f"removing the volume {volume}", check=False)


def ensure_network(podman: LabPodman, subnet: str) -> None:
    """The lab's own bridge network."""
    if podman.run("network", "exists", NETWORK, doing="looking for the lab's network", check=False).returncode != 0:
        podman.run("network", "create", f"--subnet={subnet}", NETWORK, doing=f"creating the lab's network on {subnet}")


def speaks_ssh(port: int, timeout: float = 2.0) -> bool:
    """Whether an SSH server greets on *port* of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def open_ssh(podman: LabPodman, host: Host, public_key: str) -> str:
    """Give a host its own SSH host keys and let *public_key* in; returns its line for known_hosts."""
    script = (
        "mkdir -p -m 700 /root/.ssh && cat >/root/.ssh/authorized_keys && chmod 600 /root/.ssh/authorized_keys"
        # Quiet or not, ssh-keygen says so when it makes keys.
        " && ssh-keygen -q -A >/dev/null && systemctl restart ssh && cat /etc/ssh/ssh_host_ed25519_key.pub"
    )
    started = time.monotonic()
    while True:
        done = podman.run(
            *("exec", "--interactive", host.container, "sh", "-ec", script),
            doing=f"opening SSH on {host.name}",
            stdin=public_key,
            check=False,
        )
        # Before the host's systemd answers, the restart of ssh fails.
        if done.returncode == 0:
            break
        state = container_state(podman, host)
        if state != "running" or time.monotonic() > started + BOOT_TIMEOUT_S:
            raise LabError(
                f"Lab host {host.name} was started but did not boot: after {time.monotonic() - started:.0f} s its "
                f"container is {state}, and it says: {boot_evidence(podman, host, done.stderr)}; "
                f"rebuild it with `make lab-down lab`, and see whether the machine is overloaded.",
                stderr=done.stderr[-2000:],
            )
        time.sleep(0.5)
    algorithm, key = done.stdout.split()[:2]
    return f"{known_address(host)} {algorithm} {key}"


def container_state(podman: LabPodman, host: Host) -> str:
    """Podman's word for the state of a host's container, such as running or exited."""
    done = podman.run(
        *("inspect", "--type=container", "--format={{.State.Status}}", host.container),
        doing=f"looking at {host.name}",
        check=False,
    )
    return done.stdout.strip() or "gone"


def boot_evidence(podman: LabPodman, host: Host, refusal: str) -> str:
    """What a host that does not boot shows: the units that it waits for, or its last words, else *refusal*."""
    jobs = podman.run(
        *("exec", host.container, "systemctl", "list-jobs", "--no-legend", "--plain"),
        doing=f"looking at what {host.name} waits for",
        check=False,
    )
    waiting = [" ".join(line.split()[1:]) for line in jobs.stdout.splitlines() if line.strip()]
    if jobs.returncode == 0 and waiting:
        return ", ".join(waiting[:5])
    logs = podman.run("logs", "--tail=3", host.container, doing=f"reading the log of {host.name}", check=False)
    words = [line.strip() for line in (logs.stdout + refusal).splitlines() if line.strip()]
    return " / ".join(words[-4:]) or "nothing"


def known_address(host: Host) -> str:
    """How known_hosts names a host."""
    return f"[127.0.0.1]:{host.ssh_port}"


def is_known(known_hosts: Path, host: Host) -> bool:
    """Whether there is a key for *host*; what is no key of the kind that the lab makes does not count."""
    return known_hosts.exists() and f"{known_address(host)} ssh-ed25519 " in known_hosts.read_text()


def wait_for_ssh(host: Host, timeout_s: float = BOOT_TIMEOUT_S) -> None:
    """Until the published SSH port answers."""
    deadline = time.monotonic() + timeout_s
    while not speaks_ssh(host.ssh_port):
        if time.monotonic() > deadline:
            raise LabError(
                f"Lab host {host.name} runs, but after {timeout_s:.0f} s no SSH server answers on "
                f"127.0.0.1:{host.ssh_port}; look whether a firewall or another "
                f"program holds the port, or set other ports in virtual_lab_publish."
            )
        time.sleep(0.3)


def remember_host_key(known_hosts: Path, line: str) -> None:
    """Replace the entry of this address in the lab's known_hosts."""
    _replace_entry(known_hosts, line.split()[0], [line])


def forget_host_key(known_hosts: Path, host: Host) -> None:
    """Remove the entry of a host that is about to be made anew, whose key will be another."""
    if known_hosts.exists():
        _replace_entry(known_hosts, known_address(host), [])


def _replace_entry(known_hosts: Path, address: str, entry: list[str]) -> None:
    lines = known_hosts.read_text().splitlines() if known_hosts.exists() else []
    kept = [line for line in lines if not line.startswith(address + " ")]
    staged = known_hosts.with_name(known_hosts.name + ".new")
    staged.write_text("".join(f"{line}\n" for line in [*kept, *entry]))
    staged.replace(known_hosts)


def sweep_bridge(podman: LabPodman) -> None:
    """Remove the lab's network when no container uses it."""
    podman.run("network", "rm", "--force", NETWORK, doing="removing the lab's network", check=False)


def port_in_use(port: int) -> bool:
    """Whether something on this machine already listens on *port* of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def check_ports(hosts: list[Host], actions: list[Action]) -> None:
    """Refuse before anything is created when another program holds a port that a new host would publish."""
    new = {action.container for action in actions if action.kind == "create"}
    for host in hosts:
        for outer, _inner in host.publish if host.container in new else ():
            if port_in_use(outer):
                raise LabError(
                    f"Lab host {host.name} would publish port {outer} of 127.0.0.1, which another program holds; "
                    f"end that program (`ss -ltnp 'sport = {outer}'` names it) or change virtual_lab_publish."
                )


def make_key(private: Path) -> None:
    """The lab's SSH key pair, made once."""
    if not private.exists():
        private.parent.mkdir(parents=True, exist_ok=True)
        staged = private.with_name(f"{private.name}_new")
        staged.unlink(missing_ok=True)
        run_program(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "socle-lab", "-f", staged],
            "making the lab's SSH key",
        )
        # The private key comes last: while it is missing, an interrupted run is made good.
        staged.with_suffix(".pub").replace(private.with_suffix(".pub"))
        staged.replace(private)
