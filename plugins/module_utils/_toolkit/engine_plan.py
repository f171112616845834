# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which container engine a host gets, and from where. Private to socle.inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, Runner
from ansible_collections.socle.inference.plugins.module_utils._engine.select import (
    ENGINES,
    parse_version,
    select,
    suits,
)
from ansible_collections.socle.inference.plugins.module_utils._errors import EngineError, ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._packages import apt, dpkg
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_exact import NEWEST
from ansible_collections.socle.inference.plugins.module_utils._packages.source import without_password
from ansible_collections.socle.inference.plugins.module_utils._stack.packages import read_sources
from ansible_collections.socle.inference.plugins.module_utils._toolkit import dockerd
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import LABELS, plain

PACKAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "debian": {
        # catatonit is what RunInit= starts; Debian only recommends the others, and without nft or iptables (which one
        # depends on the release) no container with a network of its own starts.
        "podman": ("podman", "crun", "netavark", "aardvark-dns", "passt", "catatonit", "nftables", "iptables"),
        "docker": ("docker.io", "docker-cli", "iptables"),
    },
    "redhat": {
        "podman": ("podman", "crun", "netavark", "aardvark-dns", "passt", "catatonit"),
        "docker": ("docker",),
    },
}
"""What the distributions call an engine and what it needs for socle's units; the first one is the engine itself."""

ADDITIONS = {"podman": ("catatonit",), "docker": ("docker-cli",)}
"""What an engine that is there may still lack. Nothing else is added: a second runtime would become its default."""

DOCKER_REPOSITORY_PACKAGES = ("docker-ce", "docker-ce-cli", "containerd.io")

DISTRIBUTION_DOCKER = ("docker.io", "containerd", "runc", "podman-docker", "moby-engine")
"""Packages that cannot be installed beside Docker's own, or would be removed by them."""

INIT_PROGRAMS = ("usr/libexec/podman/catatonit", "usr/bin/catatonit", "usr/libexec/catatonit/catatonit")

DISTRIBUTIONS = {"debian": "debian", "ubuntu": "debian", "rhel": "redhat", "fedora": "redhat", "centos": "redhat"}


def family(os: Mapping[str, Any]) -> str:
    """ "debian" or "redhat", from the facts' ``os``."""
    for name in (os.get("id"), *(os.get("id_like") or [])):
        if name in DISTRIBUTIONS:
            return DISTRIBUTIONS[name]
    raise ToolkitError(
        f"Cannot choose packages for {os.get('id') or 'an unknown operating system'}: expected Debian, Ubuntu or a"
        " relative of RHEL; install a container engine by hand, and set socle_provision to false for this host."
    )


@dataclass(frozen=True)
class Request:
    """What the user asked for, and what the host is."""

    wanted: str
    docker_source: str
    needs_cdi: bool
    host: str
    os: Mapping[str, Any]
    restart: str = "auto"
    """Whether dockerd may be restarted, one of dockerd.RESTARTS."""


def choose(
    request: Request,
    installed: Mapping[str, str | None],
    offered: Mapping[str, str | None],
    conflicts: Sequence[str] = (),
) -> tuple[str, str]:
    """(engine, source): the engine, and "installed", "distribution" or "docker" (Docker's own repository).

    *installed* and *offered* are versions by engine, None for none; *conflicts* are packages of the distribution that
    Docker's own would push aside. What is installed and suits is kept; a new engine is taken only where none suits.
    """
    for engine in _asked(request.wanted):
        if suits(engine, installed.get(engine), request.needs_cdi):
            return engine, "installed"
    best = {engine: _newer(installed.get(engine), offered.get(engine)) for engine in ENGINES}
    own_docker = request.docker_source == "docker" and request.wanted in ("auto", "docker")
    if own_docker and not (request.wanted == "auto" and suits("podman", best["podman"], request.needs_cdi)):
        if conflicts:
            raise EngineError(
                f"Cannot install Docker from its own repository on {request.host}: {', '.join(conflicts)} of the"
                " distribution is installed and would be removed with its containers; remove it by hand ('apt-get"
                f" remove {' '.join(conflicts)}') once nothing needs it, then repeat the run. Nothing was changed."
            )
        return "docker", "docker"
    if not any(best[engine] for engine in _asked(request.wanted)):
        raise EngineError(
            f"Cannot install a container engine on {request.host}: its package sources offer no"
            f" {' and no '.join(LABELS[engine] for engine in _asked(request.wanted))}; add the distribution's own"
            " sources (main or universe), or set container_engine_docker_source to docker for Docker's own packages."
        )
    return select(request.wanted, best, request.needs_cdi, request.host), "distribution"


def _asked(wanted: str) -> tuple[str, ...]:
    return ENGINES if wanted == "auto" else (wanted,)


def _newer(one: str | None, other: str | None) -> str | None:
    return max((one, other), key=lambda version: parse_version(version) or (0, 0, 0)) or one or other


def docker_repository(request: Request, replaces: Sequence[str]) -> dict[str, Any]:
    """Docker's own repository, with folder and key below its base address, which may hold a password."""
    names = [request.os.get("id"), *(request.os.get("id_like") or [])]
    distribution = next((name for name in names if name in ("debian", "ubuntu")), None)
    codename = request.os.get("codename")
    if distribution is None or not codename:
        raise ToolkitError(
            f"Cannot name Docker's repository for {request.host}: expected Debian or Ubuntu with a code name, found"
            f" {request.os.get('id')} {codename or 'without one'}; set container_engine_docker_source to distribution."
        )
    return {
        "name": "docker",
        "folder": f"linux/{distribution}",
        "key": f"linux/{distribution}/gpg",
        "suites": codename,
        "components": "stable",
        "replaces": list(replaces),
    }


def replaced_sources(root: Path, kinds: Sequence[str], ours: str, what: str) -> list[str]:
    """Files that define the same repository as *ours*. Raises ToolkitError where one of them has other sources too."""
    files: dict[str, list[dict[str, str]]] = {}
    for source in read_sources(root):
        files.setdefault(source["file"], []).append(source)
    found = []
    for file, sources in files.items():
        if file == ours or not any(source["kind"] in kinds for source in sources):
            continue
        others = [source["uri"] for source in sources if source["kind"] not in kinds]
        if others:
            raise ToolkitError(
                f"Cannot replace the source of {what} in {file}: the file also has {without_password(others[0])}, which"
                f" must stay; take the lines of {what} out of it by hand. Nothing was changed."
            )
        found.append(file)
    return found


def debian_offers(run: Runner, names: Sequence[str], root: Path, *, check: bool) -> dict[str, str | None]:
    """The candidates of packages. A host without package lists reads them first; in check mode, apart from its own."""
    if apt.has_lists(root):
        policy = apt.read_policy(run, names)
        return {name: policy[name].candidate for name in names}
    if not check:
        fault = apt.update(run)
        if fault:
            raise ToolkitError(f"Cannot read the package lists: {fault}; put the host's package sources right.")
        policy = apt.read_policy(run, names)
        return {name: policy[name].candidate for name in names}
    with apt.workspace() as folder:
        options = apt.elsewhere(folder)
        fault = apt.update(run, options)
        if fault:
            raise ToolkitError(f"Cannot read the package lists: {fault}; put the host's package sources right.")
        policy = apt.read_policy(run, names, options)
    return {name: policy[name].candidate for name in names}


def redhat_offers(run: Runner, names: Sequence[str]) -> dict[str, str | None]:
    """The newest versions that dnf has of packages."""
    done = run(
        ["dnf", "-q", "-y", "repoquery", "--latest-limit=1", "--qf", "%{name} %{version}\n", *names],
        timeout_s=apt.UPDATE_S,
    )
    if done.returncode != 0:
        raise ToolkitError(f"Cannot ask dnf for {names[0]}: {apt.why(done)}; put the host's repositories right.")
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.count(" ") == 1)
    return {name: found.get(name) for name in names}


def plan(
    run: Runner,
    request: Request,
    installed: Mapping[str, str | None],
    root: Path = Path("/"),
    *,
    check: bool = False,
    moved: Callable[[Mapping[str, Any]], bool] = lambda _repository: False,
) -> dict[str, Any]:
    """What role container_engine has to do: engine, version, source, fresh, family, packages, offered, repository.

    *version* is None as long as Docker's own repository was not read; *fresh* says that the engine is not there yet.
    *moved* tells whether Docker's own repository has another address than its file on the host.
    Raises ToolkitError where an upgrade of Docker would stop containers that must not be stopped.
    """
    kind = family(request.os)
    engines = {engine: PACKAGES[kind][engine][0] for engine in ENGINES}
    packages: dict[str, str] = {}
    repository = None
    offered: dict[str, str | None] = {}
    if not any(suits(engine, installed.get(engine), request.needs_cdi) for engine in _asked(request.wanted)):
        names = list(dict.fromkeys(name for engine in ENGINES for name in PACKAGES[kind][engine]))
        offered = debian_offers(run, names, root, check=check) if kind == "debian" else redhat_offers(run, names)
    versions = {engine: plain(offered[name] or "") or None for engine, name in engines.items() if name in offered}
    engine, source = choose(request, installed, versions, _conflicts(run, kind, request))
    if source == "docker":
        ours = "/etc/apt/sources.list.d/docker.sources"
        repository = docker_repository(request, replaced_sources(root, ("docker",), ours, "Docker's repository"))
        packages = dict.fromkeys(DOCKER_REPOSITORY_PACKAGES, NEWEST if installed.get(engine) else "")
    elif source == "distribution":
        # docker-cli is a package of its own only since Debian 13.
        # One that is there and too old is upgraded, for which its packages need to be named with their versions.
        upgrade = bool(installed.get(engine))
        packages = {
            name: (version if upgrade else "")
            for name in PACKAGES[kind][engine]
            for version in [offered[name]]
            if version
        }
    else:
        packages = _additions(run, kind, engine, root)
        if engine == "docker" and request.docker_source == "docker" and kind == "debian":
            known = docker_repository(request, [])
            repository = known if moved(known) else None
    upgrades = source != "installed" and installed.get(engine) is not None
    if upgrades and engine == "docker" and dockerd.read(run, Files(), root).running:
        dockerd.allow_restart(run, request.restart, f"an upgrade of Docker {installed[engine]}")
    return {
        "engine": engine,
        "version": installed.get(engine)
        if source == "installed"
        else versions.get(engine)
        if source == "distribution"
        else None,
        "source": source,
        "fresh": source != "installed" and not upgrades,
        "family": kind,
        "packages": packages,
        # Of Docker's own repository the versions are not known before its index was read.
        "offered": {name: str(offered[name]) for name in packages if source == "distribution" and offered.get(name)},
        "repository": repository,
    }


def _conflicts(run: Runner, kind: str, request: Request) -> list[str]:
    if kind != "debian" or request.docker_source != "docker" or request.wanted == "podman":
        return []
    found = dpkg.read_installed(run, DISTRIBUTION_DOCKER)
    return [name for name in DISTRIBUTION_DOCKER if name in found and found[name].present]


def _additions(run: Runner, kind: str, engine: str, root: Path) -> dict[str, str]:
    if engine == "podman":
        lacking = not any((root / program).exists() for program in INIT_PROGRAMS)
    else:
        lacking = not any((root / folder / "docker").exists() for folder in ("usr/bin", "usr/local/bin"))
    if not lacking:
        return {}
    names = ADDITIONS[engine]
    if kind == "debian":
        offered = {name: policy.candidate for name, policy in apt.read_policy(run, names).items()}
    else:
        offered = redhat_offers(run, names)
    return {name: "" for name in names if offered[name]}
