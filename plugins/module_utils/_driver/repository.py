# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package sources that the driver comes from: their files, and reading their index. Private to socle.inference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from ansible_collections.socle.inference.plugins.module_utils._address import address_fault
from ansible_collections.socle.inference.plugins.module_utils._driver.decide import OWN_SOURCE
from ansible_collections.socle.inference.plugins.module_utils._driver.model import DriverError, Repository
from ansible_collections.socle.inference.plugins.module_utils._driver.names import DEBIAN_COMPONENTS
from ansible_collections.socle.inference.plugins.module_utils._packages import sources_list
from ansible_collections.socle.inference.plugins.module_utils._packages.key_file import holds_key
from ansible_collections.socle.inference.plugins.module_utils._packages.source import (
    is_same,
    login,
    without_password,
)

OWN_KEY = "/etc/apt/keyrings/socle-nvidia-cuda"
"""Without its suffix, which tells apt the form: .gpg for a keyring, .asc for ASCII armour."""

COMPONENTS_SOURCE = "/etc/apt/sources.list.d/socle-debian-components.sources"
AUTH = "/etc/apt/auth.conf.d/socle-nvidia-cuda.conf"
"""User and password of a mirror, which only root may read."""

HEADER = "# Written by socle.inference, role gpu_driver; a run replaces it.\n"


def check_address(url: str) -> None:
    """Refuse an address that cannot be one. It is not shown: where its password ends cannot be told."""
    problem = address_fault(url) if url else ""
    if problem:
        raise DriverError(
            f"gpu_driver_repository_url {problem}, expected an address such as"
            " https://developer.download.nvidia.com/compute/cuda/repos; correct it. Nothing was changed."
        )


def list_name(uri: str, suite: str) -> str:
    """How apt names the Release file of a source below /var/lib/apt/lists."""
    place = re.sub(r"^(?:(mirror\+[a-z]+:)|[a-z]+:)//", lambda match: match.group(1) or "", uri.rstrip("/"))
    place = re.sub(r"^[^/@]*@", "", place)
    return "_".join([*place.replace("_", "%5f").split("/"), "dists", *suite.strip("/").split("/")])


def origin(root: Path, uri: str, suite: str) -> str | None:
    """The origin that a source's Release file names, "Debian" for Debian's archive and its mirrors.

    None where apt has not read the source yet.
    """
    for end in ("InRelease", "Release"):
        path = root / "var/lib/apt/lists" / f"{list_name(uri, suite)}_{end}"
        if path.is_file():
            found = re.search(r"^Origin:\s*(.+?)\s*$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            return found.group(1) if found else ""
    return None


def is_debian_archive(uri: str, keys: str, told: str | None) -> bool:
    """Whether a source is Debian's archive: by the origin *told*, else by its host, else by its path and *keys*.

    Vendors call their own repositories ".../debian" too, and sign them with a key of their own.
    """
    if told is not None:
        return told in ("Debian", "Debian Backports")
    if re.match(r"[a-z+]+://([^/@]*@)?([\w.-]+\.)?debian\.org(:\d+)?/", uri):
        return True
    named = re.search(r"/debian(-security|-backports)?(\.list)?/?$", uri)
    return named is not None and (not keys or "debian-archive" in keys)


KEPT_FIELDS = {
    "architectures": "Architectures",
    "arch": "Architectures",
    "signed-by": "Signed-By",
    "trusted": "Trusted",
    "check-valid-until": "Check-Valid-Until",
}
"""Fields that a second source of the same address must repeat; "arch" is the word of the one-line form."""


def missing_components(
    texts: Mapping[str, str], wanted: Sequence[str], told: Callable[[str, str], str | None] = lambda _uri, _suite: None
) -> str:
    """A deb822 file that adds *wanted* components to the Debian archives in *texts* (file name -> content).

    "" where all are there. The same addresses, suites and keys are named again, so that no file of somebody else is
    edited, and only with the components that are missing. *told* gives the origin of an address and suite.
    """
    places: list[tuple[str, str, Mapping[str, str]]] = []
    found: dict[tuple[str, str], set[str]] = {}
    for name, text in sorted(texts.items()):
        for fields in sources_list.parse(name, text):
            for uri in fields.get("uris", "").split():
                for suite in fields.get("suites", "").split():
                    if not is_debian_archive(uri, fields.get("signed-by", ""), told(uri, suite)):
                        continue
                    places.append((uri, suite, fields))
                    found.setdefault((uri.rstrip("/"), suite), set()).update(fields.get("components", "").split())
    added, done = [], set()
    for uri, suite, given in places:
        place = (uri.rstrip("/"), suite)
        missing = [component for component in wanted if component not in found[place]]
        if place in done or not missing or "main" not in found[place]:
            continue
        done.add(place)
        lines = [f"Types: deb\nURIs: {without_password(uri)}\nSuites: {suite}\nComponents: {' '.join(missing)}"]
        for key, title in KEPT_FIELDS.items():
            if given.get(key):
                value = given[key].replace(",", " ") if title == "Architectures" else given[key]
                lines.append(f"{title}: {value}")
        added.append("\n".join(lines) + "\n")
    return HEADER + "\n".join(added) if added else ""


def _other_files(root: Path) -> dict[str, str]:
    """Package sources other than ours."""
    folder = root / "etc/apt"
    paths = [folder / "sources.list", *(folder / "sources.list.d").glob("*.list")]
    paths += (folder / "sources.list.d").glob("*.sources")
    return {
        path.name: path.read_text(encoding="utf-8", errors="replace")
        for path in paths
        if f"/{path.relative_to(root)}" not in (COMPONENTS_SOURCE, OWN_SOURCE) and path.is_file()
    }


def source_text(url: str, key_file: str) -> str:
    """The deb822 source of NVIDIA's flat repository; user and password stand in `AUTH`."""
    return f"{HEADER}Types: deb\nURIs: {without_password(url)}\nSuites: ./\nSigned-By: {key_file}\n"


def logins(root: Path, url: str, components: str) -> str:
    """The text of `AUTH` for NVIDIA's repository at *url* ("" for none) and the sources that *components* adds to."""
    lines = [login(url)] if url else []
    for name, text in sorted(_other_files(root).items()) if components else ():
        for fields in sources_list.parse(name, text):
            uris = fields.get("uris", "").split()
            lines += [login(uri) for uri in uris if f"URIs: {without_password(uri)}\n" in components]
    found = "".join(dict.fromkeys(lines))
    return HEADER + found if found else ""


def _has(root: Path, path: str, text: str) -> bool:
    return (root / path.lstrip("/")).is_file() and _text(root, path) == text


def _text(root: Path, path: str) -> str:
    """The content; "" where there is no such file."""
    file = root / path.lstrip("/")
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def source_files(
    root: Path,
    repository: Repository | None,
    os: Mapping[str, Any],
    source: str,
    sources: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """What the package sources should be.

    {"url", "display" (without password), "key_urls", "source" (path), "key" (path without suffix), "components" (text
    of the file that adds Debian's components, or ""), "missing": whether anything of it is not there, "moved": whether
    ours is there with another address or password, or with a key that is none, "files": our files that are there,
    "foreign": whether other files ("foreign_files") name the same repository, and serve as well}.
    """
    own = [OWN_SOURCE, COMPONENTS_SOURCE, AUTH, f"{OWN_KEY}.gpg", f"{OWN_KEY}.asc"]
    files = [path for path in own if (root / path.lstrip("/")).is_file()]
    result: dict[str, Any] = {
        "url": None,
        "key_urls": [],
        "source": OWN_SOURCE,
        "key": OWN_KEY,
        "components": "",
        "missing": False,
        "moved": False,
        "files": files,
        "foreign": False,
        "foreign_files": [],
    }
    if repository is not None:
        same = [entry["file"] for entry in sources if is_same(entry["uri"], repository.url)]
        result.update(url=repository.url, key_urls=list(repository.key_urls))
        result["foreign_files"] = sorted({file for file in same if file != OWN_SOURCE})
        result["foreign"] = bool(result["foreign_files"])
        keys = [path for path in files if path.startswith(OWN_KEY) and holds_key(root / path.lstrip("/"))]
        own_there = any(_has(root, OWN_SOURCE, source_text(repository.url, key)) for key in keys)
        result["missing"] = not result["foreign"] and not own_there
    if os.get("id") == "debian" and sources:
        result["components"] = missing_components(
            _other_files(root), DEBIAN_COMPONENTS[source], lambda uri, suite: origin(root, uri, suite)
        )
        if result["components"] and not _has(root, COMPONENTS_SOURCE, result["components"]):
            result["missing"] = True
    asked = "" if result["foreign"] else result["url"] or ""
    auth = logins(root, asked, result["components"])
    if auth and not _has(root, AUTH, auth):
        result["missing"] = True
    if OWN_SOURCE in files and asked:
        elsewhere = f"\nURIs: {without_password(asked)}\n" not in _text(root, OWN_SOURCE)
        unsigned = not any(f"\nSigned-By: {key}\n" in _text(root, OWN_SOURCE) for key in keys)
        result["moved"] = elsewhere or unsigned or _text(root, AUTH) != auth
    result["display"] = without_password(result["url"] or "")
    return result
