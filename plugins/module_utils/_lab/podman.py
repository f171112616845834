# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's own Podman: configuration, stores and mount namespace apart from everything else on the machine.

Private to socle.inference.
"""

# Programs must end with the module (PR_SET_PDEATHSIG) or feed one another by a pipe, which run_command cannot do.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Union

from ansible_collections.socle.inference.plugins.module_utils._errors import LabError
from ansible_collections.socle.inference.plugins.module_utils._lab.machine import Machine

PR_SET_PDEATHSIG = 1

Argument = Union[str, Path]


def die_with_parent() -> None:
    """In a new child: be ended when the parent is, so that an interrupted build leaves no process behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run_program(
    argv: list[Argument],
    doing: str,
    env: dict[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    tied: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run *argv*; on failure raise one sentence that says what was being done, with the last lines as evidence.

    *tied* ends the program with this process; not for one that leaves a daemon behind on purpose.
    """
    words = [str(word) for word in argv]
    done = subprocess.run(
        words,
        env=env,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=die_with_parent if tied else None,
    )
    if check and done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise LabError(
            f"While {doing}, {words[0]} ended with status {done.returncode}: {(lines or ['it said nothing'])[-1]}",
            cmd=words,
            rc=done.returncode,
            stderr="\n".join(lines[-30:]),
        )
    return done


def is_mount_point(path: Path) -> bool:
    """Whether something is mounted on *path*; unlike os.path.ismount also for a bind mount within one file system."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return any(line.split()[4] == str(path) for line in mounts.splitlines())


def containers_conf(machine: Machine, directory: Path, runtime: Path) -> str:
    """containers.conf of the lab.

    runc where limits cannot be raised, since crun then fails on RLIMIT_MEMLOCK. cgroupfs, since the machine's own
    init need not be systemd. No pids limit, since the pids controller may be absent.
    """
    lines = [
        "[containers]",
        "pids_limit = 0",
        f'default_ulimits = ["nofile={machine.nofile}:{machine.nofile}", "nproc={machine.nproc}:{machine.nproc}"]',
        "[engine]",
        'cgroup_manager = "cgroupfs"',
        'events_logger = "file"',
        f'tmp_dir = "{runtime}/tmp"',
    ]
    if not machine.sys_resource:
        lines.append('runtime = "runc"')
    lines += ["[network]", f'network_config_dir = "{directory}/networks"']
    return "\n".join(lines) + "\n"


class LabPodman:
    """Podman calls against the lab's stores, always from the lab's mount namespace where there is one.

    A call from another namespace would be destructive: the next stop of a host leaks its network.
    """

    def __init__(self, directory: Path, machine: Machine) -> None:
        self.directory = directory
        self.machine = machine
        # Volatile state belongs on a file system that a reboot empties, or Podman takes dead hosts for running ones.
        self.runtime = Path("/run/socle") / f"lab-{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}"
        self.namespace = self.runtime / "ns" / "mnt"
        self._env = dict(
            os.environ, CONTAINERS_CONF=str(directory / "containers.conf"), TMPDIR=str(directory / "build")
        )

    def prepare(self) -> None:
        """Write the configuration and create the namespace if either is missing; the caller holds the lab's lock."""
        for folder in ("networks", "store", "build"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        self.runtime.mkdir(parents=True, exist_ok=True)
        text = containers_conf(self.machine, self.directory, self.runtime)
        conf = self.directory / "containers.conf"
        if not conf.exists() or conf.read_text() != text:
            conf.write_text(text)
        if not self.machine.unified_cgroups and not self._namespace_is_bound():
            self._create_namespace()

    def _namespace_is_bound(self) -> bool:
        if not self.namespace.exists():
            return False
        done = run_program(
            ["stat", "-f", "-c", "%T", self.namespace], "looking at the lab's mount namespace", check=False
        )
        return done.stdout.strip() == "nsfs"

    def _create_namespace(self) -> None:
        """A private mount namespace with a pure cgroup2 tree, kept by a bind mount: nested containers need one."""
        folder = self.namespace.parent
        folder.mkdir(parents=True, exist_ok=True)
        if not is_mount_point(folder):
            run_program(["mount", "--bind", folder, folder], "preparing the lab's mount namespace")
            run_program(["mount", "--make-private", folder], "preparing the lab's mount namespace")
        self.namespace.touch()
        for pid_file in sorted(self.runtime.glob("root/overlay-containers/*/userdata/conmon.pid")):
            # Hosts that still run hold the namespace that was lost; a second one would cut them off.
            source = Path("/proc") / pid_file.read_text().strip() / "ns/mnt"
            if source.exists():
                run_program(["mount", "--bind", source, self.namespace], "recovering the lab's mount namespace")
                return
        run_program(
            [
                "unshare",
                f"--mount={self.namespace}",
                "--propagation",
                "private",
                "sh",
                "-ec",
                "umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup",
            ],
            "creating the lab's mount namespace with a cgroup2 tree",
        )

    def command(self, *words: Argument, store: str = "store") -> list[Argument]:
        """The argument vector of a Podman call against *store* ("store", or an engine store)."""
        prefix: list[Argument] = []
        if not self.machine.unified_cgroups:
            prefix = ["nsenter", f"--mount={self.namespace}", f"--wd={self.directory}"]
        runroot = self.runtime / ("root" if store == "store" else "engine-root")
        roots: list[Argument] = ["--root", self.directory / store, "--runroot", runroot, "--storage-driver", "overlay"]
        return [*prefix, "podman", *roots, *words]

    def run(
        self,
        *words: Argument,
        doing: str,
        store: str = "store",
        stdin: str | None = None,
        check: bool = True,
        tied: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run one Podman command; *doing* completes the sentence "While ..."."""
        return run_program(self.command(*words, store=store), doing, env=self._env, stdin=stdin, check=check, tied=tied)

    def pipe_tree(self, tree: Path, *words: Argument, doing: str, store: str = "store") -> None:
        """Feed the tar of folder *tree* to a Podman command."""
        with subprocess.Popen(
            ["tar", "-C", str(tree), "--one-file-system", "--numeric-owner", "-c", "."],
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        ) as tar:
            done = subprocess.run(
                [str(word) for word in self.command(*words, store=store)],
                stdin=tar.stdout,
                env=self._env,
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=die_with_parent,
            )
        if done.returncode != 0 or tar.returncode != 0:
            raise LabError(
                f"While {doing}, podman ended with status {done.returncode} and tar with {tar.returncode}: "
                f"{done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'they said nothing'}",
                stderr=done.stderr[-2000:],
            )

    def containers(self) -> dict[str, dict[str, Any]]:
        """All containers of the lab's store by name, as `podman ps` describes them."""
        if not (self.directory / "store").is_dir() or not (self.directory / "containers.conf").exists():
            return {}
        if not self.machine.unified_cgroups and not self._namespace_is_bound():
            return {}
        done = self.run("ps", "--all", "--format", "json", doing="listing the lab's hosts")
        return {entry["Names"][0]: entry for entry in json.loads(done.stdout or "[]")}

    def teardown(self) -> None:
        """Undo prepare() once no host is left; caches stay."""
        folder = self.namespace.parent
        for mount in (self.namespace, folder):
            while is_mount_point(mount):
                run_program(["umount", mount], "removing the lab's mount namespace")
