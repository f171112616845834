# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of the NVIDIA driver: loaded, on disk, of user space, for the next kernel. Private to socle.inference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._gpu.commands import (
    read_text,
)

MODULE_NAMES = ("nvidia", "nvidia-current")
"""Names of the module's file: everybody's, and that of Debian's packages."""

LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
)
LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")

_LOADED = re.compile(r"nvidia(_current|_tesla_\d+|_legacy_\d+xx)?")
_MAX_LINKS = 40


def read(run: Run, sys_root: Path, proc_root: Path, root: Path, present: bool) -> dict[str, Any]:
    """The part "driver" of gpu_facts but for what nvidia-smi says. Without GPUs (*present*) no command is run."""
    running = read_text(proc_root / "sys/kernel/osrelease").strip() or None
    told = read_text(proc_root / "driver/nvidia/version")
    loaded = read_loaded_version(sys_root) or parse_version(told)
    following = newest_kernel(root, running)
    disk = next_disk = disk_flavour = None
    if present and running:
        disk, disk_flavour = read_disk(run, running, root)
    if present and following:
        next_disk = disk if following == running else read_disk(run, following, root)[0]
    flavour = parse_flavour(told)
    if flavour is None and loaded is not None and loaded == disk:
        flavour = disk_flavour
    return {
        "version": loaded,
        "flavour": flavour,
        "library_version": read_library_version(root),
        "disk_version": disk,
        "disk_flavour": disk_flavour,
        "next_kernel": following,
        "next_disk_version": next_disk,
        "cuda_version": None,
        "error": None,
        "nouveau": (sys_root / "module/nouveau").is_dir(),
    }


def read_loaded_version(sys_root: Path) -> str | None:
    """Version of the loaded module, also by the names of Debian's packages (nvidia_current)."""
    folder = sys_root / "module"
    for module in sorted(folder.iterdir()) if folder.is_dir() else []:
        if _LOADED.fullmatch(module.name):
            version = read_text(module / "version").strip()
            if version:
                return version
    return None


def parse_version(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, of the open and of the proprietary module."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return match.group(1) if match else None


def parse_flavour(text: str) -> str | None:
    """ "open" or "proprietary" by /proc/driver/nvidia/version; None without it."""
    match = re.search(r"^NVRM version:.*$", text, re.MULTILINE)
    if not match:
        return None
    return "open" if "Open Kernel Module" in match.group(0) else "proprietary"


def parse_license(text: str) -> str | None:
    """The flavour by modinfo's license: "Dual MIT/GPL" of the open module, "NVIDIA" of the other."""
    license_name = text.strip()
    return {"Dual MIT/GPL": "open", "NVIDIA": "proprietary"}.get(license_name)


def read_disk(run: Run, kernel: str, root: Path = Path("/")) -> tuple[str | None, str | None]:
    """(version, flavour) of the module file that *kernel* would load."""
    where = ["-b", str(root)] if root != Path("/") else []
    for name in MODULE_NAMES:
        answer = run(["modinfo", *where, "-k", kernel, "-F", "version", name])
        if answer is None:
            break
        version = answer[1].strip()
        if answer[0] == 0 and version:
            told = run(["modinfo", *where, "-k", kernel, "-F", "license", name])
            return version, parse_license(told[1]) if told and told[0] == 0 else None
    return None, None


def kernel_key(name: str) -> list[tuple[int, int, str]]:
    """Orders kernel names by their numbers; "6.12~rc1" and "6.12-rc1" come before "6.12"."""
    key = []
    for part in [*re.findall(r"\d+|[~-]rc|[^\d~-]+|[~-]", name), ""]:
        if part.isdigit():
            key.append((3, int(part), ""))
        elif part in ("~rc", "-rc", "~"):
            key.append((0, 0, ""))
        else:
            key.append((2 if part else 1, 0, part))
    return key


def newest_kernel(root: Path, running: str | None = None) -> str | None:
    """The newest installed kernel, which boots next; None when none is installed (containers).

    A kernel has an image. Where no image is found at all (network boot, EFI stubs elsewhere) a list of modules counts.
    """
    folder = root / "lib/modules"
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return None
    with_image = [
        name for name in names if (root / f"boot/vmlinuz-{name}").exists() or (folder / name / "vmlinuz").exists()
    ]
    if running not in with_image:
        with_image += [name for name in names if (folder / name / "modules.dep").exists()]
    return max(with_image, key=kernel_key) if with_image else None


def read_library_version(root: Path) -> str | None:
    """Version of user space, by the real name of its libraries: libnvidia-ml.so.580.159.04."""
    for library in LIBRARIES:
        for folder in LIBRARY_FOLDERS:
            real = resolve_in(root, root / folder / library)
            match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", real.name) if real else None
            if match:
                return match.group(1)
    return None


def resolve_in(root: Path, path: Path) -> Path | None:
    """The real file of *path*; absolute links, as of Debian's alternatives, start at *root*. None when it dangles."""
    for _link in range(_MAX_LINKS):
        if not path.is_symlink():
            return path if path.exists() else None
        target = str(path.readlink())
        path = root / target.lstrip("/") if target.startswith("/") else path.parent / target
    return None
