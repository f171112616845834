# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that the simulated repositories hold: names, versions, dependencies and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from .deb import Link, Package

FILES = Path(__file__).parent / "files"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"

HARDWARE = "/usr/local/lib/socle-sim/hardware.py"
"""Of the simulated host; apt runs maintainer scripts without /usr/local in the search path."""

DRIVERS = ("570.211.01", "580.126.09", "580.159.03", "580.178.04", "595.91.07")
CUDA = {"570": "12.8", "580": "13.0", "595": "13.2"}
"""The newest CUDA that a driver branch can run."""
TOOLKITS = ("1.18.2", "1.19.0", "1.19.1", "1.20.0")
KERNELS = {
    "trixie": ("6.12.117+deb13-amd64", "6.12.118+deb13-amd64"),
    "bookworm": ("6.1.0-56-amd64", "6.1.0-57-amd64"),
}
"""By Debian release, the kernel that a host runs and the one that an update brings."""

SYSTEMD_POSTINST = """\
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    systemctl {verb} {units} || true
fi
"""
SYSTEMD_PRERM = """\
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now {units} || true
fi
"""
SYSTEMD_POSTRM = "[ ! -d /run/systemd/system ] || systemctl daemon-reload || true\n"


def text(name: str, **values: str) -> str:
    """A file of files/, with each @NAME@ replaced."""
    content = (FILES / name).read_text()
    for key, value in values.items():
        content = content.replace(f"@{key}@", value)
    return content


def _unit_scripts(units: str, verb: str = "enable --now") -> dict[str, str]:
    return {
        "postinst": SYSTEMD_POSTINST.format(units=units, verb=verb),
        "prerm": SYSTEMD_PRERM.format(units=units),
        "postrm": SYSTEMD_POSTRM,
    }


def _library(package: str, soname: str, version: str, **fields: str) -> Package:
    stem = soname.rpartition(".so.")[0]
    real = f"{stem}.so.{version}"
    files: dict[str, str | bytes | Link] = {
        f"{LIBRARIES}/{real}": f"simulated {real}\n",
        f"{LIBRARIES}/{soname}": Link(real),
    }
    return Package(package, f"{version}-1", fields, files)


def _kernel_module(package: str, version: str, flavour: str, conflicts: str) -> Package:
    source = f"/usr/src/nvidia-{version}"
    dkms = f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n'
    return Package(
        package,
        f"{version}-1",
        {
            "Depends": f"dkms, nvidia-kernel-support (= {version}-1)",
            "Provides": f"nvidia-kernel-{version}",
            "Conflicts": conflicts,
            "Replaces": conflicts,
        },
        {f"{source}/dkms.conf": dkms, f"{source}/flavour": f"{flavour}\n"},
        scripts={
            "postinst": f'[ "$1" != configure ] || exec /usr/lib/dkms/common.postinst nvidia {version}\n',
            "prerm": f"dkms remove nvidia/{version} --all || true\n",
        },
    )


def _pinning(version: str, pin: str) -> Package:
    name = f"nvidia-driver-pinning-{pin}"
    # apt ignores a file here whose name has another extension.
    preferences = f"/etc/apt/preferences.d/{name}.pref"
    others = dict.fromkeys(("Provides", "Conflicts", "Replaces"), "nvidia-driver-pinning")
    return Package(
        name,
        f"{version}-1",
        others,
        {preferences: text("pinning.pref", PIN=f"{pin}-*" if "." in pin else f"{pin}.*")},
        architecture="all",
        conffiles=(preferences,),
    )


def _driver(version: str) -> Iterator[Package]:
    """All packages of one driver version."""
    full, branch = f"{version}-1", version.split(".")[0]
    same = f"(= {full})"
    suffix = f"-{branch}" if int(branch) < 580 else ""
    yield _library("libcuda1", "libcuda.so.1", version, Depends=f"libnvidia-ptxjitcompiler1 {same}")
    yield _library("libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so.1", version)
    yield _library("libnvidia-ml1", "libnvidia-ml.so.1", version)
    yield _library("libnvidia-cfg1", "libnvidia-cfg.so.1", version)
    yield _library(f"libnvidia-nscq{suffix}", "libnvidia-nscq.so.2", version)
    yield _library(f"libnvsdm{suffix}", "libnvsdm.so.1", version)
    yield Package(
        "nvidia-kernel-support",
        full,
        {"Depends": f"nvidia-modprobe (>= {version})"},
        {
            "/usr/lib/modprobe.d/nvidia-blacklists-nouveau.conf": "blacklist nouveau\noptions nouveau modeset=0\n",
            f"/usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin": "simulated\n",
        },
        scripts={"postinst": f'[ "$1" != configure ] || {HARDWARE} update-initramfs -u\n'},
    )
    yield _kernel_module("nvidia-kernel-open-dkms", version, "open", "nvidia-kernel-dkms, nvidia-open-kernel-dkms")
    yield _kernel_module(
        "nvidia-kernel-dkms", version, "proprietary", "nvidia-kernel-open-dkms, nvidia-open-kernel-dkms"
    )
    yield Package(
        "nvidia-modprobe",
        full,
        files={"/usr/bin/nvidia-modprobe": text("call_hardware", COMMAND="nvidia-modprobe")},
        programs=("/usr/bin/nvidia-modprobe",),
    )
    yield Package(
        "nvidia-persistenced",
        full,
        {"Depends": f"libnvidia-cfg1 {same}"},
        {
            "/usr/bin/nvidia-persistenced": text("nvidia-persistenced", VERSION=version),
            "/usr/lib/systemd/system/nvidia-persistenced.service": text("nvidia-persistenced.service"),
        },
        ("/usr/bin/nvidia-persistenced",),
        scripts=_unit_scripts("nvidia-persistenced.service"),
    )
    yield Package(
        "nvidia-driver-cuda",
        full,
        {
            "Depends": f"libcuda1 {same}, libnvidia-ml1 {same}, nvidia-persistenced {same}, nvidia-modprobe {same}",
            "Conflicts": "nvidia-smi",
        },
        {
            "/usr/bin/nvidia-smi": text(
                "nvidia-smi", VERSION=version, CUDA={"570": "12.8", "580": "13.0"}.get(branch, "13.2")
            )
        },
        ("/usr/bin/nvidia-smi",),
    )
    yield Package("nvidia-driver", full, {"Depends": f"nvidia-driver-cuda {same}"})
    yield Package("nvidia-open", full, {"Depends": f"nvidia-driver {same}, nvidia-kernel-open-dkms {same}"})
    yield Package("cuda-drivers", full, {"Depends": f"nvidia-driver {same}, nvidia-kernel-dkms {same}"})
    yield Package(
        f"nvidia-fabricmanager{suffix}",
        full,
        files={
            "/usr/bin/nv-fabricmanager": text("nv-fabricmanager", VERSION=version),
            "/usr/lib/systemd/system/nvidia-fabricmanager.service": text("nvidia-fabricmanager.service"),
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": "LOG_LEVEL=4\nDAEMONIZE=1\nFABRIC_MODE=0\n",
        },
        programs=("/usr/bin/nv-fabricmanager",),
        # NVIDIA's package leaves enabling it to the administrator.
        scripts={
            "postinst": "[ ! -d /run/systemd/system ] || systemctl daemon-reload || true\n",
            "prerm": SYSTEMD_PRERM.format(units="nvidia-fabricmanager.service"),
            "postrm": SYSTEMD_POSTRM,
        },
    )
    yield Package(f"nvidia-imex{suffix}", full)
    yield _pinning(version, version)


def cuda_repository(url: str, distribution: str, key: bytes) -> Iterator[Package]:
    """What developer.download.nvidia.com has below compute/cuda/repos/<distribution>/x86_64."""
    newest: dict[str, str] = {}
    for version in DRIVERS:
        newest[version.partition(".")[0]] = version
        yield from _driver(version)
    for branch, version in newest.items():
        yield _pinning(version, branch)
    yield Package("nvlsm", "2025.10.11-1", files={"/opt/nvidia/nvlsm/sbin/nvlsm": "#!/bin/sh\nexit 0\n"})
    keyring = "/usr/share/keyrings/cuda-archive-keyring.gpg"
    source = f"deb [signed-by={keyring}] {url}/compute/cuda/repos/{distribution}/x86_64/ /\n"
    pin = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
    files: dict[str, str | bytes | Link] = {
        keyring: key,
        f"/etc/apt/sources.list.d/cuda-{distribution}-x86_64.list": source,
        "/etc/apt/preferences.d/cuda-repository-pin-600": pin,
    }
    conffiles = tuple(path for path in files if path.startswith("/etc/"))
    yield Package("cuda-keyring", "1.1-1", files=files, conffiles=conffiles, architecture="all")


def toolkit_repository() -> Iterator[Package]:
    """What nvidia.github.io has below libnvidia-container/stable/deb/amd64."""
    refresh = "nvidia-cdi-refresh.path nvidia-cdi-refresh.service"
    for version in TOOLKITS:
        full = f"{version}-1"
        same = f"(= {full})"
        units = "/etc/systemd/system/nvidia-cdi-refresh"
        after = "After=multi-user.target\n" if version == "1.19.0" else ""
        yield _library("libnvidia-container1", "libnvidia-container.so.1", version)
        yield Package(
            "libnvidia-container-tools",
            full,
            {"Depends": f"libnvidia-container1 {same}"},
            {"/usr/bin/nvidia-container-cli": "#!/bin/sh\nexit 0\n"},
            ("/usr/bin/nvidia-container-cli",),
        )
        yield Package(
            "nvidia-container-toolkit-base",
            full,
            {"Breaks": f"nvidia-container-toolkit (<< {full})"},
            {
                "/usr/bin/nvidia-ctk": text("nvidia-ctk", VERSION=version),
                "/usr/bin/nvidia-cdi-hook": text("call_hardware", COMMAND="cdi-hook"),
                "/usr/bin/nvidia-container-runtime": '#!/bin/sh\nexec runc "$@"\n',
                "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": text("nvidia-cdi-refresh.env"),
                f"{units}.service": text("nvidia-cdi-refresh.service", AFTER=after),
                f"{units}.path": text("nvidia-cdi-refresh.path"),
            },
            ("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-container-runtime"),
            conffiles=("/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env", f"{units}.service", f"{units}.path"),
            scripts=_unit_scripts(refresh),
        )
        yield Package(
            "nvidia-container-toolkit",
            full,
            {"Depends": f"nvidia-container-toolkit-base {same}, libnvidia-container-tools {same}"},
            {
                "/usr/bin/nvidia-container-runtime-hook": "#!/bin/sh\nexit 0\n",
                "/etc/nvidia-container-runtime/config.toml": '[nvidia-container-runtime]\nmode = "auto"\n',
            },
            ("/usr/bin/nvidia-container-runtime-hook",),
        )


def kernel_repository(kernels: Iterable[str]) -> Iterator[Package]:
    """Stands in for the distribution's kernels and DKMS, which would be some hundred MB and minutes of compiling."""
    meta = "cloud-amd64", "amd64"
    for kernel in kernels:
        version = f"{kernel.split('+')[0].removesuffix('-amd64').replace('-', '.')}-1"
        modules = f"/lib/modules/{kernel}"
        yield Package(
            f"linux-image-{kernel}",
            version,
            files={
                f"/boot/vmlinuz-{kernel}": "simulated\n",
                f"{modules}/modules.order": "",
                f"{modules}/modules.builtin": "",
            },
            scripts={
                "postinst": f"[ -e {modules}/modules.dep ] || : >{modules}/modules.dep\n"
                f'if [ "$1" = configure ] && [ -x /usr/sbin/dkms ]; then dkms autoinstall -k {kernel} || true; fi\n',
                "postrm": f'if [ "$1" != upgrade ]; then rm -rf {modules}; fi\n',
            },
        )
        yield Package(
            f"linux-headers-{kernel}",
            version,
            files={
                f"/usr/src/linux-headers-{kernel}/Makefile": "# simulated\n",
                f"{modules}/build": Link(f"/usr/src/linux-headers-{kernel}"),
            },
            scripts={
                "postinst": f'if [ "$1" = configure ] && [ -x /usr/sbin/dkms ]; then dkms autoinstall -k {kernel}; fi\n'
            },
        )
        for flavour in meta:
            for kind in ("image", "headers"):
                yield Package(f"linux-{kind}-{flavour}", version, {"Depends": f"linux-{kind}-{kernel} (= {version})"})
    yield Package(
        "dkms",
        "99.0-1",
        files={
            "/usr/sbin/dkms": text("call_hardware", COMMAND="dkms"),
            "/usr/lib/dkms/common.postinst": text("call_hardware", COMMAND="dkms-postinst"),
        },
        programs=("/usr/sbin/dkms", "/usr/lib/dkms/common.postinst"),
        architecture="all",
    )
