# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container that must see the host's GPUs, its image and its memory."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.socle.inference.plugins.module_utils._engine import docker, quadlet
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, run
from ansible_collections.socle.inference.plugins.module_utils._errors import SocleError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit import check_image
from ansible_collections.socle.inference.plugins.module_utils._toolkit.gpu_check import GpuCheck

from tests.support.commands import Commands

from .test_toolkit_cdi import ONE, SMI, TWO

LDD = (
    "\tlinux-vdso.so.1 (0x00007ffd)\n"
    "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n"
    "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"
)


class Host:
    def __init__(self, commands: Commands, root: Path) -> None:
        self.commands = commands
        self.root = root
        for name in (
            "bin/sh",
            "lib/x86_64-linux-gnu/libc.so.6",
            "lib/x86_64-linux-gnu/libm.so.6",
            "lib64/ld-linux-x86-64.so.2",
        ):
            path = root / "usr" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        self.load("580.159.03")
        commands.on("ldd", out=LDD)
        commands.on("image", "inspect", rc=1)
        commands.on("nvidia-smi", "-L", out=SMI)
        commands.on("run", "/usr/bin/nvidia-smi", "-L", out=SMI)
        self.check = GpuCheck(
            commands, Files(), root, root / "sys", root / "state", lambda name: f"/usr/bin/{name}", root / "proc"
        )

    def load(self, version: str) -> None:
        path = self.root / "sys/module/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{version}\n")

    def run(self, engine: str = "podman", version: str = "5.4.2", toolkit: str = "1.20.0", **more: Any) -> Any:
        return self.check.run(engine, version, toolkit, **more)

    def containers(self) -> int:
        return self.commands.ran("run", "--rm")


@pytest.fixture
def host(commands: Commands, tmp_path: Path) -> Host:
    return Host(commands, tmp_path)


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_a_container_is_given_all_gpus_and_its_answer_compared(host: Host, engine: str) -> None:
    outcome = host.run(engine)
    assert outcome.ran and outcome.changed and outcome.uuids == [ONE, TWO]
    started = next(call for call in host.commands.calls if "run" in call)
    assert started[0] == engine and "--device=nvidia.com/gpu=all" in started and "--rm" in started
    assert outcome.image.startswith("localhost/socle/gpu-check:")


LIMITS = ["nofile=1048576:1048576", "memlock=-1:-1"]


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_container_has_no_more_rights_than_an_instance(host: Host, engine: str) -> None:
    for name, text in (("1/status", "CapBnd:\t000001ffffffffff\n"), ("sys/fs/nr_open", "1048576\n")):
        path = host.root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    host.run(engine)
    call = next(call for call in host.commands.calls if "run" in call)
    checked = {word for word in call if word.startswith(("--security-opt", "--runtime", "--ulimit", "--privileged"))}
    plan = {"instance": "x", "image": "x", "argv": [], "port": 1, "gpus": [0]}
    if engine == "docker":
        words = docker.run_words(plan, LIMITS)
        assert checked == {word for word in words if word.startswith(("--security-opt", "--runtime", "--ulimit"))}
        return
    text = quadlet.render(plan, (5, 4, 2), LIMITS)
    said = {"SecurityLabelDisable=true": "label=disable", "NoNewPrivileges=true": "no-new-privileges"}
    wanted = {f"--security-opt={option}" for key, option in said.items() if key in text.splitlines()}
    assert checked == wanted | {f"--ulimit={limit}" for limit in LIMITS} and len(wanted) == 2


def test_a_success_is_remembered_until_something_changes(host: Host) -> None:
    host.run()
    again = host.run()
    assert not again.ran and not again.changed and host.containers() == 1
    host.load("580.178.04")
    assert host.run().ran
    assert host.run(toolkit="1.20.1").ran
    assert host.run(toolkit="1.20.1", version="5.4.3").ran
    host.commands.on("nvidia-smi", "-L", out=SMI.splitlines()[0] + "\n")
    host.commands.on("run", "/usr/bin/nvidia-smi", "-L", out=SMI.splitlines()[0] + "\n")
    assert host.run(toolkit="1.20.1", version="5.4.3").ran
    assert host.containers() == 5


@pytest.mark.parametrize("damage", [b"\xff", b"{", b'{"a":' * 200_000])
def test_a_damaged_memory_is_none(host: Host, damage: bytes) -> None:
    host.run()
    (host.root / "state/gpu_container_toolkit/check.json").write_bytes(damage)
    assert host.run().ran and not host.run().ran


def test_a_folder_where_the_memory_belongs_makes_the_check_due(host: Host) -> None:
    (host.root / "state/gpu_container_toolkit/check.json").mkdir(parents=True)
    assert host.check.is_due("podman", "5.4.2", "1.20.0", [ONE, TWO])
    with pytest.raises(SocleError, match=r"Cannot forget the last GPU check: Is a directory \(.*/check\.json\)"):
        host.run()


def test_one_who_knows_the_gpus_can_ask_whether_it_is_due(host: Host) -> None:
    asked = ("podman", "5.4.2", "1.20.0")
    assert host.check.is_due(*asked, [ONE, TWO])
    host.run()
    assert not host.check.is_due(*asked, [ONE, TWO])
    assert host.check.is_due(*asked, [ONE]) and host.check.is_due(*asked, [])


def test_it_runs_every_time_on_request(host: Host) -> None:
    host.run()
    assert host.run(always=True).ran and host.containers() == 2


def test_the_image_is_made_once(host: Host) -> None:
    host.run()
    host.commands.on("image", "inspect", out="abc\n")
    outcome = host.run(always=True)
    assert outcome.ran and not outcome.changed and host.commands.ran("import") == 1


def test_a_failure_is_not_remembered_as_a_success(host: Host) -> None:
    host.run()
    host.commands.on("run", "/usr/bin/nvidia-smi", "-L", rc=125, err="unresolvable CDI devices nvidia.com/gpu=all\n")
    with pytest.raises(ToolkitError, match=r"A container of Podman 5.4.2 does not get the GPUs: no CDI spec describes"):
        host.run(always=True)
    host.commands.on("run", "/usr/bin/nvidia-smi", "-L", out=SMI)
    assert host.run().ran


def test_a_failure_that_is_not_about_gpus_points_at_the_engine(host: Host) -> None:
    host.commands.on("run", "/usr/bin/nvidia-smi", "-L", rc=126, err="crun: controller pids is not available\n")
    with pytest.raises(
        ToolkitError, match=r"controller pids is not available; see whether 'podman run --rm \S+ /bin/sh"
    ):
        host.run()


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (SMI.splitlines()[0], f"sees 1 of the host's 2 GPUs: it lacks {TWO}"),
        (SMI + "GPU 2: X (UUID: GPU-33)", "sees 3 of the host's 2 GPUs: it also sees GPU-33"),
    ],
)
def test_other_gpus_than_the_hosts_are_named(host: Host, inside: str, reason: str) -> None:
    host.commands.on("run", "/usr/bin/nvidia-smi", "-L", out=inside + "\n")
    with pytest.raises(ToolkitError, match=reason):
        host.run()
    assert not (host.root / "state/gpu_container_toolkit/check.json").exists()


def test_check_mode_says_whether_it_would_run(host: Host) -> None:
    assert host.run(check=True).ran and host.containers() == 0 and host.commands.ran("import") == 0
    host.run()
    assert not host.run(check=True).ran


def test_check_mode_works_before_the_driver(host: Host) -> None:
    host.commands.on("nvidia-smi", "-L", rc=9, out="NVIDIA-SMI has failed because it couldn't communicate\n")
    assert host.run(check=True).ran


def test_an_image_that_cannot_be_made_is_a_sentence(host: Host) -> None:
    host.commands.on("import", rc=125, err="Error: no space left on device\n")
    with pytest.raises(ToolkitError, match="Cannot make the image of the GPU check: Error: no space left on device"):
        host.run()


def test_removal_takes_image_and_memory(host: Host) -> None:
    host.run()
    host.commands.on("podman", "images", out="abc\nabc\n")
    assert host.check.forget(check=True) and host.commands.ran("rmi") == 0
    assert host.check.forget()
    assert host.commands.ran("podman", "rmi", "--force", "abc") == 1 and host.commands.ran("docker", "rmi") == 0
    host.commands.on("podman", "images", out="")
    assert not host.check.forget()


def test_the_image_has_no_entry_behind_a_link(host: Host) -> None:
    layer = check_image.pack(check_image.members(host.commands, host.root))
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        links = {member.name: member.linkname for member in archive if member.issym()}
        names = archive.getnames()
    assert links == {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
    assert {"usr/bin/sh", "usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libm.so.6", "etc", "proc"} <= set(
        names
    )
    assert not [name for name in names if name.split("/")[0] in links and "/" in name]


def test_another_c_library_makes_another_image(host: Host) -> None:
    first = check_image.pack(check_image.members(host.commands, host.root))
    assert check_image.pack(check_image.members(host.commands, host.root)) == first
    (host.root / "usr/lib/x86_64-linux-gnu/libc.so.6").write_text("newer")
    second = check_image.pack(check_image.members(host.commands, host.root))
    assert check_image.reference(first) != check_image.reference(second)


def test_this_machines_own_shell_runs_in_the_image(tmp_path: Path) -> None:
    content = check_image.members(run)
    with tarfile.open(fileobj=io.BytesIO(check_image.pack(content))) as archive:
        archive.extractall(tmp_path, filter="fully_trusted")
    loader = next(path for path in content if "/ld-linux" in path or "/ld-" in path)
    library = next(str(Path(path).parent) for path in content if Path(path).name == "libc.so.6")
    shell = tmp_path / "bin/sh"
    done = run([str(tmp_path / loader), "--library-path", str(tmp_path / library), str(shell), "-c", "echo alive"])
    assert done.stdout == "alive\n", done.stderr
