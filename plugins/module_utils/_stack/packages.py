# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages, package sources and drivers that came without a package. Private to socle.inference."""

from __future__ import annotations

import configparser
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._packages import dpkg, sources_list
from ansible_collections.socle.inference.plugins.module_utils._stack.regular import read_regular

NAMES = (
    "*nvidia*",
    "libcuda*",
    "cuda*",
    "libnvsdm*",
    "nvlsm",
    "infiniband-diags",
    "datacenter-gpu-manager*",
    "dkms",
    "linux-headers*",
    "linux-image*",
    "linux-modules-extra*",
    "linux-generic*",
    "kernel-devel*",
    "kernel-core",
    "podman*",
    "docker*",
    "moby*",
    "containerd*",
    "runc",
    "crun",
    "mokutil",
    "unattended-upgrades",
    "dnf-automatic",
)
"""Patterns of the package names that matter to drivers, toolkit and engines; dpkg-query and rpm read them alike."""

VERSIONLOCKS = (
    "etc/dnf/plugins/versionlock.list",
    "etc/dnf/versionlock.toml",
    "etc/yum/pluginconf.d/versionlock.list",
)
"""Where dnf 4, dnf 5 and yum keep their locks. Reading them costs nothing; 'dnf versionlock list' takes seconds."""

OLD_TOOLKIT_FILES = ("nvidia-docker", "libnvidia-container", "nvidia-container-runtime")
"""Names of the source files of NVIDIA's former repositories: apt refuses them beside the present one (Signed-By)."""

DPKG_SYSTEMS = ("debian", "ubuntu")
RPM_SYSTEMS = ("rhel", "fedora", "centos", "rocky", "almalinux", "ol", "amzn", "suse", "sles", "opensuse")
"""Words of ID and ID_LIKE in os-release, by the database that is the system's own."""
DPKG_DATABASE = "var/lib/dpkg/status"

RUNFILE_PROGRAMS = ("usr/bin/nvidia-uninstall", "usr/bin/nvidia-installer")
RUNFILE_LOG = "var/log/nvidia-installer.log"
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib")


def version_key(version: str) -> tuple[tuple[int, ...], str]:
    """Orders version texts by their numbers; enough for versions of one product, not a full dpkg or rpm order."""
    return tuple(int(number) for number in re.findall(r"\d+", version)), version


def upstream_version(version: str) -> str:
    """Without epoch and packaging revision: "3:580.159.04-1.el9" and "580.159.04-0ubuntu1" -> "580.159.04"."""
    return version.rpartition(":")[2].partition("-")[0]


def is_installed(packages: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    """Whether *packages* (of `read_packages`) has *name* wholly installed."""
    return name in packages and packages[name]["status"] == "installed"


def uses_dpkg(root: Path) -> bool | None:
    """Whether dpkg's database is the system's own; None when nothing tells.

    Either family has the other's tools in its archive, and building a foreign package fills a database of them.
    """
    release = read_regular(root / "etc/os-release") or read_regular(root / "usr/lib/os-release")
    lines = (line.partition("=") for line in release.splitlines())
    words = {word for key, _equals, value in lines if key in ("ID", "ID_LIKE") for word in value.strip("\"'").split()}
    if words & set(DPKG_SYSTEMS):
        return True
    if words & set(RPM_SYSTEMS):
        return False
    return True if read_regular(root / DPKG_DATABASE).strip() else None


def _read_dpkg(run: Run) -> dict[str, dict[str, Any]]:
    answer = run(dpkg.query_argv(NAMES))
    packages: dict[str, dict[str, Any]] = {}
    for name, package in dpkg.rows(answer[1] if answer else ""):
        if package.status == "not-installed" and not package.held:
            continue
        # The same name may be there for two architectures: the installed one counts.
        if name in packages and packages[name]["status"] == "installed":
            packages[name]["held"] = packages[name]["held"] or package.held
            continue
        packages[name] = {"version": package.version, "status": package.status, "held": package.held}
    return packages


def read_version_locks(root: Path) -> list[str]:
    """Patterns of dnf's version locks; lines that only exclude ("!...") are no locks."""
    patterns = []
    for name in VERSIONLOCKS:
        text = read_regular(root / name)
        if name.endswith(".toml"):
            patterns += re.findall(r"^\s*name\s*=\s*[\"']([^\"']+)[\"']", text, re.MULTILINE)
            continue
        lines = (line.strip() for line in text.splitlines())
        patterns += [line for line in lines if line and not line.startswith(("#", "!"))]
    return patterns


def matching_locks(name: str, evr: str, architecture: str, patterns: Sequence[str]) -> list[str]:
    """Those of *patterns* (of `read_version_locks`) that lock a package."""
    epoch, colon, version = evr.rpartition(":")
    number = epoch if colon else "0"
    spellings = [name, f"{name}.{architecture}"]
    for spelt in (version, f"{number}:{version}"):
        spellings += [f"{name}-{spelt}", f"{name}-{spelt}.{architecture}", f"{number}:{name}-{version}.{architecture}"]
    return [pattern for pattern in patterns if any(fnmatch.fnmatchcase(spelling, pattern) for spelling in spellings)]


def _read_rpm(run: Run, root: Path) -> dict[str, dict[str, Any]]:
    answer = run(["rpm", "-qa", "--qf", "%{NAME}\t%{EVR}\t%{ARCH}\n", *NAMES])
    locks = read_version_locks(root)
    packages: dict[str, dict[str, Any]] = {}
    for line in answer[1].splitlines() if answer else []:
        name, evr, architecture = [*line.split("\t"), "", ""][:3]
        # Kernels are installed side by side: the newest counts.
        if name in packages and version_key(packages[name]["version"]) >= version_key(evr):
            continue
        held = bool(matching_locks(name, evr, architecture, locks))
        packages[name] = {"version": evr, "status": "installed", "held": held}
    return packages


def read_packages(run: Run, root: Path) -> dict[str, dict[str, Any]]:
    """The packages of `NAMES`: {name: {"version", "status", "held"}}; by one command where the system tells its family.

    *status* is dpkg's ("installed", "half-installed", "half-configured", "unpacked", "config-files", ...). A package
    that is not installed appears only when it is held ("not-installed"), since a hold blocks its installation.
    *version* is the whole one, with epoch and revision. *held* is apt-mark's hold (dpkg keeps it itself) or a dnf lock.
    """
    family = uses_dpkg(root)
    if family is None:
        return _read_dpkg(run) or _read_rpm(run, root)
    return _read_dpkg(run) if family else _read_rpm(run, root)


def source_kind(file: str, uri: str) -> str:
    """What a package source is, by its address, and for mirrors of other names by the file that holds it."""
    stem, text = Path(file).stem, uri.lower()
    if "libnvidia-container" in text and re.search(r"/(stable|experimental)/(deb|rpm)(/|$)", text):
        # The former instructions wrote the present address into a file of the old name; both at once clash.
        return "nvidia-docker-old" if stem in OLD_TOOLKIT_FILES else "nvidia-toolkit"
    if stem in OLD_TOOLKIT_FILES or re.search(r"/(nvidia-docker|nvidia-container-runtime|libnvidia-container)/", text):
        return "nvidia-docker-old"
    if text.startswith("file:") and "nvidia" in text:
        return "nvidia-local"
    if "/cuda/repos/" in text or re.match(r"cuda-(debian|ubuntu|rhel|fedora|sles)", stem):
        return "nvidia-cuda"
    if stem == "nvidia-container-toolkit":
        return "nvidia-toolkit"
    if "ppa.launchpad" in text:
        return "ppa"
    if "download.docker.com" in text or "/docker-ce/" in text or stem in ("docker", "docker-ce"):
        return "docker"
    if re.search(r"/(debian|debian-security|ubuntu|ubuntu-ports|debian-backports)/?$", text):
        return "distribution"
    if re.search(r"(rocky|alma|redhat\.com|centos|fedoraproject|oracle)", text + stem.lower()):
        return "distribution"
    if re.search(r"(debian\.org|ubuntu\.com)", text):
        return "distribution"
    return "other"


def _apt_uris(name: str, text: str) -> Iterator[str]:
    for fields in sources_list.parse(name, text):
        yield from fields.get("uris", "").split()


def _repo_uris(_name: str, text: str) -> Iterator[str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    for section in parser.sections():
        if parser.get(section, "enabled", fallback="1").strip().lower() in ("0", "no", "false"):
            continue
        for key in ("baseurl", "metalink", "mirrorlist"):
            uris = parser.get(section, key, fallback="").split()
            if uris:
                yield from uris
                break


def read_sources(root: Path) -> list[dict[str, str]]:
    """Enabled binary package sources: [{"file", "uri", "kind"}], each address of a file once, in the order of files.

    *kind*: "nvidia-cuda", "nvidia-local" (unpacked on this host), "nvidia-toolkit", "nvidia-docker-old", "ppa",
    "docker", "distribution" or "other".
    """
    forms: list[tuple[str, str, Callable[[str, str], Iterator[str]]]] = [
        ("etc/apt", "sources.list", _apt_uris),
        ("etc/apt/sources.list.d", "*.list", _apt_uris),
        ("etc/apt/sources.list.d", "*.sources", _apt_uris),
        ("etc/yum.repos.d", "*.repo", _repo_uris),
    ]
    sources = []
    for folder, pattern, parse in forms:
        for path in sorted((root / folder).glob(pattern)):
            file = f"/{path.relative_to(root)}"
            for uri in dict.fromkeys(parse(path.name, read_regular(path))):
                sources.append({"file": file, "uri": uri, "kind": source_kind(file, uri)})
    return sources


def _is_owned(run: Run, root: Path, path: str) -> bool:
    family = uses_dpkg(root)
    answer = None if family is False else run(["dpkg-query", "-S", path])
    if answer is None and not family:
        answer = run(["rpm", "-qf", path])
    return answer is not None and answer[0] == 0


def foreign_installs(run: Run, root: Path, packages: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Drivers that no package manager knows: [{"kind", "evidence"}].

    *kind*: "runfile" (NVIDIA's .run installer) or "unpackaged" (driver libraries that no package brought).
    """
    for name in RUNFILE_PROGRAMS:
        if (root / name).exists() and not _is_owned(run, root, f"/{name}"):
            return [{"kind": "runfile", "evidence": f"/{name} belongs to no package"}]
    libraries = [path for folder in LIBRARY_FOLDERS for path in sorted((root / folder).glob("libnvidia-ml.so.*.*"))]
    # Every packaging has the library in a package of one of these names; asking who owns the file would be one more
    # command, and is asked only when none is there.
    if not libraries or any(name.startswith(("libnvidia", "libcuda", "nvidia-driver")) for name in packages):
        return []
    library = f"/{libraries[0].relative_to(root)}"
    if _is_owned(run, root, library):
        return []
    if (root / RUNFILE_LOG).exists():
        return [{"kind": "runfile", "evidence": f"/{RUNFILE_LOG} is there and {library} belongs to no package"}]
    return [{"kind": "unpackaged", "evidence": f"{library} belongs to no package"}]
