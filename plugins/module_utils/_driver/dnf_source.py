# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One package source of DNF, tried apart from the host's own before it is written. Private to socle.inference."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.socle.inference.plugins.module_utils._commands import Run
from ansible_collections.socle.inference.plugins.module_utils._driver import dnf
from ansible_collections.socle.inference.plugins.module_utils._driver.dnf_exact import has_version
from ansible_collections.socle.inference.plugins.module_utils._driver.model import (
    DriverError,
)
from ansible_collections.socle.inference.plugins.module_utils._engine.host_io import Files, explaining
from ansible_collections.socle.inference.plugins.module_utils._packages.source import (
    Fetch,
    fetch,
    is_key,
    without_password,
)

HEADER = "# Written by socle.inference; a run replaces it.\n"


@dataclass(frozen=True)
class Source:
    """A package source and its signing key."""

    name: str
    """Of the files, and the repository's id."""
    uri: str
    key_url: str
    """Address of the key, or the key itself as ASCII armour."""
    replaces: tuple[str, ...] = ()
    """Files of the same source from elsewhere."""
    expect: Mapping[str, str] = field(default_factory=dict)
    """Version by package that the source must offer; "" for any."""
    variable: str = "the repository's URL"
    """What the user changes when the address is wrong."""

    @property
    def path(self) -> str:
        """The repository's file."""
        return f"/etc/yum.repos.d/{self.name}.repo"

    @property
    def key_path(self) -> str:
        """The key's file."""
        return f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{self.name}"


def render(source: Source) -> str:
    """The text of the .repo file. A mirror that is away must fail a run instead of being left out in silence."""
    return (
        f"{HEADER}[{source.name}]\nname={source.name}\nbaseurl={source.uri}\nenabled=1\ngpgcheck=1\n"
        f"gpgkey=file://{source.key_path}\nskip_if_unavailable=0\n"
    )


class DnfSource:
    """Makes a source present or absent on a host."""

    def __init__(self, run: Run, files: Files, root: Path = Path("/"), fetcher: Fetch = fetch) -> None:
        self.run, self.files, self.root, self.fetch = run, files, root, fetcher

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def present(self, source: Source, *, check: bool = False) -> dict[str, Any]:
        """Write the source where it is missing or different."""
        before = self.files.read(self._at(source.path))
        key_before = self.files.read(self._at(source.key_path))
        old = [file for file in source.replaces if self._at(file).exists()]
        text = render(source)
        result = {"path": source.path, "removed": old, "before": before or "", "after": text}
        if before == text and key_before and not old:
            return {**result, "changed": False}
        key = self._download(source)
        self._try(source)
        if not check:
            with explaining(f"write the package source {source.name}"):
                for file in old:
                    self.files.remove(self._at(file))
                self.files.write(self._at(source.key_path), key)
                self.files.write(self._at(source.path), text)
        return {**result, "changed": True}

    def absent(self, source: Source, *, check: bool = False) -> dict[str, Any]:
        """Remove source and key."""
        paths = [path for path in (source.path, source.key_path) if self._at(path).exists()]
        before = self.files.read(self._at(source.path)) or ""
        if not check:
            with explaining(f"remove the package source {source.name}"):
                for path in paths:
                    self.files.remove(self._at(path))
        return {"changed": bool(paths), "path": source.path, "removed": paths, "before": before, "after": ""}

    def _download(self, source: Source) -> str:
        if source.key_url.lstrip().startswith("-----BEGIN"):
            return source.key_url.strip() + "\n"
        shown = without_password(source.key_url)
        try:
            content = self.fetch(source.key_url)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)).rstrip(".")
            raise DriverError(
                f"Cannot fetch the signing key {shown}: {reason}; check that the host reaches this address, or set"
                f" {source.variable} to a mirror. Nothing was changed.",
                url=shown,
            ) from error
        if not is_key(content) or not content.isascii():
            raise DriverError(
                f"Cannot use {shown} as the signing key of {without_password(source.uri)}: what came is no armoured"
                f" OpenPGP public key (a proxy or login page?); check the address in a browser, or set"
                f" {source.variable} to a mirror. Nothing was changed.",
                url=shown,
            )
        return content.decode()

    def _try(self, source: Source) -> None:
        shown = without_password(source.uri)
        try:
            offers = dnf.query(self.run, source.uri, list(source.expect) or ["*"])
        except DriverError as error:
            reason = error.message.partition(": ")[2].replace(f"repository {dnf.PROBE}", "it")
            raise DriverError(
                f"Cannot read the package source {shown}: {reason} ({source.variable}). Nothing was changed.", url=shown
            ) from error
        for name, version in source.expect.items():
            mine = [package for package in offers if package.name == name]
            if not any(has_version(package, version) for package in mine):
                versions = ", ".join(dict.fromkeys(package.full for package in reversed(mine))) or "no version of it"
                raise DriverError(
                    f"Cannot install {f'{name} {version}'.strip()}: {shown} offers {versions}; set a version that is"
                    " there, or complete the mirror. Nothing was changed.",
                    url=shown,
                )
