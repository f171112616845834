# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker's daemon.json as data: what socle sets in it, merged into what is there. Private to socle.inference."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.select import Version, parse_version
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit.versions import (
    DOCKER_CDI_DEFAULT,
    DOCKER_PROXIES,
)

RELOADED = frozenset(
    {
        "debug",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "shutdown-timeout",
    }
)
"""What dockerd takes over without a restart (Docker's manual, "Configuration reload behavior")."""

FLAGS = {
    "default-ulimits": "default-ulimit",
    "features": "feature",
    "log-driver": "log-driver",
    "log-opts": "log-opt",
    "registry-mirrors": "registry-mirror",
}
"""dockerd's flags for what is set here, without their dashes; a flag of a proxy is called as its key. dockerd does not
start with a flag and a key for the same thing, and its --validate does not see the flags of the service."""

DEPTH = 50
"""What is nested deeper, and can still be read, may be too deep to be written."""

Leaves = dict[str, Any]
"""Values by path, such as {"features/cdi": True}. A list, and an entry of default-ulimits, is one value."""


@dataclass(frozen=True)
class Settings:
    """What the user wants of the engine, for both engines."""

    needs_cdi: bool = False
    mirrors: tuple[str, ...] = ()
    """URLs of mirrors of docker.io."""
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    log_max_size: str = ""
    """As Docker spells it, such as "50m"; "" leaves logs alone."""
    log_max_files: int = 0
    nofile: int = 0
    """Open files of a container; 0 leaves that alone."""
    log_is_default: bool = False
    nofile_is_default: bool = False
    """Whether nobody asked for it: then only a Docker gets it that socle installed."""

    @property
    def proxies(self) -> dict[str, str]:
        """The proxies that are set, by Docker's names."""
        named = {"http-proxy": self.http_proxy, "https-proxy": self.https_proxy, "no-proxy": self.no_proxy}
        return {name: value for name, value in named.items() if value}

    @property
    def secret(self) -> bool:
        """Whether a proxy's address has a password in it."""
        return any("@" in value for value in self.proxies.values())


def parse(text: str | None, path: str) -> dict[str, Any]:
    """The file's content, {} where there is none. Raises ToolkitError where it is not a JSON object."""
    if text is None or not text.strip():
        return {}
    try:
        content = json.loads(text)
        too_deep = _is_deeper(content, DEPTH)
    except ValueError as error:
        raise ToolkitError(
            f"Cannot add settings to {path}: it is not valid JSON ({error}), so Docker would not start with it either;"
            " correct the file by hand, then repeat the run. Nothing was changed."
        ) from error
    except RecursionError:
        content, too_deep = None, True
    if too_deep:
        raise ToolkitError(
            f"Cannot add settings to {path}: it is nested more than {DEPTH} deep, which no setting of Docker is;"
            " correct the file by hand, then repeat the run. Nothing was changed."
        )
    if not isinstance(content, dict):
        raise ToolkitError(
            f"Cannot add settings to {path}: it holds a {type(content).__name__}, expected a JSON object; correct the"
            " file by hand, then repeat the run. Nothing was changed."
        )
    return content


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _depth in range(limit):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [one for values in inner for one in values]
        if not level:
            return False
    return True


def digest(value: Any) -> str:
    """Stands for a value in the ledger, so that what is set here is not in the clear there."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def get(content: Mapping[str, Any], path: str) -> Any:
    """The value at a path, None where there is none."""
    value: Any = content
    for key in path.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _put(content: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ToolkitError(
                f"Cannot set {path.replace('/', '.')} in Docker's daemon.json: its '{key}' is a {type(inner).__name__},"
                " expected an object; correct the file by hand, then repeat the run. Nothing was changed."
            )
        content = inner
    content[last] = value


def _drop(content: dict[str, Any], path: str) -> None:
    first, _slash, rest = path.partition("/")
    if not rest:
        content.pop(first, None)
        return
    inner = content.get(first)
    if isinstance(inner, dict):
        _drop(inner, rest)
        if not inner:
            del content[first]


def wanted(
    settings: Settings,
    content: Mapping[str, Any],
    ours: Mapping[str, str],
    version: str | None,
    *,
    flags: Mapping[str, Sequence[str]] | None = None,
    installed_here: bool = False,
) -> tuple[Leaves, Leaves]:
    """(hard, soft): what must be so, and what only fills gaps. An unknown version is taken for the newest.

    *flags* are those that dockerd is started with; *installed_here* says whether socle brought this Docker. Raises
    ToolkitError where something must be so that a flag sets already.
    """
    given = flags or {}
    parsed: Version = parse_version(version) or (999, 0, 0)
    hard: Leaves = {}
    cdi = get(content, "features/cdi")
    # A setting that was needed once stays after an upgrade: taking it out would cost a restart for nothing.
    due = parsed < DOCKER_CDI_DEFAULT or cdi is False or "features/cdi" in ours
    if settings.needs_cdi and due and not {"cdi", "cdi=true"} & set(given.get("feature", ())):
        hard["features/cdi"] = True
    if settings.mirrors:
        hard["registry-mirrors"] = list(settings.mirrors)
    if settings.proxies and parsed < DOCKER_PROXIES:
        raise ToolkitError(
            f"Cannot set a proxy for Docker {version}: daemon.json has proxies since Docker 23; use a newer Docker, or"
            " leave container_engine_proxy empty and set the proxy in a drop-in of docker.service by hand."
        )
    for name, value in settings.proxies.items():
        hard[f"proxies/{name}"] = value
    for path, value in hard.items():
        if _flag(path) in given and get(content, path) != value:
            raise ToolkitError(
                f"Cannot set {path.replace('/', '.')} in Docker's daemon.json: docker.service starts dockerd with"
                f" --{_flag(path)}, and dockerd does not start with both; move what that flag says into daemon.json,"
                " restart Docker, then repeat the run. Nothing was changed."
            )
    return hard, _fillers(settings, content, ours, given, installed_here)


def _flag(path: str) -> str:
    first, _slash, rest = path.partition("/")
    return rest if first == "proxies" else FLAGS[first]


def _fillers(
    settings: Settings,
    content: Mapping[str, Any],
    ours: Mapping[str, str],
    flags: Mapping[str, Sequence[str]],
    installed_here: bool,
) -> Leaves:
    logs: Leaves = {}
    limits: Leaves = {}
    # Other drivers rotate by themselves or send logs away, and refuse json-file's options.
    own_log = content.get("log-driver", "json-file") == "json-file" and not {"log-driver", "log-opt"} & set(flags)
    if settings.log_max_size and own_log:
        logs["log-driver"] = "json-file"
        logs["log-opts/max-size"] = settings.log_max_size
        if settings.log_max_files:
            logs["log-opts/max-file"] = str(settings.log_max_files)
    if settings.nofile and "default-ulimit" not in flags:
        limits["default-ulimits/nofile"] = {"Name": "nofile", "Hard": settings.nofile, "Soft": settings.nofile}
    # A Docker of somebody else is not restarted for what nobody asked for; what was set before stays.
    return {
        path: value
        for values, is_default in ((logs, settings.log_is_default), (limits, settings.nofile_is_default))
        for path, value in values.items()
        if installed_here or not is_default or path in ours
    }


def merge(
    content: Mapping[str, Any],
    hard: Leaves,
    soft: Leaves,
    ours: Mapping[str, str],
    former: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, str], Leaves]:
    """(new content, new digests, new former values). Everything that is not named stays as it is.

    *ours* has digests of what was set here before: such a value follows the settings, and goes when they no longer name
    it, unless somebody changed it since. *former* has what others had set there; it comes back then.
    """
    merged: dict[str, Any] = json.loads(json.dumps(content))
    ledger: dict[str, str] = {}
    replaced: Leaves = {}
    kept = former or {}
    for path, mark in ours.items():
        if path not in hard and path not in soft and digest(get(merged, path)) == mark:
            if path in kept:
                _put(merged, path, kept[path])
            else:
                _drop(merged, path)
    for path, value in soft.items():
        current = get(merged, path)
        if current is None or digest(current) == ours.get(path):
            _put(merged, path, value)
            ledger[path] = digest(value)
    for path, value in hard.items():
        current = get(merged, path)
        # What somebody else had set alike stays theirs.
        if current != value or path in ours:
            ledger[path] = digest(value)
            if digest(current) != ours.get(path):
                if current is not None:
                    replaced[path] = current
            elif path in kept:
                replaced[path] = kept[path]
        _put(merged, path, value)
    return merged, ledger, replaced


def consequence(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """ "none", "reload" or "restart": what dockerd needs to take the change over."""
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    if not changed:
        return "none"
    return "reload" if changed <= RELOADED else "restart"


def render(content: Mapping[str, Any]) -> str:
    """The file's text."""
    return json.dumps(content, indent=4) + "\n"


@dataclass(frozen=True)
class Ledger:
    """What is remembered of a host's Docker."""

    ours: Mapping[str, str] = field(default_factory=dict)
    """Digests of what was set here, by path."""
    installed_here: bool = False
    """Whether Docker was not on the host before."""
    former: Mapping[str, Any] = field(default_factory=dict)
    """What others had set before, by path, for when ours goes; in the clear, so the file is root's alone."""
    coming: Mapping[str, str] = field(default_factory=dict)
    coming_former: Mapping[str, Any] = field(default_factory=dict)
    """The same two for a file that is about to be written, or just was."""


def towards(before: Ledger, after: Ledger) -> Ledger:
    """The ledger while the file is replaced, true of the old file and of the new one."""
    return Ledger(before.ours, after.installed_here, before.former, after.ours, after.former)


def settled(ledger: Ledger, content: Mapping[str, Any]) -> Ledger:
    """The ledger by what the file holds, after a run that was killed while it replaced the file."""
    ours, former = dict(ledger.ours), dict(ledger.former)
    for path, mark in ledger.coming.items():
        if digest(get(content, path)) == mark:
            ours[path] = mark
            former.pop(path, None)
            if path in ledger.coming_former:
                former[path] = ledger.coming_former[path]
    return Ledger(ours, ledger.installed_here, former)


def parse_ledger(content: Any) -> Ledger:
    """The ledger from its file's JSON; a damaged one counts as empty, so that nothing is taken for ours."""
    if not isinstance(content, dict) or not isinstance(content.get("set"), dict):
        return Ledger()
    coming = content.get("coming")
    coming = coming if isinstance(coming, dict) else {}
    return Ledger(
        _marks(content["set"]),
        content.get("installed") is True,
        _values(content.get("former")),
        _marks(coming.get("set")),
        _values(coming.get("former")),
    )


def _marks(value: Any) -> dict[str, str]:
    return {str(path): str(mark) for path, mark in value.items()} if isinstance(value, dict) else {}


def _values(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def render_ledger(ledger: Ledger) -> str:
    """The ledger's text."""
    content: dict[str, Any] = {
        "former": dict(sorted(ledger.former.items())),
        "installed": ledger.installed_here,
        "set": dict(sorted(ledger.ours.items())),
    }
    if ledger.coming:
        content["coming"] = {
            "former": dict(sorted(ledger.coming_former.items())),
            "set": dict(sorted(ledger.coming.items())),
        }
    return json.dumps(content, indent=1) + "\n"


def paths(changes: Iterable[str]) -> str:
    """Paths for a person: "features/cdi" -> "features.cdi"."""
    return ", ".join(sorted(path.replace("/", ".") for path in changes))
