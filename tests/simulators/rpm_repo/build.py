# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a Debian host answer to dnf as one of the RHEL family: signed repositories of dummy packages, and os-release.

python3 build.py RELEASE FOLDER FILES, with the release "9" or "10", and the folder vendor_repo/files of the other
simulator; needs rpm, createrepo-c and gnupg. Names, versions, epochs and dependencies are those of NVIDIA's repository
and of the distribution. The programs are those of the simulated Debian hosts: they act on its simulated hardware.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

DRIVERS = ("570.211.01", "580.159.03", "580.178.04", "595.91.07")
TOOLKITS = ("1.19.0", "1.19.1", "1.20.0")
KERNELS = {"9": "5.14.0-570.12.1.el9_6", "10": "6.12.0-55.9.1.el10_0"}
KEYS = {"9": "D42D0685.pub", "10": "CDF6BA43.pub"}
SIGNER = "socle simulator <none@example.invalid>"
MACROS = """\
%_openpgp_sign gpg
%_gpg_name socle simulator
%_topdir /tmp/rpm-build
%_build_id_links none
"""


DEBIAN_PROGRAMS = ("dpkg-query", "dpkg", "apt-get", "apt-cache", "apt-mark")
BUILD = """\
for old in /var/lib/dkms/nvidia/*; do
    [ ! -d "$old" ] || dkms remove "nvidia/${old##*/}" --all
done
"""
"""The simulated DKMS has one place for all versions, so the old one must go before rpm's order would have it."""
CUDA = {"570": "12.8", "580": "13.0", "595": "13.2"}
FILES = Path()


def program(name: str, version: str) -> str:
    """A file of the other simulator, for one driver version."""
    text = (FILES / name).read_text()
    for key, value in {"VERSION": version, "CUDA": CUDA.get(version.split(".")[0], ""), "COMMAND": ""}.items():
        text = text.replace(f"@{key}@", value)
    return text


def hardware(command: str) -> str:
    """A program that the simulated hardware answers for."""
    return (FILES / "call_hardware").read_text().replace("@COMMAND@", command)


@dataclass
class Rpm:
    """A package: dependencies as lines of a spec file, and files by path."""

    name: str
    version: str
    release: str
    epoch: int = 0
    lines: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    script: str = ""
    """Run after installation."""
    before_removal: str = ""

    def nevra(self) -> str:
        return f"{self.name}-{self.epoch}:{self.version}-{self.release}.x86_64"

    def spec(self) -> str:
        install = ""
        for path, text in self.files.items():
            install += f"mkdir -p %{{buildroot}}{Path(path).parent}\n"
            if text.startswith("-> "):
                install += f"ln -s {text[3:]} %{{buildroot}}{path}\n"
            else:
                # rpm would take a % for a macro of its own.
                coded = base64.b64encode(text.encode()).decode()
                place = f"%{{buildroot}}{path}"
                install += f"base64 -d >{place} <<END\n{coded}\nEND\nchmod 0755 {place}\n"
        listed = "".join(f"{path}\n" for path in self.files)
        epoch = f"Epoch: {self.epoch}\n" if self.epoch else ""
        script = f"%post\n{self.script}\n" if self.script else ""
        script += f"%preun\n{self.before_removal}\n" if self.before_removal else ""
        return (
            f"Name: {self.name}\nVersion: {self.version}\nRelease: {self.release}\n{epoch}Summary: simulated\n"
            "License: none\nAutoReqProv: no\n"
            + "".join(f"{line}\n" for line in self.lines)
            + f"%description\nA double for tests.\n%install\n{install}{script}%files\n{listed}"
        )


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def repository(folder: Path, packages: list[Rpm], modules: str = "") -> None:
    """Build, sign and index *packages*; the index is signed as well."""
    folder.mkdir(parents=True)
    for package in packages:
        spec = folder / f"{package.name}.spec"
        spec.write_text(package.spec())
        run(
            "rpmbuild",
            "-bb",
            "--quiet",
            "--target",
            "x86_64",
            "--define",
            f"_rpmdir {folder}",
            "--define",
            "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
            str(spec),
        )
        spec.unlink()
    run("rpmsign", "--addsign", *map(str, sorted(folder.glob("*.rpm"))))
    run("createrepo_c", "--quiet", str(folder))
    if modules:
        text = folder / "modules.yaml"
        text.write_text(modules)
        run("modifyrepo_c", "--mdtype=modules", str(text), str(folder / "repodata"))
    index = str(folder / "repodata/repomd.xml")
    run("gpg", "--batch", "--armor", "--local-user", SIGNER, "--detach-sign", index)


def driver(version: str, release: str) -> list[Rpm]:
    """Of NVIDIA's repository: all packages of one version, with epoch 3 but for the companions."""
    branch, same = version.split(".")[0], f"= 3:{version}"
    end = f"1.el{release}"
    new = int(branch) >= 580
    made = [
        Rpm(
            "nvidia-driver-cuda",
            version,
            end,
            3,
            (
                f"Requires: nvidia-driver-cuda-libs {same}",
                f"Requires: nvidia-kmod-common {same}",
                f"Requires: nvidia-persistenced {same}",
                "Conflicts: xorg-x11-drv-nvidia-cuda",
            ),
            {"/usr/bin/nvidia-smi": program("nvidia-smi", version)},
        ),
        Rpm(
            "nvidia-driver-cuda-libs",
            version,
            end,
            3,
            (f"Requires: libnvidia-ml {same}",),
            library("libcuda.so.1", version),
        ),
        Rpm("libnvidia-ml", version, end, 3, (), library("libnvidia-ml.so.1", version)),
        Rpm(
            "nvidia-kmod-common",
            version,
            end,
            3,
            (f"Requires: nvidia-kmod {same}",),
            {"/usr/lib/modprobe.d/nvidia.conf": "blacklist nouveau\noptions nouveau modeset=0\n"},
        ),
        Rpm(
            "nvidia-persistenced",
            version,
            end,
            3,
            (),
            {
                "/usr/bin/nvidia-persistenced": program("nvidia-persistenced", version),
                "/usr/lib/systemd/system/nvidia-persistenced.service": program("nvidia-persistenced.service", version),
            },
            "systemctl daemon-reload",
        ),
        Rpm("nvidia-modprobe", version, end, 3, (), {"/usr/bin/nvidia-modprobe": hardware("nvidia-modprobe")}),
        Rpm(
            "nvidia-open",
            version,
            end,
            3,
            (f"Requires: nvidia-driver-cuda {same}", f"Requires: kmod-nvidia-open-dkms {same}"),
        ),
        Rpm(
            "nvidia-fabricmanager" if new else "nvidia-fabric-manager",
            version,
            "1",
            0,
            (),
            {
                "/usr/bin/nv-fabricmanager": program("nv-fabricmanager", version),
                "/usr/lib/systemd/system/nvidia-fabricmanager.service": program(
                    "nvidia-fabricmanager.service", version
                ),
                "/usr/share/nvidia/nvswitch/fabricmanager.cfg": "FABRIC_MODE=0\n",
            },
            "systemctl daemon-reload",
        ),
        Rpm("libnvidia-nscq" if new else f"libnvidia-nscq-{branch}", version, "1"),
        Rpm("libnvsdm" if new else f"libnvsdm-{branch}", version, "1"),
    ]
    for name, other in (("open", "latest"), ("latest", "open")):
        flavour = "open" if name == "open" else "proprietary"
        made.append(
            Rpm(
                f"kmod-nvidia-{name}-dkms",
                version,
                end,
                3,
                (
                    f"Provides: nvidia-kmod {same}",
                    f"Conflicts: kmod-nvidia-{other}-dkms",
                    "Requires(post): dkms",
                    "Requires: kernel-devel",
                ),
                {
                    f"/usr/src/nvidia-{version}/dkms.conf": f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\n',
                    f"/usr/src/nvidia-{version}/flavour": flavour,
                },
                # As NVIDIA's: a build that fails does not fail the transaction.
                f"{BUILD}/usr/lib/dkms/common.postinst nvidia {version} || :",
                f"dkms remove nvidia/{version} --all || :",
            )
        )
    return made


def library(name: str, version: str) -> dict[str, str]:
    """A shared library as the driver's packages name it."""
    real = f"{name.rpartition('.so.')[0]}.so.{version}"
    return {f"/usr/lib64/{real}": "simulated", f"/usr/lib64/{name}": f"-> {real}"}


def modules(packages: list[Rpm]) -> str:
    """modules.yaml with a stream of each flavour for each branch."""
    documents = []
    for branch in sorted({version.partition(".")[0] for version in DRIVERS}):
        for flavour, left_out in (("open", "kmod-nvidia-latest-dkms"), ("dkms", "kmod-nvidia-open-dkms")):
            artifacts = "".join(
                f"    - {package.nevra()}\n"
                for package in packages
                if package.version.startswith(f"{branch}.") and package.name != left_out
            )
            documents.append(
                f'---\ndocument: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n  stream: "{branch}-{flavour}"\n'
                '  version: 20260901\n  context: "00000000"\n  arch: x86_64\n  summary: simulated\n'
                "  description: simulated\n  license: {module: [MIT]}\n"
                f"  artifacts:\n    rpms:\n{artifacts}...\n"
            )
    return "".join(documents)


def distribution(release: str, folder: Path) -> list[Rpm]:
    """What the driver and this product take from the distribution."""
    version, _dash, end = KERNELS[release].partition("-")
    kernel = f"{KERNELS[release]}.x86_64"
    epel = f"[epel]\nname=EPEL\nbaseurl=file://{folder}/epel\nenabled=1\ngpgcheck=0\n"
    return [
        Rpm(
            "rocky-release",
            f"{release}.6",
            f"1.el{release}",
            0,
            (f"Provides: system-release = {release}.6", f"Provides: system-release(releasever) = {release}"),
        ),
        Rpm("epel-release", release, "1", 0, (), {"/etc/yum.repos.d/epel.repo": epel}),
        Rpm("bash", "5.1.8", f"9.el{release}", 0, ("Provides: /bin/sh",)),
        Rpm(
            "kernel-core",
            version,
            end,
            0,
            (),
            {f"/boot/vmlinuz-{kernel}": "simulated", f"/lib/modules/{kernel}/modules.order": ""},
        ),
        Rpm(
            "kernel-devel",
            version,
            end,
            0,
            (f"Provides: kernel-devel-uname-r = {kernel}",),
            {f"/lib/modules/{kernel}/build/Makefile": ""},
        ),
        Rpm(
            "kernel-devel-matched",
            version,
            end,
            0,
            (f"Requires: kernel-core = {version}-{end}", f"Requires: kernel-devel = {version}-{end}"),
        ),
        Rpm("kernel-headers", version, end),
        Rpm("infiniband-diags", "54.0", f"1.el{release}"),
        Rpm("python3-dnf-plugin-versionlock", "4.3.0", f"20.el{release}"),
        Rpm("akmod-nvidia", "580.159.03", f"1.el{release}", 3),
        Rpm("podman", "5.4.0", f"1.el{release}", 7, (), {"/usr/bin/podman": "#!/bin/sh\necho podman version 5.4.0\n"}),
        Rpm("catatonit", "0.2.1", f"1.el{release}", 5, (), {"/usr/libexec/catatonit/catatonit": "simulated"}),
        *(Rpm(name, "1.14", f"1.el{release}") for name in ("crun", "netavark", "aardvark-dns", "passt")),
    ]


def toolkit() -> list[Rpm]:
    """The four packages of the container toolkit."""
    made = []
    for version in TOOLKITS:
        same = f"= {version}-1"
        made += [
            Rpm(
                "nvidia-container-toolkit",
                version,
                "1",
                0,
                (f"Requires: nvidia-container-toolkit-base {same}", f"Requires: libnvidia-container-tools {same}"),
            ),
            Rpm(
                "nvidia-container-toolkit-base",
                version,
                "1",
                0,
                (),
                {
                    "/usr/bin/nvidia-ctk": program("nvidia-ctk", version),
                    "/etc/systemd/system/nvidia-cdi-refresh.service": program(
                        "nvidia-cdi-refresh.service", version
                    ).replace("@AFTER@", ""),
                    "/etc/systemd/system/nvidia-cdi-refresh.path": program("nvidia-cdi-refresh.path", version),
                    "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": program("nvidia-cdi-refresh.env", version),
                },
                "systemctl daemon-reload",
            ),
            Rpm("libnvidia-container-tools", version, "1", 0, (f"Requires: libnvidia-container1 {same}",)),
            Rpm("libnvidia-container1", version, "1"),
        ]
    return made


def os_release(release: str) -> str:
    return (
        f'NAME="Rocky Linux"\nVERSION="{release}.6"\nID="rocky"\nID_LIKE="rhel centos fedora"\n'
        f'VERSION_ID="{release}.6"\nPLATFORM_ID="platform:el{release}"\n'
        f'PRETTY_NAME="Rocky Linux {release}.6 (simulated)"\n'
    )


def main(release: str, folder: Path) -> None:
    home = folder / "gnupg"
    home.mkdir(parents=True, mode=0o700)
    os.environ["GNUPGHOME"] = str(home)
    Path.home().joinpath(".rpmmacros").write_text(MACROS)
    run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", SIGNER, "rsa2048", "sign", "never")
    key = subprocess.run(["gpg", "--armor", "--export", SIGNER], check=True, capture_output=True).stdout
    vendor = [package for version in DRIVERS for package in driver(version, release)]
    cuda = folder / f"compute/cuda/repos/rhel{release}/x86_64"
    repository(cuda, [*vendor, Rpm("nvlsm", "2025.10.11", "1")], modules(vendor) if release == "9" else "")
    (cuda / KEYS[release]).write_bytes(key)
    repository(folder / "libnvidia-container/stable/rpm/x86_64", toolkit())
    (folder / "libnvidia-container/gpgkey").write_bytes(key)
    repository(folder / "distribution", distribution(release, folder))
    dkms = {"/usr/sbin/dkms": hardware("dkms"), "/usr/lib/dkms/common.postinst": hardware("dkms-postinst")}
    repository(folder / "epel", [Rpm("dkms", "3.2.2", f"1.el{release}", 0, (), dkms)])
    repository(folder / "crb", [Rpm("libdnf-devel", "0.73.1", f"1.el{release}")])
    repositories = Path("/etc/yum.repos.d")
    repositories.mkdir(parents=True, exist_ok=True)
    repositories.joinpath("rocky.repo").write_text(
        f"[baseos]\nname=BaseOS\nbaseurl=file://{folder}/distribution\nenabled=1\ngpgcheck=0\n\n"
        f"[crb]\nname=CRB\nbaseurl=file://{folder}/crb\nenabled=0\ngpgcheck=0\n"
    )
    # Debian's own additions to dnf look for a local repository and for systemd's Python module.
    Path("/etc/dnf/plugins/local.conf").write_text("[main]\nenabled = 0\n")
    release_file = Path("/etc/os-release")
    release_file.unlink(missing_ok=True)
    release_file.write_text(os_release(release))
    run("dnf", "--quiet", "--assumeyes", "install", "rocky-release", "kernel-core")
    # Such a host has none of Debian's programs, which would answer first.
    for name in DEBIAN_PROGRAMS:
        Path(f"/usr/bin/{name}").rename(f"/usr/bin/{name}.debian")


if __name__ == "__main__":
    FILES = Path(sys.argv[3])
    main(sys.argv[1], Path(sys.argv[2]))
