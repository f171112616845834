# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One package source of apt, tried apart from the host's own before it is written. Private to socle.inference."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from ansible.module_utils.urls import open_url
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, Runner, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import ToolkitError
from ansible_collections.socle.inference.plugins.module_utils._toolkit import apt

Fetch = Callable[[str], bytes]

KEY_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """A package source and its signing key."""

    name: str
    """Of the files: NAME.sources, NAME.asc."""
    uri: str
    key_url: str
    suites: str = "/"
    components: str = ""
    replaces: Sequence[str] = ()
    """Files of the same source from elsewhere: apt refuses two definitions with different keys."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Version by package that the source must offer; "" for any."""
    variable: str = "the repository's URL"
    """What the user changes when the address is wrong."""


def fetch(url: str) -> bytes:
    """Download a small file, with the environment's proxies. Raises OSError."""
    content: bytes = open_url(url, timeout=30, use_proxy=True).read(KEY_BYTES)
    return content


def is_key(content: bytes) -> bool:
    """Whether this is an OpenPGP public key, armoured or not; a proxy's error page is not."""
    return content.lstrip().startswith(b"-----BEGIN PGP PUBLIC KEY BLOCK-----") or content[:1] in (
        b"\x98",
        b"\x99",
        b"\xc6",
    )


def suffix(content: bytes) -> str:
    """apt tells the two forms of keys apart by the name of the file."""
    return ".asc" if content.lstrip().startswith(b"-----BEGIN") else ".gpg"


def render(source: Source, key: Path) -> str:
    """The text of the .sources file."""
    lines = ["# Written by socle.", "Types: deb", f"URIs: {source.uri}", f"Suites: {source.suites}"]
    if source.components:
        lines.append(f"Components: {source.components}")
    return "\n".join([*lines, f"Signed-By: {key}", ""])


class AptSource:
    """Makes a source present or absent on a host."""

    def __init__(self, runner: Runner, files: Files, root: Path = Path("/"), fetcher: Fetch = fetch) -> None:
        self._run = runner
        self._files = files
        self._root = root
        self._fetch = fetcher

    def _path(self, source: Source) -> Path:
        return self._root / f"etc/apt/sources.list.d/{source.name}.sources"

    def _keys(self, source: Source) -> list[Path]:
        folder = self._root / "etc/apt/keyrings"
        return [folder / f"{source.name}.asc", folder / f"{source.name}.gpg"]

    def _shown(self, path: Path) -> str:
        return f"/{path.relative_to(self._root)}"

    def present(self, source: Source, *, check: bool = False) -> dict[str, Any]:
        """Write the source where it is missing or different, and read its list where it offers too little so far."""
        path = self._path(source)
        before = self._files.read(path)
        keys = [key for key in self._keys(source) if key.is_file() and key.stat().st_size]
        old = [file for file in source.replaces if (self._root / file.lstrip("/")).exists()]
        written = bool(keys) and before == render(source, Path(self._shown(keys[0]))) and not old
        if written and not self._missing(source):
            return {"changed": False, "path": self._shown(path), "removed": [], "before": before, "after": before}

        content = self._download(source)
        key = self._keys(source)[0 if suffix(content) == ".asc" else 1]
        text = render(source, Path(self._shown(key)))
        self._try(source, content)
        result = {
            "changed": not written,
            "path": self._shown(path),
            "removed": old,
            "before": before or "",
            "after": text,
        }
        if not check:
            self._commit(source, key, content, text, old)
        return result

    def absent(self, source: Source, *, check: bool = False) -> dict[str, Any]:
        """Remove source and key; the lists go with the next update."""
        paths = [path for path in (self._path(source), *self._keys(source)) if path.exists()]
        before = self._files.read(self._path(source)) or ""
        if not check:
            with explaining(f"remove the package source {source.name}"):
                for path in paths:
                    self._files.remove(path)
        return {
            "changed": bool(paths),
            "path": self._shown(self._path(source)),
            "removed": [self._shown(path) for path in paths],
            "before": before,
            "after": "",
        }

    def _missing(self, source: Source, options: Sequence[str] = ()) -> dict[str, apt.Policy]:
        if not source.expect:
            return {}
        policy = apt.read_policy(self._run, list(source.expect), options)
        return {
            name: policy[name]
            for name, version in source.expect.items()
            if not (policy[name].versions if version in ("", apt.NEWEST) else version in policy[name].versions)
        }

    def _download(self, source: Source) -> bytes:
        try:
            content = self._fetch(source.key_url)
        except (OSError, ValueError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            reason = str(getattr(cause, "strerror", None) or cause).rstrip(".")
            raise ToolkitError(
                f"Cannot fetch the signing key {source.key_url}: {reason}; check that the host reaches this address, or"
                f" set {source.variable} to a mirror. Nothing was changed.",
                url=source.key_url,
            ) from error
        if not is_key(content):
            raise ToolkitError(
                f"Cannot use {source.key_url} as the signing key of {source.uri}: what came is no OpenPGP public key (a"
                f" proxy or login page?); check the address in a browser, or set {source.variable} to a mirror."
                " Nothing was changed.",
                url=source.key_url,
            )
        return content

    def _try(self, source: Source, content: bytes) -> None:
        """Read the source apart from everything else of the host."""
        with apt.workspace() as folder:
            key = folder / f"key{suffix(content)}"
            key.write_bytes(content)
            trial = folder / "trial.sources"
            trial.write_text(render(source, key), encoding="utf-8")
            options = apt.isolated(trial, folder)
            fault = apt.update(self._run, options)
            if fault:
                raise ToolkitError(
                    f"Cannot read the package source {source.uri}: {fault}; check that the host reaches this address,"
                    f" or set {source.variable} to a mirror. Nothing was changed.",
                    url=source.uri,
                )
            missing = self._missing(source, options)
        if missing:
            raise ToolkitError(_lacking(source, missing), url=source.uri)

    def _commit(self, source: Source, key: Path, content: bytes, text: str, old: Sequence[str]) -> None:
        path = self._path(source)
        touched = [path, *self._keys(source), *(self._root / file.lstrip("/") for file in old)]
        kept = {one: one.read_bytes() if one.is_file() else None for one in touched}
        with explaining(f"write the package source {source.name}"):
            for file in old:
                self._files.remove(self._root / file.lstrip("/"))
            _put(key, content)
            _put(path, text.encode())
        options = [
            "-o",
            f"Dir::Etc::sourcelist={path}",
            "-o",
            "Dir::Etc::sourceparts=-",
            "-o",
            "APT::Get::List-Cleanup=0",
        ]
        fault = apt.update(self._run, options)
        if fault is None and self._missing(source):
            # Another source or a preference of the host hides what the trial had found.
            fault = (
                f"{', '.join(self._missing(source))} is still not on offer, so preferences of the host may forbid it"
            )
        if fault:
            for one, bytes_before in kept.items():
                if bytes_before is None:
                    self._files.remove(one)
                else:
                    _put(one, bytes_before)
            raise ToolkitError(
                f"Cannot use the package source {source.uri}: {fault}; look at 'apt-get update' and 'apt-cache policy'"
                " on the host. The package sources are as they were."
            )


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.new")
    staged.write_bytes(content)
    staged.chmod(0o644)
    staged.replace(path)


def _lacking(source: Source, missing: Mapping[str, apt.Policy]) -> str:
    name, policy = next(iter(missing.items()))
    wanted = f"{name} {source.expect[name]}".strip()
    offered = ", ".join(policy.versions[:5]) or "no version of it"
    return (
        f"Cannot install {wanted}: {source.uri} offers {offered}; set a version that is there, or complete the mirror."
        " Nothing was changed."
    )
