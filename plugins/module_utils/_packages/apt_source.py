# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One package source of apt, tried apart from the host's own before it is written. Private to socle.inference."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, Runner, explaining
from ansible_collections.socle.inference.plugins.module_utils._errors import PackageError
from ansible_collections.socle.inference.plugins.module_utils._packages import apt
from ansible_collections.socle.inference.plugins.module_utils._packages.apt_exact import NEWEST
from ansible_collections.socle.inference.plugins.module_utils._packages.key_file import holds_key
from ansible_collections.socle.inference.plugins.module_utils._packages.source import (
    Fetch,
    PackageSource,
    check_addresses,
    download_key,
    fetch,
    login,
    put,
    suffix,
    take_away,
    without_password,
)

MARK = "# Written by socle."
"""The first line of a file of ours; Docker's own instructions make one of the same name."""


@dataclass(frozen=True)
class AptRepository(PackageSource):
    """A package source and its signing key. The files are NAME.sources, NAME.asc or NAME.gpg, and socle-NAME.conf.

    The last one has user and password of the address, which only root may read.
    """

    suites: str = "/"
    components: str = ""


def check_layout(source: AptRepository) -> None:
    """Raises PackageError for suites or components that would add a field to the file, such as Trusted."""
    for name, text, expected in (
        ("suites", source.suites, "one suite without blanks"),
        ("components", source.components, "components with one space between them"),
    ):
        if " ".join(text.split()) != text or not text.isprintable() or (name == "suites" and len(text.split()) != 1):
            raise PackageError(
                f"Cannot use the {name} {text[:120]!r} of package source {source.name}: expected {expected}; correct "
                f"{name}. {source.spared}"
            )


def render(source: AptRepository, key: Path) -> str:
    """The text of the .sources file."""
    lines = [MARK, "Types: deb", f"URIs: {source.uri}", f"Suites: {source.suites}"]
    if source.components:
        lines.append(f"Components: {source.components}")
    return "\n".join([*lines, f"Signed-By: {key}", ""])


def render_login(source: AptRepository) -> str:
    """The text of the file with user and password of the address; "" for one without."""
    # apt compares paths after it replaced its variables in them.
    line = login(source.uri.partition("$(")[0])
    return f"{MARK}\n{line}" if line else ""


class AptSource:
    """Makes a source present or absent on a host."""

    def __init__(self, runner: Runner, files: Files, root: Path = Path("/"), fetcher: Fetch = fetch) -> None:
        self._run = runner
        self._files = files
        self._root = root
        self._fetch = fetcher

    def _path(self, source: AptRepository) -> Path:
        return self._root / f"etc/apt/sources.list.d/{source.name}.sources"

    def _keys(self, source: AptRepository) -> list[Path]:
        folder = self._root / "etc/apt/keyrings"
        return [folder / f"{source.name}.asc", folder / f"{source.name}.gpg"]

    def _login(self, source: AptRepository) -> Path:
        return self._root / f"etc/apt/auth.conf.d/socle-{source.name}.conf"

    def _put(self, source: AptRepository, path: Path, content: bytes | None) -> None:
        put(path, content, 0o600 if path == self._login(source) else 0o644)

    def _shown(self, path: Path) -> str:
        return f"/{path.relative_to(self._root)}"

    def present(self, source: AptRepository, *, check: bool = False) -> dict[str, Any]:
        """Write the source where it is missing or different, and read its list where it offers too little so far."""
        check_layout(source)
        path = self._path(source)
        before = self._files.read(path)
        keys = [key for key in self._keys(source) if holds_key(key)]
        old = [file for file in source.replaces if (self._root / file.lstrip("/")).exists()]
        public = replace(source, uri=without_password(source.uri))
        secret = self._files.read(self._login(source)) or ""
        written = bool(keys) and before == render(public, Path(self._shown(keys[0]))) and not old
        written = written and secret == render_login(source)
        if written and not self._missing(source):
            return {"changed": False, "path": self._shown(path), "removed": [], "before": before, "after": before}

        content = download_key(source, self._fetch)
        key = self._keys(source)[0 if suffix(content) == ".asc" else 1]
        text = render(public, Path(self._shown(key)))
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

    def probe(self, source: AptRepository) -> None:
        """Ask for key, index and versions as `present` would, and leave no trace. Raises PackageError."""
        check_layout(source)
        self._try(source, download_key(source, self._fetch))

    def is_outdated(self, source: AptRepository) -> bool:
        """Whether the source is there, is ours, and names another address, user or password, or a key that is none."""
        text = self._files.read(self._path(source)) or ""
        if not text.startswith(MARK):
            return False
        check_addresses(source)
        secret = self._files.read(self._login(source)) or ""
        if f"\nURIs: {without_password(source.uri)}\n" not in text or secret != render_login(source):
            return True
        return not any(f"\nSigned-By: {self._shown(key)}\n" in text and holds_key(key) for key in self._keys(source))

    def absent(self, source: AptRepository, *, check: bool = False) -> dict[str, Any]:
        """Remove source and key; the lists go with the next update."""
        paths = [self._shown(path) for path in (self._path(source), *self._keys(source), self._login(source))]
        return take_away(source, paths, self._files, self._root, check=check)

    def _missing(self, source: AptRepository, options: Sequence[str] = ()) -> dict[str, apt.Policy]:
        if not source.expect:
            return {}
        policy = apt.read_policy(self._run, list(source.expect), options)
        return {
            name: policy[name]
            for name, version in source.expect.items()
            if not (policy[name].versions if version in ("", NEWEST) else version in policy[name].versions)
        }

    def _try(self, source: AptRepository, content: bytes) -> None:
        """Read the source apart from everything else of the host."""
        shown = without_password(source.uri)
        with apt.workspace() as folder:
            key = folder / f"key{suffix(content)}"
            put(key, content)
            trial = folder / "trial.sources"
            trial.touch(mode=0o600)
            trial.write_text(render(source, key), encoding="utf-8")
            options = apt.isolated(trial, folder)
            fault = apt.update(self._run, options)
            if fault:
                raise PackageError(
                    f"Cannot read the package source {shown}: {fault}; check that the host reaches this address,"
                    f" or set {source.variable} to a mirror. {source.spared}",
                    url=shown,
                )
            missing = self._missing(source, options)
        if missing:
            raise PackageError(_lacking(source, missing), url=shown)

    def _commit(self, source: AptRepository, key: Path, content: bytes, text: str, old: Sequence[str]) -> None:
        path = self._path(source)
        touched = [path, *self._keys(source), self._login(source), *(self._root / file.lstrip("/") for file in old)]
        kept = {one: one.read_bytes() if one.is_file() else None for one in touched}
        with explaining(f"write the package source {source.name}"):
            try:
                for file in old:
                    self._files.remove(self._root / file.lstrip("/"))
                put(key, content)
                self._put(source, self._login(source), render_login(source).encode() or None)
                put(path, text.encode())
            except OSError:
                for one, bytes_before in kept.items():
                    with contextlib.suppress(OSError):
                        self._put(source, one, bytes_before)
                raise
        fault = apt.update(self._run, apt.beside(path))
        if fault is None and self._missing(source):
            # Another source or a preference of the host hides what the trial had found.
            fault = (
                f"{', '.join(self._missing(source))} is still not on offer, so preferences of the host may forbid it"
            )
        if fault:
            for one, bytes_before in kept.items():
                self._put(source, one, bytes_before)
            raise PackageError(
                f"Cannot use the package source {without_password(source.uri)}: {fault}; look at 'apt-get update' and"
                " 'apt-cache policy' on the host. The package sources are as they were."
            )


def _lacking(source: AptRepository, missing: Mapping[str, apt.Policy]) -> str:
    name, policy = next(iter(missing.items()))
    wanted = f"{name} {source.expect[name]}".strip()
    offered = ", ".join(policy.versions[:5]) or "no version of it"
    return (
        f"Cannot install {wanted}: {without_password(source.uri)} offers {offered}; set a version that is there, or"
        f" complete the mirror. {source.spared}"
    )
